"""The value of a task, and all its moves. Pure: time and random numbers are arguments, and nothing is stored here.

A move of a running task is a value, a `Settlement`. The functions below make them, and contain all policy: retry or
give up, when to run again, what a crash means. A store applies a settlement in one atomic step if the task is still
running in that attempt; it knows no policy.

The values here contain only values, so the garbage collector need not track them (`gc=False`).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

import msgspec

from bullpen.tasks.model.retry import JITTER, Backoff
from bullpen.tasks.model.schedule import Schedule, latest_fire_time, next_fire_time

FORMAT = 1  # of the stored rows that this version writes; a row with a higher one comes from a newer version

# The values that a stored field may have. No store writes others, and a row with another one is unreadable.
Instant = Annotated[float, msgspec.Meta(ge=-62_135_596_800.0, le=253_402_300_799.0)]  # the years that datetime has
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e11)]
MAX_COUNT = 2_000_000_000  # one more is still an integer of every store
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
Bytes = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class TaskStatus(enum.StrEnum):
    """A string as well: `job.status == "success"`."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"


PENDING = TaskStatus.PENDING
RUNNING = TaskStatus.RUNNING
SUCCESS = TaskStatus.SUCCESS
FAILED = TaskStatus.FAILED
CANCELLED = TaskStatus.CANCELLED

FINAL = frozenset({SUCCESS, FAILED, CANCELLED})

TASK_MOVES: Mapping[TaskStatus, frozenset[TaskStatus]] = {
    PENDING: frozenset({RUNNING, CANCELLED, FAILED}),  # FAILED: it expired
    RUNNING: frozenset({SUCCESS, FAILED, CANCELLED, PENDING}),
    SUCCESS: frozenset({PENDING}),  # an operator runs it again
    FAILED: frozenset({PENDING}),
    CANCELLED: frozenset({PENDING}),
}

# Why a task failed. An exception of its function is "exception"; the others need no traceback.
# "upstream": a task that it depends on did not succeed; "input": the result of such a task no longer exists.
ErrorKind = (
    Literal["exception", "timeout", "crash", "expired", "poison", "unknown_function", "lost", "cancelled"]
    | Literal["upstream", "input"]
)

# How an attempt ended, or a task that was never claimed ("expired"). "failed" is for good, "retried" waits for its next
# attempt; "crashed": the worker or the process of the attempt died, whether or not the task runs again; "released":
# nothing is counted.
TaskOutcome = Literal["success", "failed", "retried", "cancelled", "expired", "crashed", "released"]

OnFailure = Literal["fail", "continue"]
UniqueScope = Literal["alive", "waiting"]

# The requests of operators to a schedule. "changed": its terms changed while it ran, and the settlement of that run
# plans the next one anew.
ScheduleHold = Literal["", "paused", "changed"]

MAX_CRASHES = 3
ERRORS_KEPT = 10
LONGEST_POSTPONEMENT = 60.0
RESULT_TTL, FAILURE_TTL = 86_400.0, 7 * 86_400.0
LOWEST_PRIORITY, HIGHEST_PRIORITY = 0, 9
MAX_LEASE = 86_400.0  # seconds; a lease that ends later has expired: its time is wrong, or the clock was set back
NEVER = 253_402_214_400.0  # the last day of the year 9999: the `eta` of a schedule that is paused
UNPLANNED = 0.0  # the `scheduled_at` of a schedule without a planned next run

NOT_IN_TIME = "it was not started in time"
_POSTPONED = "postponed"  # the type of the error that records since when a task waits for a worker with its function


class AttemptError(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One failed attempt, as it is stored: no exception is ever rebuilt from it. Users see it as a `TaskError`."""

    kind: ErrorKind
    attempt: Count
    at: Instant  # seconds since the epoch, by the store's clock
    type: str = ""
    message: str = ""
    traceback: str = ""
    worker: str = ""
    started_at: Instant | None = None  # of the attempt; None if it never started
    where: str = ""  # the last frame of the user's own code, such as "shop/mail.py:42 in send"
    fingerprint: str = ""  # failures with the same cause share it; empty if the store has recorded the error
    log: tuple[str, ...] = ()  # the last log lines of the attempt, oldest first, without secrets
    exit_code: int | None = None  # of a process that died with the attempt; negative: the signal that killed it
    peak_memory: Bytes | None = None  # of that process, in bytes; or of the worker that died, at its last heartbeat

    @property
    def group(self) -> str:
        """Its fingerprint, or else its kind."""
        return self.fingerprint or self.kind

    @property
    def names(self) -> frozenset[str]:
        """The names that a filter may give: its kind, its type, and its type without the module."""
        return error_names(self.kind, self.type)


def error_names(kind: str, error_type: str) -> frozenset[str]:
    return frozenset((kind, error_type, error_type.rpartition(".")[2])) - {""}


def writable(text: str) -> str:
    """The text as every store can keep it: a lone surrogate, which UTF-8 cannot encode, is escaped. All text that
    becomes part of a task goes through this.
    """
    return text.encode(errors="backslashreplace").decode()


class Progress(msgspec.Struct, frozen=True, gc=False):
    """The progress that a task has reported."""

    done: int | float
    total: int | float | None = None
    note: str = ""

    def __str__(self) -> str:
        """`3 of 10 done (rows)`"""
        of = "" if self.total is None else f" of {_shown(self.total)}"
        return f"{_shown(self.done)}{of} done" + (f" ({self.note})" if self.note else "")


def _shown(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:g}"


class Step(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A part of a task's function that has ended, as it is kept: a later attempt gets its outcome and does not run it
    again.
    """

    name: str  # identifies it within the run
    number: Count  # the order in which the steps of a run were kept
    attempt: Count  # the attempt that ran it
    digest: str = ""  # of its arguments
    result: bytes | None = None  # encoded; None: it gave up
    error: AttemptError | None = None  # why it gave up
    tries: Count = 1
    started_at: Instant = 0.0
    ended_at: Instant = 0.0
    until: Instant | None = None  # of a sleep or a wait: when it ends
    event: str = ""  # of a wait: the event; without a result the task still waits for it


class DependsOn(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The tasks that a task depends on, and the argument that gets their results."""

    ids: tuple[str, ...]
    place: str = ""  # the position or name of the argument that gets their result; "": none
    many: bool = False  # they are a group: the result is a list
    run_always: bool = False  # it runs when they are final, whether they succeeded or not


class Task(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A task as a store keeps it. Instants are seconds since the epoch, by the store's clock."""

    id: str
    func_path: str  # the name in the registry
    payload: bytes  # the arguments, encoded
    codec: str = "json"
    queue: str = "default"
    priority: Annotated[int, msgspec.Meta(ge=LOWEST_PRIORITY, le=HIGHEST_PRIORITY)] = LOWEST_PRIORITY
    status: TaskStatus = PENDING
    eta: Instant = 0.0  # not before
    interval: Seconds | None = None
    schedule: Schedule | None = None
    max_retries: Count = 0
    backoff: Backoff = Backoff()
    timeout: Seconds | None = None
    expires: Instant | None = None  # not started after
    at_most_once: bool = False
    on_failure: OnFailure = "fail"  # of a task with an interval, or a schedule
    result_ttl: Seconds | None = RESULT_TTL
    failure_ttl: Seconds | None = FAILURE_TTL
    unique_key: str | None = None
    unique_scope: UniqueScope = "alive"  # holds its key until it is final, or until it starts
    unique_until: Instant | None = None  # … and at least until then
    concurrency_key: str | None = None
    headers: dict[str, str] = {}
    next_task_id: str | None = None  # the task that depends on this one
    depends_on: DependsOn | None = None
    # How many of the tasks in depends_on are not done; see links.py.
    waits_for: Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)] = 0

    attempt: Count = 0  # rises with every claim, and fences every write after it
    failures: Count = 0  # in this run: exceptions and timeouts
    crashes: Count = 0  # in this run: how often its worker died
    completed_runs: Count = 0  # completed runs of a task with an interval, or a schedule
    scheduled_at: Instant | None = None  # the time of its schedule that this run is for
    hold: ScheduleHold = ""

    worker: str | None = None
    claim_id: str | None = None
    lease_until: Instant | None = None
    cancel_requested: bool = False
    progress: Progress | None = None  # the latest report, of this attempt or an earlier one
    steps: tuple[Step, ...] = ()  # the kept steps of this run, in the order in which they were kept
    awaits: str | None = None  # the event that it waits for, or that has just woken it; of no meaning in a final task

    result: bytes | None = None
    result_dropped: str = ""  # why the result could not be stored
    errors: tuple[AttemptError, ...] = ()  # the latest attempts that failed, oldest first

    created_at: Instant = 0.0
    started_at: Instant | None = None
    finished_at: Instant | None = None

    format: Count = FORMAT
    unreadable: str = ""  # why its stored row cannot be read; see unreadable.py

    @property
    def error(self) -> AttemptError | None:
        """Why it failed, or why its latest attempt did."""
        return self.errors[-1] if self.errors else None

    @property
    def is_final(self) -> bool:
        return self.status in FINAL

    @property
    def waited(self) -> float | None:
        """Seconds from the instant at which it was due to its latest claim."""
        return None if self.started_at is None else max(self.started_at - self.eta, 0.0)

    @property
    def repeats(self) -> bool:
        """Whether it runs again after it has succeeded."""
        return self.interval is not None or self.cron is not None

    @property
    def cron(self) -> str | None:
        return None if self.schedule is None else self.schedule.cron


class Settlement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The outcome of an attempt. A store applies it only while the task runs in this `attempt`.

    PENDING means that the task runs again: `delay` seconds after the store has applied this, or at `eta`. For a
    schedule, `scheduled_at` is the time that it runs for, and `next_run` says whether this begins another run.
    """

    id: str
    attempt: int
    status: TaskStatus
    delay: float | None = None
    eta: float | None = None
    scheduled_at: float | None = None
    next_run: bool = False
    failures: int = 0
    crashes: int = 0
    completed_runs: int = 0
    result: bytes | None = None
    result_dropped: str = ""
    error: AttemptError | None = None  # added to the task's errors
    progress: Progress | None = None  # the last report, if the store may not have it
    linked: bool = False  # another task depends on this one
    forgotten: bool = False  # a success that a store may delete at once, if no caller waits for it
    suspended: bool = False  # the task has begun and waits: `expires` no longer applies to it
    awaits: str | None = None  # the event that makes the task due; if it has come, a suspended task is due at once
    children: tuple[Task, ...] = ()  # of a success: new tasks that are added in the same step

    @property
    def is_final(self) -> bool:
        return self.status in FINAL


# Moves of a running task, made by the worker that runs it.


def succeed(
    task: Task,
    result: bytes | None,
    result_dropped: str = "",
    *,
    now: float = 0.0,
    children: tuple[Task, ...] = (),
) -> Settlement:
    """Its function returned. A task with an interval waits for its next run, counted from now; one with cron text for
    its next time, after `now` by the store's clock.
    """
    done = Settlement(
        id=task.id,
        attempt=task.attempt,
        status=SUCCESS,
        scheduled_at=task.scheduled_at,
        completed_runs=task.completed_runs + 1,
        result=result,
        result_dropped=result_dropped,
        linked=task.next_task_id is not None,
        forgotten=task.result_ttl == 0 and task.next_task_id is None and not task.repeats,
        children=children,
    )
    return _followed(done, task, now) if task.repeats and not task.cancel_requested else done


def fail(
    task: Task, error: AttemptError, random: float, *, retry: bool = True, after: float | None = None
) -> Settlement:
    """Its function raised or timed out: retry it at most `max_retries` times.

    `random` is a random number from 0 to 1. `retry` is False if the error must not be retried. `after` is a delay that
    the function asked for.
    """
    failures = task.failures + 1
    if task.cancel_requested:
        return cancel(task)
    if retry and not task.at_most_once and failures <= task.max_retries:
        delay = task.backoff.delay(failures, random) if after is None else after
        return _again(task, delay, failures=failures, crashes=task.crashes, error=error)
    return _give_up(task, error, failures=failures, crashes=task.crashes)


def crash(task: Task, error: AttemptError) -> Settlement:
    """Its worker died or lost its lease. This is not a failure of the task, but after `MAX_CRASHES` the task fails."""
    crashes = task.crashes + 1
    if task.cancel_requested:
        return cancel(task)
    if (other := instead_of_run(task)) is not None:
        return other
    if task.at_most_once:
        return _give_up(task, msgspec.structs.replace(error, kind="lost"), failures=task.failures, crashes=crashes)
    if crashes >= MAX_CRASHES:
        poison = msgspec.structs.replace(error, kind="poison", message=error.message + _released_attempts(task))
        return _give_up(task, poison, failures=task.failures, crashes=crashes)
    return _again(task, 0.0, failures=task.failures, crashes=crashes, error=error, awaits=_awaited(task))


def _released_attempts(task: Task) -> str:
    """The attempts since its first crash in this run that have no error of their own: they were released."""
    lost = [error.attempt for error in task.errors if error.kind == "crash"][-task.crashes :]
    known = {error.attempt for error in task.errors}
    released = [attempt for attempt in range(min(lost, default=task.attempt), task.attempt) if attempt not in known]
    if not released:
        return ""
    named = ", ".join(map(str, released[:ERRORS_KEPT])) + (", …" if len(released) > ERRORS_KEPT else "")
    return f"; released without an outcome: attempt{'s' if len(released) > 1 else ''} {named}"


def fail_permanently(task: Task, error: AttemptError) -> Settlement:
    """No worker can run it: its arguments cannot be decoded, or its function stayed unknown."""
    return Settlement(
        id=task.id,
        attempt=task.attempt,
        status=FAILED,
        failures=task.failures,
        crashes=task.crashes,
        completed_runs=task.completed_runs,
        error=error,
    )


def postpone(task: Task, error: AttemptError, random: float, *, give_up_after: float) -> Settlement:
    """Its function is unknown here: maybe another worker knows it, or this one after the next deployment.

    It waits as long again as it has waited for its function, at most `LONGEST_POSTPONEMENT` seconds, with nothing
    counted. `error` is kept once, as the mark of when this began; after `give_up_after` seconds the task fails.
    """
    if task.cancel_requested:
        return cancel(task)
    mark = task.error
    waits_already = mark is not None and mark.kind == "unknown_function" and mark.type == _POSTPONED
    waited = max(error.at - mark.at, 0.0) if mark is not None and waits_already else 0.0
    if waited >= give_up_after:
        return fail_permanently(task, error)
    postponed = None if waits_already else msgspec.structs.replace(error, type=_POSTPONED)
    return _again(task, _postponement(waited, random), failures=task.failures, crashes=task.crashes, error=postponed)


def set_aside(task: Task, error: AttemptError, random: float) -> Settlement:
    """Its stored row cannot be read: it fails with `error`, which is final. A row of a newer version waits for a worker
    of that version instead: as long again as it has existed, at most `LONGEST_POSTPONEMENT` seconds.
    """
    if task.cancel_requested:
        return cancel(task)
    if task.format <= FORMAT:
        return fail_permanently(task, error)
    delay = _postponement(error.at - task.created_at, random)
    return _again(task, delay, failures=task.failures, crashes=task.crashes)


def _postponement(waited: float, random: float) -> float:
    return min(max(waited, 1.0), LONGEST_POSTPONEMENT) * (1.0 + JITTER * random)


def release(task: Task, delay: float = 0.0) -> Settlement:
    """It was claimed, but has not run to its end: the attempt is not counted."""
    if task.cancel_requested:
        return cancel(task)
    if (other := instead_of_run(task)) is not None:
        return other
    return _again(task, delay, failures=task.failures, crashes=task.crashes, awaits=_awaited(task))


def suspend(task: Task, until: float, awaits: str | None = None) -> Settlement:
    """It sleeps until that instant, or until the event comes that it awaits: the attempt is not counted, and the task
    holds no worker.
    """
    if task.cancel_requested:
        return cancel(task)
    again = _again(task, 0.0, failures=task.failures, crashes=task.crashes)
    return msgspec.structs.replace(again, delay=None, eta=until, suspended=True, awaits=awaits)


def cancel(task: Task) -> Settlement:
    """The task was cancelled while it ran, or raised Cancel."""
    return Settlement(
        id=task.id,
        attempt=task.attempt,
        status=CANCELLED,
        failures=task.failures,
        crashes=task.crashes,
        completed_runs=task.completed_runs,
    )


def instead_of_run(task: Task) -> Settlement | None:
    """The settlement of a claimed schedule that must not run now: its next time is planned. None if it runs."""
    skips = task.schedule is not None and task.schedule.misfire == "skip" and _is_late(task)
    if not skips and task.scheduled_at != UNPLANNED:
        return None
    planned = Settlement(id=task.id, attempt=task.attempt, status=CANCELLED, completed_runs=task.completed_runs)
    return _followed(planned, task, task.started_at or 0.0) if task.repeats else planned


def scheduled_time_of(task: Task) -> float | None:
    """The time of the schedule that a claimed task runs for: the latest one, if it is late and others have passed."""
    if task.schedule is None or task.scheduled_at is None or not _is_late(task):
        return task.scheduled_at
    return latest_fire_time(task.schedule, task.scheduled_at, task.started_at or 0.0) or task.scheduled_at


def _is_late(task: Task) -> bool:
    """Whether a run starts later than the misfire grace. A retry is not late: its `eta` is not the scheduled time."""
    if (
        task.schedule is None
        or task.schedule.cron is None
        or task.scheduled_at is None
        or task.eta != task.scheduled_at
    ):
        return False
    return (task.started_at or 0.0) - task.scheduled_at > task.schedule.misfire_grace


def _followed(settlement: Settlement, task: Task, now: float) -> Settlement:
    """The settlement with the next run: after the interval, or at the next time of the schedule. No time comes twice,
    even if the clock is set back. Of the times that passed meanwhile none runs, or the latest with `overlap="queue"`.
    """
    schedule = task.schedule
    if schedule is None or schedule.cron is None:
        return msgspec.structs.replace(
            settlement, status=PENDING, delay=task.interval, scheduled_at=None, next_run=True
        )
    since = scheduled_time_of(task) or task.started_at or now
    if schedule.overlap == "queue" and settlement.status is not CANCELLED:
        missed = latest_fire_time(schedule, since, now)
        if missed is not None:
            return msgspec.structs.replace(settlement, status=PENDING, delay=0.0, scheduled_at=missed, next_run=True)
    at = next_fire_time(schedule, max(since, now))
    if at is None:
        return settlement
    return msgspec.structs.replace(settlement, status=PENDING, eta=at, scheduled_at=at, next_run=True)


def _awaited(task: Task) -> str | None:
    """The event of a wait without an outcome. The attempt may end before the payload is kept, so the event stays in the
    store until the next attempt has it.
    """
    return next((step.event for step in task.steps if step.event and step.result is None), None)


def _again(
    task: Task,
    delay: float,
    *,
    failures: int,
    crashes: int,
    error: AttemptError | None = None,
    awaits: str | None = None,
) -> Settlement:
    return Settlement(
        id=task.id,
        attempt=task.attempt,
        status=PENDING,
        delay=delay,
        scheduled_at=scheduled_time_of(task),
        failures=failures,
        crashes=crashes,
        completed_runs=task.completed_runs,
        error=error,
        awaits=awaits,
    )


def _give_up(task: Task, error: AttemptError, *, failures: int, crashes: int) -> Settlement:
    """The run has failed for good. A task with an interval or a schedule may continue with the next run."""
    given_up = Settlement(
        id=task.id,
        attempt=task.attempt,
        status=FAILED,
        scheduled_at=task.scheduled_at,
        failures=failures,
        crashes=crashes,
        completed_runs=task.completed_runs,
        error=error,
    )
    if not task.repeats or task.on_failure != "continue":
        return given_up
    return _followed(msgspec.structs.replace(given_up, failures=0, crashes=0), task, error.at)


def outcome_of(task: Task, settlement: Settlement) -> TaskOutcome:
    """How the attempt of `task` ended."""
    if settlement.status is SUCCESS or settlement.completed_runs > task.completed_runs:
        return "success"
    if settlement.status is CANCELLED:
        return "cancelled"
    if settlement.error is None or (settlement.status is PENDING and settlement.error.kind == "unknown_function"):
        return "released"
    if settlement.error.kind in ("crash", "lost") or settlement.crashes > task.crashes:
        return "crashed"
    return "failed" if settlement.status is FAILED or settlement.next_run else "retried"


# How a move changes a task: the same in every store.


def new_as_kept(task: Task, now: float) -> Task:
    """A new task as it is stored: due now if it has no `eta`, and not due while it waits for others."""
    eta = NEVER if task.waits_for > 0 else max(task.eta, 0.0) or now
    return msgspec.structs.replace(task, created_at=now, eta=eta)


def claimed(task: Task, *, worker: str, claim_id: str, now: float, lease_until: float) -> Task:
    """PENDING → RUNNING."""
    return msgspec.structs.replace(
        task,
        status=RUNNING,
        attempt=task.attempt + 1,
        worker=worker,
        claim_id=claim_id,
        lease_until=lease_until,
        started_at=now,
    )


def settled(task: Task, settlement: Settlement, now: float) -> Task:
    """RUNNING → the status of the settlement. The caller has checked that it applies.

    The worker may not have known that the task was asked to stop: then the task does not run again. Nor that its
    schedule was paused: then it is not due; or changed: then it is due now, to be planned anew.
    """
    waits = settlement.status is PENDING
    completed = settlement.status is SUCCESS or (waits and settlement.completed_runs > task.completed_runs)
    again = waits and not task.cancel_requested
    replanned = again and task.hold == "changed" and settlement.next_run
    stopped = SUCCESS if completed else CANCELLED
    eta, scheduled_at = task.eta, task.scheduled_at
    if replanned:
        eta, scheduled_at = now, UNPLANNED
    elif again:
        eta = settlement.eta if settlement.eta is not None else now + (settlement.delay or 0.0)
        eta, scheduled_at = NEVER if task.hold == "paused" else eta, settlement.scheduled_at
    return msgspec.structs.replace(
        task,
        status=stopped if waits and not again else settlement.status,
        eta=eta,
        expires=None if settlement.suspended else task.expires,
        scheduled_at=scheduled_at,
        hold="" if replanned else task.hold,
        failures=settlement.failures,
        crashes=settlement.crashes,
        completed_runs=settlement.completed_runs,
        result=settlement.result if completed else task.result,
        result_dropped=settlement.result_dropped if completed else task.result_dropped,
        errors=(*task.errors, settlement.error)[-ERRORS_KEPT:] if settlement.error is not None else task.errors,
        progress=settlement.progress or task.progress,
        steps=() if again and settlement.next_run else task.steps,
        awaits=settlement.awaits if again else task.awaits,
        worker=None if again else task.worker,
        claim_id=None,
        lease_until=None,
        finished_at=None if again and not completed else now,
    )


def applies(task: Task, settlement: Settlement) -> bool:
    """Whether `task` is still in the attempt of the settlement."""
    return task.status is RUNNING and task.attempt == settlement.attempt


def woken(task: Task, now: float) -> Task | None:
    """Due now: the event has come that the task waits for. None if the task is due, or does not wait."""
    waits = task.status is PENDING and task.awaits is not None and task.hold != "paused"
    return msgspec.structs.replace(task, eta=now) if waits and task.eta > now else None


def with_step(task: Task, step: Step) -> Task:
    """The task with one more kept step. It replaces a step with the same name."""
    others = [one for one in task.steps if one.name != step.name]
    return msgspec.structs.replace(task, steps=in_order([*others, step]))


def in_order(steps: Iterable[Step]) -> tuple[Step, ...]:
    """Steps in the order in which they were kept."""
    return tuple(sorted(steps, key=lambda step: (step.number, step.name)))


def stored_steps(steps: Iterable[Step]) -> tuple[Step, ...]:
    """The steps of a task that has some. Raises ValueError if they are gone: the task would run them again."""
    found = in_order(steps)
    if not found:
        raise ValueError("another program has deleted them")
    return found


def cancelled_by_operator(task: Task, now: float) -> Task | None:
    """PENDING → CANCELLED; a running task is asked to stop. None if the task is final."""
    if task.status is PENDING:
        return msgspec.structs.replace(task, status=CANCELLED, finished_at=now)
    if task.status is RUNNING:
        return msgspec.structs.replace(task, cancel_requested=True)
    return None


def redriven(task: Task, now: float) -> Task | None:
    """A final state → PENDING: an operator retries it, with all retries. None if the task is not final. A success runs
    again from its beginning; any other task keeps its steps.
    """
    if not task.is_final:
        return None
    return msgspec.structs.replace(
        task,
        status=PENDING,
        eta=now,
        failures=0,
        crashes=0,
        expires=None,
        cancel_requested=False,
        finished_at=None,
        worker=None,
        steps=() if task.status is SUCCESS else task.steps,
        awaits=None,
    )


def expired(task: Task, now: float) -> Task | None:
    """PENDING → FAILED: the task was not started in time. None if it may still start."""
    if task.status is not PENDING or task.expires is None or now < task.expires:
        return None
    error = AttemptError(kind="expired", attempt=task.attempt, at=now, message=NOT_IN_TIME)
    return msgspec.structs.replace(task, status=FAILED, errors=(*task.errors, error)[-ERRORS_KEPT:], finished_at=now)


def prune_at(task: Task) -> float | None:
    """When a final task is pruned, infinite for never; None if the task is not final."""
    if not task.is_final or task.finished_at is None:
        return None
    ttl = task.failure_ttl if task.status is FAILED else task.result_ttl
    return math.inf if ttl is None else max(task.finished_at + ttl, task.unique_until or 0.0)
