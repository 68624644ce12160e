"""What answers: the champion of each estimator brought up to date, or what stands in for it, flagged."""

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from tidegrid.data import KINDS, Cluster, History, as_instant
from tidegrid.errors import InputError, TidegridError
from tidegrid.estimators import Estimator
from tidegrid.estimators.registry import Registry, discover
from tidegrid.models import ModelStore, VersionWarning
from tidegrid.pipeline.backtest import (
    NO_JOBS,
    NO_TRAFFIC,
    OCCUPANCY,
    Calendar,
    make,
    one_thread,
    rows_of,
    updated,
    what_lacks,
)
from tidegrid.pipeline.estimates import FALLBACK


def calendar_of(cluster: Cluster) -> dict[str, Any]:
    """Return a cluster's zone and public holidays, as the functions here and of training take them."""
    return {
        "timezone": cluster.timezone,
        "country": cluster.country,
        "subdivision": cluster.subdivision,
    }


def fit_all(
    history: History,
    names: Iterable[str] | None = None,
    *,
    timezone: str = "UTC",
    country: str | None = None,
    subdivision: str | None = None,
    registry: Registry | None = None,
    notes: list[str] | None = None,
) -> dict[str, Estimator]:
    """Return every estimator fitted on the whole of a history, without a store.

    ``timezone``, ``country`` and ``subdivision`` are those of the site, for its week and public holidays.
    One that answers from its prior stays unfitted where there is nothing to fit it on, or where fitting fails; one
    that cannot, or that cannot be made, is left out then. ``notes``, where given, takes a line for each of these.
    """
    known = registry if registry is not None else discover()
    calendar = Calendar(timezone, country, subdivision)
    out: dict[str, Estimator] = {}
    lacking: dict[str, str] = {}
    for name in wanted(known, names):
        if name in known.classes:
            fitted, problem = _fitted_or_prior(known.classes[name], calendar, history, lacking)
            if problem and notes is not None and name not in lacking:
                notes.append(f"{name}: {problem}" + ("; its prior answers" if fitted is not None else ""))
            if fitted is not None:
                out[name] = fitted
    if notes is not None:
        notes += lacks(lacking)
    return out


def load_estimators(
    store: ModelStore,
    *,
    timezone: str = "UTC",
    country: str | None = None,
    subdivision: str | None = None,
    history: History | None = None,
    registry: Registry | None = None,
    names: Iterable[str] | None = None,
) -> tuple[dict[str, Estimator], list[str]]:
    """Return the champion of each estimator, or what stands in for it, and notes that say so.

    Where the champion is damaged, its latest intact ancestor answers; where there is none, a fresh fit on ``history``,
    and where that fails the unfitted prior.

    Parameters
    ----------
    store
        Where the champions are.
    timezone, country, subdivision
        The site's IANA zone and public holidays, for estimators that are not loaded. A champion of other holidays than
        those of a stated country is not used where there is a history to fit another on.
    history
        What has happened up to now: champions that can take in new rows are brought up to date with what became
        known after their training, in memory only.
    registry
        The estimators; those of the installed distributions where absent.
    names
        Those that are wanted, such as :func:`answering` gives; all where None.

    Raises
    ------
    InputError
        Two distributions register one name.
    """
    known = registry if registry is not None else discover()
    calendar = Calendar(timezone, country, subdivision)
    out: dict[str, Estimator] = {}
    lacking: dict[str, str] = {}
    notes = [f"plugin not loaded: {failure}" for failure in known.failures]
    chosen = set(known.classes) if names is None else set(names)
    for name, kind in sorted(known.classes.items()):
        if name not in chosen:
            continue
        estimator, since, said = champion_of(store, name, kind)
        notes += said
        why = "no champion"
        if estimator is not None and history is not None and not calendar.holds_for(estimator):
            estimator, why = None, "its champion was trained without the holidays of cluster.json"
        if estimator is not None:
            if history is not None and since is not None:
                estimator, said = _up_to_date(estimator, since, history)
                notes += said
        elif history is not None:
            estimator, problem = _fitted_or_prior(kind, calendar, history, lacking)
            how = "fitted afresh on the history, without a backtest"
            if problem:
                how = f"{problem}; it answers from its prior" if estimator is not None else problem
            if name not in lacking:
                notes.append(f"{name}: {why}; {how}")
        elif kind.predicts_unfitted:
            estimator = make(kind, calendar)
            notes.append(f"{name}: no champion; it answers from its prior")
        else:
            notes.append(f"{name}: no champion, and no prior; train it")
        if estimator is not None:
            out[name] = estimator
    return out, [*notes, *lacks(lacking)]


def answering(prefer: Mapping[str, str], registry: Registry | None = None) -> list[str]:
    """Return the names of the estimators that a decision can ask: one a workload kind, and ``recurring``.

    Parameters
    ----------
    prefer
        Workload kind to the name of the estimator that answers for it instead.
    """
    known = registry if registry is not None else discover()
    asked = {*KINDS, "realtime", FALLBACK, *prefer.values()}
    return sorted(name for name in known.classes if name in asked)


def wanted(known: Registry, names: Iterable[str] | None) -> list[str]:
    """Return the names asked for, or all that are registered, in alphabetical order.

    Raises
    ------
    InputError
        A name is not registered.
    """
    everything = sorted({*known.classes, *(failure.name for failure in known.failures)})
    if names is None:
        return everything
    chosen = list(dict.fromkeys(names))
    for name in chosen:
        if name not in everything:
            raise InputError(
                "no such estimator is registered", field=name, fix=f"use one of: {', '.join(everything)}"
            )
    return sorted(chosen)


def champion_of(
    store: ModelStore, name: str, kind: type[Estimator]
) -> tuple[Estimator | None, pd.Timestamp | None, list[str]]:
    """Return the champion, or its latest ancestor that loads, until when it learnt, and notes."""
    notes: list[str] = []
    try:
        first = store.champion(name)
        chain = [] if first is None else [first, *reversed(store.ancestors(name))]
    except InputError as error:
        return None, None, [f"{name}: {error}"]
    for identifier in chain:
        try:
            with warnings.catch_warnings(record=True) as heard:
                warnings.simplefilter("always", VersionWarning)
                bundle = store.load(name, identifier)
            estimator = kind.from_bundle(bundle)
            window = store.show(name, identifier).manifest["window"]
        except Exception as error:  # whatever is wrong with one version, an older one may answer
            said = str(error) if isinstance(error, TidegridError) else f"{type(error).__name__}: {error}"
            notes.append(f"{name}: version {identifier} does not load ({said})")
            continue
        notes += [f"{name}: {each.message}" for each in heard]
        if getattr(estimator, "outcome", OCCUPANCY) != OCCUPANCY:
            notes.append(f"{name}: its champion tells how long completed runs take; train it again for plans")
        if identifier != first:
            notes.append(f"{name}: answers from the earlier champion {identifier}")
        return estimator, None if window is None else as_instant(window[1]), notes
    return None, None, notes


def _up_to_date(estimator: Estimator, since: pd.Timestamp, history: History) -> tuple[Estimator, list[str]]:
    """Let a champion take in what became known after its training; on any failure it stays as it was tested."""
    rows = rows_of(estimator, history)
    new = rows.take((rows.known_at > since).to_numpy(dtype=bool))
    if not hasattr(estimator, "update") or not len(new):
        return estimator, []
    try:
        fresh: Estimator = type(estimator).from_bundle(estimator.to_bundle())
        with one_thread():
            updated(fresh, new)
    except Exception as error:  # a plugin may raise anything; it must not stop the others
        said = str(error) if isinstance(error, TidegridError) else f"{type(error).__name__}: {error}"
        return estimator, [f"{estimator.name}: not brought up to date ({said})"]
    return fresh, [f"{estimator.name}: champion, and {len(new):,} rows that became known since its training"]


def lacks(lacking: Mapping[str, str]) -> list[str]:
    """Return one note of the estimators that have nothing to learn from: what they lack, and what it would give.

    Parameters
    ----------
    lacking
        What each lacks, by name; one whose kind of jobs the site does not have lacks nothing.
    """
    idle = ", ".join(name for name, what in sorted(lacking.items()) if what == NO_TRAFFIC)
    out = [f"{NO_TRAFFIC}: {idle} cannot be trained yet"] if idle else []
    told = "; ".join(
        f"{name} ({what})" for name, what in sorted(lacking.items()) if what not in (NO_JOBS, NO_TRAFFIC)
    )
    if not told:
        return out
    return [
        *out,
        f"nothing to learn from yet: {told}. Jobs that do not tell this are estimated from the history of such jobs "
        "(recurring); with it, a job that never ran before gets an estimate of its own",
    ]


def _fitted_or_prior(
    kind: type[Estimator], calendar: Calendar, history: History, lacking: dict[str, str]
) -> tuple[Estimator | None, str]:
    """Return an estimator fitted on a history, or its prior, or None, and why it is not fitted.

    One that finds no row, which is no failure, is noted in ``lacking`` with what it lacks.
    """
    try:
        template = make(kind, calendar)
        rows = rows_of(template, history)
        if len(rows):
            with one_thread():
                template.fit(rows.X, rows.y, observed=rows.observed, known_at=rows.known_at)
            return template, ""
        problem = "there is no row to fit it on"
        if kind.target == "demand":
            lacking[kind.name] = NO_JOBS  # the forecast tells of each app without traffic
        elif kind.predicts_unfitted and kind.kind != "any":
            lacking[kind.name], problem = what_lacks(template, history), ""
    except TidegridError as error:
        problem = str(error)
    except Exception as error:  # a plugin may raise anything; it must not stop the others
        problem = f"{type(error).__name__}: {error}"
    try:
        return (make(kind, calendar) if kind.predicts_unfitted else None), problem
    except Exception:  # it cannot even be made
        return None, problem


def preferred(estimators: Mapping[str, Estimator], prefer: Mapping[str, str]) -> dict[str, Estimator]:
    """Return the estimators with those that are preferred answering for their workload kind.

    A kind is answered by the estimator of its own name unless another is preferred.

    Parameters
    ----------
    estimators
        By name.
    prefer
        Workload kind to the name of the estimator that should answer for it.

    Raises
    ------
    InputError
        There is no such estimator, or it is of another kind.
    """
    out = dict(estimators)
    for kind, name in prefer.items():
        if name not in estimators:
            known = ", ".join(sorted(estimators))
            raise InputError(
                f"{name!r} is no estimator", field=f"estimators.{kind}", fix=f"use one of {known}"
            )
        if estimators[name].kind not in (kind, "any"):
            raise InputError(
                f"{name!r} answers for {estimators[name].kind}",
                field=f"estimators.{kind}",
                fix=f"name an estimator of {kind}, or of any kind",
            )
        out[kind] = estimators[name]
    return out
