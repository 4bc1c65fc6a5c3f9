"""Seed 002, bounded dispatch: the three tests that it names, and what its own implementation got wrong."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bullpen.tasks.model.task import FAILED, PENDING, SUCCESS
from bullpen.tasks.storage.port import Exchange
from tests.scenarios.task_worker_support import Desk, OneLoopStorage, in_virtual_time, statuses, until


class Barrier:
    """Tasks wait here until there are so many; how many were ever here at once is counted."""

    def __init__(self, parties: int) -> None:
        self._barrier = asyncio.Barrier(parties)
        self.inside = 0
        self.most = 0

    async def pass_through(self) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        await self._barrier.wait()
        self.inside -= 1


@pytest.mark.parametrize("concurrency", [1, 2, 7])
def test_worker_never_exceeds_max_concurrency(concurrency: int) -> None:
    """Each round needs exactly `concurrency` tasks at once, so it is reached, and it is never exceeded."""

    async def main() -> None:
        desk = Desk(store := OneLoopStorage())
        barrier = Barrier(concurrency)
        name = desk.task(barrier.pass_through, "pass")
        ids = [await desk.add(name) for _ in range(10 * concurrency)]
        async with desk.worker(concurrency):
            await until(lambda: all(store._tasks[one].status is SUCCESS for one in ids))
        assert barrier.most == concurrency
        assert store.most_running == concurrency  # sitq claimed the whole backlog while it ran only so many

    in_virtual_time(main)


def test_stop_waits_for_in_flight_tasks() -> None:
    async def main() -> None:
        desk = Desk()
        started, let_go, finished = asyncio.Semaphore(0), asyncio.Event(), list[int]()

        async def work(number: int) -> None:
            started.release()
            await let_go.wait()
            finished.append(number)

        name = desk.task(work)
        ids = [await desk.add(name, number) for number in range(5)]
        worker = desk.worker(3)
        await worker.start()
        for _ in range(3):
            await started.acquire()
        stopping = asyncio.create_task(worker.stop())
        await asyncio.sleep(0.02)
        assert not stopping.done()
        let_go.set()
        await stopping
        assert sorted(finished) == [0, 1, 2]
        assert statuses(await desk.storage.get(ids)) == [SUCCESS] * 3 + [PENDING] * 2
        assert worker.running == 0

    asyncio.run(main())


def test_concurrency_with_failures() -> None:
    """Every other task raises: no permit is lost by that, and the worker goes on."""

    async def main() -> None:
        desk = Desk(store := OneLoopStorage())
        barrier = Barrier(4)

        async def work(number: int) -> int:
            await barrier.pass_through()
            if number % 2:
                raise ValueError(number)
            return number

        name = desk.task(work)
        ids = [await desk.add(name, number) for number in range(40)]
        async with desk.worker(4) as worker:
            await until(lambda: all(store._tasks[one].is_final for one in ids))
            assert worker.ready
        assert barrier.most == store.most_running == 4
        assert statuses(await store.get(ids)) == [SUCCESS, FAILED] * 20

    in_virtual_time(main)


class Generous(OneLoopStorage):
    """Hands out more than it is asked for."""

    async def exchange(self, settlements: Any, **kwargs: Any) -> Exchange:
        if kwargs["limit"]:
            kwargs["limit"] += 3
        return await super().exchange(settlements, **kwargs)


def test_a_store_that_returns_too_many_tasks_does_not_make_a_worker_run_more() -> None:
    async def main() -> None:
        desk = Desk(store := Generous())
        barrier = Barrier(2)
        name = desk.task(barrier.pass_through, "pass")
        ids = [await desk.add(name) for _ in range(10)]
        async with desk.worker(2):
            await until(lambda: all(store._tasks[one].status is SUCCESS for one in ids))
        assert barrier.most == 2

    in_virtual_time(main)


def test_a_task_that_was_claimed_but_not_started_before_a_stop_is_released() -> None:
    """sitq skipped such tasks and left them reserved."""

    class Slow(OneLoopStorage):
        def __init__(self) -> None:
            super().__init__()
            self.claimed, self.answer = asyncio.Event(), asyncio.Event()

        async def exchange(self, settlements: Any, **kwargs: Any) -> Exchange:
            exchange = await super().exchange(settlements, **kwargs)
            if exchange.claimed:
                self.claimed.set()
                await self.answer.wait()
            return exchange

    async def main() -> None:
        desk = Desk(store := Slow())
        ran = list[int]()

        async def work(number: int) -> None:
            ran.append(number)

        name = desk.task(work)
        ids = [await desk.add(name, number) for number in range(5)]
        worker = desk.worker(3)
        await worker.start()
        await store.claimed.wait()
        stopping = asyncio.create_task(worker.stop())
        await asyncio.sleep(0)
        store.answer.set()
        await stopping
        assert ran == []
        tasks = [await desk.get(one) for one in ids]
        assert statuses(tasks) == [PENDING] * 5
        assert [task.failures + task.crashes for task in tasks] == [0] * 5

    in_virtual_time(main)


def test_there_is_one_asyncio_task_for_each_claimed_task() -> None:
    async def main() -> None:
        desk = Desk(OneLoopStorage())
        let_go = asyncio.Event()
        name = desk.task(let_go.wait, "wait")
        before = len(asyncio.all_tasks())
        async with desk.worker(5) as worker:
            await asyncio.sleep(5)
            idle = len(asyncio.all_tasks())
            for _ in range(20):
                await desk.add(name)
            await until(lambda: worker.running == 5)
            await asyncio.sleep(0.1)
            assert len(asyncio.all_tasks()) <= idle + 5
            let_go.set()
            await until(lambda: worker.running == 0)
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == before

    in_virtual_time(main)
