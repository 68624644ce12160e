"""Tables as CSV that a spreadsheet opens without running anything in it."""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any

from tidegrid.app.service.shadowing import NAMES
from tidegrid.app.service.view import LEVELS, View
from tidegrid.errors import printable

FORMULA = re.compile(r"^\s*[=+\-@|%\t\r\n]")
"""How a cell begins that a spreadsheet would take for a formula."""


def cell(value: Any) -> str:
    """Return a value as a cell; a text that would be taken for a formula gets an apostrophe in front."""
    if value is None:
        return ""
    if isinstance(value, bool | int | float):
        return str(value)
    text = printable(str(value))
    return f"'{text}" if FORMULA.match(text) else text


def as_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table as CSV."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([cell(name) for name in columns])
    writer.writerows([cell(value) for value in row] for row in rows)
    return out.getvalue()


def _of(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> tuple[list[str], list[list[Any]]]:
    return list(names), [[row.get(name) for name in names] for row in rows]


def now_table(view: View) -> tuple[list[str], list[list[Any]]]:
    """Return what is on each node: a row a stretch of GPUs."""
    rows = [
        [node["pool"], node["node"], task["first_gpu"], task["gpus"], task["task"], task["kind"]]
        for node in view.nodes
        for task in node["tasks"]
    ]
    return ["pool", "node", "first_gpu", "gpus", "task", "kind"], rows


def jobs_table(view: View, jobs: Iterable[dict[str, Any]] | None = None) -> tuple[list[str], list[list[Any]]]:
    """Return the jobs with their expected times."""
    plain = [
        "job",
        "state",
        "kind",
        "name",
        "user",
        "tenant",
        "priority",
        "gpus",
        "place",
        "submitted",
        "deadline",
    ]
    rows = []
    for job in view.jobs.values() if jobs is None else jobs:
        times = [(job[end] or {}).get(level) for end in ("start", "end") for level in LEVELS]
        rows.append([*(job[name] for name in plain), *times, job["reason"]])
    return [*plain, *(f"{end}_{level}" for end in ("start", "end") for level in LEVELS), "reason"], rows


def plan_table(view: View) -> tuple[list[str], list[list[Any]]]:
    """Return the blocks of the plan."""
    grid = view.grid
    pools = [pool["pool"] for pool in grid["pools"]]
    rows = [
        [grid["tasks"][task], grid["kind_names"][grid["kinds"][task]], pools[pool], first, gpus, start, steps]
        for task, pool, first, gpus, start, steps in grid["blocks"]
    ]
    return ["task", "kind", "pool", "first_gpu", "gpus", "start_step", "steps"], rows


def forecasts_table(view: View) -> tuple[list[str], list[list[Any]]]:
    """Return each app's traffic, hour by hour: what was forecast, and what came."""
    rows: list[list[Any]] = []
    for app in view.apps:
        rows += [
            [app["app"], p["hour"], p["low"], p["mid"], p["high"], p["actual"], p["model"]]
            for p in app["past"]
        ]
        rows += [
            [app["app"], h["hour"], *(h[level] for level in LEVELS), None, h["basis"]]
            for h in app["forecast"]
        ]
    return ["app", "hour", *LEVELS, "actual", "model"], rows


def savings_table(view: View) -> tuple[list[str], list[list[Any]]]:
    """Return GPU-hours by week and app."""
    names = ["week", "app", "hours", "peak_gpus", "reserved_gpu_hours", "held_gpu_hours", "saved_gpu_hours"]
    return _of(view.savings["weeks"], [*names, "saved_money", "unmet_gpu_hours"])


def tenants_table(view: View) -> tuple[list[str], list[list[Any]]]:
    """Return usage and waits by tenant."""
    names = [
        "tenant",
        "jobs",
        "gpu_hours",
        "wait_h_median",
        "wait_h_q0.9",
        "gpus_running",
        "gpus_waiting",
        "limit",
    ]
    return _of(view.savings["tenants"], names)


def shadow_table(view: View) -> tuple[list[str], list[list[Any]]]:
    """Return what happened day by day beside what would have; empty outside shadow mode."""
    return _of(view.shadow or [], NAMES)


TABLES = {
    "now": now_table,
    "jobs": jobs_table,
    "plan": plan_table,
    "forecasts": forecasts_table,
    "savings": savings_table,
    "tenants": tenants_table,
    "shadow": shadow_table,
}
"""The tables that are exported, by name."""
