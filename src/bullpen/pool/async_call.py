"""A request of an `AsyncPool` and its `asyncio.Future`.

The request is the pool's, and moves as every request does. The future is the caller's and is touched on the loop's
thread only. A request that ends there tells its future itself; one that ends on a thread is posted to the loop.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Mapping
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from bullpen.core.lifecycle import RequestState
from bullpen.core.request import CANCELLED, DONE, FAILED, QUEUED, RUNNING, Request, WrappedCall
from bullpen.pool.explain import Explanation, explain_ended, explain_request

if TYPE_CHECKING:
    from bullpen.core.worker import Worker
    from bullpen.pool.engine import Engine
    from bullpen.pool.lane import Lane, LoopLane, ThreadLane

T = TypeVar("T")

_add_done_callback = asyncio.Future.add_done_callback
_await = asyncio.Future.__await__
_cancel = asyncio.Future.cancel
_run_in = Context.run


def mark_coroutine_function(function: Callable[..., Any]) -> None:
    """Tell those who ask before they call `function` that its result is to be awaited."""
    if sys.version_info >= (3, 12):
        inspect.markcoroutinefunction(function)
    else:
        function._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]  # noqa: SLF001


class AsyncFuture(asyncio.Future[T]):
    """What `AsyncPool.submit` returns. To cancel it, or the task that waits for it, is to cancel the work."""

    __slots__ = ("origin",)

    origin: AsyncCall | Lane  # its call; once that has ended, only where it was: to keep it would be to keep it alive

    @property
    def call(self) -> AsyncCall | None:
        """Its call, until that ends."""
        return self.origin if isinstance(self.origin, AsyncCall) else None

    @property
    def engine(self) -> Engine:
        origin = self.origin
        return (origin.lane if isinstance(origin, AsyncCall) else origin).engine

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
        """Cancel it, and the work: what waits never runs, a coroutine that runs is cancelled, the result of a function
        that runs on a thread is dropped. False if it has ended.
        """
        if not _cancel(self, msg):
            return False
        call = self.call
        if call is not None:
            self.origin = call.lane
            call.lane.give_up(call)
        return True


class NestedFuture(AsyncFuture[T]):
    """The future of a call that a coroutine of the same pool has made, and may wait for while it keeps its place."""

    __slots__ = ()

    def add_done_callback(self, fn: Callable[[Any], object], **context: Any) -> None:
        """Call `fn(self)` when it ends. Whoever waits for it comes here, too."""
        call = self.call
        if call is not None:
            call.lane.awaited(call)
        _add_done_callback(self, fn, **context)


class CoroutineFuture(AsyncFuture[T]):
    """What `AsyncPool.do` returns: to `await` and `asyncio.gather` a future, which needs no task; to whoever makes one
    of it, a coroutine.
    """

    __slots__ = ()

    __name__ = "AsyncPool.do"  # in the `repr` of such a task

    def refuse(self, error: Exception) -> None:
        """The call could not be made, which whoever waits for it learns."""
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


class Bell:
    """What the calls of a map have instead of futures: it rings when the one that the reader waits for has ended."""

    __slots__ = ("_reader", "awaited")

    def __init__(self) -> None:
        self.awaited: AsyncCall | None = None
        self._reader: asyncio.Future[None] | None = None

    async def wait_for(self, call: AsyncCall, loop: asyncio.AbstractEventLoop) -> None:
        self.awaited = call
        self._reader = loop.create_future()
        try:
            await self._reader
        finally:
            self.awaited = self._reader = None

    def ring(self) -> None:
        """A call has ended. On the loop's thread."""
        call, reader = self.awaited, self._reader
        if call is not None and reader is not None and call.ended and not reader.done():
            reader.set_result(None)


class AsyncCall(Request):
    """What both kinds of calls have in common."""

    __slots__ = ("future", "lane")

    audience: ClassVar[None] = None  # type: ignore[misc]  # its future has one

    future: Any  # whom to tell: an `AsyncFuture`, a `Bell`, or None
    lane: Lane

    @property
    def attended(self) -> bool:  # type: ignore[override]
        return self.future is not None

    def cancel_running(self) -> bool:
        """running → cancelled: by its caller, or by somebody who cancelled its task."""
        worker = self.holder
        if not super().cancel_running():
            return False
        self.lane.was_cancelled(self, worker)
        return True

    def deliver(self, at_once: bool = False) -> None:
        """Tell the future, on the loop, what has become of the request.

        `at_once`: the loop has nothing else in hand, so whoever waits need not be called by way of the loop.
        """
        future = self.future
        if type(future) is Bell:
            future.ring()
            return
        if future is None or future.done():
            return
        future.origin = self.lane
        state, value = self.state, self.value
        if state is DONE:
            callbacks = future._callbacks if at_once else None  # noqa: SLF001
            if callbacks is None or len(callbacks) > 1:
                future.set_result(value)
            else:
                _set_and_call(future, value, *callbacks[0])
        elif state is CANCELLED:
            _cancel(future)
        elif isinstance(value, StopIteration):  # which a future cannot hold
            error = RuntimeError("the function raised StopIteration")
            error.__cause__ = value
            future.set_exception(error)
        else:
            future.set_exception(value)


def _set_and_call(future: asyncio.Future[Any], value: Any, callback: Callable[[Any], object], context: Context) -> None:
    """Set the result of `future` and call the only one who waits for it, as the loop would do next.

    A handle for each of many results would cost as much as all else that happens to a small request.
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
    """A call of a coroutine function. All that happens to it happens on the loop's thread, so it takes no lock."""

    __slots__ = ("context",)

    def __init__(
        self,
        lane: LoopLane,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        future: AsyncFuture[Any] | Bell | None,
    ) -> None:
        # As Request.__init__, written out: this runs once for every call ever made.
        self.lane = lane
        self.lock = lane.lock
        self.fn = fn
        self.args = args
        self.kwargs = kwargs or None
        self.state = QUEUED
        self.timing = None
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
        # As _leave and deliver, written out.
        self.value = value
        self.state = DONE
        self.fn = self.args = self.kwargs = self.context = None
        if self.timing is not None:
            self.timing.request = None
        future = self.future
        if type(future) is Bell:
            if future.awaited is self:
                future.ring()
        elif future is not None and not future.done():
            future.origin = self.lane
            future.set_result(value)
        return True

    def _leave(self, expected: RequestState, state: RequestState, value: Any) -> bool:
        if self.state is not expected:
            return False
        self.value = value
        self.state = state
        self.fn = self.args = self.kwargs = self.context = None
        if self.timing is not None:
            self.timing.request = None
        self.deliver()
        return True


class ThreadCall(AsyncCall):
    """A call of a function on a thread."""

    __slots__ = ()

    def __init__(
        self,
        lane: ThreadLane,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        future: AsyncFuture[Any] | Bell | None,
    ) -> None:
        # As Request.__init__, written out: this runs once for every call ever made.
        self.lane = lane
        self.lock = lane.state_lock()
        self.fn = _run_in  # not the context's own method, which would be one more object
        self.args = (copy_context(), fn, *args)
        self.kwargs = kwargs or None
        self.state = QUEUED
        self.timing = None
        self.future = future

    @property
    def function(self) -> Any:
        args = self.args
        if not args:
            return None
        return args[2].func if len(args) > 2 and isinstance(args[2], WrappedCall) else args[1]

    def settle(self, state: RequestState, value: Any) -> bool:
        # As _leave, written out. A worker may hold its lock: the loop takes none when it is woken.
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
            home = self.lane.home
            home.parcels.append(self)
            if not home.awake:
                home.wake()
        return True

    def _leave(self, expected: RequestState, state: RequestState, value: Any) -> bool:
        with self.lock:
            if self.state is not expected:
                return False
            self.value = value
            self.state = state
            self.fn = self.args = self.kwargs = None
            if self.timing is not None:
                self.timing.request = None
        if self.future is not None:
            self.lane.home.post(self)
        return True


class TermedLoopCall(LoopCall):
    """One with terms: of a session, or that may run again if its worker dies."""

    __slots__ = ("binds", "crashes", "pinned_to", "terms")


class TermedThreadCall(ThreadCall):
    """One with terms: of a session, or that may run again if its worker dies."""

    __slots__ = ("binds", "crashes", "pinned_to", "terms")


class RemoteCall(ThreadCall):
    """A call of a function in another process, where no context of this one can be."""

    __slots__ = ()

    def __init__(
        self,
        lane: ThreadLane,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        future: AsyncFuture[Any] | Bell | None,
    ) -> None:
        super().__init__(lane, fn, args, kwargs, future)
        self.fn, self.args = fn, args

    function = Request.function


class TermedRemoteCall(RemoteCall):
    """One with terms: of a session, or that may run again if its worker dies."""

    __slots__ = ("binds", "crashes", "pinned_to", "terms")
