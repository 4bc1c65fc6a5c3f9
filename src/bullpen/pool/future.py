"""The future of a request: a `concurrent.futures.Future` in a fraction of its cost.

Request and future are one object, whose state lock is one of the pool's. Whoever waits brings a gate; a `Condition`,
with its own lock, is built only when foreign code (`wait`, `as_completed`) asks for one. It works wherever the standard
future does.
"""

from __future__ import annotations

import logging
import threading
import types
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from bullpen import primitives
from bullpen.core.lifecycle import RequestState
from bullpen.core.request import CANCELLED, DONE, FAILED, QUEUED, RUNNING, Audience, Request
from bullpen.core.terms import Terms
from bullpen.runtimes.port import current_worker

if TYPE_CHECKING:
    from bullpen.pool.engine import Engine

T = TypeVar("T")
logger = logging.getLogger("bullpen")


class PoolFuture(Request, Future[T]):
    """What `Pool.submit` returns."""

    __slots__ = ("engine",)

    attended: ClassVar[bool] = True

    def __init__(self, engine: Engine, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # As Request.__init__, written out: this runs once for every call ever made.
        self.engine = engine
        self.fn = fn
        self.args = args
        self.kwargs = kwargs or None
        self.state = QUEUED
        self.lock = engine.state_lock()
        self.audience = None
        self.timing = None

    # The request's side: whom it tells when it ends.

    def tell(self, audience: Audience) -> None:
        for watcher in audience.watchers:
            if self.state is DONE:
                watcher.add_result(self)
            elif self.state is CANCELLED:
                watcher.add_cancelled(self)
            else:
                watcher.add_exception(self)
        audience.condition.notify_all()

    def call_back(self, audience: Audience) -> None:
        callbacks, audience.callbacks = audience.callbacks, []
        for callback in callbacks:
            self._call(callback)

    def _call(self, callback: Callable[[Future[T]], object]) -> None:
        try:
            callback(self)
        except BaseException:  # whatever it is, the worker, or whoever else calls this, goes on
            logger.exception("exception calling callback for %r", self)

    def _has_audience(self) -> Audience:
        """The audience, made if need be. Called with the lock held."""
        audience = self.audience
        if audience is None:
            audience = self.audience = Audience()
        return audience

    # The caller's side.

    def result(self, timeout: float | None = None) -> T:
        """The result, after waiting for it at most `timeout` seconds; raises what the function raised."""
        if self.state is DONE:
            return self.value  # type: ignore[no-any-return]
        if not self._wait(timeout):
            raise TimeoutError
        if self.state is DONE:
            return self.value  # type: ignore[no-any-return]
        if self.state is CANCELLED:
            raise CancelledError
        try:
            raise self.value
        finally:
            self = None  # type: ignore[assignment]  # noqa: PLW0642 — break the cycle with the traceback

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What the function raised, or None, after waiting at most `timeout` seconds."""
        if not self._wait(timeout):
            raise TimeoutError
        if self.state is CANCELLED:
            raise CancelledError
        return None if self.state is DONE else self.value

    def _wait(self, timeout: float | None) -> bool:
        """Wait until it has ended; False when `timeout` seconds passed first."""
        if self.ended:
            return True
        self.engine.check_may_wait(timeout)
        worker = current_worker()
        if worker is not None:
            return self.engine.nested.wait(worker, self, timeout)
        return self.wait_at_gate(timeout)

    def wait_until(self, deadline: float) -> bool:
        """Wait until it has ended; False when it is `deadline` on the pool's clock."""
        return self._wait(max(0.0, deadline - self.engine.clock.monotonic()))

    def wait_at_gate(self, timeout: float | None) -> bool:
        gate = primitives.gate()
        gate.acquire()
        with self.lock:
            if self.ended:
                return True
            audience = self._has_audience()
            audience.gates.append(gate)
        listen_for = self.engine.listen_for
        if listen_for is not None and timeout is None and not audience.callbacks:
            listen_for(self)
        if self.engine.clock.wait(gate, timeout):
            return True
        with self.lock:
            if self.ended:
                return True
            self._has_audience().gates.remove(gate)
            return False

    def cancel(self) -> bool:
        """Cancel it if it has not started; False if it runs or has ended. `Pool.cancel` can do more."""
        if self.state is QUEUED and self.engine.cancel_queued(self):
            return True
        return self.state is CANCELLED

    def cancelled(self) -> bool:
        return self.state is CANCELLED

    def running(self) -> bool:
        return self.state is RUNNING

    def done(self) -> bool:
        return self.ended

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """Call `fn(self)` when it ends, on the thread that ends it; at once if it has ended."""
        with self.lock:
            if not self.ended:
                self._has_audience().callbacks.append(fn)
                return
        self._call(fn)

    def __repr__(self) -> str:
        outcome = f" {self.value!r:.80}" if self.ended and self.state is not CANCELLED else ""
        return f"<{type(self).__name__} at {id(self):#x} {self.state}{outcome}>"

    # What executors call. The pool does not, but code that drives futures by hand may.

    def set_running_or_notify_cancel(self) -> bool:
        if self.start_by_hand():
            return True
        if self.state is CANCELLED:
            return False
        raise InvalidStateError(f"{self.state}: {self!r}")

    def set_result(self, result: T) -> None:
        self._set(DONE, result)

    def set_exception(self, exception: BaseException | None) -> None:
        self._set(FAILED, exception)

    def _set(self, state: RequestState, value: Any) -> None:
        if not (self._leave(RUNNING, state, value) or (self.start_by_hand() and self._leave(RUNNING, state, value))):
            raise InvalidStateError(f"{self.state}: {self!r}")
        self.engine.ended_by_hand(self)

    def start_by_hand(self) -> bool:
        """queued → running, outside the pool."""
        with self.lock:
            if self.state is not QUEUED:
                return False
            self.state = RUNNING
            self.worker = None  # type: ignore[assignment]  # it has no holder
        self.engine.started_by_hand(self)
        return True

    # What `concurrent.futures` reads of a future. To type checkers these are what the base class says they are.

    if not TYPE_CHECKING:

        @property
        def _condition(self) -> threading.Condition:
            audience = self.audience
            if audience is None or audience.condition is None:
                with self.lock:
                    audience = self._has_audience()
                    if audience.condition is None:
                        audience.condition = threading.Condition(primitives.request_lock())  # type: ignore[arg-type]
            return audience.condition

        @property
        def _state(self) -> str:
            worker = current_worker()
            if worker is not None and not self.ended:  # `wait` and `as_completed` look here before they wait
                self.engine.nested.may_wait(worker, self)
            if self.state is QUEUED:
                return "PENDING"
            if self.state is RUNNING:
                return "RUNNING"
            if self.state is CANCELLED:
                return "CANCELLED_AND_NOTIFIED"
            return "FINISHED"

        @property
        def _waiters(self) -> list[Any]:
            if not self.ended:  # `wait` and `as_completed` come here when they are about to wait
                self.engine.check_may_wait()
            with self.lock:
                return self._has_audience().watchers

        @property
        def _result(self) -> T | None:
            return self.value if self.state is DONE else None

        @property
        def _exception(self) -> BaseException | None:
            return self.value if self.ended and self.state not in (DONE, CANCELLED) else None

    def __class_getitem__(cls, item: Any) -> types.GenericAlias:
        return types.GenericAlias(cls, item)


class TermedFuture(PoolFuture[T]):
    """The future of a request with terms: of a session, or one that may run again if its worker dies."""

    __slots__ = ("binds", "crashes", "pinned_to", "terms")

    def __init__(
        self, engine: Engine, terms: Terms, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        super().__init__(engine, fn, args, kwargs)
        self.agree(terms)
