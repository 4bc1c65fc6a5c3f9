"""The contract of stores, kept by a Redis or Valkey server."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator

import pytest
from redis.asyncio import Redis

from bullpen.storage.port import Storage
from bullpen.storage.redis.store import RedisStorage
from bullpen.tasks.task import succeed
from bullpen.testing import StorageContract
from bullpen.testing.storage_contract.base import FAR, claimed_one, ids, settle
from bullpen.testing.storage_contract.links import new_group
from bullpen.testing.storage_contract.waiting import waits


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
        assert left == {":counts"}

    async def test_an_end_brings_the_task(self, store: Storage) -> None:
        task = await claimed_one(store)
        async with waits(store.wait_for_result(task.id, 0, FAR)) as waiting:
            await settle(store, succeed(task, bytes(1000)))
        assert waiting.result() == (await store.get([task.id]))[0]

    async def _drop(self) -> None:
        async with Redis.from_url(self.url) as client:
            keys = [key async for key in client.scan_iter(match=f"*{self.prefix}:*", count=1000)]
            if keys:
                await client.delete(*keys)

    def make_storage(self) -> RedisStorage:
        return RedisStorage(self.url, prefix=self.prefix)

    def address(self) -> str:
        return f"{self.url}?prefix={self.prefix}"
