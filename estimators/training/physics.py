"""The physics prior: seconds of a run from FLOPs, bytes and launches, with a few calibrated constants.

One optimizer step is (micro-batches + pipeline bubble) × the time of a micro-batch on a stage, plus what is not hidden
of the gradient exchange, plus the optimizer's update. A micro-batch takes the smooth maximum of its arithmetic and of
its kernel launches, plus the exchanges of tensor and expert parallelism. Reinforcement learning adds generation at
memory-bandwidth speed. Sources of the forms: Kaplan et al. 2020 (2·N FLOP a token and pass), Narayanan et al. 2021
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
        0.70, 0.10, "share of the attainable matmul speed in a large step (PaLM, MegatronLM papers)"
    ),
    "narrow": Constant(
        0.60, 0.25, "share of fp8's doubled peak that a whole step gains (Transformer Engine docs)"
    ),
    "narrow_unsaid": Constant(
        0.30, 0.50, "the same for pretraining on a GPU with fp8 that does not say its precision"
    ),
    "launch": Constant(
        5e-4, 0.50, "seconds of kernel launches for a layer and pass (about 30 kernels of 10-20 µs)"
    ),
    "width": Constant(500.0, 0.50, "model width at which matrix products reach half their speed"),
    "tokens": Constant(
        400.0, 0.50, "tokens of a micro-batch at which matrix products reach half their speed"
    ),
    "sharpness": Constant(2.0, 0.25, "exponent of the smooth maximum of arithmetic and launches"),
    "attention": Constant(
        0.80, 0.30, "speed of attention products relative to the dense ones (FlashAttention-2)"
    ),
    "recompute": Constant(
        0.85, 0.20, "forward passes that recomputing activations costs (1 in theory, less overlaps)"
    ),
    "recompute_unsaid": Constant(0.30, 0.30, "recomputation of a run that does not say whether it does"),
    "link": Constant(0.50, 0.40, "attained share of the link's bandwidth inside a node"),
    "net": Constant(0.70, 0.50, "attained share of the network's bandwidth across nodes"),
    "exposed": Constant(0.40, 0.50, "share of the gradient exchange that computation does not hide"),
    "gather": Constant(0.40, 0.50, "ZeRO-3 gathers, relative to their volume over the attained bandwidth"),
    "experts": Constant(1.50, 0.30, "slow-down of a mixture of experts' arithmetic: routing and permutation"),
    "expert_tokens": Constant(
        300.0, 0.60, "tokens an expert receives at which its products reach half their speed"
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
        8192.0, 0.50, "tokens of attention context in packed fine-tuning: the documents, not the pack"
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
    "decode_launch": Constant(1e-4, 0.50, "seconds of launches and scheduling for a layer and decoded token"),
    "tail": Constant(
        2.0, 0.40, "longest over mean response of a batch: the stragglers that a step waits for"
    ),
    "transfer": Constant(
        1.25, 0.25, "a reinforcement step over its phases: weight transfer, scoring, waiting"
    ),
    "arch_Volta": Constant(
        0.75, 0.15, "software of the architecture, relative to Ampere's: no flash attention"
    ),
    "arch_Ada": Constant(0.95, 0.15, "software of the architecture, relative to Ampere's"),
    "arch_Hopper": Constant(0.95, 0.15, "software of the architecture, relative to Ampere's"),
    "arch_Blackwell": Constant(0.95, 0.15, "software of the architecture, relative to Ampere's"),
    "arch_CDNA": Constant(0.90, 0.20, "software of the architecture, relative to Ampere's"),
    "arch_Gaudi": Constant(0.75, 0.20, "software of the architecture, relative to Ampere's"),
    "arch_TPU": Constant(1.00, 0.20, "software of the architecture, relative to Ampere's"),
}
"""Every constant that calibration may move."""

START = {name: constant.start for name, constant in CONSTANTS.items()}


@dataclass
class Terms:
    """What a run consists of; arrays of shape (rows,), seconds of wall-clock over the whole run unless said.

    ``launch_ratio`` is the launches of a micro-batch over its arithmetic.
    """

    seconds: np.ndarray
    flops: np.ndarray
    train_flops: np.ndarray
    attention_flops: np.ndarray
    recompute_flops: np.ndarray
    extra_flops: np.ndarray
    arithmetic: np.ndarray
    launches: np.ndarray
    exchange: np.ndarray
    bubble: np.ndarray
    update: np.ndarray
    generation: np.ndarray
    steps: np.ndarray
    launch_ratio: np.ndarray

    def utilization(self, runs: Runs) -> np.ndarray:
        """Return model FLOPs utilization: the FLOPs of the passes over what the GPUs could do in that time."""
        return np.asarray(self.train_flops / np.maximum(self.seconds * runs.gpus * runs.peak, 1e-9))


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
    batch_tokens = r.batch * r.mean_seq
    steps = r.tokens / batch_tokens
    padded = np.where(
        r.packing > 0.5, 1.0, np.minimum(1.0 + c["padding"] * np.log(np.maximum(r.micro, 1.0)), 3.0)
    )
    padded = np.where(r.rl, 1.0, padded)
    micro_tokens = r.micro * r.mean_seq * padded / r.cp

    # arithmetic of one micro-batch on one stage and tensor-parallel rank
    linear = 2.0 * r.active * passes
    context = np.where(r.rl, r.mean_seq, np.minimum(r.seq, r.mean_seq * padded))
    posttrained = ~r.cpt & ~r.rl
    context = np.where(posttrained & (r.packing > 0.5), np.minimum(context, c["document"]), context)
    attention = 2.0 * r.layers * r.hidden * context * passes
    speed = r.peak * r.reach * c["efficiency"] * _arch(c)[r.arch]
    wide = np.where(r.narrow == 2, 2.0, np.where(r.narrow == 1, 1.0, 0.0))
    gain = np.where(r.narrow < 0, 0.5, 1.0 + wide * c["narrow"])
    gain = np.where(np.isnan(r.narrow) & r.cpt, 1.0 + c["narrow_unsaid"], gain)
    width = r.hidden / np.sqrt(r.tp)
    filled = width / (width + c["width"]) * micro_tokens / (micro_tokens + c["tokens"])
    at_expert = micro_tokens * r.ep * r.active / r.params
    slowed = np.where(moe, c["experts"] * (1.0 + c["expert_tokens"] / at_expert), 1.0)
    slowed = slowed * np.where(lora, c["adapters"], 1.0)
    slowed = slowed * np.where(r.dpo, c["pairs"], 1.0)
    product = (linear * slowed / gain + attention / c["attention"]) / (speed * filled)
    arithmetic = product * micro_tokens / (r.tp * r.pp)
    # adapters, dequantization and routing are launches of their own
    kernels = 1.0 + 0.5 * lora + 0.5 * qlora + 1.0 * moe
    launches = c["launch"] * r.layers / r.pp * passes * kernels
    power = c["sharpness"]
    micro = (arithmetic**power + launches**power) ** (1.0 / power)
    # each pass reads the narrow weights and writes and reads them as 16 bits, once a micro-batch however small
    traffic = (r.weight_bits / 8.0 + 4.0) * r.params / (r.tp * r.pp)
    dequantize = np.where(qlora, c["dequantize"] * (1.0 + r.backward + recompute) * traffic / r.hbm, 0.0)

    link, net = r.link * c["link"], np.minimum(r.link * c["link"], r.net * c["net"])
    wire = 2.0 * micro_tokens * r.hidden * r.layers / r.pp  # bytes of the activations of a stage
    tensor = np.where(r.tp > 1, 4.0 * (1.0 + 0.5 * recompute) * wire * 2.0 * (r.tp - 1) / r.tp, 0.0)
    tensor = tensor / np.where(r.tp <= r.node, link, net)
    context_exchange = np.where(r.cp > 1, 2.0 * wire / np.where(r.tp * r.cp <= r.node, link, net), 0.0)
    # top-8 routing, out and back, forward and backward
    routed = moe & ((r.ep > 1) | ((r.zero < 3) & (r.gpus > 1)))
    dispatch = np.where(
        routed, 4.0 * 8.0 * wire / r.tp / np.where(r.ep <= r.node, link, net) * c["dispatch"], 0.0
    )
    replicas = r.dp * r.cp
    inside = r.gpus <= r.node
    across = np.where(inside, link, net)
    shard = 2.0 * r.params / (r.tp * r.pp)  # bytes of a rank's weights
    frozen = np.where(lora, np.minimum(r.trainable / r.params, 1.0), 1.0)
    gathered = (r.zero >= 3) & (replicas > 1)
    share = (replicas - 1) / replicas
    gather = np.where(
        gathered, (2.0 + frozen) * shard * np.where(lora, r.weight_bits / 16.0, 1.0) * share / across, 0.0
    )
    gather = gather * c["gather"]
    busy = micro + dequantize + tensor + context_exchange + dispatch
    # gathers overlap with computation: the longer one shows, and a third of the shorter
    micro_time = np.maximum(busy, gather) + 0.3 * np.minimum(busy, gather)
    micro_time = micro_time + np.where(
        r.offload, 2.0 * r.params / r.gpus / 10e9, 0.0
    )  # PCIe, 10 GB/s attained
    count = np.maximum(1.0, r.batch / (r.dp * r.micro))
    bubble = (r.pp - 1.0) / r.vp * micro_time
    expert_copies = np.where(moe, np.maximum(1.0, np.minimum(r.ep, replicas)), 1.0)
    reduced = np.where(
        (r.zero < 3) & (replicas > 1), 2.0 * shard / expert_copies * frozen * share / across, 0.0
    )
    reduced = reduced * c["exposed"]
    owners = r.tp * r.pp * np.where(r.zero >= 1, replicas, expert_copies)
    update = c["update"] * (12.0 + 2.0 * r.optimizer_bytes) * r.trainable / owners / r.hbm
    training = count * micro_time + bubble + reduced + update + c["step"]

    generation = _generation(r, c, speed)
    total = np.where(r.rl, (training + generation) * c["transfer"], training)
    rate = r.tokens
    return Terms(
        seconds=total * steps, flops=(linear + attention) * rate, train_flops=(2.0 * r.active * (1.0 + r.backward)
        + 2.0 * r.layers * r.hidden * context * (1.0 + r.backward)) * rate, attention_flops=attention * rate,
        recompute_flops=2.0 * r.active * recompute * rate, extra_flops=2.0 * r.active * (r.policy_forward + aux) * rate,
        arithmetic=arithmetic * count * steps, launches=launches * count * steps,
        exchange=((tensor + context_exchange + dispatch) * count + np.maximum(micro_time - busy, 0.0) * count + reduced)
        * steps, bubble=bubble * steps, update=(update + c["step"]) * steps,
        generation=np.where(r.rl, generation, 0.0) * steps, steps=steps, launch_ratio=launches / arithmetic,
    )  # fmt: skip


def _generation(r: Runs, c: Mapping[str, float], speed: np.ndarray) -> np.ndarray:
    """Return the seconds that one step generates.

    A replica of the model on g GPUs decodes its share of the batch in lock step: each of the (longest) response's
    tokens reads the weights once and the keys and values of every live sequence, and costs its launches; prompts and
    tokens cost their arithmetic as well.
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
    return np.asarray(rounds * (read + c["decode_launch"] * r.layers) + cached + compute)
