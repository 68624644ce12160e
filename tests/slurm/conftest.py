"""The tests in this folder talk to a real Slurm, which ``make test-slurm`` installs; elsewhere they are skipped."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cluster import Cluster, missing

import tidegrid

FOLDER = Path("/tmp/tidegrid-slurm")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster whose gate controls the partition gpu, with a hold of a minute."""
    if os.environ.get("TIDEGRID_TEST_SLURM") != "1":
        pytest.skip("talks to a real Slurm; run make test-slurm")
    if lacks := missing():
        pytest.skip(f"no Slurm can run here: {', '.join(lacks)} missing")
    shutil.rmtree(FOLDER, ignore_errors=True)
    gate = Path(tidegrid.__file__).parent / "pipeline" / "worlds" / "slurm" / "job_submit.lua"
    lua = gate.read_text(encoding="utf-8").replace("hold_seconds = 3600", "hold_seconds = 60")
    made = Cluster(FOLDER, lua)
    try:
        yield made.start()
    finally:
        made.stop()
