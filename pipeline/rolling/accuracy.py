"""How the promises of the rolling horizon fared: expected ends against ends, bands, realtime left unmet."""

from dataclasses import dataclass

import pandas as pd

from tidegrid.pipeline.memory import Outcome
from tidegrid.pipeline.rolling.store import StateStore

NEAR, FAR = pd.Timedelta(minutes=10), pd.Timedelta(minutes=30)

SHORT_HOURS = 4.0
"""Jobs below this length are told apart: half an hour matters more to them."""


@dataclass(frozen=True)
class Accuracy:
    """How expected times fared; None where there is nothing to count.

    Attributes
    ----------
    ended, completed
        Attempts that ended under watch, and those that completed.
    scored
        Completed jobs that had been told an expected end.
    within_10, within_30
        The shares of them that ended within so many minutes of the first expected end (its median).
    short_within_30
        The same share of those that ran under four hours.
    covered
        The share that ended inside the 80 % band that they were first told.
    start_covered
        The share of those told while they waited that started inside their 80 % band.
    hours, hours_covered
        Hours of traffic with a forecast recorded, and the share inside the 80 % band told an hour before.
    needed, unmet
        GPU-hours that apps needed, and that the GPUs they held left unmet.
    statuses
        How many attempts ended in which way.
    """

    ended: int
    completed: int
    scored: int
    within_10: float | None
    within_30: float | None
    short_within_30: float | None
    covered: float | None
    start_covered: float | None
    hours: int
    hours_covered: float | None
    needed: float
    unmet: float
    statuses: dict[str, int]


def accuracy(state: StateStore) -> Accuracy:
    """Return how all that a store promised has fared so far."""
    outcomes = state.outcomes()
    completed = [one for one in outcomes if one.status == "completed"]
    scored = [one for one in completed if one.told is not None and one.ended > one.told]
    off = [abs(pd.Timestamp(one.ended) - pd.Timestamp(one.end_mid or "")) for one in scored]
    short = [i for i, one in enumerate(scored) if one.hours is not None and one.hours < SHORT_HOURS]
    told_waiting = [one for one in outcomes if one.told and one.started and one.started >= one.told]
    hours = [one for one in state.hours() if one.actual is not None]
    unmet = state.unmet()
    return Accuracy(
        ended=len(outcomes),
        completed=len(completed),
        scored=len(scored),
        within_10=_share([gap <= NEAR for gap in off]),
        within_30=_share([gap <= FAR for gap in off]),
        short_within_30=_share([off[i] <= FAR for i in short]),
        covered=_share([_inside(one.end_low, one.ended, one.end_high) for one in scored]),
        start_covered=_share([_inside(one.start_low, one.started, one.start_high) for one in told_waiting]),
        hours=len(hours),
        hours_covered=_share([one.low <= one.actual <= one.high for one in hours if one.actual is not None]),
        needed=sum(one.needed for one in unmet),
        unmet=sum(one.unmet for one in unmet),
        statuses=_counted(outcomes),
    )


def _inside(low: str | None, at: str | None, high: str | None) -> bool:
    if low is None or at is None or high is None:
        return False
    return pd.Timestamp(low) <= pd.Timestamp(at) <= pd.Timestamp(high)


def _share(hits: list[bool]) -> float | None:
    return sum(hits) / len(hits) if hits else None


def _counted(outcomes: list[Outcome]) -> dict[str, int]:
    out: dict[str, int] = {}
    for one in outcomes:
        out[one.status] = out.get(one.status, 0) + 1
    return dict(sorted(out.items()))
