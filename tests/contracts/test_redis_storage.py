"""The contract of stores, kept by a Redis or Valkey server."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable, Iterator
from types import ModuleType
from typing import Any, ClassVar

import msgspec
import pytest
from redis.asyncio import Redis

from bullpen import TaskQueue
from bullpen.errors import StorageError
from bullpen.tasks.model.task import PENDING, succeed
from bullpen.tasks.storage.port import Limit, Storage
from bullpen.tasks.storage.redis import connection, raw_connection
from bullpen.tasks.storage.redis.rows import TaskBody, TaskState
from bullpen.tasks.storage.redis.store import RedisStorage
from bullpen.testing import StorageContract
from bullpen.testing.storage_contract.base import (
    FAR,
    claimed_one,
    get,
    ids,
    new_task,
    settle,
)
from bullpen.testing.storage_contract.links import new_group
from bullpen.testing.storage_contract.waiting import waits
from tests.redis_users import add_user, delete_user, documented_rights


def returned(x: int) -> int:
    return x


class TestRedisStorage(StorageContract):
    """As a user with the rights that the docs name, and no other."""

    url: str
    url_of_user: str
    prefix: str

    _STATES: ClassVar = {
        "hold": "whatever",
        "errors": ["{"],
        "created_at": 1e300,
        "unique_until": "text",
        "next_task_id": 5,
        "attempt": "text",
        "priority": 3.5,
        "completed_runs": [],
        "result_ttl": float("nan"),
        "failure_ttl": float("inf"),
        "awaited": [],
        "waits_for": {},
        "eta": float("inf"),
        "status": "whatever",
    }
    _BODIES: ClassVar = {"max_retries": -1, "headers": [1], "func_path": 5, "timeout": float("nan"), "schedule": 1}
    damages_claimed = ("body", "no body", "state", "state that is a number", "short state", *_STATES, *_BODIES)
    damages_other = ("progress",)

    async def damage(self, task_id: str, kind: str) -> Callable[[], Awaitable[object]]:
        tag = f"{{{self.prefix}:default}}"
        of_body = kind in self._BODIES or kind.endswith("body")
        key = f"{tag}:body" if of_body else f"{tag}:state"
        field = "format" if kind == "newer" else kind
        whole = {"body": b"\xc1", "state": b"\xc1", "state that is a number": b"\x05", "short state": b"\x90"}
        async with Redis.from_url(self.url) as client:
            before: Any = await client.hget(key, task_id)
            values = msgspec.msgpack.decode(before)
            if kind in self._BODIES:
                values[TaskBody.__struct_fields__.index(kind)] = self._BODIES[kind]
            elif kind not in whole and kind != "no body":
                values[TaskState.__struct_fields__.index(field)] = {**self._STATES, "progress": "{", "newer": 2}[kind]
            if kind == "no body":
                await client.hdel(key, task_id)
            else:
                await client.hset(key, task_id, whole.get(kind) or msgspec.msgpack.encode(values))

        async def stored() -> object:
            async with Redis.from_url(self.url) as client:
                if of_body:
                    return await client.hget(key, task_id)
                state: Any = await client.hget(f"{tag}:damaged", task_id) or await client.hget(key, task_id)
                if kind in whole:
                    return state
                return repr(msgspec.msgpack.decode(state)[TaskState.__struct_fields__.index(field)])[:4]

        return stored

    async def damage_worker(self, worker: str) -> None:
        async with Redis.from_url(self.url) as client:
            await client.hset(f"{self.prefix}:workers", worker, "[")

    @pytest.fixture(autouse=True)
    def _place(self, redis_url: str) -> Iterator[None]:
        self.url, self.prefix = redis_url, f"bullpen-test-{secrets.token_hex(6)}"
        self.url_of_user = add_user(self.url, self.prefix, *documented_rights(self.prefix))
        yield
        asyncio.run(self._drop())
        delete_user(self.url, self.prefix)

    async def test_a_task_that_depends_on_many_is_as_small_as_others_and_leaves_nothing(self, store: Storage) -> None:
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

    async def test_a_wait_returns_the_ended_task(self, store: Storage) -> None:
        """So the client needs no other read. Also if the task ended before the wait."""
        task = await claimed_one(store)
        async with waits(store.wait_for_result(task.id, 0, FAR)) as waiting:
            await settle(store, succeed(task, bytes(1000)))
        kept = await store.get([task.id])
        assert [waiting.result()] == [await store.wait_for_result(task.id, 0, FAR)] == kept

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

    async def queue_names(self, store: Storage) -> set[str]:
        """The keys of queues, and the list of queues if it exists."""
        async with Redis.from_url(self.url) as client:
            keys = [key.decode() async for key in client.scan_iter(match=f"*{self.prefix}:*", count=1000)]
        return {found[1] if (found := re.match(r"\{.*:(.*)\}:", key)) else key for key in keys}

    async def _drop(self) -> None:
        async with Redis.from_url(self.url) as client:
            keys = [key async for key in client.scan_iter(match=f"*{self.prefix}:*", count=1000)]
            if keys:
                await client.delete(*keys)

    def make_storage(self) -> RedisStorage:
        return RedisStorage(self.url_of_user, prefix=self.prefix)

    def address(self) -> str:
        return f"{self.url_of_user}?prefix={self.prefix}"
