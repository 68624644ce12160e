"""The model store: versions that are whole or absent, and a champion that always loads."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Literal

from tidegrid.errors import InputError
from tidegrid.models import durable, journal, manifest, version
from tidegrid.models.bundle import Bundle
from tidegrid.models.codec import digest, encode
from tidegrid.models.journal import Entry
from tidegrid.models.manifest import MANIFEST, NAME, Lineage
from tidegrid.models.retention import Retention, kept
from tidegrid.models.version import Damage, Version, described, resolve, version_folders

ANY = object()
"""Stands for whichever champion there is."""


class ModelStore:
    """Fitted estimators on disk: a folder an estimator, in it a folder a version.

    Every version is written atomically, so that a kill leaves it whole or absent. Which one is
    champion is a line of an append-only log. Writers take a lock; readers need none, nor a right to write.

    Parameters
    ----------
    root
        The folder; it is made by the first save.
    lock_timeout
        Seconds to wait for another writer.
    """

    def __init__(self, root: str | Path, *, lock_timeout: float = 60.0) -> None:
        self.root = Path(root)
        self.lock_timeout = lock_timeout

    def __repr__(self) -> str:
        return f"ModelStore({str(self.root)!r})"

    def names(self) -> tuple[str, ...]:
        """Return the estimators that have a version or a decision, in alphabetical order."""
        if not self.root.is_dir():
            return ()
        folders = [p for p in self.root.iterdir() if NAME.fullmatch(p.name) and p.is_dir()]
        held = [p.name for p in folders if (p / journal.LOG).is_file() or any(version_folders(p))]
        return tuple(sorted(held))

    def champion(self, name: str) -> str | None:
        """Return the id of the champion, or None where there is none."""
        return journal.state(self._folder(name)).champion

    def challenger(self, name: str) -> str | None:
        """Return the id of the challenger, or None where there is none."""
        return journal.state(self._folder(name)).challenger

    def ancestors(self, name: str) -> tuple[str, ...]:
        """Return the earlier champions that rollback goes to, the oldest first."""
        return journal.state(self._folder(name)).ancestors

    def log(self, name: str) -> tuple[Entry, ...]:
        """Return the decisions about an estimator, the oldest first."""
        return tuple(journal.entries(self._folder(name)))

    def list(self, name: str | None = None) -> tuple[Version, ...]:
        """Return the versions of one estimator, or of all, in the order of saving."""
        names = (name,) if name is not None else self.names()
        return tuple(described(path) for each in names for path in version_folders(self._folder(each)))

    def show(self, name: str, ref: str = "champion") -> Version:
        """Return one version, by id, by a unique beginning of it, or by alias.

        Raises
        ------
        InputError
            There is no such version.
        """
        return described(self._existing(name) / resolve(self._folder(name), ref))

    def load(
        self, name: str, ref: str = "champion", *, versions: Literal["warn", "refuse", "ignore"] = "warn"
    ) -> Bundle:
        """Load a version; every byte is checked against its hash before it is used, and none is ever run.

        Parameters
        ----------
        name
            The estimator.
        ref
            A version's id, a unique beginning of it, or ``champion`` or ``challenger``.
        versions
            What to do where a library's major or minor version differs from the one it was saved with.

        Raises
        ------
        InputError
            There is no such version, a file of it is missing or differs from its hash, or its schema or
            libraries are refused.
        """
        folder = self._existing(name)
        target = resolve(folder, ref)
        try:
            return version.load(folder / target, versions)
        except InputError:
            # a champion may have been replaced and pruned between two reads: look once more
            again = resolve(folder, ref)
            if again == target:
                raise
            return version.load(folder / again, versions)

    def save(
        self,
        bundle: Bundle,
        *,
        created: datetime | str,
        lineage: Lineage | None = None,
        challenger: bool = True,
    ) -> Version:
        """Save a new version, as the challenger unless ``challenger`` is False.

        Parameters
        ----------
        bundle
            The fitted estimator.
        created
            The UTC instant to record: it is given, never read from a clock.
        lineage
            Where it comes from; its parent is the present champion where it names none.

        Raises
        ------
        InputError
            The store cannot be written to; the champion and every other version are untouched.
        TypeError
            The bundle holds something that is not plain data.
        """
        when = manifest.instant(created, "created")
        files, content = encode(bundle), digest(bundle)
        given = lineage if lineage is not None else Lineage()
        name = bundle.estimator
        with self._writing(name) as folder:
            before = journal.state(folder)
            taken = [int(path.name.partition("-")[0]) for path in version_folders(folder)]
            number = 1 + max([before.last, *taken])
            identifier = f"{number:06d}-{content[:10]}"
            if given.parent is None:
                given = Lineage(**{**vars(given), "parent": before.champion})
            files[MANIFEST] = manifest.make(name, identifier, content, files, given, when)
            self._place(folder, identifier, files)
            journal.record(
                folder,
                before,
                at=when,
                action="save",
                version=identifier,
                reason="",
                challenger=identifier if challenger else before.challenger,
                last=number,
            )
        return self.show(name, identifier)

    def promote(
        self,
        name: str,
        ref: str = "challenger",
        *,
        reason: str,
        at: datetime | str,
        over: str | object | None = ANY,
    ) -> Version:
        """Make a version the champion; the champion before it becomes the one that rollback goes to.

        Parameters
        ----------
        reason
            Why; it is kept in the log.
        at
            The UTC instant to record.
        over
            The champion that the decision was made against; refused where another has taken its place since.

        Raises
        ------
        InputError
            There is no such version, a file of it differs from its hash, or the champion has changed.
        """
        when = manifest.instant(at, "at")
        _reasoned(reason)
        with self._writing(name, must_exist=True) as folder:
            target = resolve(folder, ref)
            before = journal.state(folder)
            if over is not ANY and over != before.champion:
                raise InputError(
                    f"the champion has become {before.champion} since {target} was compared with {over}",
                    field=name,
                    fix="compare again",
                )
            for file, why in version.damage(folder / target)[:1]:
                raise InputError(why, file=folder / target / file, fix="promote a version that verifies")
            if target != before.champion:
                earlier = [a for a in before.ancestors if a != target]
                if before.champion is not None:
                    earlier.append(before.champion)
                journal.record(
                    folder,
                    before,
                    at=when,
                    action="promote",
                    version=target,
                    reason=reason,
                    champion=target,
                    challenger=None if before.challenger == target else before.challenger,
                    ancestors=tuple(earlier),
                )
        return self.show(name, target)

    def rollback(self, name: str, *, reason: str, at: datetime | str) -> Version:
        """Make the latest earlier champion that is intact the champion again.

        Raises
        ------
        InputError
            There is no earlier champion that is intact.
        """
        when = manifest.instant(at, "at")
        _reasoned(reason)
        with self._writing(name, must_exist=True) as folder:
            before = journal.state(folder)
            skipped = []
            for place in range(len(before.ancestors) - 1, -1, -1):
                target = before.ancestors[place]
                if not version.damage(folder / target):
                    break
                skipped.append(target)
            else:
                why = f"{', '.join(before.ancestors)} not intact" if before.ancestors else "there is none"
                raise InputError(
                    f"cannot go back to an earlier champion: {why}",
                    field=name,
                    fix="promote a version by its id",
                )
            note = f"{reason} (skipped, damaged: {', '.join(skipped)})" if skipped else reason
            journal.record(
                folder,
                before,
                at=when,
                action="rollback",
                version=target,
                reason=note,
                champion=target,
                ancestors=before.ancestors[:place],
            )
        return self.show(name, target)

    def reject(self, name: str, ref: str = "challenger", *, reason: str, at: datetime | str) -> None:
        """Record why a challenger did not take over; it stays in the store and loses its alias."""
        when = manifest.instant(at, "at")
        _reasoned(reason)
        with self._writing(name, must_exist=True) as folder:
            target = resolve(folder, ref)
            before = journal.state(folder)
            left = None if before.challenger == target else before.challenger
            journal.record(
                folder, before, at=when, action="reject", version=target, reason=reason, challenger=left
            )

    def verify(self, name: str | None = None) -> tuple[Damage, ...]:
        """Check every hash, log line and alias of one estimator, or of all; an intact store gives none."""
        out: list[Damage] = []
        for each in (name,) if name is not None else self.names():
            folder = self._folder(each)
            out += [Damage(each, None, file, why) for file, why in journal.problems(folder)]
            for path in version_folders(folder):
                out += [Damage(each, path.name, file, why) for file, why in version.damage(path)]
            try:
                now = journal.state(folder)
            except InputError:
                continue  # its files have been named above
            there = {path.name for path in version_folders(folder)}
            for alias, target in (("champion", now.champion), ("challenger", now.challenger)):
                if target is not None and target not in there:
                    out.append(Damage(each, target, "", f"is {alias}, and is not there"))
        return tuple(out)

    def prune(self, name: str, retention: Retention | None = None, *, at: datetime | str) -> tuple[str, ...]:
        """Delete what the retention rule does not keep, and return the ids; the champion is never deleted."""
        when = manifest.instant(at, "at")
        rule = retention if retention is not None else Retention()
        with self._writing(name, must_exist=True) as folder:
            before = journal.state(folder)
            sizes = {path.name: described(path).size for path in version_folders(folder)}
            stay, earlier = kept(rule, before, sizes)
            gone = tuple(each for each in sizes if each not in stay)
            if gone or earlier != before.ancestors:
                # the log first: rollback must never lead to a version that is about to go
                journal.record(
                    folder,
                    before,
                    at=when,
                    action="prune",
                    version=None,
                    reason=f"retention rule: {', '.join(gone) or 'nothing'}",
                    ancestors=earlier,
                    last=max([before.last, *(int(each.partition("-")[0]) for each in sizes)]),
                )
            for each in gone:
                try:
                    durable.remove_folder(folder / each, self.root)
                except OSError as error:
                    raise durable.refusal(error, folder / each) from None
        return gone

    def _place(self, folder: Path, identifier: str, files: Mapping[str, bytes]) -> None:
        part = self.root / f"{durable.PART}{folder.name}-{identifier}"
        try:
            part.mkdir()
            for file, data in files.items():
                durable.write_file(part / file, data)
            durable.sync_folder(part)
            part.rename(folder / identifier)
            durable.sync_folder(folder)
        except OSError as error:
            shutil.rmtree(part, ignore_errors=True)
            raise durable.refusal(error, folder / identifier) from None

    @contextmanager
    def _writing(self, name: str, *, must_exist: bool = False) -> Iterator[Path]:
        folder = self._folder(name)
        if must_exist:
            self._existing(name)
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise durable.refusal(error, self.root) from None
        with durable.locked(self.root, self.lock_timeout):
            try:
                folder.mkdir(exist_ok=True)
                durable.sync_folder(self.root)
                durable.sweep(self.root)
                durable.sweep(folder)
            except OSError as error:
                raise durable.refusal(error, folder) from None
            yield folder

    def _folder(self, name: str) -> Path:
        if not NAME.fullmatch(name):
            raise InputError(
                f"{name!r} cannot be an estimator's name", fix="use lower-case letters, digits, - and _"
            )
        return self.root / name

    def _existing(self, name: str) -> Path:
        folder = self._folder(name)
        if not folder.is_dir():
            names = self.names()
            known = f"use one of: {', '.join(names)}" if names else f"train first; {self.root} holds nothing"
            raise InputError("the store has no such estimator", field=name, fix=known)
        return folder


def _reasoned(reason: str) -> None:
    if not reason.strip():
        raise InputError("is empty", field="reason", fix="say why, in a few words")
