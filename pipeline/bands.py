"""How far bands of expected starts and ends reach, learnt from those that were told: the one way to widen a band."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from tidegrid.pipeline.memory import Outcome

WIDTH_STEP = 0.03
"""Step of a width at an outcome, on its logarithm (adaptive conformal inference, Gibbs and Candès 2021)."""

OUTSIDE = 0.2
"""The share that an 80 % band leaves outside."""

NARROWEST, WIDEST = 0.25, 20.0


@dataclass(frozen=True)
class Widths:
    """The factors by which bands of jobs that wait are stretched to each side of their middle."""

    start: float = 1.0
    end: float = 1.0

    def after(self, started_inside: bool | None, ended_inside: bool | None) -> "Widths":
        """Return the widths after one more outcome: wider after a miss, a little narrower after a hit.

        None for what is not known or was not told.
        """
        return replace(self, start=_moved(self.start, started_inside), end=_moved(self.end, ended_inside))


def widths_of(outcomes: Iterable[Outcome]) -> Widths:
    """Return the widths after these outcomes, in their order.

    Only jobs that were told a later start count, and only attempts that were not lost with their GPUs: who comes later
    may go first, and how far a band must reach for that is learnt from those who waited.
    """
    out = Widths()
    for one in outcomes:
        if one.status == "lost" or not told_to_wait(one.told, one.start_high):
            continue
        out = out.after(
            inside(one.start_low, one.started, one.start_high), inside(one.end_low, one.ended, one.end_high)
        )
    return out


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
