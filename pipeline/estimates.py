"""From requests to estimates: a distribution of hours for each feasible (pool, GPUs) of each job."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from tidegrid.data import Cluster, Pool, block_size, request_features
from tidegrid.errors import TidegridError
from tidegrid.estimators import Estimator
from tidegrid.estimators.base import checked_features, lacking
from tidegrid.estimators.conditional import remaining_quantiles
from tidegrid.estimators.recurring import RecurringJobEstimator

LEVELS = (0.025, 0.05, 0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 0.95, 0.975)
"""The one grid of quantile levels: durations, remaining times and demand are forecast at these."""

MEAN_WEIGHTS = np.diff(np.concatenate([[0.0], (np.array(LEVELS[1:]) + np.array(LEVELS[:-1])) / 2, [1.0]]))
"""The share of the distribution that each level of the grid stands for: a mean is their weighted sum."""

SHOWN = 0.9
"""The highest level that tables show."""

CAPPED = "hours end at the requested time limit"
"""The note of an estimate whose shown quantiles are cut to the time limit that the job asked for."""

_COLUMNS = ("job_id", "pool", "gpus", "estimator", "basis", "note")

FALLBACK = "recurring"
"""The estimator that needs nothing but a job's past: it answers where no other can."""


@dataclass(frozen=True)
class Estimates:
    """What the jobs will take.

    Attributes
    ----------
    columns : dict of str to ndarray
        One entry for each (job, pool, GPUs) that is possible: ``job_id``, ``pool``, ``gpus`` (the block, a power of
        two), ``estimator``, ``basis``, ``note`` (why another estimator did not answer, and whether the requested time
        limit cuts the quantiles).
    quantiles : ndarray of shape (entries, levels)
        Quantiles of the duration in hours at ``LEVELS``.
    reasons
        Why a job has no possible shape, by its id.
    """

    columns: Mapping[str, np.ndarray]
    quantiles: np.ndarray
    reasons: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def shapes(self) -> pd.DataFrame:
        """One row for each possible (job, pool, GPUs), on a fresh index: ``columns``, and the mean as ``mean_h``."""
        return pd.DataFrame({**self.columns, "mean_h": self.quantiles @ MEAN_WEIGHTS})

    @cached_property
    def hours(self) -> pd.DataFrame:
        """Quantiles of the duration in hours, on the index of ``shapes``, one column for each of ``LEVELS``."""
        return pd.DataFrame(self.quantiles, columns=pd.Index(LEVELS, name="level"))

    @cached_property
    def refused(self) -> pd.DataFrame:
        """One row for each job that has no possible shape: ``job_id``, ``reason``."""
        return pd.DataFrame(
            {"job_id": list(self.reasons), "reason": list(self.reasons.values())}, dtype=object
        )

    @cached_property
    def rows(self) -> dict[str, list[int]]:
        """Where the entries of each job are."""
        out: dict[str, list[int]] = {}
        for k, job in enumerate(self.columns["job_id"].tolist()):
            out.setdefault(job, []).append(k)
        return out

    def at(self, level: float) -> pd.Series:
        """Return the hours at a quantile level, interpolated in log time between the levels carried."""
        return pd.Series(interpolate(self.quantiles, level), name="hours")

    @classmethod
    def none(cls) -> "Estimates":
        """Return the estimates of no job."""
        columns = {name: np.empty(0, np.int64 if name == "gpus" else object) for name in _COLUMNS}
        return cls(columns, np.empty((0, len(LEVELS))))

    def joined(self, more: "Estimates") -> "Estimates":
        """Return these estimates and those of other jobs."""
        return Estimates(
            {name: np.concatenate([self.columns[name], more.columns[name]]) for name in _COLUMNS},
            np.concatenate([self.quantiles, more.quantiles]),
            {**self.reasons, **more.reasons},
        )

    def of(self, jobs: Iterable[str]) -> "Estimates":
        """Return the estimates of some jobs, in their order."""
        wanted = list(jobs)
        at = [k for job in wanted for k in self.rows.get(job, ())]
        reasons = {job: self.reasons[job] for job in wanted if job in self.reasons}
        return Estimates(
            {name: column[at] for name, column in self.columns.items()}, self.quantiles[at], reasons
        )

    def by_shape(self) -> dict[tuple[str, str, int], np.ndarray]:
        """Return the quantiles by (job, pool, GPUs)."""
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


def block_sizes(low: int, high: int) -> list[int]:
    """Return the powers of two from the first at or above ``low`` up to the last that holds ``high``."""
    first, last = block_size(low), block_size(max(low, high))
    return [1 << k for k in range(first.bit_length() - 1, last.bit_length())]


def estimate_jobs(requests: pd.DataFrame, cluster: Cluster, estimators: Mapping[str, Estimator]) -> Estimates:
    """Estimate every request at every GPU count that it allows, in every pool that can hold it.

    See :func:`estimate`.
    """
    return estimate(requests, pd.DataFrame(), cluster, estimators)[0]


def estimate(
    requests: pd.DataFrame,
    running: pd.DataFrame,
    cluster: Cluster,
    estimators: Mapping[str, Estimator],
    brief: bool = False,
    features: pd.DataFrame | None = None,
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
    rows, refused = _candidates(requests, cluster.pools, features)
    asked = len(rows)
    if len(running):
        under_way = _under_way(running, cluster)
        rows = pd.concat([rows, under_way], ignore_index=True) if asked else under_way
    if rows.empty:
        return replace(Estimates.none(), reasons=refused), np.empty((0, len(LEVELS))), []
    answered = answer(rows, estimators, brief)
    columns = {
        "job_id": rows["job_id"].to_numpy(dtype=object)[:asked].astype(str).astype(object),
        "pool": rows["_pool"].to_numpy(dtype=object)[:asked] if asked else np.empty(0, object),
        "gpus": rows["_block"].to_numpy(dtype=float)[:asked].astype(np.int64) if asked else np.empty(0, int),
        "estimator": answered.estimator[:asked],
        "basis": answered.basis[:asked],
        "note": answered.note[:asked],
    }
    possible = answered.feasible[:asked]
    found = Estimates(columns, answered.hours[:asked])
    if not possible.all():
        for job, at in found.rows.items():
            if not possible[at].any():
                refused[job] = str(answered.reason[at[-1]])
        kept = {name: column[possible] for name, column in columns.items()}
        found = Estimates(kept, found.quantiles[possible])
    notes = sorted(set(answered.note.tolist()) - {""})
    return replace(found, reasons=refused), answered.hours[asked:], notes


def _under_way(running: pd.DataFrame, cluster: Cluster) -> pd.DataFrame:
    """Return what estimators read of running jobs, each at the block that it holds."""
    pools = [cluster.pool(name) for name in running["pool"].tolist()]
    rows = request_features(running)
    nodes = np.array([float(pool.gpus_per_node or pool.node_size or np.nan) for pool in pools])
    return _with_nodes(rows, nodes).assign(gpu_type=[pool.gpu_type for pool in pools]).reset_index(drop=True)


def _with_nodes(rows: pd.DataFrame, of_pool: np.ndarray) -> pd.DataFrame:
    """Return rows with the GPUs of a node: a job that does not say takes those of its pool, whatever others say."""
    if "gpus_per_node" in rows:
        told = rows["gpus_per_node"].to_numpy(dtype=float)
        of_pool = np.where(np.isnan(told), of_pool, told)
    return rows.assign(gpus_per_node=of_pool)


def remaining(whole: np.ndarray, elapsed_h: np.ndarray) -> np.ndarray:
    """Return quantiles of the hours that running jobs still need, given that they have run this long.

    Parameters
    ----------
    whole : ndarray of shape (running, levels)
        Quantiles of their whole durations at ``LEVELS``.
    elapsed_h : ndarray of shape (running,)

    Returns
    -------
    ndarray of shape (running, levels)
        Always positive.
    """
    if not len(whole):
        return whole
    return remaining_quantiles(whole, LEVELS, elapsed_h, LEVELS)


@dataclass(frozen=True)
class _Answers:
    """What was answered for each row: quantiles in hours at ``LEVELS``, by whom, on what, and whether it can run."""

    hours: np.ndarray
    estimator: np.ndarray
    basis: np.ndarray
    note: np.ndarray
    feasible: np.ndarray
    reason: np.ndarray


def answer(rows: pd.DataFrame, estimators: Mapping[str, Estimator], brief: bool = False) -> _Answers:
    """Let the right estimator answer for each row, and the next rung where that one cannot.

    The ladder: the estimator of the job's kind, ``recurring`` from the history of such jobs, its prior.
    """
    chosen, notes = _choose(rows, estimators)
    out = _Answers(
        np.empty((len(rows), len(LEVELS))),
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
                out.hours[at] = estimator.predict_quantiles(part, LEVELS).to_numpy(dtype=float)
                if type(estimator).feasible is not Estimator.feasible:
                    can = estimator.feasible(part)
                    out.feasible[at], out.reason[at] = (
                        can["feasible"].to_numpy(bool),
                        can["reason"].to_numpy(object),
                    )
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
    if "requested_walltime_h" in rows:
        # the queue ends a job at its requested time limit, so no quantile lies beyond it
        limit = rows["requested_walltime_h"].to_numpy(dtype=float)[:, None]
        cut = (out.hours[:, [level <= SHOWN for level in LEVELS]] > limit).any(axis=1)
        out.note[cut] = [f"{note}; {CAPPED}" if note else CAPPED for note in out.note[cut]]
        np.fmin(out.hours, limit, out=out.hours)
    return out


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
) -> tuple[pd.DataFrame, dict[str, str]]:
    pools = list(pools)
    types = sorted({pool.gpu_type for pool in pools})
    refused: dict[str, str] = {}
    where: list[int] = []
    block: list[int] = []
    counted: list[int] = []
    pool_ids: list[str] = []
    pool_types: list[str] = []
    nodes: list[float] = []
    columns = ("job_id", "gpus", "min_gpus", "max_gpus", "gpu_type")
    allowed = requests["allowed_pools"] if "allowed_pools" in requests else [""] * len(requests)
    for i, (job, gpus, min_gpus, max_gpus, wanted_type, only) in enumerate(
        zip(*(requests[c] for c in columns), allowed, strict=True)
    ):
        wanted = int(gpus)
        low, high = _whole(min_gpus, wanted), _whole(max_gpus, wanted)
        gpu_type = str(wanted_type)
        may = set() if pd.isna(only) else set(str(only).split())
        matching = [pool for pool in pools if gpu_type in ("", pool.gpu_type) and (not may or pool.id in may)]
        if not matching and may:
            refused[str(job)] = f"no pool that it may use ({', '.join(sorted(may))}) has GPUs of its type"
            continue
        if not matching:
            refused[str(job)] = f"no pool has GPUs of type {gpu_type}; there are {', '.join(types)}"
            continue
        before = len(where)
        for pool in matching:
            for size in block_sizes(low, high):
                if size <= pool.gpus:
                    where.append(i)
                    block.append(size)
                    # a request of 6 GPUs holds a block of 8 and runs on 6
                    counted.append(wanted if size == block_size(wanted) else size)
                    pool_ids.append(pool.id)
                    pool_types.append(pool.gpu_type)
                    nodes.append(float(pool.gpus_per_node or pool.node_size or np.nan))
        if len(where) == before:
            refused[str(job)] = (
                f"needs a block of {block_size(low)} GPUs; the largest pool that it may use has "
                f"{max(pool.gpus for pool in matching)}"
            )
    if not len(requests):
        return pd.DataFrame(), refused
    rows = request_features(requests) if features is None else features
    if where != list(range(len(rows))):
        rows = rows.iloc[where]
    rows = rows.reset_index(drop=True)
    new: dict[str, Any] = {
        "_pool": pool_ids,
        "_block": block,
        "asked_gpus": rows["gpus"],
        "gpus": counted,
        "gpu_type": pool_types,
    }
    return _with_nodes(rows, np.array(nodes)).assign(**new), refused


def _whole(value: float, default: int) -> int:
    return default if pd.isna(value) else int(value)


def explain_request(request: pd.DataFrame, cluster: Cluster, estimators: Mapping[str, Estimator]) -> str:
    """Say in words how the estimate of one request arises, at the GPU count that it asks for.

    Parameters
    ----------
    request
        A frame of one row, as :func:`tidegrid.data.read_requests` returns it.
    """
    rows, refused = _candidates(request, cluster.pools)
    if rows.empty:
        return next(iter(refused.values()))
    asked = rows[(rows["_block"] == block_size(int(request["gpus"].iloc[0]))).to_numpy()]
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
