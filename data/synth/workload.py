"""The synthetic stream of jobs: who submits what and when, and what becomes of it on a cluster with a queue."""

import heapq
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from tidegrid.data.synth.demand import on_holiday
from tidegrid.data.synth.people import TEAMS, Recipe
from tidegrid.data.synth.physics import fewest_gpus, hours_of

_LIMITS_H = np.array([1.0, 2.0, 4.0, 8.0, 12.0, 24.0, 48.0, 72.0])
_PATIENCE_S = 8 * 3600  # a job that has waited so long stops others from passing it


@dataclass(frozen=True)
class Draft:
    """A submission and its fate: seconds since the start of the history, features, and what chance has decided."""

    submit: int
    recipe: Recipe
    features: dict[str, Any] = field(repr=False)
    gpus: int = 1
    gpu_type: str = ""
    walltime_h: float = np.nan
    noise: float = 1.0
    outcome: str = "completed"
    at: float = 1.0
    number: int = 0


@dataclass(frozen=True)
class Attempt:
    """A draft that got its GPUs."""

    draft: Draft
    start: int
    end: int
    gpu_type: str
    status: str
    raw_status: str


def submissions(
    rng: np.random.Generator,
    recipes: list[Recipe],
    hours: pd.DatetimeIndex,
    timezone: str,
    jobs_a_day: float,
    largest: int,
) -> list[Draft]:
    """Return the submissions of all hours, in order: nightly jobs at their hour, the rest by day and weekday."""
    local = pd.DatetimeIndex(hours).tz_convert(timezone)
    clock, day = local.hour.to_numpy(), local.day_of_week.to_numpy()
    busy = 0.25 + 0.75 * np.exp(-0.5 * ((clock - 14.0) / 4.0) ** 2)
    busy *= np.where((day >= 5) | on_holiday(local), 0.4, 1.0)
    nightly = recipes[::6]
    weight = np.array([recipe.weight for recipe in recipes])
    weight /= weight.sum()
    rate = max(0.0, jobs_a_day - len(nightly) * 5 / 7) / 24.0 * busy / busy.mean()
    out: list[Draft] = []
    for t in range(len(hours)):
        for _ in range(int(rng.poisson(rate[t]))):
            recipe = recipes[int(rng.choice(len(recipes), p=weight))]
            out.append(draft(rng, recipe, t * 3600 + int(rng.integers(3600)), largest))
        if day[t] < 5:
            for i, recipe in enumerate(nightly):
                if clock[t] == (20 + i) % 24:
                    out.append(draft(rng, recipe, t * 3600 + int(rng.integers(600)), largest))
    return sorted(out, key=lambda d: d.submit)


def draft(rng: np.random.Generator, recipe: Recipe, submit: int, largest: int) -> Draft:
    """Return one run of a recipe: a little more or less work than usual, sometimes on other GPUs."""
    features = dict(recipe.base)
    for name, digits in (("tokens_per_epoch_m", 2), ("prompts", -2)):
        if name in features:
            features[name] = max(
                10.0**-digits, round(features[name] * float(rng.lognormal(0.0, 0.3)), digits)
            )
    gpus = recipe.gpus
    turn = rng.random()
    if turn < 0.1 and gpus * 2 <= largest:
        gpus *= 2
    elif turn > 0.93 and gpus // 2 >= fewest_gpus({"kind": recipe.kind, **features}):
        gpus //= 2
    usual = hours_of({"kind": recipe.kind, **features}, "A100-SXM-80GB", gpus) * recipe.pace
    wanted = usual * float(rng.lognormal(0.6, 0.4))
    limit = float(_LIMITS_H[min(int(np.searchsorted(_LIMITS_H, wanted)), len(_LIMITS_H) - 1)])
    chance = rng.random()
    failing, cancelling = recipe.user.failures, 0.06
    outcome = "failed" if chance < failing else "cancelled" if chance < failing + cancelling else "completed"
    return Draft(
        submit=submit,
        recipe=recipe,
        features=features,
        gpus=gpus,
        gpu_type=recipe.gpu_type,
        walltime_h=np.nan if rng.random() < 0.12 else limit,
        noise=float(rng.lognormal(0.0, recipe.spread)),
        outcome=outcome,
        # a failure comes early more often than late
        at=float(rng.beta(0.7, 1.6)) if outcome != "completed" else 1.0,
    )


def _fate(job: Draft, start: int, gpu_type: str) -> Attempt:
    hours = (
        hours_of({"kind": job.recipe.kind, **job.features}, gpu_type, job.gpus) * job.recipe.pace * job.noise
    )
    status, raw = job.outcome, job.outcome.upper()
    if job.outcome != "completed":
        hours *= job.at
        if job.outcome == "failed" and job.at < 0.03:
            raw = "OUT_OF_MEMORY"
    if hours > job.walltime_h:
        hours, status, raw = job.walltime_h, "timeout", "TIMEOUT"
    return Attempt(job, start, start + max(20, round(hours * 3600)), gpu_type, status, raw)


def simulate(
    drafts: list[Draft], capacity: dict[str, int], outage: tuple[int, int], until: int
) -> tuple[list[Attempt], list[Draft]]:
    """Run the drafts through a queue, first fit in order of arrival, and return the attempts and who still waits.

    Parameters
    ----------
    drafts
        In order of submission.
    capacity
        GPUs for batch work of each type.
    outage
        From when to when the cluster is down: what runs then ends as a node failure, and is queued again after it.
    until
        When to stop; attempts that have started by then carry the end that they will have.

    Notes
    -----
    All times are seconds since the start of the history.
    """
    free = dict(capacity)
    waiting: list[Draft] = []
    ends: list[tuple[int, int]] = []
    attempts: list[Attempt] = []
    arrivals = [(job.submit, i) for i, job in enumerate(drafts)]
    events = [*arrivals, (outage[0], -1), (outage[1], -2)]
    heapq.heapify(events)
    while events or ends:
        now = min(events[0][0] if events else until + 1, ends[0][0] if ends else until + 1)
        if now > until:
            break
        while ends and ends[0][0] <= now:
            done = attempts[heapq.heappop(ends)[1]]
            free[done.gpu_type] += done.draft.gpus
        while events and events[0][0] <= now:
            _, which = heapq.heappop(events)
            if which >= 0:
                waiting.append(drafts[which])
            elif which == -1:
                for _, i in ends:
                    lost = attempts[i]
                    free[lost.gpu_type] += lost.draft.gpus
                    attempts[i] = replace(lost, end=now, status="failed", raw_status="NODE_FAIL")
                    waiting.append(replace(lost.draft, submit=outage[1]))
                ends = []
        if outage[0] <= now < outage[1]:
            continue
        waiting.sort(key=lambda d: (d.submit, d.number))
        left: list[Draft] = []
        blocked = False
        for job in waiting:
            kinds = (
                [job.gpu_type] if job.gpu_type in free else sorted(free, key=lambda kind: (-free[kind], kind))
            )
            kind = next((k for k in kinds if free[k] >= job.gpus), None)
            if kind is None or blocked or job.submit > now:
                left.append(job)
                blocked = blocked or (kind is None and now - job.submit > _PATIENCE_S)
                continue
            free[kind] -= job.gpus
            attempt = _fate(job, now, kind)
            attempts.append(attempt)
            heapq.heappush(ends, (attempt.end, len(attempts) - 1))
        waiting = left
    return attempts, waiting


def priority_of(recipe: Recipe, draw: float) -> int:
    """Return a request's priority, 1 to 10: the team's usual one, give or take two."""
    return int(np.clip(TEAMS[recipe.user.team] + round((draw - 0.5) * 5), 1, 10))
