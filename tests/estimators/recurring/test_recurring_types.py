"""GPU types: what ran on one is scaled to another by their data sheets, with a wide band."""

import numpy as np
import pandas as pd
import pytest
from recurring_cases import history, jobs_of, one

from tidegrid.estimators.gpus import find
from tidegrid.estimators.recurring import RecurringJobEstimator
from tidegrid.models.codec import decode, encode

LEVELS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
OLD, NEW = "A100-SXM-80GB", "H100-SXM-80GB"
RATIO = find(NEW)[0].speed / find(OLD)[0].speed


def on(*types: str, user: str = "u0") -> pd.DataFrame:
    return pd.concat([one(user=user, gpus=4.0, gpu_type=name) for name in types], ignore_index=True)


def test_a_faster_type_is_faster_by_its_data_sheet_and_less_sure() -> None:
    X, y = history(600)
    fitted = RecurringJobEstimator().fit(X.assign(gpu_type=OLD), y)
    told = fitted.predict_quantiles(on(OLD, NEW, "V100-SXM-32GB", "no such type", ""), LEVELS)
    same, fast, slow, unknown, silent = (told.iloc[i] for i in range(5))
    plain = RecurringJobEstimator().fit(X, y).predict_quantiles(on(OLD), LEVELS).iloc[0]
    assert same.equals(plain) and unknown.equals(same) and silent.equals(same)
    assert fast[0.5] == pytest.approx(same[0.5] / RATIO) and fast[0.1] == pytest.approx(same[0.1] / RATIO)
    assert same[0.9] / RATIO < fast[0.9] < same[0.9] < slow[0.9]
    for other in (fast, slow):
        assert other[0.9] / other[0.1] > 1.5 * same[0.9] / same[0.1] and (np.diff(other) >= 0).all()
    basis = fitted.basis(on(OLD, NEW))
    assert "data sheets" not in basis.iloc[0] and basis.iloc[1].endswith("by their data sheets")


def test_a_history_that_tells_no_type_knows_no_difference() -> None:
    told = RecurringJobEstimator().fit(*history(200)).predict_quantiles(on(OLD, NEW), LEVELS)
    assert told.iloc[0].equals(told.iloc[1])


def test_each_users_past_is_scaled_from_the_types_that_it_ran_on() -> None:
    X, y = jobs_of("old", [2.0] * 40)
    Z, z = jobs_of("new", [2.0] * 40)
    fitted = RecurringJobEstimator().fit(X.assign(gpu_type=OLD), y)
    fitted.update(Z.assign(gpu_type=NEW), z)
    again = RecurringJobEstimator.from_bundle(decode(encode(fitted.to_bundle())))
    for estimator in (fitted, again):
        at = [estimator.predict_quantiles(on(OLD, NEW, user=user), (0.5,))[0.5] for user in ("old", "new")]
        assert at[0].iloc[1] == pytest.approx(at[0].iloc[0] / RATIO)
        assert at[1].iloc[0] == pytest.approx(at[1].iloc[1] * RATIO)
