"""`AsyncPool.map` over async iterables.

A *feeder* takes the items of all iterables, in a task of its own. So results can be read while the next item is still
awaited.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from bullpen.pools.async_calls import AsyncCall, MapCall, ReaderWakeup
from bullpen.pools.dispatch.request import CallTraits, TimeLimits
from bullpen.pools.maps.async_map import Args, AsyncMap, Source, submit_item

if TYPE_CHECKING:
    from bullpen.pools.async_sides import Side

T = TypeVar("T")


class FedMap(AsyncMap[T]):
    """A map over iterables of which at least one has to be awaited."""

    __slots__ = ("_feeder",)

    def _begin(self, iterables: Source) -> None:
        self._feeder: Feeder | None = Feeder(iterables)

    async def _next(self) -> T:
        feeder, calls = self._feeder, self._calls
        if feeder is None:
            raise StopAsyncIteration
        if feeder.task is None:
            side, fn, wakeup, traits = self._side, self._fn, self._wakeup, self._traits
            new_call = functools.partial(_new_call, side, fn, wakeup, traits, self._kept, self._single)
            feeder.start(side, self._limits, new_call, calls, self._window)
        while not calls:
            if not await feeder.wait_for_call():
                raise StopAsyncIteration
        call = await self._take_ended()
        feeder.make_room()
        return self._result(call)

    async def aclose(self) -> None:
        """Start no further call, cancel those that were started, and wait until the iterables are no longer used."""
        await super().aclose()
        feeder, self._feeder = self._feeder, None
        if feeder is not None and feeder.task is not None:
            feeder.stop()
            await asyncio.wait([feeder.task])

    def __del__(self) -> None:
        feeder: Feeder | None = getattr(self, "_feeder", None)
        if feeder is not None and feeder.task is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._side.bridge.loop.call_soon_threadsafe(feeder.stop)
        super().__del__()


class Feeder:
    """Takes items from the iterables and starts their calls, never more than a window. It has no reference to the map,
    because a dropped map must be garbage-collected.
    """

    __slots__ = ("_call_came", "_calls", "_iterables", "_loop", "_room", "_window", "task")

    def __init__(self, iterables: Source) -> None:
        self._iterables = iterables
        self.task: asyncio.Task[None] | None = None
        self._call_came: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None

    def start(
        self,
        side: Side,
        limits: TimeLimits,
        new_call: Callable[[Args], AsyncCall],
        calls: deque[MapCall],
        window: int,
    ) -> None:
        self._loop = side.bridge.loop
        self._calls = calls
        self._window = window
        self.task = asyncio.Task(self._feed(side, limits, new_call), loop=self._loop)
        self.task.add_done_callback(self._ended)

    async def _feed(self, side: Side, limits: TimeLimits, new_call: Callable[[Args], AsyncCall]) -> None:
        sources = [_reader(iterable) for iterable in self._iterables]
        while True:
            while len(self._calls) >= self._window:
                self._room = self._loop.create_future()
                await self._room
            try:
                args = [await read() for read in sources]
            except StopAsyncIteration:
                return
            call = new_call(tuple(args))
            await submit_item(side, call, limits)
            self._calls.append(call)
            _wake(self._call_came)

    async def wait_for_call(self) -> bool:
        """Wait for the next call; False if there is none. Raises the error of the iterables."""
        assert self.task is not None
        if self.task.done():
            self.task.result()
            return False
        self._call_came = self._loop.create_future()
        await self._call_came
        return True

    def make_room(self) -> None:
        _wake(self._room)

    def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            task.exception()  # mark it as retrieved: the reader gets it from `wait_for_call`
        _wake(self._call_came)


def _new_call(
    side: Side,
    fn: Callable[..., Any],
    wakeup: ReaderWakeup,
    traits: CallTraits | None,
    kept: dict[MapCall, Any] | None,
    single: bool,
    args: Args,
) -> AsyncCall:
    call = side.new_call(fn, args, {}, wakeup, traits)
    if kept is not None:
        kept[call] = args[0] if single else args
    return call


def _reader(iterable: Iterable[Any] | AsyncIterable[Any]) -> Callable[[], Awaitable[Any]]:
    """A function that awaits the next item, or raises `StopAsyncIteration`."""
    if isinstance(iterable, AsyncIterable):
        return aiter(iterable).__anext__
    items = iter(iterable)

    async def read() -> Any:
        for item in items:
            return item
        raise StopAsyncIteration

    return read


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
