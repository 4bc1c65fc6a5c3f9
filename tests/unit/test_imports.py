"""What a program imports before it needs it: every module costs time at the start of each process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

OTHER_STORES = {"psycopg", "redis", "bullpen.tasks.storage.postgres", "bullpen.tasks.storage.redis"}
RARELY_USED = {
    *("bullpen.pools.explain", "bullpen.pools.stats", "bullpen.pools.async_pool", "bullpen.pools.runtimes.process"),
    *("bullpen.pools.runtimes.program", "bullpen.tasks.storage.mover", "bullpen.tasks.storage.sqlite.health_checks"),
    *("bullpen.testing", "bullpen.web", "bullpen.integrations", "django", "multiprocessing", "http", "email"),
    *("cronsim", "zoneinfo", "tomllib"),
    *("prometheus_client", "opentelemetry", "sentry_sdk", "structlog"),
}
PARTS_OF_A_POOL = {"bullpen.pools.options", "bullpen.pools.supervision", "dataclasses"}
COMMANDS = {
    "bullpen.cli.worker_process.supervisor",
    "bullpen.cli.commands.bench",
    "bullpen.cli.commands.tasks",
    "bullpen.cli.demo",
    "bullpen.cli.terminal",
}

WORKER = """
import asyncio, sys
from bullpen.cli.main import main
from bullpen.tasks.worker.worker_pool import AsyncWorkerPool

async def start_and_stop(self, started=None):
    async with self:
        print("\\n".join(sys.modules))

AsyncWorkerPool.run = start_and_stop
sys.exit(main(["worker", "app"]))
"""
APP = """
from bullpen import TaskQueue

queue = TaskQueue("sqlite:///jobs.db")


@queue.task
def work() -> None: ...
"""


def imported_by(code: str, folder: Path) -> set[str]:
    listed = code + "\nimport sys; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", listed], cwd=folder, capture_output=True, encoding="utf-8", check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("code", "must_not"),
    [
        ("import bullpen", {"asyncio", "msgspec", "sqlite3", "bullpen.errors", "bullpen.pools", "bullpen.tasks"}),
        (
            "from bullpen import Pool",  # also in worker processes, which make no pool
            {*("asyncio", "msgspec", "bullpen.tasks", "bullpen.cli", "pathlib"), *PARTS_OF_A_POOL, *RARELY_USED},
        ),
        ("from bullpen import Pool; Pool(1).close()", {"asyncio", "msgspec", "bullpen.tasks", *RARELY_USED}),
        (
            "import bullpen.pools.runtimes.process.forkserver",
            {"asyncio", "logging", "pathlib", "subprocess", "msgspec"},
        ),
        ("from bullpen import TaskQueue", {"bullpen.pools.pool", "bullpen.cli", *OTHER_STORES, *RARELY_USED}),
        ("import bullpen.cli.worker_process.serve", {"sqlite3", "bullpen.tasks.storage.sqlite", *OTHER_STORES}),
        (
            WORKER,
            {*OTHER_STORES, *RARELY_USED, *COMMANDS},
        ),
    ],
    ids=["bullpen", "Pool", "a pool", "forkserver", "TaskQueue", "worker of any store", "worker"],
)
def test_nothing_is_imported_before_it_is_needed(code: str, must_not: set[str], tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    imported = imported_by(code, tmp_path)
    assert "bullpen" in imported
    assert sorted(imported & must_not) == []


PLAIN, ASYNC = APP, APP.replace("def work", "async def work")
NEW_WORKER = "from app import queue; from bullpen import AsyncWorkerPool; AsyncWorkerPool(queue)"


def test_a_worker_imports_the_parts_of_a_pool_before_its_first_plain_task(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(PLAIN)
    before = imported_by(NEW_WORKER, tmp_path)
    after = imported_by(f"{NEW_WORKER}; from bullpen import Pool; Pool(1).submit(int).result()", tmp_path)
    assert sorted(after - before) == []


def test_a_worker_of_async_functions_imports_no_parts_of_a_pool(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(ASYNC)
    assert "bullpen.pools.supervision" not in imported_by(NEW_WORKER, tmp_path)
