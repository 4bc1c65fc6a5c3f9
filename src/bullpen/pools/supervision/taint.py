"""Tainted workers: they live, but something says that they may be broken, so they get nothing new for a while."""

from __future__ import annotations

import functools
from collections.abc import Callable

from bullpen import primitives
from bullpen.errors import repr_of
from bullpen.pools.dispatch.dispatcher import Dispatcher, Report
from bullpen.pools.dispatch.states import RequestState, WorkerStatus
from bullpen.pools.dispatch.worker import Worker
from bullpen.pools.supervision.timer import PoolTimer
from bullpen.telemetry import Kind, logger


class TaintedWorkers:
    """Taints the workers of one pool, and has them recover."""

    def __init__(
        self,
        *,
        name: str,
        lock: primitives.Lock,
        dispatcher: Dispatcher,
        timer: PoolTimer,
        now: Callable[[], float],
        report: Report,
        errors: tuple[type[BaseException], ...],
        duration: float,
    ) -> None:
        self._name = name
        self._lock = lock
        self._dispatcher = dispatcher
        self._timer = timer
        self._now = now
        self._report = report
        self._errors = errors  # these taint the worker on which a request fails with them
        self._duration = duration

    def judge(self, worker: Worker, state: RequestState, value: object) -> None:
        """A request ends on `worker`: does its error say something about the worker?"""
        if state is RequestState.FAILED and issubclass(type(value), self._errors):
            self.taint(worker, self._duration, because=repr_of(value))

    def taint(self, worker: Worker, seconds: float, because: str) -> bool:
        """Give `worker` nothing new for `seconds` from now; False if it is not one that takes requests."""
        until = self._now() + seconds
        with self._lock:
            tainted = self._dispatcher.taint(worker)
            if not tainted and worker.status is not WorkerStatus.TAINTED:
                return False
            worker.tainted_until = until
        if tainted:
            logger.warning("%s: worker %s is tainted for %g s: %s", self._name, worker.name, seconds, because)
            self._report(Kind.WORKER_TAINTED, worker, None)
        self._timer.call_later(seconds, functools.partial(self._recover, worker, until))
        self._dispatcher.use_new_room()
        return True

    def _recover(self, worker: Worker, until: float | None = None) -> None:
        """It takes requests again; with `until`, only if it was not tainted anew meanwhile."""
        with self._lock:
            if until is not None and worker.tainted_until != until:
                return
            worker.tainted_until = 0.0
            recovered = self._dispatcher.recover(worker)
        if recovered:
            self._report(Kind.WORKER_RECOVERED, worker, None)
            self._dispatcher.resume(worker)
            self._dispatcher.use_new_room(grow=False)

    def recover_all(self) -> None:
        """The pool drains, and needs every worker."""
        for worker in self._dispatcher.registry.snapshot():
            self._recover(worker)
