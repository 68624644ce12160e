"""How long a quantization run takes, with the margin that a wanted coverage asks for."""

from collections.abc import Sequence
from typing import ClassVar, Self

import numpy as np
import pandas as pd

from tidegrid.estimators.base import (
    LEVELS,
    Estimator,
    Feature,
    as_levels,
    checked_durations,
    checked_features,
    quantile_frame,
)
from tidegrid.estimators.effects import Effects, student
from tidegrid.estimators.gpus import find as find_gpu
from tidegrid.estimators.quantization.algorithms import COMMON, find
from tidegrid.estimators.quantization.timing import (
    IN_WORDS,
    MOE_SD,
    TERMS,
    is_mixture,
    needed_gib,
    prior_minutes,
    prior_terms,
)
from tidegrid.models import Bundle

SITE_ROWS = 5
"""Runs of a site's own from which the basis says ``site history``; below it is a calibrated prior."""

USABLE = 0.92
"""The share of a GPU's memory that a run can use: the rest is the driver's, the context's and fragmentation."""

SMALL_GPU_HOURS = 0.25
"""Margined GPU-hours below which a run is not worth a GPU-hour of its own."""

STRETCH = (0.8, 2.0)
"""How far sources left out may narrow or widen the shipped spreads: they are few, and kinder than users' reports."""

MOST_LOG_HOURS = 700.0
"""Where the log of an answer is cut, so that it stays a finite number whatever the size asked for."""

FAMILIES = ("common", "rare")
"""What is calibrated together: the algorithms that many have timed, and the others that have constants."""

MOST_LEFT_OUT = 100
"""Sources left out at most, evenly from their names in order: each costs a fit."""

CALIBRATED = 0.9
"""The level at which sources left out calibrate the spread of a site that nobody has seen."""


class QuantizationEstimator(Estimator):
    """Hours of a quantization run from the model's size, the algorithm, its calibration set and the GPUs.

    What the algorithm does with a model of that size, over what the GPU attains, gives the median, without a cliff from
    one size to the next; a site's own runs move it, the more the more there are. The safety margin is the quantile that
    the wanted coverage asks for: wide for a site that nobody has seen, narrower as its history grows.

    Parameters
    ----------
    coverage
        The share of runs that :meth:`estimate` is to cover.
    """

    name: ClassVar[str] = "quantization"
    kind: ClassVar[str] = "quantization"
    predicts_unfitted: ClassVar[bool] = True
    features: ClassVar[tuple[Feature, ...]] = (
        Feature("algorithm", "text", default="other", doc="bitsandbytes, awq, gptq or another"),
        Feature("bits", "float", "bits", low=1, high=16, default=4, doc="bits of a weight"),
        Feature(
            "group_size", "float", "weights", low=-1, doc="weights that share a scale; -1 for a whole channel"
        ),
        Feature(
            "model_params_b", "float", "billion parameters", low=0.001, required=True, doc="the model's size"
        ),
        Feature(
            "active_params_b",
            "float",
            "billion parameters",
            low=0,
            doc="parameters that a token passes through",
        ),
        Feature("num_experts", "float", "experts", low=0, doc="experts of a layer; 0 or 1 for a dense model"),
        Feature("gpu_type", "text", doc="the GPU's name, however it is spelled"),
        Feature("gpus", "float", "GPUs", low=1, default=1, doc="GPUs that the run gets"),
        Feature(
            "calib_samples",
            "float",
            "samples",
            low=0,
            doc="calibration samples; the tool's default where absent",
        ),
        Feature("calib_seqlen", "float", "tokens", low=0, doc="length of a calibration sample"),
        Feature("source", "text", doc="the site that a timing is from; empty for this one"),
    )

    def __init__(self, coverage: float = 0.9) -> None:
        self.coverage = coverage

    def fit(
        self,
        X: pd.DataFrame,
        y: pd.Series,
        *,
        observed: pd.Series | None = None,
        known_at: pd.Series | None = None,
    ) -> Self:
        """Learn how far this site's runs (or those of each ``source``) lie from the published medians.

        Raises
        ------
        InputError
            A duration is not above 0 and finite, or a feature cannot be used; the row is named.
        """
        checked = checked_features(X, self.features)
        hours, seen = checked_durations(X, y, observed)
        effects, stretch = Effects(), {}
        if len(X):
            minutes, extra = prior_minutes(checked)
            groups, between, within = self._groups(checked)
            residual = np.log(np.maximum(hours * 60.0, 1.0 / 60.0) / minutes)
            sites, own = checked["source"].to_numpy(), self._row_variance(checked, extra)
            effects.learn(groups, sites, residual, seen, between, within)
            for family in FAMILIES:
                at = (_family(checked) == family) & (sites != "")
                z = _left_out(groups[at], sites[at], residual[at], seen[at], between[at], within[at], own[at])
                use = seen[at] & np.isfinite(z)
                stretch[family] = _stretch(z[use], sites[at][use])
        self.effects_, self.stretch_ = effects, stretch
        return self

    def predict_quantiles(self, X: pd.DataFrame, levels: Sequence[float] = LEVELS) -> pd.DataFrame:
        """Predict quantiles of the hours of each run."""
        wanted = as_levels(levels)
        centre, sd, rows = self._log_hours(checked_features(X, self.features))
        log_hours = np.maximum(centre[:, None] + sd[:, None] * student(wanted, rows), -MOST_LOG_HOURS)
        return quantile_frame(np.exp(np.minimum(log_hours, MOST_LOG_HOURS)), wanted, X.index)

    def estimate(self, X: pd.DataFrame, coverage: float | None = None) -> pd.DataFrame:
        """Return the GPU-hours to book for each run: the margined estimate, rounded up to whole ones.

        Parameters
        ----------
        X
            Runs with their GPU counts.
        coverage
            The share of runs that is to fit; the estimator's own where absent.

        Returns
        -------
        pandas.DataFrame
            ``gpu_hours`` (whole), ``rounded_from`` (margined GPU-hours before rounding up), ``hours`` (margined
            wall-clock hours), ``median_hours``, ``margin`` (margined over median), ``note`` (empty, or that the run
            is not worth a GPU-hour of its own).
        """
        level = self.coverage if coverage is None else coverage
        quantiles = self.predict_quantiles(X, (0.5, level) if level != 0.5 else (0.5,))
        gpus = checked_features(X, self.features)["gpus"]
        exact = quantiles[level] * gpus
        small = exact < SMALL_GPU_HOURS
        note = [
            f"{60 * v:.2g} GPU-minutes: not worth a GPU-hour of its own" if s else ""
            for v, s in zip(exact, small, strict=True)
        ]
        return pd.DataFrame(
            {
                "gpu_hours": np.ceil(exact - 1e-9).clip(lower=1.0),
                "rounded_from": exact,
                "hours": quantiles[level],
                "median_hours": quantiles[0.5],
                "margin": quantiles[level] / quantiles[0.5],
                "note": note,
            },
            index=X.index,
        )

    def basis(self, X: pd.DataFrame) -> pd.Series:
        """Say for each row what answers: the site's own runs, published timings, or a guess for an unknown name."""
        checked = checked_features(X, self.features)
        _, _, rows = self._log_hours(checked)
        out = []
        for n, name in zip(rows, checked["algorithm"], strict=True):
            known = find(name)
            if n >= SITE_ROWS:
                out.append(f"site history: {n} runs of {known.name}")
            elif known.name == "other":
                out.append("prior: no timings of this algorithm" + (f", {n} own runs" if n else ""))
            else:
                out.append("calibrated prior: published timings" + (f", {n} own runs" if n else ""))
        return pd.Series(out, index=X.index, dtype=object)

    def feasible(self, X: pd.DataFrame) -> pd.DataFrame:
        """Say which rows fit into the memory of their GPUs."""
        checked = checked_features(X, self.features)
        need = needed_gib(checked)
        sheets = {name: find_gpu(name) for name in checked["gpu_type"].unique()}
        reasons = []
        for gib, name in zip(need, checked["gpu_type"], strict=True):
            gpu, known = sheets[name]
            short = known and gib > USABLE * gpu.memory_gib
            room = f"{gpu.memory_gib * USABLE:.0f} of {gpu.memory_gib:.0f} GiB usable"
            reasons.append(f"needs about {gib:.0f} GiB on each GPU, {gpu.name} has {room}" if short else "")
        return pd.DataFrame({"feasible": [not r for r in reasons], "reason": reasons}, index=X.index)

    def explain(self, X: pd.DataFrame) -> pd.DataFrame:
        """Return what each row's estimate is made of, and what its margin rests on.

        Returns
        -------
        pandas.DataFrame
            The seconds on one GPU of :data:`~tidegrid.estimators.quantization.timing.TERMS` (``load_s``, ``forward_s``,
            ``outer_s``, ``columns_s``, ``modules_s``, ``traffic_s``, ``rate_s``, ``start_s``), ``gpus_factor`` (what
            more GPUs leave of all but loading), ``history_factor`` (what the learnt runs multiply the median by),
            ``bound`` and ``band`` (words).
        """
        checked = checked_features(X, self.features)
        terms = prior_terms(checked)
        centre, sd, rows = self._log_hours(checked)
        minutes, _ = prior_minutes(checked)
        wide = np.exp(sd * student((self.coverage,), rows)[:, 0])
        return terms.assign(
            history_factor=np.exp(centre - np.log(minutes / 60.0)),
            bound=_bound(checked, terms),
            band=[
                f"{self.coverage:.0%} end within {w:.1f} times the median: {on}"
                for w, on in zip(wide, self.basis(X), strict=True)
            ],
        )

    def to_bundle(self) -> Bundle:
        """Return parameters and the learnt offsets as plain data."""
        fitted = hasattr(self, "effects_")
        state = {"groups": self.effects_.groups, "stretch": self.stretch_} if fitted else {}
        return Bundle(self.name, self.get_params(deep=False), state)

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> Self:
        """Rebuild the estimator from its bundle."""
        out = cls(**bundle.params)
        if "groups" in bundle.state:
            out.effects_ = Effects(dict(bundle.state["groups"]))
            out.stretch_ = dict(bundle.state.get("stretch", {}))
        return out

    def _groups(self, checked: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        mixture = is_mixture(checked)
        known = [find(name) for name in checked["algorithm"]]
        groups = np.array(
            [a.name + ("/moe" if m else "") for a, m in zip(known, mixture, strict=True)], dtype=object
        )
        between = np.array(
            [np.hypot(a.between, MOE_SD if m else 0.0) for a, m in zip(known, mixture, strict=True)]
        )
        return groups, between, np.array([a.within for a in known])

    def _log_hours(self, checked: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        minutes, extra = prior_minutes(checked)
        groups, between, within = self._groups(checked)
        effects = getattr(self, "effects_", Effects())
        answers = [
            effects.answer(g, s, b, w)
            for g, s, b, w in zip(groups, checked["source"], between, within, strict=True)
        ]
        offset = np.array([a[0] for a in answers], dtype=float)
        variance = np.array([a[1] for a in answers], dtype=float)
        rows = np.array([a[2] for a in answers], dtype=int)
        # what a request leaves unsaid is the same from run to run of a site
        sd = np.sqrt(variance + np.where(rows > 0, 0.0, self._row_variance(checked, extra)))
        # sources left out say how far a new one lies; a site with runs of its own has its own spread
        stretch = getattr(self, "stretch_", {})
        factor = np.array([stretch.get(family, 1.0) for family in _family(checked)])
        return np.log(minutes / 60.0) + offset, np.where(rows > 0, sd, sd * factor), rows

    def _row_variance(self, checked: pd.DataFrame, extra: np.ndarray) -> np.ndarray:
        # the mixture's own spread is part of the group's; what a row adds is its GPUs
        return np.maximum(extra**2 - np.where(is_mixture(checked), MOE_SD**2, 0.0), 0.0)


def _bound(checked: pd.DataFrame, terms: pd.DataFrame) -> list[str]:
    """Say for each row what takes most of its time."""
    largest = terms[list(TERMS)].idxmax(axis=1)
    many = is_mixture(checked) & largest.isin(["columns_s", "modules_s", "outer_s"])
    return [
        IN_WORDS[str(name)] + (", for each expert" if m else "")
        for name, m in zip(largest, many, strict=True)
    ]


def _family(checked: pd.DataFrame) -> np.ndarray:
    """Return what each row's spread is calibrated with: nothing for a name that nobody has timed."""
    known = [find(name).name for name in checked["algorithm"]]
    rare = ["unknown" if name == "other" else "rare" for name in known]
    return np.array(["common" if k in COMMON else r for k, r in zip(known, rare, strict=True)], dtype=object)


def _left_out(
    group: np.ndarray,
    site: np.ndarray,
    residual: np.ndarray,
    seen: np.ndarray,
    between: np.ndarray,
    within: np.ndarray,
    row: np.ndarray,
) -> np.ndarray:
    """Return how many standard deviations each run lies above what all other sites foretell; NaN if not left out."""
    z = np.full(len(residual), np.nan)
    names = sorted(set(site))
    for name in names[:: -(-len(names) // MOST_LEFT_OUT) or 1]:
        rest, effects = site != name, Effects()
        effects.learn(group[rest], site[rest], residual[rest], seen[rest], between[rest], within[rest])
        for i in np.flatnonzero(~rest):
            offset, variance, _ = effects.answer(group[i], name, between[i], within[i])
            z[i] = (residual[i] - offset) / np.sqrt(variance + row[i])
    return z


def _stretch(z: np.ndarray, site: np.ndarray) -> float:
    """Return the factor on the spread with which a share ``CALIBRATED`` of runs of a new site would be covered.

    Conformal prediction with whole sites left out, each site counting alike (Dunn, Wasserman and Ramdas 2022,
    pooling the sites' distributions): of n sites the level asked for is CALIBRATED (n + 1) / n. 1 where that is out
    of reach: with fewer than nine sites the shipped spread stands.
    """
    names, counts = np.unique(site, return_counts=True)
    if not len(names) or (level := CALIBRATED * (len(names) + 1) / len(names)) > 1.0:
        return 1.0
    weight = 1.0 / (len(names) * counts[np.searchsorted(names, site)])
    order = np.argsort(z, kind="stable")
    at = min(int(np.searchsorted(np.cumsum(weight[order]), level - 1e-9)), len(z) - 1)
    return float(np.clip(z[order][at] / student((CALIBRATED,), np.zeros(1))[0, 0], *STRETCH))
