"""What a swap costs, and the GPU curve that a swap cap allows: one definition for forecaster and allocator.

A swap is a GPU that enters or leaves an app's set between two steps (rule 4 of the planning contract). Both the
forecaster, which must start a ramp early enough, and the allocator, which must not break the cap, count it here.
"""

from collections.abc import Collection, Sequence


def swap_cost(before: Collection[int] | int, after: Collection[int] | int) -> int:
    """Return the swaps between two steps: GPUs that enter plus GPUs that leave.

    Parameters
    ----------
    before, after
        The GPUs that the app holds in each step: their numbers, or only how many there are. From counts the result
        is the least possible cost, which is attained by keeping every GPU that can be kept.
    """
    if isinstance(before, int) or isinstance(after, int):
        first = before if isinstance(before, int) else len(set(before))
        second = after if isinstance(after, int) else len(set(after))
        return abs(second - first)
    return len(set(before) ^ set(after))


def ramp(need: Sequence[int], swap_cap: int | None, held: int, *, patience: int = 0) -> list[int]:
    """Return the GPU curve nearest to ``need`` that the cap allows: ramps start early enough to be ready in time.

    The curve is the smallest that covers every need that can still be covered: c(t) is at least
    max over s >= t of need(s) - swap_cap * (s - t), within one cap of c(t - 1), where c(-1) is ``held``. A larger
    need never gives a smaller curve, at any step.

    Parameters
    ----------
    need
        GPUs wanted at each step.
    swap_cap
        GPUs that may enter or leave between two steps; None for no cap.
    held
        GPUs held just before step 0.
    patience
        A GPU that is wanted again within this many steps is kept, so that the curve does not go down and up again.
    """
    steps = len(need)
    wanted = [int(max(need[t : t + patience + 1])) for t in range(steps)]
    if swap_cap is None:
        return wanted
    for t in range(steps - 2, -1, -1):
        wanted[t] = max(wanted[t], wanted[t + 1] - swap_cap)
    curve = []
    now = int(held)
    for want in wanted:
        now = min(max(want, now - swap_cap), now + swap_cap)
        curve.append(now)
    return curve
