"""Explanations: a prediction's terms in words and numbers, and a model card."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from tidegrid.estimators.training import features, variants
from tidegrid.estimators.training.features import Runs
from tidegrid.estimators.training.physics import BOUNDS, Terms

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tidegrid.estimators.training.estimator import TrainingEstimator


@dataclass(frozen=True)
class Explanation:
    """One prediction, told.

    Parameters
    ----------
    text
        One paragraph.
    median_h
        The median, hours.
    band_h
        The outermost levels asked for, hours.
    prior_h
        The physics prior alone, hours.
    factor
        What history multiplies the prior by.
    similar
        Similar finished runs.
    basis
        The rung that answers, and what the band rests on.
    bound
        What bounds an optimizer step: one of ``physics.BOUNDS``.
    shares
        Shares of the prior's hours: optimizer steps, evaluation and checkpoints, start-up; they sum to 1.
    terms
        The compute model's terms: FLOP counts, seconds of each part, utilization.
    """

    text: str
    median_h: float
    band_h: tuple[float, float]
    prior_h: float
    factor: float
    similar: int
    basis: str
    bound: str
    shares: dict[str, float] = field(default_factory=dict)
    terms: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.text


def explained(estimator: "TrainingEstimator", X: pd.DataFrame, levels: Sequence[float]) -> list[Explanation]:
    """Explain each row of ``X``; see :meth:`TrainingEstimator.explain`."""
    C = features.checked(X)
    rows, terms = estimator._prepared(C)
    quantiles = estimator.predict_quantiles(X, sorted({*levels, 0.5}))
    prior = terms.seconds / 3600.0
    bases, similar = estimator.basis(X), estimator._similar(rows)
    out = []
    for i in range(len(X)):
        row = quantiles.iloc[i]
        median, low, high = float(row[0.5]), float(row.iloc[0]), float(row.iloc[-1])
        facts = _facts(rows.runs, terms, i)
        factor = median / max(float(prior[i]), 1e-12)
        bound = max(BOUNDS, key=lambda name: float(terms.bound[name][i]))
        total = max(float(terms.seconds[i]), 1e-9)
        shares = {
            "optimizer steps": float(terms.steps_s[i]) / total,
            "evaluation and checkpoints": float(terms.whole[i]) / total,
            "start-up": float(terms.startup[i]) / total,
        }
        told = _told(C, rows.runs, terms, i, facts, bound)
        spare = [f"{name} {share:.0%}" for name, share in list(shares.items())[1:] if share >= 0.005]
        told += f"; with {' and '.join(spare)} of it" if spare else ""
        told += f"; together {_hours(float(prior[i]))}"
        if hasattr(estimator, "history_") and abs(factor - 1.0) > 0.005:
            told += f"; history ×{factor:.2f} from {similar[i]:.0f} similar runs"
        band = f"{_hours(low)} to {_hours(high)} ({min(levels):.0%} to {max(levels):.0%})"
        told += f"; median {_hours(median)}, band {band}. Basis: {bases.iloc[i]}."
        out.append(
            Explanation(told, median, (low, high), float(prior[i]), factor, int(similar[i]), str(bases.iloc[i]), bound,
                        shares, facts)
        )  # fmt: skip
    return out


def picture(explanation: Explanation) -> "Figure":
    """Draw what a step's parts would take alone, the shares of the run, and the band.

    Parameters
    ----------
    explanation
        One of those that :meth:`TrainingEstimator.explain` returns.

    Returns
    -------
    matplotlib.figure.Figure
        Three panels; ``savefig`` writes it.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 2.6), layout="constrained")
    parts, shares, band = figure.subplots(1, 3, width_ratios=[3, 2, 2])
    hours = [explanation.terms[f"{name}_s"] / 3600 for name in BOUNDS]
    colours = ["tab:red" if name == explanation.bound else "tab:grey" for name in BOUNDS]
    parts.barh(BOUNDS, hours, color=colours)
    parts.invert_yaxis()
    parts.set_title("hours that each part would take alone", fontsize=9)
    left = 0.0
    for name, share in explanation.shares.items():
        shares.barh([0], [share], left=left, label=f"{name} {share:.0%}")
        left += share
    shares.set(yticks=[], xlim=(0, 1))
    shares.set_title("shares of the run", fontsize=9)
    shares.legend(fontsize=7, loc="lower center", frameon=False)
    shares.set_ylim(-2.2, 0.6)
    low, high = explanation.band_h
    band.plot([low, high], [0, 0], lw=6, alpha=0.4)
    band.plot([explanation.median_h], [0], "o")
    band.set(yticks=[], xscale="log", xlabel="hours")
    # what the band rests on, whole: a title of one line would run into its neighbour
    band.set_title(textwrap.fill(explanation.basis, 44), fontsize=8)
    return figure


def _facts(r: Runs, t: Terms, i: int) -> dict[str, float]:
    return {
        "tokens": float(r.tokens[i]), "steps": float(t.steps[i]), "padded": float(t.padded[i]),
        "training_flop": float(t.train_flops[i]), "attention_flop": float(t.attention_flops[i]),
        "recompute_flop": float(t.recompute_flops[i]), "other_passes_flop": float(t.extra_flops[i]),
        "utilization": float(t.utilization(r)[i]), "pure_s": float(t.steps_s[i]), "bubble_s": float(t.bubble[i]),
        "update_s": float(t.update[i]), "evaluation_s": float(t.whole[i]), "startup_s": float(t.startup[i]),
        **{f"{name}_s": float(t.bound[name][i]) for name in BOUNDS},
    }  # fmt: skip


_IN_WORDS = {
    "arithmetic": "matrix products", "memory": "memory traffic", "overhead": "kernel launches and the host",
    "network": "exchange between GPUs", "generation": "generation",
}  # fmt: skip


def _told(C: features.Table, r: Runs, t: Terms, i: int, f: dict[str, float], bound: str) -> str:
    variant = variants.BY_NAME[str(C["variant"][i])]
    factor = 2.0 * (1.0 + variant.backward)
    passes = (
        f"{factor:.0f}·N·T = {factor:.0f} × {r.active[i] / 1e9:.3g} B × {r.tokens[i] / 1e6:,.0f} M tokens"
    )
    parts = [f"forward+backward {passes} = {factor * r.active[i] * r.tokens[i]:.2e} FLOP"]
    for name, value in (
        ("attention", f["attention_flop"]),
        ("recomputation", f["recompute_flop"]),
        ("reference, reward and critic passes", f["other_passes_flop"]),
    ):
        if value > 0.02 * f["training_flop"]:
            parts.append(f"{name} {value:.2e} FLOP")
    if np.isnan(C["tokens_per_epoch_m"][i]):
        parts.append(
            f"tokens from {r.samples[i]:,.0f} samples of {r.tokens[i] / r.samples[i]:,.0f} tokens each"
        )
    if f["padded"] > 1.02:
        parts.append(f"padding computes {f['padded']:.2f} × the tokens")
    gpu = str(C["gpu_type"][i]) or "A100 (assumed)"
    layout = f"TP{r.tp[i]:.0f} PP{r.pp[i]:.0f} DP{r.dp[i]:.0f}" + (" ZeRO-3" if r.zero[i] >= 3 else "")
    parts.append(
        f"{r.gpus[i]:.0f} × {gpu} ({layout}) at {f['utilization']:.0%} of peak: "
        f"{_hours(f['pure_s'] / 3600)} of training"
    )
    shown = {_IN_WORDS[name]: f[f"{name}_s"] for name in BOUNDS} | {"pipeline bubble": f["bubble_s"]}
    large = [f"{name} {_hours(v / 3600)}" for name, v in shown.items() if v > 0.05 * max(f["pure_s"], 1e-9)]
    parts.append(f"a step is bound by {_IN_WORDS[bound]} (alone they would take: {', '.join(large)})")
    return "; ".join(parts)


def _hours(hours: float) -> str:
    if hours >= 0.95:
        return f"{hours:.1f} h"
    return f"{hours * 60:.1f} min" if hours >= 1 / 60 else f"{hours * 3600:.1f} s"


def card(estimator: "TrainingEstimator") -> dict[str, Any]:
    """Return the model card: what it is, what it learnt from, what it rests on, what it should not be used for."""
    calibration = estimator._cal()
    history = getattr(estimator, "history_", None)
    return {
        "estimator": "training",
        "predicts": "hours of a training run, as quantiles",
        "features": [f.name for f in features.FEATURES],
        "variants": list(variants.NAMES),
        "calibration": {
            "sources": dict(calibration.sources),
            "rows": int(sum(calibration.sources.values())),
            "constants": {k: float(v) for k, v in calibration.constants.items()},
            "scale": dict(calibration.scale),
        },
        "history": {
            "finished": history.finished if history is not None else 0,
            "lower_bounds": history.censored if history is not None else 0,
            "residuals_for_bands": len(history.recent) if history is not None else 0,
            "noise_log_hours": history.site.noise if history is not None else None,
        },
        "limits": [
            "GPU types without a data sheet are taken for an A100, with a wide band",
            "reinforcement learning depends on response lengths, which are rarely known before",
            "queueing, preemption and failures are not in the hours",
        ],
    }


def card_markdown(estimator: "TrainingEstimator") -> str:
    """Return the model card as Markdown."""
    data = card(estimator)
    lines = [f"# Model card: {data['estimator']}", "", f"Predicts {data['predicts']} from 22 features.", ""]
    history, calibrated = data["history"], data["calibration"]
    lines += [
        f"- calibrated on {calibrated['rows']} published runs of {len(calibrated['sources'])} sources",
        f"- history: {history['finished']} finished runs, {history['lower_bounds']} lower bounds",
        *[f"- limit: {limit}" for limit in data["limits"]],
    ]
    return "\n".join(lines) + "\n"
