"""The seven scenarios: what the article states of them holds, under FIFO and when planned."""

import pytest

from tidegrid.errors import InputError
from tidegrid.scheduler import Plan, is_legal, solve
from tidegrid.scheduler.scenarios import CONTENDED, SCENARIOS, VIEWS, scenario

FIFO = {"mixed_control": 0.516, "training_heavy": 0.536, "equal_priorities": 0.768, "scale": 0.449}


def planned(name: str, view: str = "work") -> tuple[Plan, Plan]:
    return solve(scenario(name, view), "fifo"), solve(scenario(name, view), "fast")


def gain(name: str, view: str = "work") -> float:
    fifo, fast = planned(name, view)
    return fast.metrics["value"] / fifo.metrics["value"] - 1


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_is_labelled_as_rebuilt(name: str) -> None:
    assert "rebuilt" in scenario(name).to_dict()["source"]


@pytest.mark.parametrize(("name", "stated"), FIFO.items())
def test_fifo_fills_a_scenario_as_stated(name: str, stated: float) -> None:
    """Within one point of the article's utilization."""
    assert solve(scenario(name), "fifo").metrics["utilization"] == pytest.approx(stated, abs=0.01)


def test_the_contended_five_span_the_stated_range() -> None:
    figures = [solve(scenario(name), "fifo").metrics["utilization"] for name in CONTENDED]
    assert min(figures) == pytest.approx(0.52, abs=0.01)
    assert max(figures) == pytest.approx(0.85, abs=0.01)


def test_scale_places_27_of_30_jobs_on_64_gpus() -> None:
    problem = scenario("scale")
    assert sum(pool.gpus for pool in problem.pools) == 64
    fifo, fast = planned("scale")
    assert (fifo.metrics["placed"], fifo.metrics["jobs"]) == (27, 30)
    assert fast.metrics["utilization"] >= fifo.metrics["utilization"]
    assert gain("scale") >= 0.159


def test_training_heavy_doubles_its_value() -> None:
    assert sum(pool.gpus for pool in scenario("training_heavy").pools) == 8
    assert planned("training_heavy")[1].metrics["utilization"] >= 0.87
    assert gain("training_heavy") >= 1.05


def test_planning_is_worth_something_with_equal_priorities() -> None:
    assert len({job.priority for job in scenario("equal_priorities").jobs}) == 1
    assert planned("equal_priorities")[1].metrics["utilization"] >= 0.875
    assert gain("equal_priorities") >= 0.231


@pytest.mark.parametrize("view", VIEWS)
def test_every_contended_scenario_gains_on_both_figures(view: str) -> None:
    gains = [gain(name, view) for name in CONTENDED]
    for name in CONTENDED:
        fifo, fast = planned(name, view)
        assert fast.metrics["utilization"] > fifo.metrics["utilization"]
        assert is_legal(scenario(name, view), fast)
    assert min(gains) >= 0.246
    assert sum(gains) / len(gains) >= 0.52


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_views_differ_in_what_is_paid_for(name: str) -> None:
    """FIFO, at the sizes asked for, fills the same GPUs in each; with one size work and occupation are the same."""
    plans = {view: solve(scenario(name, view), "fifo") for view in VIEWS}
    assert len({str(plan.placements) for plan in plans.values()}) == 1
    asked, occupation = plans["asked"].metrics, plans["occupation"].metrics
    assert asked["value"] == pytest.approx(occupation["value"])
    assert asked["work"] == sum(
        p.gpus * min(p.steps, scenario(name).steps - p.start) for p in plans["asked"].placements
    )
    assert plans["work"].metrics["value"] <= asked["value"] + 1e-9


def test_an_unknown_view_names_the_known_ones() -> None:
    with pytest.raises(InputError, match="'x' is not a view; write one of work, asked, occupation"):
        scenario("scale", "x")


def test_an_unknown_scenario_names_the_known_ones() -> None:
    with pytest.raises(InputError, match="'x' is not a scenario; write one of mixed_control"):
        scenario("x")
