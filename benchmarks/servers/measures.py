"""One measurement each: tasks in, tasks out, and from a call to its result."""

from __future__ import annotations

import asyncio
import gc
import statistics
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from time import perf_counter, time
from typing import Any

from benchmarks.model import Measure
from bullpen.storage.open import open_storage
from bullpen.tasks.task import Task

from .ours import Open, Ours
from .peers import Tally
from .settings import BATCH, REDIS, Sizes, postgres_place, redis_place

RATE, P50, P99, COST = "rate", "p50", "p99", "cost"
WARM_UP = 20
CLAIMED = 10
PAGE = 10_000
PAYLOAD = b'{"args":[12345],"kwargs":{}}'


class TasksNotDone(Exception):
    """Not every task has run once; the time would mean nothing."""


def drain(opened: Open, loop: Callable[[], Any] | None = None) -> Measure:
    """A backlog waits, a worker starts, and the clock stops when the last task has run."""

    async def timed(sizes: Sizes) -> float:
        tally = Tally(sizes.drained)
        async with opened(tally) as peer:
            await peer.put_many(sizes.drained)
            gc.collect()
            began = perf_counter()
            async with peer.working():
                await tally.enough.wait()
                elapsed = perf_counter() - began
        if tally.calls != sizes.drained:
            raise TasksNotDone(f"expected {sizes.drained} calls, got {tally.calls}")
        return elapsed

    def measure(sizes: Sizes) -> Mapping[str, float]:
        with asyncio.Runner(loop_factory=loop) as runner:
            return {RATE: sizes.drained / runner.run(timed(sizes))}

    return measure


def one_by_one(opened: Open, callers: int = 1) -> Measure:
    async def call(peer: Any, count: int) -> None:
        for number in range(count):
            await peer.put(number)

    async def timed(sizes: Sizes) -> float:
        async with opened(lambda _: None) as peer:
            await call(peer, WARM_UP)
            gc.collect()
            began = perf_counter()
            await asyncio.gather(*[call(peer, sizes.singles) for _ in range(callers)])
            return perf_counter() - began

    return lambda sizes: {RATE: callers * sizes.singles / asyncio.run(timed(sizes))}


def at_once(opened: Open) -> Measure:
    async def timed(sizes: Sizes) -> float:
        async with opened(lambda _: None) as peer:
            await peer.put_many(WARM_UP)
            gc.collect()
            began = perf_counter()
            await peer.put_many(sizes.bulk)
            return perf_counter() - began

    return lambda sizes: {RATE: sizes.bulk / asyncio.run(timed(sizes))}


def until_it_runs(opened: Open) -> Measure:
    """From the call that enqueues to the function that is called, with an idle worker: what every peer can do."""

    async def timed(sizes: Sizes) -> list[float]:
        ran: list[float] = []
        seen = asyncio.Event()
        loop = asyncio.get_running_loop()

        def note(_: int) -> None:
            ran.append(perf_counter())
            loop.call_soon_threadsafe(seen.set)

        spans = []
        async with opened(note) as peer, peer.working():
            for number in range(WARM_UP + sizes.calls):
                await asyncio.sleep(sizes.pause)
                seen.clear()
                began = perf_counter()
                await peer.put(number)
                await seen.wait()
                spans.append(ran[-1] - began)
        return spans[WARM_UP:]

    return lambda sizes: _percentiles(asyncio.run(timed(sizes)))


def until_the_result(opened: Open) -> Measure:
    """Ours: from `aenqueue` to the result in hand."""

    async def timed(sizes: Sizes) -> list[float]:
        spans = []
        async with opened(lambda _: None) as peer, peer.working():
            assert isinstance(peer, Ours)
            for number in range(WARM_UP + sizes.calls):
                await asyncio.sleep(sizes.pause)
                began = perf_counter()
                assert await (await peer.noop.aenqueue(number)).aresult(30) == number
                spans.append(perf_counter() - began)
        return spans[WARM_UP:]

    return lambda sizes: _percentiles(asyncio.run(timed(sizes)))


def _percentiles(spans: list[float]) -> Mapping[str, float]:
    cuts = statistics.quantiles(spans, n=100)
    return {P50: cuts[49] * 1e6, P99: cuts[98] * 1e6}


@asynccontextmanager
async def redis_storage() -> AsyncIterator[str]:
    async with redis_place() as place:
        yield f"{REDIS}?prefix={place}"


def claims(place: Callable[[], AbstractAsyncContextManager[str]], backlog: str) -> Measure:
    """What one claim costs, asked of the store directly; `backlog` is the field that says how many wait."""

    async def timed(sizes: Sizes) -> list[float]:
        waiting = max(getattr(sizes, backlog), sizes.claims * CLAIMED)
        async with place() as address:
            storage = open_storage(address)
            await storage.open()
            later = time() + 1e6
            await storage.add([_task(-number - 1, eta=later, priority=9) for number in range(1000)])
            for first in range(0, waiting, PAGE):
                await storage.add([_task(number) for number in range(first, min(first + PAGE, waiting))])
            spans = []
            for number in range(sizes.claims):
                began = perf_counter()
                exchange = await storage.exchange(
                    [], worker="w", queues=["default"], limit=CLAIMED, lease=60.0, claim_id=str(number)
                )
                spans.append(perf_counter() - began)
                assert len(exchange.claimed) == CLAIMED
            await storage.close()
        return spans

    return lambda sizes: {COST: statistics.median(asyncio.run(timed(sizes))) * 1e6}


def _task(number: int, **fields: Any) -> Task:
    task_id = f"019a0000-0000-7000-8000-{number & 0xFFFFFFFFFFFF:012x}"
    return Task(id=task_id, func_path="app.send", payload=PAYLOAD, **fields)


# What the servers themselves can do: the statements that one would write by hand, and nothing is run.


async def _raw_postgres(sizes: Sizes) -> float:
    """One table, one partial index; settle with a result and claim, 100 per transaction, in one statement each."""
    import asyncpg

    async with postgres_place() as address:
        connection = await asyncpg.connect(address)
        await connection.execute(
            "CREATE TABLE task (id bigserial PRIMARY KEY, payload bytea, status text DEFAULT 'pending', attempt int "
            "DEFAULT 0, result bytea); CREATE INDEX ON task (id) WHERE status = 'pending'"
        )
        await connection.execute(
            "INSERT INTO task (payload) SELECT $1 FROM generate_series(1, $2)", PAYLOAD, sizes.drained
        )
        began, done, held = perf_counter(), 0, list[int]()
        while done < sizes.drained:
            async with connection.transaction():
                await connection.execute(
                    "UPDATE task SET status = 'success', result = '1' WHERE id = ANY ($1) AND attempt = 1", held
                )
                done += len(held)
                rows = await connection.fetch(
                    "UPDATE task SET status = 'running', attempt = attempt + 1 WHERE id = ANY (ARRAY(SELECT id FROM "
                    "task WHERE status = 'pending' ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED)) RETURNING *",
                    BATCH,
                )
                held = [row["id"] for row in rows]
        elapsed = perf_counter() - began
        await connection.close()
    return elapsed


def raw_postgres(sizes: Sizes) -> Mapping[str, float]:
    return {RATE: sizes.drained / asyncio.run(_raw_postgres(sizes))}


async def _raw_redis(sizes: Sizes) -> float:
    """A sorted set of what waits, one of what runs, hashes of bodies and results; 100 at a time in one pipeline."""
    from redis.asyncio import Redis

    async with redis_place() as place, Redis.from_url(REDIS) as client:
        for first in range(0, sizes.drained, 1000):
            ids = [str(number) for number in range(first, first + 1000)]
            await client.zadd(f"{place}:ready", dict.fromkeys(ids, 0))
            await client.hset(f"{place}:body", mapping=dict.fromkeys(ids, PAYLOAD))
        began, done, held = perf_counter(), 0, list[Any]()
        while done < sizes.drained:
            async with client.pipeline(transaction=True) as together:
                if held:
                    together.hset(f"{place}:result", mapping=dict.fromkeys(held, "1"))
                    together.zrem(f"{place}:running", *held)
                together.zpopmin(f"{place}:ready", BATCH)
                claimed = [task_id for task_id, _ in (await together.execute())[-1]]
            done += len(held)
            held = claimed
            if held:
                async with client.pipeline(transaction=True) as together:
                    together.zadd(f"{place}:running", dict.fromkeys(held, 1))
                    together.hmget(f"{place}:body", held)
                    await together.execute()
        return perf_counter() - began


def raw_redis(sizes: Sizes) -> Mapping[str, float]:
    return {RATE: sizes.drained / asyncio.run(_raw_redis(sizes))}
