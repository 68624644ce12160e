"""Slurm's notation for lists: nodes (``a[1-3],v1``) and indices (``0-3,6``)."""

import re
from collections.abc import Iterable

from tidegrid.errors import InputError

MOST_NODES = 100_000
"""The most names that one list stands for."""

_RANGE = re.compile(r"^(\d{1,9})(?:-(\d{1,9}))?$")
_NAME = re.compile(r"^[A-Za-z0-9_.\-]+$")


def nodes_of(text: str) -> list[str]:
    """Return the node names that a list stands for, in its order.

    Raises
    ------
    InputError
        It is no such list, or stands for more than ``MOST_NODES`` names.

    Examples
    --------
    >>> nodes_of("a[08-10,12],v1")
    ['a08', 'a09', 'a10', 'a12', 'v1']
    """
    out: list[str] = []
    for part in _parts(text.strip()):
        out += _expanded(part, text)
        if len(out) > MOST_NODES:
            raise _refused(text, f"stands for more than {MOST_NODES:,} nodes")
    return out


def _parts(text: str) -> list[str]:
    """Split at the commas that stand outside of brackets."""
    return [part for part in re.split(r",(?![^\[]*\])", text) if part]


def _expanded(part: str, text: str) -> list[str]:
    head, bracket, rest = part.partition("[")
    if not bracket:
        if not _NAME.match(part):
            raise _refused(text, "is not a list of nodes")
        return [part]
    inside, bracket, tail = rest.partition("]")
    if not bracket or (head and not _NAME.match(head)):
        raise _refused(text, "is not a list of nodes")
    tails = _expanded(tail, text) if tail else [""]
    out: list[str] = []
    for piece in inside.split(","):
        first, last, width = _range(piece, text)
        if (last - first + 1) * len(tails) + len(out) > MOST_NODES:
            raise _refused(text, f"stands for more than {MOST_NODES:,} nodes")
        out += [f"{head}{number:0{width}d}{end}" for number in range(first, last + 1) for end in tails]
    return out


def _range(piece: str, text: str) -> tuple[int, int, int]:
    match = _RANGE.match(piece.strip())
    if match is None or (match.group(2) and int(match.group(2)) < int(match.group(1))):
        raise _refused(text, "is not a list")
    return int(match.group(1)), int(match.group(2) or match.group(1)), len(match.group(1))


def indices_of(text: str, most: int) -> list[int]:
    """Return the indices that a list stands for, sorted; ``most`` is how many there may be.

    Raises
    ------
    InputError
        It is no such list, names an index twice, or stands for too many.

    Examples
    --------
    >>> indices_of("6,0-2", 8)
    [0, 1, 2, 6]
    """
    out: list[int] = []
    for piece in re.split(r"[,\s]+", text.strip()):
        first, last, _ = _range(piece, text)
        if last - first >= most or len(out) + last - first >= most:
            raise _refused(text, f"stands for more than {most:,} GPUs")
        out += range(first, last + 1)
    if len(set(out)) < len(out):
        raise _refused(text, "names a GPU twice")
    return sorted(out)


def as_indices(numbers: Iterable[int]) -> str:
    """Return sorted indices as a list; the inverse of :func:`indices_of`.

    Examples
    --------
    >>> as_indices([0, 1, 2, 6])
    '0-2,6'
    """
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def as_nodes(names: Iterable[str]) -> str:
    """Return names as a list; the inverse of :func:`nodes_of` but for the order.

    Examples
    --------
    >>> as_nodes(["a08", "a09", "a10", "a12", "v1"])
    'a[08-10,12],v1'
    """
    families: dict[tuple[str, int], list[int]] = {}
    plain: list[str] = []
    for name in names:
        match = re.search(r"\d{1,9}$", name)
        if match is None:
            plain.append(name)
        else:
            families.setdefault((name[: match.start()], len(match[0])), []).append(int(match[0]))
    out = []
    for (head, width), numbers in families.items():
        if len(numbers) == 1:
            out.append(f"{head}{numbers[0]:0{width}d}")
            continue
        runs = [piece.split("-") for piece in as_indices(numbers).split(",")]
        out.append(f"{head}[{','.join('-'.join(f'{int(end):0{width}d}' for end in run) for run in runs)}]")
    return ",".join([*out, *plain])


def _refused(text: str, problem: str) -> InputError:
    shown = text if len(text) <= 60 else text[:57] + "…"
    return InputError(f"{shown!r} {problem}", fix="write names such as a[1-3],v1, or indices such as 0-3,6")
