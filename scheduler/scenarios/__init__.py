"""Seven scenarios that tell the story of a published article on a GPU allocator (August 2026), as data.

They are rebuilt: the article gives no inputs, only figures. Each workload is made up, and was chosen among
random ones (``benchmarks/rebuild_scenarios.py``) because first in, first out fills it as the article states
and planning gains about what it states. They show a kind of cluster; they prove nothing about any real one.
"""

from functools import cache
from pathlib import Path

from tidegrid.errors import InputError
from tidegrid.scheduler.problem import Problem

#: Names in the order of the tables; the first five are contended.
SCENARIOS = (
    "mixed_control",
    "training_heavy",
    "realtime_heavy",
    "quantization_batch_heavy",
    "burst",
    "equal_priorities",
    "scale",
)
CONTENDED = SCENARIOS[:5]


@cache
def scenario(name: str) -> Problem:
    """Return a scenario's problem.

    Raises
    ------
    InputError
        There is no such scenario.
    """
    if name not in SCENARIOS:
        raise InputError(
            f"{name!r} is not a scenario", field="scenario", fix=f"write one of {', '.join(SCENARIOS)}"
        )
    return Problem.read(Path(__file__).parent / f"{name}.json")
