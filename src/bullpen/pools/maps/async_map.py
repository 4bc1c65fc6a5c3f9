"""`AsyncPool.map`: results in order or as they come, never more than a window of calls under way or unread.

The reader takes the items, half a window at a time. Here each item is a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
from collections import deque
from collections.abc import AsyncIterable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from bullpen.pools.async_calls import AsyncCall, MapCall, ReaderWakeup
from bullpen.pools.dispatch.request import CANCELLED, DONE, QUEUED, CallTraits, TimeLimits
from bullpen.pools.maps.map_work import Reading
from bullpen.pools.maps.outcome import Outcome

if TYPE_CHECKING:
    from bullpen.pools.async_sides import Side

T = TypeVar("T")
Args = tuple[Any, ...]
_NO_KWARGS: dict[str, Any] = {}
Source = tuple[Iterable[Any] | AsyncIterable[Any], ...]


class AsyncMap(Generic[T]):
    """The results of one `map`. No call starts before the first result is asked for. The error of a call, or of an
    iterable, is raised after all earlier results and ends the map.
    """

    __slots__ = (
        "_calls",
        "_deadline",
        "_error",
        "_fn",
        "_held",
        "_items",
        "_kept",
        "_limits",
        "_low",
        "_owner",
        "_plain",
        "_reading",
        "_side",
        "_single",
        "_traits",
        "_wakeup",
        "_window",
    )

    def __init__(
        self,
        side: Side,
        limits: TimeLimits,
        traits: CallTraits | None,
        fn: Callable[..., Any],
        iterables: Source,
        deadline: float | None,
        reading: Reading,
        owner: object,
    ) -> None:
        self._side = side
        self._plain = reading.ordered and not reading.outcomes and deadline is None
        self._kept: dict[MapCall, Any] | None = {} if reading.outcomes else None  # the items, for outcomes
        self._single = len(iterables) == 1  # then an item is no tuple
        self._limits = limits
        self._traits = traits
        self._fn = fn
        self._items: Iterator[Args] | None = self._begin(iterables)
        self._held: AsyncCall | None = None  # a call for which there was no room
        self._error: BaseException | None = None  # of the iterables, or that the pool is closed
        self._deadline = deadline
        self._window = reading.window
        self._low = reading.window // 2  # refill when no more calls than this are left
        self._owner = owner  # a reference to the pool: an unreferenced pool drains
        self._calls: deque[MapCall] = deque()
        self._wakeup = ReaderWakeup(ordered=reading.ordered)
        self._reading = False

    def _begin(self, iterables: Source) -> Iterator[Args] | None:
        return zip(*cast("tuple[Iterable[Any], ...]", iterables), strict=False)

    def __aiter__(self) -> AsyncMap[T]:
        return self

    async def __anext__(self) -> T:
        if self._reading:
            raise RuntimeError("another task is already waiting for the next result of this map")
        calls = self._calls
        if self._plain and len(calls) > self._low and calls[0].state is DONE:
            return calls.popleft().value  # type: ignore[no-any-return]  # the usual case
        self._reading = True
        try:
            if self._deadline is None:
                return await self._next()
            async with asyncio.timeout(self._deadline - self._side.engine.clock.monotonic()):
                return await self._next()
        except BaseException:
            await self.aclose()  # an error or the cancellation of the reader ends the map
            raise
        finally:
            self._reading = False

    async def _next(self) -> T:
        calls = self._calls
        if len(calls) <= self._low:
            self._fill()
        if not calls:
            await self._start_held()
        return self._result(await self._take_ended())

    async def _take_ended(self) -> MapCall:
        """Wait for the oldest call, or for the first that ends, and take it out."""
        calls, arrived = self._calls, self._wakeup.arrived
        while not (calls[0].ended if arrived is None else arrived):
            if calls[0].state is QUEUED:
                self._help(calls[0])
            await self._wakeup.wait_for(calls[0], self._side.bridge.loop)
        if arrived is None:
            return calls.popleft()
        call = arrived.popleft()
        calls.remove(call)  # it is among the first
        return call

    def _help(self, call: MapCall) -> None:
        """The reader waits for `call`, which has not begun."""
        self._side.awaited(cast("AsyncCall", call))

    def _result(self, call: MapCall) -> T:
        if call.state is CANCELLED:
            raise asyncio.CancelledError
        if self._kept is not None:
            item = self._kept.pop(call)
            value, error = (call.value, None) if call.state is DONE else (None, call.value)
            return cast("T", Outcome(item, value, error))
        if call.state is DONE:
            return call.value  # type: ignore[no-any-return]
        if isinstance(call.value, StopIteration | StopAsyncIteration):  # it would look like the end of the results
            raise RuntimeError(f"the function of a map raised {type(call.value).__name__}") from call.value
        raise call.value

    def _fill(self) -> None:
        """Start calls until the window or the pool is full."""
        if self._items is None:
            return
        try:
            self._start_calls(self._items)
        except Exception as error:
            self._items = self._held = None
            self._error = error

    def _start_calls(self, items: Iterator[Args]) -> None:
        side = self._side
        if side.engine.bounded is None and is_plain(side, self._limits, self._traits):
            self._fill_plainly(items)
        else:
            self._fill_if_admitted(items)

    def _fill_plainly(self, items: Iterator[Args]) -> None:
        """Start calls without limits or traits in a pool without `max_queue`."""
        side, calls, fn, wakeup = self._side, self._calls, self._fn, self._wakeup
        kind, dispatcher, offer = side.new_request, side.dispatcher, side.offer
        kept, single = self._kept, self._single
        for args in itertools.islice(items, self._window - len(calls)):
            call = kind(side, fn, args, _NO_KWARGS, wakeup)
            if kept is not None:
                kept[call] = args[0] if single else args
            if dispatcher.status.phase.draining or not offer(call):
                raise side.engine.too_late()
            calls.append(call)
        if len(calls) < self._window:
            self._items, self._low = None, 0

    def _fill_if_admitted(self, items: Iterator[Args]) -> None:
        side, calls, limits = self._side, self._calls, self._limits
        while len(calls) < self._window:
            call = self._held
            if call is None:
                args = next(items, None)
                if args is None:
                    self._items, self._low = None, 0
                    return
                call = side.new_call(self._fn, args, {}, self._wakeup, self._traits)
                if self._kept is not None:
                    self._kept[call] = args[0] if self._single else args
            self._held = call
            if not side.admit(call, limits):
                return
            self._held = None
            calls.append(call)

    async def _start_held(self) -> None:
        """No call is under way: wait for room for the held call, or end the map."""
        call, self._held = self._held, None
        if call is not None:
            await submit_item(self._side, call, self._limits)
            self._calls.append(call)
        elif self._error is not None:
            error, self._error = self._error, None
            raise error
        else:
            raise StopAsyncIteration

    async def aclose(self) -> None:
        """Start no further call, and cancel the calls that were started."""
        self._drop()

    def _drop(self) -> None:
        self._items = self._held = self._error = None
        calls, self._calls = self._calls, deque()
        if self._kept is not None:
            self._kept.clear()
        self._give_up(calls)()

    def __del__(self) -> None:
        # This may run inside the garbage collector, on any thread, inside any critical section: it takes no lock.
        calls: deque[MapCall] | None = getattr(self, "_calls", None)
        if calls:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._side.bridge.loop.call_soon_threadsafe(self._give_up(calls))

    def _give_up(self, calls: deque[MapCall]) -> Callable[[], object]:
        """A function that cancels these calls. It has no reference to this map, which may be gone."""
        return functools.partial(_give_up, self._side, cast("deque[AsyncCall]", calls))


def is_plain(side: Side, limits: TimeLimits, traits: CallTraits | None) -> bool:
    """Whether calls need nothing but to run."""
    return side.wrap is None and not limits.any and traits is None


async def submit_item(side: Side, call: AsyncCall, limits: TimeLimits) -> None:
    """Admit a call, and wait for room if necessary. A call of a session is rejected instead of waiting."""
    if call.traits is None or call.traits.session is None:
        await side.submit_when_room(call, limits)
    elif not side.admit(call, limits):
        raise side.engine.saturated_error()


def _give_up(side: Side, calls: Iterable[AsyncCall]) -> None:
    for call in calls:
        if not call.ended:
            side.give_up(call)
