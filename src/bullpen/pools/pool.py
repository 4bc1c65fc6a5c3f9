"""`Pool`: the public class. Each of its methods is one call into the engine."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import AsyncIterable, Callable, Iterable
from concurrent.futures import Executor, Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, Unpack, overload

from bullpen import primitives
from bullpen.errors import InvalidOption, InvalidOptionType
from bullpen.pools.checks import Seconds, arguments, at_least, duration, has_methods, seconds
from bullpen.pools.dispatch.futures import PoolFuture
from bullpen.pools.dispatch.request import ServedRequest
from bullpen.pools.runtimes.port import CAPABILITIES, by_name_only

if TYPE_CHECKING:
    from bullpen.pools.default_executor import DefaultExecutor
    from bullpen.pools.explain import Explanation
    from bullpen.pools.maps.iterator import MapIterator
    from bullpen.pools.maps.outcome import OnError, Outcome
    from bullpen.pools.options import PoolKeywords
    from bullpen.pools.stats import PoolStats, SessionInfo, WorkerInfo
    from bullpen.pools.streams.stream import Stream
    from bullpen.pools.view import PoolView

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")

_numbers = itertools.count(1)


class Pool(Executor):
    """A bounded pool of warm workers, and a drop-in `concurrent.futures.Executor`.

    What it promises:

    - At most `max_workers` requests run at once. Workers start when they are needed, never fewer than `min_workers`.
    - Requests start in the order in which they were submitted. Nothing that was accepted is lost, and nothing runs
    twice.
    - A request that was cancelled, or timed out, before it started never runs.
    - The caller of `using(timeout=…)` waits no longer than that, even if the function does not return.
    - Leaving a `with` block runs everything that was accepted. If an exception leaves it, requests that have not
    started are cancelled.

        with Pool(8, max_queue=1000) as pool:
            future = pool.submit(resize, "cat.png")
            thumb = pool.using(timeout=0.25).do(resize, "dog.png")
            for thumb in pool.map(resize, paths):
                ...

    `max_queue=None` queues without limit, 0 never queues. `when_full="reject"` raises `PoolSaturated`, `"block"` waits
    for room. With `worker=Model` each worker keeps a `Model()` of its own, and calls name its methods:
    `pool.do("predict", text)`. A worker runs `capacity` requests at once. `observer` is called with a `TelemetryEvent`
    for every change of state. `grace` limits how long leaving `with` waits. The rest is in groups: `calls`, `sessions`,
    `recycling`, `restarts`, `startup` (see `CallPolicy`, `SessionPolicy`, `RecyclePolicy`, `RestartPolicy`,
    `StartupPolicy`).
    """

    def __init__(
        self,
        max_workers: int | None = None,
        thread_name_prefix: str | None = "",
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        **options: Unpack[PoolKeywords],
    ) -> None:
        # The first pool imports its parts: a worker process imports the app's script, and makes no pool.
        from bullpen.pools.options import POOL_NAMES, PoolOptions, default_size, read_keywords
        from bullpen.pools.runtimes.open import open_runtime
        from bullpen.pools.supervision.engine import Engine
        from bullpen.pools.view import PoolView

        values = read_keywords("Pool()", POOL_NAMES, options)
        if values.pop("awrap") is not None:
            raise InvalidOption("calls.awrap", options["calls"].awrap, "None: a Pool runs no coroutines, and has wrap")
        clock = values.pop("clock", None)
        runtime = values.get("runtime", "thread")
        if max_workers is None:
            max_workers = default_size(runtime)
        if values.get("min_workers") is None:
            keeps_nothing = values.get("worker") is None and not by_name_only(runtime)
            values["min_workers"] = 0 if keeps_nothing else max_workers
        if values.get("name") is None:
            values["name"] = f"pool-{next(_numbers)}"
        checked = PoolOptions(
            max_workers=max_workers,
            thread_name_prefix="" if thread_name_prefix is None else thread_name_prefix,
            initializer=initializer,
            initargs=arguments("initargs", initargs),
            **values,
        )
        if clock is not None:
            has_methods(
                "clock", clock, ("monotonic", "wait"), "a clock, with monotonic() and wait(gate, timeout), or None"
            )
        opened = open_runtime(runtime, initializer, checked.initargs)
        if checked.worker is not None and "keep_instance" not in opened.capabilities:
            allowed = f"None: workers of the runtime {opened.name!r} keep no instances"
            raise InvalidOption("worker", checked.worker, allowed)
        calls = checked.call_options()
        self._engine = engine = Engine(checked, opened, clock or primitives.system_clock, checked.new_instances())
        self._view = PoolView(engine, calls)
        self._status = engine.status
        self._offer = engine.admission.offer
        is_plain = checked.max_queue is None and checked.wrap is None
        self._plain = is_plain and not calls.limits.any and not engine.by_name_only
        self._start()

    def _start(self) -> None:
        from bullpen.pools.supervision.at_exit import close_in_background

        self._engine.start()
        weakref.finalize(self, close_in_background, self._engine.shutdown).atexit = False

    # Work.

    @overload
    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> PoolFuture[T]: ...
    @overload
    def submit(self, fn: str, /, *args: Any, **kwargs: Any) -> PoolFuture[Any]: ...

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> PoolFuture[Any]:
        """Run `fn(*args, **kwargs)` on a worker; the future of its result. A string names a method of the `worker`.

        Raises `PoolSaturated` if there is no room, `PoolClosed` or `PoolFailed` if the pool takes no work.
        """
        if not self._plain or self._status.phase.draining or not callable(fn):
            return self._view.submit(fn, *args, **kwargs)
        future = PoolFuture(self._engine, fn, args, kwargs)
        if not self._offer(future):
            raise self._engine.too_late()
        return future

    @overload
    def serve(self, fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> bool: ...
    @overload
    def serve(self, fn: str, /, *args: Any, **kwargs: Any) -> bool: ...

    def serve(self, fn: Any, /, *args: Any, **kwargs: Any) -> bool:
        """Run `fn(*args, **kwargs)` on a worker and forget it: True if it was accepted, False if the pool is
        saturated.
        """
        if not self._plain or self._status.phase.draining or not callable(fn):
            return self._view.serve(fn, *args, **kwargs)
        if not self._offer(ServedRequest(fn, args, kwargs)):
            raise self._engine.too_late()
        return True

    @overload
    def do(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    def do(self, fn: str, /, *args: Any, **kwargs: Any) -> Any: ...

    def do(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Run `fn(*args, **kwargs)` on a worker and wait for the result."""
        return self._view.do(fn, *args, **kwargs)

    @overload
    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
        ordered: bool = True,
        on_error: Literal["raise"] = "raise",
    ) -> MapIterator[T]: ...
    @overload
    def map(
        self,
        fn: Callable[[A], T],
        iterable: Iterable[A],
        /,
        *,
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
        ordered: bool = True,
        on_error: Literal["return"],
    ) -> MapIterator[Outcome[A, T]]: ...
    @overload
    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
        ordered: bool = True,
        on_error: Literal["return"],
    ) -> MapIterator[Outcome[Any, T]]: ...
    @overload
    def map(
        self,
        fn: str,
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
        ordered: bool = True,
        on_error: Literal["raise"] = "raise",
    ) -> MapIterator[Any]: ...
    @overload
    def map(
        self,
        fn: str,
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
        ordered: bool = True,
        on_error: Literal["return"],
    ) -> MapIterator[Outcome[Any, Any]]: ...

    def map(
        self,
        fn: Any,
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
        ordered: bool = True,
        on_error: OnError = "raise",
    ) -> MapIterator[Any]:
        """The results of `fn` over the iterables, in order, as they are read.

        At most `buffersize` (1024; more of those that are quick) items are under way or unread at once.
        `timeout` is for all results, from now. `chunksize` is accepted for the standard's sake: threads need none, and
        processes take as many at once as is good, unless it is more than 1. In a subclass that overrides `submit`, it
        is the standard's `map`, which submits every item at once.

        `ordered=False`: as the calls end. `on_error="return"`: an `Outcome` for every item, in place of results and
        errors. Errors of the iterables, the `timeout`, and the close of the pool are still raised.
        """
        if type(self).submit is not Pool.submit:
            if on_error != "raise" or not ordered:
                raise InvalidOption(
                    "on_error and ordered", (on_error, ordered), "the defaults: this class overrides submit"
                )
            return super().map(fn, *iterables, timeout=timeout, chunksize=chunksize)  # type: ignore[return-value]
        return self._view.start_map(
            self, fn, iterables, timeout, chunksize, buffersize, ordered=ordered, on_error=on_error
        )

    @overload
    def stream(self, fn: Callable[P, Iterable[T]], /, *args: P.args, **kwargs: P.kwargs) -> Stream[T]: ...
    @overload
    def stream(self, fn: Callable[P, AsyncIterable[T]], /, *args: P.args, **kwargs: P.kwargs) -> Stream[T]: ...
    @overload
    def stream(self, fn: str, /, *args: Any, **kwargs: Any) -> Stream[Any]: ...

    def stream(self, fn: Any, /, *args: Any, **kwargs: Any) -> Stream[Any]:
        """The items that `fn(*args, **kwargs)` yields on a worker, as they come.

        `fn` is a generator function, an async one, or one that returns an iterable; or it names a method of the
        `worker`. At most `buffersize` items (100; see `using`) wait to be read, then the generator waits. It is closed
        when the reader closes the stream, leaves its `with` block or drops it.
        """
        return self._view.start_stream(self, fn, args, kwargs)

    def using(self, **options: Any) -> PoolView:
        """A view of this pool, with options for the calls made through it.

        `timeout`: the caller's whole budget from submission, else `DeadlineExceeded`. `queue_timeout`: the longest
        wait in the backlog, else `QueueTimeout`. `run_timeout`: the longest run, else `RunTimeout`. `context=True`:
        run in a copy of the caller's contextvars. `buffersize`: of streams and maps.
        """
        return self._view.owned_by(self).using(**options)

    def cancel(self, future: Future[Any]) -> bool:
        """Cancel a future that waits, and one that runs if the runtime can (`can("cancel_running")`); True if that
        was done.
        """
        if not isinstance(future, PoolFuture) or future.engine is not self._engine:
            raise InvalidOptionType("future", future, f"a future of pool {self._engine.name!r}")
        return self._engine.cancel(future)

    def as_default_executor(self) -> DefaultExecutor:
        """This pool for `loop.set_default_executor`, which accepts only a `ThreadPoolExecutor`.

        `asyncio.to_thread` then runs on the pool. The loop's end leaves the pool open: close it yourself.
        """
        from bullpen.pools.default_executor import DefaultExecutor  # loads the standard thread pool

        return DefaultExecutor(self)

    # Sessions.

    def sessions(self) -> list[SessionInfo]:
        """The sessions there are at this moment. `print` them."""
        from bullpen.pools.stats import SessionInfo

        return SessionInfo.all_of(self._engine)

    def end_session(self, session: str) -> bool:
        """Forget a session: its next request may begin anew on any worker. Its submitted requests still run. False
        if there is none.
        """
        return self._engine.end_session(session)

    # Life.

    def close(self, grace: Seconds | None = None, drain: bool = True) -> None:
        """Reject new work, run the waiting requests (or cancel them, without `drain`), and wait for all workers to end.

        After `grace` seconds (by default the pool's `grace`; without that, no limit) the pool cancels waiting requests
        and kills running ones if the runtime can (`WorkerLost`). Otherwise it abandons them (`WorkerAbandoned`). Safe
        to call twice, from any thread, and in a request of this pool, where it does not wait.
        """
        limit = seconds("grace", grace)
        self._engine.close(self._engine.options.grace if limit is None else limit, drain)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """`close` with the parameters of `concurrent.futures`, and without a time limit, as there."""
        self._engine.close(None, not cancel_futures, wait)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            self._engine.cut_short()
        self.close(drain=kind is None)

    def wait_ready(self, timeout: Seconds | None = None) -> bool:
        """Wait until `min_workers` workers have started; False when `timeout` passed first. Raises `PoolFailed` if
        none could.
        """
        return self._engine.wait_ready(seconds("timeout", timeout))

    def resize(self, max_workers: int) -> None:
        """Change how many workers there may be. Surplus workers end after their current requests."""
        at_least("max_workers", max_workers, 1)
        if max_workers < self._engine.options.min_workers:
            raise InvalidOption("max_workers", max_workers, f"at least min_workers, {self._engine.options.min_workers}")
        self._engine.resize(max_workers)

    def pause(self) -> None:
        """Start no request from now on. Running requests continue, and new ones wait.

        A worker process that runs requests quickly has prefetched some. It returns those that it has not begun a moment
        later, when the pause reaches it.
        """
        self._engine.pause()

    def resume(self) -> None:
        """Start requests again."""
        self._engine.resume()

    def taint(self, worker: int | str, seconds: Seconds | None = None) -> bool:
        """Give the worker with this id or name nothing new for `seconds`, or `recycling.taint_duration`: it may
        be broken.

        It finishes its current requests. Returns False if it is starting or ending, or the pool closes.
        """
        options = self._engine.options
        length = options.taint_duration if seconds is None else duration("seconds", seconds, zero=False)
        found = [one for one in self._engine.registry.snapshot() if worker in (one.id, one.name)]
        if not found:
            raise InvalidOption("worker", worker, "the id or the name of a worker of this pool")
        return self._engine.tainted_workers.taint(found[0], length, because="by Pool.taint")

    # Looking at it.

    @property
    def _max_workers(self) -> int:
        """The standard executors have this attribute, and dask and others read it."""
        return self._engine.max_workers

    def stats(self) -> PoolStats:
        """The pool at this moment, in numbers. `print` it."""
        from bullpen.pools.stats import PoolStats  # here, because most programs never ask

        return PoolStats.of(self._engine)

    def workers(self) -> list[WorkerInfo]:
        """The workers there are at this moment, oldest first. `print` them."""
        from bullpen.pools.stats import WorkerInfo

        now = self._engine.clock.monotonic()
        return [WorkerInfo.of(worker, now) for worker in self._engine.registry.snapshot()]

    def explain(self, future: Future[Any] | None = None) -> Explanation:
        """Why `future` waits, or how it ended; without one, what the pool does and lacks. `print` it."""
        from bullpen.pools.explain import explain_pool, explain_request

        if future is None:
            return explain_pool(self._engine)
        if not isinstance(future, PoolFuture) or future.engine is not self._engine:
            raise InvalidOptionType("future", future, f"a future of pool {self._engine.name!r}")
        return explain_request(self._engine, future)

    def can(self, capability: str) -> bool:
        """Whether the runtime can do something: see `bullpen.pools.runtimes.port.CAPABILITIES`."""
        if capability not in CAPABILITIES:
            raise InvalidOption("capability", capability, "one of " + ", ".join(map(repr, CAPABILITIES)))
        return capability in self._engine.runtime.capabilities

    def __repr__(self) -> str:
        engine = self._engine
        return f"<Pool {engine.name!r} {engine.state}, {len(engine.registry)} of at most {engine.max_workers} workers>"
