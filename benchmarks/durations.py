"""Measure the recurring-job estimator on a trace of jobs: rolling origin over the last half, refitted 8 times.

    python benchmarks/durations.py --trace FILE [--predictions OUT.csv] [--peers] [--json]
    python benchmarks/durations.py --speed 1000000

FILE is a public trace (plain or .gz): job_id, submit_time, end_time, duration_s, gpus, user, name, group, status and
what else was asked for (req_walltime_s, queue, cpus, nodes, mem_mb, where the source has them). Jobs with GPUs are
measured, however they ended: what is predicted is how long a job holds its GPUs. Each job of the last half is
predicted as of its submission, from the jobs that had finished before it; trees are fitted again at the
start of each eighth, memory and calibration follow in between. Where a trace has no ends, or ends that are too early,
a job counts as known at submission plus duration. Jobs without a usable submission, duration or number of GPUs are
counted and left out. Start times, waits and priorities are never read.

Errors are in log10 seconds: median and mean absolute error, R2, Spearman's rank correlation, and how much the 80 %
band covers; then the same averaged over users (accounts where no users are named).
"""

import argparse
import json
import resource
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tidegrid.data.readers import read_raw
from tidegrid.errors import InputError, TidegridError
from tidegrid.estimators.recurring import RecurringJobEstimator
from tidegrid.files import writing

REFITS = 8
LEVELS = (0.1, 0.5, 0.9)
LONGEST_S = 3e9
"""Seconds beyond which a job counts as never known: 95 years fit into every representation of instants."""
NEVER = ("start_time", "eligible_time", "priority", "first_poll", "wait_s")


def read_trace(path: Path, every_job: bool = False) -> pd.DataFrame:
    """Return the trace's jobs in order of submission, with submit and known as UTC instants and hours."""
    raw, _ = read_raw(path)
    for name in ("job_id", "submit_time", "duration_s", "gpus"):
        if name not in raw.columns:
            raise InputError(
                "the column is missing", file=path, row=1, field=name, fix="give a trace with it"
            )
    raw = raw.drop(columns=[c for c in NEVER if c in raw.columns])
    out = pd.DataFrame({"job_id": raw["job_id"].fillna("").astype(str)})
    out["submit_time"] = pd.to_datetime(raw["submit_time"], utc=True, errors="coerce", format="mixed")
    out["duration_s"] = _numbers(raw["duration_s"])
    out["gpus"] = _numbers(raw["gpus"])
    lasted = pd.to_timedelta(out["duration_s"].clip(upper=LONGEST_S), unit="s")
    out["known_at"] = out["submit_time"] + lasted
    if "end_time" in raw.columns:
        end = pd.to_datetime(raw["end_time"], utc=True, errors="coerce", format="mixed")
        # a job cannot be known before it has run: an end that lies earlier is a clock's error
        out["known_at"] = end.where(end > out["known_at"], out["known_at"])
    limit = next((c for c in ("req_walltime_s", "requested_walltime_s") if c in raw.columns), None)
    if limit:
        asked = _numbers(raw[limit])
        out["requested_walltime_h"] = asked.where(asked > 0) / 3600.0
    for name in ("user", "group", "name", "queue"):
        out[name] = raw[name].fillna("").astype(str) if name in raw.columns else ""
    for name in ("cpus", "nodes", "mem_mb"):
        if name in raw.columns:
            out[name] = _numbers(raw[name])
    for name in ("submit_time", "duration_s", "gpus"):
        without = out[name].isna()
        if without.any():
            print(f"{int(without.sum()):,} jobs without a usable {name} are left out", file=sys.stderr)
            out = out[~without]
    if not every_job and (out["gpus"] > 0).any():
        without = out["gpus"] == 0
        if without.any():
            print(f"{int(without.sum()):,} jobs without GPUs are not measured", file=sys.stderr)
            out = out[~without]
    if len(out) < 4:
        raise InputError(
            f"has {len(out)} jobs to measure", file=path, fix="give a trace of at least 4 GPU jobs"
        )
    return out.sort_values("submit_time", kind="stable").reset_index(drop=True)


def _numbers(cells: pd.Series) -> pd.Series:
    """Return cells as numbers of 0 or more; NaN where one is empty, negative, infinite or no number."""
    numbers = pd.to_numeric(cells, errors="coerce").astype(float)
    return numbers.where((numbers >= 0) & np.isfinite(numbers))


def rolling(jobs: pd.DataFrame, refits: int = REFITS, seed: int = 0) -> pd.DataFrame:
    """Return the quantiles in seconds of each job of the last half, as of its submission."""
    edges = np.unique(np.linspace(len(jobs) // 2, len(jobs), refits + 1).astype(int))
    hours = jobs["duration_s"] / 3600.0
    parts = []
    for start, end in pairwise(edges):
        now = jobs["submit_time"].iloc[start]
        before = jobs.index < start
        done = before & (jobs["known_at"] < now).to_numpy()
        past, open_ = jobs[done], np.flatnonzero(before & ~done)
        estimator = RecurringJobEstimator(outcome="occupancy", seed=seed)
        estimator.fit(past, hours[done], known_at=past["known_at"])
        # jobs under way at the refit become known as they end
        block = np.concatenate([open_, np.arange(start, end)])
        rows = jobs.iloc[block]
        told = estimator.replay(rows, hours.iloc[block], LEVELS, known_at=rows["known_at"])
        parts.append(told.iloc[len(open_) :])
    return pd.concat(parts) * 3600.0


def rolling_median(jobs: pd.DataFrame, window: int = 20) -> pd.DataFrame:
    """Return the peer: quantiles of the last jobs of the same user and GPUs, else the user, else all."""
    who = jobs["user"].where(jobs["user"] != "", jobs["group"])
    submit = jobs["submit_time"].to_numpy()
    known = jobs["known_at"].to_numpy()
    order = np.argsort(known, kind="stable")
    past: dict[tuple[Any, ...], list[float]] = {}
    out = np.full((len(jobs), len(LEVELS)), np.nan)
    keys = [(("ug", w, g), ("u", w), ("all",)) for w, g in zip(who, jobs["gpus"], strict=True)]
    values = np.maximum(jobs["duration_s"].to_numpy(), 1.0)
    j = 0
    for i in range(len(jobs)):
        while j < len(order) and known[order[j]] < submit[i]:
            for key in keys[order[j]]:
                past.setdefault(key, []).append(float(values[order[j]]))
            j += 1
        found = next((past[key] for key in keys[i] if key in past), None)
        if found:
            out[i] = np.quantile(found[-window:], LEVELS)
    return pd.DataFrame(out, columns=list(LEVELS)).iloc[len(jobs) // 2 :]


def measures(actual: pd.Series, told: pd.DataFrame, who: pd.Series) -> dict[str, float]:
    """Return the measures, over jobs and averaged over users."""
    y = np.log10(np.maximum(actual.to_numpy(dtype=float), 1.0))
    q = np.log10(np.maximum(told.to_numpy(dtype=float), 1.0))
    error = np.abs(y - q[:, 1])
    inside = (q[:, 0] <= y) & (y <= q[:, 2])
    by = pd.DataFrame({"error": error, "inside": inside}).groupby(who.to_numpy())
    rank = pd.Series(y).rank().corr(pd.Series(q[:, 1]).rank())
    variance = ((y - y.mean()) ** 2).sum()
    return {
        "jobs": float(len(y)),
        "median_error": float(np.median(error)),
        "mean_error": float(error.mean()),
        "r2": float(1.0 - ((y - q[:, 1]) ** 2).sum() / variance) if variance > 0 else float("nan"),
        "spearman": float(rank),
        "coverage80": float(inside.mean()),
        "band_decades": float(np.median(q[:, 2] - q[:, 0])),
        "users": float(by.ngroups),
        "median_error_by_user": float(by["error"].median().mean()),
        "coverage80_by_user": float(by["inside"].mean().mean()),
    }


def speed(rows: int) -> dict[str, float]:
    """Return CPU seconds and memory of a fit on made-up jobs, and predictions a CPU second."""
    rng = np.random.default_rng(0)
    user = rng.zipf(1.4, rows) % 2000
    recipe = rng.integers(0, 30, rows)
    base = np.random.default_rng(1).normal(0.0, 1.5, (2000, 30))
    jobs = pd.DataFrame(
        {
            "user": np.char.add("u", user.astype(str)).astype(object),
            "group": np.char.add("g", (user % 40).astype(str)).astype(object),
            "name": np.char.add("job-", recipe.astype(str)).astype(object),
            "gpus": 2.0 ** (recipe % 4),
            "requested_walltime_h": 4.0 * (1 + recipe % 6),
            "submit_time": pd.Timestamp("2026-01-01", tz="UTC")
            + pd.to_timedelta(np.sort(rng.uniform(0, 180 * 86400, rows)), unit="s"),
        }
    )
    hours = pd.Series(np.exp(base[user, recipe] + rng.normal(0, 0.5, rows)))
    warm = RecurringJobEstimator().fit(jobs.iloc[:2000], hours.iloc[:2000])
    warm.predict_quantiles(jobs.iloc[:10])
    begin = time.process_time()
    estimator = RecurringJobEstimator().fit(jobs, hours)
    fitted = time.process_time() - begin
    ask = jobs.iloc[-min(20_000, rows) :]
    begin = time.process_time()
    estimator.predict_quantiles(ask)
    answered = time.process_time() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"rows": rows, "fit_cpu_s": fitted, "peak_gib": peak, "predictions_per_cpu_s": len(ask) / answered}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", type=Path, help="the trace, CSV or CSV.gz")
    parser.add_argument("--predictions", type=Path, help="write job_id, q0.1, q0.5, q0.9, actual (seconds)")
    parser.add_argument(
        "--peers", action="store_true", help="show the rolling median of user and GPUs beside"
    )
    parser.add_argument("--refits", type=int, default=REFITS, help="how often to fit again (default 8)")
    parser.add_argument("--first", type=float, help="measure on this first share of the trace only")
    parser.add_argument("--every-job", action="store_true", help="measure jobs without GPUs too")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print the measures as JSON")
    parser.add_argument("--speed", type=int, metavar="ROWS", help="measure speed on made-up jobs instead")
    args = parser.parse_args()
    if args.speed:
        print(json.dumps({k: round(v, 3) for k, v in speed(args.speed).items()}, indent=1))
        return 0
    if args.trace is None:
        parser.error("give --trace FILE or --speed ROWS")
    jobs = read_trace(args.trace, args.every_job)
    if args.first is not None:
        jobs = jobs.iloc[: max(4, int(len(jobs) * args.first))]
    told = rolling(jobs, args.refits, args.seed)
    half = jobs.iloc[len(jobs) // 2 :]
    who = half["user"].where(half["user"] != "", half["group"])
    table = {"tidegrid": measures(half["duration_s"], told, who)}
    if args.peers:
        peer = rolling_median(jobs)
        known = peer[0.5].notna().to_numpy()
        table["rolling median"] = measures(half["duration_s"][known], peer[known], who[known])
    if args.predictions is not None:
        out = told.set_axis([f"q{level}" for level in LEVELS], axis=1)
        out.insert(0, "job_id", half["job_id"])
        out["actual"] = half["duration_s"]
        with writing(args.predictions) as aside:
            out.to_csv(aside, index=False)
    if args.json:
        print(json.dumps(table, indent=1))
        return 0
    names = list(next(iter(table.values())))
    print(f"{'':24}" + "".join(f"{name:>16}" for name in table))
    for name in names:
        print(f"{name:24}" + "".join(f"{row[name]:16.3f}" for row in table.values()))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TidegridError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
