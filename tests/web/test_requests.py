"""The API under requests that are made from its OpenAPI document: no fault, and nothing that is not documented."""

import subprocess
import sys
from pathlib import Path


def test_no_made_up_request_finds_a_fault(served: str, tmp_path: Path) -> None:
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    command = [Path(sys.executable).parent / "st", "run", f"{served}api/v1/openapi.json", "--checks", checks]
    # a stream never ends
    command += [
        "--exclude-path",
        "/api/v1/events/stream",
        "--max-examples",
        "15",
        "--seed",
        "1",
        "--no-color",
    ]
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, cwd=tmp_path, timeout=400, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:]
