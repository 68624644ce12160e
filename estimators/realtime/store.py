"""A fitted realtime estimator as plain data, and back."""

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tidegrid.errors import InputError
from tidegrid.models import Bundle

if TYPE_CHECKING:
    from tidegrid.estimators.realtime.estimator import RealtimeEstimator

FORMAT = 3
"""Number of the layout."""

T = TypeVar("T", bound="RealtimeEstimator")

_NUMBERS = (
    "local0",
    "length",
    "scale",
    "log_sigma",
    "stale",
    "gaps",
    "outages",
    "spikes",
    "shift_h",
    "shift_ratio",
    "judged",
)
_ROWS = ("point", "weights", "spread", "losses", "refits", "settings", "near", "lift")


def pack(estimator: "RealtimeEstimator") -> Bundle:
    """Return parameters, histories and what was learnt as a bundle."""
    ids = list(estimator.series_)
    learnt = [estimator.learnt_[key] for key in ids]
    series = [estimator.series_[key] for key in ids]
    arrays: dict[str, np.ndarray] = {
        "ids": np.array(ids, dtype=np.str_) if ids else np.zeros(0, dtype="<U1"),
        "first": np.array([one.first for one in series], dtype=np.int64),
        "hours": np.array([len(one.raw) for one in series], dtype=np.int64),
        "raw": np.concatenate([one.raw for one in series]) if series else np.zeros(0),
        "origins": np.array([len(one.errors) for one in learnt], dtype=np.int64),
        "errors": np.concatenate([one.errors for one in learnt]) if learnt else np.zeros((0, 0)),
        "chosen": np.array([one.chosen for one in learnt], dtype=np.str_)
        if learnt
        else np.zeros(0, dtype="<U1"),
        "shapes": estimator.shapes_,
        "pool_shapes": estimator.pool_.shapes,
        "pool_levels": estimator.pool_.levels,
    }
    for name in _NUMBERS:
        whole = name not in ("scale", "log_sigma", "shift_ratio")
        arrays[name] = np.array([getattr(one, name) for one in learnt], dtype=np.int64 if whole else float)
    for name in _ROWS:
        arrays[name] = np.stack([getattr(one, name) for one in learnt]) if learnt else np.zeros((0, 0))
    widths = {key: float(value) for key, value in sorted(estimator.widths_.items())}
    state = {
        "format": FORMAT,
        "widths": widths,
        "holidays": [int(day) for day in sorted(estimator.holidays_)],
    }
    return Bundle(estimator.name, params=estimator.get_params(deep=False), state=state, arrays=arrays)


def unpack(kind: type[T], bundle: Bundle) -> T:
    """Rebuild the estimator from its bundle.

    Raises
    ------
    InputError
        The bundle has another layout.
    """
    from tidegrid.estimators.realtime.coldstart import Pool
    from tidegrid.estimators.realtime.engine import Learnt
    from tidegrid.estimators.realtime.history import History

    if bundle.estimator != kind.name or bundle.state.get("format") != FORMAT:
        raise InputError(
            f"the bundle is {bundle.estimator!r}, layout {bundle.state.get('format')!r}",
            field="bundle",
            fix=f"load a {kind.name!r} bundle of layout {FORMAT}, or fit again",
        )
    a = bundle.arrays
    out = kind(**bundle.params)
    hours = np.concatenate([[0], np.cumsum(a["hours"])])
    rows = np.concatenate([[0], np.cumsum(a["origins"])])
    out.series_ = {}
    out.learnt_ = {}
    for i, key in enumerate(a["ids"].tolist()):
        out.series_[key] = History(int(a["first"][i]), np.array(a["raw"][hours[i] : hours[i + 1]]))
        numbers: dict[str, Any] = {name: a[name][i].item() for name in _NUMBERS}
        arrays: dict[str, Any] = {name: np.array(a[name][i]) for name in _ROWS}
        out.learnt_[key] = Learnt(
            **numbers,
            **arrays,
            errors=np.array(a["errors"][rows[i] : rows[i + 1]]),
            chosen=str(a["chosen"][i]),
        )
    out.shapes_ = np.array(a["shapes"])
    out.pool_ = Pool(np.array(a["pool_shapes"]), np.array(a["pool_levels"]), float(out.prior_demand))
    out.holidays_ = frozenset(int(day) for day in bundle.state["holidays"])
    out.widths_ = {str(key): float(value) for key, value in bundle.state["widths"].items()}
    out._rules = out._rule_key()
    return out
