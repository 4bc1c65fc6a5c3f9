"""From enqueue to the result in hand, with a worker that has nothing else to do: one task at a time.

Before each there is a pause, so that the worker is idle. After each, and another pause, comes the reference: one
commit in plain SQL.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from time import perf_counter_ns, sleep
from typing import Any

from benchmarks.measure import PAIRED
from benchmarks.metrics import P50, P99, percentile
from benchmarks.model import Measure
from bullpen import AsyncWorkerPool, WorkerPool

from .ours import Ours, in_file
from .peers import Huey
from .plain import Plain, new_row
from .remote import running
from .settings import CONCURRENCY, Sizes, new_folder

WARM_UP = 10
TIMEOUT = 30.0


class WrongResult(Exception):
    """The result is not the value that the task returned."""


Call = Callable[[int], Any]  # enqueues a number, and returns its result


def of_calls(opened: Callable[[Path], AbstractContextManager[Call]]) -> Measure:
    def measure(sizes: Sizes) -> Mapping[str, float]:
        spans = Spans()
        with new_folder() as folder, opened(folder) as call, one_commit() as reference:
            for number in range(WARM_UP):
                call(number)
            gc.collect()
            for number in range(sizes.calls):
                sleep(sizes.pause)
                with spans.own():
                    result = call(number)
                _check(number, result)
                sleep(sizes.pause)
                with spans.reference():
                    reference()
        return spans.figures()

    return measure


class Spans:
    """Times of the contestant, and of one commit right after each: see `turns`."""

    def __init__(self) -> None:
        self._own: list[int] = []
        self._reference: list[int] = []

    @contextmanager
    def own(self) -> Iterator[None]:
        began = perf_counter_ns()
        yield
        self._own.append(perf_counter_ns() - began)

    @contextmanager
    def reference(self) -> Iterator[None]:
        began = perf_counter_ns()
        yield
        self._reference.append(perf_counter_ns() - began)

    def figures(self) -> dict[str, float]:
        figures: dict[str, float] = {}
        for key, part in ((P50, 50), (P99, 99)):
            own, reference = percentile(part, self._own), percentile(part, self._reference)
            figures |= {key: own / 1000, key + PAIRED: own / reference}
        return figures


@contextmanager
def one_commit() -> Iterator[Callable[[], None]]:
    with new_folder() as folder, Plain(folder) as plain:
        plain.add(new_row())  # warm-up
        yield lambda: plain.add(new_row())


def _check(number: int, result: object) -> None:
    if result != number:
        raise WrongResult(f"expected {number}, got {result!r}")


def ours_async(loop: Callable[[], Any] | None = None) -> Measure:
    """Producer and worker on one event loop."""

    def measure(sizes: Sizes) -> Mapping[str, float]:
        with new_folder() as folder, asyncio.Runner(loop_factory=loop) as runner:
            return runner.run(_on_one_loop(Ours(in_file(folder)), sizes)).figures()

    return measure


async def _on_one_loop(ours: Ours, sizes: Sizes) -> Spans:
    async with ours.queue as queue, AsyncWorkerPool(queue, concurrency=CONCURRENCY):
        return await _spans(ours, sizes)


def ours_async_remote(sizes: Sizes) -> Mapping[str, float]:
    """The worker is another process."""
    with new_folder() as folder, running("bullpen", folder):
        return asyncio.run(_from_here(Ours(in_file(folder)), sizes)).figures()


async def _from_here(ours: Ours, sizes: Sizes) -> Spans:
    async with ours.queue:
        return await _spans(ours, sizes)


async def _spans(ours: Ours, sizes: Sizes) -> Spans:
    for number in range(WARM_UP):
        await (await ours.noop.aenqueue(number)).aresult(TIMEOUT)
    gc.collect()
    spans = Spans()
    with one_commit() as reference:
        for number in range(sizes.calls):
            await asyncio.sleep(sizes.pause)
            with spans.own():
                result = await (await ours.noop.aenqueue(number)).aresult(TIMEOUT)
            _check(number, result)
            await asyncio.sleep(sizes.pause)
            with spans.reference():
                reference()
    return spans


# The contestants.


@contextmanager
def commit(folder: Path) -> Iterator[Call]:
    """One commit in plain SQL: no worker, no result."""
    with Plain(folder) as plain:

        def call(number: int) -> int:
            plain.add(new_row())
            return number

        yield call


@contextmanager
def ours(folder: Path) -> Iterator[Call]:
    with Ours(in_file(folder)) as ours, WorkerPool(ours.queue, concurrency=CONCURRENCY):
        yield lambda number: ours.noop.enqueue(number).result(TIMEOUT)


@contextmanager
def ours_remote(folder: Path) -> Iterator[Call]:
    with running("bullpen", folder), Ours(in_file(folder)) as ours:
        yield lambda number: ours.noop.enqueue(number).result(TIMEOUT)


def huey(fsync: bool | None, *, remote: bool, backoff: Mapping[str, float], **options: Any) -> Any:
    """`backoff` is how often a caller looks for its result, `options` are the consumer's."""

    @contextmanager
    def opened(folder: Path) -> Iterator[Call]:
        queue = Huey(folder, fsync=fsync)
        call = lambda number: queue.noop(number).get(blocking=True, timeout=TIMEOUT, **backoff)  # noqa: E731
        with running("huey", folder, fsync=fsync, **options) if remote else queue.consuming(**options):
            yield call

    return opened
