"""The features of a training run: units, ranges, defaults, and how an absent one is derived."""

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tidegrid.estimators import gpus as sheets
from tidegrid.estimators.base import Feature, checked_features, named_columns, relaxed
from tidegrid.estimators.decoders import shape_of
from tidegrid.estimators.training import variants
from tidegrid.estimators.training.layouts import Layout, layout, planned

COVERS = ("job", "run", "steps")
"""What the hours of a run may cover."""

FEATURES: tuple[Feature, ...] = (
    Feature("variant", "category", categories=variants.NAMES, required=True, doc="full or LoRA, and the technique"),
    Feature("gpu_type", "text", doc="GPU type as the pool names it; a type without a data sheet widens the band"),
    Feature("precision", "text", doc="bf16, fp16, fp32, fp8, mxfp8, nvfp4; int4, nf4, int8 for QLoRA; absent: unknown"),
    Feature(
        "sharding", "text", doc='how the model is split: "zero3", "fsdp", "ddp", "TP2 PP4 CP1 EP8"; absent: derived'
    ),
    Feature("optimizer", "text", default="adamw", doc="adamw, adamw8bit, sgd, adafactor, muon, lion, galore"),
    Feature("model_params_b", "float", "billion parameters", 1e-3, 1e5, required=True, doc="parameters of the model"),
    Feature(
        "active_params_b", "float", "billion parameters", 1e-3, 1e5,
        doc="parameters that one token passes through; absent: all of them (a dense model)",
    ),
    Feature(
        "trainable_params_b", "float", "billion parameters", 0, 1e5,
        doc="parameters that are updated; absent: all (full), or 16·L·h·rank (LoRA on the four attention matrices and "
        "the MLP)",
    ),
    Feature("num_layers", "int", "layers", 1, 10000, doc="transformer layers; absent: from the parameters"),
    Feature("hidden_size", "int", "dimensions", 8, 1e6, doc="width of the model; absent: sqrt(N / 12 L)"),
    Feature("seq_len", "int", "tokens", 1, 1e8, default=2048, doc="longest sequence of a batch"),
    Feature(
        "tokens_per_epoch_m", "float", "million tokens", 0, 1e9, required=True, instead="samples_per_epoch",
        doc="tokens of one pass over the data, padding not counted: all that is trained on, both answers of a pair, "
        "prompts and rollouts",
    ),
    Feature("epochs", "float", "epochs", 0, 1e5, default=1.0, doc="passes over the data"),
    Feature(
        "global_batch", "int", "sequences", 1, 1e8,
        doc="sequences of one optimizer step; absent: 64 and at least 8 a GPU, or 1024 rollouts",
    ),
    Feature(
        "micro_batch", "int", "sequences", 1, 1e6,
        doc="sequences of one forward pass on one GPU; absent: about 4096 tokens, 2048 for LoRA",
    ),
    Feature("gpus", "int", "GPUs", 1, 1e6, required=True, doc="GPUs that the job holds"),
    Feature("gpus_per_node", "int", "GPUs", 1, 4096, doc="GPUs of one node; absent: the GPU type's usual server"),
    Feature("lora_rank", "int", "dimensions", 0, 65536, doc="rank of the adapters; absent: 16 for LoRA"),
    Feature("grad_checkpointing", "bool", low=0, high=1, doc="whether activations are recomputed; absent: unknown"),
    Feature(
        "packing", "bool", low=0, high=1,
        doc="whether short samples share a sequence; absent: yes, unless samples_per_epoch or mean_seq_len says how "
        "short they are",
    ),
    Feature("rollout_tokens", "float", "tokens", 0, 1e9, doc="tokens generated for a prompt, all samples together"),
    Feature(
        "aux_params_b", "float", "billion parameters", 0, 1e5,
        doc="reference, reward and critic models together; absent: 1 (DPO, RLVR) or 3 (RLHF) times the model",
    ),
)  # fmt: skip
"""The 22 features of a training run."""

OPTIONAL: tuple[Feature, ...] = (
    Feature(
        "samples_per_epoch", "float", "samples", 0, 1e12,
        doc="samples (pairs, rollouts) of one pass over the data; read where tokens_per_epoch_m is absent",
    ),
    Feature(
        "mean_seq_len", "float", "tokens", 1, 1e8,
        doc="mean tokens of a sample before padding; absent: the smaller of 0.3·seq_len and 16·√seq_len",
    ),
    Feature(
        "adapter", "text",
        doc="kind of adapter of the LoRA variants: lora, dora, ia3, prompt, prefix, oft, boft, loha, fourierft, …; "
        "absent: lora",
    ),
    Feature(
        "covers", "category", categories=COVERS, default="job",
        doc="what the hours cover: job (start-up, loading, evaluation, checkpoints), run (the training loop with its "
        "evaluation and checkpoints) or steps (optimizer steps alone)",
    ),
)  # fmt: skip
"""Features beyond the 22: what some sites know besides."""

SITE: tuple[Feature, ...] = (
    Feature("user", "text", doc="who submitted it: site offsets"),
    Feature("group", "text", doc="the team or software stack: site offsets"),
    Feature("name", "text", doc="the job's name: recurring jobs lean on their own past"),
)
"""Columns beside the 22 that the site adaptation reads where they are there."""

USUAL_LONG = 16.0
"""Usual mean length of samples over the square root of a long limit (published: 1019 of 4096, 744 and 974 of 1536)."""

_OPTIMIZER_BYTES = {"adamw8bit": 2.0, "adam8bit": 2.0, "sgd": 4.0, "adafactor": 4.0, "muon": 4.0, "lion": 4.0}


@dataclass
class Runs:
    """Training runs as arrays: everything that the physics and the memory model read; shape (rows,) each.

    Parameters in units (not billions), tokens in units, bandwidths in bytes a second, peaks in FLOP a second.
    ``known_gpu`` and ``assumed_layout`` say what was assumed rather than given.
    """

    variant: np.ndarray
    lora: np.ndarray
    rl: np.ndarray
    dpo: np.ndarray
    backward: np.ndarray
    policy_forward: np.ndarray
    aux_forward: np.ndarray
    aux_trained: np.ndarray
    params: np.ndarray
    active: np.ndarray
    trainable: np.ndarray
    layers: np.ndarray
    hidden: np.ndarray
    seq: np.ndarray
    mean_seq: np.ndarray
    tokens: np.ndarray
    batch: np.ndarray
    micro: np.ndarray
    gpus: np.ndarray
    node: np.ndarray
    checkpointing: np.ndarray
    packing: np.ndarray
    shared: np.ndarray
    generated: np.ndarray
    aux: np.ndarray
    weight_bits: np.ndarray
    narrow: np.ndarray
    optimizer_bytes: np.ndarray
    samples: np.ndarray
    virtual: np.ndarray
    adapter_launches: np.ndarray
    adapter_passes: np.ndarray
    covers: np.ndarray
    tp: np.ndarray
    pp: np.ndarray
    cp: np.ndarray
    ep: np.ndarray
    vp: np.ndarray
    dp: np.ndarray
    zero: np.ndarray
    offload: np.ndarray
    arch: np.ndarray
    peak: np.ndarray
    reach: np.ndarray
    memory: np.ndarray
    hbm: np.ndarray
    link: np.ndarray
    net: np.ndarray
    part: np.ndarray
    known_gpu: np.ndarray
    assumed_layout: np.ndarray
    assumed_length: np.ndarray

    def __len__(self) -> int:
        return len(self.gpus)

    @property
    def moe(self) -> np.ndarray:
        """Whether the model is a mixture of experts: a token passes through less than 90 % of it."""
        return np.asarray(self.active < 0.9 * self.params)

    @property
    def cpt(self) -> np.ndarray:
        """Whether it is (continued) pretraining: whole documents fill the sequences."""
        return np.isin(self.variant, [i for i, name in enumerate(variants.NAMES) if name.endswith("_cpt")])

    @property
    def qlora(self) -> np.ndarray:
        """Whether frozen weights are kept in 8 bits or fewer."""
        return np.asarray(self.lora & (self.weight_bits <= 8))


@dataclass
class Table:
    """Checked features as arrays by name: numbers as float64 (NaN is unknown), texts as str objects ("" is unknown)."""

    columns: dict[str, np.ndarray]
    rows: int

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    def take(self, rows: np.ndarray) -> "Table":
        """Return the rows at ``rows``."""
        return Table({name: column[rows] for name, column in self.columns.items()}, len(rows))


def checked(X: pd.DataFrame) -> Table:
    """Return the 22 features and the site columns of ``X``, checked and with defaults.

    Columns that are clean numbers or texts take a short way; anything else goes through the contract's own check, whose
    errors name it.

    Raises
    ------
    InputError
        A required column or cell is missing, or a value is out of range; column and row are named.
    """
    columns: dict[str, np.ndarray] = {}
    slow: list[Feature] = []
    unique = named_columns(X).columns.is_unique
    for declared in FEATURES + OPTIONAL + SITE:
        feature = relaxed(X, declared) if unique else declared
        column: np.ndarray | None
        if unique and feature.name not in X.columns and not feature.required:
            column = _absent(feature, len(X))
        else:
            column = _quick(X[feature.name], feature) if unique and feature.name in X.columns else None
        if column is None:
            slow.append(feature)
        else:
            columns[feature.name] = column
    if slow:
        table = checked_features(X, slow)
        for feature in slow:
            dtype = object if feature.dtype in ("category", "text") else float
            columns[feature.name] = table[feature.name].to_numpy(dtype=dtype)
    return Table(columns, len(X))


def _absent(feature: Feature, rows: int) -> np.ndarray:
    if feature.dtype in ("category", "text"):
        return np.full(rows, feature.default or "", dtype=object)
    return np.full(rows, np.nan if feature.default is None else float(feature.default))


def _quick(raw: pd.Series, feature: Feature) -> np.ndarray | None:
    """Return a clean column at once, or None where it needs a closer look."""
    if feature.dtype in ("category", "text"):
        if isinstance(raw.dtype, pd.CategoricalDtype):
            return None
        text = raw.to_numpy(dtype=object)
        known = feature.categories
        if not all(type(t) is str and t and (not known or t in known) for t in text):
            return None
        return text
    if raw.dtype.kind not in "fiub" or not isinstance(raw.dtype, np.dtype):
        return None
    numbers = raw.to_numpy().astype(float)
    absent = np.isnan(numbers)
    low = -np.inf if feature.low is None else feature.low
    high = np.inf if feature.high is None else feature.high
    with np.errstate(invalid="ignore"):
        fine = np.isfinite(numbers) & (numbers >= low) & (numbers <= high)
    if not (fine | (absent & (not feature.required))).all():
        return None
    return numbers if feature.default is None else np.where(absent, float(feature.default), numbers)


def _texts(column: np.ndarray) -> tuple[np.ndarray, list[str]]:
    texts = column.tolist()
    index = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    return np.array([index[text] for text in texts], dtype=int), list(index)


def _low_bits(text: str) -> float:
    lowered = text.lower()
    if re.search(r"int4|nf4|fp4-dq|4-?bit|awq|gptq(?!.*8)", lowered) and "nvfp4" not in lowered:
        return 4.0
    return 8.0 if re.search(r"int8|8-?bit", lowered) else 16.0


def _narrow(text: str) -> float:
    """Return 2 (4-bit), 1 (fp8), 0 (16-bit), -1 (32-bit) or NaN (not said)."""
    lowered = text.lower()
    if not lowered:
        return float("nan")
    if re.search(r"nvfp4|mxfp4|fp4", lowered):
        return 2.0
    if "fp8" in lowered:
        return 1.0
    return -1.0 if re.search(r"fp32|tf32|float32", lowered) else 0.0


def derive(C: Table, gpu_count: np.ndarray | None = None) -> Runs:
    """Turn checked features into the arrays of the physics, deriving what is absent.

    Parameters
    ----------
    C
        Output of :func:`checked`.
    gpu_count
        GPUs to evaluate instead of the column ``gpus``, shape (rows,).
    """
    number = {f.name: C[f.name] for f in FEATURES + OPTIONAL if f.dtype not in ("category", "text")}
    codes, names = _texts(C["variant"])
    spec = [variants.BY_NAME[name] for name in names]

    def of_variant(get: str) -> np.ndarray:
        return np.array([float(getattr(v, get)) for v in spec] or [0.0])[codes]

    lora, rl = of_variant("lora") > 0, of_variant("generates") > 0
    cpt = np.array([v.technique == "cpt" for v in spec] or [False])[codes]
    dpo = np.array([v.technique == "dpo" for v in spec] or [False])[codes]
    gpu_codes, gpu_names = _texts(C["gpu_type"])
    found = [sheets.find(name) for name in gpu_names] or [(sheets.UNKNOWN, False)]
    known_gpu = np.array([ok for _, ok in found])[gpu_codes]

    def of_gpu(get: str) -> np.ndarray:
        return np.array([float(getattr(g, get)) for g, _ in found])[gpu_codes]

    peak, hbm = of_gpu("tflops"), of_gpu("bandwidth_gb_s")
    reach = np.array([g.reach or sheets.estimated_reach(g.tflops, g.bandwidth_gb_s) for g, _ in found])[
        gpu_codes
    ]
    precision_codes, precisions = _texts(C["precision"])
    bits = np.array([_low_bits(p) for p in precisions] or [16.0])[precision_codes]
    narrow = np.array([_narrow(p) for p in precisions] or [0.0])[precision_codes]
    # a format that the GPU has no units for runs at the speed of bf16
    narrow = np.where((narrow == 2) & (of_gpu("fp4") == 0), 1.0, narrow)
    narrow = np.where((narrow == 1) & (of_gpu("fp8") == 0), 0.0, narrow)
    # parts made for 4- and 8-bit training pretrain in 8 bits where nobody says otherwise
    narrow = np.where(np.isnan(narrow), np.where(cpt & (of_gpu("fp4") > 0), 1.0, 0.0), narrow)

    params = number["model_params_b"] * 1e9
    active = np.minimum(
        np.where(np.isnan(number["active_params_b"]), params, number["active_params_b"] * 1e9), params
    )
    layers, hidden = shape_of(params, active)
    layers = np.where(np.isnan(number["num_layers"]), np.round(layers), number["num_layers"])
    hidden = np.where(
        np.isnan(number["hidden_size"]), np.sqrt(active / (12.0 * layers)), number["hidden_size"]
    )
    rank = np.where(np.isnan(number["lora_rank"]) | (number["lora_rank"] == 0), 16.0, number["lora_rank"])
    adapters = np.minimum(16.0 * layers * hidden * rank, params)
    trainable = np.where(np.isnan(number["trainable_params_b"]), np.where(lora, adapters, params),
                         np.minimum(number["trainable_params_b"] * 1e9, params))  # fmt: skip

    gpus = number["gpus"] if gpu_count is None else np.asarray(gpu_count, dtype=float)
    node = _nodes(number["gpus_per_node"], of_gpu("node"))
    seq = number["seq_len"]
    short = np.isnan(number["tokens_per_epoch_m"]) | (number["mean_seq_len"] < 0.9 * seq)
    packed = np.where(
        np.array([name.endswith("_cpt") for name in names] or [False])[codes] | ~short, 1.0, 0.0
    )
    packing = np.where(np.isnan(number["packing"]), packed, number["packing"])
    generated, mean_seq = _lengths(seq, packing, rl, number["rollout_tokens"], of_variant("fill"),
                                   of_variant("generated_share"), number["mean_seq_len"])  # fmt: skip
    # a sample of a packed run is not a sequence of its batch
    a_sample = np.where(
        np.isfinite(number["mean_seq_len"]), np.minimum(number["mean_seq_len"], seq),
        np.where(rl, mean_seq, usual_length(seq, of_variant("fill"))),
    )  # fmt: skip
    tokens = np.where(
        np.isnan(number["tokens_per_epoch_m"]), number["samples_per_epoch"] * a_sample,
        number["tokens_per_epoch_m"] * 1e6,
    ) * number["epochs"]  # fmt: skip
    adapter_codes, adapters_named = _texts(C["adapter"])
    kinds = [variants.adapter(name) for name in adapters_named] or [variants.ADAPTERS["lora"]]

    def of_adapter(get: str) -> np.ndarray:
        return np.where(lora, np.array([float(getattr(k, get)) for k in kinds])[adapter_codes], 0.0)

    batch = np.where(np.isnan(number["global_batch"]), np.where(rl, 1024.0, np.maximum(64.0, 8.0 * gpus)),
                     number["global_batch"])  # fmt: skip
    aux = np.where(
        np.isnan(number["aux_params_b"]), of_variant("aux_default") * params, number["aux_params_b"] * 1e9
    )
    # adapters switched off are the reference model: its passes cost the same, its weights nothing (see memory.py)
    aux = np.where(lora & (dpo | rl), np.maximum(aux, params), aux)
    optimizer_codes, optimizers = _texts(C["optimizer"])
    state = np.array(
        [_OPTIMIZER_BYTES.get(re.sub(r"[^a-z0-9]", "", o.lower()), 8.0) for o in optimizers] or [8.0]
    )

    text_codes, texts = _texts(C["sharding"])
    said = [layout(text) for text in texts] or [Layout()]

    def of_layout(get: str) -> np.ndarray:
        return np.array([float(getattr(item, get)) for item in said])[text_codes]

    given = {key: of_layout(key) for key in ("tp", "pp", "cp", "ep", "vp", "dp", "zero", "guessed")}
    memory = of_gpu("memory_gib") * 2.0**30
    held = np.where(lora, params * np.minimum(bits, np.where(narrow >= 1, 8.0, 16.0)) / 8.0, 6.0 * params)
    whole = np.where(lora, held, 16.0 * params)
    plan = planned(given, gpus, node, batch, memory, held, whole, params, rl)
    dp = np.maximum(1.0, np.floor(gpus / (plan["tp"] * plan["pp"] * plan["cp"])))
    room = np.maximum(1.0, batch / dp)
    micro_default = np.clip(np.round(np.where(lora, 2048.0, 4096.0) / np.maximum(mean_seq, 1.0)), 1.0, 16.0)
    micro = np.minimum(np.where(np.isnan(number["micro_batch"]), micro_default, number["micro_batch"]), room)
    return Runs(
        variant=codes_to_variants(codes, names), lora=lora, rl=rl, dpo=dpo, backward=of_variant("backward"),
        policy_forward=of_variant("policy_forward"), aux_forward=of_variant("aux_forward"),
        aux_trained=of_variant("aux_trained"), params=params, active=active, trainable=trainable, layers=layers,
        hidden=hidden, seq=seq, mean_seq=mean_seq, tokens=tokens, samples=tokens / a_sample,
        virtual=of_adapter("virtual") * np.where(
            np.isnan(number["trainable_params_b"]), 20.0, np.minimum(trainable / hidden, seq)
        ),
        adapter_launches=of_adapter("launches"), adapter_passes=of_adapter("passes"),
        covers=_covers(C["covers"]),
        batch=batch, micro=micro, gpus=gpus, node=node, checkpointing=number["grad_checkpointing"], packing=packing,
        shared=number["packing"] > 0.5,
        generated=generated, aux=aux, weight_bits=bits, narrow=narrow, optimizer_bytes=state[optimizer_codes],
        tp=plan["tp"], pp=plan["pp"], cp=plan["cp"], ep=np.maximum(plan["ep"], 1.0), vp=plan["vp"], dp=dp,
        zero=plan["zero"], offload=of_layout("offload") > 0,
        arch=np.array([sheets.ARCHS.index(g.arch) for g, _ in found])[gpu_codes], peak=peak * 1e12, reach=reach,
        memory=memory, hbm=hbm * 1e9, link=of_gpu("link_gb_s") * 1e9, net=of_gpu("net_gb_s") * 1e9,
        part=of_gpu("part"), known_gpu=known_gpu, assumed_layout=plan["assumed"] > 0,
        assumed_length=np.isnan(number["mean_seq_len"]) & ((packing < 0.5) | (rl & np.isnan(number["rollout_tokens"]))),
    )  # fmt: skip


def node_sizes(C: Table) -> np.ndarray:
    """Return the GPUs of each row's node, shape (rows,)."""
    codes, names = _texts(C["gpu_type"])
    usual = np.array([float(sheets.find(name)[0].node) for name in names] or [0.0])[codes]
    return _nodes(C["gpus_per_node"], usual)


def _nodes(said: np.ndarray, usual: np.ndarray) -> np.ndarray:
    node = np.where(np.isnan(said), usual, said)
    # a rack-scale system's link reaches beyond its trays
    return np.where(usual > 8, np.maximum(node, usual), node)


def codes_to_variants(codes: np.ndarray, names: list[str]) -> np.ndarray:
    """Return each row's index into ``variants.NAMES``."""
    return np.array([variants.NAMES.index(name) for name in names] or [0])[codes]


def usual_length(seq: np.ndarray, fill: np.ndarray) -> np.ndarray:
    """Return the usual mean length of samples (tokens) whose longest is known.

    A share ``fill`` of short limits; of long ones less and less, since a limit is chosen for the rare long sample.
    """
    return np.asarray(np.where(fill < 1.0, np.minimum(fill * seq, USUAL_LONG * np.sqrt(seq)), seq))


def _covers(column: np.ndarray) -> np.ndarray:
    codes, names = _texts(column)
    return np.array([COVERS.index(name) for name in names] or [0])[codes]


def _lengths(
    seq: np.ndarray,
    packing: np.ndarray,
    rl: np.ndarray,
    rollout: np.ndarray,
    fill: np.ndarray,
    share: np.ndarray,
    said_mean: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the generated tokens of a mean sequence and the mean tokens of a sequence of a batch."""
    samples = np.maximum(1.0, np.ceil(rollout / np.maximum(seq, 1.0)))
    said = np.minimum(rollout / samples, seq)
    spoken = rl & (said > 0)
    mean = np.where(rl | (packing < 0.5), usual_length(seq, fill), seq)
    mean = np.where(spoken, np.minimum(seq, said / np.maximum(share, 0.05)), mean)
    mean = np.where(np.isfinite(said_mean) & (rl | (packing < 0.5)), np.minimum(said_mean, seq), mean)
    generated = np.where(rl, np.where(spoken, np.minimum(said, mean), mean * share), 0.0)
    return generated, np.maximum(mean, 1.0)
