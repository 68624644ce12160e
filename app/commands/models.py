"""``models``: the versions in a model store, and which of them answers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegrid.app.common import DONE, REFUSED, JsonFlag, print_json, say, table

if TYPE_CHECKING:
    from tidegrid.models import ModelStore, Version

Store = Annotated[Path, typer.Argument(help="The model store: a site's folder, or its folder models.")]
Name = Annotated[str, typer.Argument(help="The estimator, such as recurring.")]
Ref = Annotated[str, typer.Argument(help="A version's id, the beginning of one, champion or challenger.")]
Reason = Annotated[str, typer.Option("--reason", help="The reason, kept in the log.")]
At = Annotated[str | None, typer.Option("--at", help="The instant to record; default: now.")]

models = typer.Typer(
    name="models",
    help="Show the versions of fitted estimators, and choose which of them answers.",
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(models, epilog="Example: `tidegrid models list my-site`")


@models.command("list", epilog="Example: `tidegrid models list my-site`")
def list_(
    store: Store,
    name: Annotated[str | None, typer.Argument(help="Only this estimator.")] = None,
    json_: JsonFlag = False,
) -> None:
    """List the versions of every estimator, the champion and the challenger marked."""
    opened = _open(store)
    found = [_record(version) for version in opened.list(_known(opened, name))]
    if json_:
        print_json({"versions": found})
        return
    rows = [
        [
            v["estimator"], v["version"], ", ".join(v["aliases"]), _short(v["window"]), str(v["rows"] or "–"),
            _figure(v["metrics"], "loss"), f"{v['bytes'] / 1e3:,.0f} kB", v["problem"],
        ]
        for v in found
    ]  # fmt: skip
    columns = ["estimator", "version", "is", "learnt until", "rows", "test loss", "size", "problem"]
    table("", columns, rows, left=4)
    if not rows:
        say("the store holds no version; train first: tidegrid train SITE")


@models.command("show", epilog="Example: `tidegrid models show my-site recurring champion`")
def show(store: Store, name: Name, ref: Ref = "champion", json_: JsonFlag = False) -> None:
    """Show a version's manifest, and the log of decisions about its estimator."""
    opened = _open(store)
    version = opened.show(name, ref)
    log = [vars(entry) for entry in opened.log(name)]
    if json_:
        print_json({**_record(version), "manifest": dict(version.manifest), "log": log})
        return
    say(f"  {', '.join(version.aliases) or 'no alias'}", lead=f"{version.name} {version.id}")
    if version.problem:
        say(version.problem)
    for key in ("created", "window", "rows", "history_sha256", "parent", "code", "distribution"):
        say(f"  {key}: {version.manifest.get(key)}")
    for key in ("metrics", "libraries"):
        told = ", ".join(f"{k} {_plain(v)}" for k, v in version.manifest.get(key, {}).items())
        say(f"  {key}: {told or '–'}")
    for file, part in version.manifest.get("files", {}).items():
        say(f"  {file}: {part['bytes']:,} bytes, sha256 {part['sha256'][:12]}…")
    rows = [[str(e["seq"]), e["at"], e["action"], e["version"] or "", e["reason"]] for e in log]
    table("Log", ["", "at", "decision", "version", "reason"], rows, left=5)


@models.command("promote", epilog='Example: `tidegrid models promote my-site training 7 --reason "reviewed"`')
def promote(
    store: Store, name: Name, ref: Ref, reason: Reason, at: At = None, json_: JsonFlag = False
) -> None:
    """Make a version the champion, after checking each of its files."""
    version = _open(store).promote(name, ref, reason=reason, at=_instant(at))
    _told(version, "is now the champion", json_)


@models.command("rollback", epilog='Example: `tidegrid models rollback my-site training --reason "too wide"`')
def rollback(store: Store, name: Name, reason: Reason, at: At = None, json_: JsonFlag = False) -> None:
    """Make the previous champion the champion again."""
    version = _open(store).rollback(name, reason=reason, at=_instant(at))
    _told(version, "is the champion again", json_)


@models.command("verify", epilog="Example: `tidegrid models verify my-site`")
def verify(
    store: Store,
    name: Annotated[str | None, typer.Argument(help="Only this estimator.")] = None,
    json_: JsonFlag = False,
) -> None:
    """Check every file's hash, every line of the log and every alias; exit code 1 where one is damaged."""
    opened = _open(store)
    count = len(opened.list(_known(opened, name)))
    problems = opened.verify(name)
    if json_:
        print_json({"versions": count, "problems": [{**vars(p), "text": str(p)} for p in problems]})
    else:
        for problem in problems:
            say(str(problem))
        say(f"{count} versions checked, {len(problems) or 'no'} problem{'s' if len(problems) != 1 else ''}")
    raise typer.Exit(REFUSED if problems else DONE)


@models.command("prune", epilog="Example: `tidegrid models prune my-site training --ancestors 3`")
def prune(
    store: Store,
    name: Annotated[str | None, typer.Argument(help="Only this estimator.")] = None,
    ancestors: Annotated[int, typer.Option(min=0, max=1_000_000, help="Earlier champions to keep.")] = 3,
    challengers: Annotated[int, typer.Option(min=0, max=1_000_000, help="Other versions to keep.")] = 3,
    max_mb: Annotated[
        float | None,
        typer.Option("--max-mb", min=0, max=1e9, help="The most megabytes of one estimator's folder."),
    ] = None,
    at: At = None,
    json_: JsonFlag = False,
) -> None:
    """Delete old versions; the champion and the challenger always stay."""
    from tidegrid.models import Retention

    opened = _open(store)
    rule = Retention(ancestors, challengers, None if max_mb is None else int(max_mb * 1e6))
    names = (name,) if name is not None else opened.names()
    gone = {each: list(opened.prune(each, rule, at=_instant(at))) for each in names}
    if json_:
        print_json({"deleted": gone})
        return
    for each, versions in gone.items():
        say(f"{each}: {len(versions)} deleted{': ' + ', '.join(versions) if versions else ''}")


def _open(path: Path) -> "ModelStore":
    from tidegrid.errors import InputError
    from tidegrid.models import ModelStore

    if not path.is_dir():
        raise InputError("there is no such folder", file=path, fix="name a model store, or train first")
    # a site's folder stands for the store in it
    inside = (path / "cluster.json").is_file() or (
        not ModelStore(path).names() and (path / "models").is_dir()
    )
    return ModelStore(path / "models" if inside else path)


def _known(store: "ModelStore", name: str | None) -> str | None:
    from tidegrid.errors import InputError

    if name is not None and name not in store.names():
        known = ", ".join(store.names()) or "none; train first"
        raise InputError("the store has no such estimator", field=name, fix=f"use one of: {known}")
    return name


def _instant(at: str | None) -> str:
    from datetime import UTC, datetime

    from tidegrid.data import as_instant

    if at is not None:
        return as_instant(at, field="--at").isoformat()
    # a person's decision is recorded when it is made; nothing is decided by this clock
    return datetime.now(UTC).replace(microsecond=0).isoformat()


def _record(version: "Version") -> dict[str, Any]:
    body = version.manifest
    keys = ("created", "window", "rows", "metrics", "parent", "code")
    return {
        "estimator": version.name,
        "version": version.id,
        "aliases": list(version.aliases),
        **{key: body.get(key) for key in keys},
        "bytes": version.size,
        "problem": version.problem,
    }


def _told(version: "Version", what: str, json_: bool) -> None:
    if json_:
        print_json(_record(version))
    else:
        say(f"{version.name} {version.id} {what}")


def _short(window: list[str] | None) -> str:
    return "–" if not window else window[1][:16].replace("T", " ")


def _figure(metrics: dict[str, Any] | None, key: str) -> str:
    return "–" if not metrics or key not in metrics else _plain(metrics[key])


def _plain(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
