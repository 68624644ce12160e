"""Where rows came from, and the one way in which a row that cannot be used is refused or set aside."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from tidegrid.data.cells import as_text
from tidegrid.errors import InputError

Text = str | Callable[[int], str]
"""What is wrong with a row: the same for every row, or made from a row's position."""


@dataclass
class Log:
    """What is wrong with the rows of one file, for a reader that goes on without them.

    Attributes
    ----------
    groups
        The problems, those of one kind together; a cell has one problem at most.
    cells
        The (row, field) that have one.
    rows
        The rows that have one, by their number in the file.
    """

    groups: list[list[InputError]] = field(default_factory=list)
    cells: set[tuple[int, str]] = field(default_factory=set)
    rows: set[int] = field(default_factory=set)

    def set_aside(self) -> list[InputError]:
        """Return one problem for each row that has any, in the order of the rows."""
        first: dict[int, InputError] = {}
        for group in self.groups:
            for problem in group:
                first.setdefault(problem.row or 0, problem)
        return [first[row] for row in sorted(first)]


@dataclass(frozen=True)
class Source:
    """Where a frame's rows came from, so that errors can name them.

    Parameters
    ----------
    file
        The file, where there is one.
    rows : ndarray of shape (rows,), optional
        Each row's number in the file, the header being row 1; counted from the position where absent.
    log
        Where problems are noted; without one the first of them raises.
    items : ndarray of shape (rows,), optional
        What each row is about, such as ``"job 17"``.
    """

    file: str | Path | None = None
    rows: np.ndarray | None = None
    log: Log | None = None
    items: np.ndarray | None = None

    def row(self, position: int) -> int:
        """Return the row number of the row at a position."""
        return position + 2 if self.rows is None else int(self.rows[position])

    def take(self, keep: np.ndarray) -> "Source":
        """Return the source of the rows where ``keep`` (shape (rows,), bool, or positions) says so."""
        rows = self.rows
        if rows is None:
            size = len(keep) if keep.dtype == bool else int(keep.max(initial=-1)) + 1
            rows = np.arange(size) + 2
        return Source(self.file, rows[keep], self.log, None if self.items is None else self.items[keep])

    def about(self, frame: pd.DataFrame, kind: str, column: str) -> "Source":
        """Return the source with the rows' names, which only a log needs."""
        if self.log is None or self.items is not None or column not in frame.columns:
            return self
        names = as_text(frame[column]).to_numpy(dtype=object)
        items = np.array([f"{kind} {name}" if name else None for name in names], dtype=object)
        return Source(self.file, self.rows, self.log, items)

    def refuse(self, bad: np.ndarray, field: str, problem: Text, fix: str) -> None:
        """Note each bad row in the log; without a log raise for the first, saying how many more there are.

        Raises
        ------
        InputError
            Some row is bad, and there is no log.
        """
        if not bad.any():
            return
        at = [int(i) for i in np.flatnonzero(bad)]
        if self.log is None:
            error = self._error(at[0], field, problem, fix)
            raise self._counted(error, len(at))
        at = [i for i in at if (self.row(i), field) not in self.log.cells]
        if at:
            self.log.groups.append([self._error(i, field, problem, fix) for i in at])
            self.log.cells.update((self.row(i), field) for i in at)
            self.log.rows.update(self.row(i) for i in at)

    def good(self, size: int) -> np.ndarray:
        """Return which of its ``size`` rows have no problem. Shape (rows,), bool."""
        if self.log is None or not self.log.rows:
            return np.ones(size, dtype=bool)
        rows = np.arange(size) + 2 if self.rows is None else self.rows
        return ~np.isin(rows, np.fromiter(self.log.rows, dtype="int64"))

    def usable(self, frame: pd.DataFrame) -> tuple[pd.DataFrame, "Source"]:
        """Return the rows that have no problem, and where these stand in the file."""
        good = self.good(len(frame))
        if good.all():
            return frame, self
        return frame[good].reset_index(drop=True), self.take(good)

    def refuse_whole_file(self, rows: int, left: int, *, may_be_empty: bool) -> None:
        """Raise where no row of a file is left: it is the file that cannot be used, and not a row of it.

        A file of one row, and one whose rows have different problems, may be left with none where it may be empty.

        Raises
        ------
        InputError
            The problem that all rows have, or the first of them.
        """
        if self.log is None or left or not rows:
            return
        every = [group for group in self.log.groups if len(group) >= rows]
        if (every and rows > 1) or not may_be_empty:
            group = every[0] if every else self.log.groups[0]
            raise self._counted(group[0], len(group))

    def _error(self, at: int, field: str, problem: Text, fix: str) -> InputError:
        text = problem if isinstance(problem, str) else problem(at)
        item = None if self.items is None else self.items[at]
        return InputError(text, file=self.file, row=self.row(at), field=field, fix=fix, item=item)

    @staticmethod
    def _counted(error: InputError, count: int) -> InputError:
        more = count - 1
        also = f" (and in {more:,} more row{'s' if more > 1 else ''})" if more else ""
        return InputError(
            error.problem + also,
            file=error.file,
            row=error.row,
            field=error.field,
            fix=error.fix,
            item=error.item,
        )
