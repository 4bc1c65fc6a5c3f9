"""The contract of stores, kept by a Redis or Valkey server."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Coroutine, Iterator
from types import ModuleType
from typing import Any

import pytest
from redis.asyncio import Redis

from bullpen import TaskQueue
from bullpen.errors import StorageError
from bullpen.tasks.model.task import PENDING, RUNNING, Progress, succeed
from bullpen.tasks.storage.port import Handed, Limit, Storage, SupportsDirectClaim, TaskFilter
from bullpen.tasks.storage.redis import connection, raw_connection
from bullpen.tasks.storage.redis.store import RedisStorage
from bullpen.testing import StorageContract
from bullpen.testing.storage_contract.base import (
    FAR,
    PATIENCE,
    added,
    claim,
    claimed_one,
    get,
    hold,
    ids,
    new_task,
    new_tasks,
    settle,
)
from bullpen.testing.storage_contract.links import new_group
from bullpen.testing.storage_contract.waiting import NO_WORK, waits


def returned(x: int) -> int:
    return x


class TestRedisStorage(StorageContract):
    url: str
    prefix: str

    @pytest.fixture(autouse=True)
    def _place(self, redis_url: str) -> Iterator[None]:
        self.url, self.prefix = redis_url, f"bullpen-test-{secrets.token_hex(6)}"
        yield
        asyncio.run(self._drop())

    async def test_what_waits_for_many_is_as_small_as_others_and_leaves_nothing(self, store: Storage) -> None:
        """It is read and written whenever one of them ends."""
        *members, last = await new_group(store, 1000)
        await store.cancel(ids(members[:1]))
        async with Redis.from_url(self.url) as client:
            tag = f"{{{self.prefix}:default}}"
            assert await client.hstrlen(f"{tag}:state", last.id) < 300
            assert await store.cancel(ids(members)) != []
            assert await store.delete(ids([*members, last])) == 1001
            left = {key.decode().removeprefix(tag) async for key in client.scan_iter(match=f"{tag}:*", count=1000)}
        assert left == set()

    async def test_a_queue_is_listed_for_as_long_as_there_is_something_in_it(self, store: Storage) -> None:
        async with Redis.from_url(self.url) as client:

            async def listed() -> set[str]:
                names: Any = await client.smembers(f"{self.prefix}:queues")
                return {name.decode() for name in names}

            for fields in ({}, {"concurrency_key": "c"}):
                task = await claimed_one(store, queue="tenant", **fields)
                await settle(store, succeed(task, b"1"))
                assert await listed() == {"tenant"}
                assert await store.delete([task.id]) == 1
                assert await listed() == set()
            parent, child = await claimed_one(store), new_task(queue="tenant")
            await settle(store, succeed(parent, b"1", children=(child,)))
            assert await listed() == {"default", "tenant"}
            assert await store.export_tasks([await get(store, child)]) == {child.id}
            assert await listed() == {"default"}
            assert await store.import_tasks([child]) == {child.id}
            assert await listed() == {"default", "tenant"}
            await store.set_limit(Limit(queue="slow", max_running=1))
            await store.pause("slow")
            await store.set_limit(Limit(queue="slow"))
            assert await listed() == {"default", "slow", "tenant"}
            await store.resume("slow")
            assert await listed() == {"default", "tenant"}

    async def test_a_queue_is_listed_while_a_worker_waits_for_it(self, store: Storage) -> None:
        assert isinstance(store, SupportsDirectClaim)
        task = await claimed_one(store)
        await settle(store, succeed(task, b"1"))
        async with (
            Redis.from_url(self.url) as client,
            waits(store.wait_to_claim(["default"], FAR, worker="w", lease=FAR, claim_id="c")) as waiting,
        ):
            offers = f"{{{self.prefix}:default}}:offers"
            while await client.zcard(offers) == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert await store.delete([task.id]) == 1
            assert await client.zcard(offers) == 1
            assert await store.find_claim("c") == []
            new = await added(store)
        assert waiting.result().claimed == ()
        assert await get(store, new) == new

    @pytest.mark.parametrize("others", [0, 1])
    async def test_an_end_that_is_too_large_for_a_notification_is_looked_for(self, store: Storage, others: int) -> None:
        """However it has become that large: those who listen are cut off if they are told too much."""
        task, *more = await store.add(new_tasks(1 + others, max_retries=1))
        task, *more = await claim(store, 1 + others)
        await store.note_progress(hold(task), Progress(0.5, note="x" * 100_000))
        async with Redis.from_url(self.url) as client, client.pubsub() as listener:
            await listener.psubscribe(f"{self.prefix}:*")
            async with waits(store.wait_for_result(task.id, 0, FAR)):
                states = f"{{{self.prefix}:default}}:state"
                while b":ends" not in (await client.hget(states, task.id) or b""):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)  # until the task is marked as awaited
                await settle(store, *(succeed(one, b"1") for one in (task, *more)))
            sizes: list[int] = []
            while (message := await listener.get_message(timeout=0.1)) or not sizes:
                sizes += [len(message["data"])] if message and message["type"] == "pmessage" else []
        assert 0 < max(sizes) < 65_536

    async def test_an_end_brings_the_task(self, store: Storage) -> None:
        task = await claimed_one(store)
        async with waits(store.wait_for_result(task.id, 0, FAR)) as waiting:
            await settle(store, succeed(task, bytes(1000)))
        assert waiting.result() == (await store.get([task.id]))[0]

    @pytest.mark.parametrize("kind", [{}, {"unique_key": "u"}, {"concurrency_key": "c"}, {"expires": 4e9}])
    @pytest.mark.parametrize("is_early", [False, True])
    async def test_whoever_waits_for_one_task_after_the_other_is_brought_each(
        self, store: Storage, is_early: bool, kind: dict[str, Any]
    ) -> None:
        """Also an end that comes before the wait: from the second on, the store expects to be asked."""
        for _ in range(3):
            task = await claimed_one(store, **kind)
            if is_early:
                await settle(store, succeed(task, b"1"))
            async with waits(store.wait_for_result(task.id, 0, FAR)) as waiting:
                if not is_early:
                    await settle(store, succeed(task, b"1"))
            assert [waiting.result()] == await store.get([task.id])

    async def test_a_task_that_is_there_already_is_not_waited_for_either(self, store: Storage) -> None:
        ended = await claimed_one(store)
        await settle(store, succeed(ended, b"1"))
        task = await claimed_one(store)
        async with waits(store.wait_for_result(task.id, 0, FAR)):
            await settle(store, succeed(task, b"1"))
        assert ids(await store.add([new_task(id=ended.id)])) == [ended.id]
        async with asyncio.timeout(PATIENCE):
            assert [await store.wait_for_result(ended.id, 0, FAR)] == await store.get([ended.id])

    async def test_a_wait_that_was_not_expected_gets_its_result_too(self, store: Storage) -> None:
        first = await claimed_one(store)
        async with waits(store.wait_for_result(first.id, 0, FAR)):
            await settle(store, succeed(first, b"1"))
        passed_over = await claimed_one(store)
        task = await claimed_one(store)
        async with waits(store.wait_for_result(task.id, 0, FAR)), waits(store.wait_for_result(passed_over.id, 0, FAR)):
            await settle(store, succeed(task, b"1"), succeed(passed_over, b"1"))

    @pytest.mark.parametrize(
        ("module", "name", "value"),
        [
            (raw_connection, "_hiredis", None),
            (connection, "_pack_command", None),
            (raw_connection, "HEALTH_CHECK", -1.0),
        ],
        ids=["no parser", "no packer", "long idle"],
    )
    async def test_other_ways_to_a_server_do_the_same(
        self, store: Storage, monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, value: object
    ) -> None:
        monkeypatch.setattr(module, name, value)
        other = self.make_storage()
        try:
            task = await claimed_one(other, payload="é".encode())
            async with waits(other.wait_for_result(task.id, 0, FAR)) as waiting:
                await settle(other, succeed(task, b"1"))
            assert [waiting.result()] == await other.get([task.id]) == await store.get([task.id])
            with pytest.raises(StorageError, match="unknown command"):
                await other._execute("NO_SUCH_COMMAND")
            assert await other.now() == pytest.approx(await store.now(), abs=60.0)
        finally:
            await other.close()
        await asyncio.to_thread(self.use_without_loop)

    def use_without_loop(self) -> None:
        with TaskQueue(self.address()) as queue:
            noop = queue.task(name="noop")(returned)
            assert noop.enqueue(1).status is PENDING
            assert queue.counts()["default"][PENDING] == 1

    # Tasks that are handed to those who wait.

    def waits_to_claim(
        self, store: Storage, *queues: str, claim_id: str = "c", seconds: float = FAR
    ) -> Coroutine[Any, Any, Handed]:
        assert isinstance(store, SupportsDirectClaim)
        return store.wait_to_claim(queues or ["default"], seconds, worker="w", lease=60.0, claim_id=claim_id)

    async def offers(self, queue: str = "default") -> int:
        async with Redis.from_url(self.url) as client:
            return await client.zcard(f"{{{self.prefix}:{queue}}}:offers")

    async def offered(self, *queues: str) -> None:
        for queue in queues or ["default"]:
            while not await self.offers(queue):  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    @pytest.mark.parametrize("size", [1, 100_000])
    @pytest.mark.parametrize("kind", [{}, {"unique_key": "k"}])
    @pytest.mark.parametrize("queues", [["default"], ["other", "default"]])
    async def test_who_waits_is_handed_a_new_task(
        self, store: Storage, size: int, kind: dict[str, str], queues: list[str]
    ) -> None:
        """As a claim would have it: also one that is too large for a notification."""
        began = time.monotonic()
        async with waits(self.waits_to_claim(store, *queues)) as waiting:
            await self.offered(*queues)
            task = await added(store, payload=bytes(size), **kind)
            assert await store.counts() == {"default": {RUNNING: 1}}
            assert ids(await store.list(TaskFilter(), limit=2)) == [task.id]
        handed = waiting.result()
        assert list(handed.claimed) == await store.get([task.id]) == await store.find_claim("c")
        (claimed,) = handed.claimed
        assert (claimed.status, claimed.attempt, claimed.worker, claimed.claim_id) == (RUNNING, 1, "w", "c")
        assert claimed.started_at is not None
        assert claimed.lease_until == pytest.approx(claimed.started_at + 60.0)
        assert 0.0 <= handed.after <= time.monotonic() - began
        assert [await self.offers(queue) for queue in ("other", "default")] == [0, 0]
        assert await settle(store, succeed(claimed, b"1")) == frozenset()

    async def test_one_after_the_other_is_handed_a_task(self, store: Storage) -> None:
        async with waits(self.waits_to_claim(store, claim_id="first")) as first:
            await self.offered()
            async with waits(self.waits_to_claim(store, claim_id="second")) as second:
                while await self.offers() < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
                tasks = [await added(store), await added(store)]
        assert [list(one.result().claimed) for one in (first, second)] == [await store.get([one.id]) for one in tasks]

    @pytest.mark.parametrize("queues", [["default"], ["other", "default"]])
    async def test_the_first_in_line_is_handed_over(self, store: Storage, queues: list[str]) -> None:
        """Not the one that has just come; of which the others are told."""
        await store.pause(queues[0])
        first = await added(store, queue=queues[0], priority=1)
        async with waits(self.waits_to_claim(store, *queues)) as waiting:
            await self.offered(*queues)
            async with Redis.from_url(self.url) as client:  # nobody is told
                await client.hdel(f"{{{self.prefix}:{queues[0]}}}:limits", "paused")
            other = self.make_storage()
            async with waits(other.wait_for_work(["default"], FAR)):
                last = await added(store)
            await other.close()
        assert ids(waiting.result().claimed) == [first.id]
        assert (await get(store, last)).status is PENDING

    @pytest.mark.parametrize("what", ["a queue at its limit", "a paused queue", "a rate"])
    async def test_what_may_not_start_is_not_handed_over(self, store: Storage, what: str) -> None:
        await NO_WORK[what](store)
        async with waits(self.waits_to_claim(store)) as waiting:
            await self.offered()
            task = await added(store)
        assert waiting.result().claimed == ()
        assert (await get(store, task)).status is PENDING
        assert await self.offers() == 0

    async def test_nothing_is_handed_over_before_its_time(self, store: Storage) -> None:
        async with waits(self.waits_to_claim(store)) as waiting:
            await self.offered()
            task = await added(store, eta=await store.now() + FAR)
        assert waiting.result().claimed == ()
        assert (await get(store, task)).status is PENDING

    async def test_nor_in_a_queue_that_is_paused_and_empty(self, store: Storage) -> None:
        await store.pause("default")
        async with waits(self.waits_to_claim(store)) as waiting:
            await self.offered()
            task = await added(store)
        assert waiting.result().claimed == ()
        assert (await get(store, task)).status is PENDING

    async def test_of_many_at_once_none_is_handed_over(self, store: Storage) -> None:
        async with waits(self.waits_to_claim(store)) as waiting:
            await self.offered()
            await store.add(new_tasks(2))
        assert waiting.result().claimed == ()
        assert len(await claim(store, 2)) == 2

    async def test_an_offer_ends_with_the_wait(self, store: Storage) -> None:
        handed = await self.waits_to_claim(store, seconds=0.01)
        task = await added(store)
        assert handed.claimed == ()
        assert (await get(store, task)).status is PENDING

    @pytest.mark.parametrize("is_overheard", [False, True])
    async def test_nobody_who_is_gone_is_handed_a_task(self, store: Storage, is_overheard: bool) -> None:
        """Its offer is still there, but nobody listens any more, or only somebody who listens to everything."""
        other = self.make_storage()
        gone = asyncio.ensure_future(self.waits_to_claim(other))
        await self.offered()
        gone.cancel()
        await asyncio.wait([gone])
        await other.close()
        assert await self.offers() == 1
        async with Redis.from_url(self.url) as client, client.pubsub() as listener:
            if is_overheard:
                await listener.psubscribe(f"{self.prefix}:*")
                assert (await listener.get_message(timeout=PATIENCE))["type"] == "psubscribe"
            async with waits(store.wait_for_work(["default"], FAR)):
                task = await added(store)
        assert (await get(store, task)).status is PENDING
        assert await self.offers() == 0

    async def test_what_was_handed_to_one_who_has_given_up_is_found(self, store: Storage) -> None:
        given_up = asyncio.ensure_future(self.waits_to_claim(store))
        await self.offered()
        given_up.cancel()
        await asyncio.wait([given_up])
        task = await added(store)
        assert ids(await store.find_claim("c")) == [task.id]

    async def test_who_has_asked_what_was_claimed_is_handed_nothing_later(self, store: Storage) -> None:
        given_up = asyncio.ensure_future(self.waits_to_claim(store))
        await self.offered()
        given_up.cancel()
        await asyncio.wait([given_up])
        assert list(await store.find_claim("c")) == []
        task = await added(store)
        assert (await get(store, task)).status is PENDING

    async def _drop(self) -> None:
        async with Redis.from_url(self.url) as client:
            keys = [key async for key in client.scan_iter(match=f"*{self.prefix}:*", count=1000)]
            if keys:
                await client.delete(*keys)

    def make_storage(self) -> RedisStorage:
        return RedisStorage(self.url, prefix=self.prefix)

    def address(self) -> str:
        return f"{self.url}?prefix={self.prefix}"
