"""A task that sleeps: it holds no worker, nothing is counted, and it goes on after its sleep."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bullpen import (
    AsyncWorkerPool,
    InvalidOption,
    InvalidStep,
    Job,
    Suspended,
    TaskFailed,
    TaskQueue,
    TaskStatus,
    WorkerPool,
    current_task,
)
from bullpen.errors import InvalidOptionType
from bullpen.tasks.model.context import CurrentTask
from bullpen.tasks.storage.memory import MemoryStorage
from bullpen.testing import ManualClock, run_until_empty
from tests.scenarios import process_tasks
from tests.stores import KINDS, new_store

calls: list[str] = []


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    calls.clear()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_800_000_000.0)


@pytest.fixture
def here(clock: ManualClock) -> Iterator[TaskQueue]:
    with TaskQueue(MemoryStorage(clock.monotonic), backoff=0) as queue:
        yield queue


def note(word: str) -> str:
    calls.append(word)
    return word


async def anote(word: str) -> str:
    return note(word)


@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize("store", ["memory", *KINDS])
def test_a_task_sleeps_and_goes_on(store: str, kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    def f() -> list[str]:
        task = current_task()
        words = [task.step(note, "before")]
        task.sleep(0.02)
        words.append(task.step(note, "between"))
        task.sleep(timedelta(seconds=0.02))
        return [*words, note("after")]

    async def af() -> list[str]:
        task = current_task()
        words = [await task.astep(anote, "before")]
        await task.asleep(0.02)
        words.append(await task.astep(note, "between"))
        await task.asleep(timedelta(seconds=0.02))
        return [*words, note("after")]

    with contextlib.ExitStack() as stack:
        address = "memory://" if store == "memory" else stack.enter_context(new_store(store, tmp_path, request))
        queue = stack.enter_context(TaskQueue(address))
        job = queue.task(name="f")(f if kind == "sync" else af).enqueue()
        with WorkerPool(queue, 2, poll_interval=0.05):
            assert job.result(timeout=30) == ["before", "between", "after"]
        info = job.info()
        assert info.attempt <= 3  # fewer if a store takes longer to keep a sleep than it lasts
        assert (info.failures, info.crashes, info.errors) == (0, 0, ())
    assert calls == ["before", "between", "after"]


@pytest.mark.anyio
async def test_a_task_in_a_process_sleeps() -> None:
    async with AsyncWorkerPool(process_tasks.plain, lanes="default:2@process", poll_interval=0.05):
        job = await process_tasks.sleeper.aenqueue(False)
        assert await job.aresult(timeout=30) == 2
        job = await process_tasks.sleeper.aenqueue(True)
        with pytest.raises(TaskFailed, match="caught the exception Suspended"):
            await job.aresult(timeout=30)


def test_a_sleeping_task_is_pending_until_its_time_and_survives_a_restart(here: TaskQueue, clock: ManualClock) -> None:
    @here.task(name="f", timeout=60)
    def f() -> str:
        current_task().sleep(3600)
        return "awake"

    job = f.enqueue()
    run_until_empty(here)
    assert job.status is TaskStatus.PENDING
    assert job.info().worker is None
    why = job.why()
    assert why.causes[0].kind == "sleeping"
    assert "it sleeps (step 'sleep'), and goes on in 3600.0 s" in str(why)
    assert job.info().eta.timestamp() == pytest.approx(clock.monotonic() + 3600, abs=1.0)
    clock.advance(3500)
    assert run_until_empty(here) == []
    clock.advance(101)
    run_until_empty(here)
    assert job.result(timeout=1) == "awake"


def test_a_sleep_until_an_instant_is_the_first_one_that_was_given(here: TaskQueue, clock: ManualClock) -> None:
    @here.task(name="f")
    def f() -> int:
        task = current_task()
        task.sleep(datetime.fromtimestamp(clock.monotonic() + 100, UTC))  # another one in each attempt
        return task.attempt

    job = f.enqueue()
    run_until_empty(here)
    clock.advance(101)
    run_until_empty(here)
    assert job.result(timeout=1) == 2


def test_a_time_that_is_over_does_not_end_the_attempt(here: TaskQueue) -> None:
    @here.task(name="f")
    def f() -> int:
        task = current_task()
        task.sleep(0)
        task.sleep(datetime(2000, 1, 1, tzinfo=UTC))
        return task.attempt

    job = f.enqueue()
    run_until_empty(here)
    assert job.result(timeout=1) == 1


def test_a_task_that_failed_after_a_sleep_does_not_sleep_again(here: TaskQueue, clock: ManualClock) -> None:
    @here.task(name="f", max_retries=1)
    def f() -> int:
        task = current_task()
        task.sleep(100)
        if task.failures == 0:
            raise ValueError
        return task.attempt

    job = f.enqueue()
    run_until_empty(here)
    clock.advance(101)
    run_until_empty(here)
    assert job.result(timeout=1) == 3


def test_it_runs_again_at_once_and_sleeps_on_if_its_worker_died_before_it_slept(
    here: TaskQueue, clock: ManualClock
) -> None:
    """The instant was kept, and the attempt was not settled."""

    @here.task(name="f")
    def f() -> int:
        task = current_task()
        if task.attempt == 1:
            with contextlib.suppress(Suspended):
                task.sleep(100)
            raise ConnectionError("the worker died")
        task.sleep(100)
        return task.attempt

    job = f.using(max_retries=1).enqueue()
    begun = clock.monotonic()
    run_until_empty(here)
    assert job.info().eta.timestamp() == pytest.approx(begun + 100, abs=1.0)
    clock.advance(101)
    run_until_empty(here)
    assert job.result(timeout=1) == 3


def test_expires_bounds_the_first_start_only(here: TaskQueue, clock: ManualClock) -> None:
    @here.task(name="f")
    def f() -> str:
        current_task().sleep(1000)
        return "awake"

    job = f.using(expires=10).enqueue()
    run_until_empty(here)
    clock.advance(1001)
    run_until_empty(here)
    assert job.result(timeout=1) == "awake"


def test_a_sleeper_keeps_its_place_in_order(here: TaskQueue, clock: ManualClock) -> None:
    @here.task(name="f", concurrency_key="one")
    def f(name: str) -> None:
        note(f"begin {name}")
        current_task().sleep(100)
        note(f"end {name}")

    here.set_limit("default", in_order=True)
    f.enqueue("a")
    f.enqueue("b")
    run_until_empty(here)
    assert calls == ["begin a"]
    for _ in range(3):
        clock.advance(101)
        run_until_empty(here)
    assert calls == ["begin a", "begin a", "end a", "begin b", "begin b", "end b"]


def test_the_next_run_of_an_interval_sleeps_again(here: TaskQueue, clock: ManualClock) -> None:
    @here.task(name="f")
    def f() -> None:
        current_task().sleep(100)
        note("awake")

    f.using(interval=10).enqueue()
    for _ in range(20):
        run_until_empty(here)
        clock.advance(56)
    assert len(calls) == 6  # a run takes two turns for its 100 s, and the next one begins a turn later


def test_a_cancelled_sleeper_does_not_wake(here: TaskQueue, clock: ManualClock) -> None:
    @here.task(name="f")
    def f() -> None:
        current_task().sleep(100)
        note("awake")

    job = f.enqueue()
    run_until_empty(here)
    assert job.cancel()
    clock.advance(101)
    run_until_empty(here)
    assert job.status is TaskStatus.CANCELLED
    assert calls == []


@pytest.mark.anyio
async def test_steps_that_run_end_before_the_task_sleeps() -> None:
    queue = TaskQueue("memory://")

    async def slow() -> str:
        await asyncio.sleep(0.05)
        return note("slow")

    @queue.task(name="f")
    async def f() -> str:
        task = current_task()
        async with asyncio.TaskGroup() as group:
            found = group.create_task(task.astep(slow))
            await asyncio.sleep(0)
            await task.asleep(0.3)
        return found.result()

    async with AsyncWorkerPool(queue, 2, poll_interval=0.05):
        job = await f.aenqueue()
        assert await job.aresult(timeout=30) == "slow"
        assert (await job.ainfo()).attempt == 2
    assert calls == ["slow"]


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_code_that_catches_the_suspension_fails_by_name(kind: str) -> None:
    with TaskQueue("memory://") as queue:

        @queue.task(name="f")
        def f() -> str:
            with contextlib.suppress(BaseException):
                current_task().sleep(100)
            return "nothing slept"

        @queue.task(name="af")
        async def af() -> str:
            with contextlib.suppress(BaseException):
                await current_task().asleep(100)
            return "nothing slept"

        job: Job[Any] = (f if kind == "sync" else af).enqueue()
        with (
            WorkerPool(queue, 2, poll_interval=0.05),
            pytest.raises(TaskFailed, match="caught the exception Suspended"),
        ):
            job.result(timeout=30)
        error = job.info().error
        assert error is not None
        assert error.type == "bullpen.errors.InvalidStep"


def sleep_in_a_step(task: CurrentTask) -> None:
    def nap() -> None:
        task.sleep(1)

    task.step(nap)


@pytest.mark.parametrize(
    ("problem", "kind", "words"),
    [
        (lambda task: task.sleep(-1), InvalidOption, "until must be ≥ 0 seconds"),
        (lambda task: task.sleep("later"), InvalidOptionType, "until must be a number of seconds"),
        (lambda task: task.sleep(datetime(2030, 1, 1)), InvalidOption, "a datetime with a time zone"),
        (sleep_in_a_step, InvalidStep, "it cannot begin inside another step (nap)"),
    ],
)
def test_bad_input_is_a_named_error(
    here: TaskQueue, problem: Callable[[CurrentTask], object], kind: type[Exception], words: str
) -> None:
    @here.task(name="f")
    def f() -> None:
        problem(current_task())

    f.enqueue()
    with pytest.raises(kind) as raised:
        run_until_empty(here, raises=True)
    assert words in str(raised.value)


def test_a_task_with_at_most_once_cannot_sleep(here: TaskQueue) -> None:
    @here.task(name="f", at_most_once=True)
    def f() -> None:
        current_task().sleep(1)

    f.enqueue()
    with pytest.raises(InvalidStep, match="starts only once, so it cannot sleep"):
        run_until_empty(here, raises=True)
