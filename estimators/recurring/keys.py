"""Which past jobs are like this one: hashed keys, from the same recipe of the same user down to the whole site."""

import re
from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np

RUNGS = ("recipe", "user+gpus+name", "user+gpus", "user", "group", "gpus+walltime", "site")
"""The rungs, finest first. ``recipe`` is the same user, name, GPUs, walltime, queue, CPUs, nodes and memory."""

NONE = 0
"""The key of a rung that a row does not have: it names no user, say."""

_DIGITS = re.compile(r"\d+")


def rung_keys(features: Mapping[str, Any]) -> np.ndarray:
    """Return the key of each row on each of ``RUNGS``.

    Parameters
    ----------
    features
        Checked features, a column a name: user, group, name, queue as text, gpus, asked_gpus, requested_walltime_h,
        cpus, nodes, mem_mb as numbers.

    Returns
    -------
    ndarray of uint64, shape (rows, len(RUNGS))
        Equal keys mean the same past; ``NONE`` where the row lacks what the rung is made of.
    """
    texts = [np.asarray(features[c], dtype=object).tolist() for c in ("user", "group", "name", "queue")]
    limit = np.asarray(features["requested_walltime_h"], dtype=float)
    numbers = [sizes(features), np.where(limit > 0, limit, np.nan)]
    numbers += [np.asarray(features[c], dtype=float) for c in ("cpus", "nodes", "mem_mb")]
    # NaN never equals itself: None stands for it
    plain = np.round(np.column_stack(numbers), 6).astype(object)
    plain[plain != plain] = None
    keys = [_keys(*row) for row in zip(*texts, *plain.T.tolist(), strict=True)]
    return np.array(keys, dtype=np.uint64).reshape(-1, len(RUNGS))


def sizes(features: Mapping[str, Any]) -> np.ndarray:
    """Return the GPUs that each job asks for: where another size is asked about, those of its own request."""
    asked = np.asarray(features["asked_gpus"], dtype=float)
    return np.where(asked > 0, asked, np.asarray(features["gpus"], dtype=float))


@lru_cache(maxsize=1 << 16)
def _keys(
    user: str, group: str, name: str, queue: str, gpus: float, walltime: float | None, *extra: float | None
) -> tuple[int, ...]:
    # where no user is known the account stands in, marked so that the two never mix
    who = ("user", user) if user else ("group", group) if group else None
    # train-0412 and train-0413 are one name
    name = _DIGITS.sub("#", name)
    recipe = (queue, walltime, *extra)
    return (
        _key("recipe", who, gpus, name, recipe) if who and (queue or any(recipe)) else NONE,
        _key("name", who, gpus, name) if who and name else NONE,
        _key("gpus", who, gpus) if who else NONE,
        _key("user", who) if who else NONE,
        _key("group", group) if group and user else NONE,
        _key("walltime", gpus, walltime) if walltime else NONE,
        _key("site"),
    )


def _key(*parts: Any) -> int:
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=8).digest(), "little") | 1
