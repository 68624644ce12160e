"""Machine code on disk that never outlives its source.

numba looks only at the file of the function that is called, not at those of the functions that it calls, so a
change in one module would leave old code in the cache of another.
"""

import contextlib
import hashlib
from pathlib import Path

from tidegrid.files import write_text

_STAMP = "sources.sha256"


def drop_stale(cache: str | None, sources: Path) -> None:
    """Delete the compiled functions in a folder unless they were made from these very sources.

    Parameters
    ----------
    cache
        The folder where numba keeps the functions; None where it keeps none.
    sources
        The folder of the modules. Whatever cannot be read or written is passed over in silence.
    """
    if cache is None:
        return
    folder = Path(cache)
    with contextlib.suppress(OSError, ValueError):
        digest = hashlib.sha256()
        for source in sorted(sources.glob("*.py")):
            digest.update(source.read_bytes())
        stamp = folder / _STAMP
        if stamp.is_file() and stamp.read_text(encoding="ascii") == digest.hexdigest():
            return
        if folder.is_dir():
            for index in folder.glob("*.nb[ic]"):
                index.unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(stamp, digest.hexdigest())
