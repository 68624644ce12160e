"""Which past jobs are like this one: hashed keys, from the same recipe of the same user down to the whole site."""

import re
from functools import lru_cache

import numpy as np
import pandas as pd

from tidegrid.errors import InputError

RUNGS = ("recipe", "user+gpus+name", "user+gpus", "user", "group", "gpus+walltime", "site")
"""The rungs, finest first. ``recipe`` is the same user, name, GPUs, walltime, queue, CPUs, nodes and memory."""

NONE = np.uint64(0)
"""The key of a rung that a row does not have: it names no user, say."""

FEW = 32
"""Rows up to which words are hashed one by one, remembered from call to call: a frame's own overhead counts there."""

_DIGITS = re.compile(r"\d+")


def name_pattern(names: pd.Series) -> pd.Series:
    """Return job names with every run of digits as ``#``, so that ``train-0412`` and ``train-0413`` are one name."""
    unique = {name: _DIGITS.sub("#", name) for name in names.unique()}
    return pd.Series([unique[name] for name in names], index=names.index, dtype=object)


def rung_keys(features: pd.DataFrame) -> np.ndarray:
    """Return the key of each row on each of ``RUNGS``.

    Parameters
    ----------
    features
        Checked features: user, group, name, queue as text, gpus, asked_gpus, requested_walltime_h, cpus, nodes, mem_mb.

    Returns
    -------
    ndarray of uint64, shape (rows, len(RUNGS))
        Equal keys mean the same past; ``NONE`` where the row lacks what the rung is made of.
    """
    user, group = _text(features["user"]), _text(features["group"])
    name, queue = _text(name_pattern(features["name"])), _text(features["queue"])
    # where no user is known the account stands in, under another mark so that the two never mix
    who = np.where(user != NONE, _mix(user, 1), np.where(group != NONE, _mix(group, 2), NONE))
    gpus = _number(sizes(features))
    limit = features["requested_walltime_h"].to_numpy(dtype=np.float64)
    walltime = _number(np.where(limit > 0, limit, np.nan))
    extra = [
        queue,
        walltime,
        *(_number(features[c].to_numpy(dtype=np.float64)) for c in ("cpus", "nodes", "mem_mb")),
    ]
    known, named = np.any([e != NONE for e in extra], axis=0) & (who != NONE), (name != NONE) & (who != NONE)
    columns = (
        np.where(known, _key(10, who, gpus, name, *extra), NONE),
        np.where(named, _key(11, who, gpus, name), NONE),
        np.where(who != NONE, _key(12, who, gpus), NONE),
        np.where(who != NONE, _key(13, who), NONE),
        np.where((group != NONE) & (user != NONE), _key(14, group), NONE),
        np.where(walltime != NONE, _key(15, gpus, walltime), NONE),
        _key(16, np.ones(len(features), dtype=np.uint64)),
    )
    return np.column_stack(columns).astype(np.uint64).reshape(len(features), len(RUNGS))


def sizes(features: pd.DataFrame) -> np.ndarray:
    """Return the GPUs that each job asks for: where another size is asked about, those of its own request."""
    asked = features["asked_gpus"].to_numpy(dtype=np.float64)
    return np.where(asked > 0, asked, features["gpus"].to_numpy(dtype=np.float64))


@lru_cache(maxsize=4096)
def _word(word: str) -> np.uint64:
    hashed = pd.util.hash_array(np.array([word], dtype=object), categorize=False)[0]
    return NONE if word == "" else np.uint64(hashed | np.uint64(1))


def _text(values: pd.Series) -> np.ndarray:
    if len(values) <= FEW:
        return np.array([_word(str(value)) for value in values], dtype=np.uint64)
    codes, unique = pd.factorize(values)
    hashes = pd.util.hash_array(np.asarray(unique, dtype=object), categorize=False)
    hashes = np.where(np.asarray(unique, dtype=object) == "", NONE, hashes | np.uint64(1)).astype(np.uint64)
    return hashes[codes] if len(hashes) else np.zeros(len(values), dtype=np.uint64)


def _number(values: np.ndarray) -> np.ndarray:
    numbers = values + 0.0  # -0.0 becomes 0.0
    bits = np.ascontiguousarray(np.round(numbers, 6)).view(np.uint64)
    return np.where(np.isnan(numbers), NONE, _mix(bits, 3) | np.uint64(1))


def _mix(values: np.ndarray | np.uint64, mark: int) -> np.ndarray:
    # the finaliser of splitmix64 (Steele, Lea and Flood 2014): every input bit moves every output bit
    with np.errstate(over="ignore"):
        z = np.asarray(values, dtype=np.uint64) + np.uint64(mark) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def _key(mark: int, *parts: np.ndarray) -> np.ndarray:
    out = np.full(len(parts[0]), np.uint64(mark))
    for part in parts:
        out = _mix(out ^ part, mark)
    return out | np.uint64(1)


def hash_probe() -> int:
    """Return the hash of a fixed word: it tells whether keys saved elsewhere still mean the same here."""
    return int(pd.util.hash_array(np.array(["tidegrid"], dtype=object), categorize=False)[0])


def check_hash(saved: int) -> None:
    """Refuse keys that another hash has made.

    Raises
    ------
    InputError
        The hash of this pandas is not the one that the keys were made with.
    """
    if saved != hash_probe():
        raise InputError(
            "its keys were made by another hash function (another version of pandas)",
            field="hash_probe",
            fix="fit the estimator again, or load it with the pandas version named in its manifest",
        )
