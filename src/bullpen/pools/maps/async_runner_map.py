"""`AsyncPool.map` of a coroutine function, without a request per item: the usual strategy on the loop.

A few *runners*, at most as many as can run at once, take the items one by one. So an item costs no dispatch and no
task. A runner is a request. As in `runner_map.py`, it yields its place to other requests after a few milliseconds, and
it returns to the backlog when the pool is paused or its worker has to end.

Every item runs as if it had a task and a context of its own. A runner that finds that an item has changed a context
variable, or that its task was cancelled, goes on in a new task with a new copy of the context.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import Context, copy_context
from itertools import islice
from operator import is_not
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from bullpen.errors import WorkerBroken
from bullpen.pools.async_calls import LoopCall, MapCall, ReaderWakeup
from bullpen.pools.dispatch.request import CANCELLED, DONE, FAILED, LOST, QUEUED, RUNNING, WITHDRAWN, Request
from bullpen.pools.dispatch.states import RequestState
from bullpen.pools.dispatch.worker import STOPPING, Worker
from bullpen.pools.maps.async_map import Args, AsyncMap
from bullpen.pools.maps.runner_map import TURN_SECONDS
from bullpen.pools.runtimes.port import IN_NEW_TASK
from bullpen.pools.supervision.deaths import loss

if TYPE_CHECKING:
    from bullpen.pools.async_sides import CoroutineSide

T = TypeVar("T")


class AsyncRunnerMap(AsyncMap[T]):
    """A few runners for all items. They have no reference to the map, because a dropped map must be
    garbage-collected.
    """

    __slots__ = ("_work",)

    def __init__(self, side: CoroutineSide, *args: Any) -> None:
        super().__init__(side, *args)
        self._work = _LoopItems(side, self._fn, self._wakeup)

    def _start_calls(self, items: Iterator[Args]) -> None:
        work, calls = self._work, self._calls
        work.enter()
        taken: list[_LoopItem] = []
        try:
            taken.extend(map(_LoopItem, islice(items, self._window - len(calls))))  # keeps what came before an error
        finally:
            if self._kept is not None:
                self._kept.update((item, item.args[0] if self._single else item.args) for item in taken)
            calls.extend(taken)
            work.add(taken)
        if len(calls) < self._window:
            self._items, self._low = None, 0

    def _help(self, call: MapCall) -> None:  # noqa: ARG002 — any runner may run it
        self._work.help_reader()

    def _give_up(self, calls: deque[MapCall]) -> Callable[[], object]:  # noqa: ARG002 — the runners have them
        return self._work.stop


class _LoopItem:
    """One item of a map: its arguments, and what became of it."""

    __slots__ = ("args", "state", "value")

    value: Any

    def __init__(self, args: Args) -> None:
        self.args = args
        self.state = QUEUED

    @property
    def ended(self) -> bool:
        return self.state is not QUEUED and self.state is not RUNNING


class _LoopItems:
    """The items of one map that wait, and their runners. While items wait, there is a runner, at work or in the
    backlog.
    """

    def __init__(self, side: CoroutineSide, fn: Callable[..., Any], wakeup: ReaderWakeup) -> None:
        self._side = side
        self._engine = side.engine
        self._fn = fn
        self._wakeup = wakeup
        self._context = copy_context()  # of the caller of `map`
        self._todo: deque[_LoopItem] = deque()
        self._runners: set[_LoopRunner] = set()
        self._pass_until = 0.0  # how long the present pass of the loop may take; 0: none has begun
        self._reader: Request | None = None  # in which the reader waits, if it is a coroutine of this pool

    @property
    def label(self) -> str:
        return str(getattr(self._fn, "__qualname__", None) or self._fn)

    @property
    def waiting(self) -> int:
        return len(self._todo)

    def enter(self) -> None:
        """More items come: let the pool know of this map. Raises if the pool is closed."""
        self._engine.maps.enter_on_loop(self)

    # Starting runners.

    def add(self, items: list[_LoopItem]) -> None:
        self._engine.counts.extra_submitted.add(len(items))
        self._todo.extend(items)
        self._start_runners()

    def resized(self) -> None:
        self._start_runners()

    def _start_runners(self) -> None:
        """Start as many runners as there may be, and are items for."""
        most = self._engine.most_at_once() - len(self._runners) if self._todo else 0
        for _ in range(min(len(self._todo), most)):
            self._start_runner()

    def _start_runner(self) -> None:
        """Put a runner into the backlog. If the pool has ended, the items without a runner fail."""
        if not self._offer() and not self._runners:
            self._end_waiting(FAILED, self._engine.not_open())

    def _offer(self) -> bool:
        runner = _LoopRunner(self._side, self.run, (), {}, None)
        runner.work = self
        runner.item = None
        runner.args = (runner,)
        runner.context = self._context.copy()
        self._runners.add(runner)
        if not self._engine.submit_runner(runner):
            self._runners.discard(runner)
            return False
        self._ask_for_help(runner)
        return True

    def help_reader(self) -> None:
        """The reader waits for an item that has not begun. If it has a place of this pool itself, each of the other
        places may be waiting, too: then a helper runs a runner.
        """
        self._reader = self._side.runs_here()
        if self._reader is not None:
            for runner in self._runners:
                if runner.state is QUEUED:
                    self._side.awaited(runner)
                    return

    def _ask_for_help(self, runner: _LoopRunner) -> None:
        """The same for a runner that returns to the backlog while the reader waits."""
        reader = self._reader
        if reader is not None and self._wakeup.awaited is not None and runner.state is QUEUED:
            self._engine.nested.want(reader.worker, reader, runner)

    # Running them.

    async def run(self, runner: _LoopRunner) -> object:
        """Run items until none is left, or until other requests have waited for `TURN_SECONDS`."""
        engine, worker, task = self._engine, runner.worker, asyncio.current_task()
        assert task is not None
        todo, fn, wakeup, now = self._todo, self._fn, self._wakeup, engine.clock.monotonic
        status, others, item = engine.status, engine.backlog.entries, None
        before = copy_context()
        until, succeeded, by_value = now() + TURN_SECONDS, 0, all(map(_is_constant, before.values()))
        try:
            while todo:
                if (status.phase.paused or worker.status is STOPPING) and self._steps_aside():
                    break
                item = runner.item = todo.popleft()
                item.state = RUNNING
                try:
                    value = await fn(*item.args)
                except GeneratorExit:  # the loop is gone
                    raise
                except BaseException as error:
                    if item.state is not RUNNING:  # the pool has given this runner up
                        raise
                    self._failed(item, error, runner)
                    if isinstance(error, KeyboardInterrupt | SystemExit):
                        raise
                else:
                    if item.state is not RUNNING:
                        return None
                    succeeded += 1
                    item.value = value
                    item.state = DONE
                    value = None
                    if wakeup.awaited is item or wakeup.arrived is not None:
                        wakeup.wake(item)
                item.args = ()
                moment = now()
                if moment >= until:
                    if others and self._offer():
                        break
                    self._succeeded(worker, succeeded)
                    succeeded, until = 0, moment + TURN_SECONDS
                try:
                    changed = copy_context() != before if by_value else _differs(copy_context(), before)
                except Exception:  # of the comparison of two values
                    changed = True
                if changed or task.cancelling() or (moment >= self._pass_until and self._is_long_pass(moment)):
                    runner.context = self._context.copy()
                    return IN_NEW_TASK
            self._runners.discard(runner)
            succeeded -= 1  # the pool counts the runner, which is not a call of the user
            return None
        finally:
            self._succeeded(worker, succeeded)
            runner = item = before = None  # type: ignore[assignment]  # tracebacks of errors refer to this frame

    def _is_long_pass(self, now: float) -> bool:
        """Whether items that do not wait have kept the loop in one pass for `TURN_SECONDS`."""
        if self._pass_until:
            return True
        self._pass_until = now + TURN_SECONDS
        self._side.bridge.loop.call_soon(self._pass_ends)
        return False

    def _pass_ends(self) -> None:
        self._pass_until = 0.0

    def _steps_aside(self) -> bool:
        """A runner must leave its worker: put another one into the backlog, if one is needed."""
        if len(self._runners) > self._engine.most_at_once():
            return True
        return self._offer()

    def _failed(self, item: _LoopItem, error: BaseException, runner: _LoopRunner) -> None:
        """The call of `item` raised `error`."""
        engine, worker = self._engine, runner.worker
        if isinstance(error, WorkerBroken):
            engine.deaths.retire_broken(worker, error)
            engine.counts.lost.add()
            self._end(item, LOST, loss(worker, error))
        elif isinstance(error, asyncio.CancelledError):
            engine.counts.cancelled.add()
            self._end(item, CANCELLED, None)
        elif isinstance(error, KeyboardInterrupt | SystemExit):  # it ends the runner, which the pool counts
            self._runners.discard(runner)
            self._end(item, FAILED, error)
            self._start_runners()
        else:
            engine.counts.extra_failed.add(1)
            self._end(item, FAILED, error)

    def _succeeded(self, worker: Worker, count: int) -> None:
        if not count:
            return
        if self._engine.nested.is_own(worker):
            with worker.lock:
                worker.completed += count
        else:
            self._engine.counts.extra_completed.add(count)

    # The end.

    def left(self, runner: _LoopRunner, expected: RequestState, state: RequestState, value: Any) -> None:
        """`runner` has ended early: it was cancelled, abandoned or lost, or no worker can run it."""
        if runner not in self._runners:
            return
        self._runners.discard(runner)
        counts = self._engine.counts
        if expected is QUEUED:
            counts.runners_queued.add(-1)
            (counts.extra_cancelled if state is CANCELLED else counts.extra_failed).add(-1)  # it is no call of the user
            self._end_waiting(state, value)
            return
        item = runner.item
        if item is not None and item.state is RUNNING:  # the pool has counted the runner instead
            self._end(item, state, value)
        elif state is CANCELLED:
            counts.extra_cancelled.add(-1)
        else:
            counts.extra_submitted.add(1)
        if self._todo:
            self._start_runner()

    def _end_waiting(self, state: RequestState, value: Any) -> None:
        """End all items that no runner has begun."""
        counts = self._engine.counts
        while self._todo:
            item = self._todo.popleft()
            self._end(item, state, value)
            (counts.cancelled if state is CANCELLED else counts.failed_waiting).add()

    def _end(self, item: _LoopItem, state: RequestState, value: Any) -> None:
        item.value, item.state = value, state
        self._wakeup.wake(item)

    def cancel(self) -> None:
        """The pool starts nothing more."""
        self._end_waiting(CANCELLED, None)

    def stop(self) -> None:
        """The reader has gone: begin no further item, and cancel those that run."""
        self._engine.maps.leave(self)
        self.cancel()
        for runner in tuple(self._runners):
            self._side.give_up(runner)


def _is_constant(value: object) -> bool:
    """Whether an object that is equal to `value` is the same one, or cannot be told from it."""
    return type(value).__eq__ is object.__eq__ or isinstance(value, str | bytes | int | float | None)


def _differs(context: Context, before: Context) -> bool:
    """Whether a variable has another object as its value, equal or not."""
    return len(context) != len(before) or any(map(is_not, context.values(), before.values()))


class _LoopRunner(LoopCall):
    """A request that runs items of a map."""

    __slots__ = ("item", "work")

    attended: ClassVar[bool] = True  # the reader gets the errors

    work: _LoopItems
    item: _LoopItem | None

    @property
    def label(self) -> str:
        return self.work.label

    def start(self, worker: Worker) -> bool:
        if not super().start(worker):
            return False
        self.side.engine.counts.runners_queued.add(-1)
        return True

    def _leave(self, expected: RequestState, state: RequestState, value: Any) -> bool:
        if not super()._leave(expected, state, value):
            return False
        if value is not WITHDRAWN:
            self.work.left(self, expected, state, value)
        return True
