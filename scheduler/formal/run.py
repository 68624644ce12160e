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
    tick
        Called in the caller's thread a few times a second while a run goes on, and at its end.
    """

    seconds: float
    deterministic: float | None = None
    workers: int = 1
    seed: int = 0
    tick: Callable[[], None] = lambda: None
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

    @property
    def spent(self) -> float:
        """Deterministic time spent so far."""
        return self._spent

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
    def __init__(
        self, on_solution: Callable[[cp_model.CpSolverSolutionCallback], None], target: float | None
    ) -> None:
        super().__init__()
        self._on_solution, self._target = on_solution, target

    def on_solution_callback(self) -> None:
        self._on_solution(self)
        if self._target is not None and self.objective_value >= self._target:
            self.stop_search()


class Run:
    """A CP-SAT run in a thread of its own, so that Ctrl-C reaches Python and two models can run side by side.

    Parameters
    ----------
    model, budget
        What to solve, and what it draws on.
    limit
        Seconds or deterministic time, cut to what is left of the budget.
    on_solution
        Called in the run's thread with CP-SAT's callback at each better solution.
    on_bound
        Called in the run's thread with each better bound, in scaled integers.
    target
        The run ends once a solution is worth at least this.
    slack
        The run ends as optimal once value and bound are this near.
    named
        The model names the GPUs of a line: its tens of thousands of cells are left out of the LP and of the costly
        parts of presolve, which took most of the time and gave nothing (10 × on models of 3,000 to 10,000 blocks).
    """

    def __init__(
        self,
        model: cp_model.CpModel,
        budget: Budget,
        limit: float,
        *,
        on_solution: Callable[[cp_model.CpSolverSolutionCallback], None] = lambda callback: None,
        on_bound: Callable[[float], None] | None = None,
        target: float | None = None,
        slack: float = 0.0,
        named: bool = False,
    ) -> None:
        self._model, self._budget = model, budget
        self._solver = cp_model.CpSolver()
        self._limit = min(limit, budget.left())
        set_parameters(self._solver, budget, self._limit, slack, named)
        if on_bound is not None:
            self._solver.best_bound_callback = on_bound
        self._outcome: list[object] = []
        self._stopping = False
        watch = _Watch(on_solution, target)

        def work() -> None:
            try:
                self._outcome.append(self._solver.solve(model, watch))
            except Exception as error:  # handed to the caller's thread
                self._outcome.append(error)

        self._thread = threading.Thread(target=work, daemon=True)
        if self._limit > 0.0:
            self._thread.start()

    def wait(self, seconds: float = float("inf")) -> bool:
        """Wait for the end, at most ``seconds``; Ctrl-C ends the run. Return whether it has ended."""
        end = monotonic() + seconds
        alive = self._thread.is_alive()
        while alive and monotonic() < end:
            try:
                self._thread.join(min(0.2, max(0.0, end - monotonic())))
                alive = self._thread.is_alive()
                if self._stopping:  # again, for a run that had not begun when it was asked to end
                    self._solver.stop_search()
                self._budget.tick()
            except KeyboardInterrupt:
                self._budget.interrupted = True
                self.stop()
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Ask the run to end with what it has."""
        self._stopping = True
        self._solver.stop_search()

    def answer(self) -> Answer:
        """Wait for the end and return what was found.

        Raises
        ------
        Exception
            What the solver raised, or a `RuntimeError` where it calls the model invalid, which is a defect.
        """
        self.wait()
        if not self._outcome:
            return Answer("UNKNOWN", None, None, None)
        status = self._outcome[0]
        if isinstance(status, Exception):
            raise status
        solver = self._solver
        name = solver.status_name(status)
        if name == "MODEL_INVALID":
            raise RuntimeError(f"{name}: {self._model.validate()}")
        self._budget.spend(solver.response_proto.deterministic_time)
        found = name in ("OPTIMAL", "FEASIBLE")
        return Answer(
            name,
            solver.objective_value if found else None,
            # Without a solution CP-SAT may report a bound that it has not computed.
            solver.best_objective_bound if found else None,
            solver.value if found else None,
        )


def set_parameters(
    solver: cp_model.CpSolver, budget: Budget, limit: float, slack: float, named: bool
) -> None:
    """Set CP-SAT's parameters for a run."""
    parameters = solver.parameters
    parameters.num_workers = budget.workers
    parameters.random_seed = budget.seed % 2**31
    parameters.catch_sigint_signal = False
    parameters.absolute_gap_limit = slack
    parameters.linearization_level = 1 if named else 2
    if named:
        parameters.max_presolve_iterations = 1
        parameters.cp_model_probing_level = 0
        parameters.merge_at_most_one_work_limit = 0.0
    if budget.deterministic is not None:
        parameters.max_deterministic_time = limit
        parameters.interleave_search = budget.workers > 1
    else:
        parameters.max_time_in_seconds = limit
