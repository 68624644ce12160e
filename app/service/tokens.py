"""Who may ask what: tokens with scopes, of which the store keeps only hashes."""

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime

import sqlalchemy as sa

from tidegrid.errors import InputError, printable
from tidegrid.pipeline.rolling import StateStore

SCOPES = ("read", "write")
"""``read`` sees everything and asks what-ifs; ``write`` also asks for ticks and changes models."""

MARK = "tg"
"""How a token begins, so that one in the wrong place is recognised."""

_META = sa.MetaData()
_TOKENS = sa.Table(
    "tidegrid_tokens",
    _META,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("scopes", sa.Text, nullable=False),
    sa.Column("sha256", sa.Text, nullable=False),
    sa.Column("created", sa.Text, nullable=False),
)


@dataclass(frozen=True)
class Token:
    """What is kept of a token: its id, what it is for, its scopes, its hash, when it was made."""

    id: str
    name: str
    scopes: tuple[str, ...]
    sha256: str
    created: str


class Tokens:
    """The tokens of a store; what a caller shows is compared in memory.

    Parameters
    ----------
    state
        The store.
    """

    def __init__(self, state: StateStore) -> None:
        self.state = state
        self.known: dict[str, Token] = {}
        with state.transaction() as db:
            _META.create_all(db)

    def create(self, name: str, scopes: tuple[str, ...]) -> str:
        """Make a token and return it: it is told this once.

        Raises
        ------
        InputError
            A scope is unknown, or the name is empty.
        """
        for scope in scopes:
            if scope not in SCOPES:
                raise InputError(f"{scope!r} is no scope", field="--scope", fix=f"use {' or '.join(SCOPES)}")
        if not 0 < len(name) <= 100:
            raise InputError("is empty or too long", field="NAME", fix="say in a few words who it is for")
        # 256 random bits: no dictionary finds them, so that a plain hash is enough (unlike for a password)
        number, secret = secrets.token_hex(4), secrets.token_urlsafe(32)
        row = {
            "id": number,
            "name": printable(name),
            "scopes": " ".join(sorted(set(scopes))),
            "sha256": _hash(secret),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        with self.state.transaction() as db:
            db.execute(_TOKENS.insert().values(**row))
        return f"{MARK}_{number}_{secret}"

    def list(self) -> list[Token]:
        """Return all tokens, the oldest first."""
        with self.state.transaction() as db:
            rows = db.execute(_TOKENS.select().order_by(_TOKENS.c.created, _TOKENS.c.id)).mappings().all()
        return [Token(**{**row, "scopes": tuple(row["scopes"].split())}) for row in rows]

    def revoke(self, number: str) -> None:
        """Forget a token; a running service refuses it within seconds.

        Raises
        ------
        InputError
            There is none of this id.
        """
        with self.state.transaction() as db:
            if not db.execute(_TOKENS.delete().where(_TOKENS.c.id == number)).rowcount:
                raise InputError(f"there is no token {number!r}", field="ID", fix="see tidegrid token list")

    def refresh(self) -> None:
        """Take in what was made and revoked."""
        self.known = {token.id: token for token in self.list()}

    def who(self, shown: str) -> Token | None:
        """Return the token that a caller shows, None where there is no such one."""
        mark, _, rest = shown.partition("_")
        number, _, secret = rest.partition("_")
        token = self.known.get(number)
        if mark != MARK or token is None:
            return None
        return token if hmac.compare_digest(token.sha256, _hash(secret)) else None


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()
