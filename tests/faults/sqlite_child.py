"""Processes that use a store until they are killed. They print each acknowledged operation as one line.

python -m tests.faults.sqlite_child VERB PATH [ARGUMENTS]
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import uuid
from pathlib import Path

from bullpen import primitives
from bullpen.tasks.model.task import Task, succeed
from bullpen.tasks.storage.sqlite.store import SqliteStorage


def say(*words: object) -> None:
    os.write(
        1, (" ".join(map(str, words)) + "\n").encode()
    )  # unbuffered: the line is written before the process can be killed


def new_task() -> Task:
    return Task(id=str(uuid.uuid4()), func_path="f", payload=os.urandom(200).hex().encode())


async def work(storage: SqliteStorage, rounds: int) -> None:
    """Add tasks, alone and together, claim and settle some of them."""
    held = list[Task]()
    for number in range(rounds):
        batches = [[new_task()] for _ in range(number % 4 + 1)] + [[new_task() for _ in range(20)]]
        for kept in await asyncio.gather(*[storage.add(batch) for batch in batches]):
            for task in kept:
                say("added", task.id)
        done = held[::2]
        answer = await storage.exchange(
            [succeed(task, b"1") for task in done],
            worker="w",
            queues=["default"],
            limit=15,
            lease=15.0,
            claim_id=str(number),
        )
        for task in done:
            say("settled", task.id)
        held = [*held[1::2], *answer.claimed]


async def drain(storage: SqliteStorage, count: int) -> None:
    """Add `count` tasks, then claim and settle until no task is left."""
    name = f"w{os.getpid()}"
    for _ in range(count):
        (task,) = await storage.add([new_task()])
        say("added", task.id)
    held: tuple[Task, ...] = ()
    idle = 0
    while idle < 3:
        answer = await storage.exchange(
            [succeed(task, name.encode()) for task in held],
            worker=name,
            queues=["default"],
            limit=7,
            lease=60.0,
            claim_id=str(uuid.uuid4()),
        )
        assert not answer.rejected
        held = answer.claimed
        for task in held:
            say("ran", task.id, task.attempt)
        if not held:
            idle += 1
            await storage.wait_for_work(["default"], 0.2)


async def wait(storage: SqliteStorage, _: int) -> None:
    """Print a line when there is a due task."""
    say("waiting")
    await storage.wait_for_work(["default"], 30)
    say("woken")


def killed_at(name: str, count: int) -> None:
    """Kill this process when it reaches the failpoint for the `count`-th time."""
    left = count

    def failpoint(reached: str) -> None:
        nonlocal left
        if reached == name:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    primitives.failpoint = failpoint


async def main(verb: str, path: str, count: str = "30", failpoint: str = "", when: str = "1") -> None:
    if failpoint:
        killed_at(failpoint, int(when))
    storage = SqliteStorage(Path(path))
    await storage.open()
    await {"work": work, "drain": drain, "wait": wait}[verb](storage, int(count))
    await storage.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
