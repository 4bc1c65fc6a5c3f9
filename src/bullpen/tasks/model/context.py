"""`current_task()`: a running task reads its own data, and reports progress."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from datetime import UTC, datetime, timedelta
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from bullpen.errors import Cancel, InvalidOption, InvalidOptionType, NoCurrentTask
from bullpen.tasks.model.events import event_name
from bullpen.tasks.model.info import TaskInfo, info_of
from bullpen.tasks.model.retry import Backoff
from bullpen.tasks.model.steps import RunsSteps, StepOptions, TaskSteps
from bullpen.tasks.model.task import Progress, Task, scheduled_time_of, writable

# A task that `current_task().enqueue` makes inherits these, so that a trace goes on: W3C Trace Context and Baggage,
# and Sentry.
TRACE_HEADERS = ("traceparent", "tracestate", "baggage", "sentry-trace")
PARENT_HEADER = "bullpen-parent"  # of a task that another one has enqueued with its success: the id of that one

J = TypeVar("J")
P = ParamSpec("P")
T = TypeVar("T")

_USUAL_BACKOFF = Backoff()
_USUAL_OPTIONS = StepOptions()
J_co = TypeVar("J_co", covariant=True)


class Work(Protocol[J_co]):
    """Anything that can be enqueued: a call, a chain, a group."""

    def children(self, now: float, headers: Mapping[str, str]) -> tuple[Sequence[Task], J_co]:
        """Its tasks, with `now` by the store's clock, and the job that `enqueue` returns. `headers`: each task gets
        them, unless its call has given others of these names.
        """


class CurrentTask:
    """The task that runs here. Every method may be called from any thread.

    The worker makes it. `report` takes progress and returns at once. `cancelled` says whether the task was asked to
    stop. `complete` settles the task in a transaction; if its third argument says that the caller can await, it may
    return an awaitable. `adopt` passes the store's time to a function that makes new tasks, and adds them with the
    success of this one. `steps` makes the runner of its steps. `log` takes the log lines of the task.
    """

    __slots__ = ("_adopt", "_cancelled", "_complete", "_report", "_steps", "_task", "deadline", "log")

    def __init__(
        self,
        task: Task,
        *,
        deadline: datetime | None = None,
        report: Callable[[Progress], object] = lambda _: None,
        cancelled: Callable[[], bool] = lambda: False,
        complete: Callable[[Any, Any, bool], Awaitable[None] | None] | None = None,
        adopt: Callable[[Callable[[float], Sequence[Task]]], None] | None = None,
        steps: Callable[[], RunsSteps] | None = None,
        log: Callable[[str], object] | None = None,
    ) -> None:
        self._task = task
        self._report = report
        self._cancelled = cancelled
        self._complete = complete
        self._adopt = adopt
        self._steps = steps
        self.log = log
        self.deadline = deadline  # when this attempt times out

    @property
    def id(self) -> str:
        """The same in every attempt: use it as idempotency key."""
        return self._task.id

    @property
    def info(self) -> TaskInfo:
        """The task as it was when this attempt began: its options, times and earlier errors."""
        return info_of(self._task)

    @property
    def name(self) -> str:
        return self._task.func_path

    @property
    def queue(self) -> str:
        return self._task.queue

    @property
    def attempt(self) -> int:
        """1 for the first attempt; every start raises it, for whatever reason."""
        return self._task.attempt

    @property
    def failures(self) -> int:
        """How often this run has failed so far."""
        return self._task.failures

    @property
    def max_retries(self) -> int:
        return self._task.max_retries

    @property
    def scheduled_at(self) -> datetime | None:
        """The time of the schedule that this run is for; None without cron, and for a run that was started by hand."""
        scheduled_at = scheduled_time_of(self._task)
        return None if scheduled_at is None else datetime.fromtimestamp(scheduled_at, UTC)

    @property
    def headers(self) -> Mapping[str, str]:
        return self._task.headers

    @property
    def fencing_token(self) -> str:
        """Identifies this attempt. A system that has seen a later attempt can reject writes of an earlier one."""
        return f"{self._task.id}:{self._task.attempt}"

    @property
    def is_cancelled(self) -> bool:
        """Whether the task was asked to stop. A function on a thread has to check it: a thread cannot be stopped."""
        return self._cancelled()

    def stop_if_cancelled(self) -> None:
        """Raises Cancel if the task was asked to stop."""
        if self._cancelled():
            raise Cancel("it was asked to stop")

    @property
    def after(self) -> tuple[str, ...]:
        """The ids of the tasks that it depends on, in a chain or a group."""
        return () if self._task.depends_on is None else self._task.depends_on.ids

    def enqueue(self, work: Work[J]) -> J:
        """Enqueue tasks together with the success of this one, in one step: if this task fails, or its worker dies,
        none is enqueued; if it succeeds, all are.

            current_task().enqueue(resize.call(path))
            current_task().enqueue(group(resize.call(path) for path in paths).then(report.call()))

        The tasks of the returned jobs exist as soon as this task has succeeded. They pass the enqueue middleware here,
        inherit the trace headers of this task (`traceparent`, `tracestate`, `baggage`, `sentry-trace`), and have the
        header `bullpen-parent` with its id.
        """
        if self._adopt is None:
            raise NoCurrentTask("no worker runs this task here, so there is no success to enqueue others with")
        make = getattr(work, "children", None)
        if not callable(make):
            raise InvalidOptionType("work", work, "a call, a chain or a group: send_email.call(…)")
        tasks: list[Task] = []
        jobs: list[J] = []
        inherited = {name: self.headers[name] for name in TRACE_HEADERS if name in self.headers}
        inherited[PARENT_HEADER] = self.id

        def of(now: float) -> Sequence[Task]:
            made, job = work.children(now, inherited)
            tasks.extend(made)
            jobs.append(job)
            return tasks

        self._adopt(of)
        return jobs[0]

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Report progress. It is cheap: only the latest report is kept. The worker writes it once a second, and the
        last one with the outcome of the attempt.
        """
        if not isinstance(note, str):
            raise InvalidOptionType("note", note, "a string")
        whole = None if total is None else _number("total", total)
        self._report(Progress(_number("done", done), whole, writable(note)))

    def step(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a part of this function, and keep its result: a later attempt gets the result and does not run it again.

            payment = current_task().step(charge, order)

        The result is in the store before this returns. If the worker dies before that, the step runs again. A step is
        found again by the name of its function and by how often this attempt has called it, or by `using(key=…)`.
        An exception is an error of the attempt, and the step runs again with the next one; with
        `using(max_retries=…)` the step is tried again here, and raises StepFailed when it gives up, which is kept.
        Raises InvalidStep, StepMismatch, InvalidResult, or LeaseLost if the task went to another worker meanwhile.
        """
        return self._plain().step(function, *args, **kwargs)

    @overload
    async def astep(self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    async def astep(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    async def astep(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """`step`, for async code. A coroutine function runs on the event loop, any other function on a thread.

        payment = await current_task().astep(charge, order)
        """
        return await self._plain().astep(function, *args, **kwargs)

    def sleep(self, until: float | timedelta | datetime) -> None:
        """Go on later: after so many seconds, or at an instant.

            current_task().sleep(3600)

        This ends the attempt, by an exception that is no `Exception` (`Suspended`). The task waits in the store, and
        holds no worker, thread or permit. Then it starts again from its beginning, gets its kept steps, and this
        returns. Nothing is counted: neither as a failure nor as a retry. Each attempt has the whole `timeout`.
        Steps that are running end first. Raises InvalidStep in a task with `at_most_once`.
        """
        self._plain().sleep(until)

    async def asleep(self, until: float | timedelta | datetime) -> None:
        """`sleep`, for async code.

        await current_task().asleep(timedelta(days=3))
        """
        await self._plain().asleep(until)

    def wait_event(self, name: str, *, timeout: float | timedelta | None = None, own: bool = False) -> Any:
        """Wait for an event, and return its payload; None when `timeout` seconds are over.

            answer = current_task().wait_event(f"approved:{order}", timeout=timedelta(days=7))

        `queue.emit(name, payload)` emits it, before this call or later, in any process. `own`: an event for this task
        alone, which `job.emit(name, payload)` emits. This ends the attempt as `sleep` does, and the task holds no
        worker. The outcome is kept as a step: every later attempt gets the same payload.
        """
        return self._plain().wait_event(self._event(name, own), timeout=timeout)

    async def await_event(self, name: str, *, timeout: float | timedelta | None = None, own: bool = False) -> Any:
        """`wait_event`, for async code.

        answer = await current_task().await_event(f"approved:{order}", timeout=timedelta(days=7))
        """
        return await self._plain().await_event(self._event(name, own), timeout=timeout)

    def _event(self, name: str, own: bool) -> str:
        return event_name(name, self.id if own else None)

    def using(
        self,
        *,
        key: str | None = None,
        max_retries: int | None = None,
        backoff: float | Backoff | Sequence[float] = _USUAL_BACKOFF,
        timeout: float | timedelta | None = None,
        connection: Any = None,
    ) -> TaskSteps:
        """Options for a step.

            await current_task().using(key="ship", max_retries=3).astep(ship, order, payment)

        `key`: the name of the step, in place of the name of its function. `max_retries`: the step is tried again so
        often, with `backoff`; the retries of the task are not touched. `timeout`: seconds for each try of a coroutine
        function. `connection`: keep the step in this transaction, together with the effects of the function, on
        SQLite or PostgreSQL; the caller commits it.
        """
        return self._plain().using(
            key=key, max_retries=max_retries, backoff=backoff, timeout=timeout, connection=connection
        )

    def _plain(self) -> TaskSteps:
        """Steps with the usual options."""
        if self._steps is None:
            raise NoCurrentTask("no worker runs this task here, so there is no store to keep its steps")
        return TaskSteps(self._steps(), _USUAL_OPTIONS)

    def idempotency_key(self, step: str) -> str:
        """A key for a call of another service: the same in every attempt of this run, and different for each step.

        charge_card(order, idempotency_key=current_task().idempotency_key("charge"))
        """
        if not isinstance(step, str):
            raise InvalidOptionType("step", step, "the name of a step")
        return f"{self._task.id}:{self._task.completed_runs}:{step}"

    def complete(self, connection: Any, result: Any = None) -> None:
        """Settle the task as a success inside your own transaction: your writes and the success are committed together,
        or neither is.

            with sqlite3.connect("jobs.db") as connection:      # the file that the tasks are in
                current_task().complete(connection)
                connection.execute("UPDATE account SET balance = balance - ? WHERE name = ?", (amount, name))

        Call it first: it begins a transaction if there is none, and raises LeaseLost if the task went to another worker
        meanwhile. `result` is the result of the task; the return value of the function is ignored. If the function
        returns and the transaction was not committed, the attempt has failed.
        """
        if self._complete is None:
            raise NoCurrentTask("no worker runs this task, so there is nothing to complete")
        self._complete(connection, result, False)

    async def acomplete(self, connection: Any, result: Any = None) -> None:
        """`complete`, for async code: with a connection of asyncpg, or an async one of psycopg or SQLAlchemy.

        async with connection.transaction():
            await current_task().acomplete(connection)
            await connection.execute("UPDATE account SET balance = balance - $1 WHERE name = $2", amount, name)
        """
        if self._complete is None:
            raise NoCurrentTask("no worker runs this task, so there is nothing to complete")
        waiting = self._complete(connection, result, True)
        if waiting is not None:
            await waiting

    def __repr__(self) -> str:
        return f"<task {self.name} {self.id}, attempt {self.attempt}>"


LARGEST = 1.7e308  # a float of that size is finite


def _number(name: str, value: object) -> int | float:
    """The number as every store can keep it: an integer of at most 63 bits, or a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidOptionType(name, value, "a number")
    if not 0 <= value <= LARGEST:
        raise InvalidOption(name, value, "a number ≥ 0, and finite")
    return int(value) if isinstance(value, int) and value < 2**63 else float(value)


_current: ContextVar[CurrentTask | Callable[[], CurrentTask]] = ContextVar("bullpen_current_task")


def current_task() -> CurrentTask:
    """The task that runs on this thread or in this coroutine. Raises NoCurrentTask if there is none.

    def import_rows(path: str) -> None:
        task = current_task()
        for number, row in enumerate(rows := read(path)):
            task.progress(number, len(rows))
            task.stop_if_cancelled()
            insert(row, idempotency_key=f"{task.id}:{number}")
    """
    current = _current.get(None)
    if current is None:
        raise NoCurrentTask(
            "no task runs here: current_task() is for functions that a worker runs; a thread that a task starts has to "
            "be given the context, as with contextvars.copy_context().run"
        )
    return current if isinstance(current, CurrentTask) else current()


def log_of_current_task() -> Callable[[str], object] | None:
    """Takes the log lines of the task that runs here; None outside of a task, and if its lines are not kept."""
    current = _current.get(None)
    if current is None:
        return None
    if not isinstance(current, CurrentTask):
        current = current()
        _current.set(current)
    return current.log


def enter(make: Callable[[], CurrentTask]) -> Token[Any]:
    """Let `make` make the current task of this thread or coroutine when it is asked for, until `leave`."""
    return _current.set(make)


def leave(entered: Token[Any]) -> None:
    _current.reset(entered)


@contextmanager
def running(current: CurrentTask) -> Iterator[None]:
    """Make it the current task of this thread or coroutine."""
    token = _current.set(current)
    try:
        yield
    finally:
        _current.reset(token)
