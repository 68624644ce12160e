"""``forecast``: the demand of realtime apps, as a table, a file and a picture; ``forecast backtest``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from tidegrid.app.common import (
    DONE,
    MOST_DAYS,
    MOST_GPUS,
    REFUSED,
    CountryOption,
    JobsOption,
    JsonFlag,
    a_zone,
    fetch_traffic,
    print_json,
    progress,
    say,
    set_aside_json,
    table,
    tell,
    tell_set_aside,
)
from tidegrid.errors import InputError

if TYPE_CHECKING:
    from tidegrid.data import Cluster

Traffic = Annotated[
    Path, typer.Argument(help="Hourly traffic (series_id, timestamp or hour, value), or a site's folder.")
]
Series = Annotated[
    list[str] | None, typer.Option("--series", "-s", help="Only this series; may be given several times.")
]
Zone = Annotated[
    str | None,
    typer.Option(
        "--timezone",
        callback=a_zone,
        help="IANA zone whose wall clock demand follows, and of times that carry none; default UTC.",
    ),
]


WEEK = 168


class _Group(TyperGroup):
    """``forecast FILE`` is short for ``forecast run FILE``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the default command's name before arguments that begin with no command."""
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        cls=_Group,
        name="forecast",
        help="Forecast the demand of realtime apps: `tidegrid forecast traffic.csv --picture demand.png`.",
        epilog="Example: `tidegrid forecast traffic.csv --hours 48 --units-per-gpu-hour 5000 --swap-cap 2`",
        no_args_is_help=True,
    )
    group.command("run", epilog="Example: `tidegrid forecast traffic.csv --hours 48 --picture demand.png`")(
        forecast
    )
    group.command("backtest", epilog="Example: `tidegrid forecast backtest traffic.csv --last-days 7`")(
        backtest
    )
    app.add_typer(group, name="forecast")


def forecast(
    traffic: Traffic,
    series: Series = None,
    hours: Annotated[int, typer.Option("--hours", min=1, max=168, help="Hours to look ahead.")] = 24,
    timezone: Zone = None,
    country: CountryOption = None,
    quantile: Annotated[
        float,
        typer.Option(
            "--quantile",
            min=0.01,
            max=0.99,
            help="Quantile of demand that GPUs are held for.",
        ),
    ] = 0.9,
    units: Annotated[
        float | None,
        typer.Option(
            "--units-per-gpu-hour",
            min=1e-9,
            max=1e15,
            help="Demand that one GPU serves in an hour.",
        ),
    ] = None,
    replica: Annotated[
        int, typer.Option("--gpus-per-replica", min=1, max=MOST_GPUS, help="GPUs of one replica.")
    ] = 1,
    least: Annotated[
        int, typer.Option("--min-replicas", min=0, max=MOST_GPUS, help="Replicas that are always up.")
    ] = 0,
    load: Annotated[
        float,
        typer.Option("--target-load", min=0.01, max=1.0, help="Share of the capacity to plan on."),
    ] = 1.0,
    cap: Annotated[
        int | None,
        typer.Option("--swap-cap", min=0, max=MOST_GPUS, help="GPUs that may enter or leave per hour."),
    ] = None,
    held: Annotated[int, typer.Option("--held", min=0, max=MOST_GPUS, help="GPUs held now.")] = 0,
    cluster: Annotated[
        Path | None,
        typer.Option(
            "--cluster",
            help="Cluster description (cluster.json, or a site's folder): its apps' capacity, swap caps (a step is "
            "an hour here), held GPUs, time zone and public holidays, in place of the options for them. Where the "
            "traffic is a site's folder, its own.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write quantiles, and GPUs needed and planned, to this CSV file."),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            "--picture",
            help="Draw the first series into this PNG file: forecast, GPUs, level, shape of the week, remainder.",
        ),
    ] = None,
    jobs: JobsOption = 1,
    json_: JsonFlag = False,
) -> None:
    """Forecast demand with its band, and the GPUs that it needs under the swap cap.

    Rows that cannot be used are reported and left out; the rest is forecast, and the exit code is 1.
    """
    import pandas as pd

    from tidegrid.estimators.realtime import Capacity, RealtimeEstimator, gpu_curve
    from tidegrid.files import check_outputs
    from tidegrid.pipeline.fallback import SureDemand

    check_outputs(out, picture)
    site = None
    own = (units, replica, least, load, cap, held) != (None, 1, 0, 1.0, None, 0)
    if cluster is None and (traffic / "cluster.json").is_file():
        from tidegrid.data import read_cluster

        site = read_cluster(traffic / "cluster.json")
    if cluster is not None:
        if own:
            raise InputError(
                "is given together with capacity options",
                field="--cluster",
                fix="let either cluster.json or the options tell capacity, swap cap and GPUs held",
            )
        site = _cluster(cluster)
    by_app = site is not None and bool(site.apps) and not own
    if country is None and site is not None:
        country, subdivision = site.country, site.subdivision
    else:
        subdivision = None
    told: list[str] = []
    aside: list[InputError] = []
    levels = tuple(sorted({0.025, 0.1, 0.5, 0.9, 0.975, quantile}))
    capacity = (
        None
        if units is None
        else Capacity(units, gpus_per_replica=replica, min_replicas=least, target_load=load)
    )
    with progress("reading traffic", quiet=json_) as step:
        history = _history(traffic, series, timezone, told, aside)
        step(f"learning {history['series_id'].nunique()} series")
        X = history.rename(columns={"series_id": "unique_id", "timestamp": "ds"})
        zone = timezone or ("UTC" if site is None else site.timezone)
        estimator, why = RealtimeEstimator(zone, country, subdivision, n_jobs=jobs), ""
        try:
            estimator.fit(X[["unique_id", "ds"]], X["value"])
        except InputError as error:
            why = str(error)
        rows = []
        ends = history.groupby(history["series_id"].astype(str))["timestamp"].max()
        if site is not None and by_app:
            # an app without traffic of its own is forecast from the others, from their last hour on
            wanted = list(
                dict.fromkeys(app.series for app in site.apps if not series or app.series in series)
            )
            ends = ends.reindex(wanted).fillna(ends.max())
        for name, last in ends.items():
            ds = pd.date_range(last + pd.Timedelta(hours=1), periods=hours, freq="h")
            rows.append(pd.DataFrame({"unique_id": name, "ds": ds}))
        ahead = pd.concat(rows, ignore_index=True)
        apps = site.apps if site is not None and by_app else ()
        sure = SureDemand(None if why else estimator, lambda: history, apps, why)
        quantiles, basis = sure.answer(ahead, levels)
        result = ahead.join(quantiles).assign(basis=basis)
        if capacity is not None:
            result["gpus_needed"] = capacity.gpus(result[quantile])
            curves = [
                pd.Series(gpu_curve(part[quantile], capacity, swap_cap=cap, held=held), index=part.index)
                for _, part in result.groupby("unique_id", sort=False)
            ]
            result["gpus_planned"] = pd.concat(curves)
        if site is not None and by_app:
            result = _by_app(site, result, quantile)
        report = pd.DataFrame() if why else estimator.report()
    named = result.rename(columns={level: f"q{level}" for level in levels})
    if out is not None:
        from tidegrid.files import writing

        with writing(out) as part:
            named.to_csv(part, index=False)
    if picture is not None:
        _draw(picture, history, result, levels)
    notes = [*told, *(event.text for event in sure.events())]
    if json_:
        print_json(
            {"forecast": _records(named), "series": _records(report.reset_index()), "notes": notes}
            | set_aside_json(aside)
        )
    else:
        _print(result, quantile)
        tell(notes)
        for path in (out, picture):
            if path is not None:
                say(f"wrote {path}")
        tell_set_aside(aside)
    raise typer.Exit(REFUSED if aside else DONE)


def backtest(
    traffic: Traffic,
    series: Series = None,
    horizon: Annotated[
        int, typer.Option("--horizon", min=1, max=168, help="Hours ahead of each forecast.")
    ] = 24,
    last_days: Annotated[
        int, typer.Option("--last-days", min=1, max=MOST_DAYS, help="Days at the end that are scored.")
    ] = 7,
    timezone: Zone = None,
    country: CountryOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write every forecast to this CSV file.")
    ] = None,
    jobs: JobsOption = 1,
    json_: JsonFlag = False,
) -> None:
    """Backtest: forecast the last days from earlier origins, each with what was known then, and measure the errors."""
    from tidegrid.estimators.realtime import RealtimeEstimator
    from tidegrid.estimators.realtime.backtest import instants, origins, roll, scales, score
    from tidegrid.estimators.realtime.localtime import utc_hours
    from tidegrid.files import check_outputs

    check_outputs(out)
    told: list[str] = []
    aside: list[InputError] = []
    with progress("reading traffic", quiet=json_) as step:
        history = _history(traffic, series, timezone, told, aside)
        hourly = history.assign(hour=utc_hours(history["timestamp"]))[["series_id", "hour", "value"]]
        step("forecasting from past origins")
        plan = origins(hourly, horizon, last_days)
        estimator = RealtimeEstimator(timezone=timezone or "UTC", country=country, n_jobs=jobs)
        forecasts, seconds = roll(hourly, plan, estimator)
        measures = score(forecasts, hourly, scales(hourly, plan))
    if out is not None:
        from tidegrid.files import writing

        with writing(out) as part:
            named = forecasts.assign(
                origin=instants(forecasts["origin"]).to_numpy(), hour=instants(forecasts["hour"]).to_numpy()
            )
            named.to_csv(part, index=False)
    if json_:
        found = {"series": _records(measures.reset_index()), "cpu_s": seconds, "notes": told}
        print_json(found | set_aside_json(aside))
        raise typer.Exit(REFUSED if aside else DONE)
    rows_text = [
        [str(key), *(_number(m[c]) for c in ("MASE", "sMAPE", "pinball", "MSIS")), _percent(m["cover80"]),
         _percent(m["cover95"]), _number(m["bias"])]
        for key, m in measures.iterrows()
    ]  # fmt: skip
    mean = measures.mean()
    rows_text.append(
        ["mean", *(_number(mean[c]) for c in ("MASE", "sMAPE", "pinball", "MSIS")), _percent(mean["cover80"]),
         _percent(mean["cover95"]), _number(mean["bias"])]
    )  # fmt: skip
    head = ["series", "MASE", "sMAPE", "pinball", "MSIS", "in 80 %", "in 95 %", "bias"]
    table(f"last {last_days} days, {horizon} h ahead, refitted at each origin", head, rows_text)
    tell(told)
    if out is not None:
        say(f"wrote {out}")
    tell_set_aside(aside)
    raise typer.Exit(REFUSED if aside else DONE)


def _records(frame: Any) -> list[dict[str, Any]]:
    """Return a frame's rows as JSON values, what is not finite as null."""
    import numpy as np

    plain = frame.replace([np.inf, -np.inf], np.nan)
    return list(plain.astype(object).where(plain.notna(), None).to_dict("records"))


def _history(
    traffic: Path, series: list[str] | None, timezone: str | None, notes: list[str], aside: list[InputError]
) -> Any:
    from tidegrid.data import read_traffic
    from tidegrid.pipeline.site import table_of

    if traffic.is_dir():
        found = table_of(traffic, "traffic")
        history = _told_by_server(traffic, found, timezone, notes, aside)
        if history is None:
            raise InputError("holds no traffic.csv", file=traffic, fix="name the traffic file")
        traffic = found or traffic
    else:
        history = read_traffic(traffic, timezone=timezone, notes=notes, set_aside=aside)
    if series:
        known = set(history["series_id"].astype(str))
        for name in series:
            if name not in known:
                shown = ", ".join(sorted(known)[:5])
                raise InputError(
                    f"there is no series {name!r}", file=traffic, field="--series", fix=f"use one of {shown}"
                )
        history = history[history["series_id"].astype(str).isin(series)]
    return history


def _told_by_server(
    site: Path, table: Path | None, timezone: str | None, notes: list[str], aside: list[InputError]
) -> Any:
    """Return the traffic of a site's folder: its table's, and what the server tells that it names."""
    from tidegrid.data import read_cluster, read_traffic
    from tidegrid.pipeline.fetched import with_fetched

    hours = read_traffic(table, timezone=timezone, notes=notes, set_aside=aside) if table else None
    described = site / "cluster.json"
    if not described.is_file():
        return hours
    fetch_traffic(site)
    return with_fetched(hours, site, read_cluster(described).traffic, notes=notes)


def _cluster(path: Path) -> "Cluster":
    from tidegrid.data import read_cluster

    path = path / "cluster.json" if path.is_dir() else path
    found = read_cluster(path)
    if not found.apps:
        raise InputError(
            "holds no apps", file=path, field="apps", fix="name the apps whose GPUs are asked for"
        )
    return found


def _by_app(site: "Cluster", result: Any, quantile: float) -> Any:
    """Return the forecast of each app's series with the app's name and GPUs; apps may share a series."""
    import pandas as pd

    from tidegrid.estimators.realtime.capacity import PATIENCE, ramp
    from tidegrid.pipeline.demand import gpus_needed

    parts = []
    for app in site.apps:
        part = result[result["unique_id"] == app.series].copy()
        if len(part):
            need = gpus_needed(app, part[quantile])
            part.insert(0, "app", app.id)
            held = len(set(app.held) - set(site.pool(app.pool).down))
            planned = ramp([int(v) for v in need], app.swap_cap, held, patience=PATIENCE)
            parts.append(part.assign(gpus_needed=need, gpus_planned=planned))
    return pd.concat(parts, ignore_index=True)


def _print(result: Any, quantile: float) -> None:
    gpus = "gpus_needed" in result
    key = "app" if "app" in result else "unique_id"
    rows = []
    for name, part in result.groupby(key, sort=False):
        peak = part[0.5].idxmax()
        row = [str(name), _number(part[0.5].mean()), _number(part[0.5].max()), _number(part[0.1].loc[peak])]
        row += [_number(part[0.9].loc[peak]), f"{part['ds'].loc[peak]:%a %H:%M}"]
        if gpus:
            row += [f"{part[c].min()}–{part[c].max()}" for c in ("gpus_needed", "gpus_planned")]
            row += [str(int(part["gpus_planned"].sum()))]
        rows.append([*row, str(part["basis"].iloc[0])])
    head = ["app" if key == "app" else "series", "mean", "peak", "10 %", "90 %", "peak at (UTC)"]
    head += [f"GPUs needed at {quantile:g}", "planned under swap cap", "GPU-hours planned"] if gpus else []
    table("", [*head, "basis"], rows)


def _draw(path: Path, history: Any, result: Any, levels: tuple[float, ...]) -> None:
    from tidegrid.app.pictures import demand_png
    from tidegrid.estimators.classical import decompose, period_of

    key = "app" if "app" in result else "unique_id"
    shown, name = str(result[key].iloc[0]), str(result["unique_id"].iloc[0])
    part = result[result[key] == shown].set_index("ds")
    past = history[history["series_id"].astype(str) == name].set_index("timestamp")["value"].iloc[-8 * WEEK :]
    parts = decompose(past.to_numpy())
    parts.index = past.index[parts.index]
    period = period_of(len(parts))
    shape = "shape of the " + ("week" if period == WEEK else "day")
    parts = parts.rename(columns={"shape": shape}) if period else parts.drop(columns="shape")
    needed = "gpus_needed" in part
    demand_png(
        past.iloc[-2 * WEEK :],
        part[list(levels)],
        path,
        f"{shown}: demand an hour and its forecast",
        part["gpus_needed"] if needed else None,
        part["gpus_planned"] if needed else None,
        parts.iloc[-2 * WEEK :] if len(parts) else None,
    )


def _number(value: float) -> str:
    if value != value:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"
