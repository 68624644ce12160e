"""Measure the quantization estimator on published timings.

    python benchmarks/quantization_timings.py --calibrate FILE --test FILE [--predictions OUT.csv]
    python benchmarks/quantization_timings.py --calibrate FILE          (leaves each source of FILE out in turn)

A FILE has the columns source, algorithm, bits, group_size, model, params_b, gpu_type, gpus, duration_min,
calib_samples, calib_seqlen, notes (plain or .gz). Rows without a duration or a size, and rows whose notes say that
they are no measurement (FEASIBILITY, EXTRAPOLATED, LOWER BOUND, OOM, FAILED, packing or loading only) are counted and
left out. The number of experts and of active parameters is read from the notes and the model's name where it stands
there.

Predictions: row (0 for the first row of the file), q0.5, q0.9, actual, in minutes; q0.9 is the margined estimate,
before it is rounded up. Measures, for each algorithm: how often the actual time is at most it, the median of
margined over actual, and the median error factor of the median.
"""

import argparse
import json
import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from tidegrid.data.readers import read_raw
from tidegrid.errors import InputError, TidegridError
from tidegrid.estimators.quantization import QuantizationEstimator
from tidegrid.estimators.quantization.algorithms import find
from tidegrid.files import writing

MAIN = ("gptq", "awq", "bitsandbytes")
NO_MEASUREMENT = r"FEASIBILITY|EXTRAPOLATED|LOWER BOUND|\bOOM\b|FAILED|SUSPECT|DEGENERATE"
FILL = "give durations and sizes above 0"
NEEDED = ("source", "algorithm", "params_b", "duration_min")


def read(path: Path) -> pd.DataFrame:
    """Return the measured rows as features, with ``minutes``; the index is the row of the file, from 0."""
    raw, _ = read_raw(path)
    for name in NEEDED:
        if name not in raw.columns:
            raise InputError(
                "the column is missing", file=path, row=1, field=name, fix="give timings with it"
            )

    def number(name: str) -> pd.Series:
        if name not in raw.columns:
            return pd.Series(np.nan, index=raw.index)
        # an infinite cell tells as little as an empty one
        return pd.to_numeric(raw[name], errors="coerce").astype(float).replace([np.inf, -np.inf], np.nan)

    def text(name: str) -> pd.Series:
        return raw[name].fillna("").astype(str) if name in raw.columns else pd.Series("", index=raw.index)

    notes, model, algorithm = text("notes"), text("model"), text("algorithm")
    out = pd.DataFrame({"algorithm": algorithm, "source": text("source"), "gpu_type": text("gpu_type")})
    out["model_params_b"] = number("params_b")
    out["bits"] = number("bits").where(number("bits").between(1, 16))
    out["gpus"] = number("gpus").where(number("gpus") >= 1)
    for name in ("calib_samples", "calib_seqlen"):
        out[name] = number(name).where(number(name) > 0)
    out["num_experts"] = [experts(m, n) for m, n in zip(model, notes, strict=True)]
    active = [active_params(m, n) for m, n in zip(model, notes, strict=True)]
    out["active_params_b"] = np.minimum(active, out["model_params_b"])
    out["minutes"] = number("duration_min")
    measured = (out["minutes"] > 0) & (out["model_params_b"] > 0.001)
    measured &= ~notes.str.contains(NO_MEASUREMENT, regex=True)
    measured &= ~algorithm.str.contains(r"\bonly\b|pre-quantized", regex=True)
    if not measured.all():
        print(
            f"{path}: {int((~measured).sum())} of {len(out)} rows are no measurement of a run and are left out",
            file=sys.stderr,
        )
    return out[measured]


def experts(model: str, notes: str) -> float:
    """Return the number of experts that a model's name or the notes tell, NaN for none."""
    told = re.search(r"(\d+) experts", notes)
    if told:
        return float(told.group(1))
    told = re.search(r"\b(\d+)x\d+(\.\d+)?b", model.lower())
    return float(told.group(1)) if told else np.nan


def active_params(model: str, notes: str) -> float:
    """Return the active parameters in billions that the notes or a model's name tell, NaN for none."""
    number = r"(\d+(?:\.\d+)?)"
    told = re.search(f"active_params_b={number}", notes) or re.search(rf"active {number}\s?B", notes)
    told = told or re.search(rf"-a{number}b\b", model.lower())
    return float(told.group(1)) if told else np.nan


def predict(past: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Return q0.5, q0.9 and actual in minutes of rows, from what another set of timings taught."""
    estimator = QuantizationEstimator().fit(past, past["minutes"] / 60.0)
    told = estimator.predict_quantiles(rows, (0.5, 0.9)) * 60.0
    told.columns = pd.Index(["q0.5", "q0.9"])
    return told.assign(actual=rows["minutes"])


def measures(told: pd.DataFrame) -> dict[str, float]:
    """Return the measures of predictions."""
    factor = np.exp(np.abs(np.log(told["q0.5"]) - np.log(told["actual"])))
    return {
        "rows": float(len(told)),
        "covered": float((told["actual"] <= told["q0.9"]).mean()),
        "over_estimate": float((told["q0.9"] / told["actual"]).median()),
        "margin": float((told["q0.9"] / told["q0.5"]).median()),
        "median_factor": float(factor.median()),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calibrate", type=Path, required=True, help="timings to learn from")
    parser.add_argument(
        "--test", type=Path, help="timings to predict; without it, sources are left out in turn"
    )
    parser.add_argument("--predictions", type=Path, help="write row, q0.5, q0.9, actual (minutes)")
    parser.add_argument("--json", action="store_true", help="print the measures as JSON")
    args = parser.parse_args()
    past = read(args.calibrate)
    if args.test is not None:
        rows = read(args.test)
        if rows.empty:
            raise InputError("has no measured row", file=args.test, fix=FILL)
        told = predict(past, rows)
    else:
        rows = past
        if rows.empty:
            raise InputError("has no measured row", file=args.calibrate, fix=FILL)
        parts = [
            predict(past[past["source"] != s], past[past["source"] == s]) for s in past["source"].unique()
        ]
        told = pd.concat(parts).sort_index()
    kind = rows["algorithm"].map(lambda name: find(name).name)
    table = {name: measures(told[kind == name]) for name in MAIN if (kind == name).any()}
    main_rows = kind.isin(MAIN)
    if main_rows.any():
        table["these three"] = measures(told[main_rows])
    if (~main_rows).any():
        table["others"] = measures(told[~main_rows])
    if args.predictions is not None:
        with writing(args.predictions) as aside:
            told.rename_axis("row").to_csv(aside)
    if args.json:
        print(json.dumps(table, indent=1))
        return 0
    print(f"{'':14}" + "".join(f"{name:>15}" for name in next(iter(table.values()))))
    for name, row in table.items():
        print(f"{name:14}" + "".join(f"{value:15.3f}" for value in row.values()))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TidegridError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
