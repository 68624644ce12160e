"""A service on a site with hostile names, and a browser; they skip unless ``make test-web`` runs them."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Tests are imported by path; this lets them say `from web_page import Watched`.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "service")]

from web_page import Watched  # noqa: E402

if os.environ.get("TIDEGRID_TEST_WEB") != "1":
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a service."""
    from service_process import Running
    from service_site import write_site

    folder = tmp_path_factory.mktemp("web")
    rates = ("--rate", "100000", "--questions", "100000")
    running = Running(write_site(folder / "s"), folder / "log", *rates)
    try:
        running.ready()
        yield running.url
    finally:
        assert running.end() == 0
        faults = [line for line in running.lines() if line["level"] == "error"]
        assert faults == []


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """The browser."""
    from playwright.sync_api import sync_playwright

    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("there is no chromium")
    with sync_playwright() as play:
        opened = play.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


@pytest.fixture
def watched(browser: Any, served: str) -> Iterator[Watched]:
    """A page of 1300 px, in the light; nothing may go wrong on it."""
    found = Watched(browser, served, 1300, "light")
    yield found
    found.context.close()
    assert found.wrong == []
