"""The figures of a replay, from what really happened and what a policy did."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from tidegrid.data.cluster import laid
from tidegrid.pipeline.worlds.simulated import Played
from tidegrid.pipeline.worlds.trace import HOUR, Trace

HALF_LIFE_H = 24.0
"""Waiting that halves a job's value in ``value_discounted``."""

FLOOR_S = 600.0
"""The shortest duration that a slowdown is measured against (bounded slowdown, Feitelson et al. 1997, 10 minutes)."""

SHORT_S = 4 * HOUR
"""Jobs below this are the short ones of the ETA figures."""

ROUNDING_S = 1e-3
"""How far an end may lie outside its band by rounding alone: hours are turned into seconds."""

PARTS = {
    "durations": "rolling_perfect_durations",
    "demand": "rolling_perfect_demand",
    "both": "rolling_perfect",
}
"""What perfect knowledge replaces, and the policy that has it."""

PLAIN = {"medians of history": "rolling_medians", "peak reservation": "rolling_peak"}
"""What our forecasts replace, and the policy that does without them."""


def measure(trace: Trace, outcome: Played) -> dict[str, Any]:
    """Return the figures of a policy.

    Returns
    -------
    dict
        ``value``: priority · work of the jobs that ended inside the replay, a job's work being the GPU-hours that it
        takes at the size that it asks for, whatever it got; ``value_discounted``: the same,
        halved for each ``HALF_LIFE_H`` of waiting; ``value_limit``: see :func:`value_limit`;
        ``value_share_of_limit``: value by it; ``work_share``: of the GPU-hours that jobs occupied, those that their
        work would have taken at its cheapest size; ``utilization``: GPU-hours of jobs inside the replay and of
        realtime demand served, of all there are; ``unmet``: GPU-hours of realtime demand not served, and
        ``unmet_share`` of all demanded; ``by_app``: the same for each app; ``swaps``; ``completed`` and ``jobs``;
        ``wait_h``, ``jct_h`` and ``slowdown`` with mean, median and 95th percentile (a job that has not started or
        ended counts up to the replay's end); ``eta`` and ``eta_submit``: see :func:`eta_accuracy`; ``plans``;
        ``later_than_told``: of the jobs that were told to wait and whose told start lies an hour before the
        replay's end, the share that had not started an hour after it (None where no job was told).
    """
    worth = trace.priority * trace.size * (trace.duration_s / HOUR)
    end, done, size = outcome.start + outcome.seconds(trace), outcome.done(trace), outcome.sizes(trace)
    wait, jct, slowdown = _times(trace, outcome)
    ran = np.clip(np.minimum(end, trace.end_s) - np.minimum(outcome.start, trace.end_s), 0.0, None)
    apps = by_app(trace, outcome)
    demanded = float(sum(app["demanded"] for app in apps))
    unmet = float(outcome.unmet.sum())
    room = trace.gpus * trace.end_s / HOUR
    value, limit = float(worth[done].sum()), value_limit(trace)
    occupied = size * ran
    cheapest = trace.least_work() / np.maximum(size * outcome.seconds(trace), 1e-9)
    cheapest[list(outcome.lost)] = 0.0
    return {
        "value": value,
        "value_discounted": float((worth * 0.5 ** (wait / HALF_LIFE_H))[done].sum()),
        "value_limit": limit,
        "value_share_of_limit": value / limit if limit else 0.0,
        "work_share": float((occupied * cheapest).sum() / occupied.sum()) if occupied.any() else 1.0,
        "utilization": (float(occupied.sum()) / HOUR + demanded - unmet) / room,
        "unmet": unmet,
        "unmet_share": unmet / demanded if demanded else 0.0,
        "by_app": apps,
        "swaps": outcome.swaps,
        "completed": int(done.sum()),
        "jobs": len(done),
        "wait_h": _spread(wait),
        "jct_h": _spread(jct),
        "slowdown": _spread(slowdown),
        "eta": eta_accuracy(trace, outcome, outcome.eta),
        "eta_submit": eta_accuracy(trace, outcome, outcome.eta_submit),
        "later_than_told": _later_than_told(trace, outcome),
        "plans": outcome.plans,
    }


def _later_than_told(trace: Trace, outcome: Played) -> float | None:
    due = outcome.told_start + HOUR
    seen = np.flatnonzero(due <= trace.end_s)
    return float((outcome.start[seen] > due[seen]).mean()) if len(seen) else None


def value_limit(trace: Trace) -> float:
    """Return an upper limit of the value of every policy that serves all realtime demand.

    A relaxation: jobs are GPU-hours that may be cut anywhere and run on any number of GPUs at once, from their submit
    on, with what true demand leaves of the pool; jobs that could not end inside the replay if they started at their
    submit are worth nothing. A job that may have several sizes takes the fewest GPU-hours of them, and counts as one of
    a priority that is higher by as much. The most GPU-hours of the jobs of at least some priority, S(t) being what has
    been left by t and A(t) what has been submitted before t, is the least over t of A(t) + S(end) − S(t) (a queue that
    never idles while it has work). Serving higher priorities first attains it for all priorities at once, so the limit
    is the sum of these over the priorities, each times its distance to the next lower one.
    """
    hours, shortest = trace.least_work() / trace.size / HOUR, trace.duration_s
    density = trace.priority.astype(float)
    if trace.sizes is not None:
        density *= trace.duration_s / HOUR / hours
        widest = [min(laid(trace.pool, int(most))[0], trace.gpus) for most in trace.sizes[:, 1]]
        shortest = np.array([trace.seconds(j, gpus) for j, gpus in enumerate(widest)])
    possible = (trace.submit_s + shortest <= trace.end_s) & (trace.size <= trace.gpus)
    edges = np.minimum(np.arange(trace.hours + 1) * HOUR, trace.end_s)
    left = np.maximum(trace.gpus - trace.demand().sum(axis=0), 0)
    served = np.concatenate([[0.0], np.cumsum(left * np.diff(edges) / HOUR)])
    limit, below = 0.0, 0.0
    for priority in np.unique(density[possible]):
        at_least = possible & (density >= priority)
        work = trace.size[at_least] * hours[at_least]
        since = served[-1] - np.interp(trace.submit_s[at_least], edges, served)
        most = min(float(work.sum()), float((np.cumsum(work) - work + since).min()))
        limit += float(priority - below) * most
        below = float(priority)
    return limit


def by_app(trace: Trace, outcome: Played) -> list[dict[str, Any]]:
    """Return GPU-hours of realtime demanded, held and not served, for each app."""
    demanded = (trace.demand() * _shares(trace)).sum(axis=1)
    out = []
    for k, app in enumerate(trace.apps):
        unmet = float(outcome.unmet[k].sum())
        out.append(
            {
                "app": app.id,
                "demanded": float(demanded[k]),
                "held": float(outcome.held[k].sum()),
                "unmet": unmet,
                "unmet_share": unmet / float(demanded[k]) if demanded[k] else 0.0,
            }
        )
    return out


def by_size(trace: Trace, outcome: Played) -> list[dict[str, Any]]:
    """Return waits, slowdowns and completions for each size that was asked for."""
    return [
        {"gpus": int(size), **group}
        for size, group in _groups(trace, outcome, trace.size, np.unique(trace.size).tolist())
    ]


def by_user(trace: Trace, outcome: Played) -> list[dict[str, Any]]:
    """Return waits, slowdowns and completions for each user (the group where no user is named), most work first."""
    user = users(trace)
    work = pd.Series(trace.size * trace.duration_s / HOUR).groupby(user).sum()
    names = work.sort_index().sort_values(ascending=False, kind="stable").index.tolist()
    priority = dict(zip(user.tolist(), trace.priority.tolist(), strict=True))
    return [
        {"user": name, "priority": priority[name], "gpu_hours": float(work[name]), **group}
        for name, group in _groups(trace, outcome, user, names)
    ]


def users(trace: Trace) -> np.ndarray:
    """Return the user of each job, or its group where no user is named."""
    return trace.jobs["user"].where(trace.jobs["user"] != "", trace.jobs["group"]).to_numpy(dtype=object)


def eta_accuracy(trace: Trace, outcome: Played, eta: np.ndarray) -> dict[str, Any]:
    """Return how expected ends fared.

    True ends are known past the replay's end as well, so every job that started is scored; one that never started
    is scored only where its band ended before the replay did, which is a miss.

    Parameters
    ----------
    eta : ndarray of shape (jobs, 3) or empty
        Expected ends in seconds at 0.1, 0.5 and 0.9; NaN where none was told.

    Returns
    -------
    dict
        ``told``: expected ends that are scored; ``coverage_80``: the share inside the band; ``within_10_min`` and
        ``within_30_min``: the share whose median was so close; ``short``: the same of jobs under ``SHORT_S``. Shares
        of nothing are None.
    """
    told = np.isfinite(eta).all(axis=1) if len(eta) else np.zeros(len(outcome.start), dtype=bool)
    started = np.isfinite(outcome.start)
    if told.any():
        told &= started | (eta[:, 2] < trace.end_s)
    short = told & (trace.duration_s < SHORT_S)
    end = outcome.start + outcome.seconds(trace)
    return {**_accuracy(eta, end, told), "short": _accuracy(eta, end, short)}


def eta_errors(trace: Trace, outcome: Played, eta: np.ndarray) -> np.ndarray:
    """Return how far, in minutes, the median of each expected end was off, of the jobs that started; sorted."""
    if not len(eta):
        return np.empty(0)
    off = np.abs(outcome.start + outcome.seconds(trace) - eta[:, 1]) / 60
    return np.sort(off[np.isfinite(off)])


def timeline(trace: Trace, outcome: Played) -> pd.DataFrame:
    """Return what happened in each hour.

    Returns
    -------
    DataFrame
        One row an hour with the instant ``hour`` and, in GPU-hours: ``jobs`` (running jobs), ``held``, ``demanded``,
        ``unmet`` and ``served`` (realtime), ``idle`` (neither a job nor held), ``waiting`` (GPUs asked for by jobs
        that wait); the last hour may be a part of one.
    """
    edges = np.minimum(np.arange(trace.hours + 1) * HOUR, trace.end_s)
    start = np.minimum(outcome.start, trace.end_s)
    end = np.minimum(outcome.start + outcome.seconds(trace), trace.end_s)
    shares = _shares(trace)
    demanded = (trace.demand() * shares).sum(axis=0)
    unmet, held = outcome.unmet.sum(axis=0), outcome.held.sum(axis=0)
    jobs = _by_hour(start, end, outcome.sizes(trace), edges)
    return pd.DataFrame(
        {
            "hour": trace.start + pd.to_timedelta(np.arange(trace.hours), unit="h"),
            "jobs": jobs,
            "held": held,
            "demanded": demanded,
            "unmet": unmet,
            "served": demanded - unmet,
            "idle": np.maximum(trace.gpus * shares - jobs - held, 0.0),
            "waiting": _by_hour(np.minimum(trace.submit_s, trace.end_s), start, trace.size, edges),
        }
    )


def regret(values: Mapping[str, float]) -> list[dict[str, Any]]:
    """Return what perfect knowledge of each part would add, and what our forecasts add to doing without them.

    Parameters
    ----------
    values
        The value of each policy, by name.

    Returns
    -------
    list of dict
        ``part``; ``policy``; ``regret``: its value minus that of ``rolling``; ``kept``: the value of ``rolling`` by
        its value. A negative regret of a part without forecasts is what they are worth. Empty without ``rolling``.
    """
    if "rolling" not in values:
        return []
    ours = values["rolling"]
    return [
        {
            "part": part,
            "policy": name,
            "regret": values[name] - ours,
            "kept": ours / values[name] if values[name] else 0.0,
        }
        for part, name in {**PARTS, **PLAIN}.items()
        if name in values
    ]


def digest(outcome: Played) -> str:
    """Return the SHA-256 of what a policy did: equal for replays that are the same to the byte."""
    h = hashlib.sha256()
    arrays = (outcome.start, outcome.gpus, outcome.held, outcome.unmet, outcome.eta, outcome.eta_submit)
    for array in arrays:
        h.update(np.ascontiguousarray(array).tobytes())
    h.update(repr((outcome.swaps, outcome.plans, outcome.cells, sorted(outcome.ids.items()))).encode())
    return h.hexdigest()


def _times(trace: Trace, outcome: Played) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return wait and time to completion in hours, up to the replay's end, and slowdown."""
    wait = (np.minimum(outcome.start, trace.end_s) - trace.submit_s) / HOUR
    jct = (np.minimum(outcome.start + outcome.seconds(trace), trace.end_s) - trace.submit_s) / HOUR
    return wait, jct, np.maximum(jct * HOUR / np.maximum(trace.duration_s, FLOOR_S), 1.0)


def _groups(
    trace: Trace, outcome: Played, key: np.ndarray, names: list[Any]
) -> list[tuple[Any, dict[str, Any]]]:
    wait, jct, slowdown = _times(trace, outcome)
    done = outcome.done(trace)
    out = []
    for name in names:
        at = key == name
        group = {
            "jobs": int(at.sum()),
            "completed": int(done[at].sum()),
            "wait_h": _spread(wait[at]),
            "jct_h": _spread(jct[at]),
            "slowdown": _spread(slowdown[at]),
        }
        out.append((name, group))
    return out


def _shares(trace: Trace) -> np.ndarray:
    """Return how much of each hour lies in the replay."""
    return np.minimum(HOUR, trace.end_s - np.arange(trace.hours) * HOUR) / HOUR


def _by_hour(start: np.ndarray, end: np.ndarray, gpus: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return GPU-hours between each two edges of intervals that hold ``gpus`` each; all times in seconds."""

    def until(times: np.ndarray) -> np.ndarray:
        """GPU-seconds that would have passed at each edge had every interval begun at its time and never ended."""
        order = np.argsort(times, kind="stable")
        count = np.concatenate([[0.0], np.cumsum(gpus[order])])
        moment = np.concatenate([[0.0], np.cumsum(gpus[order] * times[order])])
        passed = np.searchsorted(times[order], edges, side="right")
        return count[passed] * edges - moment[passed]

    return np.diff(until(start) - until(end)) / HOUR


def _spread(values: np.ndarray) -> dict[str, float]:
    if not len(values):
        return {"mean": 0.0, "median": 0.0, "p95": 0.0}
    return {
        "mean": float(values.mean()),
        "median": float(np.median(values)),
        "p95": float(np.quantile(values, 0.95)),
    }


def _accuracy(eta: np.ndarray, end: np.ndarray, told: np.ndarray) -> dict[str, Any]:
    if not told.any():
        return {"told": 0, "coverage_80": None, "within_10_min": None, "within_30_min": None}
    low, middle, high = eta[told].T
    off = np.abs(end[told] - middle)
    return {
        "told": int(told.sum()),
        "coverage_80": float(((low - ROUNDING_S <= end[told]) & (end[told] <= high + ROUNDING_S)).mean()),
        "within_10_min": float((off <= 600).mean()),
        "within_30_min": float((off <= 1800).mean()),
    }
