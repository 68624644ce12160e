"""Who is champion: an append-only log of decisions, and the aliases that it leads to.

The log is written first and a complete line of it decides; ``aliases.json`` repeats the last line whole, so
that either file alone is enough to find the champion.
"""

import contextlib
import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from tidegrid.errors import InputError
from tidegrid.models.durable import MOST_TEXT, append_line, read_bounded, refusal, replace_file
from tidegrid.models.manifest import VERSION

LOG = "log.jsonl"
ALIASES = "aliases.json"

Number = Annotated[int, Field(ge=0, lt=1 << 53)]
Id = Annotated[str, Field(pattern=f"^{VERSION.pattern}$")]


@dataclass(frozen=True)
class Entry:
    """One decision, and the aliases after it.

    Parameters
    ----------
    seq
        Its number, from 1.
    at
        The UTC instant that the caller gave.
    action
        ``save``, ``promote``, ``rollback``, ``prune`` or ``reject``.
    version
        The version that it is about.
    reason
        Why.
    champion, challenger
        The aliases after it; None for none.
    ancestors
        Earlier champions, the oldest first: where rollback goes.
    last
        The highest sequence number ever given to a version, so that none is used twice.
    """

    seq: Number = 0
    at: str = ""
    action: str = ""
    version: Id | None = None
    reason: str = ""
    champion: Id | None = None
    challenger: Id | None = None
    ancestors: tuple[Id, ...] = ()
    last: Number = 0


_SCHEMA = TypeAdapter(Entry)


def state(folder: Path) -> Entry:
    """Return the last decision in an estimator's folder; needs no lock and writes nothing.

    Raises
    ------
    InputError
        There are a log and aliases, and neither can be read.
    """
    found = [entry for entry in (_aliases(folder / ALIASES), _last(folder / LOG)) if entry is not None]
    if found:
        return max(found, key=lambda entry: entry.seq)
    # a first line that a kill cut short is no damage: nothing was ever decided
    for name, there in ((LOG, bool(_lines(folder / LOG))), (ALIASES, (folder / ALIASES).is_file())):
        if there:
            fix = f"restore it, or delete {LOG} and {ALIASES} and promote a version"
            raise InputError("is damaged", file=folder / name, fix=fix)
    return Entry()


def entries(folder: Path) -> list[Entry]:
    """Return the decisions in order; damaged lines are left out (see :func:`problems`)."""
    return [entry for entry in _lines(folder / LOG) if entry is not None]


def record(folder: Path, before: Entry, **changes: Any) -> Entry:
    """Write a decision: the log's line first, which decides, then the aliases. The caller holds the lock.

    Raises
    ------
    InputError
        The log cannot be written; nothing has changed.
    """
    entry = replace(before, seq=before.seq + 1, **changes)
    try:
        append_line(folder / LOG, _sealed(entry))
    except OSError as error:
        raise refusal(error, folder / LOG) from None
    # the line stands, so a failure here changes nothing for readers; the next decision writes both
    with contextlib.suppress(OSError):
        replace_file(folder / ALIASES, _sealed(entry) + b"\n")
    return entry


def problems(folder: Path) -> list[tuple[str, str]]:
    """Return the damaged parts of log and aliases, as (file, what is wrong)."""
    out = []
    for number, entry in enumerate(_lines(folder / LOG), start=1):
        if entry is None:
            out.append((LOG, f"line {number} does not match its hash"))
    if (folder / ALIASES).is_file() and _aliases(folder / ALIASES) is None:
        out.append((ALIASES, "does not match its hash"))
    return out


def _sealed(entry: Entry) -> bytes:
    body = json.dumps(asdict(entry), sort_keys=True, ensure_ascii=False)
    total = hashlib.sha256(body.encode()).hexdigest()[:16]
    return json.dumps({**asdict(entry), "sum": total}, sort_keys=True, ensure_ascii=False).encode()


def _unsealed(line: bytes) -> Entry | None:
    try:
        body = json.loads(line)
        body.pop("sum")
        entry = _SCHEMA.validate_json(json.dumps(body), strict=True)
        return entry if _sealed(entry) == line else None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _aliases(path: Path) -> Entry | None:
    return _unsealed(read_bounded(path, MOST_TEXT).removesuffix(b"\n")) if path.exists() else None


def _last(path: Path) -> Entry | None:
    return next((entry for entry in reversed(_lines(path)) if entry is not None), None)


def _lines(path: Path) -> list[Entry | None]:
    if not path.exists():
        return []
    raw = read_bounded(path, MOST_TEXT)
    # what follows the last newline was cut short by a kill and never decided anything
    return [_unsealed(line) for line in raw.split(b"\n")[:-1]]
