"""Maps and streams of `AsyncPool`, on asyncio's loop and uvloop."""

from __future__ import annotations

import asyncio
import functools
import gc
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

import pytest

from bullpen import (
    AsyncPool,
    DeadlineExceeded,
    InvalidOption,
    InvalidOptionType,
    NotCallable,
    Pool,
    PoolClosed,
    PoolSaturated,
    SessionWorkerUnavailable,
    WorkerBroken,
    WorkerLost,
)
from tests.scenarios.async_support import (
    LOOPS,
    Door,
    Oops,
    Run,
    at_rest,
    double,
    fail,
    runner,
    square,
    steps,
    until,
)


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    return runner(request.param)


# Maps.


def test_a_map_is_lazy_and_bounded_and_in_order(run: Run) -> None:
    async def main() -> None:
        taken, started = 0, list[int]()

        def endless() -> Iterator[int]:
            nonlocal taken
            while True:
                yield taken
                taken += 1

        async def note(x: int, y: int) -> int:
            started.append(x)
            await asyncio.sleep(0)
            return x - y

        async with AsyncPool(3) as pool:
            results = pool.map(note, endless(), endless(), buffersize=8)
            await steps(3)
            assert started == [], "nobody reads"
            read = []
            async for result in results:
                read.append(result)
                assert taken <= 2 * (len(read) + 8)
                if len(read) == 50:
                    break
            await results.aclose()
            before = len(started)
            await steps(5)
            assert len(started) == before
            with pytest.raises(StopAsyncIteration):
                await anext(results)
            for fn in (double, lambda x: 2 * x):
                assert [x async for x in pool.map(fn, range(3000))] == list(range(0, 6000, 2))
            assert [x async for x in pool.map(max, [1, 5], [4, 2, 9])] == [4, 5]
            await at_rest(pool)

    run(main())


def test_the_error_of_a_call_comes_after_the_results_before_it_and_ends_the_map(run: Run) -> None:
    async def picky(x: int) -> int:
        if x == 3:
            raise Oops
        return x

    def broken() -> Iterator[int]:
        yield from range(3)
        raise Oops("of the iterable")

    async def main() -> None:
        async with AsyncPool(2) as pool:
            for results in (pool.map(picky, range(100)), pool.map(double, broken())):
                read = list[int]()
                with pytest.raises(Oops):
                    await read_into(read, results)
                assert len(read) == 3
                assert [x async for x in results] == []
            await at_rest(pool)

    run(main())


def test_a_map_waits_for_room(run: Run) -> None:
    async def main() -> None:
        async with AsyncPool(1, threads=1, max_queue=0) as pool:
            for fn in (double, square):
                door = Door()
                pool.submit(door)
                for _ in range(2):
                    assert len([x async for x in pool.map(square, range(20))]) == 20
                door.open()
                assert len([x async for x in pool.map(fn, range(20))]) == 20
            await at_rest(pool)

    run(main())


def test_a_map_has_a_time_for_all_of_it(run: Run) -> None:
    async def main() -> None:
        door = Door()
        async with AsyncPool(1) as pool:
            with pytest.raises(TimeoutError):
                await read_all(pool.map(door, range(3), timeout=0.02))
            with pytest.raises(DeadlineExceeded):
                await read_all(pool.using(timeout=0.02).map(door, range(3)))
            await at_rest(pool)
            with pytest.raises(InvalidOption):
                pool.map(door, [1], buffersize=0)

    run(main())


def test_a_dropped_map_cancels_its_remaining_items(run: Run) -> None:
    async def main() -> None:
        door = Door()
        async with AsyncPool(1) as pool:
            results = pool.map(door, range(100))
            reading = asyncio.create_task(anext(results))
            await door.wait_entered(1)
            reading.cancel()
            await asyncio.wait([reading])
            await at_rest(pool)
            read = [x async for x in pool.map(double, range(5))]
            results = pool.map(double, range(100), buffersize=20)
            read.append(await anext(results))
            del results
            gc.collect()
            await at_rest(pool)
            assert read == [0, 2, 4, 6, 8, 0]

    run(main())


def test_a_closing_pool_cuts_a_map_short_and_says_so(run: Run) -> None:
    async def main() -> None:
        pool = AsyncPool(2)
        results = pool.map(double, range(100), buffersize=4)
        read = [await anext(results)]
        await pool.close()
        with pytest.raises(PoolClosed):
            await read_into(read, results)
        assert read == [0, 2, 4, 6]
        with pytest.raises(PoolClosed):
            pool.map(double, range(3))

    run(main())


class Feed:
    """An async iterable whose items come when they are told to; notes how far it was read."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Any] = asyncio.Queue()
        self.read = 0
        self.cancelled = False

    def put(self, *items: Any) -> None:
        for item in items:
            self.queue.put_nowait(item)

    async def __aiter__(self) -> AsyncIterator[Any]:
        try:
            while True:
                item = await self.queue.get()
                if item is None:
                    return
                if isinstance(item, Exception):
                    raise item
                self.read += 1
                yield item
        except asyncio.CancelledError:
            self.cancelled = True
            raise


@pytest.mark.parametrize("fn", [double, lambda x: 2 * x])
def test_a_map_takes_async_iterables_too(run: Run, fn: Any) -> None:
    async def main() -> None:
        async with AsyncPool(2, threads=2) as pool:
            assert [x async for x in pool.map(fn, count(300))] == [2 * x for x in range(300)]
            assert [x async for x in pool.map(fn, count(0))] == []
            pairs = pool.map(lambda x, y: (x, y), count(5), "abc")  # as zip, it ends with the shortest
            assert [pair async for pair in pairs] == [(0, "a"), (1, "b"), (2, "c")]
            assert [x async for x in pairs] == []
            await at_rest(pool)
        assert len(asyncio.all_tasks()) == 1

    run(main())


def test_results_are_read_while_the_next_item_is_not_there_yet(run: Run) -> None:
    async def main() -> None:
        feed = Feed()
        async with AsyncPool(2) as pool:
            results = pool.map(double, feed)
            await steps(5)
            assert feed.read == 0  # nothing happens before the first result is asked for
            feed.put(1, 2)
            assert (await anext(results), await anext(results)) == (2, 4)
            waiting = asyncio.ensure_future(anext(results))
            await steps(5)
            assert not waiting.done()
            feed.put(3, Oops("torn"))
            assert await waiting == 6
            with pytest.raises(Oops, match="torn"):
                await anext(results)
            with pytest.raises(StopAsyncIteration):
                await anext(results)

    run(main())


def test_a_source_is_read_no_further_than_the_window(run: Run) -> None:
    async def main() -> None:
        feed = Feed()
        feed.put(*range(1, 100), None)
        async with AsyncPool(50) as pool:
            results = pool.map(double, feed, buffersize=4)
            assert await anext(results) == 2
            await steps(20)
            assert feed.read == 5
            assert [x async for x in results] == [2 * x for x in range(2, 100)]

    run(main())


def test_a_map_over_a_source_waits_for_room(run: Run) -> None:
    async def main() -> None:
        async with AsyncPool(1, threads=1, max_queue=0) as pool:
            assert [x async for x in pool.map(double, count(20))] == [2 * x for x in range(20)]
            assert [x async for x in pool.map(square, count(20))] == [x * x for x in range(20)]
            await at_rest(pool)

    run(main())


@pytest.mark.parametrize("end", ["close", "drop", "cancel", "timeout", "error"])
def test_a_source_is_left_when_its_map_ends(run: Run, end: str) -> None:
    async def main() -> None:
        feed, door = Feed(), Door()
        feed.put(1, 2, 3)
        async with AsyncPool(2) as pool:
            results = pool.map(fail if end == "error" else door, feed, timeout=0.5 if end == "timeout" else None)
            reader = asyncio.ensure_future(anext(results))
            if end == "error":
                with pytest.raises(Oops):
                    await reader
            else:
                await door.wait_entered(2)
                if end == "timeout":
                    with pytest.raises(TimeoutError):
                        await reader
                else:
                    reader.cancel()
                    await asyncio.wait([reader])
            if end == "close":
                await results.aclose()
            del results, reader
            gc.collect()
            await until(lambda: feed.cancelled)
            await at_rest(pool)
        assert len(asyncio.all_tasks()) == 1

    run(main())


def test_a_dropped_map_leaves_its_source(run: Run) -> None:
    async def main() -> None:
        feed, door = Feed(), Door()
        feed.put(1, 2, 3)
        async with AsyncPool(2) as pool:
            results = pool.map(door, feed)
            door.open()
            assert await anext(results) == 1
            del results
            gc.collect()
            await until(lambda: feed.cancelled)
            await at_rest(pool)

    run(main())


def test_a_closing_pool_cuts_a_map_over_a_source_short_and_says_so(run: Run) -> None:
    async def main() -> None:
        feed = Feed()
        feed.put(1, 2)
        pool = AsyncPool(2)
        results = pool.map(double, feed)
        read = [await anext(results)]
        await pool.close()
        feed.put(3)
        with pytest.raises(PoolClosed):
            await read_into(read, results)
        assert read == [2, 4]

    run(main())


def test_a_map_of_a_session_does_not_wait_for_room(run: Run) -> None:
    async def main() -> None:
        door = Door()
        async with AsyncPool(1, max_queue=1, when_full="block") as pool:
            taken = [pool.submit(door), pool.submit(door)]
            await door.wait_entered(1)
            view = pool.using(session="ada", affinity="strict_queue")
            for source in ([1, 2], count(2)):
                with pytest.raises(PoolSaturated):
                    await anext(view.map(double, source))
            door.open()
            await asyncio.gather(*taken)
            assert [x async for x in view.map(double, [1, 2], buffersize=1)] == [2, 4]

    run(main())


# Streams.


async def count(n: int) -> AsyncIterator[int]:
    for x in range(n):
        await asyncio.sleep(0)
        yield x


def count_on_a_thread(n: int) -> Iterator[int]:
    yield from range(n)


@pytest.mark.parametrize("fn", [count, count_on_a_thread, functools.partial(count), range])
def test_items_arrive_in_order(run: Run, fn: Any) -> None:
    async def main() -> None:
        async with AsyncPool(2) as pool:
            assert [x async for x in pool.stream(fn, 500)] == list(range(500))
            assert [x async for x in pool.stream(fn, 0)] == []
            small = pool.using(buffersize=1)
            assert [x async for x in small.stream(fn, 50)] == list(range(50))
            await at_rest(pool)
            assert pool.stats().completed == 3

    run(main())


class Tap:
    """Generators that note what becomes of them."""

    def __init__(self) -> None:
        self.made = 0
        self.closed = threading.Event()

    async def on_the_loop(self) -> AsyncIterator[int]:
        try:
            while True:
                self.made += 1
                yield self.made
        finally:
            self.closed.set()

    def on_a_thread(self) -> Iterator[int]:
        try:
            while True:
                self.made += 1
                yield self.made
        finally:
            self.closed.set()


@pytest.fixture(params=["on_the_loop", "on_a_thread"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_generator_waits_for_its_reader(run: Run, kind: str) -> None:
    async def main() -> None:
        tap = Tap()
        async with AsyncPool(1, threads=1) as pool, aclosing(pool.using(buffersize=4).stream(getattr(tap, kind))) as s:
            assert tap.made == 0, "nobody reads"
            assert await anext(s) == 1
            await asyncio.sleep(0.02)
            assert tap.made <= 7
            assert [await anext(s) for _ in range(20)] == list(range(2, 22))
            assert tap.made <= 27

    run(main())


def test_to_close_a_stream_early_is_to_end_its_generator(run: Run, kind: str) -> None:
    async def main() -> None:
        for ending in ("with", "aclose", "drop", "cancel", "unstarted"):
            tap = Tap()
            async with AsyncPool(1, threads=1) as pool:
                stream = pool.stream(getattr(tap, kind))
                if ending != "unstarted":
                    assert await anext(stream) == 1
                if ending == "with":
                    async with stream:
                        async for x in stream:
                            if x == 5:
                                break
                elif ending == "drop":
                    del stream
                    gc.collect()
                elif ending == "cancel":
                    while not stream._buffer.closed:
                        reading = asyncio.ensure_future(read_all(stream))
                        await steps(3)
                        reading.cancel()
                        await asyncio.wait([reading])
                else:
                    await stream.aclose()
                if ending != "drop":
                    with pytest.raises(StopAsyncIteration):
                        await anext(stream)
                await until(lambda: ending == "unstarted" or tap.closed.is_set())  # noqa: B023
                assert await pool.do(double if kind == "on_the_loop" else square, 2) == 4, "its place is free"
                await at_rest(pool)

    run(main())


async def read_all(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


async def read_slowly(items: AsyncIterator[Any]) -> None:
    async for _ in items:
        await asyncio.sleep(0.001)


async def read_into(read: list[Any], items: AsyncIterator[Any]) -> None:
    async for item in items:
        read.append(item)


def test_an_error_comes_after_the_items_before_it(run: Run) -> None:
    async def break_down() -> AsyncIterator[int]:
        yield 1
        yield 2
        raise Oops

    def break_down_on_a_thread() -> Iterator[int]:
        yield 1
        yield 2
        raise Oops

    async def main() -> None:
        async with AsyncPool(1) as pool:
            for fn in (break_down, break_down_on_a_thread):
                stream, read = pool.stream(fn), list[int]()
                with pytest.raises(Oops):
                    await read_into(read, stream)
                assert read == [1, 2]
                assert await read_all(stream) == []
            for wrong in (double, 5):
                with pytest.raises((InvalidOptionType, NotCallable)):
                    pool.stream(wrong)  # type: ignore[call-overload]
            with pytest.raises(TypeError, match="not iterable"):
                await read_all(pool.stream(abs, 5))  # type: ignore[call-overload]
            await at_rest(pool)
            assert pool.stats().failed == 3

    run(main())


def test_a_stream_has_limits_in_time(run: Run, kind: str) -> None:
    async def main() -> None:
        tap = Tap()
        async with AsyncPool(1, threads=1) as pool:
            await pool.do(square, 1)  # from now on there is a thread, and what is submitted runs at once
            stream = pool.using(timeout=0.1).stream(getattr(tap, kind))
            with pytest.raises(DeadlineExceeded):
                await read_slowly(stream)
            await at_rest(pool)
            assert tap.closed.is_set() == bool(tap.made)  # on a very busy machine its time may be up before it begins
            assert pool.stats().timed_out == 1

    run(main())


def test_a_stream_of_a_full_pool_is_rejected_or_waits(run: Run) -> None:
    async def main() -> None:
        for when_full in ("reject", "block"):
            door = Door()
            async with AsyncPool(1, max_queue=0, when_full=when_full) as pool:
                pool.submit(door)
                reading = asyncio.create_task(read_all(pool.stream(count, 3)))
                await steps(3)
                door.open()
                if when_full == "reject":
                    with pytest.raises(PoolSaturated):
                        await reading
                else:
                    assert await reading == [0, 1, 2]

    run(main())


def test_entering_a_stream_submits_its_call(run: Run, kind: str) -> None:
    async def main() -> None:
        tap = Tap()
        async with AsyncPool(1, threads=1) as pool:
            async with pool.stream(getattr(tap, kind)):
                await until(lambda: tap.made > 0)  # although no item was asked for
            await at_rest(pool)

    run(main())


def test_entering_a_stream_of_a_full_pool_raises_or_waits(run: Run) -> None:
    async def main() -> None:
        for when_full in ("reject", "block"):
            door = Door()
            async with AsyncPool(1, max_queue=0, when_full=when_full) as pool:
                pool.submit(door)
                stream = pool.stream(count, 3)
                entering = asyncio.create_task(stream.__aenter__())
                await steps(3)
                assert entering.done() == (when_full == "reject")
                door.open()
                if when_full == "reject":
                    with pytest.raises(PoolSaturated):
                        await entering
                else:
                    assert await read_all(await entering) == [0, 1, 2]

    run(main())


def raise_broken() -> None:
    raise WorkerBroken("broken")


def test_entering_a_stream_of_a_session_without_its_worker_raises(run: Run) -> None:
    async def main() -> None:
        async with AsyncPool(threads=1) as pool:
            view = pool.using(session="ann", affinity="strict_queue")
            assert await view.do(square, 2) == 4
            with pytest.raises(WorkerLost):
                await view.do(raise_broken)
            with pytest.raises(SessionWorkerUnavailable):
                async with view.stream(count_on_a_thread, 3):
                    pytest.fail("the session's worker is gone")

    run(main())


# Workers that die.


class Breaking:
    """Generators that break their worker after so many items, one number for each run, and then run well."""

    def __init__(self, *breaks: int) -> None:
        self.runs = 0
        self._breaks = breaks

    def on_a_thread(self) -> Iterator[int]:
        self.runs += 1
        breaks = self._breaks[self.runs - 1 :]
        for number in range(5):
            if breaks and number == breaks[0]:
                raise WorkerBroken
            yield number

    async def on_the_loop(self) -> AsyncIterator[int]:
        for number in self.on_a_thread():
            await asyncio.sleep(0)
            yield number


@pytest.mark.parametrize("kind", ["on_a_thread", "on_the_loop"])
@pytest.mark.parametrize("buffersize", [1, 2, 100])
def test_an_idempotent_stream_never_repeats_an_item(run: Run, kind: str, buffersize: int) -> None:
    async def main() -> None:
        async with AsyncPool(1, threads=1) as pool:
            again = pool.using(idempotent=True, crash_retries=9, buffersize=buffersize)
            for breaks in ((3,), (0, 3)):
                source, read = Breaking(*breaks), list[int]()
                with pytest.raises(WorkerLost):
                    await read_into(read, again.stream(getattr(source, kind)))
                assert read == [0, 1, 2]
                assert source.runs == len(breaks)
            source = Breaking(0, 0)
            assert [item async for item in again.stream(getattr(source, kind))] == [0, 1, 2, 3, 4]
            assert source.runs == 3
            await at_rest(pool)

    run(main())


def test_a_stream_on_a_loop_on_a_worker_says_of_itself_that_it_has_begun(run: Run) -> None:
    """Not of the request on whose thread the loop runs."""
    runs = 0

    async def main() -> list[int]:
        async with AsyncPool(1) as inside:
            return [item async for item in inside.using(idempotent=True).stream(Breaking().on_the_loop)]

    def outer() -> int:
        nonlocal runs
        runs += 1
        assert run(main()) == [0, 1, 2, 3, 4]
        if runs == 1:
            raise WorkerBroken
        return runs

    with Pool(1) as pool:
        assert pool.using(idempotent=True).do(outer) == 2
