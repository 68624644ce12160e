"""The time of a run before anyone has calibrated it: what the algorithm does with the model, over what the GPU
attains."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from tidegrid.estimators.decoders import shape_of
from tidegrid.estimators.gpus import Gpu, estimated_reach, full_precision
from tidegrid.estimators.gpus import find as find_gpu
from tidegrid.estimators.quantization.algorithms import find

SPEEDUP = 0.7
"""Time falls as GPUs to this power: calibration split over 2 and 4 GPUs runs 2.0 and 2.8 to 3.8 times as fast
(llm-compressor, distributed_oneshot.md), AQLM 1.7 times on 2 and 3.2 on 8; tools that only spread the weights do not
gain at all. Loading gains nothing."""

LOAD_B_S = 1.5e9
"""Bytes a second at which 16-bit weights are read from local storage on a server of A100s (published: 0.7 to 1.8)."""

HOST = 0.7
"""Storage and host are bought to match the GPU: reading is as fast as the memory bandwidth against an A100's to this
power (a T4's host reads 0.4 GB/s)."""

OUTER_SHARE, MEMORY_SHARE = 0.7, 0.75
"""Shares of the 32-bit peak and of the memory bandwidth that large products and copies attain."""

MOST_TOKENS, MOST_PARAMS_B, MOST_EXPERTS = 1e12, 1e12, 1e6
"""Beyond these, calibration tokens, parameters and experts no longer count: more than anybody has."""

UNKNOWN_GPU_SD, MANY_GPUS_SD, UNKNOWN_SET_SD = 0.35, 0.3, 0.3
MOE_SD = 0.6
"""What a GPU type without a data sheet (or none), several GPUs, a calibration set that is not told (tools differ four
times), and a mixture of experts (whose tools differ in whether every expert sees every token) add to the log spread."""

UNKNOWN_EXPERTS = 64.0
"""The expert count of a mixture of which neither experts nor active parameters are known."""

_REFERENCE = find_gpu("A100-SXM-80GB")[0]

IN_WORDS = {
    "load_s": "loading the weights",
    "forward_s": "calibration: forward passes over samples × length",
    "outer_s": "calibration: products of the inputs in 32 bits",
    "columns_s": "the solver, column by column",
    "modules_s": "the host, layer by layer",
    "traffic_s": "memory traffic of the search",
    "rate_s": "packing and clustering the weights",
    "start_s": "start-up and saving",
}
"""The parts of a run's time."""

TERMS = tuple(IN_WORDS)
"""Their names, seconds on one GPU."""


def is_mixture(features: pd.DataFrame) -> np.ndarray:
    """Say which rows are mixtures of experts: more than one expert, or clearly fewer active parameters than all."""
    experts = features["num_experts"].to_numpy()
    active, whole = features["active_params_b"].to_numpy(), features["model_params_b"].to_numpy()
    return np.where(np.isnan(experts), active < 0.7 * whole, experts > 1)


def prior_minutes(features: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return the prior median of the wall-clock minutes and the extra log spread of each row.

    Parameters
    ----------
    features
        Checked features of :class:`~tidegrid.estimators.quantization.QuantizationEstimator`.
    """
    terms = prior_terms(features)
    mixture, gpus = is_mixture(features), features["gpus"].to_numpy()
    shared = terms[list(TERMS[1:])].sum(axis=1) * terms["gpus_factor"]
    spread = np.where(mixture, MOE_SD**2, 0.0) + np.where(gpus > 1, MANY_GPUS_SD**2, 0.0)
    names = features["gpu_type"]
    spread = spread + np.where(names.map({n: find_gpu(n)[1] for n in names.unique()}), 0.0, UNKNOWN_GPU_SD**2)
    calibrated = (terms["forward_s"] + terms["outer_s"]).to_numpy() > 0
    silent = np.isnan(features["calib_samples"].to_numpy())
    spread = spread + np.where(calibrated & silent, UNKNOWN_SET_SD**2, 0.0)
    return (terms["load_s"] + shared).to_numpy() / 60.0, np.sqrt(spread)


@dataclass(frozen=True)
class Linears:
    """The linear layers of each model, arrays of shape (rows,).

    A layer has four matrices of attention and, for each expert, two that read its width and one that reads the
    experts'. ``columns`` is the sum of the inputs of all, ``squares`` that of their squares as tokens see them,
    ``count`` their number; ``seen`` is the parameters that a token passes through during calibration.
    """

    columns: np.ndarray
    squares: np.ndarray
    count: np.ndarray
    seen: np.ndarray


def linears(whole: np.ndarray, active: np.ndarray, experts: np.ndarray) -> Linears:
    """Return the linear layers of models from their parameters, active parameters (NaN: not known) and experts.

    Where only one of active parameters and experts is known, the share that is active is one over the square root of
    the experts (8: 0.28 of Mixtral; 128: 0.11 of Qwen3-30B-A3B; 256: 0.06 of DeepSeek-V3). Some tools let every expert
    see every token, others those that are routed to it: the geometric mean is taken.
    """
    active = np.where(np.isnan(active), whole / np.sqrt(experts), np.minimum(active, whole))
    layers, width = shape_of(whole, active)
    # attention is a quarter of 12·L·h² (grouped queries); what is not attention is experts of three matrices each
    inner = (whole - active / 4.0) / (experts * layers * 3.0 * width)
    share = np.sqrt(active / whole)
    return Linears(
        layers * (4.0 * width + experts * (2.0 * width + inner)),
        layers * (4.0 * width**2 + share * experts * (2.0 * width**2 + inner**2)),
        layers * (4.0 + 3.0 * experts),
        whole * share,
    )


def prior_terms(features: pd.DataFrame) -> pd.DataFrame:
    """Return the terms of the prior, seconds on one GPU: load_s + gpus_factor × the sum of the others.

    Returns
    -------
    pandas.DataFrame
        The columns :data:`TERMS` and ``gpus_factor``, on the index of ``features``.
    """
    whole = np.minimum(features["model_params_b"].to_numpy(), MOST_PARAMS_B)
    active, experts = features["active_params_b"].to_numpy(), features["num_experts"].to_numpy()
    mixture = is_mixture(features)
    active = np.where(mixture & (active > 0), np.minimum(active, whole), np.where(mixture, np.nan, whole))
    guessed = np.where(np.isnan(active), UNKNOWN_EXPERTS, (whole / active) ** 2)
    experts = np.where(mixture, np.where(experts > 1, np.minimum(experts, MOST_EXPERTS), guessed), 1.0)
    model = linears(whole * 1e9, active * 1e9, experts)

    def of_algorithm(name: str) -> np.ndarray:
        known = {a: float(getattr(find(a), name)) for a in features["algorithm"].unique()}
        return features["algorithm"].map(known).to_numpy(dtype=float)

    sheets = {name: find_gpu(name)[0] for name in features["gpu_type"].unique()}

    def of_gpu(figures: dict[str, float]) -> np.ndarray:
        return features["gpu_type"].map(figures).to_numpy(dtype=float)

    samples, length = features["calib_samples"].to_numpy(), features["calib_seqlen"].to_numpy()
    with np.errstate(over="ignore"):
        tokens = np.where(np.isnan(samples), of_algorithm("samples"), samples)
        tokens = np.minimum(tokens * np.where(np.isnan(length), of_algorithm("length"), length), MOST_TOKENS)
    speed = of_gpu({n: _attainable(g) for n, g in sheets.items()})
    single = of_gpu({n: full_precision(g) * 1e12 * OUTER_SHARE for n, g in sheets.items()})
    bandwidth = of_gpu({n: g.bandwidth_gb_s * 1e9 for n, g in sheets.items()})
    reading = LOAD_B_S * (bandwidth / _REFERENCE.bandwidth_gb_s / 1e9) ** HOST
    times = (
        2e9 * whole / reading,
        of_algorithm("passes") * 2.0 * model.seen * tokens / (speed * of_algorithm("attained")),
        of_algorithm("outer") * 2.0 * model.squares * tokens / single,
        of_algorithm("column_s") * model.columns,
        of_algorithm("module_s") * model.count,
        of_algorithm("traffic") * 1e9 * whole / (bandwidth * MEMORY_SHARE),
        of_algorithm("rate_s") * whole * np.sqrt(_attainable(_REFERENCE) / speed),
        of_algorithm("start_s"),
    )
    out = pd.DataFrame(dict(zip(TERMS, times, strict=True)), index=features.index)
    return out.assign(gpus_factor=together(features) ** -SPEEDUP)


def together(features: pd.DataFrame) -> np.ndarray:
    """Return the GPUs that work on each run: all of them, but one slice of a GPU."""
    part = {name: find_gpu(name)[0].part for name in features["gpu_type"].unique()}
    return np.where(features["gpu_type"].map(part) < 1.0, 1.0, features["gpus"])


def _attainable(gpu: Gpu) -> float:
    return gpu.tflops * 1e12 * (gpu.reach or estimated_reach(gpu.tflops, gpu.bandwidth_gb_s))


def needed_gib(features: pd.DataFrame) -> np.ndarray:
    """Return the memory that a run needs on each of its GPUs, GiB.

    Block-wise algorithms hold a few blocks and their statistics, about c·√P GiB at P billion parameters (GPTQ 7 GiB
    and AWQ 13 at 7 B, ms-swift; AutoRound 18 at 8 B and 42 to 49 at 70 B, auto-round step_by_step.md), spread over the
    GPUs down to a single block; bitsandbytes holds the quantized model (13 B in 4 bits: 11 GiB; 7 B in 8 bits: 9.3).
    """
    params, gpus = features["model_params_b"].to_numpy(), together(features)
    bits = np.where(np.isnan(features["bits"]), 4.0, features["bits"])
    out = np.empty(len(features))
    for name, at in features.groupby("algorithm", sort=True).indices.items():
        algorithm = find(str(name))
        if algorithm.whole:
            out[at] = params[at] * (bits[at] / 8.0 * 1.1 + 0.28) / gpus[at] + 0.5
        else:
            out[at] = np.maximum(
                algorithm.memory * np.sqrt(params[at]) / gpus[at], 0.1 * params[at] ** 0.5 + 1.0
            )
    return out
