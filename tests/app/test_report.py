"""The report: what to do first, every job findable, every figure under an id of its own."""

import re
from pathlib import Path

import pandas as pd
import pytest

from tidegrid.app.pictures import grid_png
from tidegrid.app.report import Report, clock_label, write_report
from tidegrid.scheduler import Problem, explain, solve

HOSTILE = ["a b", "a-b", "$\\frac{", "<script>alert(1)</script>", "=1+1"]


@pytest.fixture
def problem() -> Problem:
    jobs = [
        {
            "id": f"job {name}",
            "priority": 5,
            "order": k,
            "shapes": [{"pool": HOSTILE[k % 2], "gpus": 1, "steps": 1}],
        }
        for k, name in enumerate(HOSTILE)
    ]
    apps = [
        {"id": name, "pool": HOSTILE[k % 2], "priority": 8, "demand": [1, 2, 2, 1], "held": [k // 2]}
        for k, name in enumerate(HOSTILE)
    ]
    pools = [{"id": name, "gpus": 8} for name in HOSTILE[:2]]
    start = "2026-10-24T23:00:00+00:00"
    return Problem.from_dict(
        {"version": 1, "start": start, "steps": 4, "decay": 0.98, "shortfall_weight": 8, "pools": pools, "jobs": jobs,
         "apps": apps}
    )  # fmt: skip


def _page(problem: Problem, path: Path) -> str:
    plan = explain(problem, solve(problem))
    traffic = {
        app: pd.DataFrame(
            {"ds": pd.date_range(problem.start, periods=4, freq="h"), 0.1: 1.0, 0.5: 2.0, 0.9: 3.0}
        )
        for app in HOSTILE
    }
    people = pd.DataFrame({"job_id": [f"job {HOSTILE[0]}"], "user": ["ann"], "name": ["<b>sweep</b>"]})
    report = Report(
        "t", problem, [("fast", plan), ("fifo", plan)], pd.DataFrame({"mode": ["fast"]}), people=people,
        etas=pd.DataFrame(columns=["job", "start"]), traffic=traffic, notes=["last"], zone="Europe/Berlin",
    )  # fmt: skip
    write_report(report, path)
    return path.read_text(encoding="utf-8")


def test_what_to_do_stands_first_and_notes_last(problem: Problem, tmp_path: Path) -> None:
    page = _page(problem, tmp_path / "r.html")
    heads = re.findall("<h2>(.*?)</h2>", page)
    assert heads[:3] == ["What to do now", "Where realtime is short", "Jobs"]
    assert heads[-1] == "What this rests on"
    assert "Start job a b on" in page and "ann" in page and 'id="find"' in page


def test_ids_are_unique_and_names_run_nothing(problem: Problem, tmp_path: Path) -> None:
    page = _page(problem, tmp_path / "r.html")
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids)) >= 2 * 2 + 2 * len(HOSTILE)
    body = page[page.index("</head>") :]
    assert "<script>alert(1)" not in body and "<b>sweep" not in body


def test_names_are_drawn_as_they_are(problem: Problem, tmp_path: Path) -> None:
    grid_png(problem, [("$\\frac{", solve(problem))], tmp_path / "g.png")
    assert (tmp_path / "g.png").stat().st_size > 0


def test_the_hour_that_a_clock_change_repeats_names_its_zone() -> None:
    hours = pd.date_range("2026-10-24T22:00Z", periods=6, freq="h").tz_convert("Europe/Berlin")
    assert [clock_label(at) for at in hours] == [
        "Sun 00:00", "Sun 01:00", "Sun 02:00 CEST", "Sun 02:00 CET", "Sun 03:00", "Sun 04:00",
    ]  # fmt: skip
    half = pd.Timestamp("2026-04-04T15:15Z").tz_convert("Australia/Lord_Howe")
    assert clock_label(half).startswith("Sun 01:45 ")
