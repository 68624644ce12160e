"""Search for the seven scenarios: random believable workloads that FIFO fills as the article states.

    python benchmarks/rebuild_scenarios.py training_heavy --tries 2000        prints the best found
    python benchmarks/rebuild_scenarios.py training_heavy --tries 2000 --write

The article gives no inputs. A workload is drawn from templates of jobs and a day's rhythm of traffic; kept
are those whose figure under `fifo` is the stated one, and among them the one whose planned figures come nearest
to the stated ones. The scenario files are therefore rebuilt inputs, chosen to tell the article's story.
"""

import argparse
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tidegrid.errors import InputError
from tidegrid.files import write_text
from tidegrid.scheduler import Problem, solve

SEEDS = range(6)
FOLDER = Path(__file__).parents[1] / "scheduler" / "scenarios"

# id, kind, GPU-hours on one GPU from … to, GPUs from … to, priority from … to
TRAINING = [
    ("sft-llama-8b", 8, 24, 1, 4, 5, 8),
    ("lora-qwen-14b", 4, 14, 1, 4, 4, 9),
    ("dpo-mistral-7b", 8, 20, 2, 4, 5, 9),
    ("rlhf-llama-8b", 20, 48, 2, 8, 6, 10),
    ("rlvr-qwen-7b", 16, 40, 2, 8, 4, 9),
    ("cpt-legal-7b", 24, 60, 2, 8, 1, 4),
    ("sft-gemma-27b", 20, 44, 2, 8, 3, 8),
    ("lora-vision-11b", 6, 16, 1, 2, 2, 6),
    ("ablation-1b", 4, 20, 1, 4, 1, 3),
    ("full-sft-phi-14b", 16, 36, 2, 4, 4, 8),
]
LARGE = [
    ("rlhf-llama-70b", 60, 140, 8, 32, 4, 9),
    ("cpt-code-34b", 80, 180, 16, 64, 2, 6),
    ("full-sft-qwen-72b", 60, 160, 16, 64, 4, 9),
    ("dpo-llama-70b", 40, 100, 8, 32, 3, 8),
]
QUANTIZATION = [
    ("awq-llama-70b", 4, 10, 1, 2, 4, 9),
    ("gptq-qwen-32b", 3, 8, 1, 2, 3, 8),
    ("bnb-gemma-9b", 1, 3, 1, 1, 2, 6),
    ("awq-mixtral-8x7b", 5, 12, 1, 4, 4, 8),
    ("gptq-llama-8b", 2, 4, 1, 1, 2, 7),
]
BATCH = [
    ("embed-documents", 4, 16, 1, 4, 3, 8),
    ("summarize-calls", 3, 12, 1, 4, 4, 9),
    ("score-tickets", 2, 8, 1, 2, 5, 10),
    ("translate-catalogue", 8, 24, 1, 4, 2, 6),
    ("eval-nightly", 3, 10, 1, 4, 5, 9),
    ("caption-images", 8, 28, 1, 8, 1, 5),
]


@dataclass(frozen=True)
class Recipe:
    """How a scenario is drawn, and what the article says of it."""

    title: str
    told: str
    gpus: int
    mix: tuple[tuple[list, str, int, int], ...]  # templates, kind, jobs from … to
    apps: tuple[tuple[str, int, int, int, int], ...]  # id, valley, peak, hour of the peak, priority
    fifo: tuple[float, float]
    utilization: float  # what planning reaches in the article, or a figure in its range
    gain: float
    placed: int | None = None
    equal: bool = False
    arrivals: tuple[int, int] | None = None
    node_size: int | None = None
    ask: int = 4  # the largest block that submitters ask for: what the reservation leaves
    width: tuple[float, float] = (3.5, 6.5)  # hours from the day's peak to 60 % of it
    scale: float = 1.0
    inside: float = 0.35


RECIPES = {
    "mixed_control": Recipe(
        "mixed control", "all four workloads; utilization 51.6 % under FIFO", 8,
        ((TRAINING, "training", 2, 3), (QUANTIZATION, "quantization", 2, 3), (BATCH, "batch_inference", 2, 4)),
        (("chat", 1, 5, 14, 8),), (0.506, 0.526), 0.76, 0.50, ask=2, width=(2.5, 5.0), scale=0.8,
    ),
    "training_heavy": Recipe(
        "training heavy", "8 GPUs; utilization 53.6 % under FIFO, 87.0 % and value +105 % when planned", 8,
        ((TRAINING, "training", 7, 11), (BATCH, "batch_inference", 1, 2)),
        (("chat", 1, 5, 13, 8),), (0.526, 0.546), 0.90, 1.22, ask=2, width=(2.5, 4.5),
    ),
    "realtime_heavy": Recipe(
        "realtime heavy", "contended, realtime has most of the cluster", 8,
        ((TRAINING, "training", 3, 5), (QUANTIZATION, "quantization", 1, 3), (BATCH, "batch_inference", 3, 5)),
        (("chat", 1, 4, 13, 9), ("search", 1, 2, 19, 7)), (0.56, 0.68), 0.84, 0.50, ask=2, width=(2.5, 5.5),
    ),
    "quantization_batch_heavy": Recipe(
        "quantization and batch heavy", "contended; FIFO's utilization is the highest of the five, 85 %", 8,
        ((QUANTIZATION, "quantization", 7, 10), (BATCH, "batch_inference", 8, 11)),
        (("chat", 1, 2, 14, 8),), (0.843, 0.857), 0.88, 0.30,
    ),
    "burst": Recipe(
        "burst of arrivals", "contended, most of the queue arrives within a few hours", 8,
        ((TRAINING, "training", 4, 6), (QUANTIZATION, "quantization", 2, 4), (BATCH, "batch_inference", 5, 8)),
        (("chat", 1, 3, 14, 8),), (0.60, 0.78), 0.86, 0.45, arrivals=(2, 7),
    ),
    "equal_priorities": Recipe(
        "equal priorities", "all priorities equal; 76.8 % under FIFO, 87.5 % and value +23.1 % when planned", 8,
        ((TRAINING, "training", 5, 7), (QUANTIZATION, "quantization", 2, 4), (BATCH, "batch_inference", 3, 5)),
        (("chat", 1, 3, 14, 5),), (0.758, 0.778), 0.90, 0.26, equal=True,
    ),
    "scale": Recipe(
        "scale", "64 GPUs, 30 jobs; 44.9 % and 27 jobs under FIFO, value +15.9 % when planned", 64,
        ((LARGE, "training", 6, 6), (TRAINING, "training", 10, 10), (QUANTIZATION, "quantization", 6, 6),
         (BATCH, "batch_inference", 8, 8)),
        (("chat", 3, 12, 14, 8), ("search", 2, 6, 18, 7)), (0.439, 0.459), 0.47, 0.20, placed=27, node_size=8,
        ask=64, scale=0.45,
    ),
}  # fmt: skip


def draw(name: str, seed: int) -> dict[str, Any]:
    """Draw a workload of a recipe."""
    recipe = RECIPES[name]
    rng = np.random.default_rng(seed)
    jobs = []
    for templates, kind, least, most in recipe.mix:
        count = int(rng.integers(least, most + 1))
        picks = list(rng.permutation(len(templates)))
        while len(picks) < count:
            picks += list(rng.permutation(len(templates)))
        seen: dict[str, int] = {}
        for i in picks[:count]:
            jobs.append(_job(recipe, rng, templates[i], kind, seen))
    rng.shuffle(jobs)  # type: ignore[arg-type]
    if recipe.arrivals:
        _spread_arrivals(recipe.arrivals, rng, jobs)
    for order, job in enumerate(jobs):
        job["order"] = order
    return {
        "version": 1,
        "title": recipe.title,
        "source": f"rebuilt: {recipe.told}. The article gives no inputs; this workload is made up.",
        "start": "2026-03-02T00:00:00+00:00",
        "step_minutes": 60,
        "steps": 24,
        "decay": 0.98,
        "shortfall_weight": 8.0,
        "pools": [{"id": "h100", "gpus": recipe.gpus, "node_size": recipe.node_size}],
        "jobs": jobs,
        "apps": [_app(recipe, rng, *app) for app in recipe.apps],
    }


def _job(recipe: Recipe, rng: np.random.Generator, template: tuple, kind: str, seen: dict) -> dict[str, Any]:
    name, low, high, least, most, unimportant, important = template
    seen[name] = seen.get(name, 0) + 1
    hours = float(rng.uniform(low, high)) * recipe.scale
    efficiency = float(rng.uniform(0.88, 0.97))
    sizes = [1 << k for k in range(7) if least <= 1 << k <= min(most, recipe.gpus)]
    shapes = []
    for size in sizes:
        # Each doubling of the GPUs keeps this share of the speed-up.
        steps = math.ceil(hours / (size * efficiency ** math.log2(size)))
        shapes.append({"pool": "h100", "gpus": size, "steps": steps})
    askable = sum(size <= recipe.ask for size in sizes) or 1
    asked = int(rng.integers(max(0, askable - 2), askable))
    job: dict[str, Any] = {
        "id": name if seen[name] == 1 else f"{name}-{seen[name]}",
        "kind": kind,
        "priority": 5 if recipe.equal else int(rng.integers(unimportant, important + 1)),
        "order": 0,
        "shapes": shapes,
        "requested": asked,
    }
    if rng.random() < recipe.inside and shapes[asked]["steps"] <= 20:
        job["finish_inside"] = True
    return job


def _spread_arrivals(window: tuple[int, int], rng: np.random.Generator, jobs: list[dict[str, Any]]) -> None:
    late = sorted(int(rng.integers(window[0], window[1] + 1)) for _ in range(2 * len(jobs) // 3))
    for job, step in zip(jobs[len(jobs) - len(late) :], late, strict=True):
        job["earliest"] = step


def _app(
    recipe: Recipe, rng: np.random.Generator, name: str, valley: int, peak: int, hour: int, priority: int
) -> dict[str, Any]:
    width = float(rng.uniform(*recipe.width))
    hours = np.arange(30)
    distance = np.abs((hours - hour + 12) % 24 - 12)
    level = valley + (peak - valley) * np.exp(-0.5 * (distance / width) ** 2)
    demand = np.clip(np.rint(level + rng.normal(0, 0.2, len(hours))), valley, peak).astype(int)
    demand[hour] = peak
    held = list(range(recipe.gpus))[recipe.gpus - int(demand[0]) :] if name == "chat" else []
    if name != "chat":
        top = recipe.gpus - recipe.apps[0][1] - 4
        held = list(range(top - int(demand[0]), top)) if recipe.gpus > 16 else []
    cap = max(1, recipe.gpus // 8) if recipe.gpus > 8 else 2
    return {"id": name, "pool": "h100", "priority": 5 if recipe.equal else priority,
            "demand": demand.tolist(), "swap_cap": max(cap, 2), "held": held}  # fmt: skip


def _laid_out(data: dict[str, Any]) -> str:
    """JSON with one job or app a line."""
    lines = []
    for key, value in data.items():
        if key in ("jobs", "apps"):
            items = ",\n".join("  " + json.dumps(item) for item in value)
            lines.append(f' "{key}": [\n{items}\n ]')
        else:
            lines.append(f' "{key}": {json.dumps(value)}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def measure(problem: Problem) -> dict[str, float]:
    """FIFO's figures, and the least that the fast mode reaches over a few seeds: no lucky draw is told."""
    fifo = solve(problem, "fifo").metrics
    plans = [solve(problem, "fast", seed=seed).metrics for seed in SEEDS]
    return {
        "fifo": fifo["utilization"],
        "placed": fifo["placed"],
        "fast": min(m["utilization"] for m in plans),
        "gain": min(m["value"] for m in plans) / fifo["value"] - 1 if fifo["value"] else 0.0,
        "short": max(m["shortfall"] for m in plans),
        "fast_placed": min(m["placed"] for m in plans),
    }


def search(name: str, tries: int, first: int) -> tuple[float, int, dict[str, float]] | None:
    """Return (distance, seed, figures) of the nearest workload found."""
    recipe = RECIPES[name]
    best = None
    kept = 0
    for seed in range(first, first + tries):
        try:
            problem = Problem.from_dict(draw(name, seed))
        except InputError:
            continue
        fifo = solve(problem, "fifo").metrics
        if not recipe.fifo[0] <= fifo["utilization"] <= recipe.fifo[1] or fifo["shortfall"]:
            continue
        if recipe.placed is not None and fifo["placed"] != recipe.placed:
            continue
        kept += 1
        figures = measure(problem)
        over = (figures["fast"] - max(recipe.utilization, figures["fifo"]), figures["gain"] - recipe.gain)
        distance = sum(abs(x) * (1 if x >= 0 else 8) for x in over)
        if not figures["short"] and (best is None or distance < best[0]):
            best = (distance, seed, figures)
    print(f"{name}: {kept} of {tries} workloads have FIFO's stated figure", file=sys.stderr)
    return best


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenario", nargs="*", help=f"all of {', '.join(RECIPES)} by default")
    parser.add_argument("--tries", type=int, default=1000, help="workloads to draw")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--write", action="store_true", help="write the scenario file")
    arguments = parser.parse_args()
    for name in arguments.scenario:
        if name not in RECIPES:
            parser.error(f"{name!r} is not a scenario; write one of {', '.join(RECIPES)}")
    for name in arguments.scenario or RECIPES:
        best = search(name, arguments.tries, arguments.first)
        if best is None:
            print(f"{name}: none")
            continue
        distance, seed, figures = best
        print(
            name,
            f"seed {seed} distance {distance:.3f}",
            {k: round(v, 4) for k, v in figures.items()},
            flush=True,
        )
        if arguments.write:
            data = draw(name, seed)
            data["seed"] = seed
            write_text(FOLDER / f"{name}.json", _laid_out(data))
    return 0


if __name__ == "__main__":
    sys.exit(main())
