"""From requests to estimates: a distribution of hours for each feasible (pool, GPUs) of each job."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tidegrid.data import Cluster, Pool, block_size, request_features
from tidegrid.errors import TidegridError
from tidegrid.estimators import Estimator
from tidegrid.estimators.base import checked_features
from tidegrid.estimators.conditional import GRID, remaining_quantiles

LEVELS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
"""The quantile levels that an estimate carries."""

SHOWN = 0.9
"""The highest level that tables show."""

CAPPED = "hours end at the requested time limit"
"""The note of an estimate whose shown quantiles are cut to the time limit that the job asked for."""

FALLBACK = "recurring"
"""The estimator that needs nothing but a job's past: it answers where no other can."""


@dataclass(frozen=True)
class Estimates:
    """What the jobs will take.

    Attributes
    ----------
    shapes : DataFrame
        One row for each (job, pool, GPUs) that is possible, in a fresh index: ``job_id``, ``pool``, ``gpus`` (the
        block, a power of two), ``estimator``, ``basis``, ``note`` (why another estimator did not answer, and
        whether the requested time limit cuts the quantiles), ``mean_h``.
    hours : DataFrame
        Quantiles of the duration in hours, on the index of ``shapes``, one column for each of ``LEVELS``.
    refused : DataFrame
        One row for each job that has no possible shape: ``job_id``, ``reason``.
    """

    shapes: pd.DataFrame
    hours: pd.DataFrame
    refused: pd.DataFrame

    def at(self, level: float) -> pd.Series:
        """Return the hours at a quantile level, interpolated in log time between the levels carried."""
        return pd.Series(interpolate(self.hours.to_numpy(), level), index=self.hours.index, name="hours")

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
    log_hours = np.log(np.maximum(hours, 1e-9))
    return np.exp(np.array([np.interp(level, LEVELS, row) for row in log_hours]))


def block_sizes(low: int, high: int) -> list[int]:
    """Return the powers of two from the first at or above ``low`` up to the last that holds ``high``."""
    first, last = block_size(low), block_size(max(low, high))
    return [1 << k for k in range(first.bit_length() - 1, last.bit_length())]


def estimate_jobs(requests: pd.DataFrame, cluster: Cluster, estimators: Mapping[str, Estimator]) -> Estimates:
    """Estimate every request at every GPU count that it allows, in every pool that can hold it.

    Parameters
    ----------
    requests
        The queue, as :func:`tidegrid.data.read_requests` returns it.
    cluster
        The cluster's pools.
    estimators
        Fitted estimators (or such as answer unfitted) by name; ``"recurring"`` must be among them.

    Raises
    ------
    InputError
        A request's feature is not usable; column and row are named.
    """
    rows, refused = _candidates(requests, cluster.pools)
    if rows.empty:
        empty = pd.DataFrame(columns=pd.Index(LEVELS, name="level"), dtype=float)
        columns = ["job_id", "pool", "gpus", "estimator", "basis", "note", "mean_h"]
        return Estimates(pd.DataFrame(columns=columns), empty, _refusals(refused))
    answered = answer(rows, estimators)
    possible = answered["feasible"].to_numpy()
    for job, reason in _all_infeasible(rows, answered):
        refused[job] = reason
    shapes = pd.DataFrame(
        {
            "job_id": rows["job_id"],
            "pool": rows["_pool"],
            "gpus": rows["_block"].astype(int),
            "estimator": answered["estimator"],
            "basis": answered["basis"],
            "note": answered["note"],
            "mean_h": answered["mean_h"],
        }
    )[possible].reset_index(drop=True)
    hours = answered[list(LEVELS)][possible].reset_index(drop=True)
    hours.columns = pd.Index(LEVELS, name="level")
    return Estimates(shapes, hours, _refusals(refused))


def remaining(
    running: pd.DataFrame,
    cluster: Cluster,
    estimators: Mapping[str, Estimator],
    now: pd.Timestamp,
    levels: Sequence[float] = LEVELS,
) -> pd.DataFrame:
    """Return quantiles of the hours that running jobs still need, given that they have run this long.

    Returns
    -------
    DataFrame
        One row for each running job, on the index of ``running``, one column a level; always positive.
    """
    columns = pd.Index([float(v) for v in levels], name="level")
    if running.empty:
        return pd.DataFrame(index=running.index, columns=columns, dtype=float)
    types = {pool.id: pool.gpu_type for pool in cluster.pools}
    rows = request_features(running).assign(gpu_type=running["pool"].map(types))
    answered = answer(rows, estimators, levels=tuple(GRID))
    elapsed = ((now - pd.to_datetime(running["start_time"], utc=True)).dt.total_seconds() / 3600).clip(
        lower=0
    )
    whole = answered[list(GRID)].to_numpy(dtype=float)
    return pd.DataFrame(
        remaining_quantiles(whole, list(GRID), elapsed.to_numpy(), levels),
        index=running.index,
        columns=columns,
    )


def answer(
    rows: pd.DataFrame, estimators: Mapping[str, Estimator], levels: Sequence[float] = LEVELS
) -> pd.DataFrame:
    """Let the right estimator answer for each row, and the fallback where that one cannot.

    Returns
    -------
    DataFrame
        On the index of ``rows``: one column a level (hours), ``mean_h``, ``estimator``, ``basis``, ``note``,
        ``feasible``, ``reason``.
    """
    chosen, notes = _choose(rows, estimators)
    parts = []
    for name in sorted(set(chosen)):
        part = rows[(chosen == name).to_numpy()]
        try:
            parts.append(_predict(part, name, estimators[name], levels).assign(note=notes.loc[part.index]))
        except TidegridError:
            raise
        except Exception as error:  # a plugin may raise anything; the plan goes on with the fallback, flagged
            note = f"{name} failed ({type(error).__name__}: {error}); answered from history"
            parts.append(_predict(part, FALLBACK, estimators[FALLBACK], levels).assign(note=note))
    out = pd.concat(parts).reindex(rows.index)
    limit = rows.get("requested_walltime_h", pd.Series(np.nan, index=rows.index))
    # the queue ends a job at its requested time limit, so no quantile lies beyond it
    cut = np.zeros(len(out), dtype=bool)
    for column in (level for level in levels if level <= SHOWN):
        cut |= out[column].to_numpy(dtype=float) > limit.to_numpy(dtype=float)
    out.loc[cut, "note"] = [f"{note}; {CAPPED}" if note else CAPPED for note in out.loc[cut, "note"]]
    for column in levels:
        out[column] = np.fmin(out[column].to_numpy(dtype=float), limit.to_numpy(dtype=float))
    out["mean_h"] = np.fmin(out["mean_h"], _capped_mean(out, rows, estimators, limit))
    return out


def _predict(part: pd.DataFrame, name: str, estimator: Estimator, levels: Sequence[float]) -> pd.DataFrame:
    out = estimator.predict_quantiles(part, tuple(levels))
    out.columns = pd.Index(list(levels))
    can = estimator.feasible(part)
    return out.assign(
        mean_h=estimator.predict_mean(part),
        estimator=name,
        basis=estimator.basis(part),
        feasible=can["feasible"].astype(bool),
        reason=can["reason"],
    )


def _capped_mean(
    out: pd.DataFrame, rows: pd.DataFrame, estimators: Mapping[str, Estimator], limit: pd.Series
) -> pd.Series:
    """Return the mean hours of jobs that are ended at their limit: of the capped distribution, not the capped mean."""
    mean = pd.Series(np.inf, index=rows.index)
    fine = tuple((np.arange(40) + 0.5) / 40)
    for name in sorted(set(out["estimator"])):
        at = ((out["estimator"] == name) & limit.notna()).to_numpy()
        if at.any():
            hours = estimators[name].predict_quantiles(rows[at], fine).to_numpy()
            mean[at] = np.minimum(hours, limit.to_numpy(dtype=float)[at, None]).mean(axis=1)
    return mean


def _choose(rows: pd.DataFrame, estimators: Mapping[str, Estimator]) -> tuple[pd.Series, pd.Series]:
    chosen = pd.Series(FALLBACK, index=rows.index, dtype=object)
    notes = pd.Series("", index=rows.index, dtype=object)
    for kind in sorted(set(rows["kind"].dropna())):
        of_kind = (rows["kind"] == kind).to_numpy()
        estimator = estimators.get(kind)
        if estimator is None or estimator.target != "duration_h":
            continue
        able = of_kind.copy()
        for feature in estimator.features:
            if not feature.required:
                continue
            there = _filled(rows, feature.name)
            able &= there.to_numpy()
            notes[of_kind & ~there.to_numpy() & (notes == "").to_numpy()] = (
                f"no {feature.name}: estimated from the history of such jobs"
            )
        if able.any():
            checked_features(rows[able], estimator.features)
        chosen[able] = kind
    return chosen, notes


def _filled(rows: pd.DataFrame, column: str) -> pd.Series:
    if column not in rows:
        return pd.Series(False, index=rows.index)
    return rows[column].notna() & (rows[column].astype(object) != "")


def _candidates(requests: pd.DataFrame, pools: Iterable[Pool]) -> tuple[pd.DataFrame, dict[str, str]]:
    pools = list(pools)
    types = sorted({pool.gpu_type for pool in pools})
    refused: dict[str, str] = {}
    where: list[int] = []
    block: list[int] = []
    counted: list[int] = []
    pool_ids: list[str] = []
    pool_types: list[str] = []
    nodes: list[int | None] = []
    columns = ("job_id", "gpus", "min_gpus", "max_gpus", "gpu_type")
    for i, (job, gpus, min_gpus, max_gpus, wanted_type) in enumerate(
        zip(*(requests[c] for c in columns), strict=True)
    ):
        wanted = int(gpus)
        low, high = _whole(min_gpus, wanted), _whole(max_gpus, wanted)
        gpu_type = str(wanted_type)
        matching = [pool for pool in pools if gpu_type in ("", pool.gpu_type)]
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
                    nodes.append(pool.gpus_per_node or pool.node_size)
        if len(where) == before:
            refused[str(job)] = (
                f"needs a block of {block_size(low)} GPUs; the largest pool that it may use has "
                f"{max(pool.gpus for pool in matching)}"
            )
    rows = request_features(requests).iloc[where].reset_index(drop=True)
    rows = rows.assign(_pool=pool_ids, _block=block, gpus=counted)
    rows["gpu_type"] = pool_types
    if "gpus_per_node" not in rows:
        rows["gpus_per_node"] = pd.Series(nodes, index=rows.index, dtype=float)
    return rows, refused


def _whole(value: float, default: int) -> int:
    return default if pd.isna(value) else int(value)


def _all_infeasible(rows: pd.DataFrame, answered: pd.DataFrame) -> list[tuple[str, str]]:
    any_feasible = answered["feasible"].groupby(rows["job_id"]).any()
    out = []
    for job in any_feasible.index[~any_feasible.to_numpy()]:
        last = (rows["job_id"] == job).to_numpy().nonzero()[0][-1]
        out.append((str(job), str(answered["reason"].iloc[last])))
    return out


def _refusals(refused: Mapping[str, str]) -> pd.DataFrame:
    return pd.DataFrame({"job_id": list(refused), "reason": list(refused.values())}, dtype=object)


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
    estimator = estimators[chosen.iloc[0]]
    q = estimator.predict_quantiles(row, (0.1, 0.5, 0.9)).iloc[0]
    text = (
        f"{chosen.iloc[0]}: median {q[0.5]:.3g} h, 80 % band {q[0.1]:.3g}–{q[0.9]:.3g} h "
        f"on {row['gpus'].iloc[0]} GPUs; basis: {estimator.basis(row).iloc[0]}"
    )
    explains = getattr(estimator, "explain", None)
    if explains is not None:
        text += "\n" + _in_words(explains(row))
    return f"{text}\n{notes.iloc[0]}" if notes.iloc[0] else text


def _in_words(told: object) -> str:
    """Return an estimator's explanation of one row: its own text, or its terms by name."""
    if isinstance(told, pd.DataFrame):
        return ", ".join(f"{name} {value:.4g}" for name, value in told.iloc[0].items())
    first = told[0] if isinstance(told, list) else told
    return str(getattr(first, "text", first))
