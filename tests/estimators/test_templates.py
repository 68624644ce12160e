"""The templates that outsiders start from are honest estimators, and as short as they are said to be."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tidegrid.estimators import Estimator
from tidegrid.estimators.testing import check_estimator

TEMPLATES = Path(__file__).parents[2] / "docs" / "templates"
CASES = [(20, "GpuHours"), (60, "Embedding"), (150, "Boosted")]


def loaded(lines: int, name: str) -> type[Estimator]:
    path = TEMPLATES / f"estimator_{lines}_lines.py"
    spec = importlib.util.spec_from_file_location(f"template_{lines}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return getattr(module, name)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("lines", "name"), CASES)
def test_a_template_keeps_the_contract(lines: int, name: str) -> None:
    check_estimator(loaded(lines, name))


@pytest.mark.parametrize(("lines", "name"), CASES)
def test_a_template_is_as_short_as_it_says(lines: int, name: str) -> None:
    text = (TEMPLATES / f"estimator_{lines}_lines.py").read_text(encoding="utf-8")
    assert lines - 15 <= len(text.splitlines()) <= lines


@pytest.mark.parametrize(("lines", "name"), [(20, "GpuHours"), (150, "Boosted")])
def test_its_band_covers_what_it_says(lines: int, name: str) -> None:
    """Simulated: 400 jobs to learn from, 2,000 to be judged by."""
    rng = np.random.default_rng(0)
    gpus = rng.choice([1.0, 2.0, 4.0, 8.0], 2400)
    hours = 20.0 / gpus * np.exp(rng.normal(0, 0.5, 2400))
    X = pd.DataFrame({"gpus": gpus, "user": "u"})
    fitted = loaded(lines, name)().fit(X[:400], pd.Series(hours[:400]))
    out = fitted.predict_quantiles(X[400:], (0.1, 0.9)).to_numpy()
    inside = (hours[400:] >= out[:, 0]) & (hours[400:] <= out[:, 1])
    assert 0.75 < inside.mean() < 0.87


def test_a_point_that_is_no_duration_is_refused_by_name() -> None:
    from tidegrid.errors import InputError

    class Wild(loaded(20, "GpuHours")):  # type: ignore[misc]
        def point(self, X: pd.DataFrame, learnt: dict) -> np.ndarray:
            return np.full(len(X), np.nan)

    with pytest.raises(InputError, match=r"Wild\.point"):
        Wild().fit(pd.DataFrame({"gpus": [1.0, 2.0]}), pd.Series([1.0, 2.0]))
