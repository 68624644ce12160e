"""The documented tables: job history, requests, running jobs and traffic."""

import numpy as np
import pandas as pd

from tidegrid.data.schema import Column, Table

KINDS = ("training", "batch_inference", "quantization")
"""The kinds of batch work; realtime work is an app of the cluster with a traffic series, not a job."""

STATUSES = ("completed", "failed", "cancelled", "timeout", "running")
CENSORED = ("failed", "cancelled", "timeout")
"""The statuses whose duration is only a lower bound of what the job would have taken."""

VARIANTS = tuple(f"{s}_{t}" for s in ("full", "lora") for t in ("sft", "dpo", "rlhf", "rlvr", "cpt"))
"""The training variants: full or LoRA, times the technique."""

_TRAIN, _QUANT, _BATCH = ("training",), ("quantization",), ("batch_inference",)


def _feature(name: str, dtype: str, kinds: tuple[str, ...], doc: str, **more: object) -> Column:
    return Column(name, dtype, kinds=kinds, always=False, doc=doc, **more)  # type: ignore[arg-type]


FEATURES = (
    _feature("variant", "category", _TRAIN, "full or LoRA, and the technique", categories=VARIANTS),
    _feature(
        "precision", "text", (*_TRAIN, *_BATCH), "number format of the arithmetic: bf16, fp16, fp8, int4"
    ),
    _feature(
        "sharding", "text", _TRAIN, "how the model is split: none, ddp, zero1, zero2, zero3, fsdp, tp, pp"
    ),
    _feature("optimizer", "text", _TRAIN, "the optimizer: adamw, adamw8bit, sgd"),
    _feature("model_params_b", "float", KINDS, "parameters of the model", unit="billion parameters", above=0),
    _feature(
        "active_params_b",
        "float",
        KINDS,
        "parameters that one token passes through",
        unit="billion parameters",
        above=0,
    ),
    _feature(
        "trainable_params_b",
        "float",
        _TRAIN,
        "parameters that are updated",
        unit="billion parameters",
        above=0,
    ),
    _feature("num_layers", "int", _TRAIN, "transformer layers", unit="layers", low=1),
    _feature("hidden_size", "int", _TRAIN, "width of the residual stream", unit="dimensions", low=1),
    _feature("seq_len", "int", _TRAIN, "longest sequence of a batch", unit="tokens", low=1),
    _feature(
        "tokens_per_epoch_m",
        "float",
        _TRAIN,
        "tokens of one pass over the data",
        unit="million tokens",
        above=0,
    ),
    _feature("epochs", "float", _TRAIN, "passes over the data", unit="epochs", above=0),
    _feature("global_batch", "int", _TRAIN, "sequences of one optimizer step", unit="sequences", low=1),
    _feature(
        "micro_batch", "int", _TRAIN, "sequences of one forward pass on one GPU", unit="sequences", low=1
    ),
    _feature("gpus_per_node", "int", _TRAIN, "GPUs of one node", unit="GPUs", low=1),
    _feature("lora_rank", "int", _TRAIN, "rank of the adapters; 0 for a full run", unit="dimensions", low=0),
    _feature("grad_checkpointing", "bool", _TRAIN, "whether activations are recomputed"),
    _feature("packing", "bool", _TRAIN, "whether short samples share a sequence"),
    _feature(
        "rollout_tokens",
        "float",
        _TRAIN,
        "tokens generated for a prompt, all samples together",
        unit="tokens",
        low=0,
    ),
    _feature(
        "aux_params_b",
        "float",
        _TRAIN,
        "reference, reward and critic models together",
        unit="billion parameters",
        low=0,
    ),
    _feature("algorithm", "text", _QUANT, "the quantization algorithm: bitsandbytes, awq, gptq or another"),
    _feature("bits", "float", _QUANT, "bits of a weight", unit="bits", above=0, high=16),
    _feature(
        "group_size",
        "float",
        _QUANT,
        "weights that share a scale; -1 for a whole channel",
        unit="weights",
        low=-1,
    ),
    _feature(
        "num_experts", "float", _QUANT, "experts of a layer; 0 or 1 for a dense model", unit="experts", low=0
    ),
    _feature("calib_samples", "float", _QUANT, "calibration samples", unit="samples", low=0),
    _feature("calib_seqlen", "float", _QUANT, "length of a calibration sample", unit="tokens", low=0),
    _feature("prompts", "float", _BATCH, "prompts of the job", unit="prompts", above=0),
    _feature("input_tokens", "float", _BATCH, "mean tokens of a prompt", unit="tokens a prompt", low=0),
    _feature("output_tokens", "float", _BATCH, "mean tokens of an answer", unit="tokens a prompt", low=0),
)
"""The workload features, beside ``gpus`` and ``gpu_type``; columns of history, requests and running jobs alike."""

_WHO = (
    Column("user", "text", doc="who submitted it"),
    Column("group", "text", doc="the team or account that pays"),
    Column("name", "text", doc="the job's name"),
)
_SITE = (
    Column("queue", "text", always=False, doc="partition or queue"),
    Column("cpus", "float", unit="CPUs", low=0, always=False, doc="CPUs asked for"),
    Column("nodes", "float", unit="nodes", low=0, always=False, doc="nodes asked for"),
    Column("mem_mb", "float", unit="MiB", low=0, always=False, doc="memory asked for"),
)
_WALLTIME = Column(
    "requested_walltime_s",
    "float",
    unit="seconds",
    above=0,
    high=1e9,
    doc="the limit that the submitter asked for; empty for none",
)
_JOB_ID = Column("job_id", "id", required=True, doc="the job's id")
_KIND = Column("kind", "category", required=True, categories=KINDS, doc="workload kind")
_SUBMIT = Column("submit_time", "instant", required=True, doc="when it was submitted")
_GPU_TYPE = Column("gpu_type", "text", doc="GPU type; empty where unknown")


def _before(frame: pd.DataFrame, first: str, second: str) -> tuple[np.ndarray, str, str, str]:
    bad = (frame[second] < frame[first]).to_numpy(dtype=bool)
    return bad, second, f"{second} is before {first}", "check both times and their zones"


def _job_rules(frame: pd.DataFrame) -> list[tuple[np.ndarray, str, str, str]]:
    running = (frame["status"] == "running").to_numpy()
    return [
        _before(frame, "submit_time", "start_time"),
        _before(frame, "start_time", "end_time"),
        _before(frame, "submit_time", "end_time"),
        _before(frame, "submit_time", "known_at"),
        (
            running & frame["end_time"].notna().to_numpy(),
            "status",
            "a running job has an end_time",
            "give its final status, or leave end_time empty",
        ),
        (
            ~running & frame["duration_s"].isna().to_numpy(),
            "duration_s",
            "the duration is missing and cannot be worked out",
            "give duration_s (seconds, above 0), or both start_time and end_time",
        ),
    ]


def _request_rules(frame: pd.DataFrame) -> list[tuple[np.ndarray, str, str, str]]:
    gpus, low, high = frame["gpus"], frame["min_gpus"], frame["max_gpus"]
    return [
        ((low > gpus).to_numpy(), "min_gpus", "min_gpus is above gpus", "give min_gpus <= gpus <= max_gpus"),
        ((high < gpus).to_numpy(), "max_gpus", "max_gpus is below gpus", "give min_gpus <= gpus <= max_gpus"),
        _before(frame, "submit_time", "deadline"),
        _before(frame, "earliest_time", "deadline"),
    ]


def _running_rules(frame: pd.DataFrame) -> list[tuple[np.ndarray, str, str, str]]:
    gpus = frame["gpus"].to_numpy()
    rules = [
        (
            (gpus & (gpus - 1)) != 0,
            "gpus",
            "a running block is not a power of two",
            "give the block that the job holds: 1, 2, 4, 8 … GPUs",
        )
    ]
    if len(frame):
        order = frame.sort_values(["pool", "first_gpu"], kind="stable").index.to_numpy()
        ends = (frame["first_gpu"] + frame["gpus"]).to_numpy()[order]
        pools, firsts = frame["pool"].to_numpy()[order], frame["first_gpu"].to_numpy()[order]
        clash = np.zeros(len(frame), dtype=bool)
        clash[order[1:]] = (pools[1:] == pools[:-1]) & (firsts[1:] < ends[:-1])
        rules.append(
            (clash, "first_gpu", "the block overlaps another running job's", "give each GPU to one job")
        )
    return rules


JOBS = Table(
    "job history",
    (
        _JOB_ID,
        _KIND,
        Column("status", "category", required=True, categories=STATUSES, known="end", doc="how it ended"),
        _SUBMIT,
        Column("start_time", "instant", known="start", doc="when it got its GPUs; empty where unknown"),
        Column("end_time", "instant", known="end", doc="when it ended; empty where unknown"),
        Column(
            "duration_s",
            "float",
            unit="seconds",
            above=0,
            high=1e9,
            known="end",
            doc="how long it ran; end minus start where empty",
        ),
        Column("gpus", "int", unit="GPUs", required=True, low=1, doc="GPUs that it held"),
        _GPU_TYPE,
        *_WHO,
        _WALLTIME,
        Column(
            "known_at",
            "instant",
            known="end",
            doc="when the row became known; its end where empty, submit plus duration where no end is known",
        ),
        Column(
            "known_at_estimated",
            "bool",
            known="end",
            doc="whether known_at is submit plus duration because no start is known",
        ),
        Column("raw_status", "text", always=False, known="end", doc="the status in the source's own words"),
        *_SITE,
        *FEATURES,
    ),
    key=("job_id", "submit_time"),
    rules=(_job_rules,),
    doc="One row an attempt: a requeued job is two rows with one id and two submit times.",
)

REQUESTS = Table(
    "requests",
    (
        _JOB_ID,
        _KIND,
        Column("priority", "int", low=1, high=10, default=5, doc="1 (lowest) to 10"),
        _SUBMIT,
        *_WHO,
        Column("gpus", "int", unit="GPUs", required=True, low=1, doc="GPUs asked for"),
        Column("min_gpus", "int", unit="GPUs", low=1, default_from="gpus", doc="fewest GPUs that would do"),
        Column("max_gpus", "int", unit="GPUs", low=1, default_from="gpus", doc="most GPUs that it can use"),
        Column("gpu_type", "text", doc="GPU type that it needs; empty for any"),
        Column("earliest_time", "instant", doc="it may not start before"),
        Column("deadline", "instant", doc="it must have ended by"),
        _WALLTIME,
        Column(
            "duration_s",
            "float",
            unit="seconds",
            above=0,
            high=1e9,
            always=False,
            doc="how long its submitter says that it runs, for reference: estimators do not read it",
        ),
        *_SITE,
        *FEATURES,
    ),
    key=("job_id",),
    rules=(_request_rules,),
    may_be_empty=True,
    doc="The queue: one row a job that waits.",
)

RUNNING = Table(
    "running jobs",
    (
        _JOB_ID,
        _KIND,
        Column("priority", "int", low=1, high=10, default=5, doc="1 (lowest) to 10"),
        Column("pool", "text", required=True, doc="the pool that it runs in"),
        Column("first_gpu", "int", unit="GPU index", required=True, low=0, doc="the first GPU of its block"),
        Column("gpus", "int", unit="GPUs", required=True, low=1, doc="the size of its block, a power of two"),
        Column("submit_time", "instant", doc="when it was submitted; empty where unknown"),
        Column("start_time", "instant", required=True, doc="when it started"),
        *_WHO,
        _GPU_TYPE,
        _WALLTIME,
        *_SITE,
        *FEATURES,
    ),
    key=("job_id",),
    rules=(_running_rules,),
    may_be_empty=True,
    doc="What holds GPUs now, each job on its block.",
)

TRAFFIC = Table(
    "traffic",
    (
        Column("series_id", "id", required=True, doc="the app's series"),
        Column("timestamp", "instant", required=True, doc="the hour's start"),
        Column("value", "float", low=0, doc="demand in that hour; an empty cell is missing, not zero"),
    ),
    key=("series_id", "timestamp"),
    doc="Hourly demand: one row a series and hour.",
)

TABLES = {"jobs": JOBS, "requests": REQUESTS, "running": RUNNING, "traffic": TRAFFIC}
