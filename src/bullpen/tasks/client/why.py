"""Why a task is not done: in words for people, and as data for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from bullpen.tasks.model.info import as_datetime, error_of, wait_of
from bullpen.tasks.model.store_move import mark_of
from bullpen.tasks.model.task import FAILED, FORMAT, PENDING, RUNNING, SUCCESS, Task, TaskStatus
from bullpen.tasks.model.unreadable import unreadable_message
from bullpen.tasks.storage.port import Counts, Limit, Storage, TaskFilter, WorkerRecord

MOST_WAITS = 6  # waits before retries that `why` lists; a task may have millions of retries

NAMED = 3  # workers in a sentence
MOST_READ = 1000  # pending tasks that `why` reads to find those in front
STALE_AFTER = 30.0  # a worker that said nothing for so long does not count
_HOLDERS_NAMED = 5

CauseKind = Literal[
    "succeeded",
    "failed",
    "cancelled",
    "running",
    "cancel_requested",
    "lease_over",
    "retry",
    "next_run",
    "unknown_function",
    "unreadable",
    "moving",
    "sleeping",
    "event",
    "eta",
    "expired",
    "paused",
    "no_worker",
    "waits_for",
    "limit",
    "rate",
    "due",
]


class Cause(msgspec.Struct, frozen=True):
    """One thing that a task waits for, or the outcome of the task."""

    kind: CauseKind
    message: str
    data: Mapping[str, Any] = {}


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """Why a task is not finished, or its outcome. `str()` gives one line of text."""

    id: str
    name: str
    status: TaskStatus
    causes: tuple[Cause, ...]

    def __str__(self) -> str:
        return f"{self.name} is {self.status}: " + "; ".join(cause.message for cause in self.causes)


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """The facts outside a task that decide whether it may start."""

    now: float
    paused: bool = False
    workers: Sequence[WorkerRecord] = ()  # of the whole store
    limit: Limit | None = None  # of its queue
    running: Sequence[Task] = ()  # in its queue; only needed if there is a limit
    waiting: int = 0  # in its queue, this one included
    pending: Sequence[Task] = ()  # in the queues that may be served together with its own, as far as they were read
    all_read: bool = True  # `pending` has all of them
    before: Sequence[Task] = ()  # the tasks that it waits for
    earlier: Task | None = None  # with its key, in a queue that keeps their order


async def explain_task(storage: Storage, task: Task) -> Why:
    """Read the surroundings of a task from the store, and explain the task."""
    around = Surroundings(now=await storage.now())
    if task.status is PENDING:
        limit = next((limit for limit in await storage.limits() if limit.queue == task.queue), None)
        running = TaskFilter(queues=(task.queue,), statuses=(RUNNING,))
        counts, paused, workers = await storage.counts(), await storage.paused(), await storage.workers()
        workers = [worker for worker in workers if not worker.lost]
        up = [worker for worker in workers if around.now - worker.seen_at < STALE_AFTER]
        together = _claimed_together(task.queue, up, counts, paused, await storage.limits())
        waiting_there = TaskFilter(queues=together, statuses=(PENDING,))
        pending = await storage.list(waiting_there, limit=MOST_READ) if together else ()
        around = Surroundings(
            now=around.now,
            paused=task.queue in paused,
            workers=workers,
            limit=limit,
            pending=pending,
            all_read=len(pending) < MOST_READ,
            running=() if limit is None else await storage.list(running, limit=1000),
            waiting=counts.get(task.queue, {}).get(PENDING, 0),
            before=await _before(storage, task),
            earlier=await _earlier(storage, task) if limit is not None and limit.in_order else None,
        )
    elif task.status is RUNNING:
        around = Surroundings(now=around.now, workers=await storage.workers())
    return explain(task, around)


def _claimed_together(
    queue: str, workers: Sequence[WorkerRecord], counts: Counts, paused: frozenset[str], limits: Sequence[Limit]
) -> tuple[str, ...]:
    """The queues that some lane serves together with this one, and from which a task may start now."""
    full = {
        limit.queue
        for limit in limits
        if limit.max_running is not None and counts.get(limit.queue, {}).get(RUNNING, 0) >= limit.max_running
    }
    return tuple(
        other
        for other in sorted(counts)
        if other not in paused
        and other not in full
        and counts[other].get(PENDING, 0)
        and any(worker.shares_lane(queue, other) for worker in workers)
    )


async def _earlier(storage: Storage, task: Task) -> Task | None:
    """The oldest unfinished task with the same concurrency key, among the first 1000 of the queue."""
    if task.concurrency_key is None or task.repeats:
        return None
    alive = TaskFilter(queues=(task.queue,), statuses=(PENDING, RUNNING))
    existing = await storage.list(alive, limit=1000)
    same = [one for one in existing if one.concurrency_key == task.concurrency_key and not one.repeats]
    first = min(same, key=lambda one: (one.created_at, one.id), default=task)
    return None if first.id == task.id else first


async def _before(storage: Storage, task: Task) -> list[Task]:
    if task.depends_on is None or task.waits_for <= 0:
        return []
    return [member for member in await storage.get(task.depends_on.ids) if member is not None]


def explain(task: Task, around: Surroundings) -> Why:
    """The explanation itself; it reads no store."""
    if task.unreadable and not task.is_final:
        causes = [_unreadable(task), *_waits_for_time(task, around.now)]
    elif task.status is PENDING and task.waits_for > 0:
        causes = [_waits_for_members(task, around)]
    elif task.status is PENDING:
        causes = [*_waits_for_code(task, around), *_waits_for_time(task, around.now), *_waits_for_others(task, around)]
        causes = causes or [_due(task, around)]
    elif task.status is RUNNING:
        causes = list(_runs(task, around))
    else:
        causes = [_is_over(task)]
    return Why(id=task.id, name=task.func_path, status=task.status, causes=tuple(causes))


def _unreadable(task: Task) -> Cause:
    is_newer = task.format > FORMAT
    advice = "start a worker of the version that wrote it" if is_newer else "a worker sets it aside as failed"
    return Cause("unreadable", f"{unreadable_message(task)}; {advice}", {"reason": task.unreadable, "newer": is_newer})


def _waits_for_members(task: Task, around: Surroundings) -> Cause:
    missing = [member for member in around.before if not member.is_final]
    many = "" if task.depends_on is None else f" of {len(task.depends_on.ids)}"
    message = f"it waits for {task.waits_for}{many} tasks that it depends on: {_named(missing)}"
    return Cause("waits_for", message, {"before": tuple(member.id for member in missing), "waits_for": task.waits_for})


def _waits_for_code(task: Task, around: Surroundings) -> list[Cause]:
    if task.error is None or task.error.kind != "unknown_function":
        return []
    message = f"worker {task.error.worker}: {task.error.message}; "
    others = may_know(task, around.workers, _serving(task.queue, around))
    if others:
        named = ", ".join(worker.id for worker in others[:NAMED]) + (", …" if len(others) > NAMED else "")
        message += f"workers with other functions serve its queue too ({named}): if one registers the function, give "
        message += "each app its own queues; if none does, "
    message += "start a worker that registers the function"
    return [Cause("unknown_function", message, {"worker": task.error.worker, "since": as_datetime(task.error.at)})]


def may_know(task: Task, workers: Sequence[WorkerRecord], up: Sequence[WorkerRecord]) -> list[WorkerRecord]:
    """Workers that serve the queue of a task and may know its function: they have other functions than the worker that
    did not know it. If that worker is not among `workers`, it may have been any of them, if they differ.
    """
    did_not = {worker.functions for worker in workers if task.error is not None and worker.id == task.error.worker}
    telling = [one for one in up if one.functions and not one.stopping and one.serves(task.queue)]
    if not did_not and len({one.functions for one in telling}) < 2:
        return []
    return [one for one in telling if one.functions not in did_not]


def _waits_for_time(task: Task, now: float) -> list[Cause]:
    mark = mark_of(task)
    if mark is not None:
        message = f"it is being moved to {mark.to}; if no `bullpen move` is running, run it again"
        return [Cause("moving", message, {"to": mark.to, "since": as_datetime(mark.at)})]
    if task.expires is not None and task.expires <= now:
        return [
            Cause("expired", "it expired before it started, and will not run", {"expires": as_datetime(task.expires)})
        ]
    if task.hold == "paused" and task.eta > now:
        key = task.schedule.key if task.schedule is not None and task.schedule.key else task.id
        return [Cause("paused", f"the schedule {key!r} is paused", {"schedule": key})]
    if task.eta <= now:
        return []
    wait = f"{_until(task.eta, now)}"
    data: dict[str, Any] = {"eta": as_datetime(task.eta), "seconds": task.eta - now}
    error = task.error
    if (awaited := wait_of(task)) is not None:
        limit = "without a limit" if awaited.until is None else f"until {awaited.until:%Y-%m-%d %H:%M:%S} UTC"
        message = f"it waits for the event {awaited.event} since {awaited.since:%Y-%m-%d %H:%M:%S} UTC, {limit}"
        return [Cause("event", message, msgspec.structs.asdict(awaited))]
    asleep = next((step for step in task.steps if step.until == task.eta), None)
    if asleep is not None:
        message = f"it sleeps (step {asleep.name!r}), and goes on {wait}"
        return [Cause("sleeping", message, data | {"step": asleep.name, "since": as_datetime(asleep.ended_at)})]
    if task.failures and error is not None:
        said = f"{error.type}: {error.message}" if error.type else error.message or error.kind
        tries = f"try {task.failures + 1} of {task.max_retries + 1} is due {wait}"
        waits = task.backoff.waits(min(task.max_retries, MOST_WAITS))
        more = " …" if task.max_retries > MOST_WAITS else ""
        backoff = f"its backoff is {', '.join(f'{wait:g}' for wait in waits)}{more} s"
        message = f"its attempt {error.attempt} failed with {said}, {tries}; {backoff}"
        return [Cause("retry", message, data | {"error": error_of(error), "failures": task.failures, "waits": waits})]
    if task.completed_runs:
        return [
            Cause(
                "next_run",
                f"it has run {task.completed_runs} times, and runs again {wait}",
                data | {"completed_runs": task.completed_runs},
            )
        ]
    return [Cause("eta", f"it is due {wait}", data)]


def _waits_for_others(task: Task, around: Surroundings) -> list[Cause]:
    causes = []
    if around.paused:
        causes.append(Cause("paused", f"the queue {task.queue!r} is paused", {"queue": task.queue}))
    if not _serving(task.queue, around):
        causes.append(_no_worker(task, around))
    if around.limit is not None:
        causes += held_back_by(task, around.limit, around)
    return causes


def _serving(queue: str, around: Surroundings) -> list[WorkerRecord]:
    return [
        worker
        for worker in around.workers
        if worker.serves(queue) and not worker.stopping and around.now - worker.seen_at < STALE_AFTER
    ]


def _no_worker(task: Task, around: Surroundings) -> Cause:
    others = tuple(sorted({queue for worker in around.workers for queue in worker.queues}))
    silent = [worker.id for worker in around.workers if worker.serves(task.queue)]
    if silent:
        named = ", ".join(silent[:NAMED]) + (", …" if len(silent) > NAMED else "")
        hint = f"; {named} did, but has not reported for {STALE_AFTER:g} s or is stopping"
    elif others:
        hint = f"; the workers serve {', '.join(others)}"
    else:
        hint = "; no worker is running"
    message = f"no worker serves the queue {task.queue!r}{hint}"
    return Cause("no_worker", message, {"queue": task.queue, "served": others, "silent": tuple(silent)})


def held_back_by(task: Task, limit: Limit, around: Surroundings) -> list[Cause]:
    """The terms of the limit that keep a due task from its start."""
    causes = []
    if not limit.is_readable:
        message = f"the stored limit of {task.queue!r} cannot be read, so none of its tasks start; set it again"
        return [Cause("limit", message, _holders((), 0))]
    if limit.max_running is not None and len(around.running) >= limit.max_running:
        message = f"{len(around.running)} of at most {limit.max_running} tasks of {task.queue!r} run: "
        causes.append(Cause("limit", message + _named(around.running), _holders(around.running, limit.max_running)))
    if limit.max_running_per_key is not None and task.concurrency_key is not None:
        key, most = task.concurrency_key, limit.max_running_per_key
        same = [other for other in around.running if other.concurrency_key == key]
        if len(same) >= most:
            message = f"{len(same)} of at most {most} tasks with the key {key!r} run: "
            causes.append(Cause("limit", message + _named(same), _holders(same, most) | {"key": key}))
    if around.earlier is not None and task.concurrency_key is not None:
        first = around.earlier
        message = f"tasks with the key {task.concurrency_key!r} run in order, and the next one is {_named([first])}"
        data = {"key": task.concurrency_key, "held_by": (first.id,), "in_order": True}
        causes.append(Cause("limit", f"{message}, which is {first.status}", data))
    if not causes and limit.rate is not None:
        message = f"at most {limit.rate:g} tasks of {task.queue!r} start per second"
        if limit.rate < 1:
            message = f"at most one task of {task.queue!r} starts every {1 / limit.rate:.3g} s"
        causes.append(
            Cause("rate", f"{message}, and {around.waiting} wait", {"rate": limit.rate, "waiting": around.waiting})
        )
    return causes


def _holders(running: Sequence[Task], most: int) -> dict[str, Any]:
    return {"max_running": most, "held_by": tuple(task.id for task in running)}


def _named(running: Sequence[Task]) -> str:
    named = ", ".join(f"{task.func_path} {task.id}" for task in running[:_HOLDERS_NAMED])
    more = len(running) - _HOLDERS_NAMED
    return f"{named} and {more} more" if more > 0 else named


def _due(task: Task, around: Surroundings) -> Cause:
    serving = _serving(task.queue, around)
    first = [other for other in around.pending if _is_before(other, task, around.now)]
    in_front = min(
        ([other for other in first if worker.shares_lane(task.queue, other.queue)] for worker in serving),
        key=len,
        default=[],
    )
    by_queue = Counter(other.queue for other in in_front)
    full = all(worker.running >= worker.concurrency for worker in serving)
    data = {
        "waiting": around.waiting,
        "workers": tuple(worker.id for worker in serving),
        "in_front": len(in_front),
        "by_queue": dict(by_queue),
        "next": min(in_front, key=_turn).id if in_front else task.id,
    }
    message = f"it is due, {_place(in_front, by_queue, around)}"
    if full and serving:
        message += "; all permits of the workers that serve its queue are in use"
    return Cause("due", message, data)


def _is_before(other: Task, task: Task, now: float) -> bool:
    """Whether a lane that serves both starts the other one first."""
    may_start = other.eta <= now and other.waits_for <= 0 and (other.expires is None or other.expires > now)
    return may_start and other.id != task.id and _turn(other) < _turn(task)


def _turn(task: Task) -> tuple[int, float, str]:
    """The order in which a lane claims, over all its queues."""
    return -task.priority, task.eta, task.id


def _place(in_front: Sequence[Task], by_queue: Mapping[str, int], around: Surroundings) -> str:
    if not in_front:
        return "and is the next one" if around.all_read else "and no task in front of it was found"
    many = len(in_front)
    first = min(in_front, key=_turn)
    queues = ", ".join(f"{count} in {queue!r}" for queue, count in sorted(by_queue.items()))
    least = "" if around.all_read else "at least "
    tasks = "1 task is" if many == 1 else f"{many} tasks are"
    return f"and {least}{tasks} in front of it ({queues}); the next one is {_named([first])}"


def _runs(task: Task, around: Surroundings) -> list[Cause]:
    since = task.started_at if task.started_at is not None else around.now
    worker = next((worker for worker in around.workers if worker.id == task.worker), None)
    host = None if worker is None else worker.host
    where = f"worker {task.worker}" + (f" on {host}" if host else "")
    message = f"attempt {task.attempt} has been running on {where} for {around.now - since:.1f} s"
    if task.progress is not None:
        message += f", {task.progress}"
    data = {"worker": task.worker, "host": host, "since": as_datetime(since), "attempt": task.attempt}
    causes = [Cause("running", message, data)]
    if task.cancel_requested:
        causes.append(_asked_to_stop(task, worker))
    if task.lease_until is not None and task.lease_until <= around.now:
        late = around.now - task.lease_until
        message = f"its lease expired {late:.1f} s ago; another worker will take it over"
        causes.append(Cause("lease_over", message, {"lease_until": as_datetime(task.lease_until)}))
    return causes


def _asked_to_stop(task: Task, worker: WorkerRecord | None) -> Cause:
    message = "it was asked to stop, and has not stopped yet"
    if worker is None or task.id not in worker.on_threads:
        return Cause("cancel_requested", message)
    where = f"worker {worker.id} (pid {worker.pid} on {worker.host})"
    message += f": it runs on a thread, which nothing can end from outside; restart {where} to end it"
    message += ', and run such functions in processes, which can be killed (runtime="process", or a lane with @process)'
    return Cause("cancel_requested", message, {"on_thread": True, "worker": worker.id})


def _is_over(task: Task) -> Cause:
    at = "" if task.finished_at is None else f" at {as_datetime(task.finished_at):%Y-%m-%d %H:%M:%S} UTC"
    data = {"finished_at": None if task.finished_at is None else as_datetime(task.finished_at)}
    if task.status is SUCCESS:
        dropped = f", but its result was not kept: {task.result_dropped}" if task.result_dropped else ""
        return Cause("succeeded", f"it succeeded{at}{dropped}", data)
    if task.status is FAILED:
        error = task.error
        said = "" if error is None else f" with {error.type or error.kind}: {error.message}"
        if error is not None and error.kind == "poison" and task.crashes:
            said = f" as poison, after {task.crashes} crashes, and does not run again by itself. The last one{said}"
        return Cause("failed", f"it failed{at}{said}", data | {"error": None if error is None else error_of(error)})
    return Cause("cancelled", f"it was cancelled{at}", data)


def _until(eta: float, now: float) -> str:
    return f"in {eta - now:.1f} s, at {as_datetime(eta):%Y-%m-%d %H:%M:%S} UTC"
