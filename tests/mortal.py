"""Workers that can die: a small runtime of threads for tests."""

from __future__ import annotations

from typing import Any

from bullpen import primitives
from bullpen.pools.dispatch.request import DONE, FAILED, Request
from bullpen.pools.dispatch.worker import Worker
from bullpen.pools.runtimes import port
from bullpen.pools.runtimes.port import WorkerEvents


class Death(BaseException):
    """Raised by a function: its worker dies."""


class MortalRuntime:
    """Each request that is handed to a worker, and what follows it, has a thread of its own. A worker whose function
    raises `Death` is gone. For workers with a capacity of one.
    """

    name = "mortal"
    capabilities = frozenset({"share_memory", "run_inline"})

    def start(self, worker: Worker, events: WorkerEvents) -> None:
        worker.handle = _Handle(worker, events)
        worker.handle.begin()

    def cancel(self, worker: Worker, request: Request) -> bool:
        return False

    def kill(self, worker: Worker) -> bool:
        return False

    def join(self, worker: Worker, timeout: float | None) -> bool:
        threads = worker.handle.threads
        for thread in threads:
            thread.join(timeout)
        return not any(thread.is_alive() for thread in threads)


class _Handle:
    def __init__(self, worker: Worker, events: WorkerEvents) -> None:
        self._worker = worker
        self._events = events
        self.threads: list[Any] = []

    def begin(self) -> None:
        self._start(self._begin)

    def _begin(self) -> None:
        try:
            self._events.prepare(self._worker)
        except BaseException as error:
            self._events.died(self._worker, error)
        else:
            self._work(self._events.ready(self._worker))

    def hand(self, request: Request | None) -> None:
        if request is None:
            self._start(self._end)
        else:
            self._start(lambda: self._work(request))

    def _end(self) -> None:
        self._events.retire(self._worker)
        self._events.exited(self._worker)

    def _start(self, work: Any) -> None:
        self.threads.append(primitives.start_thread(work, self._worker.name))

    def _work(self, request: Request | None) -> None:
        port.enter(self._worker)
        try:
            while request is not None:
                try:
                    value = request.fn(*request.args, **(request.kwargs or {}))
                except Death as death:
                    self._events.died(self._worker, death)
                    return
                except BaseException as error:
                    request = self._events.finished(self._worker, request, FAILED, error)
                else:
                    request = self._events.finished(self._worker, request, DONE, value)
        finally:
            port.leave()
