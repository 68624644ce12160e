"""The page: every view opens, whatever stands in free fields is text, and exports run nothing."""

import csv
import io
import re
from html.parser import HTMLParser

import pandas as pd
import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from service_site import HOSTILE

from tidegrid.app.service.charts import Chart
from tidegrid.app.service.exports import FORMULA, TABLES, as_csv, cell
from tidegrid.app.service.pages import VIEWS, question_of
from tidegrid.app.service.running import Service
from tidegrid.errors import InputError

ASKED = "/what-if?gpus=2&priority=10&user=%3Cb%3E&name=%3Cscript%3E"
PATHS = [*(address for address, _ in VIEWS), "/jobs/r1", "/jobs?q=calc", "/jobs/nobody", ASKED, "/login"]


class Seen(HTMLParser):
    """What a page holds that could run."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts: list[str | None] = []
        self.bad: list[str] = []
        self.text: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        values = dict(attrs)
        if tag == "script":
            self.scripts.append(values.get("src"))
        for name, value in attrs:
            if name.startswith("on") or name == "style":
                self.bad.append(f"{tag} {name}")
            where = (value or "").strip().casefold()
            if name in ("href", "src", "action", "formaction") and not where.startswith(("/", "#")):
                self.bad.append(f"{tag} {name}={value}")

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.mark.parametrize("path", PATHS)
def test_nothing_in_a_free_field_runs_in_the_page(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code in (200, 404), answer.text
    seen = Seen()
    seen.feed(answer.text)
    assert seen.scripts == ["/static/page.js"]
    assert seen.bad == []
    assert not {"img", "iframe", "object", "embed", "base"} & set(seen.tags)
    # a template in a field is not worked out, and a direction mark is written as an escape
    assert "49" not in re.findall(r"(?<![\d:.,-])49(?![\d:.,])", " ".join(seen.text))
    assert "‮" not in answer.text
    policy = answer.headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_hostile_names_are_shown_as_they_are(client: TestClient) -> None:
    seen = Seen()
    seen.feed(client.get("/jobs").text)
    text = " ".join(seen.text)
    for name in HOSTILE[:1] + HOSTILE[2:7]:
        assert name in text, name


@pytest.mark.parametrize("name", TABLES)
def test_an_export_holds_no_formula(client: TestClient, name: str) -> None:
    answer = client.get(f"/export/{name}.csv")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/csv")
    assert "attachment" in answer.headers["content-disposition"]
    rows = list(csv.reader(io.StringIO(answer.text)))
    # nothing is held for long in a test, and all is handed over
    assert len(rows) > 1 or name in ("savings", "shadow")
    for row in rows[1:]:
        assert len(row) == len(rows[0])
        for value in row:
            if FORMULA.match(value):
                float(value)  # a number may be negative


@given(st.text())
def test_any_text_is_a_cell_that_is_no_formula(text: str) -> None:
    made = cell(text)
    assert not FORMULA.match(made)
    assert next(csv.reader(io.StringIO(as_csv(["a"], [[text]]).split("\n", 1)[1])), [""])[:1] in ([made], [])


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers())
def test_a_number_stays_one(number: float) -> None:
    assert float(cell(number)) == float(number)


def test_metrics_tell_what_the_api_tells(client: TestClient) -> None:
    text = client.get("/metrics").text
    apps = client.get("/api/v1/forecasts").json()["apps"]
    told = [line for line in text.splitlines() if line.startswith("tidegrid_planned_gpus{")]
    assert [float(line.rsplit(" ", 1)[1]) for line in told] == [app["held"] for app in apps]
    jobs = client.get("/api/v1/jobs").json()["jobs"]
    queue = [line for line in text.splitlines() if line.startswith("tidegrid_queue_jobs{")]
    waiting = [job for job in jobs if job["state"] in ("waiting", "starting")]
    assert sum(float(line.rsplit(" ", 1)[1]) for line in queue) == len(waiting)
    assert "tidegrid_leader 1.0" in text
    from prometheus_client.parser import text_string_to_metric_families

    names = {family.name for family in text_string_to_metric_families(text)}
    assert {"tidegrid_coverage_risk_gpu_hours", "tidegrid_tick_age_seconds", "tidegrid_requests"} <= names


def test_the_answer_of_the_page_is_the_apis(client: TestClient, service: Service) -> None:
    question = question_of({"gpus": "2", "priority": "10"})
    told = client.post("/api/v1/what-if", json=question.model_dump(mode="json", exclude_none=True)).json()
    page = client.get("/what-if?gpus=2&priority=10").text
    assert f"{100 * told['after']['utilization']:.1f} %" in page
    assert told["job"]["expected"] is not None
    assert "would start" in page


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"gpus": "x"}, "job.gpus"),
        ({"app": "a", "factor": "-1"}, "apps"),
        ({"node": "h/1", "gpus": "0"}, "job.gpus"),
    ],
)
def test_a_field_that_cannot_be_used_is_told_by_name(asked: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said.replace(".", r"\.")):
        question_of(asked)


def test_a_chart_draws_what_it_is_given_and_escapes_its_title() -> None:
    chart = Chart("<b>x</b>", "UTC")
    hours = pd.date_range("2026-03-02T00:00Z", periods=5, freq="h")
    chart.line("middle", zip(hours, [0.0, 1.0, 4.0, 2.0, 3.0], strict=True))
    svg = str(chart.svg())
    assert "<b>" not in svg
    points = re.findall(r'class="middle" points="([^"]*)"', svg)[0].split()
    heights = [float(point.split(",")[1]) for point in points]
    assert len(points) == 5
    assert min(range(5), key=heights.__getitem__) == 2
    assert str(Chart("x", "UTC").svg()) == ""
