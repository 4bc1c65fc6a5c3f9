"""What a task is, and every move it can make. Pure: time and luck are arguments, and nothing is stored here.

A move of a running task is a value, a `Settlement`. The functions below make them, with all policy in them: retry or
give up, when to run again, what a crash means. A store applies a settlement in one atomic step if the task is still
running in that very attempt, and knows no policy at all.

The values here hold nothing but values, so the garbage collector need not look at them (`gc=False`).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Literal

import msgspec

from bullpen.tasks.retry import JITTER, Backoff
from bullpen.tasks.schedule import Schedule, latest_fire, next_fire


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
# "upstream": a task that it waited for did not succeed; "input": nor is the result of that there any more.
ErrorKind = (
    Literal["exception", "timeout", "crash", "expired", "poison", "unknown_function", "lost", "cancelled"]
    | Literal["upstream", "input"]
)

OnFailure = Literal["fail", "continue"]
UniqueScope = Literal["alive", "waiting"]

# What somebody has asked of a schedule. "changed": its terms are new, and the next run is to be planned by them; only
# of one that ran at that moment.
ScheduleHold = Literal["", "paused", "changed"]

MAX_CRASHES = 3
ERRORS_KEPT = 10
LONGEST_POSTPONEMENT = 60.0
LOWEST_PRIORITY, HIGHEST_PRIORITY = 0, 9
NEVER = 253_402_214_400.0  # the last day of the year 9999: the `eta` of a schedule that is paused
UNPLANNED = 0.0  # the `fire` of a schedule whose next run is still to be planned

NOT_IN_TIME = "it was not started in time"
_POSTPONED = "postponed"  # the type of the error that says since when a task has waited for its function


class TaskError(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One failed attempt, as data: no exception is ever rebuilt from it."""

    kind: ErrorKind
    attempt: int
    at: float  # seconds since the epoch, by the store's clock
    type: str = ""
    message: str = ""
    traceback: str = ""
    worker: str = ""


def writable(text: str) -> str:
    """The text as every store can keep it: half a character (a lone surrogate), which cannot be written, is spelled
    out. Whatever becomes data of a task goes through this.
    """
    return text.encode(errors="backslashreplace").decode()


class Progress(msgspec.Struct, frozen=True, gc=False):
    """How far a running task says it is."""

    done: float
    total: float | None = None
    note: str = ""

    def __str__(self) -> str:
        """`3 of 10 done (rows)`"""
        of = "" if self.total is None else f" of {self.total:g}"
        return f"{self.done:g}{of} done" + (f" ({self.note})" if self.note else "")


class Follows(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Whom a task waits for, and what it gets of them."""

    ids: tuple[str, ...]
    place: str = ""  # the number or name of the argument that is their result; "": none is
    many: bool = False  # they are a group: the result is a list
    anyway: bool = False  # it runs when they are over, whatever became of them


class Task(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A task as a store keeps it. Instants are seconds since the epoch, by the store's clock."""

    id: str
    func_path: str  # the name in the registry
    payload: bytes  # the arguments, encoded
    codec: str = "json"
    queue: str = "default"
    priority: int = 0
    status: TaskStatus = PENDING
    eta: float = 0.0  # not before
    interval: float | None = None
    schedule: Schedule | None = None
    max_retries: int = 0
    backoff: Backoff = Backoff()
    timeout: float | None = None
    expires: float | None = None  # not started after
    at_most_once: bool = False
    on_failure: OnFailure = "fail"  # of a task with an interval, or a schedule
    result_ttl: float | None = 86_400.0
    unique_key: str | None = None
    unique_scope: UniqueScope = "alive"  # has its key until it is over, or until it starts
    unique_until: float | None = None  # … and at least until then
    concurrency_key: str | None = None
    headers: dict[str, str] = {}
    then: str | None = None  # the task that waits for this one
    follows: Follows | None = None
    waits_for: int = 0  # how many of those that it follows are not done; links.py has more

    attempt: int = 0  # rises with every claim, and fences every write after it
    failures: int = 0  # in this run: exceptions and timeouts
    crashes: int = 0  # in this run: the worker died with it
    runs: int = 0  # completed runs of a task with an interval, or a schedule
    fire: float | None = None  # the time of its schedule that this run is for
    hold: ScheduleHold = ""

    worker: str | None = None
    claim_id: str | None = None
    lease_until: float | None = None
    cancel_requested: bool = False
    progress: Progress | None = None

    result: bytes | None = None
    result_dropped: str = ""  # why a result could not be kept, if it could not
    errors: tuple[TaskError, ...] = ()  # the latest attempts that failed, oldest first

    created_at: float = 0.0
    started_at: float | None = None
    finished_at: float | None = None

    @property
    def error(self) -> TaskError | None:
        """Why it failed, or why its latest attempt did."""
        return self.errors[-1] if self.errors else None

    @property
    def is_final(self) -> bool:
        return self.status in FINAL

    @property
    def repeats(self) -> bool:
        """Whether it runs again after it has succeeded."""
        return self.interval is not None or self.cron is not None

    @property
    def cron(self) -> str | None:
        return None if self.schedule is None else self.schedule.cron


class Settlement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What becomes of a running task. Applied only while it runs in this `attempt`.

    A task that is to run again is PENDING, and has a `delay`, in seconds after the store has applied this, or an `eta`.
    `fire` and `next_run`, of one with a schedule: the time that it runs for, and whether this begins another run.
    """

    id: str
    attempt: int
    status: TaskStatus
    delay: float | None = None
    eta: float | None = None
    fire: float | None = None
    next_run: bool = False
    failures: int = 0
    crashes: int = 0
    runs: int = 0
    result: bytes | None = None
    result_dropped: str = ""
    error: TaskError | None = None  # added to the task's errors
    linked: bool = False  # another task waits for this one
    forgotten: bool = False  # a success of which a store need not keep anything, if nobody waits for it
    children: tuple[Task, ...] = ()  # of a success: new tasks, that are added in the same step

    @property
    def is_final(self) -> bool:
        return self.status in FINAL


# Moves of a running task, made by whoever holds it.


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
        fire=task.fire,
        runs=task.runs + 1,
        result=result,
        result_dropped=result_dropped,
        linked=task.then is not None,
        forgotten=task.result_ttl == 0 and task.then is None and not task.repeats,
        children=children,
    )
    return _followed(done, task, now) if task.repeats and not task.cancel_requested else done


def fail(task: Task, error: TaskError, luck: float, *, retry: bool = True, after: float | None = None) -> Settlement:
    """Its function raised, or took too long: run it again if it may, at most `max_retries` times.

    `luck` is a random number from 0 to 1. Not `retry`: the error says that there is no use. `after`: a delay that the
    function asked for.
    """
    failures = task.failures + 1
    if task.cancel_requested:
        return cancel(task)
    if retry and not task.at_most_once and failures <= task.max_retries:
        delay = task.backoff.delay(failures, luck) if after is None else after
        return _again(task, delay, failures=failures, crashes=task.crashes, error=error)
    return _give_up(task, error, failures=failures, crashes=task.crashes)


def crash(task: Task, error: TaskError) -> Settlement:
    """Its worker died, or was cut off, with it: no failure of its own, but not to be repeated for ever."""
    crashes = task.crashes + 1
    if task.cancel_requested:
        return cancel(task)
    if (other := instead_of_run(task)) is not None:
        return other
    if task.at_most_once:
        return _give_up(task, msgspec.structs.replace(error, kind="lost"), failures=task.failures, crashes=crashes)
    if crashes >= MAX_CRASHES:
        poison = msgspec.structs.replace(error, kind="poison")
        return _give_up(task, poison, failures=task.failures, crashes=crashes)
    return _again(task, 0.0, failures=task.failures, crashes=crashes, error=error)


def reject(task: Task, error: TaskError) -> Settlement:
    """Nobody could ever run it: what is stored cannot be decoded, or its function stayed unknown."""
    return Settlement(
        id=task.id,
        attempt=task.attempt,
        status=FAILED,
        failures=task.failures,
        crashes=task.crashes,
        runs=task.runs,
        error=error,
    )


def postpone(task: Task, error: TaskError, luck: float, *, give_up_after: float) -> Settlement:
    """Its function is unknown here: maybe another worker knows it, or this one after the next deployment.

    It waits as long again as it has waited for its function, at most `LONGEST_POSTPONEMENT` seconds, with nothing
    counted. `error` is kept once, as the mark of when this began; after `give_up_after` seconds the task is rejected.
    """
    if task.cancel_requested:
        return cancel(task)
    mark = task.error
    waits_already = mark is not None and mark.kind == "unknown_function" and mark.type == _POSTPONED
    waited = max(error.at - mark.at, 0.0) if mark is not None and waits_already else 0.0
    if waited >= give_up_after:
        return reject(task, error)
    delay = min(max(waited, 1.0), LONGEST_POSTPONEMENT) * (1.0 + JITTER * luck)
    postponed = None if waits_already else msgspec.structs.replace(error, type=_POSTPONED)
    return _again(task, delay, failures=task.failures, crashes=task.crashes, error=postponed)


def release(task: Task, delay: float = 0.0) -> Settlement:
    """It was claimed but not run, or not to its end: nothing is counted."""
    if task.cancel_requested:
        return cancel(task)
    if (other := instead_of_run(task)) is not None:
        return other
    return _again(task, delay, failures=task.failures, crashes=task.crashes)


def cancel(task: Task) -> Settlement:
    """It was cancelled while it ran, or said so itself."""
    return Settlement(
        id=task.id, attempt=task.attempt, status=CANCELLED, failures=task.failures, crashes=task.crashes, runs=task.runs
    )


def instead_of_run(task: Task) -> Settlement | None:
    """What becomes of a schedule that was claimed and is not to run: it is only planned, for its next time."""
    skips = task.schedule is not None and task.schedule.misfire == "skip" and _is_late(task)
    if not skips and task.fire != UNPLANNED:
        return None
    planned = Settlement(id=task.id, attempt=task.attempt, status=CANCELLED, runs=task.runs)
    return _followed(planned, task, task.started_at or 0.0) if task.repeats else planned


def fire_of(task: Task) -> float | None:
    """The time of its schedule that a claimed task runs for: if it is late, and others have passed, the latest."""
    if task.schedule is None or task.fire is None or not _is_late(task):
        return task.fire
    return latest_fire(task.schedule, task.fire, task.started_at or 0.0) or task.fire


def _is_late(task: Task) -> bool:
    """Whether it missed its time, though nothing had begun then: a retry has another `eta` than the time it is for."""
    if task.schedule is None or task.schedule.cron is None or task.fire is None or task.eta != task.fire:
        return False
    return (task.started_at or 0.0) - task.fire > task.schedule.misfire_grace


def _followed(settlement: Settlement, task: Task, now: float) -> Settlement:
    """… and by another run: of an interval after that, of a schedule at its next time. None of those comes twice, even
    if the clock is turned back, and of those that have come meanwhile none, or the latest if they are queued.
    """
    schedule = task.schedule
    if schedule is None or schedule.cron is None:
        return msgspec.structs.replace(settlement, status=PENDING, delay=task.interval, fire=None, next_run=True)
    since = fire_of(task) or task.started_at or now
    if schedule.overlap == "queue" and settlement.status is not CANCELLED:
        missed = latest_fire(schedule, since, now)
        if missed is not None:
            return msgspec.structs.replace(settlement, status=PENDING, delay=0.0, fire=missed, next_run=True)
    at = next_fire(schedule, max(since, now))
    if at is None:
        return settlement
    return msgspec.structs.replace(settlement, status=PENDING, eta=at, fire=at, next_run=True)


def _again(task: Task, delay: float, *, failures: int, crashes: int, error: TaskError | None = None) -> Settlement:
    return Settlement(
        id=task.id,
        attempt=task.attempt,
        status=PENDING,
        delay=delay,
        fire=fire_of(task),
        failures=failures,
        crashes=crashes,
        runs=task.runs,
        error=error,
    )


def _give_up(task: Task, error: TaskError, *, failures: int, crashes: int) -> Settlement:
    """The run has failed for good; a task with an interval or a schedule may go on with the next one."""
    given_up = Settlement(
        id=task.id,
        attempt=task.attempt,
        status=FAILED,
        fire=task.fire,
        failures=failures,
        crashes=crashes,
        runs=task.runs,
        error=error,
    )
    if not task.repeats or task.on_failure != "continue":
        return given_up
    return _followed(msgspec.structs.replace(given_up, failures=0, crashes=0), task, error.at)


# What a move makes of a task: the same in every store.


def new_as_kept(task: Task, now: float) -> Task:
    """A task that is added: due at once if it has no time, and not at all while it waits for others."""
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
        progress=None,
    )


def settled(task: Task, settlement: Settlement, now: float) -> Task:
    """RUNNING → what the settlement says. The caller has checked that it applies.

    Whoever made it may not have known yet that the task was asked to stop: then it does not run again. Nor that its
    schedule was paused, or changed: then it is not due, or at once, to be planned anew.
    """
    waits = settlement.status is PENDING
    completed = settlement.status is SUCCESS or (waits and settlement.runs > task.runs)
    again = waits and not task.cancel_requested
    replanned = again and task.hold == "changed" and settlement.next_run
    stopped = SUCCESS if completed else CANCELLED
    eta, fire = task.eta, task.fire
    if replanned:
        eta, fire = now, UNPLANNED
    elif again:
        eta = settlement.eta if settlement.eta is not None else now + (settlement.delay or 0.0)
        eta, fire = NEVER if task.hold == "paused" else eta, settlement.fire
    return msgspec.structs.replace(
        task,
        status=stopped if waits and not again else settlement.status,
        eta=eta,
        fire=fire,
        hold="" if replanned else task.hold,
        failures=settlement.failures,
        crashes=settlement.crashes,
        runs=settlement.runs,
        result=settlement.result if completed else task.result,
        result_dropped=settlement.result_dropped if completed else task.result_dropped,
        errors=(*task.errors, settlement.error)[-ERRORS_KEPT:] if settlement.error is not None else task.errors,
        worker=None if again else task.worker,
        claim_id=None,
        lease_until=None,
        finished_at=None if again and not completed else now,
    )


def applies(task: Task, settlement: Settlement) -> bool:
    """Whether `task` is still in the attempt that the settlement is about."""
    return task.status is RUNNING and task.attempt == settlement.attempt


def cancelled_by_operator(task: Task, now: float) -> Task | None:
    """PENDING → CANCELLED, or a request to whoever runs it; None if it is too late."""
    if task.status is PENDING:
        return msgspec.structs.replace(task, status=CANCELLED, finished_at=now)
    if task.status is RUNNING:
        return msgspec.structs.replace(task, cancel_requested=True)
    return None


def redriven(task: Task, now: float) -> Task | None:
    """A final state → PENDING: an operator lets it run again, with all its tries; None if it is not final."""
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
    )


def expired(task: Task, now: float) -> Task | None:
    """PENDING → FAILED: it was not started in time; None if it may still start."""
    if task.status is not PENDING or task.expires is None or now < task.expires:
        return None
    error = TaskError(kind="expired", attempt=task.attempt, at=now, message=NOT_IN_TIME)
    return msgspec.structs.replace(task, status=FAILED, errors=(*task.errors, error)[-ERRORS_KEPT:], finished_at=now)
