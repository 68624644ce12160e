"""Memory of a training run on one GPU, and whether it fits.

Mixed-precision states take 2 bytes a weight, 2 a gradient, 4 a master weight and the optimizer's own (8 for Adam), each
divided as ZeRO and the parallel layout divide it (Rajbhandari et al. 2020, arXiv:1910.02054, section 3). Activations
take 34 bytes a token, layer and dimension without recomputation and with fused attention, 2 with it plus one layer at
work (Korthikanti et al. 2022, arXiv:2205.05198, section 4). Where a request does not say its layout or whether it
recomputes, the most sparing choice counts: only what cannot run at all is refused.
"""

from dataclasses import dataclass

import numpy as np

from tidegrid.estimators.training.features import Runs

CONTEXT_GIB = 1.5
"""What the driver, the libraries and the communication buffers take of a GPU."""

USABLE = 0.97
"""Share of the memory that allocators can really use."""

VOCABULARY = 64_000
"""Entries of a vocabulary whose logits are held at once, where nothing says otherwise."""

GIB = 2.0**30


@dataclass
class Memory:
    """GiB of one GPU, arrays of shape (rows,)."""

    weights: np.ndarray
    gradients: np.ndarray
    optimizer: np.ndarray
    auxiliary: np.ndarray
    activations: np.ndarray
    available: np.ndarray

    @property
    def total(self) -> np.ndarray:
        """All parts together, with what the driver takes."""
        parts = self.weights + self.gradients + self.optimizer + self.auxiliary + self.activations
        return np.asarray(parts + CONTEXT_GIB)


def needed(r: Runs) -> Memory:
    """Return what each run needs on its fullest GPU."""
    sparing = r.assumed_layout
    ranks = r.tp * r.pp
    replicas = np.maximum(1.0, np.floor(r.gpus / ranks))
    # experts are spread over the expert-parallel ranks, the rest of the model is not
    dense, expert = np.minimum(r.active, r.params), np.maximum(r.params - r.active, 0.0)
    spread = np.maximum(1.0, np.minimum(r.ep, r.gpus / r.pp))
    held = np.where(r.ep > 1, dense / ranks + expert / (r.pp * np.maximum(spread, r.tp)), r.params / ranks)
    held = np.where(sparing | (r.zero >= 3), r.params / r.gpus, held)
    bits = np.where(r.lora, np.where(np.nan_to_num(r.narrow) >= 1, 8.0, r.weight_bits), 16.0)
    weights = held * bits / 8.0 * np.where(bits < 16, 1.1, 1.0)
    owners = np.where(sparing, r.gpus, ranks * np.where(r.zero >= 1, replicas, 1.0))
    graded = np.where(sparing, r.gpus, ranks * np.where(r.zero >= 2, replicas, 1.0))
    gradients = 2.0 * np.minimum(r.trainable / graded, np.where(r.lora, r.trainable, held))
    # pure bf16 training keeps no master weights and its optimizer's states in 16 bits
    states = np.where(sparing & ~r.lora, r.optimizer_bytes / 2.0, 4.0 + r.optimizer_bytes)
    optimizer = states * np.minimum(r.trainable / owners, np.where(r.lora, r.trainable, held))
    offloaded = r.offload
    weights, optimizer = np.where(offloaded, weights * 0.1, weights), np.where(offloaded, 0.0, optimizer)
    # adapters switched off are the reference; other frozen models are sharded over the job's GPUs
    models = np.where(r.lora, np.maximum(r.aux - r.params, 0.0), r.aux)
    auxiliary = np.where(r.rl | r.dpo, 2.0 * models * (1.0 + 3.0 * r.aux_trained * ~r.lora) / r.gpus, 0.0)
    tokens = np.minimum(r.micro, np.where(sparing, 1.0, r.micro)) * np.minimum(r.seq, 131072.0) / r.cp
    tokens = np.where(sparing, tokens / np.minimum(r.gpus, np.maximum(1.0, r.seq / 4096.0)), tokens)
    layer = tokens * r.hidden
    kept = np.where(np.isnan(r.checkpointing), 1.0, r.checkpointing)
    stages = np.minimum(r.pp, np.maximum(1.0, r.batch / (r.dp * r.micro)))
    depth = r.layers / r.pp * stages
    activations = np.where(
        kept >= 0.5,
        2.0 * depth * layer / r.tp + 34.0 * layer / r.tp,
        (1.0 - kept) * 18.0 * depth * layer / r.tp,
    )
    logits = 4.0 * np.minimum(tokens, 4096.0) * VOCABULARY / r.tp
    return Memory(
        weights / GIB,
        gradients / GIB,
        optimizer / GIB,
        auxiliary / GIB,
        (activations + logits) / GIB,
        r.memory / GIB,
    )


def feasible(r: Runs) -> tuple[np.ndarray, list[str]]:
    """Return whether each run fits, and why not (empty where it does).

    A GPU type without a data sheet is not refused: nobody knows its memory. Slices of a GPU do not work together
    (NVIDIA MIG user guide: no peer-to-peer between instances).
    """
    m = needed(r)
    apart = (r.part < 1.0) & (r.gpus > 1)
    fits = ((m.total <= USABLE * m.available) | ~r.known_gpu) & ~apart
    reasons = []
    for i, ok in enumerate(fits):
        if ok:
            reasons.append("")
            continue
        if apart[i]:
            reasons.append(f"slices of a GPU do not work together, it asks for {r.gpus[i]:.0f}")
            continue
        parts = {
            "weights": m.weights[i], "gradients": m.gradients[i], "optimizer": m.optimizer[i],
            "auxiliary models": m.auxiliary[i], "activations": m.activations[i],
        }  # fmt: skip
        largest = sorted(parts.items(), key=lambda item: -item[1])[:3]
        told = ", ".join(f"{name} {size:.0f}" for name, size in largest if size >= 0.5)
        reasons.append(
            f"needs about {m.total[i]:.0f} GiB on each of {r.gpus[i]:.0f} GPUs ({told}), they have {m.available[i]:.0f}"
        )
    return np.asarray(fits), reasons
