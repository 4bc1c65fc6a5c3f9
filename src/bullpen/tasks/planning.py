"""What people, and new code, do to schedules: each a move that a store makes in one step (`Storage.change`)."""

from __future__ import annotations

import msgspec

from bullpen.tasks.ids import occurrence_id
from bullpen.tasks.schedule import fires, next_fire
from bullpen.tasks.task import FAILED, NEVER, PENDING, RUNNING, Task, fire_of, redriven

# What may be changed about a schedule, by its key.
TERMS = (
    "func_path",
    "payload",
    "codec",
    "priority",
    "interval",
    "schedule",
    "max_retries",
    "backoff",
    "timeout",
    "at_most_once",
    "on_failure",
    "result_ttl",
    "concurrency_key",
    "headers",
)


def starts_others(task: Task) -> bool:
    """Whether each of its runs is a task of its own, so that they may overlap."""
    return task.schedule is not None and task.schedule.cron is not None and task.schedule.overlap == "allow"


def occurrence(task: Task) -> Task:
    """The run that a claimed schedule is due for, as a task of its own."""
    fire = fire_of(task)
    return Task(
        id=occurrence_id(task.id, fire if fire is not None else task.started_at or 0.0),
        func_path=task.func_path,
        payload=task.payload,
        codec=task.codec,
        queue=task.queue,
        priority=task.priority,
        max_retries=task.max_retries,
        backoff=task.backoff,
        timeout=task.timeout,
        at_most_once=task.at_most_once,
        result_ttl=task.result_ttl,
        concurrency_key=task.concurrency_key,
        headers=task.headers,
        fire=fire,
    )


def next_times(task: Task, now: float, count: int) -> list[float]:
    """When a schedule runs next, as far as is known: of an interval only once, and not while it runs."""
    if task.is_final or task.hold == "paused":
        return []
    if task.schedule is None or task.schedule.cron is None:
        return [task.eta] if task.status is PENDING else []
    return fires(task.schedule, now, count)


def paused(task: Task, now: float) -> Task | None:  # noqa: ARG001
    """No run begins until it is resumed; one that is on goes on."""
    if task.is_final or not task.repeats or task.hold == "paused":
        return None
    return msgspec.structs.replace(task, hold="paused", eta=NEVER if task.status is PENDING else task.eta)


def resumed(task: Task, now: float) -> Task | None:
    """It goes on with its next time, or with a run that had begun. What has passed meanwhile is not made up for."""
    if task.hold != "paused":
        return None
    if task.status is not PENDING:
        return msgspec.structs.replace(task, hold="changed" if task.status is RUNNING else "")
    if task.failures or task.crashes or task.schedule is None or task.schedule.cron is None:
        return msgspec.structs.replace(task, hold="", eta=now)
    fire = next_fire(task.schedule, now)
    return msgspec.structs.replace(task, hold="", eta=fire or now, fire=fire)


def run_now(task: Task, now: float) -> Task | None:
    """One run at once, besides those of the schedule; one that waits for its next try is tried. None if it runs."""
    if task.status is not PENDING:
        return None
    begun = task.failures or task.crashes
    return msgspec.structs.replace(task, eta=now, fire=task.fire if begun else None)


def rescheduled(there: Task, wanted: Task, now: float) -> Task | None:
    """The schedule that is there with the terms that are wanted; None if it has them. Its history stays.

    If it is to run at other times, it is planned anew, after the run that may be on. What had ended begins again,
    unless it was to end with a failure, and has.
    """
    changed = msgspec.structs.replace(there, **{name: getattr(wanted, name) for name in TERMS})
    is_same = changed == there
    first = {"eta": wanted.eta or now, "fire": wanted.fire, "failures": 0, "crashes": 0}
    if there.is_final:
        if is_same and there.status is FAILED and there.on_failure == "fail":
            return None
        alive = redriven(changed, now)
        return None if alive is None else msgspec.structs.replace(alive, hold="", **first)
    if is_same or _same_times(there, wanted):
        return None if is_same else changed
    if there.status is RUNNING:
        return msgspec.structs.replace(changed, hold=there.hold or "changed")
    return changed if there.hold == "paused" else msgspec.structs.replace(changed, **first)


def _same_times(one: Task, other: Task) -> bool:
    def times(task: Task) -> tuple[object, ...]:
        return (task.interval, task.cron, None if task.schedule is None else task.schedule.timezone)

    return times(one) == times(other)
