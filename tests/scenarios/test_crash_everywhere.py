"""`bullpen.testing.crash_everywhere`: a task comes to the same end wherever its worker dies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta

import pytest

from bullpen import Job, TaskQueue, current_task
from bullpen.testing import crash_everywhere
from bullpen.testing.running import _InlineLane

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
