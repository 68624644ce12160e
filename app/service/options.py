"""What a service is started with."""

from dataclasses import dataclass, field
from pathlib import Path

from tidegrid.pipeline.control import Settings

LOOPBACK = ("127.0.0.1", "::1", "localhost")
"""Addresses that this machine alone reaches."""


@dataclass(frozen=True)
class Options:
    """What a service is started with.

    Attributes
    ----------
    site, store, models
        The site's folder, the store (a file or a database's URL), the model store.
    settings
        How the loop decides.
    timezone
        The IANA zone of times in the files that carry none.
    host, port
        Where it listens.
    every_minutes
        Minutes between ticks on the schedule, which begins at midnight UTC.
    watch_seconds
        Seconds between looks at the site's files and at the store.
    lease_seconds
        After how long without a sign of life another process takes over.
    site_clock
        Whether time begins at the last instant that the files know of; None: where the site is synthetic.
    shadow
        Whether nothing is handed over: no commit file is written.
    tokens
        Whether every caller needs a token; always so where ``host`` is no loopback address.
    names
        Host names under which the service may be asked without a token, beside the loopback ones.
    rate, question_rate
        Requests, and what-if questions, that one caller may send a second, on average.
    body_bytes
        The largest body of a request.
    log_level
        Of the log on standard error.
    """

    site: Path
    store: str
    models: Path
    settings: Settings = field(default_factory=Settings)
    timezone: str | None = None
    host: str = "127.0.0.1"
    port: int = 8080
    every_minutes: float = 30.0
    watch_seconds: float = 2.0
    lease_seconds: float = 10.0
    site_clock: bool | None = None
    shadow: bool = False
    tokens: bool = False
    names: tuple[str, ...] = ()
    rate: float = 100.0
    question_rate: float = 10.0
    body_bytes: int = 65_536
    log_level: str = "INFO"

    @property
    def out(self) -> Path | None:
        """The file that commits are handed over in; None in shadow mode."""
        return None if self.shadow else self.site / "commit.json"

    @property
    def protected(self) -> bool:
        """Whether every caller needs a token."""
        return self.tokens or self.host not in LOOPBACK
