"""A worker is killed around the commit of a task's own transaction: effect and end are both stored, or neither is."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from bullpen import TaskQueue
from bullpen.tasks.model.task import SUCCESS

WORKER = """
import asyncio, os, signal, sqlite3, sys
from bullpen import AsyncWorkerPool, TaskQueue, current_task, primitives

path, fatal, passed, kind = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]

def failpoint(name):
    global passed
    if name == fatal:
        passed -= 1
        if passed < 0:
            os.kill(os.getpid(), signal.SIGKILL)

primitives.failpoint = failpoint
queue = TaskQueue(f"sqlite:///{path}")

def work() -> str:
    with sqlite3.connect(path) as connection:
        current_task().complete(connection, "done")
        connection.execute("INSERT INTO effect VALUES (?)", (current_task().id,))
        failpoint("effect.before_commit")
    failpoint("effect.after_commit")

async def on_loop() -> str:
    work()

queue.task(name="work")(work if kind == "sync" else on_loop)

async def main():
    worker = AsyncWorkerPool(queue, 1, poll_interval=0.05)
    async with worker:
        job = queue.job("the task")
        await job.aresult(timeout=30)

asyncio.run(main())
"""

# The failpoint, how often it is passed before, whether the transaction is committed by then, and the kind of function.
POINTS = [
    ("complete.before", 0, False, "sync"),
    ("complete.after", 0, False, "async"),
    ("effect.before_commit", 0, False, "sync"),
    ("effect.before_commit", 0, False, "async"),
    ("effect.after_commit", 0, True, "sync"),
    ("attempt.after", 0, True, "async"),
    ("exchange.before", 1, True, "sync"),  # before it settles the task, whose row is already final
]


def look(path: Path) -> tuple[str, int]:
    connection = sqlite3.connect(path)
    try:
        (status,) = connection.execute("SELECT status FROM bullpen_task").fetchone()
        (effects,) = connection.execute("SELECT count(*) FROM effect").fetchone()
        return status, effects
    finally:
        connection.close()


def work(path: Path, kind: str, fatal: str = "", passed: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WORKER, str(path), fatal, str(passed), kind]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)


@pytest.mark.parametrize(("fatal", "passed", "committed", "kind"), POINTS)
def test_the_effect_and_the_end_of_a_task_are_both_stored_or_neither_is(
    tmp_path: Path, fatal: str, passed: int, committed: bool, kind: str
) -> None:
    path = tmp_path / "jobs.db"
    with TaskQueue(f"sqlite:///{path}", new_ids=lambda _: ["the task"]) as queue:
        queue.enqueue("work", elsewhere=True)
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE effect (task TEXT)")
        connection.close()
        killed = work(path, kind, fatal, passed)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert look(path) == (("success", 1) if committed else ("running", 0))
        if not committed:
            second = work(path, kind)
            assert second.returncode == 0, second.stderr
        assert look(path) == ("success", 1)
        info = queue.get("the task")
        assert (info.status, info.attempt) == (SUCCESS, 1 if committed else 2)
        assert queue.job("the task").result(timeout=1) == "done"
