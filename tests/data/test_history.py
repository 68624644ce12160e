"""A view at an instant holds what was known then, and nothing that became known later can change it."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables_by_chance import instant, job_rows, traffic_rows

from tidegrid.data import History, request_features
from tidegrid.data.synth import SampleCluster, synthesise
from tidegrid.errors import InputError

MOMENTS = st.integers(0, 3 * 365 * 86400)


@pytest.fixture(scope="module")
def sample() -> SampleCluster:
    return synthesise(5, days=21, gpus=32)


def same(a: History, b: History) -> None:
    pd.testing.assert_frame_equal(a.jobs, b.jobs)
    pd.testing.assert_frame_equal(a.traffic, b.traffic)


def rewritten(history: History, cutoff: pd.Timestamp, seed: int) -> History:
    """The same history with everything changed that became known after the cutoff."""
    rng = np.random.default_rng(seed)
    jobs, traffic = history.jobs, history.traffic
    began = jobs["start_time"].fillna(jobs["submit_time"])
    later = (jobs["known_at"] > cutoff) & (jobs["status"] != "running")
    jobs["status"] = jobs["status"].mask(later, "failed")
    jobs["duration_s"] = jobs["duration_s"].mask(later, 12345.0)
    jobs["raw_status"] = jobs["raw_status"].mask(later, "UNHEARD")
    shift = pd.to_timedelta(rng.integers(1, 10**6, len(jobs)), unit="s")
    jobs["known_at"] = jobs["known_at"].mask(later, jobs["known_at"] + shift)
    jobs["end_time"] = jobs["end_time"].mask(later, jobs["known_at"])
    jobs["scratch"] = np.where(later, 1.0, np.nan)
    unseen = jobs["submit_time"] > cutoff
    jobs["gpus"] = jobs["gpus"].mask(unseen, 7)
    not_begun = began > cutoff
    jobs["start_time"] = jobs["start_time"].mask(not_begun & jobs["start_time"].notna(), jobs["known_at"])
    keep = ~(unseen & (rng.random(len(jobs)) < 0.5))
    jobs = jobs[keep].sample(frac=1.0, random_state=seed)
    over = traffic["timestamp"] + pd.Timedelta(hours=1) > cutoff
    traffic["value"] = traffic["value"].mask(over, 1e6)
    return History(jobs, traffic, checked=True)


@pytest.mark.parametrize("hours", [30, 100, 257, 400])
def test_a_changed_future_leaves_the_view_identical(sample: SampleCluster, hours: int) -> None:
    """Case D4: ends, outcomes, durations, later jobs, later traffic all changed: the same view to the bit."""
    cutoff = sample.now - pd.Timedelta(hours=hours)
    view = sample.history.as_of(cutoff)
    other = rewritten(sample.history, cutoff, hours).as_of(cutoff)
    assert other.jobs.pop("scratch").isna().all()
    pd.testing.assert_frame_equal(other.jobs.drop(columns="scratch"), view.jobs)
    pd.testing.assert_frame_equal(other.traffic, view.traffic)
    for mine, theirs in zip(view.training_frame(), other.training_frame(), strict=True):
        pd.testing.assert_index_equal(mine.index, theirs.index)
        assert mine.equals(theirs)


@given(job_rows(), traffic_rows(), MOMENTS, MOMENTS)
def test_views_are_monotone(
    jobs: list[dict[str, object]], traffic: list[dict[str, object]], first: int, second: int
) -> None:
    """The view of a view is the earlier view; nothing known is forgotten."""
    history = History(pd.DataFrame(jobs), pd.DataFrame(traffic))
    early, late = sorted((instant(first), instant(second)))
    same(history.as_of(late).as_of(early), history.as_of(early))
    a, b = history.as_of(early), history.as_of(late)
    assert set(a.jobs["job_id"]) <= set(b.jobs["job_id"])
    assert len(a.finished()) <= len(b.finished()) and len(a.traffic) <= len(b.traffic)


@given(job_rows(), MOMENTS)
def test_a_view_shows_nothing_later_than_its_instant(jobs: list[dict[str, object]], moment: int) -> None:
    now = instant(moment)
    view = History(pd.DataFrame(jobs)).as_of(now)
    table = view.jobs
    for column in ("submit_time", "start_time", "end_time", "known_at"):
        assert not (table[column] > now).any()
    running = view.running()
    assert running["duration_s"].isna().all() and running["end_time"].isna().all()


def test_a_job_under_way_appears_without_its_end() -> None:
    row = {
        "job_id": "a",
        "kind": "training",
        "status": "failed",
        "raw_status": "OUT_OF_MEMORY",
        "submit_time": "2026-03-02T00:00:00Z",
        "start_time": "2026-03-02T02:00:00Z",
        "end_time": "2026-03-02T05:00:00Z",
        "gpus": 4,
        "exit_code": 137,
        "seq_len": 4096,
    }
    history = History(pd.DataFrame([row]))
    assert len(history.as_of("2026-03-02T01:00:00Z")) == 0
    assert list(history.queued("2026-03-02T01:00:00Z")["job_id"]) == ["a"]
    job = history.as_of("2026-03-02T03:00:00Z").jobs.iloc[0]
    assert job["status"] == "running" and job["raw_status"] == "" and job["seq_len"] == 4096
    assert pd.isna(job["end_time"]) and pd.isna(job["duration_s"]) and pd.isna(job["exit_code"])
    assert history.as_of("2026-03-02T05:00:00Z").jobs.iloc[0]["status"] == "failed"


def test_the_hour_under_way_is_not_known() -> None:
    traffic = pd.DataFrame(
        {
            "series_id": "a",
            "timestamp": pd.date_range("2026-03-02", periods=3, freq="h", tz="UTC"),
            "value": 1.0,
        }
    )
    assert len(History(traffic=traffic).as_of("2026-03-02T02:59:00Z").traffic) == 2


def test_a_view_cannot_look_past_its_instant(sample: SampleCluster) -> None:
    view = sample.history.as_of(sample.now - pd.Timedelta(days=3))
    with pytest.raises(InputError, match="the view ends at"):
        view.as_of(sample.now)
    with pytest.raises(InputError, match="no time zone"):
        view.as_of("2026-03-02")


def test_what_is_handed_out_cannot_change_the_history(sample: SampleCluster) -> None:
    before = sample.history.jobs.copy(deep=True)
    for frame in (sample.history.jobs, sample.history.finished(), sample.history.training_frame()[0]):
        frame.loc[:, "gpus"] = 99
    y = sample.history.training_frame()[1]
    y.iloc[:] = -1.0
    pd.testing.assert_frame_equal(sample.history.jobs, before)


def test_training_frames_tell_finished_from_censored(sample: SampleCluster) -> None:
    X, y, observed, known_at = sample.history.training_frame("training")
    assert (X["kind"] == "training").all() and (y > 0).all()
    assert observed.dtype == bool and 0 < (~observed).sum() < observed.sum()
    assert known_at.max() <= sample.now
    assert {"variant", "requested_walltime_h"} <= set(X.columns)
    assert not {"status", "duration_s", "start_time", "end_time", "raw_status", "known_at"} & set(X.columns)
    assert len(X) == len(y) == len(observed) == len(known_at)


def test_running_jobs_count_as_lower_bounds_where_asked(sample: SampleCluster) -> None:
    plain = sample.history.training_frame()
    X, y, observed, _ = sample.history.training_frame(running=True)
    assert len(X) == len(plain[0]) + len(sample.history.running()) and (y > 0).all()
    assert (~observed).sum() == (~plain[2]).sum() + len(sample.history.running())
    with pytest.raises(InputError, match="without an instant"):
        History(sample.history.jobs, checked=True).training_frame(running=True)


def test_features_of_requests_and_history_have_the_same_names(sample: SampleCluster) -> None:
    X = sample.history.training_frame()[0]
    R = request_features(sample.requests, columns=("priority",))
    assert set(R.columns) - {"priority"} <= set(X.columns) | {"rollout_tokens"}
    assert list(R.index) == list(sample.requests.index)
