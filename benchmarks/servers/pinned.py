"""A transaction is left open, so PostgreSQL keeps every version of every task. Compares the rates of the last and the
first fifth of a backlog, with several workers and several priorities.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from time import perf_counter

from benchmarks.model import Measure
from bullpen import AsyncWorkerPool, TaskQueue

from .settings import CONCURRENCY, Sizes, postgres_place

SHARE = "share"
WORKERS = 3
PRIORITIES = (9, 4, 0)


def drain(*, pinned: bool) -> Measure:
    async def timed(sizes: Sizes) -> float:
        import asyncpg

        count = sizes.pinned // len(PRIORITIES) * len(PRIORITIES)
        fifth = count // 5
        ran: list[float] = []
        enough = asyncio.Event()

        async def note(number: int) -> int:
            ran.append(perf_counter())
            if len(ran) == count:
                enough.set()
            return number

        async with postgres_place() as address, AsyncExitStack() as stack:
            forgotten = await asyncpg.connect(address)
            stack.push_async_callback(forgotten.close)
            queues = [TaskQueue(address) for _ in range(WORKERS)]
            tasks = [queue.task(name="note")(note) for queue in queues]
            for queue in queues:
                await stack.enter_async_context(queue)
            for priority in PRIORITIES:
                calls = [(number,) for number in range(count // len(PRIORITIES))]
                await tasks[0].using(priority=priority).aenqueue_many(calls)
            if pinned:
                await forgotten.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM bullpen.task")
            began = perf_counter()
            for queue in queues:
                await stack.enter_async_context(AsyncWorkerPool(queue, concurrency=CONCURRENCY))
            await enough.wait()
        assert len(ran) == count, "a task ran twice"
        return (ran[fifth - 1] - began) / (ran[-1] - ran[-fifth - 1])

    def measure(sizes: Sizes) -> Mapping[str, float]:
        return {SHARE: asyncio.run(timed(sizes))}

    return measure
