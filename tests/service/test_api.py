"""The API: every answer is what its document says, errors are problem details, and what-ifs touch nothing."""

import json
import time
from typing import Any
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient
from service_site import HOSTILE, Here, options_of, wait_for, write_site

from tidegrid.app.service import documents
from tidegrid.app.service.api import MOST_QUESTIONS
from tidegrid.app.service.problems import MEDIA, Problem
from tidegrid.app.service.running import Service
from tidegrid.app.service.serving import application

DOCUMENTS = {
    "/state": documents.State,
    "/plan": documents.Plan,
    "/jobs": documents.Jobs,
    "/jobs/r1": documents.Job,
    "/forecasts": documents.Forecasts,
    "/accuracy": documents.Accuracy,
    "/savings": documents.Savings,
    "/models": documents.Models,
    "/commits": documents.Commits,
    "/events": documents.Events,
}


@pytest.mark.parametrize("path", DOCUMENTS)
def test_an_answer_is_what_its_document_says(client: TestClient, path: str) -> None:
    answer = client.get(f"/api/v1{path}")
    assert answer.status_code == 200, answer.text
    DOCUMENTS[path].model_validate(answer.json(), strict=True)


def test_every_route_that_reads_a_view_is_held_against_its_document(client: TestClient) -> None:
    paths = client.get("/api/v1/openapi.json").json()["paths"]
    reads = {path for path, methods in paths.items() if "get" in methods}
    tested = {f"/api/v1{path}" for path in DOCUMENTS} - {"/api/v1/jobs/r1"} | {"/api/v1/jobs/{job}"}
    assert reads - tested == {
        "/api/v1/commits/latest",
        "/api/v1/commits/{tick}",
        "/api/v1/events/stream",
        "/api/v1/shadow",  # only there in shadow mode
    }


def test_state_plan_jobs_and_commit_tell_one_story(client: TestClient) -> None:
    state, plan = client.get("/api/v1/state").json(), client.get("/api/v1/plan").json()
    jobs, commit = client.get("/api/v1/jobs").json(), client.get("/api/v1/commits/latest").json()
    assert {state["tick"], plan["tick"], jobs["tick"], commit["tick"]} == {state["tick"]}
    starting = {one["job"] for one in jobs["jobs"] if one["state"] == "starting"}
    assert starting == {one["job"] for one in commit["start"]}
    on_nodes = {task["task"] for node in state["nodes"] for task in node["tasks"]}
    assert starting | {"r1"} <= on_nodes
    # what the plan holds in step 0 is what stands on the nodes
    first = {plan["tasks"][task] for task, _, _, _, start, _ in plan["blocks"] if start == 0}
    assert first == on_nodes - {""}
    used = sum(gpus for *_, gpus, start, _ in plan["blocks"] if start == 0)
    assert used == state["gpus"] - sum(node["free"] for node in state["nodes"])
    assert client.get(f"/api/v1/commits/{commit['tick']}").json() == commit


def test_jobs_are_found_by_any_of_their_words(client: TestClient) -> None:
    found = client.get("/api/v1/jobs", params={"q": "CALC cmd"}).json()
    assert found["total"] > 0
    for job in found["jobs"]:
        text = " ".join(str(value) for value in job.values())
        assert "calc" in text
    assert client.get("/api/v1/jobs", params={"q": "no such word"}).json()["jobs"] == []
    running = client.get("/api/v1/jobs", params={"state": "running"}).json()["jobs"]
    assert [job["job"] for job in running] == ["r1"]


def test_a_job_is_found_by_an_id_with_slashes(client: TestClient) -> None:
    name = "a/b/../c?x=1#y"
    answer = client.get(f"/api/v1/jobs/{quote(name, safe='')}")
    assert answer.status_code == 200
    assert answer.json()["job"] == name


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "said"),
    [
        ("GET", "/jobs/nobody", None, 404, "there is no job 'nobody' in the last commit"),
        ("GET", "/commits/4000", None, 404, "there is no commit 4000"),
        ("GET", "/nothing", None, 404, "there is nothing at this address"),
        ("GET", "/jobs?limit=0", None, 422, "limit"),
        ("GET", "/plan?by=node", None, 422, "by"),
        ("POST", "/what-if", {}, 422, "question: changes nothing"),
        ("POST", "/what-if", {"job": {"gpus": -1}}, 422, "job.gpus"),
        ("POST", "/what-if", {"policy": {"no": 1}}, 422, "policy.no: there is no such parameter"),
        ("POST", "/what-if", {"nodes": [{"pool": "z", "node": "1"}]}, 422, "pool: there is no pool 'z'"),
        ("POST", "/what-if", {"apps": [{"app": "z", "factor": 2}]}, 422, "apps: there is no app 'z'"),
        ("POST", "/what-if", {"without": ["z"]}, 422, "without: no job 'z' waits"),
        ("POST", "/what-if", {"more": 1}, 422, "more"),
        ("POST", "/models/none/champion", {"version": "1"}, 422, "none"),
    ],
)
def test_an_error_is_problem_details_with_one_line(
    client: TestClient, method: str, path: str, body: Any, status: int, said: str
) -> None:
    answer = client.request(method, f"/api/v1{path}", json=body)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == MEDIA
    told = Problem.model_validate(answer.json(), strict=True)
    assert told.status == status
    assert said in told.detail
    assert "\n" not in told.detail


def test_what_is_no_json_is_refused(client: TestClient) -> None:
    answer = client.post("/api/v1/what-if", content=b"{", headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert answer.headers["content-type"] == MEDIA


def test_a_what_if_answers_and_touches_nothing(client: TestClient, service: Service) -> None:
    before = [client.get(f"/api/v1{path}").content for path in ("/plan", "/jobs", "/forecasts", "/commits")]
    question = {"job": {"gpus": 2, "priority": 10, "walltime_h": 1}}
    first = client.post("/api/v1/what-if", json=question)
    assert first.status_code == 200, first.text
    documents.Answer.model_validate(first.json(), strict=True)
    assert first.json()["job"]["expected"] is not None
    for other in (
        {"nodes": [{"pool": HOSTILE[0], "node": "0"}]},
        {"apps": [{"app": HOSTILE[1], "factor": 3}]},
        {"policy": {"decay": 0.9}},
    ):
        answer = client.post("/api/v1/what-if", json=other)
        assert answer.status_code == 200, answer.text
        documents.Answer.model_validate(answer.json(), strict=True)
    assert client.post("/api/v1/what-if", json=question).content == first.content
    after = [client.get(f"/api/v1{path}").content for path in ("/plan", "/jobs", "/forecasts", "/commits")]
    assert after == before


def test_what_a_what_if_compares_with_is_the_plan_that_holds(client: TestClient) -> None:
    answer = client.post("/api/v1/what-if", json={"policy": {"decay": 0.9}}).json()
    figures = client.get("/api/v1/plan").json()["figures"]["plan"]
    assert answer["before"]["value"] == pytest.approx(figures["value"])
    starts = client.get("/api/v1/commits/latest").json()["start"]
    assert answer["before"]["starts_now"] == len(starts)


def test_a_tick_is_made_when_it_is_asked_for(client: TestClient) -> None:
    before = client.get("/readyz").json()["tick"]
    time.sleep(1.1)  # the site's clock goes by seconds, and an instant is committed once
    assert client.post("/api/v1/ticks").status_code == 202
    for _ in range(200):
        if client.get("/readyz").json()["tick"] > before:
            break
        time.sleep(0.05)
    assert client.get("/readyz").json()["tick"] == before + 1
    moves = client.get("/api/v1/jobs/r1").json()["moves"]
    assert [one["tick"] for one in moves][-1] <= before + 1
    commits = client.get("/api/v1/commits").json()["commits"]
    assert [one["tick"] for one in commits] == sorted((one["tick"] for one in commits), reverse=True)


def test_a_changed_file_is_planned_by_itself(tmp_path: Any) -> None:
    site = write_site(tmp_path / "s", hostile=False)
    with TestClient(application(Service(options_of(site), Here)), base_url="http://localhost") as client:
        wait_for(client)
        text = (site / "requests.csv").read_text()
        more = text + "new1,training,9,2026-03-02T07:00:00+00:00,1,u,g,n,3600\n"
        (site / "requests.csv").write_text(more)
        wait_for(client, "/api/v1/jobs/new1", 20)
        # a file that cannot be read is told, and what was planned stays
        (site / "cluster.json").write_text("{")
        for _ in range(200):
            problem = client.get("/api/v1/state").json()["instance"]["problem"]
            if problem:
                break
            time.sleep(0.05)
        assert "is not JSON" in problem
        assert client.get("/api/v1/jobs/new1").status_code == 200
        assert "is not JSON" in client.get("/").text
        assert json.loads((site / "commit.json").read_text())["tick"] == client.get("/readyz").json()["tick"]


def test_too_many_questions_at_once_are_turned_away_at_once(client: TestClient, service: Service) -> None:
    service.questions = MOST_QUESTIONS
    try:
        answer = client.post("/api/v1/what-if", json={"policy": {"decay": 0.9}})
    finally:
        service.questions = 0
    assert answer.status_code == 503 and answer.headers["Retry-After"] == "2"
    assert answer.json()["detail"] == f"{MOST_QUESTIONS} questions wait for their answers"
