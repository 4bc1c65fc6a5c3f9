"""A worker is killed before and after each step of a task: a kept step never runs again, and the task ends well."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from bullpen import TaskQueue
from bullpen.tasks.model.task import SUCCESS
from tests.stores import KINDS, new_store

WITHIN = 40.0
STEPS = 3

APP = """
import asyncio, os, signal, sys
from bullpen import AsyncWorkerPool, TaskQueue, current_task, primitives

address, effects, fatal, hits = *sys.argv[1:4], int(sys.argv[4])
queue = TaskQueue(address)

def failpoint(name):
    global hits
    if name == fatal:
        hits -= 1
        if hits < 0:
            os.kill(os.getpid(), signal.SIGKILL)

primitives.failpoint = failpoint

def note(word):
    descriptor = os.open(effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{word}\\n".encode())
    os.close(descriptor)

def add(total: int, number: int) -> int:
    note(f"ran {number}")
    return total + number

async def aadd(total: int, number: int) -> int:
    return add(total, number)

@queue.task(name="on_thread")
def on_thread() -> int:
    total = 0
    for number in range(3):
        total = current_task().step(add, total, number)
        note(f"got {number}")
    return total

@queue.task(name="on_loop")
async def on_loop() -> int:
    total = 0
    for number in range(3):
        total = await current_task().astep(aadd, total, number)
        note(f"got {number}")
    return total

async def main():
    async with AsyncWorkerPool(queue, 2, poll_interval=0.05, lease=1.0):
        while any(status in counts for counts in (await queue.acounts()).values() for status in ("pending", "running")):
            await asyncio.sleep(0.02)

asyncio.run(main())
"""


def work(address: str, effects: Path, fatal: str = "", hits: int = 0) -> int:
    command = [sys.executable, "-c", APP, address, str(effects), fatal, str(hits)]
    return subprocess.run(command, check=False, timeout=WITHIN, capture_output=True).returncode


@pytest.mark.parametrize("name", ["on_thread", "on_loop"])
@pytest.mark.parametrize("hits", range(STEPS))
@pytest.mark.parametrize("fatal", ["step.before", "step.after"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_worker_repeats_at_most_the_step_that_was_not_kept(
    kind: str, fatal: str, hits: int, name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    effects = tmp_path / "effects"
    with new_store(kind, tmp_path, request) as address, TaskQueue(address) as queue:

        @queue.task(name=name)
        def function() -> int:
            raise NotImplementedError

        job = function.enqueue()
        assert work(address, effects, fatal, hits) == -signal.SIGKILL
        assert work(address, effects) == 0
        assert job.status is SUCCESS
        assert job.result(timeout=1) == sum(range(STEPS))
    seen = re.findall(r"ran (\d)", effects.read_text())
    repeated = {str(hits): 2} if fatal == "step.before" else {}
    assert Counter(seen) == {**{str(number): 1 for number in range(STEPS)}, **repeated}
    assert effects.read_text().splitlines()[-1] == f"got {STEPS - 1}"
