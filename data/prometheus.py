"""Hourly traffic from a Prometheus server: by how much an app's counters grew in each whole hour.

The queries are those that came closest to known truth on 14 days of made-up scrapes (three apps, 161 series, restarts,
moved pods, outages): the growth of each counter is taken before the sum, since a sum has no resets; an hour is asked
for at its end; and an hour in which less than ``COVERED`` of the usual scrapes are there is unknown.
"""

import hashlib
import json
import os
import socket
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import Field, StrictInt
from pydantic.functional_validators import AfterValidator

from tidegrid.data.inventory import Name, Record
from tidegrid.errors import InputError, TidegridError

COVERED = 0.9
"""The share of an hour's scrapes that must be there for its traffic to be known."""

USUAL_HOURS = 24
"""An hour's usual scrapes are the most of any hour that is at most so many away."""

STEADY_HOURS, STEADY = 3, 0.02
"""So many hours in a row whose scrapes differ by at most this share have a scrape interval of their own: none is a gap,
however few they are."""

CHUNK = 2_000
"""Hours asked for at once: Prometheus answers at most 11,000 points."""

AGAIN = 3
"""Hours that were fetched last and are fetched again: samples may arrive late."""

LARGEST = 64 << 20
"""The longest answer that is read, bytes."""

COLUMNS = ("series_id", "timestamp", "growth", "scrapes", "source")
"""What is kept of an hour: its growth and the scrapes seen, empty for none, and which queries told them."""


class PrometheusError(TidegridError):
    """The server does not answer, or answers what cannot be used."""


def _address(url: str) -> str:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
        raise InputError(
            f"{url!r} is not the address of a server", fix="write one such as http://prometheus:9090"
        )
    return url.rstrip("/")


def _selector(text: str) -> str:
    if "\n" in text or text.strip().startswith("{"):
        raise InputError(
            f"{text!r} is not what stands between the braces", fix='write matchers such as namespace="prod"'
        )
    return text.strip()


Metric = Annotated[str, Field(pattern=r"^[a-zA-Z_:][a-zA-Z0-9_:]*$", max_length=200, strict=True)]
Matchers = Annotated[str, Field(max_length=2000, strict=True), AfterValidator(_selector)]


class Counter(Record):
    """What an app's traffic is in Prometheus.

    Parameters
    ----------
    metrics
        Names of counters; their growth is added up.
    selector
        The matchers that single out the app, as they stand between braces.
    """

    metrics: Annotated[tuple[Metric, ...], Field(min_length=1, max_length=20)]
    selector: Matchers = ""


class Prometheus(Record):
    """A Prometheus server that knows the traffic of a site's apps.

    Parameters
    ----------
    url
        Its address, without ``/api``.
    apps
        By traffic series, which counters.
    up
        Matchers of ``up`` that tell whether scraping worked; all targets where empty.
    days
        How far back the first call asks.
    timeout_s
        Seconds that all queries of one call may take together; what they do not reach is asked for at the next call.
        No series but the last takes more than half of what is left.
    token_env
        The environment variable that holds a bearer token; None for no token.
    """

    url: Annotated[str, Field(max_length=2000, strict=True), AfterValidator(_address)]
    apps: Annotated[dict[Name, Counter], Field(min_length=1, max_length=10_000)]
    up: Matchers = ""
    days: Annotated[StrictInt, Field(ge=1, le=3650)] = 60
    timeout_s: Annotated[float, Field(gt=0, le=600)] = 30.0
    token_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=200)] | None = None

    def queries(self, series: str) -> list[str]:
        """Return the queries of a series: one a counter."""
        one = self.apps[series]
        return [f"sum(increase({metric}{{{one.selector}}}[1h]))" for metric in one.metrics]

    @property
    def coverage(self) -> str:
        """The query that tells how many scrapes each hour has."""
        return f"max(count_over_time(up{{{self.up}}}[1h]))"

    def source(self, series: str) -> str:
        """Return what stands for the queries of a series: hours that others told are fetched again."""
        text = json.dumps([self.url, self.coverage, *self.queries(series)])
        return hashlib.sha256(text.encode()).hexdigest()[:12]


class TrafficSource(Record):
    """Where traffic comes from beside the site's tables."""

    prometheus: Prometheus


def fetched(server: Prometheus, now: pd.Timestamp, kept: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return what is kept of each hour after asking for those that are new, and what was odd.

    Parameters
    ----------
    server
        Whom to ask for what.
    now
        Hours that have ended by then are asked for.
    kept
        ``COLUMNS``, as an earlier call returned it; empty for none.

    Returns
    -------
    kept : DataFrame
        ``COLUMNS``. A series whose queries fail keeps what it had, and a note says why.
    notes
        One line each.

    Raises
    ------
    PrometheusError
        The server does not answer, or not as one, when it is asked for the scrapes.
    """
    deadline = time.monotonic() + server.timeout_s
    last = now.floor("h")
    oldest = last - pd.Timedelta(days=server.days)
    sources = {name: server.source(name) for name in server.apps}
    kept = kept[kept["source"] == kept["series_id"].map(sources)]
    newest = kept.groupby("series_id")["timestamp"].max()
    notes: list[str] = []
    parts = [kept]
    scrapes: dict[int, float] = {}
    failed: dict[str, list[str]] = {}
    first = {
        name: max(oldest, newest[name] - pd.Timedelta(hours=AGAIN - 1)) if name in newest.index else oldest
        for name in server.apps
    }
    # those that are furthest behind go first: where time runs out, the others are next
    order = sorted(server.apps, key=lambda name: (first[name], name))
    for name in order:
        ends = pd.date_range(first[name] + pd.Timedelta(hours=1), last, freq="h")
        if not len(ends):
            continue
        if not scrapes:
            scrapes = _range(server, server.coverage, ends[0], last, deadline, notes)
        # one that hangs each time stays furthest behind, and must not take the time of all others
        until = deadline if name == order[-1] else (time.monotonic() + deadline) / 2
        try:
            told = [_range(server, query, ends[0], last, until, notes) for query in server.queries(name)]
        except PrometheusError as error:
            failed.setdefault(str(error), []).append(name)
            continue
        seconds = (ends.as_unit("s").asi8).tolist()
        growth = [sum(known) if (known := [one[t] for one in told if t in one]) else np.nan for t in seconds]
        parts.append(
            pd.DataFrame(
                {
                    "series_id": name,
                    "timestamp": ends - pd.Timedelta(hours=1),
                    "growth": growth,
                    "scrapes": [scrapes.get(t, np.nan) for t in seconds],
                    "source": sources[name],
                }
            )
        )
    for why, names in failed.items():
        which = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        notes.append(f"the traffic of {which} is not brought up to date: {why}")
    out = pd.concat([one for one in parts if len(one)] or [kept], ignore_index=True)
    out = out.drop_duplicates(["series_id", "timestamp"], keep="last")
    out = out.sort_values(["series_id", "timestamp"], ignore_index=True)
    # before the server's first scrape nothing is known, and nothing ever will be
    seen = out["scrapes"].notna().groupby(out["series_id"]).cummax()
    return out[seen.astype(bool)].reset_index(drop=True), notes


def traffic_of(kept: pd.DataFrame) -> pd.DataFrame:
    """Return the traffic that kept hours tell of: ``series_id``, ``timestamp``, ``value``; missing where unknown.

    An hour with too few scrapes is unknown. In the others an app without a counter had no traffic, once it had any.

    Parameters
    ----------
    kept
        ``COLUMNS``, sorted by series and hour, as :func:`fetched` returns it.
    """
    if kept.empty:
        return pd.DataFrame({"series_id": [], "timestamp": pd.to_datetime([], utc=True), "value": []})
    known = _covered(kept)
    value = kept["growth"].fillna(0.0).where(known)
    begun = (kept["growth"].fillna(0.0) > 0).groupby(kept["series_id"]).cummax().astype(bool)
    out = pd.DataFrame({"series_id": kept["series_id"], "timestamp": kept["timestamp"], "value": value})
    return out[begun].reset_index(drop=True)


def _covered(kept: pd.DataFrame) -> pd.Series:
    """Return which hours have the scrapes that are usual around them, or as many as the hours beside them."""
    scrapes = kept["scrapes"].fillna(0.0)
    by_series = scrapes.groupby(kept["series_id"], sort=False)
    usual = by_series.transform(
        lambda one: one.rolling(2 * USUAL_HOURS + 1, center=True, min_periods=1).max()
    )
    least, most = (
        by_series.transform(lambda one, how=how: getattr(one.rolling(STEADY_HOURS), how)())
        for how in ("min", "max")
    )
    # the last hour of a run of steady ones speaks for all of them
    ends_run = ((least > 0) & (most - least <= STEADY * most)).groupby(kept["series_id"], sort=False)
    steady = ends_run.transform(lambda one: one[::-1].rolling(STEADY_HOURS, min_periods=1).max()[::-1]) > 0
    return (scrapes > 0) & ((scrapes >= COVERED * usual) | steady)


def scraped_twice(server: Prometheus, now: pd.Timestamp) -> list[str]:
    """Return a line for each series with a pod that several jobs scrape: its traffic counts twice.

    Raises
    ------
    PrometheusError
        The server does not answer.
    """
    out, deadline = [], time.monotonic() + server.timeout_s
    for name, one in sorted(server.apps.items()):
        matchers = ", ".join(part for part in (one.selector, 'pod!=""') if part)
        query = f"count(count by (namespace, pod, engine) ({one.metrics[0]}{{{matchers}}}) > 1)"
        asked = {"query": query, "time": str(now.timestamp())}
        found = _ask(server, "query", asked, deadline, [])
        if found and float(found[0]["value"][1]) > 0:
            count = int(float(found[0]["value"][1]))
            out.append(f"{name}: {count} pods are scraped by more than one job; their traffic counts twice")
    return out


def _range(
    server: Prometheus,
    query: str,
    first: pd.Timestamp,
    last: pd.Timestamp,
    deadline: float,
    notes: list[str],
) -> dict[int, float]:
    """Return a query's value at each whole hour from ``first`` to ``last``, by seconds since 1970."""
    out: dict[int, float] = {}
    begin, end = int(first.timestamp()), int(last.timestamp())
    for start in range(begin, end + 1, CHUNK * 3600):
        stop = min(end, start + (CHUNK - 1) * 3600)
        asked = {"query": query, "start": str(start), "end": str(stop), "step": "3600"}
        result = _ask(server, "query_range", asked, deadline, notes)
        if len(result) > 1:
            raise PrometheusError(f"{server.url}: {query} has {len(result)} answers where one sum is wanted")
        for one in result:
            try:
                told = [(int(at), float(value)) for at, value in one["values"]]
            except (KeyError, TypeError, ValueError):
                raise PrometheusError(f"{server.url}: {query} is not answered with numbers") from None
            odd = [at for at, value in told if not 0 <= value < 1e15]
            if odd:
                _add(notes, f"{query} has {len(odd)} hours that are no amount; they are unknown")
            out |= {at: value for at, value in told if 0 <= value < 1e15}
    return out


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows nothing: a token is for the server that was named."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


class _Cut:
    """Ends connections at a deadline, whatever they are doing: a timeout of a socket bounds each read alone."""

    def __init__(self, deadline: float) -> None:
        self.done = False
        self._left = max(0.0, deadline - time.monotonic())
        self._sockets: list[socket.socket] = []
        self._timer = threading.Timer(self._left, self._end)
        self._timer.daemon = True

    @contextmanager
    def running(self) -> Iterator[float]:
        """Let time run; yields the seconds that are left."""
        self._timer.start()
        try:
            yield self._left
        finally:
            self._timer.cancel()

    def handlers(self) -> list[urllib.request.BaseHandler]:
        """Return what opens connections that end with this."""
        cut = self

        class Plain(HTTPConnection):
            def connect(self) -> None:
                super().connect()
                cut._opened(self.sock)

        class Secure(HTTPSConnection):
            def connect(self) -> None:
                super().connect()
                cut._opened(self.sock)

        class Http(urllib.request.HTTPHandler):
            def http_open(self, req: urllib.request.Request) -> HTTPResponse:
                return self.do_open(Plain, req)

        class Https(urllib.request.HTTPSHandler):
            def https_open(self, req: urllib.request.Request) -> HTTPResponse:
                return self.do_open(Secure, req)

        return [Http(), Https()]

    def _opened(self, one: socket.socket) -> None:
        self._sockets.append(one)
        if self.done:  # the deadline passed while it was being opened
            self._end()

    def _end(self) -> None:
        self.done = True
        for one in self._sockets:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # it is closed already


def _ask(
    server: Prometheus, what: str, asked: Mapping[str, str], deadline: float, notes: list[str]
) -> list[Any]:
    """Return the result of a query."""
    late = PrometheusError(f"{server.url} does not answer in time (timeout_s {server.timeout_s:g})")
    cut = _Cut(deadline)
    address = f"{server.url}/api/v1/{what}"
    request = urllib.request.Request(address, urllib.parse.urlencode(asked).encode())
    if server.token_env is not None:
        token = os.environ.get(server.token_env, "").strip()
        if not token:
            raise PrometheusError(f"{server.url}: the environment has no {server.token_env}")
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with cut.running() as left:
            if left <= 0:
                raise late
            opener = urllib.request.build_opener(_Stay(), *cut.handlers())
            try:
                with opener.open(request, timeout=left) as answer:
                    text = answer.read(LARGEST + 1)
            except urllib.error.HTTPError as error:
                with error:
                    said = _said(error.read(100_000))
                why = f"{error.code}{f': {said}' if said else ''}"
                raise PrometheusError(f"{server.url} refuses ({why})") from None
    except (OSError, HTTPException, ValueError, AttributeError) as error:
        if (
            cut.done
            or isinstance(error, TimeoutError)
            or isinstance(getattr(error, "reason", None), TimeoutError)
        ):
            raise late from None
        raise PrometheusError(f"{server.url} does not answer ({_one_line(error)})") from None
    if cut.done:
        raise late
    if len(text) > LARGEST:
        raise PrometheusError(f"{server.url} answers with more than {LARGEST >> 20} MiB")
    try:
        document = json.loads(text)
        for warning in document.get("warnings") or ():
            _add(notes, f"{server.url} warns: {_one_line(warning)}")
        if document["status"] != "success":
            raise PrometheusError(f"{server.url} refuses ({_said(text)})")
        result = document["data"]["result"]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise PrometheusError(f"{server.url} does not answer as a Prometheus does") from None
    if not isinstance(result, list):
        raise PrometheusError(f"{server.url} does not answer as a Prometheus does")
    return result


def _said(text: bytes) -> str:
    try:
        return _one_line(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return ""


def _one_line(value: object) -> str:
    reason = getattr(value, "reason", value)
    return " ".join("".join(c if c.isprintable() else " " for c in str(reason)).split())[:300]


def _add(notes: list[str], text: str) -> None:
    if text not in notes:
        notes.append(text)
