"""Errors as problem details (RFC 9457), with the one line that the command line prints."""

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException

from tidegrid.app.service.running import NotReadyError
from tidegrid.app.service.worker import FaultError, WorkerDiedError
from tidegrid.errors import InputError, TidegridError, printable
from tidegrid.scheduler import StalePlanError

MEDIA = "application/problem+json"


class Problem(BaseModel):
    """Why a request failed (RFC 9457).

    Parameters
    ----------
    type
        ``about:blank``: the title says it.
    title, status
        The HTTP status, in words and as a number.
    detail
        One line: the place, what is wrong, and what would be right.
    field, fix
        The same in parts, where they are known.
    """

    model_config = ConfigDict(extra="forbid")

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    field: str | None = None
    fix: str | None = None


class RefusedError(TidegridError):
    """A request that is refused with an HTTP status.

    Parameters
    ----------
    status
        The status.
    detail
        Why, in one line.
    headers
        Further headers of the answer.
    """

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(printable(detail))
        self.status, self.headers = status, dict(headers or {})


def problem(
    status: int, detail: str, headers: Mapping[str, str] | None = None, **parts: str | None
) -> JSONResponse:
    """Return an answer that says what is wrong."""
    told = Problem(title=HTTPStatus(status).phrase, status=status, detail=printable(detail), **parts)
    return JSONResponse(
        told.model_dump(exclude_none=True), status_code=status, headers=dict(headers or {}), media_type=MEDIA
    )


def answer_to(error: Exception) -> JSONResponse:
    """Return the answer to an error."""
    if isinstance(error, RefusedError):
        return problem(error.status, str(error), error.headers)
    if isinstance(error, InputError):
        return problem(422, str(error), field=error.field, fix=error.fix)
    if isinstance(error, StalePlanError):
        return problem(409, str(error))
    if isinstance(error, NotReadyError | WorkerDiedError):
        return problem(503, str(error), {"Retry-After": "2"})
    if isinstance(error, TidegridError) and not isinstance(error, FaultError):
        return problem(422, str(error))
    logging.getLogger("tidegrid").error("fault", exc_info=error)
    return problem(500, "a fault of tidegrid's own; the log says which")


def add_handlers(app: FastAPI) -> None:
    """Let every error be told as problem details."""

    async def known(request: Request, error: Exception) -> Any:
        return answer_to(error)

    async def plain(request: Request, error: Exception) -> Any:
        assert isinstance(error, HTTPException)
        detail = "there is nothing at this address" if error.status_code == 404 else str(error.detail)
        return problem(error.status_code, detail, error.headers)

    async def invalid(request: Request, error: Exception) -> Any:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"][1:]) or str(first["loc"][0])
        said = str(first["msg"])
        told = InputError(said[:1].lower() + said[1:], field=place[:200])
        return problem(422, str(told), field=told.field)

    app.add_exception_handler(TidegridError, known)
    app.add_exception_handler(HTTPException, plain)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(Exception, known)
