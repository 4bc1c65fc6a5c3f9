"""Workers that are places on an event loop: each runs as many coroutines at once as it has capacity for, one at a time
as a rule, every one as an `asyncio.Task` of its own.

Everything happens on the loop's thread. A pool on another thread may hand over work, cancel it and wait for the end;
what it asks for is then posted to the loop. A coroutine that is cancelled may take its time, or refuse to end, so
`cancel_running` is promised and `kill_running` is not: the worker is free again when the coroutine has really ended.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from asyncio import _get_running_loop  # None instead of an error when no loop runs on this thread
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from bullpen import primitives
from bullpen.core.request import DONE, FAILED, RUNNING, Request
from bullpen.core.worker import Worker
from bullpen.errors import WorkerBroken
from bullpen.runtimes.port import WorkerEvents, coroutine_request


class EventLoopRuntime:
    """Runs coroutine functions on `loop`; `initializer(*initargs)`, which may be one too, comes first in each worker.

    Without a loop it takes the one that runs when the first worker starts.
    """

    name = "event_loop"
    capabilities = frozenset({"share_memory", "cancel_running"})

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
    ) -> None:
        self._loop = loop
        self._initializer = initializer
        self._initargs = initargs

    def start(self, worker: Worker, events: WorkerEvents) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        worker.handle = place = _Place(worker, events, self._loop)
        if self._initializer is not None:
            place.post(place.initialize, self._initializer, self._initargs)
        else:
            place.post(place.start)

    def cancel(self, worker: Worker, request: Request) -> bool:
        worker.handle.post(worker.handle.cancel, request)
        return True

    @staticmethod
    def cancel_change(worker: Worker) -> None:
        """Cancel what starts or ends `worker`, if that takes its time. On the loop's thread."""
        worker.handle.cancel(None)

    def kill(self, worker: Worker) -> bool:  # noqa: ARG002 — a coroutine may always refuse to end
        return False

    def join(self, worker: Worker, timeout: float | None) -> bool:
        return bool(worker.handle.join(timeout))


class _Begin:
    """A task that is cancelled before its first step never enters its coroutine, which then could not say that it has
    ended. So coroutines are entered before their tasks are made, and wait for this, which is over at the next step.
    """

    __await__ = staticmethod(functools.partial(iter, (None,)))  # as a generator that yields once, in a fraction of time


_BEGIN = _Begin()


class _Place:
    """Where one worker runs its coroutines."""

    __slots__ = ("_events", "_gone", "_loop", "_name", "_tasks", "_worker")

    def __init__(self, worker: Worker, events: WorkerEvents, loop: asyncio.AbstractEventLoop) -> None:
        self._worker = worker
        self._events = events
        self._loop = loop
        self._name = worker.name  # of its tasks, too: they need none of their own, which would have to be made
        self._tasks: dict[Request | None, asyncio.Task[None]] = {}  # None: the one that starts or ends the worker
        self._gone: primitives.Lock = primitives.gate()
        self._gone.acquire()

    def has(self, request: Request) -> bool:
        """Whether the coroutine of `request` is here and has not ended. From any thread."""
        return request in self._tasks

    def is_here(self) -> bool:
        """Whether the loop runs on the current thread, now."""
        return _get_running_loop() is self._loop

    def post(self, call: Callable[..., object], *args: Any) -> None:
        """Make a call on the loop's thread: at once if this is it."""
        if self.is_here():
            call(*args)
        else:
            self._loop.call_soon_threadsafe(call, *args)

    # Start.

    def start(self) -> None:
        try:
            preparing = self._events.prepare(self._worker)
        except BaseException as error:
            self._died(error)
        else:
            if preparing is None:
                self._run(self._events.ready(self._worker))
            else:
                self._do(self._prepare(preparing))

    async def _prepare(self, preparing: Awaitable[None]) -> None:
        try:
            await _BEGIN
            await preparing
        except BaseException as error:
            _forget(preparing)
            self._died(error)
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
        else:
            del self._tasks[None]
            self._run(self._events.ready(self._worker))

    def initialize(self, initializer: Callable[..., object], initargs: tuple[Any, ...]) -> None:
        self._do(self._initialize(initializer, initargs))

    async def _initialize(self, initializer: Callable[..., object], initargs: tuple[Any, ...]) -> None:
        try:
            await _BEGIN
            made = initializer(*initargs)
            if inspect.isawaitable(made):
                await made
        except BaseException as error:
            self._died(error)
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
        else:
            del self._tasks[None]
            self.start()

    def _do(self, change: Coroutine[Any, Any, None]) -> None:
        """Start or end the worker, which takes a task of its own."""
        change.send(None)  # see `_Begin`
        self._tasks[None] = asyncio.Task(change, loop=self._loop, name=self._name)

    def _died(self, error: BaseException) -> None:
        self._tasks.clear()
        self._events.died(self._worker, error)
        self._gone.release()

    # Work.

    def hand(self, request: Request | None) -> None:
        if request is None:
            self._loop.call_soon_threadsafe(self._end)  # not at once: it may be in the midst of a report
        else:
            self.post(self._run, request)

    def _run(self, request: Request | None) -> None:
        if request is not None:
            steps = self._steps(request)
            steps.send(None)  # see `_Begin`
            self._tasks[request] = asyncio.Task(steps, loop=self._loop, name=self._name, context=request.context)

    async def _steps(self, request: Request) -> None:
        try:
            await _BEGIN
            if request.state is not RUNNING:  # given up before its first step
                raise asyncio.CancelledError
            coroutine_request.set(request)  # in its own context
            kwargs = request.kwargs
            value = await (request.fn(*request.args) if kwargs is None else request.fn(*request.args, **kwargs))
        except WorkerBroken as error:
            del self._tasks[request]
            request = None  # type: ignore[assignment]  # the error's traceback leads here, and must not lead on
            self._died(error)
        except BaseException as error:
            task = self._tasks.pop(request)
            if isinstance(error, asyncio.CancelledError):
                request.cancel_running()  # by somebody else than the pool, if this changes anything
            self._run(self._events.finished(self._worker, request, FAILED, error))
            if isinstance(error, KeyboardInterrupt | SystemExit):
                task.add_done_callback(asyncio.Task.exception)  # nobody else will ask for it
                raise  # as asyncio does: the loop ends, and everybody here was told before
        else:
            del self._tasks[request]
            self._run(self._events.finished(self._worker, request, DONE, value))

    def cancel(self, request: Request | None) -> None:
        """Cancel the task of `request`, or the one that starts or ends the worker, unless that is over."""
        task = self._tasks.get(request)
        if task is not None:
            task.cancel()

    # The end.

    def _end(self) -> None:
        retiring = self._events.retire(self._worker)
        if retiring is None:
            self._exited()
        else:
            self._do(self._retire(retiring))

    async def _retire(self, retiring: Awaitable[None]) -> None:
        try:
            await _BEGIN
            await retiring
        finally:  # it raises nothing by itself, but may be cancelled
            _forget(retiring)
            del self._tasks[None]
            self._exited()

    def _exited(self) -> None:
        self._events.exited(self._worker)
        self._gone.release()

    def join(self, timeout: float | None) -> bool:
        if timeout == 0 or self.is_here():  # to wait on the loop would be to wait forever
            gone = self._gone.acquire(False)
        else:
            gone = primitives.system_clock.wait(self._gone, timeout)
        if gone:
            self._gone.release()
        return gone


def _forget(awaitable: Awaitable[None]) -> None:
    """It may never have begun, which nobody needs to be warned of."""
    if inspect.iscoroutine(awaitable):
        awaitable.close()
