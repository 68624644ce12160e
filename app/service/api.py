"""The API, version 1: see ``docs/api.md``. Answers come from memory; only old commits are read from the store."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials

from tidegrid.app.service import documents
from tidegrid.app.service.guarding import Caller, Rates, bearer, needs
from tidegrid.app.service.problems import MEDIA, Problem, RefusedError
from tidegrid.app.service.running import Service
from tidegrid.app.service.view import View
from tidegrid.errors import InputError
from tidegrid.pipeline.whatif import Question

MOST_QUESTIONS = 16
"""What-ifs that may wait for their answers at once."""

MOST_KEPT = 300
"""Answers of one commit that are kept at most; then they are made again."""

MOST_COMMITS = 200
"""Commits that are listed at most."""

Shown = Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]


def _reads(request: Request, shown: Shown) -> Caller:
    return needs(request, "read")


def _writes(request: Request, shown: Shown) -> Caller:
    return needs(request, "write")


Read = Annotated[Caller, Depends(_reads)]
Write = Annotated[Caller, Depends(_writes)]
JobId = Annotated[str, Path(max_length=200, description="The job's id; it may hold slashes.")]
Name = Annotated[str, Path(max_length=100, description="The estimator's name.")]
Text = Annotated[str, Query(max_length=200)]


def found(*codes: int) -> dict[int | str, dict[str, Any]]:
    """Return the documents of the errors of a route."""
    every = {400, 401, 403, 413, 421, 422, 429, 503, *codes}
    schema = {"$ref": f"#/components/schemas/{Problem.__name__}"}
    return {
        code: {"description": "Why not.", "content": {MEDIA: {"schema": schema}}} for code in sorted(every)
    }


def describe(schema: dict[str, Any]) -> dict[str, Any]:
    """Add to an OpenAPI document the schema that every error has."""
    problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    schema.setdefault("components", {}).setdefault("schemas", {})[Problem.__name__] = problem
    return schema


def told(tag: str, model: Any = None, scope: str = "read", *codes: int) -> dict[str, Any]:
    """Return what the OpenAPI document says of a route: its tag, its answer, its errors, and the scope it needs."""
    return {
        "tags": [tag],
        "response_model": model,
        "responses": found(*codes),
        "openapi_extra": {"x-scope": scope},
    }


def as_json(value: Any) -> Response:
    """Return an answer in JSON; its model in the OpenAPI document is held against it in tests, not at each call."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(text.encode("utf-8", "backslashreplace"), media_type="application/json")


class Kept:
    """What was made of the view, each once a commit."""

    def __init__(self) -> None:
        self._of: View | None = None
        self._made: dict[Any, Any] = {}

    def find(self, view: View, key: Any) -> Any:
        """Return what is kept under a key; None where nothing is."""
        if view is not self._of or len(self._made) > MOST_KEPT:
            self._of, self._made = view, {}
        return self._made.get(key)

    def keep(self, view: View, key: Any, value: Any) -> None:
        """Keep what was made, if the view is still the same."""
        if view is self._of:
            self._made[key] = value

    def get(self, view: View, key: Any, make: Callable[[View], Any]) -> Response:
        """Return the answer under a key in JSON, made where it is not there yet."""
        body = self.find(view, key)
        if body is None:
            body = as_json(make(view)).body
            self.keep(view, key, body)
        return Response(body, media_type="application/json")


def matching(view: View, query: str, state: str) -> list[dict[str, Any]]:
    """Return the jobs that hold all words of a query in their id, name, user, tenant, kind, state or reason."""
    words = query.casefold().split()
    names = ("job", "name", "user", "tenant", "kind", "state", "pool", "reason")
    out = []
    for job in view.jobs.values():
        if state and job["state"] != state:
            continue
        text = " ".join(str(job[name]) for name in names).casefold() if words else ""
        if all(word in text for word in words):
            out.append(job)
    return out


def router(service: Service) -> APIRouter:
    """Return the routes of a service."""
    api = APIRouter(prefix="/api/v1")
    answers, questions = Kept(), Rates(service.options.question_rate)

    def stamped(view: View, more: dict[str, Any]) -> dict[str, Any]:
        return {"tick": view.tick, "now": view.now, **more}

    @api.get("/state", **told("state", documents.State))
    async def state(caller: Read) -> Response:
        """The cluster at the last commit: what runs where, what is short."""
        view = service.shown()
        return as_json(state_of(view, service.state()))

    @api.get("/plan", **told("state", documents.Plan))
    async def plan(caller: Read, by: Annotated[str, Query(pattern="^(auto|gpu|node)$")] = "auto") -> Response:
        """Who gets which GPU when; ``by``: gpu, node (on large clusters), or what fits the cluster's size."""
        return answers.get(service.shown(), ("plan", by), lambda view: stamped(view, plan_of(view, by)))

    @api.get("/jobs", **told("jobs", documents.Jobs))
    async def jobs(
        caller: Read,
        q: Text = "",
        state: Annotated[str, Query(pattern="^(|lost|running|starting|waiting|refused)$")] = "",
        offset: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
    ) -> Response:
        """Jobs, those that run first, then by expected start; ``q``: words that are all to be found."""

        def made(view: View) -> dict[str, Any]:
            rows = matching(view, q, state)
            return stamped(
                view, {"total": len(rows), "offset": offset, "jobs": rows[offset : offset + limit]}
            )

        # what is searched for differs from caller to caller, and is not kept
        view = service.shown()
        return as_json(made(view)) if q else answers.get(view, ("jobs", state, offset, limit), made)

    @api.get("/jobs/{job:path}", **told("jobs", documents.Job, "read", 404))
    async def job(caller: Read, job: JobId) -> Response:
        """One job: when it is expected, why it waits, how its expected times moved."""
        return as_json(job_of(service.shown(), job))

    @api.get("/forecasts", **told("forecasts", documents.Forecasts))
    async def forecasts(caller: Read) -> Response:
        """Each app's traffic with bands, the GPUs that it needs and gets, and what came."""
        return answers.get(
            service.shown(),
            "forecasts",
            lambda view: stamped(view, {"step_minutes": view.head["step_minutes"], "apps": view.apps}),
        )

    @api.get("/accuracy", **told("forecasts", documents.Accuracy))
    async def accuracy(caller: Read) -> Response:
        """How forecasts and expected times fared."""
        return answers.get(service.shown(), "accuracy", lambda view: stamped(view, view.fared))

    @api.get("/savings", **told("savings", documents.Savings))
    async def savings(caller: Read) -> Response:
        """GPU-hours against peak reservation by week, and tenants' usage."""
        return answers.get(
            service.shown(), "savings", lambda view: stamped(view, {**view.savings, "figures": view.figures})
        )

    @api.get("/shadow", **told("state", documents.Shadow, "read", 404))
    async def shadow(caller: Read) -> Response:
        """In shadow mode: what happened on each day, beside what the decisions that nobody followed would have done."""
        view = service.shown()
        if view.shadow is None:
            raise RefusedError(404, "commits are handed over here: only serve --shadow compares")
        return answers.get(view, "shadow", lambda view: stamped(view, {"days": view.shadow}))

    @api.get("/models", **told("models", documents.Models))
    async def models(caller: Read) -> Response:
        """Which model answers: champion, challenger, earlier champions."""
        return as_json({"models": service.shown().models})

    @api.post("/models/{name}/champion", **told("models", documents.Models, "write"))
    async def promote(caller: Write, name: Name, wanted: documents.Promotion) -> Response:
        """Make a version the champion, or go back to the one before."""
        return as_json({"models": await service.promote(name, wanted.version)})

    @api.get("/commits", **told("commits", documents.Commits))
    async def commits(caller: Read, limit: Annotated[int, Query(ge=1, le=MOST_COMMITS)] = 24) -> Response:
        """The latest commits, the newest first."""
        view, key = service.view, ("commits", limit)
        if view is not None and answers.find(view, key) is not None:
            return Response(answers.find(view, key), media_type="application/json")
        rows = await asyncio.to_thread(service.store.commits, limit)
        told = as_json({"commits": [short(one.document) for one in reversed(rows)]})
        if view is not None and rows and rows[-1].tick == view.tick:
            answers.find(view, key)
            answers.keep(view, key, told.body)
        return told

    @api.get("/commits/latest", **told("commits", None, "read", 404))
    async def latest(caller: Read) -> dict[str, Any]:
        """What the last commit says: the same document as ``commit.json``."""
        return service.shown().commit

    @api.get("/commits/{tick}", **told("commits", None, "read", 404))
    async def commit(caller: Read, tick: Annotated[int, Path(ge=1, le=2**31 - 1)]) -> dict[str, Any]:
        """What an earlier commit said."""
        kept = await asyncio.to_thread(service.store.commit, tick)
        if kept is None:
            raise RefusedError(404, f"there is no commit {tick}")
        return kept.document

    @api.post("/ticks", status_code=202, **told("commits", documents.Wanted, "write"))
    async def ticks(caller: Write) -> documents.Wanted:
        """Ask for a tick now: after files were written elsewhere, or before the schedule says so."""
        if not service.leading:
            raise RefusedError(
                503, "this instance waits for its turn; ask the one that leads", {"Retry-After": "5"}
            )
        service.want(f"asked for by {caller.name}")
        return documents.Wanted(wanted=True, leading=service.leading)

    @api.post("/what-if", **told("what-if", documents.Answer))
    async def what_if(caller: Read, question: Question) -> Response:
        """What would be decided: answered from the state of the last commit, which stays as it is."""
        return as_json(await asked(service, questions, caller, question))

    @api.get("/events", **told("events", documents.Events))
    async def events(caller: Read) -> Response:
        """The latest surprises, the newest first."""
        return answers.get(service.shown(), "events", lambda view: {"events": view.events})

    @api.get(
        "/events/stream",
        tags=["events"],
        response_class=StreamingResponse,
        responses={200: {"description": "A stream.", "content": {"text/event-stream": {}}}, **found()},
        openapi_extra={"x-scope": "read"},
    )
    async def stream(caller: Read) -> StreamingResponse:
        """Server-sent events: ``commit`` (a new plan), ``state`` (what the service does), ``problem``."""
        return StreamingResponse(_lines(service), media_type="text/event-stream")

    return api


async def asked(service: Service, rates: Rates, caller: Caller, question: Question) -> dict[str, Any]:
    """Return the answer to a question, if its caller has not asked too many."""
    wait = rates.take(caller.name)
    if wait:
        raise RefusedError(
            429, f"more than {rates.rate:g} questions a second", {"Retry-After": str(int(wait) + 1)}
        )
    if service.questions >= MOST_QUESTIONS:
        # an answer that comes after its caller has gone helps nobody
        raise RefusedError(503, f"{service.questions} questions wait for their answers", {"Retry-After": "2"})
    return await service.ask(question.model_dump(mode="json"))


async def _lines(service: Service) -> AsyncIterator[str]:
    yield "retry: 3000\n\n"
    async for message in service.listen():
        if message is None:
            yield ": still here\n\n"
            continue
        kind, data = message
        yield f"event: {kind}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"


def state_of(view: View, instance: dict[str, Any]) -> dict[str, Any]:
    """Return the state's document."""
    lines = {name: view.commit[name] for name in ("risks", "deadlines", "notes")}
    return {
        "tick": view.tick,
        "now": view.now,
        "timezone": view.timezone,
        **view.head,
        "pools": view.pools,
        "nodes": view.nodes,
        **lines,
        "instance": instance,
    }


def plan_of(view: View, by: str = "auto") -> dict[str, Any]:
    """Return the grid by GPU or by node, with the plan's figures."""
    grid = view.grid
    if by == "node" and grid["by"] != "node":
        raise InputError("the plan of a small cluster is told by GPU alone", field="by", fix="leave it out")
    by = grid["by"] if by == "auto" else by
    left_out = "blocks" if by == "node" else "nodes"
    return {
        **{name: value for name, value in grid.items() if name != left_out},
        "by": by,
        "figures": view.figures,
    }


def job_of(view: View, job: str) -> dict[str, Any]:
    """Return a job.

    Raises
    ------
    RefusedError
        404: there is none of this id in the last commit.
    """
    if job not in view.jobs:
        raise RefusedError(404, f"there is no job {job[:200]!r} in the last commit")
    return view.jobs[job]


def short(document: dict[str, Any]) -> dict[str, Any]:
    """Return a commit in short."""
    return {
        "tick": document["tick"],
        "now": document["now"],
        "starts": len(document["start"]),
        "running": document["running"],
        "waiting": len(document["waiting"]),
        "risks": len(document["risks"]),
        "plan_sha256": document["plan_sha256"],
    }
