"""What clusters run today, as event simulations: FIFO, conservative backfill, EASY, by arrival, priority or length.

Events are arrivals and ends. Realtime keeps its peak reserved at the pool's far end; jobs get blocks of the contract
(contiguous, a power of two, inside a node or starting at one), the tightest that fits.
"""

import heapq
from bisect import bisect_right, insort

import numpy as np

STRICT, EASY, CONSERVATIVE = 0, 1, 2
DEPTH = 200
"""Waiting jobs that conservative backfill holds reservations for; Slurm's default for ``bf_max_job_test`` is 500."""


class Board:
    """GPUs in nodes, and where a block fits.

    Parameters
    ----------
    gpus, node
        GPUs in all, and of a node.
    """

    def __init__(self, gpus: int, node: int) -> None:
        self.gpus, self.node = gpus, node
        nodes = -(-gpus // node)
        # what lies past the last GPU is never free
        self.cells = np.ones(nodes * node, np.bool_)
        self.cells[:gpus] = False
        self.free = node - self.cells.reshape(nodes, node).sum(axis=1)
        self.idle = gpus

    def set(self, first: int, size: int, busy: bool) -> None:
        """Take or give back a block."""
        self.cells[first : first + size] = busy
        self.idle += -size if busy else size
        for k in range(first // self.node, (first + size - 1) // self.node + 1):
            low, high = max(first, k * self.node), min(first + size, (k + 1) * self.node)
            self.free[k] += (low - high) if busy else (high - low)

    def find(self, size: int, low: int = 0, high: int = 0) -> int:
        """Return the first GPU of the tightest free block that touches none of ``low`` … ``high`` − 1, or -1.

        Blocks of at most a node are aligned to their size in the node with the fewest free GPUs, so that whole nodes
        stay free for wide jobs; wider ones start at a node.
        """
        if size > self.idle:
            return -1
        if low < high:
            kept = self.cells[low:high].copy()
            nodes = slice(low // self.node, (high - 1) // self.node + 1)
            counts = self.free[nodes].copy()
            self.cells[low:high] = True
            self.free[nodes] = self.node - self.cells.reshape(-1, self.node)[nodes].sum(axis=1)
            first = self._find(size)
            self.cells[low:high], self.free[nodes] = kept, counts
            return first
        return self._find(size)

    def _find(self, size: int) -> int:
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


def simulate(
    submit: np.ndarray,
    duration: np.ndarray,
    estimate: np.ndarray,
    size: np.ndarray,
    key: np.ndarray,
    capacity: int,
    node: int,
    mode: int,
    end: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Play a trace against a queue.

    Parameters
    ----------
    submit, duration, estimate : ndarray of shape (jobs,)
        Seconds; submit times sorted. ``estimate`` is all that the queue sees of a duration.
    size
        Block sizes.
    key
        The queue's order, the smallest first.
    capacity
        GPUs that jobs may use, from GPU 0.
    node
        GPUs of a node.
    mode
        ``STRICT``: nobody passes the head. ``EASY``: the head has a reservation, others may pass where they do not
        delay it. ``CONSERVATIVE``: the first ``DEPTH`` have reservations by GPU counts.
    end
        Where the replay ends; infinity plays until all has run.

    Returns
    -------
    start : ndarray of shape (jobs,)
        Seconds; infinity for a job that did not start.
    first_gpu : ndarray of shape (jobs,)
        The first GPU of its block; -1 for a job that did not start.
    """
    play = _Play(submit, duration, estimate, size, key, Board(capacity, node))
    pick = {STRICT: play.strict, EASY: play.easy, CONSERVATIVE: play.conservative}[mode]
    while play.step(end):
        if play.queue and play.board.idle:
            pick()
    return play.start, play.first


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
        self.first = np.full(len(self.submit), -1, np.int64)
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
            self.board.set(int(self.first[j]), self.size[j], False)
        while self.arrived < len(self.submit) and self.submit[self.arrived] <= now:
            if self.size[self.arrived] <= self.board.gpus:
                insort(self.queue, self.rank[self.arrived])
            self.arrived += 1
        return True

    def place(self, j: int, first: int) -> None:
        """Start a job."""
        self.start[j], self.first[j] = self.now, first
        self.board.set(first, self.size[j], True)
        heapq.heappush(self.running, (self.now + self.duration[j], j))

    def strict(self) -> None:
        """Start jobs in order until one does not fit."""
        count = 0
        for rank in self.queue:
            j = self.of_rank[rank]
            first = self.board.find(self.size[j])
            if first < 0:
                break
            self.place(j, first)
            count += 1
        del self.queue[:count]

    def easy(self) -> None:
        """Start jobs in order; behind one that does not fit, those that do not delay its reservation."""
        self.strict()
        if not self.queue or not self.board.idle:
            return
        head = self.of_rank[self.queue[0]]
        shadow, low = self._shadow(self.size[head])
        high = low + self.size[head]
        stuck = self.size[head]
        beside_stuck: set[int] = set()  # sizes that fit nowhere outside the reservation
        started = []
        for rank in self.queue[1:]:
            j = self.of_rank[rank]
            size = self.size[j]
            if size >= stuck:
                continue
            if self.now + self.estimate[j] <= shadow:
                first = self.board.find(size)
                if first < 0:
                    stuck = size
            elif size in beside_stuck:
                continue
            else:
                first = self.board.find(size, low, high)
                if first < 0:
                    beside_stuck.add(size)
            if first >= 0:
                self.place(j, first)
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
                first = self.board.find(self.size[j])
                if first >= 0:
                    self.place(j, first)
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

    def _shadow(self, size: int) -> tuple[float, int]:
        """Return when and where a block of ``size`` is expected to be free first, by its GPUs' expected ends."""
        board = self.board
        free_at = np.where(board.cells, np.inf, self.now)
        for _, j in self.running:
            free_at[self.first[j] : self.first[j] + self.size[j]] = self._expected_end(j)
        if size <= board.node:
            per_node = board.node // size
            by_node = free_at.reshape(-1, board.node)[:, : per_node * size]
            ready = by_node.reshape(-1, size).max(axis=1)
            best = int(ready.argmin())
            return float(ready[best]), best // per_node * board.node + best % per_node * size
        nodes = free_at.reshape(-1, board.node).max(axis=1)
        wide = -(-size // board.node)
        ready = np.lib.stride_tricks.sliding_window_view(nodes, wide).max(axis=1)
        best = int(ready.argmin())
        return float(ready[best]), best * board.node

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
