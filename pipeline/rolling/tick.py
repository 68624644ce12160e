"""One tick: learn what happened, recalibrate, forecast, plan, check, and commit step 0."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tidegrid.data import as_instant
from tidegrid.errors import InputError
from tidegrid.estimators import Estimator
from tidegrid.files import write_text
from tidegrid.models import ModelStore
from tidegrid.pipeline.champions import preferred
from tidegrid.pipeline.estimates import LEVELS, interpolate
from tidegrid.pipeline.etas import deadline_risks, eta_table
from tidegrid.pipeline.plan import durations
from tidegrid.pipeline.policy import Policy
from tidegrid.pipeline.precedence import raised
from tidegrid.pipeline.rolling.answers import estimators_for, hours_ahead, safe_forecast, with_record
from tidegrid.pipeline.rolling.decided import (
    app_moves,
    as_json,
    keep_within_swaps,
    refused_of,
    rested_on,
    starts_of,
    swaps_used,
    told,
    waiting_of,
)
from tidegrid.pipeline.rolling.learn import Learnt, iso, learn
from tidegrid.pipeline.rolling.realtime import arrived, unmet_hours
from tidegrid.pipeline.rolling.records import Changes
from tidegrid.pipeline.rolling.store import Commit, StateStore
from tidegrid.pipeline.site import FILES, Site
from tidegrid.scheduler import Problem, StalePlanError, explain, require_current, solve

RECORD_DAYS = pd.Timedelta(days=28)
"""How far back recorded forecasts of traffic are looked at: four weeks move a band as far as it may go."""

UNMET_DAYS = pd.Timedelta(days=7)
"""How late the traffic of an hour may become known and still be set against the GPUs that were held."""

Step = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """How to tick.

    Attributes
    ----------
    policy
        The planner's knobs.
    mode, time_limit, seed
        The planner, as in :func:`tidegrid.scheduler.solve`.
    refit_hours
        How often champions are challenged by a fit on all that is known; None for never. In between they are
        brought up to date at each tick, in memory.
    timezone
        The IANA zone of times in the files that carry none.
    """

    policy: Policy = field(default_factory=Policy)
    mode: str = "fast"
    time_limit: float | None = None
    seed: int = 0
    refit_hours: float | None = 168.0
    timezone: str | None = None

    @property
    def sha256(self) -> str:
        """The hash of what a plan depends on beside its input."""
        knobs = [self.policy.model_dump(mode="json"), self.mode, self.time_limit, self.seed, self.timezone]
        return _sha(as_json(knobs))


def site_version(folder: str | Path) -> str:
    """Return the SHA-256 of a site's files: the version of the input."""
    total = hashlib.sha256()
    for name in FILES:
        path = Path(folder) / name
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise InputError(
                f"cannot be read ({error.strerror})", file=path, fix="name a readable file"
            ) from None
        total.update(f"{name} {len(content)}\n".encode() + content)
    return total.hexdigest()


def tick(
    state: StateStore,
    folder: str | Path,
    now: str | pd.Timestamp,
    settings: Settings | None = None,
    *,
    models: ModelStore | None = None,
    estimators: Mapping[str, Estimator] | None = None,
    out: str | Path | None = None,
    step: Step = lambda text: None,
) -> Commit:
    """Plan the site from ``now`` on and commit step 0.

    The same files at the same instant are committed once: a second call returns the first one's commit. All that a
    tick writes is one transaction; ``out`` is written after it, aside and then renamed, and again by a repeated call.

    Parameters
    ----------
    state
        What earlier ticks left.
    folder
        The site's folder, as :meth:`tidegrid.pipeline.site.Site.read` reads it.
    now
        The start of step 0.
    settings
        How.
    models
        Where champions are; they are brought up to date in memory, and challenged on the settings' schedule.
    estimators
        Fitted estimators to use instead, as they are.
    out
        The file that the commit is written to.
    step
        Told what is being done.

    Raises
    ------
    StalePlanError
        The files changed while the plan was made, another tick was committed meanwhile, or a later instant is
        committed already; nothing was written.
    InputError
        A file cannot be used, or this input is committed already under other settings.
    """
    how = settings or Settings()
    moment = as_instant(now, field="now")
    version = site_version(folder)
    key = _sha(f"{version} {iso(moment)}")
    done = state.commit_of(key)
    last = state.last()
    if done is not None:
        if done.settings != how.sha256:
            raise InputError(
                f"tick {done.tick} has committed this input under another policy, mode or seed",
                field="now",
                fix="change them together with a later instant",
            )
    elif last is not None and moment < pd.Timestamp(last.now):
        raise StalePlanError(
            f"tick {last.tick} is committed for {last.now}, later than {iso(moment)}; tick from now on"
        )
    else:
        done = _tick(state, Path(folder), moment, how, version, key, last, models, estimators, step)
        last = done
    if out is not None and last is not None and done.tick == last.tick:
        write_text(out, done.text)
    return done


def _tick(
    state: StateStore,
    folder: Path,
    now: pd.Timestamp,
    how: Settings,
    version: str,
    key: str,
    last: Commit | None,
    models: ModelStore | None,
    given: Mapping[str, Estimator] | None,
    step: Step,
) -> Commit:
    step("reading the site")
    site = Site.read(folder, now=now, timezone=how.timezone)
    learnt = learn(state.watched(), site, None if last is None else pd.Timestamp(last.now))
    recorded = state.hours(iso(now - RECORD_DAYS))
    known, surprises = arrived(recorded, site)
    hours = {(one.series, one.hour): one for one in [*recorded, *known]}
    events = [*learnt.events, *surprises]
    estimators, notes, meta = estimators_for(state, site, models, given, how.refit_hours, how.seed, step)
    estimators = preferred(estimators, how.policy.estimators)
    fresh = hours_ahead(estimators, site, list(hours.values()))
    if "realtime" in estimators:
        estimators["realtime"] = with_record(estimators["realtime"], list(hours.values()), notes)
    step("forecasting durations and demand")
    forecast, flags = safe_forecast(learnt, site, estimators, now, how.policy)
    taking = durations(forecast, learnt.running)
    window, used = swaps_used(state, now, how.policy.step_minutes)
    document = forecast.problem.to_dict()
    raise_priorities(document, taking, learnt, now, how.policy)
    events += flags + keep_within_swaps(document, window, used)
    forecast = replace(forecast, problem=Problem.from_dict(document))
    step(f"planning {len(forecast.problem.jobs)} jobs")
    plan = solve(forecast.problem, mode=how.mode, time_limit=how.time_limit, seed=how.seed)
    plan = explain(forecast.problem, plan, site.cluster.timezone)
    etas = eta_table(forecast.problem, plan, taking, LEVELS, how.seed)
    holds, apps, put_off = app_moves(site, forecast.problem, plan, window, used)
    events += put_off
    starts = starts_of(forecast.problem, plan, apps, etas)
    watched = told(learnt, taking, plan, etas, starts, now)
    since = iso(now - UNMET_DAYS)
    held = {app.id: len(app.held) for app in site.cluster.apps}
    unmet = unmet_hours(known, state.holds(since), site.cluster, held)
    number = 1 if last is None else last.tick + 1
    document = {
        "version": 1,
        "tick": number,
        "now": iso(now),
        "timezone": site.cluster.timezone,
        "step_minutes": how.policy.step_minutes,
        "input": key,
        "site_sha256": version,
        "problem_sha256": forecast.problem.sha256,
        "plan_sha256": _sha(as_json(plan.to_dict(grid=False))),
        "mode": plan.mode,
        "start": starts,
        "apps": apps,
        "running": len(learnt.running),
        "waiting": waiting_of(plan, etas, starts),
        "refused": refused_of(forecast, plan),
        "lost": sorted(event.subject for event in events if event.kind == "lost"),
        "risks": [risk["text"] for risk in plan.extra["risks"]],
        "deadlines": deadline_risks(learnt.requests, forecast.problem, etas, site.cluster.timezone),
        "events": [{"kind": e.kind, "subject": e.subject, "text": e.text} for e in events],
        "notes": notes,
        "synthetic": site.cluster.synthetic,
    }
    commit = Commit(number, key, how.sha256, iso(now), as_json(document) + "\n")
    changes = Changes(
        sorted(watched, key=lambda job: job.job_id),
        learnt.outcomes,
        [*known, *fresh],
        holds,
        unmet,
        events,
        forecast.problem.to_dict(),
        plan.to_dict(grid=False),
        rested_on(forecast, etas),
        meta,
    )
    step("committing")
    if site_version(folder) != version:
        raise StalePlanError(
            f"the files of {folder} changed while the plan was made; tick again on the new ones"
        )
    require_current(plan, forecast.problem)
    state.write(commit, changes)
    return commit


def raise_priorities(
    document: dict[str, Any],
    taking: Mapping[tuple[str, str, int], np.ndarray],
    learnt: Learnt,
    now: pd.Timestamp,
    policy: Policy,
) -> None:
    """Raise the priorities of a problem's waiting jobs by waiting and by shortness; ``taking`` has their hours."""
    waiting = [job for job in document["jobs"] if job["running"] is None]
    if not waiting:
        return
    seen = pd.to_datetime([learnt.watched[job["id"]].first_seen for job in waiting], utc=True)
    days = ((now - seen) / pd.Timedelta(days=1)).to_numpy()
    priority = np.array([float(job["priority"]) for job in waiting])
    asked = [job["shapes"][job.get("requested") or 0] for job in waiting]
    quantiles = [
        taking[job["id"], shape["pool"], shape["gpus"]] for job, shape in zip(waiting, asked, strict=True)
    ]
    hours = interpolate(np.array(quantiles), policy.job_quantile)
    new = raised(priority, days, hours, policy)
    for k in np.flatnonzero(new != priority):
        waiting[k]["priority"] = float(new[k])


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
