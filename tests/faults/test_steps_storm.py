"""Many tasks with steps, sleeps and events, on every store, while their workers are killed: the first result of a step
that a function has got is the one that every later attempt gets, and so is the payload of an event.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

from bullpen import TaskQueue
from bullpen.tasks.model.task import SUCCESS
from tests.stores import KINDS, new_store

WITHIN = 60.0
TASKS, STEPS, KILLS = 40, 4, 2  # a third crash would make a task poison

APP = """
import asyncio, os, secrets, sys
from bullpen import AsyncWorkerPool, TaskQueue, current_task

address, log = sys.argv[1:3]
queue = TaskQueue(address)

def note(*words):
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, (" ".join(map(str, words)) + "\\n").encode())
    os.close(descriptor)

def on_thread(number: int) -> str:
    return secrets.token_hex(4)

async def on_loop(number: int) -> str:
    await asyncio.sleep(0.01)
    return secrets.token_hex(4)

@queue.task(name="storm")
async def storm(steps: int) -> list[str]:
    task = current_task()
    tokens = []
    for number in range(steps):
        tokens.append(await task.using(key=f"step {number}").astep(on_loop if number % 2 else on_thread, number))
        note(task.id, number, tokens[-1])
        if number == steps // 2:
            await task.asleep(0.05)
    tokens.append(await task.await_event(f"last:{task.id}"))
    note(task.id, steps, tokens[-1])
    return tokens

@queue.task(name="blocking")
def blocking(steps: int) -> list[str]:
    task = current_task()
    tokens = []
    for number in range(steps):
        tokens.append(task.step(on_thread, number))
        note(task.id, number, tokens[-1])
        if number == steps // 2:
            task.sleep(0.05)
    tokens.append(task.wait_event("last", own=True, timeout=3600))
    note(task.id, steps, tokens[-1])
    return tokens

async def main():
    async with AsyncWorkerPool(queue, 8, poll_interval=0.05, lease=1.0):
        while any(status in counts for counts in (await queue.acounts()).values() for status in ("pending", "running")):
            for waiting in await queue.alist(awaits=True):  # all processes emit, and the first one wins
                await queue.aemit(waiting.awaits.event, secrets.token_hex(4))
            await asyncio.sleep(0.02)

asyncio.run(main())
"""


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_that_a_function_has_got_stays_the_same(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    log = tmp_path / "log"
    chance = random.Random(7)
    with new_store(kind, tmp_path, request) as address, TaskQueue(address) as queue:

        @queue.task(name="storm")
        def storm(steps: int) -> list[str]:
            raise NotImplementedError

        @queue.task(name="blocking")
        def blocking(steps: int) -> list[str]:
            raise NotImplementedError

        jobs = [(storm if number % 2 else blocking).enqueue(STEPS) for number in range(TASKS)]
        command = [sys.executable, "-c", APP, address, str(log)]
        for _ in range(KILLS):
            with subprocess.Popen(command, stderr=subprocess.DEVNULL) as worker:
                began = 0 if not log.exists() else log.stat().st_size
                deadline = time.monotonic() + WITHIN
                while (log.stat().st_size if log.exists() else 0) <= began and worker.poll() is None:
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
                time.sleep(chance.random() * 0.05)
                worker.send_signal(signal.SIGKILL)
        assert subprocess.run(command, check=False, timeout=WITHIN).returncode == 0
        results = {job.id: job.result(timeout=1) for job in jobs}
        assert queue.counts() == {"default": {SUCCESS: TASKS}}
    got: dict[tuple[str, int], set[str]] = defaultdict(set)
    for line in log.read_text().splitlines():
        task, number, token = line.split()
        got[task, int(number)].add(token)
    assert {place: tokens for place, tokens in got.items() if len(tokens) > 1} == {}
    for job in jobs:
        assert results[job.id] == [next(iter(got[job.id, number])) for number in range(STEPS + 1)]
