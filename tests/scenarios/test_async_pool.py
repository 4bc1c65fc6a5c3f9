"""`AsyncPool`: coroutines and functions, bounds, limits in time, cancelling, the end. On asyncio's loop and uvloop."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import inspect
import logging
import math
import random
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from bullpen import (
    AsyncFuture,
    AsyncPool,
    CallPolicy,
    DeadlineExceeded,
    InvalidOption,
    InvalidOptionType,
    Kind,
    NotCallable,
    Pool,
    PoolClosed,
    PoolFailed,
    PoolSaturated,
    PoolState,
    QueueTimeout,
    RestartPolicy,
    RunTimeout,
    TelemetryEvent,
    WorkerAbandoned,
    WorkerBroken,
    WorkerLost,
    WrongLoop,
    primitives,
    remaining,
)
from bullpen.pools.supervision import retries
from bullpen.pools.supervision.shutdown import DrainWatch
from tests.scenarios.async_support import (
    LOOPS,
    PATIENCE,
    Door,
    Oops,
    Run,
    assert_counts_agree,
    at_rest,
    double,
    fail,
    fail_on_a_thread,
    runner,
    square,
    steps,
    until,
)
from tests.scenarios.support import Blocker, eventually, printed, run_script


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    return runner(request.param)


async def count(n: int) -> AsyncIterator[int]:
    for x in range(n):
        await asyncio.sleep(0)
        yield x


def count_on_a_thread(n: int) -> Iterator[int]:
    yield from range(n)


# A call.


def test_coroutines_run_on_the_loop_and_functions_on_threads(run: Run) -> None:
    async def where_a_coroutine_runs() -> int:
        return threading.get_ident()

    async def main() -> None:
        async with AsyncPool(2, threads=2) as pool:
            assert await pool.do(double, 4) == 8
            assert await pool.do(square, 4) == 16
            assert await pool.do(where_a_coroutine_runs) == threading.get_ident()
            assert await pool.do(threading.get_ident) != threading.get_ident()
            await until(lambda: pool.stats().completed == 4)
            assert pool.stats().coroutines.completed == pool.stats().threads.completed == 2

    run(main())


class Meter:
    async def read(self, x: int) -> int:
        return await double(x)

    async def __call__(self, x: int) -> int:
        return await double(x)

    @staticmethod
    async def static(x: int) -> int:
        return await double(x)


def wrapped(x: int) -> Any:
    return double(x)


if hasattr(inspect, "markcoroutinefunction"):
    inspect.markcoroutinefunction(wrapped)
else:
    wrapped = double


def test_everything_that_has_to_be_awaited_is_awaited(run: Run) -> None:
    async def main() -> None:
        meter = Meter()
        async with AsyncPool(2) as pool:
            for fn in (meter.read, meter, Meter.static, functools.partial(double), functools.partial(meter), wrapped):
                assert await pool.do(fn, 3) == 6
            assert pool.stats().coroutines.completed == 6
            assert await pool.do(max, 3, 4) == 4
            assert await pool.do(functools.partial(int, base=16), "ff") == 255

    run(main())


def test_submit_returns_a_future_at_once(run: Run) -> None:
    async def main() -> None:
        async with AsyncPool(2) as pool:
            futures = [pool.submit(double, x) for x in range(5)] + [pool.submit(square, x) for x in range(5)]
            assert all(isinstance(future, asyncio.Future) and not future.done() for future in futures[:5])
            assert await asyncio.gather(*futures) == [0, 2, 4, 6, 8, 0, 1, 4, 9, 16]

    run(main())


def test_errors_come_back_as_they_are(run: Run) -> None:
    async def main() -> None:
        async with AsyncPool(2) as pool:
            for fn in (fail, fail_on_a_thread):
                with pytest.raises(Oops, match="as it is"):
                    await pool.do(fn, "as it is")
                error = (await asyncio.gather(pool.submit(fn), return_exceptions=True))[0]
                assert type(error) is Oops
            await until(lambda: pool.stats().failed == 4)
            with pytest.raises(NotCallable):
                pool.submit(double(1).close())  # type: ignore[call-overload]
            with pytest.raises(NotCallable):
                await pool.do(None)  # type: ignore[call-overload]

    run(main())


def stop() -> None:
    raise StopIteration("of its own")


def test_a_stop_iteration_is_an_error_like_others(run: Run) -> None:
    async def main() -> None:
        async with AsyncPool(2) as pool:
            with pytest.raises(RuntimeError, match="StopIteration"):
                await pool.do(stop)
            with pytest.raises(RuntimeError, match="StopIteration"):
                _ = [x async for x in pool.map(lambda _: stop(), [1])]

    run(main())


def test_served_calls_run_and_their_errors_are_logged(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        done: list[int] = []

        async def note(x: int) -> None:
            done.append(x)

        async with AsyncPool(1) as pool:
            assert pool.serve(note, 1)
            assert pool.serve(done.append, 2)
            assert pool.serve(fail)
            assert pool.serve(fail_on_a_thread)
        assert sorted(done) == [1, 2]
        assert pool.stats().failed == 2

    run(main())
    assert sum("no caller waits for it" in record.message for record in caplog.records) == 2


def test_the_callers_context_is_seen_and_not_changed(run: Run) -> None:
    variable = contextvars.ContextVar("variable", default="nobody's")

    async def read_and_set() -> str:
        seen = variable.get()
        variable.set("the coroutine's")
        await asyncio.sleep(0)
        assert variable.get() == "the coroutine's"
        return seen

    def read_and_set_on_a_thread() -> str:
        seen = variable.get()
        variable.set("the thread's")
        return seen

    async def main() -> None:
        async with AsyncPool(1, threads=1) as pool:
            for fn in (read_and_set, read_and_set_on_a_thread):
                for name in ("first", "second"):
                    variable.set(name)
                    queued = [pool.submit(fn) for _ in range(3)]  # the last of them start in another's turn
                    variable.set("too late")
                    assert await asyncio.gather(*queued) == [name] * 3
                    assert variable.get() == "too late"
            with pytest.raises(InvalidOptionType, match="always carries"):
                pool.using(context=True)

    run(main())


# Where it may be used.


def test_a_pool_belongs_to_the_first_loop_that_it_is_used_on(run: Run) -> None:
    pool = AsyncPool(2, name="mine")
    with pytest.raises(WrongLoop, match="belongs to no event loop yet"):
        pool.submit(double, 1)

    async def elsewhere() -> None:
        with pytest.raises(WrongLoop, match="'mine' belongs to") as caught:
            await pool.do(double, 1)
        assert caught.value.caller is asyncio.get_running_loop()
        for use in (pool.pause, lambda: pool.serve(double, 1), lambda: pool.using(timeout=1).submit(double, 1)):
            with pytest.raises(WrongLoop):
                use()
        with pytest.raises(WrongLoop):
            await pool.close()

    async def main() -> None:
        async with pool:
            assert await pool.do(double, 2) == 4
            await asyncio.to_thread(asyncio.run, elsewhere())
            with pytest.raises(WrongLoop, match="no event loop runs") as caught:
                await pool.do(pool.submit, square, 1)  # on a thread
            assert caught.value.owner is asyncio.get_running_loop()
            assert isinstance(caught.value, RuntimeError)
            assert pool.stats().coroutines.submitted == 1, "what was rejected was not taken in"

    run(main())
    run(elsewhere())


def test_an_unused_pool_needs_no_loop() -> None:
    pool = AsyncPool(3)
    assert pool.stats().state is PoolState.CONFIGURING
    assert pool.workers() == []
    assert "on no loop yet" in repr(pool)


# Bounds.


def test_never_more_coroutines_than_workers_nor_functions_than_threads(run: Run) -> None:
    async def main() -> None:
        door, present = Door(), Presence()
        async with AsyncPool(3, threads=2) as pool:
            futures = [pool.submit(door) for _ in range(10)]
            on_threads = [pool.submit(present) for _ in range(10)]
            await door.wait_entered(3)
            await steps(10)
            stats = pool.stats().coroutines
            assert (door.inside, stats.running, stats.queued) == (3, 3, 7)
            door.open()
            await asyncio.gather(*futures, *on_threads)
            assert (door.most, present.most) == (3, 2)

    run(main())


class Presence:
    """Counts how many are in it at once."""

    def __init__(self) -> None:
        self.inside = self.most = 0
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        time.sleep(0.002)
        with self._lock:
            self.inside -= 1


def test_requests_start_in_the_order_in_which_they_came(run: Run) -> None:
    started: list[int] = []

    async def note(x: int) -> None:
        started.append(x)
        await asyncio.sleep(0)

    async def main() -> None:
        async with AsyncPool(2) as pool:
            await asyncio.gather(*[pool.submit(note, x) for x in range(20)])
        assert started == list(range(20))

    run(main())


def test_a_full_pool_rejects(run: Run) -> None:
    async def main() -> None:
        door = Door()
        async with AsyncPool(1, max_queue=2) as pool:
            for _ in range(3):
                pool.submit(door)
            for rejected in (pool.submit, pool.using(timeout=5).submit):
                with pytest.raises(PoolSaturated) as caught:
                    rejected(door)
                assert (caught.value.queued, caught.value.limit) == (2, 2)
            with pytest.raises(PoolSaturated):
                await pool.do(door)
            assert pool.serve(door) is False
            assert await pool.do(square, 2) == 4, "threads have room of their own"
            assert pool.stats().saturated == 4
            door.open()
        assert pool.stats().coroutines.completed == 3

    run(main())


def test_a_call_that_waits_for_room_does_not_block_the_loop(run: Run) -> None:
    async def main() -> None:
        door, order = Door(), list[int]()

        async def note(x: int) -> int:
            order.append(x)
            return x

        async with AsyncPool(1, max_queue=1, when_full="block") as pool:
            first = [pool.submit(door), pool.submit(door)]
            waiting = [asyncio.create_task(pool.do(note, x)) for x in range(5)]
            await steps(5)
            with pytest.raises(PoolSaturated):
                pool.submit(note, 9)
            assert pool.serve(note, 9) is False, "what cannot wait is rejected"
            waiting[1].cancel()
            door.open()
            results = await asyncio.gather(*first, *waiting, return_exceptions=True)
            assert [type(r) if isinstance(r, BaseException) else r for r in results[2:]] == [
                0,
                asyncio.CancelledError,
                2,
                3,
                4,
            ]
            assert order == [0, 2, 3, 4], "in the order in which they came"
            await at_rest(pool)

    run(main())


def test_the_wait_for_room_ends_with_its_time_and_with_the_pool(run: Run) -> None:
    async def main() -> None:
        door = Door()
        blocker = Blocker()
        for fn, release in ((door, door.open), (blocker, blocker.release)):
            async with AsyncPool(1, threads=1, max_queue=0, when_full="block") as pool:
                running = pool.submit(fn)
                await steps(3)
                with pytest.raises(QueueTimeout):
                    await pool.using(queue_timeout=0.01).do(fn)
                with pytest.raises(DeadlineExceeded):
                    await pool.using(timeout=0.01).do(fn)
                waiting = asyncio.create_task(pool.do(fn))
                await steps(3)
                closing = asyncio.create_task(pool.close())
                with pytest.raises(PoolClosed):
                    await waiting
                release()
                await asyncio.gather(running, closing)
                assert_counts_agree(pool)

    run(main())


def test_many_wait_for_room_on_threads(run: Run) -> None:
    async def main() -> None:
        async with AsyncPool(2, threads=2, max_queue=1, when_full="block") as pool:
            assert await asyncio.gather(*[pool.do(square, x) for x in range(100)]) == [x * x for x in range(100)]
            assert await asyncio.gather(*[pool.do(double, x) for x in range(100)]) == [2 * x for x in range(100)]
            await at_rest(pool)

    run(main())


# Limits in time.


def test_a_coroutine_past_its_time_is_cancelled_and_its_caller_told(run: Run) -> None:
    async def main() -> None:
        door = Door()
        async with AsyncPool(1) as pool:
            for limit, error in (({"timeout": 0.2}, DeadlineExceeded), ({"run_timeout": 0.2}, RunTimeout)):
                with pytest.raises(error):
                    await pool.using(**limit).do(door)
            await until(lambda: door.cancelled == 2)
            assert await pool.do(double, 1) == 2, "its place is free"
            await at_rest(pool)
            assert pool.stats().timed_out == 2

    run(main())


def test_a_coroutine_that_refuses_to_end_keeps_its_place_but_not_its_caller(run: Run) -> None:
    async def main() -> None:
        released = asyncio.Event()

        async def stubborn() -> None:
            while not released.is_set():
                try:
                    await released.wait()
                except asyncio.CancelledError:
                    pass

        async with AsyncPool(1) as pool:
            with pytest.raises(DeadlineExceeded) as caught:
                await pool.using(timeout=0.1).do(stubborn)
            assert caught.value.ran
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await pool.do(stubborn)  # waits for the first one
            following = pool.submit(double, 1)
            await steps(5)
            assert not following.done()
            assert pool.workers()[0].running == ("given up",)
            released.set()
            assert await following == 2
            await at_rest(pool)

    run(main())


def test_a_request_that_waits_too_long_never_runs(run: Run) -> None:
    async def main() -> None:
        with Blocker() as blocker:
            door, ran = Door(), list[str]()

            async def note() -> None:
                ran.append("coroutine")

            async with AsyncPool(1, threads=1) as pool:
                busy = [pool.submit(door), pool.submit(blocker)]
                for fn in (note, functools.partial(ran.append, "function")):
                    with pytest.raises(QueueTimeout):
                        await pool.using(queue_timeout=0.01).do(fn)
                    with pytest.raises(DeadlineExceeded) as caught:
                        await pool.using(timeout=0.01).submit(fn)
                    assert not caught.value.ran
                    with pytest.raises(DeadlineExceeded):
                        await pool.using(timeout=0).do(fn)
                door.open()
                blocker.release()
                await asyncio.gather(*busy)
                await at_rest(pool)
            assert ran == []

    run(main())


def test_limits_hold_on_threads_although_those_cannot_be_ended(run: Run) -> None:
    async def main() -> None:
        with Blocker() as blocker:
            async with AsyncPool(threads=1, restarts=RestartPolicy(max_abandoned=1)) as pool:
                with pytest.raises(DeadlineExceeded):
                    await pool.using(timeout=0.02).do(blocker)
                blocked = pool.submit(square, 3)
                blocker.release()
                assert await blocked == 9
        with Blocker() as blocker:
            async with AsyncPool(threads=1, restarts=RestartPolicy(max_abandoned=1)) as pool:
                with pytest.raises(RunTimeout):
                    await pool.using(run_timeout=0.02).do(blocker)
                assert await pool.do(square, 3) == 9, "a new thread came in its place"
                assert pool.stats().threads.abandoned == 1
                blocker.release()

    run(main())


# What is left of the time.


async def ask() -> float | None:
    await asyncio.sleep(0)
    return remaining()


def about(seconds: float, left: float | None) -> bool:
    """Whether `left` is what is left of so many seconds, of which few have passed."""
    return left is not None and seconds - PATIENCE < left <= seconds


def test_a_request_knows_how_much_time_it_has_left(run: Run) -> None:
    async def all_over() -> list[float | None]:
        """Here, in other coroutines, in tasks, in callbacks, and on threads with this context."""
        called = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(lambda: called.set_result(remaining()))
        gathered = await asyncio.gather(ask(), asyncio.create_task(ask()), asyncio.to_thread(remaining), called)
        return [remaining(), await ask(), *gathered]

    async def main() -> None:
        async with AsyncPool(2, threads=2) as pool:
            assert await pool.do(all_over) == [None] * 6
            assert await pool.do(remaining) is None
            for limits in ({"timeout": 100}, {"run_timeout": 100}, {"timeout": 100, "run_timeout": 1000}):
                view = pool.using(**limits)
                lefts = await view.do(all_over)
                assert len(lefts) == 6
                assert all(about(100, left) for left in lefts)
                assert about(100, await view.do(remaining))
                assert about(100, await view.submit(ask))
            assert remaining() is None

    run(main())


def test_requests_side_by_side_have_their_own_time(run: Run) -> None:
    async def main() -> None:
        together = asyncio.Barrier(3)

        async def look() -> float | None:
            await together.wait()
            left = remaining()
            await together.wait()
            assert left is None or about(left, remaining())
            return left

        async with AsyncPool(3) as pool:
            calls = [pool.using(timeout=limit).do(look) for limit in (100, 1000, None)]
            first, second, third = await asyncio.gather(*calls)
        assert about(100, first)
        assert about(1000, second)
        assert third is None

    run(main())


def test_streams_and_maps_know_how_much_time_is_left(run: Run) -> None:
    async def on_the_loop() -> AsyncIterator[float | None]:
        yield remaining()
        yield await ask()

    def on_a_thread() -> Iterator[float | None]:
        yield remaining()
        yield remaining()

    async def main() -> None:
        async with AsyncPool(2, threads=2) as pool:
            view = pool.using(timeout=100)
            for stream in (view.stream(on_the_loop), view.stream(on_a_thread)):
                assert [about(100, left) async for left in stream] == [True, True]
            assert [about(100, left) async for left in view.map(lambda _: remaining(), "ab")] == [True, True]

    run(main())


def test_what_a_coroutine_calls_has_its_own_time(run: Run) -> None:
    async def main() -> None:
        async with AsyncPool(1, threads=1) as pool:

            async def outer() -> None:
                for fn in (ask, remaining):  # the first runs on a helper, for all places are taken
                    assert await pool.do(fn) is None
                    assert about(1000, await pool.using(timeout=1000).do(fn))
                assert about(100, remaining())

            await pool.using(timeout=100).do(outer)

    run(main())


@pytest.mark.parametrize("limit", ["timeout", "run_timeout"])
def test_a_function_that_cleans_up_after_its_deadline_has_no_time_left(run: Run, limit: str) -> None:
    async def main() -> None:
        seen = list[float | None]()

        async def slow() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                seen.append(remaining())

        async with AsyncPool(1) as pool:
            with pytest.raises(RunTimeout if limit == "run_timeout" else DeadlineExceeded):
                await pool.using(**{limit: 0.01}).do(slow)
        assert seen == [0.0]

    run(main())


def test_what_outlives_its_request_has_no_limit(run: Run) -> None:
    async def main() -> None:
        door = Door()

        async def wait_and_ask() -> float | None:
            await door()
            return remaining()

        async def leave_behind() -> asyncio.Task[float | None]:
            return asyncio.create_task(wait_and_ask())

        async with AsyncPool(1) as pool:
            task = await pool.using(timeout=100).do(leave_behind)
            door.open()
            assert await task is None

    run(main())


@pytest.mark.parametrize("capacity", [1, 2])
@pytest.mark.parametrize(("outer", "inner"), [(100, 1000), (1000, 100), (None, 100), (100, None), (None, None)])
def test_a_loop_on_a_worker_has_no_more_time_than_the_worker(
    run: Run, capacity: int, outer: float | None, inner: float | None
) -> None:
    async def main() -> tuple[float | None, float | None, float | None]:
        async with AsyncPool(1) as inside:
            view = inside.using(timeout=inner)
            return remaining(), await view.do(ask), await view.do(remaining)

    with Pool(1, capacity=capacity) as pool:
        around, on_the_loop, on_a_thread = pool.using(timeout=outer).do(run, main())
    assert around is None if outer is None else about(outer, around)
    least = min(outer or math.inf, inner or math.inf)
    assert on_the_loop is None if least == math.inf else about(least, on_the_loop)
    assert on_a_thread is None if inner is None else about(inner, on_a_thread)


# Workers that break.


class Fragile:
    """Breaks its worker as often as it is told to, as a coroutine and as a function, and notes each run."""

    def __init__(self, times: int) -> None:
        self.runs = 0
        self._times = times

    async def on_the_loop(self) -> int:
        await asyncio.sleep(0)
        return self.on_a_thread()

    def on_a_thread(self) -> int:
        self.runs += 1
        if self.runs <= self._times:
            raise WorkerBroken
        return self.runs


FRAGILE = [Fragile.on_the_loop, Fragile.on_a_thread]


@pytest.mark.parametrize("fn", FRAGILE)
def test_what_breaks_its_worker_is_lost_and_goes_again_if_it_may(run: Run, fn: Callable[[Fragile], Any]) -> None:
    async def main() -> None:
        async with AsyncPool(1, threads=1) as pool:
            with pytest.raises(WorkerLost):
                await pool.do(fn, Fragile(1))
            assert await pool.using(idempotent=True).do(fn, Fragile(1)) == 2
            assert await pool.using(idempotent=True, crash_retries=2).submit(fn, Fragile(2)) == 3
            twice = Fragile(2)
            with pytest.raises(WorkerLost):
                await pool.using(idempotent=True).do(fn, twice)
            assert twice.runs == 2
            served = Fragile(1)
            assert pool.using(idempotent=True).serve(fn, served)
            await until(lambda: served.runs == 2)
            await at_rest(pool)
            assert (pool.stats().lost, pool.stats().coroutines.retried + pool.stats().threads.retried) == (2, 5)

    run(main())


@pytest.mark.parametrize("fn", FRAGILE)
@pytest.mark.parametrize("end", ["cancel", "timeout", "close"])
def test_a_request_that_waits_for_a_crash_retry_can_be_given_up(
    run: Run, fn: Callable[[Fragile], Any], end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "FIRST_DELAY", 3600.0)

    async def main() -> None:
        fragile = Fragile(1)
        async with AsyncPool(1, threads=1) as pool:
            await pool.do(fn, Fragile(0))  # from now on there is a worker, and what is submitted runs at once
            future = pool.using(idempotent=True, timeout=0.5 if end == "timeout" else None).submit(fn, fragile)
            await until(lambda: fragile.runs == 1 and not any(worker.load for worker in pool.workers()))
            await until(lambda: pool.stats().running or future.done())  # it counts, although it is on no worker
            if end == "cancel":
                assert future.cancel()
                assert not any(len(side.engine.retries) for side in pool._sides)  # nothing is kept of it
            elif end == "close":
                await pool.close(drain=False)
            with pytest.raises(DeadlineExceeded if end == "timeout" else asyncio.CancelledError):
                await future
            stats = pool.stats()
            assert (stats.cancelled, stats.timed_out) == ((0, 1) if end == "timeout" else (1, 0))
            await at_rest(pool)
        assert fragile.runs == 1

    run(main())


def test_limits_of_the_pool_are_those_of_its_calls(run: Run) -> None:
    async def main() -> None:
        door = Door()
        async with AsyncPool(1, calls=CallPolicy(run_timeout=0.5, queue_timeout=0.01)) as pool:
            results = await asyncio.gather(pool.do(door), pool.do(door), return_exceptions=True)
            assert [type(result) for result in results] == [RunTimeout, QueueTimeout]

    run(main())


# Cancelling.


def test_to_cancel_a_waiting_call_is_that_it_never_runs(run: Run) -> None:
    async def main() -> None:
        with Blocker() as blocker:
            door, ran = Door(), list[str]()

            async def note() -> None:
                ran.append("coroutine")

            async with AsyncPool(1, threads=1) as pool:
                busy = [pool.submit(door), pool.submit(blocker)]
                for fn in (note, functools.partial(ran.append, "function")):
                    future = pool.submit(fn)
                    task = asyncio.create_task(pool.do(fn))
                    gathered = asyncio.gather(pool.submit(fn), pool.submit(fn))
                    await steps(2)
                    assert future.cancel()
                    assert future.cancelled()
                    assert not future.cancel()
                    task.cancel()
                    gathered.cancel()
                    for waited in (future, task, gathered):
                        with pytest.raises(asyncio.CancelledError):
                            await waited
                door.open()
                blocker.release()
                await asyncio.gather(*busy)
                await at_rest(pool)
                assert pool.stats().cancelled == 8
            assert ran == []

    run(main())


def test_to_cancel_a_running_coroutine_is_to_cancel_its_task(run: Run) -> None:
    async def main() -> None:
        door = Door()
        async with AsyncPool(2) as pool:
            future, task = pool.submit(door), asyncio.create_task(pool.do(door))
            await door.wait_entered(2)
            assert future.cancel("enough")
            task.cancel()
            with pytest.raises(asyncio.CancelledError, match="enough"):
                await future
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: door.cancelled == 2)
            assert await pool.do(double, 1) == 2
            await at_rest(pool)
            assert pool.stats().cancelled == 2

    run(main())


def test_a_running_function_cannot_be_cancelled_so_its_result_is_dropped(run: Run) -> None:
    async def main() -> None:
        with Blocker() as blocker:
            async with AsyncPool(threads=1) as pool:
                task = asyncio.create_task(pool.do(blocker))
                await asyncio.to_thread(blocker.wait_entered)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                waiting = pool.submit(square, 2)
                await steps(5)
                assert not waiting.done(), "its slot stays taken"
                blocker.release()
                assert await waiting == 4
                await at_rest(pool)
                assert (pool.stats().cancelled, pool.stats().completed) == (1, 1)

    run(main())


def test_an_asyncio_task_that_is_cancelled_before_its_first_step_gives_its_place_back(run: Run) -> None:
    async def main() -> None:
        ran = list[int]()

        async def note() -> None:
            ran.append(1)

        async with AsyncPool(1) as pool:
            future = pool.submit(note)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await future
            assert ran == []
            assert await pool.do(double, 1) == 2
            await at_rest(pool)
            assert pool.stats().cancelled == 1

    async def alone() -> None:  # without the task that watches the time
        await main()

    run(alone())


def test_a_coroutine_that_cancels_itself_is_cancelled(run: Run) -> None:
    async def give_up() -> None:
        raise asyncio.CancelledError

    async def main() -> None:
        async with AsyncPool(1) as pool:
            future = pool.submit(give_up)
            await asyncio.wait([future])
            assert future.cancelled()
            assert pool.serve(give_up)
            await at_rest(pool)
            assert pool.stats().cancelled == 2

    run(main())


def test_a_cancelled_call_lets_go_of_its_arguments(run: Run) -> None:
    class Thing:
        pass

    async def take(thing: Thing) -> None: ...

    async def main() -> None:
        door = Door()
        async with AsyncPool(1, threads=1) as pool:
            pool.submit(door)
            thing = Thing()
            gone = weakref.ref(thing)
            future = pool.submit(take, thing)
            del thing
            future.cancel()
            gc.collect()
            assert gone() is None
            door.open()

    run(main())


def test_a_future_that_its_owner_has_settled_harms_nobody(run: Run) -> None:
    async def main() -> None:
        door = Door()
        async with AsyncPool(1) as pool:
            future = pool.submit(door)
            await door.wait_entered(1)
            future.set_result("by hand")
            door.open()
            assert await future == "by hand"
            assert await pool.do(double, 1) == 2
            await at_rest(pool)

    run(main())


# Work within work.


def test_coroutines_may_wait_for_coroutines_of_their_own_pool(run: Run) -> None:
    async def main() -> None:
        async with AsyncPool(2) as pool:

            async def by_do(depth: int) -> int:
                return 1 if not depth else 1 + await pool.do(by_do, depth - 1)

            async def by_submit(depth: int) -> int:
                if not depth:
                    return 1
                return 1 + sum(await asyncio.gather(*[pool.submit(by_submit, depth - 1) for _ in range(2)]))

            async def by_tasks() -> int:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(pool.do(double, 1)) for _ in range(3)]
                return sum(task.result() for task in tasks)

            async def by_map() -> list[int]:
                return [x async for x in pool.map(double, range(3))]

            async def by_stream() -> list[int]:
                return [x async for x in pool.stream(count, 3)]

            assert await asyncio.gather(*[pool.do(by_do, 5) for _ in range(4)]) == [6] * 4
            assert await asyncio.gather(*[pool.do(by_submit, 3) for _ in range(4)]) == [15] * 4
            assert await asyncio.gather(*[pool.do(by_tasks) for _ in range(4)]) == [6] * 4
            assert await asyncio.gather(*[pool.do(by_map) for _ in range(4)]) == [[0, 2, 4]] * 4
            assert await asyncio.gather(*[pool.do(by_stream) for _ in range(4)]) == [[0, 1, 2]] * 4
            await at_rest(pool)

    run(main())


def test_requests_of_a_strict_session_come_one_after_the_other(run: Run) -> None:
    async def main() -> None:
        inside = most = 0

        async def alone() -> None:
            nonlocal inside, most
            inside += 1
            most = max(most, inside)
            await steps(3)
            inside -= 1

        async with AsyncPool(4, threads=4) as pool:
            user = pool.using(session="u42", affinity="strict_queue")
            await asyncio.gather(*[user.do(alone) for _ in range(8)])
            assert most == 1
            threads = await asyncio.gather(*[user.do(threading.get_ident) for _ in range(8)])
            assert len(set(threads)) == 1
            await at_rest(pool)

    run(main())


# The end.


def test_leaving_with_normally_finishes_the_accepted_requests(run: Run) -> None:
    async def main() -> None:
        async with AsyncPool(2, threads=2) as pool:
            futures: list[AsyncFuture[int]] = [pool.submit(double, x) for x in range(20)]
            futures += [pool.submit(square, x) for x in range(20)]
        assert [future.result() for future in futures] == [2 * x for x in range(20)] + [x * x for x in range(20)]
        assert pool.stats().state is PoolState.CLOSED
        for rejected in (pool.submit, pool.serve, pool.using(timeout=1).submit):
            with pytest.raises(PoolClosed):
                rejected(double, 1)
        with pytest.raises(PoolClosed):
            await pool.do(square, 1)
        await pool.close()

    run(main())


def test_what_threads_finish_at_the_last_moment_is_there_when_the_pool_is_closed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocker, look = Blocker(), DrainWatch.opens_when_closed

    def closed_just_before_one_looks(watch: DrainWatch, gate: Any) -> bool:
        if watch._runtime.name == "thread":
            blocker.release()
            assert eventually(lambda: watch._status.state is PoolState.CLOSED)
        return look(watch, gate)

    monkeypatch.setattr(DrainWatch, "opens_when_closed", closed_just_before_one_looks)

    async def main() -> None:
        async with AsyncPool(1, threads=1) as pool:
            future = pool.submit(blocker, "done")
        assert future.done()
        assert future.result() == "done"

    run(main())


def test_to_leave_by_an_error_is_to_cancel_what_waits(run: Run) -> None:
    running: list[AsyncFuture[Any]] = []
    waiting: list[AsyncFuture[Any]] = []

    async def break_off(pool: AsyncPool, door: Door, blocker: Blocker) -> None:
        async with pool:
            running.extend([pool.submit(door, "ran"), pool.submit(blocker, "ran")])
            waiting.extend([pool.submit(double, 1), pool.submit(square, 1)])
            await door.wait_entered(1)
            await asyncio.to_thread(blocker.wait_entered)
            asyncio.get_running_loop().call_later(0.01, door.open)
            asyncio.get_running_loop().call_later(0.01, blocker.release)
            raise Oops

    async def main() -> None:
        pool = AsyncPool(1, threads=1)
        with Blocker() as blocker, pytest.raises(Oops):
            await break_off(pool, Door(), blocker)
        assert [future.result() for future in running] == ["ran", "ran"]
        assert all(future.cancelled() for future in waiting)
        assert_counts_agree(pool)

    run(main())


def test_when_the_grace_is_over_coroutines_are_cancelled_and_threads_left_behind(run: Run) -> None:
    async def main() -> None:
        door, cleaned = Door(), asyncio.Event()

        async def with_cleanup() -> None:
            try:
                await door()
            finally:
                await asyncio.sleep(0.01)
                cleaned.set()

        with Blocker() as blocker:
            pool = AsyncPool(1, threads=1)
            running = [pool.submit(with_cleanup), pool.submit(blocker)]
            waiting = [pool.submit(double, 1), pool.submit(square, 1)]
            await door.wait_entered(1)
            await asyncio.to_thread(blocker.wait_entered)
            await pool.close(grace=0.02)
            assert cleaned.is_set()
            assert [type(future.exception()) for future in running] == [WorkerAbandoned] * 2
            assert all(future.cancelled() for future in waiting)
            assert pool.stats().state is PoolState.CLOSED
            assert pool.stats().coroutines.abandoned == 0
            assert pool.stats().threads.abandoned == 1
            assert_counts_agree(pool)

    run(main())


def test_a_coroutine_that_refuses_to_end_does_not_keep_the_pool_open(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("bullpen.pools.async_sides.CLEANUP_SECONDS", 0.02)

    async def main() -> None:
        released = asyncio.Event()

        async def stubborn() -> None:
            while not released.is_set():
                try:
                    await released.wait()
                except asyncio.CancelledError:
                    pass

        pool = AsyncPool(1)
        future = pool.submit(stubborn)
        await steps(2)
        await pool.close(grace=0)
        assert isinstance(future.exception(), WorkerAbandoned)
        assert pool.stats().coroutines.abandoned == 1
        released.set()
        await steps(5)

    run(main())
    assert any("abandoned" in record.message for record in caplog.records)


def test_to_close_can_be_cancelled_and_done_again(run: Run) -> None:
    async def main() -> None:
        door = Door()
        pool = AsyncPool(1)
        future = pool.submit(door, 5)
        closing = [asyncio.create_task(pool.close()) for _ in range(3)]
        await steps(3)
        closing[0].cancel()
        await asyncio.wait([closing[0]])
        with pytest.raises(PoolClosed):
            pool.submit(double, 1)
        door.open()
        await asyncio.gather(*closing[1:], pool.close())
        assert future.result() == 5

    run(main())


def test_closing_without_grace_waits_for_a_thread_that_is_just_ending(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaving = threading.Event()

    def linger(name: str) -> None:
        if name == "worker.ended_not_removed" and threading.current_thread() is not threading.main_thread():
            leaving.set()
            time.sleep(0.05)

    async def main() -> None:
        pool = AsyncPool(threads=1)
        await pool.do(square, 2)
        monkeypatch.setattr(primitives, "failpoint", linger)
        closing = asyncio.ensure_future(pool.close())
        await until(leaving.is_set)
        await pool.close(grace=0)
        assert (pool.stats().state, pool.workers()) == (PoolState.CLOSED, [])
        await closing

    run(main())


def test_a_request_may_close_its_own_pool(run: Run) -> None:
    async def main() -> None:
        pool = AsyncPool(2)

        async def close() -> str:
            await pool.close()
            return "goes on"

        assert await pool.do(close) == "goes on"
        await pool.close()
        assert pool.stats().state is PoolState.CLOSED

    run(main())


def test_an_unreferenced_pool_drains(run: Run) -> None:
    async def main() -> None:
        done: list[int] = []

        async def note(x: int) -> None:
            await asyncio.sleep(0)
            done.append(x)

        pool = AsyncPool(1, threads=1)
        for x in range(5):
            pool.serve(note, x)
            pool.serve(done.append, 10 + x)
        engine = pool._coroutines.engine
        del pool
        gc.collect()
        await until(lambda: len(done) == 10)
        await until(lambda: engine.state is PoolState.CLOSED)

    run(main())


def test_a_loop_that_ends_before_its_pool_was_closed_is_no_tragedy() -> None:
    for loop in ("asyncio", "uvloop"):
        outcome = run_script(
            f"""
            import asyncio, {loop}, logging
            from bullpen import AsyncPool
            logging.basicConfig(format="%(levelname)s %(message)s")
            cleaned = 0

            async def hang():
                global cleaned
                try:
                    await asyncio.Event().wait()
                finally:
                    await asyncio.sleep(0)
                    cleaned += 1

            async def main():
                global pool
                pool = AsyncPool(3, name="forgotten")
                for _ in range(10):
                    pool.serve(hang)
                    pool.serve(print, end="")
                futures = [pool.submit(hang) for _ in range(10)]
                dropped = AsyncPool(1, name="dropped")
                dropped.serve(hang)
                dropped.serve(hang)
                await asyncio.sleep(0.01)
                del dropped
                await asyncio.sleep(0.01)

            with asyncio.Runner(loop_factory={loop}.new_event_loop) as runner:
                runner.run(main())
            print(cleaned >= 4, pool.stats().running, pool.stats().queued)
            """
        )
        assert (outcome.code, outcome.out) == (0, "True 0 0\n"), outcome
        assert sorted(outcome.err.splitlines()) == [
            f"WARNING {name}: the event loop ends, but the pool was not closed; cancelling its running calls"
            for name in ("dropped", "forgotten")
        ]


def test_a_loop_that_is_just_closed_leaves_nothing_that_hangs() -> None:
    outcome = run_script(
        """
        import asyncio, threading
        from bullpen import AsyncPool
        loop = asyncio.new_event_loop()
        pool = AsyncPool(3)
        started, go = threading.Event(), threading.Event()

        def work():
            started.set()
            go.wait(5)

        async def main():
            pool.serve(work)
            future = pool.submit(work)
            await asyncio.to_thread(started.wait)

        loop.run_until_complete(main())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
        go.set()
        print("the end")
        """
    )
    assert (outcome.code, outcome.out, outcome.err) == (0, "the end\n", ""), outcome


@pytest.mark.parametrize("kind", ["KeyboardInterrupt", "SystemExit"])
def test_an_exit_in_a_call_ends_the_program_and_hangs_no_thread(kind: str) -> None:
    assert (
        printed(
            f"""
        import asyncio
        from bullpen import AsyncPool, CallPolicy

        async def leave():
            raise {kind}

        async def main():
            global others
            async with AsyncPool(1, calls=CallPolicy(log_errors=False)) as pool:
                pool.serve(leave)
                others = [pool.submit(asyncio.sleep, 0, x) for x in range(3)]
                await asyncio.gather(*others)

        try:
            asyncio.run(main())
        except {kind}:
            print("left", [other.done() for other in others])
        """
        )
        == "left [True, True, True]\n"
    )


# Looking at it, and changing it.


@pytest.mark.parametrize("used", ["neither", "coroutines", "threads"])
def test_a_side_that_was_never_used_is_healthy(run: Run, used: str) -> None:
    pool = AsyncPool(3)
    assert pool.stats().healthy

    async def main() -> None:
        async with pool:
            if used == "coroutines":
                await pool.do(asyncio.sleep, 0)
            elif used == "threads":
                await pool.do(square, 2)
            stats = pool.stats()
            assert (stats.healthy, stats.coroutines.healthy, stats.threads.healthy) == (True, True, True)
            assert stats.state is (PoolState.INITIALIZING if used == "neither" else PoolState.RUNNING)

    run(main())
    assert not pool.stats().healthy


def test_stats_count_both_sides_and_the_whole(run: Run) -> None:
    async def main() -> None:
        door = Door()
        async with AsyncPool(2, threads=3, name="app") as pool:
            futures = [pool.submit(door) for _ in range(3)]
            await pool.do(square, 1)
            await until(lambda: pool.stats().completed == 1)
            stats = pool.stats()
            assert (stats.name, stats.state) == ("app", PoolState.RUNNING)
            assert (stats.coroutines.name, stats.threads.name) == ("app", "app-threads")
            assert (stats.coroutines.max_workers, stats.threads.max_workers) == (2, 3)
            assert (stats.submitted, stats.completed, stats.running, stats.queued) == (4, 1, 2, 1)
            assert (stats.lost, stats.saturated, stats.queue_timeouts) == (0, 0, 0)
            assert "pool app (running): 2 busy" in str(stats)
            assert "pool app-threads" in str(stats)
            assert [info.name for info in pool.workers()] == ["app_0", "app_1", "app-threads_0"]
            assert pool.workers()[0].running == (str(door),)
            assert pool.can("cancel_running")
            assert not pool.can("cancel_running", threads=True)
            assert pool.can("share_memory", threads=True)
            with pytest.raises(InvalidOption):
                pool.can("fly")
            door.open()
            await asyncio.gather(*futures)

    run(main())


def test_a_paused_pool_starts_nothing(run: Run) -> None:
    async def main() -> None:
        async with AsyncPool(2) as pool:
            await pool.do(double, 1)
            pool.pause()
            futures = [pool.submit(double, 1), pool.submit(square, 3)]
            await asyncio.sleep(0.01)
            assert not any(future.done() for future in futures)
            pool.resume()
            assert await asyncio.gather(*futures) == [2, 9]

    run(main())


def test_a_pool_can_grow_and_shrink(run: Run) -> None:
    async def main() -> None:
        door = Door()
        async with AsyncPool(1, threads=1, min_threads=1) as pool:
            assert await pool.wait_ready(PATIENCE)
            futures = [pool.submit(door) for _ in range(5)]
            pool.resize(4, threads=2)
            await door.wait_entered(4)
            assert door.inside == 4
            pool.resize(1)
            door.open()
            await asyncio.gather(*futures)
            assert pool.stats().coroutines.max_workers == 1
            assert pool.stats().threads.max_workers == 2
            with pytest.raises(InvalidOption):
                pool.resize(0)
            with pytest.raises(InvalidOption):
                pool.resize(threads=0)

    run(main())


def test_threads_that_cannot_start_are_told_of_and_coroutines_go_on(run: Run) -> None:
    async def main() -> None:
        async with AsyncPool(1, min_threads=1, initializer=fail_on_a_thread, initargs=("no model",)) as pool:
            with pytest.raises(PoolFailed, match="no model"):
                await pool.wait_ready(PATIENCE)
            with pytest.raises(PoolFailed):
                await pool.do(square, 1)
            assert await pool.do(double, 1) == 2
            assert pool.stats().state is PoolState.FAILED
        assert pool.stats().coroutines.state is PoolState.CLOSED

    logger, quiet = logging.getLogger("bullpen"), _without_failed_starts
    logger.addFilter(quiet)
    try:
        run(main())
    finally:
        logger.removeFilter(quiet)


def _without_failed_starts(record: logging.LogRecord) -> bool:
    return "could not start" not in record.msg


@pytest.mark.parametrize(
    "options",
    [
        {"max_workers": 0},
        {"max_workers": 1.5},
        {"threads": 0},
        {"min_threads": -1},
        {"threads": 1, "min_threads": 2},
        {"max_queue": -1},
        {"when_full": "block"},
        {"when_full": "wait"},
        {"name": 5},
        {"calls": {"run_timeout": 1}},
    ],
)
def test_wrong_options_are_rejected(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        AsyncPool(**options)


def test_every_move_is_reported(run: Run) -> None:
    async def main() -> None:
        events: list[TelemetryEvent] = []
        async with AsyncPool(1, threads=1, observer=events.append) as pool:
            await pool.do(double, 1)
            await pool.do(square, 1)
            door = Door()
            future = pool.submit(door)
            await door.wait_entered(1)
            future.cancel()
        by_lane = {name: [event.kind for event in events if event.pool == name] for name in (pool.stats().name,)}
        kinds = by_lane[pool.stats().name]
        for kind in (Kind.REQUEST_QUEUED, Kind.REQUEST_STARTED, Kind.REQUEST_DONE, Kind.REQUEST_CANCELLED):
            assert kind in kinds
        assert kinds[-1] is Kind.POOL_STATE
        assert Kind.REQUEST_DONE in [event.kind for event in events if event.pool.endswith("-threads")]

    run(main())


def test_results_reach_the_loop_in_one_wake_up_per_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with AsyncPool(threads=2) as pool:
            await asyncio.gather(*[pool.submit(square, x) for x in range(10)])
            loop, wakes = asyncio.get_running_loop(), list[str]()
            original = loop.call_soon_threadsafe

            def counted(callback: Any, *args: Any, **kwargs: Any) -> asyncio.Handle:
                wakes.append(callback.__qualname__)
                return original(callback, *args, **kwargs)

            monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
            futures = [pool.submit(square, x) for x in range(500)]
            while pool.stats().completed < 510:  # the loop stands still meanwhile
                time.sleep(0.001)
            assert wakes.count("LoopBridge._deliver") == 1
            assert await asyncio.gather(*futures) == [x * x for x in range(500)]

    runner("asyncio")(main())


# A storm.


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_cancelled_whenever_the_counts_agree(run: Run, seed: int) -> None:
    rng = random.Random(seed)

    async def work(turns: int) -> int:
        await steps(turns)
        if turns == 3:
            raise Oops
        return turns

    def work_on_a_thread(turns: int) -> int:
        time.sleep(turns / 10_000)
        if turns == 3:
            raise Oops
        return turns

    async def main() -> None:
        options: dict[str, Any] = rng.choice([{}, {"max_queue": 5}, {"max_queue": 5, "when_full": "block"}])
        async with AsyncPool(5, threads=3, **options) as pool:
            views = [pool, pool.using(timeout=0.005), pool.using(queue_timeout=0.003), pool.using(run_timeout=0.002)]

            async def caller() -> None:
                view: Any = rng.choice(views)
                fn = rng.choice([work, work_on_a_thread])
                how = rng.randrange(5)
                turns = rng.randrange(6)
                if how == 0:
                    await view.do(fn, turns)
                elif how == 1:
                    future = view.submit(fn, turns)
                    await steps(rng.randrange(4))
                    future.cancel()
                    await future
                elif how == 2:
                    view.serve(fn, turns)
                elif how == 3:
                    async for _ in view.map(fn, range(rng.randrange(8)), buffersize=3):
                        pass
                else:
                    async for x in view.stream(rng.choice([count, count_on_a_thread]), 5):
                        if x == turns:
                            break

            tasks = []
            for _ in range(300):
                tasks.append(asyncio.create_task(caller()))
                if rng.random() < 0.3:
                    rng.choice(tasks).cancel()
                if rng.random() < 0.3:
                    await steps(rng.randrange(3))
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            expected = (Oops, PoolSaturated, DeadlineExceeded, QueueTimeout, RunTimeout, asyncio.CancelledError)
            strange = [o for o in outcomes if isinstance(o, BaseException) and not isinstance(o, expected)]
            assert strange == []
            gc.collect()
            await at_rest(pool)
            assert await pool.do(double, 1) == 2
        assert_counts_agree(pool)

    logging.getLogger("bullpen").setLevel(logging.CRITICAL)
    try:
        run(main())
    finally:
        logging.getLogger("bullpen").setLevel(logging.NOTSET)


# The other pool on a loop.


def test_a_blocking_call_on_a_loops_thread_works_and_warns_once() -> None:
    assert (
        printed(
            """
        import asyncio, sys, warnings
        from bullpen import Pool

        with Pool(1) as pool:
            assert pool.do(abs, -1) == 1

            async def main():
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    sys.ps1 = ">>> "  # where people type, each line stops a loop that is there
                    assert pool.do(abs, -2) == 2
                    assert not caught
                    del sys.ps1
                    assert pool.do(abs, -2) == 2
                    assert pool.using(timeout=5).do(abs, -3) == 3
                    assert await asyncio.wrap_future(pool.submit(abs, -4)) == 4
                assert [warning.category for warning in caught] == [RuntimeWarning]
                assert "AsyncPool" in str(caught[0].message)

            asyncio.run(main())
            assert pool.do(abs, -1) == 1
        print("fine")
        """
        )
        == "fine\n"
    )
