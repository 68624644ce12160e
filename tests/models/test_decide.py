"""When a challenger takes over, and when it must not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegrid.models import Scores, decide

RNG = np.random.default_rng(0)
HARD = RNG.exponential(1.0, 400)
USERS = np.repeat(np.arange(40), 10)


def scores(loss: np.ndarray, **more: object) -> Scores:
    return Scores(loss, USERS[: len(loss)], **more)  # type: ignore[arg-type]


def test_a_clearly_better_challenger_takes_over() -> None:
    decision = decide(scores(HARD), scores(HARD * 0.8))
    assert decision.promote and "champion" in decision.reason and "400 rows" in decision.reason


def test_a_worse_or_equal_one_does_not() -> None:
    assert not decide(scores(HARD), scores(HARD * 1.1)).promote
    assert not decide(scores(HARD), scores(HARD.copy())).promote


def test_a_gain_within_the_noise_does_not() -> None:
    """Half of the rows better, half worse: the mean alone would decide by a coin."""
    noise = np.random.default_rng(1).normal(0, 0.5, 400)
    assert not decide(scores(HARD + 1), scores(HARD + 1 + noise - noise.mean() - 0.001)).promote


def test_a_gain_from_one_user_does_not() -> None:
    """One block holds all of the gain: a bootstrap over rows would be fooled."""
    loss = HARD + 0.001
    loss[USERS == 3] -= 0.5
    assert not decide(scores(HARD + 0.0), scores(np.maximum(loss, 0)), needed_chance=0.9).promote


@pytest.mark.parametrize(
    "bad",
    [
        Scores(problem="its training window reaches to the present"),
        Scores(np.array([])),
        Scores(np.zeros(29)),
        Scores(np.where(np.arange(400) == 7, np.nan, 0.0)),
        Scores(np.where(np.arange(400) == 7, np.inf, 0.0)),
    ],
    ids=["problem", "no rows", "too few", "nan", "inf"],
)
@pytest.mark.parametrize(
    "champion", [None, scores(HARD), Scores(problem="gone")], ids=["none", "good", "broken"]
)
def test_one_that_cannot_be_evaluated_never_takes_over(bad: Scores, champion: Scores | None) -> None:
    decision = decide(champion, bad, otherwise=scores(HARD + 100))
    assert not decision.promote and "cannot be evaluated" in decision.reason


def test_without_a_champion_it_must_beat_the_naive_forecast() -> None:
    assert decide(None, scores(HARD * 0.8), otherwise=scores(HARD)).promote
    assert not decide(None, scores(HARD * 1.2), otherwise=scores(HARD)).promote
    assert not decide(None, scores(HARD)).promote


def test_a_champion_that_cannot_be_evaluated_gives_way_to_one_that_beats_naive() -> None:
    broken = Scores(np.full(400, np.nan), USERS)
    decision = decide(broken, scores(HARD * 0.8), otherwise=scores(HARD))
    assert decision.promote and "champion cannot be evaluated" in decision.reason


def test_a_band_that_covers_too_little_is_refused_whatever_the_loss() -> None:
    decision = decide(scores(HARD), scores(HARD * 0.5, coverage=(0.55, 0.8)))
    assert not decision.promote and "covers only 55%" in decision.reason
    assert decide(scores(HARD), scores(HARD * 0.5, coverage=(0.78, 0.8))).promote


def test_a_short_band_is_no_reason_where_the_rivals_is_shorter() -> None:
    better = scores(HARD * 0.5, coverage=(0.55, 0.8))
    assert decide(scores(HARD, coverage=(0.4, 0.8)), better).promote
    assert not decide(scores(HARD, coverage=(0.6, 0.8)), better).promote


@given(
    st.lists(st.floats(0, 100) | st.just(float("nan")), max_size=60), st.lists(st.floats(0, 100), max_size=60)
)
def test_it_always_decides_and_always_the_same(one: list[float], other: list[float]) -> None:
    a, b = Scores(np.array(one)), Scores(np.array(other))
    decision = decide(a, b, otherwise=a)
    assert decision == decide(a, b, otherwise=a)
    assert decision.reason and "\n" not in decision.reason
    if decision.promote:
        assert len(other) >= 30 and np.mean(other) < np.mean(one)
