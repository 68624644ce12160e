"""The quantization benchmark on timings as others collect them: every measured row is answered, the rest counted."""

import gzip
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
import quantization_timings as benchmark

from tidegrid.errors import InputError

COLUMNS = ["row", "q0.5", "q0.9", "actual"]


def timings(rows: int = 24) -> pd.DataFrame:
    size = np.array([0.5, 7.0, 13.0, 70.0])[np.arange(rows) % 4]
    return pd.DataFrame(
        {
            "source": [f"manual {i % 5}" for i in range(rows)],
            "algorithm": [("GPTQ", "AWQ", "bitsandbytes", "AutoRound")[i % 4] for i in range(rows)],
            "bits": "4",
            "group_size": "128",
            "model": "a-model",
            "params_b": size,
            "gpu_type": "A100-80GB",
            "gpus": "1",
            "duration_min": 2.0 * size,
            "peak_mem_gib": "",
            "calib_samples": "128",
            "calib_seqlen": "2048",
            "notes": "",
        }
    ).astype(object)


def predicted(
    past: pd.DataFrame | bytes,
    rows: pd.DataFrame | bytes | None,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> pd.DataFrame:
    out, arguments = folder / "out.csv", ["quantization_timings.py"]
    for name, frame in (("calibrate", past), ("test", rows)):
        if frame is not None:
            path = folder / f"{name}.csv"
            path.write_bytes(frame if isinstance(frame, bytes) else frame.to_csv(index=False).encode())
            arguments += [f"--{name}", str(path)]
    monkeypatch.setattr(sys, "argv", [*arguments, "--predictions", str(out)])
    assert benchmark.main() == 0
    told = pd.read_csv(out)
    assert list(told.columns) == COLUMNS
    assert np.isfinite(told.to_numpy(dtype=float)).all()
    assert (told["q0.5"] > 0).all()
    assert (told["q0.9"] >= told["q0.5"]).all()
    return told


BLANK = ("bits", "group_size", "model", "gpu_type", "gpus", "calib_samples", "calib_seqlen", "notes")

OTHERS: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "algorithms": lambda f: f.assign(algorithm=["HQQ", "", "QuIP#", "GPTQ-int4", "LLM.int8()", "awq"] * 4),
    "GPUs": lambda f: f.assign(gpu_type=["MI300X", "", "TPU v9", "2x RTX 3090", "gb200 nvl72", "?"] * 4),
    "blank cells": lambda f: f.assign(**dict.fromkeys(BLANK, "")),
    "absent columns": lambda f: f.drop(columns=list(BLANK)),
    "sizes": lambda f: f.assign(params_b=["0.0011", "0.01", "5000", "1e9", "1e300", "1000000"] * 4),
    "odd numbers": lambda f: f.assign(
        bits=["4-bit", "0", "1.58", "inf", "-1", "32"] * 4,
        gpus=["0", "0.5", "inf", "1e6", "x", "-2"] * 4,
        calib_samples=["inf", "1e300", "0", "-1", "none", "1"] * 4,
        calib_seqlen=["1e300", "1e308", "inf", "0", "-1", "none"] * 4,
    ),
    "odd notes": lambda f: f.assign(
        notes=[
            "active_params_b=.",
            "active 3.5.1 B",
            "0 experts",
            "active_params_b=1e3",
            "active ... B",
            "9 experts",
        ]
        * 4,
        model=["Mixtral-8x7B", "x-a..b", "0x7b", "Qwen3-30B-A3B", "x-a3.b", ""] * 4,
    ),
    "one row": lambda f: f.iloc[:1],
}


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS.keys())
def test_every_measured_row_is_answered(
    change: Callable[[pd.DataFrame], pd.DataFrame], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether what is odd stands in the file to learn from or in the one to answer."""
    odd = change(timings())
    assert list(predicted(timings(), odd, tmp_path, monkeypatch)["row"]) == list(range(len(odd)))
    assert len(predicted(odd, timings(), tmp_path, monkeypatch)) == 24


def test_an_algorithm_that_nobody_calibrated_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    awq = timings()["algorithm"] == "AWQ"
    assert len(predicted(timings()[~awq], timings()[awq], tmp_path, monkeypatch)) == 6
    assert len(predicted(timings().iloc[:0], timings(), tmp_path, monkeypatch)) == 24


def test_rows_that_measure_nothing_are_counted_and_keep_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = timings(6).assign(
        duration_min=["", "5", "inf", "-1", "5", "5"],
        params_b=["7", "7B", "7", "7", "inf", "7"],
    )
    assert list(predicted(timings(), rows, tmp_path, monkeypatch)["row"]) == [5]
    assert "5 of 6 rows are no measurement of a run and are left out" in capsys.readouterr().err


def test_bytes_of_every_origin_are_the_same_timings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CRLF with a byte-order mark, and a gzip file under another name."""
    plain = predicted(timings(), timings(), tmp_path, monkeypatch)
    windows = b"\xef\xbb\xbf" + timings().to_csv(index=False, lineterminator="\r\n").encode()
    for content in (windows, gzip.compress(windows)):
        pd.testing.assert_frame_equal(predicted(content, content, tmp_path, monkeypatch), plain)


@pytest.mark.parametrize("test", [True, False])
def test_a_file_that_measures_nothing_is_refused(
    test: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = timings().assign(duration_min="")
    past, rows = (timings(), nothing) if test else (nothing, None)
    with pytest.raises(InputError, match="no measured row"):
        predicted(past, rows, tmp_path, monkeypatch)
