"""How long a job will take, from nothing but the past of jobs like it."""

from collections.abc import Sequence
from typing import ClassVar, Literal, Self

import numpy as np
import pandas as pd

from tidegrid.errors import InputError
from tidegrid.estimators.base import LEVELS, Estimator, Feature, as_levels, checked_features, quantile_frame
from tidegrid.estimators.conditional import remaining_quantiles
from tidegrid.estimators.recurring import trees
from tidegrid.estimators.recurring.calibration import GRID, LevelCalibration, read, spread_class
from tidegrid.estimators.recurring.centre import Record
from tidegrid.estimators.recurring.gate import thinned
from tidegrid.estimators.recurring.keys import check_hash, hash_probe, rung_keys
from tidegrid.estimators.recurring.learner import (
    Learner,
    outcome_levels,
    recall_now,
    run,
    rung_counts,
    unknown_apart,
)
from tidegrid.estimators.recurring.memory import Memory
from tidegrid.estimators.recurring.rows import Rows, as_rows, log_limits, refuse, seconds
from tidegrid.models import Bundle

BASIS = {1: "user+gpus+name", 2: "user+gpus", 3: "user", 4: "group", 6: "site"}
"""The rungs that :meth:`RecurringJobEstimator.basis` names, by their place in ``keys.RUNGS``, finest first."""

CHUNK = 4096
"""Rows answered at once."""

STEP = 25
"""Jobs of a replay between two looks at what became known, for the calibration only."""


class RecurringJobEstimator(Estimator):
    """Durations from history alone: the job's user, account, name, size, requested walltime and hour.

    Past jobs like the one at hand answer together: the same recipe, the same user with these GPUs and this name, with
    these GPUs, the user, the group, the site. Which to believe for which job is learnt from how well each has foretold
    the past. Where the job's own past leaves much open, boosted trees move the answer; levels are then calibrated
    on jobs that neither had seen. With no past at all a wide documented prior answers. Only what was known
    at a job's submission ever enters its answer.

    Parameters
    ----------
    outcome
        ``"completed"``: what the job takes if it runs to its end; rows with ``observed=False`` are lower bounds.
        ``"occupancy"``: how long it holds its GPUs, however it ends; every row is then an outcome. A planner that
        wants to know when GPUs fall free asks for this on a cluster where half of all jobs fail.
    seed
        Seed of the trees.
    """

    name: ClassVar[str] = "recurring"
    kind: ClassVar[str] = "any"
    predicts_unfitted: ClassVar[bool] = True
    features: ClassVar[tuple[Feature, ...]] = (
        Feature("user", "text", doc="who submits it"),
        Feature("group", "text", doc="team or account"),
        Feature("name", "text", doc="the job's name; runs of digits in it do not count"),
        Feature("gpus", "float", "GPUs", low=0, default=1, doc="GPUs asked for"),
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
        rows = self._rows(X, y, observed, known_at)
        self.learner_.count_limits(rows)
        self.learner_.learn(rows, self.seed)
        self.learner_.limits = (0, 0)
        self._absorb(rows, np.empty(0, dtype=np.int64))
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
        """Take in jobs that finished since: memory and calibration move at once; gate and trees wait for a refit.

        Open jobs noted before are forgotten: note them again.
        """
        self._start(again=True)
        rows = self._rows(X, y, observed, known_at)
        foretold = self._absorb(rows, np.arange(len(rows)))
        self.learner_.observe(foretold, rows, np.arange(len(rows)))
        return self

    def note_open(self, X: pd.DataFrame) -> Self:
        """Tell which jobs are queued or running now: that a recipe's jobs have not ended yet says something too.

        Each call replaces the one before.
        """
        self._start(again=True)
        checked = checked_features(X, self.features)
        keys, submit = rung_keys(checked), seconds(checked["submit_time"])
        self.noted_ = self.memory_.with_open(keys, np.where(np.isnan(submit), self.clock_, submit))
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
        rows = self._rows(X, y, observed, known_at)
        foretold = self._absorb(rows, np.arange(len(rows)))
        return quantile_frame(np.exp(self._calibrate_as_told(foretold, rows, wanted)), wanted, X.index)

    def predict_quantiles(self, X: pd.DataFrame, levels: Sequence[float] = LEVELS) -> pd.DataFrame:
        """Predict quantiles of the duration in hours, from everything learnt so far."""
        wanted = as_levels(levels)
        checked = checked_features(X, self.features)
        out = np.empty((len(X), len(wanted)))
        for at in range(0, len(X), CHUNK):
            foretold = self._now(checked.iloc[at : at + CHUNK])
            out[at : at + CHUNK] = self._calibrated(foretold, wanted)
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
        """Say which rung answers and how many past jobs it counts: ``"site history: user+gpus, 12 jobs"``."""
        checked = checked_features(X, self.features)
        out = np.full(len(X), "prior: no past jobs", dtype=object)
        if hasattr(self, "memory_"):
            counts = rung_counts(self.memory_, rung_keys(checked))
            done = np.zeros(len(X), dtype=bool)
            for rung, label in BASIS.items():
                here = ~done & (counts[:, rung] > 0)
                out[here] = [
                    f"site history: {label}, {n} job{'s' if n > 1 else ''}" for n in counts[here, rung]
                ]
                done |= here
        return pd.Series(out, index=X.index)

    def calibrated(self, levels: Sequence[float] = LEVELS) -> bool:
        """Say whether enough outcomes are known for these levels to be calibrated at all."""
        return self._learner().calibration.calibrated(0, as_levels(levels))

    def to_bundle(self) -> Bundle:
        """Return parameters, memory, gate, trees and calibration as plain data."""
        params = self.get_params(deep=False)
        if not hasattr(self, "memory_"):
            return Bundle(self.name, params)
        arrays = {**self.memory_.arrays(), "theta": self.learner_.theta}
        arrays |= {f"ranks_{c}": ranks for c, ranks in enumerate(self.learner_.calibration.ranks)}
        state = {
            "clock": self.clock_ if np.isfinite(self.clock_) else None,
            "classes": len(self.learner_.calibration.ranks),
            "hash_probe": str(hash_probe()),
            "record": {"losses": self.learner_.record.losses.tolist(), "weight": self.learner_.record.weight},
            "limits": list(self.learner_.limits),
            "stretch": self.learner_.calibration.stretch,
        }
        return Bundle(
            self.name, params, state, arrays, {"trees": self.learner_.text} if self.learner_.text else {}
        )

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> Self:
        """Rebuild the estimator.

        Raises
        ------
        InputError
            This pandas hashes text in another way than the one that the keys were made with.
        """
        out = cls(**bundle.params)
        if not bundle.state:
            return out
        check_hash(int(bundle.state["hash_probe"]))
        out.memory_ = Memory(**{name: bundle.arrays[name].copy() for name in Memory.empty().arrays()})
        ranks = [bundle.arrays[f"ranks_{c}"].copy() for c in range(bundle.state["classes"])]
        # trees of an estimator saved without a record had other inputs: the mixture answers until the next fit
        told = bundle.state.get("record")
        out.learner_ = Learner(
            bundle.arrays["theta"].copy(),
            bundle.texts.get("trees", "") if told else "",
            LevelCalibration(ranks, float(bundle.state["stretch"])),
            Record(np.array(told["losses"], dtype=float), float(told["weight"])) if told else Record(),
            (int(bundle.state["limits"][0]), int(bundle.state["limits"][1])),
        )
        out.clock_ = -np.inf if bundle.state["clock"] is None else float(bundle.state["clock"])
        return out

    def _start(self, again: bool = False) -> None:
        if self.outcome not in ("completed", "occupancy"):
            raise InputError(
                f"{self.outcome!r} is unknown", field="outcome", fix="use 'completed' or 'occupancy'"
            )
        if not (again and hasattr(self, "memory_")):
            self.memory_ = Memory.empty()
            self.learner_ = Learner()
            self.clock_ = -np.inf
        self.noted_ = None

    def _learner(self) -> Learner:
        return self.learner_ if hasattr(self, "learner_") else Learner()

    def _rows(
        self, X: pd.DataFrame, y: pd.Series, observed: pd.Series | None, known_at: pd.Series | None
    ) -> Rows:
        checked = checked_features(X, self.features)
        return as_rows(checked, y, observed, known_at, self.clock_, self.outcome == "occupancy")

    def _absorb(self, rows: Rows, ask: np.ndarray) -> np.ndarray:
        """Take rows into the memory; return what was foretold of those asked, each as of its submission."""
        self.memory_.admit(rows.keys)
        slots = unknown_apart(self.memory_, rows.keys)
        describe = bool(self.learner_.text)
        _, _, numbers, quantiles = run(
            self.memory_, slots, rows, ask, self.learner_.theta, None, describe, self.learner_.holds
        )
        if len(rows):
            self.clock_ = max(self.clock_, float(rows.known.max()))
        inputs = numbers
        if describe:
            inputs = trees.described(rows.features.iloc[ask], rows.submit[ask], numbers)
        foretold = self.learner_.follow(quantiles, inputs, rows, ask)
        self.learner_.count_limits(rows)
        return foretold

    def _now(self, checked: pd.DataFrame) -> np.ndarray:
        learner = self._learner()
        memory = getattr(self, "memory_", None) or Memory.empty()
        noted = getattr(self, "noted_", None)
        submit = seconds(checked["submit_time"])
        clock = getattr(self, "clock_", -np.inf)
        now = np.fmax(submit, clock if np.isfinite(clock) else 0.0)
        describe = bool(learner.text)
        quantiles, numbers = recall_now(
            noted or memory,
            rung_keys(checked),
            log_limits(checked),
            now,
            int(noted is not None),
            learner.theta,
            describe,
            learner.holds,
        )
        inputs = numbers
        if describe:
            inputs = trees.described(checked, np.where(np.isnan(submit), now, submit), numbers)
        return learner.distribution(quantiles, inputs, log_limits(checked))

    def _calibrated(self, foretold: np.ndarray, levels: Sequence[float]) -> np.ndarray:
        calibration = self._learner().calibration
        classes = spread_class(foretold)
        at = np.empty((len(foretold), len(levels)))
        for c in np.unique(classes):
            at[classes == c] = calibration.levels(int(c), levels)
        return read(foretold, at)

    def _calibrate_as_told(self, foretold: np.ndarray, rows: Rows, levels: Sequence[float]) -> np.ndarray:
        calibration = self.learner_.calibration
        u = outcome_levels(foretold, rows.log_hours, rows.flags)
        classes = spread_class(foretold)
        asked, told = np.argsort(rows.submit, kind="stable"), np.argsort(rows.known, kind="stable")
        counts = thinned(rows.recipe, rows.submit)
        ready = np.searchsorted(rows.known[told], rows.submit[asked], side="left")
        out = np.empty((len(u), len(levels)))
        done = 0
        for at in range(0, len(asked), STEP):
            new = told[done : ready[at]]
            calibration.add(classes[new[counts[new]]], u[new[counts[new]]])
            calibration.follow(classes[new], u[new])
            done = max(done, int(ready[at]))
            out[asked[at : at + STEP]] = self._calibrated(foretold[asked[at : at + STEP]], levels)
        rest = told[done:]
        calibration.add(classes[rest[counts[rest]]], u[rest[counts[rest]]])
        calibration.follow(classes[rest], u[rest])
        return out
