"""Hourly traffic: every hour there once, gaps missing and not zero, duplicates named or merged."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables_by_chance import traffic_rows

from tidegrid.data import DEFAULT_START, fill_gaps, read_traffic, regular_hours
from tidegrid.errors import InputError


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def hourly(values: list[float], start: str = "2026-03-02T00:00:00Z") -> pd.DataFrame:
    stamps = pd.date_range(start, periods=len(values), freq="h")
    return pd.DataFrame({"series_id": "a", "timestamp": stamps, "value": values})


def test_gaps_stay_missing(tmp_path: Path) -> None:
    """Case R7: a deleted hour and an empty cell are missing, never zero, and later hours do not move up."""
    path = written(
        tmp_path / "t.csv",
        "series_id,timestamp,value\na,2026-03-02T00:00Z,1\na,2026-03-02T02:00Z,\na,2026-03-02T04:00Z,5\n",
    )
    notes: list[str] = []
    table = read_traffic(path, notes=notes)
    assert table["value"].isna().tolist() == [False, True, True, True, False]
    assert table["timestamp"].diff().dropna().eq(pd.Timedelta(hours=1)).all()
    assert notes == ["3 of 5 hours are missing and stay so"]


def test_a_double_hour_is_refused_and_its_series_named(tmp_path: Path) -> None:
    text = "series_id,timestamp,value\nb,2026-03-02T00:00Z,9\na,2026-03-02T00:00Z,1\na,2026-03-02T01:00+01:00,3\n"
    path = written(tmp_path / "t.csv", text)
    with pytest.raises(InputError, match=r"series 'a' has 2026-03-02T00:00:00\+00:00 twice") as error:
        read_traffic(path)
    assert error.value.row == 4
    for how, value in (("first", 1.0), ("last", 3.0), ("mean", 2.0), ("sum", 4.0), ("max", 3.0)):
        table = read_traffic(path, duplicates=how)
        assert table.loc[table["series_id"] == "a", "value"].tolist() == [value]
    with pytest.raises(InputError, match="'guess' is unknown"):
        read_traffic(path, duplicates="guess")  # type: ignore[arg-type]


@given(traffic_rows(), st.integers(0, 10**6))
def test_deleted_and_doubled_hours_never_shift_the_others(rows: list[dict[str, object]], seed: int) -> None:
    """Case R7 as a law: an hour's value is looked up by time, whatever is missing or double around it."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rows).astype({"value": float})
    kept = frame[rng.random(len(frame)) < 0.7] if len(frame) > 3 else frame
    kept = frame.head(1) if kept.empty else kept
    doubled = pd.concat([kept, kept[rng.random(len(kept)) < 0.3]])
    table = regular_hours(doubled, duplicates="first").set_index(["series_id", "timestamp"])["value"]
    assert table.index.is_unique
    for row in kept.itertuples():
        assert table[(str(row.series_id).strip(), row.timestamp)] == pytest.approx(
            float(row.value), nan_ok=True
        )
    assert table.notna().sum() == kept["value"].notna().sum()


def test_hour_zero_is_anchored(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", "series_id,hour,value\na,0,1\na,2,3\n")
    notes: list[str] = []
    table = read_traffic(path, notes=notes)
    assert table["timestamp"][0] == pd.Timestamp(DEFAULT_START) and DEFAULT_START in notes[0]
    stamps = table["timestamp"].dt
    assert (stamps.day_of_week * 24 + stamps.hour).tolist() == [0, 1, 2]
    assert read_traffic(path, start="2026-03-02T05:00:00+02:00")["timestamp"][0] == pd.Timestamp(
        "2026-03-02T03:00Z"
    )
    with pytest.raises(InputError, match="carries no time zone"):
        read_traffic(path, start="2026-03-02")
    with pytest.raises(InputError, match=r"row 3, hour: '1\.5' is not a whole number"):
        read_traffic(written(path, "series_id,hour,value\na,0,1\na,1.5,3\n"))


def test_the_virtual_cluster_format_is_read(tmp_path: Path) -> None:
    text = "time,vc,running_gpujob_num,running_gpu_num\n2020-05-01 00:00,vc1,10.3,58.3\n2020-05-01 01:00,vc1,9.5,58\n"
    path = written(tmp_path / "t.csv", text)
    table = read_traffic(path, timezone="UTC")
    assert table["series_id"].tolist() == ["vc1", "vc1"] and table["value"].tolist() == [58.3, 58.0]
    assert read_traffic(path, timezone="UTC", value="running_gpujob_num")["value"].tolist() == [10.3, 9.5]
    with pytest.raises(InputError, match="power: the column is missing"):
        read_traffic(path, timezone="UTC", value="power")


def test_long_frames_of_forecasting_libraries_are_read(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", "unique_id,ds,y\na,2026-03-02T00:00Z,1\n")
    assert read_traffic(path)["value"].tolist() == [1.0]


def test_local_hours_lose_none_and_double_none(tmp_path: Path) -> None:
    """Case R5 for input: a local autumn day of 25 rows and a spring day of 23 become whole UTC hours."""
    for day, rows in (("2026-10-25", 25), ("2026-03-29", 23)):
        utc = pd.date_range(pd.Timestamp(day, tz="Europe/Berlin").tz_convert("UTC"), periods=rows, freq="h")
        local = utc.tz_convert("Europe/Berlin").strftime("%Y-%m-%d %H:%M:%S")
        lines = "\n".join(f"a,{stamp},{i}" for i, stamp in enumerate(local))
        path = written(tmp_path / "t.csv", f"series_id,timestamp,value\n{lines}\n")
        table = read_traffic(path, timezone="Europe/Berlin")
        assert table["timestamp"].tolist() == list(utc) and table["value"].tolist() == list(range(rows))
        with pytest.raises(InputError, match="carries no time zone"):
            read_traffic(path)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("a,2026-03-02T02:00Z,-1", "too small"),
        ("a,2026-03-02T02:00Z,inf", "not finite"),
        ("a,2026-03-02T02:00Z,x", "not a number"),
        ("a,2026-03-02T02:30Z,1", "series 'a' is not hourly"),
        (",2026-03-02T02:00Z,1", "series_id: the cell is empty"),
        ("a,2199-03-02T02:00Z,1", "would span"),
    ],
)
def test_a_bad_row_of_traffic_is_refused(tmp_path: Path, row: str, said: str) -> None:
    path = written(tmp_path / "t.csv", f"series_id,timestamp,value\na,2026-03-02T01:00Z,1\n{row}\n")
    with pytest.raises(InputError, match=said):
        read_traffic(path)


def test_gaps_are_filled_only_where_asked() -> None:
    nan = float("nan")
    table = regular_hours(hourly([nan, 1.0, nan, nan, 4.0, nan]))
    assert fill_gaps(table, "none")["value"].isna().sum() == 4
    assert fill_gaps(table, "zero")["value"].tolist() == [0, 1, 0, 0, 4, 0]
    assert fill_gaps(table, "previous")["value"].tolist()[1:] == [1, 1, 1, 4, 4]
    assert fill_gaps(table, "linear")["value"].tolist()[1:5] == [1, 2, 3, 4]
    assert table["value"].isna().sum() == 4
    weeks = regular_hours(hourly([float(i % 168) for i in range(400)])).assign(
        value=lambda t: t["value"].where(~t.index.isin((3, 200, 333)))
    )
    assert fill_gaps(weeks, "week")["value"].tolist() == [float(i % 168) for i in range(400)]
    with pytest.raises(InputError, match="'magic' is unknown"):
        fill_gaps(table, "magic")  # type: ignore[arg-type]


def test_series_do_not_fill_each_other() -> None:
    nan = float("nan")
    two = pd.concat([hourly([1.0, 2.0]), hourly([nan, nan]).assign(series_id="b")])
    for how in ("previous", "linear", "week"):
        table = regular_hours(two, fill=how)
        assert table.loc[table["series_id"] == "b", "value"].isna().all()


@pytest.mark.realdata
def test_public_series_are_read_whole(shared_data: Path) -> None:
    folder = shared_data / "traffic"
    m4 = read_traffic(folder / "m4_hourly_train.csv.gz")
    assert (len(m4), m4["series_id"].nunique(), m4["value"].isna().sum()) == (353500, 414, 0)
    metro = read_traffic(folder / "metro_interstate.csv.gz", timezone="UTC")
    assert metro["value"].isna().sum() == 11976
    earth = read_traffic(shared_data / "traces" / "hourly_earth_16vc_may2020.csv.gz", timezone="UTC")
    assert earth["series_id"].nunique() == 16 and len(earth) == 16 * 744


def test_a_missing_column_is_told_with_the_names_that_the_file_has(tmp_path: Path) -> None:
    path = tmp_path / "traffic.csv"
    path.write_text("app,when,demand\na,2026-03-02T00:00:00Z,1\n")
    said = (
        "series_id: the column is missing, as are timestamp, value; the header has app, when, demand; add it"
    )
    with pytest.raises(InputError, match=said):
        read_traffic(path)
    path.write_text("series_id,timestamp,demand\na,2026-03-02T00:00:00Z,1\n")
    said = "value: the column is missing; the header has series_id, timestamp, demand; name the column"
    with pytest.raises(InputError, match=said):
        read_traffic(path)
    assert read_traffic(path, value="demand")["value"].tolist() == [1.0]
