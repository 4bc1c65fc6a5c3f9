"""Tasks per second out of a store: a backlog waits, a worker starts, and the clock stops when all of it is settled.

Each contestant runs in one process. The task returns its argument, which is stored where the contestant keeps results.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.metrics import RATE
from benchmarks.model import Measure
from bullpen import AsyncWorkerPool
from bullpen.tasks.model.task import SUCCESS, Settlement, Task, succeed
from bullpen.tasks.storage.sqlite.store import SqliteStorage

from .claiming import PAGE, new_task
from .ours import Ours, in_file
from .peers import Huey, LiteQueue, PersistQueue, Taskito
from .plain import Plain, new_row
from .settings import BATCH, CONCURRENCY, Sizes, new_folder


class TasksNotDone(Exception):
    """Not every task has run once, or not every result was kept; the time would mean nothing."""

    def __init__(self, expected: int, found: object) -> None:
        super().__init__(f"expected {expected} tasks to be done, got {found}")


class Tally:
    """Counts calls on any thread, and signals when all have run."""

    def __init__(self, expected: int, enough: Callable[[], object]) -> None:
        self.calls = 0
        self._expected = expected
        self._enough = enough

    def __call__(self, _: int) -> None:
        self.calls += 1
        if self.calls == self._expected:
            self._enough()


def ours(*, is_async: bool = True, url: Callable[[Path], str] = in_file, concurrency: int = CONCURRENCY) -> Measure:
    def measure(sizes: Sizes) -> Mapping[str, float]:
        return {RATE: sizes.drained / asyncio.run(_drain(url, is_async, sizes.drained, concurrency))}

    return measure


def ours_in_memory(sizes: Sizes) -> Mapping[str, float]:
    return {RATE: sizes.in_memory / asyncio.run(_drain(lambda _: "memory://", True, sizes.in_memory))}


async def _drain(url: Callable[[Path], str], is_async: bool, count: int, concurrency: int = CONCURRENCY) -> float:
    done, loop = asyncio.Event(), asyncio.get_running_loop()
    tally = Tally(count, done.set if is_async else lambda: loop.call_soon_threadsafe(done.set))
    with new_folder() as folder:
        ours = Ours(url(folder), is_async=is_async, seen=tally)
        async with ours.queue as queue:
            await ours.noop.aenqueue_many([(number,) for number in range(count)])
            worker = AsyncWorkerPool(queue, concurrency=concurrency)
            gc.collect()
            started = perf_counter()
            await worker.start()
            await done.wait()
            await worker.stop()
            elapsed = perf_counter() - started
            counts = await queue.acounts()
    if tally.calls != count or counts["default"].get(SUCCESS) != count:
        raise TasksNotDone(count, f"{tally.calls} calls, {counts['default']}")
    return elapsed


def floor(sizes: Sizes) -> Mapping[str, float]:
    """Plain SQL: settle a batch and claim the next in one transaction, and call a function in between."""
    with new_folder() as folder, Plain(folder) as plain:
        plain.add_many([new_row() for _ in range(sizes.drained)])
        gc.collect()
        started = perf_counter()
        while plain.exchange(BATCH):
            pass
        elapsed = perf_counter() - started
        if plain.count("success") != sizes.drained:
            raise TasksNotDone(sizes.drained, plain.count("success"))
    return {RATE: sizes.drained / elapsed}


def store_alone(batch: int) -> Measure:
    """The floor of a worker: Bullpen's store without a worker. One loop settles so many tasks with results, claims the
    next, and has one thread call the functions. Without waiting for the disk.
    """

    def measure(sizes: Sizes) -> Mapping[str, float]:
        return {RATE: sizes.drained / asyncio.run(_settle_and_claim(sizes.drained, batch))}

    return measure


async def _settle_and_claim(count: int, batch: int) -> float:
    with new_folder() as folder:
        storage = SqliteStorage(folder / "jobs.db", synchronous="normal")
        for first in range(0, count, PAGE):
            await storage.add([new_task(number) for number in range(first, min(first + PAGE, count))])
        gc.collect()
        calls, results = 0, list[Settlement]()
        started = perf_counter()
        while calls < count or results:
            exchange = await storage.exchange(
                results, worker="w", queues=["default"], limit=batch, lease=15.0, claim_id=str(calls)
            )
            calls += len(exchange.claimed)
            results = await asyncio.to_thread(_run_all, exchange.claimed) if exchange.claimed else []
        elapsed = perf_counter() - started
        await storage.close()
    return elapsed


def _run_all(tasks: Sequence[Task]) -> list[Settlement]:
    return [succeed(task, str(_identity(number)).encode()) for number, task in enumerate(tasks)]


def _identity(number: int) -> int:
    return number


def huey(fsync: bool | None, *, all_timed: bool = False, **options: Any) -> Measure:
    """`all_timed`: all tasks, because the first ones of a fast drain take little longer than the start."""

    def measure(sizes: Sizes) -> Mapping[str, float]:
        done = threading.Event()
        timed = sizes.drained if all_timed else sizes.timed
        tally = Tally(timed, done.set)
        with new_folder() as folder:
            filling = Huey(folder, fsync=False)  # untimed
            for number in range(sizes.drained):
                filling.noop(number)
            queue = Huey(folder, fsync=fsync, seen=tally)
            elapsed = _until(done, queue.consuming(**options))
            kept = queue.huey.storage.result_store_size()
        if kept < timed:
            raise TasksNotDone(timed, f"{kept} results")
        return {RATE: timed / elapsed}

    return measure


def taskito(**options: Any) -> Measure:
    def measure(sizes: Sizes) -> Mapping[str, float]:
        done = threading.Event()
        tally = Tally(sizes.timed, done.set)
        with new_folder() as folder:
            queue = Taskito(folder, seen=tally, **options)
            queue.noop.map([(number,) for number in range(sizes.drained)])
            return {RATE: sizes.timed / _until(done, queue.consuming())}

    return measure


def _until(done: threading.Event, consuming: AbstractContextManager[None]) -> float:
    gc.collect()
    started = perf_counter()
    with consuming:
        if not done.wait(240):
            raise TimeoutError("not done after 240 s")
        return perf_counter() - started


def litequeue(sizes: Sizes) -> Mapping[str, float]:
    """It has no worker: this is the loop that its users write. It keeps no results."""
    with new_folder() as folder:
        queue = LiteQueue(folder).queue
        with queue.transaction():
            for number in range(sizes.drained):
                queue.put(str(number))
        gc.collect()
        started = perf_counter()
        for _ in range(sizes.timed):
            message = queue.pop()
            int(message.data)
            queue.done(message.message_id)
        elapsed = perf_counter() - started
    return {RATE: sizes.timed / elapsed}


def persist_queue(sizes: Sizes) -> Mapping[str, float]:
    """It has no worker either, and no results."""
    with new_folder() as folder:
        queue = PersistQueue(folder).queue
        for number in range(sizes.timed):
            queue.put(number)
        gc.collect()
        started = perf_counter()
        for _ in range(sizes.timed):
            queue.ack(queue.get())
        elapsed = perf_counter() - started
        if queue.acked_count() != sizes.timed:
            raise TasksNotDone(sizes.timed, queue.acked_count())
    return {RATE: sizes.timed / elapsed}


# In memory, without any queue.


async def _noop(x: int) -> int:
    return x


def tasks_one_by_one(sizes: Sizes) -> Mapping[str, float]:
    """A bare loop of one asyncio task per function."""

    async def timed() -> float:
        loop = asyncio.get_running_loop()
        results = []
        gc.collect()
        started = perf_counter()
        for number in range(sizes.in_memory):
            results.append(await loop.create_task(_noop(number)))
        elapsed = perf_counter() - started
        if len(results) != sizes.in_memory:
            raise TasksNotDone(sizes.in_memory, len(results))
        return elapsed

    return {RATE: sizes.in_memory / asyncio.run(timed())}


def tasks_gathered(sizes: Sizes) -> Mapping[str, float]:
    """The same, a hundred at a time."""

    async def timed() -> float:
        results: list[int] = []
        gc.collect()
        started = perf_counter()
        for first in range(0, sizes.in_memory, CONCURRENCY):
            results += await asyncio.gather(*[_noop(number) for number in range(first, first + CONCURRENCY)])
        return perf_counter() - started

    return {RATE: sizes.in_memory / asyncio.run(timed())}
