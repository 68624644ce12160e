"""Parallel layouts: read from a sharding text, or chosen as an engineer would where a request does not say."""

import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np


@dataclass(frozen=True)
class Layout:
    """A parallel layout read from text; 0 is "not said"."""

    tp: int = 0
    pp: int = 0
    cp: int = 0
    ep: int = 0
    vp: int = 0
    dp: int = 0
    zero: int = -1
    offload: bool = False
    guessed: bool = False


@lru_cache(maxsize=4096)
def layout(text: str) -> Layout:
    """Read a sharding text: ``TP2 DP2 PP2``, ``zero3_offload``, ``FSDP``, ``ddp``; unknown words say nothing."""
    lowered = text.lower()
    found = dict(re.findall(r"(?<![a-z])(tp|pp|cp|ep|vp|vpp|fsdp|dp|zero)[-_= ]?(\d+)", lowered))
    size = {key: int(value) for key, value in found.items() if 0 < int(value) < 100_000}
    zero, guessed = -1, False
    if "shard_grad" in lowered:
        zero = 2
    elif size.get("zero", 0) in (1, 2, 3):
        zero = size["zero"]
    elif size.get("fsdp", 0) > 1 or ("full_shard" in lowered) or re.search(r"(fsdp|hsdp)(?!\d)", lowered):
        zero = 3
    elif any(key in size for key in ("tp", "pp", "dp")):
        zero, guessed = 1, True
    elif re.search(r"\bddp\b", lowered):
        zero = 0
    return Layout(
        size.get("tp", 0), size.get("pp", 0), size.get("cp", 0), size.get("ep", 0),
        size.get("vp", size.get("vpp", 0)), size.get("dp", 0), zero, "offload" in lowered, guessed,
    )  # fmt: skip


def planned(
    given: dict[str, np.ndarray], gpus: np.ndarray, node: np.ndarray, batch: np.ndarray, memory: np.ndarray,
    held: np.ndarray, whole: np.ndarray, params: np.ndarray, rl: np.ndarray,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Return the layout, chosen as an engineer would where it is not said.

    One copy a GPU where a whole copy fits; else ZeRO-3 up to 34 billion parameters; above, or where there are more
    GPUs than sequences in a batch, tensor parallel inside the node until weights and gradients fit half the memory,
    then pipeline stages, then context parallel for GPUs that would have no sequence.
    """
    silent = (given["zero"] < 0) & (given["tp"] == 0) & (given["pp"] == 0)
    # "DP1 PP16" on 64 GPUs leaves 4 for tensor parallelism, "DP16 TP4" on 128 leaves 2 stages
    rest = np.floor(gpus / np.maximum(given["dp"] * np.maximum(given["cp"], 1.0), 1.0))
    left = rest / np.maximum(given["tp"], 1.0) / np.maximum(given["pp"], 1.0)
    whole_left = (given["dp"] > 0) & (left >= 2) & (left == np.floor(left))
    given = dict(given)
    given["tp"] = np.where(whole_left & (given["tp"] == 0) & (given["pp"] > 0), left, given["tp"])
    given["pp"] = np.where(whole_left & (given["pp"] == 0) & (given["tp"] > 0), left, given["pp"])
    fits = whole < 0.7 * memory
    split = silent & (((params > 34e9) & (whole > 0.7 * memory)) | (gpus > batch)) & ~rl
    tp = np.maximum(given["tp"], 1.0)
    pp, cp = np.maximum(given["pp"], 1.0), np.maximum(given["cp"], 1.0)
    for _ in range(3):
        wanting = (
            split & ((held / tp > 0.5 * memory) | (gpus / tp > batch)) & (tp * 2 <= np.minimum(node, 8.0))
        )
        tp = np.where(wanting & (tp * 2 <= gpus), tp * 2, tp)
    for _ in range(4):
        wanting = split & (held / (tp * pp) > 0.5 * memory) & (tp * pp * 2 <= gpus)
        pp = np.where(wanting, pp * 2, pp)
    for _ in range(6):
        wanting = split & (gpus / (tp * pp * cp) > batch) & (tp * pp * cp * 2 <= gpus)
        cp = np.where(wanting, cp * 2, cp)
    zero = np.where(given["zero"] >= 0, given["zero"], np.where(split, 1.0, np.where(fits, 0.0, 3.0)))
    # a layout that says nothing of ZeRO shards the weights too where they would not fit otherwise
    spread = np.maximum(given["ep"], 1.0)
    zero = np.where((given["guessed"] > 0) & (held / (tp * pp * spread) > 0.95 * memory), 3.0, zero)
    vp = np.where(given["vp"] > 0, given["vp"], np.where(split & (pp > 1), 4.0, 1.0))
    # a block smaller than the layout asks for runs with as much of it as fits
    tp = np.minimum(tp, gpus)
    pp = np.minimum(pp, np.maximum(1.0, np.floor(gpus / tp)))
    cp = np.minimum(cp, np.maximum(1.0, np.floor(gpus / (tp * pp))))
    return {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "ep": given["ep"],
        "vp": vp,
        "zero": zero,
        "assumed": silent.astype(float),
    }
