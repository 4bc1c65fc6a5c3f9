"""Findings of `bullpen doctor`, decided from a snapshot of the store. This module reads no store."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from bullpen.cli.terminal.output import counted, duration
from bullpen.tasks.client.why import STALE_AFTER, Cause, Surroundings, held_back_by, may_know
from bullpen.tasks.model.failure_groups import FAILURES_KEPT, FailureGroup
from bullpen.tasks.model.history import COUNTED, HistoryRow
from bullpen.tasks.model.info import wait_of
from bullpen.tasks.model.queue_patterns import is_pattern
from bullpen.tasks.model.store_move import mark_of
from bullpen.tasks.model.task import FORMAT, Task
from bullpen.tasks.storage.port import FunctionSet, HealthFinding, Limit, Schema, WorkerRecord
from bullpen.tasks.worker.identity import is_dead

MANY = 10_000  # pending tasks in a queue …
MOST_COUNTED = 10_000  # pending tasks of a queue; more are "more than 10,000"
LONG = 60.0  # … and the age of the oldest in seconds
SKEW, GREAT_SKEW = 2.0, 30.0
OVERDUE = 30.0  # seconds after the end of a lease
NAMED = 3
DEFAULT = "default"
DAY, HOUR = 86_400.0, 3600.0
RECENT = 600  # seconds of the history that tell whether a function fails now
FEW_ATTEMPTS = 3  # failed ones in this time may be chance
MANY_FAIL = 0.1  # of the attempts since a new cause began
EXPECTED = 3.0  # failures with a new cause in the hours before it, if it were not new: then none is no chance
OLD_WAIT = 30 * DAY  # seconds that a task may wait for an event without a limit


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of a store. `oldest` has the first pending tasks of each queue."""

    now: float
    ahead: float = 0.0  # seconds that the clock of the store is ahead of this machine
    queues: frozenset[str] = frozenset()  # that have tasks, also finished ones
    waiting: Mapping[str, int] = {}  # how many, by queue
    oldest: Mapping[str, Sequence[Task]] = {}  # by queue
    running: Sequence[Task] = ()
    awaiting: Sequence[Task] = ()  # the first page of tasks that wait for events
    paused: frozenset[str] = frozenset()
    limits: Sequence[Limit] = ()
    workers: Sequence[WorkerRecord] = ()
    failures: Sequence[FailureGroup] = ()  # of the time for which they are kept
    history: Sequence[HistoryRow] = ()  # the latest minutes
    hours: Sequence[HistoryRow] = ()  # the latest hours

    @property
    def up(self) -> list[WorkerRecord]:
        return [one for one in self.workers if not is_dead(one) and self.now - one.seen_at <= STALE_AFTER]

    def due(self, queue: str) -> list[Task]:
        return [task for task in self.oldest.get(queue, ()) if task.eta <= self.now]


def problem(kind: str, message: str, advice: str, **about: str) -> HealthFinding:
    return HealthFinding(kind=kind, level="problem", message=message, advice=advice, about=about)


def warning(kind: str, message: str, advice: str, **about: str) -> HealthFinding:
    return HealthFinding(kind=kind, level="warning", message=message, advice=advice, about=about)


def of_schema(schema: Schema) -> list[HealthFinding]:
    if schema.is_too_new:
        message = f"the schema has version {schema.found}; this Bullpen knows version {schema.known}"
        return [problem("schema_too_new", message, "a newer Bullpen has created it: upgrade this installation")]
    if schema.found < schema.known:
        existing = f"version {schema.found}" if schema.found else "no tables"
        message = f"the store has {existing}; version {schema.known} is required"
        return [problem("schema_too_old", message, "run `bullpen migrate`; `--dry-run` prints the SQL")]
    return []


def diagnose(look: Look) -> list[HealthFinding]:
    """All findings, problems before warnings."""
    found = [
        *_no_workers(look),
        *_stuck(look),
        *_unreadable(look),
        *_unknown_functions(look),
        *_shared_queues(look),
        *_unreadable_limits(look),
        *_failing(look),
        *_poison(look),
        *_paused(look),
        *_lost_workers(look),
        *_moving(look),
        *_old_waits(look),
        *_backlogs(look),
        *_reached_limits(look),
        *_soon_forgotten(look),
        *_clock(look),
    ]
    return sorted(found, key=lambda one: one.level != "problem")


def _no_workers(look: Look) -> Iterable[HealthFinding]:
    served = {queue for queue in look.oldest if any(worker.serves(queue) for worker in look.up)}
    alone = [queue for queue in look.oldest if look.due(queue) and queue not in served and queue not in look.paused]
    if not look.up and alone:
        many = sum(look.waiting.get(queue, 0) for queue in alone)
        yield problem("no_workers", f"{_waiting(many)}, and no worker is up", "start one: `bullpen worker APP`")
    else:
        for queue in alone:
            message = f"{_waiting(look.waiting.get(queue, 0))} in the queue {queue!r}, and no worker serves it"
            advice = f"start one: `bullpen worker APP --queues {queue}`"
            yield problem("unserved_queue", message, advice, queue=queue)


def _stuck(look: Look) -> Iterable[HealthFinding]:
    stuck = [task for task in look.running if task.lease_until is not None and look.now - task.lease_until > OVERDUE]
    if not stuck:
        return
    message = f"{counted(len(stuck), 'running task has', 'running tasks have')} an expired lease: {_ids(stuck)}"
    if look.up:
        yield warning(
            "expired_leases", message, "a worker takes them back soon; if this finding stays, read the worker's log"
        )
    else:
        yield problem("expired_leases", message, "start a worker: it takes them back and runs them again")


def _unreadable(look: Look) -> Iterable[HealthFinding]:
    tasks = [*look.running, *(task for tasks in look.oldest.values() for task in tasks)]
    newer = [task for task in tasks if task.unreadable and task.format > FORMAT]
    damaged = [task for task in tasks if task.unreadable and task.format <= FORMAT]
    if newer:
        message = f"a newer version of Bullpen has written {counted(len(newer), 'task', 'tasks')}: {_ids(newer)}"
        yield warning("newer_tasks", message, "start workers of that version, or upgrade these", task=newer[0].id)
    if damaged:
        cannot = counted(len(damaged), "stored task cannot", "stored tasks cannot")
        advice = (
            "`bullpen tasks show ID` says why; workers set them aside as failed; `bullpen tasks cancel ID` does too"
        )
        yield problem("unreadable_tasks", f"{cannot} be read: {_ids(damaged)}", advice, task=damaged[0].id)


def _unknown_functions(look: Look) -> Iterable[HealthFinding]:
    """Tasks that a worker has released. If a worker with other functions serves their queue, it may know theirs."""
    unknown = Counter(
        (task.func_path, bool(may_know(task, look.workers, look.up)))
        for tasks in look.oldest.values()
        for task in tasks
        if task.error is not None and task.error.kind == "unknown_function"
    )
    for (name, is_shared), many in unknown.most_common():
        message = f"{_waiting(many)} for the function {name}, which "
        if is_shared:
            message += "a worker of their queue does not know; workers with other functions serve the queue too"
            advice = "if one of those knows it, give each app its own queues or its own store; if none does, "
            yield warning("unknown_function", message, f"{advice}start a worker with it", function=name)
        else:
            advice = f"start a worker with it; if the function is gone, `bullpen tasks cancel --function {name}`"
            yield problem("unknown_function", f"{message}no worker of their queue knows so far", advice, function=name)


def _unreadable_limits(look: Look) -> Iterable[HealthFinding]:
    for limit in look.limits:
        if not limit.is_readable:
            message = f"the limit of the queue {limit.queue!r} cannot be read, so none of its tasks start"
            advice = f"set it again: `bullpen queues limit {limit.queue}`"
            yield problem("unreadable_limit", message, advice, queue=limit.queue)


def _shared_queues(look: Look) -> Iterable[HealthFinding]:
    """Queues that workers with different functions serve. A worker that names no functions tells nothing."""
    telling = [worker for worker in look.up if worker.functions and not worker.stopping]
    declared = {one.queue for worker in telling for one in worker.functions}
    served = {name for worker in telling for name in worker.queues if not is_pattern(name)}
    shared: dict[tuple[str, ...], list[str]] = {}  # queues by workers
    for queue in sorted(declared | (served - {DEFAULT}) | look.queues):  # a worker serves DEFAULT unasked
        sets: dict[tuple[FunctionSet, ...], WorkerRecord] = {}
        for worker in telling:
            if worker.serves(queue):  # if no function declares the queue, calls with any function may choose it
                own = tuple(one for one in worker.functions if one.queue == queue or queue not in declared)
                sets.setdefault(own, worker)
        if len(sets) > 1:
            named = tuple(f"{worker.id} ({_functions(own)})" for own, worker in sets.items())
            shared.setdefault(named, []).append(queue)
    for workers, queues in shared.items():
        message = f"workers with different functions serve the {'queue' if len(queues) == 1 else 'queues'} "
        message += f"{_some([repr(queue) for queue in queues])}: {_some(workers)}"
        advice = "a worker releases tasks of functions that it does not know, so they wait: give each app its own "
        advice += "queues or its own store; during a deployment this finding is normal"
        yield warning("shared_queue", message, advice)


def _paused(look: Look) -> Iterable[HealthFinding]:
    for queue in sorted(look.paused):
        if many := look.waiting.get(queue, 0):
            message = f"{_waiting(many)} in the queue {queue!r}, which is paused"
            yield warning("paused_queue", message, f"to continue: `bullpen queues resume {queue}`", queue=queue)


def _lost_workers(look: Look) -> Iterable[HealthFinding]:
    up = {worker.id for worker in look.up}
    lost = [worker for worker in look.workers if worker.id not in up and look.now - worker.seen_at < HOUR]
    if len(lost) == 1:
        (worker,) = lost
        state = "is dead" if is_dead(worker) else "does not answer"
        message = f"the worker {worker.id} (pid {worker.pid} on {worker.host}) {state}; "
        message += f"its last heartbeat was {duration(look.now - worker.seen_at)} ago"
        advice = "other workers run its tasks again; look for the cause on its machine"
        yield warning("lost_workers", message, advice, worker=worker.id)
    elif lost:
        message = f"{len(lost)} workers are dead, or silent for over {STALE_AFTER:g} s: "
        message += _some([worker.id for worker in lost])
        advice = "other workers run their tasks again; look for the cause on their machines"
        yield warning("lost_workers", message, advice)


def _moving(look: Look) -> Iterable[HealthFinding]:
    marks = [mark for tasks in look.oldest.values() for task in tasks if (mark := mark_of(task)) is not None]
    for to, many in Counter(mark.to for mark in marks).items():
        message = f"{counted(many, 'task is', 'tasks are')} moving to {to}"
        yield warning("moving", message, "if no `bullpen move` is running, it was interrupted: run it again")


def _old_waits(look: Look) -> Iterable[HealthFinding]:
    waits = {task.id: wait for task in look.awaiting if (wait := wait_of(task)) is not None and wait.until is None}
    old = {one: wait for one, wait in waits.items() if look.now - wait.since.timestamp() > OLD_WAIT}
    if old:
        first, wait = next(iter(old.items()))
        message = (
            f"{counted(len(old), 'task waits', 'tasks wait')} without a limit for an event, for more than "
            f"{OLD_WAIT / DAY:g} days: {first} for {wait.event}"
        )
        advice = "emit it (`bullpen emit`), or cancel the task (`bullpen tasks cancel`); give such waits a timeout="
        yield warning("old_waits", message, advice, task=first, event=wait.event)


def _backlogs(look: Look) -> Iterable[HealthFinding]:
    for queue, many in look.waiting.items():
        due = look.due(queue)
        if many >= MANY and due and queue not in look.paused:
            oldest = look.now - min(task.eta for task in due)
            if oldest >= LONG:
                message = f"{_waiting(many)} in the queue {queue!r}, the oldest for {duration(oldest)}"
                advice = "if it keeps growing, start more workers or raise `--concurrency`"
                yield warning("backlog", message, advice, queue=queue)


def _reached_limits(look: Look) -> Iterable[HealthFinding]:
    """Limits behind which the oldest due task waits, and the tasks that hold its place."""
    for limit in look.limits:
        due = look.due(limit.queue)
        if not due or not limit.is_readable or limit.queue in look.paused:
            continue
        oldest = min(due, key=lambda task: task.eta)
        if look.now - oldest.eta < LONG:
            continue
        running = [task for task in look.running if task.queue == limit.queue]
        waiting = look.waiting.get(limit.queue, 0)
        earlier = _earlier(oldest, [*running, *look.oldest[limit.queue]]) if limit.in_order else None
        around = Surroundings(now=look.now, running=running, waiting=waiting, earlier=earlier)
        for cause in held_back_by(oldest, limit, around)[:1]:
            message = f"{_waiting(waiting)} in the queue {limit.queue!r} behind its limit, the oldest for "
            message += f"{duration(look.now - oldest.eta)}: {cause.message}{_held_for(cause, look)}"
            advice = "to change the limit: "
            if cause.data.get("held_by"):
                advice = f"see what runs: `bullpen tasks --queue {limit.queue} --status running`; if it hangs, "
                advice += "`bullpen stack ID` says where; to change the limit: "
            yield warning("reached_limit", message, f"{advice}`bullpen queues limit {limit.queue}`", queue=limit.queue)


def _held_for(cause: Cause, look: Look) -> str:
    """For how long the tasks have run that hold the limit: those that hang have run for long."""
    holders = cause.data.get("held_by", ())
    started = [task.started_at for task in look.running if task.id in holders and task.started_at is not None]
    if not started:
        return ""
    return f", {'the first of them ' if len(started) > 1 else ''}for {duration(look.now - min(started))}"


def _earlier(task: Task, others: Sequence[Task]) -> Task | None:
    """The oldest task with the key of this one that has to end before it may start."""
    if task.concurrency_key is None or task.repeats:
        return None
    same = [one for one in others if one.concurrency_key == task.concurrency_key and not one.repeats]
    first = min(same, key=lambda one: (one.created_at, one.id), default=task)
    return None if first.id == task.id else first


def _failing(look: Look) -> Iterable[HealthFinding]:
    """Functions of which most attempts fail now, as after a deployment with a defect; and causes that are new, or fail
    more often than before.
    """
    told = set[str]()
    history, hours = _by_function(look.history), _by_function(look.hours)
    for group in look.failures:  # the latest first
        if group.kind == "poison":
            told.add(group.function)  # it has a finding of its own
            continue
        began = group.first.timestamp()
        is_recent = began >= look.now - RECENT
        failed, ended = _attempts(history[group.function], since=began if is_recent else 0.0)
        begins = f"began to fail {duration(look.now - began)} ago:"
        if group.function not in told and failed >= max(FEW_ATTEMPTS, ended / 2):
            told.add(group.function)
            kind = "failing_function"
            message = f"{begins} {failed} of {ended} attempts since then, the latest with"
            if not is_recent:
                message = f"fails: {failed} of {ended} attempts in the last {RECENT // 60} minutes, the latest with"
        elif group.is_rising and not group.is_new:
            kind = "rising_failures"
            message = f"fails more often than before: {sum(group.hours[-2:])} times in two hours, with"
        elif group.is_rising and _is_unusual(group, hours[group.function]):
            kind = "new_failures"
            message = f"{begins} {group.count} times with"
        else:
            continue
        place = f"{group.type or group.kind}{f' at {group.where}' if group.where else ''}{_since_a_start(group, look)}"
        about = {"function": group.function, "fingerprint": group.fingerprint, "task": group.example}
        advice = "`bullpen errors` shows the cause and an example"
        yield warning(kind, f"{group.function} {message} {place}", advice, **about)


def _by_function(rows: Iterable[HistoryRow]) -> Mapping[str, list[HistoryRow]]:
    found = defaultdict[str, list[HistoryRow]](list)
    for row in rows:
        found[row.function].append(row)
    return found


def _attempts(rows: Iterable[HistoryRow], *, since: float) -> tuple[int, int]:
    """How many attempts failed, and how many ended, from the row on that has this instant."""
    failed = succeeded = 0
    for row in rows:
        if row.at + row.step > since:
            counts = dict(zip(COUNTED, row.counts, strict=False))
            failed += sum(counts.get(name, 0) for name in ("failed", "retried", "crashed"))
            succeeded += counts.get("success", 0)
    return failed, failed + succeeded


def _is_unusual(group: FailureGroup, hours: Sequence[HistoryRow]) -> bool:
    """Whether a new cause is more than the usual noise of a function that has not run for long: many attempts fail with
    it, or the function ran often without it before.
    """
    began = group.first.timestamp()
    _, ended = _attempts(hours, since=began)
    _, of_all = _attempts(hours, since=0.0)
    share = group.count / max(ended, group.count)
    return share >= MANY_FAIL or share * (of_all - ended) >= EXPECTED


def _since_a_start(group: FailureGroup, look: Look) -> str:
    """Failures that began soon after a worker started may come from what was deployed."""
    first = group.first.timestamp()
    started = [one for one in look.up if 0 <= first - one.started_at < RECENT]
    if not started:
        return ""
    latest = max(started, key=lambda one: one.started_at)
    return f"; this began {duration(first - latest.started_at)} after the worker {latest.id} started"


def _poison(look: Look) -> Iterable[HealthFinding]:
    for group in look.failures:
        if group.kind == "poison" and look.now - group.last.timestamp() < DAY:
            attempts = counted(sum(group.hours[-25:]), "attempt", "attempts")
            ago = duration(look.now - group.last.timestamp())
            message = f"{group.function} fails as poison: {attempts} within a day, the latest {ago} ago: "
            message += group.message.partition("\n")[0]
            advice = f"no worker runs such a task again by itself: see `bullpen tasks show {group.example}`, mend the "
            advice += "cause, then `bullpen tasks retry`"
            about = {"function": group.function, "fingerprint": group.fingerprint, "task": group.example}
            yield warning("poison", message, advice, **about)


def _soon_forgotten(look: Look) -> Iterable[HealthFinding]:
    old = [group for group in look.failures if look.now - group.last.timestamp() > FAILURES_KEPT - DAY]
    if old:
        message = f"{counted(len(old), 'cause of failures is', 'causes of failures are')} forgotten within a day: "
        message += ", ".join(group.function for group in old[:NAMED]) + (", …" if len(old) > NAMED else "")
        advice = "failed tasks are deleted after their `failure_ttl`, by default seven days: "
        yield warning("forgotten_failures", message, f"{advice}`bullpen errors --since 7d`, then retry or purge them")


def _clock(look: Look) -> Iterable[HealthFinding]:
    if abs(look.ahead) >= SKEW:
        message = (
            f"the store's clock is {duration(look.ahead)} {'ahead of' if look.ahead > 0 else 'behind'} this machine's"
        )
        make = problem if abs(look.ahead) >= GREAT_SKEW else warning
        yield make(
            "clock", message, "`eta`, `expires` and schedules use the store's clock: synchronise both clocks with NTP"
        )


def _waiting(many: int) -> str:
    if many > MOST_COUNTED:
        return f"more than {MOST_COUNTED:,} tasks are pending"
    return counted(many, "task is pending", "tasks are pending")


def _functions(sets: Iterable[FunctionSet]) -> str:
    return counted(sum(one.count for one in sets), "function", "functions")


def _ids(tasks: Sequence[Task]) -> str:
    return _some([task.id for task in tasks])


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED]) + (", …" if len(names) > NAMED else "")
