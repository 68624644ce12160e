"""How long the synthetic jobs take: plausible physics, so that estimators find real structure in the sample.

The figures are round and typical, not measured; they belong to the synthetic sample alone.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

Job = Mapping[str, Any]

PEAK_TFLOPS = {"H100-SXM-80GB": 989.0, "A100-SXM-80GB": 312.0}
"""Dense bf16 peak of the two GPU types of the sample (vendor data sheets)."""

BANDWIDTH_GB_S = {"H100-SXM-80GB": 3350.0, "A100-SXM-80GB": 2039.0}
"""Memory bandwidth (vendor data sheets)."""

MEMORY_GB = 80.0
ACTIVATIONS_GB = 18.0
"""The activations that the sample's users keep to, of a GPU's memory."""

_MFU = {"H100-SXM-80GB": 0.38, "A100-SXM-80GB": 0.44}
_TECHNIQUE = {"sft": 1.0, "cpt": 1.0, "dpo": 1.8, "rlhf": 1.9, "rlvr": 1.45}


def scaling(gpus: int, gpus_per_node: int = 8) -> float:
    """Return the share of linear speed-up that a block keeps: a little less with each doubling, more past a node."""
    inside = np.log2(min(gpus, gpus_per_node))
    across = np.log2(max(1.0, gpus / gpus_per_node))
    return float(0.965**inside * 0.90**across)


def training_hours(job: Job, gpu_type: str, gpus: int) -> float:
    """Return hours of a training run without noise.

    Forward and backward passes cost 2 and 4 FLOPs a parameter and token, a LoRA run saves most of the weight
    gradients, recomputation adds a forward pass, attention adds 6 · layers · width · length a token (Kaplan et al.
    2020, arXiv 2001.08361); RL adds a share of generating that grows with the length of its rollouts.
    """
    strategy, technique = str(job["variant"]).split("_")
    active = float(job["active_params_b"]) * 1e9
    passes = 6.0 if strategy == "full" else 4.2
    passes += 2.0 if job["grad_checkpointing"] else 0.0
    attention = 6.0 * float(job["num_layers"]) * float(job["hidden_size"]) * float(job["seq_len"])
    tokens = float(job["tokens_per_epoch_m"]) * 1e6 * float(job["epochs"])
    flops = tokens * (passes * active + attention) * _TECHNIQUE[technique]
    flops += tokens * 2.0 * float(job["aux_params_b"] or 0.0) * 1e9
    small = min(1.0, 0.55 + 0.15 * np.log2(1.0 + float(job["active_params_b"])))
    mfu = _MFU[gpu_type] * small * (0.8 if strategy == "lora" else 1.0) * (1.0 if job["packing"] else 0.8)
    hours = flops / (gpus * PEAK_TFLOPS[gpu_type] * 1e12 * mfu * scaling(gpus)) / 3600.0
    if technique in ("rlhf", "rlvr"):
        hours /= 1.0 - float(
            np.clip(0.42 + 0.06 * np.log2(float(job["rollout_tokens"]) / 1024.0), 0.35, 0.72)
        )
    return 0.08 + 0.004 * float(job["model_params_b"]) + 1.2 * hours


def quantization_hours(job: Job, gpu_type: str, gpus: int) -> float:
    """Return hours of a quantization run without noise: GPU-minutes a billion parameters, by algorithm."""
    minutes = {"bitsandbytes": 0.02, "awq": 2.4, "gptq": 1.9}[str(job["algorithm"])] * float(
        job["model_params_b"]
    )
    if float(job["num_experts"]) > 1:
        minutes *= 3.0
    if job["algorithm"] != "bitsandbytes":
        minutes *= (float(job["calib_samples"]) / 128.0) ** 0.8 * (float(job["calib_seqlen"]) / 2048.0) ** 0.6
    speed = (PEAK_TFLOPS[gpu_type] / 312.0) ** 0.5
    return 0.04 + minutes / 60.0 / speed / gpus**0.3


def batch_hours(job: Job, gpu_type: str, gpus: int) -> float:
    """Return hours of a batch-inference run without noise: prefill by arithmetic, decode by memory bandwidth."""
    active = float(job["active_params_b"]) * 1e9
    prompts = float(job["prompts"])
    peak = PEAK_TFLOPS[gpu_type] * 1e12 * 0.45 * gpus * scaling(gpus)
    prefill = prompts * float(job["input_tokens"]) * 2.0 * active / peak
    # 96 sequences share each pass over the weights
    a_second = BANDWIDTH_GB_S[gpu_type] * 1e9 * 0.6 * gpus * scaling(gpus) / (active * 2.0) * 96.0
    decode = prompts * float(job["output_tokens"]) / a_second
    return 0.06 + (prefill + decode) / 3600.0


HOURS = {"training": training_hours, "quantization": quantization_hours, "batch_inference": batch_hours}


def hours_of(job: Job, gpu_type: str, gpus: int) -> float:
    """Return hours of any job without noise."""
    return float(HOURS[str(job["kind"])](job, gpu_type, gpus))


def fewest_gpus(job: Job) -> int:
    """Return the fewest GPUs, a power of two, whose memory holds the job."""
    params = float(job["model_params_b"])
    if job["kind"] == "training":
        # 16 bytes a trained parameter (weights, gradients, Adam's moments), 2 a frozen one, 2 an auxiliary one
        trained = float(job["trainable_params_b"])
        need = 16.0 * trained + 2.0 * max(0.0, params - trained) + 2.0 * float(job["aux_params_b"] or 0.0)
        # what is not split over the GPUs: activations and the runtime
        usable = MEMORY_GB * 0.9 - ACTIVATIONS_GB - 6.0
    else:
        need = 2.2 * params + 8.0 if job["kind"] == "batch_inference" else 0.6 * params + 10.0
        usable = MEMORY_GB * 0.9
    gpus = 1
    while gpus * usable < need:
        gpus *= 2
    return gpus


def activations_gb(layers: int, hidden: int, seq_len: int, micro_batch: int, checkpointing: bool) -> float:
    """Return a GPU's activations in a forward pass: about 18 bytes a layer, channel and token, 3 if recomputed."""
    return (3.0 if checkpointing else 18.0) * layers * hidden * seq_len * micro_batch / 1e9
