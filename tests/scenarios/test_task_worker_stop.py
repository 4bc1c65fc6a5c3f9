"""Stopping: nothing is claimed from then on, what runs gets its grace, the rest is released with nothing counted."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from bullpen import primitives
from bullpen.errors import InvalidOption, PoolClosed
from bullpen.tasks.model.context import current_task
from bullpen.tasks.model.task import FAILED, PENDING, RUNNING, SUCCESS
from bullpen.tasks.worker.attempt import Interruption
from bullpen.tasks.worker.worker_pool import WorkerState
from bullpen.telemetry import Kind, TelemetryEvent
from tests.scenarios.support import PATIENCE, Blocker
from tests.scenarios.task_worker_support import Desk, OneLoopStorage, in_virtual_time, statuses, until


async def sleep_long() -> None:
    await asyncio.sleep(1e6)


def test_a_task_that_does_not_end_within_the_grace_is_released() -> None:
    async def main() -> None:
        desk = Desk(OneLoopStorage())

        async def short() -> None:
            await asyncio.sleep(5)

        ids = [await desk.add(name) for name in (desk.task(short), desk.task(sleep_long))]
        worker = desk.worker(5)
        await worker.start()
        await until(lambda: worker.running == 2)
        began = asyncio.get_running_loop().time()
        await worker.stop(grace=10)
        assert asyncio.get_running_loop().time() - began == pytest.approx(10, abs=0.5)
        ended, released = [await desk.get(one) for one in ids]
        assert ended.status is SUCCESS
        assert (released.status, released.failures, released.crashes, released.errors) == (PENDING, 0, 0, ())
        assert await desk.running() == 0

    in_virtual_time(main)


def test_nothing_is_claimed_after_stop_was_called() -> None:
    async def main() -> None:
        desk = Desk(store := OneLoopStorage())
        name = desk.task(sleep_long)
        worker = desk.worker(5, poll_interval=1000)  # no exchange is under way
        await worker.start()
        await asyncio.sleep(3)
        stopping = asyncio.create_task(worker.stop())
        await asyncio.sleep(0)
        ids = [await desk.add(name) for _ in range(5)]
        await stopping
        assert statuses(await store.get(ids)) == [PENDING] * 5
        assert [store._tasks[one].attempt for one in ids] == [0] * 5

    in_virtual_time(main)


def test_a_second_stop_with_a_shorter_grace_counts() -> None:
    async def main() -> None:
        desk = Desk(OneLoopStorage())
        name = desk.task(sleep_long)
        await desk.add(name)
        worker = desk.worker(1)
        await worker.start()
        await until(lambda: worker.running == 1)
        began = asyncio.get_running_loop().time()
        patient = asyncio.create_task(worker.stop(grace=None))
        await asyncio.sleep(30)
        assert not patient.done()
        await worker.stop(grace=2)
        await patient
        assert asyncio.get_running_loop().time() - began == pytest.approx(32, abs=1)
        await worker.stop()

    in_virtual_time(main)


def test_a_stop_whose_caller_is_cancelled_goes_on() -> None:
    async def main() -> None:
        desk = Desk(OneLoopStorage())

        async def work() -> None:
            await asyncio.sleep(10)

        name = desk.task(work)
        task_id = await desk.add(name)
        worker = desk.worker(1)
        await worker.start()
        await until(lambda: worker.running == 1)
        stopping = asyncio.create_task(worker.stop())
        await asyncio.sleep(1)
        stopping.cancel()
        await worker.wait_stopped()
        assert (await desk.get(task_id)).status is SUCCESS

    in_virtual_time(main)


def test_a_worker_can_be_started_once() -> None:
    async def main() -> None:
        desk = Desk(OneLoopStorage())
        worker = desk.worker(1)
        await worker.start()
        with pytest.raises(PoolClosed):
            await worker.start()
        await worker.stop()
        with pytest.raises(PoolClosed):
            await worker.start()
        never = desk.worker(1)
        await never.stop()
        with pytest.raises(PoolClosed):
            await never.start()
        with pytest.raises(InvalidOption):
            await worker.stop(grace=-1)

    in_virtual_time(main)


def test_a_worker_that_is_stopped_while_it_starts_stops() -> None:
    class Slow(OneLoopStorage):
        async def save_worker(self, record: Any) -> None:
            await asyncio.sleep(5)
            await super().save_worker(record)

    async def main() -> None:
        desk = Desk(Slow())
        worker = desk.worker(1)
        starting = asyncio.create_task(worker.start())
        await asyncio.sleep(1)
        await worker.stop()
        await starting
        assert worker.state is WorkerState.STOPPED

    in_virtual_time(main)


def test_a_function_that_ignores_its_end_is_given_up_at_stop() -> None:
    async def main() -> None:
        desk = Desk(OneLoopStorage())
        let_go = asyncio.Event()

        async def stubborn() -> None:
            while not let_go.is_set():
                try:
                    await let_go.wait()
                except asyncio.CancelledError:
                    pass

        name = desk.task(stubborn)
        task_id = await desk.add(name)
        worker = desk.worker(1)
        await worker.start()
        await until(lambda: worker.running == 1)
        began = asyncio.get_running_loop().time()
        await worker.stop(grace=3)
        assert asyncio.get_running_loop().time() - began <= 5
        assert (await desk.get(task_id)).status is PENDING
        assert worker.abandoned == 1
        let_go.set()
        await asyncio.sleep(0.1)
        assert worker.abandoned == 0

    in_virtual_time(main)


def test_a_function_on_a_thread_that_does_not_end_is_left_behind() -> None:
    async def main() -> None:
        desk = Desk()
        with Blocker() as blocker:

            def block() -> None:
                blocker()

            name = desk.task(block)
            task_id = await desk.add(name)
            worker = desk.worker(1)
            await worker.start()
            await asyncio.to_thread(blocker.wait_entered)
            await worker.stop(grace=0.05)
            task = await desk.get(task_id)
            assert (task.status, task.failures, task.crashes) == (PENDING, 0, 0)
            assert worker.abandoned == 1
        await until(lambda: worker.abandoned == 0)

    asyncio.run(main())


def test_at_most_once_that_is_interrupted_is_lost_and_not_released() -> None:
    async def main() -> None:
        desk = Desk(OneLoopStorage())
        name = desk.task(sleep_long)
        task_id = await desk.add(name, at_most_once=True)
        worker = desk.worker(1)
        await worker.start()
        await until(lambda: worker.running == 1)
        await worker.stop(grace=0)
        task = await desk.get(task_id)
        assert task.status is FAILED
        assert task.error is not None
        assert task.error.kind == "lost"

    in_virtual_time(main)


def test_what_returns_while_it_is_interrupted_has_succeeded() -> None:
    async def main() -> None:
        desk = Desk(OneLoopStorage())

        async def tidy() -> str:
            try:
                await asyncio.sleep(1e6)
            except asyncio.CancelledError:
                return "in order"
            return "never"

        name = desk.task(tidy)
        task_id = await desk.add(name)
        worker = desk.worker(1)
        await worker.start()
        await until(lambda: worker.running == 1)
        await worker.stop(grace=0)
        assert (await desk.get(task_id)).result == b'"in order"'

    in_virtual_time(main)


def test_a_task_that_is_interrupted_before_its_first_step_is_released_and_not_run() -> None:
    async def main() -> None:
        desk = Desk(OneLoopStorage())
        events, ran = list[TelemetryEvent](), list[int]()

        async def work() -> None:
            ran.append(current_task().attempt)

        def observe(event: TelemetryEvent) -> None:
            events.append(event)
            if event.kind is Kind.TASK_CLAIMED and event.attempt == 1:
                asyncio.get_running_loop().call_soon(worker._lanes[0].interrupt_all, Interruption.STOP)

        name = desk.task(work)
        worker = desk.worker(1, observer=observe)
        task_id = await desk.add(name)
        async with worker:
            task = await desk.ended(task_id)
        assert (task.attempt, task.failures, ran) == (2, 0, [2])
        assert Kind.TASK_ABANDONED not in [event.kind for event in events]

    in_virtual_time(main)


def test_leases_are_kept_during_the_grace() -> None:
    async def main() -> None:
        desk = Desk(store := OneLoopStorage())

        async def work() -> None:
            await asyncio.sleep(100)

        name = desk.task(work)
        task_id = await desk.add(name)
        worker = desk.worker(1)
        await worker.start()
        await until(lambda: worker.running == 1)
        stopping = asyncio.create_task(worker.stop(grace=None))
        said = False
        while not stopping.done():
            await asyncio.sleep(1)
            task = store._tasks[task_id]
            assert task.lease_until is None or task.lease_until > store._now()
            said = said or any(record.stopping for record in store._workers.values())
        assert said
        assert (await desk.get(task_id)).status is SUCCESS

    in_virtual_time(main)


def test_events_of_a_whole_life() -> None:
    async def main() -> None:
        desk = Desk(OneLoopStorage())
        events = list[TelemetryEvent]()

        async def work() -> None:
            pass

        name = desk.task(work)
        async with desk.worker(1, name="life", observer=events.append) as worker:
            task = await desk.ended(await desk.add(name, queue="default"))
        of_task = [event for event in events if event.task == task.id]
        assert [event.kind for event in of_task] == [
            Kind.TASK_CLAIMED,
            Kind.TASK_STARTED,
            Kind.TASK_ENDED,
            Kind.TASK_SUCCEEDED,
        ]
        assert {(event.pool, event.worker, event.attempt, event.queue) for event in of_task} == {
            ("life", worker.id, 1, "default")
        }
        states = [str(event.detail) for event in events if event.kind is Kind.TASK_WORKER_STATE]
        assert states == ["starting", "running", "stopping", "stopped"]

    in_virtual_time(main)


# Signals, in a process of its own.

SCRIPT = """
import asyncio, sys, time
from bullpen.tasks.worker.worker_pool import AsyncWorkerPool
from bullpen.tasks.worker.sync import WorkerPool
from tests.scenarios.task_worker_support import Desk

desk = Desk()

async def work(seconds: float) -> None:
    print("started", flush=True)
    await asyncio.sleep(seconds)

def block(seconds: float) -> None:
    print("started", flush=True)
    time.sleep(seconds)

async def block_loop(seconds: float) -> None:
    print("started", flush=True)
    time.sleep(seconds)

for function in (work, block, block_loop):
    desk.task(function)

async def report(task_id):
    task = await desk.get(task_id)
    print(task.status, task.failures, task.crashes, await desk.running(), flush=True)

task_id = asyncio.run(desk.add(sys.argv[1], float(sys.argv[2])))
worker = {"async": AsyncWorkerPool, "sync": WorkerPool}[sys.argv[3]](desk, 2, grace=float(sys.argv[4]))
if sys.argv[3] == "async":
    asyncio.run(worker.run())
else:
    worker.run()
asyncio.run(report(task_id))
"""


class Script:
    """A worker in a process of its own, with one task that has started."""

    def __init__(self, function: str, seconds: float, kind: str = "async", grace: float = 25.0) -> None:
        command = [
            sys.executable,
            "-W",
            "error",
            "-c",
            textwrap.dedent(SCRIPT),
            function,
            str(seconds),
            kind,
            str(grace),
        ]
        root = Path(__file__).parents[2]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", cwd=root
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "started\n"

    def send(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def end(self) -> tuple[int, str]:
        out, err = self.process.communicate(timeout=PATIENCE)
        assert "Traceback" not in err, err
        return self.process.returncode, out

    def __enter__(self) -> Script:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("kind", ["async", "sync"])
def test_the_first_signal_lets_tasks_end(kind: str, number: signal.Signals) -> None:
    with Script("work", 0.3, kind) as script:
        script.send(number)
        assert script.end() == (0, "success 0 0 0\n")


@pytest.mark.parametrize("function", ["work", "block"])
def test_when_the_grace_is_over_tasks_are_released(function: str) -> None:
    with Script(function, 15, grace=0.2) as script:
        script.send()
        assert script.end() == (0, "pending 0 0 0\n")


def test_the_second_signal_releases_and_exits() -> None:
    with Script("work", 1000) as script:
        script.send()
        time.sleep(0.3)
        assert script.process.poll() is None
        script.send(signal.SIGINT)
        assert script.end() == (0, "pending 0 0 0\n")


def test_the_third_signal_ends_the_process_though_the_loop_is_blocked() -> None:
    with Script("block_loop", 1000) as script:
        for _ in range(3):
            script.send()
            time.sleep(0.1)
        assert script.end() == (128 + signal.SIGTERM, "")


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]

    async def main() -> None:
        desk = Desk()
        worker = desk.worker(1)
        running = asyncio.create_task(worker.run())
        await until(lambda: worker.state is WorkerState.RUNNING)
        os.kill(os.getpid(), signal.SIGTERM)
        await running

    asyncio.run(main())
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_a_worker_that_is_left_running_at_exit_releases_what_it_holds() -> None:
    source = """
    import asyncio, atexit, time
    from bullpen.tasks.worker.sync import WorkerPool
    from tests.scenarios.task_worker_support import Desk

    desk = Desk()

    async def work() -> None:
        await asyncio.sleep(1000)

    name = desk.task(work)
    task_id = asyncio.run(desk.add(name))

    def report():
        print(desk.storage._tasks[task_id].status, flush=True)

    atexit.register(report)
    worker = WorkerPool(desk, 1)
    worker.start()
    while worker.running == 0:
        time.sleep(0.01)
    """
    root = Path(__file__).parents[2]
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(source)]
    ended = subprocess.run(command, capture_output=True, encoding="utf-8", cwd=root, timeout=PATIENCE, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "pending\n", "")


def test_running_tasks_are_seen_as_such() -> None:
    async def main() -> None:
        desk = Desk(OneLoopStorage())
        name = desk.task(sleep_long)
        task_id = await desk.add(name)
        worker = desk.worker(1)
        await worker.start()
        await until(lambda: worker.running == 1)
        task = await desk.get(task_id)
        assert (task.status, task.worker, task.attempt) == (RUNNING, worker.id, 1)
        assert "running" in repr(worker)
        await worker.stop(grace=0)

    in_virtual_time(main)


def test_a_worker_may_stop_before_its_heartbeat_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """The heartbeat's thread starts late. It must still notice the stop."""
    start_thread = primitives.start_thread

    def start(target: Any, name: str) -> Any:
        def late() -> None:
            if name.endswith("-heartbeat"):
                time.sleep(0.1)
            target()

        return start_thread(late, name)

    async def main() -> None:
        worker = Desk().worker(1)
        await worker.start()
        await worker.stop()

    monkeypatch.setattr(primitives, "start_thread", start)
    asyncio.run(main())
