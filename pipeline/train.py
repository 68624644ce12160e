"""Train every estimator: fit a challenger, backtest it on later data, and let it take over where that says so."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from tidegrid.data import History, as_instant
from tidegrid.errors import InputError, TidegridError
from tidegrid.estimators import Estimator
from tidegrid.estimators.registry import Registry, discover
from tidegrid.models import Bundle, Lineage, ModelStore, Retention, Scores, Version, decide
from tidegrid.models.codec import digest
from tidegrid.models.decide import NEEDED_ROWS
from tidegrid.pipeline.backtest import (
    BAND,
    HOUR,
    LEVELS,
    Rows,
    asked,
    fitted_as_of,
    make,
    naive_answers,
    rows_of,
    scored,
    scores,
    updated,
)

TEST_ROWS = 200
"""Finished jobs that a challenger is tested on, where there are enough; never more than a quarter of them."""

TEST_DAYS = ((28, 7), (14, 3), (4, 1))
"""Days of traffic from which on this many days at its end are the test."""


@dataclass(frozen=True)
class Trained:
    """What became of one estimator.

    Parameters
    ----------
    name
        The estimator.
    decision
        ``promoted``; ``kept``, where the champion (or none) stays; ``unchanged``, where the fit equals the
        champion; ``failed``.
    reason
        Why, in one line.
    version
        The version that was saved; None where none was.
    rows
        Rows that it was fitted on.
    metrics
        Its figures on the test rows.
    """

    name: str
    decision: str
    reason: str
    version: str | None = None
    rows: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """Return it as one JSON object."""
        return {
            "estimator": self.name,
            "version": self.version,
            "rows": self.rows,
            "decision": self.decision,
            "reason": self.reason,
            "metrics": dict(self.metrics),
        }


@dataclass(frozen=True)
class _Fit:
    bundle: Bundle | None = None
    rows: int = 0
    sha256: str = ""
    window: tuple[str, str] | None = None
    challenger: Scores = field(default_factory=Scores)
    champion: Scores | None = None
    prior: Scores | None = None
    naive: Scores | None = None
    test_rows: int = 0
    problem: str = ""


def train(
    history: History,
    store: ModelStore,
    names: Sequence[str] | None = None,
    jobs: int = 1,
    *,
    now: pd.Timestamp | str,
    timezone: str = "UTC",
    retention: Retention | None = None,
    seed: int = 0,
    registry: Registry | None = None,
) -> list[Trained]:
    """Train estimators into a store.

    Each is fitted on what was known at a cutoff that leaves a test at the end of the history, later than the
    champion's training too; both answer the test, and :func:`tidegrid.models.decide` decides. What is promoted
    is exactly what was tested; :func:`load_estimators` brings it up to date with what has become known since.

    Parameters
    ----------
    history
        What happened; nothing later than ``now`` is looked at.
    store
        Where versions go.
    names
        The estimators to train; all that are registered where absent.
    jobs
        Fits to run at once, in processes of their own.
    now
        The instant of the training, which is recorded.
    timezone
        The IANA zone of the site.
    retention
        Which old versions to keep.
    seed
        Seed of the comparison's draws.
    registry
        The estimators; those of the installed distributions where absent.

    Returns
    -------
    list of Trained
        One for each estimator, in alphabetical order; a plugin that does not load or fails is among them.

    Raises
    ------
    InputError
        A name is not registered, or the store cannot be written to.
    """
    moment = as_instant(now, field="now")
    view = history.as_of(moment)
    known = registry if registry is not None else discover()
    wanted = _wanted(known, names)
    templates = {name: make(known.classes[name], timezone) for name in wanted if name in known.classes}
    fits = _fits(templates, view, store, jobs)
    out = []
    for name in wanted:
        if name in fits:
            out.append(_settled(name, fits[name], known, store, moment, retention, seed))
        else:
            failure = next(f for f in known.failures if f.name == name)
            out.append(Trained(name, "failed", f"it does not load: {failure}"))
    return out


def fit_all(
    history: History,
    names: Iterable[str] | None = None,
    *,
    timezone: str = "UTC",
    registry: Registry | None = None,
) -> dict[str, Estimator]:
    """Return every estimator fitted on the whole of a history, without a store.

    One that answers from its prior stays unfitted where there is nothing to fit it on, or where fitting fails; one
    that cannot is left out then.
    """
    known = registry if registry is not None else discover()
    out: dict[str, Estimator] = {}
    for name in _wanted(known, names):
        if name in known.classes:
            fitted, _ = _fitted_or_prior(make(known.classes[name], timezone), history)
            if fitted is not None:
                out[name] = fitted
    return out


def load_estimators(
    store: ModelStore,
    *,
    timezone: str = "UTC",
    history: History | None = None,
    registry: Registry | None = None,
) -> tuple[dict[str, Estimator], list[str]]:
    """Return the champion of each registered estimator, or what stands in for it, and notes that say so.

    Where the champion is damaged, its latest intact ancestor answers; where there is none, the unfitted prior; for
    one without a prior, a fresh fit on ``history``.

    Parameters
    ----------
    store
        Where the champions are.
    timezone
        The IANA zone of the site, for estimators that are not loaded.
    history
        What has happened up to now: champions that can take in new rows are brought up to date with what became
        known after their training, in memory only.
    registry
        The estimators; those of the installed distributions where absent.

    Raises
    ------
    InputError
        Two distributions register one name.
    """
    known = registry if registry is not None else discover()
    out: dict[str, Estimator] = {}
    notes = [f"plugin not loaded: {failure}" for failure in known.failures]
    for name, kind in sorted(known.classes.items()):
        estimator, since, said = _champion(store, name, kind)
        notes += said
        if estimator is not None:
            if history is not None and since is not None:
                estimator, said = _up_to_date(estimator, since, history)
                notes += said
        elif kind.predicts_unfitted:
            estimator = make(kind, timezone)
            notes.append(f"{name}: no champion; it answers from its prior")
        elif history is not None:
            estimator, problem = _fitted_or_prior(make(kind, timezone), history)
            how = problem or "fitted afresh on the history, without a backtest"
            notes.append(f"{name}: no champion; {how}")
        else:
            notes.append(f"{name}: no champion, and no prior; train it")
        if estimator is not None:
            out[name] = estimator
    return out, notes


def _wanted(known: Registry, names: Iterable[str] | None) -> list[str]:
    everything = sorted({*known.classes, *(failure.name for failure in known.failures)})
    if names is None:
        return everything
    wanted = list(dict.fromkeys(names))
    for name in wanted:
        if name not in everything:
            raise InputError(
                "no such estimator is registered", field=name, fix=f"use one of: {', '.join(everything)}"
            )
    return sorted(wanted)


def _fits(templates: Mapping[str, Estimator], view: History, store: ModelStore, jobs: int) -> dict[str, _Fit]:
    if jobs == 1 or len(templates) < 2:
        return {name: _fit(name, template, view, store) for name, template in templates.items()}
    from joblib import Parallel, delayed

    found = Parallel(n_jobs=jobs)(delayed(_fit)(name, one, view, store) for name, one in templates.items())
    return dict(zip(templates, found, strict=True))


def _fit(name: str, template: Estimator, view: History, store: ModelStore) -> _Fit:
    try:
        return _fit_and_test(name, template, view, store)
    except TidegridError as error:
        return _Fit(problem=str(error))
    except Exception as error:  # a plugin may raise anything; it must not stop the others
        return _Fit(problem=f"{type(error).__name__}: {error}")


def _fit_and_test(name: str, template: Estimator, view: History, store: ModelStore) -> _Fit:
    champion, since, _ = _champion(store, name, type(template))
    now = view.instant
    assert now is not None
    everything = rows_of(template, view)
    cutoff = _cutoff(template, everything, now)
    if since is not None and since > cutoff:
        # later than both trainings: the challenger may then see as much as the champion has seen
        cutoff = since
    fitted, past = fitted_as_of(template, view, cutoff)
    if not len(past):
        return _Fit(problem="there is no finished row to fit it on")
    test = asked(everything, cutoff)
    when = pd.to_datetime(past.X["ds" if template.target == "demand" else "submit_time"], utc=True)
    window = (when.min().isoformat(), cutoff.isoformat())
    bundle = fitted.to_bundle()
    found = _Fit(bundle, len(past), past.sha256(), window, test_rows=len(test))
    if len(test) < NEEDED_ROWS:
        return replace(
            found,
            challenger=Scores(problem=f"{len(test)} rows later than its training, {NEEDED_ROWS} needed"),
        )
    # what is tested is what is saved: the bundle, loaded again
    again = type(template).from_bundle(bundle)
    found = replace(
        found,
        challenger=scores(again, everything, cutoff, past, test),
        naive=scored(template, past, test, naive_answers(template, everything, test)),
    )
    if champion is not None:
        begun = since if since is not None else cutoff
        found = replace(found, champion=scores(champion, everything, begun, past, test))
    if template.predicts_unfitted:
        # the prior as such, without taking in new rows: it answers where there is no champion
        prior = template.predict_quantiles(test.X, LEVELS).to_numpy(dtype=float)
        found = replace(found, prior=scored(template, past, test, prior))
    return found


def _cutoff(template: Estimator, rows: Rows, now: pd.Timestamp) -> pd.Timestamp:
    if not len(rows):
        return now
    if template.target == "demand":
        first = pd.to_datetime(rows.X["ds"], utc=True).min()
        last = pd.to_datetime(rows.X["ds"], utc=True).max() + HOUR
        for days, held_out in TEST_DAYS:
            if last - first >= pd.Timedelta(days=days):
                return as_instant(last - pd.Timedelta(days=held_out))
        return now
    done = pd.to_datetime(rows.X["submit_time"], utc=True)[rows.observed.to_numpy(dtype=bool)]
    count = min(TEST_ROWS, len(done) // 4)
    if count < NEEDED_ROWS:
        return now
    return as_instant(done.sort_values().iloc[-count])


def _settled(
    name: str,
    fit: _Fit,
    known: Registry,
    store: ModelStore,
    now: pd.Timestamp,
    retention: Retention | None,
    seed: int,
) -> Trained:
    if fit.bundle is None:
        return Trained(name, "failed", fit.problem)
    before = store.champion(name)
    if before is not None:
        held = store.show(name, before)
        if not held.problem and held.manifest["content_sha256"] == digest(fit.bundle):
            return Trained(name, "unchanged", "it is the champion already", before, fit.rows)
    metrics = _metrics(fit)
    kind = known.classes[name]
    lineage = Lineage(
        features=[
            {"name": f.name, "dtype": f.dtype, "unit": f.unit, "required": f.required} for f in kind.features
        ],
        window=fit.window,
        history_sha256=fit.sha256,
        rows=fit.rows,
        metrics=metrics,
        parent=before,
        distribution=known.sources.get(name, "unknown"),
    )
    version = _same(store, name, digest(fit.bundle)) or store.save(
        fit.bundle, created=now.isoformat(), lineage=lineage
    )
    rival, words = (fit.naive, "the naive forecast") if fit.prior is None else (fit.prior, "the prior")
    decision = decide(fit.champion, fit.challenger, otherwise=rival, otherwise_name=words, seed=seed)
    if decision.promote:
        try:
            store.promote(name, version.id, reason=decision.reason, at=now.isoformat(), over=before)
        except InputError as error:  # another trainer was faster: its champion stays
            return Trained(name, "kept", str(error), version.id, fit.rows, metrics)
    else:
        store.reject(name, version.id, reason=decision.reason, at=now.isoformat())
    store.prune(name, retention, at=now.isoformat())
    done = "promoted" if decision.promote else "kept"
    return Trained(name, done, decision.reason, version.id, fit.rows, metrics)


def _same(store: ModelStore, name: str, content: str) -> Version | None:
    """Return an intact version with the same content, so that training twice does not fill the disk."""
    damaged = {problem.version for problem in store.verify(name)}
    intact = [v for v in store.list(name) if v.id not in damaged and not v.problem]
    found = [v for v in intact if v.manifest["content_sha256"] == content]
    return found[-1] if found else None


def _metrics(fit: _Fit) -> dict[str, float]:
    out: dict[str, float] = {"test_rows": float(fit.test_rows)}
    parts = (
        ("loss", fit.challenger),
        ("champion_loss", fit.champion),
        ("prior_loss", fit.prior),
        ("naive_loss", fit.naive),
    )
    for key, part in parts:
        if part is not None and len(part.loss) and np.isfinite(part.loss).all():
            out[key] = float(part.loss.mean())
    if fit.challenger.coverage is not None and np.isfinite(fit.challenger.coverage[0]):
        out[f"coverage_{BAND[0]}_{BAND[1]}"] = fit.challenger.coverage[0]
    return out


def _champion(
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
            bundle = store.load(name, identifier)
            estimator = kind.from_bundle(bundle)
            window = store.show(name, identifier).manifest["window"]
        except Exception as error:  # whatever is wrong with one version, an older one may answer
            said = str(error) if isinstance(error, TidegridError) else f"{type(error).__name__}: {error}"
            notes.append(f"{name}: version {identifier} does not load ({said})")
            continue
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
    fresh: Estimator = type(estimator).from_bundle(estimator.to_bundle())
    try:
        updated(fresh, new)
    except TidegridError as error:
        return estimator, [f"{estimator.name}: not brought up to date ({error})"]
    return fresh, [f"{estimator.name}: champion, and {len(new):,} rows that became known since its training"]


def _fitted_or_prior(template: Estimator, history: History) -> tuple[Estimator | None, str]:
    rows = rows_of(template, history)
    try:
        if len(rows):
            template.fit(rows.X, rows.y, observed=rows.observed, known_at=rows.known_at)
            return template, ""
        problem = "there is no row to fit it on"
    except TidegridError as error:
        problem = str(error)
    except Exception as error:  # a plugin may raise anything; it must not stop the others
        problem = f"{type(error).__name__}: {error}"
    return (type(template)(**template.get_params()) if template.predicts_unfitted else None), problem
