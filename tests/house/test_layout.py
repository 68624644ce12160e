"""The house itself: links, import names, arrows, and files that must not speak of a machine."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("estimators", "scheduler", "data", "models", "pipeline", "app")


@pytest.mark.parametrize("room", ROOMS)
def test_each_room_is_linked_into_the_package_by_a_relative_link(room: str) -> None:
    link = ROOT / ".src" / "tidegrid" / room
    assert link.is_symlink()
    assert link.readlink() == Path("../..") / room
    assert link.resolve() == ROOT / room


def test_every_module_on_disk_imports_by_its_public_name() -> None:
    ground = ("errors", "files", "native", "swaps", "zones")
    names = ["tidegrid", "tidegrid.__main__", *(f"tidegrid.{name}" for name in ground)]
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            names.append(".".join(("tidegrid", *(p for p in parts if p != "__init__"))))
    for name in names:
        if name != "tidegrid.__main__":
            importlib.import_module(name)


def test_every_folder_of_code_is_a_package() -> None:
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            assert (path.parent / "__init__.py").is_file(), f"{path.parent} has no __init__.py"


def test_git_ignores_no_source() -> None:
    """.gitignore must not swallow the folders data/ and models/."""
    sources = [
        str(path.relative_to(ROOT))
        for room in ROOMS
        for path in (ROOT / room).rglob("*")
        if path.suffix in (".py", ".cpp", ".hpp")
    ]
    done = subprocess.run(
        ["git", "check-ignore", "--no-index", *sources], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode == 128:
        pytest.skip("not a git checkout")
    assert done.stdout == ""


def test_no_tracked_file_names_a_path_of_one_machine() -> None:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip("not a git checkout")
    pattern = re.compile(r"(^|[^A-Za-z0-9_.])/(work|root|home)/")
    for name in done.stdout.splitlines():
        path = ROOT / name
        if path.is_file() and not path.is_symlink() and path != Path(__file__):
            text = path.read_text(encoding="utf-8", errors="ignore")
            assert not pattern.search(text), name


def test_python_dash_m_runs_the_command_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tidegrid", "--version"], capture_output=True, text=True, check=True
    )
    assert re.fullmatch(r"tidegrid \d+\.\d+\.\d+\n", done.stdout)


def test_help_loads_no_heavy_library() -> None:
    """Start-up stays quick because numpy and its like are imported inside the commands that use them."""
    code = (
        "import sys; sys.argv = ['tidegrid', '--help']\n"
        "from tidegrid.app.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'pandas', 'lightgbm', 'sklearn', 'ortools', 'plotly', 'matplotlib', 'pydantic'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
