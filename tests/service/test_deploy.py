"""What stands in deploy/ names metrics that there are, and options that the command has."""

import json
import re
from pathlib import Path

import pytest
from command_line import call
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

DEPLOY = Path(__file__).parents[2] / "deploy"

METRIC = re.compile(r"\btidegrid_[a-z_]+\b")


@pytest.mark.parametrize("file", ["alerts.yml", "grafana/tidegrid.json"])
def test_rules_and_dashboard_name_metrics_that_there_are(client: TestClient, file: str) -> None:
    client.post("/api/v1/what-if", json={"policy": {"decay": 0.9}})
    families = list(text_string_to_metric_families(client.get("/metrics").text))
    # a family is there before its first sample is
    there = {family.name for family in families} | {s.name for family in families for s in family.samples}
    named = set(METRIC.findall((DEPLOY / file).read_text()))
    assert len(named) > 5
    assert named <= there


def test_the_dashboard_is_json_whose_panels_do_not_overlap() -> None:
    panels = json.loads((DEPLOY / "grafana" / "tidegrid.json").read_text())["panels"]
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in panels]
    assert len(set(places)) == len(panels)
    assert len({p["id"] for p in panels}) == len(panels)


@pytest.mark.parametrize("file", ["tidegrid.service", "Containerfile"])
def test_units_name_options_that_there_are(capsys: pytest.CaptureFixture[str], file: str) -> None:
    text = (DEPLOY / file).read_text()
    options = set(re.findall(r"(?<= |\")--(?:host|store|port|every|tokens)\b", text))
    assert options
    helped = call(capsys, "serve", "--help")[1]
    assert all(option in helped for option in options)
