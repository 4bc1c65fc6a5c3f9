"""`using(...)` of an `AsyncPool`: the pool with options for single calls."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable
from typing import Any, Literal, ParamSpec, TypeVar, overload

from bullpen.errors import InvalidOptionType
from bullpen.pools.async_calls import (
    AsyncCall,
    AsyncFuture,
    CoroutineFuture,
    NestedCoroutineFuture,
    NestedFuture,
    mark_coroutine_function,
)
from bullpen.pools.async_sides import Side, Sides
from bullpen.pools.loop_bridge import running_loop
from bullpen.pools.maps.async_map import AsyncMap, is_plain
from bullpen.pools.maps.async_runner_map import AsyncRunnerMap
from bullpen.pools.maps.fed_map import FedMap
from bullpen.pools.maps.map_work import Reading
from bullpen.pools.maps.outcome import OnError, Outcome, check_map_options
from bullpen.pools.options import CallOptions
from bullpen.pools.runtimes.port import coroutine_request
from bullpen.pools.streams.async_stream import AsyncStream
from bullpen.pools.streams.stream import DEFAULT_BUFFER

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")


class AsyncPoolView:
    """An `AsyncPool` and the options of calls made through it. Immutable, cheap, to be kept or thrown away."""

    __slots__ = ("_bridge", "_limits", "_options", "_owner", "_sides", "_traits", "_waits_for_room")

    def __init__(self, sides: Sides, options: CallOptions, owner: object = None) -> None:
        self._sides = sides
        self._bridge = sides.bridge
        self._owner = owner  # a reference to the pool: an unreferenced pool drains
        self._options = options
        self._limits = options.limits
        self._traits = options.traits if options.traits.any else None
        # A request of a session is rejected if there is no room, and so is one without time left.
        self._waits_for_room = sides.wait_for_room and options.traits.session is None and options.limits.budget > 0

    def owned_by(self, owner: object) -> AsyncPoolView:
        """The same view, holding on to `owner`."""
        return AsyncPoolView(self._sides, self._options, owner)

    def using(self, **options: Any) -> AsyncPoolView:
        """This view with some options changed: see `AsyncPool.using`."""
        if "context" in options:
            raise InvalidOptionType("context", options["context"], "left out: an AsyncPool always carries the context")
        return AsyncPoolView(self._sides, self._options.using(**options), self._owner)

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
        side, fn = self._sides.find(fn)
        future = self.offer(side, fn, args, kwargs)
        if future is None:
            raise side.engine.saturated_error()
        return future

    @overload
    def serve(self, fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> bool: ...
    @overload
    def serve(self, fn: str, /, *args: Any, **kwargs: Any) -> bool: ...
    def serve(self, fn: Any, /, *args: Any, **kwargs: Any) -> bool:
        """Run `fn(*args, **kwargs)` and forget it: True if it was accepted, False if the pool is saturated."""
        self._enter()
        side, fn = self._sides.find(fn)
        return self._admit(side, side.new_call(fn, args, kwargs, None, self._traits))

    @overload
    async def do(self, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    async def do(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    async def do(self, fn: str, /, *args: Any, **kwargs: Any) -> Any: ...
    def do(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Run `fn(*args, **kwargs)`; an eager awaitable of the result: see `AsyncPool.do`."""
        loop = running_loop()
        if self._waits_for_room or loop is None or loop is not self._bridge.loop:
            return self._do_when_room(fn, args, kwargs)
        kind = CoroutineFuture if coroutine_request.get() is None else NestedCoroutineFuture
        future: CoroutineFuture[Any] = kind(loop=loop)
        try:
            side, fn = self._sides.find(fn)
            call = future.origin = side.new_call(fn, args, kwargs, future, self._traits)
            if not self._admit(side, call):
                raise side.engine.saturated_error()
        except Exception as error:
            future.reject(error)
        return future

    async def _do_when_room(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`do` as a coroutine: it binds the pool to the loop on which it is awaited, and may wait for room."""
        self._enter()
        side, fn = self._sides.find(fn)
        return await (await self.offer_when_room(side, fn, args, kwargs))

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
        """The results of `fn` over the iterables, as they are read; see `AsyncPool.map`."""
        check_map_options(ordered, on_error)
        self._enter()
        side, fn = self._sides.find(fn)
        deadline, window = self._options.of_map(timeout, buffersize, side.engine.clock.monotonic())
        if side.dispatcher.status.phase.draining:
            raise side.engine.not_open()
        reading = Reading(window, ordered=ordered, outcomes=on_error == "return")
        kind: type[AsyncMap[Any]] = AsyncMap
        if any(isinstance(each, AsyncIterable) for each in iterables):
            kind = FedMap
        elif side is self._sides.coroutines and is_plain(side, self._limits, self._traits):
            kind = AsyncMap if side.engine.counts_items else AsyncRunnerMap
        return kind(side, self._limits, self._traits, fn, iterables, deadline, reading, self._owner)

    @overload
    def stream(self, fn: Callable[P, AsyncIterator[T]], /, *args: P.args, **kwargs: P.kwargs) -> AsyncStream[T]: ...
    @overload
    def stream(self, fn: Callable[P, Iterable[T]], /, *args: P.args, **kwargs: P.kwargs) -> AsyncStream[T]: ...
    @overload
    def stream(self, fn: str, /, *args: Any, **kwargs: Any) -> AsyncStream[Any]: ...
    def stream(self, fn: Any, /, *args: Any, **kwargs: Any) -> AsyncStream[Any]:
        """The items of a generator function, which runs on a worker, as they are made; see `AsyncPool.stream`."""
        self._enter()
        return AsyncStream(
            self.offer_when_room, self._sides, self._options.buffersize or DEFAULT_BUFFER, fn, args, kwargs
        )

    # The parts of maps and streams.

    def offer(self, side: Side, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AsyncFuture[Any] | None:
        """One call on `side`, if there is room."""
        call, future = self._call(side, fn, args, kwargs)
        return future if self._admit(side, call) else None

    async def offer_when_room(
        self, side: Side, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> AsyncFuture[Any]:
        """One call on `side`. It waits for room if the pool has `when_full="block"`."""
        if self._waits_for_room:
            call, wait_for_room = self._call(side, fn, args, kwargs)
            await side.submit_when_room(call, self._limits)
            return wait_for_room
        future = self.offer(side, fn, args, kwargs)
        if future is None:
            raise side.engine.saturated_error()
        return future

    def _call(
        self, side: Side, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[AsyncCall, AsyncFuture[Any]]:
        kind = AsyncFuture if coroutine_request.get() is None else NestedFuture
        future: AsyncFuture[Any] = kind(loop=self._bridge.loop)
        future.origin = call = side.new_call(fn, args, kwargs, future, self._traits)
        return call, future

    def _admit(self, side: Side, call: AsyncCall) -> bool:
        """Take `call` in; False if there is no room."""
        return side.admit(call, self._limits)

    def _enter(self) -> None:
        loop = running_loop()
        if loop is None or loop is not self._bridge.loop:
            self._sides.enter(loop)


mark_coroutine_function(AsyncPoolView.do)
