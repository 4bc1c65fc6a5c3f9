"""How many workers there are: the minimum, the missing ones, and those that are no longer needed.

A dead worker is replaced at once, and a request that finds no worker starts one. So there are two cases left: workers
that have to be there without demand, which start in batches, and `reconcile`, a safety net that looks now and then.
"""

from __future__ import annotations

from collections.abc import Callable

from bullpen import primitives
from bullpen.pools.dispatch.dispatcher import Dispatcher
from bullpen.pools.dispatch.pool_status import PoolStatus
from bullpen.pools.dispatch.worker import BUSY, HELPER, READY, STARTING, STOPPING, Worker
from bullpen.pools.supervision.restarts import Restarts
from bullpen.pools.supervision.scaling import STEPS, Surplus, deficit
from bullpen.pools.supervision.slots import Slots
from bullpen.pools.supervision.timer import PoolTimer
from bullpen.telemetry import logger


class Sizing:
    """Keeps the number of workers between `min_workers` and the number of slots."""

    def __init__(
        self,
        *,
        name: str,
        lock: primitives.Lock,
        status: PoolStatus,
        slots: Slots,
        dispatcher: Dispatcher,
        timer: PoolTimer,
        restarts: Restarts,
        start_failed: Callable[[Worker, BaseException], None],
        min_workers: int,
        startup_batch: tuple[int, float],
        reconcile_batch_size: int,
        reconcile_interval: float | None,
        idle_timeout: float | None,
    ) -> None:
        self._name = name
        self._lock = lock
        self._status = status
        self._slots = slots
        self._dispatcher = dispatcher
        self._registry = dispatcher.registry
        self._timer = timer
        self._restarts = restarts
        self._start_failed = start_failed
        self._min_workers = min_workers
        self._batch_size, self._batch_delay = startup_batch
        self._reconcile_batch_size = reconcile_batch_size
        self._reconcile_interval = reconcile_interval
        self._idle_timeout = idle_timeout
        self._surplus = Surplus()
        self._batches = 0  # that are just being started
        self._failure: tuple[Worker, BaseException] | None = None  # of a worker of a batch, while no other is alive

    def resize(self, max_workers: int) -> None:
        """From now on at most `max_workers`. Growth is by demand; surplus workers end after their current requests."""
        with self._lock:
            self._status.check_open()
            self._slots.resize(max_workers)
        for worker in self._registry.snapshot():
            slot = worker.slot
            if slot is not None and slot != HELPER and slot not in self._slots:
                self._dispatcher.stop(worker, when_idle=False)
        self._dispatcher.use_new_room()

    def in_slots(self) -> int:
        """How many workers count: all but helpers and abandoned ones."""
        return sum(worker.slot not in (None, HELPER) for worker in self._registry.snapshot())

    def suffices(self) -> bool:
        """Whether enough workers have started for the pool to run: the minimum, or some while restarts are delayed."""
        ready = self._restarts.ready_ever
        return ready > 0 and (ready >= self._min_workers or self._restarts.degraded)

    def most_at_once(self) -> int:
        """How many requests can run at once: on the workers that stay, and on those that may still come."""
        workers = [w for w in self._registry.snapshot() if not w.transient and w.status is not STOPPING]
        to_come = max(0, self._slots.limit - len(workers)) * self._dispatcher.capacity
        return sum(worker.capacity for worker in workers) + to_come

    # More workers.

    def fill_minimum(self) -> None:
        """Start the next batch of the workers that have to be there whatever the demand."""
        if not self._status.open or self._slots.held:
            return  # a held slot that is released calls this again
        missing = self._min_workers - self.in_slots()
        batch = min(missing, self._batch_size)
        if self.start_more(batch) == batch < missing:
            self._timer.call_later_once(self._batch_delay, self.fill_minimum)

    def fill_soon(self) -> None:
        """Fewer workers than the minimum may be left: have the timer look."""
        if self._min_workers and self._status.open and self.in_slots() < self._min_workers:
            self._timer.call_later_once(0.0, self.fill_minimum)

    def start_more(self, count: int) -> int:
        """Start up to `count` workers, whether or not requests wait; how many slots there were for them."""
        with self._lock:
            self._batches += 1
        try:
            return self._start_each(count)
        finally:
            with self._lock:
                self._batches -= 1
                failure, self._failure = self._failure, None
            if failure is not None:
                self._start_failed(*failure)

    def _start_each(self, count: int) -> int:
        for started in range(count):
            with primitives.Uninterrupted():  # Ctrl-C must not cost a slot, or leave a worker half started
                slot = self._dispatcher.pop_slot()
                if slot is None:
                    return started
                self._dispatcher.start_worker(slot)
            if not self._status.open:
                return started
        return max(0, count)

    def postpones(self, worker: Worker, error: BaseException) -> bool:
        """Whether the failed start of `worker` is judged later, because others of its batch may start. The pool's lock
        is held.
        """
        if self._batches:
            self._failure = (worker, error)
        return self._batches > 0

    def launched(self) -> None:
        """A worker is on its way, and may turn out not to be needed."""
        if self._idle_timeout is not None:
            self._timer.call_later_once(self._idle_timeout / STEPS, self._step)
        self._reconcile_later()

    def _reconcile_later(self) -> None:
        if self._reconcile_interval is not None:
            self._timer.call_later_once(self._reconcile_interval, self.reconcile)

    def reconcile(self) -> None:
        """Start workers that should be there and are not. A safety net: a dead worker is replaced at once."""
        waiting = self._dispatcher.demand()
        if not (len(self._registry) or waiting or self._min_workers):
            return  # a pool at rest has no timer
        self._reconcile_later()
        if not self._status.open or self._status.paused or self._slots.held:
            return
        self._dispatcher.pair_waiting_with_ready()
        staying = [worker for worker in self._registry.snapshot() if worker.slot not in (None, HELPER)]
        taking = [worker for worker in staying if worker.status in (STARTING, READY, BUSY)]
        missing = deficit(
            minimum=self._min_workers,
            maximum=self._slots.limit,
            workers=len(staying),
            waiting=waiting,
            room=sum(worker.capacity - worker.load for worker in taking),
            capacity=self._dispatcher.capacity,
        )
        started = self.start_more(min(missing, self._reconcile_batch_size))
        if started:
            logger.warning("%s: %d workers were missing; started %d", self._name, missing, started)

    # Fewer workers.

    def _step(self) -> None:
        """One step of the idle timeout has passed: let one worker end, if one was never needed."""
        removable = self._staying() - self._min_workers
        if self._idle_timeout is None or removable <= 0 or self._status.draining:
            self._surplus.reset()
            return
        dispatcher = self._dispatcher
        fewest, dispatcher.fewest_ready = dispatcher.fewest_ready, len(dispatcher.ready)
        if self._surplus.step(fewest, removable):
            dispatcher.stop_one_idle()
        self._timer.call_later_once(self._idle_timeout / STEPS, self._step)

    def _staying(self) -> int:
        """How many workers in slots were not asked to end; one that was may take long."""
        workers = self._registry.snapshot()
        return sum(worker.slot not in (None, HELPER) and worker.status is not STOPPING for worker in workers)
