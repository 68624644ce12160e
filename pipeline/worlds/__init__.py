"""Worlds that a loop runs on: each reads its state, and applies what was decided.

A world is a class with ``read(now) -> Reading`` and ``apply(decision)``. ``files`` is a site's folder: what really
happens is the site's doing, and its next files tell. ``simulated`` is a trace whose truth is hidden. What a loop
remembers (swaps, bands, the last plan) is its own, see :mod:`tidegrid.pipeline.control`, and so is the same in all.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tidegrid.data import History
from tidegrid.errors import InputError
from tidegrid.pipeline.state import State


@dataclass(frozen=True)
class Reading:
    """What a world tells at an instant.

    Attributes
    ----------
    state
        What is.
    news
        What has become known since the reading before: ended jobs, and hours of traffic.
    history
        Returns all that is known.
    set_aside
        Rows that cannot be used, one error each: the rest was read.
    notes
        What was worked out or left out in reading, one line each.
    """

    state: State
    news: History
    history: Callable[[], History]
    set_aside: tuple[InputError, ...] = ()
    notes: tuple[str, ...] = ()
