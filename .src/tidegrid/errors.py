"""Errors that a user can act on: one line that names the place, what is wrong, and what would be right."""

from pathlib import Path


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
    """

    def __init__(
        self,
        problem: str,
        *,
        file: str | Path | None = None,
        row: int | None = None,
        field: str | None = None,
        fix: str | None = None,
    ) -> None:
        self.problem = problem
        self.file = None if file is None else str(file)
        self.row = row
        self.field = field
        self.fix = fix
        where = [str(file)] if file is not None else []
        where += [f"row {row}"] if row is not None else []
        where += [field] if field is not None else []
        text = ": ".join([", ".join(where), problem] if where else [problem])
        super().__init__(f"{text}; {fix}" if fix else text)

    def in_file(self, file: str | Path) -> "InputError":
        """Return the same error with the file named."""
        return type(self)(self.problem, file=file, row=self.row, field=self.field, fix=self.fix)


class NotFittedError(TidegridError):
    """An estimator was asked to predict before it was fitted."""
