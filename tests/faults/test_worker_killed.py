"""A worker is killed at every failpoint in the life of a task: no task is lost, and another worker goes on at once."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

import bullpen
from bullpen import TaskQueue
from bullpen.tasks.model.options import TaskOptions
from bullpen.tasks.model.registry import TaskRegistry
from bullpen.tasks.model.task import SUCCESS, Task
from bullpen.tasks.storage.port import TaskFilter
from bullpen.tasks.worker.identity import is_dead

sqlite = pytest.importorskip("bullpen.tasks.storage.sqlite.store", reason="needs the SQLite store")

FAILPOINTS = [  # and how often it is passed before
    ("worker.before_record", 0),
    ("worker.after_record", 0),
    ("exchange.before", 0),
    ("exchange.before", 3),
    ("exchange.after", 0),
    ("exchange.after", 3),
    ("attempt.before", 0),
    ("attempt.before", 4),
    ("attempt.after", 0),
    ("attempt.after", 4),
    ("renew.before", 0),
    ("renew.after", 0),
    ("rescue.before", 0),
    ("rescue.after", 0),
    ("sqlite.before_commit", 2),
    ("sqlite.before_commit", 5),
    ("sqlite.after_commit", 2),
    ("sqlite.after_commit", 5),
]
TESTED_BELOW = {"worker.before_leave", "enqueue.before_add", "enqueue.after_add", "emit.before", "emit.after"}
TESTED_IN = {
    "complete.before": "test_complete_killed.py",
    "complete.after": "test_complete_killed.py",
    "step.before": "test_steps_killed.py",
    "step.after": "test_steps_killed.py",
    "schedules.before_declare": "test_schedules_killed.py",
    "schedules.after_declare": "test_schedules_killed.py",
    "sqlite.before_checkpoint": "test_sqlite_crash.py",
    "sqlite.before_migration_commit": "test_sqlite_crash.py",
}
TASKS, CONCURRENCY = 12, 3
WITHIN = 40.0

WORKER = """
import asyncio, os, signal, sys
from bullpen import AsyncWorkerPool, primitives
from bullpen.tasks.worker.identity import is_dead
from bullpen.tasks.storage.sqlite.store import SqliteStorage
from bullpen.tasks.model.context import current_task
from bullpen.tasks.model.registry import TaskRegistry

path, effects, fatal, hits, lease, nap = *sys.argv[1:4], int(sys.argv[4]), *map(float, sys.argv[5:])

def failpoint(name):
    global hits
    if name == fatal:
        hits -= 1
        if hits < 0:
            os.kill(os.getpid(), signal.SIGKILL)

primitives.failpoint = failpoint

def note(number):
    task = current_task()
    descriptor = os.open(effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{task.id} {task.attempt}\\n".encode())
    os.close(descriptor)

async def on_loop(number: int) -> int:
    note(number)
    await asyncio.sleep(nap)
    return number

def on_thread(number: int) -> int:
    note(number)
    return number

class Queue:
    storage = SqliteStorage(path)
    registry = TaskRegistry()

Queue.registry.register(on_loop, name="on_loop")
Queue.registry.register(on_thread, name="on_thread")
asyncio.run(AsyncWorkerPool(Queue, 3, poll_interval=0.1, lease=lease).run())
"""


class Worker:
    """A worker in its own process, which never outlives the test."""

    def __init__(self, path: Path, effects: Path, fatal: str = "", hits: int = 0, **times: float) -> None:
        times = {"lease": 15.0, "nap": 0.05, **times}
        command = [sys.executable, "-c", WORKER, path, effects, fatal, hits, times["lease"], times["nap"]]
        self._process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, encoding="utf-8")

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def dies(self) -> None:
        _, err = self._process.communicate(timeout=WITHIN)
        assert self._process.returncode == -signal.SIGKILL, err

    def stops(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        _, err = self._process.communicate(timeout=WITHIN)
        assert self._process.returncode == 0, err

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def new_calls(names: Sequence[str]) -> list[Task]:
    """Enqueue tasks with their numbers as arguments."""

    async def on_loop(number: int) -> int:
        return number

    encode = TaskRegistry().register(on_loop, name="on_loop").codec.encode
    return [TaskOptions().new_task(f"{number:04d}", name, encode((number,), {})) for number, name in enumerate(names)]


async def fill(path: Path) -> list[str]:
    storage = sqlite.SqliteStorage(path)
    await storage.open()
    tasks = await storage.add(new_calls(["on_thread", "on_loop"] * (TASKS // 2)))
    await storage.close()
    return [task.id for task in tasks]


async def all_ended(path: Path, ids: list[str]) -> list[Task]:
    storage = sqlite.SqliteStorage(path)
    await storage.open()
    deadline = time.monotonic() + WITHIN
    try:
        while True:
            tasks = [task for task in await storage.get(ids) if task is not None]
            if len(tasks) == len(ids) and all(task.is_final for task in tasks):
                return tasks
            assert time.monotonic() < deadline, [(task.id, str(task.status), task.worker) for task in tasks]
            await asyncio.sleep(0.02)
    finally:
        await storage.close()


@pytest.mark.parametrize(("fatal", "hits"), FAILPOINTS)
def test_a_killed_worker_loses_no_task(tmp_path: Path, fatal: str, hits: int) -> None:
    path, effects = tmp_path / "jobs.db", tmp_path / "effects"
    ids = asyncio.run(fill(path))
    slow = {"lease": 0.6, "nap": 1.0} if fatal.startswith("renew") else {}
    with Worker(path, effects, fatal, hits, **slow) as first:
        first.dies()
    with Worker(path, effects) as second:
        tasks = asyncio.run(all_ended(path, ids))
        second.stops()
    assert [task.status for task in tasks] == [SUCCESS] * TASKS
    assert [task.result for task in tasks] == [b"%d" % number for number in range(TASKS)]
    starts = [tuple(line.split()) for line in effects.read_text().splitlines()]
    assert {task_id for task_id, _ in starts} == set(ids)
    assert max(Counter(starts).values()) == 1  # no attempt is started twice
    again = [task for task in tasks if task.attempt > 1]
    assert len(again) <= CONCURRENCY  # only the tasks of the killed worker
    assert all(task.attempt == 2 for task in again)


def test_a_worker_that_is_killed_while_it_stops_leaves_nothing_behind(tmp_path: Path) -> None:
    path, effects = tmp_path / "jobs.db", tmp_path / "effects"
    ids = asyncio.run(fill(path))
    with Worker(path, effects, "worker.before_leave") as first:
        tasks = asyncio.run(all_ended(path, ids))
        first.send(signal.SIGTERM)
        first.dies()
    assert [(task.status, task.attempt) for task in tasks] == [(SUCCESS, 1)] * TASKS
    with Worker(path, effects) as second:
        (late,) = asyncio.run(add(path, new_calls(["on_loop"] * (TASKS + 1))[-1:]))
        asyncio.run(all_ended(path, [late]))
        asyncio.run(only_living_workers(path))
        second.stops()


async def add(path: Path, tasks: Sequence[Task]) -> list[str]:
    storage = sqlite.SqliteStorage(path)
    await storage.add(tasks)
    await storage.close()
    return [task.id for task in tasks]


async def only_living_workers(path: Path) -> None:
    storage = sqlite.SqliteStorage(path)
    deadline = time.monotonic() + WITHIN
    while len([record for record in await storage.workers() if not is_dead(record)]) != 1:
        assert time.monotonic() < deadline, await storage.workers()
        await asyncio.sleep(0.02)
    await storage.close()


PRODUCER = """
import os, signal, sys
from bullpen import TaskQueue, primitives

path, fatal, hits = sys.argv[1], sys.argv[2], int(sys.argv[3])

def failpoint(name):
    global hits
    if name == fatal:
        hits -= 1
        if hits < 0:
            os.kill(os.getpid(), signal.SIGKILL)

primitives.failpoint = failpoint
queue = TaskQueue(f"sqlite:///{path}")

@queue.task(name="on_loop")
async def on_loop(number: int) -> int: ...

for number in range(100):
    if fatal.startswith("emit"):
        queue.emit(f"event-{number}", number)
        os.write(1, f"event-{number}\\n".encode())
    else:
        os.write(1, (on_loop.enqueue(number).id + "\\n").encode())
"""


@pytest.mark.parametrize(("fatal", "kept_unsaid"), [("enqueue.before_add", 0), ("enqueue.after_add", 1)])
@pytest.mark.parametrize("hits", [0, 7])
def test_the_acknowledged_tasks_of_a_killed_producer_are_there(
    tmp_path: Path, fatal: str, kept_unsaid: int, hits: int
) -> None:
    path, effects = tmp_path / "jobs.db", tmp_path / "effects"
    command = [sys.executable, "-c", PRODUCER, str(path), fatal, str(hits)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WITHIN)
    assert done.returncode == -signal.SIGKILL, done.stderr
    acknowledged = done.stdout.split()
    assert len(acknowledged) == hits
    if hits + kept_unsaid:
        ids = asyncio.run(all_ids(path))
        assert set(acknowledged) <= set(ids)
        assert len(ids) == hits + kept_unsaid
        with Worker(path, effects) as worker:
            tasks = asyncio.run(all_ended(path, ids))
            worker.stops()
        assert {task.status for task in tasks} == {SUCCESS}


@pytest.mark.parametrize(("fatal", "kept_unsaid"), [("emit.before", 0), ("emit.after", 1)])
def test_the_acknowledged_events_of_a_killed_emitter_are_there(tmp_path: Path, fatal: str, kept_unsaid: int) -> None:
    path, hits = tmp_path / "jobs.db", 7
    command = [sys.executable, "-c", PRODUCER, str(path), fatal, str(hits)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WITHIN)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert done.stdout.split() == [f"event-{number}" for number in range(hits)]
    with TaskQueue(f"sqlite:///{path}") as queue:
        there = [queue.wait_event(f"event-{number}", timeout=0) for number in range(hits + 2)]
    kept = hits + kept_unsaid
    assert there == [*range(kept), *[None] * (hits + 2 - kept)]


async def all_ids(path: Path) -> list[str]:
    storage = sqlite.SqliteStorage(path)
    ids = [task.id for task in await storage.list(TaskFilter(), limit=1000)]
    await storage.close()
    return ids


def test_no_failpoint_in_the_life_of_a_task_is_forgotten() -> None:
    source = Path(bullpen.__file__).parent
    parts = ("tasks/worker", "tasks/client", "tasks/storage/sqlite")
    files = [file for part in parts for file in (source / part).rglob("*.py")]
    there = {name for file in files for name in re.findall(r'failpoint\("([^"]+)"\)', file.read_text())}
    assert there == {name for name, _ in FAILPOINTS} | TESTED_BELOW | set(TESTED_IN)
    for name, file in TESTED_IN.items():
        assert f'"{name}"' in Path(__file__).with_name(file).read_text()
