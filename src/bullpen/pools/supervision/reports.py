"""What a pool tells its observer and its log. No caller holds a lock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from bullpen import primitives
from bullpen.pools.dispatch.pool_status import PoolStatus
from bullpen.pools.dispatch.request import Request
from bullpen.pools.dispatch.worker import Worker
from bullpen.telemetry import Kind, TelemetryEvent, logger


class PoolReports:
    """Builds the telemetry events of one pool and gives them to its observer, if it has one."""

    def __init__(
        self,
        name: str,
        status: PoolStatus,
        now: Callable[[], float],
        observer: Callable[[TelemetryEvent], object] | None,
        *,
        log_errors: bool,
    ) -> None:
        self._name = name
        self._status = status
        self._now = now
        self._observer = observer
        self._log_errors = log_errors

    def report_state(self) -> None:
        """The state of the pool has changed."""
        if self._observer is not None:
            self._observe(TelemetryEvent(Kind.POOL_STATE, self._now(), self._name, detail=self._status.state))

    def report(self, kind: Kind, worker: Worker | None, request: Request | None) -> None:
        """A worker or a request has changed its state."""
        if self._observer is None:
            return
        name = None if worker is None else worker.name
        number = None if request is None else request.number
        traits = None if request is None else request.traits
        session = None if traits is None else traits.session
        if kind is Kind.REQUEST_STARTED and traits is not None and traits.binds:
            self._observe(TelemetryEvent(Kind.SESSION_BOUND, self._now(), self._name, name, number, session))
        detail = worker.capacity if worker is not None and kind is Kind.WORKER_READY else None
        self._observe(TelemetryEvent(kind, self._now(), self._name, name, number, session, detail))

    def report_session_ended(self, session: str) -> None:
        if self._observer is not None:
            self._observe(TelemetryEvent(Kind.SESSION_ENDED, self._now(), self._name, session=session))

    def report_forgotten(self, sessions: deque[str]) -> None:
        """The pool forgot these sessions, because they were unused for long or there were too many."""
        while sessions:
            try:
                session = sessions.popleft()
            except IndexError:  # another thread reports it
                return
            self.report_session_ended(session)

    def _observe(self, event: TelemetryEvent) -> None:
        assert self._observer is not None
        try:
            self._observer(event)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and primitives.on_main_thread():
                raise  # it is not the observer's
            logger.exception("%s: the observer failed on %s; it missed this event", self._name, event.kind.value)

    def complain(self, request: Request, error: BaseException) -> None:
        """A served request failed: its error reaches no caller, so it is logged."""
        if self._log_errors:
            message = "%s: served request %d failed, and no caller waits for it"
            logger.error(message, self._name, request.number, exc_info=error)
