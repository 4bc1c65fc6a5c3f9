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
        self.__name__ = str(getattr(fn, "__name__", None) or fn)
        self.__qualname__ = str(getattr(fn, "__qualname__", None) or fn)

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


class ChunkMap(FutureMap[T, FutureBundle]):
    """One request for some items.

    If the caller gave no window, the window grows when the reader has to wait for items that are so quick and so small
    that more of them could go in one request.
    """

    def __init__(
        self,
        engine: Engine,
        submit: Callable[[Columns], PoolFuture[Outcomes]],
        source: MapInput,
        reading: Reading,
        *,
        chunksize: int,
    ) -> None:
        self._submit = submit
        self._size = chunksize
        self._adapts = chunksize == 1
        self._widest = WIDENING * reading.window if reading.widens else reading.window
        self._trial: list[FutureBundle] | None = [] if self._adapts else None  # the first ones of their size
        self._under_way: deque[FutureBundle] = deque()
        self._waited_for: FutureBundle | None = None  # the reader had to wait for this chunk
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

    def _send(self, items: list[Any]) -> FutureBundle:
        """Submit a chunk."""
        columns = (items,) if self.source.single else tuple(map(list, zip(*items, strict=True)))
        chunk = FutureBundle(items, self._submit(columns))
        if chunk.count > 1:
            self.engine.counts.extra_submitted.add(chunk.count - 1)
        chunk.future.add_done_callback(_Count(self.engine, chunk.count))
        while self._under_way and self._under_way[0].future.ended:
            self._under_way.popleft()
        self._under_way.append(chunk)
        if not self.outcomes:
            chunk.items = []
        return chunk

    def _try(self, chunk: FutureBundle) -> None:
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

    def _learn_from(self, chunk: FutureBundle, *, waited: bool = False) -> None:
        """Adapt the size of the next chunks, and the window. `waited`: the reader had to wait for this chunk."""
        if not self._adapts or chunk.future.state is not DONE:
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

    def wait_for(self, bundle: FutureBundle, deadline: float | None) -> None:
        if not bundle.future.ended:
            self._waited_for = bundle
            super().wait_for(bundle, deadline)

    def succeeded(self, bundle: FutureBundle) -> None:
        outcomes: Outcomes = bundle.future.value
        if outcomes.lost is None:
            self._learn_from(bundle, waited=self._waited_for is bundle)
        else:
            outcomes.errors[outcomes.lost] = loss(bundle.future.worker, outcomes.errors[outcomes.lost])
            self._run_again(bundle, outcomes)
        bundle.errors = outcomes.errors or None
        bundle.values, outcomes.values = outcomes.values, []  # values are released as they are read

    def _run_again(self, bundle: FutureBundle, outcomes: Outcomes) -> None:
        """The worker of `bundle` has died: its items that had not begun become a chunk of their own."""
        done = len(outcomes.values)
        left = bundle.items[done:]
        if not left:
            return
        try:
            chunk = self._send(left)
        except Exception as error:  # the pool is closed, for example
            outcomes.errors.update(dict.fromkeys(range(done, bundle.count), error))
            outcomes.values.extend([None] * len(left))
            return
        self.engine.counts.extra_submitted.add(-chunk.count)  # they were counted before
        del bundle.items[done:]
        bundle.count = done
        self.add(chunk, behind=bundle)


class _Count:
    """Counts each item of a chunk that has ended as a request of its own."""

    __slots__ = ("_engine", "_items")

    def __init__(self, engine: Engine, items: int) -> None:
        self._engine = engine
        self._items = items

    def __call__(self, future: Any) -> None:
        more = self._items - 1
        if future.state is DONE:
            outcomes: Outcomes = future.value
            failed = len(outcomes.errors)
            if outcomes.lost is not None:
                more = outcomes.lost  # the items behind it run elsewhere
                self._engine.counts.lost.add()
            self._engine.counts.extra_completed.add(more - failed)
            failed -= outcomes.lost is not None
            self._engine.counts.extra_failed.add(failed)
        elif future.state is FAILED:
            self._engine.counts.extra_failed.add(more)
        elif future.state is CANCELLED:
            self._engine.counts.extra_cancelled.add(more)
        else:  # lost or abandoned: counted as one request
            self._engine.counts.extra_submitted.add(-more)
