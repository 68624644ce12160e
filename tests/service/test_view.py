"""What the views are made of: the grid by GPU and by node, weeks of savings, the lease, the clock."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegrid.app.service import view as views
from tidegrid.app.service.running import Clock
from tidegrid.app.service.savings import by_week
from tidegrid.app.service.view import grid_of, runs
from tidegrid.pipeline.memory import Changes
from tidegrid.pipeline.rolling import Commit, StateStore
from tidegrid.pipeline.rolling.lease import Lease, guard
from tidegrid.scheduler import StalePlanError, solve
from tidegrid.scheduler.generate import random_problem


@pytest.mark.parametrize("seed", range(4))
def test_by_node_as_many_gpus_are_in_use_as_by_gpu(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "BY_NODE_ABOVE", 1)
    problem = random_problem(seed, gpus=(4, 32), jobs=(4, 14), apps=(1, 3))
    plan = solve(problem, "fast")
    grid = grid_of(problem, plan)
    by_gpu = np.zeros((len(views.KINDS), problem.steps), int)
    for task, _, _, gpus, start, steps in grid["blocks"]:
        by_gpu[grid["kinds"][task], start : start + steps] += gpus
    by_node = np.zeros_like(by_gpu)
    for _, _, gpus, stretches in grid["nodes"]:
        assert sum(steps for steps, *_ in stretches) == problem.steps
        at = 0
        for steps, *used in stretches:
            assert sum(used) <= gpus
            by_node[:, at : at + steps] += np.array(used)[:, None]
            at += steps
    assert (by_gpu == by_node).all()
    drawn = {pool.id: [[None] * problem.steps for _ in range(pool.gpus)] for pool in problem.pools}
    for task, pool, first, gpus, start, steps in grid["blocks"]:
        for gpu in range(first, first + gpus):
            row = drawn[grid["pools"][pool]["pool"]][gpu]
            assert row[start : start + steps] == [None] * steps
            row[start : start + steps] = [grid["tasks"][task]] * steps
    assert drawn == plan.grid


@given(st.sets(st.integers(0, 200)))
def test_runs_hold_each_gpu_once(gpus: set[int]) -> None:
    found = runs(gpus)
    assert [gpu for first, count in found for gpu in range(first, first + count)] == sorted(gpus)
    assert all(sum(a) < b[0] for a, b in pairwise(found))


@given(
    st.lists(st.tuples(st.integers(1, 40_000), st.integers(0, 64)), min_size=1, max_size=20),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York"]),
)
def test_weeks_add_up_to_what_was_held(steps: list[tuple[int, int]], zone: str) -> None:
    at = pd.Timestamp("2026-03-01T03:00Z")
    holds, total, length = [], 0.0, 0.0
    for minutes, gpus in steps:
        holds.append((at, gpus))
        at += pd.Timedelta(minutes=minutes)
        total += gpus * minutes / 60
        length += minutes / 60
    weeks = by_week(holds, at, zone)
    assert sum(held for _, _, held, _ in weeks) == pytest.approx(total)
    assert sum(hours for _, hours, _, _ in weeks) == pytest.approx(length)
    assert all(week.tz_convert(zone).weekday() == 0 and week.tz_convert(zone).hour == 0 for week, *_ in weeks)
    assert all(hours <= 169.001 for _, hours, _, _ in weeks)


def test_one_leads_and_the_next_takes_over_when_it_is_silent(tmp_path: Path) -> None:
    store = StateStore(tmp_path / "state.db")
    now = [0.0]
    first, second, third = (Lease(store, name, 10.0, lambda: now[0]) for name in "abc")
    assert first.hold()
    assert not second.hold()
    now[0] = 9.0
    assert first.hold()
    assert not second.hold()
    now[0] = 18.0  # 9 s after the last beat that it saw
    assert not second.hold()
    now[0] = 19.5
    assert second.hold()
    assert not first.hold()
    assert not third.hold()
    second.release()
    assert third.hold()


def test_who_lost_the_lead_commits_nothing(tmp_path: Path) -> None:
    store = StateStore(tmp_path / "state.db")
    now = [0.0]
    first, second = (Lease(store, name, 10.0, lambda: now[0]) for name in "ab")
    assert first.hold()
    store.guard = guard("a")
    nothing = Changes([], [], [], [], [], [], {}, {}, {})

    def commit(tick: int) -> Commit:
        return Commit(tick, str(tick), "s", "2026-03-02T00:00:00+00:00", "{}")

    store.write(commit(1), nothing)
    second.hold()
    now[0] = 11.0
    assert second.hold()
    with pytest.raises(StalePlanError, match="another process leads now"):
        store.write(commit(2), nothing)
    store.guard = guard("b")
    store.write(commit(2), nothing)
    with store.transaction() as db:
        assert db.exec_driver_sql("select count(*) from tidegrid_commits").scalar() == 2


def test_a_sites_own_clock_goes_on_from_where_it_begins() -> None:
    begins = pd.Timestamp("2026-03-02T08:00Z")
    clock = Clock(begins)
    assert begins <= clock.now() < begins + pd.Timedelta(seconds=5)
    assert abs(Clock().now() - pd.Timestamp.now("UTC")) < pd.Timedelta(seconds=5)
