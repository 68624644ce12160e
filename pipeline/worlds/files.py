"""A site's folder as a world."""

import hashlib
import os
from pathlib import Path

import pandas as pd

from tidegrid.errors import InputError
from tidegrid.files import regular_file, write_text
from tidegrid.pipeline.rolling.store import Commit
from tidegrid.pipeline.site import FILES, Site
from tidegrid.pipeline.worlds import Reading, news_since


class Files:
    """A folder that a site's exporter writes, and that it reads commits from.

    Parameters
    ----------
    folder
        As :meth:`tidegrid.pipeline.site.Site.read` reads it.
    timezone
        The IANA zone of times in the files that carry none.
    out
        The file that commits are written to, for the site to act on; None for none.
    """

    def __init__(
        self, folder: str | Path, timezone: str | None = None, out: str | Path | None = None
    ) -> None:
        self.folder, self.timezone, self.out = Path(folder), timezone, out
        self.name = f"the files of {self.folder}"

    def version(self) -> str:
        """Return the SHA-256 of the files, and of the zone where one is given: both decide what is read."""
        version = site_version(self.folder)
        if self.timezone is None:
            return version
        return hashlib.sha256(f"{version} {self.timezone}".encode()).hexdigest()

    def read(self, now: pd.Timestamp, since: pd.Timestamp | None = None) -> Reading:
        """Read the files as of an instant."""
        return reading_of(Site.read(self.folder, now=now, timezone=self.timezone), since)

    def apply(self, commit: Commit) -> None:
        """Write a commit atomically."""
        if self.out is not None:
            write_text(self.out, commit.text)


def reading_of(site: Site, since: pd.Timestamp | None = None) -> Reading:
    """Return what a site's files tell, with what became known after ``since`` as news."""
    history = site.history
    news = history if since is None else news_since(history, since)
    return Reading(site.state(), news, lambda: history, site.set_aside, site.notes)


def site_version(folder: str | Path) -> str:
    """Return the SHA-256 of a site's files: the version of the input."""
    total = hashlib.sha256()
    for name in FILES:
        path = Path(folder) / name
        if not os.path.lexists(path):
            continue
        try:
            # a pipe or a device may never end
            content = regular_file(path).read_bytes()
        except OSError as error:
            raise InputError(
                f"cannot be read ({error.strerror})", file=path, fix="name a readable file"
            ) from None
        total.update(f"{name} {len(content)}\n".encode() + content)
    return total.hexdigest()
