"""Tasks that run again and again: when, how often, and what becomes of times that nobody could keep.

Time is moved by hand: a task sleeps by moving the clock, and what is due runs when the test says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bullpen import (
    AsyncWorkerPool,
    InvalidOption,
    ScheduleBusy,
    ScheduleNotFound,
    TaskFailed,
    TaskQueue,
    TaskStatus,
    current_task,
)
from bullpen.tasks.model.task import Task
from bullpen.tasks.storage.memory import MemoryStorage
from bullpen.tasks.storage.open import open_storage
from bullpen.tasks.storage.port import Storage
from bullpen.tasks.storage.schedules import all_schedules, declare
from bullpen.tasks.storage.sqlite.store import SqliteStorage, storage_clock
from bullpen.tasks.worker import declarations, heartbeat
from bullpen.testing import ManualClock, run_until_empty, running
from tests.stores import KINDS, new_store

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0


class Desk:
    """A queue with its clock, and what its tasks have done."""

    def __init__(self, storage: Any = None) -> None:
        self.clock = ManualClock(NOON.timestamp())
        self.queue = TaskQueue(storage or MemoryStorage(self.clock.monotonic))
        self.ran: list[str] = []  # the time that each run was for, and when it began
        self.others: list[Desk] = []

    def __call__(self) -> None:
        """What the schedule runs."""
        at = current_task().scheduled_at
        self.ran.append(f"{'by hand' if at is None else f'{at:%H:%M}'} at {self.now:%H:%M}")

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self.clock.monotonic(), UTC)

    def task(self, function: Any = None, name: str = "job", **options: Any) -> Any:
        return self.queue.task(name=name, **options)(function or self)

    def start(self) -> list[str]:
        """What a worker does with schedules when it starts."""

        return asyncio.run(_declare(self.queue))

    def work(self, seconds: float = 0.0, step: float = MINUTE) -> list[str]:
        """Let workers work while the time passes; what has run since."""
        before = len(self.ran)
        run_until_empty(self.queue)
        for _ in range(round(seconds / step)):
            self.clock.advance(step)
            run_until_empty(self.queue)
        return self.ran[before:]

    def sleep(self, seconds: float) -> None:
        """Let no worker work while the time passes."""
        self.clock.advance(seconds)

    @property
    def only(self) -> Any:
        (schedule,) = self.queue.schedules.list()
        return schedule


@pytest.fixture(params=["memory", "sqlite"])
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    desk = Desk()
    if request.param == "sqlite":
        storage = SqliteStorage(tmp_path / "jobs.db", synchronous="normal", clock=storage_clock(desk.clock.monotonic))
        desk.queue = TaskQueue(storage)
    with desk.queue:
        yield desk
    for other in desk.others:
        other.queue.close()
    asyncio.run(desk.queue.storage.close())


def another(desk: Desk) -> Desk:
    """The same store, with other code."""
    other = Desk(desk.queue.storage)
    other.clock, other.ran, other.others = desk.clock, desk.ran, desk.others
    desk.others.append(other)
    return other


# Times.


def test_a_schedule_runs_at_its_times(desk: Desk) -> None:
    desk.task(cron="*/20 * * * *")
    desk.start()
    assert desk.work(HOUR) == ["12:20 at 12:20", "12:40 at 12:40", "13:00 at 13:00"]
    assert desk.only.completed_runs == 3


def test_a_time_zone_is_that_of_the_schedule(desk: Desk) -> None:
    desk.task(cron="30 22 * * *", timezone="Asia/Tokyo")
    desk.start()
    assert desk.work(DAY, step=30 * MINUTE) == ["13:30 at 13:30"]
    assert str(desk.only.next_run) == "2026-06-02 22:30:00+09:00"


def test_an_interval_is_counted_from_the_end_of_a_run(desk: Desk) -> None:
    def slow() -> None:
        desk()
        desk.sleep(10 * MINUTE)

    desk.task(slow, interval=15 * MINUTE)
    desk.start()
    assert desk.work(HOUR)[:3] == ["by hand at 12:00", "by hand at 12:25", "by hand at 12:50"]


def test_a_failed_run_is_tried_again_for_the_same_time_and_then_the_next_one_comes(desk: Desk) -> None:
    def fail() -> None:
        desk()
        raise ValueError("no")

    desk.task(fail, cron="0 * * * *", max_retries=1, backoff=MINUTE)
    desk.start()
    assert desk.work(2 * HOUR)[:3] == ["13:00 at 13:00", "13:00 at 13:03", "14:00 at 14:00"]
    assert desk.only.error.message == "no"


def test_a_schedule_may_be_told_to_end_with_a_failure(desk: Desk) -> None:
    def fail() -> None:
        desk()
        raise ValueError("no")

    desk.task(fail, cron="0 * * * *", on_failure="fail")
    desk.start()
    assert desk.work(3 * HOUR) == ["13:00 at 13:00"]
    (task,) = desk.queue.list()
    assert task.status is TaskStatus.FAILED
    desk.start()
    assert desk.work(3 * HOUR) == [], "a restart begins it again, though it was to end"


# Times that nobody could keep.


def test_missed_times_are_made_up_for_once_and_for_the_latest_time(desk: Desk) -> None:
    desk.task(cron="0 * * * *")
    desk.start()
    desk.sleep(5 * HOUR + 30 * MINUTE)
    assert desk.work(HOUR) == ["17:00 at 17:30", "18:00 at 18:00"]


def test_a_year_without_workers_costs_one_run(desk: Desk) -> None:
    desk.task(cron="* * * * *")
    desk.start()
    desk.sleep(365 * DAY)
    assert desk.work() == ["12:00 at 12:00"]


def test_missed_times_may_be_skipped(desk: Desk) -> None:
    desk.task(cron="0 * * * *", misfire="skip")
    desk.start()
    desk.sleep(5 * HOUR + 30 * MINUTE)
    assert desk.work(HOUR) == ["18:00 at 18:00"]


def test_a_run_that_is_a_little_late_was_not_missed(desk: Desk) -> None:
    desk.task(cron="0 * * * *", misfire="skip", misfire_grace=10 * MINUTE)
    desk.start()
    desk.sleep(HOUR + 9 * MINUTE)
    assert desk.work() == ["13:00 at 13:09"]
    desk.sleep(HOUR + 2 * MINUTE)
    assert desk.work() == []


def test_a_retry_is_never_too_late(desk: Desk) -> None:
    def fail() -> None:
        desk()
        if current_task().failures == 0:
            raise ValueError("no")

    desk.task(fail, cron="0 0 * * *", misfire="skip", max_retries=1, backoff=5 * MINUTE)
    desk.start()
    desk.sleep(12 * HOUR)
    desk.work()
    desk.sleep(8 * HOUR)
    assert desk.work() == ["00:00 at 08:00"]


# Times that come while it runs.


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [
        ("skip", ["12:10 at 12:10", "12:40 at 12:40", "13:10 at 13:10", "13:20 at 13:20"]),
        ("queue", ["12:10 at 12:10", "12:30 at 12:35", "13:00 at 13:00", "13:10 at 13:10"]),
    ],
)
def test_times_that_come_during_a_run(overlap: Any, expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    monkeypatch.setattr(running._InlineLoop, "time", desk.clock.monotonic)  # of whoever runs it

    def slow() -> None:
        desk()
        if len(desk.ran) <= 2:
            desk.sleep(25 * MINUTE)

    desk.task(slow, cron="*/10 * * * *", overlap=overlap)
    desk.start()
    assert desk.work(30 * MINUTE)[: len(expected)] == expected


def test_runs_that_may_overlap_are_tasks_of_their_own(desk: Desk) -> None:
    desk.task(cron="*/20 * * * *", overlap="allow", max_retries=2)
    desk.start()
    assert desk.work(HOUR) == ["12:20 at 12:20", "12:40 at 12:40", "13:00 at 13:00"]
    tasks = [task for task in desk.queue.list() if task.status is TaskStatus.SUCCESS]
    assert len(tasks) == 3
    assert {task.max_retries for task in tasks} == {2}
    assert desk.only.completed_runs == 3


def test_a_run_of_its_own_is_started_once_however_often_it_is_tried(desk: Desk) -> None:
    from bullpen.tasks.model.schedule_changes import occurrence

    desk.task(cron="*/20 * * * *", overlap="allow")
    desk.start()
    desk.sleep(20 * MINUTE)

    async def claim() -> Task:
        async with desk.queue:
            storage = await desk.queue.astorage()
            exchange = await storage.exchange([], worker="w", queues=["default"], limit=1, lease=1.0, claim_id="c")
            (task,) = exchange.claimed
            await storage.add([occurrence(task)])  # and then it dies
            await storage.rescue_expired(_taken_back, limit=1, dead_workers=["w"])
            return task

    asyncio.run(claim())
    assert desk.work() == ["12:20 at 12:20"]


def _taken_back(task: Task, now: float) -> Any:
    from bullpen.tasks.model.task import AttemptError, crash

    return crash(task, AttemptError(kind="crash", attempt=task.attempt, at=now))


def test_no_time_comes_twice_when_the_clock_is_turned_back(desk: Desk) -> None:
    desk.task(cron="*/10 * * * *")
    desk.start()
    assert desk.work(30 * MINUTE) == ["12:10 at 12:10", "12:20 at 12:20", "12:30 at 12:30"]
    desk.clock._now -= 25 * MINUTE
    assert desk.work(HOUR)[0] == "12:40 at 12:40"


# What people do.


def test_a_paused_schedule_does_not_run_and_makes_up_for_nothing(desk: Desk) -> None:
    desk.task(cron="0 * * * *")
    desk.start()
    assert desk.queue.schedules.pause("job") is True
    assert desk.queue.schedules.pause("job") is False
    assert (desk.only.paused, desk.only.next_run) == (True, None)
    desk.start()
    assert desk.work(3 * HOUR) == []
    assert desk.queue.schedules.resume("job") is True
    assert desk.queue.schedules.resume("job") is False
    assert desk.work(HOUR) == ["16:00 at 16:00"]


def test_a_schedule_that_is_paused_while_it_runs_does_not_go_on(desk: Desk) -> None:
    def pausing() -> None:
        desk()
        desk.queue.schedules.pause("job")

    desk.task(pausing, cron="0 * * * *")
    desk.start()
    assert desk.work(3 * HOUR) == ["13:00 at 13:00"]
    desk.queue.schedules.resume("job")
    assert desk.work(HOUR) == ["16:00 at 16:00"]


def test_a_run_by_hand_does_not_move_the_times(desk: Desk) -> None:
    desk.task(cron="0 * * * *")
    desk.start()
    desk.sleep(30 * MINUTE)
    job = desk.queue.schedules.run("job")
    assert job.is_new
    assert desk.work(HOUR) == ["by hand at 12:30", "13:00 at 13:00"]


def test_a_paused_schedule_can_be_run_by_hand_and_stays_paused(desk: Desk) -> None:
    desk.task(cron="0 * * * *")
    desk.start()
    desk.queue.schedules.pause("job")
    desk.queue.schedules.run("job")
    assert desk.work(3 * HOUR) == ["by hand at 12:00"]
    assert desk.only.paused


def test_next_times_are_shown_by_the_clock_of_the_schedule(desk: Desk) -> None:
    desk.task(cron="30 2 * * *", timezone="Europe/Berlin")
    desk.task(name="often", interval=60)
    desk.start()
    times = desk.queue.schedules.next_times("job", 2)
    assert [f"{at:%d. %H:%M %Z}" for at in times] == ["02. 02:30 CEST", "03. 02:30 CEST"]
    assert desk.queue.schedules.next_times("often", 9) == [NOON]
    assert str(desk.queue.schedules.get("job")) == (
        "job: At 02:30 every day (Europe/Berlin), next 2026-06-02 02:30:00 CEST"
    )
    desk.queue.schedules.pause("job")
    assert desk.queue.schedules.next_times("job") == []
    with pytest.raises(InvalidOption, match="count"):
        desk.queue.schedules.next_times("job", 0)


def test_a_key_that_is_not_there_is_told_with_the_one_that_is_meant(desk: Desk) -> None:
    desk.task(name="cleanup", cron="@daily")
    desk.start()
    with pytest.raises(ScheduleNotFound, match="do you mean 'cleanup'") as raised:
        desk.queue.schedules.pause("cleanupp")
    assert raised.value.known == ("cleanup",)


# One of each.


def test_restarts_and_many_workers_do_not_multiply_a_schedule(desk: Desk) -> None:
    desk.task(cron="*/20 * * * *")
    for _ in range(5):
        desk.start()
        another_worker = another(desk)
        another_worker.task(cron="*/20 * * * *")
        another_worker.start()
        desk.work(10 * MINUTE)
    assert desk.ran == ["12:20 at 12:20", "12:40 at 12:40"]
    assert len(desk.queue.list()) == 1


def test_a_restart_keeps_past_and_future_times(desk: Desk) -> None:
    """A worker that is down at the very time, or starts often, does not put it off."""
    desk.task(cron="0 * * * *")
    desk.start()
    for _ in range(13):
        desk.sleep(5 * MINUTE)
        desk.start()
    assert desk.work() == ["13:00 at 13:05"]


def test_a_changed_schedule_has_its_new_times_and_its_history(desk: Desk) -> None:
    desk.task(cron="0 * * * *")
    desk.start()
    desk.work(HOUR)
    newer = another(desk)
    newer.task(cron="15 * * * *", timezone="UTC", priority=7)
    newer.start()
    assert newer.work(HOUR) == ["13:15 at 13:15"]
    assert (newer.only.cron, newer.only.completed_runs) == ("15 * * * *", 2)
    assert newer.queue.list()[0].priority == 7


def test_a_schedule_that_is_changed_while_it_runs_goes_on_with_its_new_times(desk: Desk) -> None:
    newer = another(desk)
    newer.task(cron="15 * * * *")

    def changing() -> None:
        desk()
        if len(desk.ran) == 1:
            asyncio.run(_declare(newer.queue))

    desk.task(changing, cron="0 0 1 1 *")
    desk.start()
    desk.queue.schedules.run("job")
    assert desk.work(2 * HOUR) == ["by hand at 12:00", "12:15 at 12:15", "13:15 at 13:15"]


async def _declare(queue: TaskQueue) -> list[str]:
    async with queue:
        storage = await queue.astorage()
        wanted = [task for each in queue.registry if (task := each.scheduled(await storage.now()))]
        return await declare(storage, wanted, queue.registry.names())


def test_a_schedule_that_is_taken_out_of_the_code_ends(desk: Desk) -> None:
    desk.task(cron="0 * * * *")
    desk.task(name="other", cron="0 * * * *")
    desk.start()
    newer = another(desk)
    newer.task()
    newer.start()
    assert [schedule.key for schedule in newer.queue.schedules.list()] == ["other"], "of a function it does not know"
    newer.queue.schedules.remove("other")
    assert newer.work(2 * HOUR) == []


def test_a_schedule_that_comes_back_begins_again(desk: Desk) -> None:
    desk.task(cron="0 * * * *")
    desk.start()
    without = another(desk)
    without.task()
    without.start()
    desk.start()
    assert desk.work(HOUR) == ["13:00 at 13:00"]


def test_a_schedule_may_move_to_another_queue_but_not_while_it_runs(desk: Desk) -> None:
    desk.task(cron="0 * * * *")
    desk.start()
    desk.queue.schedules.pause("job")
    newer = another(desk)
    newer.task(cron="0 * * * *", queue="slow")
    assert newer.start() == []
    assert (newer.only.queue, newer.only.paused) == ("slow", True)
    newer.queue.schedules.resume("job")
    waiting: list[list[str]] = []

    def moving() -> None:
        desk()
        waiting.append(asyncio.run(_declare(desk.queue)))

    last = another(desk)
    last.task(moving, cron="0 * * * *", queue="slow")
    assert last.work(HOUR) == ["13:00 at 13:00"]
    assert waiting == [["job"]]
    assert last.only.queue == "slow"


def test_what_a_function_is_declared_with_cannot_be_removed_but_where_it_is(desk: Desk) -> None:
    desk.task(cron="0 * * * *")
    desk.start()
    with pytest.raises(InvalidOption, match="take cron= or interval= out of job, or pause it"):
        desk.queue.schedules.remove("job")
    assert desk.only.declared


def test_a_call_of_a_function_with_a_schedule_is_one_call(desk: Desk) -> None:
    job = desk.task(cron="0 * * * *")
    job.enqueue()
    assert desk.work(2 * HOUR) == ["by hand at 12:00"]


# By calls.


def test_a_call_with_a_key_makes_one_schedule_and_changes_it_later(desk: Desk) -> None:
    seen: list[tuple[str, str]] = []

    def report(tenant: str) -> None:
        seen.append((tenant, f"{desk.now:%H:%M}"))

    job = desk.task(report)
    first = job.using(cron="0 * * * *", schedule_key="tenant-42").enqueue("a")
    again = job.using(cron="0 * * * *", schedule_key="tenant-42").enqueue("b")
    other = job.using(cron="30 * * * *", schedule_key="tenant-43").enqueue("c")
    assert (first.is_new, again.is_new, other.is_new) == (True, False, True)
    assert first.id == again.id
    desk.work(HOUR)
    assert seen == [("c", "12:30"), ("b", "13:00")]
    job.using(cron="45 * * * *", schedule_key="tenant-42").enqueue("d")
    desk.queue.schedules.remove("tenant-43")
    desk.work(HOUR)
    assert seen[2:] == [("d", "13:45")]
    assert [schedule.key for schedule in desk.queue.schedules.list()] == ["tenant-42"]


def test_a_schedule_that_was_removed_can_be_made_again(desk: Desk) -> None:
    job = desk.task()
    timed = job.using(cron="0 * * * *", schedule_key="k")
    timed.enqueue()
    desk.queue.schedules.remove("k")
    assert timed.enqueue().is_new
    assert desk.work(HOUR) == ["13:00 at 13:00"]


def test_a_call_without_a_key_makes_a_schedule_each_time(desk: Desk) -> None:
    job = desk.task().using(cron="0 * * * *")
    first, second = job.enqueue(), job.enqueue()
    assert {schedule.key for schedule in desk.queue.schedules.list()} == {first.id, second.id}
    assert desk.queue.schedules.pause(first.id)
    assert desk.work(HOUR) == ["13:00 at 13:00"]


def test_one_key_cannot_stand_for_many_calls(desk: Desk) -> None:
    job = desk.task(lambda number: None).using(cron="0 * * * *", schedule_key="k")
    with pytest.raises(InvalidOption, match="one call only"):
        job.enqueue_many([(1,), (2,)])
    assert desk.queue.schedules.list() == []


def test_a_key_of_a_running_schedule_cannot_take_it_to_another_queue(desk: Desk) -> None:
    rejected: list[ScheduleBusy] = []

    def moving() -> None:
        try:
            job.using(interval=60, schedule_key="k", queue="other").enqueue()
        except ScheduleBusy as error:
            rejected.append(error)

    job = desk.task(moving)
    job.using(interval=60, schedule_key="k").enqueue()
    desk.work()
    assert [error.key for error in rejected] == ["k"]


# By workers.


@pytest.mark.anyio
async def test_workers_bring_the_schedules_of_their_functions() -> None:
    queue = TaskQueue("memory://")
    ran: list[datetime | None] = []

    @queue.task(cron="* * * * * *", name="tick")
    async def tick() -> str:
        ran.append(current_task().scheduled_at)
        return "tack"

    async with queue, AsyncWorkerPool(queue), AsyncWorkerPool(queue), AsyncWorkerPool(queue):
        assert await queue.job((await queue.schedules.aget("tick")).id).aresult(timeout=30) == "tack"
        await (await queue.schedules.arun("tick")).aresult(timeout=30)
        assert await queue.schedules.apause("tick")
        assert await queue.schedules.anext_times("tick") == []
        assert await queue.schedules.aresume("tick")
        (schedule,) = await queue.schedules.alist()
        assert schedule.declared
    times = [at for at in ran if at is not None]
    assert len(times) == len(set(times)) >= 1
    assert all(at.microsecond == 0 for at in times)


@pytest.mark.anyio
async def test_the_schedule_of_a_renamed_function_replaces_the_one_under_its_alias() -> None:
    storage = MemoryStorage()
    before, after = TaskQueue(storage), TaskQueue(storage)
    before.task(cron="@yearly", name="old")(lambda: None)
    after.task(cron="@yearly", name="new", aliases=["old"])(lambda: None)
    for queue in (before, after):
        async with AsyncWorkerPool(queue):
            assert [one.key for one in await queue.schedules.alist()] == [queue.registry.names()[0]]


@pytest.mark.anyio
async def test_a_declared_schedule_that_goes_missing_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declarations, "LOOK_EVERY", 0.05)
    monkeypatch.setattr(heartbeat, "UPKEEP_EVERY", 0.02)
    queue = TaskQueue("memory://")
    queue.task(cron="@yearly", name="job")(lambda: None)
    async with queue, AsyncWorkerPool(queue):
        job = (await queue.schedules.alist())[0].id
        await queue.acancel(job)
        await queue.apurge(all=True)
        async with asyncio.timeout(30):
            while not await queue.schedules.alist():  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_a_schedule_that_new_code_has_in_another_queue_is_not_brought_back_by_old_code(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(declarations, "LOOK_EVERY", 0.0)

    def code(queue_name: str) -> declarations.DeclaredSchedules:
        queue = TaskQueue("memory://")
        queue.task(cron="@yearly", name="job", queue=queue_name)(lambda: None)
        return declarations.DeclaredSchedules(queue.registry, "worker")

    async def deploy(store: Storage, other: Storage) -> list[Task]:
        old, new = code("old"), code("new")
        try:
            await old.declare(store)
            await new.declare(other)
            await old.look(store)
            return await all_schedules(store)
        finally:
            await store.close()
            await other.close()

    with new_store(kind, tmp_path, request) as url:
        assert [task.queue for task in asyncio.run(deploy(open_storage(url), open_storage(url)))] == ["new"]


@pytest.mark.anyio
async def test_a_caller_that_waits_for_a_schedule_gets_the_failure_that_ended_it() -> None:
    queue = TaskQueue("memory://")

    @queue.task(name="job")
    async def job() -> None:
        raise ValueError("no")

    async with queue, AsyncWorkerPool(queue):
        running = await job.using(interval=60).aenqueue()
        with pytest.raises(TaskFailed):
            await running.aresult(timeout=30)


def test_a_schedule_does_not_begin_before_its_first_time(desk: Desk) -> None:
    desk.task().using(interval=60, delay=timedelta(minutes=5), schedule_key="k").enqueue()
    assert desk.work(5 * MINUTE) == ["by hand at 12:05"]
