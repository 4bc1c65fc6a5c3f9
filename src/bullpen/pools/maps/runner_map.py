"""A map without a request per item: the usual strategy where workers share the pool's memory.

A few *runners*, at most as many as can run at once, take items from the window one by one. So an item costs no
dispatch, and no item waits behind another. A runner is a request. It yields its worker to other requests after a few
milliseconds. It returns to the backlog when the pool is paused or its worker has to end.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, TypeVar

from bullpen import primitives
from bullpen.errors import WorkerBroken
from bullpen.pools.dispatch.request import DONE, QUEUED, WITHDRAWN, Request
from bullpen.pools.dispatch.states import RequestState
from bullpen.pools.dispatch.worker import STOPPING, Worker
from bullpen.pools.maps.map_work import Calls, ItemMap, read_twice
from bullpen.pools.runtimes.port import current_worker
from bullpen.pools.supervision.deaths import loss

if TYPE_CHECKING:
    from bullpen.pools.supervision.engine import Engine

T = TypeVar("T")

TURN_SECONDS = 0.005  # a runner yields its worker to waiting requests after this time

_PENDING, _VALUE, _ERROR = 0, 1, 2


class RunnerMap(ItemMap[T]):
    """A few runners for all items. The entries are cells: `[_PENDING, arguments]`, then `[_VALUE, result]` or
    `[_ERROR, error]`.

    While items wait, there is a runner, at work or in the backlog. A runner that finds no item lowers the count first
    and then looks again. A thread that adds an item does so before it looks at the count.
    """

    def __init__(self, engine: Engine, fn: Callable[..., T], calls: Calls, window: int, *, finite: bool) -> None:
        self._fn = fn
        self._todo = primitives.new_deque()  # cells that no runner has taken yet
        self._runners = 0
        self._most = 0  # runners at once
        self._lock = primitives.leaf_lock()  # protects the fields below, and the number of runners
        self._awaited: list[Any] | None = None  # the cell that the reader waits for
        self._done = primitives.gate()  # where the reader waits
        self._done.acquire()
        self._hungry = False  # the feeder waits for the items to be used up
        self._dry = primitives.gate()  # where the feeder waits
        self._dry.acquire()
        self._error: BaseException | None = None  # why no further item will run
        super().__init__(engine, calls, window, finite=finite)

    @property
    def waiting(self) -> int:
        return len(self._todo)

    @property
    def label(self) -> str:
        return str(getattr(self._fn, "__qualname__", None) or self._fn)

    # Taking items.

    def accept(self, items: Calls) -> None:
        unread, add, count, taken = self.unread, self._todo.append, self.engine.counts.items.add, self.taken
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
        """Put a runner, which is already counted, into the backlog; False if the pool rejects it."""
        runner = _Runner(self.engine.state_lock(), self._run, (), {})
        runner.work = self
        runner.args = (runner,)
        self.engine.counts.extra_submitted.add(-1)
        self.engine.counts.runners_queued.add(1)
        if self.engine.submit_runner(runner):
            return True
        self.engine.counts.extra_submitted.add(1)
        self.engine.counts.runners_queued.add(-1)
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
        """Run items until none is left, or until other requests have waited for `TURN_SECONDS`."""
        engine, worker = self.engine, runner.worker
        engine.counts.runners_queued.add(-1)
        fn, take, now, dispatcher = self._fn, self._todo.popleft, engine.clock.monotonic, engine.dispatcher
        others_wait = engine.backlog.entries.__len__
        until = now() + TURN_SECONDS
        succeeded = failed = 0
        while True:
            if (dispatcher.status.phase.paused or worker.status is STOPPING) and self._steps_aside():
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
        cell = None  # this frame is in the tracebacks of errors, and must not keep the cell alive
        self.leave_if_done()
        if engine.nested.is_own(worker):
            with worker.lock:
                worker.completed += succeeded - 1  # the runner itself is not a request of a caller
                worker.failed += failed
        else:
            engine.counts.extra_completed.add(succeeded)
            engine.counts.extra_failed.add(failed)

    def _told(self, worker: Worker, error: BaseException) -> BaseException:
        """The error that the reader gets for an item that raised `error` on `worker`."""
        if not issubclass(type(error), WorkerBroken):
            return error
        self.engine.deaths.retire_broken(worker, error)
        return loss(worker, error)

    def _may_go(self) -> bool:
        """A runner has found no item: count it out. False if an item came meanwhile and the runner has to continue."""
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
        """This runner must leave its worker: put another one into the backlog, if one is needed."""
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
            self.begun = True  # the fast path, which is taken most often
            cell = unread.popleft()
            if cell[0] == _VALUE:
                return cell[1]  # type: ignore[no-any-return]
            unread.appendleft(cell)  # another thread has taken the one that was first
            raise read_twice()
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
                self._awaited = cell  # set it before looking: a runner writes the outcome before it looks here
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
        """Stop waiting; False if a runner has already opened the gate."""
        with self._lock:
            waited, self._awaited = self._awaited is not None, None
            if not waited:  # close the gate again
                self._done.acquire(False)
        return waited

    def _help(self, worker: Worker, cell: list[Any]) -> None:
        """A worker reads a map of its own pool. It runs items itself, because every other worker may be busy."""
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
            (self.engine.counts.extra_completed if item[0] == _VALUE else self.engine.counts.extra_failed).add(1)
            del item  # the traceback of its error refers to this frame

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
        """Cancel all items that no runner has taken. Takes no lock."""
        while self._todo:
            try:
                self._todo.popleft()
            except IndexError:
                break
            self.engine.counts.cancelled.add()

    def cancel(self) -> None:
        super().cancel()
        self.fail(CancelledError())

    def fail(self, error: BaseException) -> None:
        """A runner was rejected or cancelled. Cancel the waiting items, and wake the reader with `error`."""
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
            self.work.engine.counts.extra_cancelled.add(-1)
            if expected is QUEUED:
                self.work.engine.counts.runners_queued.add(-1)
            self.work.fail(CancelledError() if value is None else value)
        return True
