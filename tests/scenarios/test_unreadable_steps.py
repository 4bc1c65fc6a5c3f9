"""A kept step that another program has damaged: its task fails by name, and neither runs nor stops the others."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import asyncpg
import pytest
import redis

from bullpen import TaskFailed, TaskQueue, WorkerPool, current_task
from tests.stores import KINDS, new_store

ran: list[int] = []


def damage(kind: str, address: str) -> None:
    """Write garbage into every kept step."""
    base, _, place = address.partition("?")
    if kind == "sqlite":
        with closing(sqlite3.connect(base.removeprefix("sqlite:///"))) as db, db:
            assert db.execute("UPDATE bullpen_step SET record = x'c1'").rowcount == 1
    elif kind == "postgres":

        async def spoil() -> None:
            connection = await asyncpg.connect(base)
            await connection.execute(f"UPDATE {place.removeprefix('schema=')}.step SET record = '{{'")
            await connection.close()

        asyncio.run(spoil())
    else:
        with redis.Redis.from_url(base) as client:
            (key,) = client.scan_iter(match=f"*{place.removeprefix('prefix=')}:*:steps:*", count=1000)
            client.hset(key, "charge", "{")


def charge() -> int:
    ran.append(1)
    return 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_with_a_damaged_step_fails_and_the_others_run(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    ran.clear()
    first = threading.Event()  # the step is kept
    with new_store(kind, tmp_path, request) as address, TaskQueue(address) as queue:

        @queue.task(name="f", max_retries=3, backoff=2)
        def f(fails: bool) -> int:
            found = current_task().step(charge)
            if fails:
                first.set()
                raise ValueError
            return found

        job = f.enqueue(True)
        with WorkerPool(queue, 2, poll_interval=0.05):
            assert first.wait(30)
        damage(kind, address)
        with WorkerPool(queue, 2, poll_interval=0.05):
            assert f.enqueue(False).result(timeout=30) == 1
            with pytest.raises(TaskFailed, match="its stored row cannot be read"):
                job.result(timeout=30)
        assert job.info().unreadable
        assert job.cancel() is False
        assert queue.delete(job.id) == 1
    assert len(ran) == 2
