"""A forecaster that lives from tick to tick: it learns each fact once, and can be asked what would be if."""

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from tidegrid.data import History
from tidegrid.estimators import Estimator
from tidegrid.pipeline.forecast import Estimating, Forecast
from tidegrid.pipeline.memory import Hour
from tidegrid.pipeline.policy import Policy
from tidegrid.pipeline.state import State

HOUR = pd.Timedelta(hours=1)


@dataclass(frozen=True)
class _Known:
    """What is known, as a function that pickles."""

    history: History

    def __call__(self) -> History:
        return self.history


class Resident(Estimating):
    """The forecaster of a process that stays.

    Parameters
    ----------
    estimators, history, recorded
        As for :class:`tidegrid.pipeline.forecast.Estimating`.
    learnt
        Until when the estimators know what has happened; what is known by then is not learnt twice.

    Attributes
    ----------
    asked
        The state and the policy that it was asked for last; None before.
    """

    def __init__(
        self,
        estimators: Mapping[str, Estimator],
        history: History,
        *,
        learnt: pd.Timestamp,
        recorded: Iterable[Hour] = (),
    ) -> None:
        super().__init__(estimators, history, recorded=recorded)
        self.learnt = learnt
        self.asked: tuple[State, Policy] | None = None

    def learn(self, news: History, now: pd.Timestamp, history: Callable[[], History]) -> None:
        """Learn what has become known since the last call, whatever of ``news`` was told before."""
        super().learn(_since(news, self.learnt), now, history)
        self.learnt = max(now, self.learnt)

    def forecast(self, state: State, policy: Policy) -> Forecast:
        """Forecast, and remember what was asked."""
        if self.asked is not None and self.asked[0].cluster.pools != state.cluster.pools:
            self._told = None  # what a job may run on has changed
        self.asked = (state, policy)
        return super().forecast(state, policy)

    @property
    def history(self) -> History:
        """All that is known."""
        return self._history()

    def branched(self, policy: Policy) -> "Resident":
        """Return a forecaster that knows what this one does, and that may be asked without this one's noticing.

        Parameters
        ----------
        policy
            What the branch is to be asked with: where it needs other hours or levels of traffic than were forecast,
            they are forecast again.
        """
        out = copy(self)
        out.hours, out.notes = dict(self.hours), list(self.notes)
        if self._told is not None:
            told = self._told
            out._told = replace(
                told, whole=dict(told.whole), waiting=set(told.waiting), events=list(told.events)
            )
            names = ("demand_quantile", "step_minutes", "horizon_hours", "lookahead_hours")
            if self.asked is None or any(getattr(policy, n) != getattr(self.asked[1], n) for n in names):
                out._told.traffic = None
        return out

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy in another process needs: traffic alone of what is known."""
        known = History(None, self._history().traffic, checked=True)
        return {**self.__dict__, "_history": _Known(known)}


def _since(news: History, instant: pd.Timestamp) -> History:
    jobs, traffic = news.jobs, news.traffic
    return History(
        jobs[(jobs["known_at"] > instant).to_numpy()],
        traffic[(traffic["timestamp"] + HOUR > instant).to_numpy()],
        checked=True,
        instant=news.instant,
    )
