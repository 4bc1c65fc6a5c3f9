"""`AsyncPool.stream`: the items of a generator, which runs on a worker, as they are made.

Between the two is a *channel* with room for a few items: a generator that is faster than its reader waits. An async
generator runs on the loop, in the task of its request; any other runs on a thread. Its request runs again only if it
had made nothing when its worker died: no item comes twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from bullpen import primitives
from bullpen.core.request import Request
from bullpen.pool.async_call import AsyncFuture
from bullpen.runtimes.port import ProducesItems, current_coroutine, current_request

if TYPE_CHECKING:
    from bullpen.pool.async_view import AsyncPoolView
    from bullpen.pool.home import Home
    from bullpen.pool.lane import Lanes

T = TypeVar("T")


class AsyncStream(Generic[T]):
    """The items of one generator. It starts when the first item is asked for; its error comes after all of its items.

    To close it early is to cancel the generator, and so is to drop it. It is its own context manager.
    """

    __slots__ = ("_args", "_channel", "_fn", "_future", "_home", "_kwargs", "_lane", "_reading", "_view")

    def __init__(
        self, view: AsyncPoolView, lanes: Lanes, size: int, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._view = view
        self._home = lanes.home
        self._lane, self._fn = lanes.find_generator(fn)
        self._args, self._kwargs = args, kwargs
        self._channel: _LoopChannel | _ThreadChannel
        if self._lane is lanes.coroutines:
            self._channel = _LoopChannel(lanes.home, size)
        elif lanes.threads.is_remote:
            self._channel = _RemoteChannel(lanes.home, size)
        else:
            self._channel = _ThreadChannel(lanes.home, size)
        self._future: AsyncFuture[None] | None = None
        self._reading = False

    def __aiter__(self) -> AsyncStream[T]:
        return self

    async def __anext__(self) -> T:
        if self._reading:
            raise RuntimeError("somebody else waits for the next item of this stream already")
        self._reading = True
        try:
            return await self._next()
        except BaseException:
            await self.aclose()  # after the end, or for a reader that was cancelled, there is no next one
            raise
        finally:
            self._reading = False

    async def _next(self) -> T:
        channel = self._channel
        if self._future is None and not channel.closed:
            await self._start()
        while not channel.items:
            if self._future is None or channel.closed:
                raise StopAsyncIteration
            if self._future.done():
                self._future.result()
                raise StopAsyncIteration
            await channel.wait_for_item()
        return channel.take()  # type: ignore[no-any-return]

    async def _start(self) -> None:
        channel, view = self._channel, self._view
        args, kwargs = self._args, self._kwargs
        self._args, self._kwargs = (), {}
        remote = channel if isinstance(channel, _RemoteChannel) else None
        pump = Pump(channel, self._fn) if remote is None else RemotePump(remote, self._fn)
        future = await view.offer_patiently(self._lane, pump, args, kwargs)
        self._future = future
        if remote is not None:
            remote.belongs_to(future.call)
        future.add_done_callback(channel.generator_ended)

    async def aclose(self) -> None:
        """Cancel the generator, unless it has ended, and forget what it has made."""
        self._channel.close()
        future = self._future
        if future is not None and not future.cancel() and not future.cancelled():
            future.exception()  # it was raised, or nobody will ask for it

    async def __aenter__(self) -> AsyncStream[T]:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        # This may run inside the garbage collector, on any thread, inside any critical section: it takes no lock.
        future: AsyncFuture[None] | None = getattr(self, "_future", None)
        if future is not None and not self._channel.closed:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._home.loop.call_soon_threadsafe(_abandon, self._channel, future)


def _abandon(channel: _LoopChannel | _ThreadChannel, future: AsyncFuture[None]) -> None:
    channel.close()
    if not future.cancel() and not future.cancelled():
        future.exception()


class Pump:
    """The call that a worker makes for a stream: run a function, and put what it yields into a channel."""

    __slots__ = ("__name__", "__qualname__", "_channel", "_fn")

    def __init__(self, channel: _LoopChannel | _ThreadChannel, fn: Any) -> None:
        self._channel = channel
        self._fn = fn
        self.__name__ = str(getattr(fn, "__name__", None) or fn)
        self.__qualname__ = str(getattr(fn, "__qualname__", None) or fn)

    @property
    def needs_instance(self) -> bool:
        return bool(getattr(self._fn, "needs_instance", False))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._channel.pump(self._fn(*args, **kwargs))


class RemotePump(ProducesItems):
    """The same in another process: what the function yields is brought here by the runtime."""

    __slots__ = ("__name__", "__qualname__", "_channel", "fn")

    def __init__(self, channel: _RemoteChannel, fn: Any) -> None:
        self._channel = channel
        self.fn = fn
        self.__name__ = str(getattr(fn, "__name__", None) or fn)
        self.__qualname__ = str(getattr(fn, "__qualname__", None) or fn)

    @property
    def needs_instance(self) -> bool:
        return bool(getattr(self.fn, "needs_instance", False))

    @property
    def room(self) -> int:  # type: ignore[override]
        return self._channel.size

    def take(self, item: Any, wake: Callable[[], object]) -> bool | None:
        return self._channel.offer(item, wake)

    def __call__(self) -> NoReturn:
        raise AssertionError("it runs elsewhere")


class _Channel:
    """Items on their way from a generator to its reader. The reader's side is used on the loop only."""

    def __init__(self, home: Home, size: int) -> None:
        self.home = home
        self.size = size
        self.items: deque[Any] = deque()
        self.closed = False
        self.begun = False  # something was made
        self._reader: asyncio.Future[None] | None = None

    def begin(self, request: Request | None) -> None:
        """The first item of `request` is made: another run would repeat it."""
        self.begun = True
        if request is not None:
            request.once_only()

    async def wait_for_item(self) -> None:
        """Wait until there is an item, or the generator has ended."""
        self._reader = self.home.loop.create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def wake_reader(self) -> None:
        reader = self._reader
        if reader is not None and not reader.done():
            reader.set_result(None)

    def generator_ended(self, future: asyncio.Future[None]) -> None:  # noqa: ARG002 — as callbacks are
        """It ended, or was given up; what it has made can still be read."""
        self.wake_reader()


class _LoopChannel(_Channel):
    """From an async generator on the same loop."""

    def __init__(self, home: Home, size: int) -> None:
        super().__init__(home, size)
        self._room: asyncio.Future[None] | None = None

    async def pump(self, made: Any) -> None:
        """Pass on all that an async generator yields."""
        try:
            async for item in made:
                if not self.begun:
                    self.begin(current_coroutine())
                self.items.append(item)
                self.wake_reader()
                if len(self.items) >= self.size:
                    self._room = self.home.loop.create_future()
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


class _ThreadChannel(_Channel):
    """From a generator on a thread, which blocks there while the channel is full."""

    def __init__(self, home: Home, size: int) -> None:
        super().__init__(home, size)
        self._lock = primitives.backlog_lock()  # for all that follows, and what is in the channel
        self._gate = primitives.gate()  # open only for a generator that waits
        self._gate.acquire()
        self._waiting = False  # the generator waits at the gate
        self._posted = False  # the reader will be told that there is an item
        self._over = False  # the generator shall end

    def pump(self, made: Any) -> None:
        """Pass on all that a generator yields."""
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
        """Pass on an item, and wait for room for the next; False if nobody wants one."""
        with self._lock:
            if self._over:
                return False
            self.items.append(item)
            tell, self._posted = not self._posted, True
            wait = self._waiting = len(self.items) >= self.size
        if tell:
            self.home.post(self)
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
            self._end_generator()  # if it was only given up, it still runs
        super().generator_ended(future)

    def _end_generator(self) -> None:
        self._over = True
        if self._waiting:
            self._let_go_on()

    def _let_go_on(self) -> None:
        self._waiting = False
        self._gate.release()


class _RemoteChannel(_ThreadChannel):
    """From a generator in another process. Its items come on a thread that must not wait."""

    def __init__(self, home: Home, size: int) -> None:
        super().__init__(home, size)
        self._request: Request | None = None
        self._is_known = False  # to whom it belongs
        self._wake: Callable[[], object] | None = None  # called when there is room, or nobody wants more

    def belongs_to(self, request: Request | None) -> None:
        """This is the request; None if it has ended."""
        with self._lock:
            self._request = request
            self._is_known = True
            self._let_go_on()

    def offer(self, item: Any, wake: Callable[[], object]) -> bool | None:
        """True if `item` was taken, False if nobody wants more; None: `wake` is called when that can be said."""
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
            self.home.post(self)
        return True

    def _let_go_on(self) -> None:
        self._waiting = False
        wake, self._wake = self._wake, None
        if wake is not None:
            wake()
