"""`AsyncPool.map` over coroutines: a runner takes many items, and each is as isolated as in a task of its own."""

from __future__ import annotations

import asyncio
import itertools
import time
from contextvars import ContextVar
from typing import Any

import pytest

from bullpen import AsyncMap, AsyncPool, WorkerAbandoned, WorkerBroken, WorkerLost
from tests.scenarios.async_support import LOOPS, Door, Oops, Run, assert_counts_agree, at_rest, double, runner, until

mark: ContextVar[Any] = ContextVar("mark")


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    return runner(request.param)


class NeverCompares:
    """A value that cannot be compared, as the arrays of some libraries."""

    def __eq__(self, other: object) -> bool:
        raise Oops("no comparison")

    __hash__ = None  # type: ignore[assignment]


# Context variables.


@pytest.mark.parametrize(
    ("value", "replacement"),
    [("text", "other"), ([], []), ("text", NeverCompares()), (NeverCompares(), NeverCompares())],
    ids=["other", "equal", "incomparable", "never compared"],
)
def test_no_item_sees_the_context_variables_of_another(run: Run, value: Any, replacement: Any) -> None:
    async def replace(_: int) -> bool:
        own = mark.get() is value
        await asyncio.sleep(0)
        mark.set(replacement)
        return own

    async def main() -> None:
        mark.set(value)
        async with AsyncPool(2) as pool:
            assert all([own async for own in pool.map(replace, range(50))])
            assert mark.get() is value
            await at_rest(pool)

    run(main())


def test_items_run_in_the_context_of_the_call_of_map(run: Run) -> None:
    async def look(_: int) -> Any:
        await asyncio.sleep(0)
        return mark.get()

    async def main() -> None:
        mark.set("at the call")
        async with AsyncPool(2) as pool:
            seen = set()
            async for value in pool.map(look, range(50), buffersize=4):
                mark.set("later")
                seen.add(value)
            assert seen == {"at the call"}

    run(main())


# Cancellation.


def test_an_item_that_cancels_its_task_and_returns_cancels_nothing_else(run: Run) -> None:
    async def cancel_itself(x: int) -> int:
        await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling()
        if x % 3 == 0:
            task.cancel()
        return x

    async def main() -> None:
        async with AsyncPool(2) as pool:
            assert [x async for x in pool.map(cancel_itself, range(30))] == list(range(30))
            await at_rest(pool)

    run(main())


def test_a_cancelled_item_ends_the_map_after_the_results_before_it(run: Run) -> None:
    async def cancelled(x: int) -> int:
        await asyncio.sleep(0)
        if x == 5:
            raise asyncio.CancelledError
        return x

    async def main() -> None:
        async with AsyncPool(2) as pool:
            read = list[int]()
            with pytest.raises(asyncio.CancelledError):
                await read_into(read, pool.map(cancelled, range(30)))
            assert read == list(range(5))
            assert [x async for x in pool.map(double, range(3))] == [0, 2, 4]
            await at_rest(pool)

    run(main())


def test_a_timeout_inside_an_item_ends_there(run: Run) -> None:
    async def wait_briefly(x: int) -> str:
        try:
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        except TimeoutError:
            return f"{x} in time"
        return "never"

    async def main() -> None:
        async with AsyncPool(2) as pool:
            assert [x async for x in pool.map(wait_briefly, range(5))] == [f"{x} in time" for x in range(5)]
            await at_rest(pool)

    run(main())


# Its place among other work.


def test_items_that_never_wait_do_not_stop_the_loop(run: Run) -> None:
    async def main() -> None:
        ran = 0
        loop = asyncio.get_running_loop()
        passes: list[int] = []

        def count_pass() -> None:
            passes.append(ran)
            if len(passes) < 4:
                loop.call_soon(count_pass)

        async def busy(_: int) -> None:
            nonlocal ran
            ran += 1
            end = time.perf_counter() + 0.0005
            while time.perf_counter() < end:
                pass

        async with AsyncPool(4) as pool:
            results = pool.map(busy, range(1000))
            loop.call_soon(count_pass)
            await anext(results)
            await until(lambda: len(passes) == 4)
            await results.aclose()
            assert 0 < passes[-1] < 500
            await at_rest(pool)

    run(main())


def test_other_calls_get_their_turn_during_a_long_map(run: Run) -> None:
    async def main() -> None:
        async with AsyncPool(1) as pool:
            answers = set[asyncio.Future[int]]()
            async for x in pool.map(double, itertools.count()):
                if x == 100:
                    answers.add(pool.submit(double, 21))
                if answers and all(answer.done() for answer in answers):
                    break
            assert [answer.result() for answer in answers] == [42]

    run(main())


def test_a_paused_pool_begins_no_item(run: Run) -> None:
    async def main() -> None:
        begun = list[int]()

        async def begin(x: int) -> int:
            begun.append(x)
            await asyncio.sleep(0)
            return x

        async with AsyncPool(2) as pool:
            results = pool.map(begin, range(1000))
            read = [await anext(results)]
            pool.pause()
            reading = asyncio.create_task(anext(results))
            await until(lambda: not pool.stats().coroutines.running)
            before = len(begun)
            assert before < 1000
            assert pool.stats().coroutines.queued == 1000 - before
            pool.resume()
            read += [await reading, *[x async for x in results]]
            assert read == begun == list(range(1000))
            await at_rest(pool)

    run(main())


def test_a_map_uses_the_places_of_a_pool_that_grows_and_leaves_those_of_one_that_shrinks(run: Run) -> None:
    async def main() -> None:
        doors = [Door(), Door()]

        async def pass_a_door(x: int) -> Any:
            return await doors[x >= 4](x)

        async with AsyncPool(1) as pool:
            results = pool.map(pass_a_door, range(40))
            reading = asyncio.create_task(anext(results))
            await doors[0].wait_entered(1)
            pool.resize(4)
            await doors[0].wait_entered(4)
            pool.resize(2)
            doors[0].open()
            await until(lambda: doors[1].inside == 2)
            assert doors[1].most == 2
            doors[1].open()
            assert [await reading, *[x async for x in results]] == list(range(40))
            assert doors[0].most == 4
            await at_rest(pool)

    run(main())


def test_the_statistics_count_items(run: Run) -> None:
    async def main() -> None:
        door = Door()
        async with AsyncPool(2) as pool:
            results = pool.map(door, range(10))
            reading = asyncio.create_task(anext(results))
            await door.wait_entered(2)
            stats = pool.stats().coroutines
            assert (stats.submitted, stats.running, stats.queued, stats.completed) == (10, 2, 8, 0)
            assert [worker.running for worker in pool.workers()] == 2 * [(str(door),)]
            door.open()
            await reading
            assert [x async for x in results] == list(range(1, 10))
            await at_rest(pool)
            assert pool.stats().coroutines.completed == sum(worker.completed for worker in pool.workers()) == 10

    run(main())


# The end of the pool, and of workers.


def test_a_pool_that_drains_runs_the_items_that_were_taken(run: Run) -> None:
    """Also if a runner has to go on in a new task."""

    async def change(x: int) -> int:
        mark.set(x)
        await asyncio.sleep(0)
        return x

    async def main() -> None:
        pool = AsyncPool(1)
        results = pool.map(change, range(20))
        read = [await anext(results)]
        await pool.close()
        read += [x async for x in results]
        assert read == list(range(20))
        assert_counts_agree(pool)

    run(main())


def test_a_pool_that_closes_without_draining_cancels_the_items_that_wait(run: Run) -> None:
    async def main() -> None:
        door = Door()
        pool = AsyncPool(2)
        results = pool.map(door, range(10))
        reading = asyncio.create_task(anext(results))
        await door.wait_entered(2)
        closing = asyncio.create_task(pool.close(drain=False))
        await until(lambda: pool.stats().coroutines.cancelled == 8)
        door.open()
        await closing
        assert [await reading, await anext(results)] == [0, 1]
        with pytest.raises(asyncio.CancelledError):
            await anext(results)
        assert door.entered == 2
        assert_counts_agree(pool)

    run(main())


def test_after_the_grace_the_running_items_are_abandoned(run: Run) -> None:
    async def main() -> None:
        door = Door()
        pool = AsyncPool(2)
        reading = asyncio.create_task(anext(pool.map(door, range(10))))
        await door.wait_entered(2)
        await pool.close(grace=0)
        with pytest.raises(WorkerAbandoned):
            await reading
        assert door.cancelled == 2
        assert_counts_agree(pool)

    run(main())


class Model:
    """A worker that breaks."""

    async def ask(self, x: int) -> int:
        await asyncio.sleep(0)
        if x == 3:
            raise WorkerBroken
        return x


def test_an_item_that_breaks_its_worker_is_lost_alone(run: Run) -> None:
    async def main() -> None:
        async with AsyncPool(1, worker=Model) as pool:
            outcomes = [outcome async for outcome in pool.map("ask", range(8), on_error="return")]
            assert [outcome.value for outcome in outcomes] == [0, 1, 2, None, 4, 5, 6, 7]
            assert isinstance(outcomes[3].error, WorkerLost)
            await at_rest(pool)
            assert pool.stats().coroutines.spawned == 2

    run(main())


# A coroutine of the pool that reads a map of it.


def test_a_coroutine_may_read_a_map_of_its_own_pool(run: Run) -> None:
    async def main() -> None:
        async def nested(pool: AsyncPool, depth: int) -> int:
            if not depth:
                await asyncio.sleep(0)
                return 1
            return sum([x async for x in pool.map(nested, itertools.repeat(pool), 3 * [depth - 1])])

        async with AsyncPool(1) as pool:
            assert await pool.do(nested, pool, 3) == 27
            await at_rest(pool)

    run(main())


def test_a_runner_that_loses_its_worker_while_a_coroutine_of_the_pool_waits_for_it_gets_another(run: Run) -> None:
    async def main() -> None:
        async with AsyncPool(2) as pool:

            async def outer() -> int:
                reading = asyncio.ensure_future(anext(pool.map(double, [1])))
                await asyncio.sleep(0)
                assert pool.stats().coroutines.running == 2, "the runner has a worker, and not begun"
                pool.resize(1)
                return await reading

            assert await pool.do(outer) == 2
            await at_rest(pool)

    run(main())


async def read_into(read: list[int], results: AsyncMap[int]) -> None:
    async for x in results:
        read.append(x)
