"""Where a job lies: one rule for every baseline, on GPUs as the bits of a whole number (bit g is GPU g).

In a line: the block that leaves the least room beside it. By node: the fullest nodes that have room, so that whole
nodes stay whole. What ties goes to the lowest GPU.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache

from tidegrid.scheduler.problem import Pool, Problem, Shape


def mask_of(gpus: Sequence[int]) -> int:
    """Return GPUs as bits."""
    mask = 0
    for gpu in gpus:
        mask |= 1 << gpu
    return mask


def gpus_of(mask: int) -> list[int]:
    """Return the GPUs of bits, ascending."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found


def span_mask(first: int, last: int) -> int:
    """Return the bits of GPUs ``first`` … ``last`` − 1."""
    return (1 << last) - (1 << first)


def runs(mask: int) -> Iterator[tuple[int, int]]:
    """Yield the stretches of neighbours as (first GPU, GPUs)."""
    at = 0
    while mask:
        skip = (mask & -mask).bit_length() - 1
        mask >>= skip
        length = ((mask + 1) & -(mask + 1)).bit_length() - 1
        yield at + skip, length
        mask >>= length
        at += skip + length


class Layout:
    """A pool's GPUs and nodes, and where GPUs may lie on them."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.gpus = pool.gpus
        self.by_node = pool.by_node
        self.node = min(pool.node_size or pool.gpus, pool.gpus)
        self.every = span_mask(0, pool.gpus)
        self._whole = span_mask(0, self.node)
        self._node_firsts = mask_of(range(0, pool.gpus, self.node))
        self._legal = lru_cache(maxsize=None)(self._legal_firsts)
        self.fits = lru_cache(maxsize=None)(self._fits)  # of the empty pool: long queues ask again and again

    def __reduce__(self) -> tuple[type["Layout"], tuple[Pool]]:
        return Layout, (self.pool,)  # caches stay in their process

    def nodes_of(self, shape: Shape) -> int:
        """On how many nodes a shape lies; 1 in a line; 0 where it cannot lie evenly."""
        return shape.nodes_in(self.pool) if self.by_node else 1

    def within(self, shape: Shape) -> int:
        """Return the GPUs that a shape may use."""
        if shape.within is None:
            return self.every
        mask = 0
        for first, many in shape.within:
            mask |= span_mask(first, first + many) if first < self.gpus else 0
        return mask & self.every

    def nodes(self, free: int) -> list[tuple[int, int]]:
        """Return the first GPU of each node that has free ones, and these as bits from 0."""
        node, whole = self.node, self._whole
        return [(first, bits) for first in range(0, self.gpus, node) if (bits := free >> first & whole)]

    def find(self, free: int, gpus: int, nodes: int) -> int:
        """Return the place that a job takes among free GPUs; 0 where there is none.

        Parameters
        ----------
        free
            Free GPUs.
        gpus, nodes
            What the job takes, evenly on so many nodes; in a line ``nodes`` is not used.
        """
        if gpus > free.bit_count():
            return 0
        return self._evenly(free, gpus, nodes) if self.by_node else self._block(free, gpus)

    def _fits(self, allowed: int, gpus: int, nodes: int) -> bool:
        return bool(self.find(allowed, gpus, nodes))

    def blocks(self, free: int, gpus: int) -> int:
        """Return the first GPUs of all free legal blocks of a line."""
        return _neighbours(free, gpus) & self._legal(gpus)

    def _legal_firsts(self, gpus: int) -> int:
        return mask_of([g for g in range(self.gpus - gpus + 1) if self.pool.allows(g, gpus)])

    def _block(self, free: int, gpus: int) -> int:
        starts = self.blocks(free, gpus)
        if not starts:
            return 0
        if gpus > self.node:
            step, room = self.node, list(runs(free))
        else:
            # the fullest node that has a block, and in it the shortest run
            step = gpus
            _, low, bits = min(
                (bits.bit_count(), low, bits) for low, bits in self.nodes(free) if starts >> low & self._whole
            )
            room = [(low + first, length) for first, length in runs(bits)]
        best: tuple[int, int] | None = None
        for first, length in room:
            aligned = -(-first // step) * step
            left = first + length - aligned if gpus > self.node else length
            if left < gpus:
                continue
            at = aligned if aligned + gpus <= first + length else first
            if best is None or left < best[0]:
                best = (left, at)
        assert best is not None, "a start was found, so a run holds it"
        return span_mask(best[1], best[1] + gpus)

    def _evenly(self, free: int, gpus: int, nodes: int) -> int:
        each = gpus // nodes
        if each == self.node:  # whole nodes: all of them are equally full
            whole = _neighbours(free, each) & self._node_firsts
            return lowest(whole, nodes) * self._whole if whole.bit_count() >= nodes else 0
        roomy = sorted(
            (count, first, bits) for first, bits in self.nodes(free) if (count := bits.bit_count()) >= each
        )
        if len(roomy) < nodes:
            return 0
        mask = 0
        for _, first, bits in roomy[:nodes]:
            mask |= lowest(bits, each) << first
        return mask


def _neighbours(free: int, gpus: int) -> int:
    """Return the GPUs from which on so many neighbours are free."""
    starts, have = free, 1
    while have < gpus:
        more = min(have, gpus - have)
        starts &= starts >> more
        have += more
    return starts


def room(layout: Layout, free: int, replica: int) -> int:
    """Return free GPUs for one replica; 0 where there are none."""
    if replica > layout.node:
        whole = [first for first, bits in layout.nodes(free) if bits.bit_count() == layout.node]
        if len(whole) * layout.node < replica:
            return 0
        return sum(span_mask(first, first + layout.node) for first in whole[-(replica // layout.node) :])
    roomy = [(first, bits) for first, bits in layout.nodes(free) if bits.bit_count() >= replica]
    if not roomy:
        return 0
    first, bits = min(roomy, key=lambda one: (one[1].bit_count() if layout.by_node else 0, -one[0]))
    return highest(bits, replica) << first


def layouts(problem: Problem) -> dict[str, Layout]:
    """Return the layouts of a problem's pools by id; they are made at the first call and kept with the problem."""
    cached: dict[str, Layout] | None = problem.__dict__.get("_layouts")
    if cached is None:
        cached = problem.__dict__["_layouts"] = {pool.id: Layout(pool) for pool in problem.pools}
    return cached


def lowest(bits: int, count: int) -> int:
    """Return the lowest ``count`` of some bits."""
    rest = bits
    for _ in range(count):
        rest &= rest - 1
    return bits ^ rest


def highest(bits: int, count: int) -> int:
    """Return the highest ``count`` of some bits."""
    found = 0
    for _ in range(count):
        top = 1 << (bits.bit_length() - 1)
        found |= top
        bits ^= top
    return found
