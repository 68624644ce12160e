"""The formal model: the problem written out in CP-SAT, a proven bound, and the mode that improves to it."""

from tidegrid.scheduler.formal.bound import Bound, bound, relative_gap
from tidegrid.scheduler.formal.changes import changes
from tidegrid.scheduler.formal.full import plan
from tidegrid.scheduler.formal.race import time_to_objective

__all__ = ["Bound", "bound", "changes", "plan", "relative_gap", "time_to_objective"]
