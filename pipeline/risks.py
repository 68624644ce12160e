"""Where realtime is short, counted against what apps truly need and not against what their caps let them plan."""

from typing import Any

import numpy as np

from tidegrid.pipeline.demand import Demand
from tidegrid.pipeline.state import State
from tidegrid.scheduler import Plan, Problem
from tidegrid.scheduler.clock import Clock
from tidegrid.scheduler.coverage import coverage_risks


def unmet(problem: Problem, plan: Plan, demand: Demand) -> int:
    """Return the GPU-steps of true need inside the horizon that a plan leaves unmet."""
    return sum(int(_short(plan, app, need, problem.steps).sum()) for app, need in demand.gpus.items())


def coverage(problem: Problem, plan: Plan, demand: Demand, state: State) -> list[dict[str, Any]]:
    """Return where apps are short of their true need: one record for each app and unbroken stretch.

    As :func:`tidegrid.scheduler.coverage.coverage_risks`, whose demand is the planned one; a line says where the app's
    swap cap is the reason.
    """
    caps = {app.id: app.swap_cap for app in state.cluster.apps}
    document = problem.to_dict()
    for app in document["apps"]:
        app["demand"] = [int(v) for v in demand.gpus[app["id"]]]
    risks = coverage_risks(Problem.from_dict(document), plan, Clock(problem, state.cluster.timezone))
    for risk in risks:
        planned = problem.app_by_id[risk["app"]].demand
        need = demand.gpus[risk["app"]]
        if risk["from"] < problem.steps and planned[risk["from"]] < need[risk["from"]]:
            risk["text"] += f": its swap cap of {caps[risk['app']]} a step allows no more"
    return risks


def _short(plan: Plan, app: str, need: np.ndarray, steps: int) -> np.ndarray:
    held = next((entry.cells for entry in plan.apps if entry.app == app), [])
    counts = np.array([len(cells) for cells in held], dtype=np.int64)
    return np.maximum(need[:steps] - np.pad(counts, (0, max(0, steps - len(counts))))[:steps], 0)
