"""What surrounds tasks: middleware around enqueue and execution, lifespans of workers, values that are injected."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Annotated, Any

import pytest

from bullpen import (
    AsyncWorkerPool,
    Cancel,
    CurrentTask,
    Inject,
    InvalidArgument,
    InvalidHook,
    InvalidTask,
    NewTasks,
    TaskFailed,
    TaskQueue,
    TaskStatus,
    WorkerPool,
    current_task,
)
from bullpen.tasks.storage.memory import MemoryStorage
from bullpen.tasks.storage.port import WorkerRecord

SECONDS = 10.0


@pytest.fixture
def queue() -> Iterator[TaskQueue]:
    with TaskQueue("memory://") as queue:
        yield queue


@pytest.fixture
def told() -> list[str]:
    return []


def both_kinds(queue: TaskQueue, told: list[str], **options: Any) -> list[Any]:
    """A task on a thread, and one on the loop."""

    @queue.task(name="on_thread", **options)
    def on_thread(fails: bool) -> str:
        told.append("task")
        if fails:
            raise ValueError("by the task")
        return "done"

    @queue.task(name="on_loop", **options)
    async def on_loop(fails: bool) -> str:
        return on_thread(fails)

    return [on_thread, on_loop]


def around(told: list[str], name: str) -> list[Callable[[CurrentTask], Any]]:
    """The four forms of a middleware."""

    def plain(task: CurrentTask) -> Iterator[None]:
        told.append(f"{name} before")
        try:
            yield
        finally:
            told.append(f"{name} after")

    async def on_loop(task: CurrentTask) -> AsyncIterator[None]:
        await asyncio.sleep(0)
        told.append(f"{name} before")
        try:
            yield
        finally:
            await asyncio.sleep(0)
            told.append(f"{name} after")

    return [plain, on_loop, contextmanager(plain), asynccontextmanager(on_loop)]


# Middleware around execution.


@pytest.mark.parametrize("form", range(4))
@pytest.mark.parametrize("kind", range(2), ids=["thread", "loop"])
@pytest.mark.parametrize("fails", [False, True])
def test_middleware_is_around_every_task_the_first_is_the_outermost(
    queue: TaskQueue, told: list[str], form: int, kind: int, fails: bool
) -> None:
    task = both_kinds(queue, told)[kind]
    queue.middleware(around(told, "outer")[form])
    queue.middleware(around(told, "inner")[3 - form])
    with WorkerPool(queue):
        job = task.enqueue(fails)
        if fails:
            with pytest.raises(TaskFailed, match="by the task"):
                job.result(SECONDS)
        else:
            assert job.result(SECONDS) == "done"
    assert told == ["outer before", "inner before", "task", "inner after", "outer after"]


@pytest.mark.parametrize("kind", range(2), ids=["thread", "loop"])
def test_middleware_without_a_yield_is_called_before(queue: TaskQueue, told: list[str], kind: int) -> None:
    @queue.middleware
    def plain(task: CurrentTask) -> None:
        told.append(task.name)

    @queue.middleware
    async def on_loop(task: CurrentTask) -> None:
        told.append(current_task().id)

    task = both_kinds(queue, told)[kind]
    with WorkerPool(queue):
        job = task.enqueue(False)
        job.result(SECONDS)
    assert told == [task.name, job.id, "task"]


@pytest.mark.parametrize("kind", range(2), ids=["thread", "loop"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_error_of_middleware_is_the_error_of_the_task_and_says_whose_it_is(
    queue: TaskQueue, told: list[str], kind: int, when: str
) -> None:
    @queue.middleware
    def broken(task: CurrentTask) -> Iterator[None]:
        if when == "before":
            raise LookupError("no tenant")
        yield
        raise LookupError("no tenant")

    task = both_kinds(queue, told)[kind]
    with WorkerPool(queue):
        job = task.enqueue(False)
        with pytest.raises(TaskFailed, match="no tenant") as failed:
            job.result(SECONDS)
    assert "raised by the middleware" in failed.value.traceback
    assert "broken" in failed.value.traceback
    assert "bullpen/tasks/worker" not in failed.value.traceback.replace("\\", "/").split("contextlib")[0]
    assert told == ([] if when == "before" else ["task"])


@pytest.mark.parametrize("kind", range(2), ids=["thread", "loop"])
def test_middleware_swallows_no_error(queue: TaskQueue, told: list[str], kind: int) -> None:
    @queue.middleware
    def quiet(task: CurrentTask) -> Iterator[None]:
        try:
            yield
        except ValueError:
            told.append("swallowed")

    task = both_kinds(queue, told)[kind]
    with WorkerPool(queue), pytest.raises(TaskFailed, match="by the task"):
        task.enqueue(True).result(SECONDS)
    assert told == ["task", "swallowed"]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), StopIteration(), asyncio.CancelledError()])
def test_no_error_of_a_task_ends_the_worker_through_its_middleware(queue: TaskQueue, error: BaseException) -> None:
    seen: list[str] = []

    @queue.middleware
    async def on_loop(task: CurrentTask) -> AsyncIterator[None]:
        try:
            yield
        except BaseException as raised:
            seen.append(type(raised).__name__)
            raise

    @queue.task(name="ends_all")
    def ends_all() -> None:
        raise error

    @queue.task(name="comes_after")
    def comes_after() -> str:
        return "done"

    with WorkerPool(queue):
        with pytest.raises(TaskFailed, match=type(error).__name__):
            ends_all.enqueue().result(timeout=SECONDS)
        assert comes_after.enqueue().result(timeout=SECONDS) == "done"
    assert seen == [type(error).__name__]


def test_middleware_may_keep_a_task_from_running(queue: TaskQueue, told: list[str]) -> None:
    @queue.middleware
    def gate(task: CurrentTask) -> None:
        if task.headers.get("tenant") == "closed":
            raise Cancel("the tenant is gone")

    on_thread, _ = both_kinds(queue, told, max_retries=3)
    with WorkerPool(queue):
        on_thread.enqueue(False).result(SECONDS)
        job = on_thread.using(headers={"tenant": "closed"}).enqueue(False)
        with pytest.raises(Exception, match="cancelled"):
            job.result(SECONDS)
    assert told == ["task"]
    assert job.status is TaskStatus.CANCELLED


@pytest.mark.anyio
async def test_open_resources_are_closed_when_a_task_times_out(queue: TaskQueue, told: list[str]) -> None:
    queue.middleware(around(told, "middleware")[1])

    @asynccontextmanager
    async def session() -> AsyncIterator[str]:
        told.append("session open")
        async with asyncio.timeout(60):
            try:
                yield "session"
            finally:
                await asyncio.sleep(0.01)
                told.append("session closed")

    @queue.task(name="slow", timeout=0.05)
    async def slow(*, session: str = Inject(session)) -> None:
        await asyncio.sleep(60)

    async with AsyncWorkerPool(queue):
        job = await slow.aenqueue()
        with pytest.raises(TaskFailed, match="timeout"):
            await job.aresult(SECONDS)
    assert told == ["middleware before", "session open", "session closed", "middleware after"]


def test_a_function_that_cannot_be_middleware_is_rejected(queue: TaskQueue) -> None:
    with pytest.raises(InvalidHook, match=r"it takes \(\), and is called with the task"):
        queue.middleware(lambda: None)  # type: ignore[type-var]
    with pytest.raises(InvalidHook, match="3 cannot be a middleware: it cannot be called"):
        queue.enqueue_middleware(3)  # type: ignore[type-var]
    with pytest.raises(InvalidHook, match="is called with nothing"):
        queue.lifespan(lambda app: None)  # type: ignore[type-var]


# Middleware around enqueue.

tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


@pytest.mark.parametrize("store", ["memory", "sqlite"])
@pytest.mark.parametrize("form", ["plain", "async"])
def test_enqueue_middleware_writes_headers_that_the_task_reads(
    tmp_path: Path, told: list[str], form: str, store: str
) -> None:
    with TaskQueue("memory://" if store == "memory" else f"sqlite:///{tmp_path}/jobs.db") as queue:

        @queue.task(name="who", headers={"from": "the function"})
        def who() -> dict[str, str]:
            return dict(current_task().headers)

        def plain(new: NewTasks) -> Iterator[None]:
            new.headers["tenant"] = tenant.get()
            told.append(f"{new.name} {new.queue} {new.count} {new.ids}")
            yield
            told.append(f"{len(new.ids)} kept")

        async def on_loop(new: NewTasks) -> AsyncIterator[None]:
            await asyncio.sleep(0)
            for _ in plain(new):
                yield

        queue.enqueue_middleware(plain if form == "plain" else on_loop)
        token = tenant.set("acme")
        try:
            jobs = [who.enqueue(), queue.enqueue("who"), *who.enqueue_many([(), ()]), asyncio.run(who.aenqueue())]
        finally:
            tenant.reset(token)
        with WorkerPool(queue):
            results = [job.result(SECONDS) for job in jobs]
    assert results == [{"from": "the function", "tenant": "acme"}] * 5
    assert told[:2] == ["who default 1 ()", "1 kept"]
    assert told[4:6] == ["who default 2 ()", "2 kept"]


def test_enqueue_middleware_that_raises_keeps_nothing_or_says_that_it_is_kept(queue: TaskQueue) -> None:
    when = ["before"]

    @queue.task(name="work")
    def work() -> None: ...

    @queue.enqueue_middleware
    def broken(new: NewTasks) -> Iterator[None]:
        if when == ["before"]:
            raise LookupError("no tenant")
        yield
        raise LookupError("no log")

    with pytest.raises(LookupError, match="no tenant"):
        work.enqueue()
    assert queue.list() == []
    when[0] = "after"
    with pytest.raises(LookupError, match="no log") as error:
        work.enqueue()
    (kept,) = queue.list()
    assert error.value.__notes__[-1] == f"the task is kept nevertheless: {kept.id}"


def test_wrong_headers_of_middleware_are_rejected(queue: TaskQueue) -> None:
    @queue.task(name="work")
    def work() -> None: ...

    @queue.enqueue_middleware
    def wrong(new: NewTasks) -> None:
        new.headers["tenant"] = 7  # type: ignore[assignment]

    with pytest.raises(ValueError, match="headers"):
        work.enqueue()
    assert queue.list() == []


# Lifespans.


@pytest.mark.anyio
async def test_a_lifespan_begins_before_the_first_task_and_ends_after_the_last(
    queue: TaskQueue, told: list[str]
) -> None:
    tasks: list[Any] = []

    @queue.lifespan
    async def outer() -> AsyncIterator[None]:
        tasks.append(asyncio.current_task())
        async with asyncio.TaskGroup():
            told.append("start")
            yield
            told.append("stop")
        tasks.append(asyncio.current_task())

    @queue.lifespan
    def inner() -> Iterator[None]:
        told.append("start inner")
        yield
        told.append("stop inner")

    _, on_loop = both_kinds(queue, told)
    job = await on_loop.aenqueue(False)
    async with AsyncWorkerPool(queue):
        await job.aresult(SECONDS)
    assert told == ["start", "start inner", "task", "stop inner", "stop"]
    assert tasks[0] is tasks[1]


@pytest.mark.anyio
async def test_a_worker_whose_lifespan_fails_does_not_start(queue: TaskQueue, told: list[str]) -> None:
    @queue.lifespan
    def first() -> Iterator[None]:
        try:
            yield
        finally:
            told.append("closed")

    @queue.lifespan
    async def broken() -> None:
        raise ConnectionError("no database")

    both_kinds(queue, told)
    worker = AsyncWorkerPool(queue)
    with pytest.raises(ConnectionError, match="no database"):
        await worker.start()
    assert str(worker.state) == "stopped"
    assert told == ["closed"]
    assert await queue.aworkers() == []


class NoStore(MemoryStorage):
    async def save_worker(self, record: WorkerRecord) -> None:
        raise ConnectionError("no store")


@pytest.mark.anyio
async def test_a_lifespan_ends_though_the_store_cannot_be_reached(told: list[str]) -> None:
    queue = TaskQueue(NoStore())

    @queue.lifespan
    async def life() -> AsyncIterator[None]:
        yield
        told.append("closed")

    with pytest.raises(ConnectionError, match="no store"):
        await AsyncWorkerPool(queue).start()
    assert told == ["closed"]


@pytest.mark.anyio
async def test_a_lifespan_that_fails_at_its_end_is_logged(queue: TaskQueue, caplog: pytest.LogCaptureFixture) -> None:
    @queue.lifespan
    def broken() -> Iterator[None]:
        yield
        raise ConnectionError("cannot close")

    async with AsyncWorkerPool(queue):
        pass
    assert "failed at its end" in caplog.text
    assert "cannot close" in caplog.text


@pytest.mark.anyio
async def test_a_worker_that_is_stopped_while_it_starts_closes_its_open_resources(
    queue: TaskQueue, told: list[str]
) -> None:
    begun = asyncio.Event()

    @queue.lifespan
    async def slow() -> AsyncIterator[None]:
        try:
            begun.set()
            await asyncio.sleep(60)
            yield
        finally:
            told.append("closed")

    starting = asyncio.create_task(AsyncWorkerPool(queue).start())
    await begun.wait()
    starting.cancel()
    await asyncio.wait((starting,))
    assert starting.cancelled()
    assert told == ["closed"]


# Injection.


class Session:
    def __init__(self, engine: str) -> None:
        self.engine = engine
        self.is_open = True
        self.thread = threading.get_ident()


@pytest.mark.parametrize("kind", range(2), ids=["thread", "loop"])
@pytest.mark.parametrize("form", ["plain", "async"])
def test_values_are_made_once_in_their_scope_and_closed(
    queue: TaskQueue, told: list[str], kind: int, form: str
) -> None:
    def get_engine() -> Iterator[str]:
        told.append("engine open")
        yield "engine"
        told.append("engine closed")

    async def get_engine_on_loop() -> AsyncIterator[str]:
        for engine in get_engine():
            yield engine

    plain = form == "plain"
    engine = Inject(get_engine, scope="worker") if plain else Inject(get_engine_on_loop, scope="worker")

    def get_session(engine: str = engine) -> Iterator[Session]:
        session = Session(engine)
        told.append("session open")
        try:
            yield session
        finally:
            session.is_open = False
            told.append("session closed")

    async def get_session_on_loop(engine: str = engine) -> AsyncIterator[Session]:
        await asyncio.sleep(0)
        for session in get_session(engine):
            yield session

    session = Inject(get_session) if plain else Inject(get_session_on_loop)

    def user(session: Session = session) -> str:
        assert session.is_open
        return "ada"

    @queue.task(name="on_thread")
    def on_thread(order: int, *, session: Session = session, user: str = Inject(user), engine: str = engine) -> str:
        assert session.is_open
        if plain and kind == 0:
            assert session.thread == threading.get_ident()
        return f"{order} {session.engine} {user} {engine}"

    @queue.task(name="on_loop")
    async def on_loop(order: int, *, session: Session = session, user: str = Inject(user), engine: str = engine) -> str:
        return on_thread(order, session=session, user=user, engine=engine)

    with WorkerPool(queue, 1):
        for order in range(2):
            task = (on_thread, on_loop)[kind]
            assert task.enqueue(order).result(SECONDS) == f"{order} engine ada engine"
    assert told == ["engine open", *["session open", "session closed"] * 2, "engine closed"]


def make_number() -> int:
    return 42


Number = Annotated[int, Inject(make_number)]


def test_a_parameter_may_be_annotated_instead(queue: TaskQueue) -> None:
    @queue.task(name="add")
    def add(number: int, *, more: Number) -> int:
        return number + more

    with WorkerPool(queue):
        assert queue.enqueue("add", [1]).result(SECONDS) == 43


def test_an_injected_value_cannot_be_enqueued(queue: TaskQueue) -> None:
    @queue.task(name="add")
    def add(number: int, more: int = Inject(make_number), **rest: int) -> int:
        return number + more

    with pytest.raises(InvalidArgument, match="'more' is injected by the worker, and is not enqueued"):
        add.enqueue(1, more=2)
    with pytest.raises(InvalidArgument, match=r"do not fit \(number: 'int', \*\*rest: 'int'\)"):
        add.enqueue(1, 2)
    assert add(1, more=2) == 3
    with WorkerPool(queue):
        assert add.enqueue(1).result(SECONDS) == 43


def test_a_direct_call_without_the_value_says_what_is_missing(queue: TaskQueue) -> None:
    @queue.task(name="look")
    def look(*, session: Session = Inject(lambda: Session("x"))) -> bool:
        return session.is_open

    with pytest.raises(AttributeError, match="workers inject; a direct call of the function has to pass the value"):
        look()


def test_an_injected_parameter_before_others_is_rejected(queue: TaskQueue) -> None:
    @queue.task(name="add")
    def add(more: Number, number: int) -> int:
        return number + more

    with pytest.raises(InvalidTask, match="'more' is injected and stands before 'number'"):
        add.enqueue(1, 2)


@pytest.mark.parametrize("scope", ["task", "worker"])
def test_a_provider_that_fails_is_the_error_of_the_task_or_of_the_start(queue: TaskQueue, scope: Any) -> None:
    def broken() -> int:
        raise ConnectionError("no database")

    @queue.task(name="work")
    def work(*, number: int = Inject(broken, scope=scope)) -> None: ...

    job = work.enqueue()
    worker = WorkerPool(queue)
    if scope == "worker":
        with pytest.raises(ConnectionError, match="no database"):
            worker.start()
        assert job.status is TaskStatus.PENDING
    else:
        with worker, pytest.raises(TaskFailed, match="no database") as failed:
            job.result(SECONDS)
        assert "raised by the provider" in failed.value.traceback


def test_providers_that_make_no_sense_are_rejected(queue: TaskQueue) -> None:
    def needs_more(url: str) -> int:
        return 0

    def of_task() -> int:
        return 0

    def of_worker(number: int = Inject(of_task)) -> int:
        return 0

    for provider, scope, why in (
        (needs_more, "task", "its parameter 'url' has no default"),
        (of_worker, "worker", "its scope is 'worker', but its parameter 'number' has the scope 'task'"),
        (circle, "task", "it needs itself"),
    ):
        queue = TaskQueue("memory://")

        def work(*, number: int = Inject(provider, scope=scope)) -> None: ...  # type: ignore[call-overload]

        queue.task(name="work")(work)
        with pytest.raises(InvalidHook, match=why):
            WorkerPool(queue).start()
    with pytest.raises(ValueError, match="scope must be 'task' or 'worker'"):
        Inject(of_task, scope="request")  # type: ignore[call-overload]


def circle(again: Circle) -> int:
    return again


Circle = Annotated[int, Inject(circle)]


def test_a_provider_can_be_replaced_for_a_test(queue: TaskQueue) -> None:
    @queue.task(name="number")
    def number(*, number: int = Inject(make_number), shared: int = Inject(make_number, scope="worker")) -> list[int]:
        return [number, shared]

    with queue.override(make_number, lambda: 7), WorkerPool(queue):
        assert number.enqueue().result(SECONDS) == [7, 7]
    with WorkerPool(queue):
        assert number.enqueue().result(SECONDS) == [42, 42]
