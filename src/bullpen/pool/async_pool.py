"""`AsyncPool`: a pool for asyncio. Coroutines run on the loop, functions on threads, both bounded."""

from __future__ import annotations

import itertools
import weakref
from asyncio import CancelledError, Future
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from inspect import CO_COROUTINE
from types import FunctionType, TracebackType
from typing import Any, ParamSpec, TypeVar, overload

from bullpen.core.ready import SchedulerStrategy
from bullpen.core.request import QUEUED
from bullpen.core.terms import Affinity
from bullpen.errors import InvalidOption
from bullpen.pool.async_call import AsyncCall, AsyncFuture, LoopCall, ThreadCall
from bullpen.pool.async_mapping import AsyncMap
from bullpen.pool.async_stream import AsyncStream
from bullpen.pool.async_view import AsyncPoolView
from bullpen.pool.home import Home, running_loop
from bullpen.pool.lane import Lane, Lanes
from bullpen.pool.options import (
    PoolOptions,
    Seconds,
    WhenFull,
    arguments,
    at_least,
    default_max_workers,
    one_of,
    seconds,
)
from bullpen.pool.stats import AsyncPoolStats, PoolStats, WorkerInfo
from bullpen.runtimes.port import CAPABILITIES, coroutine_request
from bullpen.telemetry.catalogue import Event

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_MAX_WORKERS = 100

_numbers = itertools.count(1)
within_request = coroutine_request.get


class AsyncPool:
    """Runs coroutine functions on the event loop, at most `max_workers` at once, and other functions on at most
    `threads` threads. It belongs to the first loop that it is used on.

    >>> async with AsyncPool(100, max_queue=1000) as pool:                   # doctest: +SKIP
    ...     answer = await pool.using(timeout=2).do(fetch, url)
    ...     thumbnail = await pool.do(resize, answer.body)                   # not a coroutine: on a thread
    """

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        threads: int | None = None,
        min_threads: int = 0,
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
        log_errors: bool = True,
        observer: Callable[[Event], object] | None = None,
        affinity: Affinity = "hint",
        session_ttl: Seconds | None = 3600.0,
        max_sessions: int = 10_000,
        crash_retries: int = 1,
    ) -> None:
        name = f"async-pool-{next(_numbers)}" if name is None else name
        max_workers = DEFAULT_MAX_WORKERS if max_workers is None else max_workers
        at_least("max_workers", max_workers, 1)
        threads = default_max_workers() if threads is None else threads
        at_least("threads", threads, 1)
        at_least("min_threads", min_threads, 0)
        if min_threads > threads:
            raise InvalidOption("min_threads", min_threads, f"at most threads, which is {threads}")
        one_of("when_full", when_full, ("reject", "block"))
        common: dict[str, Any] = {
            "max_queue": max_queue,
            "queue_timeout": seconds("queue_timeout", queue_timeout),
            "run_timeout": seconds("run_timeout", run_timeout, zero=False),
            "wrap": None,
            "log_errors": log_errors,
            "observer": observer,
            "affinity": affinity,
            "session_ttl": seconds("session_ttl", session_ttl, zero=False),
            "max_sessions": max_sessions,
            "crash_retries": crash_retries,
            "worker": None,
            "capacity": 1,
            "capacity_strategy": "pool",
            "initialization": None,
            "startup_batch_size": 10,
            "startup_batch_delay": 0.0,
            "restart_limit": None,
            "reconcile_batch_size": 10,
            "taint_duration": 60.0,
            "taint_on": (),
            "max_requests": None,
            "max_age": None,
        }
        for_threads = PoolOptions(
            max_workers=threads,
            thread_name_prefix=thread_name_prefix,
            initializer=initializer,
            initargs=arguments("initargs", initargs),
            runtime="thread",
            name=f"{name}-threads" if isinstance(name, str) else name,
            min_workers=min_threads,
            max_abandoned=max_abandoned,
            idle_timeout=seconds("idle_timeout", idle_timeout, zero=False),
            scheduler=scheduler,
            reconcile_interval=60.0,
            when_full=when_full,
            **common,
        )
        for_coroutines = PoolOptions(
            max_workers=max_workers,
            thread_name_prefix="",
            initializer=None,
            initargs=(),
            runtime="event_loop",
            name=name,
            min_workers=0,
            max_abandoned=0,
            idle_timeout=None,  # a place on the loop costs nothing
            scheduler="rotation",
            reconcile_interval=None,
            when_full=when_full,
            **common,
        )
        self._home = home = Home(name)
        self._lanes = lanes = Lanes(home, for_coroutines, for_threads)
        self._coroutines = lanes.coroutines
        self._threads = lanes.threads
        calls = for_coroutines.call_options()
        self._view = AsyncPoolView(lanes, calls)
        self._plain = max_queue is None and not calls.limits.any
        weakref.finalize(self, lanes.pool_is_gone).atexit = False

    # Work.

    @overload
    def submit(self, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> AsyncFuture[T]: ...
    @overload
    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> AsyncFuture[T]: ...
    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> AsyncFuture[Any]:
        """Run `fn(*args, **kwargs)`, on the loop if it is a coroutine function, else on a thread; the future of its
        result, at once. To cancel the future is to cancel the work.

        Raises `PoolSaturated` if there is no room, also with `when_full="block"`: this cannot wait.
        """
        loop = running_loop()
        if loop is None or loop is not self._home.loop:
            self._lanes.enter(loop)
        if not self._plain or within_request() is not None:
            return self._view.submit(fn, *args, **kwargs)
        future: AsyncFuture[Any] = AsyncFuture(loop=loop)
        lane: Lane
        if type(fn) is not FunctionType or fn.__dict__:  # where the marks of decorators are
            lane = self._lanes.of(fn)
            call = future.call = lane.new_call(fn, args, kwargs, future)
        elif fn.__code__.co_flags & CO_COROUTINE:
            lane = self._coroutines
            call = future.call = LoopCall(lane, fn, args, kwargs, future)
        else:
            lane = self._threads
            call = future.call = ThreadCall(lane, fn, args, kwargs, future)
        if lane.dispatcher.draining or not lane.offer(call):
            raise lane.engine.too_late()
        return future

    def serve(self, fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Run `fn(*args, **kwargs)` and forget it: True if it was accepted, False if the pool is saturated, also with
        `when_full="block"`: this cannot wait.
        """
        return self._view.serve(fn, *args, **kwargs)

    @overload
    async def do(self, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    async def do(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    async def do(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Run `fn(*args, **kwargs)` and wait for the result; with `when_full="block"` for room, too. To cancel the task
        that waits is to cancel the work.
        """
        loop = running_loop()
        if not self._plain or loop is None or loop is not self._home.loop:
            return await self._view.do(fn, *args, **kwargs)
        future: Future[Any] = Future(loop=loop)
        lane: Lane
        call: AsyncCall
        if type(fn) is not FunctionType or fn.__dict__:  # as in `submit`
            lane = self._lanes.of(fn)
            call = lane.new_call(fn, args, kwargs, future)
        elif fn.__code__.co_flags & CO_COROUTINE:
            lane = self._coroutines
            call = LoopCall(lane, fn, args, kwargs, future)
        else:
            lane = self._threads
            call = ThreadCall(lane, fn, args, kwargs, future)
        if lane.dispatcher.draining or not lane.offer(call):
            raise lane.engine.too_late()
        if call.state is QUEUED and within_request() is not None:
            lane.awaited(call)
        try:
            return await future
        except CancelledError:
            lane.give_up(call)  # unless it has ended: then it was cancelled itself
            raise

    @overload
    def map(
        self,
        fn: Callable[..., Awaitable[T]],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        buffersize: int | None = None,
    ) -> AsyncMap[T]: ...
    @overload
    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        buffersize: int | None = None,
    ) -> AsyncMap[T]: ...
    def map(
        self, fn: Any, *iterables: Iterable[Any], timeout: float | None = None, buffersize: int | None = None
    ) -> AsyncMap[Any]:
        """An async iterator over the results of `fn`, in order. Nothing is called before the first one is asked for.

        At most `buffersize` (1024) calls are under way or unread at once. `timeout` is for all results, from now. It
        waits for room where `submit` would be refused. After an error, or when it is closed (`aclose`), dropped, or its
        reader cancelled, what is left is cancelled.
        """
        return self._view.kept_by(self).map(fn, *iterables, timeout=timeout, buffersize=buffersize)

    @overload
    def stream(self, fn: Callable[P, AsyncIterator[T]], /, *args: P.args, **kwargs: P.kwargs) -> AsyncStream[T]: ...
    @overload
    def stream(self, fn: Callable[P, Iterable[T]], /, *args: P.args, **kwargs: P.kwargs) -> AsyncStream[T]: ...
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
        """Wait until `min_threads` threads have started; False when `timeout` passed first. Raises `PoolFailed` if none
        could.
        """
        limit = seconds("timeout", timeout)
        self._enter()
        return await self._threads.ready(limit)

    def resize(self, max_workers: int | None = None, *, threads: int | None = None) -> None:
        """Change how many coroutines, and how many threads, there may be at once. Surplus ones end after what they run
        now.
        """
        self._enter()
        if max_workers is not None:
            at_least("max_workers", max_workers, 1)
        if threads is not None:
            at_least("threads", threads, 1)
            least = self._threads.engine.options.min_workers
            if threads < least:
                raise InvalidOption("threads", threads, f"at least min_threads, {least}")
            self._threads.engine.resize(threads)
        if max_workers is not None:
            self._coroutines.engine.resize(max_workers)

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

    def _enter(self) -> None:
        self._lanes.enter(running_loop())

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

    def can(self, capability: str, *, threads: bool = False) -> bool:
        """Whether something can be done with a coroutine, or with a function on one of the `threads`: see
        `bullpen.runtimes.port.CAPABILITIES`.
        """
        if capability not in CAPABILITIES:
            raise InvalidOption("capability", capability, "one of " + ", ".join(map(repr, CAPABILITIES)))
        lane = self._threads if threads else self._coroutines
        return capability in lane.engine.runtime.capabilities

    def __repr__(self) -> str:
        engine = self._coroutines.engine
        where = "on no loop yet" if self._home.loop is None else f"on {self._home.loop!r}"
        return f"<AsyncPool {engine.name!r} {engine.state}, {where}>"
