"""A trace as a world: true durations, true demand and failures are hidden until they have happened."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from tidegrid.data import App, Capacity, Cluster, History, block_size, request_features
from tidegrid.data.cluster import laid
from tidegrid.data.nodelist import as_indices
from tidegrid.data.schema import blank
from tidegrid.data.tables import REQUESTS, RUNNING
from tidegrid.pipeline.bands import Came, Widths, came_of, learnt
from tidegrid.pipeline.decide import Decision
from tidegrid.pipeline.estimates import LEVELS, block_sizes
from tidegrid.pipeline.etas import BAND, bands_of, instant_of
from tidegrid.pipeline.memory import iso
from tidegrid.pipeline.state import State
from tidegrid.pipeline.worlds import Reading
from tidegrid.pipeline.worlds.trace import HOUR, POOL, WARM_UP_HOURS, Trace, at_far_end

MINUTE = 60.0
_BAND_AT = [LEVELS.index(level) for level in BAND]


@dataclass
class Played:
    """What a policy did in a replay.

    Attributes
    ----------
    start : ndarray of shape (jobs,)
        Seconds; infinity for a job that did not start.
    held : ndarray of shape (apps, hours)
        GPUs that each app held, averaged over the hour.
    unmet : ndarray of shape (apps, hours)
        GPU-hours of demand that were not served.
    swaps
        GPUs that entered or left an app.
    eta : ndarray of shape (jobs, 3)
        Expected end in seconds at 0.1, 0.5 and 0.9, told when the job started; NaN where it did not.
    plans
        Decisions made.
    gpus : ndarray of shape (jobs,) or empty
        GPUs that each job held; those that it asks for where it did not start. Empty where all got what they asked for.
    ran_s : ndarray of shape (jobs,) or empty
        Seconds that each job runs on these, up to its time limit or a failure; empty where that is the true duration.
    lost
        Jobs that ended without their work: a GPU failed, or fewer GPUs than they ask for took them past their limit.
    ids
        Which GPUs each job had that started; empty where that is not known.
    eta_submit : ndarray of shape (jobs, 3) or empty
        Expected ends told at submission, or at the first decision after it; NaN where none was told.
    told_start : ndarray of shape (jobs,) or empty
        Planned start in seconds, as it was told first to a job that had to wait; NaN where none was told.
    cells
        Each change of an app's GPUs: the instant in seconds, the app's number, its GPUs from then on.
    """

    start: np.ndarray
    held: np.ndarray
    unmet: np.ndarray
    swaps: int = 0
    eta: np.ndarray = field(default_factory=lambda: np.empty((0, 3)))
    plans: int = 0
    eta_submit: np.ndarray = field(default_factory=lambda: np.empty((0, 3)))
    gpus: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    ran_s: np.ndarray = field(default_factory=lambda: np.empty(0))
    lost: set[int] = field(default_factory=set)
    ids: dict[int, tuple[int, ...]] = field(default_factory=dict)
    told_start: np.ndarray = field(default_factory=lambda: np.empty(0))
    cells: list[tuple[float, int, tuple[int, ...]]] = field(default_factory=list)

    def sizes(self, trace: Trace) -> np.ndarray:
        """Return the GPUs that each job held or asks for; shape (jobs,)."""
        return self.gpus if len(self.gpus) else trace.size

    def seconds(self, trace: Trace) -> np.ndarray:
        """Return the seconds that each job runs; shape (jobs,)."""
        return self.ran_s if len(self.ran_s) else trace.duration_s

    def done(self, trace: Trace) -> np.ndarray:
        """Return which jobs ended their work inside the replay; shape (jobs,), bool."""
        done = self.start + self.seconds(trace) <= trace.end_s
        done[list(self.lost)] = False
        return done


class Simulated:
    """A world that is played: it moves from event to event, and does what decisions say.

    Parameters
    ----------
    trace
        The truth.

    Attributes
    ----------
    played
        What has been done.
    widths
        What the bands of expected times have been worth so far; see :mod:`tidegrid.pipeline.bands`.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        n, apps = len(trace.jobs), len(trace.apps)
        self.now_s = 0.0
        self.end = np.full(n, np.inf)
        self.status: dict[int, str] = {}
        self.arrived = 0
        self.waiting: list[int] = []
        self.running: list[int] = []
        self.busy = np.zeros(trace.gpus, np.bool_)
        # apps ran before the replay began
        self.held = at_far_end(trace.gpus, [app.gpus_before() for app in trace.apps])
        self.played = Played(
            np.full(n, np.inf),
            np.zeros((apps, trace.hours)),
            np.zeros((apps, trace.hours)),
            eta=np.full((n, 3), np.nan),
            eta_submit=np.full((n, 3), np.nan),
            told_start=np.full(n, np.nan),
            gpus=trace.size.copy(),
            ran_s=trace.duration_s.copy(),
            cells=[(0.0, k, tuple(cells)) for k, cells in enumerate(self.held)],
        )
        self.widths = Widths()
        self._laid: dict[tuple[int, ...], set[tuple[int, int]]] = {}
        self._least = trace.size if trace.sizes is None else block_size(trace.sizes[:, 0])
        self._gpu_ids: dict[int, str] = {}
        self._told: dict[tuple[int, int], tuple[str, str, float]] = {}
        self._demand = trace.demand()
        self._served_s = 0.0
        self._ended: list[int] = []
        self._news: list[int] = []
        self._hours_known = -WARM_UP_HOURS
        self._requests, self._started = _tables(trace)
        self._features, self._past = request_features(self._requests), _plain(trace.jobs)
        self._past_features = request_features(self._past)
        self._unit = pd.DatetimeIndex(self._started["submit_time"]).unit
        self._cluster: tuple[object, Cluster] | None = None

    # time ----------------------------------------------------------------------------------------

    def next_event(self, hour: int) -> float:
        """Return the seconds of the next arrival, end or failure, at most those of the hour after ``hour``."""
        upcoming = [(hour + 1) * HOUR]
        if self.arrived < len(self.trace.jobs):
            upcoming.append(float(self.trace.submit_s[self.arrived]))
        if self.running:
            upcoming.append(float(self.end[self.running].min()))
        upcoming += [at for one in self.trace.outages for at in (one.from_s, one.until_s) if at > self.now_s]
        return min(upcoming)

    def advance(self, now_s: float) -> tuple[list[int], list[int]]:
        """Let time pass; return the jobs that arrived and those that ended or failed."""
        trace = self.trace
        self._serve(now_s)
        for one in trace.outages:
            if self.now_s < one.from_s <= now_s:
                for j in self.running:
                    if one.gpu in self.played.ids[j] and self.end[j] > one.from_s:
                        self.end[j] = one.from_s
                        self.played.ran_s[j] = max(1.0, one.from_s - self.played.start[j])
                        self._lose(j, "failed")
        self.now_s = now_s
        over = sorted((j for j in self.running if self.end[j] <= now_s), key=lambda j: (self.end[j], j))
        for j in over:
            self.busy[list(self.played.ids[j])] = False
        gone = set(over)
        if over:
            self.running = [j for j in self.running if j not in gone]
            self._ended += over
            self._news += over
        new = []
        while self.arrived < len(trace.jobs) and trace.submit_s[self.arrived] <= now_s:
            if trace.size[self.arrived] <= trace.gpus:
                new.append(self.arrived)
            self.arrived += 1
        self.waiting += new
        return new, over

    def can_start(self, candidates: list[int]) -> bool:
        """Whether some of these jobs fit a block that is free now: where none does, no decision could start one."""
        if not candidates:
            return False
        taken = self.busy.copy()
        for cells in self.held:
            taken[cells] = True
        taken[list(self.down())] = True
        node = self.trace.node_size or self.trace.gpus
        if self.trace.placement == "node":
            free = np.sort((~taken.reshape(-1, node)).sum(axis=1))[::-1]
            return any(
                free[nodes - 1] >= each for nodes, each in set().union(*map(self._layouts, candidates))
            )
        size = int((self.trace.size if self.trace.sizes is None else self._least)[candidates].min())
        width = min(size, node)
        whole = len(taken) // width * width
        return bool((~taken[:whole].reshape(-1, width)).all(axis=1).any())

    def _layouts(self, job: int) -> set[tuple[int, int]]:
        """Return how a job may lie on nodes: on how many, and how many GPUs of each."""
        sizes, asked = self.trace.sizes, int(self.trace.asked[job])
        low, high = (asked, asked) if sizes is None else sizes[job].tolist()
        key = (low, asked, high)
        if key not in self._laid:
            counts = {asked, low, high, *(size for size in block_sizes(low, high) if low <= size <= high)}
            held = [laid(self.trace.pool, count) for count in counts]
            self._laid[key] = {(nodes, gpus // nodes) for gpus, nodes in held if gpus <= self.trace.gpus}
        return self._laid[key]

    def down(self) -> tuple[int, ...]:
        """Return the GPUs that do not work now."""
        return tuple(
            sorted({one.gpu for one in self.trace.outages if one.from_s <= self.now_s < one.until_s})
        )

    # reading and applying ------------------------------------------------------------------------

    @property
    def now(self) -> pd.Timestamp:
        """The instant that the world has come to."""
        return self.instant(self.now_s)

    def instant(self, seconds: float) -> pd.Timestamp:
        """Return the instant of a second of the replay."""
        return self.trace.start + pd.Timedelta(seconds=seconds)

    def read(self, now: pd.Timestamp, since: pd.Timestamp | None = None) -> Reading:
        """Return what can be known now; the truth of what has not happened stays hidden.

        Parameters
        ----------
        now
            The instant that the world has come to: it knows no other.
        since
            Not used: news is what came after the reading before, which the world knows itself.
        """
        if now != self.now:
            raise ValueError(f"the simulated world is at {self.now}, not at {now}")
        hours = int(self.now_s // HOUR)
        news = _NOTHING
        if self._news or (hours > self._hours_known and self.trace.apps):
            traffic = self._traffic(self._hours_known, hours)
            # jobs that ran at another size than they asked for are read afresh
            known = self._past_features.take(self._news) if self.trace.sizes is None else None
            news = History(self._jobs(self._news), traffic, checked=True, instant=now, features=known)
        self._hours_known, self._news = hours, []
        held = [self.played.ids[j] for j in self.running]
        changed: dict[str, Any] = {
            "first_gpu": np.array([ids[0] for ids in held], np.int64),
            "start_time": self._instants(self.played.start[self.running]),
        }
        if self.trace.sizes is not None:
            changed["gpus"] = self.played.gpus[self.running]
        if self.trace.placement == "node":
            changed["gpu_ids"] = np.array([self._gpu_ids[j] for j in self.running], object)
        running = _rows(self._started, self.running, **changed)
        requests, waiting = _rows(self._requests, self.waiting), list(self.waiting)
        # what State.of settles cannot be here: no job is in both, and a job ends with its GPU
        state = State(
            now,
            self._cluster_now(),
            requests,
            running,
            known_until=now,
            known_features=lambda rows: _rows(self._features, [waiting[row] for row in rows]),
        )
        return Reading(state, news, self.history)

    def history(self) -> History:
        """Return all that is known now."""
        traffic = self._traffic(-WARM_UP_HOURS, int(self.now_s // HOUR))
        return History(self._jobs(self._ended), traffic, checked=True, instant=self.now)

    def apply(self, decision: Decision) -> list[str]:
        """Do what was decided; return the jobs that started."""
        trace, played = self.trace, self.played
        number = dict(zip(decision.state.waiting_ids, self.waiting, strict=True))
        played.plans += 1
        for k, move in enumerate(decision.moves):
            if move.swaps:
                played.swaps += move.swaps
            if list(move.after) != self.held[k]:
                self.held[k] = list(move.after)
                played.cells.append((self.now_s, k, move.after))
        self._tell(decision, number)
        for one in decision.starts:
            j = number[one.job]
            played.start[j], played.gpus[j], played.ids[j] = self.now_s, one.gpus, one.gpu_ids
            self._gpu_ids[j] = as_indices(one.gpu_ids)
            self.busy[list(one.gpu_ids)] = True
            played.ran_s[j] = trace.seconds(j, one.gpus)
            if one.gpus != trace.size[j] and played.ran_s[j] > trace.limit_s[j]:
                played.ran_s[j] = trace.limit_s[j]
                self._lose(j, "timeout")
            self.end[j] = self.now_s + played.ran_s[j]
            told = decision.durations[one.job, one.pool, one.gpus]
            played.eta[j] = self.now_s + told[_BAND_AT] * HOUR
            self.running.append(j)
        if decision.starts:
            gone = {number[one.job] for one in decision.starts}
            self.waiting = [j for j in self.waiting if j not in gone]
        return [one.job for one in decision.starts]

    def _tell(self, decision: Decision, number: dict[str, int]) -> None:
        """Tell each waiting job when it will start and end, at the first decision that has a place for it."""
        new = {
            p.job
            for p in decision.plan.placements
            if p.job in number and np.isnan(self.played.eta_submit[number[p.job], 1])
        }
        if not new:
            return
        problem = decision.problem
        step_s, now = problem.step_minutes * MINUTE, iso(decision.state.now)
        for p, first, last in bands_of(
            problem,
            decision.plan,
            decision.durations,
            decision.seed,
            widths=decision.widths,
            only=new,
            arrivals=decision.forecast.arrivals,
        ):
            j = number[p.job]
            self.played.eta_submit[j] = self.now_s + step_s * last
            if p.start > 0:
                self.played.told_start[j] = self.now_s + step_s * p.start
            told = [iso(instant_of(problem, float(at))) for at in (first[0], first[2], last[0], last[2])]
            if told[1] > now:
                for which, low, high in ((1, told[0], told[1]), (0, told[2], told[3])):
                    past = pd.Timestamp(high) - self.trace.start
                    self._told[j, which] = (low, high, past.total_seconds())

    def learn_widths(self) -> Widths:
        """Take in what has come of the bands that are past, and return the widths."""
        past = [key for key, (_, _, high_s) in self._told.items() if high_s < self.now_s]
        came: list[Came] = []
        for j, which in past:
            low, high, _ = self._told.pop((j, which))
            at = self.played.start[j] if which else self.end[j]
            known = iso(self.instant(at)) if at <= self.now_s else None
            name = str(self.trace.jobs["job_id"].iat[j])
            came += came_of(name, low, high, known, iso(self.now), which)
        self.widths = learnt(self.widths, came)
        return self.widths

    # plumbing ------------------------------------------------------------------------------------

    def _cluster_now(self) -> Cluster:
        key = (self.down(), tuple(map(tuple, self.held)))
        if self._cluster is None or self._cluster[0] != key:
            trace = self.trace
            pool = trace.pool.model_copy(update={"down": self.down()})
            apps = tuple(
                App(
                    id=app.id,
                    pool=POOL,
                    priority=app.priority,
                    swap_cap=app.swap_cap,
                    held=tuple(cells),
                    capacity=Capacity(units_per_gpu_hour=app.units_per_gpu),
                )
                for app, cells in zip(trace.apps, self.held, strict=True)
            )
            self._cluster = (key, Cluster(timezone=trace.timezone, pools=(pool,), apps=apps))
        return self._cluster[1]

    def _instants(self, seconds: np.ndarray) -> pd.DatetimeIndex:
        """Return instants of the replay, as exact as those of the tables."""
        stamps = self.trace.start.to_datetime64() + np.round(seconds * 1e9).astype("timedelta64[ns]")
        return pd.DatetimeIndex(stamps.astype(f"datetime64[{self._unit}]"), tz="UTC")

    def _jobs(self, jobs: list[int]) -> pd.DataFrame:
        """Return jobs that have ended as job history has them."""
        table = self._past.take(jobs)
        if not jobs:
            return table
        begun, ended = self._instants(self.played.start[jobs]), self._instants(self.end[jobs])
        table = table.assign(
            start_time=begun, end_time=ended, known_at=ended, duration_s=self.played.ran_s[jobs]
        )
        if self.trace.sizes is not None:
            other = self.played.gpus[jobs] != self.trace.size[jobs]
            table["gpus"] = table["gpus"].mask(other, self.played.gpus[jobs])
        for status in {self.status[j] for j in jobs if j in self.status}:
            table["status"] = table["status"].mask(
                np.array([self.status.get(j) == status for j in jobs]), status
            )
        return table

    def _lose(self, job: int, status: str) -> None:
        """End a job without its work."""
        self.status[job] = status
        self.played.lost.add(job)

    def _traffic(self, first: int, last: int) -> pd.DataFrame:
        if first >= last:
            return _NOTHING.traffic
        ds = self.trace.start + pd.to_timedelta(np.arange(first, last), unit="h")
        parts = [
            pd.DataFrame(
                {
                    "series_id": app.id,
                    "timestamp": ds.astype("datetime64[us, UTC]"),
                    "value": app.traffic[WARM_UP_HOURS + first : WARM_UP_HOURS + last],
                }
            )
            for app in self.trace.apps
        ]
        return pd.concat(parts, ignore_index=True) if parts else _NOTHING.traffic

    def _serve(self, until: float) -> None:
        """Account for what apps held since the last event."""
        down = set(self.down())
        at = self._served_s
        while at < until:
            hour = int(at // HOUR)
            stop = min(until, (hour + 1) * HOUR)
            share = (stop - at) / HOUR
            for k in range(len(self.trace.apps)):
                held = len(self.held[k]) - (len(down.intersection(self.held[k])) if down else 0)
                self.played.held[k, hour] += held * share
                self.played.unmet[k, hour] += max(0, int(self._demand[k, hour]) - held) * share
            at = stop
        self._served_s = max(self._served_s, until)


_NOTHING = History()


def _tables(trace: Trace) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return every job as a request, and as a running job but for its block and start, in the documented schema."""
    jobs = trace.jobs
    # what only the truth knows, and what is set below
    hidden = {"duration_s", "job_id", "priority", "gpus", "gpu_type"}

    def filled(columns: object) -> pd.DataFrame:
        out: dict[str, object] = {}
        for column in columns:  # type: ignore[attr-defined]
            if column.name in jobs.columns and column.name not in hidden:
                out[column.name] = jobs[column.name]
            elif column.always:
                out[column.name] = blank(column, jobs.index)
        return pd.DataFrame(out)

    requests, running = filled(REQUESTS.columns), filled(RUNNING.columns)
    for table, gpus in ((requests, jobs["gpus"]), (running, pd.Series(trace.size))):
        table["job_id"] = jobs["job_id"]
        table["priority"] = pd.Series(trace.priority).astype(table["priority"].dtype)
        table["gpus"] = gpus.astype(table["gpus"].dtype)
        table["gpu_type"] = ""
    running["pool"] = POOL
    if trace.sizes is not None:
        for name, column in (("min_gpus", 0), ("max_gpus", 1)):
            requests[name] = pd.Series(trace.sizes[:, column]).astype(requests[name].dtype)
    # rows are taken at every event: plain objects are far quicker there than columns of text
    return _plain(requests), _plain(running)


def _rows(table: pd.DataFrame, rows: Sequence[int], **more: Any) -> pd.DataFrame:
    """Return some rows on a fresh index, with columns in place of its own."""
    out = table.take(rows)
    out.index = pd.RangeIndex(len(rows))
    for name, column in more.items():
        out[name] = column
    return out


def _plain(table: pd.DataFrame) -> pd.DataFrame:
    text = [name for name in table.columns if pd.api.types.is_string_dtype(table[name].dtype)]
    out = table.astype(dict.fromkeys(text, object)).copy()
    return out.set_axis(out.columns.astype(object), axis=1)
