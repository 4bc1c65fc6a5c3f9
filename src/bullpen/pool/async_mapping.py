"""`AsyncPool.map`: results in order, never more than a window of calls under way or unread."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from bullpen.core.request import CANCELLED, DONE, QUEUED
from bullpen.core.terms import Terms
from bullpen.core.timing import TimeLimits
from bullpen.pool.async_call import AsyncCall, Bell

if TYPE_CHECKING:
    from bullpen.pool.lane import Lane

T = TypeVar("T")
Args = tuple[Any, ...]


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
        iterables: tuple[Iterable[Any], ...],
        deadline: float | None,
        window: int,
        keeper: object,
    ) -> None:
        self._lane = lane
        self._limits = limits
        self._terms = terms
        self._fn = fn
        self._items: Iterator[Args] | None = zip(*iterables, strict=False)
        self._held: AsyncCall | None = None  # a call for which there was no room
        self._error: BaseException | None = None  # of the iterables, or that the pool is closed
        self._deadline = deadline
        self._window = window
        self._low = window // 2  # so few calls are too few
        self._keeper = keeper  # the pool, which would drain if nobody held on to it
        self._calls: deque[AsyncCall] = deque()
        self._bell = Bell()
        self._reading = False

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
            self._drop()  # after an error, or for a reader that was cancelled, there is no next one
            raise
        finally:
            self._reading = False

    async def _next(self) -> T:
        calls = self._calls
        if len(calls) <= self._low:
            self._fill()
        if not calls:
            await self._start_held()
        call = calls[0]
        while not call.ended:
            if call.state is QUEUED:
                self._lane.awaited(call)
            await self._bell.wait_for(call, self._lane.home.loop)
        calls.popleft()
        if call.state is DONE:
            return call.value  # type: ignore[no-any-return]
        if call.state is CANCELLED:
            raise asyncio.CancelledError
        if isinstance(call.value, StopIteration | StopAsyncIteration):  # which would look like the end of the results
            raise RuntimeError(f"the function of a map raised {type(call.value).__name__}") from call.value
        raise call.value

    def _fill(self) -> None:
        """Start calls until the window is full, or the pool."""
        lane, calls, items = self._lane, self._calls, self._items
        if items is None:
            return
        admit: Callable[[AsyncCall, TimeLimits], bool] = lane.admit
        new_call, fn, bell = lane.new_call, self._fn, self._bell
        limits, terms = self._limits, self._terms
        if not limits.any and (terms is None or terms.session is None):
            admit = lane.engine.submit  # which is what it would come to
        try:
            while len(calls) < self._window:
                call = self._held
                if call is None:
                    args = next(items, None)
                    if args is None:
                        self._items, self._low = None, 0
                        return
                    call = new_call(fn, args, {}, bell, terms)
                self._held = call
                if not admit(call, limits):
                    return
                self._held = None
                calls.append(call)
        except Exception as error:
            self._items = self._held = None
            self._error = error

    async def _start_held(self) -> None:
        """Nothing is under way: start what there was no room for, or end."""
        call, self._held = self._held, None
        if call is not None:
            await self._lane.submit_patiently(call, self._limits)
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


def _give_up(lane: Lane, calls: Iterable[AsyncCall]) -> None:
    for call in calls:
        if not call.ended:
            lane.give_up(call)
