"""Workers that are threads of this process.

A worker parks at its gate and is woken by whoever hands it a request, or None. A thread cannot be killed: neither
`cancel` nor `kill` is promised. Threads are daemons; the pool waits for them itself, also at interpreter exit, and
only those that it has abandoned are left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bullpen import primitives
from bullpen.core.request import DONE, FAILED, Request
from bullpen.core.worker import Worker
from bullpen.runtimes import port
from bullpen.runtimes.port import WorkerEvents


class ThreadRuntime:
    """Runs requests on threads; `initializer(*initargs)` runs first in each of them."""

    name = "thread"
    capabilities = frozenset({"share_memory", "run_inline"})

    def __init__(self, initializer: Callable[..., object] | None = None, initargs: tuple[Any, ...] = ()) -> None:
        self._initializer = initializer
        self._initargs = initargs

    def start(self, worker: Worker, events: WorkerEvents) -> None:
        handle = _Thread(worker, events, self)
        worker.handle = handle
        try:
            handle.thread = primitives.start_thread(handle.run, worker.name)
        finally:
            started, handle.started = handle.started, None
            started.release()

    def initialize(self) -> None:
        """What a thread does first."""
        if self._initializer is not None:
            self._initializer(*self._initargs)

    def cancel(self, worker: Worker, request: Request) -> bool:  # noqa: ARG002 — a thread cannot be interrupted
        return False

    def kill(self, worker: Worker) -> bool:  # noqa: ARG002 — nor killed
        return False

    def join(self, worker: Worker, timeout: float | None) -> bool:
        started = worker.handle.started
        if started is not None:  # the thread may be about to end before whoever starts it knows it
            if not started.acquire(timeout != 0):
                return False
            started.release()
        thread = worker.handle.thread
        if thread is None:
            return True
        thread.join(timeout)
        return not thread.is_alive()


class _Thread:
    """The thread of one worker."""

    __slots__ = ("_events", "_gate", "_inbox", "_runtime", "_worker", "started", "thread")

    def __init__(self, worker: Worker, events: WorkerEvents, runtime: ThreadRuntime) -> None:
        self._worker = worker
        self._events = events
        self._runtime = runtime
        self._inbox: Request | None = None
        self._gate = primitives.gate()
        self._gate.acquire()
        self.started: Any = primitives.gate()  # open, and then gone, once `thread` is set, or could not be
        self.started.acquire()
        self.thread: Any = None

    def hand(self, request: Request | None) -> None:
        self._inbox = request
        self._gate.release()

    def run(self) -> None:
        port.enter(self._worker)
        try:
            self._work()
        finally:
            port.leave()

    def _work(self) -> None:
        worker = self._worker
        events = self._events
        try:
            self._runtime.initialize()
        except BaseException as error:
            events.died(worker, error)
            return
        finished = events.finished
        wait = self._gate.acquire
        request = events.ready(worker)
        while True:
            while request is not None:
                try:
                    kwargs = request.kwargs
                    value = request.fn(*request.args) if kwargs is None else request.fn(*request.args, **kwargs)
                except BaseException as error:
                    request = finished(worker, request, FAILED, error)
                else:
                    request = finished(worker, request, DONE, value)
                    value = kwargs = None  # neither a parked worker nor a busy one keeps an old result alive
            wait()
            request = self._inbox
            if request is None:
                break
            self._inbox = None
        events.exited(worker)
