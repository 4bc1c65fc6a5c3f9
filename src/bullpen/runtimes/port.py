"""What a runtime is: the place where requests run. The pool decides everything else.

A runtime starts workers, takes requests for them, and reports. It keeps no queue and makes no choice. What the pool
may rely on:

- `start` returns soon; the worker reports `ready` or `died` later, from any thread, exactly one of them first.
- Where the worker runs, `prepare` is called before `ready`, and `retire` before `exited`. `prepare` may raise, which is
  a start that failed, and may change the worker's `capacity`, which stays as it is from then on. Where workers are
  coroutines, both may return something that has to be awaited first.
- A runtime whose workers share no memory with the pool makes, warms up and closes what `worker.keeps` asks for itself,
  where they run, and sets `worker.kept` before it calls `prepare`, here. A `CallsMethod` calls a method of that by its
  name, a `ProducesItems` takes what its function yields, a `CallsMany` calls its function for many items. A `Listener`
  among the arguments stays in the app.
- After `ready`, a worker has at most `capacity` requests at once, and runs all of them at once. Each one handed to it
  is answered by exactly one `finished`, or by the worker's one `died`.
- `ready` and `finished` return the worker's next request, to be run at once, or None: then the worker waits for its
`hand`.
- `hand(request)` never blocks. `hand(None)` comes once, to a worker without requests; it answers with `exited`.
- `cancel` and `kill` do what `capabilities` promises and nothing otherwise.
- A runtime whose workers know no Python has an attribute `by_name_only`, which is True. It gets nothing but
  `CallsMethod`, and `ProducesItems` of that, and sets `worker.kept` before it calls `prepare`.
- A `worker.handle` may have an attribute `ended_on_purpose`: True if the runtime has killed the worker because a
  request did not stop, which says nothing about the worker; and one `was_killed`: True if it ended by a signal, or with
  the one that had started it, which says little about whether another one would start; and one `unwanted`: True once
  `kill` was called.
- A runtime that reports for several workers on one thread has a method `reports_here()`: True there. Callbacks run on
  it, and must not wait for what is reported there; nor, if it is one of `reporters`, for other pools, whose work may.
- A runtime may have a method `starts_ahead()`, which a pool asks when it is made: if it is False, the pool starts
  workers only when there is work for them, whatever its `min_workers`.
- A runtime may have a method `listen_for(request)`, which a thread calls that is going to wait for `request`, holds no
  lock, and is told by nobody else but the end of it. It returns soon, and may meanwhile report on that thread.

One contract suite, `bullpen.testing.contracts`, runs on every runtime.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn, Protocol, TypeGuard

from bullpen import primitives
from bullpen.core.lifecycle import RequestState
from bullpen.core.request import Request
from bullpen.core.worker import Worker
from bullpen.errors import InvalidOptionType

reporters: list[Callable[[], bool]] = []  # the `reports_here` of all runtimes that share a thread


def is_reporter() -> bool:
    """Whether this thread reports for several workers, of whatever pool."""
    return any(reports_here() for reports_here in reporters) if reporters else False


class WorkerEvents(Protocol):
    """What workers report to the pool. May be called from any thread."""

    def prepare(self, worker: Worker) -> Awaitable[None] | None:
        """It is about to be ready: what it keeps is made now, here. Raises if that fails."""

    def ready(self, worker: Worker) -> Request | None:
        """It has started."""

    def finished(self, worker: Worker, request: Request, state: RequestState, value: Any) -> Request | None:
        """A request on it ended: done with a result, or failed with an error."""

    def retire(self, worker: Worker) -> Awaitable[None] | None:
        """It is about to end: what it keeps is closed now, here. Never raises."""

    def exited(self, worker: Worker) -> None:
        """It ended, as it was asked to."""

    def died(self, worker: Worker, error: BaseException) -> None:
        """It could not start, or ended without being asked."""


class GivesAhead(Protocol):
    """Reports of a pool that lets a busy worker have requests before it can begin them, which saves it waiting.

    They are begun in the order in which they were given, after those that the worker has already: then `finished`
    returns them. If the worker dies, those that it had not begun cost nothing. `worker.handle` has a method `recall`,
    which makes it give them back.
    """

    def ahead(self, worker: Worker, count: int) -> list[Request]:
        """Up to `count` more requests for a busy worker of capacity 1."""

    def not_begun(self, worker: Worker, requests: list[Request]) -> Request | None:
        """It gives these back, and will not run them; but for the one that it gets, if it had just come to that."""


class TellsWhatWaits(Protocol):
    """Reports of a pool that tells what a worker is started for, as far as that is known."""

    def waiting_function(self) -> Callable[..., Any] | None:
        """The function of the request that waits longest."""


class ReplacesWorn(Protocol):
    """Reports of a pool that replaces workers without a gap, when their runtime finds it time."""

    def worn(self, worker: Worker) -> None:
        """It should be replaced when that is convenient. May be said again and again."""


class Runtime(Protocol):
    """Starts and ends workers of one kind."""

    name: str
    capabilities: frozenset[str]

    def start(self, worker: Worker, events: WorkerEvents) -> None:
        """Begin to start `worker`: first set `worker.handle`, with a method `hand`. Raises if that cannot be done."""

    def cancel(self, worker: Worker, request: Request) -> bool:
        """End `request` on `worker`, if this runtime can; True if it did or will."""

    def kill(self, worker: Worker) -> bool:
        """End `worker` with all that is on it, if this runtime can."""

    def join(self, worker: Worker, timeout: float | None) -> bool:
        """Wait until nothing of `worker` is left; False when `timeout` seconds passed first."""


class CallsMethod:
    """The call of a method of the instance that the worker keeps on which it runs. Its name is its `__name__`."""

    __slots__ = ()

    needs_instance = True
    __name__: str

    def __reduce__(self) -> NoReturn:
        raise TypeError("a method of a worker is called by its name, in whatever process that is")


class ProducesItems:
    """The call of a stream: what `fn` yields has to be given to `take`, wherever `fn` runs."""

    __slots__ = ()

    fn: Callable[..., Any]
    __qualname__: str
    room: int  # how many items may wait for their reader

    def take(self, item: Any, wake: Callable[[], object]) -> bool | None:
        """True if `item` was taken, False if nobody wants more; None: there is no room, and `wake` is called once
        there may be some, or nobody wants it any more.
        """
        raise NotImplementedError

    def __reduce__(self) -> NoReturn:
        raise TypeError("a stream is produced by its function, in whatever process that is")


class CallsMany:
    """The call of `fn` for each of several items: its arguments are a list of all first arguments, one of all second
    ones, …; its result is `Outcomes`. An item that cannot be sent is an error among these, and concerns no other.

    Where it cannot run as it is, as it cannot leave the process, the runtime does the same for it.
    """

    __slots__ = ()

    fn: Callable[..., Any]

    def __reduce__(self) -> NoReturn:
        raise TypeError("the items of a map are called one by one, in whatever process that is")


class Listener:
    """An argument that stays here. In its place the function gets something to call with what it has to say while it
    runs, and that is given to `hear`.
    """

    __slots__ = ()

    def hear(self, value: Any) -> None:
        """On the thread on which results arrive; must not wait."""
        raise NotImplementedError

    def __call__(self, value: Any) -> None:
        """What the function calls if it runs in this process."""
        self.hear(value)

    def __reduce__(self) -> NoReturn:
        raise TypeError("whoever listens stays in its own process")


class Outcomes:
    """What became of several items: values, errors by their place, how long all of it took, and how many bytes went
    there and back, if any.
    """

    __slots__ = ("errors", "seconds", "size", "values")

    def __init__(self, values: list[Any], errors: dict[int, BaseException], seconds: float, size: int = 0) -> None:
        self.values = values
        self.errors = errors
        self.seconds = seconds
        self.size = size


def by_name_only(runtime: object) -> TypeGuard[Runtime]:
    """Whether its workers know no Python."""
    return bool(getattr(runtime, "by_name_only", False))


def only_by_name(fn: Any) -> InvalidOptionType:
    """The error for a function that was submitted to workers that know no Python."""
    return InvalidOptionType(
        "fn", fn, "the name of a method, for the workers are programs and know no Python functions"
    )


CAPABILITIES = {
    "cancel_running": "a request that runs can be told to stop",
    "kill_running": "a request that runs can be ended whatever it does",
    "share_memory": "arguments and results are the caller's own objects",
    "run_inline": "a request can run on the thread that waits for it",
    "keep_instance": "each worker can keep an object of its own (`worker=`)",
    "survive_crash": "a crash of the interpreter costs only the requests on that worker",
}


# The request that a coroutine belongs to, also in what it starts in its turn, which may outlive it; so look at its
# state, or ask for `current_coroutine`.
coroutine_request: ContextVar[Request | None] = ContextVar("coroutine_request", default=None)

_workers: dict[int, Worker] = {}  # by thread; a thread only ever sets and deletes its own entry
_requests: dict[int, list[Request]] = {}  # by thread, outermost first; a worker of one thread has none until it nests


def current_worker() -> Worker | None:
    """The worker that the current thread is, or belongs to, if there is one in this process."""
    return _workers.get(primitives.current_thread_id())


def current_requests() -> Sequence[Request]:
    """What runs on the current thread: a request, and those that run inline within it, outermost first."""
    thread = primitives.current_thread_id()
    running = _requests.get(thread)
    if running is not None:
        return running
    worker = _workers.get(thread)
    return () if worker is None else worker.requests[:1]


def current_request() -> Request | None:
    """The innermost request that runs on the current thread."""
    running = current_requests()
    return running[-1] if running else None


def current_coroutine() -> Request | None:
    """The request that the current coroutine belongs to, until it has really ended: one that is past its time still
    cleans up.

    A request on a thread may have been started with the context of a coroutine, to which it does not belong.
    """
    request = coroutine_request.get()
    if request is None:
        return None
    place = request.worker.handle
    return request if place.has(request) and (current_worker() is None or place.is_here()) else None


def enter(worker: Worker) -> None:
    """The current thread is `worker` from now on."""
    _workers[primitives.current_thread_id()] = worker


def enter_lane(worker: Worker) -> list[Request]:
    """The current thread is one of several of `worker`; what is in the list that it gets runs on it."""
    enter(worker)
    return _requests.setdefault(primitives.current_thread_id(), [])


def leave() -> None:
    """The current thread is no worker any more."""
    _workers.pop(primitives.current_thread_id(), None)
    _requests.pop(primitives.current_thread_id(), None)


@contextmanager
def inline(request: Request) -> Iterator[Request | None]:
    """Inside, `request` runs within what runs on the current thread, which is what one gets."""
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
