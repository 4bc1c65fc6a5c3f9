"""The end of a worker, asked for or not: everything that follows from it happens here, in this order.

1. Why: the worker's error, and what its runtime knows beyond that (`ExplainsItsEnd`).
2. Which requests are told: those on the worker are lost, unless they never began or may run again (`retries.py`).
   Requests that the worker was given in advance go back to the backlog at no cost.
3. When the slot refills: at once, or later if too many workers died of late (`restarts.py`).
4. If no worker ever started and none is left to try, the pool has failed.
"""

from __future__ import annotations

import copy
import functools
import math
from collections import deque
from collections.abc import Callable

from bullpen import primitives
from bullpen.errors import WorkerLost, WorkerStartFailed, repr_of
from bullpen.pools.dispatch.dispatcher import Dispatcher, Report
from bullpen.pools.dispatch.pool_status import PoolStatus
from bullpen.pools.dispatch.request import Request
from bullpen.pools.dispatch.states import PoolState
from bullpen.pools.dispatch.tally import Counts
from bullpen.pools.dispatch.worker import DEAD, EXITED, Worker
from bullpen.pools.instances import Instances
from bullpen.pools.runtimes import port
from bullpen.pools.supervision.outcomes import ForcedOutcomes
from bullpen.pools.supervision.recycling import Recycling
from bullpen.pools.supervision.restarts import Restarts
from bullpen.pools.supervision.retries import Retries
from bullpen.pools.supervision.sizing import Sizing
from bullpen.pools.supervision.slots import Slots
from bullpen.pools.supervision.startup import Startup
from bullpen.pools.supervision.timer import PoolTimer
from bullpen.telemetry import Kind, logger


class Deaths:
    """Handles every worker of one pool that has ended."""

    def __init__(
        self,
        *,
        name: str,
        lock: primitives.Lock,
        status: PoolStatus,
        slots: Slots,
        dispatcher: Dispatcher,
        runtime: port.Runtime,
        now: Callable[[], float],
        report: Report,
        counts: Counts,
        timer: PoolTimer,
        restarts: Restarts,
        retries: Retries,
        outcomes: ForcedOutcomes,
        sizing: Sizing,
        startup: Startup,
        recycling: Recycling,
        instances: Instances | None,
        closed_if_done: Callable[[], None],
    ) -> None:
        self._name = name
        self._lock = lock
        self._status = status
        self._slots = slots
        self._dispatcher = dispatcher
        self._registry = dispatcher.registry
        self._runtime = runtime
        self._now = now
        self._report = report
        self._counts = counts
        self._timer = timer
        self._restarts = restarts
        self._retries = retries
        self._outcomes = outcomes
        self._sizing = sizing
        self._startup = startup
        self._recycling = recycling
        self._instances = instances
        self._closed_if_done = closed_if_done
        self._broken: set[Worker] = set()  # these end as soon as their current requests have ended
        self._departing: deque[Worker] = deque()  # reported as gone; their threads may need a moment more

    def died(self, worker: Worker, error: BaseException) -> None:
        """`worker` could not start, or ended without being asked."""
        with worker.lock:
            starting = not worker.was_ready
            worker.move(DEAD)
            requests, worker.requests = worker.requests, ()
        self._broken.discard(worker)
        self._report(Kind.WORKER_DEAD, worker, None)
        end = worker.handle if isinstance(worker.handle, port.ExplainsItsEnd) else None
        for request in self._retries.keep(requests, _begins if end is None else end.never_began) if requests else ():
            self._lose(worker, request, error)
        if worker.prefetched:
            self._requeue_prefetched(worker)
        unwanted = starting and self._status.draining and end is not None and end.unwanted
        if starting:
            if not unwanted:
                logger.error("%s: worker %s could not start", self._name, worker.name, exc_info=error)
            self._dispatcher.does_not_come(worker)
        else:
            logger.error("%s: worker %s died: %s", self._name, worker.name, _text_of(error))
        on_purpose = unwanted or (end is not None and end.ended_on_purpose)
        if not on_purpose:
            self._counts.died.add()
        counts = not (on_purpose or worker.completed or worker.failed)
        hold = self._count(worker) if counts else 0.0
        hopeless = starting and not self._was_killed_from_outside(end)
        if hopeless:
            self.start_failed(worker, error)
        self._gone(worker, replace=not hopeless, hold=hold)  # a start that failed is tried again when work comes

    def exited(self, worker: Worker) -> None:
        """`worker` ended as it was asked to."""
        with worker.lock:
            worker.move(EXITED)
        self._report(Kind.WORKER_EXITED, worker, None)
        broken = worker in self._broken
        self._broken.discard(worker)
        self._gone(worker, hold=self._count(worker) if broken else 0.0)

    def start_interrupted(self, worker: Worker) -> None:
        """An interrupt came while `worker` was being started."""
        with worker.lock:
            worker.move(DEAD)
        self._report(Kind.WORKER_DEAD, worker, None)
        self._dispatcher.does_not_come(worker)
        self._gone(worker, replace=False)

    def helper_died(self, worker: Worker, error: BaseException) -> None:
        """A helper died. Its requests are lost, also those that may run again: the caller that waits has the slot."""
        logger.error("%s: helper %s died: %s", self._name, worker.name, repr_of(error))
        with worker.lock:
            worker.move(DEAD)
            requests, worker.requests = worker.requests, ()
        self._report(Kind.WORKER_DEAD, worker, None)
        for request in requests:
            self._lose(worker, request, error)
        self._gone(worker)

    # Workers that say that they are broken.

    def broke(self, worker: Worker, request: Request, error: BaseException) -> None:
        """`request`, which runs inside another request on `worker`, says that the worker is broken.

        It is lost even if it could run again: the outer request may wait for it, in the slot that it would need.
        """
        self._lose(worker, request, error)
        self.retire_broken(worker, error)

    def retire_broken(self, worker: Worker, error: BaseException) -> None:
        """`worker` is broken, but still runs a request: when that has ended it ends too, as if it had died."""
        if not worker.transient:
            logger.error("%s: worker %s is broken and will be replaced: %s", self._name, worker.name, repr_of(error))
            self._broken.add(worker)
            self._dispatcher.stop(worker, when_idle=False)

    # Which requests are told.

    def _lose(self, worker: Worker, request: Request, error: BaseException) -> None:
        if request.lose(loss(worker, error)):
            self._counts.lost.add()
            self._dispatcher.report_end(request, worker)

    def _requeue_prefetched(self, worker: Worker) -> None:
        """Requests that the worker had not begun go to others, or are cancelled if the pool starts nothing more."""
        for request in worker.prefetched if self._retries.over else ():
            if request.cancel_retry():
                self._retries.count_cancelled(request)
        self._dispatcher.take_back(worker, list(worker.prefetched))

    # When the slot refills.

    def _count(self, worker: Worker) -> float:
        """Count the death against the restart limit; for how many seconds the slot has to stay empty."""
        with self._lock:
            others_up = any(other.was_ready and other is not worker for other in self._registry.snapshot())
            before = self._restarts.degraded
            hold = self._restarts.died(self._now(), primitives.random.random(), others_up=others_up)
        if not self._restarts.degraded:
            return 0.0
        if not before:
            message = (
                "%s: degraded: more than %d workers died within %g s before they had finished a request; dead workers "
                "are now replaced with a delay (see restarts.limit)"
            )
            logger.error(message, self._name, self._restarts.limit, self._restarts.window)
            self._report(Kind.POOL_DEGRADED, None, None)
            self._startup.worker_is_ready()
        self.watch_recovery()
        return 0.0 if self._status.draining else hold

    def watch_recovery(self) -> None:
        """Have the timer look when a degraded pool may have recovered."""
        steady_at = self._restarts.steady_at
        if steady_at < math.inf:
            self._timer.call_later_once(steady_at - self._now(), self._recover)

    def _recover(self) -> None:
        with self._lock:
            recovered = self._restarts.recover(self._now())
        if recovered:
            logger.warning("%s: recovered: no worker has died for %g s", self._name, self._restarts.window)
            self._report(Kind.POOL_RECOVERED, None, None)
        else:
            self.watch_recovery()

    def _was_killed_from_outside(self, end: port.ExplainsItsEnd | None) -> bool:
        """Whether a worker that could not start was killed from outside, in a pool whose workers do start. Then others
        are tried, after a delay if the pool is degraded. A pool that drains knows no delay, so it does not try forever.
        """
        killed = end is not None and end.was_killed
        endless = self._restarts.degraded and self._status.draining
        return killed and self._restarts.ready_ever > 0 and not endless

    def start_failed(self, worker: Worker, error: BaseException) -> None:
        """`worker` could not start. If no other worker is alive, the requests that wait fail."""
        with self._lock:
            if self._any_alive() or self._sizing.postpones(worker, error):
                return
            failed = self._startup.fail(error)
        if failed:
            self._startup.tell_failed()
        elif self._status.state is PoolState.FAILED:
            self._outcomes.fail_waiting(self._status.not_open())
        else:
            failure = WorkerStartFailed(f"worker {worker.name} could not start: {repr_of(error)}", worker=worker.name)
            failure.__cause__ = error
            self._outcomes.fail_waiting(failure)

    def _any_alive(self) -> bool:
        """Whether a worker is alive: of several that die together, the last to look finds none."""
        return any(other.status not in (EXITED, DEAD) for other in self._registry.snapshot())

    def _gone(self, worker: Worker, *, replace: bool = True, hold: float = 0.0) -> None:
        """`worker` has left its slot; if requests wait, another may start there, after `hold` seconds."""
        self._outcomes.fail_line(worker)
        primitives.failpoint("worker.ended_not_removed")
        with self._lock:
            self._registry.remove(worker)
            held = self._vacate(worker, hold)
            while self._departing and self._runtime.join(self._departing[0], 0):
                self._departing.popleft()
            if worker.handle is not None:  # else its start was interrupted
                self._departing.append(worker)
        if self._instances is not None:
            self._instances.forget(worker)
        if held is not None:
            self._timer.call_later(hold, functools.partial(self._release, held))
        self._recycling.gone(worker, hold)
        if self._status.state in (PoolState.INITIALIZING, PoolState.RUNNING, PoolState.DRAINING):
            self._dispatcher.use_new_room(grow=replace or not self._any_alive())  # for requests that came since
        if self._restarts.ready_ever:
            self._sizing.fill_soon()
        self._closed_if_done()

    def _vacate(self, worker: Worker, hold: float) -> int | None:
        """Take the slot of `worker` from it: it is free, or its successor has it, or it is held and returned. The
        pool's lock is held.
        """
        slot, worker.slot = worker.slot, None
        if slot is None or (slot in self._slots and self._recycling.inherits(worker, slot)):
            return None
        if hold and slot in self._slots and not self._status.draining:
            self._slots.hold(slot)
            return slot
        self._slots.give_back(slot)
        return None

    def _release(self, slot: int) -> None:
        """A held slot has been empty for long enough."""
        with self._lock:
            if not self._slots.release(slot):
                return
        self._dispatcher.use_new_room()
        self._sizing.fill_soon()

    def release_held(self) -> None:
        """The pool drains: a waiting request does not wait for a held slot."""
        for slot in self._slots.held:
            self._release(slot)

    def join(self) -> None:
        """Wait until the threads, or processes, of workers that have ended are gone."""
        _join_all(self._lock, self._runtime, self._departing)

    def release(self) -> Callable[[], None]:
        """The pool has ended. Returns `join` for the workers that have ended, to which this no longer refers."""
        departing, self._departing = self._departing, deque()
        return functools.partial(_join_all, self._lock, self._runtime, departing)

    def forget(self) -> None:
        """This is a forked child: there are no workers to wait for."""
        self._departing.clear()


def _join_all(lock: primitives.Lock, runtime: port.Runtime, workers: deque[Worker]) -> None:
    while True:
        with lock:
            if not workers:
                return
            worker = workers.popleft()
        runtime.join(worker, None)


def _text_of(error: BaseException) -> str:
    """The text of a death for the log, which keeps no traceback."""
    return str(error) if isinstance(error, WorkerLost) else repr_of(error)


def _begins(_: Request) -> bool:
    """A worker that cannot tell has begun all its requests."""
    return False


def loss(worker: Worker, error: BaseException) -> WorkerLost:
    """The error that the caller of a request on `worker`, which died of `error`, gets."""
    if isinstance(error, WorkerLost):
        lost = copy.copy(error)  # each has a traceback of its own
        lost.__cause__ = error.__cause__
        return lost
    lost = WorkerLost(f"worker {worker.name} died with this request on it: {repr_of(error)}", worker=worker.name)
    lost.__cause__ = error
    return lost
