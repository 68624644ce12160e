"""The queues: in order with or without passing (first in first out, conservative backfill), and EASY backfill."""

import heapq
from collections.abc import Iterator, Mapping, Sequence

from tidegrid.scheduler.arrays import FAR
from tidegrid.scheduler.baselines.board import Ask, Board, Place, ends_of_running


class Order:
    """When a job may start at the earliest: jobs that it comes after must have ended."""

    def __init__(self, board: Board, asks: Mapping[str, Ask]) -> None:
        self._asks = asks
        self._ends = dict(ends_of_running(board.problem))
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
    board: Board,
    asks: Mapping[str, Ask],
    queue: Sequence[str],
    *,
    passing: bool,
    order: Order | None = None,
    since: int = 0,
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
    order
        What is known of jobs that have a place already.
    since
        The first step at which any of them may start.

    Returns
    -------
    dict
        Places by job; a job that can never start has none, and holds nobody up.
    """
    places: dict[str, Place] = {}
    order = order or Order(board, asks)
    last = dict.fromkeys(board.taken, 0)
    # First places only move later as the board fills: the last one found bounds the next search.
    found: dict[tuple[str, int, int, int], dict[int, int]] = {}
    for job in order.served(queue):
        ask = asks[job]
        ready = order.ready(job)
        if ready >= FAR:
            continue
        bounds = found.setdefault(ask.kind, {})
        bound = max((t for steps, t in bounds.items() if steps <= ask.steps), default=0)
        start = max(ready, since, 0 if passing else last[ask.pool], bound)
        place = board.earliest(ask, start)
        if place is None:
            continue
        if start == max(bound, since) and not ask.limits:
            bounds[ask.steps] = place.start
        board.put(ask, place)
        order.place(job, place)
        places[job] = place
        last[ask.pool] = place.start
    return places


def easy(board: Board, asks: Mapping[str, Ask], queue: Sequence[str]) -> dict[str, Place]:
    """Run EASY backfill from change to change.

    The first job of a pool that cannot start has a reservation, past the horizon too; no other has. What has not
    started by the horizon's end is then expected in the queue's order, each at its first place. Parameters and
    result as `in_order`.
    """
    places: dict[str, Place] = {}
    order = Order(board, asks)
    waiting = list(queue)
    steps = board.problem.steps
    t = 0
    while waiting and t < steps:
        reserved: dict[str, tuple[Ask, Place]] = {}
        # What did not fit at this step: the shortest that failed, by what decides where it fits.
        failed: dict[tuple[str, int, int, int], int] = {}
        free = {pool: board.free(pool, t, t + 1).bit_count() for pool in board.taken}
        left = []
        for job in waiting:
            ask = asks[job]
            if t + ask.steps > ask.latest_end:
                continue
            left.append(job)
            if free[ask.pool] < ask.gpus and ask.pool in reserved:
                continue
            if order.ready(job) > t:
                continue
            if ask.steps < failed.get(ask.kind, FAR) and (mask := board.at(ask, t)):
                place = Place(t, mask)
                board.put(ask, place)
                order.place(job, place)
                places[job] = place
                free[ask.pool] -= ask.gpus
                left.pop()
                continue
            if not ask.limits:
                failed[ask.kind] = min(ask.steps, failed.get(ask.kind, FAR))
            if ask.pool not in reserved and (later := board.earliest(ask, t + 1)):
                board.put(ask, later)
                reserved[ask.pool] = ask, later
        waiting = left
        for ask, later in reserved.values():
            board.lift(ask, later)
        begins = [asks[job].earliest for job in waiting if asks[job].earliest > t]
        t = min([line.after(t) for line in (*board.taken.values(), *board.use)] + begins)
    return places | in_order(board, asks, waiting, passing=True, order=order, since=steps)
