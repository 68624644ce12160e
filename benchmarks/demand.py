"""Measure the realtime forecaster on hourly traffic by rolling origin, with peers in the same run.

    python benchmarks/demand.py --data FILE --horizon 24 --last-days 7 [--peers] [--predictions OUT.csv]
    python benchmarks/demand.py --data TRAIN --test TEST --horizon 48
    python benchmarks/demand.py --data FILE --hourly --last-days 7

FILE holds series_id, hour or timestamp, value (or the hourly cluster trace: time, vc, running_gpu_num). The last D
days of each series are forecast in steps of the horizon, each from an origin that knows nothing after it; the column
``origin`` of the predictions is the last hour known. With --test the forecast is made once, from the end of DATA, and
the hours are the test file's. With --hourly every hour is taken in as it comes and leads 1 to 6 are scored, against the
last value, the same hour a week before, and tidegrid's own forecast of a day before. An ``hour`` has no calendar: hour
0 is taken as an arbitrary Monday midnight.

MASE and the scaled pinball are in units of the mean absolute difference between hours a day apart before the first
origin. Peers get the history as cleaned and filled by tidegrid (same gaps, same zeros set aside), cut to the same
length, and forecast from the same origins.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd

from tidegrid.errors import InputError
from tidegrid.estimators.realtime import Capacity, RealtimeEstimator, gpu_curve
from tidegrid.estimators.realtime.backtest import (
    COLUMNS,
    DAY,
    LEVELS,
    instants,
    origins,
    roll,
    scales,
    score,
)
from tidegrid.estimators.realtime.clean import clean

PEERS = ("SeasonalNaive24", "SeasonalNaive168", "MSTL", "AutoTheta", "LightGBM", "CES", "AutoETS")
EPOCH_H = int(pd.Timestamp("2001-01-01", tz="UTC").timestamp()) // 3600
HERE = Path(__file__).parent


def roll_hourly(
    table: pd.DataFrame, plan: pd.DataFrame, estimator: RealtimeEstimator, leads: int = DAY
) -> tuple[pd.DataFrame, float]:
    """Forecast from every hour: the estimator is fitted once and takes in each hour as it comes.

    Parameters
    ----------
    table
        ``series_id``, ``hour``, ``value``.
    plan
        From :func:`origins` with a horizon of an hour.
    estimator
        It is fitted before the first origin.
    leads
        Hours ahead that are forecast.

    Returns
    -------
    DataFrame
        The forecasts.
    float
        CPU seconds a series and hour.
    """
    first = plan.groupby("series_id")["first"].first()
    before = table[table["hour"] < table["series_id"].map(first)]
    ahead = np.arange(1, leads + 1)

    def rows(part: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"unique_id": part["series_id"].to_numpy(), "ds": instants(part["hour"])})

    estimator.fit(rows(before), pd.Series(before["value"].to_numpy()))
    used, parts = 0.0, []
    for step, wave in plan.groupby(plan.groupby("series_id").cumcount()):
        began = time.process_time()
        if step:
            new = table.merge(wave, left_on=["series_id", "hour"], right_on=["series_id", "origin"])
            if len(new):
                estimator.update(rows(new), pd.Series(new["value"].to_numpy()))
        out = wave.loc[wave.index.repeat(leads), ["series_id", "origin"]].reset_index(drop=True)
        out["hour"] = out["origin"] + np.tile(ahead, len(wave))
        out[COLUMNS] = estimator.predict_quantiles(rows(out), LEVELS).to_numpy()
        used += time.process_time() - began
        parts.append(out)
    return pd.concat(parts, ignore_index=True), used / len(plan)


def read(path: Path, value: str) -> tuple[pd.DataFrame, str, pd.Series]:
    """Return series_id, hour (whole hours since 1970), value; the name of the time column; its text by hour."""
    try:
        table = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read ({error})", file=path, fix="name a CSV file") from None
    table = table.rename(columns={"vc": "series_id", "time": "timestamp", value: "value"})
    stamp = next((name for name in ("timestamp", "hour") if name in table.columns), None)
    for name in ("series_id", "value"):
        if name not in table.columns:
            raise InputError(
                "the column is missing", file=path, field=name, fix="give series_id, hour or timestamp, value"
            )
    if stamp is None:
        raise InputError("the column is missing", file=path, field="hour", fix="give hour or timestamp")
    if stamp == "hour":
        hour = pd.to_numeric(table["hour"], errors="coerce")
        seconds = hour * 3600 + EPOCH_H * 3600
    else:
        instants = pd.to_datetime(table["timestamp"], utc=True, errors="coerce", format="mixed")
        seconds = instants.dt.as_unit("s").astype("int64").where(instants.notna()).astype(float)
    bad = seconds.isna() | (seconds % 3600 != 0)
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        raise InputError(
            f"{table[stamp].iloc[at]!r} is no whole hour",
            file=path,
            row=at + 2,
            field=stamp,
            fix="write whole hours",
        )
    numbers = pd.to_numeric(table["value"], errors="coerce")
    text = numbers.isna() & table["value"].notna()
    if text.any() or (numbers < 0).any():
        at = int(np.flatnonzero(text | (numbers < 0))[0])
        raise InputError(
            f"{table['value'].iloc[at]!r} cannot be used",
            file=path,
            row=at + 2,
            field="value",
            fix="write a number of at least 0",
        )
    out = pd.DataFrame(
        {
            "series_id": table["series_id"].astype(str),
            "hour": (seconds // 3600).astype("int64"),
            "value": numbers,
        }
    )
    twice = out.duplicated(["series_id", "hour"])
    if twice.any():
        at = int(np.flatnonzero(twice)[0])
        raise InputError(
            f"series {out['series_id'].iloc[at]!r} has this hour twice",
            file=path,
            row=at + 2,
            field=stamp,
            fix="keep one row an hour",
        )
    return out.sort_values(["series_id", "hour"], kind="stable").reset_index(drop=True), stamp, table[stamp]


def shown(hours: pd.Series, stamp: str) -> pd.Series:
    """Return hours as the input wrote them."""
    if stamp == "hour":
        return hours - EPOCH_H
    return pd.to_datetime(hours * 3600, unit="s").dt.strftime("%Y-%m-%d %H:%M:%S")


def peak_mib() -> float:
    """Return the peak resident memory of this process; getrusage would give a child its parent's."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return float("nan")


def cpu() -> float:
    """Return the CPU seconds of this process and its finished children."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def history_for_peers(table: pd.DataFrame, plan: pd.DataFrame, horizon: int) -> pd.DataFrame:
    """Return the cleaned history before each origin; ``cutoff`` counts the waves of origins."""
    parts = []
    wave = plan.groupby("series_id").cumcount()
    longest = RealtimeEstimator().history_weeks * 168
    grids = {}
    for series, part in table.groupby("series_id", sort=False):
        first, last = int(part["hour"].iloc[0]), int(part["hour"].iloc[-1])
        raw = np.full(last - first + 1, np.nan)
        raw[part["hour"].to_numpy() - first] = part["value"].to_numpy()
        grids[series] = (first, raw)
    for row, number in zip(plan.itertuples(), wave, strict=True):
        first, raw = grids[row.series_id]
        known = raw[: max(0, row.origin - first + 1)][-longest:]
        if len(known) == 0:
            continue
        cleaned = clean(known)
        # hours before a series' first demand are its history too, to a model that does not know of launches
        values = np.concatenate([np.nan_to_num(known[: cleaned.offset]), cleaned.values])
        if len(values) < 2 * 24 + horizon:
            continue
        hours = row.origin - len(values) + 1 + np.arange(len(values))
        parts.append(pd.DataFrame({"unique_id": row.series_id, "cutoff": number, "ds": hours, "y": values}))
    return (
        pd.concat(parts, ignore_index=True)
        if parts
        else pd.DataFrame(columns=["unique_id", "cutoff", "ds", "y"])
    )


def peer(
    name: str, python: Path, history: pd.DataFrame, plan: pd.DataFrame, horizon: int
) -> tuple[pd.DataFrame, dict[str, float]]:
    """Forecast every origin with one peer, in its own process and environment."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "history.csv", Path(folder) / "forecast.csv"
        history.to_csv(source, index=False)
        command = [
            str(python),
            str(HERE / "peers" / "forecast_peers.py"),
            "--model",
            name,
            "--input",
            str(source),
        ]
        command += ["--output", str(target), "--horizon", str(horizon)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise InputError(
                f"peer {name} failed ({reason})",
                fix="see --peers-python and benchmarks/peers/requirements.txt",
            )
        out = pd.read_csv(target)
        cost = json.loads(done.stdout.strip().splitlines()[-1])
    keyed = plan.assign(cutoff=plan.groupby("series_id").cumcount())
    out = out.rename(columns={"unique_id": "series_id", "ds": "hour"})
    out["series_id"] = out["series_id"].astype(str)
    out = out.merge(keyed, on=["series_id", "cutoff"])
    out[COLUMNS] = out[COLUMNS].clip(lower=0)
    return out.loc[out["hour"] <= out["until"], ["series_id", "origin", "hour", *COLUMNS]], cost


def table_of(results: dict[str, pd.DataFrame], costs: dict[str, dict[str, float]]) -> str:
    """Return the comparison as text, the mean over the series that all can be scored on."""
    head = f"{'':18}{'MASE':>8}{'median':>8}{'sMAPE':>8}{'pinball':>9}{'(5)':>8}{'MSIS':>8}"
    lines = [head + f"{'80 %':>7}{'95 %':>7}{'CPU s':>9}{'MiB':>7}"]
    for name, result in results.items():
        m = result.mean()
        c = costs[name]
        lines.append(
            f"{name:18}{m['MASE']:8.3f}{result['MASE'].median():8.3f}{m['sMAPE']:8.2f}{m['pinball']:9.3f}{m['pinball5']:8.3f}"
            f"{m['MSIS']:8.2f}{100 * m['cover80']:7.1f}{100 * m['cover95']:7.1f}{c['cpu_s']:9.2f}{c['peak_mib']:7.0f}"
        )
    return "\n".join(lines)


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="history, CSV or CSV.gz")
    parser.add_argument(
        "--test", type=Path, help="hours to forecast from the end of DATA; values are scored where given"
    )
    parser.add_argument("--horizon", type=int, default=24, help="hours a forecast looks ahead (default 24)")
    parser.add_argument(
        "--last-days", type=int, default=7, help="days at the end of each series that are scored (default 7)"
    )
    parser.add_argument(
        "--hourly", action="store_true", help="forecast anew every hour and score leads 1 to 6"
    )
    parser.add_argument("--predictions", type=Path, help="write the quantiles here, CSV")
    parser.add_argument(
        "--peers", nargs="?", const=",".join(PEERS), help=f"run peers too: all, or some of {', '.join(PEERS)}"
    )
    parser.add_argument(
        "--peers-python", type=Path, help="python of the peers' environment (default .venv-peers at the root)"
    )
    parser.add_argument(
        "--make-peers", action="store_true", help="create .venv-peers first where it is absent"
    )
    parser.add_argument(
        "--value-column", default="running_gpu_num", help="column taken as value (default running_gpu_num)"
    )
    parser.add_argument("--series", type=int, help="use only the first N series")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument(
        "--by-series", action="store_true", help="print the MASE of every series, losses marked"
    )
    parser.add_argument(
        "--gpu-cover", action="store_true", help="print what GPUs at the 90 %% quantile leave unmet and save"
    )
    parser.add_argument("--swap-cap", type=int, help="swap cap for --gpu-cover (default none)")
    out = parser.parse_args(arguments)
    if not 1 <= out.horizon <= 168:
        parser.error("--horizon is 1 to 168 hours")
    if out.last_days < 1:
        parser.error("--last-days is at least 1")
    return out


def peers_python(arguments: argparse.Namespace) -> Path:
    """Return the peers' python, made where asked for."""
    root = HERE.parent / ".venv-peers"
    python = arguments.peers_python or root / "bin" / "python"
    if not python.exists() and arguments.make_peers:
        print(f"making {root} (some minutes) ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(root)], check=True)
        subprocess.run(
            [str(python), "-m", "pip", "install", "-q", "-r", str(HERE / "peers" / "requirements.txt")],
            check=True,
        )
    if not python.exists():
        raise InputError(
            "there is no environment for the peers",
            file=python,
            fix="add --make-peers or name --peers-python",
        )
    return python


def test_plan(table: pd.DataFrame, test: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return origins at the end of the data and the test's rows with hours that follow it."""
    last = table.groupby("series_id")["hour"].max()
    missing = sorted(set(test["series_id"]) - set(last.index))
    if missing:
        raise InputError(
            f"series {missing[0]!r} is not in the data", field="series_id", fix="test the series of DATA"
        )
    test = test.assign(named=test["hour"])
    begin = test.groupby("series_id")["hour"].transform("min")
    end = test["series_id"].map(last)
    # a test that counts its hours from 0 or 1 follows the data directly
    test["hour"] = np.where(begin > end, test["hour"], end + 1 + test["hour"] - begin)
    until = test.groupby("series_id")["hour"].max()
    plan = pd.DataFrame(
        {"series_id": until.index, "origin": last.loc[until.index].to_numpy(), "until": until.to_numpy()}
    )
    return plan.assign(first=plan["origin"] + 1), test


def run(arguments: argparse.Namespace) -> None:
    table, stamp, _ = read(arguments.data, arguments.value_column)
    if arguments.series:
        keep = table["series_id"].drop_duplicates().iloc[: arguments.series]
        table = table[table["series_id"].isin(keep)].reset_index(drop=True)
    if arguments.hourly:
        print(hourly(arguments.data.name, table, arguments.last_days))
        return
    if arguments.test:
        actual, _, _ = read(arguments.test, arguments.value_column)
        actual = actual[actual["series_id"].isin(set(table["series_id"]))] if arguments.series else actual
        plan, actual = test_plan(table, actual)
        horizon = int((plan["until"] - plan["origin"]).max())
    else:
        plan, actual, horizon = (
            origins(table, arguments.horizon, arguments.last_days),
            table,
            arguments.horizon,
        )
    scale = scales(table, plan)
    # compile before the clock starts, as the peers do
    toy = pd.DataFrame(
        {"series_id": "toy", "hour": np.arange(800) + EPOCH_H, "value": 10.0 + np.arange(800) % 24}
    )
    roll(toy, origins(toy, 24, 1), RealtimeEstimator())
    forecast, used = roll(table, plan, RealtimeEstimator(n_jobs=arguments.jobs), cpu)
    cost = {"cpu_s": used, "peak_mib": peak_mib()}
    forecast = forecast.merge(actual[["series_id", "hour"]], on=["series_id", "hour"])
    if arguments.predictions:
        out = forecast.assign(origin=shown(forecast["origin"], stamp))
        named = actual.set_index(["series_id", "hour"])["named"] if "named" in actual else None
        hours = (
            forecast["hour"]
            if named is None
            else pd.Series(
                named.loc[list(zip(forecast["series_id"], forecast["hour"], strict=True))].to_numpy()
            )
        )
        out[stamp] = shown(hours, stamp)
        out[["series_id", "origin", stamp, *COLUMNS]].to_csv(arguments.predictions, index=False)
    forecasts = {"tidegrid": forecast}
    costs = {"tidegrid": cost}
    if arguments.peers:
        python = peers_python(arguments)
        history = history_for_peers(table, plan, horizon)
        for name in arguments.peers.split(","):
            began = time.perf_counter()
            found, costs[name] = peer(name, python, history, plan, horizon)
            forecasts[name] = found
            print(f"  {name}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    # all are scored on the hours that all have forecast
    hours = forecast[["series_id", "origin", "hour"]]
    for found in forecasts.values():
        hours = hours.merge(found[["series_id", "origin", "hour"]])
    results = {name: score(found.merge(hours), actual, scale) for name, found in forecasts.items()}
    common = set.intersection(*(set(result.dropna(subset=["MASE"]).index) for result in results.values()))
    left = plan["series_id"].nunique() - len(common)
    print(
        f"{arguments.data.name}: {plan['series_id'].nunique()} series, {len(plan)} forecasts of up to {horizon} h"
    )
    if left:
        print(
            f"{left} series are not in the means: no scale or no hour to score before or after the first origin"
        )
    order = [key for key in results["tidegrid"].index if key in common]
    shared = {name: result.loc[order] for name, result in results.items()}
    print(table_of(shared, costs))
    if arguments.gpu_cover:
        print(cover(forecast, actual, plan, arguments.swap_cap))
    if len(shared) > 1:
        verdict(shared, arguments.by_series)


def hourly(name: str, table: pd.DataFrame, days: int) -> str:
    """Return the errors of the next six hours, forecast anew every hour, beside those of three plain forecasts."""
    plan = origins(table, 1, days)
    scale = scales(table, plan)
    forecast, used = roll_hourly(table, plan, RealtimeEstimator())
    near = forecast[forecast["hour"] - forecast["origin"] <= 6]
    known = table.dropna(subset=["value"]).sort_values("hour")
    others = {
        "last value": pd.merge_asof(
            near[["series_id", "origin"]].reset_index().sort_values("origin"),
            known.rename(columns={"hour": "origin"}),
            on="origin",
            by="series_id",
        ).set_index("index")["value"],
        "last week": near.assign(hour=near["hour"] - 168)
        .reset_index()
        .merge(known, on=["series_id", "hour"], how="left")
        .set_index("index")["value"],
        "own, a day ahead": near[["series_id", "hour"]]
        .reset_index()
        .merge(
            forecast.loc[forecast["hour"] - forecast["origin"] == 24, ["series_id", "hour", "q0.5"]],
            on=["series_id", "hour"],
            how="left",
        )
        .set_index("index")["q0.5"],
    }
    lines = [
        f"{name}: {plan['series_id'].nunique()} series, {len(plan)} hours, {1000 * used:.1f} ms CPU each",
        f"{'':18}{'MASE':>8}{'median':>8}{'1 h':>8}{'80 %':>7}{'1 h':>7}{'tidegrid on the same hours':>30}",
    ]

    def line(label: str, found: pd.DataFrame, same: str = "") -> str:
        result = score(found, table, scale)
        first = score(found[found["hour"] - found["origin"] == 1], table, scale)
        means, medians = result.mean(), result["MASE"].median()
        bands = ""
        if not same:
            bands = f"{100 * means['cover80']:7.1f}{100 * first['cover80'].mean():7.1f}"
        return f"{label:18}{means['MASE']:8.3f}{medians:8.3f}{first['MASE'].mean():8.3f}{bands or ' ' * 14}{same}"

    lines.append(line("tidegrid", near))
    for label, values in others.items():
        found = near.assign(**{"q0.5": values.reindex(near.index)}).dropna(subset=["q0.5"])
        own = score(near.loc[found.index], table, scale)["MASE"].mean()
        lines.append(line(label, found, f"{own:30.3f}"))
    return "\n".join(lines)


def cover(forecast: pd.DataFrame, table: pd.DataFrame, plan: pd.DataFrame, swap_cap: int | None) -> str:
    """Return what GPUs held at the 90 % quantile leave unmet, and save against reserving the peak all the time.

    A GPU serves a twentieth of each series' highest hour before the scored part. The reservation is the highest
    need of the scored part, which no one knows beforehand: nothing short by construction.
    """
    first = plan.groupby("series_id")["first"].min()
    before = table[table["hour"] < table["series_id"].map(first)]
    peak = before.groupby("series_id")["value"].max()
    both = forecast.merge(table, on=["series_id", "hour"]).dropna(subset=["value"])
    held = needed = unmet = reserved = 0
    for series, part in both.groupby("series_id"):
        if not peak.get(series, 0.0) > 0:
            continue
        capacity = Capacity(float(peak[series]) / 20)
        part = part.sort_values("hour")
        need = capacity.gpus(part["value"])
        curve = gpu_curve(part["q0.9"], capacity, swap_cap=swap_cap, held=int(need[0]))
        held, needed, reserved = held + curve.sum(), needed + need.sum(), reserved + need.max() * len(need)
        unmet += np.maximum(need - curve, 0).sum()
    return (
        f"GPUs at the 90 % quantile: {100 * unmet / needed:.2f} % of demanded GPU-hours unmet, "
        f"{100 * (1 - held / reserved):.1f} % fewer GPU-hours held than the peak reservation"
    )


def verdict(results: dict[str, pd.DataFrame], every: bool) -> None:
    """Print how tidegrid stands to the best peer, overall and series by series."""
    means = {name: result["MASE"].mean() for name, result in results.items()}
    best = min((name for name in means if name != "tidegrid"), key=lambda name: means[name])
    change = 100 * (means["tidegrid"] / means[best] - 1)
    print(f"against the best peer, {best}: MASE {change:+.1f} %")
    peers = pd.DataFrame({name: result["MASE"] for name, result in results.items() if name != "tidegrid"})
    own = results["tidegrid"]["MASE"]
    lost = {name: int((own > peers[name]).sum()) for name in peers}
    print(
        "series on which a peer is better: "
        + ", ".join(f"{name} {count}" for name, count in lost.items())
        + f" of {len(own)}"
    )
    if every:
        for series in own.index:
            first = peers.loc[series].idxmin()
            mark = "" if own[series] <= peers.loc[series, first] else "  lost"
            print(f"  {series:24}{own[series]:8.3f}  {first} {peers.loc[series, first]:.3f}{mark}")


def main(arguments: list[str] | None = None) -> int:
    warnings.filterwarnings("ignore", category=RuntimeWarning)
    try:
        run(parsed(arguments))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
