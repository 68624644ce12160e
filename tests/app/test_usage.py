"""Wrong usage of the command line: one line on standard error, exit code 2, and no box."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import call

from tidegrid.__main__ import main
from tidegrid.app import common
from tidegrid.errors import InputError


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("--colour", ["no such option: --colour", "--help"]),
        ("plann", ["no such command 'plann'", "did you mean 'plan'"]),
        ("history foo", ["no such command 'foo'", "use one of synth, import, check, day"]),
        ("plan", ["missing argument 'site'", "[OPTIONS]"]),
        ("plan a b", ["unexpected extra argument", "b", "[OPTIONS]"]),
        ("check a", ["missing argument 'PLAN.json'", "PROBLEM.json"]),
        ("plan site --modee fast", ["no such option: --modee", "--mode", "plan --help"]),
        ("plan site --out", ["'--out' needs a value"]),
        ("plan site --report=3", ["'--report'"]),
        ("replay trace.csv", ["missing option '--gpus'", "replay --help"]),
        ("replay trace.csv --gpus 0", ["'--gpus'", "1", "replay --help"]),
        ("history synth out --days many", ["'--days'", "valid integer"]),
        ("forecast traffic.csv --quantile 2", ["'--quantile'", "0.99"]),
        ("forecast --colour", ["no such option: --colour"]),
        ("replay trace.csv --gpus 1000000000", ["'--gpus'", "100000"]),
        ("replay trace.csv --gpus 8 --days inf", ["'--days'", "3650"]),
        ("replay trace.csv --gpus 8 --days nan", ["'--days'", "3650"]),
        ("replay trace.csv --gpus 8 --set rounds=1e30", ["rounds"]),
        ("replay trace.csv --gpus 8 --set shortfall_weight=1e300", ["shortfall_weight", "1e+300"]),
        ("replay trace.csv --gpus 8 --country ZZ", ["no holiday calendar for 'ZZ'"]),
        ("forecast traffic.csv --country ZZ", ["no holiday calendar for 'ZZ'"]),
        ("replay trace.csv --gpus 8 --jobs 100000", ["'--jobs'", "256"]),
        ("evaluate site --folds 1000000000", ["'--folds'", "1000"]),
        ("evaluate site --share nan", ["'--share'", "0.999"]),
        ("history synth out --users 1000000000", ["'--users'", "10000"]),
        ("history synth out --days 1000000000", ["'--days'", "3650"]),
        ("history synth out --gpus 1000000000", ["'--gpus'", "10000"]),
        ("history synth out --seed -1", ["'--seed'"]),
        ("tick site --state s.db --now x --refit-hours nan", ["'--refit-hours'", "87600"]),
        ("tick site --state s.db --now x --time-limit inf", ["'--time-limit'", "86400"]),
        ("solve p.json --time-limit nan", ["'--time-limit'", "86400"]),
        ("compare p.json --repeats 1000000000", ["'--repeats'", "10000"]),
        ("forecast t.csv --units-per-gpu-hour 0", ["'--units-per-gpu-hour'", "0.000000001"]),
        ("forecast t.csv --min-replicas 1000000000", ["'--min-replicas'", "100000"]),
        ("models prune store --max-mb inf", ["'--max-mb'"]),
    ],
)
def test_wrong_usage_is_one_line(argv: str, said: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, *argv.split())
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and err.endswith("\n") and err.count("\n") == 1
    assert not set(err) & set("╭│╰")
    for part in said:
        assert part in err


YEARS = ("0001-01-01T00:00:00Z", "1677-09-21T00:12:44Z", "2262-04-12T00:00:00Z", "9999-12-31T23:59:59Z")


@pytest.mark.parametrize("when", YEARS)
@pytest.mark.parametrize(
    "argv",
    [
        "plan SITE --now WHEN --no-report --out OUT",
        "predict SITE --now WHEN",
        "train SITE --now WHEN",
        "evaluate SITE --now WHEN",
        "tick SITE --now WHEN --state OUT",
        "history synth OUT --now WHEN",
        "history import TRAFFIC --table traffic --start WHEN --out OUT.csv",
        "history day JOBS DATE --out OUT",
        "models promote STORE realtime x --reason y --at WHEN",
    ],
)
def test_an_instant_at_the_ends_of_time_is_refused_with_the_range(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: str, when: str
) -> None:
    pools = [{"id": "p", "gpus": 4, "gpu_type": "A100-SXM-80GB"}]
    (tmp_path / "cluster.json").write_text(json.dumps({"pools": pools}))
    head = "job_id,kind,submit_time,gpus"
    (tmp_path / "requests.csv").write_text(f"{head}\na,training,2026-03-02T00:00:00Z,1\n")
    ended = "completed,2026-03-02T00:00:00Z,2026-03-02T01:00:00Z"
    jobs = f"{head},status,start_time,end_time\na,training,2026-03-02T00:00:00Z,1,{ended}\n"
    (tmp_path / "jobs.csv").write_text(jobs)
    (tmp_path / "hours.csv").write_text("series_id,hour,value\nchat,0,5\nchat,1,6\n")
    (tmp_path / "models").mkdir()
    places = {"SITE": tmp_path, "OUT": tmp_path / "out", "OUT.csv": tmp_path / "out.csv", "WHEN": when}
    places |= {"TRAFFIC": tmp_path / "hours.csv", "JOBS": tmp_path / "jobs.csv", "DATE": when[:10]}
    places |= {"STORE": tmp_path / "models"}
    code, out, err = call(capsys, *[places.get(word, word) for word in argv.split()])
    assert code == 2 and out == "" and err.count("\n") == 1, err
    assert ("1970" in err and "2199" in err) or "no such estimator" in err, err
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize(("argv", "code"), [("--help", 0), ("plan --help", 0), ("history", 2)])
def test_help_is_printed_in_full(argv: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    left, out, err = call(capsys, *argv.split())
    assert left == code and "Usage: " in out and "--help" in out and err == ""


def test_an_interrupt_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tidegrid.scheduler.Problem.read", interrupted)
    code, _, err = call(capsys, "solve", "problem.json")
    assert (code, err) == (130, "tidegrid: interrupted; nothing was left half-written\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("target", ["> /dev/full", ">&-"])
def test_an_output_that_cannot_be_written_is_one_line(target: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'"{sys.executable}" -m tidegrid estimators list {target}'],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("error: standard output cannot be written")
    assert done.stderr.count("\n") == 1


def test_an_interrupt_while_loading_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupting:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "tidegrid.app.cli":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "tidegrid.app.cli", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == common.INTERRUPTED
    assert capsys.readouterr().err == common.STOPPED


def test_json_has_a_version_and_so_have_errors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = call(capsys, "estimators", "list", "--json")
    assert code == 0 and json.loads(out)["json_version"] == common.JSON_VERSION
    monkeypatch.setattr(sys, "argv", ["tidegrid", "check", "no.json", "no.json", "--json"])
    code, out, err = call(capsys, "check", "no.json", "no.json", "--json")
    told = json.loads(out)
    assert code == 2 and told["json_version"] == common.JSON_VERSION
    assert told["error"]["file"] == "no.json" and told["error"]["text"] in err


def test_control_codes_are_spelt_out(capsys: pytest.CaptureFixture[str]) -> None:
    common.say("job \x1b[31mred\x9b1m", lead="\x07")
    common.table("\x1b]0;t\x07", ["job"], [["a\x1bb"]])
    with pytest.raises(SystemExit):
        common.fail(InputError("\x1b[2J is no job"))
    told = capsys.readouterr()
    assert not {"\x1b", "\x9b", "\x07"} & set(told.out + told.err)
    assert "\\x1b[31mred\\x9b1m" in told.out and "\\x1b[2J is no job" in told.err


def test_what_is_printed_stands_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    common.say("wrote [a]/plan.json", lead="[bold]")
    common.table("of [b]", ["job", "[c]"], [["sweep[d]", "[red]1[/red]"]])
    text = capsys.readouterr().out
    assert "[bold]wrote [a]/plan.json" in text
    assert all(cell in text for cell in ("of [b]", "[c]", "sweep[d]", "[red]1[/red]"))


@pytest.mark.parametrize(
    "argv",
    [
        "plan x", "predict x", "train x", "evaluate x", "forecast x", "tick x --state s --now 2026-01-01T00:00Z",
        "history check x", "history import x --out y", "history synth y", "history day x --out y --gpus 8",
        "explain x y", "replay x --gpus 8",
    ],
)  # fmt: skip
def test_a_zone_that_does_not_exist_is_told_before_anything_is_read(
    argv: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, said = call(capsys, *argv.split(), "--timezone", "Mars/Base")
    assert code == 2
    assert said.startswith("error: timezone: 'Mars/Base' is not a time zone; give an IANA name")
