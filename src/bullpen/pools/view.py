"""`using(...)`: a pool with options for single calls, so that they never collide with a function's own arguments."""

from __future__ import annotations

import contextvars
import sys
import warnings
from collections.abc import AsyncIterable, Callable, Iterable
from typing import Any, Literal, ParamSpec, TypeVar, overload

from bullpen.errors import DeadlineExceeded, InvalidOption, NotCallable
from bullpen.pools.checks import at_least
from bullpen.pools.dispatch.futures import PoolFuture
from bullpen.pools.dispatch.request import Request, RequestTraits, ServedRequest, WrappedCall
from bullpen.pools.instances import no_workers_class
from bullpen.pools.maps.chunk_map import CallMany, ChunkMap, Columns
from bullpen.pools.maps.iterator import MapIterator
from bullpen.pools.maps.map_work import MapInput, MapWork, Reading
from bullpen.pools.maps.outcome import OnError, Outcome, check_map_options
from bullpen.pools.maps.request_map import RequestMap
from bullpen.pools.maps.runner_map import FEWEST_FOR_RUNNERS, RunnerMap
from bullpen.pools.options import CallOptions
from bullpen.pools.runtimes.port import CallsMethod, Outcomes, ProducesItems, only_by_name
from bullpen.pools.streams.stream import DEFAULT_BUFFER, Produce, Stream, StreamWork
from bullpen.pools.supervision.engine import Engine

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")

_warned = False  # of a blocking call on the thread of an event loop


class PoolView:
    """A pool and the options of calls made through it. Immutable, cheap, to be kept or thrown away."""

    __slots__ = ("_engine", "_limits", "_options", "_owner", "_plain", "_submit", "_traits")

    def __init__(self, engine: Engine, options: CallOptions, owner: object = None) -> None:
        self._engine = engine
        self._owner = owner  # a reference to the pool: an unreferenced pool drains
        self._options = options
        self._limits = options.limits
        self._submit = engine.admit
        self._traits = options.traits if options.traits.any else None
        special = engine.options.wrap is not None or engine.by_name_only or options.context
        self._plain = not special and self._traits is None
        if options.context and engine.by_name_only:
            raise InvalidOption("context", True, "False: a program has no use for contextvars")

    def owned_by(self, owner: object) -> PoolView:
        """The same view, holding on to `owner`."""
        return PoolView(self._engine, self._options, owner)

    def using(self, **options: Any) -> PoolView:
        """This view with some options changed: see `Pool.using`."""
        return PoolView(self._engine, self._options.using(**options), self._owner)

    @overload
    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> PoolFuture[T]: ...
    @overload
    def submit(self, fn: str, /, *args: Any, **kwargs: Any) -> PoolFuture[Any]: ...

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> PoolFuture[Any]:
        """Run `fn(*args, **kwargs)` on a worker; the future of its result."""
        if not self._plain or not callable(fn):
            future = self._future(fn, args, kwargs)
        else:
            future = PoolFuture(self._engine, fn, args, kwargs)
        if not self._submit(future, self._limits):
            raise self._engine.saturated_error()
        return future

    @overload
    def serve(self, fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> bool: ...
    @overload
    def serve(self, fn: str, /, *args: Any, **kwargs: Any) -> bool: ...

    def serve(self, fn: Any, /, *args: Any, **kwargs: Any) -> bool:
        """Run `fn(*args, **kwargs)` on a worker and forget it: True if it was accepted, False if the pool is
        saturated.
        """
        if not self._plain or not self._limits.any or not callable(fn):
            request = self._request(fn, args, kwargs)
        else:
            request = Request(self._engine.state_lock(), fn, args, kwargs)
        return self._submit(request, self._limits)

    @overload
    def do(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    def do(self, fn: str, /, *args: Any, **kwargs: Any) -> Any: ...

    def do(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Run `fn(*args, **kwargs)` on a worker and wait for the result, at most for the `timeout`. If the caller is
        interrupted meanwhile, the request is cancelled, where the runtime can cancel it.
        """
        if "asyncio" in sys.modules:
            _warn_on_event_loop()
        future = self._future(fn, args, kwargs)
        if not self._submit(future, self._limits, enforced=False):
            raise self._engine.saturated_error()
        timing = future.timing
        try:
            if timing is not None and timing.limits.timeout is not None and not future.wait_until(timing.deadline):
                self._engine.expiry.judge(future, timing.deadline)
            return future.result()
        except BaseException:
            self._engine.cancel(future)  # an interrupted caller drops the result
            raise
        finally:
            del future  # break the cycle with the traceback

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
        """The results of `fn` over the iterables; at most `buffersize` calls are under way or unread at once; see
        `Pool.map`.
        """
        return self.start_map(
            self._owner, fn, iterables, timeout, chunksize, buffersize, ordered=ordered, on_error=on_error
        )

    def start_map(
        self,
        owner: object,
        fn: Callable[..., Any] | str,
        iterables: tuple[Iterable[Any], ...],
        timeout: float | None,
        chunksize: int,
        buffersize: int | None,
        *,
        ordered: bool,
        on_error: OnError,
    ) -> MapIterator[Any]:
        """`map`, with an iterator that holds on to `owner`."""
        function = self._function(fn)
        at_least("chunksize", chunksize, 1)
        check_map_options(ordered, on_error)
        engine = self._engine
        deadline, window = self._options.of_map(timeout, buffersize, engine.clock.monotonic())
        if engine.status.draining:
            raise engine.not_open()
        if self._limits.budget <= 0:
            raise DeadlineExceeded(seconds=self._limits.budget, ran=False)
        source, widens = MapInput(iterables), buffersize is None and self._options.buffersize is None
        reading = Reading(window, widens=widens, ordered=ordered, outcomes=on_error == "return")
        work: MapWork[Any, Any]
        is_tiny = window < FEWEST_FOR_RUNNERS and "share_memory" in engine.runtime.capabilities
        if self._limits.any or not self._plain or engine.counts_items or is_tiny:
            work = RequestMap(engine, self._submit_items(function), source, reading)
        elif "share_memory" not in engine.runtime.capabilities:
            call = CallMany(function, logged=reading.outcomes)
            work = ChunkMap(engine, call, self._submit_chunk, source, reading, chunksize=chunksize)
        else:
            work = RunnerMap(engine, function, source, reading)
        return MapIterator.over(work, deadline, owner)

    @overload
    def stream(self, fn: Callable[P, Iterable[T]], /, *args: P.args, **kwargs: P.kwargs) -> Stream[T]: ...
    @overload
    def stream(self, fn: Callable[P, AsyncIterable[T]], /, *args: P.args, **kwargs: P.kwargs) -> Stream[T]: ...
    @overload
    def stream(self, fn: str, /, *args: Any, **kwargs: Any) -> Stream[Any]: ...

    def stream(self, fn: Any, /, *args: Any, **kwargs: Any) -> Stream[Any]:
        """The items that `fn(*args, **kwargs)` yields on a worker, as they come: see `Pool.stream`."""
        return self.start_stream(self._owner, fn, args, kwargs)

    def start_stream(self, owner: object, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Stream[Any]:
        """`stream`, with an iterator that holds on to `owner`."""
        work = StreamWork[Any](self._engine, self._options.buffersize or DEFAULT_BUFFER)
        work.admit(self._future(Produce(work, self._function(fn)), args, kwargs), self._admit)
        return Stream(work, owner)

    def _admit(self, future: PoolFuture[Any]) -> None:
        if not self._submit(future, self._limits):
            raise self._engine.saturated_error()

    def _submit_items(self, fn: Callable[..., T]) -> Callable[[tuple[Any, ...]], PoolFuture[T]]:
        """A function that submits an item of a map, from any thread, in the context of the caller of `map`."""
        context = contextvars.copy_context() if self._options.context else None

        def submit(args: tuple[Any, ...]) -> PoolFuture[T]:
            future: PoolFuture[T] = self._future(fn, args, {}, context)
            self._admit_item(future)
            return future

        return submit

    def _submit_chunk(self, call: CallMany, columns: Columns) -> PoolFuture[Outcomes]:
        """Submit several items of a map in one request."""
        future: PoolFuture[Outcomes] = PoolFuture(self._engine, call, columns, {})
        self._admit_item(future)
        return future

    def _admit_item(self, future: PoolFuture[Any]) -> None:
        """Submit an item of a map, and wait for room. In a callback, which must not wait, it is rejected."""
        if not self._submit(future, self._limits, wait_for_room=True):
            raise self._engine.saturated_error()

    def _future(
        self,
        fn: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        context: contextvars.Context | None = None,
    ) -> PoolFuture[Any]:
        call = self._bind(fn, args, kwargs, context)
        future: PoolFuture[Any] = PoolFuture(self._engine, *call)
        if self._traits is not None:
            future.traits = RequestTraits(self._traits)
        return future

    def _request(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Request:
        call = self._bind(fn, args, kwargs)
        if self._traits is None and not self._limits.any:
            return ServedRequest(*call)
        request = Request(self._engine.state_lock(), *call)
        if self._traits is not None:
            request.traits = RequestTraits(self._traits)
        return request

    def _bind(
        self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], context: contextvars.Context | None = None
    ) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """The call that a worker makes: the function itself, or inside the pool's wrapper, or in a copy of `context`.
        The default context is the caller's.
        """
        fn = self._function(fn)
        wrap = self._engine.options.wrap
        if wrap is not None:
            fn, args, kwargs = wrap, (WrappedCall(fn, *args, **kwargs),), {}
        if self._options.context:
            copy = contextvars.copy_context() if context is None else context.copy()
            fn, args = copy.run, (fn, *args)
        return fn, args, kwargs

    def _function(self, fn: Any) -> Callable[..., Any]:
        """The function to call: `fn` itself, or the method of the worker's instance that it names."""
        if callable(fn):
            if self._engine.by_name_only and not isinstance(fn, CallsMethod | ProducesItems):
                raise only_by_name(fn)
            return fn  # type: ignore[no-any-return]
        if not isinstance(fn, str):
            raise NotCallable(fn)
        if self._engine.instances is None:
            raise no_workers_class(self._engine.name, fn)
        return self._engine.instances.method(fn)


def _warn_on_event_loop() -> None:
    """Warn, once per process, if an event loop runs on this thread: `do` blocks it. asyncio is imported already.

    An interactive session gets no warning: a notebook runs each cell on its loop, which waits for the cell anyway.
    """
    global _warned  # noqa: PLW0603 — one process, one warning
    if _warned or hasattr(sys, "ps1"):
        return
    from asyncio import _get_running_loop

    if _get_running_loop() is None:
        return
    _warned = True
    warnings.warn(
        "Pool.do was called on the thread of a running event loop, which is blocked until the result is there; "
        "use bullpen.AsyncPool, or await asyncio.wrap_future(pool.submit(...))",
        RuntimeWarning,
        stacklevel=4,
    )
