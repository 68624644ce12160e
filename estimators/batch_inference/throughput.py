"""How fast a model reads prompts and writes answers on given GPUs, from the data sheet: a roofline for each phase.

Reading the prompts (prefill) is bound by arithmetic: 2 FLOPs a parameter and token. Writing (decode) is bound by
memory: each step of a batch reads every weight that the batch touches and the key-value cache of all its sequences
(Pope et al., Efficiently Scaling Transformer Inference, arXiv 2211.05102, section 2).
"""

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tidegrid.estimators.gpus import estimated_reach
from tidegrid.estimators.gpus import find as find_gpu

PREFILL_EFFICIENCY = 0.55
"""Share of the attainable FLOP/s that prefill reaches; a half to two thirds in arXiv 2211.05102, figure 1."""

DECODE_EFFICIENCY = 0.6
"""Share of the memory bandwidth that decode reaches at large batch."""

STEP_OVERHEAD_S = 0.004
"""Host time of a decode step: scheduling, sampling, launching."""

TENSOR_PARALLEL = 0.88
"""What remains of the speed for each doubling of the GPUs that share one copy of the model."""

MAX_BATCH = 256
"""Sequences decoded together: the default of vLLM's ``max_num_seqs``."""

USABLE = 0.9
"""Share of the GPU's memory for weights and cache: the default of vLLM's ``gpu_memory_utilization``."""

START_S, LOAD_GB_S = 90.0, 1.5
"""Seconds of start-up (process, compilation), and how fast weights come from storage."""

_BYTES = (
    (r"fp4|int4|w4|4bit|awq|gptq|nf4|mxfp4|nvfp4", 0.56),
    (r"fp8|int8|w8|8bit|e4m3", 1.03),
    (r"fp32|float32|tf32", 4.0),
)


def weight_bytes(precision: str) -> float:
    """Return bytes a parameter for a precision's name; 2 (bf16 and fp16) for all that is not narrower or wider."""
    return next((size for pattern, size in _BYTES if re.search(pattern, precision.lower())), 2.0)


def kv_bytes(params_b: np.ndarray) -> np.ndarray:
    """Return bytes of key-value cache a token.

    Models with grouped-query attention, 2 bytes a number: Llama 3 holds 131 kB at 8 and 328 kB at 70 billion
    parameters (32 and 80 layers × 8 heads × 128 × 2 × 2 bytes), a power of 0.42 in the parameters.
    """
    return 131e3 * (params_b / 8.0) ** 0.42


@dataclass(frozen=True)
class Phases:
    """Seconds of each row's phases, and what it needs of memory.

    Attributes
    ----------
    start, prefill, decode : ndarray of shape (rows,)
        Seconds.
    need_gib : ndarray
        GiB for the weights, the cache of one sequence and workspace, over all GPUs.
    have_gib : ndarray
        GiB that the GPUs offer.
    fits : ndarray of bool
        Whether one sequence fits beside the weights.
    known_gpu : ndarray of bool
        Whether the GPU type has a data sheet.
    """

    start: np.ndarray
    prefill: np.ndarray
    decode: np.ndarray
    need_gib: np.ndarray
    have_gib: np.ndarray
    fits: np.ndarray
    known_gpu: np.ndarray


def phases(features: pd.DataFrame) -> Phases:
    """Return the data sheet's answer for each row of checked features.

    The GPUs work as copies of the model side by side, each copy on as many GPUs (a power of two that holds it) as is
    fastest.
    """
    names = features["gpu_type"].unique()
    sheets = {name: find_gpu(name) for name in names}

    def per_gpu(figure: dict[str, float]) -> np.ndarray:
        return features["gpu_type"].map(figure).to_numpy(dtype=float)

    bandwidth = per_gpu({n: sheets[n][0].bandwidth_gb_s * 1e9 for n in names})
    memory = per_gpu({n: sheets[n][0].memory_gib * 2**30 * USABLE for n in names})
    bf16 = per_gpu(
        {n: _attainable(sheets[n][0].tflops, sheets[n][0].bandwidth_gb_s, sheets[n][0].reach) for n in names}
    )
    fp8 = per_gpu({n: sheets[n][0].fp8 / sheets[n][0].tflops for n in names})
    known = features["gpu_type"].map({n: sheets[n][1] for n in names}).to_numpy(dtype=bool)

    precision = features["precision"]
    width = precision.map({p: weight_bytes(p) for p in precision.unique()}).to_numpy(dtype=float)
    # only 8-bit arithmetic runs on the wider units; 4-bit weights are unpacked to 16 bits first
    flops = (
        bf16
        * np.where((width > 1.0) & (width < 1.1) & (fp8 > 1.0), fp8, 1.0)
        * np.where(width > 2.0, 0.5, 1.0)
    )

    whole = features["model_params_b"].to_numpy() * 1e9
    active = np.where(np.isnan(features["active_params_b"]), whole, features["active_params_b"] * 1e9)
    active = np.minimum(active, whole)
    prompts = features["prompts"].to_numpy()
    read, write = features["input_tokens"].to_numpy(), features["output_tokens"].to_numpy()
    gpus = features["gpus"].to_numpy()

    weights = whole * width
    cache = kv_bytes(whole / 1e9)
    sequence = cache * (read + write)
    workspace = 1.5 * 2**30
    need = weights + np.minimum(sequence, 4 * 2**30)
    least = 2.0 ** np.ceil(np.log2(np.maximum(need / np.maximum(memory - workspace, 2**30), 1.0)))
    fits = least <= gpus

    def times(copy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        copies = gpus / copy
        free = np.maximum(copy * (memory - workspace) - weights, 0.0)
        together = np.clip(np.floor(free / np.maximum(cache * (read + 0.5 * write), 1.0)), 1.0, MAX_BATCH)
        together = np.minimum(together, np.maximum(prompts / copies, 1.0))
        pace = copy * TENSOR_PARALLEL ** np.log2(copy)
        prefill = 2.0 * active * prompts * read / (flops * PREFILL_EFFICIENCY * pace * copies)
        # a batch touches all experts once it is large enough
        touched = np.minimum(whole, active * np.maximum(1.0, together * 0.5)) * width
        per_step = (touched + together * cache * (read + 0.5 * write)) / (
            bandwidth * DECODE_EFFICIENCY * pace
        )
        arithmetic = 2.0 * active * together / (flops * PREFILL_EFFICIENCY * pace)
        step = np.maximum(per_step, arithmetic) + STEP_OVERHEAD_S
        return prefill, prompts * write / (together * copies) * step

    prefill, decode = times(np.minimum(least, gpus))
    # more GPUs a copy leave more room for the cache: whoever runs the job takes what is fastest
    for more in (2.0, 4.0, 8.0):
        other = times(np.minimum(least * more, gpus))
        faster = sum(other) < prefill + decode
        prefill, decode = np.where(faster, other[0], prefill), np.where(faster, other[1], decode)
    start = START_S + weights / (LOAD_GB_S * 1e9)
    gib = 2.0**30
    return Phases(start, prefill, decode, (need + workspace) / gib, gpus * memory / gib, fits, known)


def _attainable(tflops: float, bandwidth_gb_s: float, reach: float) -> float:
    return tflops * 1e12 * (reach or estimated_reach(tflops, bandwidth_gb_s))
