"""What a site really ran, as a trace to replay and as an outcome beside those of policies."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from tidegrid.data import History
from tidegrid.data.tables import MAX_GPUS
from tidegrid.errors import InputError
from tidegrid.pipeline.champions import fit_all
from tidegrid.pipeline.control import Settings
from tidegrid.pipeline.forecast import Estimating
from tidegrid.pipeline.policy import Policy
from tidegrid.pipeline.replay.measures import measure
from tidegrid.pipeline.replay.run import CANDIDATES, ROUNDS, Result, play, run_one
from tidegrid.pipeline.worlds.simulated import Played
from tidegrid.pipeline.worlds.trace import Trace, held_sizes, pool_of

SITE = "the site"
"""The name of what really happened, beside those of policies."""


@dataclass(frozen=True)
class Recorded:
    """Days of a site.

    Attributes
    ----------
    trace
        The jobs that waited or ran in these days, with the time that each really took.
    outcome
        When each really started.
    before
        What was known when the days began.
    """

    trace: Trace
    outcome: Played
    before: History


def recorded(
    jobs: pd.DataFrame,
    until: pd.Timestamp,
    days: float,
    *,
    gpus: int | None = None,
    node_size: int | None = 8,
    placement: Literal["line", "node"] = "line",
    timezone: str = "UTC",
    country: str | None = None,
) -> Recorded:
    """Cut the last days out of a job history.

    Every policy starts from where the site was: a job that ran when the days began is there from the first second,
    with the time that it had left, and one that waited is submitted a minute later. Jobs that run on at the end are
    there until then. In a line, GPU counts are rounded up to powers of two. All priorities are equal.

    Parameters
    ----------
    jobs
        Validated job history, with starts and ends.
    until
        Where the days end.
    days
        How many.
    gpus
        GPUs of the cluster; the most that were in use at once where absent.
    node_size, placement
        As :class:`tidegrid.data.Pool` has them. By node, the GPUs are rounded up to whole nodes.
    timezone, country
        As :class:`tidegrid.pipeline.worlds.trace.Trace` has them.

    Raises
    ------
    InputError
        No job of these days has a start.
    """
    since, jobs = until - pd.Timedelta(days=days), jobs.copy()
    ended = jobs["end_time"].where(jobs["status"] != "running", until + pd.Timedelta(minutes=1))
    inside = (ended > since) & (jobs["start_time"] < until) & (jobs["submit_time"] < until)
    before = History(jobs, checked=True).as_of(since)
    table, ended = jobs[inside], ended[inside]
    if table.empty:
        raise InputError(
            f"no job ran in the {days:g} days to {until:%Y-%m-%d %H:%M}",
            field="jobs",
            fix="give more days, or accounting of them",
        )
    width = node_size if placement == "node" and node_size else 1
    widest = -(-MAX_GPUS // width) * width
    size = held_sizes(pool_of(widest, node_size, placement), table["gpus"])
    total = -(-(gpus or _peak(table["start_time"], ended, size)) // width) * width
    fits = size <= total
    started = (table["start_time"] - since).dt.total_seconds().to_numpy()
    ran = (table["start_time"] <= since).to_numpy()
    length = (ended - table["start_time"].mask(ran, since)).dt.total_seconds().to_numpy()
    submit = (table["submit_time"] - since).dt.total_seconds().to_numpy()
    submit = np.where(ran, 0.0, np.maximum(submit, 60.0))
    order = np.lexsort((table["job_id"].to_numpy(dtype=str), submit))
    order = order[fits[order]]
    table = table.iloc[order].reset_index(drop=True)
    # an attempt that ran on when the days ended is one of an unknown length
    table["status"] = table["status"].where(table["status"] != "running", "cancelled")
    duration = np.maximum(length[order], 1.0)
    table["duration_s"] = duration
    trace = Trace(
        start=since,
        gpus=total,
        node_size=node_size,
        jobs=table,
        submit_s=submit[order],
        duration_s=duration,
        size=size[order],
        priority=np.full(len(order), 5, dtype=np.int64),
        limit_s=table["requested_walltime_s"].to_numpy(dtype=float),
        apps=(),
        end_s=days * 86400.0,
        left_out={f"wider than {total} GPUs": int((~fits).sum())} if not fits.all() else {},
        timezone=timezone,
        country=country,
        placement=placement,
    )
    start = np.where(ran[order], 0.0, np.maximum(started[order], trace.submit_s))
    nothing = np.zeros((0, trace.hours))
    outcome = Played(start, nothing, nothing)
    return Recorded(trace, outcome, before)


def trial(
    days: Recorded, policies: tuple[str, ...] = ("easy_limits",), policy: Policy | None = None
) -> list[Result]:
    """Return the figures of what the site ran, of queues, and of what tidegrid would have run.

    Estimates are learnt from what was known when the days began, and from each job as it ends.
    """
    trace = days.trace
    results = [Result(SITE, days.outcome, measure(trace, days.outcome))]
    if not np.isnan(trace.limit_s).all():
        results += [run_one(trace, name, policy) for name in policies]
    answers = fit_all(days.before, ["recurring"], timezone=trace.timezone, country=trace.country)
    forecaster = Estimating(answers, days.before, refit_hours=None, brief=True)
    how = Settings(policy=policy or Policy(), rounds=ROUNDS, candidates=CANDIDATES)
    played = play(trace, forecaster, how)
    return [*results, Result("rolling", played, measure(trace, played))]


def _peak(begin: pd.Series, end: pd.Series, gpus: np.ndarray) -> int:
    """Return the most GPUs that were in use at once."""
    changes = pd.concat(
        [pd.DataFrame({"at": end, "gpus": -gpus}), pd.DataFrame({"at": begin, "gpus": gpus})],
        ignore_index=True,
    ).sort_values(["at", "gpus"], kind="stable")
    return int(changes["gpus"].cumsum().max())
