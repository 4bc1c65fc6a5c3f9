"""A Redis server that is away, restarts, or cannot be trusted with tasks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from bullpen import AsyncWorkerPool, StorageError, StorageUnavailable, TaskQueue
from bullpen.storage.redis.store import RedisStorage
from bullpen.tasks.task import TaskStatus
from tests.servers import OwnRedis

PATIENCE = 30.0
pytestmark = pytest.mark.anyio

NewServer = Callable[..., OwnRedis]


@pytest.fixture
def new_server(tmp_path: Path) -> Iterator[NewServer]:
    servers: list[OwnRedis] = []

    def start(*options: str) -> OwnRedis:
        servers.append(OwnRedis(tmp_path, *options))
        return servers[-1]

    yield start
    for server in servers:
        server.kill()


async def test_a_server_that_is_not_there_is_one_clear_line() -> None:
    with pytest.raises(StorageUnavailable) as refused:
        await RedisStorage("redis://:s3cret@127.0.0.1:1/0").open()
    assert "\n" not in str(refused.value).strip()
    assert "s3cret" not in str(refused.value)


async def test_a_server_that_drops_keys_is_refused(new_server: NewServer) -> None:
    server = new_server("--maxmemory-policy", "allkeys-lru")
    with pytest.raises(StorageError, match="maxmemory-policy allkeys-lru"):
        await RedisStorage(server.url).open()


async def test_a_server_that_forgets_is_named_when_it_is_opened(
    new_server: NewServer, caplog: pytest.LogCaptureFixture
) -> None:
    store = RedisStorage(new_server().url)
    await store.open()
    await store.close()
    assert "appendonly off" in caplog.text


async def test_a_worker_goes_on_when_its_server_was_killed_and_nothing_is_lost(new_server: NewServer) -> None:
    server = await asyncio.to_thread(new_server, "--appendonly", "yes", "--appendfsync", "always")
    queue = TaskQueue(server.url)
    ran: list[int] = []
    enough = asyncio.Event()

    @queue.task(name="note")
    async def note(number: int) -> int:
        ran.append(number)
        if len(ran) >= 50:
            enough.set()
        await asyncio.sleep(0.002)
        return number

    async with queue:
        jobs = await note.aenqueue_many([(number,) for number in range(200)])
        async with AsyncWorkerPool(queue, concurrency=5):
            await enough.wait()
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            results = [await _patiently(job.aresult) for job in jobs]
            assert (await queue.acounts())["default"] == {TaskStatus.SUCCESS: 200}
    assert results == list(range(200))
    assert set(ran) == set(range(200))


async def _patiently(ask: Callable[..., Awaitable[int]]) -> int:
    """Whoever waits for a result may be cut off as well, and asks again."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return await ask(timeout=PATIENCE)
        except StorageUnavailable:
            assert time.monotonic() < deadline
