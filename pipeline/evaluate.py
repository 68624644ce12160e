"""As-of backtests of every estimator: one table of figures, by user and by size, and a picture of calibration."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from tidegrid.data import History
from tidegrid.errors import InputError, TidegridError
from tidegrid.estimators import Estimator
from tidegrid.estimators.registry import Registry, discover
from tidegrid.files import writing
from tidegrid.pipeline.backtest import (
    BAND,
    LEVELS,
    Calendar,
    Rows,
    answers,
    asked,
    cutoffs,
    fitted_as_of,
    losses,
    make,
    naive_answers,
    one_thread,
    rows_of,
)
from tidegrid.pipeline.naive import FLOOR_H, who

By = Literal["user", "size", "basis", "fold"]

SHOWN = 10
"""The groups of an estimator that a table shows, the largest first."""

FIGURES = (
    "rows",
    "median_error_log10",
    "median_error_by_user",
    "median_error_relative",
    "r2_log10",
    "spearman",
    "pinball",
    "naive_pinball",
    "skill",
    "coverage_80",
)
"""The columns of :meth:`Evaluation.table`, in their order."""


@dataclass(frozen=True)
class Evaluation:
    """What a backtest found.

    Attributes
    ----------
    answers : DataFrame
        One row for each answer: ``estimator``, ``fold``, ``cutoff``, ``time`` (submission, or the hour), ``user``
        (the account where no user is told; for demand the series), ``size`` (GPUs, or the power of ten of the
        series' mean), ``basis`` (at the cutoff), ``actual`` (hours, or units an hour), ``loss`` and ``naive_loss``
        (mean pinball loss, see :func:`tidegrid.pipeline.backtest.losses`), ``floor`` (below which a value counts
        as this one in logarithms), and one float column for each of ``LEVELS``.
    problems : tuple of str
        What could not be evaluated, and why.
    """

    answers: pd.DataFrame
    problems: tuple[str, ...] = ()

    def table(self, by: By | None = None, most: int | None = SHOWN) -> pd.DataFrame:
        """Return figures for each estimator, or for each of its users, sizes, bases or folds.

        Parameters
        ----------
        by
            How to divide an estimator's rows.
        most
            How many groups to show of each estimator, the largest first; None for all.

        Returns
        -------
        DataFrame
            ``estimator`` (and ``by``), and the columns of ``FIGURES``: the error of the median in decades of the
            logarithm (median over rows; mean over users of their medians) and relative to the actual value, R² of
            log10, Spearman's rank correlation, mean pinball loss and the naive forecast's, skill = 1 − their
            ratio, the share of rows inside the nominal 80 % band.
        """
        keys = ["estimator"] if by is None else ["estimator", by]
        out = []
        for key, part in self.answers.groupby(keys, sort=True):
            names = dict(zip(keys, key if isinstance(key, tuple) else (key,), strict=True))
            out.append({**names, **figures(part)})
        frame = pd.DataFrame(out, columns=[*keys, *FIGURES])
        if by is None or frame.empty:
            return frame
        ordered = frame.sort_values(["estimator", "rows"], ascending=[True, False], kind="stable")
        if most is not None:
            ordered = ordered[ordered.groupby("estimator").cumcount() < most]
        return ordered.reset_index(drop=True)

    def calibration(self) -> pd.DataFrame:
        """Return for each estimator and level the share of actual values at or below that quantile."""
        out = []
        for name, part in self.answers.groupby("estimator", sort=True):
            below = part["actual"].to_numpy()[:, None] <= part[list(LEVELS)].to_numpy()
            shares = below.mean(axis=0)
            out += [(name, level, float(share)) for level, share in zip(LEVELS, shares, strict=True)]
        return pd.DataFrame(out, columns=["estimator", "level", "share"])

    def plot(self, path: str | Path) -> None:
        """Write the calibration plot as PNG: nominal level against the share of actual values below it.

        Raises
        ------
        InputError
            There is nothing to plot, or the file cannot be written.
        """
        frame = self.calibration()
        if frame.empty:
            raise InputError("there are no answers to plot", fix="evaluate on a longer history")
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(5.6, 5.2), layout="constrained")
        axes = figure.add_subplot()
        axes.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle="--", label="calibrated")
        for name, part in frame.groupby("estimator", sort=True):
            axes.plot(part["level"], part["share"], marker="o", markersize=3, linewidth=1.4, label=str(name))
        axes.set(
            xlim=(0, 1), ylim=(0, 1), xlabel="quantile level", ylabel="share of actual values at or below",
            title="Calibration, as-of backtest",
        )  # fmt: skip
        axes.set_aspect("equal")
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=8, loc="upper left")
        with writing(path) as aside:
            # no software or date in the file: the same figures give the same bytes
            FigureCanvasAgg(figure).print_figure(aside, format="png", metadata={"Software": None})


def evaluate(
    history: History,
    names: Iterable[str] | None = None,
    *,
    folds: int = 8,
    share: float = 0.5,
    jobs: int = 1,
    timezone: str = "UTC",
    country: str | None = None,
    subdivision: str | None = None,
    registry: Registry | None = None,
) -> Evaluation:
    """Backtest estimators with a rolling origin.

    The last ``share`` of the history is cut into ``folds`` stretches. At each cutoff an estimator is fitted on what
    was known then, and answers what was submitted up to the next one; those that take in new rows are given them
    day by day as they become known, as a planner would. Jobs that did not complete have no true duration: they are
    learnt from, as lower bounds, and not scored.

    Parameters
    ----------
    history
        What happened.
    names
        The estimators; all that are registered where absent.
    folds
        Refits.
    share
        The share of the history, at its end, that is scored.
    jobs
        Fits to run at once, in processes of their own.
    timezone, country, subdivision
        The site's IANA zone, and its public holidays.
    registry
        The estimators; those of the installed distributions where absent.

    Raises
    ------
    InputError
        A name is not registered, or ``folds`` or ``share`` is out of range.
    """
    if folds < 1 or not 0 < share < 1:
        raise InputError(
            f"folds {folds}, share {share}", fix="give at least 1 fold and a share between 0 and 1"
        )
    known = registry if registry is not None else discover()
    everything = {*known.classes, *(failure.name for failure in known.failures)}
    wanted = sorted(everything if names is None else set(names))
    for name in wanted:
        if name not in everything:
            fix = f"use one of: {', '.join(sorted(everything))}"
            raise InputError("no such estimator is registered", field=name, fix=fix)
    problems = [f"{f.name}: does not load: {f.problem}" for f in known.failures if f.name in wanted]
    tasks: list[tuple[str, Estimator, int, pd.Timestamp, pd.Timestamp | None]] = []
    for name in wanted:
        if name in known.classes:
            estimator = make(known.classes[name], Calendar(timezone, country, subdivision))
            ends: list[pd.Timestamp] = cutoffs(estimator, history, folds, share)
            if not ends:
                problems.append(f"{name}: the history has no rows that it could be asked")
            later: Sequence[pd.Timestamp | None] = [*ends[1:], None][: len(ends)]
            tasks += [(name, estimator, k, *pair) for k, pair in enumerate(zip(ends, later, strict=True))]
    found = _run(tasks, history, jobs)
    parts = []
    for (name, _, fold, *_rest), (frame, problem) in zip(tasks, found, strict=True):
        if problem:
            problems.append(f"{name}, fold {fold + 1}: {problem}")
        if len(frame):
            parts.append(frame)
    for name in wanted:
        if name in known.classes and not any((part["estimator"] == name).any() for part in parts):
            said = any(problem.startswith((f"{name}:", f"{name},")) for problem in problems)
            problems += [] if said else [f"{name}: no finished row lies in the part that is scored"]
    columns = [*_COLUMNS, *LEVELS]
    answers_ = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=pd.Index(columns))
    return Evaluation(answers_, tuple(problems))


def figures(part: pd.DataFrame) -> dict[str, float]:
    """Return the figures of some answers; NaN where there are too few rows for one."""
    actual, median = part["actual"].to_numpy(dtype=float), part[0.5].to_numpy(dtype=float)
    low, high = (part[level].to_numpy(dtype=float) for level in BAND)
    floor = part["floor"].to_numpy(dtype=float)
    log_a, log_m = np.log10(np.maximum(actual, floor)), np.log10(np.maximum(median, floor))
    error = np.abs(log_a - log_m)
    by_user = pd.Series(error).groupby(part["user"].to_numpy()).median().mean()
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.abs(median - actual) / np.maximum(actual, floor)
        spread = float(((log_a - log_a.mean()) ** 2).sum())
        r2 = 1.0 - float(((log_a - log_m) ** 2).sum()) / spread if spread > 0 else float("nan")
    ranks = pd.DataFrame({"a": actual, "m": median}).rank()
    varied = len(part) > 2 and ranks["a"].std() > 0 and ranks["m"].std() > 0
    naive = part["naive_loss"].to_numpy(dtype=float)
    both = np.isfinite(naive)
    loss = part["loss"].to_numpy(dtype=float)
    skill = 1.0 - loss[both].mean() / naive[both].mean() if both.any() and naive[both].mean() > 0 else np.nan
    return {
        "rows": len(part),
        "median_error_log10": float(np.median(error)),
        "median_error_by_user": float(by_user),
        "median_error_relative": float(np.median(relative)),
        "r2_log10": r2,
        "spearman": float(ranks["a"].corr(ranks["m"])) if varied else float("nan"),
        "pinball": float(loss.mean()),
        "naive_pinball": float(naive[both].mean()) if both.any() else float("nan"),
        "skill": float(skill),
        "coverage_80": float(((actual >= low) & (actual <= high)).mean()),
    }


_COLUMNS = (
    "estimator", "fold", "cutoff", "time", "user", "size", "basis", "actual", "loss", "naive_loss", "floor",
)  # fmt: skip


def _run(
    tasks: Sequence[tuple[str, Estimator, int, pd.Timestamp, pd.Timestamp | None]],
    history: History,
    jobs: int,
) -> list[tuple[pd.DataFrame, str]]:
    if jobs == 1 or len(tasks) < 2:
        return [_fold(*task, history) for task in tasks]
    from joblib import Parallel, delayed

    return list(Parallel(n_jobs=jobs)(delayed(_fold)(*task, history) for task in tasks))


def _fold(
    name: str,
    estimator: Estimator,
    fold: int,
    cutoff: pd.Timestamp,
    until: pd.Timestamp | None,
    history: History,
) -> tuple[pd.DataFrame, str]:
    everything = rows_of(estimator, history)
    test = asked(everything, cutoff, until)
    none = pd.DataFrame()
    if not len(test):
        return none, ""
    try:
        with one_thread():
            fitted, past = fitted_as_of(estimator, history, cutoff)
            quantiles = answers(fitted, everything, cutoff, test)
            basis = fitted.basis(test.X).astype(str).str.split(":").str[0].reindex(test.X.index)
    except TidegridError as error:
        return none, str(error)
    except Exception as error:  # a plugin may raise anything; it must not stop the others
        return none, f"{type(error).__name__}: {error}"
    naive = naive_answers(estimator, everything, test)
    frame = pd.DataFrame(
        {
            "estimator": name,
            "fold": fold,
            "cutoff": cutoff,
            "time": test.X["ds" if estimator.target == "demand" else "submit_time"],
            **_who(estimator, past, test),
            "basis": basis,
            "actual": test.y,
            "loss": losses(estimator, past, test, quantiles),
            "naive_loss": losses(estimator, past, test, naive),
        }
    )
    bands = pd.DataFrame(quantiles, index=frame.index, columns=pd.Index(LEVELS))
    return pd.concat([frame, bands], axis=1), ""


def _who(estimator: Estimator, past: Rows, test: Rows) -> dict[str, Any]:
    if estimator.target == "demand":
        mean = past.y.groupby(past.X["unique_id"].astype(str)).mean()
        of_row = test.X["unique_id"].astype(str).map(mean).fillna(0.0)
        powers = [int(np.floor(np.log10(mean))) if mean > 0 else None for mean in of_row]
        size = pd.Series(["none yet" if p is None else f"about 1e{p}" for p in powers], index=of_row.index)
        # a thousandth of the usual demand counts as none
        floor = np.maximum(1e-3 * of_row, 1e-9)
        return {"user": test.X["unique_id"].astype(str), "size": size, "floor": floor}
    empty = pd.Series("", index=test.X.index, dtype=object)
    gpus = (
        test.X["gpus"].map(lambda g: f"{g:g} GPU{'s' if g != 1 else ''}")
        if "gpus" in test.X.columns
        else empty
    )
    return {"user": who(test.X), "size": gpus, "floor": FLOOR_H}
