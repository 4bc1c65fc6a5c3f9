"""One running `map`: it takes items from the iterables, keeps the unread bundles, and ends.

A map takes a window of items when it is made, and more items as its results are read. A *bundle* is one item, or
several items that run one after another. A subclass decides how its bundles run. Three parties use a map: the reader,
through `next` and `close`; the thread that feeds a map without a reader, through `feed`; and the pool, through `cut`
and `cancel`.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from bullpen import primitives
from bullpen.pools.dispatch.futures import PoolFuture
from bullpen.pools.dispatch.request import CANCELLED, DONE
from bullpen.pools.maps.outcome import Outcome
from bullpen.pools.runtimes.port import current_worker
from bullpen.telemetry import logger

if TYPE_CHECKING:
    from bullpen.pools.supervision.engine import Engine


T = TypeVar("T")
B = TypeVar("B", bound="Bundle")

_REFILL_AT_ONCE_BELOW = 64  # a smaller window is refilled item by item
LONGEST_PATIENCE = 1.0  # seconds between two looks of a reader that waits

_ANY = object()  # the reader waits for any bundle


class MapInput:
    """The iterables of a map, as one iterator: over items, or over tuples of items if there are several iterables."""

    __slots__ = ("finite", "has_length", "items", "single")

    def __init__(self, iterables: tuple[Iterable[Any], ...]) -> None:
        self.single = len(iterables) == 1
        self.items: Iterator[Any] = iter(iterables[0]) if self.single else zip(*iterables, strict=False)
        lengths = [hasattr(iterable, "__len__") for iterable in iterables]
        self.finite = any(lengths)
        self.has_length = all(lengths)  # to take an item waits for nothing

    def args(self, item: Any) -> tuple[Any, ...]:
        """The arguments of a call."""
        return (item,) if self.single else item


class Reading:
    """How the caller reads: at most `window` items are under way or unread, or more of quick ones if it `widens`;
    results come `ordered` or as they are made; and `outcomes` are returned in place of values.
    """

    __slots__ = ("ordered", "outcomes", "widens", "window")

    def __init__(self, window: int, *, widens: bool = False, ordered: bool = True, outcomes: bool = False) -> None:
        self.window = window
        self.widens = widens
        self.ordered = ordered
        self.outcomes = outcomes


class Bundle:
    """Items that run one after another, and what became of them: a value for each item, None for one that failed, and
    the errors by their place.
    """

    __slots__ = ("count", "delivered", "errors", "items", "values")

    def __init__(self, items: list[Any]) -> None:
        self.items = items
        self.count = len(items)
        self.values: list[Any] = []
        self.errors: dict[int, BaseException] | None = None
        self.delivered = False  # the reader has it

    def outcomes(self) -> list[Any]:
        errors = itertools.repeat(None) if self.errors is None else map(self.errors.get, itertools.count())
        return list(map(Outcome._make, zip(self.items, self.values, errors, strict=False)))


def longer(patience: float | None) -> float | None:
    """The next patience of a reader that still waits. Meanwhile a runner may have begun a bundle with a slow item."""
    return None if patience is None else min(2 * patience, LONGEST_PATIENCE)


class MapWork(ABC, Generic[T, B]):
    """One running `map`: the items that are still to be called, and the bundles that are still to be read."""

    def __init__(self, engine: Engine, source: MapInput, reading: Reading) -> None:
        self.engine = engine
        self.source = source
        self.window = reading.window
        self.finite = source.finite
        self.begun = False  # the first result was asked for
        self.dropped = False  # the iterator was garbage-collected
        self.interrupted = False  # the last read was interrupted
        self.taken = 0  # items so far
        self.feeder_id: int | None = None  # the thread that feeds it
        self.unread: deque[B] | None = deque()  # bundles for the reader, oldest first; None if no reader is left
        self._calls: Iterator[Any] | None = source.items
        self._ordered = reading.ordered
        self.outcomes = reading.outcomes
        self._passed = 0  # items that were read
        self._held = 0  # items that the reader has and has not read yet
        self._failure: BaseException | None = None  # of the call after the results that the reader has
        self._last: BaseException | None = None  # raised after the last result, instead of StopIteration
        self._failed = False  # `_last` comes from the iterables, or from a rejected item
        self._feeding = primitives.gate()  # held while a thread takes from the iterables
        self._turn = primitives.gate()  # held while a thread reads
        self._reading = False  # a thread is inside `read`
        self._lock = primitives.leaf_lock()  # protects `_awaited`
        self._awaited: object = None  # the bundle that the reader waits for, or `_ANY`
        self._came = primitives.gate()  # where the reader waits
        self._came.acquire()
        self._arrived: deque[B] = deque()  # bundles that have ended, if the results are not ordered
        engine.maps.enter(self)
        try:
            self.fill(self.window)
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
    def accept(self, items: Iterator[Any]) -> None:
        """Take these items, until `_calls` is None. Schedule and count each of them."""

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

    def next(self, deadline: float | None) -> list[T]:
        """The results of the next bundle. Raises `ValueError` if another thread is reading, as a generator does."""
        if self._reading:
            raise read_twice()
        with self._turn:
            try:
                self._reading = True
                self.interrupted = False
                return self._read(deadline)
            except BaseException as error:
                self.interrupted = not isinstance(error, Exception)
                raise
            finally:
                self._reading = False

    def _read(self, deadline: float | None) -> list[T]:
        self.begun = True
        held, self._held = self._held, 0
        self._passed += held
        while True:
            if self._failure is not None:
                self.raise_from_call(self._failure)
            bundle = self._next_bundle(deadline)
            if not bundle.values:
                self.settle(bundle)
            unread = self.unread
            if unread is not None:
                self._refill()
                _take_out(unread, bundle)  # only now: an interrupt loses nothing
            bundle.delivered = True
            if self._arrived and self._arrived[0] is bundle:
                self._arrived.popleft()
            self._passed += 1  # the reader has the first result
            self._held = bundle.count - 1
            results = self._results(bundle)
            if results:
                return results
            del bundle  # the traceback of its error refers to this frame

    def _next_bundle(self, deadline: float | None) -> B:
        """Wait for the oldest bundle, or for the first that ends. Its error, or `TimeoutError`, ends the map."""
        worker = current_worker()
        if self._ordered or (worker is not None and self.engine.nested.is_own(worker)):
            while True:
                bundle = self._first_unread()
                self.wait_for(bundle, deadline)
                if self.has_ended(bundle):
                    return bundle
        self._first_unread()
        patience = self.patience
        while True:
            while self._arrived:
                bundle = self._arrived[0]  # it stays there until it is delivered: an interrupt loses nothing
                if not bundle.delivered:
                    return bundle
                self._arrived.popleft()
            self.check_over()
            if not self.wait_at_gate(None, deadline, patience):
                self.stalled()
                patience = longer(patience)

    def _first_unread(self) -> B:
        """The oldest bundle, which is not removed. Ends the map if there is none."""
        unread = self.unread
        if not unread:
            self.fill(self.window)  # usually nothing is left, but another thread may be taking items
            unread = self.unread
            if not unread:
                self._end()
        return unread[0]

    @abstractmethod
    def wait_for(self, bundle: B, deadline: float | None) -> None:
        """Wait until `bundle` has ended, or is no longer the oldest. `TimeoutError` ends the map."""

    def settle(self, bundle: B) -> None:
        """`bundle` has ended: let it have its values and errors."""

    def _refill(self) -> None:
        """Take as many new items as there is room for, if that is worth it."""
        room = self.window - (self.taken - self._passed - 1)
        least = self.least_refill
        if self._calls is not None and room >= least:
            self.fill(room - room % least)

    @property
    def least_refill(self) -> int:
        """So many items are taken at once, or a multiple of it."""
        return 1 if self.window < _REFILL_AT_ONCE_BELOW else self.window // 2

    def _results(self, bundle: B) -> list[T]:
        """What the reader gets for `bundle`, as far as no error ends the map."""
        if self.outcomes:
            return bundle.outcomes()
        if bundle.errors is None:
            return bundle.values
        place = min(bundle.errors)
        self._failure = bundle.errors[place]
        return bundle.values[:place]

    def wait_at_gate(self, bundle: B | None, deadline: float | None, at_most: float | None = None) -> bool:
        """Wait for `arrived(bundle)`, or for any bundle; False after `at_most` seconds. `TimeoutError` ends the map."""
        with self._lock:
            self._awaited = _ANY if bundle is None else bundle  # set it before looking: `arrived` looks afterwards
            if self.is_over or (self._arrived if bundle is None else self.has_ended(bundle)):
                self._awaited = None
                return True
        timeout = None if deadline is None else deadline - self.engine.clock.monotonic()
        soon = at_most is not None and (timeout is None or at_most < timeout)
        try:
            self.engine.check_may_wait(timeout)
            woken = self.engine.clock.wait(self._came, at_most if soon else timeout)
        except BaseException:
            self._stop_waiting()
            raise
        if not woken and self._stop_waiting():
            if soon:
                return False
            self.close()
            raise TimeoutError
        return True

    @property
    def patience(self) -> float | None:
        """After so many seconds of waiting for any bundle the map has `stalled`, and again after a `longer` time."""
        return None

    def stalled(self) -> None:
        """The reader has waited for longer than its patience."""

    @property
    def is_over(self) -> bool:
        """No further bundle will arrive."""
        return False

    def check_over(self) -> None:
        """Raise the reason if no further bundle will arrive."""

    @abstractmethod
    def has_ended(self, bundle: B) -> bool: ...

    def _stop_waiting(self) -> bool:
        """Stop waiting; False if `arrived` has already opened the gate."""
        with self._lock:
            waited, self._awaited = self._awaited is not None, None
            if not waited:  # close the gate again
                self._came.acquire(False)
        return waited

    def arrived(self, bundle: B) -> None:
        """`bundle` has ended. On any thread."""
        if not self._ordered:
            self._arrived.append(bundle)
        if self._awaited is not None:
            self.wake(bundle)

    def wake(self, bundle: B | None) -> None:
        """Wake the reader if it waits for `bundle`; None: in any case."""
        with self._lock:
            if self._awaited is not None and (bundle is None or self._awaited is bundle or self._awaited is _ANY):
                self._awaited = None
                self._came.release()

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
                raise stop_iteration() from error
            raise error
        finally:
            del error  # break the cycle with the traceback

    # The end.

    def close(self) -> None:
        """Start no further item, and drop the unread results."""
        self.begun = True
        self._last = self._failure = None
        self.stop()
        unread, self.unread = self.unread, None
        self._arrived.clear()
        if unread is not None:
            self.forget(unread)
            unread.clear()

    def stop(self) -> None:
        """Take nothing more from the iterables. Takes no lock."""
        self._calls = None
        self.engine.maps.leave(self)

    def forget(self, unread: Iterable[B]) -> None:
        """Cancel these bundles, which are dropped unread."""

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


class FutureBundle(Bundle):
    """A bundle that is one request."""

    __slots__ = ("future",)

    def __init__(self, items: list[Any], future: PoolFuture[Any]) -> None:
        super().__init__(items)
        self.future = future


F = TypeVar("F", bound=FutureBundle)


class FutureMap(MapWork[T, F]):
    """A map whose bundles are requests."""

    def has_ended(self, bundle: F) -> bool:
        return bundle.future.ended

    def add(self, bundle: F) -> None:
        """`bundle` was submitted: let the reader have it."""
        if not self._ordered:
            bundle.future.add_done_callback(_Arrival(self, bundle))
        if self.unread is not None:
            self.unread.append(bundle)

    def wait_for(self, bundle: F, deadline: float | None) -> None:
        try:
            ended = bundle.future.wait_until(deadline)
        except Exception as error:  # this thread may not wait
            self.raise_from_call(error)
        if not ended:
            self.close()
            raise TimeoutError

    def settle(self, bundle: F) -> None:
        future = bundle.future
        if future.state is DONE:
            self.succeeded(bundle)
        elif future.state is CANCELLED:
            self.raise_from_call(CancelledError())
        else:
            bundle.values = [None] * bundle.count
            bundle.errors = dict.fromkeys(range(bundle.count), future.value)

    @abstractmethod
    def succeeded(self, bundle: F) -> None:
        """The request of `bundle` has returned: let it have its values and errors."""

    @property
    def needs_care(self) -> bool:
        return super().needs_care or (self.begun and bool(self.unread))

    def forget(self, unread: Iterable[F]) -> None:
        """Cancel the unread requests: also those that run, if the reader was interrupted."""
        for bundle in unread:
            if self.interrupted:
                self.engine.cancel(bundle.future)
            else:
                bundle.future.cancel()


class _Arrival:
    """Tells a map without order that a bundle has ended."""

    __slots__ = ("_bundle", "_work")

    def __init__(self, work: FutureMap[Any, Any], bundle: FutureBundle) -> None:
        self._work = work
        self._bundle = bundle

    def __call__(self, _: object) -> None:
        self._work.arrived(self._bundle)


def _take_out(unread: deque[B], bundle: B) -> None:
    """Remove `bundle`. Raises `ValueError` if another reader has removed it already."""
    try:
        unread.remove(bundle)  # it is among the first
    except ValueError:
        raise read_twice() from None


def stop_iteration() -> RuntimeError:
    return RuntimeError("the function of a map raised StopIteration")


def read_twice() -> ValueError:
    return ValueError(
        "this map is being read already, by another thread or by a function that it calls; read it in one place, "
        "and pass its results on"
    )
