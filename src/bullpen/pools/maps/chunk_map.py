"""`Pool.map` where workers share no memory with the pool: several items in one request, so that each costs little.

The map measures how many: it sends the first items one by one. If they turn out to be quick, it sends the following
items in chunks that take a few milliseconds each. So slow items are never bundled, and no item waits long behind
another. A chunk is sent as columns: the list of all first arguments, of all second ones, …. A failing item does not
affect the others. Neither does an item that kills its worker, if outcomes are returned: the results of the items
before it are logged, and the items behind it run elsewhere. Otherwise the map ends there anyway, and the whole chunk is
lost: to log the results of cheap items takes longer than to make them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from bullpen.pools.dispatch.futures import PoolFuture
from bullpen.pools.dispatch.request import CANCELLED, DONE, FAILED
from bullpen.pools.maps.map_work import FutureBundle, FutureMap, MapInput, Reading
from bullpen.pools.runtimes.port import CallsMany, Outcomes
from bullpen.pools.supervision.deaths import loss

if TYPE_CHECKING:
    from bullpen.pools.supervision.engine import Engine

T = TypeVar("T")
Columns = tuple[list[Any], ...]  # of several items: all first arguments, all second ones, …

CHUNK_SECONDS = 0.005  # the duration that a chunk should have
CHUNK_BYTES = 256 * 1024  # the size that a chunk should have, arguments plus results
PROBE_SECONDS = 0.005  # how long `map` waits to see whether items are quick
GROWTH = 16  # how many times larger the next chunk may be
WIDENING = 32  # how many times larger the window may get


class CallMany(CallsMany):
    """The call of a function for each of several items."""

    __slots__ = ("__name__", "__qualname__", "fn", "logged")

    def __init__(self, fn: Callable[..., Any], *, logged: bool) -> None:
        self.fn = fn
        self.logged = logged
        self.past = None
        self.__name__ = str(getattr(fn, "__name__", None) or fn)
        self.__qualname__ = str(getattr(fn, "__qualname__", None) or fn)

    def for_a_chunk(self) -> CallMany:
        """The call of one chunk: a logged one has a past of its own."""
        return CallMany(self.fn, logged=True) if self.logged else self

    @property
    def needs_instance(self) -> bool:
        return bool(getattr(self.fn, "needs_instance", False))

    def __call__(self, *columns: list[Any]) -> Outcomes:
        values: list[Any] = []
        errors: dict[int, BaseException] = {}
        begun = time.perf_counter()
        for number, args in enumerate(zip(*columns, strict=True)):
            try:
                values.append(self.fn(*args))
            except BaseException as error:
                errors[number] = error
                values.append(None)
        return Outcomes(values, errors, time.perf_counter() - begun)


class Chunk(FutureBundle):
    """The items of one request."""

    __slots__ = ("call",)

    def __init__(self, items: list[Any], future: PoolFuture[Outcomes], call: CallMany) -> None:
        super().__init__(items, future)
        self.call = call


class ChunkMap(FutureMap[T, Chunk]):
    """One request for some items.

    If the caller gave no window, the window grows when the reader has to wait for items that are so quick and so small
    that more of them could go in one request.
    """

    def __init__(
        self,
        engine: Engine,
        call: CallMany,
        submit: Callable[[CallMany, Columns], PoolFuture[Outcomes]],
        source: MapInput,
        reading: Reading,
        *,
        chunksize: int,
    ) -> None:
        self._call = call
        self._submit = submit
        self._size = chunksize
        self._adapts = chunksize == 1
        self._widest = WIDENING * reading.window if reading.widens else reading.window
        self._trial: list[Chunk] | None = [] if self._adapts else None  # the first ones of their size
        self._under_way: deque[Chunk] = deque()
        self._waited_for: Chunk | None = None  # the reader had to wait for this chunk
        super().__init__(engine, source, reading)

    # Taking items.

    def accept(self, items: Iterator[Any]) -> None:
        while self._calls is not None:
            forming: list[Any] = []
            try:
                forming.extend(islice(items, self._size))  # keeps what came before an error
            finally:
                if forming:
                    self.taken += len(forming)
                    chunk = self._send(forming)
                    self.add(chunk)
                    self._try(chunk)
            if not forming:
                return

    def _send(self, items: list[Any]) -> Chunk:
        """Submit a chunk."""
        columns = (items,) if self.source.single else tuple(map(list, zip(*items, strict=True)))
        call = self._call.for_a_chunk()
        chunk = Chunk(items, self._submit(call, columns), call)
        if chunk.count > 1:
            self.engine.counts.extra_submitted.add(chunk.count - 1)
        chunk.future.add_done_callback(_Count(self.engine, chunk.count, call))
        while self._under_way and self._under_way[0].future.ended:
            self._under_way.popleft()
        self._under_way.append(chunk)
        if not self.outcomes:
            chunk.items = []
        return chunk

    def _try(self, chunk: Chunk) -> None:
        """Of the first chunks of their size, wait a moment for one. If it was quick, try larger ones."""
        if self._trial is None:
            return
        self._trial.append(chunk)
        if len(self._trial) < 2 * self.engine.max_workers:
            return
        size, first = self._size, self._trial[0]
        if first.future.wait_at_gate(PROBE_SECONDS):
            self._learn_from(first)
        self._trial = [] if self._size > size else None

    def _learn_from(self, chunk: Chunk, *, waited: bool = False) -> None:
        """Adapt the size of the next chunks, and the window. `waited`: the reader had to wait for this chunk."""
        if not self._adapts or chunk.future.state is not DONE or chunk.call.past is not None:
            return
        outcomes: Outcomes = chunk.future.value
        portion = min(CHUNK_SECONDS / max(outcomes.seconds, 1e-9), CHUNK_BYTES / max(outcomes.size, 1))
        wanted = int(chunk.count * portion)
        most = self._most()
        if waited and self._size == most < wanted and self.window < self._widest:
            self.window = min(4 * self.window, self._widest)
            most = self._most()
        self._size = max(1, min(wanted, most, GROWTH * self._size))

    def _most(self) -> int:
        """How many items a chunk may have, so that every worker has one, and a few chunks wait."""
        return max(1, self.window // (3 * self.engine.max_workers))

    @property
    def least_refill(self) -> int:
        return min(self._size, max(1, self.window // 2))

    def wait_for_room(self) -> int:
        under_way = self._under_way
        while (count := sum(chunk.count for chunk in under_way)) >= self.window:
            under_way[0].future.wait_at_gate(None)
            self._learn_from(under_way.popleft())
        return self.window - count

    # Reading.

    def wait_for(self, bundle: Chunk, deadline: float | None) -> None:
        if not bundle.future.ended:
            self._waited_for = bundle
            super().wait_for(bundle, deadline)

    def settle(self, bundle: Chunk) -> None:
        super().settle(bundle)
        past = bundle.call.past
        if past is None:
            return
        done, errors = len(past.values), bundle.errors or {}
        if bundle.future.state is DONE:
            errors = {done + place: error for place, error in errors.items()}
            bundle.values = past.values + bundle.values
        else:
            errors = {place: error for place, error in errors.items() if place >= done}
            bundle.values[:done] = past.values
        lost = {place: loss(worker, past.errors[place]) for place, worker in past.lost.items()}
        bundle.errors = {**errors, **past.errors, **lost}
        bundle.call.past = None

    def succeeded(self, bundle: Chunk) -> None:
        outcomes: Outcomes = bundle.future.value
        self._learn_from(bundle, waited=self._waited_for is bundle)
        bundle.errors = outcomes.errors or None
        bundle.values, outcomes.values = outcomes.values, []  # values are released as they are read


class _Count:
    """Counts each item of a chunk that has ended as a request of its own."""

    __slots__ = ("_call", "_engine", "_items")

    def __init__(self, engine: Engine, items: int, call: CallMany) -> None:
        self._engine = engine
        self._items = items
        self._call = call

    def __call__(self, future: Any) -> None:
        more = self._items - 1
        if self._call.past is not None:
            more -= self._count_past(self._call.past)
        if future.state is DONE:
            failed = len(future.value.errors)
            self._engine.counts.extra_completed.add(more - failed)
            self._engine.counts.extra_failed.add(failed)
        elif future.state is FAILED:
            self._engine.counts.extra_failed.add(more)
        elif future.state is CANCELLED:
            self._engine.counts.extra_cancelled.add(more)
        else:  # lost or abandoned: counted as one request
            self._engine.counts.extra_submitted.add(-more)

    def _count_past(self, past: Outcomes) -> int:
        count, failed = len(past.values), len(past.errors)
        self._engine.counts.extra_completed.add(count - failed)
        self._engine.counts.extra_failed.add(failed - len(past.lost))
        for _ in past.lost:
            self._engine.counts.lost.add()
        return count
