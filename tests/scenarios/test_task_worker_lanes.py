"""Lanes: permits of their own, and what becomes of those that hang."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from bullpen.errors import InvalidOption, InvalidOptionType
from bullpen.tasks.model.task import FAILED, PENDING, RUNNING, SUCCESS, Settlement
from bullpen.tasks.storage.memory import MemoryStorage
from bullpen.tasks.storage.port import Exchange
from bullpen.tasks.worker import lane
from bullpen.tasks.worker.options import Lane, read_lanes
from bullpen.tasks.worker.sync import WorkerPool
from bullpen.telemetry import Kind, TelemetryEvent
from tests.scenarios.support import PATIENCE, Blocker
from tests.scenarios.task_worker_support import Desk, OneLoopStorage, in_virtual_time, until


@pytest.mark.parametrize(
    ("written", "lanes"),
    [
        ("default:100", [Lane(("default",), 100)]),
        ("default:100 cpu:4@thread", [Lane(("default",), 100), Lane(("cpu",), 4, "thread")]),
        ("mail,sms:3", [Lane(("mail", "sms"), 3)]),
        ("default", [Lane(("default",), 7)]),
        ("default@thread", [Lane(("default",), 7)]),
        (["a:1", Lane(("b",), 2)], [Lane(("a",), 1), Lane(("b",), 2)]),
        ("partner-*,vip:3 *:1", [Lane(("partner-*", "vip"), 3), Lane(("*",), 1)]),
    ],
)
def test_lanes_are_read(written: Any, lanes: list[Lane]) -> None:
    assert read_lanes(written, 7) == tuple(lanes)
    assert read_lanes(" ".join(map(str, lanes)), 7) == tuple(lanes)


@pytest.mark.parametrize(
    "written",
    [
        "",
        [],
        ":4",
        "a:0",
        "a:-1",
        "a:x",
        "a:1.5",
        "a:4@",
        "a:4@rocket",
        "a:1 a:2",
        "a,a:1",
        "a,:1",
        "a@b@c",
        "a::1",
        "a*b!:1",
        "a[0-9]*",
        "a?:1",
        "a-*:1 a-*:2",
    ],
)
def test_lanes_that_make_no_sense_are_rejected(written: Any) -> None:
    with pytest.raises(InvalidOption):
        read_lanes(written, 7)


@pytest.mark.parametrize("lanes", [7, [7], [None], object()])
def test_lanes_of_wrong_types_are_rejected(lanes: Any) -> None:
    with pytest.raises(InvalidOptionType):
        read_lanes(lanes, 7)


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"concurrency": True},
        {"concurrency": 2.0},
        {"poll_interval": 0},
        {"poll_interval": -1},
        {"poll_interval": None},
        {"lease": 0},
        {"grace": -1},
        {"max_abandoned": -1},
        {"unknown_after": -1},
        {"observer": 3},
        {"name": 3},
        {"lanes": "a:0"},
    ],
)
def test_bad_options_are_rejected_by_name(options: dict[str, Any]) -> None:
    (name,) = options
    for make in (Desk().worker, lambda **given: WorkerPool(Desk(), **given)):
        with pytest.raises(InvalidOption) as rejected:
            make(**options)
        assert rejected.value.option == name


def test_a_lane_has_permits_of_its_own() -> None:
    """Tasks of one lane never pile up claimed behind those of another."""

    async def main() -> None:
        desk = Desk(store := OneLoopStorage())
        let_go = asyncio.Event()

        async def slow() -> None:
            await let_go.wait()

        async def quick() -> None:
            pass

        heavy, light = desk.task(slow), desk.task(quick)
        stuck = [await desk.add(heavy, queue="cpu") for _ in range(10)]
        async with desk.worker(lanes="default:3 cpu:2"):
            for _ in range(20):
                assert (await desk.ended(await desk.add(light))).status is SUCCESS
            running = [store._tasks[one].status for one in stuck]
            assert running.count(RUNNING) == 2
            assert running.count(PENDING) == 8
            let_go.set()
            await until(lambda: all(store._tasks[one].is_final for one in stuck))

    in_virtual_time(main)


def test_without_lanes_all_queues_of_the_registered_functions_are_served() -> None:
    async def main() -> None:
        desk = Desk(OneLoopStorage())

        async def work() -> None:
            pass

        name = desk.task(work, queue="special")
        async with desk.worker(2):
            assert (await desk.ended(await desk.add(name, queue="special"))).status is SUCCESS
            assert (await desk.ended(await desk.add(name, queue="default"))).status is SUCCESS

    in_virtual_time(main)


def test_priority_goes_first() -> None:
    async def main() -> None:
        desk = Desk(OneLoopStorage())
        order = list[int]()

        async def work(number: int) -> None:
            order.append(number)

        name = desk.task(work)
        ids = [await desk.add(name, number, priority=number) for number in range(10)]
        async with desk.worker(1):
            for one in ids:
                await desk.ended(one)
        assert order == list(range(9, -1, -1))

    in_virtual_time(main)


# What hangs.


def test_an_async_function_past_its_timeout_is_cancelled_and_tried_again() -> None:
    async def main() -> None:
        desk = Desk(OneLoopStorage())
        cancelled = list[float]()

        async def work() -> str:
            try:
                await asyncio.sleep(1000 if not cancelled else 1)
            except asyncio.CancelledError:
                cancelled.append(asyncio.get_running_loop().time())
                raise
            return "second time"

        name = desk.task(work)
        async with desk.worker(1):
            task = await desk.ended(await desk.add(name, timeout=10.0, max_retries=1))
        assert (task.status, task.result, len(cancelled)) == (SUCCESS, b'"second time"', 1)
        assert [error.kind for error in task.errors] == ["timeout"]
        assert "10 s" in task.errors[0].message

    in_virtual_time(main)


def test_an_async_function_that_ignores_its_timeout_is_given_up_and_reported() -> None:
    async def main() -> None:
        desk = Desk(OneLoopStorage())
        events = list[TelemetryEvent]()
        let_go = asyncio.Event()

        async def stubborn() -> None:
            while not let_go.is_set():
                try:
                    await let_go.wait()
                except asyncio.CancelledError:
                    pass

        async def quick() -> None:
            pass

        name, other = desk.task(stubborn), desk.task(quick)
        async with desk.worker(1, observer=events.append) as worker:
            task = await desk.ended(await desk.add(name, timeout=10.0))
            assert (task.status, worker.abandoned, worker.ready) == (FAILED, 1, True)
            assert task.error is not None
            assert task.error.kind == "timeout"
            assert (await desk.ended(await desk.add(other))).status is SUCCESS  # its permit is back
            let_go.set()
            await until(lambda: worker.abandoned == 0)
        kinds = [event.kind for event in events]
        assert kinds.count(Kind.TASK_ABANDONED) == kinds.count(Kind.TASK_RETURNED) == 1

    in_virtual_time(main)


def test_a_function_on_a_thread_past_its_timeout_is_abandoned_and_said_so(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        desk = Desk()
        with Blocker() as blocker:

            def block() -> str:
                blocker()
                return "late"

            def quick() -> None:
                pass

            name, other = desk.task(block), desk.task(quick)
            async with desk.worker(1) as worker:
                task = await desk.ended(await desk.add(name, timeout=0.05))
                assert (task.status, task.result) == (FAILED, None)
                assert task.error is not None
                assert task.error.kind == "timeout"
                assert worker.abandoned == 1
                assert (await desk.ended(await desk.add(other))).status is SUCCESS  # on another thread
                blocker.release()
                await until(lambda: worker.abandoned == 0)
                assert (await desk.get(task.id)).result is None  # too late

    asyncio.run(main())
    assert "abandoned" in caplog.text


def test_beyond_the_cap_the_worker_claims_nothing_and_is_not_ready() -> None:
    async def main() -> None:
        desk = Desk()
        events = list[TelemetryEvent]()
        with Blocker() as blocker:

            def block() -> None:
                blocker()

            async def quick() -> None:
                pass

            name, other = desk.task(block), desk.task(quick)
            async with desk.worker(2, max_abandoned=1, observer=events.append) as worker:
                for number in range(2):
                    await desk.ended(await desk.add(name, timeout=0.05))
                    assert worker.abandoned == number + 1
                assert not worker.ready
                waiting = await desk.add(other)
                await asyncio.sleep(0.1)
                assert (await desk.get(waiting)).attempt == 0
                blocker.release()
                assert (await desk.ended(waiting)).status is SUCCESS
                assert worker.ready
        kinds = [event.kind for event in events]
        assert kinds.count(Kind.TASK_WORKER_STUCK) == kinds.count(Kind.TASK_WORKER_RECOVERED) == 1

    asyncio.run(main())


def test_threads_are_never_more_than_permits_and_abandoned_ones() -> None:
    async def main() -> None:
        desk = Desk()
        inside, most = list[int](), list[int]()

        def work(number: int) -> int:
            inside.append(number)
            most.append(len(inside))
            inside.remove(number)
            return number

        name = desk.task(work)
        ids = [await desk.add(name, number) for number in range(200)]
        async with desk.worker(4):
            for one in ids:
                assert (await desk.ended(one)).status is SUCCESS
        assert max(most) <= 4

    asyncio.run(main())


def test_functions_that_block_run_at_once() -> None:
    """Each waits for all others. The short ones before them share a thread."""
    together = threading.Barrier(10)

    async def main() -> None:
        desk = Desk()
        names = desk.task(lambda number: number, "short"), desk.task(lambda: together.wait(PATIENCE), "blocks")
        ids = [await desk.add(names[0], number) for number in range(50)]
        ids += [await desk.add(names[1]) for _ in range(10)]
        async with desk.worker(10):
            for one in ids:
                assert (await desk.ended(one)).status is SUCCESS

    asyncio.run(main())


def test_a_task_is_settled_while_the_next_one_on_its_thread_blocks() -> None:
    seen = threading.Event()

    async def main() -> None:
        desk = Desk()
        names = desk.task(lambda: None, "short"), desk.task(lambda: seen.wait(PATIENCE), "blocks")
        short, blocks = await desk.add(names[0]), await desk.add(names[1])
        async with desk.worker(2):
            await desk.ended(short)
            assert not (await desk.get(blocks)).is_final
            seen.set()
            assert (await desk.ended(blocks)).result == b"true"

    asyncio.run(main())


def test_a_task_that_is_added_while_another_is_settled_is_claimed() -> None:
    """The notification ends the wait for work while the lane is in an exchange, which has claimed nothing."""

    class SlowExchange(MemoryStorage):
        def __init__(self) -> None:
            super().__init__()
            self.settled, self.answers = asyncio.Event(), asyncio.Event()

        async def exchange(self, settlements: Sequence[Settlement], **how: Any) -> Exchange:
            exchange = await super().exchange(settlements, **how)
            if settlements and not self.settled.is_set():
                self.settled.set()
                await self.answers.wait()
            return exchange

        def another(self) -> Any:
            return None

    async def main() -> None:
        storage = SlowExchange()
        desk = Desk(storage)
        begun, ends = asyncio.Event(), asyncio.Event()

        async def work() -> None:
            begun.set()
            await ends.wait()

        name = desk.task(work)
        async with desk.worker(2, poll_interval=1000):
            first = await desk.add(name)
            await begun.wait()
            await until(lambda: storage._wake_ups)  # the lane waits for work
            ends.set()
            await storage.settled.wait()
            second = await desk.add(name)
            await until(lambda: not storage._wake_ups)
            storage.answers.set()
            for one in (first, second):
                assert (await desk.ended(one)).status is SUCCESS

    asyncio.run(main())


def test_no_thread_for_a_task_gives_it_back_until_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thread exhaustion is no failure of the task."""
    from bullpen import primitives

    start_thread = primitives.start_thread
    broken = True

    def start(target: Any, name: str) -> Any:
        if broken and "-default" in name:
            raise RuntimeError("can't start new thread")
        return start_thread(target, name)

    async def main() -> None:
        nonlocal broken
        desk = Desk()

        def work() -> str:
            return "ran"

        name = desk.task(work)
        async with desk.worker(1):
            task_id = await desk.add(name)
            await until(lambda: desk.storage._tasks[task_id].attempt == 1)
            await until(lambda: desk.storage._tasks[task_id].status is PENDING)
            task = await desk.get(task_id)
            assert (task.failures, task.crashes) == (0, 0)
            broken = False
            task = await desk.ended(task_id)
            assert (task.status, task.failures, task.crashes) == (SUCCESS, 0, 0), "later there is one"

    monkeypatch.setattr(primitives, "start_thread", start)
    monkeypatch.setattr(lane, "START_PAUSE", 0.05)
    asyncio.run(main())
