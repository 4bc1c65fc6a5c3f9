"""Seed 004, worker-pool-core: scenario by scenario, and what its own implementation got wrong."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest

from bullpen import primitives
from bullpen.tasks.model.retry import Backoff
from bullpen.tasks.model.task import FAILED, PENDING, RUNNING, SUCCESS
from bullpen.tasks.storage.memory import MemoryStorage
from bullpen.tasks.worker.sync import WorkerPool
from bullpen.tasks.worker.worker_pool import WorkerState
from tests.scenarios.support import Blocker, eventually
from tests.scenarios.task_worker_support import Desk, OneLoopStorage, in_virtual_time, killed_at_end, statuses, until


class TestAsyncWorkerPoolExecution:
    def test_process_tasks_up_to_concurrency_limit(self) -> None:
        """At most N at once, and more are dequeued only as running ones complete."""

        async def main() -> None:
            desk = Desk(store := OneLoopStorage())
            turns = asyncio.Queue[int]()
            running: set[int] = set()
            seen: list[int] = []

            async def work(number: int) -> None:
                running.add(number)
                seen.append(number)
                await turns.get()
                running.discard(number)

            name = desk.task(work)
            ids = [await desk.add(name, number) for number in range(30)]
            async with desk.worker(2):
                for done in range(29):
                    await until(lambda done=done: len(seen) == min(done + 2, 30))  # type: ignore[misc]
                    await asyncio.sleep(5)  # nothing else is dequeued, however long it takes
                    assert len(running) == 2
                    assert await desk.running() == 2  # omniQ showed 30 running
                    turns.put_nowait(done)
                await until(lambda: len(running) == 1)
                turns.put_nowait(30)
                await until(lambda: store._tasks[ids[-1]].is_final)
            assert store.most_running == 2
            assert statuses(await store.get(ids)) == [SUCCESS] * 30

        in_virtual_time(main)

    @pytest.mark.parametrize("poll_interval", [0.5, 1.0, 7.0])
    def test_periodic_polling_when_idle(self, poll_interval: float) -> None:
        """Empty polls are `poll_interval` apart, until it is stopped."""

        async def main() -> None:
            desk = Desk(store := OneLoopStorage())
            async with desk.worker(poll_interval=poll_interval):
                await asyncio.sleep(10 * poll_interval + 0.1)
            polls = store.times("exchange")
            assert len(polls) == 11
            gaps = [later - earlier for earlier, later in itertools.pairwise(polls)]
            assert all(gap == pytest.approx(poll_interval) for gap in gaps)
            count = len(store.calls)
            await asyncio.sleep(10 * poll_interval)
            assert len(store.calls) == count  # nothing after the stop

        in_virtual_time(main)

    def test_an_idle_worker_wakes_before_its_poll_when_the_store_can_notify(self) -> None:
        async def main() -> None:
            desk = Desk(OneLoopStorage())

            async def work() -> float:
                return asyncio.get_running_loop().time()

            name = desk.task(work)
            async with desk.worker(poll_interval=100):
                await asyncio.sleep(10)
                added = asyncio.get_running_loop().time()
                task = await desk.ended(await desk.add(name))
                assert float(task.result or b"") == pytest.approx(added, abs=0.1)

        in_virtual_time(main)

    def test_a_task_is_not_run_before_its_eta(self) -> None:
        async def main() -> None:
            desk = Desk(store := OneLoopStorage())

            async def work() -> float:
                return asyncio.get_running_loop().time()

            name = desk.task(work)
            async with desk.worker(poll_interval=1.0):
                at = asyncio.get_running_loop().time() + 30
                task = await desk.ended(await desk.add(name, eta=at + store.skew))
                assert at - 1e-6 <= float(task.result or b"") <= at + 1.0

        in_virtual_time(main)


class TestCallableExecutionAndRetries:
    def test_execute_async_callable(self) -> None:
        """Awaited on the loop itself, with its arguments, and its result is kept."""

        async def main() -> None:
            desk = Desk()
            threads = list[str]()

            async def add(a: int, b: int) -> int:
                threads.append(threading.current_thread().name)
                await asyncio.sleep(0)
                return a + b

            name = desk.task(add)
            async with desk.worker():
                task = await desk.ended(await desk.add(name, 2, 3))
            assert (task.status, task.result) == (SUCCESS, b"5")
            assert threads == [threading.current_thread().name]

        asyncio.run(main())

    def test_execute_sync_callable_in_thread(self) -> None:
        async def main() -> None:
            desk = Desk()
            threads = list[str]()

            def add(a: int, b: int) -> int:
                threads.append(threading.current_thread().name)
                return a + b

            name = desk.task(add)
            async with desk.worker():
                task = await desk.ended(await desk.add(name, 2, 3))
            assert (task.status, task.result) == (SUCCESS, b"5")
            assert threads != [threading.current_thread().name]

        asyncio.run(main())

    def test_a_sync_callable_leaves_the_loop_free(self) -> None:
        async def main() -> None:
            desk = Desk()
            with Blocker() as blocker:

                def block() -> None:
                    blocker()

                async def quick() -> None:
                    pass

                blocking, other = desk.task(block), desk.task(quick)
                async with desk.worker(2):
                    blocked = await desk.add(blocking)
                    assert (await desk.ended(await desk.add(other))).status is SUCCESS
                    assert (await desk.get(blocked)).status is RUNNING
                    blocker.release()

        asyncio.run(main())

    def test_retry_with_exponential_backoff(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """base * 2**n after the n-th failure, plus small jitter; FAILED once attempts exceed max_retries."""
        monkeypatch.setattr(primitives.random, "random", lambda: 0.5)

        async def main() -> None:
            desk = Desk(store := OneLoopStorage())
            starts = list[float]()

            async def fail() -> None:
                starts.append(asyncio.get_running_loop().time())
                raise ValueError(len(starts))

            name = desk.task(fail)
            async with desk.worker(poll_interval=0.01):
                task_id = await desk.add(name, max_retries=3, backoff=Backoff(base=1.0))
                await until(lambda: len(starts) == 1 and store._tasks[task_id].status is PENDING)
                waiting = await desk.get(task_id)
                assert waiting.eta == pytest.approx(starts[0] + store.skew + 2.1, abs=0.01)
                assert waiting.failures == 1
                task = await desk.ended(task_id)
            waits = [later - earlier for earlier, later in itertools.pairwise(starts)]
            assert waits == pytest.approx([2 * 1.05, 4 * 1.05, 8 * 1.05], abs=0.05)
            assert (task.status, task.attempt, task.failures) == (FAILED, 4, 4)  # omniQ left it RUNNING
            assert [error.message for error in task.errors] == ["1", "2", "3", "4"]
            assert task.errors[0].type == "ValueError"
            assert "raise ValueError(len(starts))" in task.errors[0].traceback

        in_virtual_time(main)

    def test_without_retries_the_first_failure_is_final(self) -> None:
        async def main() -> None:
            desk = Desk()

            def fail() -> None:
                raise OSError("no")

            name = desk.task(fail)
            async with desk.worker():
                task = await desk.ended(await desk.add(name))
            assert (task.status, task.attempt) == (FAILED, 1)

        asyncio.run(main())

    def test_a_waiting_retry_shows_no_result(self) -> None:
        """omniQ showed FAILED after the first of three tries, so that whoever waited returned early."""

        async def main() -> None:
            desk = Desk(store := OneLoopStorage())

            async def fail_once() -> str:
                if (await desk.get(task_id)).attempt == 1:
                    raise ValueError
                return "done"

            name = desk.task(fail_once)
            task_id = await desk.add(name, max_retries=1)
            async with desk.worker():
                await until(lambda: store._tasks[task_id].failures == 1)
                assert (await desk.get(task_id)).status is PENDING
                task = await desk.ended(task_id)
            assert (task.status, task.result) == (SUCCESS, b'"done"')

        in_virtual_time(main)


class TestIntervalSchedulingBehavior:
    def test_reschedule_interval_task_on_success(self) -> None:
        """The next run is at completion + interval, of the same task, in the same write."""

        async def main() -> None:
            desk = Desk(store := OneLoopStorage())
            runs = list[tuple[float, float]]()

            async def tick() -> int:
                began = asyncio.get_running_loop().time()
                await asyncio.sleep(3)
                runs.append((began, asyncio.get_running_loop().time()))
                return len(runs)

            name = desk.task(tick)
            task_id = await desk.add(name, interval=60.0)
            async with desk.worker(poll_interval=0.5):
                await until(lambda: store._tasks[task_id].completed_runs == 1)
                waiting = await desk.get(task_id)
                assert waiting.status is PENDING
                assert waiting.eta == pytest.approx(runs[0][1] + store.skew + 60, abs=0.01)
                assert waiting.result == b"1"
                await until(lambda: len(runs) == 4)
            for (_, ended), (began, _) in itertools.pairwise(runs):
                assert ended + 59.999 <= began <= ended + 60.6
            assert len(store._tasks) == 1  # omniQ made a new task each time
            assert (await desk.get(task_id)).completed_runs == 4

        in_virtual_time(main)

    def test_an_interval_task_that_fails_for_good_is_failed_unless_it_continues(self) -> None:
        async def main() -> None:
            desk = Desk(store := OneLoopStorage())

            async def fail() -> None:
                raise ValueError

            name = desk.task(fail)
            once = await desk.add(name, interval=10.0)
            on = await desk.add(name, interval=10.0, on_failure="continue")
            async with desk.worker():
                await until(lambda: store._tasks[on].attempt == 3)
                assert (await desk.get(once)).status is FAILED
                assert (await desk.get(once)).attempt == 1

        in_virtual_time(main)


class TestSyncWorkerWrapper:
    def test_start_and_stop_workers_from_sync_code(self) -> None:
        desk = Desk()
        with Blocker() as blocker:

            def work(number: int) -> int:
                blocker()
                return number

            name = desk.task(work)
            ids = [asyncio.run(desk.add(name, number)) for number in range(6)]
            worker = WorkerPool(desk, concurrency=2, poll_interval=0.01)
            worker.start()  # omniQ's blocked here
            assert str(worker.state) == "running"
            assert worker.ready
            blocker.wait_entered(2)
            stopping = threading.Thread(target=worker.stop)
            stopping.start()
            assert eventually(lambda: worker.state is WorkerState.STOPPING)
            assert stopping.is_alive()
            blocker.release()
            stopping.join(20)
            assert worker.state is WorkerState.STOPPED
        tasks = [desk.storage._tasks[one] for one in ids]
        assert statuses(tasks) == [SUCCESS] * 2 + [PENDING] * 4  # omniQ drained the backlog
        worker.stop()

    def test_start_raises_what_the_store_raises_and_leaves_nothing(self) -> None:
        class Broken(MemoryStorage):
            async def save_worker(self, record: Any) -> None:
                raise ConnectionRefusedError("nobody there")

        worker = WorkerPool(Desk(Broken()))
        with pytest.raises(ConnectionRefusedError):
            worker.start()
        assert worker.state is WorkerState.STOPPED
        worker.stop()

    def test_stop_before_start_and_twice_and_from_many_threads(self) -> None:
        desk = Desk()
        WorkerPool(desk).stop()
        worker = WorkerPool(desk)
        with worker:
            threads = [threading.Thread(target=worker.stop) for _ in range(5)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(20)
                assert not thread.is_alive()
        assert worker.state is WorkerState.STOPPED

    @pytest.mark.parametrize("kind", ["async", "sync"])
    def test_both_kinds_of_functions(self, kind: str) -> None:
        desk = Desk()

        async def double(number: int) -> int:
            return 2 * number

        def double_too(number: int) -> int:
            return 2 * number

        function: Callable[..., Any] = double if kind == "async" else double_too
        name = desk.task(function, "double")
        with WorkerPool(desk, concurrency=4, poll_interval=0.01):
            ids = [asyncio.run(desk.add(name, number)) for number in range(20)]
            assert eventually(lambda: all(desk.storage._tasks[one].is_final for one in ids))
        assert [desk.storage._tasks[one].result for one in ids] == [b"%d" % (2 * n) for n in range(20)]


def test_a_timeout_is_kept() -> None:
    """omniQ stored it and ignored it."""

    async def main() -> None:
        desk = Desk(OneLoopStorage())

        async def sleep() -> None:
            await asyncio.sleep(1000)

        name = desk.task(sleep)
        began = asyncio.get_running_loop().time()
        async with killed_at_end(desk.worker()):
            task = await desk.ended(await desk.add(name, timeout=30.0))
        assert (task.status, task.error and task.error.kind) == (FAILED, "timeout")
        assert asyncio.get_running_loop().time() - began == pytest.approx(30, abs=1)

    in_virtual_time(main)
