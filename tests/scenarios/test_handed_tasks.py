"""A worker that waits is handed its next task by the store, on Redis."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence

import pytest
from redis.asyncio import Redis

from bullpen import AsyncWorkerPool, StorageUnavailable, TaskQueue
from bullpen.tasks.model.task import PENDING, RUNNING, SUCCESS
from bullpen.tasks.storage.port import Handed
from bullpen.tasks.storage.redis.store import RedisStorage

pytestmark = pytest.mark.anyio

PATIENCE = 30.0
LEASE = 3600.0


class Place:
    """Keys of a test's own."""

    def __init__(self, url: str, client: Redis) -> None:
        self.url = url
        self.prefix = f"bullpen-test-{secrets.token_hex(6)}"
        self._client = client

    async def offers(self) -> int:
        return await self._client.zcard(f"{{{self.prefix}:default}}:offers")

    async def offered(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while not await self.offers():  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    async def clear(self) -> None:
        keys = [key async for key in self._client.scan_iter(match=f"*{self.prefix}:*", count=1000)]
        if keys:
            await self._client.delete(*keys)


@pytest.fixture
async def place(redis_url: str) -> AsyncIterator[Place]:
    async with Redis.from_url(redis_url) as client:
        place = Place(redis_url, client)
        yield place
        await place.clear()


class NotingStorage(RedisStorage):
    """Notes what was handed over, also to workers."""

    handed: list[str]

    @classmethod
    def at(cls, place: Place, handed: list[str]) -> NotingStorage:
        storage = cls(place.url, prefix=place.prefix)
        storage.handed = handed
        return storage

    def another(self) -> NotingStorage:
        storage = type(self)(self.url, prefix=self.prefix)
        storage.handed = self.handed
        return storage

    async def wait_to_claim(
        self, queues: Sequence[str], timeout: float, *, worker: str, lease: float, claim_id: str
    ) -> Handed:
        handed = await super().wait_to_claim(queues, timeout, worker=worker, lease=lease, claim_id=claim_id)
        self.handed += [task.id for task in handed.claimed]
        return handed


async def test_a_worker_that_waits_is_handed_a_task(place: Place) -> None:
    handed: list[str] = []
    storage = NotingStorage.at(place, handed)
    queue = TaskQueue(storage)

    @queue.task(name="double")
    async def double(x: int) -> int:
        return 2 * x

    async with AsyncWorkerPool(queue, lease=LEASE, poll_interval=PATIENCE):
        jobs = []
        for number in range(3):
            await place.offered()
            jobs.append(await double.aenqueue(number))
            assert await jobs[-1].aresult(PATIENCE) == 2 * number
    assert handed == [job.id for job in jobs]
    await storage.close()


async def test_what_came_while_a_task_ran_that_was_handed_over_is_claimed_at_its_end(place: Place) -> None:
    """Also by a worker that has no other permit, and long before it would look by itself."""
    handed: list[str] = []
    storage = NotingStorage.at(place, handed)
    queue = TaskQueue(storage)
    go_on = asyncio.Event()

    @queue.task(name="wait")
    async def wait() -> None:
        await go_on.wait()

    async with AsyncWorkerPool(queue, concurrency=1, lease=LEASE, poll_interval=PATIENCE * 2):
        await place.offered()
        jobs = [await wait.aenqueue() for _ in range(3)]
        async with asyncio.timeout(PATIENCE):
            while await jobs[0].astatus() is not RUNNING:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        go_on.set()
        for job in jobs:
            await job.aresult(PATIENCE)
    assert handed == [jobs[0].id]
    await storage.close()


async def test_a_worker_that_stops_leaves_nothing_that_it_was_handed(place: Place) -> None:
    """Whichever comes first: a task that is handed over to one who stops is run or put back."""
    storage = NotingStorage.at(place, [])
    queue = TaskQueue(storage)

    @queue.task(name="nothing")
    async def nothing() -> None: ...

    jobs = []
    for _ in range(20):
        worker = AsyncWorkerPool(queue, lease=LEASE, poll_interval=PATIENCE)
        await worker.start()
        await place.offered()
        added = asyncio.ensure_future(nothing.aenqueue())
        await asyncio.sleep(secrets.randbelow(20) / 20_000)
        await worker.stop()
        jobs.append(await added)
        assert await place.offers() == 0
        assert await jobs[-1].astatus() in (SUCCESS, PENDING)
    async with AsyncWorkerPool(queue, lease=LEASE):
        for job in jobs:
            await job.aresult(PATIENCE)
    await storage.close()


class DeafStorage(NotingStorage):
    """What is handed over first never arrives."""

    async def wait_to_claim(
        self, queues: Sequence[str], timeout: float, *, worker: str, lease: float, claim_id: str
    ) -> Handed:
        handed = await super().wait_to_claim(queues, timeout, worker=worker, lease=lease, claim_id=claim_id)
        if len(self.handed) == 1:
            self.handed.append("lost")
            raise StorageUnavailable("the connection is lost", storage=self.name)
        return handed


async def test_a_task_that_was_handed_over_and_did_not_arrive_is_found(place: Place) -> None:
    """Long before its lease is over."""
    handed: list[str] = []
    storage = DeafStorage.at(place, handed)
    queue = TaskQueue(storage)

    @queue.task(name="nothing")
    async def nothing() -> None: ...

    async with AsyncWorkerPool(queue, lease=LEASE):
        await place.offered()
        job = await nothing.aenqueue()
        await job.aresult(PATIENCE)
        assert handed[:2] == [job.id, "lost"]
        assert (await job.ainfo()).attempt == 1
    await storage.close()
