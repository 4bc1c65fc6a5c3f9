"""`AsyncPool` cancelled at every await point: whoever waits is cancelled where it waits for the first time, for the
second time, and so on until it ends by itself; at once, after one turn of the loop, after two, and so on for as long as
it waits there. Each time nothing may be left, the counts have to agree, and the pool has to go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator
from typing import Any

import pytest

from bullpen import AsyncPool, PoolClosed, PoolState
from tests.scenarios.async_support import LOOPS, Door, Run, assert_counts_agree, at_rest, runner, steps, until

Use = Callable[[AsyncPool], Coroutine[Any, Any, None]]

MOST_WAITS = 200
MOST_TURNS = 25  # of the loop within one wait: it may go round forever until a thread has done its part


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    return runner(request.param)


async def work(x: int) -> int:
    try:
        await steps(2)
    finally:
        await steps(1)  # a coroutine that cleans up takes its time
    return x


def work_on_a_thread(x: int) -> int:
    return x


async def items(n: int) -> AsyncGenerator[int, None]:
    try:
        for x in range(n):
            await asyncio.sleep(0)
            yield x
    finally:
        await asyncio.sleep(0)


def items_on_a_thread(n: int) -> Iterator[int]:
    yield from range(n)


async def use_do(pool: AsyncPool) -> None:
    assert await pool.do(work, 1) == 1
    assert await pool.do(work_on_a_thread, 2) == 2


async def use_do_in_gather(pool: AsyncPool) -> None:
    assert await asyncio.gather(*[pool.do(work, x) for x in range(5)]) == list(range(5))
    assert await asyncio.gather(*[pool.do(work_on_a_thread, x) for x in range(5)]) == list(range(5))


async def use_do_with_limits(pool: AsyncPool) -> None:
    assert await pool.using(timeout=5, queue_timeout=5, run_timeout=5).do(work, 1) == 1


async def use_do_within_work(pool: AsyncPool) -> None:
    async def outer(depth: int) -> int:
        return depth if not depth else await pool.do(outer, depth - 1)

    assert await asyncio.gather(*[pool.do(outer, 3) for _ in range(3)]) == [0] * 3


async def use_submit(pool: AsyncPool) -> None:
    futures = [pool.submit(work, x) for x in range(2)] + [pool.submit(work_on_a_thread, x) for x in range(2)]
    try:
        assert [await future for future in futures] == [0, 1, 0, 1]
    finally:
        for future in futures:
            future.cancel()


async def use_map(pool: AsyncPool) -> None:
    assert [x async for x in pool.map(work, range(6), buffersize=3)] == list(range(6))
    assert [x async for x in pool.map(work_on_a_thread, range(6), buffersize=3)] == list(range(6))


async def use_map_over_a_source(pool: AsyncPool) -> None:
    async with contextlib.aclosing(items(6)) as source:  # which is not in use any more then
        assert [x async for x in pool.map(work, source, buffersize=3)] == list(range(6))


async def use_map_with_a_time(pool: AsyncPool) -> None:
    assert [x async for x in pool.map(work, range(6), buffersize=3, timeout=10)] == list(range(6))


async def use_stream(pool: AsyncPool) -> None:
    small = pool.using(buffersize=2)
    assert [x async for x in small.stream(items, 6)] == list(range(6))
    assert [x async for x in small.stream(items_on_a_thread, 6)] == list(range(6))


async def use_stream_as_a_context(pool: AsyncPool) -> None:
    async with pool.stream(items, 100) as stream:
        async for x in stream:
            if x == 3:
                break


@contextlib.asynccontextmanager
async def crowd(pool: AsyncPool) -> AsyncIterator[None]:
    """With places for two and room for one more, who comes now waits for room for a moment, if the pool lets it."""
    door = Door()
    tasks = [asyncio.create_task(pool.do(door)) for _ in range(3)]
    try:
        await door.wait_entered(2)
        asyncio.get_running_loop().call_later(0.001, door.open)
        yield
    finally:
        door.open()
        await asyncio.wait(tasks)


async def use_do_in_a_crowd(pool: AsyncPool) -> None:
    async with crowd(pool):
        assert await pool.do(work, 1) == 1


async def use_stream_in_a_crowd(pool: AsyncPool) -> None:
    async with crowd(pool):
        assert [x async for x in pool.stream(items, 3)] == [0, 1, 2]


async def use_a_pool_of_its_own(_: AsyncPool) -> None:
    """Whoever is cancelled while it leaves a pool leaves it to itself, and it drains."""
    pool = AsyncPool(2, threads=1)
    try:
        async with pool:
            futures = [pool.submit(work, 1), pool.submit(work_on_a_thread, 2)]
    finally:
        await until(lambda: pool.stats().state is PoolState.CLOSED)
        assert [await future for future in futures] == [1, 2]


@pytest.mark.parametrize("options", [{}, {"max_queue": 1, "when_full": "block"}], ids=["unbounded", "for room"])
@pytest.mark.parametrize(
    "use",
    [
        use_do,
        use_do_in_gather,
        use_do_with_limits,
        use_do_within_work,
        use_submit,
        use_map,
        use_map_over_a_source,
        use_map_with_a_time,
        use_stream,
        use_stream_as_a_context,
        use_do_in_a_crowd,
        use_stream_in_a_crowd,
        use_a_pool_of_its_own,
    ],
)
def test_cancelled_at_every_step_nothing_is_left(run: Run, use: Use, options: dict[str, Any]) -> None:
    if options and use is use_submit:
        options = {}  # it cannot wait for room

    async def main() -> None:
        mine = asyncio.current_task()
        async with AsyncPool(2, threads=1, **options) as pool:
            async for point in points():
                await point.cancel(use(pool))
                await at_rest(pool)
                assert asyncio.all_tasks() == {mine}
                await use(pool)
            await at_rest(pool)
        assert asyncio.all_tasks() == {mine}
        assert_counts_agree(pool)

    run(main())


class Point:
    """A moment in the life of a coroutine: so many turns of the loop after its wait with this number began."""

    def __init__(self, wait: int, turns: int) -> None:
        self._wait = wait
        self._turns = turns
        self.reached = False
        self.ended = False  # there was no such wait

    async def cancel(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run `coroutine`, and cancel it at this moment."""
        counted = CountedWaits(coroutine)
        task = asyncio.ensure_future(counted)
        while counted.waits <= self._wait and not task.done():  # noqa: ASYNC110 — turn by turn
            await asyncio.sleep(0)
        self.ended = counted.waits <= self._wait
        for _ in range(self._turns):
            await asyncio.sleep(0)
        self.reached = counted.waits == self._wait + 1 and task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()


async def points() -> AsyncIterator[Point]:
    """All moments at which a coroutine can be cancelled: the one that it was not cancelled at is the last one."""
    for wait in range(MOST_WAITS):
        for turns in range(MOST_TURNS):
            point = Point(wait, turns)
            yield point
            if point.ended:
                assert wait, "a test that cancels nothing tests nothing"
                return
            if not point.reached:
                break
    raise AssertionError("this never ends")


class CountedWaits(Coroutine[Any, Any, Any]):
    """A coroutine, and how often it has waited so far."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine
        self.waits = 0

    def __await__(self) -> Generator[Any, None, Any]:
        return self._coroutine.__await__()

    def send(self, value: Any) -> Any:
        awaited = self._coroutine.send(value)
        self.waits += 1
        return awaited

    def throw(self, *error: Any) -> Any:
        awaited = self._coroutine.throw(*error)
        self.waits += 1
        return awaited

    def close(self) -> None:
        self._coroutine.close()


@pytest.mark.parametrize("drain", [True, False])
@pytest.mark.parametrize("grace", [None, 0.0, 5.0])
def test_a_close_that_is_cancelled_at_any_step_can_be_done_again(run: Run, drain: bool, grace: float | None) -> None:
    async def main() -> None:
        mine = asyncio.current_task()
        async for point in points():
            pool = AsyncPool(2, threads=2)
            futures: list[Any] = [pool.submit(work, x) for x in range(5)]
            futures += [pool.submit(work_on_a_thread, x) for x in range(5)]
            await steps(1)
            await point.cancel(pool.close(grace, drain))
            with pytest.raises(PoolClosed):
                pool.submit(work, 1)
            await pool.close(grace, drain)
            assert pool.stats().state is PoolState.CLOSED
            assert pool.workers() == []
            await steps(10)  # what was cancelled for good, and may have been left behind, cleans up
            outcomes = await asyncio.gather(*futures, return_exceptions=True)
            if drain and grace != 0:
                assert outcomes == [*range(5), *range(5)]
            assert_counts_agree(pool)
            assert asyncio.all_tasks() == {mine}

    run(main())


def test_wait_ready_can_be_cancelled(run: Run) -> None:
    gate = threading.Event()

    async def main() -> None:
        async with AsyncPool(threads=1, min_threads=1, initializer=gate.wait) as pool:
            point = Point(0, 3)
            await point.cancel(pool.wait_ready())
            assert point.reached
            assert not await pool.wait_ready(0.01)
            gate.set()
            assert await pool.wait_ready()

    run(main())
