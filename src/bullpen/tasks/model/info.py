"""A task as users see it: instants are datetimes, and the arguments are left out, because they may be secrets."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from bullpen.tasks.model.schedule import Misfire, Overlap, Schedule, describe_schedule
from bullpen.tasks.model.schedule_changes import next_times
from bullpen.tasks.model.steps import kept_steps, open_waits
from bullpen.tasks.model.task import (
    ERRORS_KEPT,
    NEVER,
    PENDING,
    AttemptError,
    ErrorKind,
    OnFailure,
    Progress,
    Step,
    Task,
    TaskStatus,
    error_names,
)


class TaskError(msgspec.Struct, frozen=True, kw_only=True):
    """One failed attempt of a task."""

    kind: ErrorKind
    attempt: int
    at: datetime
    type: str  # of the exception, with its module; "" if there was none
    message: str
    traceback: str
    worker: str
    started_at: datetime | None  # of the attempt; None if it never started
    where: str  # the last frame of the user's own code, such as "shop/mail.py:42 in send"; "" if there was none
    fingerprint: str  # failures with the same cause share it; its kind if the store has recorded it
    log: tuple[str, ...] = ()  # the last log lines of the attempt, oldest first, without secrets
    exit_code: int | None = None  # of a process that died with the attempt; negative: the signal that killed it
    peak_memory: int | None = None  # of that process, in bytes; or of the worker that died, at its last heartbeat

    @property
    def names(self) -> frozenset[str]:
        """The names that a filter may give: its kind, its type, and its type without the module."""
        return error_names(self.kind, self.type)


class StepInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A kept step of a task."""

    name: str
    attempt: int  # the attempt that ran it
    tries: int
    started_at: datetime
    ended_at: datetime
    until: datetime | None  # of a sleep: when it ends
    event: str | None  # of a wait: the event that it waited for
    error: TaskError | None  # why it gave up

    @property
    def duration(self) -> timedelta:
        """How long it took, or how long the task sleeps."""
        return (self.until or self.ended_at) - self.started_at


class EventWait(msgspec.Struct, frozen=True, kw_only=True):
    """The wait of a task for an event."""

    event: str
    since: datetime
    until: datetime | None  # None: without a limit


class TaskInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of a task."""

    id: str
    name: str
    queue: str
    priority: int
    status: TaskStatus
    attempt: int  # how often it was started
    failures: int  # … and failed, in this run
    crashes: int  # … and its worker died, in this run
    completed_runs: int  # completed runs of a task with an interval or cron
    max_retries: int
    eta: datetime  # not before
    interval: timedelta | None
    timeout: timedelta | None
    expires: datetime | None
    at_most_once: bool
    unique_key: str | None
    concurrency_key: str | None
    headers: dict[str, str]
    next_task_id: str | None  # the task that depends on this one, in a chain or a group
    after: tuple[str, ...]  # the tasks that this one depends on
    waits_for: int  # how many of them are not done
    worker: str | None  # the worker that runs it, or ran it last
    lease_until: datetime | None
    cancel_requested: bool
    progress: Progress | None
    steps: tuple[StepInfo, ...]  # the kept steps of this run, in the order in which they were kept
    awaits: EventWait | None  # the event that it waits for, or that has just come
    result_dropped: str  # why its result could not be kept, if it could not
    errors: tuple[TaskError, ...]  # of the latest attempts that failed, oldest first
    created_at: datetime
    started_at: datetime | None  # of the latest attempt
    finished_at: datetime | None
    unreadable: str  # why its stored row cannot be read, and it cannot run; "" if it can

    @property
    def error(self) -> TaskError | None:
        """Why it failed, or why its latest attempt did."""
        return self.errors[-1] if self.errors else None


def describe_attempts(task: TaskInfo) -> str:
    """How many attempts there were, and how they ended. A success sets `failures` and `crashes` to 0; the attempts
    before it count here, as far as their errors are kept.
    """
    kinds = [error.kind for error in task.errors]
    failed = max(task.failures, kinds.count("exception") + kinds.count("timeout"))
    crashed = max(task.crashes, kinds.count("crash"))
    least = "at least " if len(kinds) >= ERRORS_KEPT and failed + crashed > task.failures + task.crashes else ""
    return f"{task.attempt}, of which {least}{failed} failed and {crashed} crashed"


class ScheduleInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of a schedule. `str()` describes it."""

    key: str  # of one without, the id of its task
    id: str  # of its task, which is always the same
    name: str
    queue: str
    interval: timedelta | None
    cron: str | None
    timezone: str
    misfire: Misfire
    misfire_grace: timedelta
    overlap: Overlap
    on_failure: OnFailure
    declared: bool  # on its function, in the code
    paused: bool
    status: TaskStatus
    next_run: datetime | None  # None if it is paused, or goes by an interval and runs
    completed_runs: int
    started_at: datetime | None  # of the latest attempt
    finished_at: datetime | None  # of the latest run
    error: TaskError | None  # of the latest attempt that failed
    description: str

    def __str__(self) -> str:
        """`nightly: At 02:30 every day (Europe/Berlin), next 2026-11-17 02:30 CET`"""
        when = f"next {self.next_run:%Y-%m-%d %H:%M:%S %Z}" if self.next_run else "paused" if self.paused else "runs"
        return f"{self.key}: {self.description}, {when}"


def schedule_info_of(task: Task, now: float) -> ScheduleInfo:
    terms = task.schedule or Schedule()
    times = next_times(task, now, 1)
    return ScheduleInfo(
        key=terms.key or task.id,
        id=task.id,
        name=task.func_path,
        queue=task.queue,
        interval=None if task.interval is None else timedelta(seconds=task.interval),
        cron=terms.cron,
        timezone=terms.timezone,
        misfire=terms.misfire,
        misfire_grace=timedelta(seconds=terms.misfire_grace),
        overlap=terms.overlap,
        on_failure=task.on_failure,
        declared=terms.declared,
        paused=task.hold == "paused",
        status=task.status,
        next_run=in_zone(task, times[0]) if times else None,
        completed_runs=task.completed_runs,
        started_at=_maybe(task.started_at),
        finished_at=_maybe(task.finished_at),
        error=None if task.error is None else error_of(task.error),
        description=describe_schedule(task.schedule, task.interval),
    )


def in_zone(task: Task, epoch: float) -> datetime:
    """An instant in the time zone of the schedule."""
    zone = "UTC" if task.schedule is None else task.schedule.timezone
    if zone == "UTC":
        return as_datetime(epoch)
    from zoneinfo import ZoneInfo

    return as_datetime(epoch).astimezone(ZoneInfo(zone))


def info_of(task: Task) -> TaskInfo:
    return TaskInfo(
        id=task.id,
        name=task.func_path,
        queue=task.queue,
        priority=task.priority,
        status=task.status,
        attempt=task.attempt,
        failures=task.failures,
        crashes=task.crashes,
        completed_runs=task.completed_runs,
        max_retries=task.max_retries,
        eta=as_datetime(task.eta),
        interval=None if task.interval is None else timedelta(seconds=task.interval),
        timeout=None if task.timeout is None else timedelta(seconds=task.timeout),
        expires=_maybe(task.expires),
        at_most_once=task.at_most_once,
        unique_key=task.unique_key,
        concurrency_key=task.concurrency_key,
        headers=dict(task.headers),
        next_task_id=task.next_task_id,
        after=() if task.depends_on is None else task.depends_on.ids,
        waits_for=max(task.waits_for, 0),
        worker=task.worker,
        lease_until=_maybe(task.lease_until),
        cancel_requested=task.cancel_requested,
        progress=task.progress,
        steps=tuple(map(_step_of, kept_steps(task))) if task.steps else (),
        awaits=wait_of(task),
        result_dropped=task.result_dropped,
        errors=tuple(map(error_of, task.errors)),
        created_at=as_datetime(task.created_at),
        started_at=_maybe(task.started_at),
        finished_at=_maybe(task.finished_at),
        unreadable=task.unreadable,
    )


def wait_of(task: Task) -> EventWait | None:
    """The wait of a pending task."""
    if task.status is not PENDING or task.awaits is None:
        return None
    begun = next((step.started_at for step in open_waits(task) if step.event == task.awaits), task.started_at or 0.0)
    until = next((step.until for step in open_waits(task) if step.event == task.awaits), None)
    return EventWait(
        event=task.awaits, since=as_datetime(begun), until=None if until in (None, NEVER) else _maybe(until)
    )


def _step_of(step: Step) -> StepInfo:
    return StepInfo(
        name=step.name,
        attempt=step.attempt,
        tries=step.tries,
        started_at=as_datetime(step.started_at),
        ended_at=as_datetime(step.ended_at),
        until=None if step.event else _maybe(step.until),
        event=step.event or None,
        error=None if step.error is None else error_of(step.error),
    )


def error_of(error: AttemptError) -> TaskError:
    return TaskError(
        kind=error.kind,
        attempt=error.attempt,
        at=as_datetime(error.at),
        type=error.type,
        message=error.message,
        traceback=error.traceback,
        worker=error.worker,
        started_at=_maybe(error.started_at),
        where=error.where,
        fingerprint=error.group,
        log=error.log,
        exit_code=error.exit_code,
        peak_memory=error.peak_memory,
    )


def as_datetime(epoch: float) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=epoch)


def _maybe(epoch: float | None) -> datetime | None:
    return None if epoch is None else as_datetime(epoch)
