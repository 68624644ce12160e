"""What planning saves against peak reservation, by week and app; what tenants used, and how long they waited."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from tidegrid.data import Cluster, History
from tidegrid.pipeline.memory import iso
from tidegrid.pipeline.rolling import StateStore
from tidegrid.pipeline.state import State

WEEKS = 12
"""Weeks that are looked back."""

USED_DAYS = 28
"""Days over which tenants' use is counted."""

HOUR = pd.Timedelta(hours=1)


def savings_of(store: StateStore, cluster: Cluster, now: str) -> dict[str, Any]:
    """Return GPU-hours that apps held and would have reserved, by week from Monday in the site's zone.

    Peak reservation holds, all the week, the most GPUs that the app needed in any hour of it (or held, where that is
    less than what is known of its need). A price stands in ``cluster.json`` for each pool; money is None without.
    """
    zone, until = cluster.timezone, pd.Timestamp(now)
    since = iso(_monday(until, zone) - pd.Timedelta(weeks=WEEKS - 1))
    holds: dict[str, list[tuple[pd.Timestamp, int]]] = {}
    for at, hold in store.holds(since):
        holds.setdefault(hold.app, []).append((pd.Timestamp(at), hold.gpus))
    needed: dict[tuple[str, str], list[float]] = {}
    for one in store.unmet():
        if one.hour >= since:
            week = iso(_monday(pd.Timestamp(one.hour), zone))
            needed.setdefault((one.app, week), []).append(one.needed)
    unmet: dict[tuple[str, str], float] = {}
    for one in store.unmet():
        if one.hour >= since:
            key = (one.app, iso(_monday(pd.Timestamp(one.hour), zone)))
            unmet[key] = unmet.get(key, 0.0) + one.unmet
    prices = {pool.id: pool.price_per_gpu_hour for pool in cluster.pools}
    weeks: list[dict[str, Any]] = []
    for app in cluster.apps:
        for start, hours, held, most in by_week(holds.get(app.id, []), until, zone):
            week = iso(start)
            peak = max([*needed.get((app.id, week), []), 0.0]) or float(most)
            reserved, price = peak * hours, prices[app.pool]
            saved = reserved - held
            weeks.append(
                {
                    "week": week,
                    "app": app.id,
                    "hours": round(hours, 3),
                    "peak_gpus": peak,
                    "reserved_gpu_hours": round(reserved, 3),
                    "held_gpu_hours": round(held, 3),
                    "saved_gpu_hours": round(saved, 3),
                    "saved_money": None if price is None else round(saved * price, 2),
                    "unmet_gpu_hours": round(unmet.get((app.id, week), 0.0), 3),
                }
            )
    weeks.sort(key=lambda one: (one["week"], one["app"]), reverse=True)
    return {"weeks": weeks, "currency": cluster.currency}


def by_week(
    holds: Sequence[tuple[pd.Timestamp, int]], until: pd.Timestamp, zone: str
) -> list[tuple[pd.Timestamp, float, float, int]]:
    """Return (Monday, hours, GPU-hours held, most GPUs held) of each week between the first hold and ``until``."""
    out: dict[pd.Timestamp, list[float]] = {}
    ends = [at for at, _ in holds[1:]] + [until]
    for (at, gpus), end in zip(holds, ends, strict=True):
        while at < end:
            week = _monday(at, zone)
            stop = min(end, _monday(at + pd.Timedelta(days=7), zone))
            hours = (stop - at) / HOUR
            entry = out.setdefault(week, [0.0, 0.0, 0.0])
            entry[0] += hours
            entry[1] += hours * gpus
            entry[2] = max(entry[2], gpus)
            at = stop
    return [(week, hours, held, int(most)) for week, (hours, held, most) in out.items()]


def _monday(at: pd.Timestamp, zone: str) -> pd.Timestamp:
    local = at.tz_convert(zone)
    day = (local - pd.Timedelta(days=local.weekday())).tz_localize(None).normalize()
    return day.tz_localize(zone, ambiguous=True, nonexistent="shift_forward").tz_convert("UTC")


def tenants_of(history: History, state: State, now: str) -> list[dict[str, Any]]:
    """Return each tenant's GPU-hours and waits over the last weeks, what it holds now, what it asks for, its limit."""
    until = pd.Timestamp(now)
    since = until - pd.Timedelta(days=USED_DAYS)
    jobs = history.jobs
    jobs = jobs[(jobs["known_at"] > since).to_numpy() & (jobs["status"] != "running").to_numpy()]
    names = jobs["tenant"] if "tenant" in jobs.columns else jobs["group"]
    frame = pd.DataFrame(
        {
            "tenant": names.astype(str),
            "hours": (jobs["duration_s"].astype(float) / 3600 * jobs["gpus"].astype(float)).fillna(0.0),
            "wait": (jobs["start_time"] - jobs["submit_time"]).dt.total_seconds() / 3600,
        }
    )
    out: dict[str, dict[str, Any]] = {}

    def entry(name: str) -> dict[str, Any]:
        return out.setdefault(
            name,
            {
                "tenant": name,
                "jobs": 0,
                "gpu_hours": 0.0,
                "wait_h_median": None,
                "wait_h_q0.9": None,
                "gpus_running": 0,
                "gpus_waiting": 0,
                "limit": None,
            },
        )

    for name, rows in frame.groupby("tenant"):
        waits = rows["wait"].dropna()
        entry(str(name)).update(
            {
                "jobs": len(rows),
                "gpu_hours": round(float(rows["hours"].sum()), 3),
                "wait_h_median": None if waits.empty else round(float(waits.median()), 3),
                "wait_h_q0.9": None if waits.empty else round(float(waits.quantile(0.9)), 3),
            }
        )
    for key, table in (("gpus_running", state.running), ("gpus_waiting", state.requests)):
        if len(table):
            sums = table.groupby(table["tenant"].astype(str))["gpus"].sum()
            for tenant, gpus in zip(sums.index, sums.tolist(), strict=True):
                entry(str(tenant))[key] = int(gpus)
    for one in state.cluster.tenants:
        entry(one.id)["limit"] = one.limit
    return sorted(out.values(), key=lambda one: (-one["gpu_hours"], one["tenant"]))
