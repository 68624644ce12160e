"""Reader of published timings: one measured run a row, as features and what was measured.

The format is a CSV with the columns source, technique, strategy, model, params_b, seq_len, global_batch, micro_batch,
gpus, gpu_type, nodes, precision, tokens_or_samples_total, tokens_per_s_per_gpu, mfu, duration_h, gpu_hours,
peak_mem_gib, lora_rank, sharding, grad_ckpt, notes. Any of them but ``gpus`` may be missing or empty.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from tidegrid.errors import InputError
from tidegrid.estimators.decoders import shape_of
from tidegrid.estimators.gpus import find
from tidegrid.estimators.training.features import usual_length

COLUMNS = (
    "source", "technique", "strategy", "model", "params_b", "seq_len", "global_batch", "micro_batch", "gpus",
    "gpu_type", "nodes", "precision", "tokens_or_samples_total", "tokens_per_s_per_gpu", "mfu", "duration_h",
    "gpu_hours", "peak_mem_gib", "lora_rank", "sharding", "grad_ckpt", "notes",
)  # fmt: skip

TEXTS = (
    "source",
    "technique",
    "strategy",
    "model",
    "gpu_type",
    "precision",
    "sharding",
    "grad_ckpt",
    "notes",
)

EFFECTIVE = 8.0
"""Independent measurements that a source counts for at most: every source has about one vote."""

REFUSED = ("SUSPECT", "DEGENERATE", "LOWER BOUND", "OOM", "FAILED", "FEASIBILITY ONLY")
"""Flags in ``notes`` of rows that are no usable measurement; LOWER BOUND rows are kept as censored."""

TECHNIQUES: Mapping[str, str] = {
    "pretrain": "cpt", "cpt": "cpt", "sft": "sft", "rm": "sft", "reward": "sft", "orpo": "dpo", "dpo": "dpo",
    "kto": "dpo", "simpo": "dpo", "cpo": "dpo", "rlhf": "rlhf", "ppo": "rlhf", "rlvr": "rlvr", "grpo": "rlvr",
    "dapo": "rlvr", "gkd": "rlvr",
}  # fmt: skip
"""Technique of a row to technique of a variant; the nearest compute model where there is none of its own."""


def source_group(source: pd.Series) -> pd.Series:
    """Return what counts as one source: the repository, with the trailing version of a series dropped.

    ``owner/repo@commit path…`` gives ``owner/repo``; ``mlcommons/training_results_v4.1`` and ``…_v4.0`` are one
    source, since later rounds repeat systems of earlier ones.
    """
    text = source.astype(object).where(source.notna(), "unknown").astype(str)
    return (
        text.str.extract(r"^\s*([^@\s]+)")[0]
        .fillna("unknown")
        .str.replace(r"[_-]v?\d+(\.\d+)*$", "", regex=True)
    )


def _number(text: pd.Series, pattern: str) -> pd.Series:
    return pd.to_numeric(text.str.extract(pattern)[0], errors="coerce")


def read(path: str | Path) -> pd.DataFrame:
    """Read a file of published timings.

    Returns
    -------
    pandas.DataFrame
        One row for each row of the file, on a RangeIndex: the estimator's features; ``group`` (the source, see
        :func:`source_group`); ``tokens`` (of the run); ``actual`` with ``unit`` (``"s"``: seconds of the run,
        ``"tokens/s/GPU"``; NaN and empty where the row measures neither); ``hours`` (what ``actual`` says as hours of
        the run); ``weight`` (1, less for rows that are extrapolated or stand for one study's many); ``flag`` (why a
        row is not scored, empty where it is); ``calibrates`` (whether calibration uses it: scored rows, and those whose
        throughput follows from ``notes``); ``memory_gib`` (peak memory a GPU, where measured); ``observed`` (False
        for a lower bound).

    Raises
    ------
    InputError
        The file cannot be read, is empty, or has no column that says what was measured.
    """
    try:
        raw = pd.read_csv(path, dtype=object, keep_default_na=True)
    except (OSError, UnicodeDecodeError, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"cannot be read ({reason})", file=path, fix="name a CSV of published timings"
        ) from None
    if not {"tokens_per_s_per_gpu", "duration_h", "gpu_hours"} & set(raw.columns):
        raise InputError(
            "has no column that says what was measured", file=path, field="tokens_per_s_per_gpu",
            fix="add tokens_per_s_per_gpu or duration_h",
        )  # fmt: skip
    return frame(raw.reset_index(drop=True))


def frame(raw: pd.DataFrame) -> pd.DataFrame:
    """Return features and measurements of a table in the format of :data:`COLUMNS`; see :func:`read`."""
    d = pd.DataFrame({c: raw[c] if c in raw.columns else pd.Series(np.nan, raw.index) for c in COLUMNS})
    text = {c: d[c].astype(object).where(d[c].notna(), "").astype(str) for c in TEXTS}
    notes = text["notes"]

    def number(column: str) -> pd.Series:
        values = pd.to_numeric(d[column], errors="coerce").astype(float)
        return values.where(np.isfinite(values) & (values > 0))

    out = pd.DataFrame(index=d.index)
    strategy = text["strategy"].str.lower()
    lora = strategy.str.contains("lora|peft|adapter") & ~notes.str.contains(r"table 'Tuners': full")
    technique = text["technique"].str.lower().str.strip().map(TECHNIQUES).fillna("sft")
    out["variant"] = np.where(lora, "lora_", "full_") + technique
    out["gpu_type"] = text["gpu_type"]
    quantized = strategy.where(~notes.str.contains("quantize=bnb.nf4", regex=False), "qlora")
    out["precision"] = _precision(text["precision"], quantized, text["model"])
    out["sharding"] = text["sharding"].where(
        ~text["sharding"].str.contains(r"gen \[|without", regex=True), ""
    )
    out["optimizer"] = "adamw"
    whole, active = _sizes(number("params_b"), text["model"], notes)
    out["model_params_b"], out["active_params_b"] = whole, active
    out["trainable_params_b"] = _number(notes.str.replace(",", ""), r"trainable (\d{3,})") / 1e9
    out["num_layers"] = _number(text["model"], r"\(L(\d+)").fillna(_number(notes, r"N?LAYERS?=(\d+)"))
    out["hidden_size"] = _number(text["model"], r" h(\d+)\)").fillna(_number(notes, r"NHIDDEN=(\d+)"))
    out["adapter"] = notes.str.extract(r"\bmethod ([A-Za-z_0-9]+)")[0].fillna("").where(lora, "")
    gpus = number("gpus").fillna(number("gpu_hours") / number("duration_h")).round().clip(lower=1).fillna(1.0)
    nodes = number("nodes")
    rl = technique.isin(["rlhf", "rlvr"])
    batch = number("global_batch")
    total, samples = _totals(d["tokens_or_samples_total"], notes, batch, number("micro_batch") * gpus)
    length, mean, packing = _sample_lengths(number("seq_len"), notes, total, samples, rl)
    out["seq_len"], out["mean_seq_len"] = length, mean
    out["epochs"] = 1.0
    out["global_batch"], out["micro_batch"] = batch, number("micro_batch")
    out["gpus"] = gpus
    in_node = (gpus / nodes).where((nodes > 0) & (nodes < gpus)).round().clip(lower=1)
    out["gpus_per_node"] = in_node
    out["lora_rank"] = number("lora_rank")
    ckpt = text["grad_ckpt"].str.lower()
    out["grad_checkpointing"] = ckpt.map(
        {"true": 1.0, "full": 1.0, "✔": 1.0, "false": 0.0, "✘": 0.0, "selective": 0.1}
    )
    out["packing"] = packing
    # prompts of these runs are short: most of a sequence is generated
    generated = _number(notes, r"\+ ([\d.]+) generated\)").fillna(0.85 * mean)
    out["rollout_tokens"] = generated.where(rl)
    small = _number(notes, r"OPT-(\d+)M") / 1e3
    out["aux_params_b"] = (whole + 2 * small).where(rl & small.notna())
    out["group"] = source_group(text["source"])

    speed, hours = number("tokens_per_s_per_gpu"), number("duration_h").fillna(number("gpu_hours") / gpus)
    full = length.fillna(2048.0)
    typical = usual_length(full.to_numpy(), np.where(technique == "rlhf", 1.0, 0.3))
    usual = mean.fillna(pd.Series(np.where(packing.eq(0.0) | rl, typical, full), index=d.index))
    total = _tokens(total, samples, speed, hours * 3600.0 * gpus, usual)
    counted = total.isna() & samples.notna()
    timed = hours.notna() & (total.notna() | counted)
    # where a row has no total, its throughput is told on a hundred steps
    nominal = np.where(counted, samples * usual, batch.fillna(64.0) * usual * 100.0)
    out["tokens"] = total.where(timed, pd.Series(nominal, index=d.index)).fillna(
        pd.Series(nominal, index=d.index)
    )
    out["samples_per_epoch"] = samples.where(timed & counted)
    out["tokens_per_epoch_m"] = (out["tokens"] / 1e6).where(out["samples_per_epoch"].isna())
    out["unit"] = np.where(timed, "s", np.where(speed.notna(), "tokens/s/GPU", ""))
    out["actual"] = np.where(timed, hours * 3600.0, speed)
    out["hours"] = np.where(timed, hours, out["tokens"] / (speed * gpus) / 3600.0)
    # a duration is of the loop with its evaluations, unless it was summed from steps; a throughput is of steps
    summed = notes.str.contains(r"\bsum of step|ONE (?:\w+ )?STEP|evals excluded", regex=True)
    out["covers"] = np.where(timed & ~summed, "run", "steps")
    out["memory_gib"] = number("peak_mem_gib")
    flag = pd.Series("", index=d.index)
    for word in REFUSED:
        flag = flag.where(~(notes.str.contains(rf"\b{word}\b") & (flag == "")), word)
    _derive(out, text, notes, whole, gpus, d["mfu"])
    flag = flag.where(~((flag == "") & (out["derived"] != "")), out["derived"])
    flag = flag.where(~((flag == "") & (out["unit"] == "")), "no duration or throughput with its tokens")
    flag = flag.where(~((flag == "") & whole.isna()), "no model size")
    out["observed"] = flag != "LOWER BOUND"
    out["flag"] = flag
    out["calibrates"] = ((flag == "") | (flag == out["derived"])) & out["hours"].gt(0)
    rows = out["group"].map(out.loc[out["calibrates"], "group"].value_counts()).fillna(1.0)
    guessed = notes.str.contains(
        r"\bextrapolated\b|\bEXTRAPOLATED\b|\bapproximate\b|\btokens assumed\b", regex=True
    )
    # rows of one source are not independent: however many, they count as a handful
    out["weight"] = np.where(guessed | (out["derived"] != ""), 0.5, 1.0) * np.minimum(1.0, EFFECTIVE / rows)
    return out


def _derive(
    out: pd.DataFrame,
    text: dict[str, pd.Series],
    notes: pd.Series,
    whole: pd.Series,
    gpus: pd.Series,
    mfu_text: pd.Series,
) -> None:
    """Fill in what ``notes`` say where the columns measure nothing: these rows calibrate, and are not scored.

    ``derived`` says from what: TFLOP/s a GPU, or MFU.
    """
    out["derived"] = ""
    silent = (out["unit"] == "") & whole.notna()
    length = out["seq_len"].fillna(8192.0)
    tflops = _number(notes, r"model TFLOPs/GPU ([\d.]+) \(attention counted\)")
    n = out["active_params_b"].fillna(whole) * 1e9
    layers, hidden = shape_of(n.fillna(1e9).to_numpy(), n.fillna(1e9).to_numpy())
    flops = 6.0 * n + 12.0 * layers * hidden * length
    _put(out, silent & tflops.notna(), "derived from TFLOP/s", tflops * 1e12 / flops, length)
    mfu = _number(mfu_text.astype(str), r"^([\d.]+)")
    peaks = {name: find(name)[0].tflops for name in text["gpu_type"].unique()}
    speed = mfu * text["gpu_type"].map(peaks).astype(float) * 1e12 / flops
    _put(out, (out["unit"] == "") & whole.notna() & mfu.between(0.01, 1.0), "derived from MFU", speed, length)


def _put(out: pd.DataFrame, rows: pd.Series, what: str, speed: pd.Series, length: pd.Series) -> None:
    out.loc[rows, "derived"] = what
    out.loc[rows, "unit"] = "tokens/s/GPU"
    out.loc[rows, "actual"] = speed
    out.loc[rows, "seq_len"] = length
    out.loc[rows, "hours"] = out["tokens"] / (speed * out["gpus"]) / 3600.0


_SUFFIX = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


def _totals(
    total: pd.Series, notes: pd.Series, batch: pd.Series, pass_samples: pd.Series
) -> tuple[pd.Series, pd.Series]:
    """Return the bare total of each row (tokens, perhaps samples), and the samples where they are told as such.

    ``"87543 samples"``; ``"1000 iterations"`` (of one pass on every GPU); ``"1000 steps"`` (of a global batch);
    ``"400 steps x 512 prompts x 16"``. Samples are also the steps that ``notes`` tell, times the global batch.
    """
    text = total.astype(object).where(total.notna(), "").astype(str).str.replace(",", "").str.strip()
    parts = text.str.extract(r"(?i)^([\d.]+(?:e\+?\d+)?)\s*([kmbt]?)\s*(?:tokens)?$")
    bare = pd.to_numeric(parts[0], errors="coerce") * parts[1].str.lower().map(_SUFFIX)
    samples = _number(text, r"(?i)^([\d.]+) samples")
    samples = samples.fillna(_number(text, r"(?i)^([\d.]+) iterations") * pass_samples)
    steps = _number(text, r"(?i)^([\d.]+) steps").fillna(_number(notes, r"(?<![\w.-])(\d{2,}) steps\b"))
    rollouts = (
        text.str.extract(r"^(\d+) steps x (\d+) prompts x (\d+)").astype(float).prod(axis=1, skipna=False)
    )
    samples = samples.fillna(rollouts).fillna(steps * batch)
    return bare.where(np.isfinite(bare) & (bare > 0)), samples.where(np.isfinite(samples) & (samples > 0))


def _sample_lengths(
    length: pd.Series, notes: pd.Series, total: pd.Series, samples: pd.Series, rl: pd.Series
) -> tuple[pd.Series, pd.Series, pd.Series]:
    """Return the longest and the mean length of a sample (NaN: not known), and whether samples are packed."""
    packing = notes.str.extract(r"packing=(True|False)")[0].map({"True": 1.0, "False": 0.0})
    packing = packing.where(~notes.str.contains("padding-free|multipack|padding_free=True", regex=True), 1.0)
    limits = (
        notes.str.extract(r"prompt (\d+),? resp(?:onse)? (?:up to )?(\d+)")
        .astype(float)
        .sum(axis=1, skipna=False)
    )
    length = length.fillna(limits)
    stated = _number(notes, r"avg seq ([\d.]+)").fillna(_number(notes, r"; ([\d.]+) tokens per sample"))
    # tokens and samples together tell the mean; the tokens of a padded count are all as long as the longest
    mean = stated.fillna((total / samples).where((total / samples).between(8, length.fillna(np.inf) * 1.01)))
    short = mean < 0.9 * length.fillna(mean * 2.0)
    packing = packing.fillna(pd.Series(np.where(short & ~rl, 0.0, np.nan), index=length.index))
    # only a mean is known of unpacked samples: the longest is about twice as long
    length = length.fillna(mean * np.where(packing.eq(0.0) | rl, 2.0, 1.0))
    return length, mean.where(packing.ne(1.0) & (mean < 0.97 * length)), packing


def _tokens(
    bare: pd.Series, samples: pd.Series, speed: pd.Series, gpu_seconds: pd.Series, usual: pd.Series
) -> pd.Series:
    """Return the tokens of each run; NaN where the total says something else.

    A bare number is tokens, unless the throughput, or the sheer slowness that it would mean (below 10 tokens a second
    and GPU), says that it counts samples.
    """
    implied = bare / gpu_seconds
    counts = ((speed / implied / usual).between(0.3, 3.0) & (speed / implied > 20)) | (
        speed.isna() & (implied < 10)
    )
    tokens = bare.where(~counts, bare * usual)
    # a throughput and a time tell the tokens of samples
    tokens = tokens.fillna((speed * gpu_seconds).where(samples.notna()))
    # a total that disagrees with the throughput threefold counts something else: the throughput is the measure
    return tokens.where(speed.isna() | gpu_seconds.isna() | (tokens / gpu_seconds / speed).between(1 / 3, 3))


def _sizes(params: pd.Series, model: pd.Series, notes: pd.Series) -> tuple[pd.Series, pd.Series]:
    """Return whole and active parameters (billions), from the columns or else from the model's name."""
    experts = model.str.extract(r"(?i)(?<![a-z0-9])(\d+)x([\d.]+)b(?![a-z])")
    count, each = pd.to_numeric(experts[0]), pd.to_numeric(experts[1], errors="coerce")
    named = _number(model, r"(?i)(?<![a-z0-9.])(\d+(?:\.\d+)?)b(?![a-z])")
    whole = params.fillna(count * each * 0.83).fillna(named)
    # "A3B", "a800m", "moe-7b-1b-active"; two experts of an 8x7B model share their attention
    active = _number(notes, r"active_params_b=([\d.]+)")
    active = active.fillna(_number(model, r"(?i)[-_]a(\d+(?:\.\d+)?)b(?![a-z])"))
    active = active.fillna(_number(model, r"(?i)[-_]a(\d+(?:\.\d+)?)m(?![a-z])") / 1e3)
    active = active.fillna(_number(model, r"(?i)-(\d+(?:\.\d+)?)b-active"))
    active = active.fillna(each * 1.85)
    whole = whole.fillna(active * 5.0)
    return whole, active.where(active < whole)


def _precision(precision: pd.Series, strategy: pd.Series, model: pd.Series) -> pd.Series:
    low = strategy.str.contains("qlora") & ~precision.str.contains(r"int\d|nf4|\dbit", regex=True)
    gptq = model.str.contains(r"(?i)gptq|awq|int4")
    return precision.where(~low, np.where(gptq, "int4 gptq", "nf4"))
