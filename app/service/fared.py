"""How forecasts and expected times fared over the last days, by app and by workload kind; which model answers."""

from typing import Any

import numpy as np
import pandas as pd

from tidegrid.data import History
from tidegrid.errors import InputError
from tidegrid.models import ModelStore
from tidegrid.pipeline.bands import inside
from tidegrid.pipeline.memory import iso
from tidegrid.pipeline.rolling import StateStore

DAYS = 30
"""Days that are looked back."""


def by_series(store: StateStore, now: str) -> list[dict[str, Any]]:
    """Return how the forecasts of each traffic series fared, an hour ahead.

    Each record has ``series``, ``hours``, ``covered`` (the share inside the 80 % band), ``error`` (the median absolute
    error of the middle, as a share of what came) and ``bias`` (the sum of the middles over the sum of what came, less
    1); None where nothing is known.
    """
    since = iso(pd.Timestamp(now) - pd.Timedelta(days=DAYS))
    groups: dict[str, list[Any]] = {}
    for hour in store.hours(since):
        groups.setdefault(hour.series, []).append(hour)
    out = []
    for series, hours in sorted(groups.items()):
        done = [one for one in hours if one.actual is not None]
        came = np.array([one.actual for one in done], dtype=float)
        middle = np.array([one.mid for one in done], dtype=float)
        some = came > 0
        out.append(
            {
                "series": series,
                "hours": len(done),
                "covered": _share([one.low <= one.actual <= one.high for one in done]),
                "error": float(np.median(np.abs(middle - came)[some] / came[some])) if some.any() else None,
                "bias": float(middle.sum() / came.sum() - 1) if some.any() else None,
                "model": hours[-1].model,
            }
        )
    return out


def by_kind(store: StateStore, history: History, now: str) -> list[dict[str, Any]]:
    """Return how the expected ends of jobs fared, by workload kind.

    Each record has ``kind``, ``jobs`` (completed, that were told an end), ``covered`` (the share that ended inside its
    80 % band), ``error_minutes`` (the median distance from the middle) and ``within_30`` (the share that ended within
    30 minutes of it).
    """
    since = iso(pd.Timestamp(now) - pd.Timedelta(days=DAYS))
    jobs = history.jobs
    kinds = dict(zip(jobs["job_id"].astype(str), jobs["kind"].astype(str), strict=True))
    groups: dict[str, list[Any]] = {}
    for one in store.outcomes():
        if one.status == "completed" and one.told is not None and one.told < one.ended and one.ended >= since:
            groups.setdefault(kinds.get(one.job_id, "unknown"), []).append(one)
    out = []
    for kind, ended in sorted(groups.items()):
        off = [
            abs(pd.Timestamp(one.ended) - pd.Timestamp(one.end_mid)) / pd.Timedelta(minutes=1)
            for one in ended
        ]
        out.append(
            {
                "kind": kind,
                "jobs": len(ended),
                "covered": _share([bool(inside(one.end_low, one.ended, one.end_high)) for one in ended]),
                "error_minutes": float(np.median(off)),
                "within_30": _share([minutes <= 30 for minutes in off]),
            }
        )
    return out


def models_of(models: ModelStore) -> list[dict[str, Any]]:
    """Return each estimator's champion, challenger and earlier champions, and what versions there are."""
    out: list[dict[str, Any]] = []
    for name in models.names():
        try:
            champion, challenger, earlier = (
                models.champion(name),
                models.challenger(name),
                models.ancestors(name),
            )
            versions = {version.id: version for version in models.list(name)}
        except InputError as error:
            out.append({"name": name, "problem": str(error)})
            continue
        known = versions.get(champion or "")
        out.append(
            {
                "name": name,
                "champion": champion,
                "challenger": challenger,
                "earlier": list(earlier),
                "created": None if known is None or known.problem else str(known.manifest["created"]),
                "versions": list(versions),
            }
        )
    return out


def _share(hits: list[bool]) -> float | None:
    return sum(hits) / len(hits) if hits else None
