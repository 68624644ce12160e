"""The one store of the rolling horizon: SQLite in place, or PostgreSQL by URL, through SQLAlchemy."""

import json
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidegrid.errors import InputError
from tidegrid.files import regular_file
from tidegrid.pipeline.memory import Changes, Event, Hold, Hour, Outcome, Unmet, Watched
from tidegrid.pipeline.rolling.checked import check_document, record_of
from tidegrid.scheduler import StalePlanError

SCHEMA = "2"
"""The version of the tables below; version 1 had no model in ``tidegrid_hours``."""

KEPT_DAYS = 30
"""Days for which whole plans and the forecasts under them are kept; commits and outcomes are kept for ever."""

LOCK_SECONDS = 30.0
"""How long a tick waits for another one's transaction."""

Record = TypeVar("Record")

_META = sa.MetaData()


def _columns(record: type, keys: Sequence[str]) -> list[sa.Column[Any]]:
    kinds = {"str": sa.Text, "float": sa.Float, "int": sa.Integer, "bool": sa.Boolean}
    out: list[sa.Column[Any]] = []
    for field in fields(record):
        name = field.type if isinstance(field.type, str) else getattr(field.type, "__name__", str(field.type))
        optional = "None" in str(field.type)
        kind = next(kinds[k] for k in kinds if k in str(name) or k in str(field.type))
        key = field.name in keys
        out.append(sa.Column(field.name, kind, primary_key=key, nullable=optional and not key))
    return out


_INFO = sa.Table(
    "tidegrid_info", _META, sa.Column("name", sa.Text, primary_key=True), sa.Column("value", sa.Text)
)
_COMMITS = sa.Table(
    "tidegrid_commits",
    _META,
    sa.Column("tick", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("input_key", sa.Text, nullable=False, unique=True),
    sa.Column("settings", sa.Text, nullable=False),
    sa.Column("now", sa.Text, nullable=False),
    sa.Column("document", sa.Text, nullable=False),
)
_PLANS = sa.Table(
    "tidegrid_plans",
    _META,
    sa.Column("tick", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("now", sa.Text, nullable=False),
    sa.Column("problem", sa.LargeBinary, nullable=False),
    sa.Column("plan", sa.LargeBinary, nullable=False),
    sa.Column("forecast", sa.LargeBinary, nullable=False),
)
_WATCHED = sa.Table("tidegrid_watched", _META, *_columns(Watched, ["job_id"]))
_OUTCOMES = sa.Table("tidegrid_outcomes", _META, *_columns(Outcome, ["job_id", "ended"]))
_HOURS = sa.Table("tidegrid_hours", _META, *_columns(Hour, ["series", "hour"]))
_UNMET = sa.Table("tidegrid_unmet", _META, *_columns(Unmet, ["app", "hour"]))


def _by_tick(name: str, record: type) -> sa.Table:
    return sa.Table(
        name,
        _META,
        sa.Column("tick", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("now", sa.Text, nullable=False),
        *_columns(record, []),
    )


_HOLDS = _by_tick("tidegrid_holds", Hold)
_EVENTS = _by_tick("tidegrid_events", Event)


@dataclass(frozen=True)
class Commit:
    """What a tick decided.

    Attributes
    ----------
    tick
        Its number, from 1.
    input_key
        Which input it answers: the SHA-256 of the site's files and the instant.
    settings
        The SHA-256 of policy, mode and seed.
    now
        The instant, ISO 8601 in UTC.
    text
        The commit as JSON: what ``commit.json`` holds, to the byte.
    """

    tick: int
    input_key: str
    settings: str
    now: str
    text: str

    @property
    def document(self) -> dict[str, Any]:
        """The commit as JSON values."""
        return dict(json.loads(self.text))


@dataclass(frozen=True)
class _Numbered:
    """What each row that belongs to a tick holds beside its record."""

    tick: int
    number: int
    now: str


class StateStore:
    """Commits, plans, the forecasts that they rested on, outcomes, and the jobs under watch.

    Parameters
    ----------
    where
        A file, which is made where absent, or a database's URL such as ``postgresql://user@host/name``.

    Attributes
    ----------
    guard
        Called inside the transaction that writes a tick, before anything is written; what it raises is raised, and
        nothing is written.

    Raises
    ------
    InputError
        It cannot be opened, or it is no store of this version.
    """

    def __init__(self, where: str | Path) -> None:
        self.guard: Callable[[Connection], None] | None = None
        text = str(where)
        self.where = text.split("@")[-1] if "://" in text else text
        if "://" not in text and Path(text).exists():
            regular_file(text)
        url = text if "://" in text else f"sqlite:///{text}"
        try:
            self.engine = sa.create_engine(url, connect_args=_connect_args(url))
        except (sa.exc.ArgumentError, ImportError, ValueError) as error:
            raise InputError(
                f"cannot be opened ({error})",
                file=self.where,
                fix="name a file, or a URL whose driver is installed",
            ) from None
        if self.engine.dialect.name == "sqlite":
            sa.event.listen(self.engine, "connect", _plain_transactions)
            sa.event.listen(self.engine, "begin", _begin)
        self._empty: sa.Engine | None = None
        path = Path(text)
        if "://" in text or text == ":memory:" or path.exists():
            self._prepare()
        elif not os.access(path.parent, os.W_OK | os.X_OK):
            raise self._unusable("unable to open database file")
        else:
            # a file is made by the first that writes: a tick that fails before leaves nothing behind
            self._empty = sa.create_engine("sqlite://", poolclass=sa.pool.StaticPool)
            _META.create_all(self._empty)

    def _prepare(self) -> None:
        with self._begun(self.engine) as db:
            if not sa.inspect(db).has_table(_INFO.name):
                _META.create_all(db)
                db.execute(_INFO.insert().values(name="schema", value=SCHEMA))
                db.execute(_INFO.insert().values(name="lock", value=""))
            found = db.execute(sa.select(_INFO.c.value).where(_INFO.c.name == "schema")).scalar()
            if found == "1":
                db.execute(
                    sa.text(f"ALTER TABLE {_HOURS.name} ADD COLUMN model TEXT NOT NULL DEFAULT 'realtime'")
                )
                db.execute(_INFO.update().where(_INFO.c.name == "schema").values(value=SCHEMA))
                found = SCHEMA
        if found != SCHEMA:
            raise InputError(
                f"holds tables of version {found}, not {SCHEMA}", file=self.where, fix="name another store"
            )

    @classmethod
    def existing(cls, where: str | Path) -> "StateStore":
        """Open a store that must be there already.

        Raises
        ------
        InputError
            There is none.
        """
        # an empty file is a database to SQLite, which would make tables in it
        if "://" not in str(where) and not (Path(where).is_file() and Path(where).stat().st_size):
            raise InputError(
                "there is no state", file=where, fix="tick first: tidegrid tick SITE --state FILE"
            )
        return cls(where)

    def close(self) -> None:
        """Let go of the file or the server."""
        self.engine.dispose()

    # reading -------------------------------------------------------------------------------------

    def last(self) -> Commit | None:
        """Return the last commit, None before the first."""
        found = self._commits(_COMMITS.c.tick.desc(), 1)
        return found[0] if found else None

    def commit_of(self, input_key: str) -> Commit | None:
        """Return the commit that answers an input, None where there is none."""
        with self._reading() as db:
            row = db.execute(_COMMITS.select().where(_COMMITS.c.input_key == input_key)).first()
        return None if row is None else self._commit(row)

    def commit(self, tick: int) -> Commit | None:
        """Return a commit by its number, None where there is none."""
        with self._reading() as db:
            row = db.execute(_COMMITS.select().where(_COMMITS.c.tick == tick)).first()
        return None if row is None else self._commit(row)

    def commits(self, limit: int | None = None) -> list[Commit]:
        """Return the last ``limit`` commits (all where absent), the oldest first."""
        return self._commits(_COMMITS.c.tick.desc(), limit)[::-1]

    def _commits(self, order: Any, limit: int | None) -> list[Commit]:
        with self._reading() as db:
            rows = [*db.execute(_COMMITS.select().order_by(order).limit(limit))]
        return [self._commit(row) for row in rows]

    def _commit(self, row: sa.Row[Any]) -> Commit:
        values = {**row._mapping, "text": row.document}
        del values["document"]
        number = row.tick if isinstance(row.tick, int) else 0
        found = record_of(Commit, values, self.where, _COMMITS.name, number)
        check_document(found.text, self.where, number)
        return found

    def plan(self, tick: int) -> dict[str, Any] | None:
        """Return ``problem``, ``plan`` and ``forecast`` of a tick, None where they are no longer kept."""
        with self._reading() as db:
            row = db.execute(_PLANS.select().where(_PLANS.c.tick == tick)).first()
        if row is None:
            return None
        try:
            return {name: _unpacked(getattr(row, name)) for name in ("problem", "plan", "forecast")}
        except (zlib.error, ValueError, TypeError) as error:
            raise self.damaged(tick, str(error)) from None

    def damaged(self, tick: int, why: str) -> InputError:
        """Return the error of a tick's plan that cannot be used."""
        fix = "restore the state from a copy, or name another"
        return InputError(f"is damaged ({why})", file=f"{self.where}, {_PLANS.name}", row=tick, fix=fix)

    def watched(self) -> dict[str, Watched]:
        """Return the jobs under watch by id."""
        return {job.job_id: job for job in self._all(_WATCHED, Watched, _WATCHED.c.job_id)}

    def outcomes(self) -> list[Outcome]:
        """Return how attempts ended, in order of their end."""
        return self._all(_OUTCOMES, Outcome, _OUTCOMES.c.ended, _OUTCOMES.c.job_id)

    def hours(self, since: str = "") -> list[Hour]:
        """Return the hours of traffic from ``since`` on that were forecast, with what came where it is known."""
        return self._all(_HOURS, Hour, _HOURS.c.series, _HOURS.c.hour, where=_HOURS.c.hour >= since)

    def unmet(self) -> list[Unmet]:
        """Return the GPU-hours that each app needed and that were not met, by hour."""
        return self._all(_UNMET, Unmet, _UNMET.c.app, _UNMET.c.hour)

    def holds(self, since: str) -> list[tuple[str, Hold]]:
        """Return (instant, hold) of the ticks from ``since`` on, in their order."""
        return self._ticked(_HOLDS, Hold, since)

    def events(self) -> list[tuple[str, Event]]:
        """Return (instant, event) of all ticks, in their order."""
        return self._ticked(_EVENTS, Event)

    def info(self, name: str) -> str | None:
        """Return a remembered value, such as the instant of the last refit."""
        with self._reading() as db:
            return db.execute(sa.select(_INFO.c.value).where(_INFO.c.name == name)).scalar()

    # writing -------------------------------------------------------------------------------------

    def write(self, commit: Commit, changes: Changes) -> None:
        """Write one tick, whole or not at all.

        Raises
        ------
        StalePlanError
            Another tick was committed since this one was planned.
        """
        with self.transaction() as db:
            if self.guard is not None:
                self.guard(db)
            # the row is locked until the transaction ends: two ticks never write at once
            db.execute(_INFO.update().where(_INFO.c.name == "lock").values(value=commit.input_key))
            last = db.execute(sa.select(sa.func.max(_COMMITS.c.tick))).scalar() or 0
            if commit.tick != last + 1:
                raise StalePlanError(
                    f"tick {last} was committed while tick {commit.tick} was planned; tick again on the new state"
                )
            db.execute(
                _COMMITS.insert().values(
                    tick=commit.tick,
                    input_key=commit.input_key,
                    settings=commit.settings,
                    now=commit.now,
                    document=commit.text,
                )
            )
            packed = {name: _packed(getattr(changes, name)) for name in ("problem", "plan", "forecast")}
            db.execute(_PLANS.insert().values(tick=commit.tick, now=commit.now, **packed))
            oldest = (pd.Timestamp(commit.now) - pd.Timedelta(days=KEPT_DAYS)).isoformat()
            db.execute(_PLANS.delete().where(_PLANS.c.now < oldest))
            db.execute(_WATCHED.delete())
            _insert(db, _WATCHED, [vars(job) for job in changes.watched])
            for table, rows in (
                (_OUTCOMES, changes.outcomes),
                (_HOURS, changes.hours),
                (_UNMET, changes.unmet),
            ):
                keys = [column.name for column in table.primary_key]
                for one in rows:
                    row = vars(one)
                    db.execute(table.delete().where(*(table.c[key] == row[key] for key in keys)))
                    db.execute(table.insert().values(**row))
            place = {"tick": commit.tick, "now": commit.now}
            holds = [{**place, "number": i, **vars(one)} for i, one in enumerate(changes.holds)]
            events = [{**place, "number": i, **vars(one)} for i, one in enumerate(changes.events)]
            _insert(db, _HOLDS, holds)
            _insert(db, _EVENTS, events)
            for name, value in changes.meta.items():
                db.execute(_INFO.delete().where(_INFO.c.name == name))
                db.execute(_INFO.insert().values(name=name, value=value))

    # plumbing ------------------------------------------------------------------------------------

    def _all(self, table: sa.Table, record: type[Record], *order: Any, where: Any = None) -> list[Record]:
        chosen = table.select().order_by(*order)
        with self._reading() as db:
            rows = db.execute(chosen if where is None else chosen.where(where))
            found = [dict(row._mapping) for row in rows]
        return [
            record_of(record, values, self.where, table.name, number)
            for number, values in enumerate(found, 1)
        ]

    def _ticked(self, table: sa.Table, record: type[Record], since: str = "") -> list[tuple[str, Record]]:
        chosen = table.select().where(table.c.now >= since).order_by(table.c.tick, table.c.number)
        with self._reading() as db:
            rows = db.execute(chosen).mappings()
            names = [field.name for field in fields(record)]  # type: ignore[arg-type]
            found = [dict(row) for row in rows]
        out = []
        for number, row in enumerate(found, 1):
            one = record_of(record, {name: row[name] for name in names}, self.where, table.name, number)
            at = {name: row[name] for name in ("tick", "number", "now")}
            out.append((record_of(_Numbered, at, self.where, table.name, number).now, one))
        return out

    def transaction(self) -> AbstractContextManager[Connection]:
        """Return a transaction that may write; another one that writes is waited for."""
        if self._empty is not None:
            self._prepare()
            self._empty = None
        return self._begun(self.engine)

    def _reading(self) -> AbstractContextManager[Connection]:
        if self._empty is not None:
            if not Path(self.where).exists():
                return self._begun(self._empty)
            self._prepare()
            self._empty = None
        # takes no lock for writing, so that readers never wait for each other
        return self._begun(self.engine.execution_options(tidegrid_reads=True))

    @contextmanager
    def _begun(self, engine: sa.Engine) -> Iterator[Connection]:
        try:
            with engine.begin() as db:
                yield db
        except sa.exc.DBAPIError as error:
            raise self._unusable(str(error.orig)) from None
        except (sa.exc.SQLAlchemyError, OverflowError, UnicodeError) as error:
            raise self._unusable(str(error)) from None

    def _unusable(self, why: str) -> InputError:
        said = " ".join(why.split()).rstrip(".")
        return InputError(
            f"cannot be used ({said})",
            file=self.where,
            fix="name a file that is readable and writable, or a database that answers",
        )


def _connect_args(url: str) -> dict[str, Any]:
    return {"timeout": LOCK_SECONDS} if url.startswith("sqlite") else {}


def _plain_transactions(connection: Any, _: Any) -> None:
    # the driver's own implicit transactions would leave reads outside of them
    connection.isolation_level = None


def _begin(connection: Connection) -> None:
    reads = connection.get_execution_options().get("tidegrid_reads", False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


def _insert(db: Connection, table: sa.Table, rows: list[dict[str, Any]]) -> None:
    if rows:
        db.execute(table.insert(), rows)


def _packed(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return zlib.compress(text.encode(), 6)


def _unpacked(value: bytes) -> Any:
    return json.loads(zlib.decompress(value))
