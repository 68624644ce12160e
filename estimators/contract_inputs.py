"""Promises about what goes in: columns, categories, cells, targets, and histories of any length."""

from typing import Any

import numpy as np
import pandas as pd

from tidegrid.errors import InputError, NotFittedError
from tidegrid.estimators.base import LEVELS
from tidegrid.estimators.contract import (
    ODD_LEVELS,
    Broken,
    Checks,
    Subject,
    need,
    refuses_or,
    same,
    sound,
)
from tidegrid.models.codec import decode, encode

CHECKS = Checks()


@CHECKS.promise("no input is mutated")
def _mutates_nothing(subject: Subject) -> None:
    X, y = subject.history
    observed = pd.Series(np.arange(len(X)) % 5 != 0, index=X.index)
    known_at = pd.Series(pd.date_range("2026-04-01", periods=len(X), freq="min", tz="UTC"), index=X.index)
    frame, target, mask, instants = X.copy(), y.copy(), observed.copy(), known_at.copy()
    estimator = subject.fresh().fit(frame, target, observed=mask, known_at=instants)
    need(frame.equals(X) and list(frame.columns) == list(X.columns), "fit changed X")
    need(target.equals(y), "fit changed y")
    need(mask.equals(observed), "fit changed observed")
    need(instants.equals(known_at), "fit changed known_at")
    future = subject.future.copy()
    for method in (estimator.predict_quantiles, estimator.basis, estimator.feasible, estimator.predict):
        method(future)
        need(future.equals(subject.future), f"{method.__name__} changed X")
        need(
            list(future.columns) == list(subject.future.columns),
            f"{method.__name__} changed the columns of X",
        )


@CHECKS.promise("columns count by name, not by place")
def _permuted(subject: Subject) -> None:
    flipped = subject.future[list(subject.future.columns)[::-1]].copy()
    same(subject.predicted, subject.fitted.predict_quantiles(flipped, LEVELS), "columns reversed at predict")
    X, y = subject.history
    other = subject.fresh().fit(X[list(X.columns)[::-1]].copy(), y.copy())
    same(subject.predicted, other.predict_quantiles(subject.future.copy(), LEVELS), "columns reversed at fit")


@CHECKS.promise("an unknown column is ignored, or refused by name")
def _extra(subject: Subject) -> None:
    rng = np.random.default_rng(subject.seed + 5)
    for values in (
        rng.normal(size=len(subject.future)),
        rng.choice(["a", "b"], len(subject.future)).astype(object),
    ):
        X = subject.future.copy()
        X.insert(0, "a_column_of_another_team", values)
        out = refuses_or(subject, X, "a_column_of_another_team", "an unknown column")
        if out is not None:
            same(subject.predicted, out, "an unknown column")


@CHECKS.promise("a missing required column is refused by name")
def _missing_required(subject: Subject) -> None:
    X, y = subject.history
    for feature in subject.features:
        if not feature.required:
            continue
        gone = [feature.name, feature.instead]
        for what, call in (
            (
                "predict_quantiles",
                lambda g=gone: subject.fitted.predict_quantiles(
                    subject.future.drop(columns=g, errors="ignore")
                ),
            ),
            ("fit", lambda g=gone: subject.fresh().fit(X.drop(columns=g, errors="ignore"), y.copy())),
        ):
            try:
                call()
            except InputError as error:
                need(feature.name in str(error), f"{what} does not name the missing {feature.name} ({error})")
                continue
            raise Broken(f"{what} accepted X without the required column {feature.name}")


@CHECKS.promise("a missing optional column or cell is handled, or refused by name")
def _missing_optional(subject: Subject) -> None:
    optional = [f for f in subject.features if not f.required and f.name in subject.future.columns]
    for feature in optional:
        refuses_or(
            subject, subject.future.drop(columns=feature.name), feature.name, f"without {feature.name}"
        )
        X = subject.future.copy()
        X[feature.name] = X[feature.name].where(np.arange(len(X)) % 2 == 0)
        refuses_or(subject, X, feature.name, f"with empty cells in {feature.name}")
    needed = [f.name for f in subject.features if f.required]
    bare = subject.future[needed].copy() if needed else subject.future.copy()
    try:
        out = subject.fitted.predict_quantiles(bare, LEVELS)
    except InputError as error:
        need(
            any(f.name in str(error) for f in optional), f"only required columns: nothing is named ({error})"
        )
    else:
        sound(out, bare.index, LEVELS, "only the required columns")


@CHECKS.promise("an unseen category is handled, or refused by name")
def _unseen(subject: Subject) -> None:
    for feature in subject.features:
        if feature.dtype not in ("category", "text") or feature.name not in subject.future.columns:
            continue
        X = subject.future.copy()
        X[feature.name] = X[feature.name].astype(object)
        X.iloc[0, list(X.columns).index(feature.name)] = "never-seen-before"
        out = refuses_or(subject, X, feature.name, f"an unseen {feature.name}")
        need(
            out is None or not feature.categories or feature.dtype != "category",
            f"{feature.name} has closed categories, but 'never-seen-before' was accepted",
        )
        if out is not None and subject.estimator.target != "demand":
            same(subject.predicted.iloc[1:], out.iloc[1:], f"an unseen {feature.name} in another row")


@CHECKS.promise("a batch predicts the same as its rows in any order, any subset and any column type")
def _batches(subject: Subject) -> None:
    rng = np.random.default_rng(subject.seed + 7)
    order = rng.permutation(len(subject.future))
    part = np.sort(order[: max(1, len(order) // 3)])
    for what, rows in (("another row order", order), ("a part of the rows", part), ("one row", part[:1])):
        X = subject.future.iloc[rows]
        same(subject.predicted.iloc[rows], subject.fitted.predict_quantiles(X.copy(), LEVELS), what)
        typed = X.copy()
        for feature in subject.features:
            if feature.dtype in ("category", "text") and feature.name in typed.columns:
                typed[feature.name] = pd.Categorical(typed[feature.name])
        out = subject.fitted.predict_quantiles(typed, LEVELS)
        same(subject.predicted.iloc[rows], out, f"{what}, as pandas categories")
    for feature in subject.features:
        if feature.dtype in ("category", "text") and feature.name in subject.future.columns:
            for value in sorted(set(subject.future[feature.name]))[-2:]:
                rows = np.flatnonzero((subject.future[feature.name] == value).to_numpy())
                out = subject.fitted.predict_quantiles(subject.future.iloc[rows].copy(), LEVELS)
                same(subject.predicted.iloc[rows], out, f"only the rows with {feature.name} {value!r}")
    twice = subject.future.set_axis(np.zeros(len(subject.future), dtype=int), axis=0)
    answer = refuses_or(subject, twice, "index", "an index that repeats")
    if answer is not None:
        same(subject.predicted, answer, "an index that repeats")


@CHECKS.promise("a cell that is no number is refused by name or handled, never passed on")
def _bad_cells(subject: Subject) -> None:
    for feature in subject.features:
        if feature.dtype not in ("float", "int", "bool") or feature.name not in subject.future.columns:
            continue
        bad: list[Any] = [float("inf"), float("-inf"), "twelve", float("nan")]
        bad += [] if feature.low is None else [feature.low - 1.0]
        for value in bad:
            X = subject.future.copy()
            X[feature.name] = X[feature.name].astype(object)
            X.iloc[0, list(X.columns).index(feature.name)] = value
            out = refuses_or(subject, X, feature.name, f"{value!r} in {feature.name}")
            if out is not None and subject.estimator.target != "demand":
                same(subject.predicted.iloc[1:], out.iloc[1:], f"{value!r} in another row's {feature.name}")


@CHECKS.promise("a target that is no number, negative or not on the index of X is refused")
def _bad_target(subject: Subject) -> None:
    X, y = subject.history
    for value in (float("inf"), -1.0):
        bad = y.copy()
        bad.iloc[3] = value
        try:
            subject.fresh().fit(X.copy(), bad)
        except InputError:
            continue
        raise Broken(f"fit accepted {value} as a target")
    if subject.estimator.target == "duration_h":
        bad = y.copy()
        bad.iloc[3] = float("nan")
        try:
            subject.fresh().fit(X.copy(), bad)
        except InputError:
            pass
        else:
            raise Broken("fit accepted NaN as a duration")
    shuffled = y.iloc[np.random.default_rng(subject.seed).permutation(len(y))]
    for what, target in (("of another length than X", y.iloc[:-1]), ("on another index than X", shuffled)):
        try:
            subject.fresh().fit(X.copy(), target)
        except InputError:
            continue
        raise Broken(f"fit accepted a target {what}")
    values: Any = y.to_numpy()
    array = subject.fresh().fit(X.copy(), values).predict_quantiles(subject.future.copy(), LEVELS)
    same(subject.predicted, array, "a target given as an array")


@CHECKS.promise("an X without names of columns is refused in one line")
def _no_names(subject: Subject) -> None:
    past: Any = subject.history[0].to_numpy(dtype=object)
    future: Any = subject.future.to_numpy(dtype=object)
    for what, call in (
        ("fit", lambda: subject.fresh().fit(past, subject.history[1])),
        ("predict_quantiles", lambda: subject.fitted.predict_quantiles(future)),
    ):
        try:
            call()
        except InputError as error:
            need("\n" not in str(error), f"{what} says more than a line ({error})")
            continue
        raise Broken(f"{what} accepted an array as X")


@CHECKS.promise("an empty X gives an empty answer")
def _empty(subject: Subject) -> None:
    none = subject.future.iloc[:0].copy()
    sound(subject.fitted.predict_quantiles(none, LEVELS), none.index, LEVELS, "no rows")
    need(len(subject.fitted.basis(none)) == 0, "basis of no rows is not empty")
    need(len(subject.fitted.feasible(none)) == 0, "feasible of no rows is not empty")
    X, y = subject.history
    try:
        out = (
            subject.fresh()
            .fit(X.iloc[:0].copy(), y.iloc[:0].copy())
            .predict_quantiles(subject.future.copy(), LEVELS)
        )
    except (InputError, NotFittedError):
        return
    sound(out, subject.future.index, LEVELS, "fitted on no rows")


@CHECKS.promise("a short history is enough, or refused")
def _short(subject: Subject) -> None:
    X, y = subject.history
    for rows in (1, 2, 5):
        try:
            fitted = subject.fresh().fit(X.iloc[:rows].copy(), y.iloc[:rows].copy())
        except InputError:
            continue
        out = fitted.predict_quantiles(subject.future.copy(), ODD_LEVELS)
        sound(out, subject.future.index, ODD_LEVELS, f"fitted on {rows} rows")


@CHECKS.promise("censored rows are taken as lower bounds")
def _censored(subject: Subject) -> None:
    if subject.estimator.target == "demand":
        return
    X, y = subject.history
    none = pd.Series(False, index=X.index)
    try:
        out = (
            subject.fresh()
            .fit(X.copy(), y.copy(), observed=none)
            .predict_quantiles(subject.future.copy(), LEVELS)
        )
    except InputError:
        return
    sound(out, subject.future.index, LEVELS, "fitted on censored rows only")


@CHECKS.promise("update, where there is one, takes in new rows; replay never lets an answer see a later row")
def _updates(subject: Subject) -> None:
    X, y = subject.history
    early = _early(subject, X)
    later = ~early

    estimator = subject.fresh().fit(X[early].copy(), y[early].copy())
    if hasattr(estimator, "update"):
        before = encode(subject.fresh().to_bundle()) if subject.estimator.predicts_unfitted else None
        given = X[later].copy()
        result = estimator.update(given, y[later].copy())
        need(result is estimator, "update did not return self")
        need(given.equals(X[later]), "update changed X")
        out = estimator.predict_quantiles(subject.future.copy(), LEVELS)
        sound(out, subject.future.index, LEVELS, "updated")
        loaded = type(estimator).from_bundle(decode(encode(estimator.to_bundle())))
        again = loaded.predict_quantiles(subject.future.copy(), LEVELS)
        need(
            out.to_numpy().tobytes() == again.to_numpy().tobytes(),
            "updated and saved, it predicts other numbers",
        )
        if before is not None:
            need(encode(subject.fresh().to_bundle()) == before, "update changed what a fresh estimator holds")
    if hasattr(estimator, "replay") and "submit_time" in X.columns:
        submit = pd.to_datetime(X["submit_time"], utc=True)
        known = submit + pd.Timedelta(hours=5)
        one = subject.fresh().fit(X[early].copy(), y[early].copy(), known_at=known[early])
        first = one.replay(X[later].copy(), y[later].copy(), LEVELS, known_at=known[later])
        sound(first, X[later].index, LEVELS, "replay")
        middle = submit[later].sort_values().iloc[int(later.sum()) // 2]
        changed = y.where(known <= middle, y * 7.0 + 1.0)
        other = subject.fresh().fit(X[early].copy(), y[early].copy(), known_at=known[early])
        second = other.replay(X[later].copy(), changed[later].copy(), LEVELS, known_at=known[later])
        past = (submit[later] <= middle).to_numpy()
        need(
            first[past].to_numpy().tobytes() == second[past].to_numpy().tobytes(),
            "replay: rows that became known later changed an earlier answer",
        )


def _early(subject: Subject, X: pd.DataFrame) -> np.ndarray:
    if subject.estimator.target == "demand" and "ds" in X.columns:
        ends = X.groupby("unique_id")["ds"].transform("max")
        return (X["ds"] <= ends - pd.Timedelta(days=3)).to_numpy()
    return np.arange(len(X)) < len(X) // 2


@CHECKS.promise("a missing hour of demand is not taken for zero")
def _missing_hours(subject: Subject) -> None:
    if subject.estimator.target != "demand":
        return
    X, y = subject.history
    holes = np.arange(len(X)) % 7 == 3
    try:
        out = subject.fresh().fit(X.copy(), y.where(~holes)).predict_quantiles(subject.future.copy(), LEVELS)
    except InputError:
        return
    sound(out, subject.future.index, LEVELS, "fitted with missing hours")
    ratio = float((out[0.5] / np.maximum(subject.predicted[0.5], 1e-9)).median())
    need(ratio > 0.95, f"a seventh of the hours missing changed the median by a factor of {ratio:.2f}")
