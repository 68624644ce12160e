"""What answers at a tick: champions brought up to date, refits on a schedule, fallbacks, recalibrated bands."""

from collections.abc import Callable, Mapping
from typing import cast

import pandas as pd

from tidegrid.errors import TidegridError
from tidegrid.estimators import Estimator
from tidegrid.estimators.recurring import RecurringJobEstimator
from tidegrid.models import ModelStore
from tidegrid.pipeline.champions import fit_all, load_estimators
from tidegrid.pipeline.demand import forecast_traffic
from tidegrid.pipeline.estimates import CAPPED, FALLBACK
from tidegrid.pipeline.plan import Forecast, make_forecast
from tidegrid.pipeline.policy import Policy
from tidegrid.pipeline.rolling.learn import Learnt, iso
from tidegrid.pipeline.rolling.realtime import BAND, next_hours, record_of
from tidegrid.pipeline.rolling.records import Event, Hour
from tidegrid.pipeline.rolling.safe import recalibrated, with_fallbacks
from tidegrid.pipeline.rolling.store import StateStore
from tidegrid.pipeline.site import Site
from tidegrid.pipeline.train import train

REFITTED = "refitted"
"""Under which name the store remembers the instant of the last refit."""


def estimators_for(
    state: StateStore,
    site: Site,
    models: ModelStore | None,
    given: Mapping[str, Estimator] | None,
    refit_hours: float | None,
    seed: int,
    step: Callable[[str], None],
) -> tuple[dict[str, Estimator], list[str], dict[str, str]]:
    """Return the estimators of a tick, notes that say what they are, and what the store is to remember.

    Champions are brought up to date in memory with all that has become known since their training; every
    ``refit_hours`` a fit on everything challenges them first.
    """
    zone = site.cluster.timezone
    if given is not None:
        return dict(given), [], {}
    if models is None:
        step("fitting estimators on the site's history")
        return fit_all(site.history, timezone=zone), ["no model store: estimators fitted afresh"], {}
    notes: list[str] = []
    meta: dict[str, str] = {}
    before = state.info(REFITTED)
    has = any(models.champion(name) is not None for name in models.names())
    if before is None and has:
        meta[REFITTED] = iso(site.now)
    elif refit_hours is not None and (
        before is None or site.now - pd.Timestamp(before) >= pd.Timedelta(hours=refit_hours)
    ):
        step("fitting challengers")
        meta[REFITTED] = iso(site.now)
        for one in train(site.history, models, now=site.now, timezone=zone, seed=seed):
            notes.append(f"refit of {one.name}: {one.decision} ({one.reason})")
    step("bringing champions up to date")
    found, said = load_estimators(models, timezone=zone, history=site.history)
    return found, [*notes, *said], meta


def with_record(estimator: Estimator, hours: list[Hour], notes: list[str]) -> Estimator:
    """Return the demand estimator with its bands widened or narrowed by how recorded forecasts fared."""
    record = record_of(sorted(hours, key=lambda one: (one.series, one.hour)))
    try:
        out = recalibrated(estimator, record)
    except Exception as error:  # a plugin may raise anything; its bands stay as they were
        notes.append(f"realtime: not recalibrated ({type(error).__name__}: {error})")
        return estimator
    if out is not estimator:
        notes.append(f"realtime: bands follow {len(record):,} recorded hours")
    return out


def hours_ahead(estimators: Mapping[str, Estimator], site: Site, hours: list[Hour]) -> list[Hour]:
    """Record the next hour's forecast as it is without recalibration, which works on these records."""
    series = list(dict.fromkeys(app.series for app in site.cluster.apps))
    if not series:
        return []
    _, safe = with_fallbacks(estimators, site.history, site.cluster)
    traffic = forecast_traffic(cast(Estimator, safe), series, site.now, 2, BAND)
    return next_hours(traffic, site.now, hours)


def safe_forecast(
    learnt: Learnt,
    site: Site,
    estimators: Mapping[str, Estimator],
    now: pd.Timestamp,
    policy: Policy,
) -> tuple[Forecast, list[Event]]:
    """Return the forecast, whatever an estimator raises, and an event for each fallback that answered."""
    safe, demand = with_fallbacks(estimators, site.history, site.cluster)
    events = []
    try:
        out = make_forecast(learnt.requests, learnt.running, site.cluster, safe, now, policy)
    except TidegridError:
        raise
    except Exception as error:  # the last fallback failed: its prior needs nothing
        said = f"{FALLBACK} failed ({type(error).__name__}: {error}); its prior answers"
        events.append(Event("fallback", FALLBACK, said))
        safe[FALLBACK] = RecurringJobEstimator()
        out = make_forecast(learnt.requests, learnt.running, site.cluster, safe, now, policy)
    if demand.problem and site.cluster.apps:
        text = f"realtime failed ({demand.problem}); the same hours a week before answer"
        events.append(Event("fallback", "realtime", text))
    shapes = out.estimates.shapes
    for note in sorted({note.removesuffix(f"; {CAPPED}") for note in shapes["note"]}):
        if " failed (" in note:
            events.append(Event("fallback", note.split(" ", 1)[0], note))
    return out, events
