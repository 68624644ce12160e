"""Show how far the shipped quantization constants lie from published timings.

    python benchmarks/calibrate_quantization.py ../shared/data/timings/quantization_runs.csv

For each algorithm (and mixtures of experts apart): the GPU-minutes a billion parameters, and the ratio of actual to
shipped median over sources, with the spread between and within sources. A constant is due for a change where the
centre lies outside a factor of 1.3 and rests on three sources or more. The shipped spreads are wider than the files':
published figures are kinder than users' own, see estimators/quantization/algorithms.py.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import quantization_timings

from tidegrid.errors import TidegridError
from tidegrid.estimators.base import checked_features
from tidegrid.estimators.quantization import QuantizationEstimator
from tidegrid.estimators.quantization.algorithms import find
from tidegrid.estimators.quantization.timing import is_mixture, prior_minutes


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "file", type=Path, help="published timings, as benchmarks/quantization_timings.py reads"
    )
    args = parser.parse_args()
    rows = quantization_timings.read(args.file)
    checked = checked_features(rows, QuantizationEstimator.features)
    minutes, _ = prior_minutes(checked)
    mixture = is_mixture(checked)
    rows = rows.assign(
        ratio=np.log(rows["minutes"] / minutes),
        rate=rows["minutes"] * checked["gpus"] / rows["model_params_b"],
        kind=[
            find(a).name + (" (experts)" if m else "")
            for a, m in zip(rows["algorithm"], mixture, strict=True)
        ],
    )
    head = (
        "rows",
        "sources",
        "rate q50",
        "rate q90",
        "centre",
        "between",
        "within",
        "shipped b",
        "shipped w",
    )
    print(f"{'':26}" + "".join(f"{h:>11}" for h in head))
    for kind, group in rows.groupby("kind"):
        means = group.groupby("source")["ratio"].mean()
        inner = group["ratio"] - group.groupby("source")["ratio"].transform("mean")
        freedom = len(group) - len(means)
        within = np.sqrt((inner**2).sum() / freedom) if freedom else float("nan")
        known = find(str(kind).removesuffix(" (experts)"))
        cells = [
            *(len(group), len(means), group["rate"].quantile(0.5), group["rate"].quantile(0.9)),
            *(np.exp(means.median()), means.std() if len(means) > 1 else float("nan"), within),
            *(known.between, known.within),
        ]
        print(f"{kind:26}" + "".join(f"{c:11.3g}" for c in cells))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TidegridError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
