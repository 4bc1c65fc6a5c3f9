"""What a runtime reports about workers arrives here and goes to the component that handles it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from bullpen import primitives
from bullpen.pools.dispatch.dispatcher import Dispatcher, Report
from bullpen.pools.dispatch.request import Request
from bullpen.pools.dispatch.states import RequestState
from bullpen.pools.dispatch.worker import Worker
from bullpen.pools.instances import Instances
from bullpen.pools.supervision.deaths import Deaths
from bullpen.pools.supervision.recycling import Recycling
from bullpen.pools.supervision.restarts import Restarts
from bullpen.pools.supervision.sizing import Sizing
from bullpen.pools.supervision.starting import WorkerStarter
from bullpen.pools.supervision.startup import Startup
from bullpen.pools.supervision.taint import TaintedWorkers
from bullpen.telemetry import Kind


class Workforce:
    """Implements `StartEvents` and with it `WorkerEvents`; also `SupportsPrefetch`, `ShowsWaitingFunction` and
    `SupportsRecycling`.
    """

    finished: Callable[[Worker, Request, RequestState, Any], Request | None]  # the dispatcher's own, if it suffices

    def __init__(
        self,
        *,
        lock: primitives.Lock,
        dispatcher: Dispatcher,
        now: Callable[[], float],
        report: Report,
        restarts: Restarts,
        starter: WorkerStarter,
        sizing: Sizing,
        startup: Startup,
        recycling: Recycling,
        tainted_workers: TaintedWorkers,
        deaths: Deaths,
        instances: Instances | None,
        closed_if_done: Callable[[], None],
        may_prefetch: bool,
        watched: bool,
    ) -> None:
        """With `watched`, the end of a request says something about its worker."""
        self._lock = lock
        self._dispatcher = dispatcher
        self._now = now
        self._report = report
        self._restarts = restarts
        self._starter = starter
        self._sizing = sizing
        self._startup = startup
        self._recycling = recycling
        self._tainted_workers = tainted_workers
        self._deaths = deaths
        self._instances = instances
        self._closed_if_done = closed_if_done
        self._may_prefetch = may_prefetch
        self.finished = self._finished_watched if watched else dispatcher.finished
        self.launched = sizing.launched
        self.start_interrupted = deaths.start_interrupted

    def prepare(self, worker: Worker) -> Awaitable[None] | None:
        return None if self._instances is None else self._instances.make(worker)

    def retire(self, worker: Worker) -> Awaitable[None] | None:
        return None if self._instances is None else self._instances.close(worker)

    def ready(self, worker: Worker) -> Request | None:
        with self._lock:
            missed = self._restarts.came_up(self._now())
        if self._restarts.degraded:
            self._deaths.watch_recovery()
        if missed:
            self._sizing.fill_soon()
        self._report(Kind.WORKER_READY, worker, None)
        if self._recycling.holds(worker):
            return None  # until the worker that it replaces has ended
        return self._starter.begin(worker)

    def began(self, worker: Worker) -> None:
        self._startup.worker_is_ready()
        self._recycling.came_up(worker)

    def _finished_watched(self, worker: Worker, request: Request, state: RequestState, value: Any) -> Request | None:
        self._tainted_workers.judge(worker, state, value)
        following = self._dispatcher.finished(worker, request, state, value)
        self._recycling.worked(worker)
        if following is None and worker.slot is None and worker.requests:
            self._closed_if_done()  # every request that is still on it may be given up
        return following

    def exited(self, worker: Worker) -> None:
        self._deaths.exited(worker)

    def died(self, worker: Worker, error: BaseException) -> None:
        self._deaths.died(worker, error)

    def prefetch(self, worker: Worker, count: int) -> list[Request]:
        return self._dispatcher.prefetch(worker, count) if self._may_prefetch else []

    def not_begun(self, worker: Worker, requests: list[Request]) -> Request | None:
        turn = self._dispatcher.take_back(worker, requests)
        self._closed_if_done()
        return turn

    def waiting_function(self) -> Callable[..., Any] | None:
        try:
            function: Callable[..., Any] | None = self._dispatcher.backlog.entries[0].function
        except IndexError:
            return None
        return function

    def needs_recycling(self, worker: Worker) -> None:
        self._recycling.request(worker)
