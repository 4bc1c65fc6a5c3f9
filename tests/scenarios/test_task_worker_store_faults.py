"""A store that fails at the worst moment: nothing is lost, nothing runs twice, and the worker comes back by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import pytest

from bullpen import primitives
from bullpen.errors import (
    NotABullpenFile,
    SchemaTooNew,
    StorageBusy,
    StorageCorrupt,
    StorageError,
    StorageFull,
    StorageUnavailable,
    TasksLeft,
)
from bullpen.tasks.model.context import current_task
from bullpen.tasks.model.task import PENDING, RUNNING, SUCCESS, Task
from bullpen.tasks.storage.memory import MemoryStorage
from bullpen.tasks.storage.port import Exchange
from bullpen.tasks.worker.worker_pool import AsyncWorkerPool
from bullpen.telemetry import Kind, TelemetryEvent
from tests.scenarios.support import Blocker
from tests.scenarios.task_worker_support import (
    Desk,
    OneLoopStorage,
    in_virtual_time,
    killed_at_end,
    statuses,
    until,
)

T = TypeVar("T")


class Counter:
    """A function that counts its runs by argument."""

    def __init__(self) -> None:
        self.runs: dict[int, int] = {}

    async def work(self, number: int) -> int:
        self.runs[number] = self.runs.get(number, 0) + 1
        await asyncio.sleep(0.01)
        return number


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("failures", [1, 3])
def test_each_task_runs_once_though_answers_are_lost(when: str, failures: int) -> None:
    """Undone, or done without an answer: the settlements are repeated, and the claim is asked for by its id."""

    async def main() -> None:
        desk = Desk(store := OneLoopStorage())
        counter, events = Counter(), list[TelemetryEvent]()
        name = desk.task(counter.work, "work")
        ids = [await desk.add(name, number) for number in range(30)]
        failing = store.fail_before if when == "before" else store.fail_after
        async with desk.worker(4, observer=events.append):
            for _ in range(5):
                await asyncio.sleep(0.05)
                failing["exchange"] = failures
                failing["find_claim"] = failures - 1
            await until(lambda: all(store._tasks[one].is_final for one in ids))
        assert set(counter.runs.values()) == {1}
        assert statuses(await store.get(ids)) == [SUCCESS] * 30
        assert store.most_running <= 4
        kinds = [event.kind for event in events]
        assert kinds.count(Kind.TASK_SUCCEEDED) == 30
        assert kinds.count(Kind.TASK_LOST) == 0
        assert kinds.count(Kind.STORE_LOST) == kinds.count(Kind.STORE_FOUND) >= 1

    in_virtual_time(main)


class ForgetfulStorage(OneLoopStorage):
    """Keeps nothing for longer than it must."""

    async def _call(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        async def then_forget() -> T:
            result = await call()
            await MemoryStorage.prune(self, limit=1000)
            return result

        return await super()._call(name, then_forget)


def test_what_a_store_has_forgotten_was_settled_though_the_answer_is_lost() -> None:
    async def main() -> None:
        desk = Desk(store := ForgetfulStorage())
        counter, events = Counter(), list[TelemetryEvent]()
        name = desk.task(counter.work, "work")
        for number in range(30):
            await desk.add(name, number, result_ttl=0.0)
        async with desk.worker(4, observer=events.append):
            while store._tasks:
                await asyncio.sleep(0.015)
                store.fail_after["exchange"] = 1
        assert set(counter.runs.values()) == {1}
        kinds = [event.kind for event in events]
        assert (kinds.count(Kind.TASK_SUCCEEDED), kinds.count(Kind.TASK_LOST)) == (30, 0)
        assert Kind.STORE_LOST in kinds

    in_virtual_time(main)


def test_pauses_grow_while_the_store_is_away_and_have_jitter() -> None:
    async def main() -> None:
        desk = Desk(store := OneLoopStorage())
        async with desk.worker(1, poll_interval=0.1):
            await asyncio.sleep(1)
            store.away = True
            gone = asyncio.get_running_loop().time()
            await asyncio.sleep(60)
            tries = [at - gone for name, at in store.calls if name in {"exchange", "find_claim"} and at > gone]
            assert 12 <= len(tries) <= 40  # not ten a second
            gaps = [later - earlier for earlier, later in zip(tries, tries[1:], strict=False)]  # noqa: RUF007
            assert max(gaps) <= 5.01
            assert len({round(gap, 4) for gap in gaps}) > len(gaps) / 2
            store.away = False
            name = desk.task(Counter().work, "work")
            task = await desk.ended(await desk.add(name, 1))
            assert task.status is SUCCESS

    in_virtual_time(main)


def test_what_ended_while_the_store_was_away_is_settled_when_it_is_back() -> None:
    async def main() -> None:
        desk = Desk(store := OneLoopStorage())
        let_go = asyncio.Event()

        async def work(number: int) -> int:
            await let_go.wait()
            return number

        name = desk.task(work)
        ids = [await desk.add(name, number) for number in range(3)]
        async with desk.worker(3) as worker:
            await until(lambda: worker.running == 3)
            store.away = True
            let_go.set()
            await asyncio.sleep(40)  # longer than their leases
            assert statuses([store._tasks[one] for one in ids]) == [RUNNING] * 3
            store.away = False
            await until(lambda: all(store._tasks[one].is_final for one in ids))
        tasks = [await desk.get(one) for one in ids]
        assert [(task.status, task.attempt, task.crashes) for task in tasks] == [(SUCCESS, 1, 0)] * 3

    in_virtual_time(main)


def test_a_claim_that_arrives_after_its_caller_has_gone_is_released() -> None:
    """The answer did not come, the store knew of no such claim, and then it was made after all."""

    class Late(OneLoopStorage):
        def __init__(self) -> None:
            super().__init__()
            self.delayed: dict[str, Any] | None = None
            self.delay_next = False

        async def exchange(self, settlements: Any, **kwargs: Any) -> Exchange:
            if self.delay_next and kwargs["limit"]:
                self.delay_next = False
                self.delayed = kwargs
                raise ConnectionError("cut off")
            return await super().exchange(settlements, **kwargs)

    async def main() -> None:
        desk = Desk(store := Late())
        counter = Counter()
        name = desk.task(counter.work, "work")
        async with desk.worker(1, poll_interval=1.0):
            await asyncio.sleep(3)
            await store.pause("default")
            store.delay_next = True
            task_id = await desk.add(name, 7)
            await until(lambda: store.delayed is not None and store.times("find_claim"))
            await asyncio.sleep(1)
            await store.resume("default")
            assert store.delayed is not None
            await super(Late, store).exchange([], **store.delayed)
            began = asyncio.get_running_loop().time()
            task = await desk.ended(task_id)
            assert asyncio.get_running_loop().time() - began <= 5  # not only when its lease is over
        assert (task.status, task.crashes, counter.runs) == (SUCCESS, 0, {7: 1})

    in_virtual_time(main)


def test_a_task_that_is_found_with_a_nearly_expired_lease_is_not_started() -> None:
    """The answer was lost, and the store away for so long that others may take the task at any moment."""

    async def main() -> None:
        desk = Desk(store := OneLoopStorage())
        starts = list[float]()

        async def work() -> None:
            starts.append(asyncio.get_running_loop().time())

        name = desk.task(work)
        async with desk.worker(1, lease=15):
            await asyncio.sleep(1)
            store.fail_after["exchange"] = 1
            task_id = await desk.add(name)
            await until(lambda: store._tasks[task_id].attempt == 1)
            store.away = True
            await asyncio.sleep(13)
            lease_until = store._tasks[task_id].lease_until
            assert lease_until is not None
            assert lease_until > store._now()
            store.away = False
            task = await desk.ended(task_id)
        assert (task.status, task.attempt, task.crashes) == (SUCCESS, 2, 0)
        assert len(starts) == 1

    in_virtual_time(main)


class OneOnly(MemoryStorage):
    """The second client, which is the heartbeat's, cannot be opened."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error
        self.opened = 0

    async def open(self) -> None:
        self.opened += 1
        if self.opened > 1:
            raise self.error


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError("too many connections"),
        StorageCorrupt("it is damaged", storage="jobs.db"),
        NotABullpenFile("it is not a database", storage="jobs.db"),
        SchemaTooNew(storage="jobs.db", found=99, known=1),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_heartbeat_that_cannot_open_the_store_stops_the_worker(error: Exception) -> None:
    async def main() -> None:
        worker = Desk(OneOnly(error)).worker(1)
        with pytest.raises(type(error)):
            await worker.run()
        assert str(worker.state) == "stopped"

    asyncio.run(main())


class Unclosable(MemoryStorage):
    async def close(self) -> None:
        raise OSError("it cannot be closed")


def test_a_worker_stops_though_its_store_cannot_be_closed(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        desk = Desk(Unclosable())
        worker = desk.worker(1)
        running = asyncio.create_task(worker.run())
        await until(lambda: str(worker.state) == "running")
        await asyncio.wait_for(worker.stop(), 30)
        with pytest.raises(OSError, match="it cannot be closed"):
            await running
        assert str(worker.state) == "stopped"

    asyncio.run(main())
    assert "the store cannot be closed (OSError: it cannot be closed)" in caplog.text


UNUSABLE = [
    StorageCorrupt("it is damaged", storage="jobs.db"),
    NotABullpenFile("it is not a database", storage="jobs.db"),
    SchemaTooNew(storage="jobs.db", found=99, known=1),
]


class Damaged(MemoryStorage):
    """Some verbs raise an error, from the time that a task is enqueued."""

    def __init__(self, error: Exception, *verbs: str) -> None:
        super().__init__()
        self.error = error
        self.verbs = verbs
        self.raised = 0
        self.is_damaged = False

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_") and name in object.__getattribute__(self, "__dict__").get("verbs", ()):
            return self._fail if self.is_damaged else super().__getattribute__(name)
        return super().__getattribute__(name)

    async def _fail(self, *args: Any, **kwargs: Any) -> Any:
        self.raised += 1
        raise self.error


@pytest.mark.parametrize("error", UNUSABLE, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("verb", ["exchange", "save_worker"])
def test_a_worker_ends_when_its_store_turns_out_to_be_unusable(error: Exception, verb: str) -> None:
    async def main() -> None:
        desk = Desk(store := Damaged(error, verb))
        worker = desk.worker(1, lease=0.3, poll_interval=0.05)
        running = asyncio.create_task(worker.run())
        await until(lambda: str(worker.state) == "running")
        store.is_damaged = True
        with pytest.raises(type(error)):
            await running
        assert str(worker.state) == "stopped"

    asyncio.run(main())


def test_a_worker_goes_on_if_only_its_maintenance_meets_damage() -> None:
    """Say if the table of the history is lost."""

    async def main() -> None:
        verbs = ("add_history", "prune", "expire")
        desk = Desk(store := Damaged(UNUSABLE[0], *verbs))
        counter = Counter()
        name = desk.task(counter.work, "work")
        store.is_damaged = True
        async with desk.worker(1) as worker:
            await until(lambda: store.raised > 1)
            assert (await desk.ended(await desk.add(name, 1))).status is SUCCESS
            assert str(worker.state) == "running"

    asyncio.run(main())


@pytest.mark.parametrize("kind", [StorageFull, StorageBusy, StorageUnavailable])
def test_a_worker_that_starts_on_a_full_disk_or_in_an_outage_goes_on(kind: type[StorageError]) -> None:
    async def main() -> None:
        desk = Desk(store := OneOnly(kind("not now", storage="jobs.db")))
        counter = Counter()
        name = desk.task(counter.work, "work")
        async with desk.worker(1, lease=0.3) as worker:
            await until(lambda: store.opened == 2)
            await asyncio.sleep(0.05)
            assert str(worker.state) == "running"
            assert (await desk.ended(await desk.add(name, 1))).status is SUCCESS
            (record,) = await store.workers()
            await until(lambda: store._workers[record.id].seen_at > record.seen_at)  # the heartbeat runs

    asyncio.run(main())


def test_a_store_that_never_answers_is_given_up_and_asked_again() -> None:
    class Hanging(OneLoopStorage):
        hangs = False

        async def exchange(self, settlements: Any, **kwargs: Any) -> Exchange:
            if self.hangs:
                await asyncio.sleep(1e9)
            return await super().exchange(settlements, **kwargs)

    async def main() -> None:
        desk = Desk(store := Hanging())
        counter = Counter()
        name = desk.task(counter.work, "work")
        async with desk.worker(1):
            await asyncio.sleep(1)
            store.hangs = True
            task_id = await desk.add(name, 1)
            await asyncio.sleep(30)
            store.hangs = False
            task = await desk.ended(task_id)
        assert (task.status, counter.runs) == (SUCCESS, {1: 1})

    in_virtual_time(main)


@pytest.mark.parametrize("call", ["get", "wait_for_work"])
def test_no_lane_waits_for_ever_for_one_answer(call: str) -> None:
    """A settlement is repeated, rejected, and the question what became of it is never answered; or a hint is not."""

    class Hanging(OneLoopStorage):
        hangs = 0

        async def _hang(self, name: str) -> None:
            if name == call and self.hangs:
                self.hangs -= 1
                await asyncio.sleep(1e9)

        async def get(self, *args: Any) -> Any:
            await self._hang("get")
            return await super().get(*args)

        async def wait_for_work(self, *args: Any) -> None:
            await self._hang("wait_for_work")
            await super().wait_for_work(*args)

    async def main() -> None:
        desk = Desk(store := Hanging())
        counter = Counter()
        name = desk.task(counter.work, "work")
        async with desk.worker(1, poll_interval=1.0):
            await desk.ended(await desk.add(name, 1))
            store.hangs = 1
            if call == "get":
                store.fail_after["exchange"] = 1
            first = await desk.add(name, 2)
            await asyncio.sleep(0.05)
            store.fail_after["exchange"] = 1 if call == "get" else 0
            second = await desk.add(name, 3)
            began = asyncio.get_running_loop().time()
            await until(lambda: store._tasks[first].is_final and store._tasks[second].is_final)
            assert asyncio.get_running_loop().time() - began <= 30
            assert store.hangs == 0

    in_virtual_time(main)


def test_a_worker_does_not_wait_for_ever_to_start() -> None:
    class Hanging(OneLoopStorage):
        async def save_worker(self, *_: Any) -> None:
            await asyncio.sleep(1e9)

    async def main() -> None:
        worker = Desk(Hanging()).worker(lease=15)
        with pytest.raises(TimeoutError, match=r"did not answer within 10 s"):
            await worker.start()
        assert str(worker.state) == "stopped"

    in_virtual_time(main)


def test_the_heartbeat_leaves_a_claim_alone_that_its_lane_still_asks_about() -> None:
    """Else it could release what the lane is about to start."""

    class Slow(OneLoopStorage):
        def __init__(self) -> None:
            super().__init__()
            self.asking, self.answer = asyncio.Event(), asyncio.Event()

        async def find_claim(self, claim_id: str) -> Any:
            found = await super().find_claim(claim_id)
            if not self.asking.is_set():
                self.asking.set()
                await self.answer.wait()
            return found

    async def main() -> None:
        desk = Desk(store := Slow())
        counter = Counter()
        name = desk.task(counter.work, "work")
        async with desk.worker(1, poll_interval=1.0):
            await asyncio.sleep(0.5)
            store.fail_after["exchange"] = 1
            task_id = await desk.add(name, 7)
            await store.asking.wait()
            await asyncio.sleep(4)  # upkeep passes several times
            assert (await desk.get(task_id)).status is RUNNING
            store.answer.set()
            task = await desk.ended(task_id)
        assert (task.status, task.attempt, counter.runs) == (SUCCESS, 1, {7: 1})

    in_virtual_time(main)


def test_tasks_that_are_left_while_the_store_is_away_are_reported() -> None:
    async def main() -> None:
        desk = Desk(store := OneLoopStorage())
        events = list[TelemetryEvent]()

        async def work() -> None:
            await asyncio.sleep(1e6)

        name = desk.task(work)
        task_id = await desk.add(name)
        worker = desk.worker(1, observer=events.append)
        await worker.start()
        await until(lambda: worker.running == 1)
        store.away = True
        await worker.stop(grace=0)
        assert [event.task for event in events if event.kind is Kind.TASK_LOST] == [task_id]

    in_virtual_time(main)


def test_a_run_that_ends_in_an_outage_says_what_it_has_left() -> None:
    async def main() -> None:
        desk = Desk(store := OneLoopStorage())

        async def work() -> None:
            await asyncio.sleep(1e6)

        task_id = await desk.add(desk.task(work))
        worker: AsyncWorkerPool = desk.worker(1)
        running = asyncio.ensure_future(worker.run())
        await until(lambda: worker.running == 1)
        store.away = True
        worker.begin_stop(grace=0)
        with pytest.raises(TasksLeft, match=f"left 1 task .{task_id}.: other workers run them again") as left:
            await running
        assert left.value.tasks == (task_id,)

    in_virtual_time(main)


def test_a_run_that_ends_in_an_outage_with_nothing_in_hand_ends_in_order() -> None:
    async def main() -> None:
        desk = Desk(store := OneLoopStorage())
        worker: AsyncWorkerPool = desk.worker(1)
        running = asyncio.ensure_future(worker.run())
        await until(lambda: worker.ready)
        store.away = True
        worker.begin_stop(grace=0)
        await running

    in_virtual_time(main)


def test_a_settlement_that_is_rejected_is_reported_as_lost() -> None:
    async def main() -> None:
        desk = Desk(store := OneLoopStorage())
        events = list[TelemetryEvent]()
        let_go = asyncio.Event()

        async def work() -> None:
            await let_go.wait()

        name = desk.task(work)
        task_id = await desk.add(name)
        async with desk.worker(1, observer=events.append) as worker:
            await until(lambda: worker.running == 1)
            task = await desk.get(task_id)
            from bullpen.tasks.model.task import cancel

            assert store._settle_task(cancel(task), 0.0)  # somebody else has ended this attempt
            let_go.set()
            await until(lambda: worker.running == 0)
        assert [event.kind for event in events if event.kind is Kind.TASK_LOST] == [Kind.TASK_LOST]
        assert str((await desk.get(task_id)).status) == "cancelled"

    in_virtual_time(main)


def test_a_worker_that_is_cut_off_stops_its_tasks_before_their_leases_end() -> None:
    async def main() -> None:
        desk = Desk(store := OneLoopStorage())
        stopped = list[float]()
        runs = list[int]()

        async def work() -> None:
            runs.append(1)
            try:
                await asyncio.sleep(1e6 if len(runs) == 1 else 0)
            except asyncio.CancelledError:
                stopped.append(asyncio.get_running_loop().time())
                raise

        name = desk.task(work)
        async with killed_at_end(desk.worker(1)) as worker:
            task_id = await desk.add(name)
            await until(lambda: worker.running == 1)
            await asyncio.sleep(20)
            store.away = True
            lease_until = store._tasks[task_id].lease_until
            assert lease_until is not None
            await until(lambda: stopped)
            assert lease_until - 3.5 <= stopped[0] + store.skew < lease_until
            await asyncio.sleep(30)
            store.away = False
            task = await desk.ended(task_id)
        assert (task.status, task.attempt, task.crashes, task.failures) == (SUCCESS, 2, 0, 0)  # nothing is counted

    in_virtual_time(main)


def test_a_function_on_a_thread_that_was_cut_off_counts_if_its_task_is_still_there() -> None:
    """It cannot be stopped, so nothing is won by giving it up: others would run it beside."""

    async def main() -> None:
        desk = Desk(store := OneLoopStorage())
        with Blocker() as blocker:
            told = list[bool]()

            def work() -> str:
                blocker()
                told.append(current_task().is_cancelled)
                return "after all"

            name = desk.task(work)
            async with desk.worker(1, lease=0.3) as worker:
                task_id = await desk.add(name)
                await until(lambda: worker.running == 1)
                store.away = True
                (attempt,) = worker._lanes[0].held.values()
                await until(lambda: attempt.interruption is not None)
                store.away = False
                blocker.release()
                task = await desk.ended(task_id)
        assert (task.status, task.attempt, told) == (SUCCESS, 1, [True])

    asyncio.run(main())


def test_many_tasks_that_end_at_once_leave_the_loop_running() -> None:
    """Thousands of unknown functions are put back one after the other; others get their turn meanwhile."""

    async def main() -> None:
        desk = Desk(store := MemoryStorage())
        for _ in range(500):
            await desk.add("unknown")
        turns = 0
        async with desk.worker(1):
            while any(task.attempt == 0 for task in store._tasks.values()):
                turns += 1
                await asyncio.sleep(0)
        assert turns > 100

    asyncio.run(main())


def test_an_outage_shorter_than_the_lease_is_not_noticed_by_tasks() -> None:
    async def main() -> None:
        desk = Desk(store := OneLoopStorage())
        counter = Counter()

        async def work() -> None:
            await counter.work(1)
            await asyncio.sleep(60)

        name = desk.task(work)
        async with desk.worker(1):
            task_id = await desk.add(name)
            await until(lambda: counter.runs)
            for _ in range(5):
                store.away = True
                await asyncio.sleep(6)
                store.away = False
                await asyncio.sleep(4)
            task = await desk.ended(task_id)
        assert (task.status, task.attempt) == (SUCCESS, 1)

    in_virtual_time(main)


def test_stop_ends_though_the_store_is_away() -> None:
    async def main() -> None:
        desk = Desk(store := OneLoopStorage())
        counter = Counter()
        name = desk.task(counter.work, "work")
        await desk.add(name, 1)
        worker = desk.worker(1)
        await worker.start()
        await until(lambda: counter.runs)
        store.away = True
        began = asyncio.get_running_loop().time()
        await worker.stop(grace=1)
        assert asyncio.get_running_loop().time() - began < 60
        assert str(worker.state) == "stopped"

    in_virtual_time(main)


def test_a_hint_that_comes_to_nothing_does_not_make_the_worker_spin() -> None:
    """A queue whose limit is reached has something due all the time."""
    from bullpen.tasks.storage.port import Limit

    async def main() -> None:
        desk = Desk(store := OneLoopStorage())
        let_go = asyncio.Event()

        async def work() -> None:
            await let_go.wait()

        name = desk.task(work)
        await store.set_limit(Limit(queue="default", max_running=1))
        ids = [await desk.add(name) for _ in range(3)]
        async with desk.worker(5, poll_interval=1.0) as worker:
            await until(lambda: worker.running == 1)
            before = len(store.times("exchange"))
            await asyncio.sleep(60)
            assert len(store.times("exchange")) - before <= 80
            let_go.set()
            await until(lambda: all(store._tasks[one].is_final for one in ids))

    in_virtual_time(main)


class HintingStorage(OneLoopStorage):
    """Says once that there may be work, and there is none."""

    hinted_at: float | None = None

    async def wait_for_work(self, *args: Any) -> None:
        if self.hinted_at is None:
            await asyncio.sleep(0.05)
            self.hinted_at = asyncio.get_running_loop().time()
        else:
            await super().wait_for_work(*args)


def test_after_one_hint_that_came_to_nothing_the_worker_listens_at_once() -> None:
    """Or what is enqueued just then would wait until the worker listens again."""

    async def main() -> None:
        desk = Desk(store := HintingStorage())
        async with desk.worker(1, poll_interval=1.0):
            await until(lambda: bool(store.times("wait_for_work")))
        assert store.times("wait_for_work")[0] == store.hinted_at

    in_virtual_time(main)


def test_a_lane_that_fails_stops_the_worker_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect of ours ends the worker in order; it does not leave half of one."""

    def fail(name: str) -> None:
        if name == "exchange.after":
            raise AssertionError("a defect")

    async def main() -> None:
        desk = Desk(OneLoopStorage())
        worker: AsyncWorkerPool = desk.worker(1)
        with pytest.raises(AssertionError, match="a defect"):
            await worker.run()
        assert str(worker.state) == "stopped"

    monkeypatch.setattr(primitives, "failpoint", fail)
    in_virtual_time(main)


def test_failures_of_the_observer_are_logged_and_harmless(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        desk = Desk(OneLoopStorage())

        def observe(event: TelemetryEvent) -> None:
            raise RuntimeError("no")

        name = desk.task(Counter().work, "work")
        async with desk.worker(1, observer=observe):
            task = await desk.ended(await desk.add(name, 1))
        assert task.status is SUCCESS

    in_virtual_time(main)
    assert "observer" in caplog.text


def test_released_and_pending_tasks_are_there_for_others() -> None:
    async def main() -> None:
        desk = Desk(store := OneLoopStorage())

        async def work() -> None:
            await asyncio.sleep(1e6)

        name = desk.task(work)
        task_id = await desk.add(name)
        worker = desk.worker(1)
        await worker.start()
        await until(lambda: worker.running == 1)
        await worker.stop(grace=0)
        task = store._tasks[task_id]
        assert (task.status, task.worker, task.lease_until) == (PENDING, None, None)

    in_virtual_time(main)


def test_a_worker_that_stops_while_it_asks_for_a_claim_releases_what_the_claim_has_got() -> None:
    class LosesClaims(OneLoopStorage):
        """The answer to a claim is lost, and the lane that asks for the claim gets no answer."""

        worker: AsyncWorkerPool

        async def find_claim(self, claim_id: str) -> Sequence[Task]:
            if asyncio.current_task() in self.worker._serving:
                await asyncio.sleep(1e6)
            return await super().find_claim(claim_id)

    async def main() -> None:
        desk = Desk(store := LosesClaims())

        async def work() -> None:
            await asyncio.sleep(1e6)

        task_id = await desk.add(desk.task(work))
        store.fail_after["exchange"] = 1
        store.worker = desk.worker(1)
        await store.worker.start()
        await until(lambda: store._tasks[task_id].status is RUNNING)
        await store.worker.stop(grace=0)
        task = await desk.get(task_id)
        assert (task.status, task.crashes) == (PENDING, 0)

    in_virtual_time(main)
