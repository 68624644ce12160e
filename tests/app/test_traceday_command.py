"""``tidegrid history day``: a site of traces, that never replaces another one unasked."""

from pathlib import Path

import pytest
from command_line import call


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    rows = [f"j{i},training,completed,2026-03-0{1 + i // 4}T0{i % 4}:00:00Z,3600,2,ann" for i in range(12)]
    path.write_text("\n".join(["job_id,kind,status,submit_time,duration_s,gpus,user", *rows]) + "\n")
    return path


@pytest.mark.parametrize("name", ["cluster.json", "requests.csv", "traffic.parquet"])
def test_a_site_that_is_there_is_left_as_it_is(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    out = tmp_path / "mine"
    out.mkdir()
    (out / name).write_text("mine")
    code, _, err = call(capsys, "history", "day", trace, "2026-03-03", "--out", out)
    assert code == 2 and err.count("\n") == 1
    assert f"{out / name}: is there already" in err and "another folder" in err and "--force" in err
    assert [(path.name, path.read_text()) for path in out.iterdir()] == [(name, "mine")]


def test_a_site_is_replaced_with_force(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "day"
    assert call(capsys, "history", "day", trace, "2026-03-03", "--out", out)[0] == 0
    first = (out / "requests.csv").read_bytes()
    assert call(capsys, "history", "day", trace, "2026-03-02", "--out", out)[0] == 2
    assert (out / "requests.csv").read_bytes() == first
    assert call(capsys, "history", "day", trace, "2026-03-02", "--out", out, "--force")[0] == 0
    assert (out / "requests.csv").read_bytes() != first
