"""Tainted workers: they live, but something says that they may be broken, so they get nothing new for a while."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING

from bullpen.core.lifecycle import RequestState, WorkerStatus
from bullpen.core.worker import Worker
from bullpen.telemetry.catalogue import Kind

if TYPE_CHECKING:
    from bullpen.pool.engine import Engine

logger = logging.getLogger("bullpen")


class Suspects:
    """The tainted workers of one pool, and until when they are."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._until: dict[int, float] = {}  # by the worker's id; changed with the engine's lock held

    def judge(self, worker: Worker, state: RequestState, value: object) -> None:
        """A request ends on `worker`: does its error say something about the worker?"""
        if state is RequestState.FAILED and isinstance(value, self._engine.options.taint_on):
            self.taint(worker, self._engine.options.taint_duration, because=repr(value))

    def taint(self, worker: Worker, seconds: float, because: str) -> bool:
        """Give `worker` nothing new for `seconds` from now; False if it is not one that takes requests."""
        engine = self._engine
        until = engine.clock.monotonic() + seconds
        with engine.lock:
            tainted = engine.dispatcher.taint(worker)
            if not tainted and worker.status is not WorkerStatus.TAINTED:
                return False
            self._until[worker.id] = until
        if tainted:
            logger.warning("%s: worker %s is tainted for %g s: %s", engine.name, worker.name, seconds, because)
            engine.report(Kind.WORKER_TAINTED, worker, None)
        engine.time.later(seconds, functools.partial(self._recover, worker, until))
        engine.use_new_room()
        return True

    def _recover(self, worker: Worker, until: float | None = None) -> None:
        """It takes requests again; with `until`, only if it was not tainted anew meanwhile."""
        engine = self._engine
        with engine.lock:
            if until is not None and self._until.get(worker.id) != until:
                return
            self._until.pop(worker.id, None)
            recovered = engine.dispatcher.recover(worker)
        if recovered:
            engine.report(Kind.WORKER_RECOVERED, worker, None)
            engine.dispatcher.resume(worker)
            engine.use_new_room(grow=False)

    def recover_all(self) -> None:
        """The pool drains, and needs everybody."""
        for worker in self._engine.registry.snapshot():
            self._recover(worker)

    def forget(self, worker: Worker) -> None:
        """It is gone. The engine's lock is held."""
        self._until.pop(worker.id, None)
