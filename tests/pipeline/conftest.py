"""A small synthetic site and estimators on it, made once."""

import sys
from pathlib import Path

import pytest

from tidegrid.data.synth import synthesise
from tidegrid.estimators import Estimator
from tidegrid.pipeline.decide import Decision, decide
from tidegrid.pipeline.forecast import Estimating
from tidegrid.pipeline.site import Site
from tidegrid.pipeline.train import fit_all

# Tests are imported by path; this lets them say `from rolling_site import World`.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A synthetic site of three weeks, written to files and read back."""
    folder = tmp_path_factory.mktemp("sample")
    synthesise(1, days=21).write(folder)
    return Site.read(folder)


@pytest.fixture(scope="session")
def fitted(sample: Site) -> dict[str, Estimator]:
    """Every estimator fitted on the sample's history."""
    return fit_all(sample.history, timezone=sample.cluster.timezone)


@pytest.fixture(scope="session")
def decision(sample: Site, fitted: dict[str, Estimator]) -> Decision:
    """What is decided on the sample."""
    return decide(sample.state(), Estimating(fitted, sample.history))
