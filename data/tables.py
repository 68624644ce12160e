"""The documented tables: job history, requests, running jobs and traffic."""

import numpy as np
import pandas as pd

from tidegrid.data.cells import as_text
from tidegrid.data.schema import Column, Table

KINDS = ("training", "batch_inference", "quantization")
"""The kinds of batch work; realtime work is an app of the cluster with a traffic series, not a job."""

STATUSES = ("completed", "failed", "cancelled", "timeout", "running")
CENSORED = ("failed", "cancelled", "timeout")
"""The statuses whose duration is only a lower bound of what the job would have taken."""

VARIANTS = tuple(f"{s}_{t}" for s in ("full", "lora") for t in ("sft", "dpo", "rlhf", "rlvr", "cpt"))
"""The training variants: full or LoRA, times the technique."""

_TRAIN, _QUANT, _BATCH = ("training",), ("quantization",), ("batch_inference",)


MAX_GPUS = 1_000_000
"""The most GPUs of a job, a pool or a cluster that are read."""

MOST = 1e12
"""The largest amount that a feature may have: beyond it, products of features lose their precision."""


def _feature(name: str, dtype: str, kinds: tuple[str, ...], doc: str, **more: object) -> Column:
    if dtype in ("float", "int"):
        more = {"high": MOST} | more
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
    _feature(
        "samples_per_epoch",
        "float",
        _TRAIN,
        "samples of one pass over the data, where tokens are not known",
        unit="samples",
        above=0,
    ),
    _feature(
        "mean_seq_len", "float", _TRAIN, "mean tokens of a sample before padding", unit="tokens", above=0
    ),
    _feature("adapter", "text", _TRAIN, "kind of adapter: lora, dora, ia3, prompt, prefix, oft"),
    _feature("epochs", "float", _TRAIN, "passes over the data", unit="epochs", above=0),
    _feature("global_batch", "int", _TRAIN, "sequences of one optimizer step", unit="sequences", low=1),
    _feature(
        "micro_batch", "int", _TRAIN, "sequences of one forward pass on one GPU", unit="sequences", low=1
    ),
    _feature("gpus_per_node", "int", (*_TRAIN, *_BATCH), "GPUs of one node", unit="GPUs", low=1),
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
    _feature(
        "gpus_per_copy", "int", _BATCH, "GPUs that hold one copy of the model together", unit="GPUs", low=1
    ),
    _feature("cache_gib", "float", _BATCH, "memory of each GPU for keys and values", unit="GiB", low=0),
)
"""The workload features, beside ``gpus`` and ``gpu_type``; columns of history, requests and running jobs alike."""

_WHO = (
    Column("user", "text", doc="who submitted it"),
    Column("group", "text", doc="the team or account that pays"),
    Column("name", "text", doc="the job's name"),
)
_SITE = (
    Column("queue", "text", always=False, doc="partition or queue"),
    Column("qos", "text", always=False, doc="quality of service that it was submitted with"),
    Column("cpus", "float", unit="CPUs", low=0, high=1e9, always=False, doc="CPUs asked for"),
    Column("nodes", "float", unit="nodes", low=0, high=MAX_GPUS, always=False, doc="nodes asked for"),
    Column("mem_mb", "float", unit="MiB", low=0, high=1e12, always=False, doc="memory asked for"),
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
_TENANT = Column("tenant", "text", default_from="group", doc="whose limit in cluster.json it counts against")


def _gpus(name: str, doc: str, **more: object) -> Column:
    return Column(name, "int", unit="GPUs", low=1, high=MAX_GPUS, doc=doc, **more)  # type: ignore[arg-type]


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


def _array_rules(frame: pd.DataFrame) -> list[tuple[np.ndarray, str, str, str]]:
    if "array_limit" not in frame.columns or frame.empty:
        return []
    limit = frame["array_limit"]
    array = frame["array"] if "array" in frame.columns else pd.Series("", index=frame.index)
    first = limit.groupby(array).transform("first")
    fix = "give all jobs of an array one limit"
    return [
        ((limit.notna() & (array == "")).to_numpy(), "array_limit", "there is no array", "name its array"),
        (
            ((array != "") & limit.notna() & (limit != first)).to_numpy(),
            "array_limit",
            "its array has two",
            fix,
        ),
    ]


def _running_rules(frame: pd.DataFrame) -> list[tuple[np.ndarray, str, str, str]]:
    def given(name: str) -> np.ndarray:
        cells = frame[name] if name in frame.columns else pd.Series("", index=frame.index)
        return (as_text(cells) != "").to_numpy(dtype=bool)

    by_node, by_index = given("held"), given("gpu_ids")
    block = (frame["first_gpu"].notna() & frame["gpus"].notna()).to_numpy()
    return [
        (
            ~(by_node | by_index | block),
            "first_gpu",
            "it is not told which GPUs the job holds",
            "give first_gpu and gpus, or gpu_ids, or held",
        ),
        (
            ~by_node & (frame["pool"] == "").to_numpy(),
            "pool",
            "the cell is empty",
            "fill it in, or give held",
        ),
    ]


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
        _gpus("gpus", "GPUs that it held", required=True),
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
        Column(
            "node_list",
            "text",
            always=False,
            known="start",
            doc="the nodes that it ran on, in Slurm's notation",
        ),
        *_SITE,
        *FEATURES,
    ),
    key=("job_id", "submit_time"),
    rules=(_job_rules,),
    may_be_empty=True,
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
        _TENANT,
        _gpus("gpus", "GPUs asked for", required=True),
        _gpus("min_gpus", "fewest GPUs that would do", default_from="gpus"),
        _gpus("max_gpus", "most GPUs that it can use", default_from="gpus"),
        Column("gpu_type", "text", doc="GPU type that it needs; empty for any"),
        Column("earliest_time", "instant", doc="it may not start before"),
        Column("deadline", "instant", doc="it must have ended by"),
        _WALLTIME,
        Column(
            "allowed_pools",
            "text",
            always=False,
            doc="pools that it may run in, with blanks between; empty for any",
        ),
        Column(
            "allowed_nodes",
            "text",
            always=False,
            doc="nodes that it may run on, in Slurm's notation: `a[1-3],v1`; empty for any",
        ),
        Column(
            "after", "text", always=False, doc="ids of the jobs that must have ended, with blanks between"
        ),
        Column("array", "text", always=False, doc="the array of jobs that it belongs to"),
        Column(
            "array_limit",
            "int",
            unit="jobs",
            low=1,
            high=MAX_GPUS,
            always=False,
            doc="the most jobs of its array that run at once",
        ),
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
    rules=(_request_rules, _array_rules),
    may_be_empty=True,
    doc="The queue: one row a job that waits.",
)

RUNNING = Table(
    "running jobs",
    (
        _JOB_ID,
        _KIND,
        Column("priority", "int", low=1, high=10, default=5, doc="1 (lowest) to 10"),
        Column("pool", "text", doc="the pool that it runs in; told by held where empty"),
        Column(
            "first_gpu",
            "int",
            unit="GPU index",
            low=0,
            high=MAX_GPUS,
            doc="the first GPU of its block, where its GPUs are neighbours",
        ),
        _gpus("gpus", "how many GPUs it holds; counted where gpu_ids or held says which"),
        Column(
            "gpu_ids",
            "text",
            always=False,
            doc="indices of its GPUs in the pool, such as `0-3,6`: not first_gpu",
        ),
        Column(
            "held",
            "text",
            always=False,
            doc="its GPUs by node, instead of pool and first_gpu: `a1:0-3,6 a2:0` names indices on each node, "
            "`a1=4 a2=1` numbers of GPUs",
        ),
        Column("submit_time", "instant", doc="when it was submitted; empty where unknown"),
        Column("start_time", "instant", required=True, doc="when it started"),
        *_WHO,
        _TENANT,
        Column("array", "text", always=False, doc="the array of jobs that it belongs to"),
        _GPU_TYPE,
        _WALLTIME,
        *_SITE,
        *FEATURES,
    ),
    key=("job_id",),
    rules=(_running_rules,),
    may_be_empty=True,
    doc="What holds GPUs now, and which.",
)

TRAFFIC = Table(
    "traffic",
    (
        Column("series_id", "id", required=True, doc="the app's series"),
        Column("timestamp", "instant", required=True, doc="the hour's start"),
        Column(
            "value", "float", low=0, high=1e15, doc="demand in that hour; an empty cell is missing, not zero"
        ),
    ),
    key=("series_id", "timestamp"),
    item="series",
    doc="Hourly demand: one row a series and hour.",
)

TABLES = {"jobs": JOBS, "requests": REQUESTS, "running": RUNNING, "traffic": TRAFFIC}
