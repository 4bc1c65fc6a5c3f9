"""`AsyncPool` cancelled at every await point: whoever waits is cancelled after one turn of the loop, after two, and so
on until it ends by itself. Each time nothing may be left, the counts have to agree, and the pool has to go on.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from bullpen import AsyncPool, PoolClosed, PoolState
from tests.scenarios.async_support import LOOPS, Run, assert_counts_agree, at_rest, runner, steps

Use = Callable[[AsyncPool], Awaitable[Any]]

MOST_STEPS = 200


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


async def items(n: int) -> AsyncIterator[int]:
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
        use_map_with_a_time,
        use_stream,
        use_stream_as_a_context,
    ],
)
def test_cancelled_at_every_step_nothing_is_left(run: Run, use: Use, options: dict[str, Any]) -> None:
    if options and use is use_submit:
        options = {}  # it cannot wait for room

    async def main() -> None:
        mine = asyncio.current_task()
        async with AsyncPool(2, threads=1, **options) as pool:
            count = 0
            while await is_cancelled_after(count, use(pool)):
                await at_rest(pool)
                assert asyncio.all_tasks() == {mine}
                await use(pool)
                count += 1
                assert count < MOST_STEPS
            assert count > 3, "a test that cancels nothing tests nothing"
            await at_rest(pool)
        assert asyncio.all_tasks() == {mine}
        assert_counts_agree(pool)

    run(main())


async def is_cancelled_after(count: int, coroutine: Any) -> bool:
    """Cancel a coroutine after `count` turns of the loop; False if it had ended by then."""
    task = asyncio.ensure_future(coroutine)
    await steps(count)
    cancelled = task.cancel()
    await asyncio.wait([task])
    if not cancelled or not task.cancelled():
        task.result()
        return False
    return True


@pytest.mark.parametrize("drain", [True, False])
@pytest.mark.parametrize("grace", [None, 0.0, 5.0])
def test_a_close_that_is_cancelled_at_any_step_can_be_done_again(run: Run, drain: bool, grace: float | None) -> None:
    async def main() -> None:
        mine = asyncio.current_task()
        count = 0
        while True:
            pool = AsyncPool(2, threads=2)
            futures: list[Any] = [pool.submit(work, x) for x in range(5)]
            futures += [pool.submit(work_on_a_thread, x) for x in range(5)]
            await steps(1)
            cancelled = await is_cancelled_after(count, pool.close(grace, drain))
            if count:
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
            if not cancelled:
                break
            count += 1
            assert count < MOST_STEPS
        assert count > 1

    run(main())


def test_wait_ready_can_be_cancelled(run: Run) -> None:
    gate = threading.Event()

    async def main() -> None:
        async with AsyncPool(threads=1, min_threads=1, initializer=gate.wait) as pool:
            assert await is_cancelled_after(3, pool.wait_ready())
            assert not await pool.wait_ready(0.01)
            gate.set()
            assert await pool.wait_ready()

    run(main())
