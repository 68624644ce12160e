"""What is known of each quantization algorithm: minutes a billion parameters, spread, memory; with sources.

To add an algorithm, add an :class:`Algorithm` to ``ALGORITHMS`` (and its other spellings to ``ALIASES``): the
minutes at a few model sizes are enough, the estimator interpolates between them. ``docs/job-estimators.md`` walks
through an example.

Sources of the constants, all published figures:

- GPTQ: Frantar et al., arXiv 2210.17323, table 2 (A100, 128 × 2,048 tokens: 1.3 to 1.7 GPU-minutes a billion
  parameters from 1.7 to 176 billion); vllm-project/llm-compressor, distributed_oneshot.md and runtime.md (8 B: 12
  to 30 minutes; Qwen3-30B-A3B with 128 experts: 237; DeepSeek-R1 with 256: 48 hours); ms-swift (7 B: 15 to 20);
  huggingface/transformers (350 M on a T4: 5 minutes); LlamaFactory issue 8492 (Qwen3-30B-A3B on two RTX 4090:
  over 30 hours), GPTQModel issue 2177 (Qwen3-Next-80B-A3B on an H20: over a day).
- AWQ: casper-hansen/AutoAWQ README (7 B: 10 to 15 minutes; 70 B: about an hour), issues 299 (67 B: 8 hours; Mixtral:
  4 hours) and 701 (32 B on two H100: about an hour); llm-compressor runtime.md (8 B: 30, half of it with half the
  samples, pull request 2029); ms-swift (7 B: 18).
- bitsandbytes: huggingface/blog, overview-quantization-transformers.md (13 B in 4 bits: 38 s); Lightning-AI/lit-llama
  pull request 35 (7 B in 8 bits: 8 s).
- AutoRound: intel/auto-round, step_by_step.md. AQLM: Vahe1994/AQLM README. OmniQuant: OpenGVLab/OmniQuant README.
  VPTQ: the comparison in the RSAVQ paper, table 8. RTN: llm-compressor runtime.md; auto-round, model-free mode.

The median and 90th percentile over all of these are 1.7 and 4.0 GPU-minutes a billion parameters for GPTQ, 7.8 and
58 for mixtures of experts, 2.4 and 7.9 for AWQ, 0.02 and 0.3 for bitsandbytes. Reports by users run slower than what
papers and manuals state, so that the spread between sources is larger than either shows alone.
"""

import re
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Algorithm:
    """One algorithm's timing and memory model.

    Parameters
    ----------
    name
        The canonical name.
    sizes_b, minutes_per_b
        The centres of the tiers (billion parameters) and the GPU-minutes a billion parameters there, on one
        A100-80GB with the reference calibration set; log-linear in between, level beyond.
    between, within
        Standard deviation of the log time between sites and within one.
    tokens
        Calibration tokens of the reference set.
    elastic
        The share of the time that grows in proportion to the calibration tokens.
    overhead_min
        Minutes that every run takes: loading, set-up, saving.
    memory
        GiB a square root of a billion parameters, for those that work block by block: the peak lies between one
        block (which grows with the square root, about) and the whole model.
    whole
        Whether the whole quantized model must be held by the GPUs together.
    experts
        The factor on the time at 8 and at 128 or more experts, the parameters being the same.
    """

    name: str
    sizes_b: tuple[float, ...]
    minutes_per_b: tuple[float, ...]
    between: float = 0.6
    within: float = 0.45
    tokens: float = 128 * 2048
    elastic: float = 0.25
    overhead_min: float = 0.5
    memory: float = 2.5
    whole: bool = False
    experts: tuple[float, float] = (2.0, 4.6)


SIZES_B = (0.5, 1.7, 3.0, 8.0, 14.0, 34.0, 70.0, 180.0, 400.0)
"""The centres of the parameter tiers: under 1, 1–2, 2–5, 5–10, 10–20, 20–50, 50–100, 100–250, over 250 billion."""

EXPERT_TIERS = (1, 8, 128)
"""Mixtures of experts are tiers of their own: 8 experts or so, 128 or more, log-linear in between."""


def _flat(rate: float, small: float) -> tuple[float, ...]:
    # small models pay a fixed cost a layer: the rate rises below 3 billion parameters
    return tuple(rate * (1 + (small - 1) * max(0.0, 1 - size / 3.0) ** 2) for size in SIZES_B)


ALGORITHMS: dict[str, Algorithm] = {
    a.name: a
    for a in (
        Algorithm(
            "gptq",
            SIZES_B,
            (4.0, 2.2, 2.0, 1.8, 1.75, 1.7, 1.65, 1.55, 1.5),
            between=0.66,
            within=0.42,
            elastic=0.25,
            memory=2.5,
        ),
        Algorithm(
            "awq",
            SIZES_B,
            (4.5, 3.0, 2.7, 2.4, 2.4, 2.4, 2.4, 2.4, 2.4),
            between=0.80,
            within=0.42,
            tokens=128 * 512,
            elastic=0.6,
            memory=4.7,
            experts=(2.0, 4.0),
        ),
        Algorithm(
            "bitsandbytes",
            SIZES_B,
            (0.08, 0.04, 0.03, 0.025, 0.025, 0.025, 0.025, 0.025, 0.025),
            between=0.9,
            within=0.5,
            elastic=0.0,
            overhead_min=0.02,
            whole=True,
            experts=(1.0, 1.2),
        ),
        Algorithm(
            "autoround",
            SIZES_B,
            _flat(1.65, 3.0),
            tokens=128 * 2048,
            elastic=0.9,
            memory=6.0,
            experts=(0.6, 2.0),
        ),
        Algorithm(
            "autoround-best",
            SIZES_B,
            _flat(7.8, 1.5),
            tokens=512 * 2048,
            elastic=0.9,
            memory=6.0,
            experts=(0.6, 2.0),
        ),
        Algorithm(
            "autoround-light",
            SIZES_B,
            _flat(0.6, 3.0),
            tokens=128 * 2048,
            elastic=0.9,
            memory=6.0,
            experts=(0.6, 2.0),
        ),
        Algorithm(
            "rtn",
            SIZES_B,
            _flat(0.12, 2.0),
            between=1.0,
            within=0.6,
            elastic=0.0,
            memory=1.0,
            experts=(1.0, 1.2),
        ),
        Algorithm("omniquant", SIZES_B, _flat(11.0, 1.5), elastic=0.9, memory=5.0, experts=(0.8, 2.0)),
        Algorithm("vptq", SIZES_B, _flat(17.0, 1.5), memory=6.0),
        Algorithm("aqlm", SIZES_B, _flat(220.0, 1.2), tokens=1024 * 4096, elastic=0.7, memory=6.0),
        # nobody has timed it: somewhere between rounding to nearest and training
        Algorithm("other", SIZES_B, _flat(3.0, 2.0), between=1.6, within=0.6, memory=4.7),
    )
}
"""The algorithms with constants; ``other`` answers for every name that is not among them."""

COMMON = ("gptq", "awq", "bitsandbytes")
"""The algorithms that many have timed: their spreads are calibrated together, apart from all others'."""

ALIASES = {
    "bnb": "bitsandbytes",
    "nf4": "bitsandbytes",
    "llmint8": "bitsandbytes",
    "qlora": "bitsandbytes",
    "gptqmodel": "gptq",
    "autogptq": "gptq",
    "autoawq": "awq",
    "llmcompressorgptq": "gptq",
    "llmcompressorawq": "awq",
    "autoroundbest": "autoround-best",
    "autoroundlight": "autoround-light",
    "autorounddefault": "autoround",
    "rtnmodelfree": "rtn",
}


@lru_cache(maxsize=1024)
def find(name: str) -> Algorithm:
    """Return the algorithm of this name, however it is spelled; ``other`` for one that nobody has timed.

    A longer name is that of the one algorithm among its words: ``"GPTQ-int4"``, ``"bitsandbytes NF4"``; where it has
    words of two, as ``"AWQ+GPTQ"``, it is neither.
    """
    known = {_squeezed(a.name): a.name for a in ALGORITHMS.values()} | ALIASES
    if _squeezed(name) in known:
        return ALGORITHMS[known[_squeezed(name)]]
    words = {known[word] for word in re.split(r"[^a-z0-9]+", name.lower()) if word in known}
    return ALGORITHMS[words.pop() if len(words) == 1 else "other"]


def _squeezed(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
