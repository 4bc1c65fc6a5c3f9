"""The contract of stores, kept by a cluster of three Redis or Valkey servers."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Iterator
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster
from redis.crc import key_slot

from bullpen import StorageError, StorageUnavailable, TaskQueue, chain
from bullpen.tasks.model.task import release, succeed
from bullpen.tasks.storage.open import open_storage
from bullpen.tasks.storage.port import AttemptKey, Storage, TaskFilter
from bullpen.tasks.storage.redis.store import RedisStorage
from bullpen.testing import StorageContract
from bullpen.testing.storage_contract.base import claim, claimed_one, ids, new_task, settle
from bullpen.testing.storage_contract.claiming import ClaimingTests
from tests.redis_users import add_user, delete_user, documented_rights


class OnCluster:
    """As a user with the rights that the docs name, and no other."""

    url: str
    prefix: str

    @pytest.fixture(autouse=True)
    def _place(self, redis_cluster_url: str) -> Iterator[None]:
        self.url, self.prefix = redis_cluster_url, self.new_prefix()
        self.user, self.password = secrets.token_hex(6), secrets.token_hex(8)
        nodes = [f"redis://{host}" for host in self.url.removeprefix("redis+cluster://").rstrip("/").split(",")]
        for node in nodes:
            add_user(node, self.user, *documented_rights(self.prefix, cluster=True), password=self.password)
        yield
        asyncio.run(self._drop())
        for node in nodes:
            delete_user(node, self.user)

    def new_prefix(self) -> str:
        return f"bullpen-test-{secrets.token_hex(6)}"

    async def _drop(self) -> None:
        host, _, port = self.url.removeprefix("redis+cluster://").split(",")[0].rstrip("/").partition(":")
        async with RedisCluster(host=host, port=int(port)) as client:
            async for key in client.scan_iter(match=f"*{self.prefix}:*", count=1000):
                await client.delete(key)

    async def queue_names(self, store: Storage) -> set[str]:
        assert isinstance(store, RedisStorage)
        host, _, port = self.url.removeprefix("redis+cluster://").split(",")[0].rstrip("/").partition(":")
        async with RedisCluster(host=host, port=int(port)) as client:
            keys = [key.decode() async for key in client.scan_iter(match=f"*{self.prefix}:*", count=1000)]
        return {next((name for name in ("gone", "never") if key.startswith(store._tag(name))), key) for key in keys}

    def make_storage(self) -> Storage:
        return open_storage(self.address())

    def address(self) -> str:
        hosts = self.url.removeprefix("redis+cluster://")
        return f"redis+cluster://{self.user}:{self.password}@{hosts}?prefix={self.prefix}"


class Moving:
    """A slot on its way to another node."""

    def __init__(self, url: str, key: str) -> None:
        self._slot = key_slot(key.encode())
        self._hosts = url.removeprefix("redis+cluster://").rstrip("/").split(",")

    async def __aenter__(self) -> Moving:
        self._nodes: list[Any] = [Redis.from_url(f"redis://{host}") for host in self._hosts]
        self._ids = [(await node.execute_command("CLUSTER MYID")).decode() for node in self._nodes]
        counts = [await node.execute_command("CLUSTER COUNTKEYSINSLOT", self._slot) for node in self._nodes]
        self._here = counts.index(max(counts))
        self._there = (self._here + 1) % len(self._nodes)
        await self._set(self._there, "IMPORTING", self._ids[self._here])
        await self._set(self._here, "MIGRATING", self._ids[self._there])
        return self

    async def _set(self, node: int, *words: str) -> None:
        await self._nodes[node].execute_command("CLUSTER SETSLOT", self._slot, *words)

    async def move_one_key(self) -> bool:
        here = self._nodes[self._here]
        keys = await here.execute_command("CLUSTER GETKEYSINSLOT", self._slot, 1)
        if keys:
            host, _, port = self._hosts[self._there].partition(":")
            await here.execute_command("MIGRATE", host, port, keys[0], 0, 10_000)
        return bool(keys)

    async def finish(self) -> None:
        while await self.move_one_key():
            pass
        for node in (self._there, self._here, *range(len(self._nodes))):
            await self._set(node, "NODE", self._ids[self._there])

    async def __aexit__(self, *_: object) -> None:
        for node in self._nodes:
            await node.aclose()


class TestClaims(OnCluster, ClaimingTests):
    """What a cluster makes hardest; each queue may be on another node. `--thorough` has the whole contract."""

    async def test_queues_are_on_different_nodes(self, store: Storage) -> None:
        names = [f"q{number}" for number in range(12)]
        kept = await store.add([new_task(queue=name) for name in names])
        assert ids(await claim(store, 20, queues=names)) == ids(kept)
        assert {key_slot(f"{{{self.prefix}:{name}}}".encode()) * 3 // 16384 for name in names} == {0, 1, 2}

    async def test_a_queue_that_moves_to_another_node_is_away_meanwhile_and_whole_afterwards(
        self, store: Storage
    ) -> None:
        """Nothing is kept on a node that has only some of its keys."""
        kept = await store.add([new_task() for _ in range(3)])
        async with Moving(self.url, f"{{{self.prefix}:default}}") as moving:
            for _ in range(2):
                with pytest.raises(StorageUnavailable, match="moved"):
                    await store.add([new_task()])
                with pytest.raises(StorageUnavailable, match="moved"):
                    await claim(store, 1)
                await moving.move_one_key()
            await moving.finish()
        more = await store.add([new_task()])
        assert ids(await claim(store, 10)) == ids([*kept, *more])

    async def test_a_child_of_another_queue_comes_with_the_success_of_its_parent_and_only_then(
        self, store: Storage
    ) -> None:
        parent = await claimed_one(store)
        child = new_task(queue="mail")
        await settle(store, release(parent))
        (again,) = await claim(store)
        late = succeed(parent, b"1", children=(child,))
        assert await settle(store, late) == {AttemptKey(parent.id, 1)}
        assert await store.get([child.id]) == [None]
        done = succeed(again, b"1", children=(child,))
        for rejected in (set(), {AttemptKey(parent.id, 2)}):  # also for whoever did not learn that it was done
            assert await settle(store, done) == rejected
            assert ids(await store.list(TaskFilter(queues=("mail",)), limit=5)) == [child.id]

    async def test_a_chain_through_several_queues_is_rejected_before_anything_is_kept(self) -> None:
        queue = TaskQueue(self.address())
        step = queue.task(name="step")(lambda: None)
        async with queue:
            through = chain(step.using(queue="a").call(), step.using(queue="b").call())
            with pytest.raises(StorageError, match=r"each other \(a, b\); keep .* curly brackets"):
                await through.aenqueue()
            with pytest.raises(StorageError, match="different queues"):
                through.children(0.0, {})
            assert await queue.acounts() == {}


@pytest.mark.thorough
class TestQueuesTogether(OnCluster, StorageContract):
    """All queues on one node: nothing is different."""

    def new_prefix(self) -> str:
        return f"{{{super().new_prefix()}}}"


@pytest.mark.thorough
class TestQueuesApart(OnCluster, StorageContract):
    """Each queue on a node of its own, maybe: nothing is done in several of them in one step."""

    async def rejects(self, test: Awaitable[None]) -> None:
        with pytest.raises(StorageError, match="different queues"):
            await test

    async def test_a_chain_may_lead_through_several_queues(self, store: Storage) -> None:
        await self.rejects(super().test_a_chain_may_lead_through_several_queues(store))

    async def test_a_child_may_be_a_chain(self, store: Storage) -> None:
        await self.rejects(super().test_a_child_may_be_a_chain(store))

    async def test_a_second_one_is_rejected_and_all_that_come_with_it(self, store: Storage) -> None:
        await self.rejects(super().test_a_second_one_is_rejected_and_all_that_come_with_it(store))

    async def test_those_that_people_cancel_are_so_in_the_order_they_are_given(self, store: Storage) -> None:
        await self.rejects(super().test_those_that_people_cancel_are_so_in_the_order_they_are_given(store))

    async def test_a_schedule_is_in_one_queue_whoever_adds_it_to_another(self, store: Storage) -> None:
        with pytest.raises(AssertionError):  # so workers look before they add one
            await super().test_a_schedule_is_in_one_queue_whoever_adds_it_to_another(store)


@pytest.mark.anyio
async def test_an_address_of_the_wrong_kind_is_one_clear_line(redis_cluster_url: str, redis_url: str) -> None:
    node = redis_cluster_url.removeprefix("redis+cluster://").split(",")[0]
    with pytest.raises(StorageError, match=r"node of a cluster; use redis\+cluster://"):
        await open_storage(f"redis://{node}").open()
    server = redis_url.removeprefix("redis://").partition("/")[0]
    with pytest.raises(StorageError, match=r"(?i)cluster") as rejected:
        await open_storage(f"redis+cluster://:s3cret@{server}").open()
    assert "s3cret" not in str(rejected.value)
    with pytest.raises(StorageUnavailable):
        await open_storage("redis+cluster://127.0.0.1:1,127.0.0.1:2").open()
