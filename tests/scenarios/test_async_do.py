"""What `AsyncPool.do` returns: a future that needs no task, and a coroutine to whoever makes one of it."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import pytest

from bullpen import AsyncPool, NotCallable, PoolClosed, PoolSaturated, WrongLoop
from tests.scenarios.async_support import LOOPS, Door, Run, at_rest, double, runner, square, until
from tests.scenarios.support import Blocker


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    return runner(request.param)


def fail() -> None:
    raise LookupError("no")


def test_to_gather_calls_makes_no_task_of_each(run: Run) -> None:
    async def main() -> None:
        async with AsyncPool(threads=2) as pool:
            gathered = asyncio.gather(*[pool.do(square, x) for x in range(100)])
            assert asyncio.all_tasks() == {asyncio.current_task()}
            assert await gathered == [x * x for x in range(100)]
            assert await asyncio.gather(*[pool.using(timeout=20).do(double, x) for x in range(3)]) == [0, 2, 4]

    run(main())


async def in_a_group(call: Any) -> Any:
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(call)
    except* LookupError as errors:
        raise errors.exceptions[0] from None
    return task.result()


async def first_of(call: Any) -> Any:
    return await next(iter(asyncio.as_completed([call])))


async def awaited(call: Any) -> Any:
    return await call


TAKEN: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "await": awaited,
    "create_task": asyncio.create_task,
    "ensure_future": asyncio.ensure_future,
    "TaskGroup": in_a_group,
    "wait_for": lambda call: asyncio.wait_for(call, 20),
    "shield": asyncio.shield,
    "as_completed": first_of,
}


@pytest.mark.parametrize("options", [{}, {"max_queue": 0, "when_full": "block"}], ids=["unbounded", "for room"])
@pytest.mark.parametrize("taken", TAKEN.values(), ids=TAKEN)
def test_it_is_taken_wherever_a_coroutine_is(
    run: Run, taken: Callable[[Any], Awaitable[Any]], options: dict[str, Any]
) -> None:
    async def main() -> None:
        async with AsyncPool(2, threads=1, **options) as pool:
            assert await taken(pool.do(square, 3)) == 9
            assert await taken(pool.do(double, 3)) == 6
            with pytest.raises(LookupError, match="no"):
                await taken(pool.do(fail))

    run(main())


def test_it_is_known_to_be_awaited() -> None:
    assert asyncio.iscoroutinefunction(AsyncPool().do)
    assert asyncio.iscoroutinefunction(AsyncPool().using(timeout=1).do)


def test_it_begins_before_it_is_awaited(run: Run) -> None:
    async def main() -> None:
        began = threading.Event()
        async with AsyncPool() as pool:
            call = pool.do(began.set)
            await until(began.is_set)
            await call

    run(main())


def test_where_no_loop_runs_it_waits_for_one() -> None:
    pool = AsyncPool(threads=1)
    call = pool.do(square, 3)

    async def main() -> None:
        assert await call == 9
        await pool.close()

    asyncio.run(main())


def test_another_thread_hands_it_to_the_loop(run: Run) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with AsyncPool(threads=1) as pool:

            def elsewhere() -> int:
                return asyncio.run_coroutine_threadsafe(pool.do(square, 4), loop).result()

            assert await asyncio.to_thread(elsewhere) == 16

            async def on_another_loop() -> None:
                with pytest.raises(WrongLoop):
                    await pool.do(square, 4)

            await asyncio.to_thread(asyncio.run, on_another_loop())

    run(main())


def test_what_rejects_it_is_raised_where_it_is_awaited(run: Run) -> None:
    async def main() -> None:
        with Blocker() as blocker:
            async with AsyncPool(threads=1, max_queue=0) as pool:
                running = pool.submit(blocker)
                await until(lambda: pool.stats().threads.busy)
                rejected = [pool.do(square, 1), pool.do(None)]  # type: ignore[call-overload]
                errors = await asyncio.gather(*rejected, return_exceptions=True)
                assert [type(error) for error in errors] == [PoolSaturated, NotCallable]
                blocker.release()
                await running
        late = pool.do(square, 1)
        with pytest.raises(PoolClosed):
            await late

    run(main())


def test_cancelling_the_waiting_caller_cancels_the_request(run: Run) -> None:
    async def main() -> None:
        door = Door()
        async with AsyncPool(1, threads=1) as pool:
            running = asyncio.create_task(pool.do(door))
            await door.wait_entered(1)
            waiting = asyncio.gather(pool.do(double, 1), pool.do(double, 2))
            unstarted = asyncio.create_task(pool.do(double, 3))
            unwanted = pool.do(double, 4)
            assert pool.stats().queued == 4
            waiting.cancel()
            unstarted.cancel()  # before its first step
            unwanted.close()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(pool.do(double, 5), 0.01)
            assert pool.stats().queued == (1 if not unstarted.done() else 0)
            running.cancel()
            for each in (waiting, unstarted, running):
                with pytest.raises(asyncio.CancelledError):
                    await each
            await at_rest(pool)
            assert door.cancelled == 1
            assert pool.stats().cancelled == 6

    run(main())


HERE: ContextVar[str] = ContextVar("HERE", default="")


def test_callbacks_see_the_context_in_which_they_were_added(run: Run) -> None:
    async def main() -> None:
        seen = list[str]()

        async def ask(pool: AsyncPool, name: str) -> None:
            HERE.set(name)
            for future in (pool.submit(square, 1), pool.submit(double, 1)):
                future.add_done_callback(lambda _: seen.append(HERE.get()))
                HERE.set("later")
                await future
                HERE.set(name)

        async with AsyncPool(2, threads=1) as pool:
            await ask(pool, "outside")
            await pool.do(ask, pool, "inside")
            await until(lambda: len(seen) == 4)
        assert seen == ["outside"] * 2 + ["inside"] * 2

    run(main())


def test_a_callback_that_fails_is_reported_to_the_loop_and_delays_no_caller(run: Run) -> None:
    async def main() -> None:
        told = list[Any]()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
        with Blocker() as blocker:
            async with AsyncPool(threads=1) as pool:
                futures = [pool.submit(blocker), *[pool.submit(square, x) for x in range(3)]]
                futures[0].add_done_callback(lambda _: fail())
                blocker.release()
                assert (await asyncio.gather(*futures))[1:] == [0, 1, 4]
        assert [str(error) for error in told] == ["no"]

    run(main())


def test_an_error_that_is_never_retrieved_is_reported_to_the_loop(run: Run) -> None:
    async def main() -> None:
        told = list[str]()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["message"]))
        async with AsyncPool(threads=1) as pool:
            call = pool.do(fail)
            await until(lambda: pool.stats().failed)
            await asyncio.sleep(0.01)
            del call
            gc.collect()
            assert [message.split()[-3:] for message in told] == [["was", "never", "retrieved"]]

    run(main())
