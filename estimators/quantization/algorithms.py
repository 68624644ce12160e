"""What each quantization algorithm does with a model: passes, solved columns, host time, spread, memory; with sources.

To add an algorithm, add an :class:`Algorithm` to ``ALGORITHMS`` (and its other spellings to ``ALIASES``): the counts of
what it does, or only ``rate_s`` where it was timed but not counted. ``docs/job-estimators.md`` walks through an
example.

What the counts follow from:

- GPTQ: Frantar et al., arXiv 2210.17323, algorithm 1, and its implementations: each linear layer sums the outer
  products of its inputs in 32 bits (2·d² FLOP a token), and is solved column by column on the host's clock (some 20
  launches each); two forward passes, in which each sample calls a hook of each layer.
- AWQ: Lin et al., arXiv 2306.00978, and AutoAWQ: 20 scales tried for each group of layers, each by a forward pass of
  the attention or the MLP around it (25 passes of a layer in all); 10 clippings tried, each of which reads the products
  of every weight with 512 tokens. The host clears its caches between the layers.
- bitsandbytes: rounds while it loads; loading is all it does.
- AutoRound: iterations × 8 samples, each a forward and a backward pass (step_by_step.md: 50, 200 and 1,000 iterations).
- OmniQuant: 20 epochs, forward in both precisions and backward.

Published times that the counts were compared with: GPTQ table 2 of the paper (A100: 1.3 to 1.7 GPU-minutes a billion
parameters from 1.7 to 176 billion), vllm-project/llm-compressor distributed_oneshot.md and runtime.md (8 B: 12 to 30
minutes; Qwen3-30B-A3B: 237; DeepSeek-R1: 48 hours), ms-swift (7 B: 15 to 20), huggingface/transformers (350 M on a T4:
5); AWQ casper-hansen/AutoAWQ README (7 B: 10 to 15; 70 B: about an hour), issues 299 (Mixtral: 4 hours) and 701,
llm-compressor (8 B: 30), ms-swift (7 B: 18); bitsandbytes huggingface/blog overview-quantization-transformers.md (13 B
in 4 bits: 38 s), Lightning-AI/lit-llama pull request 35 (7 B in 8 bits: 8 s); intel/auto-round step_by_step.md;
Vahe1994/AQLM README; OpenGVLab/OmniQuant README; the comparison in the RSAVQ paper, table 8 (VPTQ). Reports by users
run slower than what papers and manuals state, so that the spread between sources is larger than either shows alone.
"""

import re
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Algorithm:
    """What one algorithm does, and how far its times scatter.

    Parameters
    ----------
    name
        The canonical name.
    samples, length
        The reference calibration set: sequences, and tokens of each.
    passes
        Forward passes of the model over the calibration set; a backward pass counts as two.
    attained
        Share of the attainable matmul speed in these passes.
    outer
        Whether each linear layer sums the outer products of its inputs in 32 bits.
    column_s
        Seconds of the host for each input column of each linear layer, which are solved one after the other.
    module_s
        Seconds of the host for each linear layer.
    traffic
        Bytes of memory traffic a parameter.
    rate_s
        Seconds a billion parameters that nothing above counts (packing, clustering), on an A100.
    start_s
        Seconds that every run takes: libraries, data, saving.
    between, within
        Standard deviation of the log time between sites and within one.
    memory
        GiB a square root of a billion parameters, for those that work block by block: the peak lies between one
        block (which grows with the square root, about) and the whole model.
    whole
        Whether the whole quantized model must be held by the GPUs together.
    """

    name: str
    samples: float = 128
    length: float = 2048
    passes: float = 0.0
    attained: float = 0.5
    outer: bool = False
    column_s: float = 0.0
    module_s: float = 0.0
    traffic: float = 0.0
    rate_s: float = 0.0
    start_s: float = 30.0
    between: float = 0.6
    within: float = 0.45
    memory: float = 2.5
    whole: bool = False


def _autoround(name: str, iterations: float, samples: float) -> Algorithm:
    passes = 1.0 + 3.0 * 8.0 * iterations / samples
    return Algorithm(name, samples, 2048, passes, 0.75, module_s=1.4e-3 * iterations, memory=6.0)


ALGORITHMS: dict[str, Algorithm] = {
    a.name: a
    for a in (
        # tools take 128 (the paper, AutoGPTQ) to 512 sequences (llm-compressor)
        Algorithm(
            "gptq",
            256,
            2048,
            2.0,
            outer=True,
            column_s=2e-4,
            module_s=0.3,
            rate_s=3.0,
            between=0.62,
            within=0.4,
        ),
        # 128 (AutoAWQ) or 256 (llm-compressor, ms-swift)
        Algorithm(
            "awq",
            256,
            512,
            28.0,
            module_s=1.1,
            traffic=512 * 10 * 6.0,
            rate_s=3.0,
            between=0.68,
            within=0.4,
            memory=4.7,
        ),
        Algorithm("bitsandbytes", start_s=0.5, between=0.6, within=0.4, whole=True),
        _autoround("autoround", 200, 128),
        _autoround("autoround-best", 1000, 512),
        _autoround("autoround-light", 50, 128),
        Algorithm("rtn", rate_s=2.0, between=1.0, within=0.6, memory=1.0),
        Algorithm("omniquant", 128, 2048, 120.0, memory=5.0),
        Algorithm("vptq", rate_s=1000.0, memory=6.0),
        Algorithm("aqlm", 1024, 4096, rate_s=13_000.0, memory=6.0),
        # nobody has timed it: somewhere between rounding to nearest and training
        Algorithm("other", rate_s=180.0, between=1.6, within=0.6, memory=4.7),
    )
}
"""The algorithms with counts; ``other`` answers for every name that is not among them."""

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
