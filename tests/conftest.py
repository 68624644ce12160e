"""What every test shares: hypothesis profiles, and the folder of public data where it is there."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from threadpoolctl import threadpool_limits

# as on the command line: with one thread of linear algebra the same input gives the same bytes, in every process
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
threadpool_limits(limits=1)  # a plugin of pytest may have loaded numpy before

ROOT = Path(__file__).parents[1]

# Tests are imported by path; this lets them say `from command_line import call`.
sys.path.insert(0, str(Path(__file__).parent))

settings.register_profile(
    "default", deadline=None, max_examples=40, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "thorough", deadline=None, max_examples=1000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with the contract and the public data; skips where it is absent."""
    folder = Path(os.environ.get("TIDEGRID_SHARED", ROOT.parent / "shared"))
    if not (folder / "contract" / "check_plan.py").is_file():
        pytest.skip(
            f"the contract and the public data are not at {folder}; set TIDEGRID_SHARED to their folder"
        )
    return folder


@pytest.fixture(scope="session")
def shared_data(shared: Path) -> Path:
    """The folder of public traces, traffic and timings; skips where it is absent."""
    folder = shared / "data"
    if not (folder / "traces").is_dir():
        pytest.skip(f"the public traces are not at {folder}; set TIDEGRID_SHARED to the folder above")
    return folder
