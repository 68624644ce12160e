"""The time of a run before anyone has calibrated it: tiers of size, experts, calibration tokens, GPU and count."""

import numpy as np
import pandas as pd

from tidegrid.estimators.gpus import Gpu, estimated_reach
from tidegrid.estimators.gpus import find as find_gpu
from tidegrid.estimators.quantization.algorithms import Algorithm, find

SPEEDUP = 0.7
"""Time falls as GPUs to this power: calibration split over 2 and 4 GPUs runs 2.0 and 2.8 to 3.8 times as fast
(llm-compressor, distributed_oneshot.md), AQLM 1.7 times on 2 and 3.2 on 8; tools that only spread the weights do not
gain at all."""

SLOWER, FASTER = 0.4, 0.25
"""Time goes with the attainable FLOP/s against an A100 to these powers: half of a run waits for the host."""

MOST_TOKENS = 1e6
"""Reference sets beyond which calibration tokens no longer count: more than any model was ever trained on."""

UNKNOWN_EXPERTS = 64.0
"""The expert count that a mixture of experts is taken to have where nobody says: between the tiers of 8 and 128."""

UNKNOWN_GPU_SD, MANY_GPUS_SD = 0.25, 0.3
MOE_SD = 0.9
"""What a GPU type without a data sheet, several GPUs, and a mixture of experts add to the log spread."""


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
    known = _known_gpu(features)
    with np.errstate(over="ignore"):
        minutes = terms["minutes_per_b"] * terms["experts_factor"] * features["model_params_b"].to_numpy()
        minutes = (minutes * terms["calibration_factor"] + terms["overhead_min"]) * terms["gpu_factor"]
    spread = np.where(mixture, MOE_SD**2, 0.0) + np.where(known, 0.0, UNKNOWN_GPU_SD**2)
    return minutes.to_numpy(), np.sqrt(spread + np.where(gpus > 1, MANY_GPUS_SD**2, 0.0))


def prior_terms(features: pd.DataFrame) -> pd.DataFrame:
    """Return the terms of the prior: (minutes_per_b × experts × parameters × calibration + overhead) × GPU factor.

    Returns
    -------
    pandas.DataFrame
        ``minutes_per_b``, ``experts_factor``, ``calibration_factor``, ``overhead_min``, ``gpu_factor``, on the index of
        ``features``.
    """
    rows, mixture = len(features), is_mixture(features)
    rate, many, tokens, overhead = (np.empty(rows) for _ in range(4))
    experts = np.where(
        mixture, np.where(features["num_experts"] > 1, features["num_experts"], UNKNOWN_EXPERTS), 1.0
    )
    params, gpus = features["model_params_b"].to_numpy(), features["gpus"].to_numpy()
    samples, length = features["calib_samples"].to_numpy(), features["calib_seqlen"].to_numpy()
    sheets = {name: find_gpu(name) for name in features["gpu_type"].unique()}
    for name, at in features.groupby("algorithm", sort=True).indices.items():
        algorithm = find(str(name))
        rate[at], many[at] = tier_rate(algorithm, params[at]), expert_factor(algorithm, experts[at])
        tokens[at], overhead[at] = tokens_factor(algorithm, samples[at], length[at]), algorithm.overhead_min
    speed = np.array([_speed(sheets[name][0]) for name in features["gpu_type"]])
    return pd.DataFrame(
        {
            "minutes_per_b": rate,
            "experts_factor": many,
            "calibration_factor": tokens,
            "overhead_min": overhead,
            "gpu_factor": np.where(speed < 1, speed**-SLOWER, speed**-FASTER) * gpus**-SPEEDUP,
        },
        index=features.index,
    )


def _known_gpu(features: pd.DataFrame) -> np.ndarray:
    names = features["gpu_type"]
    known = {name: name == "" or find_gpu(name)[1] for name in names.unique()}
    return np.array([known[name] for name in names], dtype=bool)


def tier_rate(algorithm: Algorithm, params_b: np.ndarray) -> np.ndarray:
    """Return GPU-minutes a billion parameters: log-linear between the centres of the tiers, so without a cliff."""
    return np.exp(np.interp(np.log(params_b), np.log(algorithm.sizes_b), np.log(algorithm.minutes_per_b)))


def expert_factor(algorithm: Algorithm, experts: np.ndarray) -> np.ndarray:
    """Return the factor of a mixture of experts on a dense model of the same parameters, log-linear in experts."""
    few, many = algorithm.experts
    return np.exp(np.interp(np.log(experts), np.log([1.0, 8.0, 128.0]), np.log([1.0, few, many])))


def tokens_factor(algorithm: Algorithm, samples: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Return the factor of the calibration set: part of the time is proportional to its tokens."""
    ratio = np.where(np.isnan(samples), 1.0, samples / 128.0)
    with np.errstate(over="ignore"):
        ratio = ratio * np.where(np.isnan(length), 1.0, length / (algorithm.tokens / 128.0))
    return 1.0 - algorithm.elastic + algorithm.elastic * np.minimum(ratio, MOST_TOKENS)


def _speed(gpu: Gpu) -> float:
    reach = gpu.reach or estimated_reach(gpu.tflops, gpu.bandwidth_gb_s)
    return gpu.tflops * reach / (312.0 * 0.87)


def needed_gib(features: pd.DataFrame) -> np.ndarray:
    """Return the memory that a run needs on each of its GPUs, GiB.

    Block-wise algorithms hold a few blocks and their statistics, about c·√P GiB at P billion parameters (GPTQ 7 GiB
    and AWQ 13 at 7 B, ms-swift; AutoRound 18 at 8 B and 42 to 49 at 70 B, auto-round step_by_step.md), spread over the
    GPUs down to a single block; bitsandbytes holds the quantized model (13 B in 4 bits: 11 GiB; 7 B in 8 bits: 9.3).
    """
    params, gpus = features["model_params_b"].to_numpy(), features["gpus"].to_numpy()
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
