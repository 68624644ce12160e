"""The page on the policy names every parameter, with its default."""

import json
from pathlib import Path

from tidegrid.pipeline.policy import Policy

PAGE = Path(__file__).parents[2] / "docs" / "policy.md"


def test_the_page_has_every_parameter_and_its_default() -> None:
    rows = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    told = {row[0].strip("| `"): json.loads(row[1]) for row in rows}
    assert told == Policy().model_dump()
