"""`Pool.map`: results in order, never more than a window of them at once.

The window is filled when `map` is called and refilled as results are read, so an endless iterable is welcome. An
iterator that nobody has begun to read is run to its end when it is dropped or the pool drains: `pool.map(f, items)`
as a statement does all of its work, as it does with the standard executors.

Usually the items are not requests of their own. A few *runners*, at most as many as can run at once, take items from
the window one by one, so that an item costs no dispatch and none waits behind another. A runner lets others pass after
a few milliseconds. Calls with limits, and pools that are observed, take one request per item.
"""

from __future__ import annotations

import _thread
import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from bullpen import primitives
from bullpen.core.lifecycle import RequestState
from bullpen.core.request import DONE, QUEUED, WITHDRAWN, Request
from bullpen.pool.future import PoolFuture
from bullpen.runtimes.port import current_worker

if TYPE_CHECKING:
    from bullpen.pool.engine import Engine

T = TypeVar("T")
Calls = Iterator[tuple[Any, ...]]

DEFAULT_WINDOW = 1024
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
        return self._work.next(self._deadline)

    def close(self) -> None:
        """Start no further item. What runs already goes on; nobody will see its result."""
        self._work.close()

    def __del__(self) -> None:
        # This may run inside the garbage collector, on any thread, inside any critical section: it takes no lock.
        work: MapWork[T] | None = getattr(self, "_work", None)
        if work is None:  # interrupted while it was made
            return
        if work.begun:
            work.stop_feeding()
        else:
            work.forget_results()
        if not work.is_over():
            with contextlib.suppress(RuntimeError):  # no new threads at interpreter exit, where pools drain anyway
                _thread.start_new_thread(work.reader_gone, ())


def raise_from_call(error: BaseException) -> NoReturn:
    """Raise what a call raised; but a `StopIteration` of its would look like the end of the results."""
    if isinstance(error, StopIteration):
        raise RuntimeError("the function of a map raised StopIteration") from error
    raise error


class MapWork(Generic[T]):
    """One `map` under way: what is still to be called, and the window of results."""

    def __init__(self, engine: Engine, calls: Calls, window: int) -> None:
        self.engine = engine
        self.window = window
        self.low = window - 1 if window < _REFILL_AT_ONCE_BELOW else window // 2
        self.begun = False  # somebody reads
        self.finite = False  # as far as can be known
        self.cut_short = False  # the pool closed before everything was taken
        self._calls: Calls | None = calls
        self._feeding = primitives.gate()  # open while nobody takes from the iterables
        engine.maps[id(self)] = self
        self.fill(window)

    def next(self, deadline: float | None) -> T:
        raise NotImplementedError

    def fill(self, count: int) -> None:
        """Take up to `count` more items from the iterables."""
        self._feeding.acquire()
        try:
            if self._calls is None:
                return
            if self.engine.dispatcher.draining:
                self._calls = None
                self.cut_short = True
                return
            batch = list(itertools.islice(self._calls, count))
            if len(batch) < count:
                self._calls = None
            if batch:
                self.accept(batch)
        except BaseException:
            self._calls = None
            raise
        finally:
            self._feeding.release()
            self.forget_if_done()

    def forget_if_done(self) -> None:
        """Once everything was taken, and nothing of it waits, the pool need not know of this any more."""
        if self._calls is None and not self.waiting:
            self.engine.maps.pop(id(self), None)

    def accept(self, batch: list[tuple[Any, ...]]) -> None:
        raise NotImplementedError

    @property
    def waiting(self) -> int:
        """How many items were taken but wait for a worker, apart from requests in the backlog."""
        return 0

    def close(self) -> None:
        """Nobody reads any further: start nothing more."""
        self.begun = True
        self.stop_feeding()
        self.drop()

    def stop_feeding(self) -> None:
        """Take nothing more from the iterables. Takes no lock."""
        self._calls = None
        self.engine.maps.pop(id(self), None)

    def drop(self) -> None:
        raise NotImplementedError

    def cancel(self) -> None:
        """The pool closes without draining: start nothing more, and let the reader know when it comes to that."""
        self._calls = None

    def run_to_the_end(self) -> None:
        """Take all that is left; but not without end for somebody who reads, and may want to stop."""
        while (not self.begun or self.finite) and self._calls is not None:
            self.fill(DEFAULT_WINDOW)

    def end(self) -> NoReturn:
        """Everything was read, or all that there will be."""
        if self.cut_short:
            self.cut_short = False
            raise self.engine.not_open()
        raise StopIteration

    def is_over(self) -> bool:
        """Nothing is left to be taken, and nothing taken that should not run. Takes no lock."""
        return self._calls is None

    def reader_gone(self) -> None:
        if self.begun:
            self.close()
        else:
            self.run_to_the_end()

    def forget_results(self) -> None:
        raise NotImplementedError


class RequestMap(MapWork[T]):
    """One request per item."""

    def __init__(
        self, engine: Engine, submit: Callable[..., PoolFuture[T]], fn: Callable[..., T], calls: Calls, window: int
    ) -> None:
        self._submit = submit
        self._fn = fn
        self._futures: deque[PoolFuture[T]] | None = deque()
        super().__init__(engine, calls, window)

    def accept(self, batch: list[tuple[Any, ...]]) -> None:
        for args in batch:
            future = self._submit(self._fn, *args)
            if self._futures is not None:
                self._futures.append(future)

    def next(self, deadline: float | None) -> T:
        self.begun = True
        futures = self._futures
        if not futures:
            self.end()
        try:
            value = futures[0].result(None if deadline is None else deadline - self.engine.clock.monotonic())
        except BaseException as error:
            self.close()
            raise_from_call(error)
        futures.popleft()
        if len(futures) <= self.low:
            self.fill(self.window - len(futures))
        return value

    def is_over(self) -> bool:
        return super().is_over() and not (self.begun and self._futures)

    def drop(self) -> None:
        futures, self._futures = self._futures, None
        for future in futures or ():
            future.cancel()

    def forget_results(self) -> None:
        self._futures = None


_PENDING, _VALUE, _ERROR = 0, 1, 2


class RunnerMap(MapWork[T]):
    """A few runners for all items. An item is a cell: `[_PENDING, arguments]`, then `[_VALUE, result]` or `[_ERROR,
    error]`.
    """

    def __init__(self, engine: Engine, fn: Callable[..., T], calls: Calls, window: int) -> None:
        self._fn = fn
        self._cells: deque[list[Any]] | None = deque()  # in order, until they are read
        self._todo = primitives.new_deque()  # those that nobody has taken yet
        self._runners = engine.most_at_once()
        self._tokens = primitives.new_deque(range(self._runners))  # permissions to start a runner
        self._lock = primitives.backlog_lock()
        self._awaited: list[Any] | None = None  # the cell that the reader waits for
        self._gate = primitives.gate()
        self._gate.acquire()
        self._error: BaseException | None = None
        super().__init__(engine, calls, window)

    @property
    def waiting(self) -> int:
        return len(self._todo)

    @property
    def label(self) -> str:
        return str(getattr(self._fn, "__qualname__", None) or self._fn)

    def accept(self, batch: list[tuple[Any, ...]]) -> None:
        cells = [[_PENDING, args] for args in batch]
        self.engine.extra_submitted.add(len(cells))
        if self._cells is not None:
            self._cells.extend(cells)
        self._todo.extend(cells)
        for _ in range(min(len(cells), len(self._tokens))):
            if not self._start_runner():
                break
        if self._todo and len(self._tokens) == self._runners:  # nobody can be had, so whoever asks does it
            self._help(None)

    def _start_runner(self) -> bool:
        try:
            token = self._tokens.popleft()
        except IndexError:
            return False
        if self._offer(token, patient=len(self._tokens) == self._runners - 1):
            return True
        self._tokens.append(token)
        return False

    def _offer(self, token: int, *, patient: bool) -> bool:
        """Queue a runner; the only one waits for room, for without it nothing would be done."""
        runner = _Runner(self.engine.state_lock(), self._run, (token,), {})
        runner.work = self
        self.engine.extra_submitted.add(-1)
        self.engine.runners_queued.add(1)
        if self.engine.submit_runner(runner, patient=patient):
            return True
        self.engine.extra_submitted.add(1)
        self.engine.runners_queued.add(-1)
        return False

    def _run(self, token: int) -> None:
        """What a runner does: take items until there are none, or others have waited long enough."""
        self.engine.runners_queued.add(-1)
        fn, take, now = self._fn, self._todo.popleft, self.engine.clock.monotonic
        others_wait = self.engine.backlog.entries.__len__
        until = now() + TURN_SECONDS
        succeeded = failed = 0
        while True:
            try:
                cell = take()
            except IndexError:
                self._tokens.append(token)
                if not self._todo:  # looked at again after the token is back: no item is left beside a missing runner
                    break
                try:
                    token = self._tokens.popleft()
                except IndexError:
                    break
                continue
            try:
                value = fn(*cell[1])
            except BaseException as error:
                cell[1] = error
                cell[0] = _ERROR
                failed += 1
            else:
                cell[1] = value
                cell[0] = _VALUE
                succeeded += 1
            if self._awaited is cell:
                self._wake(cell)
            if others_wait() and now() >= until:
                if self._offer(token, patient=False):
                    break
                until = now() + TURN_SECONDS
        self.forget_if_done()
        worker = current_worker()
        assert worker is not None
        with worker.lock:
            worker.completed += succeeded - 1  # the runner itself is no request that anybody made
            worker.failed += failed

    def next(self, deadline: float | None) -> T:
        self.begun = True
        cells = self._cells
        if not cells:
            self.end()
        cell = cells[0]
        if cell[0] == _PENDING:
            self._wait_for(cell, deadline)
        cells.popleft()
        if cell[0] == _VALUE:
            if len(cells) <= self.low and self._calls is not None:
                self.fill(self.window - len(cells))
            return cell[1]  # type: ignore[no-any-return]
        self.close()
        try:
            raise_from_call(cell[1])
        finally:
            del cell

    def _wait_for(self, cell: list[Any], deadline: float | None) -> None:
        worker = current_worker()
        if self.engine.dispatcher.draining or (worker is not None and self.engine.nested.is_own(worker)):
            self._help(cell)
        while cell[0] == _PENDING:
            with self._lock:
                self._awaited = cell  # first this, then look: whoever finishes the cell does the opposite
                if cell[0] != _PENDING or self._error is not None:
                    self._awaited = None
                    break
            timeout = None if deadline is None else deadline - self.engine.clock.monotonic()
            if not self.engine.clock.wait(self._gate, timeout):
                self._timed_out()
        if cell[0] == _PENDING and self._error is not None:
            error = self._error
            self.close()
            raise error

    def _timed_out(self) -> None:
        with self._lock:
            late, self._awaited = self._awaited is None, None
            if late:  # woken in the last moment: take the gate's opening back
                self._gate.acquire(False)
        if not late:
            self.close()
            raise TimeoutError

    def _help(self, cell: list[Any] | None) -> None:
        """A worker reads a map of its own pool, or the pool drains: run items here, for nobody else may be free to."""
        while cell is None or cell[0] == _PENDING:
            try:
                item = self._todo.popleft()
            except IndexError:
                return
            try:
                item[1] = self._fn(*item[1])
                item[0] = _VALUE
            except BaseException as error:
                item[1] = error
                item[0] = _ERROR
            (self.engine.extra_completed if item[0] == _VALUE else self.engine.extra_failed).add(1)

    def _wake(self, cell: list[Any] | None) -> None:
        with self._lock:
            if self._awaited is not None and (cell is None or self._awaited is cell):
                self._awaited = None
                self._gate.release()

    def stop_feeding(self) -> None:
        super().stop_feeding()
        self._clear()

    def drop(self) -> None:
        self._cells = None

    def _clear(self) -> None:
        """Take away what nobody has begun. Takes no lock."""
        while self._todo:
            try:
                self._todo.popleft()
            except IndexError:
                break
            self.engine.cancelled.add()

    def forget_results(self) -> None:
        self._cells = None

    def cancel(self) -> None:
        super().cancel()
        self.fail(CancelledError())

    def fail(self, error: BaseException) -> None:
        """A runner will not run: neither will the items, and the reader has to know."""
        self._error = error
        self._clear()
        self._wake(None)


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
