"""A request of an `AsyncPool` and its `asyncio.Future`.

The request belongs to the pool, and has the states of every request. The future belongs to the caller, and only the
loop's thread touches it. A request that ends on that thread settles its future itself. One that ends on another thread
is posted to the loop.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from bullpen.pools.dispatch.request import CANCELLED, DONE, FAILED, QUEUED, RUNNING, Request, WrappedCall
from bullpen.pools.dispatch.states import RequestState
from bullpen.pools.explain import Explanation, explain_ended, explain_request

if TYPE_CHECKING:
    from bullpen import primitives
    from bullpen.pools.dispatch.worker import Worker
    from bullpen.pools.loop_bridge import LoopBridge
    from bullpen.pools.supervision.engine import Engine

T = TypeVar("T")

_add_done_callback = asyncio.Future.add_done_callback
_await = asyncio.Future.__await__
_cancel = asyncio.Future.cancel
_run_in = Context.run


class CallOwner(Protocol):
    """The side of an `AsyncPool` that a call belongs to, as far as calls and their futures use it."""

    @property
    def engine(self) -> Engine: ...
    @property
    def bridge(self) -> LoopBridge: ...
    def give_up(self, call: AsyncCall) -> None: ...
    def awaited(self, call: AsyncCall) -> None: ...
    def was_cancelled(self, call: AsyncCall, worker: Worker | None) -> None: ...


class LoopCallOwner(CallOwner, Protocol):
    """The side that runs coroutines: its calls share one lock."""

    @property
    def lock(self) -> primitives.Lock: ...


class ThreadCallOwner(CallOwner, Protocol):
    """The side that runs functions: each call gets one of its locks."""

    @property
    def state_lock(self) -> Callable[[], primitives.Lock]: ...
    @property
    def is_remote(self) -> bool: ...


def mark_coroutine_function(function: Callable[..., Any]) -> None:
    """Mark `function` as a coroutine function, for code that checks before it calls."""
    if sys.version_info >= (3, 12):
        inspect.markcoroutinefunction(function)
    else:
        function._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]  # noqa: SLF001


class AsyncFuture(asyncio.Future[T]):
    """The future that `AsyncPool.submit` returns. Cancelling it, or the task that awaits it, cancels the work."""

    __slots__ = ("origin",)

    origin: AsyncCall | CallOwner  # its call; after the end only the side, so that the call is freed

    @property
    def call(self) -> AsyncCall | None:
        """Its call, until that ends."""
        return self.origin if isinstance(self.origin, AsyncCall) else None

    @property
    def engine(self) -> Engine:
        origin = self.origin
        return (origin.side if isinstance(origin, AsyncCall) else origin).engine

    def explained(self) -> Explanation:
        """Why it waits, or how it ended."""
        call = self.call
        if call is not None:
            return explain_request(self.engine, call)
        if self.cancelled():
            return explain_ended(self.engine, CANCELLED)
        error = self.exception()
        return explain_ended(self.engine, DONE if error is None else FAILED, error)

    def cancel(self, msg: Any = None) -> bool:
        """Cancel it, and the work. A queued call never runs, a running coroutine is cancelled, and the result of a
        function that runs on a thread is dropped. False if it has ended.
        """
        if not _cancel(self, msg):
            return False
        call = self.call
        if call is not None:
            self.origin = call.side
            call.side.give_up(call)
        return True


class NestedFuture(AsyncFuture[T]):
    """The future of a call that a coroutine of the same pool has made, and may wait for while it keeps its place."""

    __slots__ = ()

    def add_done_callback(self, fn: Callable[[Any], object], **context: Any) -> None:
        """Call `fn(self)` when it ends. `await` calls this method, too."""
        call = self.call
        if call is not None:
            call.side.awaited(call)
        _add_done_callback(self, fn, **context)


class CoroutineFuture(AsyncFuture[T]):
    """The awaitable that `AsyncPool.do` returns. For `await` and `asyncio.gather` it is a future, which needs no task;
    for `create_task` it is a coroutine.
    """

    __slots__ = ()

    __name__ = "AsyncPool.do"  # in the `repr` of such a task

    def reject(self, error: Exception) -> None:
        """The pool rejected the call: raise `error` where it is awaited."""
        if not self.done():
            self.set_exception(error)

    def send(self, value: None, /) -> Any:
        return _await(self).send(value)

    def throw(self, *error: Any) -> Any:
        self.cancel()  # unless it has ended
        return _await(self).throw(*error)

    def close(self) -> None:
        self.cancel()


class NestedCoroutineFuture(CoroutineFuture[T]):
    """The same for a call that a coroutine of the same pool has made."""

    __slots__ = ()

    add_done_callback = NestedFuture.add_done_callback


class MapCall(Protocol):
    """A call of a map, as far as the reader needs it: a request, or an item that a runner runs."""

    state: RequestState
    value: Any

    @property
    def ended(self) -> bool: ...


class ReaderWakeup:
    """Takes the place of futures in the calls of a map: wakes the reader when the call that it awaits has ended, or
    when any call has ended if the map is not `ordered`.
    """

    __slots__ = ("_reader", "arrived", "awaited")

    def __init__(self, *, ordered: bool = True) -> None:
        self.arrived: deque[MapCall] | None = None if ordered else deque()  # the calls that have ended
        self.awaited: MapCall | None = None
        self._reader: asyncio.Future[None] | None = None

    async def wait_for(self, call: MapCall, loop: asyncio.AbstractEventLoop) -> None:
        self.awaited = call
        self._reader = loop.create_future()
        try:
            await self._reader
        finally:
            self.awaited = self._reader = None

    def wake(self, call: MapCall) -> None:
        """`call` has ended. On the loop's thread."""
        if self.arrived is not None:
            self.arrived.append(call)
        awaited, reader = self.awaited, self._reader
        if awaited is None or reader is None or reader.done():
            return
        if self.arrived is not None or awaited.ended:
            reader.set_result(None)


class AsyncCall(Request):
    """The base of calls on the loop and calls on threads."""

    __slots__ = ("future", "side")

    waiters: ClassVar[None] = None  # type: ignore[misc]  # its future has callbacks instead

    future: Any  # an `AsyncFuture`, a `ReaderWakeup`, or None
    side: CallOwner

    @property
    def attended(self) -> bool:  # type: ignore[override]
        return self.future is not None

    def cancel_running(self) -> bool:
        """running → cancelled: by its caller, or by code that cancelled its task."""
        worker = self.holder
        if not super().cancel_running():
            return False
        self.side.was_cancelled(self, worker)
        return True

    def deliver(self, at_once: bool = False) -> None:
        """Settle the future, on the loop, with the outcome of the request.

        `at_once`: no task is running, so a waiting task may be resumed without another pass of the loop.
        """
        future = self.future
        if type(future) is ReaderWakeup:
            future.wake(self)
            return
        if future is None or future.done():
            return
        future.origin = self.side
        state, value = self.state, self.value
        if state is DONE:
            callbacks = future._callbacks if at_once else None  # noqa: SLF001
            if callbacks is None or len(callbacks) > 1:
                future.set_result(value)
            else:
                _set_and_call(future, value, *callbacks[0])
        elif state is CANCELLED:
            _cancel(future)
        elif isinstance(value, StopIteration):  # a future cannot hold it
            error = RuntimeError("the function raised StopIteration")
            error.__cause__ = value
            future.set_exception(error)
        else:
            future.set_exception(value)


def _set_and_call(future: asyncio.Future[Any], value: Any, callback: Callable[[Any], object], context: Context) -> None:
    """Set the result of `future` and call its only callback, as the loop would do next.

    A loop handle for each result would cost as much as all other steps of a small request.
    """
    future.remove_done_callback(callback)
    future.set_result(value)
    try:
        context.run(callback, future)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        message = f"Exception in callback {callback!r}"
        future.get_loop().call_exception_handler({"message": message, "exception": error, "future": future})


class LoopCall(AsyncCall):
    """A call of a coroutine function. Only the loop's thread touches it, so it takes no lock."""

    __slots__ = ("context",)

    def __init__(
        self,
        side: LoopCallOwner,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        future: AsyncFuture[Any] | ReaderWakeup | None,
    ) -> None:
        # As Request.__init__, written out: this runs once for every call ever made.
        self.side = side
        self.lock = side.lock
        self.fn = fn
        self.args = args
        self.kwargs = kwargs or None
        self.state = QUEUED
        self.timing = None
        self.traits = None
        self.future = future
        self.context = copy_context()

    def start(self, worker: Worker) -> bool:
        if self.state is not QUEUED:
            return False
        self.state = RUNNING
        self.worker = worker
        return True

    def settle(self, state: RequestState, value: Any) -> bool:
        if state is not DONE or self.state is not RUNNING:
            return self._leave(RUNNING, state, value)
        # As `_leave` and `deliver`, written out.
        self.value = value
        self.state = DONE
        self.fn = self.args = self.kwargs = self.context = None
        if self.timing is not None:
            self.timing.request = None
        future = self.future
        if type(future) is ReaderWakeup:
            if future.awaited is self or future.arrived is not None:
                future.wake(self)
        elif future is not None and not future.done():
            future.origin = self.side
            future.set_result(value)
        return True

    def _leave(self, expected: RequestState, state: RequestState, value: Any) -> bool:
        if self.state is not expected:
            return False
        self._become(state, value)
        self.context = None
        self.deliver()
        return True


class ThreadCall(AsyncCall):
    """A call of a function: on a thread in the caller's context, or in another process without it."""

    __slots__ = ()

    def __init__(
        self,
        side: ThreadCallOwner,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        future: AsyncFuture[Any] | ReaderWakeup | None,
    ) -> None:
        # As Request.__init__, written out: this runs once for every call ever made.
        self.side = side
        self.lock = side.state_lock()
        if side.is_remote:
            self.fn = fn
            self.args = args
        else:
            self.fn = _run_in  # a bound method of the context would be one more object
            self.args = (copy_context(), fn, *args)
        self.kwargs = kwargs or None
        self.state = QUEUED
        self.timing = None
        self.traits = None
        self.future = future

    @property
    def function(self) -> Any:
        args = self.args
        if self.fn is not _run_in:  # in another process, or it has ended
            return super().function
        return args[2].func if len(args) > 2 and isinstance(args[2], WrappedCall) else args[1]

    def settle(self, state: RequestState, value: Any) -> bool:
        # As `_leave`, written out. A worker may hold its lock: the loop takes none when it is woken.
        lock = self.lock
        lock.acquire()
        if self.state is not RUNNING:
            lock.release()
            return False
        self.value = value
        self.state = state
        self.fn = self.args = self.kwargs = None
        if self.timing is not None:
            self.timing.request = None
        lock.release()
        if self.future is not None:
            bridge = self.side.bridge
            bridge.deliveries.append(self)
            if not bridge.awake:
                bridge.wake()
        return True

    def _leave(self, expected: RequestState, state: RequestState, value: Any) -> bool:
        with self.lock:
            if self.state is not expected:
                return False
            self._become(state, value)
        if self.future is not None:
            self.side.bridge.post(self)
        return True
