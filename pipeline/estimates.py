"""From requests to estimates: a distribution of hours for each feasible (pool, GPUs) of each job."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, groupby
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd

from tidegrid.data import Cluster, Pool, block_size, request_features
from tidegrid.data.cluster import laid
from tidegrid.data.nodelist import nodes_of
from tidegrid.errors import TidegridError
from tidegrid.estimators import Estimator
from tidegrid.estimators.base import checked_features, lacking
from tidegrid.estimators.conditional import remaining_quantiles
from tidegrid.estimators.gpus import find
from tidegrid.estimators.recurring import RecurringJobEstimator
from tidegrid.estimators.recurring.estimator import GRACE

LEVELS = (0.025, 0.05, 0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 0.95, 0.975)
"""The one grid of quantile levels: durations, remaining times and demand are forecast at these."""

MEAN_WEIGHTS = np.diff(np.concatenate([[0.0], (np.array(LEVELS[1:]) + np.array(LEVELS[:-1])) / 2, [1.0]]))
"""The share of the distribution that each level of the grid stands for: a mean is their weighted sum."""

SHOWN = 0.9
"""The highest level that tables show."""

CAPPED = "hours end at the requested time limit"
"""The note of an estimate whose shown quantiles are cut to the time limit that the job asked for."""

LEAST_SUCCESS = 0.01
"""The chance to end inside a time limit that is below every quantile: worth next to nothing, and not nothing."""

SCALING_DOUBT = 0.25
"""How far the exponent of a stated scaling may be off, as a standard deviation: most of what is published on data
parallel training lies between 0.5 and 1."""

SHEET_DOUBT = 0.5
"""How far the ratio of two GPU types may be off, as a standard deviation of its logarithm over the logarithm that their
data sheets give: jobs that wait for memory or input gain half as much."""

_COLUMNS = ("job_id", "pool", "gpus", "nodes", "asked", "estimator", "basis", "note")
_DTYPES = {"gpus": np.int64, "nodes": np.int64, "asked": np.bool_}

FALLBACK = "recurring"
"""The estimator that needs nothing but a job's past: it answers where no other can."""


@dataclass(frozen=True)
class Estimates:
    """What the jobs will take.

    Attributes
    ----------
    columns : dict of str to ndarray
        One entry for each (job, pool, GPUs) that is possible: ``job_id``, ``pool``, ``gpus`` (that it holds),
        ``nodes`` (on how many nodes), ``asked`` (whether it is the size asked for), ``estimator``, ``basis``, ``note``
        (why another estimator did not answer, and whether the requested time limit cuts the quantiles).
    work : ndarray of shape (entries, levels)
        Quantiles at ``LEVELS`` of the hours that the work takes, whatever the time limit.
    limits : ndarray of shape (entries,)
        The requested time limits in hours, NaN for none.
    reasons
        Why a job has no possible shape, by its id.
    """

    columns: Mapping[str, np.ndarray]
    work: np.ndarray
    limits: np.ndarray
    reasons: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def quantiles(self) -> np.ndarray:
        """Quantiles of the hours for which GPUs are held, which end at the time limit; shape (entries, levels)."""
        return np.fmin(self.work, self.limits[:, None])

    @cached_property
    def success(self) -> np.ndarray:
        """The chance that each entry ends inside its time limit, ``LEAST_SUCCESS`` to 1; shape (entries,)."""
        return chance_within(self.work, self.limits)

    @cached_property
    def shapes(self) -> pd.DataFrame:
        """One row for each possible (job, pool, GPUs), on a fresh index: ``columns``, ``mean_h`` and ``success``."""
        mean = self.quantiles @ MEAN_WEIGHTS
        return pd.DataFrame({**self.columns, "mean_h": mean, "success": self.success})

    @cached_property
    def hours(self) -> pd.DataFrame:
        """Quantiles of the hours held, on the index of ``shapes``, one column for each of ``LEVELS``."""
        return pd.DataFrame(self.quantiles, columns=pd.Index(LEVELS, name="level"))

    @cached_property
    def refused(self) -> pd.DataFrame:
        """One row for each job that has no possible shape: ``job_id``, ``reason``."""
        return pd.DataFrame(
            {"job_id": list(self.reasons), "reason": list(self.reasons.values())}, dtype=object
        )

    @cached_property
    def rows(self) -> dict[str, range]:
        """Where the entries of each job are: they lie together."""
        out: dict[str, range] = {}
        at = 0
        for job, entries in groupby(self.columns["job_id"].tolist()):
            first, at = at, at + sum(1 for _ in entries)
            out[job] = range(first, at)
        return out

    def at(self, level: float) -> pd.Series:
        """Return the hours held at a quantile level, interpolated in log time between the levels carried."""
        return pd.Series(interpolate(self.quantiles, level), name="hours")

    @classmethod
    def none(cls) -> "Estimates":
        """Return the estimates of no job."""
        columns: dict[str, np.ndarray] = {name: np.empty(0, _DTYPES.get(name, object)) for name in _COLUMNS}
        return cls(columns, np.empty((0, len(LEVELS))), np.empty(0))

    def joined(self, more: "Estimates") -> "Estimates":
        """Return these estimates and those of other jobs."""
        out = Estimates(
            {name: np.concatenate([self.columns[name], more.columns[name]]) for name in _COLUMNS},
            np.concatenate([self.work, more.work]),
            np.concatenate([self.limits, more.limits]),
            {**self.reasons, **more.reasons},
        )
        before = len(self.work)
        vars(out)["rows"] = self.rows | {
            job: range(before + at.start, before + at.stop) for job, at in more.rows.items()
        }
        return out

    def of(self, jobs: Iterable[str]) -> "Estimates":
        """Return the estimates of some jobs, in their order."""
        wanted = list(jobs)
        if not self.reasons and wanted == list(self.rows):
            return self
        known = [(job, mine) for job in wanted if (mine := self.rows.get(job)) is not None]
        at = np.fromiter(chain.from_iterable(mine for _, mine in known), np.intp)
        rows: dict[str, range] = {}
        end = 0
        for job, mine in known:
            first, end = end, end + len(mine)
            rows[job] = range(first, end)
        reasons = {job: self.reasons[job] for job in wanted if job in self.reasons}
        out = self._take(at, reasons)
        vars(out)["rows"] = rows
        return out

    def _take(self, at: Any, reasons: Mapping[str, str]) -> "Estimates":
        columns = {name: column[at] for name, column in self.columns.items()}
        return Estimates(columns, self.work[at], self.limits[at], reasons)

    def by_shape(self) -> dict[tuple[str, str, int], np.ndarray]:
        """Return the quantiles of the hours held by (job, pool, GPUs)."""
        keys = zip(*(self.columns[name].tolist() for name in ("job_id", "pool", "gpus")), strict=True)
        return dict(zip(keys, self.quantiles, strict=True))

    def table(self) -> pd.DataFrame:
        """Return one readable frame: hours and GPU-hours at 0.1, 0.5, 0.9, the mean, the basis."""
        out = self.shapes.copy()
        for level in (0.1, 0.5, 0.9):
            out[f"hours_q{level:g}"] = self.at(level)
        for level in (0.1, 0.5, 0.9):
            out[f"gpu_hours_q{level:g}"] = out[f"hours_q{level:g}"] * out["gpus"]
        out["gpu_hours_mean"] = out["mean_h"] * out["gpus"]
        return out


def interpolate(hours: np.ndarray, level: float) -> np.ndarray:
    """Return quantiles at ``level``, shape (rows,), from quantiles at ``LEVELS``, shape (rows, levels)."""
    right = min(max(int(np.searchsorted(LEVELS, level)), 1), len(LEVELS) - 1)
    low, high = LEVELS[right - 1], LEVELS[right]
    share = min(max((level - low) / (high - low), 0.0), 1.0)
    logs = np.log(np.maximum(hours[:, right - 1 : right + 1], 1e-9))
    return np.exp(logs[:, 0] + share * (logs[:, 1] - logs[:, 0]))


def chance_within(hours: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Return the chance of each row of quantiles at ``LEVELS`` to lie within its limit; 1 where that is NaN.

    Interpolated in log time; ``LEAST_SUCCESS`` below all quantiles, and 1 from the highest on.
    """
    out = np.ones(len(hours))
    at = np.flatnonzero(~np.isnan(limits))
    if not len(at):
        return out
    logs, limit = np.log(np.maximum(hours[at], 1e-9)), np.log(np.maximum(limits[at], 1e-9))[:, None]
    within = (logs <= limit + 1e-12).sum(axis=1)
    right = np.clip(within, 1, len(LEVELS) - 1)
    rows, levels = np.arange(len(at)), np.array(LEVELS)
    low, high = logs[rows, right - 1], logs[rows, right]
    share = np.clip((limit[:, 0] - low) / np.maximum(high - low, 1e-12), 0.0, 1.0)
    inside = levels[right - 1] + share * (levels[right] - levels[right - 1])
    out[at] = np.where(within == 0, LEAST_SUCCESS, np.where(within == len(LEVELS), 1.0, inside))
    return out


def _sizes(pool: Pool, asked: int, low: int, high: int) -> list[tuple[int, int, bool]]:
    """Return the sizes that a request is offered in a pool: the GPUs that it counts, those that it holds, if asked.

    Slices of a GPU do not work together on one job: more than one is offered to a job that asks for so many alone.
    """
    if find(pool.gpu_type)[0].part < 1.0:
        few = {1} if low == 1 else set()
        return [(size, laid(pool, size)[0], size == asked) for size in sorted(few | {asked})]
    if pool.placement != "node":
        mine = block_size(asked)
        # a request of 6 GPUs holds a block of 8 and runs on 6
        return [(asked if size == mine else size, size, size == mine) for size in block_sizes(low, high)]
    out = {laid(pool, asked)[0]: (asked, True)}
    for size in (low, *block_sizes(low, high), high):
        if low <= size <= high:
            out.setdefault(laid(pool, size)[0], (size, False))
    return [(counted, held, mine) for held, (counted, mine) in sorted(out.items())]


def block_sizes(low: int, high: int) -> list[int]:
    """Return the powers of two from the first at or above ``low`` up to the last that holds ``high``."""
    first, last = block_size(low), block_size(max(low, high))
    return [1 << k for k in range(first.bit_length() - 1, last.bit_length())]


def estimate_jobs(
    requests: pd.DataFrame,
    cluster: Cluster,
    estimators: Mapping[str, Estimator],
    scaling: float | None = None,
) -> Estimates:
    """Estimate every request at every GPU count that it allows, in every pool that can hold it.

    See :func:`estimate`.
    """
    return estimate(requests, pd.DataFrame(), cluster, estimators, scaling=scaling)[0]


def estimate(
    requests: pd.DataFrame,
    running: pd.DataFrame,
    cluster: Cluster,
    estimators: Mapping[str, Estimator],
    brief: bool = False,
    features: pd.DataFrame | None = None,
    scaling: float | None = None,
) -> tuple[Estimates, np.ndarray, list[str]]:
    """Estimate requests at every shape that they allow, and running jobs at their block, in one pass.

    Parameters
    ----------
    requests, running
        The queue, and what runs, in the documented schema.
    cluster
        The cluster's pools.
    estimators
        Fitted estimators (or such as answer unfitted) by name; ``"recurring"`` should be among them.
    brief
        Whether to leave out which rung of an estimator's own ladder answers: ``basis`` is then empty.
    features
        What estimators read of the requests, where that is known already.
    scaling
        As in :class:`~tidegrid.pipeline.policy.Policy`.

    Returns
    -------
    estimates : Estimates
        Of the requests.
    whole : ndarray of shape (running, levels)
        Quantiles of the whole duration of each running job, hours at ``LEVELS``.
    notes
        Why another than the usual estimator answered, or quantiles are cut, each once.

    Raises
    ------
    InputError
        A request's feature is not usable; column and row are named.
    """
    rows, columns, refused = _candidates(requests, cluster.pools, features)
    asked = len(rows)
    if len(running):
        under_way = _under_way(running, cluster)
        rows = pd.concat([rows, under_way], ignore_index=True) if asked else under_way
    if rows.empty:
        return replace(Estimates.none(), reasons=refused), np.empty((0, len(LEVELS))), []
    answered = answer(rows, estimators, brief, scaling)
    columns |= {name: getattr(answered, name)[:asked] for name in ("estimator", "basis", "note")}
    possible = answered.feasible[:asked]
    found = Estimates(columns, answered.hours[:asked], answered.limits[:asked])
    if not possible.all():
        for job, at in found.rows.items():
            if not possible[at].any():
                refused[job] = str(answered.reason[at[-1]])
        found = found._take(possible, {})
    notes = sorted(set(answered.note.tolist()) - {""})
    whole = np.fmin(answered.hours[asked:], answered.limits[asked:, None])
    return replace(found, reasons=refused), whole, notes


def _under_way(running: pd.DataFrame, cluster: Cluster) -> pd.DataFrame:
    """Return what estimators read of running jobs, each at the block that it holds."""
    pools = [cluster.pool(name) for name in running["pool"].tolist()]
    rows = request_features(running)
    nodes = np.array([float(pool.gpus_per_node or pool.node_size or np.nan) for pool in pools])
    said = running["gpu_type"].tolist() if "gpu_type" in running else [""] * len(pools)
    slower = [
        _slower(pool, cluster.pools) if not str(one) else 1.0 for pool, one in zip(pools, said, strict=True)
    ]
    types = [pool.gpu_type for pool in pools]
    new = {"gpu_type": np.array(types, dtype=object), "asked_gpus": np.nan, "_slower": slower}
    return _with_nodes(rows.reset_index(drop=True), nodes, **new)


def _slower(pool: Pool, pools: Iterable[Pool]) -> float:
    """Return by what factor a job takes longer in a pool than in the largest one, by the data sheets of their GPUs.

    History of jobs that name no GPU type is taken to be of the largest pool's; 1 where a type has no data sheet.
    """
    usual = max(pools, key=lambda one: one.gpus)
    if usual.gpu_type == pool.gpu_type:
        return 1.0
    (mine, known), (theirs, also) = find(pool.gpu_type), find(usual.gpu_type)
    return theirs.tflops * theirs.part / (mine.tflops * mine.part) if known and also else 1.0


def _with_nodes(rows: pd.DataFrame, of_pool: np.ndarray, **more: Any) -> pd.DataFrame:
    """Return rows with more columns and the GPUs of a node: a job that does not say takes those of its pool."""
    if "gpus_per_node" in rows:
        told = rows["gpus_per_node"].to_numpy(dtype=float)
        of_pool = np.where(np.isnan(told), of_pool, told)
    return rows.assign(gpus_per_node=of_pool, **more)


def remaining(whole: np.ndarray, elapsed_h: np.ndarray, limit_h: np.ndarray | None = None) -> np.ndarray:
    """Return quantiles of the hours that running jobs still need, given that they have run this long.

    Parameters
    ----------
    whole : ndarray of shape (running, levels)
        Quantiles of their whole durations at ``LEVELS``.
    elapsed_h : ndarray of shape (running,)
    limit_h : ndarray of shape (running,), optional
        Their time limits, NaN for none. One holds where the whole duration keeps to it at every level.

    Returns
    -------
    ndarray of shape (running, levels)
        Always positive.
    """
    if not len(whole):
        return whole
    most = None
    if limit_h is not None:
        end = limit_h * np.exp(GRACE)
        most = np.where(whole[:, -1] <= end * (1 + 1e-9), end, np.inf)
    return remaining_quantiles(whole, LEVELS, elapsed_h, LEVELS, most)


@dataclass(frozen=True)
class _Answers:
    """What was answered for each row: quantiles in hours at ``LEVELS``, by whom, on what, and whether it can run."""

    hours: np.ndarray
    limits: np.ndarray
    estimator: np.ndarray
    basis: np.ndarray
    note: np.ndarray
    feasible: np.ndarray
    reason: np.ndarray


def answer(
    rows: pd.DataFrame,
    estimators: Mapping[str, Estimator],
    brief: bool = False,
    scaling: float | None = None,
) -> _Answers:
    """Let the right estimator answer for each row, and the next rung where that one cannot.

    The ladder: the estimator of the job's kind, ``recurring`` from the history of such jobs, its prior. An estimator
    that knows only the sizes that were seen is asked at the size asked for; other sizes follow by ``scaling``, and are
    not possible without one.
    """
    chosen, notes = _choose(rows, estimators)
    limits = np.full(len(rows), np.nan)
    if "requested_walltime_h" in rows:
        limits = rows["requested_walltime_h"].to_numpy(dtype=float)
    out = _Answers(
        np.empty((len(rows), len(LEVELS))),
        limits,
        chosen,
        np.full(len(rows), "", dtype=object),
        notes,
        np.ones(len(rows), dtype=bool),
        np.full(len(rows), "", dtype=object),
    )
    for name in sorted(set(out.estimator)):
        at = np.flatnonzero(out.estimator == name)
        part = rows if len(at) == len(rows) else rows.iloc[at]
        rungs = [(name, estimators.get(name)), (FALLBACK, estimators.get(FALLBACK))]
        rungs.append((FALLBACK, RecurringJobEstimator()))
        for rung, (who, estimator) in enumerate(rungs, 1):
            try:
                if estimator is None:
                    raise LookupError("there is no such estimator")
                seen_only = not getattr(estimator, "knows_sizes", who != FALLBACK)
                if seen_only and "asked_gpus" in part:
                    asked = part["asked_gpus"].to_numpy(dtype=float)
                    at_asked = part.assign(gpus=np.where(np.isnan(asked), part["gpus"], asked))
                    predict = estimator.predict_quantiles
                    if not np.isnan(limits[at]).all():
                        predict = getattr(estimator, "predict_work", predict)
                    hours = predict(at_asked, LEVELS).to_numpy(dtype=float)
                    out.hours[at] = _elsewhere(part, hours, scaling, at, out)
                else:
                    out.hours[at] = estimator.predict_quantiles(part, LEVELS).to_numpy(dtype=float)
                if type(estimator).feasible is not Estimator.feasible:
                    can = estimator.feasible(part)
                    out.feasible[at] &= can["feasible"].to_numpy(bool)
                    out.reason[at] = np.where(can["feasible"], out.reason[at], can["reason"])
                out.basis[at] = "" if brief else estimator.basis(part).to_numpy(object)
                out.estimator[at] = who
                break
            except TidegridError:
                raise
            except Exception as error:  # a plugin may raise anything; the next rung answers, told
                if rung == len(rungs):
                    raise
                then = "its prior answers" if who == FALLBACK else "answered from history"
                out.note[at] = f"{who} failed ({type(error).__name__}: {error}); {then}"
    # the queue ends a job at its requested time limit
    cut = (out.hours[:, [level <= SHOWN for level in LEVELS]] > limits[:, None]).any(axis=1)
    out.note[cut] = [f"{note}; {CAPPED}" if note else CAPPED for note in out.note[cut]]
    return out


def _elsewhere(
    part: pd.DataFrame, hours: np.ndarray, scaling: float | None, at: np.ndarray, out: _Answers
) -> np.ndarray:
    """Return what the hours at the size asked for, in the usual pool, are at each row's size and GPU type.

    Each ratio widens the band: what it may be off adds to the distance from the median in squares, in log time.
    """
    gpus, asked = part["gpus"].to_numpy(dtype=float), part["asked_gpus"].to_numpy(dtype=float)
    more = np.log(np.where(np.isnan(asked), 1.0, gpus / np.where(asked > 0, asked, gpus)))
    slower = np.log(part["_slower"].to_numpy(dtype=float)) if "_slower" in part else np.zeros(len(part))
    if scaling is None:
        other = at[more != 0]
        out.feasible[other] = False
        out.reason[other] = [
            f"asks for {count:g} GPUs, and how long it takes on others is not known (scaling in the policy says it)"
            for count in asked[more != 0]
        ]
    if not more.any() and not slower.any():
        return hours
    logs = np.log(np.maximum(hours, 1e-9))
    middle = logs[:, LEVELS.index(0.5)][:, None]
    doubt = np.hypot(SCALING_DOUBT * more, SHEET_DOUBT * slower)[:, None]
    reach = np.hypot(logs - middle, doubt * np.array([NormalDist().inv_cdf(level) for level in LEVELS]))
    shift = slower - (scaling or 0.0) * more
    return np.exp(middle + shift[:, None] + np.sign(np.array(LEVELS) - 0.5) * reach)


def _choose(rows: pd.DataFrame, estimators: Mapping[str, Estimator]) -> tuple[np.ndarray, np.ndarray]:
    """Return which estimator is to answer for each row, and why not that of its kind."""
    chosen, notes = np.full(len(rows), FALLBACK, dtype=object), np.full(len(rows), "", dtype=object)
    kinds = rows["kind"].to_numpy(dtype=object)
    for kind in sorted({str(kind) for kind in kinds} & set(estimators)):
        estimator = estimators[kind]
        if estimator.target != "duration_h":
            continue
        of_kind = kinds == kind
        lacks = lacking(rows, estimator.features)
        able = of_kind & (lacks == "")
        for i in np.flatnonzero(of_kind & ~able).tolist():
            notes[i] = f"no {lacks[i]}: estimated from the history of such jobs"
        if able.any():
            checked_features(rows[able], estimator.features)
        chosen[able] = kind
    return chosen, notes


def _candidates(
    requests: pd.DataFrame, pools: Iterable[Pool], features: pd.DataFrame | None = None
) -> tuple[pd.DataFrame, dict[str, np.ndarray], dict[str, str]]:
    """Return what estimators read of each shape that a request may have, what it is, and why jobs have none."""
    pools = list(pools)
    refused: dict[str, str] = {}
    where: list[int] = []
    found: list[tuple[Any, ...]] = []
    alike: dict[tuple[Any, ...], list[tuple[Any, ...]] | str] = {}
    columns = ("job_id", "gpus", "min_gpus", "max_gpus", "gpu_type", *_WHERE)
    cells = (_cells(requests, name) for name in columns)
    for i, (job, gpus, least, most, gpu_type, only, on, wide) in enumerate(zip(*cells, strict=True)):
        wanted = int(gpus)
        low, high = (wanted if cell is None else int(cell) for cell in (least, most))
        asks = (wanted, low, high, str(gpu_type), str(only or ""), str(on or ""), int(wide or 0))
        if asks not in alike:
            alike[asks] = _shapes(pools, *asks)
        mine = alike[asks]
        if isinstance(mine, str):
            refused[str(job)] = mine
            continue
        where += [i] * len(mine)
        found += [(str(job), *shape) for shape in mine]
    kinds: tuple[Any, ...] = (object, object, np.int64, np.int64, np.bool_, float, object, float, float)
    parts = [np.array([one[k] for one in found], dtype=kind) for k, kind in enumerate(kinds)]
    shapes = dict(zip(_SHAPE, parts, strict=False))
    sizes, of_type, of_nodes, slowness = parts[len(_SHAPE) :]
    if not found:
        return pd.DataFrame(), shapes, refused
    rows = request_features(requests) if features is None else features
    rows = rows.take(where)
    new = {"gpus": sizes, "gpu_type": of_type, "asked_gpus": rows["gpus"].to_numpy(), "_slower": slowness}
    return _with_nodes(rows.reset_index(drop=True), of_nodes, **new), shapes, refused


def _cells(table: pd.DataFrame, name: str) -> list[Any]:
    """Return a column's cells, None for unknown; a column that is absent has none."""
    if name not in table:
        return [None] * len(table)
    column = table[name]
    unknown = column.isna().to_numpy()
    cells = column.tolist()
    return (
        [None if gone else cell for cell, gone in zip(cells, unknown, strict=True)]
        if unknown.any()
        else cells
    )


def _shapes(
    pools: list[Pool], wanted: int, low: int, high: int, gpu_type: str, only: str, on: str, wide: int
) -> list[tuple[Any, ...]] | str:
    """Return what a request may run at, as ``_SHAPE`` and what estimators read of it; or why there is nothing."""
    may, nodes = set(only.split()), set(nodes_of(on)) if on else set()
    matching = [
        pool
        for pool in pools
        if gpu_type in ("", pool.gpu_type)
        and (not may or pool.id in may)
        and (not nodes or any(name in pool.node_index for name in nodes))
    ]
    if not matching:
        return _nowhere(gpu_type, may, nodes, sorted({pool.gpu_type for pool in pools}))
    out: list[tuple[Any, ...]] = []
    for pool in matching:
        slower = _slower(pool, pools) if not gpu_type else 1.0
        of_node = float(pool.gpus_per_node or pool.node_size or np.nan)
        for counted, held, asked in _sizes(pool, wanted, low, high):
            if held <= pool.gpus:
                on_nodes = wide if asked else 0
                spread = on_nodes if _even(pool, held, on_nodes) else laid(pool, held)[1]
                out.append((pool.id, held, spread, asked, counted, pool.gpu_type, of_node, slower))
    if out:
        return out
    fewest = min(laid(pool, low)[0] for pool in matching)
    return (
        f"needs {'a block of ' if matching[0].placement == 'line' else ''}{fewest} GPUs; the largest pool that "
        f"it may use has {max(pool.gpus for pool in matching)}"
    )


_WHERE = ("allowed_pools", "allowed_nodes", "nodes")
"""Columns of requests that say where a job may run, and on how many nodes."""


_SHAPE = ("job_id", "pool", "gpus", "nodes", "asked")
"""What a shape is."""


def _even(pool: Pool, gpus: int, nodes: int) -> bool:
    """Whether GPUs lie evenly on so many nodes of a pool that is placed by node."""
    if pool.placement != "node" or nodes < 1 or pool.node_size is None:
        return False
    return gpus % nodes == 0 and gpus // nodes <= pool.node_size and nodes * pool.node_size <= pool.gpus


def _nowhere(gpu_type: str, pools: set[str], nodes: set[str], types: list[str]) -> str:
    if nodes:
        return f"no pool that it may use has a node of {', '.join(sorted(nodes)[:5])} with GPUs of its type"
    if pools:
        return f"no pool that it may use ({', '.join(sorted(pools))}) has GPUs of its type"
    return f"no pool has GPUs of type {gpu_type}; there are {', '.join(types)}"


def explain_request(request: pd.DataFrame, cluster: Cluster, estimators: Mapping[str, Estimator]) -> str:
    """Say in words how the estimate of one request arises, at the GPU count that it asks for.

    Parameters
    ----------
    request
        A frame of one row, as :func:`tidegrid.data.read_requests` returns it.
    """
    rows, shapes, refused = _candidates(request, cluster.pools)
    if rows.empty:
        return next(iter(refused.values()))
    asked = rows[shapes["asked"]]
    row = (asked if len(asked) else rows).iloc[[0]]
    chosen, notes = _choose(row, estimators)
    estimator = estimators[chosen[0]]
    q = estimator.predict_quantiles(row, (0.1, 0.5, 0.9)).iloc[0]
    text = (
        f"{chosen[0]}: median {q[0.5]:.3g} h, 80 % band {q[0.1]:.3g}–{q[0.9]:.3g} h "
        f"on {row['gpus'].iloc[0]} GPUs; basis: {estimator.basis(row).iloc[0]}"
    )
    explains = getattr(estimator, "explain", None)
    if explains is not None:
        text += "\n" + _in_words(explains(row))
    return f"{text}\n{notes[0]}" if notes[0] else text


def _in_words(told: object) -> str:
    """Return an estimator's explanation of one row: its own text, or its terms by name."""
    if isinstance(told, pd.DataFrame):
        cells = told.iloc[0].items()
        return ", ".join(
            f"{name} {cell if isinstance(cell, str) else format(cell, '.4g')}" for name, cell in cells
        )
    first = told[0] if isinstance(told, list) else told
    return str(getattr(first, "text", first))
