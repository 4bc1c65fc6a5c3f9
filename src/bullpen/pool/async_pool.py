"""`AsyncPool`: a pool for asyncio. Coroutines run on the loop, functions on threads, both bounded."""

from __future__ import annotations

import itertools
import weakref
from asyncio import Future
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable
from inspect import CO_COROUTINE
from types import FunctionType, TracebackType
from typing import Any, ParamSpec, TypeVar, overload

from bullpen.core.ready import SchedulerStrategy
from bullpen.core.terms import Affinity
from bullpen.core.worker import Worker
from bullpen.errors import InvalidOption, InvalidOptionType
from bullpen.pool.async_call import (
    AsyncFuture,
    CoroutineFuture,
    LoopCall,
    NestedCoroutineFuture,
    ThreadCall,
    mark_coroutine_function,
)
from bullpen.pool.async_mapping import AsyncMap
from bullpen.pool.async_options import lane_options
from bullpen.pool.async_stream import AsyncStream
from bullpen.pool.async_view import AsyncPoolView
from bullpen.pool.explain import AsyncExplanation, Explanation, explain_pool
from bullpen.pool.home import Home, running_loop
from bullpen.pool.instances import CapacityStrategy
from bullpen.pool.lane import Lane, Lanes
from bullpen.pool.options import Seconds, WhenFull, Wrap, at_least, duration, seconds
from bullpen.pool.startup import InitializationDelegate
from bullpen.pool.stats import AsyncPoolStats, PoolStats, SessionInfo, WorkerInfo
from bullpen.runtimes.port import CAPABILITIES, Runtime, coroutine_request
from bullpen.telemetry.catalogue import Event

P = ParamSpec("P")
T = TypeVar("T")

_numbers = itertools.count(1)
within_request = coroutine_request.get


class AsyncPool:
    """Runs coroutine functions on the event loop, at most `max_workers` at once, and other functions on at most
    `threads` threads. It belongs to the first loop that it is used on.

    With `worker=Client` each worker keeps a `Client()` of its own, whose methods are called by name: on the loop if it
    has coroutine methods, else on threads. With `runtime="process"`, or a `Runtime`, processes take the place of
    threads, as many as `threads` says. `wrap` is called around every function, `awrap` around every coroutine.

    >>> async with AsyncPool(100, max_queue=1000) as pool:                   # doctest: +SKIP
    ...     answer = await pool.using(timeout=2).do(fetch, url)
    ...     thumbnail = await pool.do(resize, answer.body)                   # not a coroutine: on a thread
    """

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        threads: int | None = None,
        runtime: str | Runtime = "thread",
        worker: Callable[[], Any] | None = None,
        min_workers: int | None = None,
        min_threads: int | None = None,
        thread_name_prefix: str = "",
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        name: str | None = None,
        max_queue: int | None = None,
        when_full: WhenFull = "reject",
        queue_timeout: Seconds | None = None,
        run_timeout: Seconds | None = None,
        max_abandoned: int = 0,
        idle_timeout: Seconds | None = 60.0,
        scheduler: str | Callable[[], SchedulerStrategy] = "rotation",
        wrap: Wrap | None = None,
        awrap: Wrap | None = None,
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
    ) -> None:
        name = f"async-pool-{next(_numbers)}" if name is None else name
        for_coroutines, for_threads = lane_options(
            max_workers,
            threads,
            name,
            runtime=runtime,
            worker=worker,
            min_workers=min_workers,
            min_threads=min_threads,
            capacity=capacity,
            capacity_strategy=capacity_strategy,
            wrap=wrap,
            awrap=awrap,
            thread_name_prefix=thread_name_prefix,
            initializer=initializer,
            initargs=initargs,
            max_queue=max_queue,
            when_full=when_full,
            queue_timeout=queue_timeout,
            run_timeout=run_timeout,
            max_abandoned=max_abandoned,
            idle_timeout=idle_timeout,
            scheduler=scheduler,
            log_errors=log_errors,
            observer=observer,
            affinity=affinity,
            session_ttl=session_ttl,
            max_sessions=max_sessions,
            crash_retries=crash_retries,
            initialization=initialization,
            startup_batch_size=startup_batch_size,
            startup_batch_delay=startup_batch_delay,
            restart_limit=restart_limit,
            reconcile_interval=reconcile_interval,
            reconcile_batch_size=reconcile_batch_size,
            taint_duration=taint_duration,
            taint_on=taint_on,
            max_requests=max_requests,
            max_age=max_age,
        )
        self._home = home = Home(name)
        self._lanes = lanes = Lanes(home, for_coroutines, for_threads)
        self._coroutines = lanes.coroutines
        self._threads = lanes.threads
        calls = for_coroutines.call_options()
        self._view = AsyncPoolView(lanes, calls)
        special = wrap is not None or awrap is not None or lanes.threads.is_remote
        self._plain = max_queue is None and not special and not calls.limits.any
        weakref.finalize(self, lanes.pool_is_gone).atexit = False

    # Work.

    @overload
    def submit(
        self, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncFuture[T]: ...
    @overload
    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> AsyncFuture[T]: ...
    @overload
    def submit(self, fn: str, /, *args: Any, **kwargs: Any) -> AsyncFuture[Any]: ...
    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> AsyncFuture[Any]:
        """Run `fn(*args, **kwargs)`, on the loop if it is a coroutine function, else on a thread; the future of its
        result, at once. A string names a method of the `worker`. To cancel the future is to cancel the work.

        Raises `PoolSaturated` if there is no room, also with `when_full="block"`: this cannot wait.
        """
        loop = running_loop()
        if loop is None or loop is not self._home.loop:
            self._lanes.enter(loop)
        if not self._plain or within_request() is not None:
            return self._view.submit(fn, *args, **kwargs)
        future: AsyncFuture[Any] = AsyncFuture(loop=loop)
        self._begin(future, fn, args, kwargs)
        return future

    def _begin(self, future: AsyncFuture[Any], fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Make a call without limits or terms, and without `wrap`, whose outcome `future` is told."""
        lane: Lane
        if type(fn) is not FunctionType or fn.__dict__:  # where the marks of decorators are
            lane, fn = self._lanes.find(fn)
            call = future.origin = lane.new_call(fn, args, kwargs, future)
        elif fn.__code__.co_flags & CO_COROUTINE:
            lane = self._coroutines
            call = future.origin = LoopCall(lane, fn, args, kwargs, future)
        else:
            lane = self._threads
            call = future.origin = ThreadCall(lane, fn, args, kwargs, future)
        if lane.dispatcher.draining or not lane.offer(call):
            raise lane.engine.too_late()

    @overload
    def serve(self, fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> bool: ...
    @overload
    def serve(self, fn: str, /, *args: Any, **kwargs: Any) -> bool: ...
    def serve(self, fn: Any, /, *args: Any, **kwargs: Any) -> bool:
        """Run `fn(*args, **kwargs)` and forget it: True if it was accepted, False if the pool is saturated, also with
        `when_full="block"`: this cannot wait.
        """
        return self._view.serve(fn, *args, **kwargs)

    @overload
    async def do(self, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    async def do(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    async def do(self, fn: str, /, *args: Any, **kwargs: Any) -> Any: ...
    def do(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Run `fn(*args, **kwargs)` and wait for the result; with `when_full="block"` for room, too. To cancel the task
        that waits is to cancel the work.
        """
        loop = running_loop()
        if not self._plain or loop is None or loop is not self._home.loop:
            return self._view.kept_by(self).do(fn, *args, **kwargs)
        kind = CoroutineFuture if within_request() is None else NestedCoroutineFuture
        future: CoroutineFuture[Any] = kind(loop=loop)
        try:
            self._begin(future, fn, args, kwargs)
        except Exception as error:
            future.refuse(error)
        return future

    @overload
    def map(
        self,
        fn: Callable[..., Coroutine[Any, Any, T]],
        *iterables: Iterable[Any] | AsyncIterable[Any],
        timeout: float | None = None,
        buffersize: int | None = None,
    ) -> AsyncMap[T]: ...
    @overload
    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any] | AsyncIterable[Any],
        timeout: float | None = None,
        buffersize: int | None = None,
    ) -> AsyncMap[T]: ...
    @overload
    def map(
        self,
        fn: str,
        *iterables: Iterable[Any] | AsyncIterable[Any],
        timeout: float | None = None,
        buffersize: int | None = None,
    ) -> AsyncMap[Any]: ...
    def map(
        self,
        fn: Any,
        *iterables: Iterable[Any] | AsyncIterable[Any],
        timeout: float | None = None,
        buffersize: int | None = None,
    ) -> AsyncMap[Any]:
        """An async iterator over the results of `fn`, in order. Nothing is called before the first one is asked for.
        The iterables may be async ones, too.

        At most `buffersize` (1024) calls are under way or unread at once. `timeout` is for all results, from now. It
        waits for room where `submit` would be refused. After an error, or when it is closed (`aclose`), dropped, or its
        reader cancelled, what is left is cancelled.
        """
        return self._view.kept_by(self).map(fn, *iterables, timeout=timeout, buffersize=buffersize)

    @overload
    def stream(self, fn: Callable[P, AsyncIterator[T]], /, *args: P.args, **kwargs: P.kwargs) -> AsyncStream[T]: ...
    @overload
    def stream(self, fn: Callable[P, Iterable[T]], /, *args: P.args, **kwargs: P.kwargs) -> AsyncStream[T]: ...
    @overload
    def stream(self, fn: str, /, *args: Any, **kwargs: Any) -> AsyncStream[Any]: ...
    def stream(self, fn: Any, /, *args: Any, **kwargs: Any) -> AsyncStream[Any]:
        """An async iterator over the items of an async generator function, which runs on the loop, or of a generator
        function, which runs on a thread.

        A generator that is faster than its reader waits. When the stream is closed (`aclose`, or the end of its
        `async with`), dropped, or its reader cancelled, the generator is cancelled; one on a thread at its next item.
        """
        return self._view.kept_by(self).stream(fn, *args, **kwargs)

    def using(self, **options: Any) -> AsyncPoolView:
        """This pool with options for the calls made through what is returned: as `Pool.using`, but the context is
        always carried.
        """
        return self._view.kept_by(self).using(**options)

    # Life.

    async def close(self, grace: Seconds | None = None, drain: bool = True) -> None:
        """Take no new work, run what waits (or cancel it, without `drain`), and wait until nothing runs.

        After `grace` seconds what waits is cancelled; coroutines that run are cancelled, and have a second to clean up;
        functions that run are left behind on their threads. Whoever waits for one of these gets `WorkerAbandoned`. Safe
        to call twice, to cancel, and in a request of this pool, where it does not wait.
        """
        limit = seconds("grace", grace)
        self._enter()
        await self._lanes.close(limit, drain)

    async def __aenter__(self) -> AsyncPool:
        self._enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close(drain=kind is None)

    async def wait_ready(self, timeout: Seconds | None = None) -> bool:
        """Wait until `min_threads` threads, and `min_workers` workers on the loop, have started; False when `timeout`
        passed first. Raises `PoolFailed` if none could.
        """
        limit = seconds("timeout", timeout)
        self._enter()
        return await self._lanes.ready(limit)

    def resize(self, max_workers: int | None = None, *, threads: int | None = None) -> None:
        """Change how many coroutines, and how many threads, there may be at once. Surplus ones end after what they run
        now.
        """
        self._enter()
        wanted = [
            (self._coroutines.engine, "max_workers", max_workers, "min_workers"),
            (self._threads.engine, "threads", threads, "min_threads"),
        ]
        for engine, option, size, name_of_least in wanted:
            if size is not None:
                at_least(option, size, 1)
                if size < engine.options.min_workers:
                    raise InvalidOption(option, size, f"at least {name_of_least}, {engine.options.min_workers}")
        for engine, _, size, _ in wanted:
            if size is not None:
                engine.resize(size)

    def pause(self) -> None:
        """Start nothing from now on. What runs goes on, and what is submitted waits."""
        self._enter()
        for lane in self._lanes:
            lane.engine.pause()

    def resume(self) -> None:
        """Start requests again."""
        self._enter()
        for lane in self._lanes:
            lane.engine.resume()

    def taint(self, worker: str, seconds: Seconds | None = None) -> bool:
        """Give the worker with this name nothing new for `seconds`, or the pool's `taint_duration`: it may be broken.

        It finishes what it runs. True if it is tainted now; False if it starts or ends just now, or the pool closes.
        """
        self._enter()
        length = None if seconds is None else duration("seconds", seconds, zero=False)
        lane, found = self._find_worker(worker)
        if lane is self._coroutines and lane.engine.instances is None:
            raise InvalidOption(
                "worker", worker, "a thread, or a worker that keeps an instance: a place on the loop cannot be broken"
            )
        length = lane.engine.options.taint_duration if length is None else length
        return lane.engine.workforce.suspects.taint(found, length, because="by AsyncPool.taint")

    def _find_worker(self, name: object) -> tuple[Lane, Worker]:
        for lane in self._lanes:
            for worker in lane.engine.registry.snapshot():
                if worker.name == name:
                    return lane, worker
        raise InvalidOption("worker", name, "the name of a worker of this pool")

    def _enter(self) -> None:
        self._lanes.enter(running_loop())

    # Sessions.

    def sessions(self) -> list[SessionInfo]:
        """The sessions there are at this moment, of coroutines and of functions. `print` them."""
        return [session for lane in self._lanes for session in SessionInfo.all_of(lane.engine)]

    def end_session(self, session: str) -> bool:
        """Forget a session: its next request may begin anew on any worker. What it has submitted still runs. False if
        there is none.
        """
        self._enter()
        ended = [lane.engine.end_session(session) for lane in self._lanes]
        return any(ended)

    # Looking at it. From any thread.

    def stats(self) -> AsyncPoolStats:
        """The pool at this moment, in numbers: those of its `coroutines`, those of its `threads`, and sums. `print`
        it.
        """
        coroutines, threads = (PoolStats.of(lane.engine) for lane in self._lanes)
        return AsyncPoolStats(coroutines, threads)

    def workers(self) -> list[WorkerInfo]:
        """The places on the loop and the threads that there are at this moment. `print` them."""
        engines = [lane.engine for lane in self._lanes]
        return [
            WorkerInfo.of(worker, engine.clock.monotonic())
            for engine in engines
            for worker in engine.registry.snapshot()
        ]

    @overload
    def explain(self) -> AsyncExplanation: ...
    @overload
    def explain(self, future: Future[Any]) -> Explanation: ...
    def explain(self, future: Future[Any] | None = None) -> Explanation | AsyncExplanation:
        """Why `future` waits, or how it ended; without one, what the coroutines and the threads of the pool do and are
        short of. `print` it.
        """
        coroutines, threads = self._coroutines.engine, self._threads.engine
        if future is None:
            return AsyncExplanation(explain_pool(coroutines), explain_pool(threads))
        if not isinstance(future, AsyncFuture) or future.engine not in (coroutines, threads):
            raise InvalidOptionType("future", future, f"a future of pool {self._home.name!r}")
        return future.explained()

    def can(self, capability: str, *, threads: bool = False) -> bool:
        """Whether something can be done with a coroutine, or with a function on one of the `threads`: see
        `bullpen.runtimes.port.CAPABILITIES`.
        """
        if capability not in CAPABILITIES:
            raise InvalidOption("capability", capability, "one of " + ", ".join(map(repr, CAPABILITIES)))
        lane = self._threads if threads else self._coroutines
        return capability in lane.capabilities

    def __repr__(self) -> str:
        engine = self._coroutines.engine
        where = "on no loop yet" if self._home.loop is None else f"on {self._home.loop!r}"
        return f"<AsyncPool {engine.name!r} {engine.state}, {where}>"


mark_coroutine_function(AsyncPool.do)
