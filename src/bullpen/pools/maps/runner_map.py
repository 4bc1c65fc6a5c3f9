"""A map without a request per item: the usual strategy where workers share the pool's memory.

A few *runners*, at most as many as can run at once, take bundles of items from the window. So an item costs no
dispatch. A runner is a request. It yields its worker to other requests after a few milliseconds. It returns to the
backlog when the pool is paused or its worker has to end.

A bundle has one item until items turn out to be quick. Then it gets more, so that it takes a fraction of a
millisecond, and a C function loops over its items. If the caller gave no window, the window grows, too, when the reader
has to wait for such items: then fewer switches between threads are needed. A bundle can begin as soon as it has an
item: an iterator may wait for the results of its earlier items. Quick items need one runner; more runners come when the
waiting bundles take a while. If the reader has to wait for a bundle, one of its items is slow: then the reader gets the
results before that, and other runners get the items behind it.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, TypeVar

from bullpen import primitives
from bullpen.errors import WorkerBroken
from bullpen.pools.dispatch.request import DONE, QUEUED, WITHDRAWN, Request
from bullpen.pools.dispatch.states import RequestState
from bullpen.pools.dispatch.worker import STOPPING, Worker
from bullpen.pools.maps.map_work import Bundle, MapInput, MapWork, Reading, longer, stop_iteration
from bullpen.pools.runtimes.port import current_worker
from bullpen.pools.supervision.deaths import loss

if TYPE_CHECKING:
    from bullpen.pools.supervision.engine import Engine

T = TypeVar("T")

TURN_SECONDS = 0.005  # a runner yields its worker to waiting requests after this time
BUNDLE_SECONDS = 0.0005  # the duration that a bundle should have
FEWEST_FOR_RUNNERS = 4  # a smaller window has no bundles, and a runner would wait for each item
BUNDLE_ITEMS = 2048  # the most items of a bundle
WIDENING = 8  # how many times larger the window may get
GROWTH = 4  # how many times larger the next bundle may be
SPREAD_SECONDS = 0.001  # what waits for longer than this gets one more runner
PATIENCE = 0.005  # the reader waits so long for a bundle before others get its items


class _RunnerBundle(Bundle):
    """A bundle that a runner runs. Another one may run the rest of it."""

    __slots__ = ("calls", "ended", "first", "waiting", "was_cut")

    def __init__(self, items: list[Any]) -> None:
        super().__init__(items)
        self.waiting: list[Any] = []  # a copy of the items: to clear it ends the bundle after the current item
        self.calls: Iterator[Any] | None = None  # makes the calls, from the first to the last
        self.was_cut = False  # `waiting` was cleared, and the items behind the current one were given to others
        self.first = 0  # the results before this place are in another bundle
        self.ended = False

    def take_head(self) -> _RunnerBundle | None:
        """Take the results that are there out of this bundle, which still runs, into one of their own."""
        first, self.first = self.first, len(self.values)
        if first == self.first:
            return None
        head = _RunnerBundle(self.items[first : self.first])
        head.values = self.values[first : self.first]
        head.errors = self._errors_from(first)
        head.ended = True
        return head

    def end(self) -> None:
        """All calls have ended."""
        if self.first:
            self.errors = self._errors_from(self.first)
            self.values = self.values[self.first :]
            self.items = self.items[self.first :]
            self.count = len(self.values)
        self.waiting = []
        self.calls = None
        self.ended = True

    def _errors_from(self, first: int) -> dict[int, BaseException] | None:
        errors = {place - first: error for place, error in list((self.errors or {}).items()) if place >= first}
        return errors or None


class RunnerMap(MapWork[T, _RunnerBundle]):
    """A few runners for all items.

    While items wait, there is a runner, at work or in the backlog. A runner that finds no item lowers the count first
    and then looks again. A thread that adds an item does so before it looks at the count.
    """

    def __init__(self, engine: Engine, fn: Callable[..., T], source: MapInput, reading: Reading) -> None:
        self._fn = fn
        self._map = map if source.single else itertools.starmap
        self._size = 1  # items of the next bundle
        self._widest = WIDENING * reading.window if reading.widens else reading.window
        self._largest = _largest(reading.window)
        self._seconds = math.inf  # that the last bundle took
        self._todo = primitives.new_deque()  # bundles that no runner has taken yet
        self._open: _RunnerBundle | None = None  # the last of them, if it may get more items
        self._runners = 0
        self._most = 0  # runners at once
        self._hungry = False  # the feeder waits for the items to be used up
        self._dry = primitives.gate()  # where the feeder waits
        self._dry.acquire()
        self._error: BaseException | None = None  # why no further item will run
        self._stopped = False  # no further item is to begin
        super().__init__(engine, source, reading)

    @property
    def waiting(self) -> int:
        while self._todo:
            try:
                return sum(bundle.count for bundle in list(self._todo))
            except RuntimeError:  # another thread changed it meanwhile
                continue
        return 0

    @property
    def label(self) -> str:
        return str(getattr(self._fn, "__qualname__", None) or self._fn)

    # Taking items.

    def accept(self, items: Iterator[Any]) -> None:
        self._most = self.engine.most_at_once()
        if self.source.has_length:  # then taking an item waits for nothing
            while self._calls is not None and self._accept_bundle(items):
                pass
            return
        for item in items:
            if self._calls is None:
                return
            if not self._put_into_open(item):
                self._add([item])

    def _accept_bundle(self, items: Iterator[Any]) -> bool:
        """Take the items of a bundle; False if there is none."""
        bundle: list[Any] = []
        try:
            bundle.extend(itertools.islice(items, self._size))  # keeps what came before an error
        finally:
            if bundle:
                self._add(bundle)
        return bool(bundle)

    def _put_into_open(self, item: Any) -> bool:
        with self._lock:
            bundle = self._open
            if bundle is None or bundle.count >= self._size:
                return False
            bundle.items.append(item)
            bundle.count += 1
        self.taken += 1
        self.engine.counts.items.add()
        return True

    def _add(self, items: list[Any]) -> None:
        bundle = _RunnerBundle(items)
        self.taken += bundle.count
        self.engine.counts.items.add()
        if bundle.count > 1:
            self.engine.counts.extra_submitted.add(bundle.count - 1)
        if self.unread is not None:
            self.unread.append(bundle)
        self._open = bundle if self._size > 1 and not self.source.has_length else None
        self._todo.append(bundle)
        if self._runners < self._most and (not self._runners or self._is_much()):
            self._start_runner()

    def _is_much(self) -> bool:
        """Whether the waiting bundles are more than the present runners run soon."""
        return len(self._todo) * self._seconds > self._runners * SPREAD_SECONDS

    def _start_runners(self) -> None:
        """Start as many runners as there may be, and are bundles for."""
        for _ in range(min(len(self._todo), self._most)):
            self._start_runner()

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
        self._most = self.engine.most_at_once()
        self._start_runners()

    def _offer(self) -> bool:
        """Put a runner, which is already counted, into the backlog; False if the pool rejects it."""
        runner = _Runner(self.engine.state_lock(), self._run, (), {})
        runner.work = self
        runner.args = (runner,)
        return self.engine.submit_runner(runner)

    def wait_for_room(self) -> int:
        with self._lock:
            self._hungry = bool(self._todo) and self._error is None
            wait = self._hungry
        if wait and not self.engine.clock.wait(self._dry, PATIENCE):
            self.stalled()
            self._dry.acquire()
        return self.window

    # Running them.

    def _run(self, runner: _Runner) -> None:
        """Run items until none is left, or until other requests have waited for `TURN_SECONDS`."""
        engine, worker = self.engine, runner.worker
        engine.counts.runners_queued.add(-1)
        take, now, dispatcher = self._todo.popleft, engine.clock.monotonic, engine.dispatcher
        others_wait = engine.backlog.entries.__len__
        until = now() + TURN_SECONDS
        succeeded = failed = 0
        while True:
            if (dispatcher.status.phase.paused or worker.status is STOPPING) and self._steps_aside():
                break
            try:
                bundle = take()
            except IndexError:
                if self._may_go():
                    break
                continue
            done, wrong = self._run_bundle(bundle, worker)
            succeeded += done
            failed += wrong
            if others_wait() and now() >= until:
                if self._offer():
                    break
                until = now() + TURN_SECONDS
        bundle = None  # this frame is in the tracebacks of errors, and must not keep the bundle alive
        self.leave_if_done()
        if engine.nested.is_own(worker):
            with worker.lock:
                worker.completed += succeeded - 1  # the runner itself is not a request of a caller
                worker.failed += failed
        else:
            engine.counts.extra_completed.add(succeeded)
            engine.counts.extra_failed.add(failed)

    def _run_bundle(self, bundle: _RunnerBundle, worker: Worker) -> tuple[int, int]:
        """Run a bundle, or the rest of one; how many calls returned, and how many raised."""
        values, before, failed = bundle.values, len(bundle.values), 0
        calls = bundle.calls or self._begin(bundle)
        now = self.engine.clock.monotonic
        begun = now()
        try:
            while True:
                try:
                    values.extend(calls)  # keeps the results before an error, and goes on behind the item that failed
                    if len(values) == bundle.count:
                        break
                    left = self._calls_left(bundle)
                    if left is not None:
                        calls = left
                    elif self._stopped:
                        break
                    else:  # a `StopIteration` looked like the end of the items
                        raise stop_iteration()
                except BaseException as error:
                    if bundle.errors is None:
                        bundle.errors = {}
                    bundle.errors[len(values)] = self._told(worker, error)
                    values.append(None)
                    failed += 1
                    if isinstance(error, WorkerBroken) and len(values) < bundle.count:
                        self._todo.appendleft(bundle)  # for another worker
                        return len(values) - before - failed, failed
            if self._largest > 1:
                self._learn_from(bundle.count, now() - begun)
            succeeded = len(values) - before - failed
            if not self.outcomes:
                bundle.items = []  # the arguments are released
            with self._lock:
                bundle.end()  # from now on the reader takes values out
            self.arrived(bundle)
            return succeeded, failed
        finally:
            del bundle, values, calls  # the tracebacks of errors refer to this frame

    def _begin(self, bundle: _RunnerBundle) -> Iterator[Any]:
        """The calls of a bundle, which gets no more items."""
        if self._open is bundle:
            with self._lock:
                self._open = None
        bundle.waiting = bundle.items.copy()
        bundle.calls = calls = self._map(self._fn, bundle.waiting)
        return calls

    def _calls_left(self, bundle: _RunnerBundle) -> Iterator[Any] | None:
        """The loop over `bundle` has ended early. After a cut, one item may not have begun: its call."""
        with self._lock:
            left = bundle.items[len(bundle.values) : bundle.count]
            if self._stopped:
                bundle.count = len(bundle.values)
            elif bundle.was_cut:
                bundle.was_cut = False
                bundle.waiting = left
                bundle.calls = self._map(self._fn, left)
                return bundle.calls
        if self._stopped:
            self.engine.counts.extra_cancelled.add(len(left))
        return None

    def _learn_from(self, count: int, seconds: float) -> None:
        """A bundle of `count` items took so long: adapt the size of the next ones."""
        wanted = int(count * BUNDLE_SECONDS / max(seconds, 1e-9))
        if wanted > count == self._largest and self.window < self._widest and self._awaited is not None:
            self.window = min(4 * self.window, self._widest)
            self._largest = _largest(self.window)
        self._size = max(1, min(wanted, self._largest, GROWTH * self._size))
        self._seconds = seconds
        if self._todo and self._runners < self._most and self._is_much():
            self._start_runner()

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

    def has_ended(self, bundle: _RunnerBundle) -> bool:
        return bundle.ended

    @property
    def is_over(self) -> bool:
        return self._error is not None

    def check_over(self) -> None:
        error = self._error
        if error is not None:
            self.close()
            raise error

    @property
    def patience(self) -> float | None:
        return PATIENCE if self._largest > 1 else None

    def wait_for(self, bundle: _RunnerBundle, deadline: float | None) -> None:
        worker = current_worker()
        if worker is not None and self.engine.nested.is_own(worker):
            self._help(worker, bundle)
        patience = self.patience
        while not bundle.ended:
            self.check_over()
            if not self.wait_at_gate(bundle, deadline, patience):
                self.stalled()
                patience = longer(patience)
                if self.unread and self.unread[0] is not bundle:
                    return  # there are results before it

    def stalled(self) -> None:
        for bundle in (self.unread or deque()).copy():
            self._share(bundle)
        self._seconds = math.inf
        self._start_runners()

    def _share(self, bundle: _RunnerBundle) -> None:
        """The reader has to wait for `bundle`, because one of its items is slow: the reader gets the results before
        that, and other runners get the items behind it.
        """
        with self._lock:
            if (
                bundle.calls is None or bundle.count - bundle.first == 1
            ):  # no runner has it, or there is nothing to share
                return
            bundle.waiting.clear()
            kept = len(bundle.values) + 1  # at most the last of these has not begun; its runner runs it
            if kept > bundle.count:
                return
            bundle.was_cut = True
            shared = [_RunnerBundle([item]) for item in bundle.items[kept : bundle.count]]
            del bundle.items[kept:]
            bundle.count = kept
            head = bundle.take_head()
        self._size = 1
        unread = self.unread
        if unread is not None:
            place = unread.index(bundle)
            for number, other in enumerate(shared, place + 1):
                unread.insert(number, other)
            if head is not None:
                unread.insert(place, head)
                self.arrived(head)
        for other in reversed(shared):
            self._todo.appendleft(other)

    def _help(self, worker: Worker, bundle: _RunnerBundle) -> None:
        """A worker reads a map of its own pool. It runs items itself, because every other worker may be busy."""
        while not bundle.ended:
            try:
                other = self._todo.popleft()
            except IndexError:
                return
            succeeded, failed = self._run_bundle(other, worker)
            self.engine.counts.extra_completed.add(succeeded)
            self.engine.counts.extra_failed.add(failed)
            del other  # the tracebacks of its errors refer to this frame

    # The end.

    def stop(self) -> None:
        super().stop()
        self._clear()

    def _clear(self) -> None:
        """Cancel all items that no runner has begun. Takes no lock."""
        self._stopped = True
        while self._todo:
            try:
                bundle = self._todo.popleft()
            except IndexError:
                break
            for _ in range(bundle.count - len(bundle.values)):
                self.engine.counts.cancelled.add()
        for bundle in (self.unread or deque()).copy():
            if bundle.count > 1:
                bundle.waiting.clear()

    def cancel(self) -> None:
        super().cancel()
        self.fail(CancelledError())

    def fail(self, error: BaseException) -> None:
        """A runner was rejected or cancelled. Cancel the waiting items, and wake the reader with `error`."""
        self._error = error
        self._calls = None
        self._clear()
        self.wake(None)
        with self._lock:
            self._feeder_goes_on()


def _largest(window: int) -> int:
    """How many items a bundle may have, so that the reader has one while another runs."""
    return max(1, min(BUNDLE_ITEMS, window // 2))


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
