"""Forecasts of the peers: run by benchmarks/demand.py inside the peers' own environment, never imported.

It reads a CSV with the columns unique_id, cutoff, ds (whole hours) and y (the history before each cutoff, without
gaps), forecasts ``--horizon`` hours from each cutoff with one model, and writes unique_id, cutoff, ds and one
column a level.
The last line on stdout is JSON: CPU seconds and peak memory of the model alone, imports left out.
"""

import argparse
import json
import resource
import warnings
from pathlib import Path

import numpy as np
import pandas as pd

LEVELS = (0.025, 0.1, 0.5, 0.9, 0.975)
CHUNK = 24


def cpu() -> float:
    """Return the CPU seconds of this process and its children."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def statistical(name: str, frame: pd.DataFrame, horizon: int) -> pd.DataFrame:
    """Forecast every series of one cutoff with a model of statsforecast."""
    from statsforecast import StatsForecast
    from statsforecast.models import MSTL, AutoCES, AutoETS, AutoTheta, SeasonalNaive

    models = {
        "MSTL": lambda: MSTL(season_length=[24, 168]),
        "AutoETS": lambda: AutoETS(season_length=24),
        "CES": lambda: AutoCES(season_length=24),
        "AutoTheta": lambda: AutoTheta(season_length=24),
        "SeasonalNaive24": lambda: SeasonalNaive(season_length=24),
        "SeasonalNaive168": lambda: SeasonalNaive(season_length=168),
    }
    model = models[name]()
    model.alias = "m"
    forecaster = StatsForecast(
        models=[model], freq=1, n_jobs=1, fallback_model=SeasonalNaive(season_length=24, alias="m")
    )
    out = forecaster.forecast(df=frame, h=horizon, level=[80, 95])
    return out.rename(
        columns={"m-lo-95": "q0.025", "m-lo-80": "q0.1", "m": "q0.5", "m-hi-80": "q0.9", "m-hi-95": "q0.975"}
    )


def boosted(frame: pd.DataFrame, horizon: int) -> pd.DataFrame:
    """Forecast every series of one cutoff with LightGBM on lags through mlforecast, one model for all series."""
    import lightgbm
    from mlforecast import MLForecast
    from mlforecast.target_transforms import Differences, LocalStandardScaler
    from mlforecast.utils import PredictionIntervals

    shortest = int(frame.groupby("unique_id").size().min())
    lags = [*range(1, 25), 48, 72, 96, 120, 144, 168]
    windows = 2
    room = shortest - 24 - windows * horizon - 30
    forecaster = MLForecast(
        models={
            "m": lightgbm.LGBMRegressor(
                n_estimators=200, num_leaves=31, learning_rate=0.05, n_jobs=1, verbosity=-1
            )
        },
        freq=1,
        lags=[lag for lag in lags if lag < max(room, 25)],
        target_transforms=[Differences([24]), LocalStandardScaler()],
    )
    intervals = PredictionIntervals(n_windows=windows, h=horizon) if room > 25 else None
    forecaster.fit(frame, static_features=[], prediction_intervals=intervals)
    out = forecaster.predict(horizon, level=[80, 95] if intervals else None)
    for column in ("m-lo-95", "m-lo-80", "m-hi-80", "m-hi-95"):
        out[column] = out.get(column, out["m"])
    return out.rename(
        columns={"m-lo-95": "q0.025", "m-lo-80": "q0.1", "m": "q0.5", "m-hi-80": "q0.9", "m-hi-95": "q0.975"}
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--input", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--horizon", type=int, required=True)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    table = pd.read_csv(arguments.input)
    # compile and load once on a toy series, so that only forecasting is timed
    toy = pd.DataFrame(
        {"unique_id": "toy", "ds": np.arange(400), "y": 10 + np.sin(np.arange(400) / 24 * 2 * np.pi)}
    )
    run = boosted if arguments.model == "LightGBM" else lambda f, h: statistical(arguments.model, f, h)
    run(toy, 24)
    before = cpu()
    parts = []
    for cutoff, frame in table.groupby("cutoff"):
        part = run(frame[["unique_id", "ds", "y"]].reset_index(drop=True), arguments.horizon)
        part["cutoff"] = cutoff
        parts.append(part)
    used = cpu() - before
    out = pd.concat(parts, ignore_index=True)[
        ["unique_id", "cutoff", "ds", *[f"q{level}" for level in LEVELS]]
    ]
    out.to_csv(arguments.output, index=False)
    # not getrusage: a forked child starts with its parent's peak
    status = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))
    print(json.dumps({"cpu_s": used, "peak_mib": peak}))


if __name__ == "__main__":
    main()
