"""Between a bundle and the bytes of its files: JSON, text and npz, never pickle."""

import hashlib
import io
import json
import math
import re
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.lib.format import read_array_header_1_0, read_array_header_2_0

from tidegrid.errors import InputError
from tidegrid.models.bundle import Bundle

PARTS = "bundle.json"
ARRAYS = "arrays.npz"
MOST_BYTES = 512 << 20
"""The most that the files of a version may hold, arrays unpacked."""
SAFE_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,80}")
"""What a file of a version may be called: no folder, no parent, no hidden file."""


def encode(bundle: Bundle) -> dict[str, bytes]:
    """Return the files of a bundle, by name; the same bundle gives the same bytes.

    Returns
    -------
    dict of str to bytes
        ``bundle.json`` (parameters, state, and which text is in which file), ``arrays.npz`` where there are
        arrays, and one file a text.

    Raises
    ------
    TypeError
        A parameter or a piece of state is not a JSON value, or an array holds Python objects; it is named.
    """
    files = _without_arrays(bundle)
    if bundle.arrays:
        files[ARRAYS] = _npz(bundle.arrays)
    return dict(sorted(files.items()))


def _without_arrays(bundle: Bundle) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    texts: dict[str, str] = {}
    for number, name in enumerate(sorted(bundle.texts)):
        slug = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "text"
        texts[name] = f"text-{number:03d}-{slug[:40]}.txt"
        files[texts[name]] = bundle.texts[name].encode("utf-8")
    parts = {
        "estimator": bundle.estimator,
        "params": as_json(bundle.params, "params"),
        "state": as_json(bundle.state, "state"),
        "texts": texts,
    }
    files[PARTS] = canonical(parts)
    return dict(sorted(files.items()))


def decode(files: Mapping[str, bytes], *, folder: str = "bundle") -> Bundle:
    """Rebuild a bundle from its files; nothing in them is ever run.

    Raises
    ------
    InputError
        A file is missing or is not what it should be; it is named.
    """
    if PARTS not in files:
        raise InputError("the file is missing", file=f"{folder}/{PARTS}", fix="use a complete version")
    try:
        parts = json.loads(files[PARTS])
        texts = {name: files[file].decode("utf-8") for name, file in parts["texts"].items()}
        arrays: dict[str, np.ndarray] = {}
        if ARRAYS in files:
            arrays = _unpacked(files[ARRAYS])
        return Bundle(parts["estimator"], parts["params"], parts["state"], arrays, texts)
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        zipfile.BadZipFile,
        RecursionError,
        EOFError,
        NotImplementedError,
        zlib.error,
    ) as error:
        raise InputError(
            f"is not a bundle ({type(error).__name__}: {error})",
            file=folder,
            fix="use a version that verifies",
        ) from None


def _unpacked(data: bytes) -> dict[str, np.ndarray]:
    """Return the arrays of an npz file; sizes are compared with what the headers state before any is unpacked."""
    arrays: dict[str, np.ndarray] = {}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = archive.infolist()
        if sum(entry.file_size for entry in entries) > MOST_BYTES:
            raise ValueError(f"its arrays unpack to more than {MOST_BYTES >> 20} MiB")
        for entry in entries:
            with archive.open(entry) as handle:
                raw = handle.read()
            stream = io.BytesIO(raw)
            read_header = {(1, 0): read_array_header_1_0, (2, 0): read_array_header_2_0}
            shape, _, dtype = read_header[np.lib.format.read_magic(stream)](stream)
            if dtype.hasobject or math.prod(shape) * dtype.itemsize != len(raw) - stream.tell():
                raise ValueError(f"{entry.filename} does not hold the array that its header states")
            name = _unescaped(entry.filename.removesuffix(".npy"))
            arrays[name] = np.lib.format.read_array(io.BytesIO(raw), allow_pickle=False)
    return arrays


def digest(bundle: Bundle) -> str:
    """Return the SHA-256 of a bundle's content, whatever library compressed its arrays.

    Raises
    ------
    TypeError
        As :func:`encode`.
    """
    total = hashlib.sha256()
    for name, data in _without_arrays(bundle).items():
        total.update(f"{name}\0{len(data)}\0".encode())
        total.update(data)
    for name in sorted(bundle.arrays):
        array = np.ascontiguousarray(_plain(name, bundle.arrays[name]))
        total.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        total.update(array.tobytes())
    return total.hexdigest()


def canonical(value: Any) -> bytes:
    """Return ``value`` as JSON with sorted keys and one trailing newline."""
    return (json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, indent=1) + "\n").encode(
        "utf-8"
    )


def as_json(value: Any, where: str) -> Any:
    """Return ``value`` as plain JSON values, tuples as lists.

    Raises
    ------
    TypeError
        A value is not a JSON value (a NumPy integer, a set, NaN) or a key is not text; its path is named.
    """
    if value is None or isinstance(value, bool | str):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise TypeError(f"{where} is {value}; JSON has no such number: store None, or an array")
        return float(value)
    if isinstance(value, list | tuple):
        return [as_json(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(
                    f"{where} has the key {key!r}, which is not text; JSON would change it in silence"
                )
        return {str(key): as_json(item, f"{where}.{key}") for key, item in value.items()}
    raise TypeError(
        f"{where} is a {type(value).__module__}.{type(value).__name__}, which is not a JSON value"
    )


def _npz(arrays: Mapping[str, np.ndarray]) -> bytes:
    # numpy's own savez may stamp the hour into the archive; a fixed date keeps the bytes the same
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name in sorted(arrays):
            array = _plain(name, arrays[name])
            entry = zipfile.ZipInfo(f"{_escaped(name)}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(entry, "w", force_zip64=True) as handle:
                np.lib.format.write_array(handle, array, allow_pickle=False)
    return out.getvalue()


def _plain(name: str, values: Any) -> np.ndarray:
    array = np.asarray(values)
    if array.dtype.hasobject:
        raise TypeError(f"array {name!r} holds Python objects; store it as numbers or text")
    return array


def _escaped(name: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "_-.") else f"%{ord(c):x}%" for c in name)


def _unescaped(name: str) -> str:
    return re.sub(r"%([0-9a-f]+)%", lambda found: chr(int(found[1], 16)), name)
