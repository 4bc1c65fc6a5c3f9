"""Leases: kept while a task runs, whatever it does; taken back from the dead; and requests to cancel."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections import Counter
from typing import Any

import msgspec
import pytest

from bullpen.errors import StorageError
from bullpen.tasks.model.context import current_task
from bullpen.tasks.model.task import CANCELLED, FAILED, PENDING, RUNNING, SUCCESS, Task
from bullpen.tasks.storage.memory import MemoryStorage
from bullpen.tasks.storage.port import WorkerRecord
from bullpen.tasks.worker import identity
from bullpen.tasks.worker.upkeep import ROUNDS, TENDED
from bullpen.telemetry import Kind, TelemetryEvent
from tests.scenarios.support import Blocker
from tests.scenarios.task_worker_support import Desk, OneLoopStorage, in_virtual_time, killed_at_end, until


def test_a_lease_is_renewed_every_third_of_it() -> None:
    async def main() -> None:
        desk = Desk(store := OneLoopStorage())

        async def work() -> None:
            await asyncio.sleep(100)

        name = desk.task(work)
        async with desk.worker(1):
            task = await desk.ended(await desk.add(name))
        assert (task.status, task.attempt) == (SUCCESS, 1)
        renewals = store.times("renew")
        assert [b - a for a, b in zip(renewals, renewals[1:], strict=False)] == pytest.approx(  # noqa: RUF007
            [5.0] * (len(renewals) - 1)
        )
        assert len(renewals) >= 19

    in_virtual_time(main)


@pytest.mark.parametrize("has_turn", [True, False, None])
def test_a_worker_without_the_turn_leaves_the_upkeep_to_others(has_turn: bool | None) -> None:
    """None: the store cannot tell. Then the worker does the upkeep."""

    class WithTurns(OneLoopStorage):
        def __init__(self) -> None:
            super().__init__()
            self.asked: list[float] = []

        def take_upkeep_turn(self, group: str, every: float) -> bool:
            assert group == identity.this_host()
            self.asked.append(every)
            if has_turn is None:
                raise StorageError("it cannot be opened", storage="jobs.db")
            return has_turn

    async def main() -> None:
        desk = Desk(store := WithTurns())
        async with desk.worker(1):
            await until(lambda: len(store.asked) >= 5)
        assert len(store.times("workers")) == (0 if has_turn is False else len(store.asked))
        assert max(store.asked) < 1

    in_virtual_time(main)


def test_a_task_that_blocks_the_loop_for_three_leases_runs_once() -> None:
    """The leases are renewed from another thread. A second worker, in a thread of its own, would take it otherwise."""

    class Strict(MemoryStorage):
        """Takes back whatever is over, at once, and counts."""

        over = 0

        def check(self) -> None:
            now = self._now()
            for task in list(self._running.values()):
                if task.lease_until is not None and task.lease_until <= now:
                    self.over += 1

    async def main() -> None:
        desk = Desk(store := Strict())
        runs = list[float]()

        async def block() -> None:
            runs.append(time.monotonic())
            deadline = time.monotonic() + 3 * 0.6
            while time.monotonic() < deadline:
                time.sleep(0.01)
                store.check()

        name = desk.task(block)
        async with desk.worker(2, lease=0.6):
            task = await desk.ended(await desk.add(name))
        assert (task.status, task.attempt, len(runs)) == (SUCCESS, 1, 1)
        assert store.over == 0

    asyncio.run(main())


def dead_record(worker: str, **changes: Any) -> WorkerRecord:
    """Of a process that has just ended."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        began = identity.machine.process_started(process.pid)
        process.communicate(b"\n")
    record = WorkerRecord(
        id=worker,
        host="here",
        pid=process.pid,
        boot_id=identity.machine.boot_id(),
        process_started=began or 0.0,
        queues=("default",),
        concurrency=1,
    )
    return msgspec.structs.replace(record, **changes)


async def claim(desk: Desk, name: str, worker: str, lease: float = 15.0, **fields: Any) -> Task:
    """A task in the hands of a worker."""
    await desk.add(name, **fields)
    exchange = await desk.storage.exchange([], worker=worker, queues=["default"], limit=1, lease=lease, claim_id="c")
    return exchange.claimed[0]


async def nothing() -> str:
    return "done"


def test_tasks_of_a_worker_that_died_on_this_host_run_again_within_two_seconds() -> None:
    async def main() -> None:
        desk = Desk(OneLoopStorage())
        events = list[TelemetryEvent]()
        name = desk.task(nothing)
        task = await claim(desk, name, "the-dead", lease=10_000)
        await desk.storage.save_worker(dead_record("the-dead"))
        began = asyncio.get_running_loop().time()
        async with desk.worker(1, observer=events.append):
            task = await desk.ended(task.id)
            assert asyncio.get_running_loop().time() - began <= 2.0
        assert (task.status, task.attempt) == (SUCCESS, 2)
        assert [error.kind for error in task.errors] == ["crash"]
        assert task.errors[0].started_at is not None
        assert task.errors[0].started_at <= task.errors[0].at
        assert [record.id for record in await desk.storage.workers()] == ["the-dead"]  # operators see it for a day
        assert Kind.TASK_RESCUED in [event.kind for event in events]

    in_virtual_time(main)


def test_a_lease_of_another_host_is_waited_for() -> None:
    async def main() -> None:
        desk = Desk(OneLoopStorage())
        name = desk.task(nothing)
        task = await claim(desk, name, "far-away")
        await desk.storage.save_worker(dead_record("far-away", boot_id="another/1"))
        began = asyncio.get_running_loop().time()
        async with desk.worker(1):
            task = await desk.ended(task.id)
            assert 15 <= asyncio.get_running_loop().time() - began <= 20
        assert (task.status, task.attempt) == (SUCCESS, 2)
        assert [error.kind for error in task.errors] == ["crash"]

    in_virtual_time(main)


def test_a_lease_that_ended_though_its_worker_is_there_counts_no_crash() -> None:
    """The worker on the other host was cut off for a while: that is no crash."""

    async def main() -> None:
        desk = Desk(store := OneLoopStorage())
        name = desk.task(nothing)
        task = await claim(desk, name, "far-away")
        async with desk.worker(1):
            for _ in range(12):
                await store.save_worker(dead_record("far-away", boot_id="another/1"))
                await asyncio.sleep(2)
            task = await desk.ended(task.id)
        assert (task.status, task.attempt, task.errors) == (SUCCESS, 2, ())

    in_virtual_time(main)


def test_a_living_worker_on_this_host_gets_more_time() -> None:
    """It may be stopped for a moment, or the clock was moved: its leases are over for everybody at once."""

    async def main() -> None:
        desk = Desk(store := OneLoopStorage())
        let_go, runs = asyncio.Event(), list[int]()

        async def work() -> None:
            runs.append(1)
            await let_go.wait()

        name = desk.task(work)
        first, second = desk.worker(1), desk.worker(1)
        async with first, second:
            task_id = await desk.add(name)
            await until(lambda: runs)
            for _ in range(5):
                store.skew += 3600  # the store's clock jumps by an hour
                await asyncio.sleep(7)
            assert len(runs) == 1
            let_go.set()
            task = await desk.ended(task_id)
        assert (task.status, task.attempt, task.errors) == (SUCCESS, 1, ())

    in_virtual_time(main)


def test_a_living_worker_that_never_renews_loses_its_task_in_the_end() -> None:
    async def main() -> None:
        desk = Desk(OneLoopStorage())
        name = desk.task(nothing)
        task = await claim(desk, name, "stuck")
        pid = os.getppid()
        alive = dead_record("stuck", pid=pid, process_started=identity.machine.process_started(pid))
        await desk.storage.save_worker(alive)
        began = asyncio.get_running_loop().time()
        async with desk.worker(1):
            task = await desk.ended(task.id)
            assert 15 + 30 <= asyncio.get_running_loop().time() - began <= 15 + 35
        assert (task.status, task.attempt) == (SUCCESS, 2)
        assert [error.kind for error in task.errors] == ["crash"]

    in_virtual_time(main)


def test_a_task_that_kills_its_workers_is_poison_after_three() -> None:
    async def main() -> None:
        desk = Desk(OneLoopStorage())
        name = desk.task(nothing)
        task = await claim(desk, name, "dead-1")
        for number in (1, 2, 3):
            await desk.storage.save_worker(dead_record(f"dead-{number}"))
            async with desk.worker(1, lanes="elsewhere:1"):
                await until(lambda: desk.storage._tasks[task.id].status is not RUNNING)
            if number < 3:
                await desk.storage.exchange(
                    [], worker=f"dead-{number + 1}", queues=["default"], limit=1, lease=1e6, claim_id="c"
                )
        task = await desk.get(task.id)
        assert (task.status, task.crashes, task.failures) == (FAILED, 3, 0)
        assert task.error is not None
        assert (task.error.kind, task.error.worker) == ("poison", "dead-3")
        assert [(error.kind, error.attempt) for error in task.errors] == [("crash", 1), ("crash", 2), ("poison", 3)]
        assert task.payload

    in_virtual_time(main)


def test_of_tasks_that_have_lost_two_workers_one_runs_at_a_time() -> None:
    """The others are put back for a while, uncounted; what has lost one worker, or none, runs beside it."""
    together: list[set[str]] = []
    running: set[str] = set()

    async def main() -> None:
        desk = Desk(OneLoopStorage())

        async def work(name: str, seconds: float) -> None:
            running.add(name)
            together.append(set(running))
            await asyncio.sleep(seconds)
            running.discard(name)

        task = desk.task(work)
        suspects = [await desk.add(task, f"suspect {number}", 0.1, crashes=2) for number in range(5)]
        slow = await desk.add(task, "slow suspect", 600.0, crashes=2)
        others = [await desk.add(task, f"other {number}", 0.1, crashes=number % 2) for number in range(4)]
        began = asyncio.get_running_loop().time()
        async with desk.worker(10):
            for task_id in (*suspects, *others):
                assert (await desk.ended(task_id)).status is SUCCESS
            assert asyncio.get_running_loop().time() - began < 60  # one that goes on for long is not waited for
            assert (await desk.ended(slow)).status is SUCCESS

    in_virtual_time(main)
    quick = [{name for name in names if name.startswith("suspect")} for names in together]
    assert max(map(len, quick)) == 1
    assert any(len([name for name in names if name.startswith("other")]) == 4 for names in together)


def test_at_most_once_is_never_run_again_after_a_crash() -> None:
    async def main() -> None:
        desk = Desk(OneLoopStorage())
        name = desk.task(nothing)
        task = await claim(desk, name, "the-dead", at_most_once=True)
        await desk.storage.save_worker(dead_record("the-dead"))
        async with desk.worker(1):
            task = await desk.ended(task.id)
        assert (task.status, task.attempt) == (FAILED, 1)
        assert task.error is not None
        assert task.error.kind == "lost"

    in_virtual_time(main)


def test_a_worker_that_has_stopped_in_this_process_is_dead() -> None:
    """Though its process lives: what it could not release is taken back at once."""
    record = identity.register_worker("gone", (("default",),), 1, 0.0)
    assert not identity.is_dead(record)
    identity.unregister_worker("gone")
    assert identity.is_dead(record)


def test_which_workers_are_dead() -> None:
    mine = identity.register_worker("mine", (("default",),), 1, 0.0)
    try:
        assert not identity.is_dead(mine)
        parent = os.getppid()
        other = msgspec.structs.replace(
            mine, id="other", pid=parent, process_started=identity.machine.process_started(parent) or 0.0
        )
        assert not identity.is_dead(other)
        assert identity.is_dead(msgspec.structs.replace(other, process_started=1.0))  # its pid was given again
        assert not identity.is_dead(msgspec.structs.replace(other, process_started=1.0, boot_id="elsewhere"))
        assert not identity.is_dead(msgspec.structs.replace(other, process_started=1.0, boot_id=""))
        assert identity.is_dead(dead_record("dead"))
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        with child:
            record = msgspec.structs.replace(
                mine, id="z", pid=child.pid, process_started=identity.machine.process_started(child.pid) or 0.0
            )
            assert not identity.is_dead(record)
            assert child.stdin is not None
            child.stdin.close()
            deadline = time.monotonic() + 20
            while not identity.is_dead(record):  # a zombie runs no tasks
                assert time.monotonic() < deadline
                time.sleep(0.005)
    finally:
        identity.unregister_worker("mine")


def test_a_task_that_was_lost_is_stopped_and_its_writes_are_rejected() -> None:
    async def main() -> None:
        desk = Desk(store := OneLoopStorage())
        stopped = asyncio.Event()
        events = list[TelemetryEvent]()

        async def work() -> None:
            try:
                await asyncio.sleep(1e6)
            finally:
                stopped.set()

        name = desk.task(work)
        async with killed_at_end(desk.worker(1, observer=events.append)) as worker:
            task_id = await desk.add(name)
            await until(lambda: worker.running == 1)
            await store.pause("default")
            from bullpen.tasks.model.task import release

            assert store._settle_task(release(await desk.get(task_id)), store._now())
            began = asyncio.get_running_loop().time()
            await stopped.wait()
            assert asyncio.get_running_loop().time() - began <= 6
            await until(lambda: worker.running == 0)
        assert (await desk.get(task_id)).status is PENDING
        assert Kind.TASK_LOST in [event.kind for event in events]

    in_virtual_time(main)


@pytest.mark.parametrize("retries", [0, 5])
def test_a_running_task_is_cancelled_within_two_seconds(retries: int) -> None:
    async def main() -> None:
        desk = Desk(store := OneLoopStorage())

        async def work() -> None:
            await asyncio.sleep(1e6)

        name = desk.task(work)
        async with killed_at_end(desk.worker(1)) as worker:
            task_id = await desk.add(name, max_retries=retries)
            await until(lambda: worker.running == 1)
            await asyncio.sleep(6)  # the next renewal is four seconds away
            await store.cancel([task_id])
            began = asyncio.get_running_loop().time()
            task = await desk.ended(task_id)
            assert asyncio.get_running_loop().time() - began <= 2
        assert (task.status, task.failures) == (CANCELLED, 0)

    in_virtual_time(main)


def test_a_request_to_cancel_is_noticed_with_the_renewal_at_the_latest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of so many tasks not all are looked at each second."""
    monkeypatch.setattr("bullpen.tasks.worker.heartbeat.LOOKED_AT", 0)

    async def main() -> None:
        desk = Desk(store := OneLoopStorage())

        async def work() -> None:
            await asyncio.sleep(1e6)

        name = desk.task(work)
        async with killed_at_end(desk.worker(1)) as worker:
            task_id = await desk.add(name)
            await until(lambda: worker.running == 1)
            await store.cancel([task_id])
            began = asyncio.get_running_loop().time()
            assert (await desk.ended(task_id)).status is CANCELLED
            assert asyncio.get_running_loop().time() - began <= 6

    in_virtual_time(main)


def test_a_function_on_a_thread_can_notice_that_it_is_cancelled() -> None:
    async def main() -> None:
        desk = Desk()

        def work() -> None:
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                current_task().stop_if_cancelled()
                time.sleep(0.005)

        name = desk.task(work)
        async with desk.worker(1) as worker:
            task_id = await desk.add(name, max_retries=3)
            await until(lambda: worker.running == 1)
            await desk.storage.cancel([task_id])
            task = await desk.ended(task_id)
        assert (task.status, task.attempt) == (CANCELLED, 1)

    asyncio.run(main())


def test_a_function_on_a_thread_that_ignores_a_cancel_is_not_run_again() -> None:
    async def main() -> None:
        desk = Desk()
        with Blocker() as blocker:

            def work() -> None:
                blocker()
                raise ValueError("late")

            name = desk.task(work)
            async with desk.worker(1, lease=0.3) as worker:
                task_id = await desk.add(name, max_retries=3)
                await asyncio.to_thread(blocker.wait_entered)
                await desk.storage.cancel([task_id])
                lane = worker._lanes[0]
                await until(lambda: any(one.task.cancel_requested for one in lane.held.values()))
                assert (await desk.get(task_id)).status is RUNNING
                blocker.release()
                task = await desk.ended(task_id)
        assert (task.status, task.attempt) == (CANCELLED, 1)

    asyncio.run(main())


def test_a_worker_has_a_record_with_a_heartbeat_while_it_runs() -> None:
    async def main() -> None:
        desk = Desk(store := OneLoopStorage())
        async with desk.worker(lanes="a,b:3 c:4") as worker:
            await asyncio.sleep(21)
            (record,) = await store.workers()
            assert (record.id, record.pid, record.concurrency) == (worker.id, os.getpid(), 7)
            assert record.queues == ("a", "b", "c")
            assert record.seen_at >= store._now() - 6
        assert await store.workers() == []

    in_virtual_time(main)


def test_upkeep_expires_and_prunes() -> None:
    async def main() -> None:
        desk = Desk(store := OneLoopStorage())
        events = list[TelemetryEvent]()
        name = desk.task(nothing)
        late = [await desk.add(name, queue="nobody", expires=store._now() + 5) for _ in range(3)]
        short = await desk.add(name, result_ttl=10.0)
        async with desk.worker(1, observer=events.append):
            assert (await desk.ended(short)).status is SUCCESS
            await asyncio.sleep(7)
            expired = [await desk.get(one) for one in late]
            assert [task.status for task in expired] == [FAILED] * 3
            assert {task.error and task.error.kind for task in expired} == {"expired"}
            await asyncio.sleep(7)
            assert short not in store._tasks
        assert [event.kind for event in events].count(Kind.TASK_EXPIRED) == 3

    in_virtual_time(main)


def test_pruning_keeps_up_in_bounded_steps_and_leaves_unfinished_tasks() -> None:
    """However many tasks end at once."""

    class Counting(OneLoopStorage):
        async def prune(self, *, limit: int) -> int:
            pruned = await super().prune(limit=limit)
            steps.append((asyncio.get_running_loop().time(), limit, pruned))
            return pruned

    steps = list[tuple[float, int, int]]()

    async def main() -> None:
        desk = Desk(store := Counting())
        many = 12_300
        await store.add([Task(id=f"{n:05d}", func_path="f", payload=b"", result_ttl=30.0) for n in range(many)])
        await store.cancel([f"{n:05d}" for n in range(many)])
        waiting = [await desk.add("f", queue="nobody", result_ttl=0.0) for _ in range(3)]
        kept = await desk.add("f", result_ttl=None)
        await store.cancel([kept])
        async with desk.worker(1):
            await asyncio.sleep(29)
            assert sum(pruned for _, _, pruned in steps) == 0
            await asyncio.sleep(3)
            assert sorted(store._tasks) == sorted([*waiting, kept])
        assert {limit for _, limit, _ in steps} == {TENDED}
        assert max(Counter(at for at, _, _ in steps).values()) <= ROUNDS
        busy = [at for at, _, pruned in steps if pruned]
        assert busy[-1] - busy[0] < 1.0  # it does not wait for its next turn while there is more

    in_virtual_time(main)
