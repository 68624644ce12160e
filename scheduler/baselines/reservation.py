"""Realtime without a planner: each app holds a level that is fixed beforehand, step by step, legally.

A level is the app's peak all day (what a first-in-first-out cluster must reserve, since it cannot free a
GPU in a valley and get it back for the next peak), or its demand curve; never less than its floor.
"""

from collections.abc import Mapping, Sequence

from tidegrid.scheduler.baselines.board import Board
from tidegrid.scheduler.baselines.places import Layout, highest, mask_of, span_mask
from tidegrid.scheduler.problem import App, Problem

Levels = Mapping[str, Sequence[int]]
"""Replicas that each app wants in each step."""


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
    now = {app.id: sorted(mask_of(one) for one in app.held_replicas) for app in problem.apps}
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
        for app in turn:
            for _ in range(min(levels[app.id][t] - len(now[app.id]), _moves(app))):
                free = board.free(app.pool, t, t + 1) & ~taken[app.pool]
                # GPUs that stay open are better than those that the app would soon have to leave
                lasting = free & ~board.shut(app.pool, t, problem.steps)
                layout = board.layout[app.pool]
                one = room(layout, lasting, app.replica) or room(layout, free, app.replica)
                if not one:
                    break
                taken[app.pool] |= one
                now[app.id].append(one)
            now[app.id].sort()
        for app in turn:
            cells[app.id].append(tuple(now[app.id]))
    return cells


def _moves(app: App) -> int:
    return 1 << 40 if app.swap_cap is None else app.swap_cap // app.replica


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
