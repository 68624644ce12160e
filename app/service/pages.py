"""The page: server-rendered views of what the API tells, for people."""

import re
from collections.abc import Mapping
from datetime import datetime
from html import escape
from pathlib import Path
from secrets import token_hex
from typing import Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import pandas as pd
from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pydantic import ValidationError
from starlette.staticfiles import StaticFiles

from tidegrid.app.board import KIND_NAMES
from tidegrid.app.service import api
from tidegrid.app.service.charts import Chart
from tidegrid.app.service.exports import TABLES, as_csv, jobs_table
from tidegrid.app.service.guarding import COOKIE, Caller, Rates, needs
from tidegrid.app.service.problems import RefusedError
from tidegrid.app.service.running import NotReadyError, Service
from tidegrid.app.service.view import View
from tidegrid.app.service.worker import WorkerDiedError
from tidegrid.errors import InputError, printable
from tidegrid.pipeline.whatif import PARAMETERS, Question
from tidegrid.validation import first_error
from tidegrid.zones import zone_of

HERE = Path(__file__).parent

VIEWS = (
    ("/", "Now"),
    ("/plan", "Plan"),
    ("/jobs", "Jobs"),
    ("/forecasts", "Forecasts"),
    ("/what-if", "What if"),
    ("/savings", "Savings"),
)

ASKS = ("/what-if",)
"""Views that are made at each call: they answer what is asked."""

MOST_ROWS = 200
"""Jobs of a page of the list."""

MOST_NODES = 72
"""Nodes that are shown row by row; more are shown as tiles."""

JOB_FIELDS = ("gpus", "kind", "priority", "walltime_h", "gpu_type", "user", "group", "name")

FEATURE_FIELDS = ("variant", "model_params_b", "tokens_per_epoch_m")

FIELDS = (*JOB_FIELDS, *FEATURE_FIELDS, "node", "app", "factor", "without", "parameter", "value")
"""The fields of the form of a what-if."""

_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?\+00:00")


def _local(text: str | None, zone: str) -> str:
    """Return a text with its UTC instants as the zone's wall clock shows them."""
    if text is None:
        return "–"

    def shown(found: re.Match[str]) -> str:
        return f"{datetime.fromisoformat(found[0]).astimezone(zone_of(zone)):%a %d %b %H:%M}"

    return _INSTANT.sub(shown, text)


def _doing(text: str) -> bytes:
    """Return what the service does as the page shows it; nothing for nothing."""
    return f" {escape(printable(text))} …".encode("utf-8", "backslashreplace") if text else b""


def _until(text: str, since: str, zone: str) -> str:
    """Return an instant without its day where that is the day of another one."""
    at, first = (datetime.fromisoformat(one).astimezone(zone_of(zone)) for one in (text, since))
    return f"{at:%H:%M}" if at.date() == first.date() else f"{at:%a %d %b %H:%M}"


def _hours(minutes: float | None) -> str:
    if minutes is None:
        return "–"
    sign, size = ("−" if minutes < 0 else "+"), abs(minutes)
    return f"{sign}{size / 60:.1f} h" if size >= 90 else f"{sign}{size:.0f} min"


def _percent(share: float | None, digits: int = 0) -> str:
    return "–" if share is None else f"{100 * share:.{digits}f} %"


def _number(value: float | None, digits: int = 0) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def environment() -> Environment:
    """Return the templates: every value is escaped, and one that is not there is an error."""
    found = Environment(
        loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    found.filters |= {
        "local": _local,
        "until": _until,
        "moved": _hours,
        "percent": _percent,
        "number": _number,
        "plain": printable,
        "segment": lambda text: quote(text, safe=""),
    }
    found.globals |= {"views": VIEWS, "kind_names": {**KIND_NAMES, "down": "down", "": "free"}}
    return found


def router(service: Service) -> APIRouter:
    """Return the routes of the page."""
    page = APIRouter()
    templates, questions = environment(), Rates(service.options.question_rate)
    kept, doing = api.Kept(), token_hex(16)

    def render(name: str, here: str, status: int = 200, **values: Any) -> HTMLResponse:
        view = service.view
        values.setdefault("instance", service.state())
        text = templates.get_template(name).render(
            here=here,
            protected=service.options.protected,
            site=service.options.site.resolve().name,
            view=view,
            zone="UTC" if view is None else view.timezone,
            **values,
        )
        return HTMLResponse(text.encode("utf-8", "backslashreplace"), status_code=status)

    def entered(request: Request) -> Caller | None:
        """Return who asks; None for somebody who has to show a token first."""
        try:
            return needs(request, "read")
        except RefusedError as error:
            if error.status != 401:
                raise
            return None

    def shown(name: str, here: str, make: Any) -> Any:
        async def answer(request: Request) -> Response:
            if entered(request) is None:
                wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
                return RedirectResponse(f"/login?{urlencode({'next': wanted})}", 303)
            view = service.view
            if view is None:
                return render("starting.html", here, 503)
            instance = service.state()
            # what the service does at the moment stands for itself; the rest of a page changes with the view alone
            key = (request.url.path, request.url.query, instance["leading"], instance["problem"])
            body = None if here in ASKS else kept.find(view, key)
            try:
                if body is None:
                    page_ = render(
                        name, here, instance=instance | {"doing": doing}, **await make(request, view)
                    )
                    body = bytes(page_.body)
                    kept.keep(view, key, body)
                return HTMLResponse(body.replace(f" {doing} …".encode(), _doing(instance["doing"])))
            except RefusedError as error:
                return render("refused.html", here, error.status, text=str(error))

        return answer

    async def now(request: Request, view: View) -> dict[str, Any]:
        return now_of(view)

    async def plan(request: Request, view: View) -> dict[str, Any]:
        return {
            "charts": [(app, *charts_of(app, view)) for app in view.apps],
            "columns_rows": TABLES["plan"](view),
        }

    async def jobs(request: Request, view: View) -> dict[str, Any]:
        asked = request.query_params
        query, state = asked.get("q", "")[:200], asked.get("state", "")[:20]
        offset = (
            int(asked["offset"]) if asked.get("offset", "").isdecimal() and len(asked["offset"]) < 9 else 0
        )
        rows = api.matching(view, query, state)
        return {
            "query": query,
            "state": state,
            "offset": offset,
            "total": len(rows),
            "rows": rows[offset : offset + MOST_ROWS],
            "step": MOST_ROWS,
            "csv": urlencode({"q": query, "state": state}),
        }

    async def job(request: Request, view: View) -> dict[str, Any]:
        found = api.job_of(view, request.path_params["job"])
        return {"job": found, "chart": moves_chart(found, view.timezone)}

    async def forecasts(request: Request, view: View) -> dict[str, Any]:
        return {"charts": [(app, *charts_of(app, view)) for app in view.apps]}

    async def savings(request: Request, view: View) -> dict[str, Any]:
        return {"fifo": beside_fifo(view)}

    async def what_if(request: Request, view: View) -> dict[str, Any]:
        asked = dict.fromkeys(FIELDS, "") | {
            k: v[:2000] for k, v in request.query_params.items() if k in FIELDS
        }
        answer, problem = None, None
        if any(asked[key] for key in ("gpus", "node", "app", "parameter", "without")):
            try:
                answer = await api.asked(service, questions, needs(request, "read"), question_of(asked))
            except (InputError, WorkerDiedError, NotReadyError, RefusedError) as error:
                problem = str(error)
        return {"asked": asked, "answer": answer, "problem": problem, "parameters": PARAMETERS}

    page.get("/")(shown("now.html", "/", now))
    page.get("/plan")(shown("plan.html", "/plan", plan))
    page.get("/jobs")(shown("jobs.html", "/jobs", jobs))
    page.get("/jobs/{job:path}")(shown("job.html", "/jobs", job))
    page.get("/forecasts")(shown("forecasts.html", "/forecasts", forecasts))
    page.get("/what-if")(shown("what-if.html", "/what-if", what_if))
    page.get("/savings")(shown("savings.html", "/savings", savings))

    @page.get("/export/{name}.csv")
    async def export(request: Request, name: str, caller: Caller = Depends(api._reads)) -> Response:
        view = service.shown()
        if name not in TABLES:
            raise RefusedError(404, f"there is no table {name[:50]!r}; there are {', '.join(TABLES)}")
        if name == "jobs":
            asked = request.query_params
            table = jobs_table(view, api.matching(view, asked.get("q", "")[:200], asked.get("state", "")))
        else:
            table = TABLES[name](view)
        text = as_csv(*table).encode("utf-8", "backslashreplace")
        kept = {"content-disposition": f'attachment; filename="tidegrid-{name}-{view.tick}.csv"'}
        return Response(text, media_type="text/csv; charset=utf-8", headers=kept)

    @page.get("/login")
    async def login(request: Request) -> Response:
        return render(
            "login.html", "/login", next=inside(request.query_params.get("next", "/")), failed=False
        )

    @page.post("/login")
    async def enter(request: Request) -> Response:
        form = parse_qs((await request.body()).decode("ascii", "replace"), max_num_fields=10)
        token = form.get("token", [""])[0].strip()
        target = inside(form.get("next", ["/"])[0])
        if service.tokens.who(token) is None:
            return render("login.html", "/login", 401, next=target, failed=True)
        out = RedirectResponse(target, 303)
        secure = request.url.scheme == "https"
        out.set_cookie(COOKIE, token, httponly=True, samesite="strict", secure=secure, max_age=30 * 86_400)
        return out

    @page.post("/logout")
    async def leave() -> Response:
        out = RedirectResponse("/login", 303)
        out.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return out

    page.mount("/static", StaticFiles(directory=HERE / "static"), name="static")
    return page


def inside(target: str) -> str:
    """Return an address of this page; the first view where it leads elsewhere."""
    parts = urlsplit(target) if target.isprintable() and "\\" not in target else None
    here = parts is not None and not parts.scheme and not parts.netloc and target.startswith("/")
    return target if here and not target.startswith("//") else "/"


def now_of(view: View) -> dict[str, Any]:
    """Return what the first view shows beside the view itself."""
    commit = view.commit
    waiting = [job for job in view.jobs.values() if job["state"] == "waiting" and job["start"]]
    grow = [
        {"app": app["app"], "pool": app["pool"], "before": app["held_before"], "after": app["held"]}
        for app in view.apps
        if app["held"] != app["held_before"]
    ]
    used = sum(node["gpus"] - node["free"] for node in view.nodes)
    return {
        "commit": commit,
        "starting": [job for job in view.jobs.values() if job["state"] == "starting"],
        "refused": [job for job in view.jobs.values() if job["state"] == "refused"],
        "next": waiting[:10],
        "grow": grow,
        "used": used,
        "tiles": len(view.nodes) > MOST_NODES,
        "with_free": [node for node in view.nodes if node["free"]],
    }


def beside_fifo(view: View) -> list[tuple[str, str, str]]:
    """Return the plan's figures beside those of first come, first served, as text."""
    plan, fifo = view.figures["plan"], view.figures["fifo"]
    hours = view.head["steps"] * view.head["step_minutes"] / 60

    def used(metrics: Mapping[str, float]) -> str:
        return f"{metrics['utilization'] * view.head['gpus'] * hours:,.0f}"

    return [
        (f"GPU-hours in use, next {hours:g} h", used(plan), used(fifo)),
        ("utilization", _percent(plan["utilization"], 1), _percent(fifo["utilization"], 1)),
        ("jobs with a place", f"{plan['placed']:g}", f"{fifo['placed']:g}"),
        ("realtime GPU-steps short of the planned need", f"{plan['shortfall']:g}", f"{fifo['shortfall']:g}"),
        ("value", f"{plan['value']:,.1f}", f"{fifo['value']:,.1f}"),
    ]


def charts_of(app: Mapping[str, Any], view: View) -> tuple[Any, Any]:
    """Return the charts of an app: its traffic with the band, and its GPUs."""
    traffic = Chart(
        f"{app['app']}: traffic an hour, forecast with its 80 % band, and what came", view.timezone
    )
    gpus = Chart(f"{app['app']}: GPUs needed and planned", view.timezone)
    hours = [one for one in app["forecast"] if one["q0.5"] is not None]
    traffic.band("band", ((pd.Timestamp(one["hour"]), one["q0.1"], one["q0.9"]) for one in hours))
    traffic.band("band past", ((pd.Timestamp(one["hour"]), one["low"], one["high"]) for one in app["past"]))
    traffic.line("middle", ((pd.Timestamp(one["hour"]), one["q0.5"]) for one in hours))
    came = [one for one in app["past"] if one["actual"] is not None]
    traffic.line("came", ((pd.Timestamp(one["hour"]), one["actual"]) for one in came))
    start = pd.Timestamp(view.now)
    step = pd.Timedelta(minutes=view.head["step_minutes"])
    for style, name in (("need", "need"), ("planned", "planned")):
        values = app[name]
        points = [(start + k * step, float(v)) for k, v in enumerate(values)]
        if points:
            points.append((start + len(values) * step, points[-1][1]))
        gpus.line(style, points, steps=True)
    return traffic.svg(), gpus.svg()


def moves_chart(job: Mapping[str, Any], zone: str) -> Any:
    """Return how a job's expected start moved from tick to tick."""
    chart = Chart(f"{job['job']}: expected start as told at each tick, with its 80 % band", zone, times=True)
    at = [(pd.Timestamp(one["now"]), one) for one in job["moves"]]
    chart.band("band", ((when, _seconds(one["low"]), _seconds(one["high"])) for when, one in at))
    chart.line("middle", ((when, _seconds(one["start"])) for when, one in at))
    return chart.svg()


def _seconds(text: str) -> float:
    return float(pd.Timestamp(text).timestamp())


def _value(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def question_of(asked: Mapping[str, str]) -> Question:
    """Return the question that the form's fields ask.

    Raises
    ------
    InputError
        A field is not usable; it is named.
    """
    told: dict[str, Any] = {}
    if asked.get("gpus"):
        job = {name: asked[name] for name in JOB_FIELDS if asked.get(name)}
        features = {name: asked[name] for name in FEATURE_FIELDS if asked.get(name)}
        told["job"] = {**job, "features": features}
    if asked.get("node"):
        pool, _, node = asked["node"].rpartition("/")
        told["nodes"] = [{"pool": pool, "node": node}]
    if asked.get("app"):
        told["apps"] = [{"app": asked["app"], "factor": asked.get("factor") or "2"}]
    if asked.get("without"):
        told["without"] = asked["without"].split()
    if asked.get("parameter"):
        told["policy"] = {asked["parameter"]: _value(asked.get("value", ""))}
    try:
        return Question.model_validate(told)
    except ValidationError as error:
        raise first_error(error) from None
