"""The future of a request: a `concurrent.futures.Future` at a fraction of its cost.

Request and future are one object, and its state lock is one of the pool's. A waiting caller adds a gate. A `Condition`
with a lock of its own is built only when code of the standard library (`wait`, `as_completed`) asks for one. The future
works wherever the standard one does.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from bullpen import primitives
from bullpen.pools.dispatch.request import CANCELLED, DONE, FAILED, QUEUED, RUNNING, Request, Waiters
from bullpen.pools.dispatch.states import RequestState
from bullpen.pools.dispatch.worker import Worker
from bullpen.pools.runtimes.port import current_worker

T = TypeVar("T")


class WaitsOnWorkers(Protocol):
    """Waits of a worker for a request: it may run the request itself instead."""

    def wait(self, worker: Worker, future: PoolFuture[Any], timeout: float | None) -> bool: ...
    def may_wait(self, worker: Worker, future: Request) -> None: ...


class FutureOwner(Protocol):
    """The part of a pool's engine that a future needs."""

    @property
    def clock(self) -> primitives.Clock: ...
    @property
    def nested(self) -> WaitsOnWorkers: ...
    @property
    def state_lock(self) -> Callable[[], primitives.Lock]: ...
    @property
    def cancel_queued(self) -> Callable[[Request], bool]: ...
    @property
    def ended_by_hand(self) -> Callable[[Request], None]: ...
    @property
    def started_by_hand(self) -> Callable[[Request], None]: ...
    def interrupt(self, request: Request, kill: bool) -> bool: ...
    def check_may_wait(self, timeout: float | None = None) -> None: ...


class PoolFuture(Request, Future[T]):
    """The future that `Pool.submit` returns."""

    __slots__ = ("engine",)

    attended: ClassVar[bool] = True

    def __init__(
        self, engine: FutureOwner, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        # As Request.__init__, written out: this runs once for every call ever made.
        self.engine = engine
        self.fn = fn
        self.args = args
        self.kwargs = kwargs or None
        self.state = QUEUED
        self.lock = engine.state_lock()
        self.waiters = None
        self.timing = None
        self.traits = None

    # The request's side: it wakes its waiters when it ends.

    def tell(self, waiters: Waiters) -> None:
        for watcher in waiters.watchers:
            if self.state is DONE:
                watcher.add_result(self)
            elif self.state is CANCELLED:
                watcher.add_cancelled(self)
            else:
                watcher.add_exception(self)
        waiters.condition.notify_all()

    def call_back(self, waiters: Waiters) -> None:
        callbacks, waiters.callbacks = waiters.callbacks, []
        for callback in callbacks:
            self._call(callback)

    def _call(self, callback: Callable[[Future[T]], object]) -> None:
        try:
            callback(self)
        except BaseException as error:  # an error of a callback must not end the worker that calls it
            if isinstance(error, KeyboardInterrupt) and primitives.on_main_thread():
                primitives.interrupt_later()  # it is not the callback's, and the other callbacks are called first
                return
            from bullpen.telemetry import logger  # only a failure needs the events and their dataclass

            logger.exception("exception calling callback for %r", self)

    def _has_waiters(self) -> Waiters:
        """The waiters, created on first use. Called with the lock held."""
        waiters = self.waiters
        if waiters is None:
            waiters = self.waiters = Waiters()
        return waiters

    # The caller's side.

    def result(self, timeout: float | None = None) -> T:
        """The result, after waiting for it at most `timeout` seconds. Raises the error of the function."""
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
        """The error of the function, or None, after waiting at most `timeout` seconds."""
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

    def wait_until(self, deadline: float | None) -> bool:
        """Wait until it has ended; False when it is `deadline` on the pool's clock."""
        return self._wait(None if deadline is None else max(0.0, deadline - self.engine.clock.monotonic()))

    def wait_at_gate(self, timeout: float | None) -> bool:
        gate = primitives.gate()
        gate.acquire()
        with self.lock:
            if self.ended:
                return True
            self._has_waiters().gates.append(gate)
        if self.engine.clock.wait(gate, timeout):
            return True
        with self.lock:
            if self.ended:
                return True
            self._has_waiters().gates.remove(gate)
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
                self._has_waiters().callbacks.append(fn)
                return
        self._call(fn)

    def __repr__(self) -> str:
        outcome = f" {self.value!r:.80}" if self.ended and self.state is not CANCELLED else ""
        return f"<{type(self).__name__} at {id(self):#x} {self.state}{outcome}>"

    # Methods for executors. The pool does not call them, but code that drives futures by hand may.

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
            self.worker = None  # it has no holder
        self.engine.started_by_hand(self)
        return True

    # Attributes that `concurrent.futures` reads. Type checkers see those of the base class.

    if not TYPE_CHECKING:

        @property
        def _condition(self) -> threading.Condition:
            waiters = self.waiters
            if waiters is None or waiters.condition is None:
                with self.lock:
                    waiters = self._has_waiters()
                    if waiters.condition is None:
                        waiters.condition = threading.Condition(primitives.request_lock())  # type: ignore[arg-type]
            return waiters.condition

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
                return self._has_waiters().watchers

        @property
        def _result(self) -> T | None:
            return self.value if self.state is DONE else None

        @property
        def _exception(self) -> BaseException | None:
            return self.value if self.ended and self.state not in (DONE, CANCELLED) else None

    def __class_getitem__(cls, item: Any) -> types.GenericAlias:
        return types.GenericAlias(cls, item)
