"""Retry rules: backoff policies, rules by exception, and running many again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from bullpen import Backoff, InvalidOption, TaskQueue, WorkerPool
from bullpen.tasks.client import backend

PATIENCE = 60


@pytest.fixture
def queue() -> Iterator[TaskQueue]:
    with TaskQueue("memory://") as queue:
        yield queue


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        (Backoff(), [2, 4, 8, 16]),
        (Backoff(base=5, factor=1), [5, 5, 5, 5]),
        (Backoff(base=1, factor=3, max_delay=20), [3, 9, 20, 20]),
        (Backoff(delays=(1, 5, 30)), [1, 5, 30, 30]),
    ],
)
def test_a_backoff_says_how_long_to_wait(backoff: Backoff, delays: list[float]) -> None:
    assert [backoff.delay(failures, 0.0) for failures in (1, 2, 3, 4)] == delays


def test_jitter_is_a_share_of_the_delay() -> None:
    assert Backoff(base=5, factor=1, jitter=0.5).delay(1, 1.0) == 7.5
    assert Backoff(base=5, factor=1, jitter=0).delay(1, 1.0) == 5


def test_a_list_is_the_delays_themselves(queue: TaskQueue) -> None:
    options = queue.task(name="f", backoff=[1, 60, 7200])(lambda: None).definition.options
    assert [options.backoff.delay(failures, 0.0) for failures in (1, 2, 3, 4)] == [1, 60, 7200, 7200]


class RateLimited(ConnectionError):
    pass


def test_each_exception_may_have_a_backoff_of_its_own(queue: TaskQueue) -> None:
    raised: list[BaseException] = [ConnectionError(), RateLimited(), ValueError()]

    @queue.task(name="f", max_retries=9, backoff=3600, backoff_for={ConnectionError: 0, RateLimited: [0.01]})
    def function() -> None:
        raise raised.pop(0)

    job = function.enqueue()
    with WorkerPool(queue, 1, poll_interval=0.02):
        while raised or job.info().failures < 3:
            time.sleep(0.01)
    info = job.info()
    assert [error.type.rpartition(".")[2] for error in info.errors] == ["ConnectionError", "RateLimited", "ValueError"]
    assert [error.attempt for error in info.errors] == [1, 2, 3]
    assert (info.eta - info.created_at).total_seconds() > 3600


@pytest.mark.parametrize(
    "options",
    [
        {"backoff": []},
        {"backoff": [1, -1]},
        {"backoff": Backoff(factor=0.5)},
        {"backoff": Backoff(jitter=2)},
        {"backoff": Backoff(delays=(-1,))},
        {"backoff": "fast"},
        {"backoff_for": {"ValueError": 1}},
        {"backoff_for": {ValueError: "x"}},
        {"backoff_for": [ValueError]},
    ],
)
def test_what_is_no_backoff_is_rejected(queue: TaskQueue, options: Any) -> None:
    with pytest.raises(InvalidOption, match="backoff"):
        queue.task(name="f", **options)


def test_dead_tasks_run_again_all_that_fit(queue: TaskQueue) -> None:
    works = False

    @queue.task(name="f")
    def function(kind: str) -> None:
        if not works:
            raise ValueError if kind == "value" else KeyError

    jobs = function.enqueue_many([("value",), ("key",), ("value",)])
    with WorkerPool(queue, 1, poll_interval=0.02):
        for job in jobs:
            with pytest.raises(Exception, match="Error"):
                job.result(timeout=PATIENCE)
        works = True
        assert queue.retry_all(name="none") == 0
        assert queue.retry_all(status="success") == 0
        assert queue.retry_all(error="KeyError") == 1
        assert jobs[1].result(timeout=PATIENCE) is None
        assert queue.retry_all(queue="default", name="f") == 2
        assert [job.result(timeout=PATIENCE) for job in jobs] == [None] * 3
    with pytest.raises(InvalidOption, match="success or failed or cancelled"):
        queue.retry_all(status="pending")


def test_all_matching_tasks_are_counted_and_cancelled_in_batches(
    queue: TaskQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "BATCH", 2)
    queue.task(name="f")(dict).enqueue_many([()] * 5)
    queue.task(name="g", queue="other")(dict).enqueue()
    assert (queue.count(), queue.count(name="f"), queue.count(queue="other", newer_than=60)) == (6, 5, 1)
    assert queue.count(older_than=60) == queue.count(error="timeout") == 0
    batches: list[tuple[int, int]] = []

    def stop_after_four(matching: int, changed: int) -> None:
        batches.append((matching, changed))
        if changed == 4:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        queue.cancel_all(name="f", on_batch=stop_after_four)
    assert batches == [(2, 2), (4, 4)]
    assert queue.count(status="pending") == 2
    assert queue.cancel_all() == 2
    assert queue.purge(error="timeout") == 0
    assert queue.purge(all=True, on_batch=lambda *so_far: batches.append(so_far)) == 6
    assert batches[-1] == (6, 6)
    with pytest.raises(InvalidOption, match="pending or running"):
        queue.cancel_all(status="failed")
