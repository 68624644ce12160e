"""How long a job will take, from nothing but the past of jobs like it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
import pandas as pd

from tidegrid.errors import InputError
from tidegrid.estimators.base import LEVELS, Estimator, Feature, as_levels, checked_columns, quantile_frame
from tidegrid.estimators.boosted import booster_of
from tidegrid.estimators.conditional import remaining_quantiles
from tidegrid.estimators.recurring import trees
from tidegrid.estimators.recurring.calibration import LevelCalibration
from tidegrid.estimators.recurring.jobs import Jobs, Rows, as_jobs, as_rows, refuse
from tidegrid.estimators.recurring.keys import RUNGS, rung_keys, sizes
from tidegrid.estimators.recurring.ladder import GRID, LADDER, foretold, read, sample, spread, transform
from tidegrid.estimators.recurring.memory import PART, Memory, Past, in_order
from tidegrid.models import Bundle

CHUNK = 4096
"""Rows answered at once."""

TREE_ROWS = 25_000
"""Newest jobs that the trees learn from."""

HELD_OUT = 0.5
"""The share of the newest jobs that calibrate: predicted by trees that have seen only older ones."""

BURST_S = 3600.0
"""Jobs of a user and size submitted with shorter gaps are one burst: its first job alone calibrates for all."""

GRACE = 0.02
"""What a job may run past its walltime, in log time: schedulers need a moment to end it."""


class RecurringJobEstimator(Estimator):
    """Durations from history alone: the job's user, account, name, size, requested walltime and hour.

    Past jobs like the one at hand answer together: those of the user with these GPUs and this name, with these GPUs,
    of the user, the group, the site; each rung as far as it has evidence. Boosted trees say which of them count: the
    nearer a past duration lies to the trees' answer, the more. Levels are calibrated on jobs that neither had seen.
    With no past at all a wide documented prior answers. Only what was known at a job's submission enters its answer.

    Parameters
    ----------
    outcome
        ``"completed"``: what the job takes if it runs to its end; rows with ``observed=False`` are lower bounds.
        ``"occupancy"``: how long it holds its GPUs, however it ends; every row is then an outcome. A planner that
        wants to know when GPUs fall free asks for this on a cluster where half of all jobs fail.
    seed
        Seed of the trees.

    Notes
    -----
    A history tells how long jobs take at the sizes that they ran with, not what another size would change. A row whose
    ``asked_gpus`` differs from ``gpus`` is answered at the size asked for and scaled with caution: on more GPUs no
    level from the median up gets shorter, and lower levels up to in proportion; on fewer GPUs every level from the
    median up gets longer in proportion, and lower levels less. Every level is so never longer on more GPUs, and
    :meth:`basis` says that the size asked for is the only one with a history.
    """

    name: ClassVar[str] = "recurring"
    kind: ClassVar[str] = "any"
    predicts_unfitted: ClassVar[bool] = True
    features: ClassVar[tuple[Feature, ...]] = (
        Feature("user", "text", doc="who submits it"),
        Feature("group", "text", doc="team or account"),
        Feature("name", "text", doc="the job's name; runs of digits in it do not count"),
        Feature("gpus", "float", "GPUs", low=0, default=1, doc="GPUs that it would run on"),
        Feature("asked_gpus", "float", "GPUs", low=0, doc="GPUs that it asks for, where others are in gpus"),
        Feature("requested_walltime_h", "float", "hours", low=0, doc="the limit that the submitter asks for"),
        Feature("submit_time", "instant", doc="when it is submitted"),
        Feature("queue", "text", doc="partition or queue"),
        Feature("cpus", "float", "CPUs", low=0, doc="CPUs asked for"),
        Feature("nodes", "float", "nodes", low=0, doc="nodes asked for"),
        Feature("mem_mb", "float", "MiB", low=0, doc="memory asked for"),
    )

    noted_: Memory | None

    def __init__(self, outcome: Literal["completed", "occupancy"] = "completed", seed: int = 0) -> None:
        self.outcome = outcome
        self.seed = seed

    def fit(
        self,
        X: pd.DataFrame,
        y: pd.Series,
        *,
        observed: pd.Series | None = None,
        known_at: pd.Series | None = None,
    ) -> Self:
        """Learn from finished jobs.

        ``known_at`` defaults to submission plus duration; where ``submit_time`` is missing too, rows count as known
        in their order.

        Raises
        ------
        InputError
            A duration is negative, missing or infinite, or a feature cannot be used; the row is named.
        """
        self._start()
        jobs = self._jobs(X, y, observed, known_at)
        self._count_limits(jobs)
        newest = np.sort(np.argsort(jobs.known, kind="stable")[-TREE_ROWS:])
        newest = newest[np.argsort(jobs.submit[newest], kind="stable")]
        seen, jobs = self._live(jobs, newest), jobs.take(newest)
        target = np.where(
            jobs.exact, jobs.log_hours, beyond(foretold(seen.values, seen.weight), jobs.log_hours)
        )
        # each outcome that the first trees have not seen calibrates
        late = slice(int(len(jobs) * (1 - HELD_OUT)), None)
        early = jobs.known < jobs.submit[late][:1]
        if early.sum() >= trees.ENOUGH:
            self._use(trees.grow(seen.inputs[early], target[early], self.seed))
            self._follow(seen.take(late), jobs.take(late))
        else:
            self._follow(seen, jobs)
        if len(jobs) >= trees.ENOUGH:
            self._use(trees.grow(seen.inputs, target, self.seed))
        self.memory_.forget()
        return self

    def update(
        self,
        X: pd.DataFrame,
        y: pd.Series,
        *,
        observed: pd.Series | None = None,
        known_at: pd.Series | None = None,
    ) -> Self:
        """Take in jobs that finished since: memory and calibration move at once; trees wait for a refit.

        Open jobs noted before are forgotten: note them again.
        """
        self._start(again=True)
        self._replay(self._jobs(X, y, observed, known_at))
        return self

    def note_open(self, X: pd.DataFrame) -> Self:
        """Tell which jobs are queued or running now: that a recipe's jobs have not ended yet says something too.

        Each call replaces the one before.
        """
        self._start(again=True)
        rows = as_rows(checked_columns(X, self.features))
        submit = np.where(np.isnan(rows.submit), self.clock_, rows.submit)
        self.noted_ = replace(self.memory_, begun=self.memory_.begun.copy(), sent=self.memory_.sent.copy())
        slots = self.memory_.slots(rows.keys)
        for row in np.argsort(submit, kind="stable"):
            self.noted_.submit(slots[row][slots[row] > 0], float(submit[row]))
        return self

    def replay(
        self,
        X: pd.DataFrame,
        y: pd.Series,
        levels: Sequence[float] = LEVELS,
        *,
        observed: pd.Series | None = None,
        known_at: pd.Series | None = None,
    ) -> pd.DataFrame:
        """Predict each job as of its submission, learning from every other as it becomes known.

        This is how a backtest or a simulator asks: row i is answered from the history so far and from those rows of
        ``X`` whose ``known_at`` lies before its ``submit_time``.

        Returns
        -------
        pandas.DataFrame
            As :meth:`predict_quantiles`; the estimator has then learnt all rows.
        """
        wanted = as_levels(levels)
        self._start(again=True)
        told = self._replay(self._jobs(X, y, observed, known_at), wanted)
        return quantile_frame(np.exp(told), wanted, X.index)

    def predict_quantiles(self, X: pd.DataFrame, levels: Sequence[float] = LEVELS) -> pd.DataFrame:
        """Predict quantiles of the duration in hours, from everything learnt so far."""
        return self._predict(X, levels, ends=True)

    def predict_work(self, X: pd.DataFrame, levels: Sequence[float] = LEVELS) -> pd.DataFrame:
        """Predict quantiles of the hours that the work takes, as if the requested walltime did not end it."""
        return self._predict(X, levels, ends=False)

    def _predict(self, X: pd.DataFrame, levels: Sequence[float], ends: bool) -> pd.DataFrame:
        wanted = as_levels(levels)
        rows = as_rows(checked_columns(X, self.features))
        if not ends:
            rows = replace(rows, log_limit=np.full(len(X), np.inf))
        out = np.empty((len(X), len(wanted)))
        for at in range(0, len(X), CHUNK):
            out[at : at + CHUNK] = self._now(rows.take(slice(at, at + CHUNK)), wanted)
        return quantile_frame(np.exp(out), wanted, X.index)

    def predict_remaining(
        self, X: pd.DataFrame, elapsed_h: pd.Series | np.ndarray | float, levels: Sequence[float] = LEVELS
    ) -> pd.DataFrame:
        """Predict quantiles of the hours that a running job still needs, given that it has run ``elapsed_h``.

        Raises
        ------
        InputError
            An elapsed time is negative, missing or infinite.
        """
        wanted = as_levels(levels)
        elapsed = np.broadcast_to(np.asarray(elapsed_h, dtype=float), (len(X),))
        refuse(~(np.isfinite(elapsed) & (elapsed >= 0)), elapsed, "elapsed_h", "give hours, 0 or more")
        whole = self.predict_quantiles(X, tuple(GRID)).to_numpy()
        return quantile_frame(remaining_quantiles(whole, GRID.tolist(), elapsed, wanted), wanted, X.index)

    def basis(self, X: pd.DataFrame) -> pd.Series:
        """Say which rung answers and how many past jobs it counts: ``"site history: user+gpus, 12 jobs"``.

        Where ``asked_gpus`` is another size than ``gpus``, ``"; scaled from 4 GPUs, the size asked for"`` follows.
        """
        checked = checked_columns(X, self.features)
        memory = getattr(self, "memory_", None) or Memory()
        counts = memory.ended[memory.slots(rung_keys(checked))]
        out = np.full(len(X), "prior: no past jobs", dtype=object)
        for rung in reversed(LADDER):
            for row in np.flatnonzero(counts[:, rung]):
                n = counts[row, rung]
                out[row] = f"site history: {RUNGS[rung]}, {n} job{'s' if n > 1 else ''}"
        size, gpus = sizes(checked), checked["gpus"]
        for row in np.flatnonzero(size != gpus):
            out[row] += f"; scaled from {size[row]:g} GPUs, the size asked for"
        return pd.Series(out, index=X.index)

    def calibrated(self, levels: Sequence[float] = LEVELS) -> bool:
        """Say whether enough outcomes are known for these levels to be calibrated at all."""
        return hasattr(self, "memory_") and self.calibration_.calibrated(as_levels(levels))

    def to_bundle(self) -> Bundle:
        """Return parameters, memory, trees and calibration as plain data."""
        params = self.get_params(deep=False)
        if not hasattr(self, "memory_"):
            return Bundle(self.name, params)
        arrays = {**self.memory_.arrays(), "transforms": np.array(self.calibration_.newest)}
        clock = self.clock_ if np.isfinite(self.clock_) else None
        state = {"clock": clock, "limits": list(self.limits_), "stretch": self.calibration_.stretch}
        return Bundle(self.name, params, state, arrays, {"trees": self.text_} if self.text_ else {})

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> Self:
        """Rebuild the estimator.

        Raises
        ------
        InputError
            It was saved by another release of this estimator, or its trees are no sound model.
        """
        out = cls(**bundle.params)
        if not bundle.state:
            return out
        if "transforms" not in bundle.arrays:
            raise InputError(
                "it was saved by an older release", field="recurring", fix="fit it again: tidegrid train"
            )
        out._start()
        out.memory_ = Memory.from_arrays(bundle.arrays)
        out.calibration_ = LevelCalibration(
            bundle.arrays["transforms"].tolist(), float(bundle.state["stretch"])
        )
        out.limits_ = tuple(int(n) for n in bundle.state["limits"])
        out.clock_ = -np.inf if bundle.state["clock"] is None else float(bundle.state["clock"])
        if "trees" in bundle.texts:
            out._use(bundle.texts["trees"])
        return out

    def _start(self, again: bool = False) -> None:
        if self.outcome not in ("completed", "occupancy"):
            raise InputError(
                f"{self.outcome!r} is unknown", field="outcome", fix="use 'completed' or 'occupancy'"
            )
        if not (again and hasattr(self, "memory_")):
            self.memory_, self.calibration_ = Memory(), LevelCalibration()
            self.limits_: tuple[int, ...] = (0, 0)
            self.clock_, self.text_ = -np.inf, ""
            self._booster: Any = None
        self.noted_ = None

    def _jobs(
        self, X: pd.DataFrame, y: pd.Series, observed: pd.Series | None, known_at: pd.Series | None
    ) -> Jobs:
        jobs = as_jobs(X, y, self.features, observed, known_at, self.clock_)
        return replace(jobs, exact=np.ones_like(jobs.exact)) if self.outcome == "occupancy" else jobs

    def _use(self, text: str) -> None:
        self.text_, self._booster = text, booster_of(text, len(trees.RISING))

    def _live(self, jobs: Jobs, ask: np.ndarray) -> "Seen":
        """Take jobs into the memory; return what those asked could see, in their order: that of submission."""
        asked = jobs.take(ask)
        parts, at = [], 0
        for past in self.memory_.live(jobs.keys, jobs, ask):
            parts.append(see(past, asked.own[at : at + PART], asked.submit[at : at + PART]))
            at += PART
        self.clock_ = max(self.clock_, float(jobs.known.max(initial=-np.inf)))
        return Seen(
            *(np.concatenate(arrays) for arrays in zip(*(vars(p).values() for p in parts), strict=True))
        )

    def _count_limits(self, jobs: Jobs) -> None:
        """Count the jobs that asked for a walltime, and those of them that ran 5 % past it."""
        asked = np.isfinite(jobs.log_limit)
        past = jobs.log_hours > jobs.log_limit + np.log(1.05)
        self.limits_ = (self.limits_[0] + int(asked.sum()), self.limits_[1] + int(past.sum()))

    def _held(self, log_hours: np.ndarray, log_limit: np.ndarray) -> np.ndarray:
        """Return log hours, none past the walltime where the site ends jobs at it: hardly any has run past it."""
        holds = self.limits_[1] <= 1 + 0.01 * self.limits_[0]
        return np.minimum(log_hours, log_limit[:, None] + GRACE) if holds else log_hours

    def _foretold(self, seen: "Seen", log_limit: np.ndarray) -> np.ndarray:
        """Return log hours at ``GRID``, before calibration."""
        told = None if self._booster is None else trees.answer(self._booster, seen.inputs)
        return self._held(foretold(seen.values, seen.weight, told), log_limit)

    def _now(self, rows: Rows, levels: Sequence[float]) -> np.ndarray:
        if not hasattr(self, "memory_"):
            # asking must not turn an unfitted estimator into a fitted one
            blank = type(self)(self.outcome, self.seed)
            blank._start()
            return blank._now(rows, levels)
        now = np.fmax(rows.submit, self.clock_ if np.isfinite(self.clock_) else 0.0)
        # what became known at this very instant is known
        memory = self.noted_ or self.memory_
        past = memory.recall(rows.keys, np.nextafter(now, np.inf), int(self.noted_ is not None))
        seen = see(past, rows.own, np.where(np.isnan(rows.submit), now, rows.submit))
        at = np.tile(self.calibration_.levels(levels), (len(rows), 1))
        told = read(self._foretold(seen, rows.log_limit), at) + spread(seen.weight, levels)
        scale, twice = rows.log_scale[:, None], 2.0 * np.asarray(levels)
        share = np.where(scale < 0, np.maximum(1.0 - twice, 0.0), np.minimum(twice, 1.0))
        return self._held(told + scale * share, rows.log_limit)

    def _replay(self, jobs: Jobs, levels: Sequence[float] = (0.5,)) -> np.ndarray:
        """Answer jobs as of their submission, in log hours, and learn from each as it becomes known."""
        asked = np.argsort(jobs.submit, kind="stable")
        told = np.empty((len(jobs), len(levels)))
        told[asked] = self._follow(self._live(jobs, asked), jobs.take(asked), levels)
        self._count_limits(jobs)
        self.memory_.forget()
        return told

    def _follow(self, seen: "Seen", jobs: Jobs, levels: Sequence[float] = (0.5,)) -> np.ndarray:
        """Answer jobs as of their submission, and calibrate on each as it becomes known."""
        found = self._foretold(seen, jobs.log_limit)
        u = outcome_levels(found, jobs.log_hours, jobs.exact).tolist()
        first, at = seen.first.tolist(), np.empty((len(jobs), len(levels)))
        for asked, row in in_order(jobs):
            if asked:
                at[row] = self.calibration_.levels(levels)
            else:
                self.calibration_.add(u[row], first[row])
        return self._held(read(found, at) + spread(seen.weight, levels), jobs.log_limit)


@dataclass(frozen=True)
class Seen:
    """What rows could know, worked out: past durations and weights, the trees' inputs, whether it begins a burst."""

    values: np.ndarray
    weight: np.ndarray
    inputs: np.ndarray
    first: np.ndarray

    def take(self, at: slice) -> "Seen":
        """Return what the rows at these places could know."""
        return Seen(*(array[at] for array in vars(self).values()))


def see(past: Past, own: np.ndarray, submit: np.ndarray) -> Seen:
    """Return what rows could know of their past."""
    first = ~(past.idle[:, RUNGS.index("user+gpus")] < BURST_S)
    return Seen(*sample(past), trees.described(own, submit, past), first)


def beyond(found: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """Return the medians of distributions (log hours at ``GRID``) given that the truth lies above lower bounds."""
    level = (1.0 + transform(found, bound)) / 2
    return np.maximum(read(found, level[:, None])[:, 0], bound)


def outcome_levels(quantiles: np.ndarray, log_hours: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Return the level at which each outcome fell; a lower bound's truth lies somewhere above its own level.

    The levels above are drawn in the golden-ratio sequence, which spreads them evenly without chance.
    """
    u = transform(quantiles, log_hours)
    bound = np.flatnonzero(~exact)
    u[bound] += (1.0 - u[bound]) * ((0.5 + 0.618033988749895 * np.arange(len(bound))) % 1.0)
    return u
