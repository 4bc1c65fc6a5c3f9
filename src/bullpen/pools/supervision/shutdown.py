"""The end of a pool: no new requests, then the waiting ones run or are cancelled, then the workers end.

A pool is closed when it drains, no map brings items, no request waits and no worker is left. Each of these can be the
last to happen. So each of them calls `DrainWatch.closed_if_done` afterwards, and the last one closes the pool.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Protocol

from bullpen import primitives
from bullpen.pools.dispatch.dispatcher import Dispatcher
from bullpen.pools.dispatch.pool_status import PoolStatus
from bullpen.pools.dispatch.registry import Registry
from bullpen.pools.dispatch.states import PoolState
from bullpen.pools.dispatch.tally import Counts
from bullpen.pools.dispatch.worker import READY, Worker
from bullpen.pools.runtimes.port import Runtime, current_worker
from bullpen.pools.supervision import at_exit
from bullpen.pools.supervision.abandonment import Abandonment
from bullpen.pools.supervision.deaths import Deaths
from bullpen.pools.supervision.feeding import Maps, UnfinishedMap
from bullpen.pools.supervision.nested_waits import NestedWaits, all_on
from bullpen.pools.supervision.outcomes import ForcedOutcomes
from bullpen.pools.supervision.pausing import Pausing
from bullpen.pools.supervision.retries import Retries
from bullpen.pools.supervision.starting import WorkerStarter
from bullpen.pools.supervision.startup import Startup
from bullpen.pools.supervision.taint import TaintedWorkers
from bullpen.pools.supervision.timer import PoolTimer
from bullpen.telemetry import logger


class OpenStream(Protocol):
    """A stream that has not ended, as far as the end of its pool concerns it."""

    def pool_closes(self, *, drain: bool, closer: int | None) -> None: ...


class Summary:
    """A pool at the moment at which it stopped accepting requests: one log record, written when it is closed."""

    def __init__(self, name: str, state: PoolState, registry: Registry, queued: int, waiters: int) -> None:
        workers = registry.snapshot()
        self._name = name
        self._state = state
        self._registry = registry
        self._workers = len(workers)
        self._idle = sum(worker.status is READY and not worker.requests for worker in workers)
        self._busy = sum(bool(worker.requests) for worker in workers)
        self._queued = queued
        self._waiters = waiters

    def log(self, counts: Counts) -> None:
        """The pool is closed: log its state before, and how its requests ended."""
        if not logger.isEnabledFor(logging.DEBUG):
            return
        tallies = self._registry.totals()[0]
        logger.debug(
            "%s: closed; it was %s with %d workers (%d idle, %d busy), %d queued, %d waiting until it was "
            "ready; in all %d completed, %d failed, %d cancelled, %d lost, %d workers abandoned",
            self._name,
            self._state,
            self._workers,
            self._idle,
            self._busy,
            self._queued,
            self._waiters,
            tallies.completed + counts.extra_completed.value,
            tallies.failed + counts.failed_waiting.value + counts.extra_failed.value,
            counts.cancelled.value + counts.extra_cancelled.value,
            counts.lost.value,
            counts.abandoned_workers.value,
        )


class DrainWatch:
    """Closes a draining pool when its last request and its last worker are gone.

    `retrying()` is the number of requests that wait for another try. `release()` is called once the pool
    has ended, and does nothing the second time.
    """

    def __init__(
        self,
        *,
        lock: primitives.Lock,
        status: PoolStatus,
        dispatcher: Dispatcher,
        runtime: Runtime,
        counts: Counts,
        report_state: Callable[[], None],
        wake: Callable[..., bool],
        retrying: Callable[[], int],
        release: Callable[[], None],
    ) -> None:
        self._lock = lock
        self._status = status
        self._dispatcher = dispatcher
        self._registry = dispatcher.registry
        self._runtime = runtime
        self._counts = counts
        self._report_state = report_state
        self._wake = wake
        self._retrying = retrying
        self.release = release
        self._waiters: list[primitives.Lock] = []
        self.summary: Summary | None = None  # once the pool drains

    def closed_if_done(self) -> None:
        """Called whenever a worker is gone, or a waiting request: the last of them closes a draining pool.

        A pool without workers is not done while a request waits: another thread is about to start a worker for it.
        """
        with self._lock:
            if self._status.state is not PoolState.DRAINING or not self._status.ending:
                return
            if self._retrying() or self._registry.abandoned_still_serve() or self._dispatcher.queued():
                return
            workers = self._registry.snapshot()
            if not workers:
                self._status.change(PoolState.CLOSED)
                waiters, self._waiters = self._waiters, []
        if workers:
            self._end_starting(workers)
            return
        assert self.summary is not None
        self.summary.log(self._counts)
        self.release()
        for gate in waiters:
            gate.release()
        self._report_state()
        self._wake(start=False)

    def _end_starting(self, workers: Collection[Worker]) -> None:
        """No request is left for these workers: if all of them only start, which may take long, kill them."""
        if "kill_running" in self._runtime.capabilities and not any(worker.was_ready for worker in workers):
            for worker in workers:
                self._runtime.kill(worker)

    def let_workers_end(self) -> None:
        """The pool drains and no map brings items: idle workers end, unless a request waits for them."""
        if not len(self._dispatcher.backlog) and not self._retrying():
            self._dispatcher.stop_idle()
        self.closed_if_done()

    def opens_when_closed(self, gate: primitives.Lock) -> bool:
        """Have `gate` opened once a pool that drains is closed; False if it does not drain."""
        with self._lock:
            if self._status.state is not PoolState.DRAINING:
                return False
            self._waiters.append(gate)
            return True


class Shutdown:
    """Ends one pool: when its user closes it, at interpreter exit, after Ctrl-C, in a forked child."""

    def __init__(
        self,
        *,
        name: str,
        lock: primitives.Lock,
        status: PoolStatus,
        clock: primitives.Clock,
        dispatcher: Dispatcher,
        runtime: Runtime,
        timer: PoolTimer,
        report_state: Callable[[], None],
        reports_here: Callable[[], bool],
        queued: Callable[[], int],
        counts: Counts,
        renew_state_locks: Callable[[], None],
        drain_watch: DrainWatch,
        pausing: Pausing,
        outcomes: ForcedOutcomes,
        retries: Retries,
        startup: Startup,
        starter: WorkerStarter,
        deaths: Deaths,
        abandonment: Abandonment,
        tainted_workers: TaintedWorkers,
        nested: NestedWaits,
        maps: Maps,
        streams: dict[int, OpenStream],
    ) -> None:
        self._name = name
        self._lock = lock
        self._status = status
        self._clock = clock
        self._now = clock.monotonic
        self._dispatcher = dispatcher
        self._registry = dispatcher.registry
        self._backlog = dispatcher.backlog
        self._runtime = runtime
        self._timer = timer
        self._report_state = report_state
        self._reports_here = reports_here
        self._queued = queued
        self._counts = counts
        self._renew_state_locks = renew_state_locks
        self._drain_watch = drain_watch
        self._pausing = pausing
        self._outcomes = outcomes
        self._retries = retries
        self._startup = startup
        self._starter = starter
        self._deaths = deaths
        self._abandonment = abandonment
        self._tainted_workers = tainted_workers
        self._nested = nested
        self._maps = maps
        self._streams = streams
        self.join_departed: Callable[[], None] = _nobody  # waits for the last workers of a pool that has ended

    @property
    def ended(self) -> bool:
        return self._status.ended

    def close(self, grace: float | None, drain: bool, wait: bool = True) -> None:
        """End the pool: no new requests, then the waiting ones run or are cancelled, then the workers end. Safe to
        call again, from anywhere.
        """
        for work in self.reject_new_work("it is closed", drain):
            self._maps.start_feeder(work)
        if not drain:
            self.cancel_waiting()
        worker = current_worker()
        wait = wait and (worker is None or not self._nested.is_own(worker)) and not self._maps.feeds_here()
        wait = wait and not self._reports_here()
        self._settle_streams(drain, primitives.current_thread_id() if wait else None)
        if not wait:
            return
        until = None if grace is None else self._now() + grace
        if not self._wait_closed(grace):
            self.cancel_waiting()
            self._abandonment.give_up_running(grace or 0.0)
        self._startup.join(None if until is None else max(0.0, until - self._now()))
        self.join_workers()
        self._maps.join()
        self._timer.join()
        if self._status.ended:
            self._drain_watch.release()  # of a pool that failed

    def join_workers(self) -> None:
        """Wait until the threads, or processes, of workers that have ended are gone."""
        self._deaths.join()
        self.join_departed()

    def _wait_closed(self, grace: float | None) -> bool:
        gate = primitives.gate()
        gate.acquire()
        return not self._drain_watch.opens_when_closed(gate) or self._clock.wait(gate, grace)

    def _settle_streams(self, drain: bool, closer: int | None = None) -> None:
        """Streams are read to their end, unless their reader is the thread `closer`, which waits for them to end."""
        for work in list(self._streams.values()):
            work.pool_closes(drain=drain, closer=closer)

    def reject_new_work(self, because: str, drain: bool = True) -> list[UnfinishedMap]:
        """Accept no new request from now on; workers end when no request waits any more.

        Returns the maps that the caller has to feed to their end; until then their items are still accepted.
        """
        with primitives.Uninterrupted(), self._lock:  # a second call does not repeat this
            first, unread = self._status.open, []
            if first:
                self._drain_watch.summary = Summary(
                    self._name,
                    self._status.state,
                    self._registry,
                    self._queued(),
                    self._startup.waiters,
                )
                self._status.change(PoolState.DRAINING, because=because)
                unread = self._maps.settle() if drain else []
                if not self._maps.being_fed():
                    self._status.change(ending=True)
                self._startup.release_all()
            elif self._status.state is not PoolState.DRAINING:
                return []
        primitives.failpoint("pool.draining_not_stopped")
        if first:
            self._report_state()
            self._maps.warn()
        # A second call repeats the rest, because Ctrl-C may have ended the first one before it.
        if not drain:  # before a paused pool goes on
            self.cancel_waiting()
        self._retries.fire_all()
        self._deaths.release_held()
        self._tainted_workers.recover_all()
        self._pausing.resume()
        self._backlog.call_all()
        if self._status.ending:
            self._drain_watch.let_workers_end()
        return unread

    def end_if_fed(self) -> None:
        """Called whenever a map has been fed: after the last one, the workers of a draining pool may end."""
        with self._lock:
            if self._status.state is not PoolState.DRAINING or self._status.ending or self._maps.being_fed():
                return
            self._status.change(ending=True)
        self._backlog.call_all()
        self._drain_watch.let_workers_end()

    def cancel_waiting(self) -> None:
        """Start nothing more."""
        self._maps.give_up()
        self._outcomes.cancel_waiting()
        self._dispatcher.stop_idle()
        self._drain_watch.closed_if_done()

    # The end of the process.

    def cut_short(self) -> None:
        """Ctrl-C: if this pool's workers can be killed, no request starts, running ones are cancelled, and workers
        that are still starting are killed.
        """
        if "kill_running" not in self._runtime.capabilities:
            return
        self.close(None, drain=False, wait=False)
        for worker in self._registry.snapshot():
            if not worker.was_ready:
                self._runtime.kill(worker)
            for request in (*all_on(worker), *worker.prefetched):
                self._outcomes.cancel(request)

    def go_on_at_exit(self) -> None:
        """The interpreter exits, and starts no threads any more: the workers that are there run what they can."""
        self._startup.join(None)
        self._dispatcher.free.clear()
        self._pausing.resume()

    def drain_at_exit(self) -> None:
        """Every pool goes on: wait until this one has ended. Without workers, the requests run on this thread."""
        self._maps.cut_endless()
        unread = self.reject_new_work(at_exit.AT_EXIT)
        self._settle_streams(drain=False)
        if len(self._registry):
            for work in unread:
                self._maps.start_feeder(work)
        else:
            self._drain_here(unread)
        self.close(None, drain=True)

    def _drain_here(self, unread: list[UnfinishedMap]) -> None:
        """Run the waiting requests, and these maps, on this thread."""
        here = self._starter.enlist_this_thread()
        try:
            self._run_waiting(here)
            for work in unread:
                while not work.exhausted:
                    work.fill(1)
                    self._run_waiting(here)
                self._maps.is_fed(work)
        finally:
            self._starter.dismiss_this_thread(here)
            self._drain_watch.closed_if_done()

    def _run_waiting(self, here: Worker) -> None:
        while len(self._backlog):  # a runner of a map lets others pass, and a request may take another out of turn
            for request in self._outcomes.take_waiting():
                if getattr(request.function, "needs_instance", False):  # there is no instance, nor will there be one
                    self._outcomes.fail(request, self._status.not_open())
                elif not self._nested.run_here(here, request, queued=False):
                    self._backlog.dropped()

    def forget_workers(self, because: str) -> None:
        """This is a forked child: the workers are the parent's. Locks are made anew, their holders may not exist
        here.
        """
        self._status.disown(because)
        primitives.renew_lock(self._lock)
        self._dispatcher.free.clear()
        self._maps.forget()
        self._counts.renew()
        self._renew_state_locks()
        self._backlog.forget()
        self._registry.forget()
        self._dispatcher.sessions.forget()
        self._deaths.forget()
        self._startup.forget()
        self._retries.forget()
        self._timer.forget()


def _nobody() -> None:
    pass
