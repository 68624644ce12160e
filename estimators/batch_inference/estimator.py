"""How long a batch-inference job takes: its tokens over the throughput of model, GPUs and precision."""

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
from tidegrid.estimators.batch_inference.throughput import DECODE_BOUNDS, Phases, phases
from tidegrid.estimators.effects import Effects, student
from tidegrid.estimators.gpus import Gpu
from tidegrid.estimators.gpus import find as find_gpu
from tidegrid.models import Bundle

SETUP_SD, RUN_SD = 0.35, 0.25
"""Log spread between set-ups (engine, version, settings) of a site and between runs of one set-up."""

SOURCE_SD, WITHIN_SD = 0.28, 0.28
"""Log spread between sites, and between the jobs of one site about its own centre: published timings show 0.25, and the
physics was chosen on them."""

FACTOR_SD = 0.3
"""How far each phase's throughput may lie from the data sheet's, in logs, before a site has shown its own."""

OTHERS = "other sites"
"""The group of effects that holds one site for each ``source``; a job of this site is of the group ``all``."""

LEAST_S = 1e-3
"""The shortest job: nothing to read and to write, on an engine that already runs."""

MOST_LOG = 300.0
"""Where the log of an answer in seconds is cut: a heavy tail stays a finite number at every level."""

UNKNOWN_GPU_SD = 0.7
"""What a GPU type without a data sheet adds to the log spread."""

SITE_ROWS = 3
"""Jobs of the same set-up from which the basis says ``site history``."""


class BatchInferenceEstimator(Estimator):
    """Hours of a batch-inference job: prompts read and answers written, each at its own throughput.

    The prior is a roofline from the GPU's data sheet, prefill and decode apart. A site's history first moves the two
    throughputs, then each set-up (model size, GPU type, precision) on its own.
    """

    name: ClassVar[str] = "batch_inference"
    kind: ClassVar[str] = "batch_inference"
    predicts_unfitted: ClassVar[bool] = True
    features: ClassVar[tuple[Feature, ...]] = (
        # the upper ends are far beyond any job, and keep every answer a finite number
        Feature(
            "model_params_b",
            "float",
            "billion parameters",
            low=0.001,
            high=1e6,
            required=True,
            doc="the model's size",
        ),
        Feature("model", "text", doc="the model's name, which tells the kind of its attention"),
        Feature(
            "active_params_b",
            "float",
            "billion parameters",
            low=0.001,
            high=1e6,
            doc="parameters that a token passes through",
        ),
        Feature(
            "precision",
            "text",
            default="bf16",
            doc="number format of the weights: bf16, fp16, fp8, int8, int4",
        ),
        Feature("gpu_type", "text", doc="the GPU's name, however it is spelled"),
        Feature("gpus", "float", "GPUs", low=1, high=1e6, default=1, doc="GPUs that the job gets"),
        Feature(
            "gpus_per_copy",
            "float",
            "GPUs",
            low=1,
            high=1e6,
            doc="GPUs that hold one copy of the model together (tensor parallel); absent: what is fastest",
        ),
        Feature(
            "gpus_per_node",
            "float",
            "GPUs",
            low=1,
            high=1e6,
            doc="GPUs of one node; absent: the GPU type's usual server",
        ),
        Feature(
            "cache_gib",
            "float",
            "GiB",
            low=0,
            high=1e6,
            doc="memory of each GPU that the engine keeps for keys and values; absent: all that weights leave free",
        ),
        Feature("prompts", "float", "prompts", low=1, high=1e15, required=True, doc="prompts of the job"),
        Feature(
            "input_tokens",
            "float",
            "tokens a prompt",
            low=0,
            high=1e12,
            default=512,
            doc="mean tokens of a prompt",
        ),
        Feature(
            "output_tokens",
            "float",
            "tokens a prompt",
            low=0,
            high=1e12,
            default=256,
            doc="mean tokens of an answer",
        ),
        Feature(
            "startup_s",
            "float",
            "seconds",
            low=0,
            high=1e6,
            doc="start-up; 0 for an engine that already runs, estimated where absent",
        ),
        Feature("source", "text", doc="the site that a timing is from; empty for this one"),
    )

    def fit(
        self,
        X: pd.DataFrame,
        y: pd.Series,
        *,
        observed: pd.Series | None = None,
        known_at: pd.Series | None = None,
    ) -> Self:
        """Learn the site's throughput of each phase, then each set-up's own offset.

        Raises
        ------
        InputError
            A duration is negative, missing or infinite, or a feature cannot be used; the row is named.
        """
        checked = checked_features(X, self.features)
        hours, seen = checked_durations(X, y, observed)
        self.factors_, self.effects_ = (0.0, 0.0), Effects()
        phase, log_s = phases(checked), np.log(np.maximum(hours * 3600.0, 1.0))
        sites = checked["source"].to_numpy()
        for own in (False, True):
            at = (sites == "") == own
            if not at.any():
                continue
            rows, group = phase.rows(at), OTHERS
            setup, between, within = sites[at], SOURCE_SD, WITHIN_SD
            if own:
                self.factors_ = _fit_factors(rows, log_s[at], seen[at])
                group, setup, between, within = "all", _setups(checked[at]), SETUP_SD, RUN_SD
            residual = log_s[at] - np.log(_seconds(rows, self.factors_))
            if not own:
                residual = _tamed(residual, setup)
            self.effects_.learn(
                np.full(len(setup), group, dtype=object),
                setup,
                residual,
                seen[at],
                np.full(len(setup), between),
                np.full(len(setup), within),
            )
        return self

    def predict_quantiles(self, X: pd.DataFrame, levels: Sequence[float] = LEVELS) -> pd.DataFrame:
        """Predict quantiles of the hours of each job."""
        wanted = as_levels(levels)
        centre, sd, rows = self._log_seconds(checked_features(X, self.features))
        logs = centre[:, None] + sd[:, None] * student(wanted, rows)
        values = np.exp(np.clip(logs, -MOST_LOG, MOST_LOG)) / 3600.0
        return quantile_frame(values, wanted, X.index)

    def explain(self, X: pd.DataFrame) -> pd.DataFrame:
        """Return the terms of each row's median, what bounds it, and what its band rests on.

        Returns
        -------
        pandas.DataFrame
            ``start_s``, ``prefill_s``, ``decode_s`` (seconds), ``input_tokens_per_s``, ``output_tokens_per_s``,
            ``bound`` and ``band`` (words).
        """
        checked = checked_features(X, self.features)
        phase = phases(checked)
        a, b = np.exp(getattr(self, "factors_", (0.0, 0.0)))
        prompts = checked["prompts"].to_numpy()
        with np.errstate(divide="ignore", invalid="ignore"):
            reading = prompts * checked["input_tokens"].to_numpy() / (a * phase.prefill)
            writing = prompts * checked["output_tokens"].to_numpy() / (b * phase.decode)
        return pd.DataFrame(
            {
                "start_s": phase.start,
                "prefill_s": a * phase.prefill,
                "decode_s": b * phase.decode,
                "input_tokens_per_s": np.where(phase.prefill > 0, reading, np.nan),
                "output_tokens_per_s": np.where(phase.decode > 0, writing, np.nan),
                "bound": _bound(phase, a * phase.prefill, b * phase.decode),
                "band": self._band_words(checked),
            },
            index=X.index,
        )

    def basis(self, X: pd.DataFrame) -> pd.Series:
        """Say for each row what answers: jobs of the same set-up, the site's other jobs, or the data sheet."""
        checked = checked_features(X, self.features)
        _, _, rows = self._log_seconds(checked)
        known = phases(checked).known_gpu
        groups = getattr(self, "effects_", Effects()).groups
        total = sum(site["rows"] for site in groups.get("all", {}).get("sites", {}).values())
        others = len(groups.get(OTHERS, {}).get("sites", {}))
        out = []
        for n, sheet in zip(rows, known, strict=True):
            if n >= SITE_ROWS:
                out.append(f"site history: {n} jobs of the same set-up")
            elif total:
                out.append(f"calibrated prior: data sheet, {total} jobs of this site")
            elif others:
                out.append(f"calibrated prior: data sheet, jobs of {others} other sites")
            else:
                out.append(
                    "prior: data sheet"
                    if sheet
                    else "prior: no data sheet of this GPU type, taken for an A100"
                )
        return pd.Series(out, index=X.index, dtype=object)

    def feasible(self, X: pd.DataFrame) -> pd.DataFrame:
        """Say which rows hold the model and a sequence in the memory of their GPUs."""
        checked = checked_features(X, self.features)
        phase = phases(checked)
        bad = ~phase.fits & phase.known_gpu
        reasons = [
            f"needs about {need:.0f} GiB for weights and cache, {_offered(g, find_gpu(name)[0])} {have:.0f}"
            if b
            else ""
            for b, need, have, g, name in zip(
                bad, phase.need_gib, phase.have_gib, checked["gpus"], checked["gpu_type"], strict=True
            )
        ]
        return pd.DataFrame({"feasible": ~bad, "reason": reasons}, index=X.index)

    def _band_words(self, checked: pd.DataFrame) -> list[str]:
        _, sd, rows = self._log_seconds(checked)
        others = len(getattr(self, "effects_", Effects()).groups.get(OTHERS, {}).get("sites", {}))
        base = (
            f"what {others} other sites differ by"
            if others
            else "what published timings of other sites differ by"
        )
        return [
            f"80 % within a factor of {width:.1f}: " + (f"{n} jobs of its own site" if n else base)
            for width, n in zip(np.exp(sd * student((0.9,), rows)[:, 0]), rows, strict=True)
        ]

    def to_bundle(self) -> Bundle:
        """Return what was learnt as plain data."""
        if not hasattr(self, "effects_"):
            return Bundle(self.name, self.get_params(deep=False))
        state = {"factors": list(self.factors_), "groups": self.effects_.groups}
        return Bundle(self.name, self.get_params(deep=False), state)

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> Self:
        """Rebuild the estimator from its bundle."""
        out = cls(**bundle.params)
        if bundle.state:
            out.factors_ = (float(bundle.state["factors"][0]), float(bundle.state["factors"][1]))
            out.effects_ = Effects(dict(bundle.state["groups"]))
        return out

    def _log_seconds(self, checked: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        phase = phases(checked)
        effects = getattr(self, "effects_", Effects())
        setups, sites = _setups(checked), checked["source"].to_numpy()
        any_own = "all" in effects.groups
        keys = [
            ("all", setup, SETUP_SD, RUN_SD)
            if any_own and site == ""
            else (OTHERS, site, SOURCE_SD, WITHIN_SD)
            for setup, site in zip(setups, sites, strict=True)
        ]
        answers = {key: effects.answer(*key) for key in set(keys)}
        offset, variance, rows = (np.array([answers[key][i] for key in keys]) for i in range(3))
        variance = variance + np.where(phase.known_gpu | (rows > 0), 0.0, UNKNOWN_GPU_SD**2)
        log_s = np.log(_seconds(phase, getattr(self, "factors_", (0.0, 0.0))))
        return log_s + offset, np.sqrt(variance.astype(float)), rows.astype(int)


def _bound(phase: Phases, prefill: np.ndarray, decode: np.ndarray) -> list[str]:
    """Say for each row which part takes longest, and what bounds that part."""
    largest = np.argmax([phase.start, prefill, decode], axis=0)
    return [
        (
            "start-up: loading the model",
            "reading prompts: arithmetic",
            f"writing answers, {n:.0f} sequences together: {DECODE_BOUNDS[int(kind)]}",
        )[at]
        for at, kind, n in zip(largest, phase.decode_bound, phase.together, strict=True)
    ]


def _offered(count: float, gpu: Gpu) -> str:
    if gpu.part < 1.0:
        return f"each slice {gpu.name} works alone and offers"
    return f"{count:.0f} × {gpu.name} offer"


def _tamed(residual: np.ndarray, site: np.ndarray) -> np.ndarray:
    """Cut each site's rows at three spreads from its median: one run over a slow network is not the site."""
    middle = pd.Series(residual).groupby(site).transform("median").to_numpy()
    return np.asarray(np.clip(residual, middle - 3 * WITHIN_SD, middle + 3 * WITHIN_SD))


def _seconds(phase: Phases, factors: tuple[float, float]) -> np.ndarray:
    seconds = phase.start + np.exp(factors[0]) * phase.prefill + np.exp(factors[1]) * phase.decode
    return np.maximum(seconds, LEAST_S)


def _setups(checked: pd.DataFrame) -> np.ndarray:
    sheets = {name: find_gpu(name) for name in checked["gpu_type"].unique()}
    labels = {name: sheet.name if known else name for name, (sheet, known) in sheets.items()}
    size = np.round(2 * np.log2(checked["model_params_b"])) / 2
    return np.array(
        [
            f"{labels[gpu]}|{precision.lower()}|2^{s:g}"
            for gpu, precision, s in zip(checked["gpu_type"], checked["precision"], size, strict=True)
        ],
        dtype=object,
    )


def _fit_factors(phase: Phases, log_s: np.ndarray, seen: np.ndarray) -> tuple[float, float]:
    """Return the log factors of prefill and decode that the jobs ask for, shrunk towards the data sheet."""
    from scipy.optimize import least_squares

    spread = np.hypot(SETUP_SD, RUN_SD)

    def loss(at: np.ndarray) -> np.ndarray:
        miss = (log_s - np.log(_seconds(phase, (at[0], at[1])))) / spread
        # a lower bound says something only where the estimate lies below it
        miss = np.where(seen, miss, np.maximum(miss, 0.0))
        return np.concatenate([miss, at / FACTOR_SD])

    found = least_squares(loss, np.zeros(2), loss="soft_l1", bounds=(-4.0, 4.0)).x
    return float(found[0]), float(found[1])
