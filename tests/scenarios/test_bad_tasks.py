"""Bad input to durable tasks, as people give it: rejected by name, with nothing half done, on a real file."""

from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bullpen import (
    InvalidArgument,
    InvalidOption,
    Job,
    PayloadTooLarge,
    ResultDropped,
    StorageBusy,
    StorageFull,
    StorageReadOnly,
    TaskQueue,
    TaskStatus,
    WorkerPool,
)


class Opaque:
    pass


def keep(value: Any, *more: Any, **named: Any) -> None: ...


def add(a: int, b: int = 1) -> int:
    return a + b


def make(kind: str) -> Any:
    return {"tuple": (1, 2), "object": Opaque(), "large": "x" * 300_000, "fine": [1, 2]}[kind]


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[TaskQueue]:
    with TaskQueue(f"sqlite:///{tmp_path}/jobs.db") as queue:
        yield queue


@pytest.mark.parametrize(
    ("value", "path", "said"),
    [
        (Opaque(), "args[0]", "cannot be written as JSON; an id or a path"),
        (lambda: None, "args[0]", "cannot be written as JSON"),
        ([1, {"deep": {"er": Opaque()}}], "args[0][1]['deep']['er']", "cannot be written as JSON"),
        ({"size": (2, 3)}, "args[0]['size']", "is a tuple, and would come back as a list"),
        ({1: "one"}, "args[0]", "has the key 1, an int"),
        ([{1, 2}], "args[0][0]", "is a set"),
        (b"raw", "args[0]", "is a bytes"),
        (float("nan"), "args[0]", "nan"),
        (datetime(2030, 1, 1), "args[0]", "would come back as a str"),
    ],
)
@pytest.mark.parametrize("many", [False, True])
def test_what_would_not_come_back_as_it_is(queue: TaskQueue, value: Any, path: str, said: str, many: bool) -> None:
    function = queue.task(keep)
    with pytest.raises(InvalidArgument) as caught:
        function.enqueue_many([("fine",), (value,)]) if many else function.enqueue(value)
    assert caught.value.path == path
    assert said in str(caught.value)
    assert queue.counts() == {}


def test_a_keyword_has_its_path_too(queue: TaskQueue) -> None:
    with pytest.raises(InvalidArgument) as caught:
        queue.task(keep).enqueue(1, named=[Opaque()])
    assert caught.value.path == "kwargs['named'][0]"


def test_arguments_that_are_too_large(queue: TaskQueue) -> None:
    with pytest.raises(PayloadTooLarge, match=r"the arguments are 300\d{3} bytes, and at most 262144 are taken"):
        queue.task(keep).enqueue("x" * 300_000)
    assert queue.counts() == {}


def test_a_forgotten_await_is_named(queue: TaskQueue) -> None:
    async def fetch() -> int:
        return 1

    forgotten = fetch()
    with pytest.raises(InvalidArgument, match=r"args\[0\] is a coroutine that was not awaited"):
        queue.task(name="any")(lambda value: value).enqueue(forgotten)
    forgotten.close()


def test_calls_of_enqueue_many_that_are_no_tuples(queue: TaskQueue) -> None:
    function = queue.task(add)
    with pytest.raises(InvalidArgument, match="each call is 1; it must be a tuple of arguments"):
        function.enqueue_many([1, 2])  # type: ignore[list-item]
    with pytest.raises(InvalidArgument, match="the calls are None; they must be an iterable of tuples"):
        function.enqueue_many(None)  # type: ignore[arg-type]
    assert queue.counts() == {}


@pytest.mark.parametrize("call", [{"a": "1"}, {}, {"a": 1, "c": 2}, {"a": 1.5}, {"a": None}])
def test_arguments_that_do_not_fit_the_function(queue: TaskQueue, call: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        queue.task(add).enqueue(**call)
    assert queue.counts() == {}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"retries": 1}, "using() has no option 'retries'; did you mean max_retries?"),
        ({"delay": -1}, "delay must be ≥ 0 seconds.*got -1"),
        ({"delay": timedelta(seconds=-1)}, "delay must be"),
        ({"eta": datetime(2030, 1, 1)}, "eta must be a datetime with a time zone"),
        ({"expires": datetime(2030, 1, 1)}, "expires must be a datetime with a time zone"),
        ({"interval": 0}, "interval must be > 0 seconds"),
        ({"interval": -5}, "interval must be > 0 seconds"),
        ({"max_retries": -1}, "max_retries must be a whole number from 0"),
        ({"priority": 10}, "priority must be a whole number from 0 to 9"),
        ({"timeout": 0}, "timeout must be > 0 seconds"),
        ({"queue": "no spaces"}, "queue must be a name"),
        ({"backoff": -1}, "backoff must be"),
        ({"at_most_once": True, "max_retries": 1}, "max_retries must be 0 with at_most_once=True"),
    ],
)
def test_options_are_rejected_by_name_wherever_they_are_given(
    queue: TaskQueue, options: dict[str, Any], said: str
) -> None:
    function = queue.task(add)
    with pytest.raises(InvalidOption, match=said.replace("(", r"\(").replace(")", r"\)")):
        function.using(**options)
    with pytest.raises(InvalidOption, match=next(iter(options))):
        queue.enqueue(function.name, (1,), **options)
    assert queue.counts() == {}


@pytest.mark.parametrize(
    ("kind", "reason"), [("tuple", "is a tuple"), ("object", "cannot be written as JSON"), ("large", "bytes")]
)
def test_a_result_that_cannot_be_kept_leaves_the_task_succeeded(queue: TaskQueue, kind: str, reason: str) -> None:
    function = queue.task(max_retries=3)(make)
    with WorkerPool(queue):
        job = function.enqueue(kind)
        with pytest.raises(ResultDropped, match=reason):
            job.result(timeout=20)
        info = job.info()
        assert (info.status, info.attempt) == (TaskStatus.SUCCESS, 1)
        assert reason in info.result_dropped
        assert function.enqueue("fine").result(timeout=20) == [1, 2]


# A store that cannot: a named error, and never a false OK.


def rejected(enqueue: Callable[[], Job[Any]], kind: type[Exception], queue: TaskQueue) -> None:
    before = queue.counts()
    with pytest.raises(kind):
        enqueue()
    assert queue.counts() == before


def test_a_file_that_others_hold(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with TaskQueue(f"sqlite:///{path}?busy_timeout=0.05") as queue:
        function = queue.task(add)
        function.enqueue(1)
        holder = sqlite3.connect(path, isolation_level=None)
        try:
            holder.execute("BEGIN IMMEDIATE")
            rejected(lambda: function.enqueue(2), StorageBusy, queue)
            holder.execute("ROLLBACK")
        finally:
            holder.close()
        function.enqueue(3)  # and it goes on
        assert queue.counts()["default"][TaskStatus.PENDING] == 2


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, of two megabytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip("needs the right to mount")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_a_disk_that_is_full(disk: Path) -> None:
    with TaskQueue(f"sqlite:///{disk}/jobs.db") as queue:
        function = queue.task(keep)
        jobs = [function.enqueue("first")]

        def fill() -> None:
            while True:
                jobs.append(function.enqueue("x" * 100_000))

        with pytest.raises(StorageFull):
            fill()
        assert queue.counts()["default"][TaskStatus.PENDING] == len(jobs)
        subprocess.run(["mount", "-o", "remount,size=20m", disk], check=True)
        function.enqueue("x" * 100_000)


def test_a_disk_that_is_read_only(disk: Path) -> None:
    with TaskQueue(f"sqlite:///{disk}/jobs.db") as queue:
        queue.task(add).enqueue(1)
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    try:
        with TaskQueue(f"sqlite:///{disk}/jobs.db") as queue, pytest.raises(StorageReadOnly):
            queue.task(add).enqueue(2)
    finally:
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
    with TaskQueue(f"sqlite:///{disk}/jobs.db") as queue:
        assert queue.counts()["default"][TaskStatus.PENDING] == 1
