"""Where the middle of an answer lies: at a cluster of past durations, or at the trees' median."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recurring_cases import START, history

from tidegrid.estimators.recurring import RecurringJobEstimator
from tidegrid.estimators.recurring.calibration import GRID
from tidegrid.estimators.recurring.centre import (
    CHOICES,
    LEAN,
    THRESHOLDS,
    Record,
    choices,
    clusters,
    moved,
)

HALF = int(np.searchsorted(GRID, 0.5))


def two_clusters(share: float) -> np.ndarray:
    """Quantiles of a job that takes 20 minutes with this share, and about ten hours else."""
    levels = np.where(share >= GRID, 0.02 * GRID, 3.4 + 0.02 * GRID)
    return (np.log(1 / 3) + levels)[None, :]


@pytest.mark.parametrize("share", [0.35, 0.6, 0.8])
def test_the_densest_cluster_is_found_with_its_belief(share: float) -> None:
    mass, middle = clusters(two_clusters(share))
    assert mass[0] == pytest.approx(max(share, 1 - share), abs=0.06)
    assert middle[0] == pytest.approx(np.log(1 / 3) + (0.0 if share > 0.5 else 3.4), abs=0.05)


def test_a_cluster_answers_where_it_holds_enough_belief_and_leans_towards_the_trees() -> None:
    quantiles, trees = np.repeat(two_clusters(0.6), 2, axis=0), np.array([2.0, 2.0])
    told = choices(quantiles, trees, np.array([False, True]))
    usual, always, never = (THRESHOLDS.index(v) for v in (0.45, 0.0, 2.0))
    assert told[0, usual] == told[0, always] == pytest.approx(np.log(1 / 3) + LEAN, abs=0.05)
    assert told[0, never] == 2.0 and told[0, -1] == quantiles[0, HALF]
    # other recipes' past clusters too, and says little of a recipe that is new
    assert (told[1, :-1] == 2.0).all()


@given(st.lists(st.floats(-8.0, 10.0), min_size=len(GRID), max_size=len(GRID)), st.floats(-12.0, 12.0))
def test_moved_quantiles_are_ordered_and_have_the_wanted_median(values: list[float], middle: float) -> None:
    """Case D2."""
    told = moved(np.sort(np.array(values))[None, :], np.array([middle]))
    assert (np.diff(told) >= 0).all() and told[0, HALF] == middle


def test_a_record_chooses_what_has_been_closest_and_forgets_the_old() -> None:
    record, when = Record(), np.arange(3000.0)
    errors = np.ones((3000, CHOICES))
    errors[:1000, 1] = 0.5
    errors[1000:, 4] = 0.5
    chosen = record.follow(when, when + 0.5, errors)
    assert chosen[10] == CHOICES - 1 and chosen[900] == 1 and chosen[2900] == 4
    assert record.best() == 4


def test_a_record_knows_only_what_had_become_known() -> None:
    """Case D4: outcomes that become known at a submission or after it change nothing."""
    rng = np.random.default_rng(0)
    submit, errors = np.arange(400.0), rng.random((400, CHOICES))
    known = submit + rng.exponential(40.0, 400)
    first = Record().follow(submit, known, errors)
    errors[known >= 250.0] = rng.random((int((known >= 250.0).sum()), CHOICES))
    again = Record().follow(submit, known, errors)
    assert (first[submit <= 250.0] == again[submit <= 250.0]).all()


def test_a_user_who_mostly_repeats_is_answered_by_what_repeats() -> None:
    """Four jobs in five take 20 minutes, the fifth takes ten hours: the answer is no time between."""
    X, y = history(900, seed=4)
    rng = np.random.default_rng(0)
    mine = X.iloc[::3].index
    X.loc[mine, ["user", "name", "gpus"]] = ["me", "mine", 1.0]
    X.loc[mine, "requested_walltime_h"] = 12.0
    y.loc[mine] = np.where(rng.random(len(mine)) < 0.8, 1 / 3, 10.0)
    estimator = RecurringJobEstimator().fit(X, y)
    job = X.loc[mine[:1]].assign(submit_time=START + pd.Timedelta(days=40))
    assert estimator.predict(job).iloc[0] < 1 / 3 * 1.7


def test_the_record_is_saved_and_an_estimator_saved_without_one_still_answers() -> None:
    from dataclasses import replace

    X, y = history(900)
    estimator = RecurringJobEstimator().fit(X, y)
    bundle = estimator.to_bundle()
    loaded = RecurringJobEstimator.from_bundle(bundle)
    assert loaded.learner_.record.weight == estimator.learner_.record.weight > 0
    assert (loaded.learner_.record.losses == estimator.learner_.record.losses).all()
    state = {k: v for k, v in bundle.state.items() if k != "record"}
    older = RecurringJobEstimator.from_bundle(replace(bundle, state={**state, "way": [1.0, 2.0]}))
    assert not older.learner_.text and np.isfinite(older.predict(X).to_numpy()).all()
