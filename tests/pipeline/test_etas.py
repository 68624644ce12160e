"""Expected times: whatever is planned and whatever is known of durations, a planned time lies in its own band."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegrid.pipeline.bands import Widths
from tidegrid.pipeline.estimates import LEVELS
from tidegrid.pipeline.etas import eta_table
from tidegrid.scheduler import solve
from tidegrid.scheduler.generate import random_problem
from tidegrid.scheduler.generate_clusters import random_cluster


@settings(deadline=None)
@given(
    seed=st.integers(0, 10_000),
    nodes=st.booleans(),
    length=st.floats(0.01, 30.0),
    spread=st.floats(0.0, 2.0),
    widths=st.tuples(st.floats(0.25, 20.0), st.floats(0.25, 20.0)),
)
def test_every_planned_start_and_end_lies_in_its_band(
    seed: int, nodes: bool, length: float, spread: float, widths: tuple[float, float]
) -> None:
    problem = random_cluster(seed) if nodes else random_problem(seed)
    plan = solve(problem, "fast", rounds=0)
    z = np.linspace(-2.0, 2.0, len(LEVELS))
    # minutes or days, whatever the plan takes a job to need
    hours = {(p.job, p.pool, p.gpus): length * np.exp(spread * z) for p in plan.placements[::2]}
    etas = eta_table(problem, plan, hours, seed, widths=Widths(*widths))
    assert len(etas) == len(plan.placements)
    for which in ("start", "end") if len(etas) else ():
        low, middle, high = (etas[f"{which}_q{level}"] for level in (0.1, 0.5, 0.9))
        assert ((low <= middle) & (middle <= high)).all()
        assert ((low <= etas[which]) & (etas[which] <= high)).all()
    for level in (0.1, 0.5, 0.9) if len(etas) else ():
        assert (etas[f"start_q{level}"] <= etas[f"end_q{level}"]).all()
