"""Shadow mode: what a site did day by day, beside what the plans that nobody followed would have done."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from fastapi.testclient import TestClient
from service_site import Here, options_of, wait_for, write_site

from tidegrid.app.service import documents
from tidegrid.app.service.running import Service
from tidegrid.app.service.serving import application
from tidegrid.app.service.shadowing import NAMES, Attempt, Turn, days_of

DAY = pd.Timestamp("2026-03-02T00:00:00Z")


def at(hour: float) -> pd.Timestamp:
    return DAY + pd.Timedelta(hours=hour)


def test_what_lay_idle_is_counted_from_turn_to_turn_and_never_twice() -> None:
    """A job of 4 GPUs was to start at 1:00, and again at 2:00; the site started it at 2:30. Another never started."""
    turns = [
        Turn(at(1), {"a": 4}, {}),
        Turn(at(2), {"a": 4, "b": 2}, {}),
        Turn(at(3), {"b": 2}, {}),
        Turn(at(4), {}, {}),
    ]
    attempts = [Attempt("a", at(0.5), at(2.5)), Attempt("b", at(1.5), None)]
    (day,) = days_of(turns, attempts, {}, "UTC", at(5))
    assert day["day"] == "2026-03-02"
    # 4 GPUs for 1.5 h, 2 GPUs for 2 h
    assert day["idle_gpu_hours"] == 10.0
    assert (day["started"], day["wait_h"]) == (1, 2.0)
    assert (day["sooner"], day["sooner_h"]) == (1, 1.5)


def test_a_job_that_the_site_started_first_is_not_sooner_by_plan() -> None:
    turns = [Turn(at(1), {}, {}), Turn(at(2), {"again": 1}, {})]
    # "again" is another attempt of the same name: what was to start then is not this one
    attempts = [
        Attempt("x", at(0), at(1.5)),
        Attempt("again", at(0), at(1.2)),
        Attempt("old", at(0), at(0.5)),
    ]
    (day,) = days_of(turns, attempts, {}, "UTC", at(3))
    assert (day["started"], day["sooner"], day["sooner_h"]) == (2, 0, None)
    assert day["idle_gpu_hours"] == 1.0


def test_apps_are_counted_in_hours_whose_need_is_known() -> None:
    """The site holds 6 GPUs, 3 are planned; 2 are needed in the first hour, 5 in the second, the third is not known."""
    turns = [Turn(at(10.5), {}, {"chat": (6, 3)})]
    needed = {("chat", at(10)): 2.0, ("chat", at(11)): 5.0}
    (day,) = days_of(turns, [], needed, "UTC", at(13))
    assert (day["held_gpu_hours"], day["planned_gpu_hours"]) == (9.0, 4.5)
    assert (day["short_gpu_hours"], day["planned_short_gpu_hours"]) == (0.0, 2.0)


def test_days_are_those_of_the_sites_zone() -> None:
    turns = [Turn(at(22.5), {"a": 1}, {}), Turn(at(23.5), {"a": 1}, {})]
    days = days_of(turns, [Attempt("a", at(22), None)], {}, "Europe/Berlin", at(24))
    assert [(day["day"], day["idle_gpu_hours"]) for day in days] == [("2026-03-03", 0.5), ("2026-03-02", 1.0)]
    assert all(tuple(day) == NAMES for day in days)


@pytest.fixture
def shadowed(tmp_path: Path) -> Iterator[TestClient]:
    options = options_of(write_site(tmp_path / "site"), shadow=True)
    with TestClient(application(Service(options, Here)), base_url="http://127.0.0.1:8080") as client:
        wait_for(client)
        yield client


def test_the_first_view_of_a_service_that_hands_nothing_over_is_the_comparison(
    shadowed: TestClient, tmp_path: Path
) -> None:
    page = shadowed.get("/").text
    assert page.index("what the plans would have done") < page.index("What to do now")
    told = shadowed.get("/api/v1/shadow").json()
    assert len(documents.Shadow.model_validate(told).days) <= 1
    assert shadowed.get("/export/shadow.csv").text.splitlines()[0] == ",".join(NAMES)
    assert not (tmp_path / "site" / "commit.json").exists()


def test_a_service_that_hands_over_has_nothing_to_compare(tmp_path: Path) -> None:
    options = options_of(write_site(tmp_path / "site"))
    with TestClient(application(Service(options, Here)), base_url="http://127.0.0.1:8080") as client:
        wait_for(client)
        assert client.get("/api/v1/shadow").status_code == 404
        assert "would have done" not in client.get("/").text
