"""Durable tasks as people use them: enqueue, look, wait, cancel; from sync and async code, threads and forks."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import re
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bullpen import (
    AsyncWorkerPool,
    Backoff,
    DuplicateTask,
    InvalidArgument,
    InvalidOption,
    InvalidOptionType,
    InvalidTask,
    PayloadTooLarge,
    QueueError,
    ResultDropped,
    ResultTimeout,
    TaskCancelled,
    TaskFailed,
    TaskFunction,
    TaskNotFound,
    TaskQueue,
    TaskStatus,
    UnknownOption,
    UnknownTask,
    WorkerPool,
    current_task,
)
from bullpen.tasks.client import backend
from bullpen.tasks.model.task import AttemptError, Progress, postpone
from bullpen.tasks.storage.memory import MemoryStorage
from bullpen.tasks.storage.port import AttemptKey, FunctionSet, WorkerRecord
from tests.unit.tasks.client.support import ADDRESS, Server, work, work_now


class Now:
    """The store's clock, moved by hand."""

    def __init__(self) -> None:
        self.seconds = datetime(2030, 1, 1, tzinfo=UTC).timestamp()

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def now() -> Now:
    return Now()


@pytest.fixture
def storage(now: Now) -> MemoryStorage:
    return MemoryStorage(now)


@pytest.fixture
def queue(storage: MemoryStorage) -> Iterator[TaskQueue]:
    with TaskQueue(storage) as queue:
        yield queue


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with Server().reachable(monkeypatch) as server:
        yield server


def add(a: int, b: int = 1) -> int:
    return a + b


async def greet(name: str) -> str:
    await asyncio.sleep(0)
    return f"hello {name}"


def boom() -> None:
    raise ValueError("too much")


def pair() -> Any:
    return (1, 2)


# Functions.


def test_a_task_function_is_still_the_function(queue: TaskQueue) -> None:
    function = queue.task(add)
    assert isinstance(function, TaskFunction)
    assert function(2, b=3) == 5
    assert function.__name__ == "add"
    assert function.__wrapped__ is add  # type: ignore[attr-defined]
    assert function.name == f"{__name__}.add"
    assert asyncio.run(queue.task(greet)("you")) == "hello you"


@pytest.mark.parametrize("name", ["delay", "apply_async", "send", "adelay", "kiq", "defer"])
def test_a_verb_of_another_library_is_missing_with_the_verb_to_use(queue: TaskQueue, name: str) -> None:
    with pytest.raises(AttributeError, match=rf"^task function .*\.add has no attribute '{name}'; use \.enqueue\(…\)"):
        getattr(queue.task(add), name)
    assert not hasattr(queue.task(greet), "nothing_like_it")


@pytest.mark.parametrize("make", [WorkerPool, AsyncWorkerPool])
def test_a_misspelled_option_of_a_worker_is_rejected_with_the_name_that_was_probably_meant(
    queue: TaskQueue, make: Callable[..., object]
) -> None:
    where = rf"^{make.__name__}\(\) has no option"
    with pytest.raises(UnknownOption, match=rf"{where} 'concurency'; did you mean concurrency\?$"):
        make(queue, concurency=3)
    with pytest.raises(UnknownOption, match=rf"{where} 'queues'; did you mean lanes=…, written as .*\?$"):
        make(queue=queue, queues=["x"])
    make(queue=queue, concurrency=3)


@pytest.mark.parametrize("call", [TaskQueue, TaskQueue.task, TaskQueue.enqueue])
def test_an_unknown_option_is_rejected_with_all_options_that_exist(
    queue: TaskQueue, call: Callable[..., object]
) -> None:
    queue.task(add)
    first = {TaskQueue: ("memory://",), TaskQueue.task: (queue,), TaskQueue.enqueue: (queue, f"{__name__}.add")}[call]
    with pytest.raises(UnknownOption, match="has no option 'zzzz'; the options are ") as caught:
        call(*first, zzzz=1)
    parameters = list(inspect.signature(call).parameters.values())[len(first) : -1]
    named = {one.name for one in parameters if one.kind is not one.POSITIONAL_ONLY}
    assert named
    assert named < set(caught.value.known)


def test_a_misspelled_attribute_lets_python_suggest_the_right_one(queue: TaskQueue) -> None:
    function = queue.task(add)
    with pytest.raises(AttributeError) as caught:
        getattr(function, "enque")  # noqa: B009 — type checkers know that there is none
    assert (caught.value.name, caught.value.obj) == ("enque", function)  # Python compares them in its traceback
    assert "enqueue" in dir(function)


@pytest.mark.parametrize(("name", "verb"), [("s", ".call(RESULT, …) or .call(…)"), ("si", ".call(…)")])
def test_a_signature_of_celery_is_missing_with_the_verb_to_use(queue: TaskQueue, name: str, verb: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(f"has no attribute '{name}'; use {verb}") + "$"):
        getattr(queue.task(add), name)


@pytest.mark.parametrize(
    ("call", "where", "option", "meant"),
    [
        (lambda queue, **wrong: TaskQueue("memory://", **wrong), "TaskQueue()", "max_paylod", "max_payload"),
        (lambda queue, **wrong: TaskQueue("memory://", **wrong), "TaskQueue()", "obsever", "observer"),
        (lambda queue, **wrong: queue.task(**wrong), "task()", "alises", "aliases"),
        (lambda queue, **wrong: queue.task(**wrong), "task()", "alias", "aliases"),
        (lambda queue, **wrong: queue.task(**wrong), "task()", "nme", "name"),
        (lambda queue, **wrong: queue.enqueue(f"{__name__}.add", **wrong), "enqueue()", "kwarg", "kwargs"),
        (lambda queue, **wrong: queue.set_limit("a", **wrong), "the limit", "max_runing", "max_running"),
    ],
)
def test_a_misspelled_option_is_rejected_with_the_name_that_was_probably_meant(
    queue: TaskQueue, call: Callable[..., object], where: str, option: str, meant: str
) -> None:
    queue.task(add)
    with pytest.raises(UnknownOption) as caught:
        call(queue, **{option: 3})
    assert str(caught.value) == f"{where} has no option {option!r}; did you mean {meant}?"
    assert caught.value.suggestion == meant
    assert meant in caught.value.known


def test_a_task_that_is_stored_under_an_alias_runs_the_function() -> None:
    with TaskQueue("memory://") as queue:
        job = queue.enqueue("old.add", (2,), elsewhere=True)
        queue.task(name="new.add", aliases=["old.add", "older.add"])(add)
        with WorkerPool(queue, poll_interval=0.02):
            assert job.result(timeout=20) == 3
        assert job.info().name == "old.add"


by_name = TaskQueue("memory://").task(max_retries=1, name="shop.add_by_name")


@by_name
def added(a: int) -> int:
    return a


def test_a_task_function_is_pickled_by_its_name() -> None:
    assert pickle.loads(pickle.dumps(added)) is added


def test_a_decorator_takes_options_and_checks_them(queue: TaskQueue) -> None:
    function = queue.task(max_retries=5, timeout=30, queue="mail", name="shop.add")(add)
    info = function.enqueue(1).info()
    assert (info.name, info.max_retries, info.timeout, info.queue) == ("shop.add", 5, timedelta(seconds=30), "mail")
    with pytest.raises(InvalidOptionType, match="retries"):
        queue.task(retries=5)  # type: ignore[call-overload]
    with pytest.raises(InvalidOption, match="max_retries"):
        queue.task(max_retries=-1)
    with pytest.raises(DuplicateTask):
        queue.task(name="shop.add")(greet)
    with pytest.raises(InvalidTask):
        queue.task(lambda: None)
    assert len(queue.registry) == 1


def test_a_queue_has_defaults_for_all_its_tasks(storage: MemoryStorage) -> None:
    queue = TaskQueue(storage, max_retries=3, backoff=Backoff(2.0), queue="mail")
    assert queue.task(add).enqueue(1).info().max_retries == 3
    assert queue.task(max_retries=0)(greet).enqueue("x").info().max_retries == 0
    with pytest.raises(InvalidOptionType):
        TaskQueue(storage, delay=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("address", ["jobs.db", "mysql://x", "", 5, None, object()])
def test_an_address_that_cannot_be_is_rejected_at_once(address: Any) -> None:
    with pytest.raises(InvalidOption):
        TaskQueue(address)


# Enqueueing.


def test_enqueued_tasks_run_and_their_results_come_back(queue: TaskQueue) -> None:
    numbers, greeting = queue.task(add).enqueue(2, b=3), queue.task(greet).enqueue("you")
    assert numbers.status is TaskStatus.PENDING
    assert work_now(queue) == 2
    assert numbers.result(timeout=0) == 5
    assert greeting.result() == "hello you"
    assert numbers.info().status is TaskStatus.SUCCESS


@pytest.mark.anyio
async def test_the_same_from_async_code(queue: TaskQueue) -> None:
    job = await queue.task(greet).aenqueue("you")
    assert await job.astatus() is TaskStatus.PENDING
    await work(queue)
    assert await job.aresult(timeout=0) == "hello you"
    assert (await job.ainfo()).attempt == 1


def test_a_call_is_rejected_as_a_whole(queue: TaskQueue) -> None:
    function = queue.task(add)
    for bad in (("x",), (), (1, 2, 3)):
        with pytest.raises(InvalidArgument):
            function.enqueue(*bad)
    with pytest.raises(InvalidArgument) as caught:
        function.enqueue_many([(1,), (2, (3,)), (4,)])
    assert caught.value.path == "args[1]"
    assert "call number 1" in caught.value.__notes__[0]
    for not_arguments in (["ab"], [5], [None]):
        with pytest.raises(InvalidArgument):
            function.enqueue_many(not_arguments)  # type: ignore[arg-type]
    assert queue.list() == []


def test_payloads_have_a_limit(storage: MemoryStorage) -> None:
    queue = TaskQueue(storage, max_payload=100)
    with pytest.raises(PayloadTooLarge):
        queue.task(greet).enqueue("x" * 100)
    with pytest.raises(PayloadTooLarge):
        queue.enqueue("elsewhere.f", ["x" * 100], elsewhere=True)
    with queue:
        assert queue.list() == []
    for wrong in (0, -1, 1.5, None):
        with pytest.raises(InvalidOption):
            TaskQueue(storage, max_payload=wrong)  # type: ignore[arg-type]


def test_many_tasks_are_added_at_once(queue: TaskQueue) -> None:
    jobs = queue.task(add).enqueue_many([*((number,) for number in range(20)), {"a": 1, "b": 5}])
    assert [job.id for job in jobs] == sorted(job.id for job in jobs)
    assert work_now(queue, 100) == 21
    assert [job.result() for job in jobs] == [*range(1, 21), 6]
    assert queue.task(add).enqueue_many([]) == []


def test_options_of_single_calls(queue: TaskQueue, now: Now) -> None:
    function = queue.task(add)
    view = function.using(delay=60, priority=5, headers={"by": "me"})
    info = view.enqueue(1).info()
    assert (info.eta.timestamp(), info.priority, info.headers) == (now.seconds + 60, 5, {"by": "me"})
    assert function.enqueue(1).info().priority == 0
    at = datetime(2031, 1, 1, tzinfo=UTC)
    assert view.using(eta=at).enqueue(1).info().eta == at
    assert function.using(expires=timedelta(minutes=1)).enqueue(1).info().expires == datetime.fromtimestamp(
        now.seconds + 60, UTC
    )
    with pytest.raises(InvalidOption, match="eta"):
        function.using(delay=1, eta=at)
    with pytest.raises(InvalidOption, match="eta"):
        function.using(eta=datetime(2031, 1, 1))
    with pytest.raises(InvalidOptionType, match="dealy"):
        function.using(dealy=1)  # type: ignore[call-arg]


def test_a_unique_key_that_is_alive_gives_the_same_task(queue: TaskQueue) -> None:
    function = queue.task(add).using(unique_key="nightly")
    first, second = function.enqueue(1), function.enqueue(2)
    assert first.is_new
    assert not second.is_new
    assert first == second
    assert len({first, second}) == 1
    work_now(queue)
    assert second.result() == 2
    assert function.enqueue(3).is_new


def test_by_name(queue: TaskQueue) -> None:
    queue.task(name="shop.add")(add)
    job = queue.enqueue("shop.add", [2], {"b": 3}, priority=9)
    work_now(queue)
    assert job.result() == 5
    with pytest.raises(InvalidArgument):
        queue.enqueue("shop.add", ["x"])
    with pytest.raises(UnknownTask) as caught:
        queue.enqueue("shop.ad", [2])
    assert caught.value.suggestion == "shop.add"
    with pytest.raises(InvalidOptionType):
        queue.enqueue("shop.add", [1], when=5)  # type: ignore[call-arg]
    for args, kwargs in (("ab", None), ([1], [2]), ([1], {5: 1})):
        with pytest.raises(InvalidArgument):
            queue.enqueue("shop.add", args, kwargs)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "two words", "x" * 256, None])
def test_an_impossible_name_is_rejected_also_with_elsewhere(queue: TaskQueue, name: Any) -> None:
    with pytest.raises(InvalidOption) as caught:
        queue.enqueue(name, elsewhere=True)
    assert caught.value.option == "func_path"
    assert queue.counts() == {}


def test_by_the_name_of_a_function_that_only_workers_know(queue: TaskQueue, storage: MemoryStorage) -> None:
    job = queue.enqueue("shop.greet", ["you"], elsewhere=True)
    workers = TaskQueue(storage)
    workers.task(name="shop.greet")(greet)
    work_now(workers)
    assert job.result() == "hello you"


# Results.


def test_a_failed_task_raises_the_stored_error(queue: TaskQueue) -> None:
    job = queue.task(max_retries=1, backoff=0)(boom).enqueue()
    work_now(queue)
    assert job.status is TaskStatus.PENDING
    work_now(queue)
    with pytest.raises(TaskFailed) as caught:
        job.result()
    error = caught.value
    assert (error.task, error.type, error.message, error.attempt) == (job.id, "ValueError", "too much", 2)
    assert error.traceback == "Traceback: line 5"
    assert "ValueError: too much" in str(error)
    info = job.info()
    assert [one.attempt for one in info.errors] == [1, 2]
    assert info.error is info.errors[-1]
    assert job.retry()
    assert job.status is TaskStatus.PENDING


def test_a_cancelled_task_has_no_result(queue: TaskQueue) -> None:
    job = queue.task(add).enqueue(1)
    assert job.cancel()
    assert not job.cancel()
    with pytest.raises(TaskCancelled):
        job.result()


def test_a_result_that_could_not_be_kept_says_why(queue: TaskQueue) -> None:
    job = queue.task(pair).enqueue()
    work_now(queue)
    assert job.status is TaskStatus.SUCCESS
    with pytest.raises(ResultDropped, match="tuple"):
        job.result()
    assert "tuple" in job.info().result_dropped


def test_a_task_that_is_not_there(queue: TaskQueue) -> None:
    job = queue.job("no-such-id")
    for ask in (job.result, job.info, lambda: job.status, job.why, lambda: queue.get("no-such-id")):
        with pytest.raises(TaskNotFound):
            ask()
    assert not job.cancel()
    assert not job.retry()
    with pytest.raises(InvalidOptionType):
        queue.job(5)  # type: ignore[arg-type]


def test_waiting_for_a_result_ends_in_time(queue: TaskQueue) -> None:
    job = queue.task(add).enqueue(1)
    with pytest.raises(ResultTimeout) as caught:
        job.result(timeout=0)
    assert isinstance(caught.value, TimeoutError)
    assert (caught.value.task, caught.value.status) == (job.id, "pending")
    with pytest.raises(ResultTimeout, match="no worker serves the queue 'default'; no worker is running") as waited:
        job.result(timeout=timedelta(milliseconds=1))
    assert waited.value.why in str(job.why())
    for wrong in (-1, float("nan"), "1"):
        with pytest.raises(InvalidOption):
            job.result(timeout=wrong)  # type: ignore[arg-type]


def test_a_result_is_there_as_soon_as_the_task_is_done(queue: TaskQueue) -> None:
    job = queue.task(add).enqueue(1)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(job.result)
        work_now(queue)
        assert waiting.result(timeout=4) == 2  # sooner than the store would be asked again


@pytest.mark.anyio
async def test_a_task_with_an_interval_gives_the_result_of_its_next_run(queue: TaskQueue, now: Now) -> None:
    runs = []

    @queue.task(name="tick")
    def tick() -> int:
        runs.append(1)
        return len(runs)

    job = await tick.using(interval=10).aenqueue()
    for number in (1, 2):
        waiting = asyncio.create_task(job.aresult())
        await asyncio.sleep(0.01)
        assert not waiting.done()
        now.seconds += 10
        await work(queue)
        assert await waiting == number
    info = await job.ainfo()
    assert info.completed_runs == 2
    assert info.eta.timestamp() == now.seconds + 10
    waiting = asyncio.create_task(job.aresult())
    await asyncio.sleep(0.01)
    await job.acancel()
    with pytest.raises(TaskCancelled):
        await waiting


# People.


def test_the_verbs_of_people(queue: TaskQueue, now: Now) -> None:
    function = queue.task(add)
    jobs = function.enqueue_many([(number,) for number in range(5)])
    mail = function.using(queue="mail").enqueue(9)
    assert queue.get(mail.id).queue == "mail"
    assert [info.id for info in queue.list(limit=2)] == [jobs[0].id, jobs[1].id]
    assert [info.id for info in queue.list(limit=2, after=jobs[1].id)] == [jobs[2].id, jobs[3].id]
    assert [info.id for info in queue.list(queue="mail")] == [mail.id]
    assert queue.list(name="other") == []
    assert queue.cancel(jobs[0].id, jobs[1].id, "no-such-id") == 2
    assert queue.counts()["default"] == {TaskStatus.PENDING: 3, TaskStatus.CANCELLED: 2}
    assert [info.id for info in queue.list(status="cancelled")] == [jobs[0].id, jobs[1].id]
    assert len(queue.list(status=["cancelled", TaskStatus.PENDING])) == 6
    assert queue.retry(jobs[0].id) == 1
    queue.pause("mail")
    assert queue.paused() == {"mail"}
    assert work_now(queue) == 4
    queue.resume("mail")
    assert work_now(queue) == 1
    now.seconds += 100
    assert queue.purge(status="cancelled", older_than=101) == 0
    assert queue.purge(status="cancelled") == 1
    assert queue.purge(all=True) == 5
    assert queue.list() == []


def test_purge_goes_through_all_pages_and_leaves_unfinished_tasks(queue: TaskQueue) -> None:
    function = queue.task(add)
    jobs = function.enqueue_many([(number,) for number in range(1200)])
    queue.cancel(*(job.id for job in jobs[::2]))
    with pytest.raises(InvalidOption, match="status"):
        queue.purge(status="pending")
    with pytest.raises(InvalidOption, match="all must be True, or a filter"):
        queue.purge()
    with pytest.raises(InvalidOption, match="all must be False with filters"):
        queue.purge(all=True, status="failed")
    assert queue.purge(all=True) == 600
    assert queue.counts()["default"] == {TaskStatus.PENDING: 600}


def test_bad_questions_are_rejected_by_name(queue: TaskQueue) -> None:
    bad: list[tuple[str, Any]] = [
        ("limit", lambda: queue.list(limit=0)),
        ("limit", lambda: queue.list(limit=1001)),
        ("status", lambda: queue.list(status="done")),  # type: ignore[arg-type]
        ("status", lambda: queue.list(status=5)),  # type: ignore[arg-type]
        ("status", lambda: queue.retry_all(status=5)),  # type: ignore[arg-type]
        ("queue", lambda: queue.list(queue="a b")),
        ("queue", lambda: queue.list(queue=5)),  # type: ignore[arg-type]
        ("queue", lambda: queue.list(queue=[5])),  # type: ignore[list-item]
        ("queue", lambda: queue.purge(queue=5)),  # type: ignore[arg-type]
        ("name", lambda: queue.list(name=5)),  # type: ignore[arg-type]
        ("worker", lambda: queue.list(worker=5)),  # type: ignore[arg-type]
        ("queue", lambda: queue.pause("")),
        ("max_running", lambda: queue.set_limit("mail", max_running=0)),
        ("max_running_per_key", lambda: queue.set_limit("mail", max_running_per_key=-1)),
        ("rate", lambda: queue.set_limit("mail", rate=0)),
        ("rate", lambda: queue.set_limit("mail", rate=float("nan"))),
        ("older_than", lambda: queue.purge(older_than=-1)),
    ]
    for option, ask in bad:
        with pytest.raises(InvalidOption) as caught:
            ask()
        assert caught.value.option == option


@pytest.mark.anyio
async def test_the_verbs_of_people_in_async_code(queue: TaskQueue) -> None:
    queue.task(name="add")(add)
    job = await queue.aenqueue("add", [1])
    assert (await queue.aget(job.id)).name == "add"
    assert [info.id for info in await queue.alist()] == [job.id]
    assert (await queue.acounts())["default"] == {TaskStatus.PENDING: 1}
    await queue.apause()
    assert await queue.apaused() == {"default"}
    await queue.aresume()
    await queue.aset_limit(max_running=1)
    assert [limit.max_running for limit in await queue.alimits()] == [1]
    assert await queue.aworkers() == []
    assert await queue.acancel(job.id) == 1
    assert await queue.aretry(job.id) == 1
    assert await job.acancel()
    assert await queue.apurge(all=True) == 1


def test_progress_is_seen(queue: TaskQueue, storage: MemoryStorage) -> None:
    job = queue.task(add).enqueue(1)
    assert job.progress is None

    async def claim() -> None:
        got = await storage.exchange((), worker="w", queues=("default",), limit=1, lease=15, claim_id="c")
        (task,) = got.claimed
        await storage.note_progress(AttemptKey(task.id, task.attempt), Progress(1, 2, "half"))

    asyncio.run(claim())
    assert job.progress == Progress(1, 2, "half")


def test_a_task_knows_itself_while_it_runs(queue: TaskQueue) -> None:
    @queue.task(name="who")
    async def who() -> str:
        await asyncio.sleep(0)
        return current_task().fencing_token

    job = who.enqueue()
    work_now(queue)
    assert job.result() == f"{job.id}:1"


# Why it is not done.


def record(now: Now, **changes: Any) -> WorkerRecord:
    parts: dict[str, Any] = {
        "id": "w-1",
        "host": "a",
        "pid": 1,
        "boot_id": "",
        "process_started": 0.0,
        "queues": ("default",),
    }
    return WorkerRecord(**parts | {"concurrency": 1, "seen_at": now.seconds} | changes)


def causes(queue: TaskQueue, task_id: str) -> list[str]:
    why = queue.job(task_id).why()
    assert str(why).startswith(f"{why.name} is {why.status}: ")
    return [cause.kind for cause in why.causes]


def test_why_a_task_waits(queue: TaskQueue, storage: MemoryStorage, now: Now) -> None:
    function = queue.task(max_retries=3)(boom)
    job = function.enqueue()
    later = function.using(delay=60).enqueue()
    assert causes(queue, job.id) == ["no_worker"]
    assert "no worker is running" in str(job.why())
    asyncio.run(storage.save_worker(record(now, queues=("mail",))))
    assert "the workers serve mail" in str(job.why())
    asyncio.run(storage.save_worker(record(now)))
    assert causes(queue, job.id) == ["due"]
    assert causes(queue, later.id) == ["eta"]
    assert "in 60.0 s, at 2030-01-01 00:01:00 UTC" in str(later.why())
    queue.pause()
    assert causes(queue, job.id) == ["paused"]
    assert causes(queue, later.id) == ["eta", "paused"]
    queue.resume()
    work_now(queue)
    assert causes(queue, job.id) == ["retry"]
    assert "its attempt 1 failed with ValueError: too much, try 2 of 4 is due in 2.0 s" in str(job.why())
    assert str(job.why()).endswith("; its backoff is 2, 4, 8 s")
    patient = function.using(max_retries=1_000_000).enqueue()
    work_now(queue)
    assert str(patient.why()).endswith("; its backoff is 2, 4, 8, 16, 32, 64 … s")
    patient.cancel()
    now.seconds += 31
    assert causes(queue, job.id) == ["no_worker"]
    assert "w-1 did, but has not reported" in str(job.why())
    job.cancel()
    assert causes(queue, job.id) == ["cancelled"]


def test_why_tells_what_is_in_front_in_all_queues_of_a_lane(queue: TaskQueue, storage: MemoryStorage, now: Now) -> None:
    function = queue.task(add)
    lanes = (("default", "mail", "p-*"), ("reports",))
    asyncio.run(storage.save_worker(record(now, queues=("default", "mail", "p-*", "reports"), lanes=lanes)))

    def enqueue(name: str, **options: Any) -> str:
        now.seconds += 1
        return function.using(queue=name, **options).enqueue(1).id

    old = [enqueue("mail"), enqueue("p-1"), enqueue("mail")]
    for name in ("reports", "other", "p-paused", "p-full", "mail"):
        enqueue(name, **({"expires": 0.5} if name == "mail" else {}))
    enqueue("mail", delay=3600)
    queue.pause("p-paused")
    queue.set_limit("p-full", max_running=1)
    enqueue("p-full")
    asyncio.run(storage.exchange((), worker="w-1", queues=("p-full",), limit=1, lease=15, claim_id="c"))
    mine = enqueue("default")
    urgent = enqueue("mail", priority=5)
    enqueue("default")
    (cause,) = queue.job(mine).why().causes
    assert (cause.kind, cause.data["in_front"], cause.data["next"]) == ("due", 4, urgent)
    assert cause.data["by_queue"] == {"mail": 3, "p-1": 1}
    assert "4 tasks are in front of it (3 in 'mail', 1 in 'p-1'); the next one is" in cause.message
    assert urgent in cause.message
    (cause,) = queue.job(urgent).why().causes
    assert "it is due, and is the next one" in cause.message
    assert cause.data["next"] == urgent
    (cause,) = queue.job(old[0]).why().causes
    assert cause.data["by_queue"] == {"mail": 1}
    # Another worker gives the queue a lane of its own: only its own tasks are in front there.
    asyncio.run(storage.save_worker(record(now, id="w-2", queues=("default",), lanes=(("default",),), running=1)))
    (cause,) = queue.job(mine).why().causes
    assert cause.data["in_front"] == 0
    assert "permits" not in cause.message
    asyncio.run(storage.save_worker(record(now, queues=("default",), lanes=(("default",),), running=1)))
    assert "all permits of the workers that serve its queue are in use" in str(queue.job(mine).why())


def test_why_a_task_waits_for_its_function(queue: TaskQueue, storage: MemoryStorage, now: Now) -> None:
    job = queue.enqueue("shop.gone", elsewhere=True)

    async def try_it() -> None:
        (task,) = (
            await storage.exchange((), worker="w-1", queues=("default",), limit=1, lease=15, claim_id="c")
        ).claimed
        error = AttemptError(kind="unknown_function", attempt=task.attempt, at=now(), message="never heard of it")
        given_back = postpone(task, error, 0.0, give_up_after=60)
        await storage.exchange([given_back], worker="w-1", queues=(), limit=0, lease=15, claim_id="")

    asyncio.run(try_it())
    asyncio.run(storage.save_worker(record(now)))
    assert causes(queue, job.id) == ["unknown_function", "eta"]
    assert "never heard of it; start a worker that registers" in str(job.why())
    now.seconds += 2
    assert causes(queue, job.id) == ["unknown_function"]
    for name in ("shop", "blog"):
        own = (FunctionSet("default", 1, name),)
        asyncio.run(storage.save_worker(record(now, id=name, functions=own)))
    message = str(job.why())
    assert "workers with other functions serve its queue too (" in message
    assert "own queues" in message


def test_why_names_the_limit_that_a_task_waits_for_and_its_holders(
    queue: TaskQueue, storage: MemoryStorage, now: Now
) -> None:
    asyncio.run(storage.save_worker(record(now)))
    function = queue.task(add).using(concurrency_key="k")
    queue.set_limit(max_running=2, max_running_per_key=1)
    first, second = function.enqueue(1), function.enqueue(2)
    asyncio.run(storage.exchange((), worker="w-1", queues=("default",), limit=5, lease=15, claim_id="c"))
    why = second.why()
    assert [cause.kind for cause in why.causes] == ["limit"]
    assert why.causes[0].data["held_by"] == (first.id,)
    assert why.causes[0].data["key"] == "k"
    assert first.id in str(why)
    another = queue.task(add).using(concurrency_key="other").enqueue(3)
    assert causes(queue, another.id) == ["due"]
    queue.set_limit(max_running=1)
    assert causes(queue, second.id) == ["limit"]
    queue.set_limit(rate=0.1)
    assert causes(queue, second.id) == ["rate"]
    assert causes(queue, first.id) == ["running"]
    assert "attempt 1 has been running on worker w-1 on a for 0.0 s" in str(first.why())
    first.cancel()
    now.seconds += 20
    assert causes(queue, first.id) == ["running", "cancel_requested", "lease_over"]


def test_what_became_of_a_task(queue: TaskQueue, storage: MemoryStorage, now: Now) -> None:
    done, failed, dropped = queue.task(add).enqueue(1), queue.task(boom).enqueue(), queue.task(pair).enqueue()
    expired = queue.task(add).using(delay=1, expires=2).enqueue(1)
    work_now(queue)
    assert causes(queue, done.id) == ["succeeded"]
    assert causes(queue, failed.id) == ["failed"]
    assert "ValueError: too much" in str(failed.why())
    error, at = failed.info().error, datetime.fromtimestamp(now.seconds, UTC)
    assert error is not None
    assert (error.at, error.at.tzinfo) == (at, UTC)
    assert failed.why().causes[0].data == {"finished_at": at, "error": error}
    assert "not kept" in str(dropped.why())
    now.seconds += 5
    assert causes(queue, expired.id)[0] == "expired"
    asyncio.run(storage.expire(limit=10))
    with pytest.raises(TaskFailed) as caught:
        expired.result()
    assert caught.value.kind == "expired"


def test_when_a_task_with_an_interval_runs_again(queue: TaskQueue, storage: MemoryStorage, now: Now) -> None:
    asyncio.run(storage.save_worker(record(now)))
    job = queue.task(add).using(interval=60).enqueue(1)
    work_now(queue)
    assert causes(queue, job.id) == ["next_run"]


# Clients of the store: one per event loop.


def test_every_event_loop_has_a_client_of_its_own(server: Server) -> None:
    with TaskQueue(ADDRESS) as queue:
        function = queue.task(add)
        assert server.opened == []
        function.enqueue(1)
        function.enqueue(2)
        assert [client.opens for client in server.opened] == [1]

        async def main() -> None:
            async with queue:
                await asyncio.gather(*(function.aenqueue(number) for number in range(5)))
                assert await work(queue) == 7

        asyncio.run(main())
        assert [client.opens for client in server.opened] == [1, 1]
        assert [client.closes for client in server.opened] == [0, 1]
    assert [client.closes for client in server.opened] == [1, 1]
    with queue:
        assert queue.counts()["default"] == {TaskStatus.SUCCESS: 7}  # and it goes on


def test_a_client_that_is_not_closed_is_closed_with_its_loop(server: Server) -> None:
    queue = TaskQueue(ADDRESS)
    function = queue.task(add)

    async def main() -> None:
        await function.aenqueue(1)

    for number in range(1, 4):
        asyncio.run(main())
        assert [client.closes for client in server.opened] == [1] * number


def test_sync_methods_are_for_any_number_of_threads(server: Server) -> None:
    with TaskQueue(ADDRESS) as queue:
        function = queue.task(add)
        with ThreadPoolExecutor(8) as threads:
            jobs = list(threads.map(function.enqueue, range(100)))
        assert len({job.id for job in jobs}) == 100
        assert [client.opens for client in server.opened] == [1]
        assert [thread.name for thread in threading.enumerate()].count("bullpen-portal") == 1
    assert not any(thread.name == "bullpen-portal" for thread in threading.enumerate())


def test_sync_methods_on_a_file_need_no_event_loop(tmp_path: Path) -> None:
    with TaskQueue(f"sqlite:///{tmp_path / 'jobs.db'}") as queue:
        function = queue.task(add)
        with ThreadPoolExecutor(8) as threads:
            jobs = list(threads.map(function.enqueue, range(100)))
        assert len({job.id for job in jobs}) == 100
        assert jobs[0].status is TaskStatus.PENDING
        assert not any(thread.name == "bullpen-portal" for thread in threading.enumerate())
        assert queue.counts()["default"] == {TaskStatus.PENDING: 100}
        assert any(thread.name == "bullpen-portal" for thread in threading.enumerate())
    assert not any(thread.name.startswith("bullpen-") for thread in threading.enumerate())


def test_what_sync_methods_opened_may_be_closed_on_the_thread_of_a_loop(tmp_path: Path) -> None:
    queue = TaskQueue(f"sqlite:///{tmp_path / 'jobs.db'}")
    function = queue.task(add)
    function.enqueue(1)

    async def main() -> None:
        await function.aenqueue(2)
        queue.close()
        await queue.aclose()

    asyncio.run(main())
    assert not any(thread.name.startswith("bullpen-") for thread in threading.enumerate())
    with queue:
        assert queue.counts()["default"] == {TaskStatus.PENDING: 2}


def test_queues_share_one_thread(server: Server) -> None:
    with TaskQueue(ADDRESS) as one, TaskQueue(ADDRESS) as other:
        one.counts()
        other.counts()
        assert [thread.name for thread in threading.enumerate()].count("bullpen-portal") == 1
        one.close()
        one.close()
        assert other.counts() == {}


def test_closing_a_queue_ends_the_waiting_calls(server: Server) -> None:
    with TaskQueue(ADDRESS) as other, ThreadPoolExecutor(2) as threads:
        other.counts()  # keeps the loop going
        for queue in (TaskQueue(ADDRESS), TaskQueue(MemoryStorage())):
            job = queue.task(add).enqueue(1)
            waiting = threads.submit(job.result)
            while not queue._clients._calls:
                time.sleep(0.001)
            queue.close()
            with pytest.raises(QueueError, match="closed"):
                waiting.result(timeout=10)


def test_a_store_that_cannot_be_opened_is_tried_again(server: Server) -> None:
    with TaskQueue(ADDRESS) as queue:
        function = queue.task(add)

        async def main() -> None:
            first = asyncio.create_task(function.aenqueue(1))
            await asyncio.sleep(0)
            server.made[-1].refuse_to_open = True
            with pytest.raises(ConnectionRefusedError):
                await first
            server.made[-1].refuse_to_open = False
            await function.aenqueue(1)
            await queue.aclose()

        asyncio.run(main())


def test_a_queue_in_memory_needs_no_thread_but_to_wait() -> None:
    with TaskQueue("memory://") as queue:
        job = queue.task(add).enqueue(1)
        assert job.status is TaskStatus.PENDING
        assert not any(thread.name == "bullpen-portal" for thread in threading.enumerate())
        with pytest.raises(ResultTimeout):
            job.result(timeout=0)


def test_two_queues_in_memory_are_two() -> None:
    with TaskQueue("memory://") as one, TaskQueue("memory://") as other:
        one.task(add).enqueue(1)
        assert other.counts() == {}


@pytest.mark.anyio
async def test_a_sync_method_on_an_event_loop_works_and_warns_once(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "_warned", False)
    with TaskQueue(ADDRESS) as queue:
        function = queue.task(add)
        with pytest.warns(
            RuntimeWarning, match=r"enqueue\(\) was called on the thread of a running event loop"
        ) as seen:
            job = function.enqueue(1)
        assert seen[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert job.status is TaskStatus.PENDING


FORK = """
import os, sys, threading
from bullpen.tasks.client import clients
from bullpen import TaskQueue
from tests.unit.tasks.client.support import ADDRESS, Server

server = Server()
clients.open_storage = server.open_storage
queue = TaskQueue(ADDRESS)

@queue.task(name="f")
def f(): ...

before = f.enqueue().id
children = []
for number in range(3):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        ids = [f.enqueue().id for _ in range(3)]
        opened = server.opened
        assert len(opened) == 2, opened  # the parent's, and its own
        queue.close()
        assert [client.closes for client in opened] == [0, 1]
        os.write(write, " ".join(ids).encode())
        os._exit(0)
    os.close(write)
    assert os.waitpid(pid, 0)[1] == 0
    children += os.read(read, 10000).decode().split()
ids = [before, f.enqueue().id, *children]
assert len(set(ids)) == len(ids) == 11, ids
assert len({child[-12:] for child in children[::3]}) == 3, children  # they draw other numbers, too
queue.close()
print("ok")
"""


@pytest.mark.skipif(not hasattr(sys, "getdlopenflags"), reason="there is no fork")
def test_forked_children_have_clients_threads_and_ids_of_their_own() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK], capture_output=True, text=True, check=False, timeout=50
    )
    assert (done.returncode, done.stdout.strip()) == (0, "ok"), done.stderr


def test_a_queue_that_is_never_closed_does_not_keep_the_interpreter() -> None:
    script = FORK.partition("children = []")[0] + "print('ok')"
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "ok", "")


def test_an_unknown_filter_is_named(queue: TaskQueue) -> None:
    with pytest.raises(UnknownOption, match=r"^the filter has no option 'statu'; did you mean status\?$"):
        queue.list(statu="failed")  # type: ignore[call-arg]
