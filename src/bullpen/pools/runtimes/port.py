"""The port of runtimes. A runtime runs requests; the pool decides everything else.

A runtime starts workers, runs the requests that the pool hands to them, and reports. It has no queue and chooses
nothing. The pool relies on this:

- `start` returns soon. Later the worker reports first either `ready` or `died`, from any thread.
- A worker calls `prepare` before `ready`, and `retire` before `exited`, on its own thread. If `prepare` raises, the
  start has failed. `prepare` may change the worker's `capacity`, which is fixed from then on. Where workers are
  coroutines, both may return an awaitable.
- A runtime whose workers share no memory with the pool creates, warms up and closes the instance that `worker.keeps`
  asks for where the worker runs. In the app it sets `worker.kept` before it calls `prepare`. A `CallsMethod` calls a
  method of that instance by name, a `ProducesItems` takes the items that its function yields, a `CallsMany` calls its
  function for many items. A `Listener` among the arguments stays in the app.
- After `ready`, a worker has at most `capacity` requests at once, and runs all of them at once. For each request that
  it got it reports exactly one `finished`, or its one `died`.
- `ready` and `finished` return the worker's next request, which it runs at once, or None: then it waits for `hand`.
- `hand(request)` never blocks. `hand(None)` comes once, to a worker without requests, which then reports `exited`.
- `cancel` and `kill` do what `capabilities` promises, and nothing otherwise.
- An ability of only some runtimes, worker handles or pools is a `Protocol` of its own (`ExplainsItsEnd`,
  `SupportsPrefetch`, …). The pool and the runtimes
  find it with `isinstance`.

One contract suite, `bullpen.testing.contracts`, tests every runtime.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn, Protocol, TypeGuard, runtime_checkable

from bullpen import primitives
from bullpen.errors import InvalidOptionType
from bullpen.pools.dispatch.request import Request
from bullpen.pools.dispatch.states import RequestState
from bullpen.pools.dispatch.worker import Worker

IN_NEW_TASK = object()  # a coroutine returns it to go on in a new task, in the context that its request has now

reporters: list[Callable[[], bool]] = []  # the `reports_here` of runtimes with one report thread for all pools


def is_reporter() -> bool:
    """Whether this thread reports for the workers of several pools."""
    for reports_here in reporters:
        if reports_here():
            return True
    return False


class WorkerEvents(Protocol):
    """The reports of workers to the pool, from any thread."""

    def prepare(self, worker: Worker) -> Awaitable[None] | None:
        """The worker is about to be ready: create its instance on this thread. Raises if that fails."""

    def ready(self, worker: Worker) -> Request | None:
        """The worker has started."""

    def finished(self, worker: Worker, request: Request, state: RequestState, value: Any) -> Request | None:
        """A request on the worker has ended: done with a result, or failed with an error."""

    def retire(self, worker: Worker) -> Awaitable[None] | None:
        """The worker is about to end: close its instance on this thread. Never raises."""

    def exited(self, worker: Worker) -> None:
        """The worker has ended after `hand(None)`."""

    def died(self, worker: Worker, error: BaseException) -> None:
        """The worker could not start, or has ended without `hand(None)`."""


@runtime_checkable
class SupportsPrefetch(Protocol):
    """A pool that gives a busy worker requests before it can begin them, so that the worker does not wait for them.

    The worker begins them in the given order, after those that it already has; `finished` returns each when its turn
    comes. If the worker dies, those that it has not begun run elsewhere. The method `recall` of `worker.handle` makes
    the worker give them back.
    """

    def prefetch(self, worker: Worker, count: int) -> list[Request]:
        """Up to `count` more requests for a busy worker of capacity 1."""

    def not_begun(self, worker: Worker, requests: list[Request]) -> Request | None:
        """The worker gives these back and does not run them, except the one that this returns, which is its turn."""


@runtime_checkable
class ShowsWaitingFunction(Protocol):
    """A pool that tells for which function it starts a worker."""

    def waiting_function(self) -> Callable[..., Any] | None:
        """The function of the oldest waiting request."""


@runtime_checkable
class SupportsRecycling(Protocol):
    """A pool that replaces workers without a gap when their runtime asks for it."""

    def needs_recycling(self, worker: Worker) -> None:
        """Replace this worker soon. The runtime may repeat this."""


class Runtime(Protocol):
    """Starts and ends workers of one kind."""

    name: str
    capabilities: frozenset[str]

    def start(self, worker: Worker, events: WorkerEvents) -> None:
        """Begin to start `worker`. First set `worker.handle`, which has a method `hand`. Raises if it cannot."""

    def cancel(self, worker: Worker, request: Request) -> bool:
        """Cancel `request` on `worker`, if this runtime can; True if it has ended or will end."""

    def kill(self, worker: Worker) -> bool:
        """Kill `worker` with all requests on it, if this runtime can."""

    def join(self, worker: Worker, timeout: float | None) -> bool:
        """Wait until `worker` has ended completely; False if `timeout` seconds passed first."""


@runtime_checkable
class RunsByName(Protocol):
    """A runtime whose workers run no Python, if `by_name_only` is True. It gets only `CallsMethod`, and `ProducesItems`
    of that. It sets `worker.kept` before it calls `prepare`.
    """

    by_name_only: bool


@runtime_checkable
class TakesInitializer(Protocol):
    """A runtime that takes the initializer of a pool."""

    def with_initializer(self, initializer: Callable[..., object], initargs: tuple[Any, ...]) -> Runtime:
        """A copy of this runtime that calls `initializer(*initargs)` first in each worker."""


@runtime_checkable
class DecidesPrestart(Protocol):
    """A runtime that decides whether workers may start before there are requests for them."""

    def can_prestart(self) -> bool:
        """A new pool asks this once. If False, its workers start only for requests, whatever its `min_workers`."""


@runtime_checkable
class SharesReportThread(Protocol):
    """A runtime that reports for several workers on one thread."""

    def reports_here(self) -> bool:
        """True on that thread. Callbacks run on it and must not wait for results that it reports. If the runtime is one
        of `reporters`, they must not wait for other pools either, because work of these may wait for such results.
        """


@runtime_checkable
class LimitsMemory(Protocol):
    """A runtime that asks the pool to recycle workers that exceed `max_rss` bytes, if that is not None."""

    max_rss: int | None


@runtime_checkable
class WritesStacks(Protocol):
    """A `worker.handle` that can show where its requests are."""

    def ask_stack(self, request: Request) -> bool:
        """Let the worker write the stacks of its threads to its stderr. False if it cannot, or does not run `request`
        now.
        """

    @property
    def output(self) -> bytes:
        """The end of its stderr."""


@runtime_checkable
class ExplainsItsEnd(Protocol):
    """A `worker.handle` that knows more about the worker's death than the error."""

    ended_on_purpose: bool  # the runtime killed the worker because a request did not stop: the worker is not at fault
    was_killed: bool  # by a signal, or with its forkserver: another worker can probably start

    @property
    def unwanted(self) -> bool:
        """`kill` was called."""

    def never_began(self, request: Request) -> bool:
        """Whether the worker certainly died before it began `request`, so that another may run it."""


class CallsMethod:
    """The call of a method of the worker's instance. `__name__` is the name of the method."""

    __slots__ = ()

    needs_instance = True
    __name__: str

    def __reduce__(self) -> NoReturn:
        raise TypeError("a CallsMethod is not pickled: the runtime sends the name of the method")


class ProducesItems:
    """The call of a stream: the runtime gives each item that `fn` yields to `take`, wherever `fn` runs."""

    __slots__ = ()

    fn: Callable[..., Any]
    __qualname__: str
    room: int  # how many items may wait for their reader

    def take(self, item: Any, wake: Callable[[], object]) -> bool | None:
        """True if the stream took `item`, False if its reader has left. None: there is no room; `wake` is called once,
        when there may be some or the reader has left.
        """
        raise NotImplementedError

    def __reduce__(self) -> NoReturn:
        raise TypeError("a ProducesItems is not pickled: the runtime sends its function")


class CallsMany:
    """The call of `fn` for each of several items. Its arguments are a list of all first arguments, a list of all second
    arguments, …; its result is `Outcomes`. An item that cannot be pickled is an error in these, and affects no other.

    It cannot leave the process, so a runtime in other processes calls `fn` for each item itself.
    """

    __slots__ = ("past",)

    fn: Callable[..., Any]
    logged: bool
    """If its worker dies, `past` gets the items that had ended and the one that ran; the others run elsewhere."""
    past: Outcomes | None  # of the first items, which are no longer among the arguments

    def __reduce__(self) -> NoReturn:
        raise TypeError("a CallsMany is not pickled: the runtime sends its function")


class Listener:
    """An argument that stays in the app. In its place the function gets a callable. The runtime gives each value, with
    which the function calls that, to `hear`.
    """

    __slots__ = ()

    def hear(self, value: Any) -> None:
        """Called on the thread on which results arrive. It must not wait."""
        raise NotImplementedError

    def __call__(self, value: Any) -> None:
        """The function calls this if it runs in this process."""
        self.hear(value)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Listener is not pickled: it stays in its process")


class Outcomes:
    """The outcomes of several items: values, errors by their place, the seconds that all took, and the bytes that
    travelled there and back. `lost` has the places of items with which their workers died: their errors are those of
    the workers.
    """

    __slots__ = ("errors", "lost", "seconds", "size", "values")

    def __init__(self, values: list[Any], errors: dict[int, BaseException], seconds: float, size: int = 0) -> None:
        self.values = values
        self.errors = errors
        self.seconds = seconds
        self.size = size
        self.lost: dict[int, Worker] = {}


def by_name_only(runtime: object) -> TypeGuard[Runtime]:
    """Whether the workers of `runtime` run no Python."""
    return isinstance(runtime, RunsByName) and runtime.by_name_only


def only_by_name(fn: Any) -> InvalidOptionType:
    """The error for a function that was submitted to workers that run no Python."""
    return InvalidOptionType("fn", fn, "the name of a method: the workers are programs and run no Python functions")


CAPABILITIES = {
    "cancel_running": "a running request can be cancelled",
    "kill_running": "a running request can be killed, whatever it does",
    "share_memory": "arguments and results are the caller's own objects",
    "run_inline": "a request can run on the thread that waits for it",
    "keep_instance": "each worker can keep an object of its own (`worker=`)",
    "survive_crash": "a crash of the interpreter costs only the requests on that worker",
}


# The request of a coroutine. Tasks that the coroutine starts inherit it and may outlive the request, so check its
# state, or use `current_coroutine`.
coroutine_request: ContextVar[Request | None] = ContextVar("coroutine_request", default=None)

_workers: dict[int, Worker] = {}  # by thread; a thread sets and deletes its own entry only
_requests: dict[int, list[Request]] = {}  # by thread, outermost first; none for one thread until calls nest


def current_worker() -> Worker | None:
    """The worker of the current thread, if it is one."""
    return _workers.get(primitives.current_thread_id())


def current_requests() -> Sequence[Request]:
    """The requests on the current thread: one, and those that run inline within it, outermost first."""
    thread = primitives.current_thread_id()
    running = _requests.get(thread)
    if running is not None:
        return running
    worker = _workers.get(thread)
    return () if worker is None else worker.requests[:1]


def current_request() -> Request | None:
    """The innermost request on the current thread."""
    running = current_requests()
    return running[-1] if running else None


def current_coroutine() -> Request | None:
    """The request of the current coroutine, until the coroutine has ended: after a timeout it may still clean up.

    A request on a thread may run in the context of a coroutine, but does not belong to that.
    """
    request = coroutine_request.get()
    if request is None:
        return None
    place = request.worker.handle
    return request if place.has(request) and (current_worker() is None or place.is_here()) else None


def enter(worker: Worker) -> None:
    """From now on the current thread is `worker`."""
    _workers[primitives.current_thread_id()] = worker


def enter_thread_of(worker: Worker) -> list[Request]:
    """From now on the current thread is one of the threads of `worker`; the list of the requests that run on it."""
    enter(worker)
    return _requests.setdefault(primitives.current_thread_id(), [])


def leave() -> None:
    """From now on the current thread is no worker."""
    _workers.pop(primitives.current_thread_id(), None)
    _requests.pop(primitives.current_thread_id(), None)


@contextmanager
def inline(request: Request) -> Iterator[Request | None]:
    """Inside, `request` runs within the current request of this thread, which is yielded."""
    outer = current_requests()
    with _running([*outer, request]):
        yield outer[-1] if outer else None


@contextmanager
def acting_as(worker: Worker, request: Request) -> Iterator[None]:
    """Inside, the current thread runs `request` as `worker`."""
    thread = primitives.current_thread_id()
    before = _workers.get(thread)
    _workers[thread] = worker
    try:
        with _running([request]):
            yield
    finally:
        if before is None:
            del _workers[thread]
        else:
            _workers[thread] = before


@contextmanager
def _running(requests: list[Request]) -> Iterator[None]:
    thread = primitives.current_thread_id()
    before = _requests.get(thread)
    _requests[thread] = requests
    try:
        yield
    finally:
        if before is None:
            del _requests[thread]
        else:
            _requests[thread] = before
