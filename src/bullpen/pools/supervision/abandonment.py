"""Workers that run past their time and cannot be ended: the pool gives them up and replaces them.

An abandoned worker counts no longer and its slot goes to another. When its function returns after all, it ends.
"""

from __future__ import annotations

from collections.abc import Callable

from bullpen import primitives
from bullpen.errors import WorkerAbandoned
from bullpen.pools.dispatch.dispatcher import Dispatcher, Report
from bullpen.pools.dispatch.request import Request
from bullpen.pools.dispatch.tally import Counts
from bullpen.pools.dispatch.worker import DEAD, EXITED, STOPPING, Worker
from bullpen.pools.runtimes.port import Runtime
from bullpen.pools.supervision.nested_waits import all_on
from bullpen.pools.supervision.outcomes import ForcedOutcomes
from bullpen.pools.supervision.recycling import Recycling
from bullpen.pools.supervision.sizing import Sizing
from bullpen.pools.supervision.slots import Slots
from bullpen.telemetry import Kind, logger


class Abandonment:
    """Gives up workers of one pool: at most `limit` at once while it runs, any number after its grace."""

    def __init__(
        self,
        *,
        name: str,
        limit: int,
        lock: primitives.Lock,
        slots: Slots,
        dispatcher: Dispatcher,
        runtime: Runtime,
        report: Report,
        counts: Counts,
        outcomes: ForcedOutcomes,
        sizing: Sizing,
        recycling: Recycling,
        closed_if_done: Callable[[], None],
    ) -> None:
        self._name = name
        self._limit = limit
        self._lock = lock
        self._slots = slots
        self._dispatcher = dispatcher
        self._registry = dispatcher.registry
        self._runtime = runtime
        self._report = report
        self._counts = counts
        self._outcomes = outcomes
        self._sizing = sizing
        self._recycling = recycling
        self._closed_if_done = closed_if_done

    def abandon(self, worker: Worker, request: Request) -> None:
        """A worker that cannot be ended runs past its limit: give its slot to another, within `max_abandoned`."""
        if request not in worker.requests:
            return  # the worker died just now
        with self._lock:
            room = len(self._registry.abandoned()) < self._limit
            replaced = room and request in worker.requests and self._detach(worker)
        if not replaced:
            message = (
                "%s: worker %s runs past run_timeout and cannot be stopped; its slot stays taken "
                "(restarts.max_abandoned is %d)"
            )
            logger.warning(message, self._name, worker.name, self._limit)
            return
        logger.warning("%s: worker %s runs past run_timeout; abandoned and replaced", self._name, worker.name)
        self._abandoned(worker)

    def _detach(self, worker: Worker) -> bool:
        """Count `worker` no longer and give its slot away; False if it has ended. The pool's lock is held."""
        with worker.lock:
            if worker.status in (EXITED, DEAD):
                return False
            if worker.status is not STOPPING:
                worker.move(STOPPING)
            slot, worker.slot = worker.slot, None
        self._registry.abandon(worker)
        if slot is not None and not (slot in self._slots and self._recycling.inherits(worker, slot)):
            self._slots.give_back(slot)
        self._counts.abandoned_workers.add()
        return True

    def _abandoned(self, worker: Worker) -> None:
        """`worker` is abandoned: report that, and use its slot."""
        self._report(Kind.WORKER_ABANDONED, worker, None)
        self._recycling.gone(worker, 0.0)
        self._outcomes.fail_line(worker)
        self._dispatcher.use_new_room()
        self._sizing.fill_soon()
        self._closed_if_done()

    def give_up_running(self, grace: float) -> None:
        """The grace has passed: kill the workers that can be killed, and fail the requests on the others."""
        earlier = self._registry.abandoned()  # they may have other requests than the one that ran past its limit
        leaving = []
        for worker in [*self._registry.snapshot(), *earlier]:
            if self._runtime.kill(worker):
                continue
            with self._lock:
                abandoned = worker not in earlier and self._detach(worker)
            for request in all_on(worker):
                if self._give_up(worker, request, self.outlasted(worker, grace)):
                    self._counts.timed_out.add()
                    self._dispatcher.report_end(request, worker)
            if abandoned:
                message = "%s: worker %s still runs after the grace of %g s and cannot be stopped; abandoned"
                logger.warning(message, self._name, worker.name, grace)
                self._abandoned(worker)
            elif worker not in earlier:
                leaving.append(worker)
        self._closed_if_done()
        for worker in leaving:  # it has ended, and is about to report that
            self._runtime.join(worker, None)

    def outlasted(self, worker: Worker, grace: float) -> WorkerAbandoned:
        """The error of a request that still ran when the grace had passed."""
        message = f"pool {self._name!r} closed and its grace of {grace:g} s passed while this still ran"
        return WorkerAbandoned(message, worker=worker.name)

    def _give_up(self, worker: Worker, request: Request, error: WorkerAbandoned) -> bool:
        if request.attended:
            if request.abandon(error):
                return True
            return not self._outcomes.cancel_queued(request) and request.abandon(error)  # it may be about to run inline
        with worker.lock:  # the only lock that guards a request that no caller waits for
            return request.abandon(error)
