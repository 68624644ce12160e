"""How long a job will take, from nothing but the past of jobs like it."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Self

import numpy as np
import pandas as pd

from tidegrid.errors import InputError
from tidegrid.estimators.base import LEVELS, Estimator, Feature, as_levels, checked_features, quantile_frame
from tidegrid.estimators.conditional import remaining_quantiles
from tidegrid.estimators.recurring.calibration import LevelCalibration, read, transform
from tidegrid.estimators.recurring.keys import RUNGS, check_hash, hash_probe, rung_keys
from tidegrid.estimators.recurring.memory import GRID, PRIOR_ATOMS, Memory
from tidegrid.models import Bundle

FLOOR_H = 1.0 / 3600.0
"""The shortest duration that counts, one second: the resolution of every scheduler's clock."""

PRIOR_MEDIAN_H, PRIOR_SIGMA = 0.5, 2.8
"""A job of which nothing is known: log-normal about half an hour, ten-fold spread 1.2 decades.

The public traces of Helios Venus (2020) and Alliance Cedar (2021) have medians of 0.1 to 3.5 hours and a standard
deviation of 1.0 to 1.3 decades; the prior spans both: 80 % of it lies between 50 seconds and 18 hours.
"""

CONCENTRATION = (1.0,) * len(RUNGS)
DECAY = 0.93
PRIOR_SHARE = 0.004
"""The weight that the prior keeps however much is known, so that no distribution is narrower than the truth."""

BASIS = {1: "user+gpus+name", 2: "user+gpus", 3: "user", 4: "group", 6: "site"}


class RecurringJobEstimator(Estimator):
    """Durations from history alone: the job's user, account, name, size, requested walltime and hour.

    Past jobs like the one at hand answer, the most alike first: the same recipe, the same user with these GPUs and
    this name, with these GPUs, the user, the group, the site. Each rung takes the more weight the more jobs it
    remembers, and leaves the rest to the coarser ones; with no past at all a wide documented prior answers. Levels
    are calibrated on the jobs that finished, each predicted from what was known when it was submitted.

    Parameters
    ----------
    outcome
        ``"completed"``: what the job takes if it runs to its end; rows with ``observed=False`` are lower bounds.
        ``"occupancy"``: how long it holds its GPUs, however it ends; every row is then an outcome. A planner that
        wants to know when GPUs fall free asks for this on a cluster where half of all jobs fail.
    seed
        Seed of the learner.
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
        if self.outcome not in ("completed", "occupancy"):
            raise InputError(
                f"{self.outcome!r} is unknown", field="outcome", fix="use 'completed' or 'occupancy'"
            )
        self.memory_ = Memory()
        self.calibration_ = LevelCalibration()
        self.clock_ = -np.inf
        self.rows_ = 0
        self._learn(X, y, observed, known_at)
        return self

    def update(
        self,
        X: pd.DataFrame,
        y: pd.Series,
        *,
        observed: pd.Series | None = None,
        known_at: pd.Series | None = None,
    ) -> Self:
        """Take in jobs that finished since: memory and calibration move at once, without a refit."""
        if not hasattr(self, "memory_"):
            return self.fit(X, y, observed=observed, known_at=known_at)
        self._learn(X, y, observed, known_at)
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

        This is the backtest's and the simulator's way of asking: row i is answered from the history so far and from
        those rows of ``X`` whose ``known_at`` lies before its ``submit_time``.

        Returns
        -------
        pandas.DataFrame
            As :meth:`predict_quantiles`; the estimator has then learnt all rows.
        """
        wanted = as_levels(levels)
        if not hasattr(self, "memory_"):
            self.memory_, self.calibration_ = Memory(), LevelCalibration()
            self.clock_, self.rows_ = -np.inf, 0
        return quantile_frame(np.exp(self._learn(X, y, observed, known_at, wanted)), wanted, X.index)

    def predict_quantiles(self, X: pd.DataFrame, levels: Sequence[float] = LEVELS) -> pd.DataFrame:
        """Predict quantiles of the duration in hours, from everything learnt so far."""
        wanted = as_levels(levels)
        checked = checked_features(X, self.features)
        quantiles, classes = self._distribution(checked)
        return quantile_frame(np.exp(self._calibrated(quantiles, classes, wanted)), wanted, X.index)

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
        _refuse_rows(~(np.isfinite(elapsed) & (elapsed >= 0)), elapsed, "elapsed_h", "give hours, 0 or more")
        whole = self.predict_quantiles(X, tuple(GRID)).to_numpy()
        return quantile_frame(remaining_quantiles(whole, GRID, elapsed, wanted), wanted, X.index)

    def basis(self, X: pd.DataFrame) -> pd.Series:
        """Say which rung answers and how many past jobs it counts: ``"site history: user+gpus, 12 jobs"``."""
        checked = checked_features(X, self.features)
        if not hasattr(self, "memory_") or self.rows_ == 0:
            return pd.Series("prior: no past jobs", index=X.index, dtype=object)
        counts = self._counts(rung_keys(checked))
        out = np.full(len(X), "prior: no past jobs", dtype=object)
        done = np.zeros(len(X), dtype=bool)
        for rung, label in BASIS.items():
            here = ~done & (counts[:, rung] > 0)
            out[here] = [f"site history: {label}, {n} job{'s' if n != 1 else ''}" for n in counts[here, rung]]
            done |= here
        return pd.Series(out, index=X.index)

    def to_bundle(self) -> Bundle:
        """Return parameters, memory and calibration as plain data."""
        params = self.get_params(deep=False)
        if not hasattr(self, "memory_"):
            return Bundle(self.name, params)
        m = self.memory_
        arrays = {"keys": m.keys, "values": m.values, "flags": m.flags, "counts": m.counts, "last": m.last}
        arrays |= {f"ranks_{c}": ranks for c, ranks in enumerate(self.calibration_.ranks)}
        clock = self.clock_ if np.isfinite(self.clock_) else None
        state = {
            "clock": clock,
            "rows": self.rows_,
            "classes": len(self.calibration_.ranks),
            "hash_probe": str(hash_probe()),
        }
        return Bundle(self.name, params, state, arrays)

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> Self:
        """Rebuild the estimator; refused where this pandas hashes text in another way."""
        out = cls(**bundle.params)
        if not bundle.state:
            return out
        check_hash(int(bundle.state["hash_probe"]))
        out.memory_ = Memory(
            *(bundle.arrays[f].copy() for f in ("keys", "values", "flags", "counts", "last"))
        )
        out.calibration_ = LevelCalibration(
            [bundle.arrays[f"ranks_{c}"].copy() for c in range(bundle.state["classes"])]
        )
        out.clock_ = -np.inf if bundle.state["clock"] is None else float(bundle.state["clock"])
        out.rows_ = int(bundle.state["rows"])
        return out

    # what is learnt ------------------------------------------------------------------------------

    def _learn(
        self,
        X: pd.DataFrame,
        y: pd.Series,
        observed: pd.Series | None,
        known_at: pd.Series | None,
        levels: Sequence[float] | None = None,
    ) -> np.ndarray:
        """Sweep over rows in order of time: predict each at its submission, calibrate, remember.

        Returns log hours at ``levels``, or an empty array without them.
        """
        from tidegrid.estimators.recurring.kernels import sweep

        checked = checked_features(X, self.features)
        hours, flags = _targets(X, y, observed)
        if self.outcome == "occupancy":
            flags = np.ones_like(flags)
        log_h = np.log(np.maximum(hours, FLOOR_H))
        submit, known = _instants(checked["submit_time"], known_at, hours, self.clock_)
        keys = rung_keys(checked)
        self.memory_.admit(keys)
        slots = self.memory_.slots(keys)
        asked, told = np.argsort(submit, kind="stable"), np.argsort(known, kind="stable")
        counts = self.memory_.counts
        quantiles = np.empty((len(X), len(GRID)))
        sweep(
            self.memory_.values,
            self.memory_.flags,
            counts,
            self.memory_.last,
            slots[told],
            log_h[told],
            flags[told].astype(np.int8),
            known[told],
            slots[asked],
            submit[asked],
            *_mixing(),
            GRID,
            quantiles,
            np.empty((0, 0)),
        )
        back = np.empty_like(asked)
        back[asked] = np.arange(len(asked))
        quantiles = quantiles[back]
        classes = np.zeros(len(X), dtype=np.int64)
        u = transform(quantiles, log_h)
        out = np.empty((0, 0))
        if levels is None:
            told = told[flags[told] == 1]
            self.calibration_.add(classes[told], u[told])
        else:
            out = self._calibrate_as_told(quantiles, classes, u, flags, submit, known, asked, told, levels)
        if len(X):
            self.clock_ = max(self.clock_, float(known.max()))
        self.rows_ += len(X)
        return out

    def _calibrate_as_told(
        self,
        quantiles: np.ndarray,
        classes: np.ndarray,
        u: np.ndarray,
        flags: np.ndarray,
        submit: np.ndarray,
        known: np.ndarray,
        asked: np.ndarray,
        told: np.ndarray,
        levels: Sequence[float],
    ) -> np.ndarray:
        out = np.empty((len(u), len(levels)))
        done = 0
        seen = np.searchsorted(known[told], submit[asked], side="left")
        step = 25
        for at in range(0, len(asked), step):
            rows = asked[at : at + step]
            ready = told[done : seen[at]]
            ready = ready[flags[ready] == 1]
            self.calibration_.add(classes[ready], u[ready])
            done = max(done, int(seen[at]))
            out[rows] = self._calibrated(quantiles[rows], classes[rows], levels)
        rest = told[done:]
        rest = rest[flags[rest] == 1]
        self.calibration_.add(classes[rest], u[rest])
        return out

    # what is answered ----------------------------------------------------------------------------

    def _distribution(self, checked: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        from tidegrid.estimators.recurring.kernels import sweep

        memory = getattr(self, "memory_", Memory())
        slots = memory.slots(rung_keys(checked))
        quantiles = np.empty((len(checked), len(GRID)))
        none = np.empty((0, len(RUNGS)), dtype=np.int64)
        sweep(
            memory.values,
            memory.flags,
            memory.counts,
            memory.last,
            none,
            np.empty(0),
            np.empty(0, np.int8),
            np.empty(0),
            slots,
            np.zeros(len(checked)),
            *_mixing(),
            GRID,
            quantiles,
            np.empty((0, 0)),
        )
        return quantiles, np.zeros(len(checked), dtype=np.int64)

    def _calibrated(self, quantiles: np.ndarray, classes: np.ndarray, levels: Sequence[float]) -> np.ndarray:
        calibration = getattr(self, "calibration_", LevelCalibration())
        at = np.empty((len(quantiles), len(levels)))
        for c in np.unique(classes):
            at[classes == c] = calibration.levels(int(c), levels)
        return read(quantiles, at)

    def _counts(self, keys: np.ndarray) -> np.ndarray:
        slots = self.memory_.slots(keys)
        return np.where(slots >= 0, np.append(self.memory_.counts, 0)[slots], 0)


def _mixing() -> tuple[Any, ...]:
    from scipy.stats import norm

    at = (np.arange(PRIOR_ATOMS) + 0.5) / PRIOR_ATOMS
    prior = np.log(PRIOR_MEDIAN_H) + PRIOR_SIGMA * norm.ppf(at)
    return np.array(CONCENTRATION), DECAY, prior, PRIOR_SHARE


def _targets(X: pd.DataFrame, y: pd.Series, observed: pd.Series | None) -> tuple[np.ndarray, np.ndarray]:
    if len(y) != len(X):
        raise InputError(f"y has {len(y)} rows and X has {len(X)}", field="y", fix="give one duration a row")
    hours = pd.to_numeric(pd.Series(np.asarray(y)), errors="coerce").to_numpy(dtype=float)
    _refuse_rows(~(np.isfinite(hours) & (hours >= 0)), np.asarray(y), "y", "give hours, 0 or more and finite")
    if observed is None:
        return hours, np.ones(len(X), dtype=bool)
    if len(observed) != len(X):
        raise InputError(
            f"observed has {len(observed)} rows and X has {len(X)}", field="observed", fix="give one a row"
        )
    return hours, np.asarray(observed, dtype=bool)


def _refuse_rows(bad: np.ndarray, values: Any, field: str, fix: str) -> None:
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        raise InputError(f"{values[at]!r} cannot be used", row=at + 2, field=field, fix=fix)


def _seconds(instants: pd.Series) -> np.ndarray:
    utc = pd.to_datetime(instants, utc=True)
    out = utc.astype("datetime64[us, UTC]").astype("int64").to_numpy(dtype=float) / 1e6
    return np.where(utc.isna().to_numpy(), np.nan, out)


def _instants(
    submit: pd.Series, known_at: pd.Series | None, hours: np.ndarray, clock: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return submission and the instant known, in seconds since 1970, both filled in."""
    start = _seconds(submit)
    if known_at is not None and len(known_at) != len(start):
        raise InputError(
            f"known_at has {len(known_at)} rows and X has {len(start)}",
            field="known_at",
            fix="give one a row",
        )
    known = np.full(len(start), np.nan) if known_at is None else _seconds(known_at)
    start = np.where(np.isnan(start), known - hours * 3600.0, start)
    # no instant at all: rows in their order, after all that is known so far
    after = (clock if np.isfinite(clock) else 0.0) + 1.0 + np.arange(len(start), dtype=float)
    bare = np.isnan(start)
    known = np.where(np.isnan(known), np.where(bare, after, start + hours * 3600.0), known)
    return np.where(bare, after, start), known
