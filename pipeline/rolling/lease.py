"""Who leads: of several processes on one store one plans and commits, and the others wait."""

import time
from collections.abc import Callable

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidegrid.pipeline.rolling.store import StateStore
from tidegrid.scheduler import StalePlanError

SECONDS = 10.0
"""After how long without a sign of life the leader's place is free."""

_META = sa.MetaData()
_LEASE = sa.Table(
    "tidegrid_lease",
    _META,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("holder", sa.Text, nullable=False),
    sa.Column("beat", sa.Integer, nullable=False),
)
_NAME = "loop"


class Lease:
    """The leader's place, as a row of the store.

    The leader counts the row's ``beat`` up. Who waits takes the place over once it has seen one beat for ``seconds``
    of its own monotonic clock, so that clocks of several machines need not agree.

    Parameters
    ----------
    state
        The store that is shared.
    holder
        A name that no other process has.
    seconds
        How long one beat holds.
    clock
        A monotonic clock, in seconds.
    """

    def __init__(
        self,
        state: StateStore,
        holder: str,
        seconds: float = SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state, self.holder, self.seconds, self.clock = state, holder, seconds, clock
        self._seen: tuple[str, int] | None = None
        self._since = clock()
        with state.transaction() as db:
            _META.create_all(db)

    def hold(self) -> bool:
        """Take the place where it is free, keep it where it is held; return whether this process leads."""
        with self.state.transaction() as db:
            row = db.execute(_LEASE.select().where(_LEASE.c.name == _NAME)).first()
            if row is None:
                db.execute(_LEASE.insert().values(name=_NAME, holder=self.holder, beat=1))
                return True
            if row.holder not in ("", self.holder) and not self._silent(row.holder, row.beat):
                return False
            # only from the beat that was seen: of two that find the place free, one gets it
            changed = db.execute(
                _LEASE.update()
                .where(_LEASE.c.name == _NAME, _LEASE.c.holder == row.holder, _LEASE.c.beat == row.beat)
                .values(holder=self.holder, beat=row.beat + 1)
            )
            return changed.rowcount == 1

    def _silent(self, holder: str, beat: int) -> bool:
        now = self.clock()
        if self._seen != (holder, beat):
            self._seen, self._since = (holder, beat), now
        return now - self._since >= self.seconds

    def release(self) -> None:
        """Give the place up, so that the next takes it at once."""
        with self.state.transaction() as db:
            db.execute(
                _LEASE.update()
                .where(_LEASE.c.name == _NAME, _LEASE.c.holder == self.holder)
                .values(holder="")
            )


def guard(holder: str) -> Callable[[Connection], None]:
    """Return a :attr:`StateStore.guard` that refuses a write unless ``holder`` leads."""

    def check(db: Connection) -> None:
        found = db.execute(
            sa.select(_LEASE.c.holder).where(_LEASE.c.name == _NAME).with_for_update()
        ).scalar()
        if found != holder:
            raise StalePlanError("another process leads now; its commits count")

    return check
