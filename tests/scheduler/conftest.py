"""What the scheduler's tests share: their strategies, and the contract's own checker as an oracle."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# Tests are imported by path; this lets them say `from strategies import problems`.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def contract_check(
    shared: Path,
) -> Callable[[dict[str, Any], dict[str, Any]], tuple[list[str], dict[str, Any]]]:
    """The contract's checker: (problem, plan) as JSON objects to (violations, figures)."""
    spec = importlib.util.spec_from_file_location("check_plan", shared / "contract" / "check_plan.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.check
