"""The tables of every command that lists something fit a terminal of 80 columns, whatever the names are."""

from __future__ import annotations

import re

import pytest

from tests.scenarios.cli_support import Folder

APP = """
import contextlib
import logging

from bullpen import TaskFailed, TaskQueue, WorkerPool, current_task

queue = TaskQueue("sqlite:///jobs.db")
QUEUE = "payments-and-settlements-with-partner-banks-in-the-european-union"
NAME = "shop.billing.import_the_invoice_lines_of_a_customer_from_the_legacy_accounting_system"
queue.declare_limit(QUEUE, max_running=100, max_running_per_key=2, rate=5)


@queue.task(name=NAME, queue=QUEUE, max_retries=0)
def fail(reason: str) -> None:
    current_task().progress(1, 1000, "lines of the invoice that have no amount and no currency")
    raise ValueError(reason)


@queue.task(name="shop.synchronise_the_catalogue_with_all_partner_warehouses_in_the_region", cron="30 2 * * *")
def synchronise() -> None: ...


@queue.task
def step_by_step() -> None:
    for number in range(3):
        current_task().using(key=f"synchronise the warehouse number {number} with all of its partners").step(len, "ab")
    raise ValueError("no")
"""
FILL = """
logging.getLogger("bullpen").setLevel(logging.CRITICAL)
jobs = [fail.enqueue("the invoice has a line without an amount; " * 5), step_by_step.enqueue()]
with WorkerPool(queue, 2):
    for job in jobs:
        with contextlib.suppress(TaskFailed):
            job.result(timeout=60)
gone.enqueue()
fail.enqueue("waits")
queue.pause(QUEUE)
print(jobs[0].id, jobs[1].id)
"""
GONE = """
@queue.task(name="shop.a_function_that_this_code_does_not_have_any_more_and_that_no_worker_knows", queue="old-" + QUEUE)
def gone() -> None: ...
"""
COMMANDS = (
    "status",
    "queues",
    "tasks",
    "tasks list --newest",
    "workers",
    "schedules",
    "errors",
    "history",
    "history --by queue",
    "check app",
    "config",
    "tokens list tokens",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    folder = Folder(tmp_path_factory.mktemp("narrow"), APP + GONE)
    folder.write("ids", folder.python(FILL))
    folder.write("app.py", APP)
    folder.run("tokens", "create", "tokens", "the-nightly-import-of-invoices-of-all-customers")
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_no_line_of_a_table_is_wider_than_the_terminal(folder: Folder, command: str) -> None:
    takes_app = not command.startswith(("check", "config", "tokens"))
    told = folder.run(*command.split(), *(["--app", "app"] if takes_app else []), COLUMNS="80").stdout
    assert told
    assert [line for line in told.splitlines() if len(line) > 80 and "sqlite://" not in line] == []


def test_ids_are_never_shortened(folder: Folder) -> None:
    ids = (folder.path / "ids").read_text().split()
    for command in ("tasks", "errors"):
        told = folder.run(command, "--app", "app", COLUMNS="80").stdout
        assert all(one in told for one in ids), told
    assert re.search("[0-9a-f-]{36}", folder.run("check", "app", COLUMNS="80").stdout)


def test_the_steps_of_a_task_fit_too(folder: Folder) -> None:
    _, steps = (folder.path / "ids").read_text().split()
    told = folder.run("tasks", "show", steps, "--app", "app", COLUMNS="80").stdout
    table = told.split("\n\n")[1]
    assert "synchronise" in table
    assert [line for line in table.splitlines() if len(line) > 80] == []


def test_a_file_gets_whole_names(folder: Folder) -> None:
    assert "shop.billing.import_the_invoice_lines_of_a_customer_from_the_legacy_accounting_system" in folder.tell(
        "tasks", "--app", "app"
    )
