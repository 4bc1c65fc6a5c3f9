"""What is wrong with a queue, decided from what a look at its store has shown. Nothing is asked here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from bullpen.cli.output import counted, duration
from bullpen.consumer.identity import is_dead
from bullpen.queue.why import STALE_AFTER
from bullpen.storage.port import Concern, Schema, WorkerRecord
from bullpen.tasks.moving import mark_of
from bullpen.tasks.task import Task

MANY = 10_000  # tasks that wait in a queue …
LONG = 60.0  # … and the oldest of them for so many seconds
SKEW, GREAT_SKEW = 2.0, 30.0
OVERDUE = 30.0  # seconds after the end of a lease
NAMED = 3


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """A store at one moment. Of tasks that wait, the first page of each queue."""

    now: float
    ahead: float = 0.0  # by how many seconds its clock is ahead of ours
    waiting: Mapping[str, int] = {}  # how many, by queue
    oldest: Mapping[str, Sequence[Task]] = {}  # by queue
    running: Sequence[Task] = ()
    paused: frozenset[str] = frozenset()
    workers: Sequence[WorkerRecord] = ()

    @property
    def up(self) -> list[WorkerRecord]:
        return [one for one in self.workers if not is_dead(one) and self.now - one.seen_at <= STALE_AFTER]

    def due(self, queue: str) -> list[Task]:
        return [task for task in self.oldest.get(queue, ()) if task.eta <= self.now]


def problem(kind: str, words: str, advice: str) -> Concern:
    return Concern(kind=kind, level="problem", words=words, advice=advice)


def warning(kind: str, words: str, advice: str) -> Concern:
    return Concern(kind=kind, level="warning", words=words, advice=advice)


def of_schema(schema: Schema) -> list[Concern]:
    if schema.is_too_new:
        words = f"its tables have version {schema.found}, and this Bullpen knows {schema.known}"
        return [problem("schema_too_new", words, "a newer Bullpen has written it: upgrade this one")]
    if schema.found < schema.known:
        there = f"version {schema.found}" if schema.found else "no tables"
        words = f"it has {there}, and version {schema.known} is needed"
        return [problem("schema_too_old", words, "run `bullpen migrate`; `--dry-run` shows what it would do")]
    return []


def diagnose(look: Look) -> list[Concern]:
    """The worst first."""
    found = [
        *_nobody_works(look),
        *_stuck(look),
        *_unknown_functions(look),
        *_paused(look),
        *_lost_workers(look),
        *_on_their_way(look),
        *_backlogs(look),
        *_clock(look),
    ]
    return sorted(found, key=lambda one: one.level != "problem")


def _nobody_works(look: Look) -> Iterable[Concern]:
    served = {queue for worker in look.up for queue in worker.queues}
    alone = [queue for queue in look.oldest if look.due(queue) and queue not in served and queue not in look.paused]
    if not look.up and alone:
        many = sum(look.waiting.get(queue, 0) for queue in alone)
        yield problem("no_workers", f"{_waiting(many)}, and no worker runs", "start one: `bullpen worker APP`")
    else:
        for queue in alone:
            words = f"{_waiting(look.waiting.get(queue, 0))} in the queue {queue!r}, and no worker serves it"
            yield problem("unserved_queue", words, f"start one: `bullpen worker APP --queues {queue}`")


def _stuck(look: Look) -> Iterable[Concern]:
    stuck = [task for task in look.running if task.lease_until is not None and look.now - task.lease_until > OVERDUE]
    if not stuck:
        return
    words = f"{counted(len(stuck), 'task counts', 'tasks count')} as running, with a lease that is over: {_ids(stuck)}"
    if look.up:
        yield warning("expired_leases", words, "a worker takes them back soon; if this stays, see its log")
    else:
        yield problem("expired_leases", words, "start a worker: it takes them back and runs them again")


def _unknown_functions(look: Look) -> Iterable[Concern]:
    unknown = Counter(
        task.func_path
        for tasks in look.oldest.values()
        for task in tasks
        if task.error is not None and task.error.kind == "unknown_function"
    )
    for name, many in unknown.most_common():
        words = f"{_waiting(many)} for the function {name}, which no worker has that tried"
        yield problem("unknown_function", words, f"start a worker with it, or `bullpen tasks cancel --function {name}`")


def _paused(look: Look) -> Iterable[Concern]:
    for queue in sorted(look.paused):
        if many := look.waiting.get(queue, 0):
            words = f"{_waiting(many)} in the queue {queue!r}, which is paused"
            yield warning("paused_queue", words, f"if that is not meant: `bullpen queues resume {queue}`")


def _lost_workers(look: Look) -> Iterable[Concern]:
    lost = [worker for worker in look.workers if worker not in look.up]
    if lost:
        names = ", ".join(worker.id for worker in lost[:NAMED]) + (", …" if len(lost) > NAMED else "")
        words = (
            f"{counted(len(lost), 'worker is', 'workers are')} dead, or silent for {STALE_AFTER:g} s and more: {names}"
        )
        yield warning("lost_workers", words, "their tasks go to others; see on their machines what has happened")


def _on_their_way(look: Look) -> Iterable[Concern]:
    marks = [mark for tasks in look.oldest.values() for task in tasks if (mark := mark_of(task)) is not None]
    for to, many in Counter(mark.to for mark in marks).items():
        words = f"{counted(many, 'task is', 'tasks are')} on the way to {to}"
        yield warning("moving", words, "if no `bullpen move` runs, it was interrupted: run it again")


def _backlogs(look: Look) -> Iterable[Concern]:
    for queue, many in look.waiting.items():
        due = look.due(queue)
        if many >= MANY and due and queue not in look.paused:
            oldest = look.now - min(task.eta for task in due)
            if oldest >= LONG:
                words = f"{_waiting(many)} in the queue {queue!r}, the oldest for {duration(oldest)}"
                yield warning("backlog", words, "more workers, or more of `--concurrency`, if this goes on growing")


def _clock(look: Look) -> Iterable[Concern]:
    if abs(look.ahead) >= SKEW:
        words = (
            f"the store's clock is {duration(look.ahead)} {'ahead of' if look.ahead > 0 else 'behind'} this machine's"
        )
        make = problem if abs(look.ahead) >= GREAT_SKEW else warning
        yield make("clock", words, "`eta`, `expires` and schedules go by the store's clock: set both by NTP")


def _waiting(many: int) -> str:
    return counted(many, "task waits", "tasks wait")


def _ids(tasks: Sequence[Task]) -> str:
    return ", ".join(task.id for task in tasks[:NAMED]) + (", …" if len(tasks) > NAMED else "")
