"""The outcomes that a pool gives a request instead of its function: cancelled, failed, withdrawn, set by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bullpen.errors import SessionWorkerUnavailable
from bullpen.pools.dispatch.dispatcher import Dispatcher
from bullpen.pools.dispatch.pool_status import PoolStatus
from bullpen.pools.dispatch.request import DONE, Request
from bullpen.pools.dispatch.states import PoolState
from bullpen.pools.dispatch.tally import Counts, Tally
from bullpen.pools.dispatch.worker import Worker
from bullpen.pools.runtimes.port import Runtime
from bullpen.pools.supervision.retries import Retries
from bullpen.telemetry import Kind


class ForcedOutcomes:
    """Ends requests of one pool, counts them and reports them."""

    def __init__(
        self,
        *,
        status: PoolStatus,
        dispatcher: Dispatcher,
        runtime: Runtime,
        retries: Retries,
        counts: Counts,
        report: Callable[[Kind, Worker | None, Request | None], None],
        closed_if_done: Callable[[], None],
    ) -> None:
        self._status = status
        self._dispatcher = dispatcher
        self._backlog = dispatcher.backlog
        self._runtime = runtime
        self._retries = retries
        self._counts = counts
        self._report = report
        self._closed_if_done = closed_if_done

    def cancel(self, request: Request) -> bool:
        """Cancel a waiting request; end a running one where the runtime can."""
        if self.cancel_queued(request) or (len(self._retries) and self._retries.cancel(request)):
            return True
        worker: Worker | None = request.holder
        if worker is None or not self._runtime.capabilities & {"cancel_running", "kill_running"}:
            return False
        if not request.cancel_running():  # before the runtime ends it: a later report of it comes too late
            return False
        self._counts.cancelled.add()
        self._dispatcher.report_end(request, worker)
        self._runtime.cancel(worker, request)
        return True

    def cancel_queued(self, request: Request) -> bool:
        if not request.cancel_queued():
            return False
        self._counts.cancelled.add()
        self.withdrawn()
        self._dispatcher.report_end(request, None)
        return True

    def interrupt(self, request: Request, kill: bool) -> bool:
        """End a running request where the runtime can; its caller is told when it has ended."""
        if self.cancel_queued(request):
            return True
        worker: Worker | None = request.holder
        if worker is None:
            return False
        return self._runtime.kill(worker) if kill else self._runtime.cancel(worker, request)

    def started_by_hand(self, request: Request) -> None:
        """A waiting request runs outside the pool."""
        self.withdrawn()
        self._report(Kind.REQUEST_STARTED, None, request)

    def ended_by_hand(self, request: Request) -> None:
        """A caller outside the pool set the outcome of a request."""
        (self._counts.extra_completed if request.state is DONE else self._counts.extra_failed).add(1)
        self._dispatcher.report_end(request, None)

    def withdrawn(self) -> None:
        """A waiting request does not run, or runs out of turn."""
        self._backlog.withdrawn()
        if self._status.draining:
            self._closed_if_done()

    # All requests that wait.

    def cancel_waiting(self) -> None:
        """Cancel every request that waits, also for another try."""
        self._retries.cancel_all()
        for request in self.take_waiting():
            self._drop(request, request.cancel_queued(), self._counts.cancelled)

    def fail_waiting(self, error: BaseException) -> None:
        """No worker can run the requests that wait: they fail with `error`."""
        for request in self.take_waiting():
            self.fail(request, error)
        if self._status.state is PoolState.FAILED:
            self._retries.fail_all(error)

    def fail_line(self, worker: Worker) -> None:
        """`worker` does not run the requests that wait for it alone: they fail."""
        for request in self._dispatcher.empty_line(worker):
            assert request.traits is not None
            assert request.traits.session is not None
            self.fail(request, SessionWorkerUnavailable(worker=worker.name, session=request.traits.session))

    def take_waiting(self) -> Iterator[Request]:
        """Take out all requests that wait at this moment, in the backlog and in the lines of workers."""
        for _ in range(len(self._backlog)):
            try:
                yield self._backlog.popleft()
            except IndexError:
                break
        for worker in self._dispatcher.registry.snapshot():
            yield from self._dispatcher.empty_line(worker)

    def fail(self, request: Request, error: BaseException) -> None:
        """A request that was taken out fails with `error`."""
        self._drop(request, request.fail_queued(error), self._counts.failed_waiting)

    def _drop(self, request: Request, ended: bool, count: Tally) -> None:
        """A request that was taken out `ended` just now; otherwise its entry was a tombstone."""
        if not ended:
            self._backlog.dropped()
            return
        self._backlog.left()
        count.add()
        self._dispatcher.report_end(request, None)
        if self._status.draining:
            self._closed_if_done()
