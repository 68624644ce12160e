"""The page in a real browser: every view is opened and used, and tells what the API tells."""

import csv
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from service_site import HOSTILE
from web_page import PICTURES, Watched

from tidegrid.app.service.pages import VIEWS

ASKED = "/what-if?gpus=2&priority=10"
PATHS = [*(address for address, _ in VIEWS), "/jobs/r1", ASKED, "/login"]


@pytest.mark.parametrize(
    ("width", "scheme"), [(1300, "light"), (390, "dark"), (390, "light"), (1300, "dark")]
)
@pytest.mark.parametrize("path", PATHS)
def test_a_view_opens_without_an_error_and_fits(
    browser: Any, served: str, path: str, width: int, scheme: str
) -> None:
    watched = Watched(browser, served, width, scheme)
    page = watched.open(path)
    if path == "/plan":
        page.wait_for_selector("#grid[data-drawn]")
    page.wait_for_timeout(200)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    found = Axe().run(page).response["violations"]
    serious = [one for one in found if one["impact"] in ("serious", "critical")]
    told = [(one["id"], one["help"], [node["html"][:160] for node in one["nodes"][:3]]) for one in serious]
    assert told == []
    PICTURES.mkdir(parents=True, exist_ok=True)
    name = path.strip("/").split("?")[0].replace("/", "-") or "now"
    page.screenshot(path=PICTURES / f"{name}-{width}-{scheme}.png", full_page=True)
    watched.context.close()
    assert watched.wrong == []


def api(served: str, path: str) -> Any:
    return httpx.get(f"{served}api/v1{path}").json()


def test_now_tells_what_the_api_tells(watched: Watched, served: str) -> None:
    page, state = watched.open("/"), api(served, "/state")
    cards = page.locator(".cards dd").all_inner_texts()
    used = state["gpus"] - sum(node["free"] for node in state["nodes"])
    starting = api(served, "/jobs?state=starting")["total"]
    assert cards[0].split()[0] == str(used)
    assert cards[1].split()[0] == str(starting)
    assert cards[2] == str(state["running"])
    drawn = page.locator("table.nodes td").all_inner_texts()
    told = [
        task["task"].replace("‮", "\\u202e") or "free" for node in state["nodes"] for task in node["tasks"]
    ]
    assert drawn == told
    page.get_by_role("link", name="r1").first.click()
    page.wait_for_url("**/jobs/r1")


def test_the_plan_draws_each_block_zooms_and_is_told_by_pointer_and_key(
    watched: Watched, served: str
) -> None:
    page, plan = watched.open("/plan"), api(served, "/plan")
    page.wait_for_selector("#grid[data-drawn]")
    assert int(page.get_attribute("#grid", "data-drawn")) == len(plan["blocks"])
    page.hover("#grid", position={"x": 70, "y": 8})
    said = page.inner_text("#hover")
    task, *_ = next(b for b in plan["blocks"] if b[1] == 0 and b[2] == 0 and b[4] == 0)
    assert plan["tasks"][task] in said
    page.get_by_role("button", name="Zoom in").click()
    page.focus("#grid")
    for key in ("+", "ArrowRight", "ArrowDown", "-", "0"):
        page.keyboard.press(key)
    before = page.evaluate("document.querySelector('#grid').toDataURL().length")
    assert before > 1000


def test_jobs_are_searched_and_a_job_with_a_hostile_id_opens(watched: Watched, served: str) -> None:
    page = watched.open("/jobs")
    assert page.locator("table.jobs tbody tr").count() == api(served, "/jobs")["total"]
    page.get_by_label("Find").fill("alert(1)")
    page.get_by_role("button", name="Search").click()
    page.wait_for_url("**q=alert*")
    assert page.locator("table.jobs tbody tr").count() == api(served, "/jobs?q=alert(1)")["total"]
    watched.open("/jobs")
    for job in api(served, "/jobs")["jobs"]:
        if job["job"] not in HOSTILE[2:7]:
            continue
        watched.open("/jobs")
        page.get_by_role("link", name=job["job"], exact=True).click()
        page.wait_for_selector("h1")
        assert job["job"] in page.inner_text("h1")


def test_a_what_if_is_filled_in_and_answers_as_the_api_does(watched: Watched, served: str) -> None:
    page = watched.open("/what-if")
    page.get_by_label("GPUs").fill("2")
    page.get_by_label("Priority").fill("10")
    page.get_by_role("button", name="Ask").click()
    page.wait_for_selector("#answer")
    question = {"job": {"gpus": 2, "priority": 10, "kind": "training"}}
    told = httpx.post(f"{served}api/v1/what-if", json=question).json()
    rows = page.locator("table.stack").first.locator("tbody tr").all_inner_texts()
    assert f"{100 * told['after']['utilization']:.1f} %" in rows[0]
    assert f"({told['moved_in_all']})" in page.inner_text("main")
    with page.expect_download() as saved:
        page.get_by_role("button", name="CSV").click()
    assert Path(saved.value.path()).read_text().startswith('"Figure"')


def test_tables_and_pictures_are_saved(watched: Watched) -> None:
    page = watched.open("/jobs")
    with page.expect_download() as saved:
        page.get_by_role("link", name="CSV").click()
    rows = list(csv.reader(Path(saved.value.path()).read_text(encoding="utf-8").splitlines()))
    assert rows[0][0] == "job"
    watched.open("/plan")
    page.wait_for_selector("#grid[data-drawn]")
    for button in (page.locator("button[data-png]"), page.locator("button[data-svg]").first):
        with page.expect_download() as saved:
            button.click()
        assert Path(saved.value.path()).read_bytes()[:4] == b"\x89PNG"


def test_a_new_plan_is_shown_by_itself(watched: Watched, served: str) -> None:
    page = watched.open("/")
    page.wait_for_timeout(1100)  # an instant is committed once
    before = int(page.get_attribute("body", "data-tick"))
    assert httpx.post(f"{served}api/v1/ticks").status_code == 202
    page.wait_for_selector(f'body[data-tick="{before + 1}"]', timeout=30_000)
    assert f"Plan {before + 1}," in page.inner_text("#status")


def test_the_page_is_whole_without_script(browser: Any, served: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    for path, word in (
        ("/", "GPUs by node"),
        ("/jobs", "Search"),
        (ASKED, "would start"),
        ("/plan", "as a table"),
    ):
        page.goto(served.rstrip("/") + path)
        assert word in page.inner_text("main")
    context.close()


def test_every_view_is_reached_with_the_keyboard(watched: Watched) -> None:
    page = watched.open("/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    # a reload would keep the place that was skipped to
    page = watched.open("/")
    seen = []
    for _ in range(10):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.textContent"))
    assert [name for _, name in VIEWS] == [text for text in seen if text in {name for _, name in VIEWS}]
    assert json.dumps(seen)
