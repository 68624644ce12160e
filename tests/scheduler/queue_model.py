"""The baselines again in plain Python, on the board that explanations ask: the oracle of the compiled ones."""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tidegrid.scheduler import App, Problem
from tidegrid.scheduler.arrays import FAR
from tidegrid.scheduler.baselines import chosen_shape
from tidegrid.scheduler.baselines.board import Ask, Board, Place
from tidegrid.scheduler.baselines.places import gpus_of, mask_of, room

Levels = Mapping[str, Sequence[int]]
"""Replicas that each app wants in each step."""


class Order:
    """When a job may start at the earliest: jobs that it comes after must have ended."""

    def __init__(self, board: Board, asks: Mapping[str, Ask]) -> None:
        self._asks = asks
        self._ends = {job.id: job.running.remaining for job in board.problem.jobs if job.running}
        known = board.problem.job_by_id
        self.after = {
            job.id: tuple(dict.fromkeys(name for name in job.after or () if name in known))
            for job in board.problem.jobs
        }

    def place(self, job: str, place: Place) -> None:
        """Note where a job lies."""
        self._ends[job] = place.start + self._asks[job].steps

    def ready(self, job: str) -> int:
        """Return the first step at which a job may start; `FAR` where one that it comes after has no place."""
        return max([self._asks[job].earliest, *(self._ends.get(name, FAR) for name in self.after[job])])

    def served(self, queue: Sequence[str]) -> Iterator[str]:
        """Yield jobs in the queue's order, none before those that it comes after; those in a circle never."""
        at = {job: i for i, job in enumerate(queue)}
        open_ = {job: sum(name in at for name in self.after[job]) for job in queue}
        followers: dict[str, list[str]] = {}
        for job in queue:
            for name in self.after[job]:
                followers.setdefault(name, []).append(job)
        heap = [at[job] for job in queue if not open_[job]]
        while heap:
            job = queue[heapq.heappop(heap)]
            yield job
            for follower in followers.get(job, ()):
                open_[follower] -= 1
                if not open_[follower]:
                    heapq.heappush(heap, at[follower])


def in_order(
    board: Board, asks: Mapping[str, Ask], queue: Sequence[str], *, passing: bool
) -> dict[str, Place]:
    """Give each job in turn its first place, past the horizon too.

    Parameters
    ----------
    board
        What is taken before; the places are taken on it.
    asks, queue
        The jobs by id, and their order.
    passing
        Whether a job may start before one of its pool that was served before it.

    Returns
    -------
    dict
        Places by job; a job that can never start has none, and holds nobody up.
    """
    places: dict[str, Place] = {}
    order = Order(board, asks)
    last = dict.fromkeys(board.taken, 0)
    for job in order.served(queue):
        ask = asks[job]
        ready = order.ready(job)
        # who is held back by a limit or by another job alone holds up nobody: what counts is when there are GPUs
        there = board.earliest(ask._replace(limits=()), max(ask.earliest, 0 if passing else last[ask.pool]))
        if ready >= FAR or there is None:
            continue
        place = board.earliest(ask, max(ready, there.start))
        if place is None:
            continue
        board.put(ask, place)
        order.place(job, place)
        places[job] = place
        last[ask.pool] = there.start
    return places


def easy(board: Board, asks: Mapping[str, Ask], queue: Sequence[str]) -> dict[str, Place]:
    """Run EASY backfill from change to change, past the horizon too.

    The first job of a pool that cannot start has a reservation, no other has. Parameters and result as `in_order`.
    """
    places: dict[str, Place] = {}
    order = Order(board, asks)
    waiting = list(queue)
    t = 0
    while waiting and t < FAR:
        reserved: dict[str, tuple[Ask, Place]] = {}
        left = []
        for job in waiting:
            ask = asks[job]
            if t + ask.steps > ask.latest_end:
                continue
            left.append(job)
            if order.ready(job) > t or board.over(ask, t) is not None:
                continue
            if mask := board.at(ask, t):
                place = Place(t, mask)
                board.put(ask, place)
                order.place(job, place)
                places[job] = place
                left.pop()
            elif ask.pool not in reserved and (later := board.earliest(ask, t + 1)):
                board.put(ask, later)
                reserved[ask.pool] = ask, later
        waiting = left
        for ask, later in reserved.values():
            board.lift(ask, later)
        begins = [asks[job].earliest for job in waiting if asks[job].earliest > t]
        t = min([line.after(t) for line in (*board.taken.values(), *board.use)] + begins)
    return places


def asks_of(board: Board) -> dict[str, Ask]:
    """Return what the waiting jobs ask for, by id, in the shapes that a baseline gives them."""
    asks = {}
    for job in board.problem.jobs:
        shape = chosen_shape(board, job) if job.running is None else None
        ask = board.ask(job, shape) if shape is not None else None
        if ask is not None:
            asks[job.id] = ask
    return asks


def queue_order(problem: Problem, asks: dict[str, Ask], mode: str) -> list[str]:
    """Ids of the jobs in the order in which a baseline serves them."""
    waiting = sorted((job for job in problem.jobs if job.id in asks), key=lambda job: (job.order, job.id))
    if mode == "priority":
        waiting.sort(key=lambda job: -job.priority)
    elif mode == "sjf":
        waiting.sort(key=lambda job: asks[job.id].steps)
    elif mode == "easy_priority":
        highest = max([1.0, *(float(job.priority) for job in problem.jobs)])
        # All who wait age alike, so what tells them apart is when they came: the order never changes.
        aging = problem.step_minutes / (7 * 24 * 60)
        waiting.sort(key=lambda job: aging * job.earliest - job.priority / highest)
    return [job.id for job in waiting]


def peak_levels(problem: Problem) -> Levels:
    """Return the levels that hold each app's peak of the horizon in every step."""
    steps = problem.steps
    return {app.id: [_replicas(app, max(app.demand[:steps]))] * steps for app in problem.apps}


def curve_levels(problem: Problem) -> Levels:
    """Return the levels that follow demand, risen early where the swap cap is too slow for a climb."""
    levels = {}
    for app in problem.apps:
        level = [_replicas(app, want) for want in app.demand[: problem.steps]]
        if app.swap_cap is not None:
            for t in range(problem.steps - 2, -1, -1):
                level[t] = max(level[t], level[t + 1] - app.swap_cap // app.replica)
        levels[app.id] = level
    return levels


def _replicas(app: App, gpus: int) -> int:
    return -(-max(gpus, app.floor) // app.replica)


def hold(board: Board, levels: Levels) -> dict[str, list[tuple[int, ...]]]:
    """Name the GPUs that bring each app as near to its level as what runs, closed GPUs and swap caps allow.

    Parameters
    ----------
    board
        A board with nothing on it but what runs.
    levels
        Replicas wanted.

    Returns
    -------
    dict
        For each app and step its replicas as bits. Apps of higher priority are served first. In a line an app
        takes the highest free GPUs and gives back its lowest, so that its set grows and shrinks by nesting; by
        node it takes them from the fullest nodes.
    """
    problem = board.problem
    turn = sorted(problem.apps, key=lambda app: -app.priority)
    now = {app.id: sorted(map(mask_of, app.held_replicas), key=gpus_of) for app in problem.apps}
    cells: dict[str, list[tuple[int, ...]]] = {app.id: [] for app in problem.apps}
    for t in range(problem.steps):
        taken = dict.fromkeys(board.taken, 0)
        for app in turn:  # give back first: what one app frees another may take in the same step
            down = board.shut(app.pool, t, t + 1, starting=False)
            kept = [one for one in now[app.id] if not one & down]
            extra = min(len(kept) - levels[app.id][t], _moves(app))
            now[app.id] = kept[max(0, extra) :]
            for one in now[app.id]:
                taken[app.pool] |= one
        entered = dict.fromkeys(now, 0)
        for app, goal in [
            *((app, _replicas(app, 0)) for app in turn),  # floors first
            *((app, levels[app.id][t]) for app in turn),
        ]:
            for _ in range(min(goal - len(now[app.id]), _moves(app) - entered[app.id])):
                free = board.free(app.pool, t, t + 1) & ~taken[app.pool]
                # GPUs that stay open are better than those that the app would soon have to leave
                lasting = free & ~board.shut(app.pool, t, problem.steps)
                layout = board.layout[app.pool]
                one = room(layout, lasting, app.replica) or room(layout, free, app.replica)
                if not one:
                    break
                taken[app.pool] |= one
                entered[app.id] += 1
                now[app.id].append(one)
            now[app.id].sort(key=gpus_of)
        for app in turn:
            cells[app.id].append(tuple(now[app.id]))
    return cells


def _moves(app: App) -> int:
    return 1 << 40 if app.swap_cap is None else app.swap_cap // app.replica


def model_plan(problem: Problem, mode: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a baseline does: (pool, start, steps, GPUs) of jobs that wait, and the GPUs of each app's steps."""
    board = Board(problem)
    cells = hold(board, curve_levels(problem) if mode == "fifo_elastic" else peak_levels(problem))
    for app in problem.apps:
        board.hold(app.pool, map(sum, cells[app.id]), for_ever=True)
    asks = asks_of(board)
    queue = queue_order(problem, asks, mode)
    if mode in ("easy", "easy_priority"):
        places = easy(board, asks, queue)
    else:
        places = in_order(board, asks, queue, passing=mode not in ("fifo", "fifo_elastic"))
    jobs = {
        job: (asks[job].pool, place.start, asks[job].steps, gpus_of(place.mask))
        for job, place in places.items()
    }
    return jobs, {app: [[gpus_of(one) for one in held] for held in mine] for app, mine in cells.items()}
