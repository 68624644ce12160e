"""The loop: read, learn from outcomes, decide, commit, apply; one turn of it on a world is a tick."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pandas as pd

from tidegrid.data import as_instant
from tidegrid.errors import InputError
from tidegrid.estimators import Estimator
from tidegrid.estimators.registry import discover
from tidegrid.models import ModelStore
from tidegrid.pipeline.bands import Widths, widths_of
from tidegrid.pipeline.champions import answering, calendar_of, fit_all, load_estimators, preferred
from tidegrid.pipeline.continuity import Kept
from tidegrid.pipeline.decide import Decision, decide
from tidegrid.pipeline.forecast import RECORD_DAYS, Estimating, Forecaster
from tidegrid.pipeline.hours import unmet_hours
from tidegrid.pipeline.memory import Changes, Hold, iso
from tidegrid.pipeline.policy import Policy
from tidegrid.pipeline.rolling.commit import as_json, aside_notes, decided, holds_of, rested_on, told
from tidegrid.pipeline.rolling.reconcile import reconcile
from tidegrid.pipeline.rolling.store import Commit, StateStore
from tidegrid.pipeline.state import State
from tidegrid.pipeline.train import train
from tidegrid.pipeline.worlds import Reading, World
from tidegrid.scheduler import Plan, Problem, StalePlanError, require_current

UNMET_DAYS = pd.Timedelta(days=7)
"""How late the traffic of an hour may become known and still be set against the GPUs that were held."""

REFITTED = "refitted"
"""Under which name the store remembers the instant of the last refit."""

Step = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """How a loop decides.

    Attributes
    ----------
    policy
        The planner's parameters.
    mode, time_limit, seed
        The planner, as in :func:`tidegrid.scheduler.solve`.
    refit_hours
        How often champions are challenged by a fit on all that is known; None for never. In between they are
        brought up to date at each tick, in memory.
    rounds
        Rounds of the fast planner's search; None for as many as its budget buys.
    candidates
        Waiting jobs that one decision looks at, those that go first; None for all: every job is then given a time.
    """

    policy: Policy = field(default_factory=Policy)
    mode: str = "fast"
    time_limit: float | None = None
    seed: int = 0
    refit_hours: float | None = 168.0
    rounds: int | None = None
    candidates: int | None = None

    @property
    def sha256(self) -> str:
        """The hash of what a plan depends on beside its input."""
        parts = [self.policy.model_dump(mode="json"), self.mode, self.time_limit, self.seed]
        return _sha(as_json([*parts, self.rounds, self.candidates]))


@dataclass
class Memory:
    """What a loop remembers from decision to decision.

    Attributes
    ----------
    last
        The decision before.
    holds
        (Instant, hold) of past decisions, those of the current step at least: a swap cap counts for a step, however
        many decisions fall into it.
    widths
        How far the bands of expected times reach.
    """

    last: Kept | None = None
    holds: list[tuple[pd.Timestamp, Hold]] = field(default_factory=list)
    widths: Widths = field(default_factory=Widths)

    def swaps_left(self, state: State, step_minutes: int) -> dict[str, int]:
        """Return the swaps that each app with a cap has left in the step that the state's instant lies in."""
        window = state.now.floor(pd.Timedelta(minutes=step_minutes))
        used: dict[str, int] = {}
        for at, one in self.holds:
            if at >= window:
                used[one.app] = used.get(one.app, 0) + one.swaps
        return {
            app.id: max(0, app.swap_cap - used.get(app.id, 0))
            for app in state.cluster.apps
            if app.swap_cap is not None
        }

    def after(self, decision: Decision, step_minutes: int) -> None:
        """Remember a decision."""
        now = decision.state.now
        window = now.floor(pd.Timedelta(minutes=step_minutes))
        self.last = Kept(now, decision.problem, decision.plan)
        self.holds = [(at, one) for at, one in self.holds if at >= window]
        self.holds += [(now, one) for one in holds_of(decision)]


def turn(
    reading: Reading,
    forecaster: Forecaster,
    memory: Memory,
    how: Settings,
    first_seen: Mapping[str, pd.Timestamp] | None = None,
) -> Decision:
    """Learn from what a world told, decide, and remember the decision: one turn of the loop, in any world."""
    state = reading.state
    forecaster.learn(reading.news, state.now, reading.history)
    minutes = how.policy.step_minutes
    state = replace(
        state, first_seen=first_seen or state.first_seen, swaps_left=memory.swaps_left(state, minutes)
    )
    decision = decide(
        state,
        forecaster,
        how.policy,
        how.mode,
        time_limit=how.time_limit,
        seed=how.seed,
        rounds=how.rounds,
        candidates=how.candidates,
        last=memory.last,
        widths=memory.widths,
    )
    memory.after(decision, minutes)
    return decision


def tick(
    state: StateStore,
    world: World,
    now: str | pd.Timestamp,
    settings: Settings | None = None,
    *,
    models: ModelStore | None = None,
    estimators: Mapping[str, Estimator] | None = None,
    forecaster: Estimating | None = None,
    step: Step = lambda text: None,
) -> Commit:
    """Plan a world from ``now`` on and commit step 0.

    The same version of a world at the same instant is committed once: a second call returns the first one's commit.
    All that a tick writes is one transaction; the commit is applied after it, and again by a repeated call.

    Parameters
    ----------
    state
        What earlier ticks left.
    world
        What is planned, such as :class:`tidegrid.pipeline.worlds.files.Files` of a site's folder.
    now
        The start of step 0.
    settings
        How.
    models
        Where champions are; they are brought up to date in memory, and challenged on the settings' schedule.
    estimators
        Fitted estimators to use instead, as they are.
    forecaster
        A forecaster that lives from tick to tick, to use instead; it learns what each tick finds.
    step
        Told what is being done.

    Raises
    ------
    StalePlanError
        The world changed while the plan was made, another tick was committed meanwhile, or a later instant is
        committed already; nothing was written.
    InputError
        The world cannot be read, or this input is committed already under other settings.
    """
    how = settings or Settings()
    moment = as_instant(now, field="now")
    last = state.last()
    version = world.version()
    key = _sha(f"{version} {iso(moment)}")
    done = state.commit_of(key)
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
        done = _tick(state, world, moment, how, version, key, last, models, estimators, forecaster, step)
        last = done
    if last is not None and done.tick == last.tick:
        world.apply(done)
    return done


def _tick(
    state: StateStore,
    world: World,
    now: pd.Timestamp,
    how: Settings,
    version: str,
    key: str,
    last: Commit | None,
    models: ModelStore | None,
    given: Mapping[str, Estimator] | None,
    forecaster: Estimating | None,
    step: Step,
) -> Commit:
    step("reading the site")
    since = None if last is None else pd.Timestamp(last.now)
    reading = world.read(now, since)
    history, cluster = reading.history(), reading.state.cluster
    found = reconcile(state.watched(), reading.state, history, since)
    notes: list[str] = []
    meta: dict[str, str] = {}
    recorded = state.hours(iso(now - RECORD_DAYS))
    if forecaster is None:
        if given is not None:
            answers = dict(given)
        else:
            answers, notes, meta = champions(state, reading, models, how, step)
        answers = preferred(answers, how.policy.estimators)
        forecaster = Estimating(answers, history, recorded=recorded)
        # what is known is in the estimators already
        reading = replace(reading, news=history.as_of(pd.Timestamp(0, tz="UTC")))
    known, surprises = forecaster.record(history.traffic)
    memory = remembered(state, now, how)
    memory.widths = widths_of([*state.outcomes(), *found.outcomes], found.watched.values(), now)
    step("forecasting and planning")
    decision = turn(reading, forecaster, memory, how, found.first_seen)
    watched = told(decision, found.watched)
    had = {(one.series, one.hour) for one in recorded}
    fresh = [one for key_, one in sorted(forecaster.hours.items()) if key_ not in had]
    holds = holds_of(decision)
    held = {app.id: len(app.held) for app in cluster.apps}
    unmet = unmet_hours(known, state.holds(iso(now - UNMET_DAYS)), cluster, held)
    events = [*found.events, *surprises, *decision.events]
    number = 1 if last is None else last.tick + 1
    document = {
        "version": 1,
        "tick": number,
        "now": iso(now),
        "timezone": cluster.timezone,
        "step_minutes": how.policy.step_minutes,
        "input": key,
        "site_sha256": version,
        "problem_sha256": decision.problem.sha256,
        "plan_sha256": _sha(as_json(decision.plan.to_dict(grid=False))),
        "mode": decision.plan.mode,
        **decided(decision),
        "lost": sorted(event.subject for event in events if event.kind == "lost"),
        "events": [{"kind": e.kind, "subject": e.subject, "text": e.text} for e in events],
        "set_aside": len(reading.set_aside),
        "notes": [*reading.notes, *notes, *forecaster.notes, *aside_notes(reading.set_aside)],
        "synthetic": cluster.synthetic,
    }
    unplanned = [{"job": job, "start": None, "reason": why} for job, why in sorted(reading.waits.items())]
    document["waiting"] = [*document["waiting"], *unplanned]
    commit = Commit(number, key, how.sha256, iso(now), as_json(document) + "\n")
    changes = Changes(
        watched,
        found.outcomes,
        [*known, *fresh],
        holds,
        unmet,
        events,
        decision.problem.to_dict(),
        decision.plan.to_dict(grid=False),
        rested_on(decision),
        meta,
    )
    step("committing")
    if world.version() != version:
        raise StalePlanError(f"{world.name} changed while the plan was made; tick again on what they are now")
    require_current(decision.plan, decision.problem)
    state.write(commit, changes)
    return commit


def remembered(state: StateStore, now: pd.Timestamp, how: Settings) -> Memory:
    """Return what earlier ticks left of a loop's memory."""
    memory = Memory()
    window = now.floor(pd.Timedelta(minutes=how.policy.step_minutes))
    memory.holds = [(pd.Timestamp(at), one) for at, one in state.holds(iso(window))]
    last = state.last()
    kept = None if last is None else state.plan(last.tick)
    if last is not None and kept is not None:
        try:
            problem, plan = Problem.from_dict(kept["problem"]), Plan.from_dict(kept["plan"])
        except (InputError, KeyError, TypeError) as error:
            raise state.damaged(last.tick, str(error)) from None
        memory.last = Kept(pd.Timestamp(last.now), problem, plan)
    return memory


def champions(
    state: StateStore, reading: Reading, models: ModelStore | None, how: Settings, step: Step
) -> tuple[dict[str, Estimator], list[str], dict[str, str]]:
    """Return the estimators of a tick, notes that say what they are, and what the store is to remember.

    Champions are brought up to date in memory with all that has become known since their training; every
    ``refit_hours`` a fit on everything challenges them first. The first tick trains those that have no champion. The
    notes tell the store's state and not what this process did, so that a tick which was killed in its training says
    the same when it is run again.
    """
    now, cluster, history = reading.state.now, reading.state.cluster, reading.history()
    names, calendar = answering(how.policy.estimators), calendar_of(cluster)
    if models is None:
        step("fitting estimators on the site's history")
        notes = ["no model store: estimators fitted afresh"]
        return fit_all(history, names, notes=notes, **calendar), notes, {}
    meta: dict[str, str] = {}
    before = state.info(REFITTED)
    due: Sequence[str] | None = []
    if before is None:
        due = [name for name in discover().classes if models.champion(name) is None]
    elif how.refit_hours is not None and now - as_instant(before, field=REFITTED) >= pd.Timedelta(
        hours=how.refit_hours
    ):
        due = None
    notes = []
    if before is None or due is None:
        meta[REFITTED] = iso(now)
    if due is None or (due and how.refit_hours is not None):
        step("fitting challengers")
        train(history, models, names=due, now=now, seed=how.seed, **calendar)
        new = [name for name in models.names() if _created(models, name) == now]
        if new:
            notes.append(f"refit: {', '.join(sorted(new))} answer from a fit of now")
    step("bringing champions up to date")
    found, said = load_estimators(models, history=history, names=names, **calendar)
    return found, [*notes, *said], meta


def _created(models: ModelStore, name: str) -> pd.Timestamp | None:
    version = models.champion(name)
    found = None if version is None else models.show(name, version)
    return None if found is None or found.problem else pd.Timestamp(found.manifest["created"])


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
