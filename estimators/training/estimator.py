"""The training predictor: physics prior, learned residual, site adaptation, conformal bands."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import pandas as pd

from tidegrid.errors import InputError
from tidegrid.estimators.base import LEVELS, Estimator, as_levels, quantile_frame
from tidegrid.estimators.training import calibration as calibrations
from tidegrid.estimators.training import features, intervals, memory, physics, residual
from tidegrid.estimators.training.calibration import Calibration
from tidegrid.estimators.training.explain import Explanation, card, card_markdown, explained
from tidegrid.estimators.training.features import Runs
from tidegrid.estimators.training.offsets import Keys, SiteModel, fit_site, keep_latest
from tidegrid.estimators.training.residual import Residual
from tidegrid.models import Bundle

STARTUP_S = 90.0
"""Seconds before the first step of a job: container, libraries, data, process groups."""

LOAD_BYTES_S = 2e9
"""Bytes a second at which a node reads a model's weights from shared storage."""

OVERHEAD = 1.15
"""Whole run over pure training once it runs: evaluation, checkpoints, stalls (published runs: 1.2 to 1.5 with start-up)."""

RECENT = 1000
"""Scaled residuals kept for recalibration, the latest ones."""

CHUNK = 8192
"""Rows predicted at a time, so that memory does not grow with the batch."""


class TrainingEstimator(Estimator):
    """Hours of a training run from its 22 features.

    Without history it answers from the physics prior with the shipped calibration; ``fit`` adds what a site's own jobs
    say, ``update`` adds outcomes as they arrive without fitting anew.

    Parameters
    ----------
    calibration
        A calibration as plain data (``Calibration.to_dict``); None for the one that comes with the product.
    whole_run
        Whether hours are of the whole job, start-up, evaluation and checkpoints included; False for pure training
        time, as benchmarks publish it.
    learn_residual
        Whether a learned residual is fitted where there is history enough.
    seed
        Seed of the learned residual's bagging.

    Attributes
    ----------
    site_ : SiteModel
        The site's offsets (after ``fit``).
    residual_ : Residual or None
        The learned residual.
    recent_ : ndarray of shape (recent,)
        Scaled residuals of rows that their prediction had not seen.
    rows_ : int
        Finished rows learnt from.
    censored_ : int
        Lower bounds seen.
    calibration_ : Calibration
        The calibration that a loaded version was saved with.
    """

    name = "training"
    kind = "training"
    target = "duration_h"
    features = features.FEATURES + features.SITE
    predicts_unfitted = True

    def __init__(
        self,
        calibration: Mapping[str, Any] | None = None,
        whole_run: bool = True,
        learn_residual: bool = True,
        seed: int = 0,
    ) -> None:
        self.calibration = calibration
        self.whole_run = whole_run
        self.learn_residual = learn_residual
        self.seed = seed

    # ---------------------------------------------------------------- learning

    def fit(
        self,
        X: pd.DataFrame,
        y: pd.Series,
        *,
        observed: pd.Series | None = None,
        known_at: pd.Series | None = None,
    ) -> Self:
        """Learn from a site's history; see :meth:`tidegrid.estimators.base.Estimator.fit`.

        Lower bounds (``observed`` False) are never taken as durations: one that the prediction already exceeds says
        nothing, one above it pulls the estimate up, to where the run would be expected to end given that it got there.
        """
        C = features.checked(X)
        hours, seen = _checked_target(X, y, observed)
        order = _order(X, known_at)
        cal = self._cal()
        runs = features.derive(C)
        terms = physics.terms(runs, cal.constants)
        x, keys = residual.scaled(runs, terms), _keys(C)
        z = np.log(np.maximum(hours, 1e-6)) - self._log_hours(runs, terms)
        self.residual_: Residual | None = None
        done = np.flatnonzero(seen)
        # pinball losses and bands must not hang on how long jobs were: only rows with work are told by their ratio
        left = np.zeros(len(z))
        if self.learn_residual and len(done) >= residual.ENOUGH:
            fold = _folds(len(done))
            self.residual_, left[done] = residual.fit_residual(
                x[done], z[done], keys.stack[done], fold, int(self.seed)
            )
        rest = z - left
        kept = done[keep_latest(keys[done], order[done])]
        self.site_ = fit_site(x[kept], keys[kept], rest[kept], np.ones(len(kept)))
        self._take_bounds(x, keys, z, np.flatnonzero(~seen), order)
        self._calibrate_bands(x, keys, rest, done, kept, order)
        self.rows_, self.censored_ = len(done), int((~seen).sum())
        return self

    def _take_bounds(
        self, x: np.ndarray, keys: Keys, z: np.ndarray, rows: np.ndarray, order: np.ndarray
    ) -> None:
        """Add the lower bounds that say something, as what is expected given that the run got there."""
        from scipy.stats import norm

        if len(rows) == 0:
            return
        latest = rows[np.argsort(-order[rows], kind="stable")[:96]]
        mean, variance = self.site_.predict(x[latest], keys[latest])
        learned = self.residual_.predict(x[latest], keys.stack[latest]) if self.residual_ is not None else 0.0
        spread = np.sqrt(variance + self.site_.noise**2)
        beyond = (z[latest] - mean - learned) / spread
        telling = beyond > 0
        if not telling.any():
            return
        b = np.minimum(beyond[telling], 6.0)
        expected = norm.pdf(b) / norm.sf(b)  # inverse Mills ratio: the mean of a normal above b
        value = mean[telling] + np.maximum(expected, beyond[telling]) * spread[telling]
        site, at = self.site_, latest[telling]
        self.site_ = SiteModel(
            np.concatenate([site.x, x[at]]),
            site.keys.joined(keys[at]),
            np.concatenate([site.z, value]),
            # a bound says less than a duration: twice the spread of the prediction itself
            np.concatenate([site.extra, np.full(len(at), max(1.0, 2.0 * float(spread.mean()) / site.noise))]),
            site.noise,
            site.means,
        )

    def _calibrate_bands(
        self,
        x: np.ndarray,
        keys: Keys,
        rest: np.ndarray,
        done: np.ndarray,
        kept: np.ndarray,
        order: np.ndarray,
    ) -> None:
        """Set the pool of scaled residuals, and the means of keys beyond the memory."""
        loo, variance = self.site_.leave_one_out()
        pool, when = loo[: len(kept)] / np.sqrt(variance[: len(kept)] + self.site_.noise**2), order[kept]
        outside = np.setdiff1d(done, kept)
        if len(outside):
            at = outside[np.argsort(-order[outside], kind="stable")[:50_000]]
            for start in range(0, len(at), CHUNK):
                part = at[start : start + CHUNK]
                rest[part] = rest[part] - self.site_.mean(x[part], keys[part])
            means: dict[str, tuple[float, float]] = {}
            remaining = np.clip(rest[at], -2.0, 2.0)
            for level in ("stack", "user", "name"):
                uniques, codes = np.unique(getattr(keys, level)[at], return_inverse=True)
                counts = np.bincount(codes)
                sums = np.bincount(codes, weights=remaining)
                # a key's mean is worth keeping from a few rows on; each level explains what the one above left
                means.update(
                    {f"{level}|{u}": (float(n), float(s)) for u, n, s in zip(uniques, counts, sums, strict=True)
                     if u != "" and n >= 3}
                )  # fmt: skip
                remaining = remaining - (sums / (counts + 4.0))[codes]
            self.site_.means = means
            recent = at[:RECENT]
            mean, spread = self.site_.predict(x[recent], keys[recent])
            again = (remaining[:RECENT]) / np.sqrt(spread + self.site_.noise**2)
            pool, when = np.concatenate([pool, again]), np.concatenate([when, order[recent]])
            del mean
        latest = np.argsort(when, kind="stable")[-RECENT:]
        self.recent_ = pool[latest]

    def update(
        self,
        X: pd.DataFrame,
        y: pd.Series,
        *,
        observed: pd.Series | None = None,
        known_at: pd.Series | None = None,
    ) -> Self:
        """Learn outcomes as they arrive: offsets and bands move, the learned residual stays.

        Parameters are those of :meth:`fit`; the rows are later than all that were learnt before.
        """
        C = features.checked(X)
        hours, seen = _checked_target(X, y, observed)
        order = _order(X, known_at)
        rows = np.argsort(order, kind="stable")
        if len(rows) == 0:
            return self
        if not hasattr(self, "site_"):
            return self.fit(X, y, observed=observed, known_at=known_at)
        runs = features.derive(C)
        terms = physics.terms(runs, self._cal().constants)
        x, keys = residual.scaled(runs, terms), _keys(C)
        z = np.log(np.maximum(hours, 1e-6)) - self._log_hours(runs, terms)
        rest = z - (self.residual_.predict(x, keys.stack) if self.residual_ is not None else 0.0)
        done = rows[seen[rows]]
        mean, variance = self.site_.predict(x[done], keys[done])
        scaled = (rest[done] - mean) / np.sqrt(variance + self.site_.noise**2)
        self.recent_ = np.concatenate([self.recent_, scaled])[-RECENT:]
        site = self.site_
        joined = site.keys.joined(keys[done])
        every_x, every_z = np.concatenate([site.x, x[done]]), np.concatenate([site.z, rest[done]])
        extra = np.concatenate([site.extra, np.maximum(1.0, np.abs(scaled) / 3.0)])
        kept = keep_latest(joined, np.arange(len(joined)))
        means = site.means
        if len(site.z) < 64 or len(done) >= 0.2 * len(site.z):
            self.site_ = fit_site(every_x[kept], joined[kept], every_z[kept], extra[kept])
            self.site_.means = means
        else:
            self.site_ = SiteModel(every_x[kept], joined[kept], every_z[kept], extra[kept], site.noise, means)
        self._take_bounds(x, keys, rest, rows[~seen[rows]], order)
        self.rows_ += len(done)
        self.censored_ += int((~seen).sum())
        return self

    # -------------------------------------------------------------- predicting

    def predict_quantiles(self, X: pd.DataFrame, levels: Sequence[float] = LEVELS) -> pd.DataFrame:
        """Predict quantiles of the hours; see :meth:`tidegrid.estimators.base.Estimator.predict_quantiles`."""
        wanted = as_levels(levels)
        C = features.checked(X)
        parts = [self._quantiles(C.iloc[i : i + CHUNK], wanted) for i in range(0, len(C), CHUNK)]
        values = np.concatenate(parts) if parts else np.empty((0, len(wanted)))
        return quantile_frame(values, wanted, X.index)

    def _quantiles(self, C: pd.DataFrame, levels: Sequence[float]) -> np.ndarray:
        """Return quantiles that never grow when only the GPUs within a node double.

        Each row is predicted on its GPUs and on every halving of them down to an odd count, within a node; the
        shortest counts: a block can leave half of itself idle.
        """
        base = features.derive(C)
        centre, low_high = self._centre(C, base, spread=True)
        best = centre
        halves, alive = base.gpus.copy(), base.gpus <= base.node
        while True:
            alive = alive & (halves % 2 == 0) & (halves >= 2)
            if not alive.any():
                break
            halves = np.where(alive, halves / 2, halves)
            rows = np.flatnonzero(alive)
            part = features.derive(C.iloc[rows], halves[rows])
            best[rows] = np.minimum(best[rows], self._centre(C.iloc[rows], part, spread=False)[0])
        scaled, scale = low_high
        return np.asarray(np.exp(np.clip(best[:, None] + scaled(levels) * scale[:, None], -18.0, 18.0)))

    def _centre(self, C: pd.DataFrame, runs: Runs, *, spread: bool) -> tuple[np.ndarray, Any]:
        cal = self._cal()
        terms = physics.terms(runs, cal.constants)
        log_hours = self._log_hours(runs, terms)
        x, keys = residual.scaled(runs, terms), _keys(C)
        site: SiteModel | None = getattr(self, "site_", None)
        if site is None:
            return log_hours, (lambda levels: intervals.prior_quantiles(runs, cal.bands, levels),
                               intervals.prior_scale(runs, cal.scale))  # fmt: skip
        if self.residual_ is not None:
            log_hours = log_hours + self.residual_.predict(x, keys.stack)
        if not spread:
            return log_hours + site.mean(x, keys), None
        mean, variance = site.predict(x, keys)
        return log_hours + mean, self._band(runs, keys, variance)

    def _band(self, runs: Runs, keys: Keys, variance: np.ndarray) -> tuple[Any, np.ndarray]:
        """Return the scaled quantiles as a function of levels, and the scale.

        Where history knows nothing of a row (its variance is still the prior's), the band is the prior's; where it
        knows all, the history's; between, in that measure.
        """
        cal = self._cal()
        unknown = np.clip(variance / SiteModel.prior_variance(keys), 0.0, 1.0)
        prior_scale = intervals.prior_scale(runs, cal.scale)
        own = np.sqrt(variance + self.site_.noise**2)
        pool = intervals.Pool(self.recent_)
        scale = np.sqrt(unknown * prior_scale**2 + (1.0 - unknown) * own**2)

        def scaled(levels: Sequence[float]) -> np.ndarray:
            prior = intervals.prior_quantiles(runs, cal.bands, levels)
            site = pool.quantiles(levels)[None, :]
            return np.asarray(unknown[:, None] * prior + (1.0 - unknown[:, None]) * site)

        return scaled, scale

    def basis(self, X: pd.DataFrame) -> pd.Series:
        """Say which rung answers.

        ``site history`` where finished jobs of the same stack are near; ``calibrated prior`` where the site's other
        jobs correct the prior; ``prior`` without history. Detail follows after a colon.
        """
        C = features.checked(X)
        runs = features.derive(C)
        detail = np.where(runs.known_gpu, "data sheet", "GPU type without a data sheet, taken for an A100")
        if not hasattr(self, "site_") or not len(self.site_.z):
            return pd.Series(
                [f"prior: physics, {d}" for d in detail], index=X.index, dtype=object, name="basis"
            )
        terms = physics.terms(runs, self._cal().constants)
        x, keys = residual.scaled(runs, terms), _keys(C)
        out = []
        near = np.concatenate([self.site_.similar(x[i : i + CHUNK], keys[np.arange(i, min(i + CHUNK, len(x)))])
                               for i in range(0, len(x), CHUNK)] or [np.zeros(0)])  # fmt: skip
        sure = "" if intervals.Pool(self.recent_).calibrated((0.1, 0.9)) else ", band not calibrated yet"
        for n, d in zip(near, detail, strict=True):
            if n > 0:
                out.append(f"site history: {int(n)} similar finished runs{sure}")
            else:
                out.append(f"calibrated prior: {self.rows_} finished runs of the site, none similar; {d}")
        return pd.Series(out, index=X.index, dtype=object, name="basis")

    def feasible(self, X: pd.DataFrame) -> pd.DataFrame:
        """Say whether each run fits its GPUs' memory, and why not; see ``memory.py``."""
        runs = features.derive(features.checked(X))
        ok, reasons = memory.feasible(runs)
        return pd.DataFrame({"feasible": ok, "reason": reasons}, index=X.index)

    def explain(self, X: pd.DataFrame, levels: Sequence[float] = LEVELS) -> list[Explanation]:
        """Explain each row's prediction in words and numbers."""
        return explained(self, X, as_levels(levels))

    def model_card(self) -> dict[str, Any]:
        """Return what this version is, learnt from and rests on, as plain data."""
        return card(self)

    def model_card_markdown(self) -> str:
        """Return the model card as Markdown."""
        return card_markdown(self)

    def constants(self) -> Mapping[str, float]:
        """Return the physics constants in use."""
        return self._cal().constants

    def calibration_in_use(self) -> Calibration:
        """Return the calibration in use."""
        return self._cal()

    def prior_log_hours(self, runs: Runs, terms: physics.Terms) -> np.ndarray:
        """Return the log hours of the prior alone, shape (rows,)."""
        return self._log_hours(runs, terms)

    def similar(self, C: pd.DataFrame, runs: Runs, terms: physics.Terms) -> np.ndarray:
        """Return how many finished runs of the same stack are like each row."""
        if not hasattr(self, "site_"):
            return np.zeros(len(C))
        return self.site_.similar(residual.scaled(runs, terms), _keys(C))

    # ------------------------------------------------------------------- state

    def _cal(self) -> Calibration:
        loaded: Calibration | None = getattr(self, "calibration_", None)
        if loaded is not None:
            return loaded
        return calibrations.shipped() if self.calibration is None else Calibration.from_dict(self.calibration)

    def _log_hours(self, runs: Runs, terms: physics.Terms) -> np.ndarray:
        seconds = terms.seconds
        if self.whole_run:
            weights = 2.0 * runs.params / np.maximum(1.0, runs.gpus / runs.node)
            seconds = OVERHEAD * seconds + STARTUP_S + weights / LOAD_BYTES_S
        return np.asarray(np.log(np.maximum(seconds, 1e-3) / 3600.0))

    def to_bundle(self) -> Bundle:
        """Return parameters and learnt state as plain data."""
        params = self.get_params(deep=False)
        state: dict[str, Any] = {"calibration": self._cal().to_dict()}
        arrays: dict[str, np.ndarray] = {}
        texts: dict[str, str] = {}
        if hasattr(self, "site_"):
            state["site"], arrays = self.site_.to_state()
            state["rows"], state["censored"] = self.rows_, self.censored_
            arrays["recent"] = self.recent_
            if self.residual_ is not None:
                texts["residual"] = self.residual_.text
                arrays["landmarks"], arrays["stacks"] = (
                    self.residual_.landmarks,
                    self.residual_.stacks.astype(str),
                )
        return Bundle(self.name, params, state, arrays, texts)

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> Self:
        """Rebuild the estimator; it predicts the same to the bit, whatever calibration comes with the product."""
        out = cls(**bundle.params)
        out.calibration_ = Calibration.from_dict(bundle.state["calibration"])
        if "site" in bundle.state:
            out.site_ = SiteModel.from_state(bundle.state["site"], bundle.arrays)
            out.rows_, out.censored_ = int(bundle.state["rows"]), int(bundle.state["censored"])
            out.recent_ = bundle.arrays["recent"]
            out.residual_ = None
            if "residual" in bundle.texts:
                out.residual_ = Residual(
                    bundle.texts["residual"], bundle.arrays["landmarks"], bundle.arrays["stacks"].astype(str)
                )
        return out


def _keys(C: pd.DataFrame) -> Keys:
    def text(column: str) -> np.ndarray:
        return C[column].to_numpy(dtype=object).astype(str)

    stack = text("group")
    codes, uniques = pd.factorize(C["name"].to_numpy(dtype=object))
    # "sft-2026-03-02" and "sft-2026-03-09" are one recurring job: numbers in a name tell its runs apart
    names = np.array([re.sub(r"\d+", "#", str(u)) for u in uniques] or [""])
    return Keys(stack, text("user"), names[codes].astype(str))


def _checked_target(
    X: pd.DataFrame, y: pd.Series, observed: pd.Series | None
) -> tuple[np.ndarray, np.ndarray]:
    if len(y) != len(X):
        raise InputError(
            f"has {len(y)} values for {len(X)} rows", field="y", fix="give one duration a row of X"
        )
    hours = pd.to_numeric(pd.Series(np.asarray(y)), errors="coerce").to_numpy(dtype=float)
    bad = ~np.isfinite(hours) | (hours < 0)
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        raise InputError(f"{hours[at]} cannot be used", row=at + 2, field="y", fix="give hours, 0 or more")
    if observed is not None and len(observed) != len(X):
        raise InputError(
            f"has {len(observed)} values for {len(X)} rows", field="observed", fix="give one a row"
        )
    seen = np.ones(len(X), dtype=bool) if observed is None else np.asarray(observed, dtype=bool)
    return hours, seen


def _order(X: pd.DataFrame, known_at: pd.Series | None) -> np.ndarray:
    if known_at is None:
        return np.arange(len(X))
    if len(known_at) != len(X):
        raise InputError(
            f"has {len(known_at)} values for {len(X)} rows", field="known_at", fix="give one a row"
        )
    instants = pd.to_datetime(pd.Series(np.asarray(known_at)), utc=True)
    return instants.rank(method="first").fillna(0).to_numpy(dtype=float)


def _folds(rows: int, folds: int = 5) -> np.ndarray:
    # a fixed scramble: neighbours in a table are alike, and must not sit on both sides
    return (np.arange(rows) * 7919 % 104729) % folds
