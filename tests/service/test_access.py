"""Who may ask: tokens on every route that the OpenAPI document lists, hosts, origins, sizes and rates."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from service_site import Here, options_of, wait_for, write_site

from tidegrid.app.service.guarding import COOKIE, Rates
from tidegrid.app.service.options import Options
from tidegrid.app.service.pages import inside
from tidegrid.app.service.problems import MEDIA
from tidegrid.app.service.running import Service
from tidegrid.app.service.serving import application, serve
from tidegrid.app.service.tokens import Tokens
from tidegrid.errors import InputError
from tidegrid.pipeline.rolling import StateStore

FILLED = {"job": "r1", "tick": "1", "name": "recurring"}


@pytest.fixture(scope="module")
def protected(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[TestClient, dict[str, str], Service]]:
    """A service that asks for tokens, and one token for each scope."""
    site = write_site(tmp_path_factory.mktemp("site") / "s", hostile=False)
    service = Service(options_of(site, tokens=True, rate=1e6, question_rate=1e6), Here)
    shown = {scope: service.tokens.create(scope, (scope,)) for scope in ("read", "write")}
    shown["both"] = service.tokens.create("both", ("read", "write"))
    with TestClient(application(service), base_url="http://grid.example", follow_redirects=False) as client:
        wait_for(client)
        yield client, shown, service


def routes(client: TestClient, token: str) -> Iterator[tuple[str, str, str]]:
    """Yield method, path and scope of every route that the document lists."""
    document = client.get("/api/v1/openapi.json", headers=bearer(token)).json()
    for path, methods in document["paths"].items():
        for method, about in methods.items():
            for name, value in FILLED.items():
                path = path.replace(f"{{{name}}}", value)
            yield method, path, about.get("x-scope", "")


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_every_route_asks_for_a_token_and_for_its_scope(
    protected: tuple[TestClient, dict[str, str], Service],
) -> None:
    client, shown, _ = protected
    found = list(routes(client, shown["read"]))
    assert {scope for _, _, scope in found} == {"read", "write"}
    for method, path, scope in found:
        for headers in ({}, bearer("tg_x_y"), bearer("nonsense"), {"authorization": "Basic eDp5"}):
            answer = client.request(method, path, headers=headers, json={})
            assert answer.status_code == 401, (method, path)
            assert answer.headers["content-type"] == MEDIA
            assert answer.headers["www-authenticate"].startswith("Bearer")
        other = "write" if scope == "read" else "read"
        assert client.request(method, path, headers=bearer(shown[other]), json={}).status_code == 403, path
        if not path.endswith("/stream"):
            answer = client.request(method, path, headers=bearer(shown["both"]), json={})
            assert answer.status_code not in (401, 403, 500), (method, path, answer.text)


def test_metrics_and_exports_ask_for_a_token_and_health_does_not(
    protected: tuple[TestClient, dict[str, str], Service],
) -> None:
    client, shown, _ = protected
    for path in ("/metrics", "/export/jobs.csv"):
        assert client.get(path).status_code == 401
        assert client.get(path, headers=bearer(shown["read"])).status_code == 200
    assert client.get("/healthz").status_code == client.get("/readyz").status_code == 200


def test_the_page_sends_to_the_sign_in_and_back(
    protected: tuple[TestClient, dict[str, str], Service],
) -> None:
    client, shown, _ = protected
    away = client.get("/jobs?q=a")
    assert (away.status_code, away.headers["location"]) == (303, "/login?next=%2Fjobs%3Fq%3Da")
    wrong = client.post("/login", data={"token": "tg_a_b", "next": "/jobs"})
    assert wrong.status_code == 401
    assert "no such token" in wrong.text
    right = client.post("/login", data={"token": shown["read"], "next": "/jobs?q=a"})
    assert (right.status_code, right.headers["location"]) == (303, "/jobs?q=a")
    cookie = right.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    with_cookie = {"cookie": f"{COOKIE}={shown['read']}"}
    client.cookies.clear()
    assert client.get("/jobs", headers=with_cookie).status_code == 200
    assert client.get("/api/v1/jobs", headers=with_cookie).status_code == 200
    assert client.post("/api/v1/ticks", headers=with_cookie).status_code == 403


@pytest.mark.parametrize(
    "target",
    [
        "https://evil.example/",
        "//evil.example",
        "/\\evil.example",
        "javascript:alert(1)",
        "",
        "jobs",
        "/\n//x",
    ],
)
def test_the_sign_in_leads_nowhere_else(target: str) -> None:
    assert inside(target) == "/"


def test_a_revoked_token_is_refused(protected: tuple[TestClient, dict[str, str], Service]) -> None:
    client, _, service = protected
    token = service.tokens.create("short-lived", ("read",))
    service.tokens.refresh()
    assert client.get("/api/v1/state", headers=bearer(token)).status_code == 200
    service.tokens.revoke(token.split("_")[1])
    service.tokens.refresh()
    assert client.get("/api/v1/state", headers=bearer(token)).status_code == 401


def test_a_request_from_a_page_of_another_site_is_refused(
    protected: tuple[TestClient, dict[str, str], Service],
) -> None:
    client, shown, _ = protected
    headers = bearer(shown["both"]) | {"origin": "https://evil.example"}
    assert client.post("/api/v1/ticks", headers=headers).status_code == 403
    assert client.get("/api/v1/state", headers=headers).status_code == 200
    own = bearer(shown["both"]) | {"origin": "http://grid.example"}
    assert client.post("/api/v1/ticks", headers=own).status_code == 202


def test_the_store_holds_no_secret(tmp_path: Path) -> None:
    store = StateStore(tmp_path / "state.db")
    tokens = Tokens(store)
    token = tokens.create("ci", ("read",))
    secret = token.split("_", 2)[2]
    tokens.refresh()
    assert tokens.who(token) is not None
    assert tokens.who(token[:-1]) is None
    assert tokens.who(token + "x") is None
    store.close()
    for file in tmp_path.iterdir():
        assert secret.encode() not in file.read_bytes()


def test_a_scope_or_an_id_that_is_not_there_is_refused(tmp_path: Path) -> None:
    tokens = Tokens(StateStore(tmp_path / "state.db"))
    with pytest.raises(InputError, match="'all' is no scope; use read or write"):
        tokens.create("ci", ("all",))
    with pytest.raises(InputError, match="there is no token 'abc'"):
        tokens.revoke("abc")


def test_an_open_address_without_a_token_is_refused_before_it_is_served(tmp_path: Path) -> None:
    site = write_site(tmp_path / "s", hostile=False)
    options: Options = options_of(site, host="0.0.0.0", port=0)
    with pytest.raises(InputError, match="can be reached by others, and there is no token"):
        serve(options)


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "[", "", "evil.example:8080"])
def test_a_name_that_is_not_this_machines_is_not_answered_without_a_token(
    client: TestClient, host: str
) -> None:
    """A page whose name leads to this machine must not be let in (DNS rebinding)."""
    answer = client.get("/api/v1/state", headers={"host": host})
    assert answer.status_code == 421
    assert answer.headers["content-type"] == MEDIA


def test_a_large_body_is_refused_whole_or_in_parts(client: TestClient) -> None:
    whole = client.post(
        "/api/v1/what-if", content=b" " * 70_000, headers={"content-type": "application/json"}
    )
    assert whole.status_code == 413

    def parts() -> Any:
        for _ in range(100):
            yield b" " * 1000

    streamed = client.post("/api/v1/what-if", content=parts(), headers={"content-type": "application/json"})
    assert streamed.status_code == 413
    assert streamed.headers["content-type"] == MEDIA


def test_a_caller_that_asks_too_much_waits_and_others_do_not() -> None:
    rates = Rates(2.0)
    taken = [rates.take("a", 0.0) for _ in range(10)]
    assert taken[:8] == [0.0] * 8
    assert 0 < taken[8] <= 0.5
    assert rates.take("b", 0.0) == 0.0
    assert rates.take("a", 0.5) == 0.0
    assert rates.take("a", 0.5) > 0.0


def test_too_many_requests_are_told_when_to_come_again(tmp_path: Path) -> None:
    site = write_site(tmp_path / "s", hostile=False)
    service = Service(options_of(site, rate=1.0), Here)
    with TestClient(application(service), base_url="http://127.0.0.1") as client:
        answers = [client.get("/healthz") for _ in range(6)]
    assert answers[0].status_code == 200
    assert answers[-1].status_code == 429
    assert int(answers[-1].headers["retry-after"]) >= 1
