"""Measure what the realtime forecaster costs: one app updated by one hour, and many apps at once.

    python benchmarks/demand_speed.py [--apps 1000] [--weeks 8] [--horizon 48] [--jobs 2]

Traffic is made up (a weekly rhythm with noise, seeded); compilation is done before the clocks start.
"""

import argparse
import resource
import time
from pathlib import Path

import numpy as np
import pandas as pd

from tidegrid.estimators.realtime import RealtimeEstimator

LEVELS = (0.025, 0.1, 0.5, 0.9, 0.975)


def traffic(apps: int, hours: int) -> pd.DataFrame:
    """Return made-up traffic of many apps."""
    rng = np.random.default_rng(0)
    t = np.arange(hours)
    ds = pd.date_range("2026-01-05", periods=hours, freq="h", tz="UTC")
    parts = []
    for a in range(apps):
        day = 1 + rng.uniform(0.2, 0.8) * np.sin(2 * np.pi * (t % 24 - rng.integers(0, 24)) / 24)
        week = np.where((t // 24) % 7 >= 5, rng.uniform(0.4, 1.0), 1.0)
        values = np.exp(rng.uniform(2, 10)) * day * week * np.exp(0.15 * rng.standard_normal(hours))
        parts.append(pd.DataFrame({"unique_id": f"app-{a:05d}", "ds": ds, "y": values}))
    return pd.concat(parts, ignore_index=True)


def cpu() -> float:
    """Return the CPU seconds of this process and its finished children."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def peak_mib() -> float:
    """Return the peak resident memory of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--apps", type=int, default=1000, help="apps (default 1000)")
    parser.add_argument("--weeks", type=int, default=8, help="weeks of history (default 8)")
    parser.add_argument("--horizon", type=int, default=48, help="hours ahead (default 48)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    arguments = parser.parse_args()
    warm = traffic(3, 24 * 21)
    RealtimeEstimator().fit(warm[["unique_id", "ds"]], warm["y"])
    hours = 24 * 7 * arguments.weeks
    table = traffic(arguments.apps, hours)
    ds = pd.date_range(table["ds"].iloc[-1] + pd.Timedelta(hours=1), periods=arguments.horizon, freq="h")
    ids = table["unique_id"].drop_duplicates()
    ahead = pd.DataFrame(
        {"unique_id": np.repeat(ids.to_numpy(), len(ds)), "ds": np.tile(ds.to_numpy(), len(ids))}
    )
    ahead["ds"] = pd.to_datetime(ahead["ds"], utc=True)
    estimator = RealtimeEstimator(n_jobs=arguments.jobs)
    wall, used = time.perf_counter(), cpu()
    estimator.fit(table[["unique_id", "ds"]], table["y"])
    fitted = cpu() - used
    estimator.predict_quantiles(ahead, LEVELS)
    print(
        f"{arguments.apps} apps of {arguments.weeks} weeks, {arguments.horizon} h ahead: "
        f"{time.perf_counter() - wall:.1f} s wall, {cpu() - used:.1f} CPU s (fit {fitted:.1f}), "
        f"peak {peak_mib():.0f} MiB"
    )
    wall, used = time.perf_counter(), cpu()
    estimator.fit(table[["unique_id", "ds"]], table["y"])
    print(
        f"the same history again: {cpu() - used:.2f} CPU s, {100 * (cpu() - used) / fitted:.1f} % of the first fit"
    )
    one = RealtimeEstimator().fit(*_first(table))
    took = []
    for hour in ds:
        row = pd.DataFrame({"unique_id": [ids.iloc[0]], "ds": [hour]})
        start = time.process_time()
        one.update(row, pd.Series([float(table["y"].iloc[0])]))
        took.append(1000 * (time.process_time() - start))
    middle, high = np.quantile(took, (0.5, 0.9))
    print(f"one app updated by one hour: median {middle:.2f} ms CPU, 90th percentile {high:.2f}")


def _first(table: pd.DataFrame) -> tuple[pd.DataFrame, pd.Series]:
    part = table[table["unique_id"] == table["unique_id"].iloc[0]]
    return part[["unique_id", "ds"]], part["y"]


if __name__ == "__main__":
    main()
