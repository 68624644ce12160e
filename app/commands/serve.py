"""``serve`` and ``token``: keep a site planned and show it, and say who may ask."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegrid.app.common import (
    MOST_DAYS,
    JsonFlag,
    ModeOption,
    PolicyOption,
    SeedOption,
    TimeLimitOption,
    TimezoneOption,
    check_mode,
    print_json,
    say,
    table,
)

if TYPE_CHECKING:
    from tidegrid.app.service.tokens import Tokens

Store = Annotated[
    str, typer.Option("--store", help="The store of the service: a SQLite file or a database's URL.")
]

EXAMPLE = """
Example: `tidegrid serve tidegrid-demo/site` plans the site again and again, and shows it at http://127.0.0.1:8080/.
"""

token = typer.Typer(
    name="token", help="Say who may ask a service that others can reach.", no_args_is_help=True
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("serve", epilog=EXAMPLE)(serve)
    app.add_typer(token, epilog="Example: `tidegrid token create dashboard --store my-site/state.db`")


def serve(
    site: Annotated[
        Path, typer.Argument(help="The site's folder: cluster.json, jobs, traffic, requests, running.")
    ],
    store: Annotated[
        str | None,
        typer.Option("--store", help="A SQLite file or a database's URL; default: SITE/state.db."),
    ] = None,
    models: Annotated[
        Path | None, typer.Option("--models", help="Model store; default: SITE/models, trained where absent.")
    ] = None,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; others than loopback need a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0 for any free one.")] = 8080,
    every: Annotated[
        float, typer.Option("--every", min=0.05, max=1440, help="Minutes between ticks on the schedule.")
    ] = 30.0,
    shadow: Annotated[
        bool, typer.Option("--shadow", help="Hand nothing over: write no commit.json.")
    ] = False,
    tokens: Annotated[bool, typer.Option("--tokens", help="Ask for tokens on loopback too.")] = False,
    name: Annotated[
        list[str] | None,
        typer.Option(
            "--name", help="A host name by which loopback is reached, as behind a proxy; repeatable."
        ),
    ] = None,
    site_clock: Annotated[
        bool | None,
        typer.Option(
            "--site-clock/--clock",
            help="Begin at the last instant of the files, or go by this machine's clock; default: the first for "
            "made-up sites.",
        ),
    ] = None,
    mode: ModeOption = "fast",
    time_limit: TimeLimitOption = None,
    policy: PolicyOption = None,
    refit_hours: Annotated[
        float,
        typer.Option(
            "--refit-hours",
            min=0,
            max=24.0 * MOST_DAYS,
            help="How often champions are challenged; 0 for never.",
        ),
    ] = 168.0,
    rate: Annotated[
        float, typer.Option("--rate", min=0.1, max=1e6, help="Requests a second that one caller may send.")
    ] = 100.0,
    questions: Annotated[
        float,
        typer.Option("--questions", min=0.1, max=1e6, help="What-ifs a second that one caller may ask."),
    ] = 10.0,
    log_level: Annotated[
        str,
        typer.Option(
            "--log-level", help="DEBUG, INFO, WARNING or ERROR; logs are JSON lines on standard error."
        ),
    ] = "INFO",
    timezone: TimezoneOption = None,
    seed: SeedOption = 0,
) -> None:
    """Keep a site planned: tick on a schedule and at changes, and serve page, API and metrics until stopped."""
    from tidegrid.app.service.options import Options
    from tidegrid.app.service.serving import serve as run_service
    from tidegrid.errors import InputError
    from tidegrid.files import check_folder
    from tidegrid.pipeline.control import Settings
    from tidegrid.pipeline.policy import Policy
    from tidegrid.pipeline.site import Site

    check_mode(mode, time_limit)
    if log_level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise InputError(
            f"{log_level!r} is no level", field="--log-level", fix="use DEBUG, INFO, WARNING or ERROR"
        )
    if not (site / "cluster.json").is_file():
        Site.read(site)  # it is refused by name before a store is made
    settings = Settings(
        policy=Policy.read(policy) if policy else Policy(),
        mode=mode,
        time_limit=time_limit,
        seed=seed,
        refit_hours=refit_hours or None,
    )
    run_service(
        Options(
            site=site,
            store=store or str(site / "state.db"),
            models=check_folder(models or site / "models"),
            settings=settings,
            timezone=timezone,
            host=host,
            port=port,
            every_minutes=every,
            site_clock=site_clock,
            shadow=shadow,
            tokens=tokens,
            names=tuple(name or ()),
            rate=rate,
            question_rate=questions,
            log_level=log_level,
        )
    )


@token.command("create", epilog="Example: `tidegrid token create dashboard --store my-site/state.db`")
def create(
    name: Annotated[str, typer.Argument(help="Who or what it is for.")],
    store: Store,
    scope: Annotated[
        list[str] | None, typer.Option("--scope", help="read (the default) or write; repeatable.")
    ] = None,
    json_: JsonFlag = False,
) -> None:
    """Make a token and print it, this once: the store keeps only its hash."""
    made = _tokens(store).create(name, tuple(scope or ["read"]))
    if json_:
        print_json({"token": made})
    else:
        say(made)


@token.command("list", epilog="Example: `tidegrid token list --store my-site/state.db`")
def list_(store: Store, json_: JsonFlag = False) -> None:
    """List the tokens: id, name, scopes, and when they were made."""
    found = _tokens(store).list()
    if json_:
        rows = [{"id": t.id, "name": t.name, "scopes": list(t.scopes), "created": t.created} for t in found]
        print_json({"tokens": rows})
        return
    table(
        "",
        ["id", "name", "scopes", "created"],
        [[t.id, t.name, " ".join(t.scopes), t.created] for t in found],
        left=4,
    )


@token.command("revoke", epilog="Example: `tidegrid token revoke 1a2b3c4d --store my-site/state.db`")
def revoke(number: Annotated[str, typer.Argument(metavar="ID", help="As listed.")], store: Store) -> None:
    """Forget a token: a running service refuses it within seconds."""
    _tokens(store).revoke(number)
    say(f"{number} is revoked")


def _tokens(store: str) -> "Tokens":
    from tidegrid.app.service.tokens import Tokens
    from tidegrid.pipeline.rolling import StateStore

    return Tokens(StateStore(store))
