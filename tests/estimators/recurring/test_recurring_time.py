"""Nothing from the future, online updates, remaining time, open jobs."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recurring_cases import START, history, jobs_of, one

from tidegrid.errors import InputError
from tidegrid.estimators.recurring import RecurringJobEstimator
from tidegrid.estimators.recurring.keys import RUNGS, rung_keys

LEVELS = (0.1, 0.5, 0.9)


def test_what_becomes_known_later_changes_nothing_before() -> None:
    """Case D4, to the bit: durations that end after a submission are altered at will."""
    X, y = history(700, seed=3)
    known = X["submit_time"] + pd.to_timedelta(y, unit="h")
    cut = X["submit_time"].iloc[550]
    late = known >= cut
    other = y.where(~late, y * 7.0 + 100.0)
    answers = []
    for hours in (y, other):
        told_at = X["submit_time"] + pd.to_timedelta(hours, unit="h")
        past = (told_at < X["submit_time"].iloc[400]).to_numpy() & (np.arange(700) < 400)
        estimator = RecurringJobEstimator().fit(X[past], hours[past], known_at=told_at[past])
        rest = ~past
        told = estimator.replay(X[rest], hours[rest], LEVELS, known_at=told_at[rest])
        answers.append(told[(X["submit_time"][rest] <= cut).to_numpy()])
    assert len(answers[0]) > 100
    assert answers[0].to_numpy().tobytes() == answers[1].to_numpy().tobytes()


def test_a_replay_answers_as_predictions_made_one_by_one() -> None:
    """The sweep over many rows and a caller who updates after each end give the same distribution."""
    X, y = history(260, seed=5)
    first, second = slice(0, 200), slice(200, 260)
    known = X["submit_time"] + pd.to_timedelta(y, unit="h")
    past = known[first] < X["submit_time"].iloc[200]
    one_go = RecurringJobEstimator(outcome="occupancy").fit(X[first][past], y[first][past])
    told = one_go.replay(X[second], y[second], (0.5,), known_at=known[second])
    stepped = RecurringJobEstimator(outcome="occupancy").fit(X[first][past], y[first][past])
    expected = []
    done = np.zeros(260, dtype=bool)
    for i in range(200, 260):
        now = X["submit_time"].iloc[i]
        ready = np.flatnonzero(~done[200:i] & (known.iloc[200:i] < now).to_numpy()) + 200
        if len(ready):
            stepped.update(X.iloc[ready], y.iloc[ready], known_at=known.iloc[ready])
            done[ready] = True
        waiting = [j for j in range(200, i + 1) if not done[j]]
        stepped.note_open(X.iloc[waiting])
        expected.append(stepped.predict(X.iloc[[i]]).iloc[0])
    ratio = told[0.5].to_numpy() / np.array(expected)
    # the idle time since the last submission is all that the two may see differently
    assert np.median(np.abs(np.log(ratio))) < 0.02


def test_an_update_moves_the_answer_at_once() -> None:
    X, y = history(300)
    estimator = RecurringJobEstimator().fit(X, y)
    before = estimator.predict(one(user="u1", group="g1", gpus=1.0)).iloc[0]
    late = START + pd.Timedelta(days=35)
    mine = pd.DataFrame({"user": "u1", "group": "g1", "gpus": 1.0, "submit_time": [late] * 40})
    estimator.update(
        mine, pd.Series([before * 20] * 40), known_at=pd.Series([late + pd.Timedelta(days=2)] * 40)
    )
    assert estimator.predict(one(user="u1", group="g1", gpus=1.0)).iloc[0] > 3 * before


def test_an_unfitted_estimator_learns_from_updates_alone() -> None:
    X, y = jobs_of("me", [4.0] * 20)
    estimator = RecurringJobEstimator()
    for i in range(20):
        estimator.update(X.iloc[[i]], y.iloc[[i]])
    assert estimator.predict(one(user="me", group="g")).iloc[0] == pytest.approx(4.0, rel=0.1)
    assert estimator.basis(one(user="me")).iloc[0] == "site history: user+gpus, 20 jobs"


def test_remaining_time_is_given_that_the_job_has_run_so_long() -> None:
    """Case P13: an overrun job is never done, and never ends in the past."""
    X, y = jobs_of("me", [6.0] * 40)
    estimator = RecurringJobEstimator().fit(X, y)
    job = one(user="me", group="g")
    early = estimator.predict_remaining(job, 1.0)[0.5].iloc[0]
    assert early == pytest.approx(5.0, rel=0.1)
    late = estimator.predict_remaining(job, 7.0)
    assert (late.to_numpy() > 0).all() and late[0.9].iloc[0] > late[0.5].iloc[0]
    with pytest.raises(InputError, match="elapsed_h"):
        estimator.predict_remaining(job, -1.0)


def test_open_jobs_are_told_anew_each_time_and_change_no_duration_remembered() -> None:
    X, y = history(400)
    estimator = RecurringJobEstimator().fit(X, y)
    job = one(user="u1", group="g1", gpus=1.0)
    before = estimator.predict_quantiles(job)
    estimator.note_open(pd.concat([job] * 20, ignore_index=True))
    estimator.note_open(job.iloc[:0])
    after = estimator.predict_quantiles(job)
    assert np.allclose(before.to_numpy(), after.to_numpy(), rtol=0.5)
    assert estimator.basis(job).equals(RecurringJobEstimator().fit(X, y).basis(job))


def test_keys_are_the_same_in_every_order_and_type() -> None:
    X, _ = history(50)
    checked = X.assign(queue="", cpus=np.nan, nodes=np.nan, mem_mb=np.nan, asked_gpus=np.nan)
    keys = rung_keys(checked)
    assert keys.shape == (50, len(RUNGS))
    order = np.random.default_rng(0).permutation(50)
    assert np.array_equal(rung_keys(checked.iloc[order]), keys[order])


JOBS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", ""]),
        st.sampled_from(["g", ""]),
        st.sampled_from(["train-1", "eval", ""]),
        st.sampled_from([0.0, 1.0, 8.0]),
        st.floats(0.0, 1e6),
        st.booleans(),
    ),
    min_size=1,
    max_size=30,
)


@settings(max_examples=25)
@given(JOBS, st.sampled_from(["completed", "occupancy"]))
def test_for_any_past_quantiles_are_ordered_finite_and_saved_whole(jobs: list, outcome: str) -> None:
    """Cases D2 and D9's round trip."""
    X = pd.DataFrame([j[:4] for j in jobs], columns=["user", "group", "name", "gpus"])
    X["submit_time"] = START + pd.to_timedelta(np.arange(len(X)), unit="h")
    y, observed = pd.Series([j[4] for j in jobs]), pd.Series([j[5] for j in jobs])
    kept = X.copy(deep=True), y.copy(), observed.copy()
    estimator = RecurringJobEstimator(outcome=outcome).fit(X, y, observed=observed)
    levels = (0.01, 0.1, 0.5, 0.9, 0.99)
    told = estimator.predict_quantiles(X, levels)
    values = told.to_numpy()
    assert np.isfinite(values).all() and (values > 0).all()
    assert (np.diff(values, axis=1) >= 0).all()
    assert X.equals(kept[0]) and y.equals(kept[1]) and observed.equals(kept[2])
    again = RecurringJobEstimator.from_bundle(estimator.to_bundle()).predict_quantiles(X, levels)
    assert again.to_numpy().tobytes() == values.tobytes()
