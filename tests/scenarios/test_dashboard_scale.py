"""A page over very many tasks and workers takes about as long as over few: `--thorough`.

`python -m tests.scenarios.test_dashboard_scale URL TASKS` prints the times of one store.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from bullpen import TaskQueue
from bullpen.tasks.model.task import FAILED, RUNNING, AttemptError, Task, TaskStatus
from bullpen.tasks.storage.port import Storage, TaskFilter, WorkerRecord
from bullpen.tasks.storage.sqlite.store import SqliteStorage
from bullpen.tasks.storage.sqlite.task_table import SqliteTaskTable
from bullpen.web.access import AccessRules
from bullpen.web.app import Dashboard
from bullpen.web.gate import Gate
from tests.scenarios.test_dashboard import PAGES
from tests.scenarios.web_support import HOST, TOKEN
from tests.stores import KINDS, new_store

FEW, MANY, WORKERS = 1_000, 1_000_000, 1_000
BATCH, ROUNDS = 10_000, 9
QUEUES = ("default", "mail", "reports", "slow", "other")
MORE = (
    "/tasks?status=pending",
    "/tasks?status=pending&queue=mail",
    "/tasks?status=failed",
    "/tasks?status=success",
    "/tasks?queue=mail",
)


def tasks_of(many: int, now: float) -> Iterator[Task]:
    """Successes, then a backlog, and failures that do not become more; in the order of their ids."""
    error = AttemptError(kind="exception", attempt=1, at=now, type="ValueError", message="no", worker="w-1")
    failed: dict[str, Any] = {"status": TaskStatus.FAILED, "errors": (error,), "attempt": 1, "finished_at": now}
    success: dict[str, Any] = {"status": TaskStatus.SUCCESS, "attempt": 1, "finished_at": now, "result": b"1"}
    for number in range(many):
        created = now - 3600 + 3500 * number / many
        of_all: dict[str, Any] = {
            "func_path": f"shop.f{number % 20}",
            "payload": b'{"args":[],"kwargs":{}}',
            "created_at": created,
        }
        task_id = f"{int(created * 1000):012x}"[:8] + f"-0000-7000-8000-{number:012x}"
        is_failure = number * 500 // many != (number + 1) * 500 // many and number % 2
        more: Mapping[str, Any] = failed if is_failure else success if number < many * 7 // 10 else {"eta": created}
        yield Task(id=task_id, queue=QUEUES[number % 97 % len(QUEUES)], **{**of_all, **more})


async def fill(storage: Storage, many: int, workers: int) -> None:
    now = await storage.now()
    batch: list[Task] = []
    for task in tasks_of(many, now):
        batch.append(task)
        if len(batch) == BATCH:
            await storage.import_tasks(batch)
            batch = []
    if batch:
        await storage.import_tasks(batch)
    for number in range(workers):
        of_all: dict[str, Any] = {"host": f"host-{number % 50}", "pid": number, "boot_id": "b", "process_started": 0.0}
        at: dict[str, Any] = {"started_at": now, "seen_at": now + 600}
        await storage.save_worker(WorkerRecord(id=f"w-{number}", queues=QUEUES, concurrency=10, **of_all, **at))


async def times_of(address: str, tasks: int, workers: int) -> dict[str, float]:
    """The least time of each page in milliseconds, without anything that is kept from the page before. The other times
    tell more about what else the machine does.
    """
    async with TaskQueue(address) as queue:
        storage = await queue.astorage()
        await fill(storage, tasks, workers)
        terms: dict[str, Any] = {"trusted_proxies": (), "user_header": "x", "anonymous": True, "read_only": False}
        rules = AccessRules.read(token=TOKEN, hosts=["127.0.0.1"], secret="s", **terms)
        inner = Dashboard(queue, rules, None)
        transport = httpx.ASGITransport(app=Gate(inner.app, rules), client=("127.0.0.1", 50_000))
        (one,) = await queue.alist(limit=1, status="failed")
        found: dict[str, float] = {}
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}") as browser:
            for path in (*PAGES, *MORE, f"/tasks/{one.id}"):
                took = []
                for _ in range(ROUNDS):
                    inner._reads.forget()
                    began = time.perf_counter()
                    answer = await browser.get(path, timeout=300)
                    took.append((time.perf_counter() - began) * 1000)
                    assert answer.status_code == 200, answer.text
                found[path if not path.startswith("/tasks/") else "/tasks/ID"] = min(took)
        return found


async def steps_of(address: str, tasks: int) -> dict[str, int]:
    """How many steps SQLite makes for each read of an open dashboard."""
    async with TaskQueue(address) as queue:
        storage = await queue.astorage()
        assert isinstance(storage, SqliteStorage)
        await fill(storage, tasks, 1)
        reads: dict[str, Callable[[SqliteTaskTable], object]] = {
            "counts": lambda table: table.counts(50),
            "oldest": lambda table: table.first_pending(1),
            "pending": lambda table: table.list_pending(51, None, None),
            "pending of a queue": lambda table: table.list_pending(51, "mail", None),
            "running": lambda table: table.page(TaskFilter(statuses=(RUNNING,)), 51, None),
            "failed": lambda table: table.page(TaskFilter(statuses=(FAILED,)), 51, None),
            "awaiting": lambda table: table.page(TaskFilter(awaits=""), 51, None),
            "all": lambda table: table.page(TaskFilter(), 51, None),
        }
        return {name: await storage._read(partial(_count_steps, read)) for name, read in reads.items()}


def _count_steps(read: Callable[[SqliteTaskTable], object], table: SqliteTaskTable) -> int:
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1

    table._db.set_progress_handler(count, 10)
    try:
        read(table)
    finally:
        table._db.set_progress_handler(None, 0)
    return steps


def test_the_cost_of_an_open_dashboard_does_not_grow_with_the_number_of_tasks(tmp_path: Path) -> None:
    few = asyncio.run(steps_of(f"sqlite:///{tmp_path}/few.db", 1_500))
    many = asyncio.run(steps_of(f"sqlite:///{tmp_path}/many.db", 6_000))
    assert not [name for name in few if many[name] > 1.2 * few[name] + 5], (few, many)


@pytest.mark.thorough
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
def test_a_page_over_a_million_tasks_takes_at_most_twice_as_long(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with new_store(kind, tmp_path, request) as few, new_store(kind, tmp_path, request) as many:
        small = asyncio.run(times_of(few, FEW, WORKERS))
        large = asyncio.run(times_of(many, MANY, WORKERS))
    table = {path: (round(small[path], 1), round(large[path], 1)) for path in small}
    print(kind, table)
    assert not [path for path in small if large[path] > 2 * small[path] + 5], table


if __name__ == "__main__":
    for page, milliseconds in asyncio.run(times_of(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))).items():
        print(f"{milliseconds:9.1f} ms  {page}")
