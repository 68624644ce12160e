"""A LightGBM model's text is validated before the library sees it: it predicts the same, or is refused by name."""

import re

import lightgbm as lgb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegrid.errors import InputError
from tidegrid.estimators.boosted import booster_of, sound_text


def _grown(objective: str = "regression", leaves: int = 6, trees: int = 5) -> tuple[lgb.Booster, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.random((400, 4))
    X[:, 3] = rng.integers(0, 40, 400)
    y = X[:, 0] + (X[:, 3] % 3) + 1.0
    params = {
        "objective": objective, "num_leaves": leaves, "verbose": -1, "num_threads": 1, "deterministic": True
    }  # fmt: skip
    return lgb.train(params, lgb.Dataset(X, y, categorical_feature=[3]), trees), X


@pytest.mark.parametrize("objective", ["regression", "l1", "fair", "quantile", "huber"])
def test_a_sound_model_predicts_the_same_to_the_bit(objective: str) -> None:
    booster, X = _grown(objective)
    loaded = booster_of(booster.model_to_string(), 4)
    X = np.vstack([X, np.full((1, 4), np.nan)])
    assert loaded.predict(X, num_threads=1).tobytes() == booster.predict(X, num_threads=1).tobytes()
    assert (
        loaded.predict(X, pred_contrib=True, num_threads=1).tobytes()
        == booster.predict(X, pred_contrib=True, num_threads=1).tobytes()
    )


def test_a_model_of_single_leaves_loads() -> None:
    X, y = np.zeros((50, 2)), np.ones(50)
    booster = lgb.train({"objective": "regression", "verbose": -1}, lgb.Dataset(X, y), 2)
    assert booster_of(booster.model_to_string()).predict(X).tolist() == booster.predict(X).tolist()


TEXT = _grown()[0].model_to_string()


def _changed(field: str, value: str) -> str:
    assert re.search(rf"^{field}=", TEXT, re.MULTILINE), field
    return re.sub(rf"^{field}=.*$", f"{field}={value}", TEXT, count=1, flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("left_child", "1 2 3 4 999", "child"),
        ("left_child", "0 0 0 0 0", "loop"),
        ("right_child", "-99 -2 -3 -4 -5", "child"),
        ("split_feature", "99 0 0 0 0", "split_feature"),
        ("split_feature", "0 0", "split_feature"),
        ("leaf_value", "nan 0 0 0 0 0", "leaf_value"),
        ("threshold", "inf 0 0 0 0", "threshold"),
        ("num_leaves", "1000000000", "num_leaves"),
        ("num_leaves", "0", "num_leaves"),
        ("max_feature_idx", "2000000000", "max_feature_idx"),
        ("max_feature_idx", "0", "feature"),
        ("num_tree_per_iteration", "7", "num_tree_per_iteration"),
        ("objective", "lambdarank", "objective"),
        ("num_cat", "5", "num_cat"),
        ("is_linear", "1", "linear"),
        ("feature_names", "a b", "feature_names"),
    ],
)
def test_a_tampered_field_is_refused_by_name(field: str, value: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        booster_of(_changed(field, value))


def test_sizes_of_trees_that_lie_are_ignored() -> None:
    booster, X = _grown()
    lying = _changed("tree_sizes", "999999999 1 1 1 1")
    assert booster_of(lying).predict(X).tolist() == booster.predict(X).tolist()


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
def test_a_model_cut_short_is_refused(share: float) -> None:
    with pytest.raises(InputError):
        booster_of(TEXT[: int(len(TEXT) * share)].partition("end of trees")[0])


@given(st.integers(0, len(TEXT.partition("end of trees")[0]) - 1), st.text(max_size=6), st.integers(0, 40))
@settings(max_examples=150, deadline=None)
def test_random_damage_is_refused_or_still_a_sound_tree(at: int, put: str, gone: int) -> None:
    damaged = TEXT[:at] + put + TEXT[at + gone :]
    try:
        again = sound_text(damaged)
    except InputError:
        return
    assert sound_text(again) == again
    booster = booster_of(damaged)
    assert np.isfinite(booster.predict(np.zeros((2, booster.num_feature())))).all()
