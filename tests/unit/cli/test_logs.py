from __future__ import annotations

import json
import logging
import sys
from typing import Any

import pytest

from bullpen.cli.worker_process.logs import JsonFormatter, TextFormatter, name_the_task
from bullpen.tasks.model.context import CurrentTask, running
from bullpen.tasks.model.task import Task
from bullpen.tasks.worker.reports import Reports

TASK = Task(id="0199", func_path="app.send", payload=b'{"args":["s3cret"]}', queue="mail", attempt=2)


def record(message: str, *values: object, name: str = "app", **fields: Any) -> logging.LogRecord:
    made = logging.getLogger(name).makeRecord(name, logging.INFO, "app.py", 1, message, values, None, extra=fields)
    name_the_task(made)
    return made


def test_a_line_of_a_task_says_which_one() -> None:
    with running(CurrentTask(TASK)):
        inside = record("sent to %s", "ada")
    text = TextFormatter().format(inside)
    assert text.endswith(" INFO    app.send (task 0199, attempt 2, queue mail): sent to ada")
    told = json.loads(JsonFormatter().format(inside))
    assert (told["task_id"], told["attempt"], told["queue"], told["message"]) == ("0199", 2, "mail", "sent to ada")
    assert (told["logger"], told["level"]) == ("app", "info")
    assert "s3cret" not in text + str(told)


def test_a_line_outside_says_whose_it_is() -> None:
    assert TextFormatter().format(record("ready", name="shop.db")).endswith(" INFO    shop.db: ready")
    assert TextFormatter().format(record("ready", name="bullpen.worker")).endswith(" INFO    ready")
    assert "task_id" not in json.loads(JsonFormatter().format(record("ready")))


def test_a_line_that_names_its_task_is_left_as_it_is() -> None:
    """A worker speaks of a task from outside of it, or of another one."""
    with running(CurrentTask(TASK)):
        other = record("lost", name="bullpen.worker", task_id="0200", attempt=1, queue="default")
    assert json.loads(JsonFormatter().format(other))["task_id"] == "0200"
    assert TextFormatter().format(other).endswith(" INFO    lost")


def test_every_line_of_a_process_has_its_name_tracebacks_too() -> None:
    made = record("two\nlines")
    try:
        raise ValueError("no")
    except ValueError:
        made.exc_info = sys.exc_info()
    lines = TextFormatter("worker-2").format(made).splitlines()
    assert len(lines) > 4
    assert all(line.startswith("worker-2 | ") for line in lines)
    told = json.loads(JsonFormatter("worker-2").format(made))
    assert told["worker"] == "worker-2"
    assert told["traceback"].endswith("ValueError: no\n")


FORGED = "x\x1b[2J\r\n2030-01-01 00:00:00.000 INFO    all is well\u202e\x9b"


def test_data_cannot_forge_a_line_of_the_log_or_reach_the_terminal() -> None:
    made = record("failed with %s", FORGED, task_id=FORGED, attempt=1, queue=FORGED, task_name=FORGED)
    try:
        raise ValueError(FORGED)
    except ValueError:
        made.exc_info = sys.exc_info()
    text, document = TextFormatter().format(made), JsonFormatter().format(made)
    assert sum(not line.startswith("  ") for line in text.split("\n")) == 1
    assert not any(character in text + document for character in "\x1b\r\u202e\x9b")
    assert json.loads(document)["message"] == f"failed with {FORGED}"


def test_the_log_of_a_worker_inside_an_app_has_one_line_per_record(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "bullpen.worker"):
        Reports("w", "w", None, lambda: 0.0).lost(Task(id=FORGED, func_path=FORGED, payload=b"", queue=FORGED), FORGED)
    (told,) = [made.getMessage() for made in caplog.records]
    assert told.isprintable()
