"""The example plugin installs as any package would, is found, and keeps the contract."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = Path(__file__).parents[2] / "examples" / "plugin"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that has the plugin installed beside the product."""
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("hatchling is not installed here, and the plugin is built without a network")
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    command += ["--no-index", "--target", str(target), str(PLUGIN)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return {**os.environ, "PYTHONPATH": str(target)}


def cli(installed: dict[str, str], *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidegrid", *args]
    return subprocess.run(command, env=installed, capture_output=True, text=True, check=False)


def test_it_is_listed_and_keeps_the_contract(installed: dict[str, str]) -> None:
    listed = cli(installed, "estimators", "list", "--json")
    assert listed.returncode == 0, listed.stderr
    found = {e["name"]: e for e in json.loads(listed.stdout)["estimators"]}
    assert found["checkpoint_eval"]["distribution"] == "tidegrid-checkpoint-eval 0.1.0"
    assert {"training", "recurring"} <= set(found)
    checked = cli(installed, "estimators", "check", "checkpoint_eval")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "BROKEN" not in checked.stdout


def test_its_own_tests_pass(installed: dict[str, str]) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(PLUGIN / "tests"),
    ]
    run = subprocess.run(
        [*command, "-c", os.devnull, str(PLUGIN / "tests")],
        env=installed,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout
