"""`Pool.map` where workers share no memory with the pool: several items in one request, so that each costs little.

How many is found out: the first items go one by one, and if they turn out to be quick, those that follow go together,
as many as take a few milliseconds. So slow items are never bundled, and none waits long behind another. A chunk goes as
columns, the list of all first arguments, of all second ones, …, and its values are read from the list in which they
came. A failing item concerns nobody else, but a worker that dies takes the whole chunk along.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from bullpen.core.request import CANCELLED, DONE, FAILED
from bullpen.pool.future import PoolFuture
from bullpen.pool.mapping import MapIterator, MapWork, take_first
from bullpen.runtimes.port import CallsMany, Outcomes

if TYPE_CHECKING:
    from bullpen.pool.engine import Engine

T = TypeVar("T")
Columns = tuple[list[Any], ...]  # of several items: all first arguments, all second ones, …

CHUNK_SECONDS = 0.005  # what a chunk should take
CHUNK_BYTES = 256 * 1024  # and how large it should be, there and back
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
        self.values: list[Any] | None = None  # once somebody reads it: what is left to be read, the first one last
        self.error: BaseException | None = None  # what comes after that


class ChunkIterator(MapIterator[T]):
    """The results of one `map`, of which several come at once."""

    __slots__ = ()

    _work: ChunkMap[T]

    def __next__(self) -> T:
        try:
            return self._work.ready.pop()
        except IndexError:
            pass  # what is raised below shall not seem to come from this
        try:
            return self._work.next(self._deadline)
        except BaseException:
            del self  # as in MapIterator
            raise


class ChunkMap(MapWork[T]):
    """One request for some items. The entries are chunks; the one that is being read is the first of them.

    A window that nobody has asked for gets wider when the reader has to wait for items that are so quick and so small
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
        self.ready: list[T] = []  # what is left of the chunk that is being read
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
            self.engine.extra_submitted.add(chunk.count - 1)
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
        """See whether items are quick, which a moment is enough for, and then try larger chunks."""
        size = self._size
        if chunk.future.wait_at_gate(PROBE_SECONDS):
            self._learn_from(chunk)
        self._trial = [] if self._size > size else None

    def _learn_from(self, chunk: _Chunk, *, waited: bool = False) -> None:
        """See how many items the next chunks should have, and the window; `waited`: the reader had to."""
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
        """How many items a chunk may have, so that all workers have some, and some more wait for them."""
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
        """Wait until it is known what became of a chunk."""
        waited = not chunk.future.ended
        try:
            outcomes = chunk.future.result(None if deadline is None else deadline - self.engine.clock.monotonic())
        except BaseException as error:
            if not (chunk.future.ended or isinstance(error, Exception)):
                raise  # the reader was interrupted, and may read on
            self.raise_from_call(error)
        self._learn_from(chunk, waited=waited)
        end = min(outcomes.errors, default=len(outcomes.values))
        chunk.error = outcomes.errors.get(end)
        chunk.values = outcomes.values[end - 1 :: -1] if end else []
        outcomes.values = []  # what was read is not kept

    def _pass_by(self, chunk: _Chunk) -> None:
        """A chunk was read to its end: take it out, and as many items as there is room for now."""
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
