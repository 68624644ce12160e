"""Reading history at scale: CPU seconds and peak memory to write, read, cut and frame a large job history.

The rows are made up from a seed; only their number matters.
"""

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tidegrid.data import History, read_jobs, write_table


def made_up(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    start = pd.Timestamp("2024-01-01", tz="UTC")
    submit = pd.Series(start + pd.to_timedelta(np.sort(rng.integers(0, 365 * 86400, rows)), unit="s"))
    return pd.DataFrame(
        {
            "job_id": [str(i) for i in range(rows)],
            "kind": "training",
            "status": rng.choice(["completed", "failed"], rows),
            "submit_time": submit.astype("datetime64[us, UTC]"),
            "start_time": (submit + pd.to_timedelta(rng.integers(0, 36000, rows), unit="s")).astype(
                "datetime64[us, UTC]"
            ),
            "duration_s": rng.integers(1, 100_000, rows).astype(float),
            "gpus": rng.choice([1, 2, 4, 8], rows),
            "user": rng.choice([f"u{i}" for i in range(200)], rows),
            "group": "g",
            "name": rng.choice([f"n{i}" for i in range(2000)], rows),
            "requested_walltime_s": 36000.0,
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog="Example: python benchmarks/history.py --rows 1000000"
    )
    parser.add_argument("--rows", type=int, default=1_000_000, help="jobs of the history")
    parser.add_argument("--seed", type=int, default=0, help="seed of the rows")
    arguments = parser.parse_args()
    if arguments.rows < 1:
        parser.error("--rows: give at least 1")

    def measured(step: str, run: Callable[[], Any]) -> Any:
        begin = time.process_time()
        out = run()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"| {step} | {time.process_time() - begin:.1f} | {peak:.2f} |", flush=True)
        return out

    print(f"{arguments.rows:,} jobs\n\n| step | CPU s | peak GiB so far |\n| --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        table = made_up(arguments.rows, arguments.seed)
        csv, parquet = Path(folder) / "jobs.csv", Path(folder) / "jobs.parquet"
        measured("write CSV", lambda: write_table(table, csv))
        measured("write Parquet", lambda: write_table(table, parquet))
        measured("read Parquet", lambda: read_jobs(parquet))
        jobs = measured("read CSV", lambda: read_jobs(csv))
    history = measured("history", lambda: History(jobs, checked=True))
    view = measured("as of the middle", lambda: history.as_of("2024-07-01T00:00:00Z"))
    measured("training frame", lambda: view.training_frame())


if __name__ == "__main__":
    main()
