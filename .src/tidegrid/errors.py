"""Errors that a user can act on: one line that names the place, what is wrong, and what would be right."""

import re
from pathlib import Path
from typing import Any

CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters: C0, C1, line and direction marks, surrogates."""

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str, keep: str = "") -> str:
    r"""Return a text with its :data:`CONTROL` characters escaped, so on one line, but for those to ``keep``.

    Examples
    --------
    >>> printable("a\x1b[2Jb\n")
    'a\\x1b[2Jb\\n'
    """
    return CONTROL.sub(lambda found: found[0] if found[0] in keep else _escaped(found[0]), text)


def _escaped(mark: str) -> str:
    return _SHORT.get(mark) or (f"\\x{ord(mark):02x}" if ord(mark) < 256 else f"\\u{ord(mark):04x}")


class TidegridError(Exception):
    """Base of every error that tidegrid raises on purpose.

    The command line prints it as one line, without a traceback, and exits with code 2.
    """


class InputError(TidegridError, ValueError):
    """Input that cannot be used.

    Parameters
    ----------
    problem
        What is wrong, as a clause without a full stop.
    file
        The file that holds the input, where there is one.
    row
        The row, counted as a person counts: the header of a table is row 1.
    field
        The column or the JSON path.
    fix
        What would be right.
    item
        The job or the series that the row is about, such as ``"job 17"``; told in :meth:`to_dict`.
    """

    def __init__(
        self,
        problem: str,
        *,
        file: str | Path | None = None,
        row: int | None = None,
        field: str | None = None,
        fix: str | None = None,
        item: str | None = None,
    ) -> None:
        self.problem = problem
        self.file = None if file is None else str(file)
        self.row = row
        self.field = field
        self.fix = fix
        self.item = item
        where = [str(file)] if file is not None else []
        where += [f"row {row}"] if row is not None else []
        where += [field] if field is not None else []
        text = ": ".join([", ".join(where), problem] if where else [problem])
        super().__init__(printable(f"{text}; {fix}" if fix else text))

    def in_file(self, file: str | Path) -> "InputError":
        """Return the same error with the file named."""
        return type(self)(
            self.problem, file=file, row=self.row, field=self.field, fix=self.fix, item=self.item
        )

    def to_dict(self) -> dict[str, Any]:
        """Return its parts as JSON values."""
        return {
            "file": self.file,
            "row": self.row,
            "item": self.item,
            "field": self.field,
            "problem": self.problem,
            "fix": self.fix,
        }


class NotFittedError(TidegridError):
    """An estimator was asked to predict before it was fitted."""
