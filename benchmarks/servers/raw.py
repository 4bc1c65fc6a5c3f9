"""The speed of the servers themselves: statements written by hand, over the same drivers. They call no function.

They take part as a library without workers: in `drain` a batch is settled with results and the next one is claimed.
"""

from __future__ import annotations

import asyncio
from time import perf_counter, time
from typing import Any

from benchmarks.metrics import RATE
from benchmarks.model import Measure, Peer

from .library import Blocking, Library, pages
from .measures import Place, opened
from .settings import BATCH, Sizes

REDIS_PY = Peer("raw", "redis.asyncio:Redis", "redis", "pip install redis[hiredis]", "Redis", is_rival=False)
ASYNCPG = Peer("raw", "asyncpg:connect", "asyncpg", "pip install asyncpg", "connect", is_rival=False)
PAYLOAD = b'{"args":[12345],"kwargs":{}}'
CONNECTIONS = 16


class Raw(Library):
    async def work_off(self, count: int) -> None:
        raise NotImplementedError


def drain(library: type[Raw], place: Place) -> Measure:
    async def timed(sizes: Sizes) -> float:
        async with opened(library, place) as (raw, _):
            assert isinstance(raw, Raw)
            await raw.put_many(sizes.drained)
            began = perf_counter()
            await raw.work_off(sizes.drained)
            return perf_counter() - began

    return lambda sizes: {RATE: sizes.drained / asyncio.run(timed(sizes))}


class RawPostgres(Raw):
    """One table, one partial index."""

    async def install(self) -> None:
        import asyncpg

        connection = await asyncpg.connect(self.address)
        await connection.execute(
            "CREATE TABLE task (id bigserial PRIMARY KEY, payload bytea, status text DEFAULT 'pending', attempt int "
            "DEFAULT 0, result bytea); CREATE INDEX ON task (id) WHERE status = 'pending'"
        )
        await connection.close()

    async def open(self) -> None:
        import asyncpg

        self._pool = await asyncpg.create_pool(self.address, min_size=1, max_size=CONNECTIONS)

    async def close(self) -> None:
        await self._pool.close()

    async def put(self, number: int) -> object:
        return await self._pool.execute("INSERT INTO task (payload) VALUES ($1)", PAYLOAD)

    async def put_many(self, count: int) -> None:
        for page in pages(count, 20_000):
            await self._pool.execute("INSERT INTO task (payload) SELECT unnest($1::bytea[])", [PAYLOAD] * len(page))

    async def work_off(self, count: int) -> None:
        """One transaction for each batch: settle, claim."""
        async with self._pool.acquire() as connection:
            done, held = 0, list[int]()
            while done < count:
                async with connection.transaction():
                    await connection.execute(
                        "UPDATE task SET status = 'success', result = '1' WHERE id = ANY ($1) AND attempt = 1", held
                    )
                    done += len(held)
                    rows = await connection.fetch(
                        "UPDATE task SET status = 'running', attempt = attempt + 1 WHERE id = ANY (ARRAY(SELECT id "
                        "FROM task WHERE status = 'pending' ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED)) RETURNING *",
                        BATCH,
                    )
                    held = [row["id"] for row in rows]


class RawRedis(Raw):
    """A sorted set of waiting tasks, one of running tasks, hashes of bodies and results."""

    async def open(self) -> None:
        from redis.asyncio import Redis

        server, _, self._place = self.address.partition("?prefix=")
        self._client = Redis.from_url(server)
        self._last = 0

    async def close(self) -> None:
        await self._client.aclose()

    async def put(self, number: int) -> object:
        await self._add(1)
        return None

    async def put_many(self, count: int) -> None:
        for page in pages(count, 1000):
            await self._add(len(page))

    async def _add(self, count: int) -> None:
        ids = [str(number) for number in range(self._last, self._last + count)]
        self._last += count
        async with self._client.pipeline(transaction=True) as together:
            together.zadd(f"{self._place}:ready", dict.fromkeys(ids, 0))
            together.hset(f"{self._place}:body", mapping=dict.fromkeys(ids, PAYLOAD))
            await together.execute()

    async def work_off(self, count: int) -> None:
        """Two pipelines for each batch: settle and claim, then read the claimed tasks."""
        done, held = 0, list[Any]()
        while done < count:
            async with self._client.pipeline(transaction=True) as together:
                if held:
                    together.hset(f"{self._place}:result", mapping=dict.fromkeys(held, "1"))
                    together.zrem(f"{self._place}:running", *held)
                together.zpopmin(f"{self._place}:ready", BATCH)
                claimed = [task_id for task_id, _ in (await together.execute())[-1]]
            done += len(held)
            held = claimed
            if held:
                async with self._client.pipeline(transaction=True) as together:
                    together.zadd(f"{self._place}:running", dict.fromkeys(held, 1))
                    together.hmget(f"{self._place}:body", held)
                    await together.execute()


_ADD = """
redis.call('ZADD', KEYS[1], 0, ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
redis.call('PUBLISH', KEYS[1], ARGV[1])
"""
_CLAIM = """
local taken = redis.call('ZPOPMIN', KEYS[1])
if not taken[1] then return false end
redis.call('ZADD', KEYS[3], ARGV[1], taken[1])
return {taken[1], redis.call('HGET', KEYS[2], taken[1])}
"""


class PublishAndClaim(Blocking):
    """The floor of `start`: one script adds a task and publishes its id, a worker in a blocking loop claims it by a
    second script with a lease. There is no upkeep, no result and no function but the trace.
    """

    async def open(self) -> None:
        self._connect()

    async def close(self) -> None:
        self._client.close()

    def _connect(self) -> None:
        from redis import Redis

        server, _, place = self.address.partition("?prefix=")
        self._client: Any = Redis.from_url(server)
        self._keys = [f"{place}:ready", f"{place}:body", f"{place}:running"]
        self._add, self._claim = (self._client.register_script(script) for script in (_ADD, _CLAIM))

    def put_now(self, number: int) -> object:
        return self._add(keys=self._keys, args=[number, PAYLOAD])

    def run(self) -> None:
        self._connect()
        channel = self._client.pubsub(ignore_subscribe_messages=True)
        channel.subscribe(self._keys[0])
        while True:
            while (claimed := self._claim(keys=self._keys, args=[time() + 15])) is not None:
                self.trace(int(claimed[0]))
            channel.get_message(timeout=1.0)
