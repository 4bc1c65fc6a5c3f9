"""The numbers every work shares, and places on the servers that are one measurement's own."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

REDIS = os.environ.get("BULLPEN_BENCH_REDIS_URL", "redis://127.0.0.1:6379/0")
POSTGRES = os.environ.get("BULLPEN_BENCH_POSTGRES_URL", "postgresql://postgres@127.0.0.1:5432/postgres")

CONCURRENCY = 100
CALLERS = 16
BATCH = 100
LEASE = 15.0  # seconds, of a worker by default


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much one measurement does. Warm-up comes on top and is not timed."""

    rounds: int
    singles: int  # tasks enqueued one by one
    bulk: int  # tasks enqueued at once
    drained: int  # tasks that wait when a worker starts
    slow: int  # the same, for a peer that would need minutes
    calls: int  # from enqueue to result, one at a time
    pause: float  # seconds between those, so that the worker is idle
    few: int  # backlogs
    many: int
    claims: int
    storm: int  # tasks that wait when workers begin to be killed
    storm_seconds: float
    held: int  # tasks that run when all workers are killed
    held_seconds: float
    pinned: int  # tasks worked off while a transaction is left open


FULL = Sizes(
    rounds=3,
    singles=1_000,
    bulk=20_000,
    drained=20_000,
    slow=2_000,
    calls=200,
    pause=0.005,
    few=1_000,
    many=1_000_000,
    claims=100,
    storm=200_000,
    storm_seconds=10.0,
    held=20,
    held_seconds=2.0,
    pinned=100_000,
)
QUICK = Sizes(
    rounds=1,
    singles=300,
    bulk=5_000,
    drained=5_000,
    slow=500,
    calls=50,
    pause=0.005,
    few=1_000,
    many=50_000,
    claims=50,
    storm=100_000,
    storm_seconds=10.0,
    held=20,
    held_seconds=2.0,
    pinned=6_000,
)


@asynccontextmanager
async def redis_place() -> AsyncIterator[str]:
    """The address of the server with a word that all keys of one measurement have in them; they are deleted then."""
    from redis.asyncio import Redis

    word = f"bench-{secrets.token_hex(6)}"
    try:
        yield f"{REDIS}?prefix={word}"
    finally:
        async with Redis.from_url(REDIS) as client:
            async for key in client.scan_iter(match=f"*{word}*", count=1000):
                await client.unlink(key)


@asynccontextmanager
async def postgres_place() -> AsyncIterator[str]:
    """The address of a database for one measurement; dropped in the end."""
    import asyncpg

    name = f"bullpen_bench_{secrets.token_hex(6)}"
    await _alone(f"CREATE DATABASE {name}")
    try:
        yield f"{POSTGRES.rpartition('/')[0]}/{name}"
    finally:
        for _ in range(50):
            try:
                await _alone(f"DROP DATABASE {name} WITH (FORCE)")
                break
            except asyncpg.PostgresError:
                await asyncio.sleep(0.1)


async def _alone(statement: str) -> str:
    import asyncpg

    connection = await asyncpg.connect(POSTGRES)
    try:
        return str(await connection.execute(statement))
    finally:
        await connection.close()


def redis_settings() -> dict[str, str]:
    async def ask() -> dict[str, str]:
        from redis.asyncio import Redis

        async with Redis.from_url(REDIS) as client:
            info, config = await client.info("server"), await client.config_get("appendonly", "appendfsync")
        return {"Redis": info["redis_version"], "appendonly": config["appendonly"]}

    return asyncio.run(ask())


def postgres_settings() -> dict[str, str]:
    async def ask() -> dict[str, str]:
        import asyncpg

        connection = await asyncpg.connect(POSTGRES)
        names = ("server_version", "fsync", "synchronous_commit", "shared_buffers")
        try:
            return {name: await connection.fetchval(f"SHOW {name}") for name in names}
        finally:
            await connection.close()

    return asyncio.run(ask())
