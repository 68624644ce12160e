"""The application: API, page, health and metrics, and the server that runs it."""

import contextlib
import signal
import socket
from collections.abc import AsyncIterator
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.middleware.gzip import GZipMiddleware

import tidegrid
from tidegrid.app.service import api, pages
from tidegrid.app.service.guarding import Guard
from tidegrid.app.service.logs import log, set_up
from tidegrid.app.service.measuring import Measures
from tidegrid.app.service.options import Options
from tidegrid.app.service.problems import add_handlers, problem
from tidegrid.app.service.running import Service
from tidegrid.errors import InputError

DESCRIPTION = (
    "What a GPU cluster will need, and who gets which GPU when: state, plan, jobs, forecasts, what-ifs."
)


def application(service: Service) -> FastAPI:
    """Return the application of a service, which begins and ends with it."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await service.start()
        try:
            yield
        finally:
            await service.stop()

    measures = Measures()
    measures.watch(service)
    app = FastAPI(
        title="tidegrid",
        version=tidegrid.__version__,
        description=DESCRIPTION,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    add_handlers(app)
    app.include_router(api.router(service))
    app.include_router(pages.router(service), include_in_schema=False)
    plain = app.openapi

    def documented() -> dict[str, Any]:
        return api.describe(plain())

    app.openapi = documented  # type: ignore[method-assign]

    @app.get("/healthz", include_in_schema=False)
    async def healthz() -> dict[str, str]:
        """Whether the process answers."""
        return {"status": "ok"}

    @app.get("/readyz", include_in_schema=False)
    async def readyz() -> Any:
        """Whether there is something to show."""
        if not service.ready:
            return problem(
                503, f"nothing is planned yet ({service.doing or 'waiting'})", {"Retry-After": "2"}
            )
        return {"status": "ready", "leading": service.leading, "tick": service.state()["tick"]}

    @app.get("/metrics", include_in_schema=False)
    async def metrics(caller: api.Read) -> Response:
        """What Prometheus reads."""
        return Response(generate_latest(measures.registry), headers={"content-type": CONTENT_TYPE_LATEST})

    app.add_middleware(GZipMiddleware, minimum_size=2000, compresslevel=3)
    app.add_middleware(Guard, options=service.options, tokens=service.tokens, measures=measures)
    return app


def bound(options: Options) -> socket.socket:
    """Return the socket that the service listens on.

    Raises
    ------
    InputError
        The address is not this machine's, or the port is taken.
    """
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((options.host, options.port))
    except OSError as error:
        found.close()
        raise InputError(
            f"cannot listen on {options.host}:{options.port} ({error.strerror or error})",
            field="--port",
            fix="name a free port, and an address of this machine",
        ) from None
    return found


def serve(options: Options) -> None:
    """Run the service until it is told to end.

    Raises
    ------
    InputError
        The store cannot be opened, the address cannot be listened on, or it is open to others and nobody has a token.
    """
    listening = bound(options)
    set_up(options.log_level)
    service = Service(options)
    if options.protected and not service.tokens.list():
        listening.close()
        raise InputError(
            f"{options.host} can be reached by others, and there is no token",
            field="--host",
            fix=f"make one first: tidegrid token create NAME --store {options.store}",
        )
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    log("listening", url=f"http://{shown}:{port}/", tokens=options.protected)
    config = uvicorn.Config(
        application(service),
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
        lifespan="on",
        h11_max_incomplete_event_size=65_536,
    )
    # the server raises the signal that ended it once more: the service has ended well by then
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    _Server(config, service).run(sockets=[listening])


class _Server(uvicorn.Server):
    """A server whose streams end when it is told to."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to end: listeners are let go, so that nothing waits for them."""
        self.service.let_go()
        super().handle_exit(sig, frame)
