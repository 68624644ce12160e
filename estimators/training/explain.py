"""Explanations: a prediction's terms in words and numbers, and a model card."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from tidegrid.estimators.training import features, residual, variants
from tidegrid.estimators.training.features import Runs
from tidegrid.estimators.training.physics import Terms

if TYPE_CHECKING:
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
        The rung that answers.
    terms
        The compute model's terms: FLOP counts, seconds of each part, utilization.
    moved_by
        The features that moved the learned residual most, with their log contributions.
    """

    text: str
    median_h: float
    band_h: tuple[float, float]
    prior_h: float
    factor: float
    similar: int
    basis: str
    terms: dict[str, float] = field(default_factory=dict)
    moved_by: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.text


def explained(estimator: "TrainingEstimator", X: pd.DataFrame, levels: Sequence[float]) -> list[Explanation]:
    """Explain each row of ``X``; see :meth:`TrainingEstimator.explain`."""
    C = features.checked(X)
    rows, terms = estimator._prepared(C)
    runs, x = rows.runs, rows.x
    quantiles = estimator.predict_quantiles(X, sorted({*levels, 0.5}))
    prior = np.exp(estimator._log_hours(runs, terms))
    bases = estimator.basis(X)
    similar = estimator._similar(rows)
    moved: np.ndarray | None = None
    history = getattr(estimator, "history_", None)
    learned = history.learned if history is not None else None
    if learned is not None and len(X):
        moved = learned.contributions(x) * learned.trust(x, rows.keys.stack)[:, None]
    out = []
    for i in range(len(X)):
        row = quantiles.iloc[i]
        median, low, high = float(row[0.5]), float(row.iloc[0]), float(row.iloc[-1])
        pushes: dict[str, float] = {}
        if moved is not None:
            for j in np.argsort(-np.abs(moved[i]), kind="stable")[:5]:
                if abs(moved[i, j]) > 0.005:
                    pushes[residual.NAMES[j]] = float(moved[i, j])
        facts = _facts(runs, terms, i)
        factor = median / max(float(prior[i]), 1e-12)
        told = _told(C, runs, terms, i, facts)
        told += f"; together {_hours(float(prior[i]))}"
        if history is not None and abs(factor - 1.0) > 0.005:
            told += f"; history ×{factor:.2f} from {similar[i]:.0f} similar runs"
        if pushes:
            told += (
                " (moved by " + ", ".join(f"{k} ×{np.exp(v):.2f}" for k, v in list(pushes.items())[:3]) + ")"
            )
        band = f"{_hours(low)} to {_hours(high)} ({min(levels):.0%} to {max(levels):.0%})"
        told += f"; median {_hours(median)}, band {band}. Basis: {bases.iloc[i]}."
        out.append(
            Explanation(
                told,
                median,
                (low, high),
                float(prior[i]),
                factor,
                int(similar[i]),
                str(bases.iloc[i]),
                facts,
                pushes,
            )
        )
    return out


def _facts(r: Runs, t: Terms, i: int) -> dict[str, float]:
    return {
        "tokens": float(r.tokens[i]), "steps": float(t.steps[i]), "training_flop": float(t.train_flops[i]),
        "attention_flop": float(t.attention_flops[i]), "recompute_flop": float(t.recompute_flops[i]),
        "other_passes_flop": float(t.extra_flops[i]), "utilization": float(t.utilization(r)[i]),
        "pure_s": float(t.seconds[i]), "arithmetic_s": float(t.arithmetic[i]), "launches_s": float(t.launches[i]),
        "exchange_s": float(t.exchange[i]), "bubble_s": float(t.bubble[i]), "update_s": float(t.update[i]),
        "generation_s": float(t.generation[i]),
    }  # fmt: skip


def _told(C: features.Table, r: Runs, t: Terms, i: int, f: dict[str, float]) -> str:
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
    gpu = str(C["gpu_type"][i]) or "A100 (assumed)"
    layout = f"TP{r.tp[i]:.0f} PP{r.pp[i]:.0f} DP{r.dp[i]:.0f}" + (" ZeRO-3" if r.zero[i] >= 3 else "")
    parts.append(
        f"{r.gpus[i]:.0f} × {gpu} ({layout}) at {f['utilization']:.0%} of peak: "
        f"{_hours(f['pure_s'] / 3600)} of training"
    )
    shown = {
        "kernel launches": f["launches_s"], "exchange between GPUs": f["exchange_s"], "pipeline bubble": f["bubble_s"],
        "generation": f["generation_s"], "optimizer": f["update_s"],
    }  # fmt: skip
    large = [f"{name} {_hours(v / 3600)}" for name, v in shown.items() if v > 0.05 * max(f["pure_s"], 1e-9)]
    if large:
        parts.append("of it " + ", ".join(large))
    return "; ".join(parts)


def _hours(hours: float) -> str:
    if hours >= 0.95:
        return f"{hours:.1f} h"
    return f"{hours * 60:.1f} min" if hours >= 1 / 60 else f"{hours * 3600:.1f} s"


def card(estimator: "TrainingEstimator") -> dict[str, Any]:
    """Return the model card: what it is, what it learnt from, what it rests on, what it should not be used for."""
    calibration = estimator._cal()
    history = getattr(estimator, "history_", None)
    learned = history.learned if history is not None else None
    return {
        "estimator": "training",
        "predicts": "hours of a training run, as quantiles"
        if estimator.whole_run
        else "hours of pure training",
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
        "importances": learned.importances() if learned is not None else {},
        "limits": [
            "GPU types without a data sheet are taken for an A100, with a wide band",
            "reinforcement learning rests on two calibrated sources; response lengths matter and are rarely known",
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
    if data["importances"]:
        lines += ["", "| feature of the learned residual | share of the gain |", "| --- | --- |"]
        lines += [f"| {name} | {share:.0%} |" for name, share in list(data["importances"].items())[:12]]
    return "\n".join(lines) + "\n"
