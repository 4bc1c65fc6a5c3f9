"""One task that was enqueued, and the way to its result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, cast

from bullpen import primitives
from bullpen.errors import (
    BullpenError,
    PredecessorFailed,
    ResultDropped,
    ResultTimeout,
    StorageUnavailable,
    TaskCancelled,
    TaskExists,
    TaskFailed,
    UnknownTask,
    closest,
)
from bullpen.tasks.client.backend import QueueBackend
from bullpen.tasks.client.events import emit
from bullpen.tasks.client.stack import ask_for_stack
from bullpen.tasks.client.why import Why, explain_task
from bullpen.tasks.model.arguments import shown_arguments
from bullpen.tasks.model.codec import CallCodec
from bullpen.tasks.model.events import EVENT_TTL
from bullpen.tasks.model.info import TaskInfo, info_of
from bullpen.tasks.model.links import GIVEN_UP
from bullpen.tasks.model.options import Seconds, seconds
from bullpen.tasks.model.task import CANCELLED, FAILED, Progress, Task, TaskStatus

R = TypeVar("R")

_LONGEST_WAIT = 5.0  # then the store is asked again, should its notification be lost
_LAST_WORD = 1.0  # seconds that it has, when the time is over, to say how the task is


_Watched = tuple[TaskStatus, int, int, Progress | None, bool]


def _watched(task: Task) -> _Watched:
    """What a caller of `watch` is told of."""
    return task.status, task.attempt, task.completed_runs, task.progress, task.cancel_requested


class Job(Generic[R]):
    """One task, by its id. It holds nothing else: every question is put to the store."""

    __slots__ = ("_backend", "_completed_runs", "_is_fresh", "id", "is_new")

    def __init__(
        self,
        backend: QueueBackend,
        task_id: str,
        is_new: bool = False,
        is_fresh: bool = False,
        completed_runs: int | None = None,
    ) -> None:
        self._backend = backend
        self._is_fresh = is_fresh  # it was enqueued a moment ago, to run once: it is not over, most likely
        self._completed_runs = completed_runs  # of a schedule: how many were completed when it was asked to run
        self.id = task_id
        self.is_new = is_new  # False if a task with the same unique_key was there already, and this is that one

    @property
    def status(self) -> TaskStatus:
        return self._backend.task_blocking("status", self.id).status

    async def astatus(self) -> TaskStatus:
        return (await self._backend.task(self.id)).status

    @property
    def progress(self) -> Progress | None:
        """How far it says it is; None if it says nothing."""
        return self._backend.task_blocking("progress", self.id).progress

    async def aprogress(self) -> Progress | None:
        return (await self._backend.task(self.id)).progress

    def emit(self, name: str, payload: Any = None, *, ttl: Seconds | None = EVENT_TTL) -> bool:
        """Emit an event for this task alone, which waits for it with `current_task().wait_event(name, own=True)`. See
        `TaskQueue.emit`.
        """
        return self._backend.run("emit", self.aemit(name, payload, ttl=ttl))

    async def aemit(self, name: str, payload: Any = None, *, ttl: Seconds | None = EVENT_TTL) -> bool:
        """`emit`, for async code."""
        return await emit(self._backend, name, payload, ttl, self.id)

    def result(self, timeout: Seconds | None = None) -> R:
        """What the function returned; waits for it.

        A task with an interval has many results: this waits for the next run that completes. Raises TaskFailed,
        TaskCancelled, ResultDropped, TaskNotFound, and ResultTimeout when the time is over; the task goes on then.
        Raises StorageUnavailable at once if the server of the store cannot be reached, and a second after `timeout` if
        it does not answer.
        """
        return self._backend.run("result", self.aresult(timeout))

    async def aresult(self, timeout: Seconds | None = None) -> R:
        """`result`, for async code."""
        limit = _limit(timeout)
        if not limit:
            return await self._aresult(limit)
        try:
            async with asyncio.timeout(limit + _LAST_WORD):
                return await self._aresult(limit)
        except TimeoutError as error:
            if isinstance(error, BullpenError):
                raise
            raise StorageUnavailable(f"no answer about task {self.id} in {limit:g} s", storage="the store") from None

    async def _aresult(self, limit: float | None) -> R:
        monotonic = primitives.system_clock.monotonic
        end = None if limit is None else monotonic() + limit
        task: Task | None = None
        if self._is_fresh and limit != 0:  # to wait first saves a look in vain
            task = await self._wait(0, _LONGEST_WAIT if limit is None else min(limit, _LONGEST_WAIT))
        self._is_fresh = False
        if task is None:
            task = await self._backend.task(self.id)
        completed_runs = task.completed_runs if self._completed_runs is None else self._completed_runs
        while not (task.is_final or task.completed_runs > completed_runs):
            left = _LONGEST_WAIT if end is None else end - monotonic()
            if left <= 0:
                raise await self._timeout(limit or 0.0, task)
            task = await self._wait(completed_runs, min(left, _LONGEST_WAIT)) or await self._backend.task(self.id)
        return cast(R, self._outcome(task))

    async def _wait(self, completed_runs: int, seconds: float) -> Task | None:
        storage = await self._backend.clients.get()
        return await storage.wait_for_result(self.id, completed_runs, seconds)

    async def _timeout(self, waited: float, task: Task) -> ResultTimeout:
        """The error for a caller whose time is up. It explains the task, except to a caller that did not wait."""
        why = await explain_task(await self._backend.clients.get(), task) if waited else None
        words = "" if why is None else "; ".join(cause.message for cause in why.causes)
        return ResultTimeout(seconds=waited, task=self.id, status=str(task.status), why=words)

    def _outcome(self, task: Task) -> Any:
        if task.status is FAILED:
            raise _failure(task)
        if task.status is CANCELLED:
            if task.waits_for == GIVEN_UP and task.error is not None:
                raise PredecessorFailed(task=task.id, name=task.func_path, reason=task.error.message)
            raise TaskCancelled(task=task.id, name=task.func_path)
        if task.result_dropped:
            raise ResultDropped(task=task.id, name=task.func_path, reason=task.result_dropped)
        if task.result is None:
            return None
        definition = self._backend.registry.get(task.func_path)
        codec = CallCodec(None, task.func_path) if definition is None else definition.codec
        return codec.decode_result(task.result)

    def info(self) -> TaskInfo:
        """All that is known about it: attempts, times, errors with their tracebacks."""
        return info_of(self._backend.task_blocking("info", self.id))

    async def ainfo(self) -> TaskInfo:
        return info_of(await self._backend.task(self.id))

    def watch(self, every: Seconds = 1.0) -> Iterator[TaskInfo]:
        """The task as it is now, and again whenever its status, attempt or progress has changed, until it is final.

            for update in job.watch():
                print(update.status, update.progress)

        The store is asked every `every` seconds, and at once when the task ends. Changes in between are not seen.
        Raises TaskNotFound if the task is deleted meanwhile, as with `result_ttl=0`.
        """
        pause = seconds("every", every, zero=False)
        seen: _Watched | None = None
        while True:
            task = self._backend.run("watch", self._changed(seen, pause))
            yield info_of(task)
            if task.is_final:
                return
            seen = _watched(task)

    async def awatch(self, every: Seconds = 1.0) -> AsyncIterator[TaskInfo]:
        """`watch`, for async code: `async for update in job.awatch()`."""
        pause = seconds("every", every, zero=False)
        seen: _Watched | None = None
        while True:
            task = await self._changed(seen, pause)
            yield info_of(task)
            if task.is_final:
                return
            seen = _watched(task)

    async def _changed(self, seen: _Watched | None, pause: float) -> Task:
        """The task, as soon as it differs from what a caller has seen."""
        task = await self._backend.task(self.id)
        while _watched(task) == seen:
            task = await self._wait(task.completed_runs, pause) or await self._backend.task(self.id)
        return task

    def arguments(self) -> dict[str, Any]:
        """Its arguments by the names of the parameters, as JSON has them. Secrets are `"[redacted]"`: the values of
        parameters and keys that `@queue.task(redact=…)` names, or that look like secrets (`password`, `api_key`).

        Raises UnknownTask if the function is not registered here, because only its code says what to redact, and
        InvalidPayload if the stored bytes cannot be decoded.
        """
        return self._arguments(self._backend.task_blocking("arguments", self.id))

    async def aarguments(self) -> dict[str, Any]:
        """`arguments`, for async code."""
        return self._arguments(await self._backend.task(self.id))

    def _arguments(self, task: Task) -> dict[str, Any]:
        definition = self._backend.registry.get(task.func_path)
        if definition is None:
            known = self._backend.registry.names()
            raise UnknownTask(name=task.func_path, known=known, suggestion=closest(task.func_path, known))
        args, kwargs = definition.codec.decode_plain(task.payload)
        return shown_arguments(definition.function, args, kwargs, definition.options.redact)

    def why(self) -> Why:
        """Why it is not done, in words and as data."""
        return self._backend.run("why", self.awhy())

    async def awhy(self) -> Why:
        return await explain_task(await self._backend.clients.get(), await self._backend.task(self.id))

    def stack(self, timeout: Seconds | None = 15.0) -> str:
        """Where its function is, while it runs: its worker writes the stack to the store within seconds.

        Raises StackUnavailable if it does not run, or if its worker cannot tell or does not answer within `timeout`.
        """
        return self._backend.run("stack", self.astack(timeout))

    async def astack(self, timeout: Seconds | None = 15.0) -> str:
        """`stack`, for async code."""
        storage, task = await self._backend.clients.get(), await self._backend.task(self.id)
        return await ask_for_stack(storage, task, _limit(timeout))

    def cancel(self) -> bool:
        """Cancel it if it waits; ask it to stop if it runs. False if it is over, or not there."""
        return self._backend.run("cancel", self.acancel())

    async def acancel(self) -> bool:
        return bool(await self._backend.cancel([self.id]))

    def retry(self, *, from_step: str | None = None) -> bool:
        """Let it run again, with all its tries, if it is over. False if it is not, or not there. `from_step`: see
        `TaskQueue.retry`.
        """
        return self._backend.run("retry", self.aretry(from_step=from_step))

    async def aretry(self, *, from_step: str | None = None) -> bool:
        return bool(await self._backend.retry([self.id], from_step))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<Job {self.id}>"


@contextmanager
def job_in_task_exists(backend: QueueBackend) -> Iterator[None]:
    """A TaskExists that the store raises names the task by its id; the caller gets its job too."""
    try:
        yield
    except TaskExists as error:
        error.job = Job(backend, error.task)
        raise


def _limit(timeout: Seconds | None) -> float | None:
    return None if timeout is None else seconds("timeout", timeout, none="to wait for ever")


def _failure(task: Task) -> TaskFailed:
    error = task.error
    return TaskFailed(
        task=task.id,
        name=task.func_path,
        kind=error.kind if error is not None else "exception",
        type=error.type if error is not None else "",
        message=error.message if error is not None else "",
        traceback=error.traceback if error is not None else "",
        attempt=error.attempt if error is not None else task.attempt,
    )
