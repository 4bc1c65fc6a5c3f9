"""What type checkers see. `make check` checks this file: an ignore that is not needed is an error there, too."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import datetime
from typing import Any, assert_type

import pytest

from bullpen import InvalidArgument, InvalidOption, Job, TaskFunction, TaskQueue

queue = TaskQueue("memory://")


@queue.task
def add(a: int, b: int = 1) -> int:
    return a + b


@queue.task(max_retries=5, timeout=30)
async def send(to: str, *, subject: str = "") -> list[str]:
    return [to, subject]


def test_a_task_function_keeps_its_parameters_and_its_result() -> None:
    assert_type(add(1), int)
    assert_type(add.enqueue(1, b=2), Job[int])
    assert_type(add.using(delay=1).enqueue(1), Job[int])
    assert_type(add.enqueue_many([(1,), (2, 3)]), list[Job[int]])
    job: Job[list[str]] = send.enqueue("a", subject="b")
    assert_type(job, Job[list[str]])

    def takes_any_task(function: TaskFunction[..., Any]) -> str:
        return function.name

    assert takes_any_task(add) != takes_any_task(send)


@pytest.mark.anyio
async def test_the_same_in_async_code() -> None:
    coroutine = assert_type(send("a"), Coroutine[Any, Any, list[str]])
    assert await coroutine == ["a", ""]
    assert_type(await send.aenqueue("a"), Job[list[str]])
    assert_type(await add.aenqueue(1), Job[int])


def test_wrong_calls_are_seen() -> None:
    with pytest.raises(InvalidArgument):
        add.enqueue("1")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        add.enqueue()  # type: ignore[call-arg]
    with pytest.raises(InvalidArgument):
        send.enqueue("a", topic="b")  # type: ignore[call-arg]
    with pytest.raises(InvalidArgument):
        asyncio.run(send.aenqueue(5))  # type: ignore[arg-type]
    with pytest.raises(InvalidOption):
        add.using(dealy=1)  # type: ignore[call-arg]
    with pytest.raises(InvalidOption):
        add.using(priority="high")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption):
        queue.task(max_retry=5)  # type: ignore[call-overload]


def test_wrong_results_are_seen() -> None:
    job = add.enqueue(1)

    def wrong() -> str:
        return job.result(timeout=0)  # type: ignore[return-value]

    with pytest.raises(TimeoutError):
        wrong()
    add.using(eta=None, expires=60)
    with pytest.raises(InvalidOption):
        add.using(eta=datetime(2030, 1, 1))  # naive: a type checker cannot know
    queue.close()
