"""A short tour: a site whose truth is known, lived through tick by tick, and what was told against what came of it."""

import sys
from pathlib import Path

import pytest

from tidegrid.pipeline.policy import Policy


def test_what_a_site_is_told_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planned starts lie inside their bands, no app is below its floor, and each line of advice is true."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    tour = __import__("tour")
    found, site = tour.tour(tmp_path, seed=4, ticks=6, after=0, days=8.0, load=1.0, lines=4, policy=Policy())
    assert found["told"] > 50 and not found["operator refused"]
    assert found["outside its own band"] == 0
    assert found["below floor"] == found["planned below floor"] == 0
    advice = found["advice"]
    assert advice["would start sooner"] > 0 and advice["in the way"] > 0
    assert advice["starts sooner"] == advice["would start sooner"]
    assert len(site.ended) > 500
    sys.modules.pop("tour")
