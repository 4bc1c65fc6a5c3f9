"""Workers that are places on an event loop: each runs one coroutine at a time, as an `asyncio.Task` of its own.

Everything happens on the loop's thread. A pool on another thread may hand over work, cancel it and wait for the end;
what it asks for is then posted to the loop. A coroutine that is cancelled may take its time, or refuse to end, so
`cancel_running` is promised and `kill_running` is not: the worker is free again when the coroutine has really ended.
"""

from __future__ import annotations

import asyncio
import inspect
import types
from asyncio import _get_running_loop  # None instead of an error when no loop runs on this thread
from collections.abc import Callable, Generator
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

    def kill(self, worker: Worker) -> bool:  # noqa: ARG002 — a coroutine may always refuse to end
        return False

    def join(self, worker: Worker, timeout: float | None) -> bool:
        return bool(worker.handle.join(timeout))


@types.coroutine
def _begin() -> Generator[None, None, None]:
    """A task that is cancelled before its first step never enters its coroutine, which then could not say that it has
    ended. So coroutines are entered before their tasks are made, and wait here.
    """
    yield


class _Place:
    """Where one worker runs its coroutines."""

    __slots__ = ("_events", "_gone", "_loop", "_tasks", "_worker")

    def __init__(self, worker: Worker, events: WorkerEvents, loop: asyncio.AbstractEventLoop) -> None:
        self._worker = worker
        self._events = events
        self._loop = loop
        self._tasks: dict[Request | None, asyncio.Task[None]] = {}  # None: the one that starts the worker
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
            self._events.prepare(self._worker)
        except BaseException as error:
            self._died(error)
        else:
            self._run(self._events.ready(self._worker))

    def initialize(self, initializer: Callable[..., object], initargs: tuple[Any, ...]) -> None:
        steps = self._initialize(initializer, initargs)
        steps.send(None)
        self._tasks[None] = asyncio.Task(steps, loop=self._loop)

    async def _initialize(self, initializer: Callable[..., object], initargs: tuple[Any, ...]) -> None:
        try:
            await _begin()
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
            steps.send(None)  # see `_begin`
            self._tasks[request] = asyncio.Task(steps, loop=self._loop, context=request.context)

    async def _steps(self, request: Request) -> None:
        try:
            await _begin()
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

    def cancel(self, request: Request) -> None:
        """Cancel the task of `request`, unless that is over."""
        task = self._tasks.get(request)
        if task is not None:
            task.cancel()

    # The end.

    def _end(self) -> None:
        self._events.retire(self._worker)
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
