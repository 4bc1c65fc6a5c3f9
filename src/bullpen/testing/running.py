"""Tasks without a worker, in tests: enqueued tasks run when the test says so, or at once.

    run_until_empty(queue)              # everything that is due
    with inline(queue):
        send_email.enqueue("ada")       # has run when this returns

Claims, retries, results and errors are those of a real worker. A plain function runs on the thread of the caller, so it
sees the caller's transaction; also one that workers run in a process. If an event loop runs there, or something async
surrounds tasks, it runs on a thread, as in a worker. Nothing ends a plain function that takes longer than its timeout.
"""

from __future__ import annotations

import asyncio
import time
from asyncio import _get_running_loop
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from bullpen.tasks.client.task_queue import TaskQueue
from bullpen.tasks.model.events import Event
from bullpen.tasks.model.hooks import Hook
from bullpen.tasks.model.info import TaskInfo, info_of
from bullpen.tasks.model.task import Settlement, Step, Task, release
from bullpen.tasks.storage.port import AttemptKey, Storage
from bullpen.tasks.worker.attempt import AttemptId, TaskAttempt
from bullpen.tasks.worker.options import Lane, WorkerOptions
from bullpen.tasks.worker.poison_isolation import PoisonIsolation
from bullpen.tasks.worker.reports import Reports
from bullpen.tasks.worker.scope import WorkerScope

T = TypeVar("T")
NAME = "inline"
LEASE = 3600.0  # it is never renewed


def run_until_empty(queue: TaskQueue, *, limit: int = 1000, raises: bool = False) -> list[TaskInfo]:
    """Run due tasks, and the tasks that they enqueue, until none is due. Returns every attempt, in order, as stored.

    Tasks with a later `eta` stay pending: with a `ManualClock`, `advance` it and call this again. `raises`: the first
    error of a task is raised unchanged. More than `limit` attempts raise AssertionError, because the tasks never end.
    """
    if _get_running_loop() is not None:
        raise RuntimeError("an event loop runs here: use await arun_until_empty(queue)")
    return _here_or_on_loop(queue, arun_until_empty(queue, limit=limit, raises=raises))


async def arun_until_empty(queue: TaskQueue, *, limit: int = 1000, raises: bool = False) -> list[TaskInfo]:
    """`run_until_empty`, for async tests."""
    return await _InlineLane(queue, await queue.astorage()).run_all(limit, raises=raises)


@contextmanager
def inline(queue: TaskQueue, *, raises: bool = False) -> Iterator[None]:
    """Let every `enqueue` run the due tasks before it returns. With `raises` it raises the error of a task."""

    async def run_at_once(_: object) -> AsyncIterator[None]:
        yield
        await arun_until_empty(queue, raises=raises)

    def run_at_once_blocking(_: object) -> Iterator[None]:
        yield
        if _get_running_loop() is None:
            run_until_empty(queue, raises=raises)
        else:
            queue._backend.run("enqueue", arun_until_empty(queue, raises=raises))

    hook = Hook(run_at_once, "inline mode")
    hook.blocking_form = Hook(run_at_once_blocking, "inline mode")
    hook.for_children = False  # they are not there before the task that enqueues them has succeeded
    around_enqueue = queue.registry.hooks.around_enqueue
    around_enqueue.insert(0, hook)
    try:
        yield
    finally:
        around_enqueue.remove(hook)


def _here_or_on_loop(queue: TaskQueue, coroutine: Coroutine[Any, Any, T]) -> T:
    """Without a loop if that is possible: the store needs none, and so does what surrounds tasks."""
    hooks = queue.registry.hooks
    shared = [one for each in queue.registry for one in each.codec.dependencies.values()]
    if getattr(queue.storage, "needs_no_loop", False) and not (
        hooks.lifespans or any(hook.is_async for hook in hooks.around_tasks) or any(map(_needs_loop, shared))
    ):
        try:
            coroutine.send(None)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        raise RuntimeError("a store that needs no loop had to wait")
    return asyncio.run(coroutine)


def _needs_loop(dependency: Any) -> bool:
    return dependency.scope == "worker" or dependency.hook.is_async or any(map(_needs_loop, dependency.needs.values()))


class _InlineAttempt(TaskAttempt):
    """An attempt that remembers the error itself, and needs no process."""

    error: BaseException | None = None

    def _run_in_process(self) -> None:
        self._lane.run_on_thread(self)

    def _raised(self, error: BaseException) -> Settlement | None:
        self.error = error
        return super()._raised(error)


class _InlineLoop:
    """As much of an event loop as an attempt on the caller's thread needs."""

    time = staticmethod(time.monotonic)

    def call_later(self, *_: object) -> None:
        """Nothing can end a function on this thread."""

    def create_task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Its work before and after the function. The store never makes it wait."""
        self.run(coroutine)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            coroutine.send(None)
        except StopIteration as ended:
            return ended.value  # type: ignore[no-any-return]
        raise RuntimeError("a store that needs no loop had to wait")


class _InlineLane:
    """As much of a worker's lane as an attempt needs; one attempt at a time."""

    def __init__(self, queue: TaskQueue, storage: Storage) -> None:
        self._storage = storage
        self.loop: Any = _get_running_loop() or _InlineLoop()
        self.lane = Lane(("default",), 1)
        self.registry = queue.registry
        self.scope = WorkerScope(queue.registry)
        self.worker = NAME
        self.reports = Reports(NAME, NAME, None, time.monotonic)
        self.poison_isolation = PoisonIsolation(time.monotonic)
        self.held = frozenset[AttemptId]()
        self.options = WorkerOptions.read(
            concurrency=1,
            lanes=None,
            name=NAME,
            poll_interval=1.0,
            grace=None,
            lease=LEASE,
            max_abandoned=0,
            unknown_after=0.0,
            observer=None,
        )
        self._claims = 0
        self._settlement: Settlement | None = None
        self._done: Callable[[], object] = lambda: None

    async def run_all(self, limit: int, *, raises: bool) -> list[TaskInfo]:
        if not isinstance(self.loop, _InlineLoop):
            await self.scope.open()
        try:
            return await self._run_all(limit, raises)
        finally:
            await self.scope.close(self.options.lease)

    async def _run_all(self, limit: int, raises: bool) -> list[TaskInfo]:
        ran: list[TaskInfo] = []
        while task := await self._claim():
            if len(ran) == limit:
                await self._settle(release(task))
                raise AssertionError(f"{limit} attempts, and there is still something to run: {task.func_path}")
            attempt = _InlineAttempt(self, task, self.loop.time(), self.loop.time() + LEASE)  # type: ignore[arg-type]
            settlement = await self._run(attempt)
            if settlement is not None:
                await self._settle(settlement)
            (now,) = await self._storage.get([task.id])
            ran.append(info_of(now or task))
            if raises and attempt.error is not None:
                raise attempt.error
        return ran

    async def _claim(self) -> Task | None:
        queues = tuple(await self._storage.counts())
        if not queues:
            return None
        self._claims += 1
        exchange = await self._storage.exchange(
            [], worker=NAME, queues=queues, limit=1, lease=LEASE, claim_id=f"{NAME}/{id(self)}/{self._claims}"
        )
        return exchange.claimed[0] if exchange.claimed else None

    async def _settle(self, settlement: Settlement) -> None:
        await self._storage.exchange(
            [settlement], worker=NAME, queues=("default",), limit=0, lease=LEASE, claim_id=f"{NAME}/{id(self)}/settle"
        )

    async def _run(self, attempt: TaskAttempt) -> Settlement | None:
        self._settlement = None
        if not isinstance(self.loop, _InlineLoop):
            ended = asyncio.Event()
            self._done = ended.set
            attempt.begin()
            await ended.wait()
        else:
            definition = self.registry.get(attempt.task.func_path)
            if definition is not None and definition.is_async:
                asyncio.run(self._on_loop(attempt))
            else:
                attempt.begin()
        return self._settlement

    async def _on_loop(self, attempt: TaskAttempt) -> None:
        clock, self.loop = self.loop, asyncio.get_running_loop()
        try:
            await self._run(attempt)
        finally:
            self.loop = clock

    # What an attempt calls.

    def settle(self, attempt: TaskAttempt, settlement: Settlement | None) -> None:
        if attempt.ended:
            return
        attempt.ended = True
        attempt.stop_timer()
        if settlement is not None and attempt.progress is not None:
            settlement = attempt.with_progress(settlement)
        self._settlement = settlement
        self._done()

    def settle_from_thread(self, attempt: TaskAttempt, settlement: Settlement | None) -> None:
        if isinstance(self.loop, _InlineLoop):
            self.settle(attempt, settlement)
        else:
            self.loop.call_soon_threadsafe(self.settle, attempt, settlement)

    async def get(self, ids: Sequence[str]) -> Sequence[Task | None]:
        return await self._storage.get(ids)

    async def find_event(self, name: str) -> Event | None:
        return await self._storage.wait_for_event(name, 0.0)

    def settle_in(self, connection: Any, settlement: Settlement) -> None:
        self._storage.settle_in(connection, settlement)

    async def save_step(self, hold: AttemptKey, step: Step) -> bool:
        return await self._storage.save_step(hold, step)

    def save_step_in(self, connection: Any, hold: AttemptKey, step: Step) -> Awaitable[None] | None:
        return self._storage.save_step_in(connection, hold, step)

    def wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if isinstance(self.loop, _InlineLoop):
            return self.loop.run(coroutine)
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def run_on_thread(self, attempt: TaskAttempt) -> None:
        if isinstance(self.loop, _InlineLoop):
            attempt.run_on_thread()
        else:
            self.loop.run_in_executor(None, attempt.run_on_thread)

    def abandon(self, attempt: TaskAttempt) -> None:
        pass
