"""Replacing workers that have run long enough, without a gap.

A worker that is due goes on working while its successor starts. When the successor is ready, the old one gets nothing
new; when it has finished what it runs, the successor has its slot and begins. So there is one worker more than usual
during a change-over, but never one more that works. One worker changes at a time.

A successor has no slot until then, and who has no slot counts nowhere: neither as missing nor as surplus.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from bullpen import primitives
from bullpen.core.lifecycle import PoolState
from bullpen.core.restarts import jittered
from bullpen.core.worker import STOPPING, Worker

if TYPE_CHECKING:
    from bullpen.pool.engine import Engine


class Recycling:
    """Who is to be replaced, and the change-over under way. Fields change with the engine's lock held."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._due: dict[int, Worker] = {}  # in the order in which they came due, until they are gone
        self._old: Worker | None = None
        self._new: Worker | None = None
        self._new_is_ready = False
        self.recycled = 0

    # Who is due.

    def came_up(self, worker: Worker) -> None:
        """A worker begins: it will be due at a certain age, each at another, so that not all go at once."""
        max_age = self._engine.options.max_age
        if max_age is not None:
            seconds = jittered(max_age, primitives.random.random())
            self._engine.time.later(seconds, functools.partial(self._aged, worker.id))

    def _aged(self, worker_id: int) -> None:
        worker = self._engine.registry.get(worker_id)
        if worker is not None:
            self._ask(worker)

    def worked(self, worker: Worker) -> None:
        """A request has ended on `worker`."""
        limit = self._engine.options.max_requests
        if limit is not None and worker.completed + worker.failed >= limit and worker.id not in self._due:
            self._ask(worker)

    def wears_out(self, worker: Worker) -> None:
        """Its runtime says that it should be replaced."""
        if worker.id not in self._due and self._engine.registry.get(worker.id) is worker:
            self._ask(worker)

    def _ask(self, worker: Worker) -> None:
        with self._engine.lock:
            self._due[worker.id] = worker
        self._engine.time.later_once(0.0, self._begin)

    # The change-over.

    def _begin(self) -> None:
        """Start the successor of the first that is due, unless a change-over is under way."""
        engine = self._engine
        with engine.lock:
            if self._old is not None or engine.state is not PoolState.RUNNING:
                return
            old = next((worker for worker in self._due.values() if engine.workforce.may_be_replaced(worker)), None)
            if old is None:
                return
            new = engine.workforce.new_successor(old)
            self._old, self._new, self._new_is_ready = old, new, False
        engine.workforce.start_successor(new)

    def holds(self, worker: Worker) -> bool:
        """Whether `worker`, which is ready, has to wait until the one that it replaces has ended."""
        with self._engine.lock:
            if worker is not self._new or worker.slot is not None or worker.status is STOPPING:
                return False
            self._new_is_ready = True
            old = self._old
        assert old is not None
        self._engine.dispatcher.stop(old, when_idle=False)
        return True

    def inherits(self, worker: Worker, slot: int) -> bool:
        """`worker` gives up `slot`: whether it has a successor, which has it from now on. The lock is held."""
        if worker is not self._old or self._new is None:
            return False
        self._new.slot = slot
        return True

    def gone(self, worker: Worker, hold: float) -> None:
        """`worker` has ended, or died: the change-over goes on, or is over. Called without a lock."""
        engine = self._engine
        successor = None
        with engine.lock:
            self._due.pop(worker.id, None)
            ready = self._new_is_ready
            if worker is self._old:
                successor = self._new
            if worker is self._old or worker is self._new:  # a successor that could not start: the old one goes on
                self._old = self._new = None
            if successor is not None and successor.slot is not None:
                self.recycled += 1
        if successor is not None:
            engine.workforce.succeed(successor, ready)
        if self._due:
            engine.time.later_once(hold, self._begin)
