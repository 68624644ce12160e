"""Seven scenarios that tell the story of a published article on a GPU allocator (August 2026), as data.

They are rebuilt: the article gives no inputs, only figures. Each workload is made up, and was chosen among
random ones (``benchmarks/rebuild_scenarios.py``) because first in, first out fills it as the article states
and planning gains about what it states. They show a kind of cluster; they prove nothing about any real one.

The article counts GPUs occupied, by jobs that have one size; here jobs have several. So each scenario has three views.
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


#: What is paid for: work done (version 2 of the format) by jobs of any size that they allow; the sizes asked for alone,
#: where work is what is occupied, as in the article; or GPUs occupied by jobs of any size (version 1).
VIEWS = ("work", "asked", "occupation")


@cache
def scenario(name: str, view: str = "work") -> Problem:
    """Return a scenario's problem in one of the ``VIEWS``.

    Raises
    ------
    InputError
        There is no such scenario, or no such view.
    """
    for field, value, known in (("scenario", name, SCENARIOS), ("view", view, VIEWS)):
        if value not in known:
            raise InputError(
                f"{value!r} is not a {field}", field=field, fix=f"write one of {', '.join(known)}"
            )
    problem = Problem.read(Path(__file__).parent / f"{name}.json")
    if view == "occupation":
        return problem
    data = problem.to_dict() | {"version": 2}
    if view == "asked":
        for job in data["jobs"]:
            job["shapes"] = [job["shapes"][job["requested"]]]
            job["requested"] = 0
    return Problem.from_dict(data)
