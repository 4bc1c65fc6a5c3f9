"""Wake-ups: hints, but prompt ones, and none for what may not start."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from bullpen.tasks.model.task import cancel, fail, release, succeed
from bullpen.tasks.storage.port import Limit, Storage, TaskFilter
from bullpen.testing.storage_contract.base import (
    FAR,
    PATIENCE,
    SOON,
    StoreTests,
    T,
    added,
    claim,
    claimed_one,
    error_of,
    ids,
    new_task,
    new_tasks,
    settle,
    take_back,
)


@asynccontextmanager
async def waits(wait: Awaitable[T]) -> AsyncIterator[asyncio.Future[T]]:
    """A client that waits while a block runs. The end of the block is a reason to wake it."""
    waiting = asyncio.ensure_future(wait)
    try:
        await asyncio.sleep(SOON)  # a wake-up that comes before it waits would be no test
        yield waiting
        await asyncio.wait_for(waiting, PATIENCE)
    finally:
        if not waiting.done():
            waiting.cancel()
            await asyncio.wait([waiting])


async def times_woken(wait: Callable[[float], Awaitable[object]], seconds: float = 0.1) -> int:
    """How often a polling client is woken too early."""
    deadline = time.monotonic() + seconds
    count = 0
    while (left := deadline - time.monotonic()) > 0:
        await wait(left)
        count += 1
        await asyncio.sleep(0)
    return count


async def _limited(store: Storage) -> None:
    await store.set_limit(Limit(queue="default", max_running=1))
    await store.add(new_tasks(3))
    await claim(store)


async def _limited_by_key(store: Storage) -> None:
    await store.set_limit(Limit(queue="default", max_running_per_key=1))
    await store.add(new_tasks(3, concurrency_key="k"))
    await claim(store)


async def _limited_by_rate(store: Storage) -> None:
    await store.set_limit(Limit(queue="default", rate=1 / FAR))
    await store.add(new_tasks(3))
    await claim(store)


async def _limited_twice(store: Storage) -> None:
    """The rate would allow another one soon."""
    await store.set_limit(Limit(queue="default", max_running=1, rate=1000.0))
    await store.add(new_tasks(3))
    await claim(store)


async def _due_but_limited(store: Storage) -> None:
    await _limited(store)
    await added(store, eta=await store.now() + SOON)


async def _paused(store: Storage) -> None:
    await store.pause("default")
    await store.add(new_tasks(3))


async def _elsewhere(store: Storage) -> None:
    await added(store, queue="other")


async def _later(store: Storage) -> None:
    await added(store, eta=await store.now() + FAR)


async def _expired(store: Storage) -> None:
    await added(store, expires=await store.now() - 1.0)


async def _running(store: Storage) -> None:
    await claimed_one(store)


NO_WORK: dict[str, Callable[[Storage], Awaitable[None]]] = {
    "a queue at its limit": _limited,
    "a key at its limit": _limited_by_key,
    "a rate": _limited_by_rate,
    "a queue at one of two limits": _limited_twice,
    "a task that becomes due in a queue at its limit": _due_but_limited,
    "a paused queue": _paused,
    "another queue": _elsewhere,
    "a task for later": _later,
    "a task that expired": _expired,
    "a task that runs": _running,
}


class WaitingTests(StoreTests):
    # For work.

    async def test_work_that_is_there_is_not_waited_for(self, store: Storage) -> None:
        await added(store)
        await asyncio.wait_for(store.wait_for_work(["other", "default"], FAR), PATIENCE)

    async def test_a_wait_for_work_ends(self, store: Storage) -> None:
        await asyncio.wait_for(store.wait_for_work(["default"], SOON), PATIENCE)
        await asyncio.wait_for(store.wait_for_work(["default"], 0.0), PATIENCE)

    @pytest.mark.parametrize("what", NO_WORK)
    async def test_a_task_that_no_worker_may_start_wakes_none(self, store: Storage, what: str) -> None:
        """Or a worker would ask again and again."""
        await NO_WORK[what](store)
        assert await times_woken(lambda left: store.wait_for_work(["default"], left)) <= 3

    async def test_a_waiting_worker_is_woken_by_a_new_task(self, store: Storage) -> None:
        """The first of its queue, and one that comes while others run."""
        for _ in range(2):
            async with waits(store.wait_for_work(["other", "default"], FAR)):
                await added(store)
            assert len(await claim(store)) == 1

    async def test_a_waiting_worker_is_woken_by_another_client(self, store: Storage) -> None:
        other = self.make_storage()
        await other.open()
        try:
            async with waits(store.wait_for_work(["default"], FAR)):
                await added(other)
        finally:
            await other.close()

    async def test_a_waiting_worker_is_woken_when_a_task_becomes_due(self, store: Storage) -> None:
        async with waits(self.claims_one(store)):
            await added(store, eta=await store.now() + SOON)

    async def test_a_waiting_worker_is_woken_when_a_retry_becomes_due(self, store: Storage) -> None:
        task = await claimed_one(store, max_retries=1)
        async with waits(self.claims_one(store)):
            await settle(store, fail(task, error_of(task), 0.0, after=SOON))

    async def test_a_waiting_worker_is_woken_by_a_released_task(self, store: Storage) -> None:
        task = await claimed_one(store)
        async with waits(store.wait_for_work(["default"], FAR)):
            await settle(store, release(task))

    async def test_a_waiting_worker_is_woken_by_a_rescued_task(self, store: Storage) -> None:
        await claimed_one(store)
        async with waits(store.wait_for_work(["default"], FAR)):
            await store.rescue_expired(take_back, limit=10, dead_workers=["w"])

    async def test_a_waiting_worker_is_woken_by_a_retried_task(self, store: Storage) -> None:
        task = await claimed_one(store)
        await settle(store, succeed(task, None))
        async with waits(store.wait_for_work(["default"], FAR)):
            await store.retry([task.id])

    async def test_a_waiting_worker_is_woken_when_a_queue_is_resumed(self, store: Storage) -> None:
        await _paused(store)
        async with waits(store.wait_for_work(["default"], FAR)):
            await store.resume("default")

    @pytest.mark.parametrize("what", ["a queue at its limit", "a key at its limit"])
    async def test_a_waiting_worker_is_woken_when_a_limit_has_room(self, store: Storage, what: str) -> None:
        await NO_WORK[what](store)
        running = [task for task in await store.get(await self.all_ids(store)) if task and task.attempt]
        async with waits(store.wait_for_work(["default"], FAR)):
            await settle(store, succeed(running[0], None))

    async def test_a_waiting_worker_is_woken_when_a_limit_is_lifted(self, store: Storage) -> None:
        await _limited(store)
        async with waits(store.wait_for_work(["default"], FAR)):
            await store.set_limit(Limit(queue="default"))

    async def test_a_waiting_worker_is_woken_when_a_rate_allows_another_task(self, store: Storage) -> None:
        await store.set_limit(Limit(queue="default", rate=4.0))
        await store.add(new_tasks(5))
        assert len(await claim(store, 5)) == 4
        async with waits(self.claims_one(store)):
            pass

    # For results.

    async def test_a_result_that_is_there_is_not_waited_for(self, store: Storage) -> None:
        task = await claimed_one(store)
        await settle(store, succeed(task, b"1"))
        for known in (task.id, "nobody"):
            await asyncio.wait_for(store.wait_for_result(known, 0, FAR), PATIENCE)

    async def test_a_wait_for_a_result_ends(self, store: Storage) -> None:
        task = await added(store)
        await asyncio.wait_for(store.wait_for_result(task.id, 0, SOON), PATIENCE)
        assert await times_woken(lambda left: store.wait_for_result(task.id, 0, left)) <= 3

    async def test_a_waiting_caller_is_woken_by_every_outcome(self, store: Storage) -> None:
        await store.add(new_tasks(4))
        done, failed, gone = await claim(store, 3)
        for settlement in (succeed(done, b"1"), fail(failed, error_of(failed), 0.0), cancel(gone)):
            async with waits(store.wait_for_result(settlement.id, 0, FAR)):
                await settle(store, settlement)
        (waiting,) = [task for task in await store.get(await self.all_ids(store)) if task and not task.is_final]
        async with waits(store.wait_for_result(waiting.id, 0, FAR)):
            await store.cancel([waiting.id])
        (late,) = await store.add([new_task(expires=await store.now() - 1.0)])
        async with waits(store.wait_for_result(late.id, 0, FAR)):
            await store.expire(limit=10)

    async def test_a_waiting_caller_is_woken_by_the_next_run(self, store: Storage) -> None:
        task = await claimed_one(store, interval=0.0)
        (task,) = await claim(store, 1, succeed(task, b"1"))
        await asyncio.wait_for(store.wait_for_result(task.id, 0, FAR), PATIENCE)
        async with waits(store.wait_for_result(task.id, 1, FAR)) as waiting:
            assert not waiting.done()
            await settle(store, succeed(task, b"2"))

    @pytest.mark.parametrize("size", [1, 1_000_000])
    async def test_what_a_wait_brings_is_the_task_as_it_is(self, store: Storage, size: int) -> None:
        task = await claimed_one(store)
        async with waits(store.wait_for_result(task.id, 0, FAR)) as waiting:
            await settle(store, succeed(task, bytes(size)))
        brought = [waiting.result(), await store.wait_for_result(task.id, 0, FAR)]
        kept = list(await store.get([task.id]))
        assert all(one is None or [one] == kept for one in brought)

    async def test_all_callers_that_wait_for_a_task_are_woken(self, store: Storage) -> None:
        task = await claimed_one(store)
        other = self.make_storage()
        await other.open()
        try:
            async with (
                waits(store.wait_for_result(task.id, 0, FAR)),
                waits(store.wait_for_result(task.id, 0, FAR)),
                waits(other.wait_for_result(task.id, 0, FAR)),
            ):
                await settle(store, succeed(task, b"1"))
        finally:
            await other.close()

    async def test_a_caller_that_waits_for_a_pruned_task_is_woken(self, store: Storage) -> None:
        """A task is final before it is forgotten, so this is a wake-up at the latest then."""
        task = await claimed_one(store, result_ttl=0.0)
        async with waits(store.wait_for_result(task.id, 0, FAR)):
            await settle(store, succeed(task, b"1"))
            await store.prune(limit=10)

    async def claims_one(self, store: Storage) -> None:
        """As a worker does: claim, or wait for as long as it takes."""
        while not await claim(store):
            await store.wait_for_work(["default"], FAR)

    async def all_ids(self, store: Storage) -> list[str]:
        return ids(await store.list(TaskFilter(), limit=1000))
