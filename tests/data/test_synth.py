"""The synthetic cluster: deterministic, labelled, consistent, and rich enough to learn from."""

import hashlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tidegrid.data import (
    KINDS,
    VARIANTS,
    check_running,
    read_cluster,
    read_jobs,
    read_requests,
    read_running,
    read_traffic,
)
from tidegrid.data.synth import SampleCluster, synthesise
from tidegrid.data.synth.physics import hours_of
from tidegrid.errors import InputError


@pytest.fixture(scope="module")
def sample() -> SampleCluster:
    return synthesise(0)


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        synthesise(seed, days=14, gpus=32).write(tmp_path / name)
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    assert digests(tmp_path / "a")["jobs.csv"] != digests(tmp_path / "c")["jobs.csv"]


def test_its_files_read_back_to_the_sample(sample: SampleCluster, tmp_path: Path) -> None:
    paths = sample.write(tmp_path / "site")
    pd.testing.assert_frame_equal(read_jobs(paths["jobs"]), sample.history.jobs)
    pd.testing.assert_frame_equal(read_traffic(paths["traffic"]), sample.history.traffic)
    pd.testing.assert_frame_equal(read_requests(paths["requests"]), sample.requests)
    pd.testing.assert_frame_equal(read_running(paths["running"]), sample.running)
    assert read_cluster(paths["cluster"]) == sample.cluster


def test_it_says_that_it_is_synthetic(sample: SampleCluster, tmp_path: Path) -> None:
    paths = sample.write(tmp_path / "site")
    assert sample.synthetic and read_cluster(paths["cluster"]).synthetic
    assert "synthetic" in (tmp_path / "site" / "SYNTHETIC.txt").read_text()


def test_every_kind_variant_algorithm_and_outcome_is_there(sample: SampleCluster) -> None:
    jobs = sample.history.jobs
    assert set(jobs["kind"]) == set(KINDS)
    assert set(jobs["variant"]) - {""} == set(VARIANTS)
    assert set(jobs["algorithm"]) - {""} == {"awq", "gptq", "bitsandbytes"}
    assert set(jobs["status"]) == {"completed", "failed", "cancelled", "timeout", "running"}
    assert 0.05 < (jobs["status"] == "failed").mean() < 0.4
    assert jobs.duplicated("job_id").any(), "the outage's victims are queued again under their id"


def test_jobs_recur_and_wait(sample: SampleCluster) -> None:
    jobs = sample.history.jobs
    assert jobs.groupby(["user", "name"]).size().median() >= 5
    wait = (jobs["start_time"] - jobs["submit_time"]).dt.total_seconds()
    assert (wait >= 0).all() and (wait > 600).mean() > 0.05


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("gpus", [8, 32, 64])
def test_the_present_is_legal_and_contended(seed: int, gpus: int) -> None:
    """Blocks fit pools, nodes and apps; the queue asks for a good part of a day of the cluster, or more."""
    sample = synthesise(seed, days=14, gpus=gpus)
    check_running(sample.cluster, sample.running)
    assert len(sample.requests) == 26 and sample.cluster.gpus == gpus
    assert (sample.requests["submit_time"] <= sample.now).all()
    assert set(sample.running["job_id"]) == set(sample.history.running()["job_id"])
    assert not set(sample.requests["job_id"]) & set(sample.history.jobs["job_id"])
    largest = max(pool.gpus for pool in sample.cluster.pools)
    assert sample.requests["max_gpus"].max() <= largest
    rows = sample.requests.to_dict("records")
    work = sum(r["gpus"] * hours_of(r, r["gpu_type"] or "A100-SXM-80GB", r["gpus"]) for r in rows)
    assert work > 0.25 * 24 * gpus, "less than the apps leave free"


def test_never_more_gpus_in_use_than_there_are(sample: SampleCluster) -> None:
    jobs = sample.history.jobs
    ends = jobs["end_time"].fillna(sample.now)
    for pool in sample.cluster.pools:
        here = jobs["gpu_type"] == pool.gpu_type
        moves = pd.concat([
            pd.Series(jobs.loc[here, "gpus"].to_numpy(), index=jobs.loc[here, "start_time"]),
            pd.Series(-jobs.loc[here, "gpus"].to_numpy(), index=ends[here]),
        ])  # fmt: skip
        # at one instant what ends gives its GPUs back before what starts takes them
        moves = moves.sort_values().sort_index(kind="stable")
        assert moves.cumsum().max() <= pool.gpus


def test_traffic_has_a_weekly_rhythm_gaps_and_an_outage(sample: SampleCluster) -> None:
    traffic = sample.history.traffic
    assert traffic["value"].isna().sum() > 10 and (traffic["value"] == 0).any()
    code = traffic[traffic["series_id"] == "code"].dropna()
    local = code["timestamp"].dt.tz_convert(sample.cluster.timezone).dt
    night, weekend = local.hour < 5, local.day_of_week >= 5
    assert code["value"][~night & ~weekend].mean() > 2 * code["value"][night].mean()
    assert code["value"][~night & ~weekend].mean() > 1.8 * code["value"][~night & weekend].mean()


def test_durations_follow_the_features(sample: SampleCluster) -> None:
    """The sample can be learnt from: physics explains most of the spread, and not all of it."""
    jobs = sample.history.finished()
    physics = np.array([hours_of(r, r["gpu_type"], r["gpus"]) for r in jobs.to_dict("records")])
    error = np.log(jobs["duration_s"] / 3600 / physics)
    assert 0.1 < error.std() < 0.5 and abs(error.median()) < 0.3


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"gpus": 0}, "gpus"),
        ({"days": 1}, "days"),
        ({"users": 0}, "users"),
        ({"queue": -1}, "queue"),
        ({"seed": -1}, "seed"),
        ({"now": "2026-04-14"}, "now"),
        ({"now": "2026-04-14T06:30:00Z"}, "now"),
        ({"timezone": "Nowhere"}, "timezone"),
    ],
)
def test_a_parameter_out_of_range_is_named(arguments: dict[str, object], field: str) -> None:
    with pytest.raises(InputError) as error:
        synthesise(**{"seed": 0, **arguments})  # type: ignore[arg-type]
    assert error.value.field == field
