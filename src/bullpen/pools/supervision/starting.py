"""How one worker starts: in a slot, as the successor of another, as a helper, or on the current thread."""

from __future__ import annotations

import itertools
from typing import Protocol

from bullpen import primitives
from bullpen.pools.dispatch.dispatcher import Dispatcher, Report
from bullpen.pools.dispatch.pool_status import PoolStatus
from bullpen.pools.dispatch.request import Request
from bullpen.pools.dispatch.worker import BUSY, EXITED, HELPER, READY, STOPPING, TAINTED, PoolContext, Worker
from bullpen.pools.runtimes import port
from bullpen.pools.runtimes.port import Runtime, WorkerEvents
from bullpen.pools.supervision.slots import Slots
from bullpen.telemetry import Kind


class StartEvents(WorkerEvents, Protocol):
    """What workers report, and what the starter reports about them."""

    def launched(self) -> None:
        """A worker is on its way."""

    def start_interrupted(self, worker: Worker) -> None:
        """An interrupt came while `worker` was being started. It says nothing of the worker: the next may start."""

    def began(self, worker: Worker) -> None:
        """`worker` takes requests from now on."""


class WorkerStarter:
    """Makes workers and has the runtime start them."""

    events: StartEvents | None  # all workers but helpers report to it; None once the pool has ended

    def __init__(
        self,
        *,
        lock: primitives.Lock,
        status: PoolStatus,
        slots: Slots,
        dispatcher: Dispatcher,
        runtime: Runtime,
        report: Report,
        clock: primitives.Clock,
        context: PoolContext,
        name_prefix: str,
    ) -> None:
        self._lock = lock
        self._status = status
        self._slots = slots
        self._dispatcher = dispatcher
        self._registry = dispatcher.registry
        self._runtime = runtime
        self._report = report
        self._clock = clock
        self._context = context
        self._prefix = name_prefix
        self._ids = itertools.count()
        self._helper_numbers = itertools.count()
        self._successor_numbers = itertools.count(1)

    def spawn(self, slot: int) -> None:
        """Start a worker in `slot`, which the caller has taken; a place is reserved for it in a bounded backlog."""
        with self._lock:
            ended = self._status.ended
            possible = not ended and slot in self._slots
            if possible:
                worker = self._new(slot, f"{self._prefix}_{slot}", reserved=True)
            else:
                self._slots.give_back(slot)
        if possible:
            self.start(worker)
        else:
            self._dispatcher.backlog.cancel_reservation()
            if not ended:  # the slot is no more, but another may be free
                self._dispatcher.grow_to_demand()

    def _new(self, slot: int | None, name: str, *, reserved: bool = False) -> Worker:
        capacity = 1 if slot == HELPER else self._dispatcher.capacity
        worker = Worker(next(self._ids), slot, name, self._clock.monotonic(), capacity, self._context)
        worker.reserved = reserved
        self._registry.add(worker)
        return worker

    def start(self, worker: Worker) -> None:
        events = self.events  # `release` may come before `start` returns, if the worker ends at once
        assert events is not None, "a pool with a registered worker has not ended"
        try:
            self._report(Kind.WORKER_STARTING, worker, None)
            primitives.failpoint("worker.registered_not_started")
            self._runtime.start(worker, events)
        except Exception as error:
            events.died(worker, error)
        except BaseException:
            events.start_interrupted(worker)
            raise
        else:
            events.launched()

    def begin(self, worker: Worker) -> Request | None:
        """A worker that is ready begins to take requests: its first, if one waits."""
        events = self.events
        request = self._dispatcher.started(worker)
        if events is not None:  # else it was abandoned while it started
            events.began(worker)
        return request

    def release(self) -> None:
        """The pool has ended: no worker starts any more."""
        self.events = None

    # Successors.

    def may_be_replaced(self, worker: Worker) -> bool:
        """Whether `worker` works in a slot of its own. The pool's lock is held."""
        if self._registry.get(worker.id) is not worker or worker.slot not in self._slots:
            return False
        return worker.status in (READY, BUSY, TAINTED)

    def new_successor(self, old: Worker) -> Worker:
        """A worker that gets the slot of `old` later. The pool's lock is held."""
        return self._new(None, f"{self._prefix}_{old.slot}.{next(self._successor_numbers)}")

    # Workers without a slot.

    def start_helper(self, events: WorkerEvents) -> None:
        """Start a worker that takes no slot and reports to `events`."""
        with self._lock:
            if self._status.ended:
                return
            worker = self._new(HELPER, f"{self._prefix}_helper_{next(self._helper_numbers)}")
        self._report(Kind.WORKER_STARTING, worker, None)
        try:
            self._runtime.start(worker, events)
        except Exception as error:
            events.died(worker, error)

    def enlist_this_thread(self) -> Worker:
        """Make the current thread a worker until `dismiss_this_thread`."""
        with self._lock:
            worker = self._new(HELPER, f"{self._prefix}_exit")
        with worker.lock:
            worker.was_ready = True
            worker.move(READY)
            worker.move(BUSY)
        self._report(Kind.WORKER_STARTING, worker, None)
        self._report(Kind.WORKER_READY, worker, None)
        port.enter(worker)
        return worker

    def dismiss_this_thread(self, worker: Worker) -> None:
        port.leave()
        with worker.lock:
            worker.move(STOPPING)
            worker.move(EXITED)
        self._report(Kind.WORKER_STOPPING, worker, None)
        self._report(Kind.WORKER_EXITED, worker, None)
        self._registry.remove(worker)
