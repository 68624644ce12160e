"""Score the training predictor on published timings.

Calibrates on one file and predicts another (seconds of the run where it is timed, tokens/s a GPU where only that is
known), or runs a protocol inside one file:

    python benchmarks/training_timings.py --calibrate A.csv --test B.csv --predictions OUT.csv
    python benchmarks/training_timings.py --calibrate A.csv --protocol leave-sources-out
    python benchmarks/training_timings.py --calibrate A.csv --protocol random-half
    python benchmarks/training_timings.py --calibrate A.csv --protocol first-20
    python benchmarks/training_timings.py --calibrate A.csv --protocol ratios
    python benchmarks/training_timings.py --speed

OUT.csv has the columns row (0-based position of the row in the test file, its header not counted), q0.1, q0.5, q0.9 and
actual, all in the row's own unit. A source is a repository (``owner/name``, the version of a series dropped). Rows that
are flagged SUSPECT, DEGENERATE, LOWER BOUND, OOM or FAILED, or that say no model size, are predicted but not scored
where they measure something, and counted. Rows that measure nothing are left out.
"""

import argparse
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from tidegrid.errors import InputError, TidegridError
from tidegrid.estimators.training import TrainingEstimator, calibration, timings
from tidegrid.estimators.training.variants import NAMES
from tidegrid.files import write_text

LEVELS = (0.1, 0.5, 0.9)
FIRST = 20


def fitted(table: pd.DataFrame) -> TrainingEstimator:
    """Return the predictor calibrated on a table: what a new site starts from."""
    return TrainingEstimator(calibration=calibration.calibrate(table).to_dict())


def predicted(estimator: TrainingEstimator, table: pd.DataFrame) -> pd.DataFrame:
    """Return row, q0.1, q0.5, q0.9 and actual in each row's own unit, with its source and family."""
    hours = estimator.predict_quantiles(table, LEVELS).to_numpy()
    seconds = hours * 3600.0
    total = table["tokens"].to_numpy(float)[:, None] / table["gpus"].to_numpy(float)[:, None]
    speed = (total / seconds)[:, ::-1]
    timed = (table["unit"] == "s").to_numpy()
    values = np.where(timed[:, None], seconds, speed)
    out = pd.DataFrame(values, columns=[f"q{level}" for level in LEVELS], index=table.index)
    out.insert(0, "row", table.index)
    out["actual"] = table["actual"]
    out["group"] = table["group"]
    out["unit"] = table["unit"]
    out["rl"] = table["variant"].str.contains("rlhf|rlvr")
    return out


def measures(scored: pd.DataFrame) -> dict[str, float]:
    """Return what the rows of one source, or of several, show: errors, coverage and width of the 80 % band."""
    ratio = scored["q0.5"] / scored["actual"]
    inside = (scored["actual"] >= scored["q0.1"]) & (scored["actual"] <= scored["q0.9"])
    return {
        "rows": len(scored),
        "mdre": float((ratio - 1.0).abs().median()),
        "bias": float(ratio.median()),
        "within2": float(ratio.between(0.5, 2.0).mean()),
        "coverage": float(inside.mean()),
        "width": float((scored["q0.9"] / scored["q0.1"]).median()),
    }


def show(scored: pd.DataFrame, title: str, *, by_source: bool) -> None:
    """Print measures over rows, and over sources with each counted once."""
    print(
        f"{title}\n{'':44}{'rows':>6} {'MdRE':>7} {'p/a':>6} {'in 2×':>7} {'80 % band':>10} {'q0.9/q0.1':>10}"
    )

    def line(name: str, m: dict[str, float]) -> None:
        print(
            f"{name:44}{m['rows']:6.0f} {m['mdre']:7.1%} {m['bias']:6.2f} {m['within2']:7.1%} {m['coverage']:10.1%}"
            f" {m['width']:10.2f}"
        )

    # predicted over actual: a throughput that is too high is a time that is too short
    flipped = scored["unit"] == "tokens/s/GPU"
    told = scored.copy()
    told.loc[flipped, "q0.1"], told.loc[flipped, "q0.9"] = 1 / scored["q0.9"], 1 / scored["q0.1"]
    told.loc[flipped, "q0.5"], told.loc[flipped, "actual"] = 1 / scored["q0.5"], 1 / scored["actual"]
    for name, part in (("not RL", told[~told["rl"]]), ("RL", told[told["rl"]])):
        if part.empty:
            continue
        line(f"{name}, all rows", measures(part))
        each = pd.DataFrame({g: measures(rows) for g, rows in part.groupby("group", sort=True)}).T
        middle = each["bias"].between(0.5, 2.0).mean()
        worst = each["coverage"].nsmallest(max(1, round(len(each) / 5))).mean()
        print(
            f"{name}, {len(each)} sources counted once: median of median errors {each['mdre'].median():.1%}, "
            f"median within 2× in {middle:.1%}, covered {each['coverage'].mean():.1%} "
            f"(worst fifth {worst:.1%}), median width {each['width'].median():.2f}"
        )
        for group, row in each.iterrows() if by_source else ():
            line(f"  {group}", row.to_dict())


def leave_sources_out(table: pd.DataFrame) -> pd.DataFrame:
    """Predict each source from all the others."""
    parts = []
    for source in sorted(table["group"].unique()):
        test = table[(table["group"] == source) & (table["flag"] == "")]
        if len(test):
            parts.append(predicted(fitted(table[table["group"] != source]), test))
            print(f"  left out {source}: {len(test)} rows", file=sys.stderr)
    return pd.concat(parts)


def random_half(table: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Predict a random half from the other, which the predictor is calibrated on and knows as history."""
    half = np.random.default_rng(seed).random(len(table)) < 0.5
    known = table[half & (table["flag"] == "")]
    return predicted(fitted(table[half]).fit(known, known["hours"]), table[~half & (table["flag"] == "")])


def first_rows(table: pd.DataFrame, seed: int | None) -> pd.DataFrame:
    """Predict each source from all the others and its own first rows (or that many random ones, with a seed)."""
    parts = []
    for source in sorted(table["group"].unique()):
        own = table[(table["group"] == source) & (table["flag"] == "")]
        if len(own) < FIRST + 5:
            continue
        if seed is not None:
            own = own.iloc[np.random.default_rng(seed).permutation(len(own))]
        estimator = fitted(table[table["group"] != source])
        seen, rest = own.iloc[:FIRST], own.iloc[FIRST:]
        parts.append(predicted(estimator.update(seen, seen["hours"]), rest))
        print(f"  learnt {FIRST} rows of {source}", file=sys.stderr)
    if not parts:
        raise InputError(f"no source has more than {FIRST} rows", fix="give a file with more rows a source")
    return pd.concat(parts)


def scaling(table: pd.DataFrame) -> None:
    """Compare what published pairs keep of a GPU's throughput from 8 GPUs to more, measured and predicted."""
    used = table[table["flag"] == ""].copy()
    used["speed"] = used["tokens"] / (used["hours"] * used["gpus"])
    predicted_hours = fitted_prior(table).predict(used)
    used["told"] = used["tokens"] / (predicted_hours * used["gpus"])
    keys = ["group", "model_params_b", "gpu_type", "precision", "seq_len", "variant"]
    measured, told = [], []
    for _, rows in used.groupby(keys, dropna=False):
        base = rows[rows["gpus"] == 8]
        for gpus, more in rows[rows["gpus"].between(16, 256)].groupby("gpus"):
            if len(base) and gpus % 8 == 0:
                measured.append(more["speed"].median() / base["speed"].median())
                told.append(more["told"].median() / base["told"].median())
    ratio = np.array(told) / np.array(measured)
    print(f"from 8 GPUs to 16-256, {len(ratio)} published pairs")
    print(f"  kept, measured  median {np.median(measured):.2f}, lowest {min(measured):.2f}")
    print(f"  kept, predicted median {np.median(told):.2f}, lowest {min(told):.2f}")
    print(f"  within 1.3×     {np.mean(np.abs(np.log(ratio)) <= np.log(1.3)):.1%}")


def fitted_prior(table: pd.DataFrame) -> TrainingEstimator:
    """Return the predictor calibrated on a table, without history."""
    return TrainingEstimator(calibration=calibration.calibrate(table, bands=False).to_dict())


def ratios(table: pd.DataFrame) -> None:
    """Show the ratios of duration that the prior gives between variants of one run."""
    estimator = fitted_prior(table)

    def hours(**fields: object) -> float:
        usual = {"variant": "full_sft", "gpu_type": "A100", "precision": "bf16", "model_params_b": 7.0,
                 "tokens_per_epoch_m": 100.0, "gpus": 8.0, "seq_len": 2048.0}  # fmt: skip
        return float(estimator.predict(pd.DataFrame([{**usual, **fields}])).iloc[0])

    print(f"{'ratio of durations':40} {'1.5 B':>6} {'7 B':>6} {'13 B':>6} {'70 B':>6}")
    pairs = {
        "full / LoRA": ({"variant": "full_sft"}, {"variant": "lora_sft"}),
        "QLoRA / LoRA": ({"variant": "lora_sft", "precision": "nf4"}, {"variant": "lora_sft"}),
        "DPO / SFT, full": ({"variant": "full_dpo"}, {"variant": "full_sft"}),
        "DPO / SFT, LoRA": ({"variant": "lora_dpo"}, {"variant": "lora_sft"}),
        "kept a GPU from 8 to 64": ({"gpus": 8.0}, {"gpus": 64.0}),
    }
    for name, (a, b) in pairs.items():
        sizes = [hours(**a, model_params_b=n) / hours(**b, model_params_b=n) for n in (1.5, 7.0, 13.0, 70.0)]
        sizes = [value / 8 for value in sizes] if "kept" in name else sizes
        print(f"{name:40} " + " ".join(f"{value:6.2f}" for value in sizes))
    scaling(table)


def speed(jobs: int, seed: int) -> None:
    """Show CPU time: predictions in batch and alone, and a fit on many jobs (OMP_NUM_THREADS=1 for one core)."""
    rng = np.random.default_rng(seed)

    def made(rows: int) -> pd.DataFrame:
        pick = rng.choice
        return pd.DataFrame({
            "variant": pick(NAMES, rows), "gpu_type": pick(["H100", "A100", "L40S"], rows), "precision": "bf16",
            "model_params_b": np.exp(rng.uniform(0, 4, rows)), "tokens_per_epoch_m": np.exp(rng.uniform(0, 7, rows)),
            "gpus": pick([1.0, 2.0, 4.0, 8.0, 16.0], rows), "seq_len": pick([1024.0, 2048.0, 4096.0], rows),
            "global_batch": pick([16.0, 32.0, 64.0], rows), "user": pick([f"u{i}" for i in range(200)], rows),
            "group": pick([f"g{i}" for i in range(20)], rows), "name": pick([f"job-{i}" for i in range(500)], rows),
        })  # fmt: skip

    def cpu(call: Callable[[], object], times: int = 1) -> float:
        start = time.process_time()
        for _ in range(times):
            call()
        return (time.process_time() - start) / times

    X = made(jobs)
    y = TrainingEstimator().predict(X) * np.exp(rng.normal(0, 0.3, jobs))
    estimator = TrainingEstimator()
    fit = cpu(lambda: estimator.fit(X, y))
    ask = made(10_000)
    for name, e in (("without history", TrainingEstimator()), (f"fitted on {jobs:,} jobs", estimator)):
        e.predict_quantiles(ask.iloc[:1])
        batch = cpu(lambda e=e: e.predict_quantiles(ask), 3)  # type: ignore[misc]
        one = cpu(lambda e=e: e.predict_quantiles(ask.iloc[:1]), 50)  # type: ignore[misc]
        print(f"{name:28} {len(ask) / batch:10,.0f} predictions a CPU second   {one * 1e3:6.2f} ms for one")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"fit on {jobs:,} jobs: {fit:.1f} CPU s; the process's peak memory {peak:.2f} GiB")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calibrate", type=Path, help="timings to calibrate on")
    parser.add_argument("--test", type=Path, help="timings to predict; absent: a protocol inside --calibrate")
    parser.add_argument("--predictions", type=Path, help="write row, q0.1, q0.5, q0.9, actual as CSV here")
    parser.add_argument("--protocol", choices=("leave-sources-out", "random-half", "first-20", "ratios"))
    parser.add_argument("--seed", type=int, default=0, help="seed of the random half")
    parser.add_argument(
        "--shuffle", action="store_true", help="first-20: 20 random rows instead of the first 20"
    )
    parser.add_argument("--by-source", action="store_true", help="show each source too")
    parser.add_argument("--speed", action="store_true", help="measure CPU time instead; needs no file")
    parser.add_argument("--jobs", type=int, default=100_000, help="made-up jobs of the speed measurement")
    args = parser.parse_args()
    if args.speed:
        speed(args.jobs, args.seed)
        return 0
    if args.calibrate is None:
        raise InputError("give --calibrate FILE")
    if (args.test is None) == (args.protocol is None):
        raise InputError("give either --test FILE or --protocol NAME")
    table = timings.read(args.calibrate)
    if args.protocol == "ratios":
        ratios(table)
        return 0
    if args.test is not None:
        test = timings.read(args.test)
        measured = test[(test["unit"] != "") & test["model_params_b"].notna()]
        everything = predicted(fitted(table), measured)
        scored = everything[measured["flag"] == ""]
        title = f"calibrated on {args.calibrate.name}, tested on {args.test.name}"
        left = test["flag"].value_counts()
        for reason, rows in left.items():
            if reason:
                print(f"not scored: {rows} rows ({reason})")
    elif args.protocol == "leave-sources-out":
        scored, title = leave_sources_out(table), "whole sources left out"
    elif args.protocol == "random-half":
        scored, title = random_half(table, args.seed), f"random half, seed {args.seed}"
    else:
        scored = first_rows(table, args.seed if args.shuffle else None)
        title = f"a new source after {FIRST} {'random' if args.shuffle else 'first'} rows"
    show(scored, title, by_source=args.by_source or args.protocol in ("leave-sources-out", "first-20"))
    if args.predictions is not None:
        columns = ["row", *(f"q{level}" for level in LEVELS), "actual"]
        write_text(
            args.predictions, scored.sort_values("row")[columns].to_csv(index=False, float_format="%.6g")
        )
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TidegridError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
