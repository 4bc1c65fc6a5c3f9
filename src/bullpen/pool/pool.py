"""`Pool`: the public face. Everything it does is one call into the engine."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import AsyncIterable, Callable, Iterable
from concurrent.futures import Executor, Future
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, overload

from bullpen import primitives
from bullpen.core.ready import SchedulerStrategy
from bullpen.core.request import ServedRequest
from bullpen.core.terms import Affinity
from bullpen.errors import InvalidOption, InvalidOptionType
from bullpen.pool.engine import Engine
from bullpen.pool.exit import close_in_background
from bullpen.pool.explain import Explanation, explain_pool, explain_request
from bullpen.pool.future import PoolFuture
from bullpen.pool.instances import CapacityStrategy
from bullpen.pool.mapping import MapIterator
from bullpen.pool.options import (
    PoolOptions,
    Seconds,
    WhenFull,
    Wrap,
    arguments,
    at_least,
    default_max_workers,
    duration,
    error_types,
    has_methods,
    seconds,
)
from bullpen.pool.options import restart_limit as checked_restart_limit
from bullpen.pool.startup import InitializationDelegate
from bullpen.pool.stats import PoolStats, SessionInfo, WorkerInfo
from bullpen.pool.stream import Stream
from bullpen.pool.view import PoolView
from bullpen.runtimes.open import open_runtime
from bullpen.runtimes.port import CAPABILITIES, Runtime, by_name_only
from bullpen.telemetry.catalogue import Event

P = ParamSpec("P")
T = TypeVar("T")

_numbers = itertools.count(1)


class Pool(Executor):
    """A bounded pool of warm workers, and a drop-in `concurrent.futures.Executor`.

    What it promises:

    - At most `max_workers` requests run at once. Workers start when they are needed, never fewer than `min_workers`.
    - Requests start in the order in which they were submitted. Nothing that was accepted is lost, and nothing runs
    twice.
    - A request that was cancelled or whose time was up before it started never runs.
    - The caller of `using(timeout=…)` waits no longer than that, whatever the function does.
    - Leaving a `with` block runs everything that was accepted; by an exception, cancels what has not started.

        with Pool(8, max_queue=1000) as pool:
            future = pool.submit(resize, "cat.png")
            thumb = pool.using(timeout=0.25).do(resize, "dog.png")
            for thumb in pool.map(resize, paths):
                ...

    `max_queue=None` queues without limit, 0 never queues. `when_full="reject"` raises `PoolSaturated`, `"block"` waits
    for room. `queue_timeout` and `run_timeout` are the defaults of `using()`. A thread that runs past its
    `run_timeout` cannot be ended; within `max_abandoned` it is replaced, else its slot stays taken. A worker that was
    not needed for `idle_timeout` ends. With `worker=Model` each worker keeps a `Model()` of its own, whose methods are
    called by name: `pool.do("predict", text)`. A worker runs `capacity` requests at once. `wrap` is called around
    every execution: `wrap(call)` returns `call()`, or something else, and `call.func` is the function. Errors of
    `serve` are logged unless `log_errors` is False. `observer` is called with an `Event` for every change of state.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        thread_name_prefix: str | None = "",
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        *,
        runtime: str | Runtime = "thread",
        name: str | None = None,
        worker: Callable[[], Any] | None = None,
        min_workers: int | None = None,
        max_queue: int | None = None,
        when_full: WhenFull = "reject",
        queue_timeout: Seconds | None = None,
        run_timeout: Seconds | None = None,
        max_abandoned: int = 0,
        idle_timeout: Seconds | None = 60.0,
        scheduler: str | Callable[[], SchedulerStrategy] = "rotation",
        wrap: Wrap | None = None,
        log_errors: bool = True,
        observer: Callable[[Event], object] | None = None,
        affinity: Affinity = "hint",
        session_ttl: Seconds | None = 3600.0,
        max_sessions: int = 10_000,
        crash_retries: int = 1,
        capacity: int = 1,
        capacity_strategy: CapacityStrategy = "pool",
        initialization: InitializationDelegate | None = None,
        startup_batch_size: int = 10,
        startup_batch_delay: Seconds = 0.0,
        restart_limit: tuple[int, Seconds] | None = None,
        reconcile_interval: Seconds | None = 60.0,
        reconcile_batch_size: int = 10,
        taint_duration: Seconds = 60.0,
        taint_on: type[BaseException] | tuple[type[BaseException], ...] = (),
        max_requests: int | None = None,
        max_age: Seconds | None = None,
        clock: primitives.Clock | None = None,
    ) -> None:
        if max_workers is None:
            max_workers = default_max_workers()
        if min_workers is None:
            min_workers = 0 if worker is None and not by_name_only(runtime) else max_workers
        options = PoolOptions(
            max_workers=max_workers,
            thread_name_prefix="" if thread_name_prefix is None else thread_name_prefix,
            initializer=initializer,
            initargs=arguments("initargs", initargs),
            runtime=runtime,
            name=f"pool-{next(_numbers)}" if name is None else name,
            min_workers=min_workers,
            max_queue=max_queue,
            when_full=when_full,
            queue_timeout=seconds("queue_timeout", queue_timeout),
            run_timeout=seconds("run_timeout", run_timeout, zero=False),
            max_abandoned=max_abandoned,
            idle_timeout=seconds("idle_timeout", idle_timeout, zero=False),
            scheduler=scheduler,
            wrap=wrap,
            log_errors=log_errors,
            observer=observer,
            affinity=affinity,
            session_ttl=seconds("session_ttl", session_ttl, zero=False),
            max_sessions=max_sessions,
            crash_retries=crash_retries,
            worker=worker,
            capacity=capacity,
            capacity_strategy=capacity_strategy,
            initialization=initialization,
            startup_batch_size=startup_batch_size,
            startup_batch_delay=duration("startup_batch_delay", startup_batch_delay),
            restart_limit=checked_restart_limit(restart_limit),
            reconcile_interval=seconds("reconcile_interval", reconcile_interval, zero=False),
            reconcile_batch_size=reconcile_batch_size,
            taint_duration=duration("taint_duration", taint_duration, zero=False),
            taint_on=error_types("taint_on", taint_on),
            max_requests=max_requests,
            max_age=seconds("max_age", max_age, zero=False),
        )
        if clock is not None:
            has_methods(
                "clock", clock, ("monotonic", "wait"), "a clock, with monotonic() and wait(gate, timeout), or None"
            )
        opened = open_runtime(runtime, initializer, options.initargs)
        if worker is not None and "keep_instance" not in opened.capabilities:
            raise InvalidOption("worker", worker, f"None: workers of the runtime {opened.name!r} keep no instances")
        calls = options.call_options()
        self._engine = engine = Engine(options, opened, primitives.system_clock if clock is None else clock)
        self._view = PoolView(engine, calls)
        self._dispatcher = engine.dispatcher
        self._offer = engine.dispatcher.offer
        self._plain = max_queue is None and wrap is None and not calls.limits.any and not engine.by_name_only
        self._start()

    def _start(self) -> None:
        self._engine.start()
        weakref.finalize(self, close_in_background, self._engine).atexit = False

    # Work.

    @overload
    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> PoolFuture[T]: ...
    @overload
    def submit(self, fn: str, /, *args: Any, **kwargs: Any) -> PoolFuture[Any]: ...

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> PoolFuture[Any]:
        """Run `fn(*args, **kwargs)` on a worker; the future of its result. A string names a method of the `worker`.

        Raises `PoolSaturated` if there is no room, `PoolClosed` or `PoolFailed` if the pool takes no work.
        """
        if not self._plain or self._dispatcher.draining or not callable(fn):
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
        if not self._plain or self._dispatcher.draining or not callable(fn):
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
    ) -> MapIterator[T]: ...
    @overload
    def map(
        self,
        fn: str,
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> MapIterator[Any]: ...

    def map(
        self,
        fn: Any,
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> MapIterator[Any]:
        """The results of `fn` over the iterables, in order, as they are read.

        At most `buffersize` (1024; in processes, more of those that are quick) items are under way or unread at once.
        `timeout` is for all results, from now. `chunksize` is accepted for the standard's sake: threads need none, and
        processes take as many at once as is good, unless it is more than 1.
        """
        return self._view.start_map(self, fn, iterables, timeout, chunksize, buffersize)

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
        """This pool with options for the calls made through what is returned.

        `timeout`: the caller's whole budget from submission, else `DeadlineExceeded`. `queue_timeout`: the longest
        wait in the backlog, else `QueueTimeout`. `run_timeout`: the longest run, else `RunTimeout`. `context=True`:
        run in a copy of the caller's contextvars. `buffersize`: of streams and maps.
        """
        return self._view.kept_by(self).using(**options)

    def cancel(self, future: Future[Any]) -> bool:
        """Cancel a future that waits, and one that runs if the runtime can (`can("cancel_running")`); True if that
        was done.
        """
        if not isinstance(future, PoolFuture) or future.engine is not self._engine:
            raise InvalidOptionType("future", future, f"a future of pool {self._engine.name!r}")
        return self._engine.cancel(future)

    # Sessions.

    def sessions(self) -> list[SessionInfo]:
        """The sessions there are at this moment. `print` them."""
        return SessionInfo.all_of(self._engine)

    def end_session(self, session: str) -> bool:
        """Forget a session: its next request may begin anew on any worker. What it has submitted still runs. False if
        there is none.
        """
        return self._engine.end_session(session)

    # Life.

    def close(self, grace: Seconds | None = None, drain: bool = True) -> None:
        """Take no new work, run what waits (or cancel it, without `drain`), and wait until all workers have ended.

        After `grace` seconds what waits is cancelled, and what runs is killed if the runtime can; otherwise it is
        left behind, and whoever waits for it gets `WorkerAbandoned`. Safe to call twice, from any thread, and in a
        request of this pool, where it does not wait.
        """
        self._engine.close(seconds("grace", grace), drain)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """`close`, in the words of `concurrent.futures`."""
        self._engine.close(None, not cancel_futures, wait)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            self._engine.cut_short()
        self._engine.close(None, kind is None)

    def wait_ready(self, timeout: Seconds | None = None) -> bool:
        """Wait until `min_workers` workers have started; False when `timeout` passed first. Raises `PoolFailed` if
        none could.
        """
        return self._engine.wait_ready(seconds("timeout", timeout))

    def resize(self, max_workers: int) -> None:
        """Change how many workers there may be. Surplus ones end after what they run now."""
        at_least("max_workers", max_workers, 1)
        if max_workers < self._engine.options.min_workers:
            raise InvalidOption("max_workers", max_workers, f"at least min_workers, {self._engine.options.min_workers}")
        self._engine.resize(max_workers)

    def pause(self) -> None:
        """Start nothing from now on. What runs goes on, and what is submitted waits.

        A process that gets through requests quickly has some of them already. It gives back those that it has not
        begun when it hears of this, a moment later.
        """
        self._engine.pause()

    def resume(self) -> None:
        """Start requests again."""
        self._engine.resume()

    def taint(self, worker: int | str, seconds: Seconds | None = None) -> bool:
        """Give the worker with this id or name nothing new for `seconds`, or the pool's `taint_duration`: it may be
        broken.

        It finishes what it runs. True if it is tainted now; False if it starts or ends just now, or the pool closes.
        """
        options = self._engine.options
        length = options.taint_duration if seconds is None else duration("seconds", seconds, zero=False)
        found = [one for one in self._engine.registry.snapshot() if worker in (one.id, one.name)]
        if not found:
            raise InvalidOption("worker", worker, "the id or the name of a worker of this pool")
        return self._engine.workforce.suspects.taint(found[0], length, because="by Pool.taint")

    # Looking at it.

    def stats(self) -> PoolStats:
        """The pool at this moment, in numbers. `print` it."""
        return PoolStats.of(self._engine)

    def workers(self) -> list[WorkerInfo]:
        """The workers there are at this moment, oldest first. `print` them."""
        now = self._engine.clock.monotonic()
        return [WorkerInfo.of(worker, now) for worker in self._engine.registry.snapshot()]

    def explain(self, future: Future[Any] | None = None) -> Explanation:
        """Why `future` waits, or how it ended; without one, what the pool does and is short of. `print` it."""
        if future is None:
            return explain_pool(self._engine)
        if not isinstance(future, PoolFuture) or future.engine is not self._engine:
            raise InvalidOptionType("future", future, f"a future of pool {self._engine.name!r}")
        return explain_request(self._engine, future)

    def can(self, capability: str) -> bool:
        """Whether the runtime can do something: see `bullpen.runtimes.port.CAPABILITIES`."""
        if capability not in CAPABILITIES:
            raise InvalidOption("capability", capability, "one of " + ", ".join(map(repr, CAPABILITIES)))
        return capability in self._engine.runtime.capabilities

    def __repr__(self) -> str:
        engine = self._engine
        return f"<Pool {engine.name!r} {engine.state}, {len(engine.registry)} of at most {engine.max_workers} workers>"
