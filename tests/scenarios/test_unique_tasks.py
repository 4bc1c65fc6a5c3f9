"""Unique keys as people use them: templates, scopes, policies, debounce."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from bullpen import InvalidArgument, InvalidOption, TaskExists, TaskQueue, WorkerPool
from bullpen.tasks.storage.memory import MemoryStorage
from bullpen.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def queue(clock: ManualClock) -> Iterator[TaskQueue]:
    with TaskQueue(MemoryStorage(clock.monotonic)) as queue:
        yield queue


def report(user_id: int, full: bool = False, *, tag: str = "x") -> int:
    return user_id


def arguments(queue: TaskQueue, task_id: str) -> tuple[Any, ...]:
    """What its function would be called with."""
    (task,) = asyncio.run(queue.storage.get([task_id]))
    assert task is not None
    definition = queue.registry.get(task.func_path)
    assert definition is not None
    return definition.decode(task.payload)


@pytest.mark.parametrize(
    ("template", "key"),
    [
        ("report:{user_id}", "report:7"),
        ("{user_id:03d}/{full}", "007/False"),
        ("{tag!r}", "'x'"),
        ("a {{plain}} brace", "a {plain} brace"),
        ("no field", "no field"),
        ("{user_id.real}", "7"),
    ],
)
def test_a_key_is_made_from_the_arguments(queue: TaskQueue, template: str, key: str) -> None:
    job = queue.task(unique_key=template, concurrency_key=template)(report).enqueue(7)
    assert (job.info().unique_key, job.info().concurrency_key) == (key, key)


@pytest.mark.parametrize("template", ["{user}", "{}", "{0}", "{user_id", "user_id}", "{full:{width}}", "{args[0]}"])
@pytest.mark.parametrize("option", ["unique_key", "concurrency_key"])
def test_a_template_that_does_not_fit_the_function_is_rejected_at_once(
    queue: TaskQueue, option: str, template: str
) -> None:
    with pytest.raises(InvalidOption, match=option):
        queue.task(**{option: template})(report)  # type: ignore[call-overload]
    assert len(queue.registry) == 0


def test_the_parameters_there_are_are_named(queue: TaskQueue) -> None:
    with pytest.raises(InvalidOption, match=r"user_id, full, tag"):
        queue.task(unique_key="{user}")(report)


def test_calls_that_mean_the_same_have_the_same_key(queue: TaskQueue) -> None:
    function = queue.task(unique_key="{user_id}{full}")(report)
    first = function.enqueue(7)
    assert function.enqueue(7, False) == first
    assert function.enqueue(user_id=7, full=False) == first
    assert queue.enqueue(function.name, [7]) == first
    assert function.enqueue_many([(7,), {"user_id": 7}, (8,)])[:2] == [first, first]
    assert function.enqueue(7, True) != first


def test_a_key_in_a_call_is_a_plain_value(queue: TaskQueue) -> None:
    function = queue.task(unique_key="{user_id}", concurrency_key="c{user_id}")(report)
    info = function.using(unique_key="{0.__class__}").enqueue(7).info()
    assert (info.unique_key, info.concurrency_key) == ("{0.__class__}", "c7")
    info = queue.enqueue(function.name, [7], unique_key=None, concurrency_key="{x}").info()
    assert (info.unique_key, info.concurrency_key) == (None, "{x}")


@pytest.mark.parametrize("text", ["x" * 201, "\ud800"])
def test_arguments_that_make_no_key_are_rejected(queue: TaskQueue, text: str) -> None:
    @queue.task(name="f", unique_key="{text}")
    def function(text: str) -> None: ...

    with pytest.raises(InvalidArgument):
        function.enqueue(text)
    with pytest.raises(InvalidArgument, match="call number 1"):
        function.enqueue_many([("fine",), (text,)])
    assert queue.list() == []


def test_a_key_that_raises_is_rejected(queue: TaskQueue) -> None:
    @queue.task(name="f", unique_key="{order[id]}")
    def function(order: dict[str, int]) -> None: ...

    assert function.enqueue({"id": 4}).info().unique_key == "4"
    with pytest.raises(InvalidArgument, match="KeyError"):
        function.enqueue({})


def test_a_second_one_is_rejected_with_the_first(queue: TaskQueue) -> None:
    function = queue.task(unique_key="{user_id}", on_duplicate="reject")(report)
    first = function.enqueue(7)
    for second in (lambda: function.enqueue(7), lambda: queue.enqueue(function.name, [7])):
        with pytest.raises(TaskExists) as raised:
            second()
        assert raised.value.job == first
        assert raised.value.job.info().unique_key == "7"
        assert raised.value.key == "7"
    with pytest.raises(TaskExists):
        function.enqueue_many([(8,), (7,)])
    assert len(queue.list()) == 1
    assert function.using(on_duplicate="return").enqueue(7) == first


def test_a_newer_call_replaces_the_one_that_waits(queue: TaskQueue) -> None:
    function = queue.task(unique_key="{user_id}", on_duplicate="replace")(report)
    first = function.enqueue(7)
    second = function.using(priority=4).enqueue(7, True)
    assert (second, second.is_new, first.info().priority) == (first, False, 4)
    assert arguments(queue, first.id) == ((7, True), {})
    assert first.info().unique_key == "7"


def test_a_replacing_call_is_never_lost_to_one_that_runs(queue: TaskQueue) -> None:
    ran: list[bool] = []

    @queue.task(name="f", unique_key="k", on_duplicate="replace")
    def function(again: bool) -> None:
        ran.append(again)
        if again:
            function.enqueue(False)

    job = function.enqueue(True)
    with WorkerPool(queue, 2, poll_interval=0.01):
        job.result(timeout=10)
        for info in queue.list():
            queue.job(info.id).result(timeout=10)
    assert ran == [True, False]


def test_a_key_may_be_taken_for_a_time(queue: TaskQueue, clock: ManualClock) -> None:
    function = queue.task(unique_key="{user_id}", unique_for=60)(report)
    first = function.enqueue(7)
    first.cancel()
    clock.advance(59)
    assert function.enqueue(7) == first
    clock.advance(2)
    assert function.enqueue(7).is_new


def test_debounce_waits_for_quiet_and_no_longer_than_its_limit(queue: TaskQueue, clock: ManualClock) -> None:
    function = queue.task(unique_key="{user_id}", debounce=10, debounce_limit=25)(report)
    began = clock.monotonic()
    starts = []
    for _ in range(5):
        job = function.enqueue(7)
        starts.append(job.info().eta.timestamp() - began)
        clock.advance(6)
    assert starts == [10, 16, 22, 25, 25]
    assert len(queue.list()) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"unique_scope": "alive"},
        {"unique_for": 5},
        {"on_duplicate": "reject"},
        {"debounce": 5},
        {"unique_key": "k", "debounce_limit": 5},
        {"unique_key": "k", "debounce": 5, "debounce_limit": 4},
        {"unique_key": "k", "debounce": 5, "on_duplicate": "return"},
        {"unique_key": "k", "debounce": 5, "unique_scope": "alive"},
        {"unique_key": "k", "debounce": 5, "delay": 1},
        {"unique_key": "k", "unique_scope": "running"},
        {"unique_key": "k", "on_duplicate": "keep"},
        {"unique_key": "k", "unique_for": 0},
        {"unique_key": "k", "debounce": -1},
    ],
)
def test_options_that_contradict_each_other_are_rejected(queue: TaskQueue, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        queue.task(report).using(**options)


def test_a_key_may_name_a_part_of_an_argument(queue: TaskQueue) -> None:
    templates = queue.task(unique_key="{order.id}", name="f")(lambda order: None).definition.keys
    assert templates is not None
    assert templates.of_call([SimpleNamespace(id=5)], {}) == {"unique_key": "5"}
