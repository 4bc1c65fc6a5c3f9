"""The contract of stores, kept by a Redis or Valkey server."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator

import pytest

from bullpen.storage.redis.store import RedisStorage
from bullpen.testing import StorageContract


class TestRedisStorage(StorageContract):
    url: str
    prefix: str

    @pytest.fixture(autouse=True)
    def _place(self, redis_url: str) -> Iterator[None]:
        self.url, self.prefix = redis_url, f"bullpen-test-{secrets.token_hex(6)}"
        yield
        asyncio.run(self._drop())

    async def _drop(self) -> None:
        from redis.asyncio import Redis

        async with Redis.from_url(self.url) as client:
            keys = [key async for key in client.scan_iter(match=f"*{self.prefix}:*", count=1000)]
            if keys:
                await client.delete(*keys)

    def make_storage(self) -> RedisStorage:
        return RedisStorage(self.url, prefix=self.prefix)

    def address(self) -> str:
        return f"{self.url}?prefix={self.prefix}"
