"""What would be if: a decision on a changed state, beside the one that holds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from tidegrid.data import REQUESTS, App, Cluster, Pool
from tidegrid.data.checks import settle
from tidegrid.data.schema import validated
from tidegrid.data.source import Source
from tidegrid.data.tables import FEATURES
from tidegrid.errors import InputError
from tidegrid.pipeline.bands import Widths
from tidegrid.pipeline.continuity import Kept
from tidegrid.pipeline.control import Settings
from tidegrid.pipeline.decide import Decision, decide
from tidegrid.pipeline.etas import BAND
from tidegrid.pipeline.memory import iso
from tidegrid.pipeline.policy import Policy
from tidegrid.pipeline.resident import Resident
from tidegrid.pipeline.site import Site
from tidegrid.pipeline.state import State
from tidegrid.scheduler.explain import explain_job

MOST_MOVED = 200
"""The jobs told whose expected times move, those that move furthest first."""

FIGURES = ("utilization", "value", "objective", "shortfall", "swaps")

PARAMETERS = sorted(set(Policy.model_fields) - {"estimators", "stale_hours"})
"""The parameters of the policy that may be changed for a question."""

Word = Annotated[str, Field(max_length=200)]
Gpus = Annotated[int, Field(ge=1, le=1_000_000)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class NewJob(_Part):
    """A job that is not submitted yet.

    Parameters
    ----------
    job
        What it is called in the answer.
    kind, gpus, priority
        As in the queue.
    min_gpus, max_gpus
        The sizes that would do; ``gpus`` where absent.
    gpu_type
        The GPU type that it needs; empty for any.
    walltime_h
        The limit asked for, hours.
    user, group, name
        Who asks, and what for: estimators know repeated jobs by them.
    features
        Columns of the workload's features, such as ``model_params_b``.
    """

    job: Annotated[str, Field(min_length=1, max_length=200)] = "what-if"
    kind: Literal["training", "batch_inference", "quantization"] = "training"
    gpus: Gpus = 1
    min_gpus: Gpus | None = None
    max_gpus: Gpus | None = None
    priority: Annotated[int, Field(ge=1, le=10)] = 5
    gpu_type: Word = ""
    walltime_h: Annotated[float, Field(gt=0, le=100_000)] | None = None
    user: Word = ""
    group: Word = ""
    name: Word = ""
    features: Annotated[dict[Word, bool | int | float | Word], Field(max_length=100)] = {}


class Node(_Part):
    """A node that is taken away: its name, or its number in the pool."""

    pool: Word
    node: Word


class Scaled(_Part):
    """An app whose demand is multiplied."""

    app: Word
    factor: Annotated[float, Field(ge=0.01, le=100)]


class Question(_Part):
    """What is changed for a question; at least one thing.

    Parameters
    ----------
    job
        A job not yet submitted.
    without
        Waiting jobs that are withdrawn, by id.
    nodes
        Nodes that are taken away.
    apps
        Apps whose demand is multiplied.
    policy
        Parameters of the policy by name.
    """

    job: NewJob | None = None
    without: Annotated[tuple[Word, ...], Field(max_length=1000)] = ()
    nodes: Annotated[tuple[Node, ...], Field(max_length=1000)] = ()
    apps: Annotated[tuple[Scaled, ...], Field(max_length=1000)] = ()
    policy: Annotated[dict[Word, bool | int | float], Field(max_length=50)] = {}


@dataclass(frozen=True)
class Basis:
    """What questions start from: the state of the last commit, and all that its decision rested on.

    Attributes
    ----------
    forecaster
        As it was after the decision; never changed.
    settings
        How the loop decides.
    last
        The problem and the plan of the commit.
    widths
        How far bands of expected times reach.
    """

    forecaster: Resident
    settings: Settings
    last: Kept | None
    widths: Widths

    @property
    def state(self) -> State:
        """The state that was decided on."""
        if self.forecaster.asked is None:
            raise InputError("nothing is decided yet", fix="ask again after the first tick")
        return self.forecaster.asked[0]

    @cached_property
    def times(self) -> "_Times":
        """The expected times of the decision that holds."""
        return _Times(self.decision)

    @cached_property
    def decision(self) -> Decision:
        """The decision that holds."""
        return self._decided(self.state, self.settings.policy, self.last)

    def ask(self, question: Question) -> dict[str, Any]:
        """Return what would be decided if the question's changes held, beside what is decided; see ``docs/api.md``.

        Raises
        ------
        InputError
            A change names what there is not, or changes nothing.
        """
        policy = _policy(self.settings.policy, question.policy)
        state = changed(self.state, question)
        if state is self.state and policy == self.settings.policy:
            raise InputError(
                "changes nothing", field="question", fix="name a job, a node, an app or a parameter"
            )
        return difference(self.decision, self._decided(state, policy, None), question, self.times)

    def _decided(self, state: State, policy: Policy, last: Kept | None) -> Decision:
        how = self.settings
        return decide(
            state,
            self.forecaster.branched(policy),
            policy,
            how.mode,
            time_limit=how.time_limit,
            seed=how.seed,
            rounds=how.rounds,
            candidates=how.candidates,
            last=last,
            widths=self.widths,
        )


def changed(state: State, question: Question) -> State:
    """Return a state with a question's changes; the same object where it changes none of it.

    Raises
    ------
    InputError
        A change names what there is not, or cannot be.
    """
    cluster, requests = state.cluster, state.requests
    if question.nodes:
        cluster = cluster.with_down(_gpus_of(cluster, question.nodes))
    for scaled in question.apps:
        cluster = _scaled(cluster, scaled)
    if question.without:
        requests = _without(requests, question.without)
    if question.job is not None:
        requests = _with_job(state, requests, question.job)
    if cluster is state.cluster and requests is state.requests:
        return state
    out = State.of(
        cluster,
        requests,
        state.running,
        state.now,
        first_seen=state.first_seen,
        swaps_left=state.swaps_left,
        known_until=state.known_until,
    )
    return replace(out, twice=state.twice)


def _policy(policy: Policy, changes: Mapping[str, Any]) -> Policy:
    for name in changes:
        if name not in PARAMETERS:
            raise InputError(
                "there is no such parameter",
                field=f"policy.{name}",
                fix=f"change one of {', '.join(PARAMETERS)}",
            )
    return Policy.of({**policy.model_dump(), **changes}) if changes else policy


def _gpus_of(cluster: Cluster, nodes: Sequence[Node]) -> dict[str, list[int]]:
    out: dict[str, list[int]] = {}
    for one in nodes:
        pool = cluster.pool(one.pool)
        out.setdefault(pool.id, []).extend(gpus_of_node(pool, one.node))
    return out


def gpus_of_node(pool: Pool, node: str) -> range:
    """Return the GPUs of a node by its name, or by its number where nodes have no names."""
    if pool.nodes:
        return pool.gpus_of(node)
    size = pool.node_size or pool.gpus
    count = -(-pool.gpus // size)
    if not (node.isascii() and node.isdecimal()) or int(node) >= count:
        raise InputError(
            f"pool {pool.id!r} has no node {node!r}", field="nodes", fix=f"name one of 0 to {count - 1}"
        )
    return range(int(node) * size, min(pool.gpus, (int(node) + 1) * size))


def _scaled(cluster: Cluster, scaled: Scaled) -> Cluster:
    found = [app for app in cluster.apps if app.id == scaled.app]
    if not found:
        known = ", ".join(app.id for app in cluster.apps[:20]) or "none"
        raise InputError(f"there is no app {scaled.app!r}", field="apps", fix=f"the apps are: {known}")
    units = found[0].capacity.units_per_gpu_hour
    if units is None:
        raise InputError(
            f"{scaled.app} states no capacity of a GPU, so that its traffic says nothing about its GPUs",
            field="apps",
            fix="give capacity.units_per_gpu_hour in cluster.json",
        )
    # a GPU that serves half as much needs twice the GPUs
    slower = found[0].capacity.model_copy(update={"units_per_gpu_hour": units / scaled.factor})
    apps: tuple[App, ...] = tuple(
        app.model_copy(update={"capacity": slower}) if app.id == scaled.app else app for app in cluster.apps
    )
    return cluster.model_copy(update={"apps": apps})


def _without(requests: pd.DataFrame, jobs: Sequence[str]) -> pd.DataFrame:
    ids = requests["job_id"].astype(str)
    for job in jobs:
        if not (ids == job).any():
            raise InputError(f"no job {job!r} waits", field="without", fix="name a waiting job")
    return requests[~ids.isin(list(jobs)).to_numpy()].reset_index(drop=True)


def _with_job(state: State, requests: pd.DataFrame, job: NewJob) -> pd.DataFrame:
    names = {column.name for column in FEATURES}
    for name in job.features:
        if name not in names:
            raise InputError(
                "there is no such feature", field=f"features.{name}", fix="see the columns of requests.csv"
            )
    if job.job in {*state.waiting_ids, *state.running_ids}:
        raise InputError(f"there is a job {job.job!r}", field="job", fix="give it another name")
    row: dict[str, Any] = {
        "job_id": job.job,
        "kind": job.kind,
        "priority": job.priority,
        "submit_time": iso(state.now),
        "gpus": job.gpus,
        "min_gpus": job.min_gpus,
        "max_gpus": job.max_gpus,
        "gpu_type": job.gpu_type,
        "user": job.user,
        "group": job.group,
        "name": job.name,
        "requested_walltime_s": None if job.walltime_h is None else job.walltime_h * 3600,
        **job.features,
    }
    try:
        asked = validated(pd.DataFrame([row], dtype=object), REQUESTS, Source())
        (new, _), _ = settle(state.cluster, asked, (Site.no_running(), Source()))
    except InputError as error:
        # it is no row of a file
        raise InputError(error.problem, field=error.field, fix=error.fix) from None
    if requests.empty:
        return new
    return pd.concat(
        [requests, new.reindex(columns=requests.columns.union(new.columns, sort=False))], ignore_index=True
    )


def difference(
    base: Decision, other: Decision, question: Question, before: "_Times | None" = None
) -> dict[str, Any]:
    """Return two decisions side by side as JSON values; ``before`` are the times of ``base``, where known."""
    before, after = before or _Times(base), _Times(other)
    moved = _moved(before, after, None if question.job is None else question.job.job)
    new = None
    if question.job is not None:
        name = question.job.job
        reason = (refused := dict(other.refused)).get(name, "")
        if not reason and name in other.problem.job_by_id:
            told = explain_job(other.problem, other.plan, name, other.state.cluster.timezone)
            reason = told["reason"]
        new = {"job": name, "expected": after.told(name), "reason": reason, "refused": name in refused}
    lost = set(other.state.lost["job_id"].astype(str)) if len(other.state.lost) else set()
    lost -= set(base.state.lost["job_id"].astype(str)) if len(base.state.lost) else set()
    return {
        "now": iso(base.state.now),
        "before": _figures(base),
        "after": _figures(other),
        "job": new,
        "moved": [one.told() for one in moved[:MOST_MOVED]],
        "moved_in_all": len(moved),
        "lost": sorted(lost),
        "apps": _apps(base, other),
        "risks": {
            "before": [risk["text"] for risk in base.risks],
            "after": [risk["text"] for risk in other.risks],
        },
        "deadlines": {"before": base.deadlines, "after": other.deadlines},
        "refused": [{"job": job, "reason": reason} for job, reason in other.refused],
    }


class _Times:
    """The expected times of a decision's jobs, as they are compared: in whole seconds since 1970."""

    def __init__(self, decision: Decision) -> None:
        table = decision.etas
        self.row = {str(job): k for k, job in enumerate(table["job"])} if len(table) else {}
        self.pool, self.gpus = (table[n].tolist() if len(table) else [] for n in ("pool", "gpus"))
        stamps = [pd.DatetimeIndex(table[n]).as_unit("s").asi8 for n in _BANDS] if len(table) else []
        self.seconds = np.array(stamps, dtype=np.int64).T.reshape(-1, len(_BANDS))

    @cached_property
    def texts(self) -> list[list[str]]:
        """The times as text."""
        found = np.datetime_as_string(self.seconds.astype("datetime64[s]"), unit="s")
        return np.char.add(found, "+00:00").tolist() if len(found) else []

    def told(self, job: str) -> dict[str, Any] | None:
        """Return a job's times as JSON values; None where it has no place."""
        row = self.row.get(job)
        if row is None:
            return None
        instants = self.texts[row]
        bands = [dict(zip(_LEVELS, part, strict=True)) for part in (instants[:3], instants[3:])]
        return {"pool": self.pool[row], "gpus": int(self.gpus[row]), "start": bands[0], "end": bands[1]}


_LEVELS = tuple(f"q{level:g}" for level in BAND)
_BANDS = tuple(f"{end}_{level}" for end in ("start", "end") for level in _LEVELS)


@dataclass(frozen=True)
class _Move:
    """A job whose expected times differ, and the minutes that its start moves by."""

    job: str
    before: _Times
    after: _Times
    minutes: float | None

    def told(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "job": self.job,
            "before": self.before.told(self.job),
            "after": self.after.told(self.job),
            "start_moves_minutes": self.minutes,
        }


def _moved(before: _Times, after: _Times, asked: str | None) -> list[_Move]:
    """Return the jobs whose times differ: those without a place before or after, then by how far they move."""
    middle = _BANDS.index("start_q0.5")
    out = []
    for job in sorted(before.row.keys() | after.row.keys()):
        if job == asked:
            continue
        a, b = before.row.get(job), after.row.get(job)
        if a is None or b is None:
            out.append(_Move(job, before, after, None))
            continue
        was, now = before.seconds[a], after.seconds[b]
        same = (before.pool[a], before.gpus[a]) == (after.pool[b], after.gpus[b]) and (was == now).all()
        if not same:
            out.append(_Move(job, before, after, round(float(now[middle] - was[middle]) / 60, 1)))
    return sorted(out, key=lambda one: (one.minutes is not None, -abs(one.minutes or 0.0)))


def _figures(decision: Decision) -> dict[str, float]:
    metrics = decision.plan.metrics
    out = {name: float(metrics[name]) for name in FIGURES if name in metrics}
    return {
        **out,
        "jobs": float(len(decision.problem.jobs)),
        "placed": float(len(decision.plan.placements)),
        "starts_now": float(len(decision.starts)),
        "unmet_gpu_steps": float(decision.unmet),
    }


def _apps(base: Decision, other: Decision) -> list[dict[str, Any]]:
    steps = base.problem.steps
    before = {entry.app: entry.counts() for entry in base.plan.apps}
    out = []
    for entry in other.plan.apps:
        need = other.forecast.demand.gpus[entry.app][: other.problem.steps]
        was = base.forecast.demand.gpus[entry.app][:steps]
        out.append(
            {
                "app": entry.app,
                "need_before": [int(v) for v in was],
                "need_after": [int(v) for v in need],
                "gpus_before": before.get(entry.app, []),
                "gpus_after": entry.counts(),
            }
        )
    return out
