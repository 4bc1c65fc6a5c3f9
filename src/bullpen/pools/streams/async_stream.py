"""`AsyncPool.stream`: the items of a generator that runs on a worker, as they are produced.

A *buffer* with room for a few items is between generator and reader: a generator that is faster than its reader waits.
An async generator runs on the loop, in the task of its request; any other runs on a thread. Its request runs again only
if it had produced no item when its worker died, so no item comes twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from bullpen import primitives
from bullpen.pools.async_calls import AsyncFuture
from bullpen.pools.dispatch.request import Request
from bullpen.pools.runtimes.port import ProducesItems, current_coroutine, current_request

if TYPE_CHECKING:
    from bullpen.pools.async_sides import Side, Sides
    from bullpen.pools.loop_bridge import LoopBridge

T = TypeVar("T")


class AsyncStream(Generic[T]):
    """The items of one generator. Its error is raised after all items.

    The stream is its own context manager. Entering it submits the call, which raises if the pool rejects it; outside
    `async with`, the request for the first item does that. Closing or dropping the stream early cancels the generator.
    """

    __slots__ = ("_args", "_bridge", "_buffer", "_fn", "_future", "_kwargs", "_reading", "_side", "_submit")

    def __init__(
        self,
        submit: Callable[[Side, Any, tuple[Any, ...], dict[str, Any]], Awaitable[AsyncFuture[Any]]],
        sides: Sides,
        size: int,
        fn: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self._submit = submit  # a method of the view, which refers to the pool: an unreferenced pool drains
        self._bridge = sides.bridge
        self._side, self._fn = sides.find_generator(fn)
        self._args, self._kwargs = args, kwargs
        self._buffer: _LoopBuffer | _ThreadBuffer
        if self._side is sides.coroutines:
            self._buffer = _LoopBuffer(sides.bridge, size)
        elif sides.threads.is_remote:
            self._buffer = _RemoteBuffer(sides.bridge, size)
        else:
            self._buffer = _ThreadBuffer(sides.bridge, size)
        self._future: AsyncFuture[None] | None = None
        self._reading = False

    def __aiter__(self) -> AsyncStream[T]:
        return self

    async def __anext__(self) -> T:
        if self._reading:
            raise RuntimeError("another task is already waiting for the next item of this stream")
        self._reading = True
        try:
            return await self._next()
        except BaseException:
            await self.aclose()  # the end, or the cancellation of the reader, closes the stream
            raise
        finally:
            self._reading = False

    async def _next(self) -> T:
        buffer = self._buffer
        await self._start()
        while not buffer.items:
            if self._future is None or buffer.closed:
                raise StopAsyncIteration
            if self._future.done():
                self._future.result()
                raise StopAsyncIteration
            await buffer.wait_for_item()
        return buffer.take()  # type: ignore[no-any-return]

    async def _start(self) -> None:
        """Submit the call, unless that was done or the stream is closed."""
        buffer = self._buffer
        if self._future is not None or buffer.closed:
            return
        args, kwargs = self._args, self._kwargs
        self._args, self._kwargs = (), {}
        remote = buffer if isinstance(buffer, _RemoteBuffer) else None
        pump = Pump(buffer, self._fn) if remote is None else RemotePump(remote, self._fn)
        future = await self._submit(self._side, pump, args, kwargs)
        self._future = future
        if remote is not None:
            remote.belongs_to(future.call)
        future.add_done_callback(buffer.generator_ended)

    async def aclose(self) -> None:
        """Cancel the generator, unless it has ended, and drop the buffered items."""
        self._buffer.close()
        future = self._future
        if future is not None and not future.cancel() and not future.cancelled():
            future.exception()  # mark it as retrieved: the reader got it, or has closed the stream

    async def __aenter__(self) -> AsyncStream[T]:
        await self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        # This may run inside the garbage collector, on any thread, inside any critical section: it takes no lock.
        future: AsyncFuture[None] | None = getattr(self, "_future", None)
        if future is not None and not self._buffer.closed:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._bridge.loop.call_soon_threadsafe(_abandon, self._buffer, future)


def _abandon(buffer: _LoopBuffer | _ThreadBuffer, future: AsyncFuture[None]) -> None:
    buffer.close()
    if not future.cancel() and not future.cancelled():
        future.exception()


class Pump:
    """The call that a worker makes for a stream: run a function, and put the items that it yields into a buffer."""

    __slots__ = ("__name__", "__qualname__", "_buffer", "_fn")

    def __init__(self, buffer: _LoopBuffer | _ThreadBuffer, fn: Any) -> None:
        self._buffer = buffer
        self._fn = fn
        self.__name__ = str(getattr(fn, "__name__", None) or fn)
        self.__qualname__ = str(getattr(fn, "__qualname__", None) or fn)

    @property
    def needs_instance(self) -> bool:
        return bool(getattr(self._fn, "needs_instance", False))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._buffer.pump(self._fn(*args, **kwargs))


class RemotePump(ProducesItems):
    """The same in another process: the runtime brings the items that the function yields."""

    __slots__ = ("__name__", "__qualname__", "_buffer", "fn")

    def __init__(self, buffer: _RemoteBuffer, fn: Any) -> None:
        self._buffer = buffer
        self.fn = fn
        self.__name__ = str(getattr(fn, "__name__", None) or fn)
        self.__qualname__ = str(getattr(fn, "__qualname__", None) or fn)

    @property
    def needs_instance(self) -> bool:
        return bool(getattr(self.fn, "needs_instance", False))

    @property
    def room(self) -> int:  # type: ignore[override]
        return self._buffer.size

    def take(self, item: Any, wake: Callable[[], object]) -> bool | None:
        return self._buffer.offer(item, wake)

    def __call__(self) -> NoReturn:
        raise AssertionError("it runs elsewhere")


class _StreamBuffer:
    """Items on their way from a generator to its reader. The reader's side is used on the loop only."""

    def __init__(self, bridge: LoopBridge, size: int) -> None:
        self.bridge = bridge
        self.size = size
        self.items: deque[Any] = deque()
        self.closed = False
        self.begun = False  # an item was produced
        self._reader: asyncio.Future[None] | None = None

    def begin(self, request: Request | None) -> None:
        """`request` has produced its first item: another run would repeat it."""
        self.begun = True
        if request is not None:
            request.once_only()

    async def wait_for_item(self) -> None:
        """Wait until there is an item, or the generator has ended."""
        self._reader = self.bridge.loop.create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def wake_reader(self) -> None:
        reader = self._reader
        if reader is not None and not reader.done():
            reader.set_result(None)

    def generator_ended(self, future: asyncio.Future[None]) -> None:  # noqa: ARG002 — as callbacks are
        """The generator ended, or was abandoned. Its buffered items can still be read."""
        self.wake_reader()


class _LoopBuffer(_StreamBuffer):
    """From an async generator on the same loop."""

    def __init__(self, bridge: LoopBridge, size: int) -> None:
        super().__init__(bridge, size)
        self._room: asyncio.Future[None] | None = None

    async def pump(self, made: Any) -> None:
        """Put all items of an async generator into the buffer."""
        try:
            async for item in made:
                if not self.begun:
                    self.begin(current_coroutine())
                self.items.append(item)
                self.wake_reader()
                if len(self.items) >= self.size:
                    self._room = self.bridge.loop.create_future()
                    await self._room
        finally:
            if hasattr(made, "aclose"):
                await made.aclose()

    def take(self) -> Any:
        item = self.items.popleft()
        self._make_room(self.size // 2)
        return item

    def close(self) -> None:
        self.closed = True
        self.items.clear()
        self.wake_reader()

    def _make_room(self, when: int) -> None:
        if self._room is not None and len(self.items) <= when and not self._room.done():
            self._room.set_result(None)


class _ThreadBuffer(_StreamBuffer):
    """From a generator on a thread, which blocks there while the buffer is full."""

    def __init__(self, bridge: LoopBridge, size: int) -> None:
        super().__init__(bridge, size)
        self._lock = primitives.leaf_lock()  # protects the fields below, and the items
        self._gate = primitives.gate()  # opened only for a waiting generator
        self._gate.acquire()
        self._waiting = False  # the generator waits at the gate
        self._posted = False  # a wake-up of the reader is on its way
        self._over = False  # the generator has to end

    def pump(self, made: Any) -> None:
        """Put all items of a generator into the buffer."""
        try:
            for item in made:
                if not self.begun:
                    self.begin(current_request())
                if not self._put(item):
                    return
        finally:
            if hasattr(made, "close"):
                made.close()

    def _put(self, item: Any) -> bool:
        """Put an item into the buffer, and wait for room for the next one; False if the stream has ended."""
        with self._lock:
            if self._over:
                return False
            self.items.append(item)
            tell, self._posted = not self._posted, True
            wait = self._waiting = len(self.items) >= self.size
        if tell:
            self.bridge.post(self)
        if wait:
            self._gate.acquire()
        return not self._over

    def deliver(self, at_once: bool = False) -> None:  # noqa: ARG002
        self._posted = False
        self.wake_reader()

    def take(self) -> Any:
        with self._lock:
            item = self.items.popleft()
            if self._waiting and len(self.items) <= self.size // 2:
                self._let_go_on()
        return item

    def close(self) -> None:
        with self._lock:
            self.closed = True
            self.items.clear()
            self._end_generator()
        self.wake_reader()

    def generator_ended(self, future: asyncio.Future[None]) -> None:
        with self._lock:
            self._end_generator()  # an abandoned generator still runs
        super().generator_ended(future)

    def _end_generator(self) -> None:
        self._over = True
        if self._waiting:
            self._let_go_on()

    def _let_go_on(self) -> None:
        self._waiting = False
        self._gate.release()


class _RemoteBuffer(_ThreadBuffer):
    """From a generator in another process. Its items come on a thread that must not wait."""

    def __init__(self, bridge: LoopBridge, size: int) -> None:
        super().__init__(bridge, size)
        self._request: Request | None = None
        self._is_known = False  # `belongs_to` was called
        self._wake: Callable[[], object] | None = None  # called when there is room, or the stream has ended

    def belongs_to(self, request: Request | None) -> None:
        """Set the request of the stream; None if it has ended already."""
        with self._lock:
            self._request = request
            self._is_known = True
            self._let_go_on()

    def offer(self, item: Any, wake: Callable[[], object]) -> bool | None:
        """True if `item` was taken, False if the stream has ended. None: no room; `wake` is called when there is."""
        with self._lock:
            if self._over:
                return False
            if not self._is_known or len(self.items) >= self.size:
                self._waiting = True
                self._wake = wake
                return None
            if not self.begun:
                self.begin(self._request)
            self.items.append(item)
            tell, self._posted = not self._posted, True
        if tell:
            self.bridge.post(self)
        return True

    def _let_go_on(self) -> None:
        self._waiting = False
        wake, self._wake = self._wake, None
        if wake is not None:
            wake()
