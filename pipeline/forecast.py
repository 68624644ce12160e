"""What a decision is told of the future: one forecaster for plans, ticks, replays and tables."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pandas as pd
from sklearn.base import clone

from tidegrid.data import History
from tidegrid.estimators import Estimator
from tidegrid.pipeline.arrivals import Arrivals, Arrived
from tidegrid.pipeline.backtest import one_thread, rows_of, updated
from tidegrid.pipeline.demand import (
    HOUR,
    Demand,
    demand_of,
    hourly_gpus,
    hours_asked,
    hours_of,
    kept_gpus,
)
from tidegrid.pipeline.estimates import (
    CAPPED,
    LEVELS,
    Estimates,
    estimate,
    remaining,
)
from tidegrid.pipeline.fallback import SureDemand
from tidegrid.pipeline.hours import BAND, arrived, next_hours, record_of
from tidegrid.pipeline.memory import Event, Hour, iso
from tidegrid.pipeline.policy import Policy
from tidegrid.pipeline.state import State

LATE = pd.Timedelta(hours=2)
"""Traffic whose last known hour ended longer ago is late."""

RECORD_DAYS = pd.Timedelta(days=28)
"""How far back recorded forecasts of traffic are looked at: four weeks move a band as far as it may go."""


@dataclass(frozen=True)
class Forecast:
    """What is expected, all on one grid of quantile levels.

    Attributes
    ----------
    estimates
        Durations of what waits, by shape.
    remaining : ndarray of shape (running, levels)
        Hours that running jobs still need, on the rows of the state's ``running``.
    demand
        Each app's true need.
    events
        What is to be told: which rung of the ladder answers where the first could not, and what is late.
    arrivals
        What may arrive while jobs wait.
    """

    estimates: Estimates
    remaining: np.ndarray
    demand: Demand
    events: tuple[Event, ...] = ()
    arrivals: Arrivals = field(default_factory=Arrivals)

    def durations(self, running: pd.DataFrame) -> dict[tuple[str, str, int], np.ndarray]:
        """Return the quantiles of hours of every (job, pool, GPUs); of a running job, of what is left of it."""
        keys = zip(*(running[name].tolist() for name in ("job_id", "pool", "gpus")), strict=True)
        return self.estimates.by_shape() | dict(zip(keys, self.remaining, strict=True))


class Forecaster(Protocol):
    """Tells the future as far as it can be known."""

    def learn(self, news: History, now: pd.Timestamp, history: Callable[[], History]) -> None:
        """Take in what has become known since the last call; ``history`` returns all that is known."""

    def forecast(self, state: State, policy: Policy) -> Forecast:
        """Forecast durations, remaining times and demand."""


_NO_ROWS = pd.DataFrame()


@dataclass
class _Told:
    """What was forecast in the current hour: jobs by id, and traffic."""

    hour: pd.Timestamp
    estimates: Estimates = field(default_factory=Estimates.none)
    whole: dict[str, np.ndarray] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)
    traffic: pd.DataFrame | None = None
    series: set[str] = field(default_factory=set)
    apps: list[tuple[Any, ...]] = field(default_factory=list)
    gpus: dict[str, np.ndarray] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    arriving: dict[str, np.ndarray] | None = None


class Estimating:
    """The forecaster of estimators on the one contract, real ones or such as know the truth.

    Forecasts are renewed when an hour begins; in between, what arrives is estimated when it is first seen. Whatever an
    estimator raises, the next rung of the ladder answers and is told: see :mod:`tidegrid.pipeline.fallback` and
    :func:`tidegrid.pipeline.estimates.answer`.

    Parameters
    ----------
    estimators
        By name, as fitted on what was known at first; a kind without one of its own is answered by ``recurring``.
    history
        What was known then.
    refit_hours
        How often estimators of durations are fitted afresh on all that is known, at :meth:`learn`; None for never.
        Between fits, and for demand always, they are updated.
    recorded
        Hours of traffic that were forecast earlier, for the width of the bands.
    brief
        Whether to leave out what only tables show: which rung of an estimator's own ladder answers for each job.
    """

    def __init__(
        self,
        estimators: Mapping[str, Estimator],
        history: History,
        *,
        refit_hours: float | None = None,
        recorded: Iterable[Hour] = (),
        brief: bool = False,
    ) -> None:
        self.estimators = dict(estimators)
        self.refit_hours, self.brief = refit_hours, brief
        self.hours = {(one.series, one.hour): one for one in recorded}
        self.notes: list[str] = []
        self._history: Callable[[], History] = lambda: history
        self._fitted: pd.Timestamp | None = None
        self._told: _Told | None = None
        self._last: dict[str, pd.Timestamp] = {}
        self._jobs = 0
        self._arrived = Arrived()
        self._see(history)

    def learn(self, news: History, now: pd.Timestamp, history: Callable[[], History]) -> None:
        """Update the estimators, or fit those of durations afresh where their fit is ``refit_hours`` old."""
        self._history = history
        if self._fitted is None:
            self._fitted = now
        due = self.refit_hours is not None and now - self._fitted >= pd.Timedelta(hours=self.refit_hours)
        whole = history() if due else news
        kinds = {"duration_h": len(whole), "demand": len(news.traffic)}
        if any(kinds.values()):
            with one_thread():
                self._take_in(news, whole, kinds, due)
        if due:
            self._fitted = now
        self._see(news)
        if len(news.traffic):
            self.record(news.traffic)

    def _take_in(self, news: History, whole: History, kinds: Mapping[str, int], due: bool) -> None:
        for name, estimator in self.estimators.items():
            if not kinds[estimator.target]:
                continue
            afresh = due and estimator.target == "duration_h"
            rows = rows_of(estimator, whole if afresh else news)
            if not len(rows):
                continue
            try:
                if afresh:
                    fresh: Estimator = clone(estimator)
                    fresh.fit(rows.X, rows.y, observed=rows.observed, known_at=rows.known_at)
                    self.estimators[name] = fresh
                elif hasattr(estimator, "update"):
                    updated(estimator, rows)
            except Exception as error:  # a plugin may raise anything; what it learnt before still answers
                self._note(f"{name}: not brought up to date ({type(error).__name__}: {error})")

    def record(self, traffic: pd.DataFrame) -> tuple[list[Hour], list[Event]]:
        """Set traffic against what was forecast of it; return the hours that became known, and what left its band."""
        if not self.hours:
            return [], []
        known, events = arrived(list(self.hours.values()), traffic)
        self.hours.update({(one.series, one.hour): one for one in known})
        return known, events

    def forecast(self, state: State, policy: Policy) -> Forecast:
        """Forecast durations, remaining times and demand at ``LEVELS``."""
        hour = state.now.floor("h")
        waiting, running = state.waiting_ids, state.running_ids
        if self._told is None or self._told.hour != hour:
            self._told = _Told(hour)
        told = self._told
        self._ask(state, told, policy.scaling)
        whole = np.array([told.whole[name] for name in running]).reshape(-1, len(LEVELS))
        demand = self._demand(state, policy, told)
        events = [*told.events, *self._late(state)]
        left = remaining(whole, state.elapsed_h(), state.limit_h())
        if told.arriving is None:
            told.arriving = self._arrived.again(state.now, state.cluster)
        known = [frame["priority"].to_numpy(dtype=float) for frame in (state.requests, state.running)]
        arrivals = Arrivals(told.arriving, np.sort(np.concatenate(known)))
        # what left the queue and is back is asked for again
        told.estimates, told.waiting = told.estimates.of(waiting), set(waiting)
        return Forecast(told.estimates, left, demand, tuple(events), arrivals)

    def _ask(self, state: State, told: _Told, scaling: float | None) -> None:
        """Ask for the durations of all jobs that have not been asked for in this hour, in one pass."""
        waiting, running = state.waiting_ids, state.running_ids
        started = [k for k, name in enumerate(running) if name not in told.whole and name in told.waiting]
        if started:
            # what was told of it while it waited holds, for the block that it got
            known = told.estimates.of(running[k] for k in started).by_shape()
            pools, blocks = state.running["pool"].tolist(), state.running["gpus"].tolist()
            for k in started:
                key = (running[k], str(pools[k]), int(blocks[k]))
                if key in known:
                    told.whole[running[k]] = known[key]
        new = [k for k, name in enumerate(waiting) if name not in told.waiting]
        more = [k for k, name in enumerate(running) if name not in told.whole]
        if not new and not more:
            return
        found, whole, notes = estimate(
            state.requests.take(new),
            state.running.take(more) if more else _NO_ROWS,
            state.cluster,
            self.estimators,
            self.brief,
            state.features_of(new),
            scaling,
        )
        told.estimates = told.estimates.joined(found)
        told.waiting.update(waiting[k] for k in new)
        told.whole.update(zip((running[k] for k in more), whole, strict=True))
        told.events += _failures(notes, told.events)

    def _demand(self, state: State, policy: Policy, told: _Told) -> Demand:
        apps = state.cluster.apps
        series = list(dict.fromkeys(app.series for app in apps))
        levels = tuple(sorted({*LEVELS, policy.demand_quantile}))
        if not series:
            return Demand(pd.DataFrame(columns=["unique_id", "ds", "basis", *levels]), {})
        if told.traffic is None or not told.series.issuperset(series):
            told.traffic, told.apps = self._traffic(state, policy, told, series, levels), []
            told.series = set(series)
        # the GPUs that apps hold change inside an hour; what they need does not, where it follows from traffic
        asked = [
            (
                app.id,
                app.series,
                app.share,
                app.capacity,
                app.capacity.units_per_gpu_hour is None and kept_gpus(app),
            )
            for app in apps
        ]
        if told.apps != asked:
            told.apps, told.gpus = asked, hourly_gpus(told.traffic, apps, policy.demand_quantile)
        return demand_of(told.traffic, told.gpus, state.now, policy)

    def _traffic(
        self, state: State, policy: Policy, told: _Told, series: Sequence[str], levels: tuple[float, ...]
    ) -> pd.DataFrame:
        """Forecast the traffic of an hour and those after it, and record the next one."""
        model = self.estimators.get("realtime")
        adapted = self._recalibrated(model)
        sure = SureDemand(adapted, lambda: self._history().traffic, state.cluster.apps)
        # the last instant of this hour looks furthest
        latest = told.hour + HOUR - pd.Timedelta(nanoseconds=1)
        X = hours_asked(series, told.hour, int(hours_of(latest, policy)[1][-1]) + 1)
        quantiles, basis = sure.answer(X, levels)
        out = X.assign(basis=basis).join(quantiles)
        plain, ahead = sure, out
        if adapted is not model:
            # recalibration works on records of what was forecast without it
            plain = SureDemand(model, lambda: self._history().traffic, state.cluster.apps)
            ahead = hours_asked(series, state.now, 2)
            ahead = ahead.join(plain.answer(ahead, BAND)[0])
        self._record_ahead(ahead, plain, state.now)
        told.events += sure.events()
        return out

    def _record_ahead(self, ahead: pd.DataFrame, sure: SureDemand, now: pd.Timestamp) -> None:
        """Record the next hour's forecast."""
        oldest = iso(now - RECORD_DAYS)
        self.hours = {key: one for key, one in self.hours.items() if one.hour >= oldest}
        models = {
            name: "fallback" if name in sure.unknown else sure.model for name in ahead["unique_id"].unique()
        }
        found = next_hours(ahead, now, list(self.hours.values()), models)
        self.hours.update({(one.series, one.hour): one for one in found})

    def _recalibrated(self, model: Estimator | None) -> Estimator | None:
        """Return the demand estimator with its bands widened or narrowed by how its recorded forecasts fared."""
        adapt: Any = getattr(model, "recalibrate", None)
        if model is None or adapt is None:
            return model
        hours = sorted(self.hours.values(), key=lambda one: (one.series, one.hour))
        record = record_of(hours, model.name)
        if record.empty:
            return model
        out: Any = copy(model)
        try:
            out.recalibrate(record)
        except Exception as error:  # a plugin may raise anything; its bands stay as they were
            self._note(f"realtime: not recalibrated ({type(error).__name__}: {error})")
            return model
        self._note(f"realtime: bands follow {len(record):,} recorded hours", "realtime: bands follow")
        return out

    def _see(self, news: History) -> None:
        self._jobs += len(news)
        self._arrived.see(news)
        traffic = news.traffic
        if not len(traffic):
            return
        known = traffic[traffic["value"].notna()]
        for name, last in zip(known["series_id"].tolist(), known["timestamp"].tolist(), strict=True):
            self._last[str(name)] = max(last, self._last.get(str(name), last))

    def _late(self, state: State) -> list[Event]:
        out = []
        for name in dict.fromkeys(app.series for app in state.cluster.apps):
            last = self._last.get(name)
            if last is None:
                out.append(Event("no history", name, f"{name} has no traffic at all"))
            elif state.now - (last + HOUR) > LATE:
                text = f"the traffic of {name} ends at {iso(last + HOUR)}; its band is wider"
                out.append(Event("late history", name, text))
        if not self._jobs:
            out.append(Event("no history", "jobs", "there is no job history; priors answer for durations"))
        return out

    def _note(self, text: str, instead_of: str | None = None) -> None:
        start = instead_of or text
        self.notes = [*(note for note in self.notes if not note.startswith(start)), text]


def _failures(notes: Iterable[str], told: list[Event]) -> list[Event]:
    """Return an event for each estimator that failed and has not been told of yet."""
    have = {event.text for event in told}
    texts = sorted({str(note).removesuffix(f"; {CAPPED}") for note in notes})
    return [
        Event("fallback", text.split(" ", 1)[0], text)
        for text in texts
        if " failed (" in text and text not in have
    ]


def forecast(
    state: State, estimators: Mapping[str, Estimator], history: History, policy: Policy | None = None
) -> Forecast:
    """Forecast durations, remaining times and demand once, as a decision would.

    Parameters
    ----------
    state
        What waits, runs and is held, as :meth:`tidegrid.pipeline.site.Site.state` gives it.
    estimators, history
        As for :class:`Estimating`.
    policy
        The planner's parameters.
    """
    return Estimating(estimators, history).forecast(state, policy or Policy())
