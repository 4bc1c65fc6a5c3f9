"""`AsyncPool.map`: results in order, never more than a window of calls under way or unread.

Plain iterables are read by the reader, half a window at a time. Where one has to be awaited, a *feeder* reads them all,
in a task of its own, so that results can be had while the next item is not there yet.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from bullpen.core.request import CANCELLED, DONE, QUEUED
from bullpen.core.terms import Terms
from bullpen.core.timing import TimeLimits
from bullpen.pool.async_call import AsyncCall, Bell

if TYPE_CHECKING:
    from bullpen.pool.lane import Lane

T = TypeVar("T")
Args = tuple[Any, ...]
_NO_KWARGS: dict[str, Any] = {}
Source = tuple[Iterable[Any] | AsyncIterable[Any], ...]


class AsyncMap(Generic[T]):
    """The results of one `map`. Nothing is called before the first of them is asked for; the error of a call, or of an
    iterable, arrives after the results before it and ends the map.
    """

    __slots__ = (
        "_bell",
        "_calls",
        "_deadline",
        "_error",
        "_fn",
        "_held",
        "_items",
        "_keeper",
        "_lane",
        "_limits",
        "_low",
        "_reading",
        "_terms",
        "_window",
    )

    def __init__(
        self,
        lane: Lane,
        limits: TimeLimits,
        terms: Terms | None,
        fn: Callable[..., Any],
        iterables: Source,
        deadline: float | None,
        window: int,
        keeper: object,
    ) -> None:
        self._lane = lane
        self._limits = limits
        self._terms = terms
        self._fn = fn
        self._items: Iterator[Args] | None = self._begin(iterables)
        self._held: AsyncCall | None = None  # a call for which there was no room
        self._error: BaseException | None = None  # of the iterables, or that the pool is closed
        self._deadline = deadline
        self._window = window
        self._low = window // 2  # so few calls are too few
        self._keeper = keeper  # the pool, which would drain if nobody held on to it
        self._calls: deque[AsyncCall] = deque()
        self._bell = Bell()
        self._reading = False

    def _begin(self, iterables: Source) -> Iterator[Args] | None:
        return zip(*cast("tuple[Iterable[Any], ...]", iterables), strict=False)

    def __aiter__(self) -> AsyncMap[T]:
        return self

    async def __anext__(self) -> T:
        if self._reading:
            raise RuntimeError("somebody else waits for the next result of this map already")
        calls = self._calls
        if len(calls) > self._low and calls[0].state is DONE and self._deadline is None:  # the usual case
            return calls.popleft().value  # type: ignore[no-any-return]
        self._reading = True
        try:
            if self._deadline is None:
                return await self._next()
            async with asyncio.timeout(self._deadline - self._lane.engine.clock.monotonic()):
                return await self._next()
        except BaseException:
            await self.aclose()  # after an error, or for a reader that was cancelled, there is no next one
            raise
        finally:
            self._reading = False

    async def _next(self) -> T:
        calls = self._calls
        if len(calls) <= self._low:
            self._fill()
        if not calls:
            await self._start_held()
        await self._ended(calls[0])
        return self._result(calls.popleft())

    async def _ended(self, call: AsyncCall) -> None:
        while not call.ended:
            if call.state is QUEUED:
                self._lane.awaited(call)
            await self._bell.wait_for(call, self._lane.home.loop)

    def _result(self, call: AsyncCall) -> T:
        if call.state is DONE:
            return call.value  # type: ignore[no-any-return]
        if call.state is CANCELLED:
            raise asyncio.CancelledError
        if isinstance(call.value, StopIteration | StopAsyncIteration):  # which would look like the end of the results
            raise RuntimeError(f"the function of a map raised {type(call.value).__name__}") from call.value
        raise call.value

    def _fill(self) -> None:
        """Start calls until the window is full, or the pool."""
        if self._items is None:
            return
        lane, limits, terms = self._lane, self._limits, self._terms
        try:
            if lane.wrap is None and lane.engine.bounded is None and not limits.any and terms is None:
                self._fill_plainly(self._items)
            else:
                self._fill_if_admitted(self._items)
        except Exception as error:
            self._items = self._held = None
            self._error = error

    def _fill_plainly(self, items: Iterator[Args]) -> None:
        """In a pool that is never full, with calls that ask for nothing."""
        lane, calls, fn, bell = self._lane, self._calls, self._fn, self._bell
        kind, dispatcher, offer = lane.plain, lane.dispatcher, lane.offer
        for args in itertools.islice(items, self._window - len(calls)):
            call = kind(lane, fn, args, _NO_KWARGS, bell)
            if dispatcher.draining or not offer(call):
                raise lane.engine.too_late()
            calls.append(call)
        if len(calls) < self._window:
            self._items, self._low = None, 0

    def _fill_if_admitted(self, items: Iterator[Args]) -> None:
        lane, calls, limits = self._lane, self._calls, self._limits
        while len(calls) < self._window:
            call = self._held
            if call is None:
                args = next(items, None)
                if args is None:
                    self._items, self._low = None, 0
                    return
                call = lane.new_call(self._fn, args, {}, self._bell, self._terms)
            self._held = call
            if not lane.admit(call, limits):
                return
            self._held = None
            calls.append(call)

    async def _start_held(self) -> None:
        """Nothing is under way: start what there was no room for, or end."""
        call, self._held = self._held, None
        if call is not None:
            await _submit(self._lane, call, self._limits)
            self._calls.append(call)
        elif self._error is not None:
            error, self._error = self._error, None
            raise error
        else:
            raise StopAsyncIteration

    async def aclose(self) -> None:
        """Start nothing more, and cancel what was started."""
        self._drop()

    def _drop(self) -> None:
        self._items = self._held = self._error = None
        calls, self._calls = self._calls, deque()
        _give_up(self._lane, calls)

    def __del__(self) -> None:
        # This may run inside the garbage collector, on any thread, inside any critical section: it takes no lock.
        calls: deque[AsyncCall] | None = getattr(self, "_calls", None)
        if calls:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._lane.home.loop.call_soon_threadsafe(_give_up, self._lane, calls)


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
            lane, fn, bell, terms = self._lane, self._fn, self._bell, self._terms
            new_call = functools.partial(_new_call, lane, fn, bell, terms)
            feeder.start(lane, self._limits, new_call, calls, self._window)
        while not calls:
            if not await feeder.wait_for_call():
                raise StopAsyncIteration
        await self._ended(calls[0])
        call = calls.popleft()
        feeder.make_room()
        return self._result(call)

    async def aclose(self) -> None:
        """Start nothing more, and cancel what was started. The iterables are not in use any more then."""
        await super().aclose()
        feeder, self._feeder = self._feeder, None
        if feeder is not None and feeder.task is not None:
            feeder.stop()
            await asyncio.wait([feeder.task])

    def __del__(self) -> None:
        feeder: Feeder | None = getattr(self, "_feeder", None)
        if feeder is not None and feeder.task is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._lane.home.loop.call_soon_threadsafe(feeder.stop)
        super().__del__()


class Feeder:
    """Makes calls of what iterables yield, never more than a window of them. It does not know the map, whose end it
    would keep from being noticed.
    """

    __slots__ = ("_call_came", "_calls", "_iterables", "_loop", "_room", "_window", "task")

    def __init__(self, iterables: Source) -> None:
        self._iterables = iterables
        self.task: asyncio.Task[None] | None = None
        self._call_came: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None

    def start(
        self,
        lane: Lane,
        limits: TimeLimits,
        new_call: Callable[[Args], AsyncCall],
        calls: deque[AsyncCall],
        window: int,
    ) -> None:
        self._loop = lane.home.loop
        self._calls = calls
        self._window = window
        self.task = asyncio.Task(self._feed(lane, limits, new_call), loop=self._loop)
        self.task.add_done_callback(self._ended)

    async def _feed(self, lane: Lane, limits: TimeLimits, new_call: Callable[[Args], AsyncCall]) -> None:
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
            await _submit(lane, call, limits)
            self._calls.append(call)
            _open(self._call_came)

    async def wait_for_call(self) -> bool:
        """Wait for the next call; False if there is none, or what went wrong raised."""
        assert self.task is not None
        if self.task.done():
            self.task.result()
            return False
        self._call_came = self._loop.create_future()
        await self._call_came
        return True

    def make_room(self) -> None:
        _open(self._room)

    def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            task.exception()  # the reader is told, if there is one
        _open(self._call_came)


def _new_call(lane: Lane, fn: Callable[..., Any], bell: Bell, terms: Terms | None, args: Args) -> AsyncCall:
    return lane.new_call(fn, args, {}, bell, terms)


def _reader(iterable: Iterable[Any] | AsyncIterable[Any]) -> Callable[[], Awaitable[Any]]:
    """What reads the next item, or raises `StopAsyncIteration`."""
    if isinstance(iterable, AsyncIterable):
        return aiter(iterable).__anext__
    items = iter(iterable)

    async def read() -> Any:
        for item in items:
            return item
        raise StopAsyncIteration

    return read


def _open(gate: asyncio.Future[None] | None) -> None:
    if gate is not None and not gate.done():
        gate.set_result(None)


async def _submit(lane: Lane, call: AsyncCall, limits: TimeLimits) -> None:
    """Admit a call, after waiting for room if need be. One of a session does not wait for room."""
    if call.terms is None or call.terms.session is None:
        await lane.submit_patiently(call, limits)
    elif not lane.admit(call, limits):
        raise lane.engine.saturated_error()


def _give_up(lane: Lane, calls: Iterable[AsyncCall]) -> None:
    for call in calls:
        if not call.ended:
            lane.give_up(call)
