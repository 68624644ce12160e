"""The command line as tests call it."""

import pytest

from tidegrid.app.cli import app
from tidegrid.app.common import run


def call(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    """Run the command line in this process: exit code, standard output, standard error."""
    with pytest.raises(SystemExit) as left:
        run(app, [str(word) for word in argv])
    out, err = capsys.readouterr()
    assert isinstance(left.value.code, int)
    return left.value.code, out, err
