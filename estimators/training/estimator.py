"""The training predictor: physics prior, site adaptation, bands by source."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import pandas as pd

from tidegrid.errors import InputError
from tidegrid.estimators.base import (
    LEVELS,
    Estimator,
    as_levels,
    checked_durations,
    quantile_frame,
    row_by_row,
)
from tidegrid.estimators.conditional import GRID, remaining_quantiles
from tidegrid.estimators.training import calibration as calibrations
from tidegrid.estimators.training import features, intervals, memory, offsets, physics
from tidegrid.estimators.training.calibration import Calibration
from tidegrid.estimators.training.explain import Explanation, card, card_markdown, explained
from tidegrid.estimators.training.features import Table
from tidegrid.estimators.training.history import CHUNK, History, Rows, View, learn, learn_more
from tidegrid.estimators.training.offsets import Keys
from tidegrid.models import Bundle

BATCH = 3072
"""Requests predicted at a time; each is up to four rows, one a GPU count, so that memory stays small."""


class TrainingEstimator(Estimator):
    """Hours of a training run from its 22 features.

    Without history it answers from the physics prior with the shipped calibration; ``fit`` adds what a site's own jobs
    say, ``update`` adds outcomes as they arrive without fitting anew.

    Parameters
    ----------
    calibration
        A calibration as plain data (``Calibration.to_dict``); None for the one that comes with the product.

    Attributes
    ----------
    history_ : History
        What a site's history taught (after ``fit``).
    calibration_ : Calibration
        The calibration that a loaded version was saved with.
    """

    name = "training"
    kind = "training"
    target = "duration_h"
    features = features.FEATURES + features.OPTIONAL + features.SITE
    predicts_unfitted = True

    def __init__(self, calibration: Mapping[str, Any] | None = None) -> None:
        self.calibration = calibration

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
        hours, seen = checked_durations(X, y, observed)
        order = _order(X, known_at)
        rows, terms = self._prepared(C)
        z = np.log(np.maximum(hours, 1e-6)) - _log_hours(terms)
        self.history_ = learn(rows, z, seen, order, self._cal().scale)
        return self

    def update(
        self,
        X: pd.DataFrame,
        y: pd.Series,
        *,
        observed: pd.Series | None = None,
        known_at: pd.Series | None = None,
    ) -> Self:
        """Learn outcomes as they arrive: offsets and bands move.

        Parameters are those of :meth:`fit`; the rows are later than all that were learnt before.
        """
        if not hasattr(self, "history_"):
            return self.fit(X, y, observed=observed, known_at=known_at)
        C = features.checked(X)
        hours, seen = checked_durations(X, y, observed)
        if len(C):
            rows, terms = self._prepared(C)
            z = np.log(np.maximum(hours, 1e-6)) - _log_hours(terms)
            self.history_ = learn_more(self.history_, rows, z, seen, _order(X, known_at), self._cal().scale)
        return self

    # -------------------------------------------------------------- predicting

    def predict_quantiles(self, X: pd.DataFrame, levels: Sequence[float] = LEVELS) -> pd.DataFrame:
        """Predict quantiles of the hours; see :meth:`tidegrid.estimators.base.Estimator.predict_quantiles`."""
        wanted = as_levels(levels)
        C = features.checked(X)
        parts = [
            self._quantiles(C.take(np.arange(i, min(i + BATCH, len(C)))), wanted)
            for i in range(0, len(C), BATCH)
        ]
        values = np.concatenate(parts) if parts else np.empty((0, len(wanted)))
        return quantile_frame(values, wanted, X.index)

    def _quantiles(self, C: Table, levels: Sequence[float]) -> np.ndarray:
        """Return quantiles none of which grows when only the GPUs within a node double.

        Each row is predicted on its GPUs and on every halving of them down to an odd count, within a node; at each
        level the shortest counts: a block can leave half of itself idle.
        """
        count, gpus = len(C), C["gpus"]
        node = features.node_sizes(C)
        inside = np.flatnonzero((gpus <= node) & (gpus % 2 == 0))
        owners, counts = [np.arange(count), inside], [gpus, gpus[inside] / 2]
        while len(owners[-1]):
            again = counts[-1] % 2 == 0
            owners.append(owners[-1][again])
            counts.append(counts[-1][again] / 2)
        owner = np.concatenate(owners)
        rows, terms = self._prepared(C.take(owner), np.concatenate(counts))
        history: History | None = getattr(self, "history_", None)
        view = None if history is None else history.view(rows)
        centre = _log_hours(terms) + (0.0 if view is None else view.correction())
        every = centre[:, None] + self._band(rows, view, levels)
        out = every[:count].copy()
        np.minimum.at(out, owner[count:], every[count:])
        return np.asarray(np.exp(np.clip(out, -18.0, 18.0)))

    def _band(self, rows: Rows, view: View | None, levels: Sequence[float]) -> np.ndarray:
        """Return offsets from the log median, shape (rows, levels).

        Where history knows nothing of a row (its variance is still the prior's), the band is the prior's; where it
        knows all, the history's; between, in that measure.
        """
        cal = self._cal()
        prior = intervals.standard_quantiles(levels)[None, :]
        if view is None:
            return np.asarray(prior * intervals.prior_scale(rows.runs, cal.scale)[:, None])
        unknown, scale = view.scale(cal.scale)
        site = view.history.pool().by_stack(rows.keys.stack, levels)
        share = unknown[:, None]
        return np.asarray((share * prior + (1.0 - share) * site) * scale[:, None])

    def basis(self, X: pd.DataFrame) -> pd.Series:
        """Say which rung answers.

        ``site history`` where finished jobs of the same stack are near; ``calibrated prior`` where the site's other
        jobs correct the prior; ``prior`` without history. Detail follows after a colon.
        """
        C = features.checked(X)
        rows, _ = self._prepared(C)
        sources = len(self._cal().sources)
        detail = np.where(
            rows.runs.known_gpu,
            f"data sheet, band of a site never seen ({sources} calibrated sources)",
            "GPU type without a data sheet, taken for an A100, band widened",
        )
        history: History | None = getattr(self, "history_", None)
        if history is None or history.finished == 0:
            return pd.Series(
                [f"prior: physics, {d}" for d in detail], index=X.index, dtype=object, name="basis"
            )
        pool = history.pool()
        sure = "" if pool.calibrated((0.1, 0.9)) else ", band not calibrated yet"
        out = [
            f"site history: {n:.0f} similar finished runs{sure}"
            if n > 0
            else f"calibrated prior: {history.finished} finished runs of the site, none similar; {d}"
            for n, d in zip(self._similar(rows), detail, strict=True)
        ]
        return pd.Series(out, index=X.index, dtype=object, name="basis")

    def _similar(self, rows: Rows) -> np.ndarray:
        """Return how many finished runs of the same stack are like each row."""
        history: History | None = getattr(self, "history_", None)
        if history is None or len(rows) == 0:
            return np.zeros(len(rows))
        starts = range(0, len(rows), CHUNK)
        parts = [rows[np.arange(i, min(i + CHUNK, len(rows)))] for i in starts]
        return np.concatenate([history.site.view(part.x, part.keys).similar() for part in parts])

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

    def remaining_quantiles(
        self, X: pd.DataFrame, elapsed_h: pd.Series, levels: Sequence[float] = LEVELS
    ) -> pd.DataFrame:
        """Predict quantiles of the hours that running jobs still need, given that they have run so long.

        Parameters
        ----------
        X
            The running jobs.
        elapsed_h
            Hours that each has run, on the index of ``X``.
        levels
            The levels.
        """
        wanted = as_levels(levels)
        if len(elapsed_h) != len(X):
            raise InputError(
                f"has {len(elapsed_h)} values for {len(X)} rows", field="elapsed_h", fix="give one a row"
            )
        elapsed = pd.to_numeric(pd.Series(np.asarray(elapsed_h)), errors="coerce").to_numpy(dtype=float)
        if not (np.isfinite(elapsed) & (elapsed >= 0)).all():
            at = int(np.flatnonzero(~(np.isfinite(elapsed) & (elapsed >= 0)))[0])
            raise InputError(
                f"{elapsed[at]} cannot be used", row=at + 2, field="elapsed_h", fix="give hours, 0 or more"
            )
        whole = self.predict_quantiles(X, tuple(GRID)).to_numpy()
        return quantile_frame(remaining_quantiles(whole, list(GRID), elapsed, wanted), wanted, X.index)

    # ------------------------------------------------------------------- state

    def _cal(self) -> Calibration:
        loaded: Calibration | None = getattr(self, "calibration_", None)
        if loaded is not None:
            return loaded
        return calibrations.shipped() if self.calibration is None else Calibration.from_dict(self.calibration)

    def _prepared(self, C: Table, gpu_count: np.ndarray | None = None) -> tuple[Rows, physics.Terms]:
        runs = features.derive(C, gpu_count)
        terms = physics.terms(runs, self._cal().constants)
        return Rows(runs, offsets.scaled(runs, terms), _keys(C)), terms

    def to_bundle(self) -> Bundle:
        """Return parameters and learnt state as plain data."""
        state: dict[str, Any] = {"calibration": self._cal().to_dict()}
        arrays: dict[str, np.ndarray] = {}
        if hasattr(self, "history_"):
            state["history"], arrays = self.history_.to_state()
        return Bundle(self.name, self.get_params(deep=False), state, arrays)

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> Self:
        """Rebuild the estimator; it predicts the same to the bit, whatever calibration comes with the product."""
        if set(bundle.params) - {"calibration"}:
            raise InputError(
                "was saved by an earlier version of this estimator, whose physics differ", field="params",
                fix="train it again",
            )  # fmt: skip
        out = cls(**bundle.params)
        out.calibration_ = Calibration.from_dict(bundle.state["calibration"])
        if "history" in bundle.state:
            out.history_ = History.from_state(bundle.state["history"], bundle.arrays)
        return out


def _log_hours(terms: physics.Terms) -> np.ndarray:
    return np.asarray(np.log(np.maximum(terms.seconds, 1e-3) / 3600.0))


def _keys(C: Table) -> Keys:
    def text(column: str) -> np.ndarray:
        return C[column].astype(str)

    # "sft-2026-03-02" and "sft-2026-03-09" are one recurring job: numbers in a name tell its runs apart
    names = C["name"].tolist()
    habit = {name: re.sub(r"\d+", "#", name) for name in dict.fromkeys(names)}
    return Keys(text("group"), text("user"), np.array([habit[name] for name in names], dtype=str))


def _order(X: pd.DataFrame, known_at: pd.Series | None) -> np.ndarray:
    if known_at is None:
        return np.arange(len(X))
    instants = pd.to_datetime(row_by_row(known_at, X, "known_at"), utc=True)
    return instants.rank(method="first").fillna(0).to_numpy(dtype=float)
