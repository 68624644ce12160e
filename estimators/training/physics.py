"""The physics prior: seconds of a run from FLOPs, bytes and launches, with a few calibrated constants.

One optimizer step is (micro-batches + pipeline bubble) × the time of a micro-batch on a stage, plus what is not hidden
of the gradient exchange, plus the optimizer's update. A micro-batch takes the smooth maximum of its work (matrix
products, and the memory traffic of what lies between them), of its kernel launches and of reading its weights, plus
the exchanges of tensor and expert parallelism. Reinforcement learning adds generation at memory-bandwidth speed. A
whole run adds evaluation, checkpoints and stalls, a job its start-up.
Sources of the forms: Kaplan et al. 2020 (2·N FLOP a token and pass), Narayanan et al. 2021
(arXiv:2104.04473: attention term, bubble (p-1)/(v·m), tensor-parallel volume), Rajbhandari et al. 2020
(arXiv:1910.02054: ZeRO volumes), Pope et al. 2022 (arXiv:2211.05102: decoding reads the weights once a token).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tidegrid.estimators import gpus as sheets
from tidegrid.estimators.training.features import Runs


@dataclass(frozen=True)
class Constant:
    """A constant of the physics: where calibration starts from, and how far it may be pulled from there.

    Parameters
    ----------
    start
        The value before any calibration.
    spread
        The standard deviation of its logarithm before any calibration.
    doc
        What it is, and where its start comes from.
    """

    start: float
    spread: float
    doc: str


CONSTANTS: dict[str, Constant] = {
    "efficiency": Constant(
        0.75, 0.10, "share of the attainable matmul speed in a large step (PaLM, MegatronLM papers)"
    ),
    "narrow": Constant(0.60, 0.40, "share of a narrower format's faster products that a step attains"),
    "launch": Constant(
        5e-4, 0.50, "seconds of kernel launches for a layer and pass (about 30 kernels of 10-20 µs)"
    ),
    "traffic": Constant(
        45.0,
        0.40,
        "bytes that norms, residuals and activations move for a token, layer, pass and unit of width "
        "(34 are kept for the backward pass, Korthikanti et al. 2022)",
    ),
    "tokens": Constant(
        200.0, 0.50, "tokens of a micro-batch at which matrix products reach half their speed"
    ),
    "attention": Constant(
        0.70, 0.30, "speed of attention products relative to the dense ones (FlashAttention-2)"
    ),
    "recompute": Constant(
        0.85, 0.20, "forward passes that recomputing activations costs (1 in theory, less overlaps)"
    ),
    "recompute_unsaid": Constant(0.20, 0.30, "recomputation of a run that does not say whether it does"),
    "link": Constant(
        0.75, 0.25, "attained share of the link's bandwidth inside a node (nccl-tests: 0.75 to 0.95)"
    ),
    "net": Constant(0.70, 0.50, "attained share of the network's bandwidth across nodes"),
    "exposed": Constant(0.40, 0.50, "share of the gradient exchange that computation does not hide"),
    "gather": Constant(0.40, 0.50, "ZeRO-3 gathers, relative to their volume over the attained bandwidth"),
    "experts": Constant(2.00, 0.30, "slow-down of a mixture of experts' arithmetic: routing and permutation"),
    "expert_tokens": Constant(
        500.0, 0.60, "tokens an expert receives at which its products reach half their speed"
    ),
    "dispatch": Constant(0.50, 0.60, "expert dispatch and combine, relative to their volume"),
    "adapters": Constant(1.15, 0.15, "slow-down of frozen layers by their adapters"),
    "dequantize": Constant(
        5.5,
        0.15,
        "dequantizing 4- or 8-bit weights, relative to its memory traffic (2 to 6 in published pairs)",
    ),
    "padding": Constant(0.40, 0.40, "padding of unpacked batches: 1 + padding · ln(micro-batch)"),
    "document": Constant(
        8192.0,
        0.50,
        "tokens of a usual long document: a pack of short samples masks its attention between them",
    ),
    "pairs": Constant(
        1.35, 0.15, "slow-down of preference pairs beyond their passes: padding to the pair, log-probs"
    ),
    "update": Constant(
        1.0, 0.40, "the optimizer's update, relative to its traffic over the memory bandwidth"
    ),
    "step": Constant(0.01, 0.70, "seconds a step costs besides all that: data, logging, synchronization"),
    "decode": Constant(
        0.60, 0.30, "attained share of the memory bandwidth when decoding (vLLM, TensorRT-LLM)"
    ),
    "decode_launch": Constant(1e-4, 0.50, "seconds of launches for a layer and decoded token"),
    "decode_step": Constant(8e-3, 0.50, "seconds of the host's scheduling for a decoded token of the batch"),
    "tail": Constant(
        2.0, 0.40, "longest over mean response of a batch: the stragglers that a step waits for"
    ),
    "transfer": Constant(1.25, 0.25, "a reinforcement step over its phases: scoring, waiting"),
    "rollout": Constant(
        5.0, 0.70, "seconds a reinforcement step costs besides: weights to the generator, rewards"
    ),
    "sample": Constant(
        0.03, 0.70, "seconds of the host for each rollout of a GPU: tokens, rewards, padding, data"
    ),
    "whole": Constant(
        0.08,
        0.50,
        "evaluation, checkpoints and stalls of a whole run over its steps, for a short one; grows with "
        "ln(1 + GPU-hours / 100) by failures and restarts (published: 1.2 to 1.5 in all)",
    ),
    "arch_Volta": Constant(
        0.75, 0.25, "software of the architecture, relative to Ampere's: no flash attention"
    ),
    "arch_Ada": Constant(0.9, 0.40, "software of the architecture, relative to Ampere's"),
    "arch_Hopper": Constant(1.0, 0.40, "software of the architecture, relative to Ampere's"),
    "arch_Blackwell": Constant(1.0, 0.40, "software of the architecture, relative to Ampere's"),
    "arch_CDNA": Constant(0.9, 0.40, "software of the architecture, relative to Ampere's"),
    "arch_Gaudi": Constant(0.8, 0.40, "software of the architecture, relative to Ampere's"),
    "arch_TPU": Constant(1.1, 0.40, "software of the architecture, relative to Ampere's"),
}
"""Every constant that calibration may move."""

START = {name: constant.start for name, constant in CONSTANTS.items()}

SHARPNESS = 2.0
"""Exponent of the smooth maximum of what may bound a micro-batch: near the crossing both show."""

VOCABULARY = 100_000
"""Entries of a vocabulary: the traffic of the logits, where nothing says otherwise."""

STARTUP_S = 90.0
"""Seconds before the first step of a job: container, libraries, data, process groups."""

LOAD_BYTES_S = 2e9
"""Bytes a second at which a node reads a model's weights from shared storage."""

OVERLAPPING = ("Hopper", "Blackwell")
"""Architectures whose software hides the sums of tensor parallelism behind products (Transformer Engine's overlap)."""

BOUNDS = ("arithmetic", "memory", "overhead", "network", "generation")
"""What may bound a step."""


@dataclass
class Terms:
    """What a run consists of; arrays of shape (rows,), seconds of wall-clock over the whole run unless said.

    ``seconds`` is what the row's hours cover: ``steps_s`` (pure steps), with ``whole`` (evaluation, checkpoints,
    stalls) and ``startup`` where it covers them. ``bound`` holds the seconds that each of :data:`BOUNDS` would take
    alone; ``launch_ratio`` is the launches of a micro-batch over its arithmetic.
    """

    seconds: np.ndarray
    steps_s: np.ndarray
    whole: np.ndarray
    startup: np.ndarray
    flops: np.ndarray
    train_flops: np.ndarray
    attention_flops: np.ndarray
    recompute_flops: np.ndarray
    extra_flops: np.ndarray
    bound: dict[str, np.ndarray]
    bubble: np.ndarray
    update: np.ndarray
    steps: np.ndarray
    padded: np.ndarray
    launch_ratio: np.ndarray

    def utilization(self, runs: Runs) -> np.ndarray:
        """Return model FLOPs utilization: the FLOPs of the passes over what the GPUs could do in that time."""
        return np.asarray(self.train_flops / np.maximum(self.steps_s * runs.gpus * runs.peak, 1e-9))


def _arch(constants: Mapping[str, float]) -> np.ndarray:
    return np.array([constants.get(f"arch_{arch}", 1.0) for arch in sheets.ARCHS])


def terms(r: Runs, c: Mapping[str, float]) -> Terms:
    """Return the terms of each run.

    Parameters
    ----------
    r
        The runs.
    c
        The constants, by the names of :data:`CONSTANTS`.
    """
    lora, qlora, moe = r.lora, r.qlora, r.moe
    recompute = np.where(np.isnan(r.checkpointing), c["recompute_unsaid"], r.checkpointing * c["recompute"])
    # passes over a token, in forward passes of the trained model
    own = 1.0 + r.backward + recompute + r.policy_forward
    aux = r.aux_forward * r.aux / r.params * (1.0 + r.aux_trained * 2.0)
    passes = own + aux
    steps = r.tokens / (r.batch * r.mean_seq)
    # unpacked samples are padded to the longest of their micro-batch, never beyond the longest allowed
    longest = np.minimum(
        1.0 + c["padding"] * np.log(np.maximum(r.micro, 1.0)), np.maximum(r.seq / r.mean_seq, 1.0)
    )
    padded = np.where((r.packing > 0.5) | r.rl, 1.0, longest) + r.virtual / r.mean_seq
    micro_tokens = r.micro * r.mean_seq * padded / r.cp
    ranks = r.tp * r.pp

    # arithmetic and memory traffic of one micro-batch on one stage and tensor-parallel rank
    linear = 2.0 * r.active * passes
    context = np.where(r.rl, r.mean_seq, np.minimum(r.seq, r.mean_seq * padded))
    posttrained = ~r.cpt & ~r.rl
    # samples that are said to share a sequence do not see each other; a sequence may be one long sample otherwise
    context = np.where(posttrained & r.shared, np.minimum(context, c["document"]), context)
    attention = 2.0 * r.layers * r.hidden * context * passes
    speed = r.peak * r.reach * c["efficiency"] * _arch(c)[r.arch]
    format_gain = np.select([r.narrow == 2, r.narrow == 1, r.narrow < 0], [4.0, 2.0, 0.5], 1.0)
    gain = np.where(format_gain > 1, 1.0 + (format_gain - 1.0) * c["narrow"], format_gain)
    filled = micro_tokens / (micro_tokens + c["tokens"])
    at_expert = micro_tokens * r.ep * r.active / r.params
    slowed = np.where(moe, c["experts"] * (1.0 + c["expert_tokens"] / at_expert), 1.0)
    slowed = slowed * np.where(lora, c["adapters"], 1.0) * np.where(r.dpo, c["pairs"], 1.0)
    product = (linear * slowed / gain + attention / c["attention"]) / (speed * filled)
    arithmetic = product * micro_tokens / ranks
    logits = 0.25 * VOCABULARY / (r.layers * r.hidden)
    moved = c["traffic"] * micro_tokens * r.layers * r.hidden * (1.0 + logits) * passes / ranks / r.hbm
    read = 2.0 * r.params * passes / ranks / r.hbm
    # adapters, dequantization, routing and ZeRO-3's gathers of each layer are launches of their own
    gathers = (r.zero >= 3) & (r.dp * r.cp > 1)
    kernels = 1.0 + r.adapter_launches + 0.5 * qlora + 1.0 * moe + 1.0 * gathers
    launches = c["launch"] * r.layers / r.pp * passes * kernels
    # each pass reads the narrow weights and writes and reads them as 16 bits, once a micro-batch however small
    bytes_a_weight = (r.weight_bits / 8.0 + 4.0) * c["dequantize"] * qlora + 16.0 * r.adapter_passes
    reformed = bytes_a_weight * (1.0 + r.backward + recompute) * r.params / ranks / r.hbm
    # a GPU that waits for launches reforms weights meanwhile
    working = arithmetic + moved + reformed
    micro = (working**SHARPNESS + launches**SHARPNESS + read**SHARPNESS) ** (1.0 / SHARPNESS)

    link, net = r.link * c["link"], np.minimum(r.link * c["link"], r.net * c["net"])
    wire = 2.0 * micro_tokens * r.hidden * r.layers / r.pp  # bytes of the activations of a stage
    tensor = np.where(r.tp > 1, 4.0 * (1.0 + 0.5 * recompute) * wire * 2.0 * (r.tp - 1) / r.tp, 0.0)
    tensor = tensor / np.where(r.tp <= r.node, link, net)
    tensor = tensor * np.where(np.array([a in OVERLAPPING for a in sheets.ARCHS])[r.arch], c["exposed"], 1.0)
    # keys and values go around a ring while attention runs on those that have arrived (Liu et al., arXiv:2310.01889)
    around = c["exposed"] * 2.0 * wire / np.where(r.tp * r.cp <= r.node, link, net)
    context_exchange = np.where(r.cp > 1, around, 0.0)
    # top-8 routing, out and back, forward and backward
    routed = moe & ((r.ep > 1) | ((r.zero < 3) & (r.gpus > 1)))
    across_experts = np.where(r.ep <= r.node, link, net)
    dispatch = np.where(routed, 4.0 * 8.0 * wire / r.tp / across_experts * c["dispatch"], 0.0)
    replicas = r.dp * r.cp
    # a ring through several GPUs of a node leaves it by all network cards (NCCL): between one and one a GPU
    cards = np.sqrt(np.maximum(1.0, np.minimum(r.node, r.gpus) / r.tp))
    across = np.where(r.gpus <= r.node, link, np.minimum(link, net * cards))
    shard = 2.0 * r.params / ranks  # bytes of a rank's weights
    trained = np.where(lora, np.minimum(r.trainable / r.params, 1.0), 1.0)
    share = (replicas - 1) / replicas
    held = np.where(lora, r.weight_bits / 16.0, 1.0)
    gather = c["gather"] * (2.0 + trained) * shard * held * share / across
    gather = np.where((r.zero >= 3) & (replicas > 1), gather, 0.0)
    busy = micro + tensor + context_exchange + dispatch
    # gathers overlap with computation: the longer one shows, and a third of the shorter
    micro_time = np.maximum(busy, gather) + 0.3 * np.minimum(busy, gather)
    # weights kept by the host pass PCIe, 10 GB/s attained
    micro_time = micro_time + np.where(r.offload, 2.0 * r.params / r.gpus / 10e9, 0.0)
    count = np.maximum(1.0, r.batch / (r.dp * r.micro))
    bubble = (r.pp - 1.0) / r.vp * micro_time
    expert_copies = np.where(moe, np.maximum(1.0, np.minimum(r.ep, replicas)), 1.0)
    reduced = c["exposed"] * 2.0 * shard / expert_copies * trained * share / across
    reduced = np.where((r.zero < 3) & (replicas > 1), reduced, 0.0)
    owners = ranks * np.where(r.zero >= 1, replicas, expert_copies)
    update = c["update"] * (12.0 + 2.0 * r.optimizer_bytes) * r.trainable / owners / r.hbm
    training = count * micro_time + bubble + reduced + update + c["step"]

    decoding, scheduling = _generation(r, c, speed) if r.rl.any() else (0.0, 0.0)
    generation = np.where(r.rl, decoding + scheduling + c["rollout"] + c["sample"] * r.batch / r.gpus, 0.0)
    steps_s = np.where(r.rl, (training + generation) * c["transfer"], training) * steps
    # failures, restarts and repeated work grow with the size of a run
    gpu_hours = steps_s * r.gpus / 3600.0
    whole = np.where(r.covers < 2, c["whole"] * (1.0 + np.log1p(gpu_hours / 100.0)), 0.0) * steps_s
    loading = 2.0 * r.params / np.maximum(1.0, r.gpus / r.node) / LOAD_BYTES_S
    startup = np.where(r.covers < 1, STARTUP_S + loading, 0.0)
    exchange = (tensor + context_exchange + dispatch + np.maximum(micro_time - busy, 0.0)) * count + reduced
    bound = dict(zip(BOUNDS, (
        arithmetic * count * steps, ((np.maximum(moved, read) + reformed) * count + update) * steps,
        (launches * count + c["step"]) * steps, exchange * steps, generation * steps,
    ), strict=True))  # fmt: skip
    return Terms(
        seconds=steps_s + whole + startup, steps_s=steps_s, whole=whole, startup=startup,
        flops=(linear + attention) * r.tokens,
        train_flops=2.0 * (1.0 + r.backward) * (r.active + r.layers * r.hidden * context) * r.tokens,
        attention_flops=attention * r.tokens, recompute_flops=2.0 * r.active * recompute * r.tokens,
        extra_flops=2.0 * r.active * (r.policy_forward + aux) * r.tokens, bound=bound, bubble=bubble * steps,
        update=update * steps, steps=steps, padded=padded, launch_ratio=launches / (arithmetic + moved),
    )  # fmt: skip


def _generation(r: Runs, c: Mapping[str, float], speed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the seconds that one step decodes, and those that the host schedules the decoding.

    A replica of the model on g GPUs decodes its share of the batch in lock step: each of the (longest) response's
    tokens reads the weights once and the keys and values of every live sequence, and costs its launches and the host's
    scheduling; prompts and tokens cost their arithmetic as well.
    """
    weights = 2.0 * r.params
    g = 2.0 ** np.ceil(np.log2(np.maximum(weights / (0.5 * r.memory), 1.0)))
    g = np.minimum(g, r.gpus)
    live = r.batch / np.maximum(r.gpus / g, 1.0)
    rounds = np.minimum(r.generated * c["tail"], np.maximum(r.seq, r.generated))
    # a mixture of experts reads every expert once enough sequences are live
    touched = np.minimum(1.0, r.active / r.params * np.maximum(live, 1.0))
    read = weights * touched / (g * r.hbm * c["decode"])
    kv = 2.0 * 2.0 * r.layers * r.hidden / 4.0  # bytes a token; grouped queries keep a quarter
    cached = live * r.generated * r.mean_seq / 2.0 * kv / (g * r.hbm * c["decode"])
    compute = live * r.mean_seq * 2.0 * r.active / (g * speed * 0.5)
    return rounds * read + cached + compute, rounds * (c["decode_launch"] * r.layers + c["decode_step"])
