"""Whether a challenger takes over: a pure function of losses on data that neither model saw."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

NEEDED_ROWS = 30
"""Rows below which a backtest decides nothing: the sign test on fewer cannot tell 55 % from 45 %."""


@dataclass(frozen=True)
class Scores:
    """What one model lost on the rows of a backtest.

    Parameters
    ----------
    loss : ndarray of shape (rows,)
        The loss of each row (mean pinball loss over the levels), in the unit of the target or its logarithm.
    block : ndarray of shape (rows,)
        Which rows belong together (a user's, a day's): they are drawn together, as their losses depend on
        one another.
    coverage
        The share of rows inside the nominal band, and what it should be; None where unknown.
    problem
        Why the model could not be evaluated; empty where it could.
    """

    loss: np.ndarray = field(default_factory=lambda: np.empty(0))
    block: np.ndarray | None = None
    coverage: tuple[float, float] | None = None
    problem: str = ""


@dataclass(frozen=True)
class Decision:
    """Whether the challenger takes over, and why, in one line for the log."""

    promote: bool
    reason: str


def decide(
    champion: Scores | None,
    challenger: Scores,
    *,
    otherwise: Scores | None = None,
    otherwise_name: str = "the naive forecast",
    needed_rows: int = NEEDED_ROWS,
    needed_chance: float = 0.9,
    needed_gain: float = 0.0,
    needed_coverage: float = 0.15,
    seed: int = 0,
) -> Decision:
    """Decide whether the challenger takes over from the champion.

    It does where it was evaluated on enough rows, its band is not far short of its nominal coverage (or not as
    far as its rival's), and its mean loss is lower than its rival's with a chance of at least ``needed_chance``
    by a paired bootstrap over blocks. Its rival is the champion; without one, or with one that cannot be
    evaluated, what would answer otherwise.

    Parameters
    ----------
    champion
        The champion's scores on the same rows in the same order; None where there is no champion.
    challenger
        The challenger's scores.
    otherwise, otherwise_name
        The scores of what answers where there is no champion (the unfitted prior, the naive forecast), on the
        same rows, and what it is called.
    needed_rows
        Rows below which nothing is decided.
    needed_chance
        Chance, over bootstrap draws, that the challenger's mean loss is lower.
    needed_gain
        Share of the loss by which it must be lower.
    needed_coverage
        How far the band may fall short of its nominal coverage.
    seed
        Seed of the draws.

    Notes
    -----
    The draws are of whole blocks with replacement (Efron and Tibshirani, An Introduction to the Bootstrap,
    1993, chapter 8); differences are paired, so that hard rows weigh on both models alike.
    """
    why = _unusable(challenger, needed_rows)
    if why:
        return Decision(False, f"the challenger cannot be evaluated: {why}")
    rival, words, lead = champion, "the champion", ""
    lost = "" if champion is None else _unusable(champion, 1) or _unlike(champion, challenger)
    if champion is None or lost:
        lead = f"the champion cannot be evaluated ({lost}); " if champion else "there is no champion; "
        rival, words = otherwise, otherwise_name
        if rival is None or _unusable(rival, 1) or _unlike(rival, challenger):
            return Decision(False, f"{lead}nothing to compare the challenger with")
    assert rival is not None
    if challenger.coverage is not None:
        seen, nominal = challenger.coverage
        theirs = rival.coverage[0] if rival.coverage is not None else 1.0
        if not np.isfinite(seen) or seen < min(nominal - needed_coverage, theirs):
            return Decision(False, f"{lead}the challenger's {nominal:.0%} band covers only {seen:.0%}")
    chance = _chance(rival.loss * (1.0 - needed_gain) - challenger.loss, challenger.block, seed)
    figures = (
        f"mean loss {challenger.loss.mean():.4g} against {rival.loss.mean():.4g} of {words} "
        f"on {len(challenger.loss)} rows, lower with a chance of {chance:.2f}"
    )
    if chance >= needed_chance:
        return Decision(True, f"{lead}{figures}")
    return Decision(False, f"{lead}{figures}, and {needed_chance:.2f} is needed")


def _unusable(scores: Scores, needed_rows: int) -> str:
    if scores.problem:
        return scores.problem
    if len(scores.loss) < needed_rows:
        return f"{len(scores.loss)} rows later than its training, and {needed_rows} are needed"
    if not np.isfinite(scores.loss).all():
        return f"its loss is not finite in {int((~np.isfinite(scores.loss)).sum())} rows"
    return ""


def _unlike(scores: Scores, challenger: Scores) -> str:
    return "" if len(scores.loss) == len(challenger.loss) else "it answers other rows"


def _chance(
    gain: np.ndarray, block: np.ndarray | Sequence[object] | None, seed: int, draws: int = 2000
) -> float:
    # equal losses are no gain: a tie leaves the champion where it is
    if not np.any(gain):
        return 0.0
    if block is None:
        sums, sizes = np.asarray(gain, dtype=float), np.ones(len(gain))
    else:
        _, place = np.unique(np.asarray(block).astype(str), return_inverse=True)
        sums, sizes = np.bincount(place, weights=gain), np.bincount(place).astype(float)
    if len(sums) < 2:
        return 0.0
    rng, each = np.random.default_rng(seed), np.full(len(sums), 1 / len(sums))
    wins = 0
    for _ in range(draws // 100):  # a hundred at a time bounds the memory
        drawn = rng.multinomial(len(sums), each, size=100)
        wins += int(np.sum(drawn @ sums / (drawn @ sizes) > 0))
    return wins / (draws // 100 * 100)
