"""`using(...)` of an `AsyncPool`: the pool with options for single calls."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable
from typing import Any, ParamSpec, TypeVar, overload

from bullpen.errors import InvalidOptionType
from bullpen.pool.async_call import (
    AsyncCall,
    AsyncFuture,
    CoroutineFuture,
    NestedCoroutineFuture,
    NestedFuture,
    mark_coroutine_function,
)
from bullpen.pool.async_mapping import AsyncMap, FedMap
from bullpen.pool.async_stream import AsyncStream
from bullpen.pool.home import running_loop
from bullpen.pool.lane import Lane, Lanes
from bullpen.pool.options import CallOptions
from bullpen.pool.stream import DEFAULT_BUFFER
from bullpen.runtimes.port import coroutine_request

P = ParamSpec("P")
T = TypeVar("T")


class AsyncPoolView:
    """An `AsyncPool` and the options of calls made through it. Immutable, cheap, to be kept or thrown away."""

    __slots__ = ("_home", "_keeper", "_lanes", "_limits", "_options", "_terms", "_waits_for_room")

    def __init__(self, lanes: Lanes, options: CallOptions, keeper: object = None) -> None:
        self._lanes = lanes
        self._home = lanes.home
        self._keeper = keeper  # the pool, which would drain if nobody held on to it
        self._options = options
        self._limits = options.limits
        self._terms = options.terms if options.terms.any else None
        # A request of a session is refused if there is no room, and so is one that has no time left.
        self._waits_for_room = lanes.patient and options.terms.session is None and options.limits.budget > 0

    def kept_by(self, keeper: object) -> AsyncPoolView:
        """The same view, holding on to `keeper`."""
        return AsyncPoolView(self._lanes, self._options, keeper)

    def using(self, **options: Any) -> AsyncPoolView:
        """This view with some options changed: see `AsyncPool.using`."""
        if "context" in options:
            names = ", ".join(name for name in CallOptions.NAMES if name != "context")
            raise InvalidOptionType("using()", "context", f"called with {names}: the context is always carried")
        return AsyncPoolView(self._lanes, self._options.using(**options), self._keeper)

    @overload
    def submit(
        self, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncFuture[T]: ...
    @overload
    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> AsyncFuture[T]: ...
    @overload
    def submit(self, fn: str, /, *args: Any, **kwargs: Any) -> AsyncFuture[Any]: ...
    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> AsyncFuture[Any]:
        """Run `fn(*args, **kwargs)`; the future of its result, at once."""
        self._enter()
        lane, fn = self._lanes.find(fn)
        future = self.offer(lane, fn, args, kwargs)
        if future is None:
            raise lane.engine.saturated_error()
        return future

    @overload
    def serve(self, fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> bool: ...
    @overload
    def serve(self, fn: str, /, *args: Any, **kwargs: Any) -> bool: ...
    def serve(self, fn: Any, /, *args: Any, **kwargs: Any) -> bool:
        """Run `fn(*args, **kwargs)` and forget it: True if it was accepted, False if the pool is saturated."""
        self._enter()
        lane, fn = self._lanes.find(fn)
        return self._admit(lane, lane.new_call(fn, args, kwargs, None, self._terms))

    @overload
    async def do(self, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    async def do(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    async def do(self, fn: str, /, *args: Any, **kwargs: Any) -> Any: ...
    def do(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Run `fn(*args, **kwargs)` and wait for the result."""
        loop = running_loop()
        if self._waits_for_room or loop is None or loop is not self._home.loop:
            return self._do_patiently(fn, args, kwargs)
        kind = CoroutineFuture if coroutine_request.get() is None else NestedCoroutineFuture
        future: CoroutineFuture[Any] = kind(loop=loop)
        try:
            lane, fn = self._lanes.find(fn)
            call = future.origin = lane.new_call(fn, args, kwargs, future, self._terms)
            if not self._admit(lane, call):
                raise lane.engine.saturated_error()
        except Exception as error:
            future.refuse(error)
        return future

    async def _do_patiently(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Wait for room, if need be, and on the loop that this is awaited on."""
        self._enter()
        lane, fn = self._lanes.find(fn)
        return await (await self.offer_patiently(lane, fn, args, kwargs))

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
        """The results of `fn` over the iterables, in order, as they are read; see `AsyncPool.map`."""
        self._enter()
        lane, fn = self._lanes.find(fn)
        deadline, window = self._options.of_map(timeout, buffersize, lane.engine.clock.monotonic())
        if lane.dispatcher.draining:
            raise lane.engine.not_open()
        kind = FedMap if any(isinstance(each, AsyncIterable) for each in iterables) else AsyncMap
        return kind(lane, self._limits, self._terms, fn, iterables, deadline, window, self._keeper)

    @overload
    def stream(self, fn: Callable[P, AsyncIterator[T]], /, *args: P.args, **kwargs: P.kwargs) -> AsyncStream[T]: ...
    @overload
    def stream(self, fn: Callable[P, Iterable[T]], /, *args: P.args, **kwargs: P.kwargs) -> AsyncStream[T]: ...
    @overload
    def stream(self, fn: str, /, *args: Any, **kwargs: Any) -> AsyncStream[Any]: ...
    def stream(self, fn: Any, /, *args: Any, **kwargs: Any) -> AsyncStream[Any]:
        """The items of a generator function, which runs on a worker, as they are made; see `AsyncPool.stream`."""
        self._enter()
        return AsyncStream(self, self._lanes, self._options.buffersize or DEFAULT_BUFFER, fn, args, kwargs)

    # What maps and streams are made of.

    def offer(self, lane: Lane, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AsyncFuture[Any] | None:
        """One call on `lane`, if there is room."""
        call, future = self._call(lane, fn, args, kwargs)
        return future if self._admit(lane, call) else None

    async def offer_patiently(
        self, lane: Lane, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> AsyncFuture[Any]:
        """One call on `lane`, with the patience that the pool has."""
        if self._waits_for_room:
            call, patient = self._call(lane, fn, args, kwargs)
            await lane.submit_patiently(call, self._limits)
            return patient
        future = self.offer(lane, fn, args, kwargs)
        if future is None:
            raise lane.engine.saturated_error()
        return future

    def _call(
        self, lane: Lane, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[AsyncCall, AsyncFuture[Any]]:
        kind = AsyncFuture if coroutine_request.get() is None else NestedFuture
        future: AsyncFuture[Any] = kind(loop=self._home.loop)
        future.origin = call = lane.new_call(fn, args, kwargs, future, self._terms)
        return call, future

    def _admit(self, lane: Lane, call: AsyncCall) -> bool:
        """Take `call` in; False if there is no room."""
        return lane.admit(call, self._limits)

    def _enter(self) -> None:
        loop = running_loop()
        if loop is None or loop is not self._home.loop:
            self._lanes.enter(loop)


mark_coroutine_function(AsyncPoolView.do)
