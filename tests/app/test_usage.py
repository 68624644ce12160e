"""Wrong usage of the command line: one line on standard error, exit code 2, and no box."""

import pytest
from command_line import call

from tidegrid.app import common


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
    ],
)
def test_wrong_usage_is_one_line(argv: str, said: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, *argv.split())
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and err.endswith("\n") and err.count("\n") == 1
    assert not set(err) & set("╭│╰")
    for part in said:
        assert part in err


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
