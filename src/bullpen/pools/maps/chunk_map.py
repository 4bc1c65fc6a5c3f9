"""`Pool.map` where workers share no memory with the pool: several items in one request, so that each costs little.

The map measures how many: it sends the first items one by one. If they turn out to be quick, it sends the following
items in chunks that take a few milliseconds each. So slow items are never bundled, and no item waits long behind
another. A chunk is sent as columns: the list of all first arguments, of all second ones, …. The reader reads the values
from the list that came back. A failing item does not affect the others, but a worker that dies loses its whole chunk.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from bullpen.pools.dispatch.futures import PoolFuture
from bullpen.pools.dispatch.request import CANCELLED, DONE, FAILED
from bullpen.pools.maps.iterator import MapIterator
from bullpen.pools.maps.map_work import MapWork, take_first
from bullpen.pools.runtimes.port import CallsMany, Outcomes

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

    __slots__ = ("__name__", "__qualname__", "fn")

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
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


class _Chunk:
    """Several items in one request."""

    __slots__ = ("count", "error", "future", "values")

    def __init__(self, count: int, future: PoolFuture[Outcomes]) -> None:
        self.count = count
        self.future = future
        self.values: list[Any] | None = None  # set when it is read: the unread values, the next one last
        self.error: BaseException | None = None  # raised after the values


class ChunkIterator(MapIterator[T]):
    """The results of one `map` that arrive in chunks."""

    __slots__ = ()

    _work: ChunkMap[T]

    def __next__(self) -> T:
        try:
            return self._work.ready.pop()
        except IndexError:
            pass  # an error raised below must not have this one as its context
        try:
            return self._work.next(self._deadline)
        except BaseException:
            del self  # as in MapIterator
            raise


class ChunkMap(MapWork[T]):
    """One request for some items. The entries are chunks; the first one is being read.

    If the caller gave no window, the window grows when the reader has to wait for items that are so quick and so small
    that more of them could go in one request.
    """

    def __init__(
        self,
        engine: Engine,
        submit: Callable[[Columns], PoolFuture[Outcomes]],
        iterables: tuple[Iterable[Any], ...],
        window: int,
        *,
        widens: bool,
        finite: bool,
        chunksize: int,
    ) -> None:
        self._submit = submit
        self._size = chunksize
        self._adapts = chunksize == 1
        self._widest = WIDENING * window if widens else window
        self._trial: list[_Chunk] | None = [] if self._adapts else None  # the first ones of their size
        self._under_way: deque[_Chunk] = deque()
        self._passed = 0  # items of chunks that were read to their end
        self.ready: list[T] = []  # the unread values of the chunk that is being read
        self._single = len(iterables) == 1  # then an item is no tuple
        items = iter(iterables[0]) if self._single else zip(*iterables, strict=False)
        super().__init__(engine, items, window, finite=finite)

    # Taking items.

    def accept(self, items: Iterator[Any]) -> None:
        while self._calls is not None:
            forming: list[Any] = []
            try:
                forming.extend(islice(items, self._size))  # keeps what came before an error
            finally:
                if forming:
                    self.taken += len(forming)
                    self._send((forming,) if self._single else tuple(map(list, zip(*forming, strict=True))))
            if not forming:
                return

    def _send(self, columns: Columns) -> None:
        """Submit a chunk."""
        chunk = _Chunk(len(columns[0]), self._submit(columns))
        if chunk.count > 1:
            self.engine.counts.extra_submitted.add(chunk.count - 1)
        chunk.future.add_done_callback(_Count(self.engine, chunk.count))
        while self._under_way and self._under_way[0].future.ended:
            self._under_way.popleft()
        self._under_way.append(chunk)
        if self.unread is not None:
            self.unread.append(chunk)
        if self._trial is not None:
            self._trial.append(chunk)
            if len(self._trial) == 2 * self.engine.max_workers:
                self._probe(self._trial[0])

    def _probe(self, chunk: _Chunk) -> None:
        """Wait a moment for a chunk. If it was quick, try larger ones."""
        size = self._size
        if chunk.future.wait_at_gate(PROBE_SECONDS):
            self._learn_from(chunk)
        self._trial = [] if self._size > size else None

    def _learn_from(self, chunk: _Chunk, *, waited: bool = False) -> None:
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

    def wait_for_room(self) -> int:
        under_way = self._under_way
        while (count := sum(chunk.count for chunk in under_way)) >= self.window:
            under_way[0].future.wait_at_gate(None)
            self._learn_from(under_way.popleft())
        return self.window - count

    # Reading.

    def read(self, deadline: float | None) -> T:
        while True:
            chunk = self.first_unread()
            if chunk.values is None:
                self._wait_for(chunk, deadline)
            elif chunk.values:
                self.ready = chunk.values
                return chunk.values.pop()  # type: ignore[no-any-return]
            elif chunk.error is not None:
                self.raise_from_call(chunk.error)
            else:
                self._pass_by(chunk)

    def _wait_for(self, chunk: _Chunk, deadline: float | None) -> None:
        """Wait until a chunk has ended."""
        waited = not chunk.future.ended
        try:
            outcomes = chunk.future.result(None if deadline is None else deadline - self.engine.clock.monotonic())
        except BaseException as error:
            if not (chunk.future.ended or isinstance(error, Exception)):
                raise  # the reader was interrupted, and may continue
            self.raise_from_call(error)
        self._learn_from(chunk, waited=waited)
        end = min(outcomes.errors, default=len(outcomes.values))
        chunk.error = outcomes.errors.get(end)
        chunk.values = outcomes.values[end - 1 :: -1] if end else []
        outcomes.values = []  # values are released as they are read

    def _pass_by(self, chunk: _Chunk) -> None:
        """A chunk was read to its end: remove it, and take as many new items as there is room for."""
        room = self.window - (self.taken - self._passed - chunk.count)
        size = min(self._size, max(1, self.window // 2))
        if self._calls is not None and room >= size:
            self.fill(room - room % size)
        if self.unread is not None:
            take_first(self.unread, chunk)  # only now: an interrupt loses nothing
        self._passed += chunk.count

    # The end.

    def close(self) -> None:
        super().close()
        self.ready = []

    @property
    def needs_care(self) -> bool:
        return super().needs_care or (self.begun and bool(self.unread))

    def forget(self, unread: Any) -> None:
        for chunk in unread:
            self.cancel_unread(chunk.future)


class _Count:
    """Counts each item of a chunk that has ended as a request of its own."""

    __slots__ = ("_engine", "_items")

    def __init__(self, engine: Engine, items: int) -> None:
        self._engine = engine
        self._items = items

    def __call__(self, future: Any) -> None:
        more = self._items - 1
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
