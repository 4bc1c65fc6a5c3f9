"""Workers that are threads of this process.

A worker parks at its gate and is woken by whoever hands it a request, or None. A worker with a capacity of more than
one is a group of threads, its lanes, which are started as they are needed. A thread cannot be killed: neither `cancel`
nor `kill` is promised. Threads are daemons; the pool waits for them itself, also at interpreter exit, and only those
that it has abandoned are left.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from bullpen import primitives
from bullpen.core.request import DONE, FAILED, Request
from bullpen.core.worker import STOPPING, Worker
from bullpen.errors import WorkerBroken, WorkerStartFailed
from bullpen.runtimes import port
from bullpen.runtimes.port import WorkerEvents

logger = logging.getLogger("bullpen")


class ThreadRuntime:
    """Runs requests on threads; `initializer(*initargs)` runs first in each worker, on its first thread."""

    name = "thread"
    capabilities = frozenset({"share_memory", "run_inline", "keep_instance"})

    def __init__(self, initializer: Callable[..., object] | None = None, initargs: tuple[Any, ...] = ()) -> None:
        self._initializer = initializer
        self._initargs = initargs

    def start(self, worker: Worker, events: WorkerEvents) -> None:
        handle = _Thread(worker, events, self)
        worker.handle = handle
        handle.start(handle.run, worker.name)

    def initialize(self) -> None:
        """What a worker does first."""
        if self._initializer is not None:
            self._initializer(*self._initargs)

    def cancel(self, worker: Worker, request: Request) -> bool:  # noqa: ARG002 — a thread cannot be interrupted
        return False

    def kill(self, worker: Worker) -> bool:  # noqa: ARG002 — nor killed
        return False

    def join(self, worker: Worker, timeout: float | None) -> bool:
        return bool(worker.handle.join(timeout))


class _Starter:
    """A thread that may end before whoever starts it knows it."""

    __slots__ = ("_started", "_thread")

    def __init__(self) -> None:
        self._started: Any = primitives.gate()  # open, and then gone, once `_thread` is set, or could not be
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


class _Thread(_Starter):
    """The thread of one worker; the first of them, if it has lanes."""

    __slots__ = ("_events", "_gate", "_inbox", "_runtime", "_worker")

    def __init__(self, worker: Worker, events: WorkerEvents, runtime: ThreadRuntime) -> None:
        super().__init__()
        self._worker = worker
        self._events = events
        self._runtime = runtime
        self._inbox: Request | None = None
        self._gate = primitives.gate()
        self._gate.acquire()

    def hand(self, request: Request | None) -> None:
        self._inbox = request
        try:
            self._gate.release()
        except KeyboardInterrupt:  # it was released: the submitter shall not believe that this was in vain
            primitives.interrupt_later()

    def run(self) -> None:
        worker = self._worker
        port.enter(worker)
        try:
            self._runtime.initialize()
            self._events.prepare(worker)
            if worker.capacity == 1:
                self._work()
            else:  # nobody has been told of this handle yet, for nothing is handed to a worker that starts
                worker.handle = lanes = _Lanes(worker, self._events, self)
                lanes.run_first()
            self._events.retire(worker)
        except BaseException as error:  # it could not start, is broken, or a report of its own failed
            self._events.died(worker, error)
        else:
            self._events.exited(worker)
        finally:
            port.leave()

    def _work(self) -> None:
        worker = self._worker
        events = self._events
        finished = events.finished
        gate = self._gate  # not its method, which would be one more object for each worker that waits
        request = events.ready(worker)
        while True:
            while request is not None:
                try:
                    if request.kwargs is None:
                        value = request.fn(*request.args)
                    else:
                        value = request.fn(*request.args, **request.kwargs)
                except WorkerBroken:
                    request = None  # the error's traceback leads here, and must not lead on to whom it will be told
                    raise
                except BaseException as error:
                    request = finished(worker, request, FAILED, error)
                else:
                    request = finished(worker, request, DONE, value)
                    value = None  # neither a parked worker nor a busy one keeps an old result alive
            gate.acquire()
            request = self._inbox
            if request is None:
                return
            self._inbox = None


class _Lanes:
    """The threads of a worker that runs several requests at once: as many as it had to run at once so far.

    A request is handed to an idle lane, or to a new one. If there is neither, a lane that has just finished is on its
    way to the inbox, for there are as many lanes as there may be requests. The first lane ends last.
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
        "_worker",
    )

    def __init__(self, worker: Worker, events: WorkerEvents, first: _Thread) -> None:
        self._worker = worker
        self._events = events
        self._first = first
        self._more: list[_Starter] = []  # all lanes but the first
        self._lock = primitives.backlog_lock()
        self._inbox: list[Request] = []
        self._idle: list[primitives.Lock] = []  # the gates of lanes that wait
        self._open = 1  # lanes that have not ended
        self._short = False  # a lane could not be started: requests may have to wait for another
        self._ending = False
        self._failure: BaseException | None = None
        self._only = primitives.gate()  # opens when no lane is left but the first
        self._only.acquire()

    def hand(self, request: Request | None) -> None:
        lane = None
        with self._lock:
            if request is None:
                self._ending = True
                gates, self._idle = self._idle, []
            elif not self._open:
                return  # it is broken and dies with what it was given last
            else:
                self._inbox.append(request)
                gates = [self._idle.pop()] if self._idle else []
                if not gates and self._open < self._worker.capacity:
                    self._open += 1
                    lane = _Starter()
                    self._more.append(lane)
        for gate in gates:
            gate.release()
        if lane is not None:
            self._start(lane)

    def _start(self, lane: _Starter) -> None:
        try:
            lane.start(self._run, f"{self._worker.name}.{self._more.index(lane) + 1}")
        except Exception as error:
            self._missed(lane, error)

    def _missed(self, lane: _Starter, error: Exception) -> None:
        """No thread could be had, so there is a request too many; what it makes room for waits for another lane."""
        worker = self._worker
        with self._lock:
            self._open -= 1
            self._more.remove(lane)
            self._short = True
            request = self._inbox.pop() if self._inbox else None  # none if another lane was quick to take it
        logger.error("worker %s could not start a thread: %r", worker.name, error)
        if request is not None:
            refusal = WorkerStartFailed(f"worker {worker.name} could not start a thread: {error!r}", worker=worker.name)
            refusal.__cause__ = error
            following = self._events.finished(worker, request, FAILED, refusal)
            if following is not None:
                self._put(following)

    def _put(self, request: Request) -> None:
        with self._lock:
            self._inbox.append(request)
            gate = self._idle.pop() if self._idle else None
        if gate is not None:
            gate.release()

    def run_first(self) -> None:
        """What the first lane does until all others have ended."""
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
        """A lane has nothing more to do; True for the last one."""
        with self._lock:
            self._open -= 1
            return self._open == 0

    def _work(self, *, first: bool = False) -> None:
        """What each lane does until the worker ends."""
        running = port.enter_lane(self._worker)
        try:
            if first:
                self._begin()
            self._serve(running)
        except BaseException as error:
            self._fail(error)

    def _begin(self) -> None:
        request = self._events.ready(self._worker)
        if request is not None:
            self._put(request)

    def _fail(self, error: BaseException) -> None:
        """The worker is broken, or a report failed: it dies when what else runs on it has ended."""
        with self._worker.lock:
            if self._worker.status is not STOPPING:
                self._worker.move(STOPPING)
        with self._lock:
            self._failure = error
            self._ending = True
            gates, self._idle = self._idle, []
        for gate in gates:
            gate.release()

    def _serve(self, running: list[Request]) -> None:
        worker = self._worker
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
                    self._put(request)  # behind those that wait already
                    break

    def _next(self, gate: primitives.Lock) -> Request | None:
        """What is in the inbox, or comes into it later; None when the worker ends."""
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
