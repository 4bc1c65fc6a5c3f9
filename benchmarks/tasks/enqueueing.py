"""Tasks per second into a file: one by one from one caller and from many, and many at once."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from time import sleep
from typing import Any

from benchmarks.model import Measure

from .ours import Ours, in_file, in_file_normal
from .peers import Huey, LiteQueue, PersistQueue, Taskito
from .plain import Plain, new_row
from .settings import CALLERS, Sizes, new_folder
from .turns import Commits, Turns, commits

WARM_UP = 20
TURNS = 20
BULKS = 3
NEW = 0.2  # seconds; within 0.1 s of its creation Bullpen checks a file more often, because its folder has just changed

Put = Callable[[int], object]
AsyncPut = Callable[[int], Awaitable[object]]
Count = Callable[[], int]
Opened = Callable[[Path], AbstractContextManager[tuple[Put, Count]]]
"""A function that enqueues one number, and a function that counts the stored ones."""


class TasksMissing(Exception):
    """An acknowledged task is not stored; the time would mean nothing."""

    def __init__(self, expected: int, found: int) -> None:
        super().__init__(f"expected {expected} tasks to be there, got {found}")


def one_caller(opened: Opened, synchronous: str = "FULL") -> Measure:
    """`synchronous` is that of the reference in plain SQL."""

    def measure(sizes: Sizes) -> Mapping[str, float]:
        turns, count = Turns(), _per_turn(sizes)
        with new_folder() as folder, opened(folder) as (put, counted), commits(turns, synchronous) as reference:
            for number in range(WARM_UP):
                put(number)
            gc.collect()
            sleep(NEW)
            for _ in range(TURNS):
                with turns.own(count):
                    for number in range(count):
                        put(number)
                reference.take_turn(count)
            _check(TURNS * count + WARM_UP, counted())
        return turns.figures()

    return measure


def _per_turn(sizes: Sizes) -> int:
    return max(sizes.singles // TURNS, 1)


def many_threads(opened: Opened) -> Measure:
    """Each caller is a thread."""

    def measure(sizes: Sizes) -> Mapping[str, float]:
        turns, count = Turns(), _per_turn(sizes)
        with new_folder() as folder, opened(folder) as (put, counted), commits(turns) as reference:
            begin, end = threading.Barrier(CALLERS + 1), threading.Barrier(CALLERS + 1)

            def call() -> None:
                put(0)
                for _ in range(TURNS):
                    begin.wait()
                    for number in range(count):
                        put(number)
                    end.wait()

            threads = [threading.Thread(target=call) for _ in range(CALLERS)]
            for thread in threads:
                thread.start()
            for _ in range(TURNS):
                begin.wait()
                with turns.own(CALLERS * count):
                    end.wait()
                reference.take_turn(count)
            for thread in threads:
                thread.join()
            _check(CALLERS * (TURNS * count + 1), counted())
        return turns.figures()

    return measure


def many_coroutines(
    opened: Callable[[Path], AbstractContextManager[tuple[AsyncPut, Count]]],
    loop: Callable[[], Any] | None = None,
    callers: int = CALLERS,
    synchronous: str = "FULL",
) -> Measure:
    """Each caller is a coroutine that waits for one task before it enqueues the next."""

    def measure(sizes: Sizes) -> Mapping[str, float]:
        turns, count = Turns(), _per_turn(sizes)

        async def call(put: AsyncPut) -> None:
            for number in range(count):
                await put(number)

        async def timed(put: AsyncPut, reference: Commits) -> None:
            await call(put)
            gc.collect()
            await asyncio.sleep(NEW)
            for _ in range(TURNS):
                with turns.own(callers * count):
                    await asyncio.gather(*[call(put) for _ in range(callers)])
                reference.take_turn(count)

        with new_folder() as folder, opened(folder) as (put, counted), commits(turns, synchronous) as reference:
            with asyncio.Runner(loop_factory=loop) as runner:
                runner.run(timed(put, reference))
            _check((TURNS * callers + 1) * count, counted())
        return turns.figures()

    return measure


Bulk = tuple[Callable[[int], Any], Callable[[Any], Any], Count]
"""Functions that prepare tasks (untimed), enqueue them, and count the stored ones."""


def at_once(opened: Callable[[Path], AbstractContextManager[Bulk]]) -> Measure:
    def measure(sizes: Sizes) -> Mapping[str, float]:
        turns = Turns()
        with new_folder() as folder, opened(folder) as (prepare, put_many, counted), plain_bulk(folder) as reference:
            put_many(prepare(WARM_UP))
            for _ in range(BULKS):
                tasks, rows = prepare(sizes.bulk), reference[0](sizes.bulk)
                gc.collect()
                with turns.own(sizes.bulk):
                    alive = put_many(tasks)
                with turns.reference(sizes.bulk):
                    reference[1](rows)
                del alive
            _check(BULKS * sizes.bulk + WARM_UP, counted())
        return turns.figures()

    return measure


def _check(expected: int, found: int) -> None:
    if found != expected:
        raise TasksMissing(expected, found)


# The contestants.


@contextmanager
def plain(folder: Path, synchronous: str = "FULL") -> Iterator[tuple[Put, Count]]:
    with Plain(folder, synchronous=synchronous) as queue:
        yield lambda _: queue.add(new_row()), lambda: queue.count("pending")


def plain_normal(folder: Path) -> AbstractContextManager[tuple[Put, Count]]:
    return plain(folder, "NORMAL")


@contextmanager
def ours(folder: Path, url: Callable[[Path], str] = in_file) -> Iterator[tuple[Put, Count]]:
    with Ours(url(folder)) as ours:
        yield ours.noop.enqueue, lambda: sum(ours.queue.counts()["default"].values())


def ours_normal(folder: Path) -> AbstractContextManager[tuple[Put, Count]]:
    return ours(folder, in_file_normal)


@contextmanager
def ours_async(folder: Path, url: Callable[[Path], str] = in_file) -> Iterator[tuple[AsyncPut, Count]]:
    with Ours(url(folder)) as ours:
        yield ours.noop.aenqueue, lambda: sum(ours.queue.counts()["default"].values())


def ours_async_normal(folder: Path) -> AbstractContextManager[tuple[AsyncPut, Count]]:
    return ours_async(folder, in_file_normal)


def huey(fsync: bool | None) -> Opened:
    @contextmanager
    def opened(folder: Path) -> Iterator[tuple[Put, Count]]:
        queue = Huey(folder, fsync=fsync)
        yield queue.noop, queue.huey.storage.queue_size

    return opened


def litequeue(full: bool) -> Opened:
    @contextmanager
    def opened(folder: Path) -> Iterator[tuple[Put, Count]]:
        queue = LiteQueue(folder, full=full).queue
        yield lambda number: queue.put(str(number)), queue.qsize

    return opened


@contextmanager
def persist_queue(folder: Path) -> Iterator[tuple[Put, Count]]:
    queue = PersistQueue(folder).queue
    yield queue.put, queue.qsize


@contextmanager
def taskito(folder: Path) -> Iterator[tuple[Put, Count]]:
    queue = Taskito(folder)
    yield queue.noop.delay, lambda: queue.queue.stats()["pending"]


@contextmanager
def plain_bulk(_: Path) -> Iterator[Bulk]:
    with new_folder() as folder, Plain(folder) as queue:
        yield lambda count: [new_row() for _ in range(count)], queue.add_many, lambda: queue.count("pending")


@contextmanager
def ours_bulk(folder: Path) -> Iterator[Bulk]:
    with Ours(in_file(folder)) as ours:
        counted = lambda: sum(ours.queue.counts()["default"].values())  # noqa: E731
        yield lambda count: [(number,) for number in range(count)], ours.noop.enqueue_many, counted


@contextmanager
def taskito_bulk(folder: Path) -> Iterator[Bulk]:
    queue = Taskito(folder)
    yield lambda count: [(number,) for number in range(count)], queue.noop.map, lambda: queue.queue.stats()["pending"]
