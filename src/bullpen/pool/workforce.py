"""The workers of a pool: how they start, end, die, and are replaced. What a runtime reports arrives here."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bullpen import primitives
from bullpen.core.lifecycle import PoolState, RequestState
from bullpen.core.request import Request
from bullpen.core.worker import DEAD, EXITED, STOPPING, Worker
from bullpen.errors import WorkerAbandoned, WorkerLost, WorkerStartFailed
from bullpen.telemetry.catalogue import Kind

if TYPE_CHECKING:
    from bullpen.pool.engine import Engine
    from bullpen.runtimes.port import WorkerEvents

logger = logging.getLogger("bullpen")

OPEN_STATES = (PoolState.INITIALIZING, PoolState.RUNNING)
HELPER = -1  # the slot of helpers, which take none


class Workforce:
    """Starts and ends workers. Implements `WorkerEvents`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ids = itertools.count()
        self.finished: Callable[[Worker, Request, RequestState, Any], Request | None]  # the dispatcher's own
        self.ready_ever = 0
        self.abandoned_ever = 0
        self._slots: set[int] = set()  # those that exist, whoever has them
        self._doomed: set[int] = set()  # those that vanish when whoever has them gives them back
        self._new_slots = itertools.count()
        self._helper_numbers = itertools.count()
        self._abandoned: list[Worker] = []  # until their functions return after all
        self._departing: deque[Worker] = deque()  # reported as gone; their threads may need a moment more

    # Slots: popping one is the permission to start a worker. All of this is done with the engine's lock held.

    def deal_slots(self, count: int) -> None:
        """Make it `count` slots: new ones, or fewer, the free ones first. Workers in slots that are no more have to
        go.
        """
        free = self._engine.dispatcher.free
        while len(self._slots) < count and self._doomed:
            self._slots.add(self._doomed.pop())
        while len(self._slots) < count:
            slot = next(self._new_slots)
            self._slots.add(slot)
            free.append(slot)
        while len(self._slots) > count and free:
            with contextlib.suppress(IndexError):  # somebody may take it at this moment
                self._slots.discard(free.pop())
        surplus = sorted(self._slots)[count:]
        self._slots.difference_update(surplus)
        self._doomed.update(surplus)

    def _put_back(self, slot: int) -> None:
        if slot in self._slots:
            self._engine.dispatcher.free.append(slot)
        self._doomed.discard(slot)

    # Start.

    def spawn(self, slot: int) -> None:
        """Start a worker in `slot`, which the caller has taken; in a bounded backlog it is pledged already."""
        engine = self._engine
        with engine.lock:
            ended = engine.state in (PoolState.CLOSED, PoolState.FAILED)
            possible = not ended and slot in self._slots
            if possible:
                prefix = engine.options.thread_name_prefix or engine.name
                worker = self._new(slot, f"{prefix}_{slot}")
            else:
                self._put_back(slot)
        if possible:
            self._start(worker)
        else:
            if engine.bounded is not None:
                engine.bounded.break_pledge()
            if not ended:  # the slot is no more, but another may be free
                engine.dispatcher.grow_to_demand()

    def fill_minimum(self) -> None:
        """Start the workers that have to be there whatever the demand."""
        engine = self._engine
        while len(engine.registry) < engine.options.min_workers and engine.state in OPEN_STATES:
            slot = engine.dispatcher.pop_slot()
            if slot is None:
                return
            if engine.bounded is not None:
                engine.bounded.pledge()
            self.spawn(slot)

    def start_helper(self, events: WorkerEvents) -> None:
        """Start a worker that takes no slot and reports to `events`."""
        engine = self._engine
        with engine.lock:
            if engine.state in (PoolState.CLOSED, PoolState.FAILED):
                return
            prefix = engine.options.thread_name_prefix or engine.name
            worker = self._new(HELPER, f"{prefix}_helper_{next(self._helper_numbers)}")
            worker.transient = True
        engine.report(Kind.WORKER_STARTING, worker, None)
        try:
            engine.runtime.start(worker, events)
        except Exception as error:
            events.died(worker, error)

    def _new(self, slot: int, name: str) -> Worker:
        capacity = 1 if slot == HELPER else self._engine.options.capacity
        worker = Worker(next(self._ids), slot, name, self._engine.clock.monotonic(), capacity)
        worker.clock = self._engine.clock
        self._engine.registry.add(worker)
        return worker

    def _start(self, worker: Worker) -> None:
        self._engine.report(Kind.WORKER_STARTING, worker, None)
        primitives.failpoint("worker.registered_not_started")
        try:
            self._engine.runtime.start(worker, self)
        except Exception as error:
            self.died(worker, error)
        except BaseException:  # an interrupt, which says nothing of the worker: the next one may start
            with worker.lock:
                worker.move(DEAD)
            self._engine.report(Kind.WORKER_DEAD, worker, None)
            if self._engine.bounded is not None:
                self._engine.bounded.break_pledge()
            self._gone(worker, replace=False)
            raise
        else:
            self._engine.time.workers_came()

    # What workers report.

    def prepare(self, worker: Worker) -> None:
        if self._engine.instances is not None:
            self._engine.instances.make(worker)

    def retire(self, worker: Worker) -> None:
        if self._engine.instances is not None:
            self._engine.instances.close(worker)

    def ready(self, worker: Worker) -> Request | None:
        with self._engine.lock:
            self.ready_ever += 1
        self._engine.report(Kind.WORKER_READY, worker, None)
        request = self._engine.dispatcher.started(worker)
        self._engine.worker_is_ready()
        return request

    def exited(self, worker: Worker) -> None:
        with worker.lock:
            worker.move(EXITED)
        self._engine.report(Kind.WORKER_EXITED, worker, None)
        self._gone(worker)

    def died(self, worker: Worker, error: BaseException) -> None:
        with worker.lock:
            starting = not worker.was_ready
            worker.move(DEAD)
            requests, worker.requests = worker.requests, ()
        self._engine.report(Kind.WORKER_DEAD, worker, None)
        for request in requests:
            self._lose(worker, request, error)
        if starting:
            logger.error("%s: worker %s could not start", self._engine.name, worker.name, exc_info=error)
            if self._engine.bounded is not None:
                self._engine.bounded.break_pledge()
            self._start_failed(worker, error)
        else:
            logger.error("%s: worker %s died: %r", self._engine.name, worker.name, error)
        self._gone(worker, replace=not starting)  # what cannot start is not tried again until more work comes

    def helper_died(self, worker: Worker, error: BaseException) -> None:
        """What it would have run stays in the backlog, or is lost with it."""
        logger.error("%s: helper %s died: %r", self._engine.name, worker.name, error)
        with worker.lock:
            worker.move(DEAD)
            requests = worker.requests
        self._engine.report(Kind.WORKER_DEAD, worker, None)
        for request in requests:
            self._lose(worker, request, error)
        self._gone(worker)

    def _lose(self, worker: Worker, request: Request, error: BaseException) -> None:
        lost = WorkerLost(f"worker {worker.name} died with this request on it: {error!r}", worker=worker.name)
        lost.__cause__ = error
        if request.lose(lost):
            self._engine.lost.add()
            self._engine.report_end(request, worker)

    def _start_failed(self, worker: Worker, error: BaseException) -> None:
        """If that was the last hope of whoever waits, they are told why."""
        engine = self._engine
        with engine.lock:
            if self._has_hope():
                return
            failed = engine.fail(error)
        refusal: BaseException
        if failed:
            engine.report_state()
            engine.time.wake(start=False)
        if engine.state is PoolState.FAILED:
            refusal = engine.not_open()
        else:
            refusal = WorkerStartFailed(f"worker {worker.name} could not start: {error!r}", worker=worker.name)
            refusal.__cause__ = error
        engine.refuse_backlog(refusal)

    def _has_hope(self) -> bool:
        """Whether a worker is there that lives: of those that die together, the last to look finds none."""
        return any(other.status not in (EXITED, DEAD) for other in self._engine.registry.snapshot())

    def _gone(self, worker: Worker, *, replace: bool = True) -> None:
        """Nothing runs in the worker's slot any more; if something waits, another may be started there."""
        engine = self._engine
        engine.refuse_line(worker)
        primitives.failpoint("worker.ended_not_removed")
        with engine.lock:
            engine.registry.remove(worker)
            if worker.slot is None:
                if worker in self._abandoned:
                    self._abandoned.remove(worker)
            else:
                slot, worker.slot = worker.slot, None
                self._put_back(slot)
            while self._departing and engine.runtime.join(self._departing[0], 0):
                self._departing.popleft()
            self._departing.append(worker)
        if engine.instances is not None:
            engine.instances.forget(worker)
        if engine.state in (PoolState.INITIALIZING, PoolState.RUNNING, PoolState.DRAINING):
            engine.use_new_room(grow=replace or not self._has_hope())  # for those that came since it was given up
        if len(engine.registry) < engine.options.min_workers:
            engine.time.workers_missing(at_once=replace)
        engine.closed_if_done()

    # End.

    def stop_idle(self) -> None:
        for worker in self._engine.registry.snapshot():
            self._engine.dispatcher.stop(worker, when_idle=True)

    def stop_slotless(self) -> None:
        """Let the workers go whose slots no longer exist, after what they run now."""
        for worker in self._engine.registry.snapshot():
            slot = worker.slot
            if slot is not None and slot != HELPER and slot not in self._slots:
                self._engine.dispatcher.stop(worker, when_idle=False)

    def write_off(self, worker: Worker, request: Request) -> None:
        """A worker that cannot be ended runs past its limit: give its slot to another, within `max_abandoned`."""
        engine = self._engine
        allowed = engine.options.max_abandoned
        with engine.lock:
            replaced = len(self._abandoned) < allowed and request in worker.requests and self._abandon(worker)
        if not replaced:
            message = "%s: worker %s runs past run_timeout and cannot be ended; its slot stays taken (max_abandoned=%d)"
            logger.warning(message, engine.name, worker.name, allowed)
            return
        logger.warning("%s: worker %s runs past run_timeout; abandoned and replaced", engine.name, worker.name)
        self._left_behind(worker)

    def _abandon(self, worker: Worker) -> bool:
        """Count it no longer, give its slot away; when its function returns after all, it ends. The lock is held."""
        with worker.lock:
            if worker.status in (EXITED, DEAD):
                return False
            if worker.status is not STOPPING:
                worker.move(STOPPING)
            slot, worker.slot = worker.slot, None
        self._engine.registry.remove(worker)
        if slot is not None:
            self._put_back(slot)
        self._abandoned.append(worker)
        self.abandoned_ever += 1
        return True

    def _left_behind(self, worker: Worker) -> None:
        self._engine.report(Kind.WORKER_ABANDONED, worker, None)
        self._engine.refuse_line(worker)
        self._engine.use_new_room()
        self._engine.closed_if_done()

    def give_up_running(self, grace: float) -> None:
        """The grace has passed: kill what can be killed, and tell whoever waits for the rest."""
        engine = self._engine
        for worker in engine.registry.snapshot():
            if engine.runtime.kill(worker):
                continue
            with engine.lock:
                abandoned = self._abandon(worker)
            for request in worker.requests:
                message = f"pool {engine.name!r} closed and its grace of {grace:g} s passed while this still ran"
                if self._give_up(worker, request, WorkerAbandoned(message, worker=worker.name)):
                    engine.time.timed_out.add()
                    engine.report_end(request, worker)
            if abandoned:
                message = "%s: worker %s still runs after the grace of %g s; left behind"
                logger.warning(message, engine.name, worker.name, grace)
                self._left_behind(worker)

    @staticmethod
    def _give_up(worker: Worker, request: Request, error: WorkerAbandoned) -> bool:
        if request.attended:
            return request.abandon(error)
        with worker.lock:  # which is all that guards a request that nobody waits for
            return request.abandon(error)

    def forget(self) -> None:
        """This is a forked child: there is nobody to wait for."""
        self._departing.clear()

    def join(self) -> None:
        """Wait until the threads, or whatever they are, of workers that have ended are gone."""
        while True:
            with self._engine.lock:
                if not self._departing:
                    return
                worker = self._departing.popleft()
            self._engine.runtime.join(worker, None)
