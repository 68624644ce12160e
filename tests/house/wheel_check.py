"""Build the wheel, hold its content against the tree, and run it in a clean virtual environment."""

import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

from tidegrid.native import NAME

ROOT = Path(__file__).parents[2]
ROOMS = ("estimators", "scheduler", "data", "models", "pipeline", "app")


def expected() -> set[str]:
    """Return the package files that the tree holds, as the wheel names them."""
    own = ROOT / ".src" / "tidegrid"
    names = {f"tidegrid/{p.name}" for p in own.iterdir() if p.is_file()} | {f"tidegrid/{NAME}"}
    for room in ROOMS:
        tracked = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", room],
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        names |= {f"tidegrid/{line}" for line in tracked.stdout.splitlines() if (ROOT / line).is_file()}
    return {name for name in names if not name.endswith((".cpp", ".hpp"))}


def main() -> int:
    """Return 0 where the wheel holds exactly the tree and runs by itself."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        subprocess.run(
            [sys.executable, "-m", "build", "--outdir", folder, str(ROOT)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        wheel = next(out.glob("*.whl"))
        if "-py3-none-any" in wheel.name or "-py3-none-" not in wheel.name:
            print("wheel: one for each platform and every Python is wanted, not", wheel.name)
            return 1
        with zipfile.ZipFile(wheel) as archive:
            names = {n for n in archive.namelist() if ".dist-info/" not in n}
        if names != expected():
            print("wheel: missing", sorted(expected() - names), "unexpected", sorted(names - expected()))
            return 1
        tops = {n.split("/")[0] for n in names}
        if tops != {"tidegrid"}:
            print("wheel: top-level packages", sorted(tops))
            return 1
        clean = out / "venv"
        venv.create(clean, with_pip=True)
        python = clean / "bin" / "python"
        subprocess.run(
            [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", str(wheel)], check=True
        )
        for command in (["--version"], ["demo", "--out", str(out / "demo")]):
            subprocess.run([clean / "bin" / "tidegrid", *command], check=True, cwd=folder)
    print(f"wheel: {len(names)} files, as the tree; its demo ran in a clean environment")
    return 0


if __name__ == "__main__":
    sys.exit(main())
