"""Bullpen as its users write it, and each library at a place of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from bullpen import AsyncWorkerPool, TaskQueue

from .peers import Dramatiq, Huey, Opened, PgQueuer, Procrastinate, Seen, Taskiq, _quiet
from .settings import CONCURRENCY, REDIS, postgres_place, redis_place

Open = Callable[[Seen], AbstractAsyncContextManager[Opened]]


class Ours(Opened):
    def __init__(self, url: str, seen: Seen) -> None:
        _quiet()
        self.queue = TaskQueue(url)

        async def noop(x: int) -> int:
            seen(x)
            return x

        self.noop: Any = self.queue.task(name="noop")(noop)

    async def put(self, number: int) -> object:
        return await self.noop.aenqueue(number)

    async def put_many(self, count: int) -> object:
        return await self.noop.aenqueue_many([(number,) for number in range(count)])

    def working(self) -> AsyncWorkerPool:
        return AsyncWorkerPool(self.queue, concurrency=CONCURRENCY)


@asynccontextmanager
async def ours_on_redis(seen: Seen) -> AsyncIterator[Opened]:
    async with redis_place() as place:
        ours = Ours(f"{REDIS}?prefix={place}", seen)
        async with ours.queue:
            yield ours


@asynccontextmanager
async def ours_on_postgres(seen: Seen) -> AsyncIterator[Opened]:
    async with postgres_place() as address:
        ours = Ours(address, seen)
        async with ours.queue:
            yield ours


def on_redis(kind: type[Huey | Taskiq | Dramatiq]) -> Open:
    @asynccontextmanager
    async def opened(seen: Seen) -> AsyncIterator[Opened]:
        async with redis_place() as place:
            yield kind(place, seen)

    return opened


@asynccontextmanager
async def pgqueuer(seen: Seen) -> AsyncIterator[Opened]:
    import asyncpg

    async with postgres_place() as address:
        connection = await asyncpg.connect(address)
        queuer = PgQueuer(connection, seen)
        await queuer.install()
        try:
            yield queuer
        finally:
            await connection.close()


@asynccontextmanager
async def procrastinate(seen: Seen) -> AsyncIterator[Opened]:
    async with postgres_place() as address:
        app = Procrastinate(address, seen)
        await app.install()
        try:
            yield app
        finally:
            await app.close()
