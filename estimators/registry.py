"""Which estimators there are: the entry-point group ``tidegrid.estimators``, built-in and plugins alike."""

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points

from tidegrid.errors import InputError
from tidegrid.estimators.base import Estimator, Feature

GROUP = "tidegrid.estimators"
"""The entry-point group: the entry's name is the estimator's name, its value ``module:Class``."""


@dataclass(frozen=True)
class Failure:
    """An entry that could not be used, and why."""

    name: str
    value: str
    distribution: str
    problem: str

    def __str__(self) -> str:
        return f"{self.name} ({self.value} of {self.distribution}): {self.problem}"


@dataclass(frozen=True)
class Registry:
    """The estimators that loaded, and the entries that did not.

    Parameters
    ----------
    classes
        Name to class, in alphabetical order.
    sources
        Name to the distribution and version that brought it.
    failures
        The entries that could not be used; they never stop the others.
    """

    classes: Mapping[str, type[Estimator]] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()


def discover(entries: Iterable[EntryPoint] | None = None) -> Registry:
    """Load every registered estimator.

    Parameters
    ----------
    entries
        The entries to load; those of the installed distributions where absent.

    Raises
    ------
    InputError
        Two distributions register different estimators under one name; both are named.
    """
    found = entry_points(group=GROUP) if entries is None else entries
    by_name: dict[str, EntryPoint] = {}
    for entry in sorted(found, key=lambda e: (e.name, e.value, _source(e))):
        other = by_name.setdefault(entry.name, entry)
        # one distribution seen twice on the path (a source tree and its installation) is no conflict
        if (other.value, _project(other)) != (entry.value, _project(entry)):
            raise InputError(
                f"two estimators are called {entry.name!r}: {other.value} of {_source(other)} and "
                f"{entry.value} of {_source(entry)}",
                field=f"entry points {GROUP}",
                fix="uninstall one, or rename its entry",
            )
    classes: dict[str, type[Estimator]] = {}
    failures: list[Failure] = []
    for name, entry in by_name.items():
        try:
            classes[name] = _loaded(entry)
        except (Exception, SystemExit) as error:  # a plugin may fail in any way; the others go on
            problem = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
            failures.append(Failure(name, entry.value, _source(entry), problem))
    return Registry(classes, {name: _source(by_name[name]) for name in classes}, tuple(failures))


def estimators(entries: Iterable[EntryPoint] | None = None) -> dict[str, type[Estimator]]:
    """Return every registered estimator that loads, name to class; :func:`discover` tells the rest."""
    return dict(discover(entries).classes)


def load(name: str, entries: Iterable[EntryPoint] | None = None) -> type[Estimator]:
    """Return the class of one registered estimator.

    Raises
    ------
    InputError
        Nothing is registered under ``name``, or it does not load; what there is, or the reason, is given.
    """
    registry = discover(entries)
    if name in registry.classes:
        return registry.classes[name]
    for failure in registry.failures:
        if failure.name == name:
            raise InputError(
                f"the estimator does not load: {failure}", field=name, fix="repair or uninstall that package"
            )
    known = ", ".join(registry.classes) or "none"
    raise InputError("no such estimator is registered", field=name, fix=f"use one of: {known}")


def _loaded(entry: EntryPoint) -> type[Estimator]:
    found = entry.load()
    if not inspect.isclass(found) or not issubclass(found, Estimator):
        raise InputError(f"{entry.value} is not a subclass of tidegrid.estimators.Estimator")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise InputError(f"{entry.value} lacks {missing}")
    own = getattr(found, "name", None)
    if own != entry.name:
        raise InputError(f"its class calls itself {own!r}, its entry {entry.name!r}; give both one name")
    for attribute in ("kind", "target", "features"):
        if not hasattr(found, attribute):
            raise InputError(f"{entry.value} lacks the class attribute {attribute}")
    if not all(isinstance(feature, Feature) for feature in found.features):
        raise InputError(f"features of {entry.value} hold something that is not a Feature")
    try:
        found()
    except TypeError as error:
        raise InputError(f"{entry.value} cannot be made without arguments: {error}") from None
    return found


def _project(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "?"


def _source(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "an unknown distribution"
