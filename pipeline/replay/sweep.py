"""Many replays as one call: traces × policies × parameters, on processes of this machine or on a cluster."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidegrid.errors import InputError
from tidegrid.pipeline.policy import Policy
from tidegrid.pipeline.replay.run import CANDIDATES, POLICIES, ROUNDS, Result, run_one
from tidegrid.pipeline.worlds.trace import Trace


@dataclass(frozen=True)
class Task:
    """One replay.

    Parameters
    ----------
    trace
        The name of its trace.
    policy
        One of :data:`~tidegrid.pipeline.replay.run.POLICIES`.
    parameters
        The rolling allocator's parameters; the defaults where None.
    options
        Further arguments of :func:`~tidegrid.pipeline.replay.run.run_one`, such as ``rounds``.
    """

    trace: str
    policy: str
    parameters: Policy | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def sweep(
    traces: Mapping[str, Trace],
    policies: Sequence[str] = ("fifo", "easy_priority", "rolling"),
    parameters: Policy | None = None,
    *,
    jobs: int = 1,
    backend: str | None = None,
    each: Callable[[int], None] | None = None,
    **options: Any,
) -> dict[tuple[str, str], Result]:
    """Replay every trace under every policy, as one joblib call.

    Parameters
    ----------
    worlds
        Traces by name, such as one a seed or a trace.
    policies
        Names of :data:`~tidegrid.pipeline.replay.run.POLICIES`.
    parameters
        The rolling allocator's parameters.
    jobs
        Processes, as in joblib; Dask and Ray use all workers that they have.
    backend
        A joblib backend other than the default: ``"dask"`` runs on the active ``distributed.Client``, ``"ray"`` on
        Ray where it is registered.
    each
        Called after each replay with the number of those that are done.
    options
        Further arguments of :func:`~tidegrid.pipeline.replay.run.run_one`.

    Returns
    -------
    dict
        Results by the names of trace and policy, in the order in which they were given.

    Raises
    ------
    InputError
        A policy is unknown.
    """
    tasks = [Task(trace, policy, parameters, options) for trace in traces for policy in policies]
    results = run_tasks(traces, tasks, jobs=jobs, backend=backend, each=each)
    return {(task.trace, task.policy): result for task, result in zip(tasks, results, strict=True)}


def run_tasks(
    traces: Mapping[str, Trace],
    tasks: Sequence[Task],
    *,
    jobs: int = 1,
    backend: str | None = None,
    each: Callable[[int], None] | None = None,
) -> list[Result]:
    """Run replays through joblib and return their results in the order of the tasks.

    Each replay depends on nothing but its task, so that the results are the same on any number of processes and on
    any backend.

    Raises
    ------
    InputError
        A policy is unknown, or the backend's package or scheduler is missing.
    """
    from joblib import Parallel, delayed, parallel_config

    check_policies(task.policy for task in tasks)
    calls = [delayed(_one)(traces[t.trace], t.policy, t.parameters, **t.options) for t in tasks]
    if backend is None:
        return _collect(Parallel(n_jobs=jobs, return_as="generator")(calls), each)
    try:
        config = parallel_config(backend=backend)
    except (ImportError, ValueError) as error:
        problem = str(error).partition("\n")[0].rstrip(":")
        raise InputError(
            f"joblib has no backend {backend!r}: {problem}",
            field="backend",
            fix="for 'dask' connect a distributed.Client, for 'ray' call ray.util.joblib.register_ray()",
        ) from None
    with config:
        # workers elsewhere are as many as their scheduler has
        n_jobs = -1 if backend in ("dask", "ray") else jobs
        return _collect(Parallel(n_jobs=n_jobs, batch_size=1, return_as="generator")(calls), each)


def check_policies(names: Iterable[str]) -> None:
    """Refuse names of no policy.

    Raises
    ------
    InputError
        A policy is unknown; it is named.
    """
    for name in names:
        if name not in POLICIES:
            raise InputError(
                f"{name!r} is not a policy", field="policy", fix=f"use some of {', '.join(POLICIES)}"
            )


def _one(trace: Trace, policy: str, parameters: Policy | None, **options: Any) -> Result:
    """Replay in this process alone.

    Left to itself, joblib inside an estimator would send its parts to the cluster too, and a Dask worker would begin
    the next replay beside this one while it waits for them.
    """
    from joblib import parallel_config

    with parallel_config(backend="sequential"):
        return run_one(trace, policy, parameters, **options)


def _collect(results: Iterable[Result], each: Callable[[int], None] | None) -> list[Result]:
    out = []
    for result in results:
        out.append(result)
        if each is not None:
            each(len(out))
    return out


def replay(
    trace: Trace,
    policies: Sequence[str] = ("fifo", "easy_priority", "rolling"),
    policy: Policy | None = None,
    *,
    rounds: int = ROUNDS,
    candidates: int = CANDIDATES,
    jobs: int = 1,
    backend: str | None = None,
) -> list[Result]:
    """Replay a trace under several policies.

    Parameters
    ----------
    trace
        What really happens.
    policies
        Names of :data:`POLICIES`.
    policy
        The rolling allocator's parameters.
    rounds
        Rounds of the fast planner's search at each plan.
    candidates
        Waiting jobs that each plan looks at, those that go first.
    jobs
        Processes, as in joblib.
    backend
        A joblib backend other than the default: ``"dask"`` runs on the active ``distributed.Client``, ``"ray"`` on
        Ray where it is registered.

    Raises
    ------
    InputError
        A policy is unknown.
    """
    options = {"rounds": rounds, "candidates": candidates}
    tasks = [Task("", name, policy, options) for name in policies]
    return run_tasks({"": trace}, tasks, jobs=jobs, backend=backend)
