"""How fast a model reads prompts and writes answers on given GPUs, from the data sheet: a roofline for each phase.

Reading the prompts (prefill) is bound by arithmetic: 2 FLOPs a parameter and token. Writing (decode) is bound by
memory: each step of a batch reads every weight that the batch touches and the key-value cache of all its sequences
(Pope et al., Efficiently Scaling Transformer Inference, arXiv 2211.05102, section 2). The GPUs of one copy exchange
each layer's output twice a token (Shoeybi et al., Megatron-LM, arXiv 1909.08053, section 3).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tidegrid.estimators.decoders import shape_of
from tidegrid.estimators.gpus import Gpu, estimated_reach
from tidegrid.estimators.gpus import find as find_gpu

PREFILL_EFFICIENCY = 0.55
"""Share of the attainable FLOP/s that prefill reaches; a half to two thirds in arXiv 2211.05102, figure 1."""

EXPERTS_PREFILL = 0.3
"""What remains of that with mixtures of experts: small uneven products, and tokens sent between experts."""

DECODE_EFFICIENCY = 0.65
"""Share of the memory bandwidth that decode reaches at large batch."""

STEP_OVERHEAD_S = 0.004
"""Host time of a decode step: scheduling, sampling, launching."""

SEQUENCE_OVERHEAD_S = 1e-5
"""Host time of a decode step for each sequence of the batch: none in compiled engines, 40 µs in Python."""

EXCHANGE_S, ACROSS_S, LINK_SHARE = 15e-6, 50e-6, 0.75
"""Latency of one exchange between the GPUs of a copy, two a layer and step, inside a node and across nodes, and the
share of the link that it attains (nccl-tests)."""

TENSOR_PARALLEL = 0.9
"""What remains of the speed for each doubling of the GPUs that share one copy, beside the exchange: smaller products,
and waiting for the slowest."""

MAX_BATCH, LARGE_GIB = (256.0, 1024.0), 70.0
"""Sequences decoded together at most, on GPUs below and from 70 GiB but an A100: vLLM's ``max_num_seqs``."""

MIXED = 0.5
"""Share of a prompt's arithmetic that engines hide in the memory-bound steps of answers being written: none where the
two take turns, all of it where each step mixes them (Agrawal et al., SARATHI, arXiv 2308.16369)."""

USABLE = 0.9
"""Share of the GPU's memory for weights and cache: the default of vLLM's ``gpu_memory_utilization``."""

START_S, LOAD_GB_S = 60.0, 2.0
"""Seconds of start-up (process, compilation), and how fast weights load, where ``startup_s`` is unknown."""

_BYTES = (
    (r"fp4|int4|w4|4bit|awq|gptq|nf4|mxfp4|nvfp4", 0.56),
    (r"fp8|int8|w8|8bit|e4m3", 1.03),
    (r"fp32|float32|tf32", 4.0),
)


def weight_bytes(precision: str) -> float:
    """Return bytes a parameter for a precision's name; 2 (bf16 and fp16) for all that is not narrower or wider."""
    return next((size for pattern, size in _BYTES if re.search(pattern, precision.lower())), 2.0)


_FULL_ATTENTION = (
    r"llama-?[12]?-?(7|13|30|33|65)b|vicuna|opt-|bloom|gpt-?(2|j|neo)|pythia|qwen-?(1\.5-?)?(7|14|72)b"
)
"""Models that hold keys and values of every attention head: Llama 1 and 2 below 34 B, Qwen 1.5, OPT, BLOOM, GPT-J."""

_FEW_HEADS = r"qwen-?2(\.5)?-(.*-)?(0\.5|1\.5|3|7)b"
"""Models with half as many heads of keys and values as others of their size: the small ones of Qwen 2 and 2.5."""

_LATENT_ATTENTION = r"deepseek-?(v2|v3|r1)(?!.*(distill|llama|qwen))|kimi-?k2"
"""Models with multi-head latent attention: 576 numbers a layer and token (DeepSeek-V3, arXiv 2412.19437)."""


def kv_bytes(params_b: np.ndarray, model: Sequence[str] = ()) -> np.ndarray:
    """Return bytes of key-value cache a token, 2 bytes a number, from the parameters that a token passes through.

    Models with grouped-query attention: Llama 3 holds 131 kB at 8 and 328 kB at 70 billion parameters (32 and 80
    layers × 8 heads × 128 × 2 × 2 bytes), a power of 0.42 in the parameters. With full attention it is layers × width
    × 4 bytes: 524 kB at 6.7 and 819 kB at 13 billion (Llama 2), a power of 0.67. With few heads: 57 kB at 7.6 and 29 kB
    at 1.5 billion (Qwen 2.5). With latent attention: 61 layers × 576 × 2 bytes at 671 billion.
    """
    grouped = 131e3 * (params_b / 8.0) ** 0.42
    full, latent = 524e3 * (params_b / 6.7) ** 0.67, 70e3 * (params_b / 671.0) ** 0.42
    few = 57e3 * (params_b / 7.6) ** 0.42
    kind = {name: _attention(name) for name in set(model)}
    at = np.array([kind[name] for name in model] or ["grouped"] * len(params_b))
    return np.select([at == "full", at == "latent", at == "few"], [full, latent, few], grouped)


def _attention(model: str) -> str:
    name = re.sub(r"[\s_]+", "-", model.lower())
    if re.search(_LATENT_ATTENTION, name):
        return "latent"
    if re.search(_FEW_HEADS, name):
        return "few"
    return "full" if re.search(_FULL_ATTENTION, name) else "grouped"


DECODE_BOUNDS = (
    "reading the weights",
    "reading the key-value cache",
    "arithmetic",
    "exchange between GPUs",
    "launch and host overhead",
)
"""What may bound a decode step."""


@dataclass(frozen=True)
class Phases:
    """Seconds of each row's phases, and what it needs of memory.

    Attributes
    ----------
    start, prefill, decode : ndarray of shape (rows,)
        Seconds; ``decode`` without the part of it in which prompts are read as well.
    need_gib : ndarray
        GiB for the weights, the cache of one sequence and workspace, over all GPUs.
    have_gib : ndarray
        GiB that the GPUs offer.
    fits : ndarray of bool
        Whether one sequence fits beside the weights.
    known_gpu : ndarray of bool
        Whether the GPU type has a data sheet.
    decode_bound : ndarray
        Which of :data:`DECODE_BOUNDS` takes most of a decode step, by its position there.
    together : ndarray
        Sequences that a copy of the model decodes together.
    """

    start: np.ndarray
    prefill: np.ndarray
    decode: np.ndarray
    need_gib: np.ndarray
    have_gib: np.ndarray
    fits: np.ndarray
    known_gpu: np.ndarray
    decode_bound: np.ndarray
    together: np.ndarray

    def rows(self, at: np.ndarray) -> "Phases":
        """Return the rows that ``at`` selects."""
        return Phases(**{name: values[at] for name, values in vars(self).items()})


def phases(features: pd.DataFrame) -> Phases:
    """Return the data sheet's answer for each row of checked features.

    The GPUs work as copies of the model side by side, each copy on as many GPUs as is told, or else (a power of two
    that holds it) as is fastest.
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
    fp4 = per_gpu({n: sheets[n][0].fp4 / sheets[n][0].tflops for n in names})
    link = per_gpu({n: sheets[n][0].link_gb_s * 1e9 * LINK_SHARE for n in names})
    net = per_gpu({n: sheets[n][0].net_gb_s * 1e9 * LINK_SHARE for n in names})
    told_node = features["gpus_per_node"].to_numpy()
    node = np.where(np.isnan(told_node), per_gpu({n: float(sheets[n][0].node) for n in names}), told_node)
    known = features["gpu_type"].map({n: sheets[n][1] for n in names}).to_numpy(dtype=bool)

    precision = features["precision"]
    width = precision.map({p: weight_bytes(p) for p in precision.unique()}).to_numpy(dtype=float)
    # 4-bit integers are unpacked to 16 bits first; floats of 8 and 4 bits run on units of their own where there are any
    float4 = precision.str.contains("fp4", case=False).to_numpy(dtype=bool)
    float8 = precision.str.contains("fp8|e4m3", case=False).to_numpy(dtype=bool)
    narrow = np.where(float4, fp4, np.where((width > 1.0) & (width < 1.1), fp8, 1.0))
    flops = bf16 * np.maximum(narrow, 1.0) * np.where(width > 2.0, 0.5, 1.0)

    whole = features["model_params_b"].to_numpy() * 1e9
    active = np.where(np.isnan(features["active_params_b"]), whole, features["active_params_b"] * 1e9)
    active = np.minimum(active, whole)
    prompts = features["prompts"].to_numpy()
    read, write = features["input_tokens"].to_numpy(), features["output_tokens"].to_numpy()
    gpus = features["gpus"].to_numpy()
    kept = features["cache_gib"].to_numpy() * 2.0**30

    weights = whole * width
    # engines that run in narrow floats hold the cache in 8 bits
    cache = kv_bytes(active / 1e9, list(features["model"])) * np.where(float8 | float4, 0.5, 1.0)
    sequence = cache * (read + write)
    workspace = 1.5 * 2**30
    need = weights + np.minimum(sequence, 4 * 2**30)
    least = 2.0 ** np.ceil(np.log2(np.maximum(need / np.maximum(memory - workspace, 2**30), 1.0)))
    # slices of a GPU do not work together: each is a copy of its own
    widest = np.where(per_gpu({n: sheets[n][0].part for n in names}) < 1.0, 1.0, gpus)
    fits = least <= widest

    # attention of a prompt against itself: 2 of 24 layers × width² FLOPs a token for each multiple of the width
    layers, wide = shape_of(whole, active)
    prefill_flops = (
        2.0 * active * (1.0 + read / (12.0 * wide)) / np.where(active < 0.7 * whole, EXPERTS_PREFILL, 1.0)
    )

    most = per_gpu({n: MAX_BATCH[_large(sheets[n][0])] for n in names})

    def times(copy: np.ndarray) -> np.ndarray:
        copies = gpus / copy
        free = np.maximum(copy * (memory - workspace) - weights, 0.0)
        free = np.where(np.isnan(kept), free, np.minimum(copy * kept, free))
        room = np.clip(np.floor(free / np.maximum(cache * (read + 0.5 * write), 1.0)), 1.0, most)
        # prompts that do not fit together take turns: the last turn costs its steps however few it holds
        share = np.maximum(prompts / copies, 1.0)
        turns = np.ceil(share / room)
        together = share / turns
        # two sums of a layer's output go around the GPUs of a copy for each token
        wire = 2.0 * layers * wide * 2.0 * 2.0 * (copy - 1.0) / copy / np.where(copy <= node, link, net)
        pace = copy * TENSOR_PARALLEL ** np.log2(copy)
        prefill = prefill_flops / (flops * PREFILL_EFFICIENCY * pace) + wire
        # each sequence of a batch draws its experts on its own
        touched = whole * -np.expm1(together * np.log1p(-np.minimum(active / whole, 1.0 - 1e-12))) * width
        speed = bandwidth * DECODE_EFFICIENCY * pace
        weights_s, cache_s = touched / speed, together * cache * (read + 0.5 * write) / speed
        arithmetic = 2.0 * active * together / (flops * PREFILL_EFFICIENCY * pace)
        latency = np.where(copy <= node, EXCHANGE_S, ACROSS_S)
        exchange = np.where(copy > 1, 2.0 * layers * latency, 0.0) + together * wire
        host = STEP_OVERHEAD_S + SEQUENCE_OVERHEAD_S * together
        step = np.maximum(weights_s + cache_s, arithmetic) + exchange + host
        memory_bound = weights_s + cache_s >= arithmetic
        parts = [weights_s * memory_bound, cache_s * memory_bound, arithmetic * ~memory_bound, exchange, host]
        kind = np.argmax(parts, axis=0)
        reading, writing = share * read * prefill, turns * write * step
        # later prompts are read while answers wait for the memory; those of the first batch hide nowhere
        waiting = turns * write * np.maximum(weights_s + cache_s - arithmetic, 0.0)
        hidden = MIXED * np.maximum(1.0 - room / share, 0.0) * np.minimum(reading, waiting)
        return np.array([reading, writing - hidden, kind, together])

    told_copy = features["gpus_per_copy"].to_numpy()

    def split(more: float) -> np.ndarray:
        return np.minimum(np.where(np.isnan(told_copy), least * more, told_copy), widest)

    best = times(split(1.0))
    # more GPUs a copy leave more room for the cache: whoever runs the job takes what is fastest
    for more in (2.0, 4.0, 8.0):
        other = times(split(more))
        best = np.where(other[0] + other[1] < best[0] + best[1], other, best)
    prefill, decode, kind, together = best
    told_start = features["startup_s"].to_numpy()
    start = np.where(np.isnan(told_start), START_S + weights / (LOAD_GB_S * 1e9), told_start)
    gib = 2.0**30
    return Phases(
        start, prefill, decode, (need + workspace) / gib, widest * memory / gib, fits, known, kind, together
    )


def _large(gpu: Gpu) -> bool:
    return gpu.memory_gib >= LARGE_GIB and not gpu.name.startswith("A100")


def _attainable(tflops: float, bandwidth_gb_s: float, reach: float) -> float:
    return tflops * 1e12 * (reach or estimated_reach(tflops, bandwidth_gb_s))
