"""The other process: `python -m bullpen.testing.storage_contract.child ADDRESS VERB`. It prints the answer."""

from __future__ import annotations

import asyncio
import os
import sys
import uuid

from bullpen.tasks.model.task import Task, succeed
from bullpen.tasks.storage.open import open_storage
from bullpen.tasks.storage.port import Exchange, Storage

LEASE = 60.0


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())  # unbuffered: it is out before anything can end us


async def exchange(store: Storage, done: tuple[Task, ...], limit: int) -> Exchange:
    return await store.exchange(
        [succeed(task, b"1") for task in done],
        worker=f"child-{os.getpid()}",
        queues=["default"],
        limit=limit,
        lease=LEASE,
        claim_id=str(uuid.uuid4()),
    )


async def work(store: Storage) -> None:
    """Add, claim and settle until this process is killed."""
    held: tuple[Task, ...] = ()
    while True:
        new = [Task(id=str(uuid.uuid4()), func_path="f", payload=b"[]") for _ in range(3)]
        for task in await store.add(new):
            say("added", task.id)
        answer = await exchange(store, held, 2)
        for task in held:
            say("settled", task.id)
        held = answer.claimed


async def race(store: Storage) -> None:
    """At each line that we are given, settle what we hold, claim one task, and say which."""
    say("ready")
    held: tuple[Task, ...] = ()
    while sys.stdin.readline():
        held = (await exchange(store, held, 1)).claimed
        say(*(task.id for task in held))
    await exchange(store, held, 0)


async def serve(store: Storage) -> None:
    """Run one task, when there is one."""
    say("waits")
    while not (held := (await exchange(store, (), 1)).claimed):
        await store.wait_for_work(["default"], LEASE)
    await exchange(store, held, 0)


async def main(address: str, verb: str) -> None:
    store = open_storage(address)
    await store.open()
    await {"work": work, "race": race, "serve": serve}[verb](store)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
