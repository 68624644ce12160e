"""Demand to GPUs, ramps under the swap cap, and case R1."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegrid.errors import InputError
from tidegrid.estimators.realtime import Capacity, fit_capacity, gpu_curve
from tidegrid.swaps import ramp, swap_cost

NEEDS = st.lists(st.integers(0, 16), min_size=1, max_size=30)


def test_gpus_come_in_replicas_at_the_target_load():
    capacity = Capacity(100.0, gpus_per_replica=2, min_replicas=1, target_load=0.8)
    assert capacity.gpus([0, 1, 160, 160.1, 321]).tolist() == [2, 2, 2, 4, 6]


def test_no_demand_needs_no_gpu_unless_a_replica_must_stay():
    assert Capacity(10.0).gpus([0.0]).tolist() == [0]


@given(
    demand=st.lists(st.floats(0, 1e6), min_size=2, max_size=20),
    unit=st.floats(0.1, 1e4),
    more=st.floats(0, 1e5),
)
def test_more_demand_never_means_fewer_gpus(demand, unit, more):
    capacity = Capacity(unit, gpus_per_replica=3, min_replicas=1, target_load=0.7)
    assert (capacity.gpus(np.array(demand) + more) >= capacity.gpus(demand)).all()
    assert (np.diff(capacity.gpus(sorted(demand))) >= 0).all()


@given(need=NEEDS, cap=st.integers(1, 8), held=st.integers(0, 16), patience=st.integers(0, 3))
def test_the_ramp_keeps_the_cap_and_covers_what_can_be_covered(need, cap, held, patience):
    curve = ramp(need, cap, held, patience=patience)
    steps = [held, *curve]
    assert all(swap_cost(a, b) <= cap for a, b in pairwise(steps))
    assert all(c >= min(n, held + cap * (t + 1)) for t, (c, n) in enumerate(zip(curve, need, strict=True)))


@given(
    need=NEEDS,
    more=st.lists(st.integers(0, 4), min_size=30, max_size=30),
    cap=st.integers(0, 8),
    held=st.integers(0, 16),
)
def test_a_higher_forecast_never_means_fewer_gpus(need, more, cap, held):
    higher = [n + m for n, m in zip(need, more, strict=False)]
    for limit in (cap, None):
        low, high = ramp(need, limit, held, patience=1), ramp(higher, limit, held, patience=1)
        assert all(b >= a for a, b in zip(low, high, strict=True))


def test_a_ramp_that_the_cap_forbids_starts_earlier():
    assert ramp([1, 1, 1, 1, 7, 1, 1], 2, 1) == [1, 1, 3, 5, 7, 5, 3]


def test_swaps_count_gpus_that_enter_and_leave():
    assert swap_cost({1, 2, 3}, {3, 4}) == 3
    assert swap_cost(3, 5) == 2
    assert swap_cost({1, 2, 3}, 2) == 1


def test_recommendations_that_flutter_do_not_move_gpus_to_and_fro():
    """Case R1: after the one step down that stays, nothing moves until the last step, which is not yet contradicted."""
    recommended = [10, 9, 8, 9, 9, 8, 9, 8, 9, 8]
    curve = ramp(recommended, 2, 10, patience=1)
    moves = np.diff([10, *curve])
    assert all(c >= n for c, n in zip(curve, recommended, strict=True))
    assert (moves <= 0).all() and sum(
        swap_cost(a, b) for a, b in zip([10, *curve][:-1], curve, strict=True)
    ) == 2


def test_capacity_is_measured_where_traffic_and_gpus_are_known():
    rng = np.random.default_rng(0)
    traffic = rng.uniform(500, 5000, 400)
    gpus = np.ceil(traffic / 250.0)
    found = fit_capacity(traffic, gpus)
    assert 230 <= found.units_per_gpu_hour <= 250
    late = rng.random(400) < 0.3
    overloaded = np.where(late, gpus / 2, gpus)
    assert fit_capacity(traffic, overloaded, within_objective=~late).units_per_gpu_hour <= 250


def test_too_few_hours_to_measure_capacity_are_refused():
    with pytest.raises(InputError, match="only 3 hours"):
        fit_capacity([1.0, 2.0, 3.0], [1, 1, 1])


def test_tokens_a_second_become_requests_an_hour():
    assert Capacity.from_tokens(100.0, 400.0).units_per_gpu_hour == pytest.approx(900.0)


@pytest.mark.parametrize(
    "bad",
    [
        {"units_per_gpu_hour": 0},
        {"units_per_gpu_hour": 1, "target_load": 1.5},
        {"units_per_gpu_hour": 1, "gpus_per_replica": 0},
    ],
)
def test_a_bad_capacity_is_refused_by_its_field(bad):
    with pytest.raises(InputError, match=list(bad)[-1]):
        Capacity(**bad)


def test_the_gpu_curve_is_the_ramp_of_the_demands_gpus():
    demand = [100, 100, 100, 700.0, 100]
    assert gpu_curve(demand, Capacity(100.0), swap_cap=2, held=1).tolist() == [3, 5, 7, 7, 5]
