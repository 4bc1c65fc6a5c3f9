"""The HTTP API does what its OpenAPI document says, for requests that schemathesis makes of it: `--thorough`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bullpen.web.tokens import SCOPES, TokenFile
from tests.scenarios.cli_support import Folder, environment
from tests.scenarios.test_dashboard_server import served

REQUESTS = 100  # at most, of each operation and kind
# A schema cannot say that a function needs an argument, or that a step fits a time.
LEFT_OUT = "positive_data_acceptance"
SETTINGS = """
[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 405, 409, 413, 414, 415, 421]
"""


@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_every_answer_is_one_that_the_document_describes(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.python("add.enqueue(1); fail.enqueue('x')")
    folder.write("schemathesis.toml", SETTINGS)
    token = TokenFile(tmp_path / "tokens").create("fuzzer", SCOPES)
    with folder.worker(), served(folder, "--tokens", "tokens") as (_, address):
        done = subprocess.run(
            [
                *(sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()", "run"),
                f"{address}/api/v1/openapi.json",
                *("--header", f"Authorization: Bearer {token}"),
                *("--max-examples", str(REQUESTS), "--checks", "all", "--exclude-checks", LEFT_OUT),
                *("--continue-on-failure", "--no-color", "--request-timeout", "70", "--generation-deterministic"),
            ],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            encoding="utf-8",
            timeout=1700,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]
    print(done.stdout[-1500:])
