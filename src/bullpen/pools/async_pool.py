"""`AsyncPool`: a pool for asyncio. Coroutines run on the loop, functions on threads, both bounded."""

from __future__ import annotations

import itertools
import weakref
from asyncio import Future
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable
from inspect import CO_COROUTINE
from types import FunctionType, TracebackType
from typing import Any, Literal, ParamSpec, TypeVar, Unpack, overload

from bullpen.errors import InvalidOption, InvalidOptionType
from bullpen.pools.async_calls import (
    AsyncFuture,
    CoroutineFuture,
    LoopCall,
    NestedCoroutineFuture,
    ThreadCall,
    mark_coroutine_function,
)
from bullpen.pools.async_options import AsyncPoolKeywords, side_options
from bullpen.pools.async_sides import Side, Sides
from bullpen.pools.async_view import AsyncPoolView
from bullpen.pools.checks import Seconds, at_least, duration, seconds
from bullpen.pools.dispatch.worker import Worker
from bullpen.pools.explain import AsyncExplanation, Explanation, explain_pool
from bullpen.pools.loop_bridge import LoopBridge, running_loop
from bullpen.pools.maps.async_map import AsyncMap
from bullpen.pools.maps.outcome import OnError, Outcome
from bullpen.pools.runtimes.port import CAPABILITIES, coroutine_request
from bullpen.pools.stats import AsyncPoolStats, PoolStats, SessionInfo, WorkerInfo
from bullpen.pools.streams.async_stream import AsyncStream

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")

_numbers = itertools.count(1)
within_request = coroutine_request.get


class AsyncPool:
    """Runs coroutine functions on the event loop, at most `max_workers` at once, and other functions on at most
    `threads` threads. It belongs to the first loop that it is used on.

    With `worker=Client` each worker keeps a `Client()` of its own. Calls name its methods, which run on the loop if it
    has coroutine methods, else on threads. With `runtime="process"`, or a `Runtime`, processes take the place of
    threads, as many as `threads` says. `grace` limits how long leaving `async with` waits. The groups of
    options are those of `Pool`; `calls.wrap` is called around every function, `calls.awrap` around every coroutine.

    >>> async with AsyncPool(100, max_queue=1000) as pool:                   # doctest: +SKIP
    ...     answer = await pool.using(timeout=2).do(fetch, url)
    ...     thumbnail = await pool.do(resize, answer.body)                   # not a coroutine: on a thread
    """

    def __init__(self, max_workers: int | None = None, **options: Unpack[AsyncPoolKeywords]) -> None:
        given = options.pop("name", None)
        name = f"async-pool-{next(_numbers)}" if given is None else given
        for_coroutines, for_threads = side_options(max_workers, name, options)
        self._bridge = bridge = LoopBridge(name)
        self._sides = sides = Sides(bridge, for_coroutines, for_threads)
        self._coroutines = sides.coroutines
        self._threads = sides.threads
        calls = for_coroutines.call_options()
        self._view = AsyncPoolView(sides, calls)
        has_wrap = for_coroutines.wrap is not None or for_threads.wrap is not None
        has_limits = for_coroutines.max_queue is not None or calls.limits.any
        self._plain = not has_wrap and not has_limits and not sides.threads.is_remote
        self._grace = for_coroutines.grace
        weakref.finalize(self, sides.pool_is_gone).atexit = False

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
        result, at once. A string names a method of the `worker`. Cancelling the future cancels the work.

        Raises `PoolSaturated` if there is no room, also with `when_full="block"`: this cannot wait.
        """
        loop = running_loop()
        if loop is None or loop is not self._bridge.loop:
            self._sides.enter(loop)
        if not self._plain or within_request() is not None:
            return self._view.submit(fn, *args, **kwargs)
        future: AsyncFuture[Any] = AsyncFuture(loop=loop)
        self._begin(future, fn, args, kwargs)
        return future

    def _begin(self, future: AsyncFuture[Any], fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Make a call without limits, traits and `wrap`, and settle `future` with its outcome."""
        side: Side
        if type(fn) is not FunctionType or fn.__dict__:  # where the marks of decorators are
            side, fn = self._sides.find(fn)
            call = future.origin = side.new_call(fn, args, kwargs, future)
        elif fn.__code__.co_flags & CO_COROUTINE:
            side = self._coroutines
            call = future.origin = LoopCall(side, fn, args, kwargs, future)
        else:
            side = self._threads
            call = future.origin = ThreadCall(side, fn, args, kwargs, future)
        if side.dispatcher.status.phase.draining or not side.offer(call):
            raise side.engine.too_late()

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
        """Run `fn(*args, **kwargs)`; an eager awaitable of the result. The call begins now, not when it is awaited.

        The awaitable is a future, of which `gather` makes no task, and a coroutine, which `create_task` takes. It is
        a plain coroutine, which begins when it is awaited, in two cases: it may have to wait for room
        (`when_full="block"`), or the pool does not belong to the running loop yet. Cancelling the task that awaits it
        cancels the work.
        """
        loop = running_loop()
        if not self._plain or loop is None or loop is not self._bridge.loop:
            return self._view.owned_by(self).do(fn, *args, **kwargs)
        kind = CoroutineFuture if within_request() is None else NestedCoroutineFuture
        future: CoroutineFuture[Any] = kind(loop=loop)
        try:
            self._begin(future, fn, args, kwargs)
        except Exception as error:
            future.reject(error)
        return future

    @overload
    def map(
        self,
        fn: Callable[..., Coroutine[Any, Any, T]],
        *iterables: Iterable[Any] | AsyncIterable[Any],
        timeout: float | None = None,
        buffersize: int | None = None,
        ordered: bool = True,
        on_error: Literal["raise"] = "raise",
    ) -> AsyncMap[T]: ...
    @overload
    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any] | AsyncIterable[Any],
        timeout: float | None = None,
        buffersize: int | None = None,
        ordered: bool = True,
        on_error: Literal["raise"] = "raise",
    ) -> AsyncMap[T]: ...
    @overload
    def map(
        self,
        fn: Callable[[A], Coroutine[Any, Any, T]],
        iterable: Iterable[A] | AsyncIterable[A],
        /,
        *,
        timeout: float | None = None,
        buffersize: int | None = None,
        ordered: bool = True,
        on_error: Literal["return"],
    ) -> AsyncMap[Outcome[A, T]]: ...
    @overload
    def map(
        self,
        fn: Callable[[A], T],
        iterable: Iterable[A] | AsyncIterable[A],
        /,
        *,
        timeout: float | None = None,
        buffersize: int | None = None,
        ordered: bool = True,
        on_error: Literal["return"],
    ) -> AsyncMap[Outcome[A, T]]: ...
    @overload
    def map(
        self,
        fn: Callable[..., Coroutine[Any, Any, T]],
        *iterables: Iterable[Any] | AsyncIterable[Any],
        timeout: float | None = None,
        buffersize: int | None = None,
        ordered: bool = True,
        on_error: Literal["return"],
    ) -> AsyncMap[Outcome[Any, T]]: ...
    @overload
    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any] | AsyncIterable[Any],
        timeout: float | None = None,
        buffersize: int | None = None,
        ordered: bool = True,
        on_error: Literal["return"],
    ) -> AsyncMap[Outcome[Any, T]]: ...
    @overload
    def map(
        self,
        fn: str,
        *iterables: Iterable[Any] | AsyncIterable[Any],
        timeout: float | None = None,
        buffersize: int | None = None,
        ordered: bool = True,
        on_error: Literal["raise"] = "raise",
    ) -> AsyncMap[Any]: ...
    @overload
    def map(
        self,
        fn: str,
        *iterables: Iterable[Any] | AsyncIterable[Any],
        timeout: float | None = None,
        buffersize: int | None = None,
        ordered: bool = True,
        on_error: Literal["return"],
    ) -> AsyncMap[Outcome[Any, Any]]: ...
    def map(
        self,
        fn: Any,
        *iterables: Iterable[Any] | AsyncIterable[Any],
        timeout: float | None = None,
        buffersize: int | None = None,
        ordered: bool = True,
        on_error: OnError = "raise",
    ) -> AsyncMap[Any]:
        """An async iterator over the results of `fn`, in order. Nothing is called before the first one is asked for.
        The iterables may be async ones, too.

        `ordered=False`: as the calls end. `on_error="return"`: an `Outcome` for every item; see `Pool.map`.

        At most `buffersize` (1024) calls are under way or unread at once. `timeout` is for all results, from now. It
        waits for room where `submit` would be rejected. The remaining calls are cancelled after an error, and when the
        map is closed (`aclose`) or dropped, or its reader is cancelled.
        """
        options: dict[str, Any] = {"ordered": ordered, "on_error": on_error}
        return self._view.owned_by(self).map(fn, *iterables, timeout=timeout, buffersize=buffersize, **options)

    @overload
    def stream(self, fn: Callable[P, AsyncIterator[T]], /, *args: P.args, **kwargs: P.kwargs) -> AsyncStream[T]: ...
    @overload
    def stream(self, fn: Callable[P, Iterable[T]], /, *args: P.args, **kwargs: P.kwargs) -> AsyncStream[T]: ...
    @overload
    def stream(self, fn: str, /, *args: Any, **kwargs: Any) -> AsyncStream[Any]: ...
    def stream(self, fn: Any, /, *args: Any, **kwargs: Any) -> AsyncStream[Any]:
        """An async iterator over the items of an async generator function, which runs on the loop, or of a generator
        function, which runs on a thread.

        `async with pool.stream(…) as items` submits the call before the first item is asked for, so that a full pool
        raises `PoolSaturated` there. A generator that is faster than its reader waits. When the stream is closed
        (`aclose`, or the end of its `async with`), dropped, or its reader cancelled, the generator is cancelled; one on
        a thread at its next item.
        """
        return self._view.owned_by(self).stream(fn, *args, **kwargs)

    def using(self, **options: Any) -> AsyncPoolView:
        """A view of this pool, with options for the calls made through it: see `Pool.using`. The caller's context is
        always carried.
        """
        return self._view.owned_by(self).using(**options)

    # Life.

    async def close(self, grace: Seconds | None = None, drain: bool = True) -> None:
        """Reject new work, run the waiting calls (or cancel them, without `drain`), and wait until none runs.

        After `grace` seconds (by default the pool's `grace`; without that, no limit) the pool cancels waiting calls and
        running coroutines, which have a second to clean up. It abandons running functions on their threads; their
        callers get `WorkerAbandoned`. Safe to call twice, to cancel, and in a request of this pool, where it does not
        wait.
        """
        limit = seconds("grace", grace)
        self._enter()
        await self._sides.close(self._grace if limit is None else limit, drain)

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
        return await self._sides.ready(limit)

    def resize(self, max_workers: int | None = None, *, threads: int | None = None) -> None:
        """Change how many coroutines, and how many threads, may run at once. Surplus workers end after their current
        request.
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
        """Start no request from now on. Running requests continue, and new ones wait."""
        self._enter()
        for side in self._sides:
            side.engine.pause()

    def resume(self) -> None:
        """Start requests again."""
        self._enter()
        for side in self._sides:
            side.engine.resume()

    def taint(self, worker: str, seconds: Seconds | None = None) -> bool:
        """Give the worker with this name nothing new for `seconds`, or `recycling.taint_duration`: it may be
        broken.

        It finishes its current requests. Returns False if it is starting or ending, or the pool closes.
        """
        self._enter()
        length = None if seconds is None else duration("seconds", seconds, zero=False)
        side, found = self._find_worker(worker)
        if side is self._coroutines and side.engine.instances is None:
            raise InvalidOption(
                "worker",
                worker,
                "a thread, or a worker with an instance: on the loop, others have no state to break",
            )
        length = side.engine.options.taint_duration if length is None else length
        return side.engine.tainted_workers.taint(found, length, because="by AsyncPool.taint")

    def _find_worker(self, name: object) -> tuple[Side, Worker]:
        for side in self._sides:
            for worker in side.engine.registry.snapshot():
                if worker.name == name:
                    return side, worker
        raise InvalidOption("worker", name, "the name of a worker of this pool")

    def _enter(self) -> None:
        self._sides.enter(running_loop())

    # Sessions.

    def sessions(self) -> list[SessionInfo]:
        """The sessions there are at this moment, of coroutines and of functions. `print` them."""
        return [session for side in self._sides for session in SessionInfo.all_of(side.engine)]

    def end_session(self, session: str) -> bool:
        """Forget a session: its next request may begin anew on any worker. Its submitted requests still run. False
        if there is none.
        """
        self._enter()
        ended = [side.engine.end_session(session) for side in self._sides]
        return any(ended)

    # Looking at it. From any thread.

    def stats(self) -> AsyncPoolStats:
        """The pool at this moment, in numbers: those of its `coroutines`, those of its `threads`, and sums. `print`
        it.
        """
        coroutines, threads = (PoolStats.of(side.engine) for side in self._sides)
        return AsyncPoolStats(coroutines, threads)

    def workers(self) -> list[WorkerInfo]:
        """The places on the loop and the threads that there are at this moment. `print` them."""
        engines = [side.engine for side in self._sides]
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
        """Why `future` waits, or how it ended; without one, what the coroutines and the threads of the pool do and
        lack. `print` it.
        """
        coroutines, threads = self._coroutines.engine, self._threads.engine
        if future is None:
            return AsyncExplanation(explain_pool(coroutines), explain_pool(threads))
        if not isinstance(future, AsyncFuture) or future.engine not in (coroutines, threads):
            raise InvalidOptionType("future", future, f"a future of pool {self._bridge.name!r}")
        return future.explained()

    def can(self, capability: str, *, threads: bool = False) -> bool:
        """Whether something can be done with a coroutine, or with a function on one of the `threads`: see
        `bullpen.pools.runtimes.port.CAPABILITIES`.
        """
        if capability not in CAPABILITIES:
            raise InvalidOption("capability", capability, "one of " + ", ".join(map(repr, CAPABILITIES)))
        side = self._threads if threads else self._coroutines
        return capability in side.capabilities

    def __repr__(self) -> str:
        engine = self._coroutines.engine
        where = "on no loop yet" if self._bridge.loop is None else f"on {self._bridge.loop!r}"
        return f"<AsyncPool {engine.name!r} {engine.state}, {where}>"


mark_coroutine_function(AsyncPool.do)
