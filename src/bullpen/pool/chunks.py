"""`Pool.map` where workers share no memory with the pool: several items in one request, so that each costs little.

How many is found out: the first items go one by one, and if they turn out to be quick, those that follow go together,
as many as take a few milliseconds. So slow items are never bundled, and none waits long behind another. A failing item
concerns nobody else, but a worker that dies takes the whole chunk along.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any, TypeVar

from bullpen.core.request import CANCELLED, DONE, FAILED
from bullpen.errors import NotPicklable
from bullpen.pool.future import PoolFuture
from bullpen.pool.mapping import Calls, MapWork, take_first
from bullpen.runtimes.port import CallsMany, Outcomes

if TYPE_CHECKING:
    from bullpen.pool.engine import Engine

T = TypeVar("T")

CHUNK_SECONDS = 0.005  # what a chunk should take
PROBE_SECONDS = 0.005  # how long `map` waits to see whether items are quick
GROWTH = 8  # how many times larger the next chunk may be


class CallMany(CallsMany):
    """The call of a function for each of several items."""

    __slots__ = ("__name__", "__qualname__", "fn")

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self.__name__ = str(getattr(fn, "__name__", None) or fn)
        self.__qualname__ = str(getattr(fn, "__qualname__", None) or fn)

    @property
    def needs_instance(self) -> bool:
        return bool(getattr(self.fn, "needs_instance", False))

    def __call__(self, calls: list[tuple[Any, ...]]) -> Outcomes:
        values: list[Any] = []
        errors: dict[int, BaseException] = {}
        begun = time.perf_counter()
        for number, args in enumerate(calls):
            try:
                values.append(self.fn(*args))
            except BaseException as error:
                errors[number] = error
                values.append(None)
        return Outcomes(values, errors, time.perf_counter() - begun)


class _Chunk:
    """Several items in one request."""

    __slots__ = ("calls", "future", "outcomes", "singly")

    def __init__(self, calls: list[tuple[Any, ...]], future: PoolFuture[Outcomes]) -> None:
        self.calls = calls
        self.future = future
        self.outcomes: Outcomes | None = None  # once somebody has read one of them
        self.singly: list[_Chunk] = []  # if they had to go again, one by one


class ChunkMap(MapWork[T]):
    """One request for some items. The entries are chunks, and places in them."""

    def __init__(
        self,
        engine: Engine,
        submit: Callable[[list[tuple[Any, ...]]], PoolFuture[Outcomes]],
        calls: Calls,
        window: int,
        *,
        finite: bool,
        chunksize: int,
    ) -> None:
        self._submit = submit
        self._size = chunksize
        self._adapts = chunksize == 1
        self._most = max(1, window // (4 * engine.max_workers))
        self._singles = 2 * engine.max_workers if self._adapts else 0  # that go before it is known what they take
        self._under_way: deque[_Chunk] = deque()
        super().__init__(engine, calls, window, finite=finite)

    # Taking items.

    def accept(self, items: Calls) -> None:
        while self._calls is not None:
            forming: list[tuple[Any, ...]] = []
            try:
                forming.extend(islice(items, self._size))  # keeps what came before an error
            finally:
                if forming:
                    self.taken += len(forming)
                    self._send(forming)
            if not forming:
                return

    def _send(self, calls: list[tuple[Any, ...]]) -> None:
        """Submit a chunk."""
        chunk = self._chunk(calls)
        while self._under_way and self._under_way[0].future.ended:
            self._under_way.popleft()
        self._under_way.append(chunk)
        if self.unread is not None:
            self.unread.extend(zip(repeat(chunk), range(len(calls)), strict=False))
        if self._singles:
            self._singles -= 1
            if not self._singles:
                self._probe(self._under_way[0].future)

    def _chunk(self, calls: list[tuple[Any, ...]]) -> _Chunk:
        future = self._submit(calls)
        if len(calls) > 1:
            self.engine.extra_submitted.add(len(calls) - 1)
        future.add_done_callback(_Count(self.engine, len(calls)))
        return _Chunk(calls, future)

    def _probe(self, future: PoolFuture[Outcomes]) -> None:
        """See whether items are quick, which a moment is enough for."""
        if future.wait_at_gate(PROBE_SECONDS) and future.state is DONE:
            self._learn(future.value)

    def _learn(self, outcomes: Outcomes) -> None:
        if self._adapts:
            wanted = int(CHUNK_SECONDS * len(outcomes.values) / max(outcomes.seconds, 1e-9))
            self._size = max(1, min(wanted, self._most, GROWTH * self._size))

    def wait_for_room(self) -> int:
        under_way = self._under_way
        while (count := sum(len(chunk.calls) for chunk in under_way)) >= self.window:
            under_way[0].future.wait_at_gate(None)
            chunk = under_way.popleft()
            if chunk.future.state is DONE:
                self._learn(chunk.future.value)
        return self.window - count

    # Reading.

    def next(self, deadline: float | None) -> T:
        unread = self.unread
        if unread and len(unread) > self._low and not self._reading:  # the short way, which is taken most often
            chunk, place = entry = unread[0]
            outcomes = chunk.outcomes
            if outcomes is not None and place not in outcomes.errors:
                take_first(unread, entry)
                return outcomes.values[place]  # type: ignore[no-any-return]
        return super().next(deadline)

    def outcome(self, entry: tuple[_Chunk, int], deadline: float | None) -> T:
        chunk, place = entry
        if chunk.outcomes is None and not chunk.singly:
            self._wait_for(chunk, deadline)
        if chunk.singly:
            return self.outcome((chunk.singly[place], 0), deadline)
        assert chunk.outcomes is not None
        error = chunk.outcomes.errors.get(place)
        if error is not None:
            self.raise_from_call(error)
        return chunk.outcomes.values[place]  # type: ignore[no-any-return]

    def _wait_for(self, chunk: _Chunk, deadline: float | None) -> None:
        try:
            chunk.outcomes = chunk.future.result(None if deadline is None else deadline - self.engine.clock.monotonic())
        except BaseException as error:
            if not (chunk.future.ended or isinstance(error, Exception)):
                raise  # the reader was interrupted, and may read on
            if (
                isinstance(error, NotPicklable) and len(chunk.calls) > 1
            ):  # nothing of it has run, because of one of them
                chunk.singly = [self._chunk([args]) for args in chunk.calls]
                return
            self.raise_from_call(error)
        else:
            self._learn(chunk.outcomes)

    # The end.

    @property
    def needs_care(self) -> bool:
        return super().needs_care or (self.begun and bool(self.unread))

    def forget(self, unread: Any) -> None:
        for chunk, _ in unread:
            chunk.future.cancel()


class _Count:
    """Counts the items of a chunk that has ended, which is one request, as requests of their own."""

    __slots__ = ("_engine", "_items")

    def __init__(self, engine: Engine, items: int) -> None:
        self._engine = engine
        self._items = items

    def __call__(self, future: Any) -> None:
        more = self._items - 1
        if future.state is DONE:
            failed = len(future.value.errors)
            self._engine.extra_completed.add(more - failed)
            self._engine.extra_failed.add(failed)
        elif future.state is FAILED:
            self._engine.extra_failed.add(more)
        elif future.state is CANCELLED:
            self._engine.extra_cancelled.add(more)
        else:  # lost, or given up: counted as one
            self._engine.extra_submitted.add(-more)
