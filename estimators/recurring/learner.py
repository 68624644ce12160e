"""What is learnt beside the memory: whom to believe, trees for the rest, and how to read the two together."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.stats import norm

from tidegrid.estimators.recurring import centre, gate, trees
from tidegrid.estimators.recurring.calibration import GRID, LevelCalibration, spread_class, transform
from tidegrid.estimators.recurring.kernels import BIN, BINS, FACTS, GRACE, LOW, MEMBERS, NUMBERS, sweep
from tidegrid.estimators.recurring.keys import COLUMNS, NONE, RUNGS
from tidegrid.estimators.recurring.memory import Memory
from tidegrid.estimators.recurring.rows import Rows

PRIOR_MEDIAN_H, PRIOR_SIGMA = 0.5, 2.8
"""A job of which nothing is known: log-normal about half an hour, with a standard deviation of 1.2 decades.

The public traces of Helios Venus (2020) and Alliance Cedar (2021) have medians of 0.1 to 3.5 hours and a standard
deviation of 1.0 to 1.3 decades; the prior spans both: 80 % of it lies between 50 seconds and 18 hours.
"""

GATE_ROWS, TREE_ROWS = 20_000, 100_000
"""Newest jobs that the gate and the trees learn from."""

ENOUGH = 200
"""Jobs from which the gate learns; below, the shipped one answers."""

HELD_OUT = 0.4
"""The share of the newest jobs that calibrate: predicted by a gate and trees that have seen only older ones."""

_BINS_AT = LOW + BIN * np.arange(BINS + 1)
_PRIOR = np.diff(norm.cdf(_BINS_AT, np.log(PRIOR_MEDIAN_H), PRIOR_SIGMA))
_PRIOR = _PRIOR / _PRIOR.sum()
_NONE_F, _NONE_I = np.empty(0), np.empty(0, dtype=np.int8)
_NO_SLOTS = np.empty((0, len(COLUMNS)), dtype=np.int64)


@dataclass
class Learner:
    """Gate, trees and calibration.

    Attributes
    ----------
    theta : ndarray of shape (members + 1, FACTS)
        The gate's coefficients.
    text : str
        The trees as LightGBM's text; empty for none.
    calibration : LevelCalibration
        Transforms of past outcomes.
    record : centre.Record
        How far each choice of the middle was from past outcomes.
    limits : tuple of int
        Jobs that asked for a walltime, and those of them that ran 5 % past it.
    """

    theta: np.ndarray = field(default_factory=gate.shipped)
    text: str = ""
    calibration: LevelCalibration = field(default_factory=LevelCalibration)
    record: centre.Record = field(default_factory=centre.Record)
    limits: tuple[int, int] = (0, 0)
    _booster: Any = None

    @property
    def holds(self) -> bool:
        """Whether the site ends jobs at the walltime that they asked for: hardly any has run past it."""
        return self.limits[1] <= 1 + 0.01 * self.limits[0]

    def count_limits(self, rows: Rows) -> None:
        """Count the jobs that ran past their walltime."""
        past = rows.log_hours > rows.log_limit + np.log(1.05)
        asked = np.isfinite(rows.log_limit)
        self.limits = (self.limits[0] + int(asked.sum()), self.limits[1] + int(past.sum()))

    def distribution(self, quantiles: np.ndarray, inputs: np.ndarray, log_limit: np.ndarray) -> np.ndarray:
        """Return log-hour quantiles at ``GRID``: the mixture's about the chosen middle, none past the walltime."""
        if self.text and len(quantiles):
            middles = self._choices(quantiles, inputs)
            quantiles = centre.moved(quantiles, middles[:, self.record.best()])
        return self._held(quantiles, log_limit)

    def follow(self, quantiles: np.ndarray, inputs: np.ndarray, rows: Rows, at: np.ndarray) -> np.ndarray:
        """Return as :meth:`distribution`, each row as of its submission, and take in the rows' outcomes."""
        if self.text and len(quantiles):
            middles = self._choices(quantiles, inputs)
            miss = rows.log_hours[at][:, None] - self._held(middles, rows.log_limit[at])
            # a lower bound tells only of answers below it
            errors = np.where(rows.flags[at][:, None] == 1, np.abs(miss), np.maximum(miss, 0.0))
            chosen = self.record.follow(rows.submit[at], rows.known[at], errors)
            quantiles = centre.moved(quantiles, middles[np.arange(len(middles)), chosen])
        return self._held(quantiles, rows.log_limit[at])

    def _choices(self, quantiles: np.ndarray, inputs: np.ndarray) -> np.ndarray:
        return centre.choices(quantiles, self._trees(inputs), centre.is_new(inputs))

    def _held(self, quantiles: np.ndarray, log_limit: np.ndarray) -> np.ndarray:
        return np.minimum(quantiles, log_limit[:, None] + GRACE) if self.holds else quantiles

    def _trees(self, inputs: np.ndarray) -> np.ndarray:
        if self._booster is None:
            self._booster = trees.load(self.text)
        return trees.answer(self._booster, inputs)

    def learn(self, rows: Rows, seed: int) -> None:
        """Learn gate, trees and calibration from jobs, each described as of its submission."""
        newest = np.sort(np.argsort(rows.known, kind="stable")[-TREE_ROWS:])
        memory, slots = room_for(rows)
        density, facts, numbers, _ = run(
            memory, slots, rows, newest, None, newest[-GATE_ROWS:], hold=self.holds
        )
        sizes = gate.burst_sizes(rows.recipe, rows.submit)[newest]
        inputs = trees.described(rows.features.iloc[newest], rows.submit[newest], numbers)
        order = np.argsort(rows.submit[newest], kind="stable")
        cut = order[int(len(order) * (1 - HELD_OUT))] if len(order) else 0
        early = rows.known[newest] < rows.submit[newest][cut] if len(order) else np.zeros(0, dtype=bool)
        late = rows.submit[newest] >= rows.submit[newest][cut] if len(order) else early
        half = Learner(self.theta, "", LevelCalibration(), limits=self.limits)
        half._fit(rows, newest, early, density, facts, inputs, sizes, seed)
        # every outcome that the half-trained model has not seen calibrates
        memory, slots = room_for(rows)
        unseen = newest[late] if early.sum() >= ENOUGH else newest
        _, _, _, quantiles = run(memory, slots, rows, unseen, half.theta, None, False, self.holds)
        told = half.follow(quantiles, inputs[late] if half.text else inputs, rows, unseen)
        self.record = half.record
        self.observe(told, rows, unseen)
        self._fit(rows, newest, np.ones(len(newest), dtype=bool), density, facts, inputs, sizes, seed)

    def observe(self, foretold: np.ndarray, rows: Rows, at: np.ndarray) -> None:
        """Calibrate on outcomes, in the order in which they became known."""
        order = np.argsort(rows.known[at], kind="stable")
        u, classes = outcome_levels(foretold, rows.log_hours[at], rows.flags[at]), spread_class(foretold)
        counts = order[gate.thinned(rows.recipe[at], rows.submit[at])[order]]
        self.calibration.add(classes[counts], u[counts])
        self.calibration.follow(classes[order], u[order])

    def _fit(
        self,
        rows: Rows,
        newest: np.ndarray,
        use: np.ndarray,
        density: np.ndarray,
        facts: np.ndarray,
        inputs: np.ndarray,
        sizes: np.ndarray,
        seed: int,
    ) -> None:
        tail = use[len(use) - len(density) :]
        if tail.sum() >= ENOUGH:
            weight = 1.0 / sizes[len(sizes) - len(density) :]
            self.theta = gate.learn(density[tail], facts[tail], weight[tail], gate.shipped())
        # lower bounds teach the gate, through the share of each member above them, but not the trees
        use = use & (rows.flags[newest] == 1)
        if use.sum() >= trees.ENOUGH:
            self.text = trees.grow(inputs[use], rows.log_hours[newest][use], seed)
            self._booster = None


def outcome_levels(foretold: np.ndarray, log_hours: np.ndarray, flags: np.ndarray) -> np.ndarray:
    """Return the level at which each outcome fell; a lower bound's truth lies somewhere above its own level.

    The levels above are drawn in the golden-ratio sequence, which spreads them evenly without chance.
    """
    u = transform(foretold, log_hours)
    bound = np.flatnonzero(flags == 0)
    u[bound] += (1.0 - u[bound]) * ((0.5 + 0.618033988749895 * np.arange(len(bound))) % 1.0)
    return u


def room_for(rows: Rows) -> tuple[Memory, np.ndarray]:
    """Return an empty memory with every key of the rows, and the rows' slots in it."""
    memory = Memory.empty()
    memory.admit(rows.keys)
    return memory, unknown_apart(memory, rows.keys)


def run(
    memory: Memory,
    slots: np.ndarray,
    rows: Rows,
    ask: np.ndarray,
    theta: np.ndarray | None,
    score: np.ndarray | None,
    describe: bool = True,
    hold: bool = True,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Sweep the memory over rows, asking some of them as of their submission.

    Parameters
    ----------
    memory, slots
        What is remembered before, with room for the rows, and their slots; the memory ends with all rows in it.
    rows
        The jobs.
    ask : ndarray of int
        The rows to answer, ascending.
    theta
        The gate; None where no quantiles are wanted.
    score : ndarray of int, optional
        The tail of ``ask`` whose densities and facts are wanted; None for none.
    describe
        Whether the trees' numbers are wanted.
    hold
        Whether jobs end at their walltime.

    Returns
    -------
    tuple of ndarray
        Densities and facts (of ``score``), numbers and quantiles (of ``ask``); with no rows where not wanted.
    """
    told = np.argsort(rows.known, kind="stable")
    sent = np.argsort(rows.submit, kind="stable")
    order = np.argsort(rows.submit[ask], kind="stable")
    asked = ask[order]
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    count = len(ask)
    quantiles = np.empty((count if theta is not None else 0, len(GRID)))
    numbers = np.empty((count if describe else 0, NUMBERS), dtype=np.float32)
    density = np.empty((count if score is not None else 0, len(MEMBERS) + 1))
    facts = np.zeros((len(density), len(MEMBERS) + 1, FACTS))
    _sweep(memory, slots, rows, told, sent, asked, theta, hold, density, facts, quantiles, numbers)
    if score is not None:
        tail = back[count - len(score) :]
        density, facts = density[tail], facts[tail]
    return (
        density,
        facts,
        numbers[back] if describe else numbers,
        quantiles[back] if theta is not None else quantiles,
    )


def _sweep(
    memory: Memory,
    slots: np.ndarray,
    rows: Rows,
    told: np.ndarray,
    sent: np.ndarray,
    asked: np.ndarray,
    theta: np.ndarray | None,
    hold: bool,
    density: np.ndarray,
    facts: np.ndarray,
    quantiles: np.ndarray,
    numbers: np.ndarray,
) -> None:
    y = rows.log_hours[asked]
    z = (y - np.log(PRIOR_MEDIAN_H)) / PRIOR_SIGMA
    prior = np.where(rows.flags[asked] == 1, norm.pdf(z) / PRIOR_SIGMA, norm.sf(z))
    sweep(
        *(memory.values, memory.flags, memory.counts, memory.last, memory.submits, memory.submitted),
        *(slots[told], rows.log_hours[told], rows.log_limit[told], rows.flags[told], rows.known[told]),
        *(slots[sent], rows.submit[sent], 1, int(hold)),
        *(slots[asked], y, rows.log_limit[asked], rows.flags[asked], rows.submit[asked]),
        *(gate.even() if theta is None else theta, _PRIOR, prior, GRID),
        *(density, facts, quantiles, numbers),
    )


def recall_now(
    memory: Memory,
    keys: np.ndarray,
    log_limit: np.ndarray,
    now: np.ndarray,
    own: int,
    theta: np.ndarray,
    describe: bool,
    hold: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Return quantiles and numbers of rows as of ``now``, from what is remembered; nothing is learnt."""
    slots = unknown_apart(memory, keys)
    quantiles = np.empty((len(keys), len(GRID)))
    numbers = np.empty((len(keys) if describe else 0, NUMBERS), dtype=np.float32)
    blank = np.zeros(len(keys))
    sweep(
        *(memory.values, memory.flags, memory.counts, memory.last, memory.submits, memory.submitted),
        *(_NO_SLOTS, _NONE_F, _NONE_F, _NONE_I, _NONE_F),
        *(_NO_SLOTS, _NONE_F, own, int(hold)),
        *(slots, blank, log_limit, np.ones(len(keys), dtype=np.int8), now),
        *(theta, _PRIOR, blank, GRID, np.empty((0, 0)), np.empty((0, 0, 0)), quantiles, numbers),
    )
    return quantiles, numbers


def unknown_apart(memory: Memory, keys: np.ndarray) -> np.ndarray:
    """Return slots, -1 for a key never seen and -2 where a row has none: a new recipe is not the same as no recipe."""
    return np.where(keys == NONE, -2, memory.slots(keys))


def rung_counts(memory: Memory, keys: np.ndarray) -> np.ndarray:
    """Return how many past jobs each rung of each row remembers, shape (rows, len(RUNGS))."""
    slots = memory.slots(keys[:, : len(RUNGS)])
    return np.where(slots >= 0, np.append(memory.counts, 0)[slots], 0)
