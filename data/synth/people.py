"""Who works on the synthetic cluster, and the recipes that they run again and again."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tidegrid.data.synth.physics import ACTIVATIONS_GB, activations_gb, fewest_gpus, hours_of
from tidegrid.data.tables import VARIANTS


@dataclass(frozen=True)
class Model:
    """A model of the sample: total and active parameters (billions), layers, width, experts."""

    label: str
    params: float
    active: float
    layers: int
    hidden: int
    experts: int = 0


MODELS = (
    Model("1b", 1.2, 1.2, 16, 2048),
    Model("3b", 3.1, 3.1, 28, 3072),
    Model("8b", 8.0, 8.0, 32, 4096),
    Model("14b", 14.2, 14.2, 40, 5120),
    Model("32b", 32.5, 32.5, 64, 5120),
    Model("70b", 70.6, 70.6, 80, 8192),
    Model("30b-a3b", 30.5, 3.3, 48, 2048, 128),
)

TEAMS = {"foundation": 7, "applied": 6, "research": 4, "serving": 8}
"""Teams and their usual priority."""

_TOPICS = ("support", "legal", "code", "summaries", "search", "safety", "math", "triage", "forms", "voice")


@dataclass(frozen=True)
class User:
    """A user: team, how busy, how fast their stack is (a factor on hours), how often their jobs fail."""

    name: str
    team: str
    weight: float
    pace: float
    failures: float


@dataclass(frozen=True)
class Recipe:
    """What a user runs again and again.

    ``base`` are the features that stay, ``gpus`` what is usually asked for, ``weight`` how often it runs, ``pace`` a
    factor on hours that no feature shows, ``spread`` the noise of its hours in logs.
    """

    user: User
    name: str
    kind: str
    base: dict[str, Any] = field(repr=False)
    gpus: int = 1
    weight: float = 1.0
    pace: float = 1.0
    spread: float = 0.15
    gpu_type: str = ""


def people(rng: np.random.Generator, count: int) -> list[User]:
    """Return users of all teams; activity is as uneven as on real clusters."""
    teams = list(TEAMS)
    return [
        User(
            name=f"user{i:02d}",
            team=teams[i % len(teams)],
            weight=float(rng.lognormal(0.0, 0.9)),
            pace=float(rng.lognormal(0.0, 0.12)),
            failures=float(rng.beta(2.0, 16.0)),
        )
        for i in range(1, count + 1)
    ]


def recipes(rng: np.random.Generator, users: list[User], gpu_types: list[str], largest: int) -> list[Recipe]:
    """Return the recipes of all users: every kind, every training variant, every quantization algorithm."""
    out: list[Recipe] = []
    variants = list(VARIANTS)
    algorithms = ["awq", "gptq", "bitsandbytes"]
    for i, user in enumerate(users):
        for j in range(3 if user.weight > 1.0 else 2):
            kind = ("training", "batch_inference", "training", "quantization")[(i + j) % 4]
            n = sum(recipe.kind == kind for recipe in out)
            topic = _TOPICS[int(rng.integers(len(_TOPICS)))]
            if kind == "training":
                base, gpus = _training(rng, variants[n % len(variants)], largest)
                name = f"{base['variant'].replace('_', '-')}-{topic}"
            elif kind == "quantization":
                base, gpus = _quantization(rng, algorithms[n % 3])
                name = f"{base['algorithm']}-{topic}"
            else:
                base, gpus = _batch(rng, largest)
                name = f"batch-{topic}"
            label = base.pop("label")
            job = {"kind": kind, **base}
            gpus = min(max(gpus, fewest_gpus(job)), largest)
            base = _sized(rng, job, gpus)
            out.append(
                Recipe(
                    user=user,
                    name=f"{name}-{label}",
                    kind=kind,
                    base=base,
                    gpus=gpus,
                    weight=user.weight
                    * float(rng.lognormal(0.0, 0.6))
                    * (0.5 if kind == "quantization" else 1.0),
                    pace=user.pace * float(rng.lognormal(0.0, 0.1)),
                    spread=float(rng.uniform(0.06, 0.22)),
                    gpu_type=str(rng.choice(gpu_types)) if rng.random() < 0.45 else "",
                )
            )
    return out


def _model(rng: np.random.Generator, largest_b: float) -> Model:
    fitting = [model for model in MODELS if model.params <= largest_b]
    weights = np.array([1.0, 1.5, 3.0, 1.5, 1.0, 0.6, 0.8])[[MODELS.index(m) for m in fitting]]
    return fitting[int(rng.choice(len(fitting), p=weights / weights.sum()))]


def _training(rng: np.random.Generator, variant: str, largest: int) -> tuple[dict[str, Any], int]:
    strategy, technique = variant.split("_")
    full = strategy == "full"
    # a block of n GPUs of 80 GB trains about 2.4 n billion parameters in full, and holds 12 n frozen
    model = _model(rng, max(1.2, 2.4 * largest if full else 12.0 * largest))
    rank = 0 if full else int(rng.choice([8, 16, 32, 64]))
    trainable = model.params if full else round(model.layers * model.hidden * rank * 14 / 1e9, 4)
    aux = {"dpo": model.params, "rlhf": 1.5 * model.params, "rlvr": model.params}.get(technique, 0.0) * (
        1 if full else 0.1
    )
    rl = technique in ("rlhf", "rlvr")
    gpus = int(rng.choice([1, 2, 4, 8], p=[0.35, 0.3, 0.2, 0.15]))
    seq_len = int(rng.choice([1024, 2048, 4096, 8192], p=[0.2, 0.35, 0.3, 0.15]))
    micro, recompute = int(rng.choice([1, 2, 4, 8])), bool(rng.random() < (0.8 if full else 0.5))
    while activations_gb(model.layers, model.hidden, seq_len, micro, recompute) > ACTIVATIONS_GB:
        micro, recompute = (micro // 2, recompute) if micro > 1 else (1, True)
    return {
        "label": model.label,
        "variant": variant,
        "precision": "bf16",
        "sharding": "zero3" if model.params > (2 if full else 10) else "ddp",
        "optimizer": "adamw8bit" if not full and rng.random() < 0.3 else "adamw",
        "model_params_b": model.params,
        "active_params_b": model.active,
        "trainable_params_b": trainable,
        "num_layers": model.layers,
        "hidden_size": model.hidden,
        "seq_len": seq_len,
        "epochs": float(rng.choice([1.0, 2.0, 3.0], p=[0.5, 0.3, 0.2])) if technique != "cpt" else 1.0,
        "global_batch": int(rng.choice([32, 64, 128, 256])),
        "micro_batch": micro,
        "gpus_per_node": 8,
        "lora_rank": rank,
        "grad_checkpointing": float(recompute),
        "packing": float(rng.random() < 0.6 or technique == "cpt"),
        "rollout_tokens": float(rng.choice([1024, 2048, 4096, 8192])) if rl else 0.0,
        "aux_params_b": round(aux, 3),
        "tokens_per_epoch_m": 1.0,
    }, gpus


def _quantization(rng: np.random.Generator, algorithm: str) -> tuple[dict[str, Any], int]:
    model = _model(rng, 100.0)
    calibrated = algorithm != "bitsandbytes"
    return {
        "label": model.label,
        "algorithm": algorithm,
        "bits": float(rng.choice([4, 8], p=[0.8, 0.2])),
        "group_size": 128.0 if calibrated else 64.0,
        "model_params_b": model.params,
        "active_params_b": model.active,
        "num_experts": float(model.experts),
        "calib_samples": float(rng.choice([128, 256, 512])) if calibrated else 0.0,
        "calib_seqlen": float(rng.choice([1024, 2048])) if calibrated else 0.0,
    }, 1


def _batch(rng: np.random.Generator, largest: int) -> tuple[dict[str, Any], int]:
    model = _model(rng, 30.0 * largest)
    return {
        "label": model.label,
        "model_params_b": model.params,
        "active_params_b": model.active,
        "precision": str(rng.choice(["bf16", "fp8"], p=[0.7, 0.3])),
        "input_tokens": float(rng.integers(200, 4000)),
        "output_tokens": float(rng.integers(50, 900)),
        "prompts": 1000.0,
    }, int(rng.choice([1, 2, 4], p=[0.5, 0.3, 0.2]))


def _sized(rng: np.random.Generator, job: dict[str, Any], gpus: int) -> dict[str, Any]:
    """Choose the amount of work so that the recipe usually takes hours, not seconds and not months."""
    if job["kind"] == "quantization":
        return {name: value for name, value in job.items() if name != "kind"}
    amount = "tokens_per_epoch_m" if job["kind"] == "training" else "prompts"
    median, spread, most = (4.0, 0.9, 30.0) if job["kind"] == "training" else (1.5, 0.8, 12.0)
    wanted = float(np.clip(rng.lognormal(np.log(median), spread), 0.4, most))
    fixed = hours_of({**job, amount: 1e-9}, "A100-SXM-80GB", gpus)
    slope = hours_of({**job, amount: 1e-9 + job[amount]}, "A100-SXM-80GB", gpus) - fixed
    size = max(0.05, (wanted - fixed) / slope) * job[amount]
    base = {name: value for name, value in job.items() if name != "kind"}
    base[amount] = round(size, 2) if job["kind"] == "training" else float(max(100, round(size, -2)))
    return base
