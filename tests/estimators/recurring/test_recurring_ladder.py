"""Which past answers, what is said about it, and what lower bounds do."""

import numpy as np
import pandas as pd
import pytest
from recurring_cases import history, jobs_of, one

from tidegrid.errors import InputError
from tidegrid.estimators.recurring import RecurringJobEstimator


@pytest.mark.parametrize("jobs", [1, 5, 50])
def test_the_basis_counts_the_past_jobs_of_the_user(jobs: int) -> None:
    X, y = history(200)
    mine, hours = jobs_of("me", [2.0] * jobs, group="g9")
    X, y = pd.concat([X, mine], ignore_index=True), pd.concat([y, hours], ignore_index=True)
    estimator = RecurringJobEstimator().fit(X, y)
    plural = "s" if jobs > 1 else ""
    assert estimator.basis(one(user="me")).iloc[0] == f"site history: user+gpus, {jobs} job{plural}"
    assert estimator.basis(one(user="me", gpus=64.0)).iloc[0] == f"site history: user, {jobs} job{plural}"


def test_without_a_past_of_the_user_the_group_answers_then_the_site_then_the_prior() -> None:
    X, y = history(200)
    estimator = RecurringJobEstimator().fit(X, y)
    in_group = int((X["group"] == "g1").sum())
    assert estimator.basis(one(user="new", group="g1")).iloc[0] == f"site history: group, {in_group} jobs"
    assert estimator.basis(one(user="new", group="g7")).iloc[0] == "site history: site, 200 jobs"
    assert RecurringJobEstimator().basis(one(user="new")).iloc[0] == "prior: no past jobs"


def test_a_name_counts_without_its_digits() -> None:
    X, y = jobs_of("me", [2.0] * 6)
    estimator = RecurringJobEstimator().fit(X.assign(name=[f"train-{i}" for i in range(6)]), y)
    assert estimator.basis(one(user="me", name="train-77")).iloc[0] == "site history: user+gpus+name, 6 jobs"
    assert estimator.basis(one(user="me", name="other")).iloc[0] == "site history: user+gpus, 6 jobs"


@pytest.mark.parametrize("hours", [0.02, 3.0, 40.0])
def test_a_user_who_always_takes_as_long_is_expected_to(hours: float) -> None:
    X, y = history(300)
    mine, own = jobs_of("me", [hours] * 30)
    known = pd.Series(mine["submit_time"] + pd.to_timedelta(own, unit="h"))
    estimator = RecurringJobEstimator().fit(X, y).update(mine, own, known_at=known)
    median = estimator.predict(one(user="me", group="g")).iloc[0]
    assert hours / 1.1 < median < hours * 1.1


def test_the_band_narrows_as_a_users_past_grows() -> None:
    X, y = history(300)
    widths = []
    for jobs in (0, 1, 5, 30):
        mine, own = jobs_of("me", [2.0] * jobs)
        estimator = RecurringJobEstimator().fit(X, y)
        if jobs:
            estimator.update(mine, own)
        q = estimator.predict_quantiles(one(user="me", group="g")).iloc[0]
        widths.append(np.log(q[0.9] / q[0.1]))
    assert widths[0] > widths[1] > widths[3]
    assert widths[2] > widths[3]


def test_unfitted_the_prior_is_wide() -> None:
    q = RecurringJobEstimator().predict_quantiles(one(user="me")).iloc[0]
    assert q[0.1] < 0.05 and q[0.9] > 10
    assert q[0.5] == pytest.approx(0.5, rel=0.05)


def test_jobs_cut_short_are_lower_bounds_of_completion_and_outcomes_of_occupancy() -> None:
    """Half of the jobs are cancelled after six minutes, the others run for five hours."""
    X, y = jobs_of("me", [0.1, 5.0] * 30)
    known = X["submit_time"] + pd.Timedelta(hours=5)
    observed = y > 1.0
    done = RecurringJobEstimator().fit(X, y, observed=observed, known_at=known)
    held = RecurringJobEstimator(outcome="occupancy").fit(X, y, observed=observed, known_at=known)
    assert done.predict_quantiles(one(user="me", group="g"), (0.2,)).iloc[0, 0] > 2.0
    assert held.predict_quantiles(one(user="me", group="g"), (0.2,)).iloc[0, 0] < 0.3


def test_all_jobs_cut_short_are_expected_to_take_longer_than_that() -> None:
    X, y = jobs_of("me", [3.0] * 40)
    observed = pd.Series(False, index=y.index)
    median = RecurringJobEstimator().fit(X, y, observed=observed).predict(one(user="me", group="g")).iloc[0]
    assert median > 3.0


def test_an_unknown_outcome_is_refused_by_name() -> None:
    X, y = jobs_of("me", [1.0])
    with pytest.raises(InputError, match="outcome"):
        RecurringJobEstimator(outcome="ended").fit(X, y)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
def test_a_duration_that_is_none_is_refused_with_its_row(bad: float) -> None:
    """Case D7."""
    X, y = jobs_of("me", [1.0, bad, 2.0])
    with pytest.raises(InputError, match="row 3"):
        RecurringJobEstimator().fit(X, y)


def test_a_duration_of_zero_counts_as_a_second() -> None:
    """Case D7."""
    X, y = jobs_of("me", [0.0] * 30)
    q = RecurringJobEstimator().fit(X, y).predict_quantiles(one(user="me", group="g"))
    assert np.isfinite(q.to_numpy()).all() and (q.to_numpy() > 0).all()
    assert q[0.5].iloc[0] == pytest.approx(1 / 3600, rel=0.1)


@pytest.mark.parametrize("limit", [0.0, None, float("nan")])
def test_a_request_without_a_limit_gets_a_finite_answer(limit: float | None) -> None:
    """Case D7: unlimited, zero or missing walltime is no walltime; never an infinite or empty block."""
    X, y = history(300)
    q = RecurringJobEstimator().fit(X, y).predict_quantiles(one(user="u1", requested_walltime_h=limit))
    assert np.isfinite(q.to_numpy()).all() and (q.to_numpy() > 0).all()


def test_an_infinite_limit_is_refused_by_name() -> None:
    X, y = history(60)
    with pytest.raises(InputError, match="requested_walltime_h"):
        RecurringJobEstimator().fit(X, y).predict_quantiles(one(requested_walltime_h=np.inf))


def test_a_requeued_job_is_two_attempts() -> None:
    """Case D5: rows are never merged by an id; both attempts are remembered."""
    X, y = jobs_of("me", [1.0, 1.0])
    estimator = RecurringJobEstimator().fit(X.assign(job_id="17"), y)
    assert estimator.basis(one(user="me")).iloc[0].endswith("2 jobs")


def test_no_answer_goes_past_the_walltime_where_jobs_end_at_it() -> None:
    X, y = jobs_of("me", [20.0] * 30)
    X["requested_walltime_h"] = 24.0
    held = (
        RecurringJobEstimator()
        .fit(X, y)
        .predict_quantiles(one(user="me", requested_walltime_h=2.0), (0.5, 0.99))
    )
    assert (held.to_numpy() <= 2.0 * 1.03).all()
    X["requested_walltime_h"] = 10.0
    loose = RecurringJobEstimator().fit(X, y).predict(one(user="me", requested_walltime_h=2.0)).iloc[0]
    assert loose > 2.1
