"""What was learnt of each series, as a table that a person reads."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from tidegrid.estimators.realtime.engine import BASELINES, Learnt


def report_of(
    learnt: Mapping[str, Learnt], hours: Mapping[str, int], basis: Mapping[str, str]
) -> pd.DataFrame:
    """Return one row a series.

    Parameters
    ----------
    learnt
        What was learnt of each series.
    hours
        Hours with a value.
    basis
        What its forecast rests on.

    Returns
    -------
    DataFrame
        Indexed by ``unique_id``: ``hours``; ``gaps``, ``outages``, ``spikes`` (hours set aside); ``stale`` (missing at
        the end); ``level`` (units an hour); ``error`` (mean absolute error at past origins, first two days, units an
        hour); ``skill_…`` (1 minus its ratio to each baseline's: above 0 is better); ``uses`` (the combination, or
        the baseline that beat it); ``basis``.
    """
    rows = {}
    for key, one in learnt.items():
        used = one.losses[1 + BASELINES.index(one.chosen)] if one.chosen in BASELINES else one.losses[0]
        with np.errstate(divide="ignore", invalid="ignore"):
            skills = np.where(one.losses[1:] > 0, 1.0 - used / one.losses[1:], np.nan)
        rows[key] = {
            "hours": hours[key],
            "gaps": one.gaps,
            "outages": one.outages,
            "spikes": one.spikes,
            "stale": one.stale,
            "level": one.scale,
            "error": float(used),
            **{
                f"skill_{name.replace(' ', '_')}": float(s) for name, s in zip(BASELINES, skills, strict=True)
            },
            "uses": one.chosen,
            "basis": basis[key],
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("unique_id")
