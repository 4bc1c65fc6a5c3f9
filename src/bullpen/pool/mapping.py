"""`Pool.map`: results in order, never more than a window of them at once.

The window is filled when `map` is called and refilled as results are read, so an endless iterable is welcome. An
iterator that is dropped before anybody has begun to read it is run to its end: `pool.map(f, items)` as a statement
does all of its work, as it does with the standard executors. See `maps.py` for who takes the items then, and for what
happens when the pool closes.

Usually the items are not requests of their own. A few *runners*, at most as many as can run at once, take items from
the window one by one, so that an item costs no dispatch and none waits behind another. A runner lets others pass after
a few milliseconds, and goes back to the backlog when the pool is paused or its worker has to end. Calls with limits,
and pools that are observed, take one request per item.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from bullpen import primitives
from bullpen.core.lifecycle import RequestState
from bullpen.core.request import DONE, QUEUED, WITHDRAWN, Request
from bullpen.core.worker import STOPPING, Worker
from bullpen.errors import WorkerBroken
from bullpen.pool.future import PoolFuture
from bullpen.pool.workforce import loss
from bullpen.runtimes.port import current_worker

if TYPE_CHECKING:
    from bullpen.pool.engine import Engine

logger = logging.getLogger("bullpen")

T = TypeVar("T")
Calls = Iterator[tuple[Any, ...]]

TURN_SECONDS = 0.005  # after that long a runner lets others pass
_REFILL_AT_ONCE_BELOW = 64  # a smaller window is refilled item by item


class MapIterator(Generic[T]):
    """The results of one `map`, for whoever reads them."""

    __slots__ = ("__weakref__", "_deadline", "_keeper", "_work")

    def __init__(self, work: MapWork[T], deadline: float | None, keeper: object) -> None:
        self._work = work
        self._deadline = deadline
        self._keeper = keeper  # the pool, which would drain if nobody held on to it

    def __iter__(self) -> MapIterator[T]:
        return self

    def __next__(self) -> T:
        try:
            return self._work.next(self._deadline)
        except BaseException:
            del self  # whoever keeps the traceback does not keep a map that nobody reads any more
            raise

    def close(self) -> None:
        """Start no further item. What runs already goes on, and nobody will see its result; but if the reader was
        interrupted, it is ended, where the runtime can.
        """
        self._work.close()

    def __del__(self) -> None:
        # This may run inside the garbage collector, on any thread, inside any critical section: it takes no lock.
        work: MapWork[T] | None = getattr(self, "_work", None)
        if work is None:  # interrupted while it was made
            return
        work.dropped = True
        if work.begun:
            work.stop()
        else:
            work.unread = None
        if work.needs_care:
            with contextlib.suppress(RuntimeError):  # no new threads at interpreter exit, where pools drain anyway
                primitives.start_soon(work.engine.maps.see_to, work)


class MapWork(ABC, Generic[T]):
    """One `map` under way: what is still to be called, and what was not read yet."""

    def __init__(self, engine: Engine, calls: Calls, window: int, *, finite: bool) -> None:
        self.engine = engine
        self.window = window
        self.finite = finite  # as far as can be known
        self.begun = False  # somebody reads
        self.dropped = False  # nobody will
        self.interrupted = False  # the reader was, and has not come back
        self.taken = 0  # items so far
        self.feeder_id: int | None = None  # the thread that feeds it
        self.unread: deque[Any] | None = deque()  # entries for the reader, in order; None if there will be none
        self._calls: Calls | None = calls
        self._last: BaseException | None = None  # what comes after the last result, if not simply the end
        self._failed = False  # because an item could not be had
        self._feeding = primitives.gate()  # open while nobody takes from the iterables
        self._turn = primitives.gate()  # open while nobody reads
        self._reading = False  # somebody does, and may wait
        engine.maps.enter(self)
        try:
            self.fill(window)
            if self._failed and not self.taken:
                self._end()
        except BaseException:  # nobody will get the iterator
            self.close()
            raise

    # Taking items.

    @property
    def exhausted(self) -> bool:
        """Nothing more will be taken."""
        return self._calls is None

    @property
    def held_up(self) -> bool:
        """Somebody is just taking an item, and may wait for it."""
        if not self._feeding.acquire(False):
            return True
        self._feeding.release()
        return False

    def fill(self, count: int) -> None:
        """Take up to `count` more items. An error in doing so comes after the results of those before it."""
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
        """Take these items one by one, until `_calls` is gone, and see that each of them is run; count them."""

    def _fails(self, error: BaseException) -> None:
        """The iterables raised `error`, or the pool would not take an item."""
        self._last = error
        self._failed = True
        self._calls = None
        if self.dropped:
            self._log_failure()

    def _log_failure(self) -> None:
        """Nobody reads, and so nobody else will learn of it."""
        error, self._last, self._failed = self._last, None, False
        if self.engine.options.log_errors:
            message = "%s: a map that nobody reads ended early, after %d items: its input failed"
            logger.error(message, self.engine.name, self.taken, exc_info=error)

    def feed(self) -> None:
        """Take all that is left, as workers get through it."""
        self.feeder_id = primitives.current_thread_id()
        try:
            while self._calls is not None:
                self.fill(self.wait_for_room())
        except BaseException as error:  # this thread has nobody else to tell
            self._fails(error)
        finally:
            self.feeder_id = None
            self.engine.maps.is_fed(self)

    @abstractmethod
    def wait_for_room(self) -> int:
        """Wait until fewer items are under way than a window has; how many fewer."""

    def resized(self) -> None:
        """More items may run at once than when they were taken."""

    def leave_if_done(self) -> None:
        """Once everything was taken, and nothing of it waits, the pool need not know of this any more."""
        if self._calls is None and not self.waiting:
            self.engine.maps.leave(self)

    @property
    def waiting(self) -> int:
        """How many items were taken but wait for a worker, apart from requests in the backlog."""
        return 0

    # Reading.

    def next(self, deadline: float | None) -> T:
        """The next result; `ValueError` if somebody else is just reading, as from a generator."""
        if self._reading:
            raise _read_twice()
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
        """The oldest entry, which stays where it is; ends the map if there is none."""
        self.begun = True
        unread = self.unread
        if not unread:
            self.fill(self.window)  # usually there is nothing left, but somebody else may just be taking items
            unread = self.unread
            if not unread:
                self._end()
        return unread[0]

    def _end(self) -> NoReturn:
        """Everything was read, or all that there will be."""
        error, self._last = self._last, None
        try:
            raise StopIteration if error is None else error
        finally:
            del error

    def raise_from_call(self, error: BaseException) -> NoReturn:
        """A call raised `error`, which ends the map; but a `StopIteration` would look like the end of the results."""
        self.close()
        try:
            if isinstance(error, StopIteration):
                raise RuntimeError("the function of a map raised StopIteration") from error
            raise error
        finally:
            del error  # break the cycle with the traceback

    # The end.

    def close(self) -> None:
        """Nobody reads any further: start nothing more."""
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
        """Nobody will read these entries."""

    def cancel_unread(self, future: PoolFuture[Any]) -> None:
        """Nobody will read this. One who was interrupted does not want it to go on either."""
        if self.interrupted:
            self.engine.cancel(future)
        else:
            future.cancel()

    def cut(self, error: BaseException) -> None:
        """Take nothing more; what was taken is run, and `error` comes after it."""
        self._last = error
        self._calls = None

    def cancel(self) -> None:
        """The pool closes without draining: start nothing more, and let the reader know when it comes to that."""
        if self._calls is not None:
            self.cut(CancelledError())

    @property
    def needs_care(self) -> bool:
        """The reader has gone, and something has to be done that cannot be done there. Takes no lock."""
        return self._calls is not None or (self._failed and not self.begun)

    def reader_gone(self) -> None:
        """Do that, on a thread of the pool's own."""
        if self.begun:
            self.close()
        elif self._failed:
            self._log_failure()
        else:
            self.feed()


def take_first(unread: deque[Any], entry: Any) -> None:
    """Take out `entry`, whose outcome is known; `ValueError` if another reader, who did not wait, has it already."""
    try:
        taken = unread.popleft()
    except IndexError:
        raise _read_twice() from None
    if taken is not entry:
        unread.appendleft(taken)
        raise _read_twice()


def _read_twice() -> ValueError:
    return ValueError(
        "this map is being read already, by another thread or by what it calls; read it in one place, "
        "and pass its results on"
    )


class ItemMap(MapWork[T]):
    """A map with an entry for each item."""

    def __init__(self, engine: Engine, calls: Calls, window: int, *, finite: bool) -> None:
        self._low = window if window < _REFILL_AT_ONCE_BELOW else window // 2 + 1  # so few unread ones are too few
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


class RequestMap(ItemMap[T]):
    """One request per item. The entries are futures."""

    def __init__(
        self,
        engine: Engine,
        submit: Callable[[tuple[Any, ...]], PoolFuture[T]],
        calls: Calls,
        window: int,
        *,
        finite: bool,
    ) -> None:
        self._submit = submit
        self._under_way: deque[PoolFuture[T]] = deque()
        super().__init__(engine, calls, window, finite=finite)

    def accept(self, items: Calls) -> None:
        unread, under_way = self.unread, self._under_way
        for args in items:
            if self._calls is None:
                break
            future = self._submit(args)
            self.taken += 1
            while under_way and under_way[0].ended:
                under_way.popleft()
            under_way.append(future)
            if unread is not None:
                unread.append(future)

    def wait_for_room(self) -> int:
        while len(self._under_way) >= self.window:
            self._under_way[0].wait_at_gate(None)
            self._under_way.popleft()
        return self.window - len(self._under_way)

    def outcome(self, entry: PoolFuture[T], deadline: float | None) -> T:
        try:
            return entry.result(None if deadline is None else deadline - self.engine.clock.monotonic())
        except BaseException as error:
            if not (entry.ended or isinstance(error, Exception)):
                raise  # the reader was interrupted, and may read on
            self.raise_from_call(error)
        finally:
            del entry

    @property
    def needs_care(self) -> bool:
        return super().needs_care or (self.begun and bool(self.unread))

    def forget(self, unread: Any) -> None:
        for future in unread:
            self.cancel_unread(future)


_PENDING, _VALUE, _ERROR = 0, 1, 2


class RunnerMap(ItemMap[T]):
    """A few runners for all items. The entries are cells: `[_PENDING, arguments]`, then `[_VALUE, result]` or
    `[_ERROR, error]`.

    While items wait there is a runner, at work or in the backlog: one that finds nothing is counted out first and
    looks again after; whoever adds an item looks at the count after.
    """

    def __init__(self, engine: Engine, fn: Callable[..., T], calls: Calls, window: int, *, finite: bool) -> None:
        self._fn = fn
        self._todo = primitives.new_deque()  # cells that nobody has taken yet
        self._runners = 0
        self._most = 0  # runners at once
        self._lock = primitives.backlog_lock()  # for all that follows, and the number of runners
        self._awaited: list[Any] | None = None  # the cell that the reader waits for
        self._done = primitives.gate()  # where the reader waits
        self._done.acquire()
        self._hungry = False  # the feeder waits for the items to be used up
        self._dry = primitives.gate()  # and this is where
        self._dry.acquire()
        self._error: BaseException | None = None  # why nothing more will be run
        super().__init__(engine, calls, window, finite=finite)

    @property
    def waiting(self) -> int:
        return len(self._todo)

    @property
    def label(self) -> str:
        return str(getattr(self._fn, "__qualname__", None) or self._fn)

    # Taking items.

    def accept(self, items: Calls) -> None:
        unread, add, count, taken = self.unread, self._todo.append, self.engine.items.add, self.taken
        self._most = self.engine.most_at_once()
        try:
            for args in items:
                if self._calls is None:
                    break
                taken += 1
                cell = [_PENDING, args]
                count()
                if unread is not None:
                    unread.append(cell)
                add(cell)
                if self._runners < self._most:
                    self._start_runner()
        finally:
            self.taken = taken

    def _start_runner(self) -> None:
        with self._lock:
            if self._runners >= self._most or not self._todo:
                return
            self._runners += 1
        if not self._offer():
            with self._lock:
                self._runners -= 1
            self.fail(self.engine.not_open())

    def resized(self) -> None:
        most = self._most = self.engine.most_at_once()
        for _ in range(min(len(self._todo), most)):
            self._start_runner()

    def _offer(self) -> bool:
        """Put a runner, which is counted, into the backlog; False if the pool has no more use for it."""
        runner = _Runner(self.engine.state_lock(), self._run, (), {})
        runner.work = self
        runner.args = (runner,)
        self.engine.extra_submitted.add(-1)
        self.engine.runners_queued.add(1)
        if self.engine.submit_runner(runner):
            return True
        self.engine.extra_submitted.add(1)
        self.engine.runners_queued.add(-1)
        return False

    def wait_for_room(self) -> int:
        with self._lock:
            self._hungry = bool(self._todo) and self._error is None
            wait = self._hungry
        if wait:
            self._dry.acquire()
        return self.window

    # Running them.

    def _run(self, runner: _Runner) -> None:
        """What a runner does: take items until there are none, or others have waited long enough."""
        engine, worker = self.engine, runner.worker
        engine.runners_queued.add(-1)
        fn, take, now, dispatcher = self._fn, self._todo.popleft, engine.clock.monotonic, engine.dispatcher
        others_wait = engine.backlog.entries.__len__
        until = now() + TURN_SECONDS
        succeeded = failed = 0
        while True:
            if (dispatcher.paused or worker.status is STOPPING) and self._steps_aside():
                break
            try:
                cell = take()
            except IndexError:
                if self._may_go():
                    break
                continue
            try:
                value = fn(*cell[1])
            except BaseException as error:
                cell[1] = self._told(worker, error)
                cell[0] = _ERROR
                failed += 1
            else:
                cell[1] = value
                cell[0] = _VALUE
                succeeded += 1
            if self._awaited is cell:
                self._wake(cell)
            if others_wait() and now() >= until:
                if self._offer():
                    break
                until = now() + TURN_SECONDS
        cell = None  # this frame is in the tracebacks of errors, and must not keep them alive
        self.leave_if_done()
        if engine.nested.is_own(worker):
            with worker.lock:
                worker.completed += succeeded - 1  # the runner itself is no request that anybody made
                worker.failed += failed
        else:
            engine.extra_completed.add(succeeded)
            engine.extra_failed.add(failed)

    def _told(self, worker: Worker, error: BaseException) -> BaseException:
        """What the reader is told of an item that raised `error` on `worker`."""
        if not isinstance(error, WorkerBroken):
            return error
        self.engine.workforce.condemn(worker, error)
        return loss(worker, error)

    def _may_go(self) -> bool:
        """A runner has found nothing to do."""
        with self._lock:
            self._runners -= 1
            self._feeder_goes_on()
        if not self._todo:
            return True
        with self._lock:
            if self._runners >= self._most:
                return True
            self._runners += 1
            return False

    def _steps_aside(self) -> bool:
        """A runner may not go on where it is: another goes on, if one is needed, when and where that is allowed."""
        most = self._most = self.engine.most_at_once()
        with self._lock:
            if self._runners > most or self._error is not None:
                self._runners -= 1
                return True
        return self._offer()

    def _feeder_goes_on(self) -> None:
        """Called with the lock held."""
        if self._hungry:
            self._hungry = False
            self._dry.release()

    # Reading.

    def next(self, deadline: float | None) -> T:
        unread = self.unread
        if unread and unread[0][0] == _VALUE and len(unread) > self._low and not self._reading:
            self.begun = True  # the short way, which is taken most often
            cell = unread.popleft()
            if cell[0] == _VALUE:
                return cell[1]  # type: ignore[no-any-return]
            unread.appendleft(cell)  # another thread has taken the one that was first
            raise _read_twice()
        return super().next(deadline)

    def outcome(self, entry: list[Any], deadline: float | None) -> T:
        if entry[0] == _PENDING:
            self._wait_for(entry, deadline)
        if entry[0] == _VALUE:
            return entry[1]  # type: ignore[no-any-return]
        try:
            self.raise_from_call(entry[1])
        finally:
            del entry

    def _wait_for(self, cell: list[Any], deadline: float | None) -> None:
        worker = current_worker()
        if worker is not None and self.engine.nested.is_own(worker):
            self._help(worker, cell)
        while cell[0] == _PENDING:
            with self._lock:
                self._awaited = cell  # first this, then look: whoever finishes the cell does the opposite
                if cell[0] != _PENDING or self._error is not None:
                    self._awaited = None
                    break
            timeout = None if deadline is None else deadline - self.engine.clock.monotonic()
            try:
                self.engine.check_may_wait(timeout)
                woken = self.engine.clock.wait(self._done, timeout)
            except BaseException:
                self._stop_waiting()
                raise
            if not woken and self._stop_waiting():
                self.close()
                raise TimeoutError
        if cell[0] == _PENDING and self._error is not None:
            error = self._error
            self.close()
            raise error

    def _stop_waiting(self) -> bool:
        """The reader waits no longer; False if it was woken in the last moment."""
        with self._lock:
            waited, self._awaited = self._awaited is not None, None
            if not waited:  # take the gate's opening back
                self._done.acquire(False)
        return waited

    def _help(self, worker: Worker, cell: list[Any]) -> None:
        """A worker reads a map of its own pool: it runs items itself, for nobody else may be free to."""
        while cell[0] == _PENDING:
            try:
                item = self._todo.popleft()
            except IndexError:
                return
            try:
                item[1] = self._fn(*item[1])
                item[0] = _VALUE
            except BaseException as error:
                item[1] = self._told(worker, error)
                item[0] = _ERROR
            (self.engine.extra_completed if item[0] == _VALUE else self.engine.extra_failed).add(1)
            del item  # which the traceback of its error leads to

    def _wake(self, cell: list[Any] | None) -> None:
        with self._lock:
            if self._awaited is not None and (cell is None or self._awaited is cell):
                self._awaited = None
                self._done.release()

    # The end.

    def stop(self) -> None:
        super().stop()
        self._clear()

    def _clear(self) -> None:
        """Take away what nobody has begun. Takes no lock."""
        while self._todo:
            try:
                self._todo.popleft()
            except IndexError:
                break
            self.engine.cancelled.add()

    def cancel(self) -> None:
        super().cancel()
        self.fail(CancelledError())

    def fail(self, error: BaseException) -> None:
        """A runner will not run: neither will the items, and the reader has to know."""
        self._error = error
        self._calls = None
        self._clear()
        self._wake(None)
        with self._lock:
            self._feeder_goes_on()


class _Runner(Request):
    """A request that runs items of a map."""

    __slots__ = ("work",)

    work: RunnerMap[Any]

    @property
    def label(self) -> str:
        return self.work.label

    def _leave(self, expected: RequestState, state: RequestState, value: Any) -> bool:
        if not super()._leave(expected, state, value):
            return False
        if state is not DONE and value is not WITHDRAWN:
            self.work.engine.extra_cancelled.add(-1)
            if expected is QUEUED:
                self.work.engine.runners_queued.add(-1)
            self.work.fail(CancelledError() if value is None else value)
        return True
