"""A worker is killed at every failpoint in the life of chains, groups and children: each task ends exactly once."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from bullpen import RESULT, TaskQueue, chain, group

FAILPOINTS = [  # and how often it is passed before
    ("exchange.before", 1),
    ("exchange.before", 3),
    ("exchange.after", 1),
    ("exchange.after", 4),
    ("attempt.before", 1),
    ("attempt.before", 6),
    ("attempt.after", 0),
    ("attempt.after", 3),
    ("attempt.after", 7),
    ("sqlite.before_commit", 3),
    ("sqlite.before_commit", 6),
    ("sqlite.after_commit", 3),
    ("sqlite.after_commit", 6),
    ("worker.before_record", 0),
    ("worker.after_record", 0),
    ("renew.before", 0),
    ("renew.after", 0),
]
DEATHS = [[death] for death in FAILPOINTS] + [
    [("attempt.before", 1), (f"rescue.{when}", 0)] for when in ("before", "after")
]
WITHIN = 40.0

SCRIPT = """
import os, signal, sys, time
from bullpen import RESULT, TaskQueue, WorkerPool, chain, current_task, group, primitives

path, effects, fatal, hits = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])

def failpoint(name):
    global hits
    if name == fatal:
        hits -= 1
        if hits < 0:
            os.kill(os.getpid(), signal.SIGKILL)

primitives.failpoint = failpoint
queue = TaskQueue(f"sqlite:///{path}")
LEASE, renews = 2.0, fatal.startswith("renew.")

def note():
    descriptor = os.open(effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{current_task().id} {current_task().attempt}\\n".encode())
    os.close(descriptor)
    if renews:
        time.sleep(2 * LEASE)

@queue.task(name="add")
def add(a: int, b: int = 1) -> int:
    note()
    return a + b

@queue.task(name="total")
async def total(values: list[int]) -> int:
    note()
    return sum(values)

@queue.task(name="parent")
def parent(count: int) -> str:
    note()
    return current_task().enqueue(group(add.call(n) for n in range(count)).then(total.call(RESULT))).id

with WorkerPool(queue, 3, 0.1, lease=LEASE if renews else 15.0):
    sys.stdin.read()
"""

PRODUCER = """
import os, signal, sys
from bullpen import RESULT, TaskQueue, chain, primitives

def failpoint(name):
    if name == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)

with TaskQueue(f"sqlite:///{sys.argv[1]}") as queue:

    @queue.task(name="add")
    def add(a: int, b: int = 1) -> int:
        return a + b

    add.enqueue(0)
    primitives.failpoint = failpoint
    chain(add.call(1), add.call(RESULT), add.call(RESULT)).enqueue()
"""


def run_worker(path: Path, effects: Path, fatal: str = "", hits: int = 0) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SCRIPT, str(path), str(effects), fatal, str(hits)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("deaths", DEATHS, ids=lambda deaths: "-".join(f"{name}-{hits}" for name, hits in deaths))
def test_chains_groups_and_children_survive_a_kill(tmp_path: Path, deaths: list[tuple[str, int]]) -> None:
    path, effects = tmp_path / "jobs.db", tmp_path / "effects"
    with TaskQueue(f"sqlite:///{path}") as queue:

        @queue.task(name="add")
        def add(a: int, b: int = 1) -> int:
            return a + b

        @queue.task(name="total")
        def total(values: list[int]) -> int:
            return 0

        @queue.task(name="parent")
        def parent(count: int) -> str:
            return ""

        steps = chain(add.call(1), add.call(RESULT), add.call(RESULT)).enqueue()
        parts = group(add.call(number) for number in range(3)).then(total.call(RESULT)).enqueue()
        mother = parent.enqueue(3)
        for fatal, hits in deaths:
            worker = run_worker(path, effects, fatal, hits)
            assert worker.stderr is not None
            try:
                assert worker.wait(timeout=WITHIN) == -signal.SIGKILL, worker.stderr.read()
            finally:
                worker.kill()
                worker.communicate()
        last = run_worker(path, effects)
        try:
            assert steps.result(timeout=WITHIN) == 4
            assert parts.result(timeout=WITHIN) == 1 + 2 + 3
            assert queue.job(mother.result(timeout=WITHIN)).result(timeout=WITHIN) == 1 + 2 + 3
        finally:
            last.communicate("")
        assert last.returncode == 0
        tasks = queue.list()
        assert len(tasks) == 3 + 4 + 1 + 4  # each child exists once
        assert {str(task.status) for task in tasks} == {"success"}
        starts = Counter(line.split()[0] for line in effects.read_text().splitlines())
        assert set(starts) == {task.id for task in tasks}
        for task in tasks:
            assert starts[task.id] <= min(task.attempt, 1 + len(deaths))  # and a suspected task may have been released
        assert sum(starts.values()) <= len(tasks) + 3 * len(deaths)  # only the tasks of killed workers run again


@pytest.mark.parametrize(("fatal", "kept"), [("enqueue.before_add", 0), ("enqueue.after_add", 3)])
def test_a_producer_that_is_killed_leaves_a_whole_chain_or_nothing(tmp_path: Path, fatal: str, kept: int) -> None:
    path = tmp_path / "jobs.db"
    command = [sys.executable, "-c", PRODUCER, str(path), fatal]
    assert subprocess.run(command, timeout=WITHIN, check=False).returncode == -signal.SIGKILL
    with TaskQueue(f"sqlite:///{path}") as queue:
        assert len(queue.list()) == 1 + kept
        worker = run_worker(path, tmp_path / "effects")
        try:
            results = [queue.job(task.id).result(timeout=WITHIN) for task in queue.list()]
        finally:
            worker.communicate("")
    assert results == [1, 2, 3, 4][: 1 + kept]
