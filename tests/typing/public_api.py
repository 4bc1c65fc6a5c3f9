"""How the public names look to type checkers. `make check` has mypy and pyright read this file, in their strict modes;
nobody runs it. A mistake that they must see has a `type: ignore`, and one that is not needed is an error, too.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, assert_type

from bullpen import (
    AsyncPool,
    AsyncWorkerPool,
    CurrentTask,
    Inject,
    Job,
    NewTasks,
    Outcome,
    Pool,
    PoolFuture,
    Pools,
    Progress,
    TaskFunction,
    TaskInfo,
    TaskQueue,
    TaskStatus,
    Why,
    WorkerPool,
    current_task,
)
from bullpen.testing import Enqueued, assert_enqueued, inline, run_until_empty

queue = TaskQueue("memory://", max_retries=3)


@queue.task
def add(a: int, b: int = 1) -> int:
    return a + b


@queue.task(timeout=30, queue="mail")
async def send(to: str, *, subject: str = "") -> list[str]:
    return [to, subject]


def tasks() -> None:
    assert_type(add(1, b=2), int)
    coroutine = assert_type(send("ada"), Coroutine[Any, Any, list[str]])
    coroutine.close()
    job = assert_type(add.enqueue(1), Job[int])
    assert_type(job.result(timeout=5), int)
    assert_type(job.status, TaskStatus)
    assert_type(job.info(), TaskInfo)
    assert_type(job.why(), Why)
    assert_type(job.progress, Progress | None)
    assert_type(add.using(delay=60, priority=5).enqueue(1, 2), Job[int])
    assert_type(send.using(unique_key="k").enqueue("ada", subject="hi"), Job[list[str]])
    assert_type(add.enqueue_many([(1,), {"a": 2}]), list[Job[int]])
    any_task: TaskFunction[..., Any] = send
    assert_type(any_task.name, str)
    add.enqueue()  # type: ignore[call-arg]
    add.enqueue("one")  # type: ignore[arg-type]
    add.enqueue(1, c=2)  # type: ignore[call-arg]
    add.using(dealy=60)  # type: ignore[call-arg]
    send.enqueue("ada", "hi")  # type: ignore[call-arg]
    queue.task(max_retry=3)  # type: ignore[call-overload]


async def tasks_in_async_code() -> None:
    job = assert_type(await send.aenqueue("ada"), Job[list[str]])
    assert_type(await job.aresult(), list[str])
    assert_type(await job.astatus(), TaskStatus)
    assert_type(await add.aenqueue_many([(1,)]), list[Job[int]])
    assert_type(await queue.aget(job.id), TaskInfo)
    await send.aenqueue(7)  # type: ignore[arg-type]


def queues() -> None:
    assert_type(queue.list(status="failed", queue=["mail"]), list[TaskInfo])
    assert_type(queue.cancel("1", "2"), int)
    assert_type(queue.paused(), frozenset[str])
    assert_type(queue.job("1"), Job[Any])
    queue.list(status="broken")  # type: ignore[arg-type]


# Surroundings.


@queue.middleware
def timed(task: CurrentTask) -> Iterator[None]:
    assert_type(task.headers, Mapping[str, str])
    yield


@queue.middleware
async def traced(task: CurrentTask) -> AsyncIterator[None]:
    assert_type(current_task(), CurrentTask)
    yield


@queue.enqueue_middleware
def tenant(new: NewTasks) -> None:
    new.headers["tenant"] = "acme"


@queue.lifespan
@asynccontextmanager
async def connected() -> AsyncGenerator[None, None]:
    yield


class Client: ...


async def get_client() -> AsyncIterator[Client]:
    yield Client()


def get_session() -> Iterator[sqlite3.Connection]:
    yield sqlite3.connect(":memory:")


async def get_name() -> str:
    return "ada"


@contextmanager
def get_number() -> Generator[int, None, None]:
    yield 7


@queue.task
async def fetch(
    url: str,
    *,
    client: Client = Inject(get_client, scope="worker"),
    session: sqlite3.Connection = Inject(get_session),
    name: str = Inject(get_name),
    number: int = Inject(get_number),
    size: float = Inject(lambda: 1.0),
) -> bytes:
    return url.encode()


@queue.task
def wrong(*, client: Client = Inject(get_session)) -> None: ...  # type: ignore[assignment]


def injection() -> None:
    assert_type(fetch.enqueue("http://example.org"), Job[bytes])
    Inject(get_client, scope="request")  # type: ignore[call-overload]
    queue.middleware(connected)  # type: ignore[type-var]
    with queue.override(get_client, Client):
        pass


# Workers and tests.


async def workers() -> None:
    async with AsyncWorkerPool(queue, concurrency=10) as worker:
        assert_type(worker.ready, bool)
    with WorkerPool(queue, lanes="default:4") as sync_worker:
        assert_type(sync_worker.running, int)


def testing() -> None:
    assert_type(run_until_empty(queue), list[TaskInfo])
    assert_type(assert_enqueued(send, "ada"), Enqueued)
    with inline(queue, raises=True):
        add.enqueue(1)


# Pools.


class Model:
    def ask(self, text: str) -> str:
        return text


def pools() -> None:
    with Pool(4, max_queue=100) as pool:
        future = assert_type(pool.submit(add, 1), PoolFuture[int])
        assert_type(future.result(), int)
        assert_type(pool.serve(add, 1), bool)
        assert_type(pool.using(timeout=1).do(add, 1, b=2), int)
        assert_type(list(pool.map(str, [1, 2])), list[str])
        assert_type(list(pool.map(len, ["a"], on_error="return")), list[Outcome[str, int]])
        assert_type(list(pool.map(pow, [1], [2], on_error="return", ordered=False)), list[Outcome[Any, int]])
        pool.map(str, [1], on_error="ignore")  # type: ignore[call-overload]
        pool.submit(add, "one")  # type: ignore[call-overload]
    with Pools(default={"max_workers": 4}) as several:
        assert_type(several.submit(add, 1), PoolFuture[int])


async def read_page(number: int) -> bytes:
    return bytes(number)


async def async_pools(fetch_page: Callable[[int], Coroutine[Any, Any, bytes]], pages: Sequence[int]) -> None:
    async with AsyncPool(100) as pool:
        assert_type(await pool.do(fetch_page, 7), bytes)
        assert_type(await pool.using(timeout=1).do(add, 1), int)
        assert_type([page async for page in pool.map(fetch_page, pages)], list[bytes])
        outcomes = [outcome async for outcome in pool.map(read_page, [1], on_error="return")]
        assert_type(outcomes, list[Outcome[int, bytes]])
