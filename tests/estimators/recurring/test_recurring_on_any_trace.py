"""The durations benchmark on traces as other clusters write them: nothing lost unsaid, nothing known too early."""

import gzip
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
import durations as benchmark

from tidegrid.errors import InputError

COLUMNS = ["job_id", "q0.1", "q0.5", "q0.9", "actual"]


def trace(jobs: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    submit = pd.Timestamp("2026-01-05") + pd.to_timedelta(600 * np.arange(jobs), unit="s")
    seconds = np.exp(rng.normal(7.0, 1.5, jobs)).round(1)
    return pd.DataFrame(
        {
            "job_id": [f"j{i}" for i in range(jobs)],
            "submit_time": submit.strftime("%Y-%m-%dT%H:%M:%S"),
            "end_time": (submit + pd.to_timedelta(seconds + 60, unit="s")).strftime("%Y-%m-%dT%H:%M:%S"),
            "duration_s": seconds,
            "gpus": rng.integers(1, 5, jobs),
            "user": rng.choice(["ann", "bob"], jobs),
            "name": "",
            "group": "",
            "status": rng.choice(["COMPLETED", "FAILED"], jobs),
        }
    ).astype(object)


def predicted(
    frame: pd.DataFrame, folder: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None = None
) -> pd.DataFrame:
    path, out = folder / "trace.csv", folder / "out.csv"
    path.write_bytes(frame.to_csv(index=False).encode() if content is None else content)
    monkeypatch.setattr(sys, "argv", ["durations.py", "--trace", str(path), "--predictions", str(out)])
    assert benchmark.main() == 0
    told = pd.read_csv(out, keep_default_na=False, dtype={"job_id": str})
    assert list(told.columns) == COLUMNS
    quantiles = told[COLUMNS[1:4]].to_numpy(dtype=float)
    assert np.isfinite(quantiles).all()
    assert (quantiles >= 0).all()
    assert (np.diff(quantiles, axis=1) >= 0).all()
    return told


def every(n: int, value: object, column: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    def change(frame: pd.DataFrame) -> pd.DataFrame:
        cells = [value if i % n == 0 else cell for i, cell in enumerate(frame[column])]
        return frame.assign(**{column: cells})

    return change


KEPT = {
    "huge": every(7, 1e15, "duration_s"),
    "beyond any float of seconds": every(7, 1e300, "duration_s"),
    "zero": every(2, 0, "duration_s"),
    "infinite walltime": lambda f: f.assign(req_walltime_s=["inf", "", "-1", "1e300", "x"] * 12),
    "infinite CPUs": lambda f: f.assign(cpus="inf", nodes="-1", mem_mb="none"),
    "ends before submits": every(3, "2020-01-01T00:00:00", "end_time"),
    "ends beyond the calendar": every(3, "9999-12-31T23:59:59", "end_time"),
    "no ends": lambda f: f.drop(columns="end_time"),
    "zones of every kind": lambda f: f.assign(
        submit_time=[t + ("", "Z", "+02:00", ".25Z")[i % 4] for i, t in enumerate(f["submit_time"])]
    ),
    "unsorted, ids twice": lambda f: f.sample(frac=1.0, random_state=1).assign(job_id=["a", "b"] * 30),
    "ids blank": every(2, "", "job_id"),
    "nobody named": lambda f: f.drop(columns=["user", "name", "group"]),
    "one user, one duration": lambda f: f.assign(user="ann", duration_s=60, gpus=1),
    "ten jobs": lambda f: f.iloc[:10],
    "fractions of GPUs": every(2, "0.25", "gpus"),
    "no GPUs at all": lambda f: f.assign(gpus="0.0"),
}


@pytest.mark.parametrize("change", KEPT.values(), ids=KEPT.keys())
def test_every_job_of_the_last_half_is_predicted(
    change: Callable[[pd.DataFrame], pd.DataFrame], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = change(trace())
    told = predicted(frame, tmp_path, monkeypatch)
    assert len(told) == len(frame) - len(frame) // 2
    assert set(told["job_id"]) <= set(frame["job_id"])


@pytest.mark.parametrize(
    ("column", "value"),
    [("duration_s", -5), ("duration_s", "inf"), ("duration_s", ""), ("submit_time", "soon"), ("gpus", "")],
)
def test_jobs_that_cannot_be_measured_are_counted_and_left_out(
    column: str,
    value: object,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = predicted(every(6, value, column)(trace()), tmp_path, monkeypatch)
    assert len(told) == 25
    assert f"10 jobs without a usable {column} are left out" in capsys.readouterr().err


def test_jobs_without_gpus_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(predicted(every(6, 0, "gpus")(trace()), tmp_path, monkeypatch)) == 25
    assert "10 jobs without GPUs are not measured" in capsys.readouterr().err


def test_an_end_that_lies_too_early_tells_nothing_of_the_job_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all ends before all submissions, what a job took must still not enter its own answer."""
    early = trace().assign(end_time="2020-01-01T00:00:00")
    other = early.assign(duration_s=early["duration_s"].where(early.index < 59, 1.0))
    first, second = (predicted(frame, tmp_path, monkeypatch) for frame in (early, other))
    pd.testing.assert_frame_equal(first.drop(columns="actual"), second.drop(columns="actual"))


def test_bytes_of_every_origin_are_the_same_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CRLF with a byte-order mark, and a gzip file under another name."""
    plain = predicted(trace(), tmp_path, monkeypatch)
    windows = b"\xef\xbb\xbf" + trace().to_csv(index=False, lineterminator="\r\n").encode()
    for content in (windows, gzip.compress(windows)):
        pd.testing.assert_frame_equal(predicted(trace(), tmp_path, monkeypatch, content), plain)


def test_a_trace_too_short_to_measure_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="has 3 jobs to measure"):
        predicted(trace().iloc[:3], tmp_path, monkeypatch)
