"""Other sizes than the one asked for, lower bounds, means, and whether the past or the trees answer."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recurring_cases import history, jobs_of, one

from tidegrid.estimators.recurring import RecurringJobEstimator
from tidegrid.estimators.recurring.ladder import GRID, foretold, sample
from tidegrid.estimators.recurring.memory import Past

LEVELS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
FITTED = RecurringJobEstimator().fit(*history(600))


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(["u0", "u5", "new"]),
    st.sampled_from([1.0, 3.0, 4.0, 64.0]),
    st.sampled_from([None, 2.0, 48.0]),
)
def test_no_level_is_longer_on_more_gpus_than_asked_for(user: str, asked: float, limit: float | None) -> None:
    """Case D10, at every quantile: a history says nothing about sizes that were not run."""
    sizes = [1.0, 2.0, 3.0, 4.0, 8.0, 16.0, 64.0]
    rows = pd.concat([one(user=user, gpus=g) for g in sizes], ignore_index=True)
    told = FITTED.predict_quantiles(
        rows.assign(asked_gpus=asked, requested_walltime_h=limit), LEVELS
    ).to_numpy()
    assert (np.diff(told, axis=0) <= 1e-12).all() and (np.diff(told, axis=1) >= 0).all()


def test_hours_at_another_size_are_cautious_wider_and_said_to_be_scaled() -> None:
    rows = pd.concat([one(user="u0", gpus=g) for g in (2.0, 4.0, 8.0)], ignore_index=True).assign(
        asked_gpus=4.0
    )
    told = FITTED.predict_quantiles(rows)
    few, asked, many = (told.iloc[i] for i in range(3))
    assert many[0.5] == pytest.approx(asked[0.5]) and few[0.5] == pytest.approx(2 * asked[0.5])
    for other in (few, many):
        assert other[0.9] / other[0.1] > 1.5 * asked[0.9] / asked[0.1]
    basis = FITTED.basis(rows)
    assert (
        basis.iloc[0].endswith("; scaled from 4 GPUs, the size asked for") and "scaled" not in basis.iloc[1]
    )
    plain = FITTED.predict_quantiles(rows.iloc[[1]].drop(columns="asked_gpus"))
    assert plain.to_numpy().tobytes() == told.iloc[[1]].to_numpy().tobytes()


def test_the_mean_of_equal_runs_is_their_duration() -> None:
    X, y = jobs_of("me", [1.0] * 60)
    assert RecurringJobEstimator().fit(X, y).predict_mean(one(user="me", group="g")).iloc[0] < 1.5


@pytest.mark.parametrize("users", [40, 200])
def test_lower_bounds_do_not_bias_the_median(users: int) -> None:
    """Log-normal durations, a fifth of them cut short at a limit that knows nothing of the duration."""
    rng = np.random.default_rng(users)
    true, limit = np.exp(rng.normal(0.0, 1.0, 2000)), np.exp(rng.normal(1.19, 1.0, 2000))
    X, _ = jobs_of("me", [1.0] * 2000)
    X["user"] = [f"u{k}" for k in rng.integers(0, users, 2000)]
    observed = pd.Series(true <= limit)
    assert 0.17 < 1 - observed.mean() < 0.23
    estimator = RecurringJobEstimator().fit(X, pd.Series(np.minimum(true, limit)), observed=observed)
    # at many hours after the last end: at one hour alone the trees' chance answer for it would be measured
    late = X["submit_time"].iloc[-1] + pd.Timedelta(days=1)
    ask = X.iloc[:400].assign(submit_time=late + pd.to_timedelta(37 * np.arange(400), unit="min"))
    assert abs(np.log(estimator.predict(ask)).mean()) < 0.1


def past_of(hours: list[float], exact: list[bool]) -> Past:
    """The past of one row whose only rung is the site."""
    values, seen = np.full((1, 7, 48), np.nan), np.ones((1, 7, 48), dtype=bool)
    values[0, 6, : len(hours)], seen[0, 6, : len(exact)] = np.log(hours), exact
    return Past(values, seen, *(np.zeros((1, 7)) for _ in range(4)))


def test_a_lower_bound_hands_its_belief_to_the_longer_durations() -> None:
    plain = sample(past_of([1.0, 4.0], [True, True]))[1]
    for bound in (0.6, 1.5):
        values, weight = (a[0] for a in sample(past_of([1.0, bound, 4.0], [True, False, True])))
        assert weight.sum() == pytest.approx(1.0, abs=1e-6) and (weight >= 0).all()
        assert weight[np.isclose(values, np.log(bound))] == pytest.approx(0.0, abs=1e-7)
        assert weight[np.isclose(values, np.log(4.0))] > plain[0].max() / 2


@given(
    st.lists(st.floats(0.001, 1000.0), max_size=48),
    st.lists(st.booleans(), min_size=48, max_size=48),
    st.none() | st.floats(-12.0, 12.0),
)
def test_any_past_foretells_ordered_quantiles(
    hours: list[float], exact: list[bool], told: float | None
) -> None:
    """Case D2."""
    trees = None if told is None else np.array([told])
    quantiles = foretold(*sample(past_of(hours, exact[: len(hours)])), trees)
    assert quantiles.shape == (1, len(GRID))
    assert np.isfinite(quantiles).all() and (np.diff(quantiles) >= 0).all()


@pytest.mark.parametrize(("told", "expected"), [(1 / 3, 1 / 3), (10.0, 10.0)])
def test_of_two_durations_that_recur_the_one_near_the_trees_answer_is_foretold(
    told: float, expected: float
) -> None:
    past = sample(past_of([1 / 3, 10.0] * 16, [True] * 32))
    quantiles = foretold(*past, np.array([np.log(told)]))
    assert np.exp(quantiles[0, GRID == 0.5]) == pytest.approx(expected, rel=1e-5)
    alone = foretold(*past)
    assert np.exp(alone[0, [6, -7]]) == pytest.approx([1 / 3, 10.0], rel=1e-5)


def test_a_user_who_mostly_repeats_is_answered_by_what_repeats() -> None:
    """Four jobs in five take 20 minutes, the fifth takes ten hours: the answer is no time between."""
    X, y = history(900, seed=4)
    rng = np.random.default_rng(0)
    mine = X.iloc[::3].index
    X.loc[mine, ["user", "name", "gpus"]] = ["me", "mine", 1.0]
    X.loc[mine, "requested_walltime_h"] = 12.0
    y.loc[mine] = np.where(rng.random(len(mine)) < 0.8, 1 / 3, 10.0)
    estimator = RecurringJobEstimator().fit(X, y)
    assert estimator.predict(one(user="me", group="g0", name="mine", gpus=1.0)).iloc[0] < 1 / 3 * 1.7


def test_an_estimator_of_an_older_release_is_refused_by_name() -> None:
    from dataclasses import replace

    from tidegrid.errors import InputError

    bundle = FITTED.to_bundle()
    arrays = {k: v for k, v in bundle.arrays.items() if k != "transforms"}
    with pytest.raises(InputError, match="older release"):
        RecurringJobEstimator.from_bundle(replace(bundle, arrays=arrays))
