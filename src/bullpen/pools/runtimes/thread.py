"""Workers that are threads of this process.

An idle worker waits at its gate. A thread that hands it a request, or None to end it, opens the gate. A gate that opens
before the worker is there stays open, so the worker misses neither. A worker with a capacity above one is a group of
threads, which start as they are needed. A thread cannot be killed, so this runtime promises neither `cancel` nor
`kill`. The threads are daemons. The pool waits for them itself, also at interpreter exit, except for those that it has
abandoned.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from bullpen import primitives
from bullpen.errors import WorkerBroken, WorkerStartFailed
from bullpen.pools.dispatch.request import DONE, FAILED, Request
from bullpen.pools.dispatch.worker import STOPPING, Worker
from bullpen.pools.runtimes import port
from bullpen.pools.runtimes.port import WorkerEvents
from bullpen.telemetry import logger


class ThreadRuntime:
    """Runs requests on threads; `initializer(*initargs)` runs first in each worker, on its first thread."""

    name = "thread"
    capabilities = frozenset({"share_memory", "run_inline", "keep_instance"})

    def __init__(self, initializer: Callable[..., object] | None = None, initargs: tuple[Any, ...] = ()) -> None:
        self._initializer = initializer
        self._initargs = initargs

    def start(self, worker: Worker, events: WorkerEvents) -> None:
        handle = _WorkerThread(worker, events, self)
        worker.handle = handle
        handle.start(handle.run, worker.name)

    def initialize(self) -> None:
        """Call the initializer, first in each worker."""
        if self._initializer is not None:
            self._initializer(*self._initargs)

    def cancel(self, worker: Worker, request: Request) -> bool:  # noqa: ARG002 — a thread cannot be interrupted
        return False

    def kill(self, worker: Worker) -> bool:  # noqa: ARG002 — nor killed
        return False

    def join(self, worker: Worker, timeout: float | None) -> bool:
        return bool(worker.handle.join(timeout))


class _Starter:
    """A thread that may end before the thread that starts it knows it."""

    __slots__ = ("_started", "_thread")

    def __init__(self) -> None:
        self._started: Any = primitives.gate()  # open, and then None, once `_thread` is set or the start has failed
        self._started.acquire(False)
        self._thread: Any = None

    def start(self, run: Callable[[], None], name: str) -> None:
        try:
            self._thread = primitives.start_thread(run, name)
        finally:
            started, self._started = self._started, None
            started.release()

    def join(self, timeout: float | None) -> bool:
        started = self._started
        if started is not None:
            if not started.acquire(timeout != 0):
                return False
            started.release()
        if self._thread is None:
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()


class _WorkerThread(_Starter):
    """The thread of one worker; the first one, if the worker has several."""

    __slots__ = ("_events", "_gate", "_inbox", "_runtime", "worker")

    def __init__(self, worker: Worker, events: WorkerEvents, runtime: ThreadRuntime) -> None:
        super().__init__()
        self.worker = worker
        self._events = events
        self._runtime = runtime
        self._inbox: Request | None = None
        self._gate = primitives.gate()
        self._gate.acquire()

    def hand(self, request: Request | None) -> None:
        self._inbox = request
        try:
            self._gate.release()
        except KeyboardInterrupt:  # the gate is open: the submitter must not hand it over again
            primitives.interrupt_later()

    def run(self) -> None:
        worker = self.worker
        port.enter(worker)
        try:
            self._runtime.initialize()
            self._events.prepare(worker)
            if worker.capacity == 1:
                self._work()
            else:  # no thread has used the handle yet, because a starting worker gets no requests
                worker.handle = group = _ThreadGroup(self._events, self)
                group.run_first()
            self._events.retire(worker)
        except BaseException as error:  # it could not start, is broken, or one of its reports failed
            self._events.died(worker, error)
        else:
            self._events.exited(worker)
        finally:
            port.leave()
            del self.worker, self._events  # the worker refers to this, and so may an error that the pool keeps

    def _work(self) -> None:
        worker = self.worker
        events = self._events
        finished = events.finished
        gate = self._gate  # not its method, which would be another object for each idle worker
        request = events.ready(worker)
        while True:
            while request is not None:
                try:
                    if request.kwargs is None:
                        value = request.fn(*request.args)
                    else:
                        value = request.fn(*request.args, **request.kwargs)
                except WorkerBroken:
                    request = None  # the error's traceback has this frame, and must not keep the request alive
                    raise
                except BaseException as error:
                    request = finished(worker, request, FAILED, error)
                else:
                    request = finished(worker, request, DONE, value)
                    value = None  # an idle or busy worker must not keep an old result alive
            gate.acquire()
            request = self._inbox
            if request is None:
                return
            self._inbox = None


class _ThreadGroup:
    """The threads of a worker that runs several requests at once. There are as many as it had requests at once so far.

    An idle thread takes a request, or a new one does. If there is neither, a thread that has just finished will look
    into the inbox, because there are as many threads as the worker may have requests. The first thread ends last.
    """

    __slots__ = (
        "_ending",
        "_events",
        "_failure",
        "_first",
        "_idle",
        "_inbox",
        "_lock",
        "_more",
        "_only",
        "_open",
        "_short",
    )

    def __init__(self, events: WorkerEvents, first: _WorkerThread) -> None:
        self._events = events
        self._first = first  # it also has the worker
        self._more: list[_Starter] = []  # all threads but the first
        self._lock = primitives.leaf_lock()
        self._inbox: list[Request] = []
        self._idle: list[primitives.Lock] = []  # the gates of idle threads
        self._open = 1  # threads that have not ended
        self._short = False  # a thread could not be started: requests may have to wait for another
        self._ending = False
        self._failure: BaseException | None = None
        self._only = primitives.gate()  # opens when no thread is left but the first
        self._only.acquire()

    def hand(self, request: Request | None) -> None:
        thread = None
        with self._lock:
            if request is None:
                self._ending = True
                gates, self._idle = self._idle, []
            elif not self._open:
                return  # it is broken, and dies with the requests that it got last
            else:
                self._inbox.append(request)
                gates = [self._idle.pop()] if self._idle else []
                if not gates and self._open < self._first.worker.capacity:
                    self._open += 1
                    thread = _Starter()
                    self._more.append(thread)
        for gate in gates:
            gate.release()
        if thread is not None:
            self._start(thread)

    def _start(self, thread: _Starter) -> None:
        try:
            thread.start(self._run, f"{self._first.worker.name}.{self._more.index(thread) + 1}")
        except Exception as error:
            self._missed(thread, error)

    def _missed(self, thread: _Starter, error: Exception) -> None:
        """The thread did not start, so one request fails. The request that follows it waits for another thread."""
        worker = self._first.worker
        with self._lock:
            self._open -= 1
            self._more.remove(thread)
            self._short = True
            request = self._inbox.pop() if self._inbox else None  # none if another thread has taken it
        logger.error("worker %s could not start a thread: %r", worker.name, error)
        if request is not None:
            failure = WorkerStartFailed(f"worker {worker.name} could not start a thread: {error!r}", worker=worker.name)
            failure.__cause__ = error
            following = self._events.finished(worker, request, FAILED, failure)
            if following is not None:
                self._put(following)

    def _put(self, request: Request) -> None:
        with self._lock:
            self._inbox.append(request)
            gate = self._idle.pop() if self._idle else None
        if gate is not None:
            gate.release()

    def run_first(self) -> None:
        """Run the first thread until all others have ended."""
        self._work(first=True)
        if not self._left():
            self._only.acquire()
        failure, self._failure = self._failure, None
        try:
            if failure is not None:
                raise failure
        finally:
            del failure  # break the cycle with the traceback

    def _run(self) -> None:
        try:
            self._work()
        finally:
            port.leave()
            if self._left():
                self._only.release()

    def _left(self) -> bool:
        """A thread ends; True for the last one."""
        with self._lock:
            self._open -= 1
            return self._open == 0

    def _work(self, *, first: bool = False) -> None:
        """Run one thread until the worker ends."""
        running = port.enter_thread_of(self._first.worker)
        try:
            if first:
                self._begin()
            self._serve(running)
        except BaseException as error:
            self._fail(error)

    def _begin(self) -> None:
        request = self._events.ready(self._first.worker)
        if request is not None:
            self._put(request)

    def _fail(self, error: BaseException) -> None:
        """The worker is broken, or a report failed. It dies when its other requests have ended."""
        with self._first.worker.lock:
            if self._first.worker.status is not STOPPING:
                self._first.worker.move(STOPPING)
        with self._lock:
            self._failure = error
            self._ending = True
            gates, self._idle = self._idle, []
        for gate in gates:
            gate.release()

    def _serve(self, running: list[Request]) -> None:
        worker = self._first.worker
        finished = self._events.finished
        gate = primitives.gate()
        gate.acquire()
        while (request := self._next(gate)) is not None:
            while request is not None:
                running.append(request)
                try:
                    value = request.fn(*request.args, **(request.kwargs or {}))
                except WorkerBroken:
                    running.clear()
                    request = None
                    raise
                except BaseException as error:
                    request = finished(worker, request, FAILED, error)
                else:
                    request = finished(worker, request, DONE, value)
                    value = None
                running.clear()
                if self._short and request is not None:
                    self._put(request)  # after those that already wait
                    break

    def _next(self, gate: primitives.Lock) -> Request | None:
        """Wait for a request in the inbox; None when the worker ends."""
        while True:
            with self._lock:
                if self._inbox:
                    return self._inbox.pop(0)
                if self._ending:
                    return None
                self._idle.append(gate)
            gate.acquire()

    def join(self, timeout: float | None) -> bool:
        until = None if timeout is None else time.monotonic() + timeout
        for thread in (self._first, *self._more):
            if not thread.join(None if until is None else max(0.0, until - time.monotonic())):
                return False
        return True
