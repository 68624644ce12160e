"""One CP-SAT run: limits, progress, interruption and trouble, the same for every model."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

from ortools.sat.python import cp_model

Value = Callable[[cp_model.IntVar], int]


@dataclass
class Budget:
    """What is left to spend: seconds, or CP-SAT's deterministic time, in which equal runs end equally.

    Parameters
    ----------
    seconds
        Wall-clock limit; not looked at where ``deterministic`` is given.
    deterministic
        Limit in CP-SAT's deterministic time (about a second of one core each).
    workers
        CP-SAT's search workers.
    seed
        CP-SAT's random seed.
    """

    seconds: float
    deterministic: float | None = None
    workers: int = 1
    seed: int = 0
    interrupted: bool = False
    _start: float = field(default_factory=monotonic)
    _spent: float = 0.0

    def left(self) -> float:
        """Seconds, or deterministic time, that may still be spent."""
        if self.interrupted:
            return 0.0
        if self.deterministic is not None:
            return max(0.0, self.deterministic - self._spent)
        return max(0.0, self.seconds - (monotonic() - self._start))

    def total(self) -> float:
        """The whole limit."""
        return self.deterministic if self.deterministic is not None else self.seconds

    def spend(self, deterministic: float) -> None:
        """Book the deterministic time of a run."""
        self._spent += deterministic


@dataclass(frozen=True)
class Answer:
    """What a run gave: a status in CP-SAT's words, the best solution's value and the bound, in scaled integers."""

    status: str
    value: float | None
    bound: float | None
    solution: Value | None

    @property
    def optimal(self) -> bool:
        """Whether the best solution is proven to be the best."""
        return self.status == "OPTIMAL"


class _Watch(cp_model.CpSolverSolutionCallback):
    def __init__(self, tell: Callable[[float, float], None], target: float | None) -> None:
        super().__init__()
        self._tell, self._target = tell, target

    def on_solution_callback(self) -> None:
        self._tell(self.objective_value, self.best_objective_bound)
        if self._target is not None and self.objective_value >= self._target:
            self.stop_search()


def run(
    model: cp_model.CpModel,
    budget: Budget,
    limit: float,
    *,
    tell: Callable[[float, float], None] = lambda value, bound: None,
    target: float | None = None,
    slack: float = 0.0,
    named: bool = False,
) -> Answer:
    """Solve a model within ``limit`` of the budget; Ctrl-C ends the run with the best so far.

    Parameters
    ----------
    tell
        Called with value and bound at each better solution.
    target
        The run ends once a solution is worth at least this.
    slack
        The run ends as optimal once value and bound are this near.
    named
        The model names GPUs: its tens of thousands of cells are left out of the LP and of the costly parts of
        presolve, which took most of the time and gave nothing (10 × on models of 3,000 to 10,000 blocks).
    """
    limit = min(limit, budget.left())
    if limit <= 0.0:
        return Answer("UNKNOWN", None, None, None)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = budget.workers
    solver.parameters.random_seed = budget.seed % 2**31
    solver.parameters.linearization_level = 1 if named else 2
    if named:
        solver.parameters.max_presolve_iterations = 1
        solver.parameters.cp_model_probing_level = 0
        solver.parameters.merge_at_most_one_work_limit = 0.0
    solver.parameters.catch_sigint_signal = False
    solver.parameters.absolute_gap_limit = slack
    if budget.deterministic is not None:
        solver.parameters.max_deterministic_time = limit
        solver.parameters.interleave_search = budget.workers > 1
    else:
        solver.parameters.max_time_in_seconds = limit
    outcome: list[object] = []
    watch = _Watch(tell, target)

    def work() -> None:
        try:
            outcome.append(solver.solve(model, watch))
        except Exception as error:  # handed to the caller's thread
            outcome.append(error)

    # In a thread of its own, so that Ctrl-C reaches Python while CP-SAT runs.
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    while thread.is_alive():
        try:
            thread.join(0.2)
        except KeyboardInterrupt:
            budget.interrupted = True
            solver.stop_search()
    status = outcome[0]
    if isinstance(status, Exception):
        raise status
    name = solver.status_name(status)
    budget.spend(solver.response_proto.deterministic_time)
    found = name in ("OPTIMAL", "FEASIBLE")
    return Answer(
        name,
        solver.objective_value if found else None,
        # Without a solution CP-SAT may report a bound that it has not computed.
        solver.best_objective_bound if found else None,
        solver.value if found else None,
    )
