"""Hypothesis strategies of valid tables, as people might write them down."""

import pandas as pd
from hypothesis import strategies as st

from tidegrid.data.tables import KINDS, VARIANTS

TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp")), max_size=12).map(
    lambda s: s.strip()
)
IDS = st.text(
    st.characters(codec="ascii", categories=("L", "N"), include_characters="-_.,;\"' "),
    min_size=1,
    max_size=8,
)
SECONDS = st.integers(0, 2 * 365 * 86400)
FLOATS = st.floats(1e-6, 1e8, allow_nan=False)


def instant(seconds: int) -> pd.Timestamp:
    return pd.Timestamp("2025-01-01", tz="UTC") + pd.Timedelta(seconds=seconds)


@st.composite
def job_rows(draw: st.DrawFn) -> list[dict[str, object]]:
    """Rows of a job history: finished, censored and running, with and without start, features and names."""
    rows: list[dict[str, object]] = []
    for i in range(draw(st.integers(1, 4))):
        submit = draw(SECONDS)
        wait, length = draw(st.integers(0, 10**6)), draw(st.integers(1, 10**6))
        status = draw(st.sampled_from(("completed", "failed", "cancelled", "timeout", "running")))
        row: dict[str, object] = {
            "job_id": f"{draw(IDS)}-{i}",
            "kind": draw(st.sampled_from(KINDS)),
            "status": status,
            "submit_time": instant(submit),
            "gpus": draw(st.integers(1, 1000)),
            "user": draw(TEXTS),
            "group": draw(TEXTS),
            "name": draw(TEXTS),
            "requested_walltime_s": draw(st.none() | FLOATS),
            "model_params_b": draw(st.none() | FLOATS),
            "packing": draw(st.sampled_from((None, True, False))),
            "variant": draw(st.sampled_from(("", *VARIANTS))),
        }
        if draw(st.booleans()):
            row["start_time"] = instant(submit + wait)
            if status != "running":
                row["end_time"] = instant(submit + wait + length)
        elif status != "running":
            row["duration_s"] = draw(st.floats(0.001, 1e6))
        rows.append(row)
    return rows


@st.composite
def request_rows(draw: st.DrawFn) -> list[dict[str, object]]:
    """Rows of a queue."""
    rows: list[dict[str, object]] = []
    for i in range(draw(st.integers(0, 4))):
        submit, gpus = draw(SECONDS), draw(st.integers(1, 64))
        rows.append(
            {
                "job_id": f"{draw(IDS)}-{i}",
                "kind": draw(st.sampled_from(KINDS)),
                "priority": draw(st.none() | st.integers(1, 10)),
                "submit_time": instant(submit),
                "user": draw(TEXTS),
                "gpus": gpus,
                "min_gpus": draw(st.none() | st.integers(1, gpus)),
                "max_gpus": draw(st.none() | st.integers(gpus, 128)),
                "deadline": draw(st.none() | st.integers(submit, submit + 10**6).map(instant)),
                "prompts": draw(st.none() | FLOATS),
            }
        )
    return rows


@st.composite
def traffic_rows(draw: st.DrawFn) -> list[dict[str, object]]:
    """Rows of hourly series with gaps, in any order."""
    rows: list[dict[str, object]] = []
    for name in draw(st.lists(IDS, min_size=1, max_size=3, unique_by=str.strip)):
        first = draw(st.integers(0, 20000))
        hours = draw(st.lists(st.integers(0, 400), min_size=1, max_size=30, unique=True))
        for hour in hours:
            value = draw(st.none() | st.floats(0, 1e9))
            rows.append(
                {"series_id": f"s{name}", "timestamp": instant((first + hour) * 3600), "value": value}
            )
    return draw(st.permutations(rows))
