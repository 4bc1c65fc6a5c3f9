"""A task waits for an event: it holds no worker, nothing is counted, and every attempt gets the same payload."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from bullpen import (
    RESULT,
    AsyncWorkerPool,
    InvalidEvent,
    InvalidOption,
    InvalidStep,
    NoCurrentTask,
    Retry,
    StepMismatch,
    Suspended,
    TaskFailed,
    TaskQueue,
    TaskStatus,
    WorkerPool,
    chain,
    current_task,
)
from bullpen.errors import InvalidOptionType
from bullpen.tasks.model.context import CurrentTask
from bullpen.tasks.model.task import Task
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


@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize("first", ["event", "wait"])
@pytest.mark.parametrize("store", ["memory", *KINDS])
def test_a_task_waits_for_an_event_and_goes_on(
    store: str, first: str, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    def f(order: int) -> list[Any]:
        task = current_task()
        task.step(note, "before")
        answer = task.wait_event(f"approved:{order}", timeout=timedelta(days=7))
        return [answer, task.step(note, "after"), task.wait_event("never", timeout=0.01)]

    async def af(order: int) -> list[Any]:
        task = current_task()
        await task.astep(note, "before")
        answer = await task.await_event(f"approved:{order}", timeout=timedelta(days=7))
        return [answer, await task.astep(note, "after"), await task.await_event("never", timeout=0.01)]

    with contextlib.ExitStack() as stack:
        address = "memory://" if store == "memory" else stack.enter_context(new_store(store, tmp_path, request))
        queue = stack.enter_context(TaskQueue(address))
        function = queue.task(name="f")(f if kind == "sync" else af)
        if first == "event":
            assert queue.emit("approved:42", {"by": "ada"}) is True
        job = function.enqueue(42)
        with WorkerPool(queue, 2, poll_interval=0.05):
            if first == "wait":
                wait_until_it_waits(queue, "approved:42")
                assert queue.emit("approved:42", {"by": "ada"}) is True
            assert job.result(timeout=30) == [{"by": "ada"}, "after", None]
        assert queue.emit("approved:42", {"by": "bob"}) is False
        info = job.info()
        assert (info.failures, info.crashes, info.errors, info.awaits) == (0, 0, (), None)
        assert [(step.name, step.event) for step in info.steps] == [
            ("note", None),
            ("event approved:42", "approved:42"),
            ("note#2", None),
            ("event never", "never"),
        ]
    assert calls == ["before", "after"]


def wait_until_it_waits(queue: TaskQueue, event: str, count: int = 1) -> None:
    pause = threading.Event()
    for _ in range(3000):
        if queue.count(awaits=event) == count:
            return
        pause.wait(0.01)
    raise AssertionError(f"nobody waits for {event}")


@pytest.mark.anyio
async def test_a_task_in_a_process_waits_for_an_event() -> None:
    payload = {"text": "ü" * 100_000}  # more than fits into a datagram
    async with AsyncWorkerPool(process_tasks.plain, lanes="default:2@process", poll_interval=0.05):
        job = await process_tasks.waiter.aenqueue("from the process")
        await process_tasks.plain.aemit("from the process", payload)
        assert await job.aresult(timeout=30) == payload


def test_a_wait_says_since_when_and_until_when(here: TaskQueue) -> None:
    @here.task(name="f")
    def f(timeout: float | None) -> Any:
        return current_task().wait_event("approved:42", timeout=timeout)

    limited, unlimited = f.enqueue(3600.0), f.enqueue(None)
    run_until_empty(here)
    why = limited.why()
    assert why.causes[0].kind == "event"
    assert "it waits for the event approved:42 since 2027-01-15 08:00:00 UTC, until 2027-01-15 09:00:0" in str(why)
    assert "it waits for the event approved:42 since 2027-01-15 08:00:00 UTC, without a limit" in str(unlimited.why())
    wait = limited.info().awaits
    assert wait is not None
    assert wait.until is not None
    assert (wait.event, round((wait.until - wait.since).total_seconds())) == ("approved:42", 3600)
    assert limited.info().worker is None
    assert [info.id for info in here.list(awaits=True)] == [limited.id, unlimited.id]
    assert here.list(awaits="another") == []


def test_when_the_time_is_over_the_answer_is_none_and_stays_none(here: TaskQueue, clock: ManualClock) -> None:
    fails = [True]

    @here.task(name="f", max_retries=1)
    def f() -> Any:
        answer = current_task().wait_event("late", timeout=60)
        if fails.pop():
            fails.append(False)
            raise Retry
        return [answer, current_task().attempt]

    job = f.enqueue()
    run_until_empty(here)
    clock.advance(61)
    run_until_empty(here)  # the first attempt after the wait fails
    here.emit("late", 1)
    run_until_empty(here)
    assert job.result(timeout=1) == [None, 3]


def test_a_payload_is_the_same_in_every_attempt_even_if_the_event_is_gone(here: TaskQueue, clock: ManualClock) -> None:
    @here.task(name="f", max_retries=1)
    def f() -> Any:
        task = current_task()
        answer = task.wait_event("approved")
        task.sleep(3600)
        if not task.failures:
            raise Retry
        return [answer, task.wait_event("approved", timeout=5)]

    job = f.enqueue()
    run_until_empty(here)
    here.emit("approved", 1, ttl=60)
    run_until_empty(here)
    clock.advance(3601)
    asyncio.run(_prune(here))
    assert here.emit("approved", 2) is True  # another one, after the time to live of the first
    run_until_empty(here)
    assert job.result(timeout=1) == [1, 2]


async def _prune(queue: TaskQueue) -> None:
    storage = await queue.astorage()
    await storage.prune(limit=10)
    await queue.aclose()


def test_an_event_of_one_task_reaches_no_other(here: TaskQueue) -> None:
    @here.task(name="f")
    def f() -> Any:
        return current_task().wait_event("approved", own=True, timeout=3600)

    first, second = f.enqueue(), f.enqueue()
    run_until_empty(here)
    here.emit("approved", "for all")
    assert first.emit("approved", "for the first") is True
    run_until_empty(here)
    assert first.result(timeout=1) == "for the first"
    assert second.status is TaskStatus.PENDING
    here.emit(f"{second.id}:approved", "by its full name")
    run_until_empty(here)
    assert second.result(timeout=1) == "by its full name"


def test_a_cancelled_wait_ends_and_a_retry_looks_for_the_event(here: TaskQueue) -> None:
    @here.task(name="f")
    def f() -> Any:
        return current_task().wait_event("approved")

    job = f.enqueue()
    run_until_empty(here)
    assert job.cancel()
    here.emit("approved", 1)
    assert run_until_empty(here) == []
    assert job.status is TaskStatus.CANCELLED
    here.retry(job.id)
    run_until_empty(here)
    assert job.result(timeout=1) == 1


def test_a_retry_from_a_wait_waits_again(here: TaskQueue, clock: ManualClock) -> None:
    @here.task(name="f")
    def f() -> Any:
        if current_task().wait_event("approved", timeout=60) != "yes":
            raise ValueError
        return "done"

    job = f.enqueue()
    run_until_empty(here)
    clock.advance(61)
    run_until_empty(here)
    assert job.status is TaskStatus.FAILED
    here.retry(job.id)
    run_until_empty(here)
    assert job.status is TaskStatus.FAILED  # the outcome is kept
    here.retry(job.id, from_step="event approved")
    run_until_empty(here)
    assert job.info().awaits is not None
    here.emit("approved", "yes")
    run_until_empty(here)
    assert job.result(timeout=1) == "done"


def test_two_waits_at_once_get_both_events(here: TaskQueue) -> None:
    @here.task(name="f")
    async def f() -> list[Any]:
        task = current_task()
        async with asyncio.TaskGroup() as group:
            first = group.create_task(task.await_event("a"))
            second = group.create_task(task.await_event("b"))
        return [first.result(), second.result()]

    job = f.enqueue()
    run_until_empty(here)
    here.emit("b", 2)
    run_until_empty(here)
    here.emit("a", 1)
    run_until_empty(here)
    assert job.result(timeout=1) == [1, 2]


def test_the_next_run_of_an_interval_waits_anew(here: TaskQueue, clock: ManualClock) -> None:
    @here.task(name="f")
    def f() -> Any:
        task = current_task()
        return note(task.wait_event(f"run {task.info.completed_runs}"))

    f.using(interval=100).enqueue()
    for number in range(2):
        run_until_empty(here)
        here.emit(f"run {number}", str(number))
        run_until_empty(here)
        clock.advance(101)
    assert calls == ["0", "1"]


def test_a_chain_goes_on_after_a_wait(here: TaskQueue) -> None:
    @here.task(name="first")
    def first() -> Any:
        return current_task().wait_event("approved")

    @here.task(name="second")
    def second(answer: Any) -> Any:
        return [answer, current_task().wait_event("shipped")]

    job = chain(first.call(), second.call(RESULT)).enqueue()
    run_until_empty(here)
    here.emit("shipped", 2)
    assert run_until_empty(here) == []
    here.emit("approved", 1)
    run_until_empty(here)
    assert job.result(timeout=1) == [1, 2]


def test_a_task_that_waits_keeps_its_place_in_order(here: TaskQueue) -> None:
    here.set_limit(in_order=True)

    @here.task(name="f", concurrency_key="k")
    def f(number: int) -> None:
        if number == 0:
            current_task().wait_event("approved")
        note(str(number))

    for number in range(2):
        f.enqueue(number)
    run_until_empty(here)
    assert calls == []
    here.emit("approved")
    run_until_empty(here)
    assert calls == ["0", "1"]


def test_programs_wait_for_events(here: TaskQueue) -> None:
    here.emit("ready", [1])
    assert here.wait_event("ready") == [1]
    assert here.wait_event("never", timeout=0.01) is None


# Bad input.


def test_a_payload_that_cannot_be_kept_is_rejected_and_nothing_is_emitted() -> None:
    with TaskQueue("memory://", max_payload=100) as queue:
        with pytest.raises(
            InvalidEvent, match=r"event 'e': the payload is 103 bytes, and at most 100 are kept"
        ) as large:
            queue.emit("e", "x" * 101)
        assert large.value.event == "e"
        with pytest.raises(InvalidEvent, match="event 'e': the payload"):
            queue.emit("e", object())
        assert queue.emit("e", "small") is True


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb", "\0", "\ud800"])
def test_a_name_that_is_no_name_is_rejected(here: TaskQueue, name: str) -> None:
    with pytest.raises(InvalidOption, match="name must be a string of 1 to 200 printable characters"):
        here.emit(name)
    with pytest.raises(InvalidOption):
        here.wait_event(name, timeout=0)
    with pytest.raises(InvalidOption):
        here.job("some-id").emit(name)


def test_other_bad_input_is_rejected_by_name(here: TaskQueue) -> None:
    with pytest.raises(InvalidOptionType, match="name"):
        here.emit(42)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="ttl"):
        here.emit("e", ttl=0)
    with pytest.raises(InvalidOption, match="timeout"):
        here.wait_event("e", timeout=-1)
    with pytest.raises(InvalidOptionType, match="awaits"):
        here.list(awaits=False)  # type: ignore[arg-type]


def test_a_wait_outside_a_task_is_rejected() -> None:
    with pytest.raises(NoCurrentTask):
        current_task().wait_event("e")
    with pytest.raises(NoCurrentTask, match="no worker runs this task here"):
        CurrentTask(Task(id="t", func_path="f", payload=b"")).wait_event("e")


@pytest.mark.parametrize(
    ("case", "problem"),
    [
        ("at_most_once", "a task with at_most_once starts only once, so it cannot sleep or wait"),
        ("nested", "it cannot begin inside another step"),
        ("swallowed", "step 'event e': the function caught the exception Suspended"),
        ("loop", "an event loop runs here: await task.await_event"),
        ("timeout", "timeout"),
        ("name", "name must be a string of 1 to 200 printable characters"),
    ],
)
def test_a_wait_that_cannot_be_is_rejected_by_name(here: TaskQueue, case: str, problem: str) -> None:
    def plain() -> None:
        task = current_task()
        if case == "nested":
            task.step(inner)
        elif case == "swallowed":
            with contextlib.suppress(Suspended):
                task.wait_event("e")
        else:
            task.wait_event("" if case == "name" else "e", timeout=-1 if case == "timeout" else None)

    async def on_loop() -> None:
        current_task().wait_event("e")

    def inner() -> None:
        current_task().wait_event("e")

    function = here.task(name="f", at_most_once=case == "at_most_once")(on_loop if case == "loop" else plain)
    job = function.enqueue()
    run_until_empty(here)
    with pytest.raises(TaskFailed, match=problem) as failed:
        job.result(timeout=1)
    named = (InvalidStep, InvalidOption)
    assert failed.value.type.rpartition(".")[2] in {kind.__name__ for kind in named}


def test_a_key_that_meets_the_wait_for_another_event_is_a_mismatch(here: TaskQueue) -> None:
    waited = ["a"]

    @here.task(name="f")
    def f() -> Any:
        return current_task().using(key="answer").wait_event(waited[0])

    job = f.enqueue()
    run_until_empty(here)
    waited[0] = "b"  # new code
    here.emit("a")
    run_until_empty(here)
    with pytest.raises(TaskFailed, match="'answer'") as failed:
        job.result(timeout=1)
    assert failed.value.type.endswith(StepMismatch.__name__)
