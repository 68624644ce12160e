"""How far bands of expected starts and ends reach, learnt from those that were told: the one way to widen a band."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from tidegrid.pipeline.memory import RUNNING, WAITING, Outcome, Watched, iso

FIRST_WIDTH = 2.8
"""The width before anything came of what was told: an order that is planned again and again does not stay as it is.
Measured by `benchmarks/tour.py`."""

WIDTH_STEP = 0.03
"""Step of a width at an outcome, on its logarithm (adaptive conformal inference, Gibbs and Candès 2021)."""

OUTSIDE = 0.2
"""The share that an 80 % band leaves outside."""

NARROWEST, WIDEST = 0.25, 20.0


@dataclass(frozen=True)
class Widths:
    """The factors by which bands of jobs that wait are stretched to each side of their middle."""

    start: float = FIRST_WIDTH
    end: float = FIRST_WIDTH

    def after(self, started_inside: bool | None, ended_inside: bool | None) -> "Widths":
        """Return the widths after one more outcome: wider after a miss, a little narrower after a hit.

        None for what is not known or was not told.
        """
        return replace(self, start=_moved(self.start, started_inside), end=_moved(self.end, ended_inside))


Came = tuple[str, int, str, bool]
"""What came of a told band: its last instant (ISO 8601 in UTC), 0 for an end and 1 for a start, the job, a hit?"""


def came_of(job: str, low: str | None, high: str | None, at: str | None, now: str, which: int) -> list[Came]:
    """Return what came of a band once the band is past, whether or not what it told of has come by then.

    Were each counted when it is known, short waits would come first, and narrow the bands of the long ones.
    """
    if low is None or high is None or pd.Timestamp(high) >= pd.Timestamp(now):
        return []
    return [(high, which, job, bool(inside(low, at, high)))]


def learnt(widths: Widths, came: Iterable[Came]) -> Widths:
    """Return the widths after what came of some bands, in the order in which they were past."""
    for _, which, _, hit in sorted(came):
        widths = widths.after(hit, None) if which else widths.after(None, hit)
    return widths


def widths_of(outcomes: Iterable[Outcome], watched: Iterable[Watched], now: pd.Timestamp) -> Widths:
    """Return the widths after the bands of these attempts that are past by ``now``.

    Only jobs that were told a later start count, and of attempts that were lost with their GPUs only the start: who
    comes later may go first, and how far a band must reach for that is learnt from those who waited.
    """
    came: list[Came] = []
    until = iso(now)
    told: list[Outcome | Watched] = [*outcomes]
    told += [job for job in watched if job.state in (WAITING, RUNNING)]
    for one in told:
        if not told_to_wait(one.told, one.start_high):
            continue
        ended, status = (one.ended, one.status) if isinstance(one, Outcome) else (None, "")
        came += came_of(one.job_id, one.start_low, one.start_high, one.started, until, 1)
        if status != "lost":
            came += came_of(one.job_id, one.end_low, one.end_high, ended, until, 0)
    return learnt(Widths(), came)


def told_to_wait(told: str | None, start_high: str | None) -> bool:
    """Whether a job was told a start later than the instant at which it was told."""
    return told is not None and start_high is not None and pd.Timestamp(start_high) > pd.Timestamp(told)


def inside(low: str | None, at: str | None, high: str | None) -> bool | None:
    """Whether an instant lies in a band; None where one of them is unknown."""
    if low is None or at is None or high is None:
        return None
    return bool(pd.Timestamp(low) <= pd.Timestamp(at) <= pd.Timestamp(high))


def widened(band: np.ndarray, width: float, planned: float, least: float = 0.0) -> np.ndarray:
    """Return a band (0.1, 0.5, 0.9) stretched about its middle, not before ``least``, with ``planned`` inside it."""
    low, middle, high = band
    low, high = middle - (middle - low) * width, middle + (high - middle) * width
    return np.array([max(least, min(low, planned)), max(middle, least), max(high, planned)])


def _moved(width: float, hit: bool | None) -> float:
    if hit is None:
        return width
    return float(np.clip(width * np.exp(WIDTH_STEP * ((not hit) - OUTSIDE)), NARROWEST, WIDEST))
