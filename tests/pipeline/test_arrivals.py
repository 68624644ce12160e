"""Jobs that come later and go first: what is expected of them, and how long they hold up those that wait."""

import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from tidegrid.data import Cluster, History
from tidegrid.pipeline.arrivals import DAYS, FUTURES, LATEST_H, Arrivals, Arrived

NOW = pd.Timestamp("2026-03-29T06:00:00Z")
CLUSTER = Cluster.from_dict(
    {"pools": [{"id": "p", "gpus": 8, "gpu_type": "x"}, {"id": "q", "gpus": 24, "gpu_type": "y"}]}
)


def steady(gpu_hours: float) -> Arrivals:
    """So many GPU-hours arrive each hour, at priorities 1 to 4 alike."""
    hours = np.arange(1, 24 * DAYS + 1.0)
    return Arrivals({"p": np.tile(gpu_hours * hours, (FUTURES, 1))}, np.array([1.0, 2.0, 3.0, 4.0]))


def test_a_job_waits_as_a_queue_with_priorities_makes_it_wait() -> None:
    """With 4 GPU-hours an hour on 8 GPUs, a share s of them ahead stretches a wait by 1 / (1 - s / 2)."""
    waits = np.full(FUTURES, 6.0)
    for priority, share in ((5.0, 0.0), (4.0, 0.125), (2.0, 0.625), (0.5, 1.0)):
        found = steady(4.0).held_up(waits, "p", 8.0, steady(4.0).ahead(priority))
        assert np.allclose(found, 6.0 / (1 - share / 2))
    assert (steady(4.0).held_up(waits, "q", 8.0, 1.0) == waits).all()
    assert Arrivals().ahead(0.5) == 0.0
    assert (Arrivals().held_up(waits, "p", 8.0, 1.0) == waits).all()
    # more arrives than the pool can do: it never comes to the last
    assert (steady(9.0).held_up(waits, "p", 8.0, 1.0) == LATEST_H).all()
    # many at once are held up as each alone
    many = np.stack([waits, waits * 2])
    assert (steady(4.0).held_up(many, "p", 8.0, 0.5)[1] == steady(4.0).held_up(many[1], "p", 8.0, 0.5)).all()


@given(st.floats(0, 12), st.lists(st.floats(0, 200), min_size=FUTURES, max_size=FUTURES), st.floats(0, 5))
def test_nobody_starts_earlier_for_those_who_come_and_a_higher_priority_is_held_up_less(
    rate: float, starts: list[float], priority: float
) -> None:
    arrivals, plain = steady(rate), np.array(starts)
    found = arrivals.held_up(plain, "p", 8.0, arrivals.ahead(priority))
    assert np.isfinite(found).all() and (found >= plain).all()
    assert (arrivals.held_up(plain, "p", 8.0, arrivals.ahead(priority + 1)) <= found + 1e-9).all()


def test_each_future_is_made_of_past_days_at_the_same_time_of_day() -> None:
    """A job of 6 GPU-hours at 08:30 of each of the last ten days; the last two are not settled yet."""
    days = pd.date_range(NOW.floor("D") - pd.Timedelta(days=10), periods=10, freq="D") + pd.Timedelta(
        hours=8.5
    )
    jobs = pd.DataFrame(
        {"job_id": [f"j{k}" for k in range(10)], "kind": "training", "status": "completed", "submit_time": days,
         "start_time": days, "duration_s": 3 * 3600.0, "gpus": 2, "gpu_type": ["x", ""] * 5}
    )  # fmt: skip
    arrived = Arrived()
    assert arrived.again(NOW, CLUSTER) == {}
    arrived.see(History(jobs))
    found = arrived.again(NOW, CLUSTER)
    first = np.diff(found["p"], axis=1, prepend=0.0) + np.diff(found["q"], axis=1, prepend=0.0)
    # it is 06:00: the job comes in the third hour of each day
    assert set(np.flatnonzero(first.any(axis=0)) % 24) == {2}
    assert (np.round(first[:, 2], 6) <= 6.0).all()
    # work of unknown type falls on the pools by their size
    assert set(np.round(found["p"][:, 2], 6)) == {6.0, 1.5} and set(np.round(found["q"][:, 2], 6)) == {
        0.0,
        4.5,
    }
