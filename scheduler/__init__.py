"""Who gets which GPU when: problem, plan, fast allocator, formal model, baselines."""

from tidegrid.scheduler.checker import check, figures, is_legal
from tidegrid.scheduler.plan import AppCells, Placement, Plan, StalePlanError, require_current
from tidegrid.scheduler.problem import App, Job, Pool, Problem, Running, Shape
from tidegrid.scheduler.solve import IllegalPlanError, modes, register_mode, solve

__all__ = [
    "App",
    "AppCells",
    "IllegalPlanError",
    "Job",
    "Placement",
    "Plan",
    "Pool",
    "Problem",
    "Running",
    "Shape",
    "StalePlanError",
    "check",
    "figures",
    "is_legal",
    "modes",
    "register_mode",
    "require_current",
    "solve",
]
