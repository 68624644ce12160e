"""What every request passes: its host and origin, its size, its rate, who asks, and the headers of the answer."""

import time
from collections import OrderedDict
from dataclasses import dataclass
from urllib.parse import urlsplit

from fastapi import Request
from fastapi.security import HTTPBearer
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidegrid.app.service.logs import log
from tidegrid.app.service.measuring import Measures
from tidegrid.app.service.options import LOOPBACK, Options
from tidegrid.app.service.problems import RefusedError, answer_to
from tidegrid.app.service.tokens import SCOPES, Tokens

COOKIE = "tidegrid_token"

SAFE = ("GET", "HEAD", "OPTIONS")

CALLERS = 10_000
"""Callers whose rate is remembered; the one that was silent longest is forgotten first."""

BURST = 4.0
"""Seconds' worth of requests that a caller may send at once."""

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}

bearer = HTTPBearer(auto_error=False, description="A token made with `tidegrid token create`.")
"""How a token is shown; in the OpenAPI document too."""


@dataclass(frozen=True)
class Caller:
    """Who asks: a name for its rate and for the log, and its scopes."""

    name: str
    scopes: tuple[str, ...]


class Rates:
    """How much each caller has left: a bucket that fills at a rate.

    Parameters
    ----------
    rate
        Requests a second.
    """

    def __init__(self, rate: float) -> None:
        self.rate, self.most = rate, max(1.0, rate * BURST)
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str, now: float | None = None) -> float:
        """Return 0 where the caller may go on, else the seconds until it may."""
        at = time.monotonic() if now is None else now
        left, since = self._left.pop(caller, (self.most, at))
        left = min(self.most, left + (at - since) * self.rate)
        may = left >= 1.0
        self._left[caller] = (left - 1.0 if may else left, at)
        if len(self._left) > CALLERS:
            self._left.popitem(last=False)
        return 0.0 if may else (1.0 - left) / self.rate


class Guard:
    """The outermost layer of the application.

    Parameters
    ----------
    app
        What it guards.
    options, tokens, measures
        Of the service.
    """

    def __init__(self, app: ASGIApp, options: Options, tokens: Tokens, measures: Measures) -> None:
        self.app, self.options, self.tokens, self.measures = app, options, tokens, measures
        self.rates = Rates(options.rate)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        try:
            self._check(scope)
            await self.app(scope, self._bounded(Headers(scope=scope), receive), sending)
        except RefusedError as error:
            await answer_to(error)(scope, receive, sending)
        finally:
            seconds = time.perf_counter() - began
            route = getattr(scope.get("route"), "path", "other")
            self.measures.request(route, status, seconds)
            if status >= 400 or scope["method"] not in SAFE:
                caller: Caller | None = scope.get("caller")
                log(
                    "request",
                    method=scope["method"],
                    path=scope["path"],
                    status=status,
                    ms=round(1000 * seconds, 1),
                    caller=None if caller is None else caller.name,
                )

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        name = urlsplit(f"//{host}").hostname if _fits(host) else None
        if not self.options.protected and name not in (*LOOPBACK, *self.options.names):
            # a page of another site whose name leads to this machine would else be let in
            raise RefusedError(421, f"this service is not called {host[:200]!r}; see --name")
        origin = headers.get("origin")
        if scope["method"] not in SAFE and origin is not None and urlsplit(origin).netloc != host:
            raise RefusedError(403, "the request comes from a page of another site")
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdecimal()) or int(length) > self.options.body_bytes:
            raise RefusedError(413, f"the body is larger than {self.options.body_bytes:,} bytes")
        caller = self._who(scope, headers)
        scope["caller"] = caller
        wait = self.rates.take(caller.name)
        if wait:
            raise RefusedError(
                429, f"more than {self.options.rate:g} requests a second", {"Retry-After": str(int(wait) + 1)}
            )

    def _who(self, scope: Scope, headers: Headers) -> Caller:
        address = (scope.get("client") or ("unknown",))[0]
        if not self.options.protected:
            return Caller(address, SCOPES)
        scheme, _, shown = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            shown = cookie_parser(headers.get("cookie", "")).get(COOKIE, "")
        token = self.tokens.who(shown.strip()) if shown else None
        return Caller(address, ()) if token is None else Caller(token.id, token.scopes)

    def _bounded(self, headers: Headers, receive: Receive) -> Receive:
        got = 0

        async def bounded() -> Message:
            nonlocal got
            message = await receive()
            got += len(message.get("body", b""))
            if got > self.options.body_bytes:
                # of the kind that reading a body passes on
                raise HTTPException(413, f"the body is larger than {self.options.body_bytes:,} bytes")
            return message

        return bounded


def _fits(host: str) -> bool:
    try:
        urlsplit(f"//{host}").hostname  # noqa: B018
    except ValueError:
        return False
    return len(host) <= 300


def needs(request: Request, scope: str) -> Caller:
    """Return who asks.

    Raises
    ------
    RefusedError
        401 where no token was shown, 403 where it has not the scope.
    """
    caller: Caller = request.scope["caller"]
    if not caller.scopes:
        raise RefusedError(
            401,
            "a token is needed; see tidegrid token create",
            {"WWW-Authenticate": 'Bearer realm="tidegrid"'},
        )
    if scope not in caller.scopes:
        raise RefusedError(403, f"the token has not the scope {scope}")
    return caller
