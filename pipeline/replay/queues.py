"""What clusters run today, as event simulations: FIFO, conservative backfill, EASY, by arrival, priority or length.

Events are arrivals and ends. Realtime keeps its peak reserved at the pool's far end; jobs get the GPUs that they ask
for, as the pool's placement has it: by node, or in a line blocks (contiguous, a power of two, inside a node or starting
at one), the tightest that fits.
"""

import heapq
from bisect import bisect_right, insort

import numpy as np

from tidegrid.data import Pool
from tidegrid.data.cluster import laid

STRICT, EASY, CONSERVATIVE = 0, 1, 2
DEPTH = 200
"""Waiting jobs that conservative backfill holds reservations for; Slurm's default for ``bf_max_job_test`` is 500."""


class Board:
    """GPUs in nodes, and where a job fits.

    Parameters
    ----------
    pool
        Its nodes and how it places jobs.
    gpus
        GPUs that jobs may use, from GPU 0; those of the pool where None.
    """

    def __init__(self, pool: Pool, gpus: int | None = None) -> None:
        self.pool, self.gpus = pool, pool.gpus if gpus is None else gpus
        self.node = pool.node_size or pool.gpus
        nodes = -(-self.gpus // self.node)
        # what lies past the last GPU is never free
        self.cells = np.ones(nodes * self.node, np.bool_)
        self.cells[: self.gpus] = False
        self.free = self.node - self.cells.reshape(nodes, self.node).sum(axis=1)
        self.idle = self.gpus
        self._by_node = pool.placement == "node"
        self._layouts: dict[int, tuple[int, int]] = {}

    def nodes_of(self, size: int) -> int:
        """Return on how many nodes a job of so many GPUs lies, where placement is by node."""
        if size not in self._layouts:
            self._layouts[size] = laid(self.pool, size)
        return self._layouts[size][1]

    def set(self, gpus: np.ndarray, busy: bool) -> None:
        """Take or give back GPUs."""
        self.cells[gpus] = busy
        self.idle += -len(gpus) if busy else len(gpus)
        np.add.at(self.free, gpus // self.node, -1 if busy else 1)

    def find(self, size: int, kept: np.ndarray | None = None) -> np.ndarray | None:
        """Return the GPUs that a job gets without any of ``kept``; None where it does not fit.

        By node it gets the lowest free GPUs of the nodes with the fewest free ones that hold it. In a line, blocks of
        at most a node are aligned to their size in the node with the fewest free GPUs, and wider ones start at a node.
        Either way whole nodes stay free for wide jobs.
        """
        if size > self.idle:
            return None
        if kept is None:
            return self._find(size)
        had, counts = self.cells[kept].copy(), self.free.copy()
        self.cells[kept] = True
        self.free = self.node - self.cells.reshape(-1, self.node).sum(axis=1)
        found = self._find(size)
        self.cells[kept], self.free = had, counts
        return found

    def _find(self, size: int) -> np.ndarray | None:
        if self._by_node:
            nodes = self.nodes_of(size)
            each = size // nodes
            able = np.flatnonzero(self.free >= each)
            if len(able) < nodes:
                return None
            chosen = np.sort(able[np.argsort(self.free[able], kind="stable")[:nodes]])
            rows = self.cells.reshape(-1, self.node)[chosen]
            # a stable sort puts each node's free GPUs first, the lowest before the others
            lowest = np.sort(np.argsort(rows, axis=1, kind="stable")[:, :each], axis=1)
            gpus: np.ndarray = (chosen[:, None] * self.node + lowest).ravel()
            return gpus
        first = self._block(size)
        return None if first < 0 else np.arange(first, first + size)

    def _block(self, size: int) -> int:
        if size > self.node:
            run = 0
            whole = self.free == self.node
            for k in range(self.gpus // self.node):
                run = run + 1 if whole[k] else 0
                if run * self.node >= size:
                    return (k + 1 - run) * self.node
            return -1
        candidates = np.flatnonzero(self.free >= size)
        for k in candidates[np.argsort(self.free[candidates], kind="stable")].tolist():
            row = self.cells[k * self.node : (k + 1) * self.node]
            if size == 1:
                return k * self.node + int(row.argmin())
            for first in range(0, self.node - size + 1, size):
                if not row[first : first + size].any():
                    return k * self.node + first
        return -1

    def soonest(self, size: int, free_at: np.ndarray) -> tuple[float, np.ndarray]:
        """Return when and where a job is expected to fit first.

        Parameters
        ----------
        size
            Its GPUs.
        free_at : ndarray of shape (gpus,)
            When each GPU is expected to be free.
        """
        by_node = free_at.reshape(-1, self.node)
        if self._by_node:
            nodes = self.nodes_of(size)
            each = size // nodes
            order = np.argsort(by_node, axis=1, kind="stable")[:, :each]
            ready = np.take_along_axis(by_node, order[:, -1:], axis=1)[:, 0]
            chosen = np.sort(np.argsort(ready, kind="stable")[:nodes])
            gpus = (chosen[:, None] * self.node + order[chosen]).ravel()
            return float(ready[chosen].max()), gpus
        if size <= self.node:
            per_node = self.node // size
            ready = by_node[:, : per_node * size].reshape(-1, size).max(axis=1)
            best = int(ready.argmin())
            first = best // per_node * self.node + best % per_node * size
        else:
            wide = -(-size // self.node)
            ready = np.lib.stride_tricks.sliding_window_view(by_node.max(axis=1), wide).max(axis=1)
            best = int(ready.argmin())
            first = best * self.node
        return float(ready[best]), np.arange(first, first + size)


def simulate(
    submit: np.ndarray,
    duration: np.ndarray,
    estimate: np.ndarray,
    size: np.ndarray,
    key: np.ndarray,
    board: Board,
    mode: int,
    end: float,
) -> tuple[np.ndarray, dict[int, tuple[int, ...]]]:
    """Play a trace against a queue.

    Parameters
    ----------
    submit, duration, estimate : ndarray of shape (jobs,)
        Seconds; submit times sorted. ``estimate`` is all that the queue sees of a duration.
    size
        GPUs that each job holds.
    key
        The queue's order, the smallest first.
    board
        The GPUs, all of them free.
    mode
        ``STRICT``: nobody passes the head. ``EASY``: the head has a reservation, others may pass where they do not
        delay it. ``CONSERVATIVE``: the first ``DEPTH`` have reservations by GPU counts.
    end
        Where the replay ends; infinity plays until all has run.

    Returns
    -------
    start : ndarray of shape (jobs,)
        Seconds; infinity for a job that did not start.
    ids
        Which GPUs each job had that started.
    """
    play = _Play(submit, duration, estimate, size, key, board)
    pick = {STRICT: play.strict, EASY: play.easy, CONSERVATIVE: play.conservative}[mode]
    while play.step(end):
        if play.queue and play.board.idle:
            pick()
    return play.start, {j: tuple(gpus.tolist()) for j, gpus in play.ids.items()}


class _Play:
    """The events of one replay, and what each mode starts at one."""

    def __init__(
        self,
        submit: np.ndarray,
        duration: np.ndarray,
        estimate: np.ndarray,
        size: np.ndarray,
        key: np.ndarray,
        board: Board,
    ) -> None:
        self.submit, self.duration, self.estimate = submit.tolist(), duration.tolist(), estimate.tolist()
        self.size, self.board = size.astype(int).tolist(), board
        # ties of a key go to who came first
        rank = np.empty(len(key), np.int64)
        rank[np.lexsort((np.arange(len(key)), key))] = np.arange(len(key))
        self.rank, self.of_rank = rank.tolist(), np.argsort(rank).tolist()
        self.start = np.full(len(self.submit), np.inf)
        self.ids: dict[int, np.ndarray] = {}
        self.possible = {one for one in set(self.size) if board.find(one) is not None}
        self.queue: list[int] = []  # ranks, sorted
        self.running: list[tuple[float, int]] = []  # a heap of (end, job)
        self.arrived, self.now = 0, 0.0

    def step(self, end: float) -> bool:
        """Go to the next event; False where the replay is over."""
        arrival = self.submit[self.arrived] if self.arrived < len(self.submit) else np.inf
        now = min(arrival, self.running[0][0] if self.running else np.inf)
        if not now < end:
            return False
        self.now = now
        while self.running and self.running[0][0] <= now:
            _, j = heapq.heappop(self.running)
            self.board.set(self.ids[j], False)
        while self.arrived < len(self.submit) and self.submit[self.arrived] <= now:
            if self.size[self.arrived] in self.possible:
                insort(self.queue, self.rank[self.arrived])
            self.arrived += 1
        return True

    def place(self, j: int, gpus: np.ndarray) -> None:
        """Start a job."""
        self.start[j], self.ids[j] = self.now, gpus
        self.board.set(gpus, True)
        heapq.heappush(self.running, (self.now + self.duration[j], j))

    def strict(self) -> None:
        """Start jobs in order until one does not fit."""
        count = 0
        for rank in self.queue:
            j = self.of_rank[rank]
            gpus = self.board.find(self.size[j])
            if gpus is None:
                break
            self.place(j, gpus)
            count += 1
        del self.queue[:count]

    def easy(self) -> None:
        """Start jobs in order; behind one that does not fit, those that do not delay its reservation."""
        self.strict()
        if not self.queue or not self.board.idle:
            return
        head = self.of_rank[self.queue[0]]
        shadow, kept = self._shadow(self.size[head])
        nowhere = {self.size[head]}
        beside_nowhere: set[int] = set()  # sizes that fit nowhere outside the reservation
        started = []
        for rank in self.queue[1:]:
            j = self.of_rank[rank]
            size = self.size[j]
            if size in nowhere:
                continue
            if self.now + self.estimate[j] <= shadow:
                gpus = self.board.find(size)
                if gpus is None:
                    nowhere.add(size)
            elif size in beside_nowhere:
                continue
            else:
                gpus = self.board.find(size, kept)
                if gpus is None:
                    beside_nowhere.add(size)
            if gpus is not None:
                self.place(j, gpus)
                started.append(rank)
                if not self.board.idle:
                    break
        if started:
            gone = set(started)
            self.queue = [rank for rank in self.queue if rank not in gone]

    def conservative(self) -> None:
        """Start jobs whose reservation, behind those of all before them, is now."""
        times, counts = self._profile()
        started = []
        smallest = min(self.size[self.of_rank[rank]] for rank in self.queue[:DEPTH])
        for rank in self.queue[:DEPTH]:
            if counts[0] < smallest:
                break  # nobody behind can start now, and reservations are made anew at each event
            j = self.of_rank[rank]
            at = _earliest(times, counts, self.size[j], self.estimate[j])
            if at <= self.now:
                gpus = self.board.find(self.size[j])
                if gpus is not None:
                    self.place(j, gpus)
                    started.append(rank)
            _reserve(times, counts, at, self.estimate[j], self.size[j])
        if started:
            gone = set(started)
            self.queue = [rank for rank in self.queue if rank not in gone]

    def _expected_end(self, j: int) -> float:
        """Return when a job is expected to end; one that has overrun is given half of its age again."""
        start = float(self.start[j])
        end = start + self.estimate[j]
        return end if end > self.now else self.now + 60.0 + 0.5 * (self.now - start)

    def _shadow(self, size: int) -> tuple[float, np.ndarray]:
        """Return when and where a job of ``size`` is expected to fit first, by its GPUs' expected ends."""
        free_at = np.where(self.board.cells, np.inf, self.now)
        for _, j in self.running:
            free_at[self.ids[j]] = self._expected_end(j)
        return self.board.soonest(size, free_at)

    def _profile(self) -> tuple[list[float], list[int]]:
        """Return the free GPUs over time as steps: times, and counts from each time on."""
        times, counts = [self.now], [self.board.idle]
        for end, j in sorted((self._expected_end(j), j) for _, j in self.running):
            if end == times[-1]:
                counts[-1] += self.size[j]
            else:
                times.append(end)
                counts.append(counts[-1] + self.size[j])
        return times, counts


def _earliest(times: list[float], counts: list[int], size: int, estimate: float) -> float:
    begin = 0
    while begin < len(times):
        until = times[begin] + estimate
        k = begin
        while k < len(times) and times[k] < until and counts[k] >= size:
            k += 1
        if k == len(times) or times[k] >= until:
            return times[begin]
        begin = k + 1
    return times[-1]


def _split(times: list[float], counts: list[int], at: float) -> int:
    k = bisect_right(times, at)
    if k > 0 and times[k - 1] == at:
        return k - 1
    times.insert(k, at)
    counts.insert(k, counts[k - 1])
    return k


def _reserve(times: list[float], counts: list[int], at: float, estimate: float, size: int) -> None:
    first = _split(times, counts, at)
    for k in range(first, _split(times, counts, at + estimate)):
        counts[k] -= size
