"""`bullpen.testing.crash_everywhere`: a task comes to the same end wherever its worker dies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from bullpen import InvalidOption, Job, TaskQueue, current_task
from bullpen.testing import crash_everywhere
from bullpen.testing.running import _InlineLane
from tests.stores import SERVERS, new_store

charged: list[int] = []


@pytest.fixture
def queue() -> Iterator[TaskQueue]:
    charged.clear()
    with TaskQueue("memory://", backoff=0) as queue:
        yield queue


def charge(order: int) -> str:
    charged.append(order)
    return f"payment-{order}"


async def ship(order: int, payment: str) -> str:
    return f"{payment} shipped"


def test_a_function_of_steps_survives_a_death_at_every_point(queue: TaskQueue) -> None:
    @queue.task(name="shop.checkout")
    async def checkout(order: int) -> str:
        task = current_task()
        payment = await task.astep(charge, order)
        await task.asleep(timedelta(days=3))
        return await task.astep(ship, order, payment)

    def start() -> Job[str]:
        charged.clear()
        return checkout.enqueue(42)

    points = crash_everywhere(queue, start, effects=lambda: set(charged))
    assert points == [
        "after the claim of attempt 1 of shop.checkout",
        "before step 'charge' of attempt 1 is kept",
        "after step 'charge' of attempt 1 is kept",
        "before step 'sleep' of attempt 1 is kept",
        "after step 'sleep' of attempt 1 is kept",
        "before attempt 1 is settled as pending",
        "after attempt 1 is settled as pending",
        "after the claim of attempt 2 of shop.checkout",
        "before step 'ship' of attempt 2 is kept",
        "after step 'ship' of attempt 2 is kept",
        "before attempt 2 is settled as success",
        "after attempt 2 is settled as success",
    ]


def test_plain_functions_on_this_thread_too(queue: TaskQueue) -> None:
    @queue.task(name="f")
    def f() -> list[str]:
        task = current_task()
        words = [task.step(charge, number) for number in range(3)]
        task.sleep(60)
        return words

    assert len(crash_everywhere(queue, f.enqueue)) == 14


def test_an_effect_outside_a_step_is_found(queue: TaskQueue) -> None:
    @queue.task(name="f")
    def f() -> None:
        charged.append(1)  # repeated by the second attempt
        current_task().step(charge, 2)

    def start() -> Job[None]:
        charged.clear()
        return f.enqueue()

    with pytest.raises(AssertionError, match="a worker that dies before step 'charge' of attempt 1 is kept changes"):
        crash_everywhere(queue, start, effects=lambda: charged.count(1))


def test_a_result_that_depends_on_the_attempt_is_found(queue: TaskQueue) -> None:
    @queue.task(name="f")
    def f() -> int:
        current_task().step(charge, 1)
        return current_task().attempt

    with pytest.raises(AssertionError, match="changes the end"):
        crash_everywhere(queue, f.enqueue)


def test_a_kept_step_that_runs_again_is_found(queue: TaskQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it would if a claim brought no steps along."""
    real = _InlineLane._claim

    async def forgetful(self: _InlineLane) -> object:
        from msgspec.structs import replace

        task = await real(self)
        return None if task is None else replace(task, steps=())

    monkeypatch.setattr(_InlineLane, "_claim", forgetful)

    @queue.task(name="f")
    def f() -> None:
        current_task().step(charge, 1)

    with pytest.raises(AssertionError, match="the kept step 'charge' has run again after a worker has died after step"):
        crash_everywhere(queue, f.enqueue)


def test_a_function_that_catches_everything_writes_nothing_after_the_death(queue: TaskQueue) -> None:
    @queue.task(name="f")
    def f() -> str:
        task = current_task()
        with contextlib.suppress(BaseException):
            return task.step(charge, 1)
        return "caught"

    points = crash_everywhere(queue, f.enqueue)
    assert len(points) == 5


@pytest.mark.parametrize("store", ["memory", "sqlite"])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_steps_sleeps_and_events_survive_a_death_at_every_point(queue: TaskQueue, store: Any, kind: str) -> None:
    def checkout(order: int) -> list[Any]:
        task = current_task()
        payment = task.step(charge, order)
        task.sleep(timedelta(days=3))
        answer = task.wait_event("approved", timeout=3600)
        return [payment, answer, task.wait_event("never", timeout=60)]

    async def acheckout(order: int) -> list[Any]:
        task = current_task()
        payment = await task.astep(charge, order)
        await task.asleep(timedelta(days=3))
        answer = await task.await_event("approved", timeout=3600)
        return [payment, answer, await task.await_event("never", timeout=60)]

    function = queue.task(name="shop.checkout")(checkout if kind == "sync" else acheckout)
    results: list[Any] = []

    def start() -> Job[Any]:
        charged.clear()
        return function.enqueue(42)

    def effects() -> object:
        (info,) = queue.list()
        results.append(queue.job(info.id).result(timeout=0))
        return set(charged)

    points = crash_everywhere(queue, start, effects=effects, events={"approved": {"by": "ada"}}, store=store)
    assert len(results) == 1 + len(points)
    assert results[0] == ["payment-42", {"by": "ada"}, None]
    assert "after step 'event approved' of attempt 2 is kept" in points  # the wait has begun
    assert "before step 'event approved' of attempt 3 is kept" in points  # with its payload


@pytest.mark.parametrize("kind", SERVERS)
def test_a_step_survives_a_death_at_every_point_on_a_server(
    queue: TaskQueue, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    @queue.task(name="f")
    async def f(order: int) -> str:
        return await current_task().astep(charge, order)

    with new_store(kind, tmp_path, request) as address:  # one for all runs
        assert len(crash_everywhere(queue, lambda: f.enqueue(42), store=lambda: nullcontext(address))) == 5
        assert 6 <= len(charged) <= 7  # once in each run, and once more where it was not kept


@pytest.mark.thorough
@pytest.mark.parametrize("kind", SERVERS)
def test_steps_sleeps_and_events_survive_a_death_at_every_point_on_a_server(
    queue: TaskQueue, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    @queue.task(name="shop.checkout")
    async def checkout(order: int) -> list[Any]:
        task = current_task()
        payment = await task.astep(charge, order)
        await task.asleep(timedelta(days=3))
        answer = await task.await_event("approved", timeout=3600)
        return [payment, answer, await task.await_event("never", timeout=60)]

    results: list[Any] = []

    def effects() -> object:
        (info,) = queue.list()
        results.append(queue.job(info.id).result(timeout=0))
        return None

    def empty() -> AbstractContextManager[str]:
        return new_store(kind, tmp_path, request)

    points = crash_everywhere(
        queue, lambda: checkout.enqueue(42), effects=effects, events={"approved": "ada"}, store=empty
    )
    assert results == [["payment-42", "ada", None]] * (1 + len(points))
    assert "before step 'event approved' of attempt 3 is kept" in points  # with its payload


def test_a_store_that_is_not_known_is_rejected(queue: TaskQueue) -> None:
    with pytest.raises(InvalidOption, match="store must be 'memory', 'sqlite', or a function"):
        crash_everywhere(queue, lambda: queue.job("x"), store="redis")  # type: ignore[arg-type]
