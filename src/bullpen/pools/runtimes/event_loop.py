"""Workers that are places on an event loop. Each runs `capacity` coroutines at once, by default one, each as an
`asyncio.Task`.

Everything happens on the loop's thread. A pool on another thread may hand over requests, cancel them and wait for the
end; these calls are posted to the loop. A cancelled coroutine may end late or refuse to end, so this runtime promises
`cancel_running` but not `kill_running`. A worker is free again when its coroutine has ended.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from asyncio import _get_running_loop  # None instead of an error when no loop runs on this thread
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from bullpen import primitives
from bullpen.errors import WorkerBroken
from bullpen.pools.dispatch.request import DONE, FAILED, RUNNING, Request
from bullpen.pools.dispatch.worker import STOPPING, Worker
from bullpen.pools.runtimes.port import IN_NEW_TASK, WorkerEvents, coroutine_request


class EventLoopRuntime:
    """Runs coroutine functions on `loop`. In each worker it calls `initializer(*initargs)` first, which may be a
    coroutine function, too.

    Without `loop` it uses the loop that runs when the first worker starts.
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
        worker.handle = place = _LoopWorker(worker, events, self._loop)
        if self._initializer is not None:
            place.post(place.initialize, self._initializer, self._initargs)
        else:
            place.post(place.start)

    def cancel(self, worker: Worker, request: Request) -> bool:
        worker.handle.post(worker.handle.cancel, request)
        return True

    @staticmethod
    def cancel_change(worker: Worker) -> None:
        """Cancel the task that starts or ends `worker`, if there is one. On the loop's thread."""
        worker.handle.cancel(None)

    def kill(self, worker: Worker) -> bool:  # noqa: ARG002 — a coroutine may always refuse to end
        return False

    def join(self, worker: Worker, timeout: float | None) -> bool:
        return bool(worker.handle.join(timeout))


class _Begin:
    """The first `await` of each coroutine here.

    A task that is cancelled before its first step never enters its coroutine, which then could not report its end. So
    the worker enters a coroutine before it makes the task. The coroutine waits for this until the task's first step.
    """

    __await__ = staticmethod(functools.partial(iter, (None,)))  # like a generator that yields once, but faster


_BEGIN = _Begin()


class _LoopWorker:
    """One worker on a loop."""

    __slots__ = ("_events", "_failure", "_gone", "_loop", "_name", "_tasks", "_worker")

    def __init__(self, worker: Worker, events: WorkerEvents, loop: asyncio.AbstractEventLoop) -> None:
        self._worker = worker
        self._events = events
        self._loop = loop
        self._name = worker.name  # of its tasks, too: names of their own would cost time
        self._tasks: dict[Request | None, asyncio.Task[None]] = {}  # None: the one that starts or ends the worker
        self._failure: WorkerBroken | None = None  # it is broken, and dies when its other coroutines have ended
        self._gone: primitives.Lock = primitives.gate()
        self._gone.acquire()

    def has(self, request: Request) -> bool:
        """Whether the coroutine of `request` runs here and has not ended. From any thread."""
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
        """Start or end the worker in a task of its own."""
        change.send(None)  # see `_Begin`
        self._tasks[None] = asyncio.Task(change, loop=self._loop, name=self._name)

    def _died(self, error: BaseException) -> None:
        self._tasks.clear()
        self._events.died(self._worker, error)
        self._gone.release()
        del self._worker  # which refers to this

    # Work.

    def hand(self, request: Request | None) -> None:
        if request is None:
            self._loop.call_soon_threadsafe(self._end)  # not at once: the worker may be reporting
        elif self.is_here():
            self._run(request)
        else:
            self._loop.call_soon_threadsafe(self._run_late, request)

    def _run_late(self, request: Request) -> None:
        if hasattr(self, "_worker"):  # else it has died meanwhile, and the request is lost with it
            self._run(request)

    def _run(self, request: Request | None) -> None:
        if request is not None:
            steps = self._steps(request)
            steps.send(None)  # see `_Begin`
            self._tasks[request] = asyncio.Task(steps, loop=self._loop, name=self._name, context=request.context)
        elif self._failure is not None and not self._tasks:
            failure, self._failure = self._failure, None
            self._died(failure)

    async def _steps(self, request: Request) -> None:
        try:
            await _BEGIN
            if request.state is not RUNNING:  # cancelled before its first step
                raise asyncio.CancelledError
            coroutine_request.set(request)  # in its own context
            kwargs = request.kwargs
            value = await (request.fn(*request.args) if kwargs is None else request.fn(*request.args, **kwargs))
        except WorkerBroken as error:
            del self._tasks[request]
            request = None  # type: ignore[assignment]  # the error's traceback has this frame, and must not keep the request alive
            self._break(error)
        except BaseException as error:
            task = self._tasks.pop(request)
            if isinstance(error, asyncio.CancelledError):
                request.cancel_running()  # changes the state only if the pool has not cancelled it
            self._run(self._events.finished(self._worker, request, FAILED, error))
            if isinstance(error, KeyboardInterrupt | SystemExit):
                task.add_done_callback(asyncio.Task.exception)  # mark the exception as retrieved
                raise  # as asyncio does: the loop ends; the report came before
        else:
            del self._tasks[request]
            if value is IN_NEW_TASK:
                self._run(request)
            else:
                self._run(self._events.finished(self._worker, request, DONE, value))

    def _break(self, error: WorkerBroken) -> None:
        """Take no further requests."""
        with self._worker.lock:
            if self._worker.status is not STOPPING:
                self._worker.move(STOPPING)
        self._failure = error
        self._run(None)

    def cancel(self, request: Request | None) -> None:
        """Cancel the task of `request`; None: the task that starts or ends the worker."""
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
        finally:  # it raises nothing itself, but may be cancelled
            _forget(retiring)
            del self._tasks[None]
            self._exited()

    def _exited(self) -> None:
        self._events.exited(self._worker)
        self._gone.release()
        del self._worker  # which refers to this

    def join(self, timeout: float | None) -> bool:
        if timeout == 0 or self.is_here():  # waiting on the loop would wait forever
            gone = self._gone.acquire(False)
        else:
            gone = primitives.system_clock.wait(self._gone, timeout)
        if gone:
            self._gone.release()
        return gone


def _forget(awaitable: Awaitable[None]) -> None:
    """Close a coroutine that may not have begun, to avoid a warning."""
    if inspect.iscoroutine(awaitable):
        awaitable.close()
