"""`bullpen emit`, and the commands that show waits."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bullpen import TaskQueue, current_task
from bullpen.cli.main import main
from bullpen.testing import run_until_empty


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


def test_emit_wakes_the_tasks_that_wait(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    with TaskQueue(address) as queue:

        @queue.task(name="f")
        def f() -> Any:
            return current_task().wait_event("approved:42", timeout=3600)

        job = f.enqueue()
        run_until_empty(queue)
        assert main(["tasks", "show", job.id, "--url", address]) == 0
        shown = capsys.readouterr().out
        assert "◷ waiting" in shown
        assert re.search(r"event approved:42 +\+0.00 s +\S+ s +1 +waits until ", shown)
        assert "why" in shown
        assert "it waits for the event approved:42 since" in shown
        assert main(["tasks", "list", "--event", "*", "--url", address, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["tasks"][0]["awaits"]["event"] == "approved:42"
        assert main(["tasks", "list", "--event", "another", "--url", address]) == 0
        assert "no tasks" in capsys.readouterr().out

        assert main(["emit", address, "approved:42", '{"by": "ada"}']) == 0
        assert capsys.readouterr().out == "approved:42: 1 task waits for it\n"
        assert main(["emit", address, "approved:42"]) == 0
        assert "an event of this name exists; nothing was emitted" in capsys.readouterr().out
        assert main(["emit", address, "other", "--ttl", "5m", "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {"name": "other", "is_new": True, "waiting": 0}
        run_until_empty(queue)
        assert job.result(timeout=1) == {"by": "ada"}
        assert main(["tasks", "show", job.id, "--url", address]) == 0
        assert re.search(r"event approved:42 +\+0.00 s .* kept", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["e", "{"], "the payload is no JSON"),
        (["", "1"], "name must be a string of 1 to 200 printable characters"),
        (["e", json.dumps("x" * 300_000)], "event 'e': the payload is 300002 bytes, and at most 262144 are kept"),
    ],
)
def test_bad_input_is_named_and_nothing_is_emitted(
    address: str, words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with TaskQueue(address) as queue:
        queue.emit("other")  # makes the file
        assert main(["emit", address, *words]) != 0
        assert problem in capsys.readouterr().err
        assert queue.emit("e") is True
