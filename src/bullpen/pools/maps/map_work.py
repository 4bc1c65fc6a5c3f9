"""One running `map`: it takes items from the iterables, keeps the unread entries in order, and ends.

A map takes a window of items when it is made, and more items as its results are read. A subclass decides how its items
run, and what an entry is. Three parties use a map: the reader, through `next` and `close`; the thread that feeds a map
without a reader, through `feed`; and the pool, through `cut` and `cancel`.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from bullpen import primitives
from bullpen.pools.dispatch.futures import PoolFuture
from bullpen.telemetry import logger

if TYPE_CHECKING:
    from bullpen.pools.supervision.engine import Engine


T = TypeVar("T")
Calls = Iterator[tuple[Any, ...]]

_REFILL_AT_ONCE_BELOW = 64  # a smaller window is refilled item by item


class MapWork(ABC, Generic[T]):
    """One running `map`: the items that are still to be called, and the entries that are still to be read."""

    def __init__(self, engine: Engine, calls: Calls, window: int, *, finite: bool) -> None:
        self.engine = engine
        self.window = window
        self.finite = finite  # whether an iterable has a length
        self.begun = False  # the first result was asked for
        self.dropped = False  # the iterator was garbage-collected
        self.interrupted = False  # the last read was interrupted
        self.taken = 0  # items so far
        self.feeder_id: int | None = None  # the thread that feeds it
        self.unread: deque[Any] | None = deque()  # entries for the reader, in order; None if no reader is left
        self._calls: Calls | None = calls
        self._last: BaseException | None = None  # raised after the last result, instead of StopIteration
        self._failed = False  # `_last` comes from the iterables, or from a rejected item
        self._feeding = primitives.gate()  # held while a thread takes from the iterables
        self._turn = primitives.gate()  # held while a thread reads
        self._reading = False  # a thread is inside `read`
        engine.maps.enter(self)
        try:
            self.fill(window)
            if self._failed and not self.taken:
                self._end()
        except BaseException:  # the caller gets no iterator
            self.close()
            raise

    # Taking items.

    @property
    def exhausted(self) -> bool:
        """Nothing more will be taken."""
        return self._calls is None

    @property
    def held_up(self) -> bool:
        """A thread is taking an item right now, and may block in the iterable."""
        if not self._feeding.acquire(False):
            return True
        self._feeding.release()
        return False

    def fill(self, count: int) -> None:
        """Take up to `count` more items. The reader gets an error of the iterables after all earlier results."""
        try:
            with self._feeding:
                self._take(count)
        finally:
            self.leave_if_done()

    def _take(self, count: int) -> None:
        if self._calls is None:
            return
        before = self.taken
        try:
            self.accept(itertools.islice(self._calls, count))
        except Exception as error:
            self._fails(error)
        else:
            if self.taken - before < count:
                self._calls = None

    @abstractmethod
    def accept(self, items: Calls) -> None:
        """Take these items one by one, until `_calls` is None. Schedule and count each of them."""

    def _fails(self, error: BaseException) -> None:
        """The iterables raised `error`, or the pool rejected an item."""
        self._last = error
        self._failed = True
        self._calls = None
        if self.dropped:
            self._log_failure()

    def _log_failure(self) -> None:
        """Log the error of the input: a map without a reader cannot raise it."""
        error, self._last, self._failed = self._last, None, False
        if self.engine.options.log_errors:
            message = "%s: a map without a reader ended early, after %d items: its input failed"
            logger.error(message, self.engine.name, self.taken, exc_info=error)

    def feed(self) -> None:
        """Take all remaining items, at the speed of the workers."""
        self.feeder_id = primitives.current_thread_id()
        try:
            while self._calls is not None:
                self.fill(self.wait_for_room())
        except BaseException as error:  # no caller is left that could get it
            self._fails(error)
        finally:
            self.feeder_id = None
            self.engine.maps.is_fed(self)

    @abstractmethod
    def wait_for_room(self) -> int:
        """Wait until fewer items than the window allows are under way. Return the difference."""

    def resized(self) -> None:
        """The pool was resized: more items may run at once than before."""

    def leave_if_done(self) -> None:
        """Unregister from the pool once all items are taken and none of them waits."""
        if self._calls is None and not self.waiting:
            self.engine.maps.leave(self)

    @property
    def waiting(self) -> int:
        """How many taken items wait for a worker. Requests in the backlog do not count."""
        return 0

    # Reading.

    def next(self, deadline: float | None) -> T:
        """The next result. Raises `ValueError` if another thread is reading, as a generator does."""
        if self._reading:
            raise read_twice()
        with self._turn:
            try:
                self._reading = True
                self.interrupted = False
                return self.read(deadline)
            except BaseException as error:
                self.interrupted = not isinstance(error, Exception)
                raise
            finally:
                self._reading = False

    @abstractmethod
    def read(self, deadline: float | None) -> T:
        """Wait for the result of the oldest item; its error, or `TimeoutError`, ends the map."""

    def first_unread(self) -> Any:
        """The oldest entry, which is not removed. Ends the map if there is none."""
        self.begun = True
        unread = self.unread
        if not unread:
            self.fill(self.window)  # usually nothing is left, but another thread may be taking items
            unread = self.unread
            if not unread:
                self._end()
        return unread[0]

    def _end(self) -> NoReturn:
        """All results were read: raise the error of the input, or `StopIteration`."""
        error, self._last = self._last, None
        try:
            raise StopIteration if error is None else error
        finally:
            del error

    def raise_from_call(self, error: BaseException) -> NoReturn:
        """End the map with the `error` of a call. A `StopIteration` would look like the end of the results."""
        self.close()
        try:
            if isinstance(error, StopIteration):
                raise RuntimeError("the function of a map raised StopIteration") from error
            raise error
        finally:
            del error  # break the cycle with the traceback

    # The end.

    def close(self) -> None:
        """Start no further item, and drop the unread results."""
        self.begun = True
        self._last = None
        self.stop()
        unread, self.unread = self.unread, None
        if unread is not None:
            self.forget(unread)
            unread.clear()

    def stop(self) -> None:
        """Take nothing more from the iterables. Takes no lock."""
        self._calls = None
        self.engine.maps.leave(self)

    def forget(self, unread: Any) -> None:
        """Cancel these entries, which are dropped unread."""

    def cancel_unread(self, future: PoolFuture[Any]) -> None:
        """Cancel a dropped entry: also while it runs, if the reader was interrupted."""
        if self.interrupted:
            self.engine.cancel(future)
        else:
            future.cancel()

    def cut(self, error: BaseException) -> None:
        """Take no further item. Taken items still run; the reader gets `error` after their results."""
        self._last = error
        self._calls = None

    def cancel(self) -> None:
        """The pool closes without draining: start no further item. The reader gets `CancelledError` at the end."""
        if self._calls is not None:
            self.cut(CancelledError())

    @property
    def needs_care(self) -> bool:
        """The dropped iterator leaves work behind that `__del__` cannot do. Takes no lock."""
        return self._calls is not None or (self._failed and not self.begun)

    def reader_gone(self) -> None:
        """Do the work that the dropped iterator left behind, on a thread of its own."""
        if self.begun:
            self.close()
        elif self._failed:
            self._log_failure()
        else:
            self.feed()


def take_first(unread: deque[Any], entry: Any) -> None:
    """Remove `entry` from the front. Raises `ValueError` if another reader has removed it already."""
    try:
        taken = unread.popleft()
    except IndexError:
        raise read_twice() from None
    if taken is not entry:
        unread.appendleft(taken)
        raise read_twice()


def read_twice() -> ValueError:
    return ValueError(
        "this map is being read already, by another thread or by a function that it calls; read it in one place, "
        "and pass its results on"
    )


class ItemMap(MapWork[T]):
    """A map with an entry for each item."""

    def __init__(self, engine: Engine, calls: Calls, window: int, *, finite: bool) -> None:
        self._low = window if window < _REFILL_AT_ONCE_BELOW else window // 2 + 1  # refill at so few unread entries
        super().__init__(engine, calls, window, finite=finite)

    def read(self, deadline: float | None) -> T:
        entry = self.first_unread()
        try:
            value = self.outcome(entry, deadline)
        except BaseException:
            del entry  # break the cycle with the traceback
            raise
        unread = self.unread
        if unread is None:  # it was closed meanwhile
            return value
        if len(unread) <= self._low and self._calls is not None:
            self.fill(self.window - len(unread) + 1)
        take_first(unread, entry)  # only now: an interrupt loses nothing
        return value

    @abstractmethod
    def outcome(self, entry: Any, deadline: float | None) -> T:
        """The result of an item; its error, or `TimeoutError`, ends the map."""
