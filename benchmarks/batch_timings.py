"""Measure the batch-inference estimator on published throughputs, each source left out in turn.

    python benchmarks/batch_timings.py --calibrate FILE [--test FILE] [--predictions OUT.csv] [--json]

A FILE has the columns source, model, params_b, active_params_b, gpu_type, gpus, precision, prompts, prompt_tokens,
output_tokens, output_tokens_per_s, notes. The time of a row is its tokens over the stated rate of all its GPUs
together; throughputs are stated without start-up, so the start-up is 0. A row without a count of prompts is taken to
be saturated: it gets as many prompts as keep any batch full. Each row is predicted from the other sources' rows.

Measures: median error of the median, share within 2x, coverage of the 80 % band, median q0.9/q0.1; over rows, and
with each source counted once.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from quantization_timings import NO_MEASUREMENT, active_params

from tidegrid.data.readers import read_raw
from tidegrid.errors import InputError, TidegridError
from tidegrid.estimators.batch_inference import BatchInferenceEstimator
from tidegrid.files import writing

SATURATED = 20_000.0
NEEDED = ("source", "params_b", "gpu_type", "output_tokens", "output_tokens_per_s")


def read(path: Path) -> pd.DataFrame:
    """Return the measured rows as features, with ``hours``; the index is the row of the file, from 0."""
    raw, _ = read_raw(path)
    for name in NEEDED:
        if name not in raw.columns:
            raise InputError("the column is missing", file=path, row=1, field=name, fix="give rates with it")

    def number(name: str) -> pd.Series:
        cells = raw[name] if name in raw.columns else pd.Series(np.nan, index=raw.index)
        out = pd.to_numeric(cells, errors="coerce").astype(float).replace([np.inf, -np.inf], np.nan)
        return out.where(out > 0)

    def text(name: str) -> pd.Series:
        return raw[name].fillna("").astype(str) if name in raw.columns else pd.Series("", index=raw.index)

    out = pd.DataFrame({name: text(name) for name in ("source", "model", "gpu_type", "precision")})
    out["model_params_b"], out["gpus"] = number("params_b"), number("gpus")
    named = pd.Series(
        [active_params(m, n) for m, n in zip(text("model"), text("notes"), strict=True)], index=raw.index
    )
    out["active_params_b"] = number("active_params_b").fillna(named)
    out["prompts"] = number("prompts").fillna(SATURATED)
    out["input_tokens"], out["output_tokens"] = number("prompt_tokens"), number("output_tokens")
    notes = text("notes")
    out["gpus_per_copy"] = pd.to_numeric(notes.str.extract(r"\bTP(\d+)\b")[0])
    out["cache_gib"] = pd.to_numeric(notes.str.extract(r"\bKV cache (\d+(?:\.\d+)?) GiB")[0])
    # "over two nodes", "in different nodes": a network lies between the GPUs
    apart = notes.str.contains(r"\bin different nodes\b", regex=True)
    shared = notes.str.contains(r"\bover two nodes\b", regex=True)
    out["gpus_per_node"] = np.where(apart, 1.0, np.where(shared, np.ceil(out["gpus"] / 2.0), np.nan))
    out["startup_s"] = 0.0
    out["hours"] = out["prompts"] * out["output_tokens"] / number("output_tokens_per_s") / 3600.0
    measured = out["hours"].notna() & out["model_params_b"].notna()
    measured &= ~text("notes").str.contains(NO_MEASUREMENT, regex=True)
    if not measured.all():
        print(f"{path}: {int((~measured).sum())} of {len(out)} rows are left out", file=sys.stderr)
    if not measured.any():
        raise InputError("has no measured row", file=path, fix="give sizes and rates above 0")
    return out[measured]


def predict(past: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the quantiles and the actual hours of rows, from what other sources taught."""
    told = BatchInferenceEstimator().fit(past, past["hours"]).predict_quantiles(rows, (0.1, 0.5, 0.9))
    told.columns = pd.Index(["q0.1", "q0.5", "q0.9"])
    return told.assign(actual=rows["hours"], source=rows["source"])


def measures(told: pd.DataFrame) -> dict[str, float]:
    """Return the measures of predictions."""
    ratio = told["q0.5"] / told["actual"]
    return {
        "rows": float(len(told)),
        "predicted_over_actual": float(ratio.median()),
        "median_error": float((ratio - 1.0).abs().median()),
        "within_2x": float(ratio.between(0.5, 2.0).mean()),
        "covered": float(told["actual"].between(told["q0.1"], told["q0.9"]).mean()),
        "width": float((told["q0.9"] / told["q0.1"]).median()),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calibrate", type=Path, required=True, help="throughputs to learn from")
    parser.add_argument(
        "--test", type=Path, help="throughputs to predict; without it, sources are left out in turn"
    )
    parser.add_argument(
        "--predictions", type=Path, help="write row, q0.1, q0.5, q0.9, actual (hours), source"
    )
    parser.add_argument("--json", action="store_true", help="print the measures as JSON")
    args = parser.parse_args()
    past = read(args.calibrate)
    if args.test is not None:
        told = predict(past, read(args.test))
    else:
        parts = [
            predict(past[past["source"] != s], past[past["source"] == s]) for s in past["source"].unique()
        ]
        told = pd.concat(parts).sort_index()
    table = {str(name): measures(group) for name, group in told.groupby("source")}
    once = {key: float(np.mean([row[key] for row in table.values()])) for key in measures(told)}
    table |= {"all rows": measures(told), "each source once": once}
    if args.predictions is not None:
        with writing(args.predictions) as aside:
            told.rename_axis("row").to_csv(aside)
    if args.json:
        print(json.dumps(table, indent=1))
        return 0
    print(f"{'':40}" + "".join(f"{name:>22}" for name in next(iter(table.values()))))
    for name, row in table.items():
        print(f"{name[:39]:40}" + "".join(f"{value:22.3f}" for value in row.values()))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TidegridError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
