"""One attempt at one task, from its claim to its settlement.

    resolve → decode → run → classify → settle

An async function runs on the loop, in one asyncio task. A plain function runs on a thread of the lane's pool, with its
middleware, or in a process of the lane. Each attempt has one settlement; later outcomes are dropped.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Container, Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Protocol, TypeVar

import msgspec

from bullpen import primitives
from bullpen.errors import (
    Cancel,
    InvalidOptionType,
    LeaseLost,
    PoolError,
    QueueError,
    Retry,
    Snooze,
    StepFailed,
    StorageError,
    WorkerError,
    WorkerLost,
)
from bullpen.pools.dispatch.futures import PoolFuture
from bullpen.pools.runtimes.port import Listener, WritesStacks
from bullpen.tasks.model.codec import fill
from bullpen.tasks.model.context import CurrentTask, enter, leave
from bullpen.tasks.model.events import Event, complete_waits
from bullpen.tasks.model.registry import TaskDefinition, TaskRegistry
from bullpen.tasks.model.schedule_changes import occurrence, starts_others
from bullpen.tasks.model.steps import open_waits, suspension_of
from bullpen.tasks.model.task import (
    CANCELLED,
    PENDING,
    SUCCESS,
    AttemptError,
    DependsOn,
    ErrorKind,
    Progress,
    Settlement,
    Step,
    Task,
    cancel,
    crash,
    fail,
    fail_permanently,
    instead_of_run,
    postpone,
    release,
    set_aside,
    succeed,
    suspend,
    writable,
)
from bullpen.tasks.model.unreadable import unreadable_message
from bullpen.tasks.storage.port import AttemptKey
from bullpen.tasks.worker.black_box import LINES, kept_log, stack_in_output
from bullpen.tasks.worker.error_data import TRACEBACK_KEPT, describe_error, stack_text, text_of, type_of
from bullpen.tasks.worker.hung_stack import stack_of_coroutine, stack_of_thread
from bullpen.tasks.worker.in_process import LogLines, Outcome, TaskRaised, TaskUnreadable
from bullpen.tasks.worker.options import Lane, WorkerOptions
from bullpen.tasks.worker.own_transaction import OwnTransaction
from bullpen.tasks.worker.poison_isolation import PoisonIsolation
from bullpen.tasks.worker.reports import Reports, seconds_text
from bullpen.tasks.worker.scope import WorkerScope
from bullpen.tasks.worker.step_link import SavedStep
from bullpen.tasks.worker.steps import StepRunner
from bullpen.telemetry import Kind

# Seconds for a function to end after an interruption; the short time applies when the worker stops or loses the lease.
PATIENCE, SHORT_PATIENCE = 5.0, 0.5
STACK_PAUSE, STACK_LOOKS = 0.05, 40  # seconds between two looks at the output of a process, and how many
RESULTS_PAUSE = 1.0  # seconds until the next try, if the results of predecessors cannot be read
T = TypeVar("T")
AttemptId = tuple[str, int]  # of a task, and the number of the attempt
UNCOMMITTED = "it called complete() in a transaction that was never committed"


class Interruption(enum.Enum):
    """Why a worker ends an attempt."""

    TIMEOUT = "timeout"
    CANCEL = "it was cancelled"
    STOP = "the worker stops"
    CUT_OFF = "the lease could not be renewed"
    LOST = "the task went to another worker"


_PATIENT = (Interruption.TIMEOUT, Interruption.CANCEL)
# A thread cannot be ended. Its function may notice these itself; its outcome counts if the worker still has the task.
_ONLY_SAID = (Interruption.CANCEL, Interruption.CUT_OFF)


class AttemptLane(Protocol):
    """The part of its lane that an attempt needs."""

    lane: Lane
    options: WorkerOptions
    registry: TaskRegistry
    scope: WorkerScope
    worker: str
    reports: Reports
    poison_isolation: PoisonIsolation
    loop: asyncio.AbstractEventLoop
    loop_thread: int

    @property
    def held(self) -> Container[AttemptId]: ...
    def run_on_thread(self, attempt: TaskAttempt, /) -> None: ...
    def run_in_process(self, attempt: TaskAttempt, /) -> PoolFuture[Outcome]: ...
    def no_process(self, attempt: TaskAttempt, error: BaseException, /) -> Settlement: ...
    async def get(self, ids: Sequence[str], /) -> Sequence[Task | None]: ...
    async def find_event(self, name: str, /) -> Event | None: ...
    def settle_in(self, connection: Any, settlement: Settlement, /) -> Awaitable[None] | None: ...
    async def save_step(self, hold: AttemptKey, step: Step, /) -> bool: ...
    def save_step_in(self, connection: Any, hold: AttemptKey, step: Step, /) -> Awaitable[None] | None: ...
    def wait_for(self, coroutine: Coroutine[Any, Any, T], /) -> T: ...
    def settle(self, attempt: TaskAttempt, settlement: Settlement | None, /) -> None: ...
    def settle_from_thread(self, attempt: TaskAttempt, settlement: Settlement | None, /) -> None: ...
    def abandon(self, attempt: TaskAttempt, /) -> None: ...


class TaskAttempt:
    """A claimed task of this worker. Methods run on the loop's thread unless they say otherwise."""

    # Defaults on the class: most attempts never set these.
    unit: asyncio.Task[None] | None = None
    began_at: float | None = None  # when the function may have been called, on the loop's clock; None: not yet
    ran: float | None = None  # seconds that it has run, once it has ended
    thread: int | None = None  # that runs the function
    ended = False  # it has a settlement, or another worker has the task
    interruption: Interruption | None = None
    progress: Progress | None = None  # the latest report; any thread sets it
    written: Progress | None = None  # the latest report that the store has
    repeated = False  # the store may have its settlement already
    completion: Settlement | None = None  # written by `complete()` in a transaction of the function
    returned = False  # the function has returned after `complete()`
    answered = ""  # the latest request for its stack that the heartbeat has answered
    _own_transaction: OwnTransaction | None = None  # the transaction of `complete()`
    timer: asyncio.TimerHandle | None = None
    _gives_up_at: float | None = None
    _children: tuple[Task, ...] = ()
    _future: PoolFuture[Outcome] | None = None  # of one in a process
    _steps: StepRunner | None = None
    _log_lines: deque[str] | None = None  # its last ones; any thread appends
    definition: TaskDefinition

    def __init__(self, lane: AttemptLane, task: Task, claimed_at: float, expires_at: float) -> None:
        self._lane = lane
        self.task = task
        self.key = (task.id, task.attempt)
        self.claimed_at = claimed_at  # on the loop's clock
        self.expires_at = expires_at  # the lease, on the loop's clock, with a margin; any thread may move it on

    # The life of an attempt.

    def begin(self) -> None:
        """Resolve the function, and hand it to the loop or to a thread."""
        task, lane = self.task, self._lane
        if task.unreadable:
            lane.settle(self, self._set_aside())
            return
        if task.scheduled_at is not None and (instead := instead_of_run(task)) is not None:
            self._log(logging.INFO, "skipped: planned for its next time")
            lane.settle(self, instead)
            return
        if task.schedule is not None and starts_others(task):
            lane.settle(self, succeed(task, None, now=task.started_at or 0.0, children=(occurrence(task),)))
            return
        definition = lane.registry.get(task.func_path)
        if definition is None:
            lane.settle(self, self._unknown())
            return
        self.definition = definition
        if len(task.payload) > definition.codec.max_payload:  # before results of other tasks are put into it
            lane.settle(self, self._undecodable(definition.codec.too_large(task.payload)))
            return
        if (task.depends_on is not None and task.depends_on.place) or (task.steps and open_waits(task)):
            self.unit = lane.loop.create_task(self._prepare())
        else:
            self._start()

    def is_held(self) -> bool:
        """Whether its settlement is not confirmed yet."""
        return self.key in self._lane.held

    def _start(self) -> None:
        task, lane, definition = self.task, self._lane, self.definition
        runs_apart = not definition.is_async and (definition.options.runtime or lane.lane.runtime) == "process"
        if task.crashes and not runs_apart and not lane.poison_isolation.may_begin(task, self.is_held):
            self._log(
                logging.INFO, "released: tasks that have crashed twice run one at a time, and another one is running"
            )
            lane.settle(self, release(task, lane.poison_isolation.pause(primitives.random.random())))
            return
        if definition.is_async:
            self.unit = lane.loop.create_task(self._run_on_loop())
        else:
            self.began_at = lane.loop.time()
            if runs_apart:
                self._run_in_process()
            else:
                lane.run_on_thread(self)
        if task.timeout is not None:
            self.timer = lane.loop.call_later(task.timeout, self.interrupt, Interruption.TIMEOUT)

    async def _prepare(self) -> None:
        """Read what its function needs from the store, then start it."""
        lane, depends_on = self._lane, self.task.depends_on
        members: Sequence[Task | None] = ()
        try:
            if depends_on is not None and depends_on.place:
                members = await lane.get(depends_on.ids)
            await self._complete_waits()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._log(logging.WARNING, "released: what it needs from the store cannot be read (%s)", type_of(error))
            lane.settle(self, release(self.task, RESULTS_PAUSE))
            return
        self.unit = None
        if self.interruption is not None:
            lane.settle(self, self._interrupted(None))
        elif depends_on is not None and depends_on.place:
            self._start_with_results(depends_on, members)
        else:
            self._start()

    async def _complete_waits(self) -> None:
        """Keep the payloads of the events that it waited for, and the ends of waits whose time is over."""
        events: dict[str, Event] = {}
        for wait in open_waits(self.task):
            if wait.event not in events and (event := await self._lane.find_event(wait.event)) is not None:
                events[wait.event] = event
        task, new = complete_waits(self.task, events, self._now())
        for step in new:
            if not await self._lane.save_step(AttemptKey(*self.key), step):
                raise LeaseLost(task=task.id, attempt=task.attempt)
        self.task = task

    def _start_with_results(self, depends_on: DependsOn, members: Sequence[Task | None]) -> None:
        """Put the results of its predecessors into its arguments."""
        lane = self._lane
        missing = [
            task_id for task_id, one in zip(depends_on.ids, members, strict=True) if not _has_result(one, depends_on)
        ]
        if missing:
            why = f"the result of its predecessor {missing[0]} does not exist"
            self._log(logging.ERROR, "failed: %s", why)
            lane.settle(self, fail_permanently(self.task, self._error("input", None, why)))
            return
        results = [b"null" if one is None or one.result is None else one.result for one in members]
        value = b"[" + b",".join(results) + b"]" if depends_on.many else results[0]
        try:
            payload = fill(self.task.payload, depends_on.place, value)
        except Exception as error:
            lane.settle(self, self._undecodable(error))
            return
        self.task = msgspec.structs.replace(self.task, payload=payload)
        self._start()

    async def _run_on_loop(self) -> None:
        lane = self._lane
        if self.interruption is not None:
            lane.settle(self, self._interrupted(None))
            return
        self.began_at = lane.loop.time()
        primitives.failpoint("attempt.before")
        if lane.reports.watched:
            lane.reports.event(Kind.TASK_STARTED, self.task)
        try:
            args, kwargs = self.definition.decode(self.task.payload)
        except BaseException as error:
            lane.settle(self, self._undecodable(error))
            return
        enter(self._current)
        try:
            if lane.scope.surrounds(self.definition):
                value = await lane.scope.call(self.definition, args, kwargs)
            else:
                value = await self.definition.function(*args, **kwargs)
            self.definition.reject_unawaited(value)
        except BaseException as error:  # also SystemExit, which would end the loop: only this attempt failed
            settlement = self._raised(error)
        else:
            settlement = self._returned(value)
        primitives.failpoint("attempt.after")
        self.unit = None  # its context refers to this attempt: this breaks the reference cycle
        lane.settle(self, settlement)

    def run_on_thread(self) -> None:
        """On a thread of the lane's pool."""
        lane = self._lane
        settlement: Settlement | None = None
        if self.ended:  # before a thread was free: it never runs
            lane.settle_from_thread(self, None)
            return
        self.began_at = began_at = lane.loop.time()  # only now: it may have waited for a thread
        self.thread = threading.get_ident()
        primitives.failpoint("attempt.before")
        if lane.reports.watched:
            lane.reports.event(Kind.TASK_STARTED, self.task)
        try:
            args, kwargs = self.definition.decode(self.task.payload)
        except BaseException as error:
            settlement = self._undecodable(error)
        else:
            entered = enter(self._current)
            try:
                try:
                    if lane.scope.surrounds(self.definition):
                        value = lane.scope.call_on_thread(self.definition, args, kwargs)
                    else:
                        value = self.definition.function(*args, **kwargs)
                    self.definition.reject_unawaited(value)
                finally:
                    leave(entered)
            except BaseException as error:
                settlement = self._raised(error)
            else:
                settlement = self._returned(value)
        self.ran = lane.loop.time() - began_at
        primitives.failpoint("attempt.after")
        lane.settle_from_thread(self, settlement)

    def _run_in_process(self) -> None:
        lane = self._lane
        primitives.failpoint("attempt.before")
        if lane.reports.watched:
            lane.reports.event(Kind.TASK_STARTED, self.task)
        try:
            self._future = lane.run_in_process(self)
        except Exception as error:
            lane.settle(self, lane.no_process(self, error))

    def has_run_in_process(self, future: Future[Outcome]) -> None:
        """On any thread. The function has ended, also after an interruption: nothing is abandoned."""
        error = CancelledError() if future.cancelled() else future.exception()
        if error is None:
            settlement = self._succeeded(*future.result())
        elif isinstance(error, TaskUnreadable):
            settlement = self._undecodable(_cause_of(error))
        elif isinstance(error, TaskRaised):
            settlement = self._raised_in_process(_cause_of(error))
        else:
            settlement = self._came_to_nothing(error)
        primitives.failpoint("attempt.after")
        self._lane.settle_from_thread(self, settlement)

    def _raised_in_process(self, error: BaseException) -> Settlement | None:
        if self.interruption is not None and not isinstance(error, Exception):
            return self._interrupted(CancelledError().with_traceback(error.__traceback__))  # the interruption itself
        return self._raised(error)

    def _came_to_nothing(self, error: BaseException) -> Settlement | None:
        """An error of the pool: the process died, none could start, or the task could not be sent."""
        if self.interruption is not None:
            return self._interrupted(error if isinstance(error, WorkerLost) else None)
        if isinstance(error, WorkerLost):
            self._log(logging.ERROR, "crashed: its process died (%s)", error)
            return crash(self.task, self._error("crash", error.with_traceback(stack_in_output(error.stderr))))
        if isinstance(error, PoolError | WorkerError | CancelledError):
            return self._lane.no_process(self, error)
        return self._raised(error)

    def deadline(self) -> datetime | None:
        timeout, now = self.task.timeout, self.task.started_at
        return None if timeout is None or now is None else datetime.fromtimestamp(now + timeout, UTC)

    def _current(self) -> CurrentTask:
        return CurrentTask(
            self.task,
            deadline=self.deadline(),
            report=self.report,
            cancelled=self.is_interrupted,
            complete=self._complete,
            adopt=self._adopt,
            steps=self._step_runner,
            log=self.note_log if self.definition.options.black_box else None,
        )

    def _step_runner(self) -> StepRunner:
        """On any thread: the same for all."""
        if self._steps is None:
            vars(self).setdefault("_steps", StepRunner(self, self.definition.codec.max_result))
        assert self._steps is not None
        return self._steps

    def _adopt(self, make: Callable[[float], Sequence[Task]]) -> None:
        """On any thread: enqueue tasks together with the success."""
        if self.completion is not None:
            raise QueueError("the task has called complete(): enqueue before it")
        self._children = (*self._children, *make(self._now()))

    def report(self, progress: Progress) -> None:
        """On any thread: the heartbeat writes the latest, and the settlement the last."""
        self.progress = progress

    def note_log(self, line: str) -> None:
        """On any thread: a failure keeps the last lines."""
        if self._log_lines is None:
            vars(self).setdefault("_log_lines", deque(maxlen=LINES))
        assert self._log_lines is not None
        self._log_lines.append(line)

    def with_progress(self, settlement: Settlement) -> Settlement:
        """The settlement with the last progress, unless the store has it."""
        if self.progress is self.written:
            return settlement
        return msgspec.structs.replace(settlement, progress=self.progress)

    def is_interrupted(self) -> bool:
        """On any thread: whether it is to stop."""
        return self.interruption is not None

    # Steps: `worker/steps.py` calls these.

    async def _save_step(self, step: Step) -> bool:
        """Save a step. While the store does not answer, try again for as long as the worker has the task."""
        pause = 0.05
        while True:
            try:
                return await self._lane.save_step(AttemptKey(*self.key), step)
            except (StorageError, TimeoutError) as error:
                if self.interruption is not None or self._lane.loop.time() >= self.expires_at:
                    raise
                self._log(logging.WARNING, "step %r is not kept yet (%s); trying again", step.name, type_of(error))
            pause = min(2 * pause, 1.0)
            await asyncio.sleep(pause)

    def save_step(self, step: Step) -> bool:
        return self._lane.wait_for(self._save_step(step))

    async def asave_step(self, step: Step) -> bool:
        if asyncio.get_running_loop() is self._lane.loop:
            return await self._save_step(step)
        saving = asyncio.run_coroutine_threadsafe(self._save_step(step), self._lane.loop)
        return await asyncio.wrap_future(saving)

    def save_step_in(self, connection: Any, step: Step) -> Awaitable[None] | None:
        return self._lane.save_step_in(connection, AttemptKey(*self.key), step)

    def describe_error(self, error: BaseException) -> AttemptError:
        return describe_error(self.task, "exception", error, at=self._now(), worker=self._lane.worker)

    def store_time(self) -> float:
        return self._now()

    def save_step_of_process(self, saved: SavedStep) -> None:
        """On any thread: its process waits for the answer."""

        async def answer() -> None:
            try:
                saved.answer("kept" if await self._save_step(saved.step) else "lost")
            except Exception as error:
                saved.answer(f"{type_of(error)}: {text_of(error)}")

        asyncio.run_coroutine_threadsafe(answer(), self._lane.loop)

    def _complete(self, connection: Any, value: Any, waits: bool) -> Awaitable[None] | None:
        """On the thread of the function, in its transaction. Returns an awaitable if the connection is async."""
        settlement = self._success(value)
        if settlement is None:
            raise LeaseLost(task=self.task.id, attempt=self.task.attempt)
        settlement = self.with_progress(settlement)
        primitives.failpoint("complete.before")
        waiting = self._lane.settle_in(connection, settlement)
        if waiting is not None:
            if waits:
                return self._complete_when(waiting, settlement)
            if isinstance(waiting, Coroutine):
                waiting.close()
            raise InvalidOptionType("connection", connection, "a sync connection; with this one, await acomplete()")
        self._own_transaction = OwnTransaction(connection)
        self.completion = settlement
        primitives.failpoint("complete.after")
        return None

    async def _complete_when(self, settled: Awaitable[None], settlement: Settlement) -> None:
        await settled
        self.completion = settlement
        primitives.failpoint("complete.after")

    # The outcome. On the thread that ran the function.

    def _returned(self, value: Any) -> Settlement | None:
        self._leave_transaction()
        if self._steps is not None and (error := self._steps.reject_return()) is not None:
            return self._raised(error)
        return self._success(value) if self.completion is None else self._uncommitted()

    def _leave_transaction(self) -> None:
        """Roll back an open transaction of the function: it would lock the store for all others."""
        if self._own_transaction is not None:
            self._own_transaction.leave()
            self._own_transaction = None

    def _uncommitted(self) -> Settlement:
        """The settlement after `complete()`. If the function has committed, the store rejects this settlement."""
        self.returned = True
        error = self._error("exception", None, UNCOMMITTED)
        return fail(self.task, error, primitives.random.random())

    def _success(self, value: Any) -> Settlement | None:
        try:
            result, dropped = self.definition.keep_result(value)
        except BaseException as error:  # also not an `Exception`, or nested too deeply
            result, dropped = None, f"{type_of(error)} while it was written"
        return self._succeeded(result, dropped)

    def _succeeded(self, result: bytes | None, dropped: str) -> Settlement | None:
        if self.interruption is Interruption.LOST:
            return None
        if result is None:
            self._log(logging.WARNING, "succeeded, but its result cannot be stored: %s", dropped)
        now = self._now() if self.task.repeats else 0.0
        return succeed(self.task, result, writable(dropped) if dropped else "", now=now, children=self._children)

    def _raised(self, error: BaseException) -> Settlement | None:
        self._leave_transaction()
        try:
            return self._classify(error)
        except BaseException as broken:  # out of memory, or a log handler raised
            failure = AttemptError(kind="exception", attempt=self.task.attempt, at=self._now(), type=type_of(error))
            self._log(logging.ERROR, "failed; the error cannot be described (%s)", type(broken).__name__)
            return fail(self.task, failure, primitives.random.random())

    def _classify(self, error: BaseException) -> Settlement | None:
        if self.interruption is not None:
            return self._interrupted(error)
        if (suspension := suspension_of(error)) is not None:
            self._log(logging.INFO, "%s", str(suspension).removeprefix("the task "))
            return suspend(self.task, suspension.until, suspension.event)
        if isinstance(error, Snooze) and not self.task.at_most_once:
            self._log(logging.INFO, "snoozed for %g s", error.delay)
            return release(self.task, error.delay)
        if isinstance(error, Cancel):
            self._log(logging.INFO, "cancelled itself: %s", error)
            return cancel(self.task)
        retry = self.definition.options.may_retry(error) and not isinstance(error, StepFailed)  # it would be the same
        after, random = error.after if isinstance(error, Retry) else None, primitives.random.random()
        backoff = None if isinstance(error, Retry) else self.definition.options.backoff_of(error)
        if backoff is not None:
            after = backoff.delay(self.task.failures + 1, random)
        failure = self._error("exception", error)
        cause = _cause_of_retry(error) if isinstance(error, Retry) else None
        if cause is not None:
            of_cause = self._error("exception", cause, f"{text_of(cause)}; {error}")
            failure = msgspec.structs.replace(of_cause, traceback=failure.traceback)
        settlement = fail(self.task, failure, random, retry=retry, after=after)
        if isinstance(error, Retry):  # it has a reason: no traceback, but that of its cause
            said = f"raised Retry ({error.reason})" if error.reason else "raised Retry"
            because = "" if cause is None else f" because of {type_of(cause)}: {text_of(cause)}"
            self._log_failure(said + because, settlement, cause, quiet=True)
        else:
            self._log_failure("failed", settlement, error)
        return settlement

    def _interrupted(self, error: BaseException | None) -> Settlement | None:
        """The worker has interrupted it. `error`: the exception of the function, or the end of its process."""
        why = self.interruption
        assert why is not None
        if why is Interruption.LOST:
            return None
        if why is Interruption.CANCEL:
            self._log(logging.INFO, "cancelled")
            return cancel(self.task)
        if why is Interruption.TIMEOUT:
            return self._timed_out(error)
        if self.task.at_most_once and self.began_at is not None:
            self._log(logging.ERROR, "lost: it was interrupted (%s) and must not run again", why.value)
            return crash(self.task, self._error("lost", None, f"it was interrupted: {why.value}", self._where(error)))
        self._log(logging.INFO, "released: %s", why.value)
        return release(self.task)

    def _timed_out(self, error: BaseException | None) -> Settlement:
        """It is recorded as a timeout, whatever the function raised when it was interrupted."""
        timeout = f"ran longer than its timeout of {self.task.timeout:g} s"
        own = None if isinstance(error, asyncio.CancelledError | CancelledError | WorkerLost) else error
        raised = "" if own is None else f"; it raised {type_of(own)}: {text_of(own)}"
        failure = self._error("timeout", TimeoutError(timeout + raised).with_traceback(self._where(error)))
        if isinstance(error, WorkerLost):
            failure = _with_end(failure, error)
        settlement = fail(self.task, failure, primitives.random.random())
        self._log_failure(timeout, settlement, own)
        return settlement

    def _where(self, error: BaseException | None) -> TracebackType | None:
        """Where its function was when it was interrupted."""
        if error is None:
            return self.hung_at()
        return stack_in_output(error.stderr) if isinstance(error, WorkerLost) else error.__traceback__

    def hung_at(self) -> TracebackType | None:
        """On any thread: where its function hangs. None if it has just ended, or runs in a process."""
        unit = self.unit
        if unit is not None:
            return stack_of_coroutine(unit.get_coro(), self._lane.loop_thread)
        if self.thread is None:
            return None
        stack = stack_of_thread(self.thread, TaskAttempt.run_on_thread.__code__)
        return stack if self.ran is None else None  # read after the stack: the thread may run another attempt by now

    async def stack(self) -> str:
        """On the heartbeat's loop: where its function is; "" if it has not begun, or has just ended."""
        if self._future is None:
            shown = stack_text(self.hung_at())
        else:
            worker = self._future.holder
            shown = await _stack_of_process(getattr(worker, "handle", None), self._future)
        return writable(shown)[-TRACEBACK_KEPT:]

    def _unknown(self) -> Settlement:
        hint = self._hint()
        error = self._error("unknown_function", None, f"no function is registered as {self.task.func_path!r}{hint}")
        after = self._lane.options.unknown_after
        settlement = postpone(self.task, error, primitives.random.random(), give_up_after=after)
        if settlement.is_final:
            self._log(logging.ERROR, "failed: no worker has registered this function for %g s%s", after, hint)
        else:
            then = f"; retrying in {seconds_text(settlement.delay or 0.0)}"
            self._log(logging.WARNING, "released: this worker has not registered the function%s%s", hint, then)
        return settlement

    def _set_aside(self) -> Settlement:
        why = unreadable_message(self.task)
        settlement = set_aside(self.task, self._error("poison", None, why), primitives.random.random())
        if settlement.delay is None:
            self._log(logging.ERROR, "%s: %s", settlement.status, why)
        else:
            self._log(logging.WARNING, "released: %s; retrying in %s", why, seconds_text(settlement.delay))
        return settlement

    def _hint(self) -> str:
        """One function may have two names: `python shop/jobs.py` enqueues jobs.send, a worker has shop.jobs.send."""
        own = self.task.func_path.rpartition(".")[2]
        same = [name for name in self._lane.registry.names() if name.rpartition(".")[2] == own]
        return (
            f" (registered: {', '.join(same)}; was the task enqueued under another name of its module?)" if same else ""
        )

    def _undecodable(self, error: BaseException) -> Settlement:
        self._log(
            logging.ERROR, "failed: the stored arguments cannot be decoded (%s)", type_of(error)
        )  # never log arguments
        return fail_permanently(self.task, self._error("poison", error))

    def _error(
        self, kind: ErrorKind, error: BaseException | None, message: str = "", stack: TracebackType | None = None
    ) -> AttemptError:
        """A failure as data, with the message of the error unless another is given, and the last log lines."""
        at, worker = self._now(), self._lane.worker
        failure = describe_error(self.task, kind, error, at=at, worker=worker, message=message, stack=stack)
        if self._log_lines:
            log = kept_log(self._log_lines.copy(), self.definition, self.task.payload)
            failure = msgspec.structs.replace(failure, log=log)
        return _with_end(failure, error) if kind == "crash" and isinstance(error, WorkerLost) else failure

    def _now(self) -> float:
        """The store's clock, as estimated here."""
        return (self.task.started_at or 0.0) + self._lane.loop.time() - self.claimed_at

    def _log(self, level: int, message: str, *values: object) -> None:
        self._lane.reports.log(level, self.task, message, *values)

    def _log_failure(
        self, what: str, settlement: Settlement, error: BaseException | None, *, quiet: bool = False
    ) -> None:
        retries = settlement.status is PENDING and not settlement.next_run
        level = (logging.INFO if quiet else logging.WARNING) if retries else logging.ERROR
        over = "was cancelled" if settlement.status is CANCELLED else "has no retries left"
        if settlement.next_run:
            over += "; its next run is planned"
        then = f"; retrying in {seconds_text(settlement.delay or 0.0)}" if retries else f"; it {over}"
        self._lane.reports.log(level, self.task, "%s%s", what, then, error=error)

    # Interruption.

    def interrupt(self, why: Interruption) -> None:
        """End it if possible. Its settlement is decided when it has ended or is abandoned."""
        if self.ended:
            return
        if self.completion is not None and why in (Interruption.LOST, Interruption.CUT_OFF):
            return  # a committed completion needs no lease; an uncommitted one cannot commit without it
        if self.interruption is None or why is Interruption.LOST:
            self.interruption = why
        if self.unit is not None:
            if self.began_at is not None:
                self.unit.cancel()
            self._give_up_within(PATIENCE if why in _PATIENT else SHORT_PATIENCE)
        elif self._future is not None:
            self._future.engine.interrupt(self._future, kill=False)
            self._give_up_within(PATIENCE if why in _PATIENT else SHORT_PATIENCE)
        elif why is Interruption.STOP:
            self._give_up_within(SHORT_PATIENCE)
        elif why not in _ONLY_SAID:
            self._give_up()

    @property
    def cannot_be_ended(self) -> bool:
        """Whether it was asked to stop and runs on a thread, which only its function can leave. On any thread."""
        on_thread = self.unit is None and self._future is None and self.began_at is not None
        return on_thread and self.task.cancel_requested and not self.ended

    def note_cancel_request(self) -> None:
        """A client has asked to cancel it. It is not retried."""
        if not self.ended and not self.task.cancel_requested:
            self.task = msgspec.structs.replace(self.task, cancel_requested=True)
            self.interrupt(Interruption.CANCEL)

    def _give_up_within(self, seconds: float) -> None:
        at = self._lane.loop.time() + seconds
        if self._gives_up_at is None or at < self._gives_up_at:
            self.stop_timer()
            self._gives_up_at = at
            self.timer = self._lane.loop.call_at(at, self._give_up)

    def _give_up(self) -> None:
        """It does not end: settle it anyway, and abandon its function."""
        if self.ended:
            return
        if self._future is not None:
            self._future.engine.interrupt(self._future, kill=True)
            return
        self._lane.abandon(self)
        self._lane.settle(self, self._interrupted(None))

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class ProgressOf(Listener):
    """Receives progress and steps from a process."""

    __slots__ = ("_attempt",)

    def __init__(self, attempt: TaskAttempt) -> None:
        self._attempt = attempt

    def hear(self, value: Any) -> None:
        if isinstance(value, SavedStep):
            self._attempt.save_step_of_process(value)
        elif isinstance(value, LogLines):
            for line in value.lines:
                self._attempt.note_log(line)
        else:
            self._attempt.report(value)


def _has_result(member: Task | None, depends_on: DependsOn) -> bool:
    """Whether a predecessor has a result. A task with `run_always` accepts failed predecessors."""
    if member is None or member.status is not SUCCESS:
        return depends_on.run_always
    return not member.result_dropped


async def _stack_of_process(handle: object, future: PoolFuture[Outcome]) -> str:
    """Have the process write its stack to stderr, and read it there."""
    if not isinstance(handle, WritesStacks):
        return ""
    before = handle.output
    if not handle.ask_stack(future):
        return ""
    shown = ""
    for _ in range(STACK_LOOKS):
        await asyncio.sleep(STACK_PAUSE)
        output = handle.output
        new = output[len(before) :] if output.startswith(before) else output
        last, shown = shown, stack_text(stack_in_output(new.decode(errors="backslashreplace")))
        if shown and shown == last:  # it is complete
            break
    return shown


def _with_end(failure: AttemptError, lost: WorkerLost) -> AttemptError:
    """The failure with the end of its process."""
    return msgspec.structs.replace(failure, exit_code=lost.exit_code, peak_memory=lost.peak_memory)


def _cause_of(error: BaseException) -> BaseException:
    return error if error.__cause__ is None else error.__cause__


def _cause_of_retry(error: Retry) -> BaseException | None:
    """The error that it was raised from, or while it was handled."""
    return error.__context__ if error.__cause__ is None and not error.__suppress_context__ else error.__cause__
