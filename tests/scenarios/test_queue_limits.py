"""Limits as people set them: in the code, at run time, in order."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from bullpen import InvalidOption, Retry, TaskQueue, WorkerPool, current_task
from bullpen.tasks.storage.port import Limit

PATIENCE = 60


@pytest.fixture
def queue() -> Iterator[TaskQueue]:
    with TaskQueue("memory://") as queue:
        yield queue


def test_tasks_of_a_key_run_in_their_order_though_one_is_tried_again(queue: TaskQueue) -> None:
    queue.declare_limit(in_order=True)
    ran: list[tuple[str, int]] = []

    @queue.task(name="book", concurrency_key="account:{account}", max_retries=3, backoff=0)
    def book(account: str, number: int) -> None:
        if number == 0 and current_task().failures < 2:
            raise Retry("not yet", after=0.05)
        ran.append((account, number))

    jobs = [book.enqueue(account, number) for number in range(5) for account in ("a", "b")]
    assert jobs[-1].why().causes[0].kind == "no_worker"
    with WorkerPool(queue, 8, poll_interval=0.02):
        for job in jobs:
            job.result(timeout=PATIENCE)
    for account in ("a", "b"):
        assert [number for key, number in ran if key == account] == [0, 1, 2, 3, 4]
    assert queue.limits() == [Limit(queue="default", in_order=True, declared=True)]


def test_why_names_the_one_before(queue: TaskQueue) -> None:
    queue.set_limit(in_order=True)

    @queue.task(name="book", concurrency_key="k")
    def book() -> None: ...

    first, second = book.enqueue(), book.enqueue()
    causes = [cause for cause in second.why().causes if cause.kind == "limit"]
    assert causes[0].data["held_by"] == (first.id,)
    assert first.id in causes[0].message
    assert not [cause for cause in first.why().causes if cause.kind == "limit"]


def test_what_people_set_stands_above_the_code_until_it_is_reset(queue: TaskQueue) -> None:
    queue.declare_limit("mail", max_running=5)

    def started() -> Any:
        with WorkerPool(queue, 1, poll_interval=0.02):
            time.sleep(0)
        return queue.limits()

    assert started() == [Limit(queue="mail", max_running=5, declared=True)]
    queue.declare_limit("mail", max_running=6)
    assert started() == [Limit(queue="mail", max_running=6, declared=True)]
    queue.set_limit("mail", max_running=1)
    assert started() == [Limit(queue="mail", max_running=1)]
    queue.reset_limit("mail")
    assert queue.limits() == [Limit(queue="mail", max_running=6, declared=True)]


@pytest.mark.parametrize(
    "terms",
    [{"max_running": 0}, {"rate": 0}, {"in_order": 1}, {"in_order": True, "max_running_per_key": 2}, {"most": 4}],
)
def test_terms_that_are_not_allowed_are_rejected(queue: TaskQueue, terms: Any) -> None:
    for limit in (queue.set_limit, queue.declare_limit):
        with pytest.raises(InvalidOption):
            limit(**terms)
