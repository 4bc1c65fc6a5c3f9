"""One call on its way through a pool: what to run, how long it may take, where it stands.

All moves of `REQUEST_MOVES` are methods here. Each takes the request's state lock, which is a leaf: nothing else is
locked, and no foreign code runs, while it is held. A move that comes too late returns False and changes nothing, so
that of any number of threads that want to start, cancel, expire or finish a request exactly one succeeds.

A pool has a few state locks for all of its requests, dealt out in turn. A lock of its own would be the dearest part
of a request: to make, to keep, and above all to the garbage collector, which would visit it again and again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from bullpen import primitives
from bullpen.core.lifecycle import RequestState
from bullpen.core.terms import Terms
from bullpen.core.timing import Timing
from bullpen.errors import Timeout

if TYPE_CHECKING:
    from bullpen.core.worker import Worker

QUEUED = RequestState.QUEUED
RUNNING = RequestState.RUNNING
DONE = RequestState.DONE
FAILED = RequestState.FAILED
CANCELLED = RequestState.CANCELLED
EXPIRED = RequestState.EXPIRED
LOST = RequestState.LOST
ABANDONED = RequestState.ABANDONED


WITHDRAWN = object()  # the value of a request that was withdrawn


class Audience:
    """Those who want to know when a request ends. Made when the first of them comes."""

    __slots__ = ("callbacks", "condition", "gates", "watchers")

    def __init__(self) -> None:
        self.callbacks: list[Callable[[Any], object]] = []
        self.gates: list[primitives.Lock] = []
        self.watchers: list[Any] = []  # of `concurrent.futures.wait` and `as_completed`
        self.condition: Any = None

    def open_gates(self) -> None:
        for gate in self.gates:
            gate.release()
        self.gates.clear()


class WrappedCall(functools.partial[Any]):
    """What a pool's `wrap` is called with: a call without arguments, whose function is its `func`."""


class Request:
    """A call that nobody waits for (`serve`). `PoolFuture` is the one somebody can wait for.

    To be cheap, a new request has only what every request needs: `number` is there once it is admitted, `worker`
    once it runs, `value` once it has ended.
    """

    __slots__ = ("args", "audience", "fn", "kwargs", "lock", "number", "state", "timing", "value", "worker")

    attended: ClassVar[bool] = False  # whether somebody can see its outcome
    terms: Terms | None = None  # what it asks for besides its limits in time; see `TermedRequest`
    binds: bool = False  # it is the one with which its session came to its worker
    pinned_to: Worker | None = None  # the worker in whose line it is, or was; no other may run it
    crashes: int = 0  # how many workers have died with it
    context: Any = None  # the contextvars that a coroutine runs in, where there are any of its own

    number: int  # in the order of admission
    worker: Worker
    value: Any  # the result, or the error

    def __init__(
        self, lock: primitives.Lock, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self.lock = lock
        self.fn: Any = fn
        self.args: Any = args
        self.kwargs: Any = kwargs or None
        self.state = QUEUED
        self.audience: Audience | None = None
        self.timing: Timing | None = None

    def start(self, worker: Worker) -> bool:
        """queued → running, on `worker`."""
        with self.lock:  # which no interrupt of a submitter leaves locked, as one after `acquire()` would
            if self.state is not QUEUED:
                return False
            self.worker = worker
            self.state = RUNNING
            return True

    def requeue(self) -> bool:
        """running → queued: it goes again to another worker."""
        with self.lock:
            if self.state is not RUNNING:
                return False
            self.state = QUEUED
            return True

    def interrupted(self) -> Timing | None:
        """Its worker died, and it may run again: from now on it is timed anew, if at all."""
        with self.lock:
            if self.timing is not None and self.state is RUNNING:
                self.timing = self.timing.interrupt(self)
            return self.timing

    def agree(self: Any, terms: Terms) -> None:
        """Take on `terms`. Only the kinds of requests that have slots for them can."""
        self.terms = terms
        self.binds = False
        self.pinned_to = None
        self.crashes = 0

    def once_only(self: Any) -> None:
        """It has gone too far to run again, whatever its terms were. To be called where it runs."""
        if self.terms is not None:
            self.terms = self.terms.once_only()

    def settle(self, state: RequestState, value: Any) -> bool:
        """running → done or failed, for a worker inside its own lock: no foreign code runs.

        False if the request was given up before, or if somebody wants to be called back (see `settle_aloud`).
        """
        lock = self.lock
        lock.acquire()
        if self.state is RUNNING and self.audience is None:  # the short way: there is nobody to tell
            self.value = value
            self.state = state
            self.fn = self.args = self.kwargs = None
            if self.timing is not None:
                self.timing.request = None
            lock.release()
            return True
        lock.release()
        return self._end(RUNNING, state, value, aloud=False)

    def settle_aloud(self, state: RequestState, value: Any) -> bool:
        """running → done or failed, and call back whoever asked for it. Called without any lock."""
        return self._leave(RUNNING, state, value)

    def withdraw(self) -> bool:
        """queued → cancelled: it came too late, and was never admitted."""
        return self._leave(QUEUED, CANCELLED, WITHDRAWN)

    def cancel_queued(self) -> bool:
        """queued → cancelled."""
        return self._leave(QUEUED, CANCELLED, None)

    def refuse(self, error: BaseException) -> bool:
        """queued → failed: its pool or its worker is gone."""
        return self._leave(QUEUED, FAILED, error)

    def expire(self, error: Timeout) -> bool:
        """queued → expired."""
        return self._leave(QUEUED, EXPIRED, error)

    def cancel_running(self) -> bool:
        """running → cancelled: the runtime ended it."""
        return self._leave(RUNNING, CANCELLED, None)

    def cancel_retry(self) -> bool:
        """running → cancelled: its worker had died, and it waited for another."""
        return self._leave(RUNNING, CANCELLED, None)

    def abandon(self, error: BaseException) -> bool:
        """running → abandoned: its caller is told now, whatever the worker still does."""
        return self._leave(RUNNING, ABANDONED, error)

    def lose(self, error: BaseException) -> bool:
        """running → lost: its worker died."""
        return self._leave(RUNNING, LOST, error)

    def _leave(self, expected: RequestState, state: RequestState, value: Any) -> bool:
        if not self._end(expected, state, value, aloud=True):
            return False
        if self.audience is not None:
            self.call_back(self.audience)
        return True

    def _end(self, expected: RequestState, state: RequestState, value: Any, *, aloud: bool) -> bool:
        """Make `state` final, drop the function and its arguments, tell the audience; not `aloud`: unless it has
        callbacks.

        `concurrent.futures.wait` looks at a future while it holds the future's condition, so once there is one, the
        state changes only while that is held too. It is taken first; if it has come into being meanwhile, once more.
        """
        while True:
            condition = None if self.audience is None else self.audience.condition
            if condition is not None:
                condition.acquire()
            try:
                with self.lock:
                    audience = self.audience
                    if audience is not None and audience.condition is not condition:
                        continue
                    if self.state is not expected or (audience is not None and audience.callbacks and not aloud):
                        return False
                    self.value = value
                    self.state = state
                    self.fn = self.args = self.kwargs = None
                    if self.timing is not None:
                        self.timing.request = None  # whoever watches the time must not keep the result alive
                    if audience is not None:
                        audience.open_gates()
                if condition is not None and audience is not None:
                    self.tell(audience)
                return True
            finally:
                if condition is not None:
                    condition.release()

    def tell(self, audience: Audience) -> None:
        """Tell who watches by way of the condition, which is held."""

    def call_back(self, audience: Audience) -> None:
        """Call whoever asked for it. Called without any lock."""

    @property
    def ended(self) -> bool:
        return self.state is not QUEUED and self.state is not RUNNING

    @property
    def holder(self) -> Worker | None:
        """The worker it runs on, if it runs."""
        return self.worker if self.state is RUNNING else None

    @property
    def function(self) -> Any:
        """The function that its caller gave, inside whatever the pool has put around it; None once it has ended."""
        fn, args = self.fn, self.args
        if args and type(getattr(fn, "__self__", None)).__name__ == "Context":  # a context's `run`
            fn, args = args[0], args[1:]
        return args[0].func if args and isinstance(args[0], WrappedCall) else fn

    @property
    def label(self) -> str:
        """The function's name, for people; empty once it has ended."""
        fn = self.function
        return "" if fn is None else str(getattr(fn, "__qualname__", None) or fn)


class ServedRequest(Request):
    """A request without limits in time that nobody waits for: nobody else knows it, so it needs no lock.

    While it waits it belongs to whoever takes it out of the backlog; while it runs, to whoever holds its worker's
    lock.
    """

    __slots__ = ()

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.fn = fn
        self.args = args
        self.kwargs = kwargs or None
        self.state = QUEUED
        self.audience = None
        self.timing = None

    def start(self, worker: Worker) -> bool:
        self.state = RUNNING
        self.worker = worker
        return True

    def requeue(self) -> bool:
        if self.state is not RUNNING:
            return False
        self.state = QUEUED
        return True

    def settle(self, state: RequestState, value: Any) -> bool:
        if self.state is not RUNNING:
            return False
        self.value = value
        self.state = state
        self.fn = self.args = self.kwargs = None
        return True

    def _end(self, expected: RequestState, state: RequestState, value: Any, *, aloud: bool) -> bool:  # noqa: ARG002
        if self.state is not expected:
            return False
        self.value = value
        self.state = state
        self.fn = self.args = self.kwargs = None
        if self.timing is not None:
            self.timing.request = None
        return True


class TermedRequest(Request):
    """A request with terms: of a session, or one that may run again if its worker dies."""

    __slots__ = ("binds", "crashes", "pinned_to", "terms")

    def __init__(
        self,
        lock: primitives.Lock,
        terms: Terms,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        super().__init__(lock, fn, args, kwargs)
        self.agree(terms)
