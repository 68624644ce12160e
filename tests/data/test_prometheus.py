"""Hourly traffic from a Prometheus: what is asked, what an answer means, and what a server that fails changes."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import numpy as np
import pandas as pd
import pytest

from tidegrid.data import Cluster
from tidegrid.data.prometheus import COLUMNS, Prometheus, PrometheusError, fetched, scraped_twice, traffic_of
from tidegrid.errors import InputError
from tidegrid.pipeline.fetched import KEPT, refresh_site
from tidegrid.pipeline.site import Site
from tidegrid.pipeline.worlds.files import site_version

NOW = pd.Timestamp("2026-03-02T12:20Z")
NONE = pd.DataFrame({name: [] for name in COLUMNS})

Told = Callable[[str, int], float | None]


class Server:
    """A server that answers each query hour by hour as a function says."""

    def __init__(self) -> None:
        self.told: Told = lambda query, at: 240.0 if "up{" in query else 100.0
        self.asked: list[dict[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.raw: tuple[int, bytes] | None = None
        self.refused: re.Pattern[str] | None = None
        self.drip, self.drops = "", 0
        self.warnings: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                asked = {k: v[0] for k, v in parse_qs(self.rfile.read(length).decode()).items()}
                outer.asked.append(asked)
                outer.headers.append(dict(self.headers))
                code, text = outer.raw or (200, outer.answer(asked))
                if outer.refused is not None and outer.refused.search(asked["query"]):
                    code, text = 422, b'{"status": "error", "error": "no such thing"}'
                if outer.drip:
                    return self.drip()
                self.send_response(code)
                if code in (301, 302):
                    self.send_header("Location", "http://127.0.0.1:9/elsewhere")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def drip(self) -> None:
                if outer.drip != "headers":
                    self.send_response(503 if outer.drip == "error" else 200)
                    self.send_header("Content-Length", "6000")
                    self.end_headers()
                else:
                    self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
                try:
                    while outer.drops < 600:
                        outer.drops += 1
                        self.wfile.write(b" ")
                        time.sleep(0.1)
                except OSError:
                    self.close_connection = True

            def log_message(self, *args: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, asked: dict[str, str]) -> bytes:
        if "start" not in asked:
            value = self.told(asked["query"], int(float(asked["time"])))
            result = [] if value is None else [{"metric": {}, "value": [0, str(value)]}]
            return json.dumps({"status": "success", "data": {"result": result}}).encode()
        times = range(int(asked["start"]), int(asked["end"]) + 1, int(asked["step"]))
        values = [(at, self.told(asked["query"], at)) for at in times]
        known = [[at, str(value)] for at, value in values if value is not None]
        result = [{"metric": {}, "values": known}] if known else []
        data = {"resultType": "matrix", "result": result}
        return json.dumps({"status": "success", "data": data, "warnings": self.warnings}).encode()


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server()
    yield one
    one.http.shutdown()
    one.http.server_close()


def settings(server: Server, **more: Any) -> Prometheus:
    apps = {"chat": {"metrics": ("tokens_total",), "selector": 'namespace="prod"'}}
    return Prometheus.model_validate({"url": server.url, "apps": apps, "days": 2} | more)


def at(hour: str) -> int:
    """The seconds of the end of an hour."""
    return int(pd.Timestamp(hour).timestamp()) + 3600


def test_an_hour_is_asked_for_at_its_end_and_only_when_it_has_ended(server: Server) -> None:
    server.told = lambda query, t: 240.0 if "up{" in query else t / 3600
    kept, notes = fetched(settings(server), NOW, NONE)
    told = traffic_of(kept).set_index("timestamp")["value"]
    assert told.index[-1] == pd.Timestamp("2026-03-02T11:00Z") and len(told) == 48 and notes == []
    assert told["2026-03-02T11:00Z"] == pd.Timestamp("2026-03-02T12:00Z").timestamp() / 3600
    queries = {one["query"] for one in server.asked}
    assert queries == {
        "max(count_over_time(up{}[1h]))", 'sum(increase(tokens_total{namespace="prod"}[1h]))',
    }  # fmt: skip


def test_growth_of_several_counters_is_added_and_one_that_is_absent_counts_as_nothing(server: Server) -> None:
    def told(query: str, t: int) -> float | None:
        if "up{" in query:
            return 240.0
        return 10.0 if "prompt" in query else 5.0 if t > at("2026-03-02T05:00Z") else None

    server.told = told
    apps = {"chat": {"metrics": ("prompt_tokens_total", "generation_tokens_total")}}
    known = traffic_of(fetched(settings(server, apps=apps), NOW, NONE)[0])["value"]
    assert known.iloc[0] == 10.0 and known.iloc[-1] == 15.0


def test_an_hour_with_too_few_scrapes_is_unknown_and_one_without_a_counter_is_zero(server: Server) -> None:
    short, none = at("2026-03-02T03:00Z"), at("2026-03-02T06:00Z")
    early = at("2026-03-01T00:00Z")

    def told(query: str, t: int) -> float | None:
        if "up{" in query:
            return None if t < early else 200.0 if t == short else 240.0
        return None if t in (none, early) else 7.0

    server.told = told
    known = traffic_of(fetched(settings(server), NOW, NONE)[0]).set_index("timestamp")["value"]
    assert np.isnan(known["2026-03-02T03:00Z"]) and known["2026-03-02T06:00Z"] == 0.0
    # before the first scrape, and before the first traffic, nothing is known
    assert known.index[0] == pd.Timestamp("2026-03-01T01:00Z")
    assert known.isna().sum() == 1


def scrapes_of(counts: list[float], value: float = 7.0) -> pd.Series:
    """The traffic of a series whose hours have so many scrapes each."""
    hours = pd.date_range("2026-03-01", periods=len(counts), freq="h", tz="UTC")
    kept = pd.DataFrame(
        {"series_id": "chat", "timestamp": hours, "growth": value, "scrapes": counts, "source": "x"}
    )
    return traffic_of(kept)["value"]


def test_a_longer_scrape_interval_loses_no_hour_but_the_one_that_it_is_set_in() -> None:
    known = scrapes_of([240.0] * 72 + [170.0] + [120.0] * 72)
    assert known.isna().tolist() == [k == 72 for k in range(145)]
    # a shorter one neither: the hours before it have their own number
    assert scrapes_of([120.0] * 40 + [240.0] * 40).notna().all()


def test_outages_of_any_length_are_unknown_after_a_change_of_the_interval_too() -> None:
    counts = [240.0] * 48 + [120.0] * 30
    for hour, left in (
        (10, 200.0),
        (11, 90.0),
        (12, float("nan")),
        (13, float("nan")),
        (14, 30.0),
        (60, 80.0),
    ):
        counts[hour] = left
    known = scrapes_of(counts)
    assert np.flatnonzero(known.isna()).tolist() == [10, 11, 12, 13, 14, 60]
    # the first hour of a server, begun in its middle
    assert scrapes_of([100.0] + [240.0] * 5).isna().tolist() == [True] + [False] * 5


def test_a_query_that_fails_keeps_the_other_series_and_is_told(server: Server) -> None:
    apps = {name: {"metrics": (f"{name}_total",)} for name in ("chat", "code", "bad", "worse")}
    kept, notes = fetched(settings(server, apps=apps), NOW, NONE)
    assert len(kept) == 4 * 48 and notes == []
    server.refused = re.compile("bad|worse")
    server.told = lambda query, t: 240.0 if "up{" in query else 500.0
    more, notes = fetched(settings(server, apps=apps), NOW + pd.Timedelta(hours=2), kept)
    newest = more.groupby("series_id")["timestamp"].max()
    assert newest["chat"] == newest["code"] == newest["bad"] + pd.Timedelta(hours=2) == newest.max()
    (note,) = notes
    assert "the traffic of bad, worse is not brought up to date" in note and "(422: no such thing)" in note
    server.refused = None
    again, notes = fetched(settings(server, apps=apps), NOW + pd.Timedelta(hours=2), more)
    assert again.groupby("series_id").size().tolist() == [50] * 4 and notes == []


@pytest.mark.parametrize("where", ["headers", "body", "error"])
def test_a_server_that_answers_drop_by_drop_is_left_at_the_deadline(server: Server, where: str) -> None:
    server.drip = where
    with pytest.raises(PrometheusError, match=r"does not answer in time \(timeout_s 0\.3\)|refuses \(503\)"):
        fetched(settings(server, timeout_s=0.3), NOW, NONE)
    # the whole answer would take a minute, of which no read waits long
    assert server.drops < 300


def test_all_queries_of_a_call_share_its_time(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each series takes 20 of the call's 50 seconds: two are fetched, and at the next call the others come first."""
    passed = [0.0]
    monkeypatch.setattr("tidegrid.data.prometheus.time.monotonic", lambda: passed[0])

    def told(query: str, t: int) -> float:
        if "up{" not in query and t == at("2026-03-02T11:00Z"):
            passed[0] += 20.0
        return 240.0

    server.told = told
    asks = settings(server, timeout_s=50.0, apps={name: {"metrics": (f"{name}_total",)} for name in "abcd"})
    kept, notes = fetched(asks, NOW, NONE)
    assert sorted(set(kept["series_id"])) == ["a", "b", "c"]
    assert notes == [
        f"the traffic of d is not brought up to date: {server.url} does not answer in time (timeout_s 50)"
    ]
    server.asked.clear()
    kept, notes = fetched(asks, NOW, kept)
    assert [one["query"][13:20] for one in server.asked][1] == "d_total"
    assert sorted(set(kept["series_id"])) == ["a", "b", "c", "d"]


def test_a_series_whose_query_hangs_leaves_time_for_the_others(server: Server) -> None:
    """It is furthest behind, so that it is asked for first at each call."""
    over = threading.Event()

    def told(query: str, t: int) -> float:
        if "a_total" in query:
            over.wait(20)
        return 240.0

    server.told = told
    asks = settings(server, timeout_s=2.0, apps={name: {"metrics": (f"{name}_total",)} for name in "ab"})
    try:
        kept, notes = fetched(asks, NOW, NONE)
    finally:
        over.set()
    assert sorted(set(kept["series_id"])) == ["b"]
    (note,) = notes
    assert note.startswith("the traffic of a is not brought up to date") and "does not answer in time" in note


def test_only_new_hours_are_asked_for_and_changed_queries_ask_for_all(server: Server) -> None:
    kept, _ = fetched(settings(server), NOW, NONE)
    server.asked.clear()
    server.told = lambda query, t: 240.0 if "up{" in query else 900.0
    more, _ = fetched(settings(server), NOW + pd.Timedelta(hours=1), kept)
    assert {int(one["end"]) - int(one["start"]) for one in server.asked} == {3 * 3600}
    assert len(more) == 49 and more["growth"].tolist()[:45] == [100.0] * 45
    assert more["growth"].tolist()[45:] == [900.0] * 4
    other = settings(server, apps={"chat": {"metrics": ("requests_total",)}})
    again, _ = fetched(other, NOW, more)
    assert set(again["growth"]) == {900.0} and len(again) == 48


def test_long_spans_are_asked_for_in_parts(server: Server) -> None:
    kept, _ = fetched(settings(server, days=200), NOW, NONE)
    assert len(kept) == 200 * 24
    spans = [(int(one["end"]) - int(one["start"])) // 3600 + 1 for one in server.asked]
    assert max(spans) <= 2000 and sum(spans) == 2 * 200 * 24


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ((503, b"busy"), r"refuses \(503\)"),
        ((400, b'{"status": "error", "error": "bad\\nquery"}'), r"refuses \(400: bad query\)"),
        ((302, b""), r"refuses \(302\)"),
        ((200, b"<html>"), "does not answer as a Prometheus does"),
        ((200, b'{"status": "success", "data": {"result": [{"values": [[1, "x"]]}]}}'), "not answered with numbers"),
        ((200, b'{"status": "success", "data": {"result": [{"values": []}, {"values": []}]}}'), "2 answers"),
        ((200, b'{"status": "success", "data": {"resu'), "does not answer as a Prometheus does"),
        ((200, b"[]"), "does not answer as a Prometheus does"),
        ((200, b'{"status": "error", "error": "too many"}'), "refuses"),
    ],
)  # fmt: skip
def test_an_answer_that_is_none_is_told_in_one_line(
    server: Server, raw: tuple[int, bytes], said: str
) -> None:
    server.raw = raw
    with pytest.raises(PrometheusError, match=said) as told:
        fetched(settings(server), NOW, NONE)
    assert "\n" not in str(told.value)


def test_amounts_that_are_none_are_unknown_and_warnings_are_told(server: Server) -> None:
    server.warnings = ["one store was\nnot reached"]
    odd = at("2026-03-02T06:00Z")
    server.told = lambda query, t: 240.0 if "up{" in query else float("nan") if t == odd else 5.0
    kept, notes = fetched(settings(server), NOW, NONE)
    assert any("1 hours that are no amount" in note for note in notes)
    assert any("warns: one store was not reached" in note for note in notes)
    assert traffic_of(kept).set_index("timestamp")["value"]["2026-03-02T06:00Z"] == 0.0


def test_a_token_comes_from_the_environment_and_is_never_told(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = settings(server, token_env="PROMETHEUS_TOKEN")
    with pytest.raises(PrometheusError, match="the environment has no PROMETHEUS_TOKEN"):
        fetched(asks, NOW, NONE)
    monkeypatch.setenv("PROMETHEUS_TOKEN", "s3cret")
    fetched(asks, NOW, NONE)
    assert {one["Authorization"] for one in server.headers} == {"Bearer s3cret"}
    server.raw = (401, b"")
    with pytest.raises(PrometheusError) as told:
        fetched(asks, NOW, NONE)
    assert "s3cret" not in str(told.value)


def test_pods_that_two_jobs_scrape_are_told(server: Server) -> None:
    server.told = lambda query, t: 2.0
    assert "2 pods are scraped by more than one job" in scraped_twice(settings(server), NOW)[0]
    server.told = lambda query, t: None
    assert scraped_twice(settings(server), NOW) == []


def cluster(server: Server, **more: Any) -> dict[str, Any]:
    return {
        "timezone": "UTC",
        "pools": [{"id": "a", "gpus": 8, "gpu_type": "H100-SXM-80GB"}],
        "apps": [{"id": "chat", "pool": "a", "priority": 5, "capacity": {"units_per_gpu_hour": 50}}],
        "traffic": {"prometheus": {"url": server.url, "days": 2, "apps": {"chat": {"metrics": ["tokens_total"]}}}},
        **more,
    }  # fmt: skip


def test_a_site_has_the_hours_that_its_server_tells_and_keeps_them_when_it_is_gone(
    server: Server, tmp_path: Path
) -> None:
    (tmp_path / "cluster.json").write_text(json.dumps(cluster(server)))
    before = site_version(tmp_path)
    assert refresh_site(tmp_path, NOW) == []
    assert site_version(tmp_path) != before
    site = Site.read(tmp_path, now=NOW)
    assert (
        len(site.history.traffic) == 48 and set(site.history.traffic["value"]) == {100.0} and not site.notes
    )
    # its table tells older hours; where both tell one the server's counts
    (tmp_path / "traffic.csv").write_text(
        "series_id,timestamp,value\nchat,2026-02-28T10:00:00Z,1\nchat,2026-03-02T11:00:00Z,2\n"
    )
    values = Site.read(tmp_path, now=NOW).history.traffic["value"]
    assert values.iloc[0] == 1.0 and values.iloc[-1] == 100.0
    kept = (tmp_path / KEPT).read_bytes()
    server.raw = (503, b"")
    later = NOW + pd.Timedelta(hours=5)
    assert re.search(
        r"traffic is not brought up to date: .* refuses \(503\)", refresh_site(tmp_path, later)[0]
    )
    assert (tmp_path / KEPT).read_bytes() == kept
    assert any(
        "the newest hour that Prometheus has told of" in n for n in Site.read(tmp_path, now=later).notes
    )


def test_a_kept_file_that_is_broken_is_fetched_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text(json.dumps(cluster(server)))
    (tmp_path / KEPT).write_text("series_id,what\n1,2\n")
    assert "its hours are fetched again" in refresh_site(tmp_path, NOW)[0]
    assert len(Site.read(tmp_path, now=NOW).history.traffic) == 48


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"url": "prometheus:9090"}, "is not the address of a server"),
        ({"url": "http://user:word@host"}, "is not the address of a server"),
        ({"apps": {"chat": {"metrics": ["a b"]}}}, "metrics"),
        ({"apps": {"chat": {"metrics": ["a"], "selector": "{a}"}}}, "between the braces"),
        ({"apps": {"other": {"metrics": ["a"]}}}, "no app has the traffic series 'other'"),
        ({"apps": {}}, "apps"),
        ({"days": 0}, "days"),
        ({"tokens": "x"}, "tokens"),
    ],
)
def test_a_description_that_cannot_be_used_is_refused_by_field(
    server: Server, change: dict[str, Any], said: str
) -> None:
    described = cluster(server)
    described["traffic"]["prometheus"] |= change
    with pytest.raises(InputError, match=said) as told:
        Cluster.from_dict(described)
    assert str(told.value.field).startswith("traffic.prometheus")


def test_a_description_is_written_as_it_was_read(server: Server) -> None:
    described = Cluster.from_dict(cluster(server))
    assert Cluster.from_dict(described.to_dict()) == described
    plain = cluster(server)
    del plain["traffic"]
    assert "traffic" not in Cluster.from_dict(plain).to_dict()
