"""Compile the native core: every ``.cpp`` of the rooms into one shared library beside the package's wiring.

As hatchling's build hook it runs in ``pip install`` (editable or not) and in wheel builds; by hand,
``python hatch_build.py`` builds in place what changed, and ``--sanitize`` builds a checked library in
``build/sanitize`` for ``make sanitize``. The compiler is $CXX, else c++, g++ or clang++, else the PyPI package ziglang.
"""

import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # by hand, outside a build
    BuildHookInterface = object

ROOT = Path(__file__).resolve().parent
ROOMS = ("estimators", "scheduler", "data", "models", "pipeline", "app")
NAME = "_native" + {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")
# No -ffast-math, -march=native or fused multiply-add: the same input gives the same bytes on every machine.
FLAGS = ["-std=c++20", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno"]
CHECKS = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-D_GLIBCXX_ASSERTIONS"]
WARNINGS = ["-Wall", "-Wextra"]


def found_compiler() -> list[str] | None:
    """Return the command of the C++ compiler of this machine, None where there is none."""
    if os.environ.get("CXX"):
        return shlex.split(os.environ["CXX"])
    return next(([path] for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), None)


def compiler() -> list[str]:
    """Return the command that compiles: the machine's compiler or zig's."""
    command = found_compiler()
    if command is None:
        if importlib.util.find_spec("ziglang") is None:
            sys.exit(
                "hatch_build: no C++ compiler here; install g++ or clang++, set CXX, or: pip install ziglang"
            )
        # zig compiles for the very machine unless it is told otherwise
        command = [sys.executable, "-m", "ziglang", "c++", "-mcpu=baseline"]
    return command


def build(sanitize: bool = False) -> Path:
    """Compile what changed and link the library; return its path."""
    command = [*compiler(), *FLAGS, *WARNINGS, *(CHECKS if sanitize else [])]
    if platform.machine().lower() in ("x86_64", "amd64"):
        command.append("-mpopcnt")
    command += [f"-I{ROOT}", f"-I{ROOT / '.src' / 'tidegrid'}"]
    sources = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.cpp"))
    headers = [path for room in ROOMS for path in (ROOT / room).rglob("*.hpp")]
    headers.append(ROOT / ".src" / "tidegrid" / "native.hpp")
    newest = max(path.stat().st_mtime_ns for path in headers)
    # objects of another compiler or other flags lie in another folder
    objects = ROOT / "build" / "native" / hashlib.sha256(shlex.join(command).encode()).hexdigest()[:12]
    objects.mkdir(parents=True, exist_ok=True)
    linked = []
    for source in sources:
        made = objects / (str(source.relative_to(ROOT)).replace(os.sep, "-") + ".o")
        if not made.exists() or made.stat().st_mtime_ns < max(source.stat().st_mtime_ns, newest):
            run([*command, "-c", str(source), "-o", str(made)])
        linked.append(str(made))
    folder = ROOT / "build" / "sanitize" if sanitize else ROOT / ".src" / "tidegrid"
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f"{NAME}.{os.getpid()}"
    run([*command, "-shared", *linked, "-o", str(fresh)])
    # renamed, not overwritten: a process that runs keeps the library that it loaded
    fresh.replace(folder / NAME)
    return folder / NAME


def run(command: list[str]) -> None:
    """Run one compiler command; end with its own message where it fails."""
    if subprocess.run(command, check=False).returncode:
        sys.exit(f"hatch_build: failed: {shlex.join(command)}")


class NativeBuildHook(BuildHookInterface):
    """Build the library before a wheel is packed, and give the wheel its platform tag."""

    def dependencies(self) -> list[str]:
        """Ask for zig's compiler where the machine has none."""
        return [] if found_compiler() else ["ziglang>=0.13"]

    def initialize(self, version: str, build_data: dict) -> None:
        """Compile; a standard wheel carries the library, an editable install finds it in place."""
        from packaging.tags import sys_tags

        library = build()
        if version != "editable":
            build_data["force_include"][str(library)] = f"tidegrid/{NAME}"
        build_data["pure_python"] = False
        # the library knows nothing of Python: one wheel a platform serves every version
        here = next(tag.platform for tag in sys_tags() if "manylinux" not in tag.platform)
        build_data["tag"] = f"py3-none-{here}"


if __name__ == "__main__":
    print(build(sanitize="--sanitize" in sys.argv[1:]))
