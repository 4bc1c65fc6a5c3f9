"""One call on its way through a pool: what to run, how long it may take, where it stands.

All moves of `REQUEST_MOVES` are methods here. Each takes the request's state lock, which is a leaf: nothing else is
locked, and no foreign code runs, while it is held. A move that comes too late returns False and changes nothing, so
that of any number of threads that want to start, cancel, expire or finish a request exactly one succeeds.

A pool has a few state locks for all of its requests, dealt out in turn. A lock of its own would be the dearest part
of a request: to make, to keep, and above all to the garbage collector, which would visit it again and again.

A request has up to three limits in time. `queue_timeout` limits the wait in the backlog, `run_timeout` the run on a
worker, `timeout` the whole from submission. They are never mixed: each has its own error. Only requests that are
limited or sampled have a `Timing`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

from bullpen import primitives
from bullpen.errors import DeadlineExceeded, QueueTimeout, RunTimeout, Timeout
from bullpen.pools.dispatch.states import RequestState

QUEUED = RequestState.QUEUED
RUNNING = RequestState.RUNNING
DONE = RequestState.DONE
FAILED = RequestState.FAILED
CANCELLED = RequestState.CANCELLED
EXPIRED = RequestState.EXPIRED
LOST = RequestState.LOST
ABANDONED = RequestState.ABANDONED


Affinity = Literal["hint", "strict_queue", "strict_fail_fast"]

AFFINITIES = ("hint", "strict_queue", "strict_fail_fast")


class CallTraits:
    """The traits of a call: the session it belongs to, and whether it may run again if its worker dies."""

    __slots__ = ("affinity", "crash_retries", "idempotent", "session")

    def __init__(
        self,
        session: str | None = None,
        affinity: Affinity = "hint",
        idempotent: bool = False,
        crash_retries: int = 1,
    ) -> None:
        self.session = session
        self.affinity = affinity
        self.idempotent = idempotent
        self.crash_retries = crash_retries

    @property
    def strict(self) -> bool:
        """The session has to be served by its own worker and by no other."""
        return self.session is not None and self.affinity != "hint"

    @property
    def any(self) -> bool:
        """Something is asked for that a plain call does not."""
        return self.session is not None or self.idempotent


class RequestTraits(CallTraits):
    """The traits of one request, and its progress under them."""

    __slots__ = ("binds", "crashes", "pinned_to")

    def __init__(self, asked: CallTraits) -> None:
        self.session = asked.session
        self.affinity = asked.affinity
        self.idempotent = asked.idempotent
        self.crash_retries = asked.crash_retries
        self.binds = False  # it is the request that bound its session to its worker
        self.pinned_to: Any = None  # the `Worker` in whose line it is, or was; no other may run it
        self.crashes = 0  # how many workers have died with it


class TimeLimits:
    """The limits of a call in seconds; None is no limit. One object serves all calls with the same limits."""

    __slots__ = ("any", "budget", "max_run", "max_wait", "queue_timeout", "run_timeout", "timeout")

    def __init__(
        self, timeout: float | None = None, queue_timeout: float | None = None, run_timeout: float | None = None
    ) -> None:
        self.timeout = timeout
        self.queue_timeout = queue_timeout
        self.run_timeout = run_timeout
        self.any = timeout is not None or queue_timeout is not None or run_timeout is not None
        self.budget = math.inf if timeout is None else timeout
        self.max_run = math.inf if run_timeout is None else run_timeout
        self.max_wait = min(self.budget, math.inf if queue_timeout is None else queue_timeout)


NO_LIMITS = TimeLimits()


class Timing:
    """The limits of one request as instants. `started_at` is there once it runs."""

    __slots__ = ("limits", "request", "start_by", "started_at", "submitted_at")

    started_at: float

    def __init__(self, request: Request, now: float, limits: TimeLimits) -> None:
        self.request: Request | None = request  # until it ends
        self.limits = limits
        self.submitted_at = now
        self.start_by = now + limits.max_wait

    @property
    def deadline(self) -> float:
        """When the caller's whole budget is spent."""
        return self.submitted_at + self.limits.budget

    @property
    def run_until(self) -> float:
        """When it has run for as long as it may."""
        return self.started_at + self.limits.max_run

    def interrupt(self, request: Request) -> Timing:
        """Its worker died, and it may run again: the timing of another try, of which only the deadline stands.

        It is another object because lines of deadlines are in the order of this one's instants.
        """
        again = Timing(request, self.submitted_at, self.limits)
        again.started_at = math.inf  # until it starts once more
        self.request = None
        return again

    def wait_again(self, now: float) -> None:
        """It waits in the backlog once more."""
        queue_timeout = self.limits.queue_timeout
        self.start_by = self.deadline if queue_timeout is None else min(self.deadline, now + queue_timeout)

    def next_at(self, state: RequestState) -> float:
        """The next instant at which a request in `state` has to be looked at."""
        if state is QUEUED:
            return self.start_by
        return min(self.deadline, self.run_until)

    def verdict(self, state: RequestState, now: float) -> Timeout | None:
        """The limit that a request in `state` has passed at `now`, as the error its caller gets."""
        limits = self.limits
        if limits.timeout is not None and now >= self.deadline:
            return DeadlineExceeded(seconds=limits.timeout, ran=state is not QUEUED)
        if state is QUEUED and limits.queue_timeout is not None and now >= self.start_by:
            return QueueTimeout(seconds=limits.queue_timeout)
        if state is RUNNING and limits.run_timeout is not None and now >= self.run_until:
            return RunTimeout(seconds=limits.run_timeout)
        return None


WITHDRAWN = object()  # the value of a request that was withdrawn


class Waiters:
    """The callers that wait for the end of a request. Made when the first of them comes."""

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
    """A call that no caller waits for (`serve`). `PoolFuture` is one that a caller can wait for.

    To be cheap, a new request has only what every request needs: `number` is there once it is admitted, `worker`
    once it runs, `value` once it has ended. A worker knows its requests. A request only keeps its `Worker` for others.
    """

    __slots__ = ("args", "fn", "kwargs", "lock", "number", "state", "timing", "traits", "value", "waiters", "worker")

    attended: ClassVar[bool] = False  # whether a caller can see its outcome
    context: Any = None  # the contextvars that a coroutine runs in, where there are any of its own

    number: int  # in the order of admission
    worker: Any
    value: Any  # the result, or the error

    def __init__(
        self, lock: primitives.Lock, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self.lock = lock
        self.fn: Any = fn
        self.args: Any = args
        self.kwargs: Any = kwargs or None
        self.state = QUEUED
        self.waiters: Waiters | None = None
        self.timing: Timing | None = None
        self.traits: RequestTraits | None = None  # what it asks for besides its limits in time

    def start(self, worker: Any) -> bool:
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

    def once_only(self) -> None:
        """It has gone too far to run again, whatever its traits were. To be called where it runs."""
        if self.traits is not None:
            self.traits.idempotent = False

    def settle(self, state: RequestState, value: Any) -> bool:
        """running → done or failed, for a worker inside its own lock: no foreign code runs.

        False if the request was given up before, or if it has callbacks (see `settle_and_call_back`).
        """
        lock = self.lock
        lock.acquire()
        if self.state is RUNNING and self.waiters is None:  # no caller waits: as `_become`, written out
            self.value = value
            self.state = state
            self.fn = self.args = self.kwargs = None
            if self.timing is not None:
                self.timing.request = None
            lock.release()
            return True
        lock.release()
        return self._end(RUNNING, state, value, with_callbacks=False)

    def settle_and_call_back(self, state: RequestState, value: Any) -> bool:
        """running → done or failed, and run the callbacks. Called without any lock."""
        return self._leave(RUNNING, state, value)

    def withdraw(self) -> bool:
        """queued → cancelled: it came too late, and was never admitted."""
        return self._leave(QUEUED, CANCELLED, WITHDRAWN)

    def cancel_queued(self) -> bool:
        """queued → cancelled."""
        return self._leave(QUEUED, CANCELLED, None)

    def fail_queued(self, error: BaseException) -> bool:
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
        if not self._end(expected, state, value, with_callbacks=True):
            return False
        if self.waiters is not None:
            self.call_back(self.waiters)
        return True

    def _end(self, expected: RequestState, state: RequestState, value: Any, *, with_callbacks: bool) -> bool:
        """Make `state` final, and tell the waiters; not `with_callbacks`: unless there are callbacks.

        `concurrent.futures.wait` looks at a future while it holds the future's condition, so once there is one, the
        state changes only while that is held too. It is taken first; if it has come into being meanwhile, once more.
        """
        while True:
            condition = None if self.waiters is None else self.waiters.condition
            if condition is not None:
                condition.acquire()
            try:
                with self.lock:
                    waiters = self.waiters
                    if waiters is not None and waiters.condition is not condition:
                        continue
                    if self.state is not expected or (waiters is not None and waiters.callbacks and not with_callbacks):
                        return False
                    self._become(state, value)
                    if waiters is not None:
                        waiters.open_gates()
                if condition is not None and waiters is not None:
                    self.tell(waiters)
                return True
            finally:
                if condition is not None:
                    condition.release()

    def _become(self, state: RequestState, value: Any) -> None:
        """Make `state` final, and drop the function and its arguments. No other thread can do the same meanwhile.

        Each `settle` has this written out: it runs once for every call ever made, where a call more costs 4 to 8 %.
        """
        self.value = value
        self.state = state
        self.fn = self.args = self.kwargs = None
        if self.timing is not None:
            self.timing.request = None  # the timer must not keep the result alive

    def tell(self, waiters: Waiters) -> None:
        """Tell the watchers of the condition, which is held."""

    def call_back(self, waiters: Waiters) -> None:
        """Run the callbacks. Called without any lock."""

    @property
    def ended(self) -> bool:
        return self.state is not QUEUED and self.state is not RUNNING

    @property
    def holder(self) -> Any:
        """The `Worker` it runs on, if it runs."""
        return self.worker if self.state is RUNNING else None

    @property
    def pinned_to(self) -> Any:
        """The `Worker` in whose line it is, or was."""
        return None if self.traits is None else self.traits.pinned_to

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
    """A request without limits or traits that no caller waits for: no other thread knows it, so it needs no lock.

    While it waits it belongs to the thread that takes it out of the backlog; while it runs, to the holder of its
    worker's lock.
    """

    __slots__ = ()

    traits: ClassVar[None] = None  # type: ignore[misc]

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.fn = fn
        self.args = args
        self.kwargs = kwargs or None
        self.state = QUEUED
        self.waiters = None
        self.timing = None

    def start(self, worker: Any) -> bool:
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
        self.value = value  # as `_become`, written out
        self.state = state
        self.fn = self.args = self.kwargs = None
        return True

    def _leave(self, expected: RequestState, state: RequestState, value: Any) -> bool:
        if self.state is not expected:
            return False
        self._become(state, value)
        return True
