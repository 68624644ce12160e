"""``import tidegrid`` offers what a notebook needs, and loads nothing before it is asked for."""

import subprocess
import sys

import pytest

import tidegrid


@pytest.mark.parametrize("name", sorted(set(tidegrid.__all__) - {"__version__"}))
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(tidegrid, name).__name__ in (name, "Estimating")
    assert name in dir(tidegrid)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Sitee'"):
        tidegrid.Sitee  # noqa: B018


def test_importing_tidegrid_loads_nothing_heavy() -> None:
    code = "import sys, tidegrid; print([m for m in ('numpy', 'pandas', 'lightgbm', 'pydantic') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
