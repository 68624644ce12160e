"""Train every estimator: fit a challenger, backtest it on later data, and let it take over where that says so."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from tidegrid import __version__
from tidegrid.data import History, as_instant
from tidegrid.errors import InputError, TidegridError
from tidegrid.estimators import Estimator
from tidegrid.estimators.registry import Registry, discover
from tidegrid.models import Bundle, Lineage, ModelStore, Retention, Scores, Version, decide
from tidegrid.models.codec import canonical, digest
from tidegrid.models.decide import NEEDED_ROWS
from tidegrid.models.manifest import libraries
from tidegrid.pipeline.backtest import (
    BAND,
    HOUR,
    LEVELS,
    Calendar,
    Rows,
    asked,
    fitted_as_of,
    make,
    naive_answers,
    one_thread,
    rows_of,
    scored,
    scores,
    what_lacks,
)
from tidegrid.pipeline.champions import champion_of, fit_all, load_estimators, wanted

__all__ = ["Trained", "fit_all", "load_estimators", "train"]


UNCHANGED = "it is the champion already"
"""Why nothing is done where the fit would be the champion's."""

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
        champion; ``nothing``, where there is no row to learn from; ``failed``.
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
    content: str = ""
    rows: int = 0
    sha256: str = ""
    window: tuple[str, str] | None = None
    challenger: Scores = field(default_factory=Scores)
    champion: Scores | None = None
    prior: Scores | None = None
    naive: Scores | None = None
    test_rows: int = 0
    problem: str = ""
    lacks: str = ""
    recipe: str = ""
    done: Trained | None = None


def train(
    history: History,
    store: ModelStore,
    names: Sequence[str] | None = None,
    jobs: int = 1,
    *,
    now: pd.Timestamp | str,
    timezone: str = "UTC",
    country: str | None = None,
    subdivision: str | None = None,
    retention: Retention | None = None,
    seed: int = 0,
    registry: Registry | None = None,
    refit: bool = False,
) -> list[Trained]:
    """Train estimators into a store.

    Each is fitted on what was known at a cutoff that leaves a test at the end of the history, later than the
    champion's training too; both answer the test, and :func:`tidegrid.models.decide` decides. What is promoted
    is exactly what was tested; :func:`load_estimators` brings it up to date with what has become known since.
    A fit that the store holds already (of the same rows, parameters, code and libraries) is not repeated.

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
    timezone, country, subdivision
        The site's IANA zone, and its public holidays.
    retention
        Which old versions to keep.
    seed
        Seed of the comparison's draws.
    registry
        The estimators; those of the installed distributions where absent.
    refit
        Fit again even what the store holds already: for an estimator whose code has changed under the same version.

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
    chosen = wanted(known, names)
    calendar = Calendar(timezone, country, subdivision)
    templates = {name: make(known.classes[name], calendar) for name in chosen if name in known.classes}
    sources = {name: known.sources.get(name, "unknown") for name in templates}
    fits = _fits(templates, view, store, sources, refit, jobs)
    out = []
    for name in chosen:
        if name in fits:
            out.append(_settled(name, fits[name], known, store, moment, retention, seed))
        else:
            failure = next(f for f in known.failures if f.name == name)
            out.append(Trained(name, "failed", f"it does not load: {failure}"))
    return out


def _fits(
    templates: Mapping[str, Estimator],
    view: History,
    store: ModelStore,
    sources: Mapping[str, str],
    refit: bool,
    jobs: int,
) -> dict[str, _Fit]:
    tasks = [(name, template, view, store, sources[name], refit) for name, template in templates.items()]
    if jobs == 1 or len(tasks) < 2:
        return {task[0]: _fit(*task) for task in tasks}
    from joblib import Parallel, delayed

    return dict(zip(templates, Parallel(n_jobs=jobs)(delayed(_fit)(*task) for task in tasks), strict=True))


def _fit(name: str, template: Estimator, view: History, store: ModelStore, source: str, refit: bool) -> _Fit:
    try:
        with one_thread():
            everything = rows_of(template, view)
            recipe = _recipe(template, everything, source)
            done = None if refit else _done(name, recipe, store)
            if done is not None:
                return _Fit(done=done)
            return replace(_fit_and_test(name, template, view, everything, store), recipe=recipe)
    except TidegridError as error:
        return _Fit(problem=str(error))
    except Exception as error:  # a plugin may raise anything; it must not stop the others
        return _Fit(problem=f"{type(error).__name__}: {error}")


def _fit_and_test(name: str, template: Estimator, view: History, everything: Rows, store: ModelStore) -> _Fit:
    champion, since, _ = champion_of(store, name, type(template))
    country, subdivision = getattr(template, "country", None), getattr(template, "subdivision", None)
    if champion is not None and not Calendar("UTC", country, subdivision).holds_for(champion):
        champion = since = None
    now = view.instant
    assert now is not None
    cutoff = _cutoff(template, everything, now)
    if since is not None and since > cutoff:
        # later than both trainings: the challenger may then see as much as the champion has seen
        cutoff = min(since, now)
    fitted, past = fitted_as_of(template, view, cutoff)
    if not len(past):
        return _Fit(lacks=what_lacks(template, view))
    test = asked(everything, cutoff)
    when = pd.to_datetime(past.X["ds" if template.target == "demand" else "submit_time"], utc=True)
    window = (when.min().isoformat(), cutoff.isoformat())
    bundle = fitted.to_bundle()
    told = getattr(fitted, "model_card_markdown", None)
    if told is not None:
        # kept with the version, for people; loading passes it over
        bundle = replace(bundle, texts={**bundle.texts, "model_card": told()})
    if bundle.estimator != name:
        raise InputError(
            f"its bundle is that of {bundle.estimator!r}", fix="to_bundle states the class's name"
        )
    # what cannot be stored is refused here, where it stops no other
    found = _Fit(bundle, digest(bundle), len(past), past.sha256(), window, test_rows=len(test))
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


def _recipe(template: Estimator, rows: Rows, source: str) -> str:
    """Return the hash of all that a fit and its test depend on, beside the champion that it is compared with."""
    parts = [
        rows.sha256(),
        repr(sorted(template.get_params(deep=False).items())),
        libraries(),
        __version__,
        source,
    ]
    return hashlib.sha256(canonical(parts)).hexdigest()


def _done(name: str, recipe: str, store: ModelStore) -> Trained | None:
    """Return what became of the same fit before, where it is the champion or was compared with the present one."""
    same = [v for v in store.list(name) if not v.problem and v.manifest.get("recipe") == recipe]
    if not same:
        return None
    champion = store.champion(name)
    damaged = {problem.version for problem in store.verify(name)}
    for version in reversed(same):
        if version.id in damaged or champion in damaged:
            continue
        if version.id == champion:
            return Trained(name, "unchanged", UNCHANGED, version.id, version.manifest["rows"])
        said = [entry for entry in store.log(name) if entry.version == version.id]
        if said and said[-1].action == "reject" and version.manifest["parent"] == champion:
            return Trained(name, "kept", said[-1].reason, version.id, version.manifest["rows"])
    return None


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
    if fit.done is not None:
        return fit.done
    if fit.lacks:
        return Trained(name, "nothing", fit.lacks)
    if fit.bundle is None:
        return Trained(name, "failed", fit.problem)
    before = store.champion(name)
    if before is not None:
        held = store.show(name, before)
        damaged = any(problem.version == before for problem in store.verify(name))
        if not held.problem and not damaged and held.manifest["content_sha256"] == fit.content:
            return Trained(name, "unchanged", UNCHANGED, before, fit.rows)
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
        recipe=fit.recipe,
    )
    version = _same(store, name, fit.content) or store.save(
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
