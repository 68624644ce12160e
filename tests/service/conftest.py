"""A service on a small site whose free fields are hostile, in this process."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from tidegrid.app.service.running import Service
from tidegrid.app.service.serving import application

# Tests are imported by path; this lets them say `from service_site import write_site`.
sys.path.insert(0, str(Path(__file__).parent))

from service_site import Here, options_of, wait_for, write_site


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Service:
    """A service on a site whose free fields are hostile."""
    return Service(
        options_of(write_site(tmp_path_factory.mktemp("site") / "s"), rate=1e6, question_rate=1e6), Here
    )


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[TestClient]:
    """Somebody who asks it from this machine."""
    with TestClient(application(service), base_url="http://127.0.0.1:8080") as found:
        wait_for(found)
        yield found
