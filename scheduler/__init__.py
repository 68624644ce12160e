"""Who gets which GPU when: problem, plan, fast allocator, formal model, baselines."""

from tidegrid.scheduler.checker import check, figures, is_legal
from tidegrid.scheduler.coverage import coverage_risks, idle_windows
from tidegrid.scheduler.explain import explain, explain_job
from tidegrid.scheduler.plan import AppCells, Placement, Plan, StalePlanError, require_current
from tidegrid.scheduler.problem import App, Job, Pool, Problem, Running, Shape
from tidegrid.scheduler.refusals import refusals
from tidegrid.scheduler.solve import BASELINES, IllegalPlanError, modes, register_mode, solve

__all__ = [
    "BASELINES",
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
    "coverage_risks",
    "explain",
    "explain_job",
    "figures",
    "idle_windows",
    "is_legal",
    "modes",
    "refusals",
    "register_mode",
    "require_current",
    "solve",
]
