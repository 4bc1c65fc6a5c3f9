"""Changes of schedules by operators and by new code. A store applies each in one step (`Storage.change`)."""

from __future__ import annotations

import msgspec

from bullpen.tasks.model.ids import occurrence_id
from bullpen.tasks.model.schedule import fire_times, next_fire_time
from bullpen.tasks.model.task import FAILED, NEVER, PENDING, RUNNING, Task, redriven, scheduled_time_of

# The fields that a new declaration of a schedule replaces.
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
    "failure_ttl",
    "concurrency_key",
    "headers",
)


def starts_others(task: Task) -> bool:
    """Whether each run is a task of its own, so that runs may overlap."""
    return task.schedule is not None and task.schedule.cron is not None and task.schedule.overlap == "allow"


def occurrence(task: Task) -> Task:
    """The due run of a claimed schedule, as a task of its own."""
    scheduled_at = scheduled_time_of(task)
    return Task(
        id=occurrence_id(task.id, scheduled_at if scheduled_at is not None else task.started_at or 0.0),
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
        failure_ttl=task.failure_ttl,
        concurrency_key=task.concurrency_key,
        headers=task.headers,
        scheduled_at=scheduled_at,
    )


def next_times(task: Task, now: float, count: int) -> list[float]:
    """The next times of a schedule. With an interval at most one is known, and none while it runs."""
    if task.is_final or task.hold == "paused":
        return []
    if task.schedule is None or task.schedule.cron is None:
        return [task.eta] if task.status is PENDING else []
    return fire_times(task.schedule, now, count)


def paused(task: Task, now: float) -> Task | None:  # noqa: ARG001
    """Paused: no run starts until it is resumed. A run that has started continues."""
    if task.is_final or not task.repeats or task.hold == "paused":
        return None
    return msgspec.structs.replace(task, hold="paused", eta=NEVER if task.status is PENDING else task.eta)


def resumed(task: Task, now: float) -> Task | None:
    """Resumed: it continues with its next time, or with a run that has started. Missed times are not made up."""
    if task.hold != "paused":
        return None
    if task.status is not PENDING:
        return msgspec.structs.replace(task, hold="changed" if task.status is RUNNING else "")
    if task.failures or task.crashes or task.steps or task.schedule is None or task.schedule.cron is None:
        return msgspec.structs.replace(task, hold="", eta=now)
    scheduled_at = next_fire_time(task.schedule, now)
    return msgspec.structs.replace(task, hold="", eta=scheduled_at or now, scheduled_at=scheduled_at)


def run_now(task: Task, now: float) -> Task | None:
    """Due now: one extra run, or the next retry of a run that has started. None if it is not pending."""
    if task.status is not PENDING:
        return None
    begun = task.failures or task.crashes or task.steps
    return msgspec.structs.replace(task, eta=now, scheduled_at=task.scheduled_at if begun else None)


def redeclared(existing: Task, wanted: Task, now: float) -> Task | None:
    """The existing schedule with the terms of `wanted`; None if it has them. Its history stays.

    If its times change, the next run is planned anew, after a run that has started. A final schedule becomes pending
    again, unless it has the same terms, `on_failure="fail"`, and has failed.
    """
    changed = msgspec.structs.replace(existing, **{name: getattr(wanted, name) for name in TERMS})
    is_same = changed == existing
    first = {"eta": wanted.eta or now, "scheduled_at": wanted.scheduled_at, "failures": 0, "crashes": 0}
    if existing.is_final:
        if is_same and existing.status is FAILED and existing.on_failure == "fail":
            return None
        alive = redriven(changed, now)
        return None if alive is None else msgspec.structs.replace(alive, hold="", **first)
    if is_same or _same_times(existing, wanted):
        return None if is_same else changed
    if existing.status is RUNNING:
        return msgspec.structs.replace(changed, hold=existing.hold or "changed")
    return changed if existing.hold == "paused" else msgspec.structs.replace(changed, **first)


def _same_times(one: Task, other: Task) -> bool:
    def times(task: Task) -> tuple[object, ...]:
        return (task.interval, task.cron, None if task.schedule is None else task.schedule.timezone)

    return times(one) == times(other)
