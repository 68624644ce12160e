"""``traffic``: fetch the hourly traffic that a site's Prometheus knows, and say what it is."""

from pathlib import Path
from typing import Annotated, Any

import typer

from tidegrid.app.common import DONE, REFUSED, JsonFlag, print_json, progress, table, tell

EXAMPLE = "Example: `tidegrid traffic my-site`, where cluster.json names a Prometheus server"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("traffic", epilog=EXAMPLE)(traffic)


def traffic(
    site: Annotated[Path, typer.Argument(help="The site's folder; its cluster.json names the server.")],
    now: Annotated[
        str | None, typer.Option("--now", help="Fetch what has ended by this instant; default: now.")
    ] = None,
    json_: JsonFlag = False,
) -> None:
    """Fetch the hours that have ended from the site's Prometheus; plan, tick and serve do so by themselves."""
    import pandas as pd

    from tidegrid.data import as_instant, read_cluster
    from tidegrid.data.prometheus import PrometheusError, scraped_twice
    from tidegrid.errors import InputError
    from tidegrid.pipeline.fetched import bring_up_to_date, with_fetched

    described = site / "cluster.json"
    source = read_cluster(described).traffic
    if source is None:
        raise InputError(
            "names no server",
            file=described,
            field="traffic",
            fix="see docs/data-formats.md, traffic.prometheus",
        )
    moment = pd.Timestamp.now("UTC").floor("s") if now is None else as_instant(now, field="now")
    with progress("asking Prometheus", quiet=json_):
        notes = bring_up_to_date(site, source, moment)
        try:
            notes += scraped_twice(source.prometheus, moment)
        except PrometheusError as error:
            if not notes:
                notes.append(str(error))
    known = with_fetched(None, site, source, moment, notes)
    rows: list[dict[str, Any]] = []
    for name in sorted(source.prometheus.apps):
        hours = known[known["series_id"] == name] if known is not None else pd.DataFrame()
        row: dict[str, Any] = {
            "series": name,
            "queries": source.prometheus.queries(name),
            "hours": len(hours),
        }
        if len(hours):
            row |= {
                "missing": int(hours["value"].isna().sum()),
                "first": hours["timestamp"].iloc[0].isoformat(),
                "last": hours["timestamp"].iloc[-1].isoformat(),
                "mean": float(hours["value"].mean()),
            }
        rows.append(row)
    if json_:
        print_json({"series": rows, "notes": notes})
    else:
        cells = [
            [
                r["series"],
                str(r["hours"]),
                str(r.get("missing", "–")),
                r.get("first", "–"),
                r.get("last", "–"),
                f"{r['mean']:.6g}" if "mean" in r else "–",
            ]
            for r in rows
        ]
        table("", ["series", "hours", "missing", "first", "last", "mean an hour"], cells, left=1)
        tell(notes)
    raise typer.Exit(DONE if all(r["hours"] for r in rows) and not notes else REFUSED)
