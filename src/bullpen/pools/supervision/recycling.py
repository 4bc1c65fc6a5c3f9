"""Replacing workers that have run long enough, without a gap.

A worker that is due goes on working while its successor starts. When the successor is ready, the old one gets nothing
new; when it has finished what it runs, the successor has its slot and begins. So there is one worker more than usual
during a change-over, but never one more that works. One worker changes at a time.

A successor has no slot until then, and a worker without a slot counts nowhere: neither as missing nor as surplus.
"""

from __future__ import annotations

import functools

from bullpen import primitives
from bullpen.pools.dispatch.dispatcher import Dispatcher
from bullpen.pools.dispatch.pool_status import PoolStatus
from bullpen.pools.dispatch.states import PoolState
from bullpen.pools.dispatch.worker import STOPPING, Worker
from bullpen.pools.supervision.restarts import jittered
from bullpen.pools.supervision.starting import WorkerStarter
from bullpen.pools.supervision.timer import PoolTimer


class Recycling:
    """Which workers are to be replaced, and the change-over under way. Fields change with the pool's lock held."""

    def __init__(
        self,
        *,
        lock: primitives.Lock,
        status: PoolStatus,
        dispatcher: Dispatcher,
        starter: WorkerStarter,
        timer: PoolTimer,
        max_requests: int | None,
        max_age: float | None,
    ) -> None:
        self._lock = lock
        self._status = status
        self._dispatcher = dispatcher
        self._registry = dispatcher.registry
        self._starter = starter
        self._timer = timer
        self._max_requests = max_requests
        self._max_age = max_age
        self._due: dict[int, Worker] = {}  # in the order in which they came due, until they are gone
        self._old: Worker | None = None
        self._new: Worker | None = None
        self._new_is_ready = False
        self.recycled = 0

    # Workers that are due.

    def came_up(self, worker: Worker) -> None:
        """A worker begins: it will be due at a certain age, each at another, so that not all go at once."""
        if self._max_age is not None:
            seconds = jittered(self._max_age, primitives.random.random())
            self._timer.call_later(seconds, functools.partial(self._aged, worker.id))

    def _aged(self, worker_id: int) -> None:
        worker = self._registry.get(worker_id)
        if worker is not None:
            self._ask(worker)

    def worked(self, worker: Worker) -> None:
        """A request has ended on `worker`."""
        limit = self._max_requests
        if limit is not None and worker.completed + worker.failed >= limit and worker.id not in self._due:
            self._ask(worker)

    def request(self, worker: Worker) -> None:
        """Its runtime says that it should be replaced."""
        if worker.id not in self._due and self._registry.get(worker.id) is worker:
            self._ask(worker)

    def _ask(self, worker: Worker) -> None:
        with self._lock:
            self._due[worker.id] = worker
        self._timer.call_later_once(0.0, self._begin)

    # The change-over.

    def _begin(self) -> None:
        """Start the successor of the first that is due, unless a change-over is under way."""
        with self._lock:
            if self._old is not None or self._status.state is not PoolState.RUNNING:
                return
            old = next((worker for worker in self._due.values() if self._starter.may_be_replaced(worker)), None)
            if old is None:
                return
            new = self._starter.new_successor(old)
            self._old, self._new, self._new_is_ready = old, new, False
        self._starter.start(new)

    def holds(self, worker: Worker) -> bool:
        """Whether `worker`, which is ready, has to wait until the one that it replaces has ended."""
        with self._lock:
            if worker is not self._new or worker.slot is not None or worker.status is STOPPING:
                return False
            self._new_is_ready = True
            old = self._old
        assert old is not None
        self._dispatcher.stop(old, when_idle=False)
        return True

    def inherits(self, worker: Worker, slot: int) -> bool:
        """`worker` gives up `slot`: whether it has a successor, which has it from now on. The lock is held."""
        if worker is not self._old or self._new is None:
            return False
        self._new.slot = slot
        return True

    def gone(self, worker: Worker, hold: float) -> None:
        """`worker` has ended, or died: the change-over goes on, or is over. Called without a lock."""
        successor = None
        with self._lock:
            self._due.pop(worker.id, None)
            ready = self._new_is_ready
            if worker is self._old:
                successor = self._new
            if worker is self._old or worker is self._new:  # a successor that could not start: the old one goes on
                self._old = self._new = None
            if successor is not None and successor.slot is not None:
                self.recycled += 1
        if successor is not None:
            self._succeed(successor, ready)
        if self._due:
            self._timer.call_later_once(hold, self._begin)

    def _succeed(self, worker: Worker, ready: bool) -> None:
        """The worker that `worker` replaces is gone: it begins, if it is `ready` and there is a slot for it."""
        if worker.slot is None:
            self._dispatcher.stop(worker, when_idle=False)
        else:
            self._dispatcher.reserve_for(worker)
        if ready:
            request = self._starter.begin(worker)
            if request is not None:
                worker.handle.hand(request)
