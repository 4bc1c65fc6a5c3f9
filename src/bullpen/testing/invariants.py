"""The invariants of every history of tasks: one function for each, which yields the violations.

A record with an unknown outcome counts in favour of the store, so every reported violation is certain.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bullpen.tasks.model.task import MAX_CRASHES
from bullpen.testing._at_once import A_HAIR, Found, first_excess, limits, permits
from bullpen.testing.history import Record
from bullpen.testing.lives import FINAL_STATUSES, Course, Life, Try

RECOVERY = 5.0  # seconds after the lease within which the tasks of a dead worker are taken back
GROWTH, GROWTH_SHARE = 64 << 20, 0.25  # how much the memory of a process may grow: bytes, and a share of it


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that does not hold, a description, and the records that prove it."""

    invariant: str
    says: str
    records: tuple[Record, ...]

    def __str__(self) -> str:
        return "\n".join([f"{self.invariant}: {self.says}", *(f"    {record}" for record in self.records)])


# No task is lost.


def i1_every_enqueued_task_ends(course: Course) -> Found:
    """After the drain, every acknowledged task is final, or is a schedule that waits for its next run."""
    if not course.others["counts"]:
        return  # not observed
    for life in course.lives.values():
        if life.enqueued is None:
            continue
        kept = life.kept
        if kept is None:
            if not any(life.ends()) and not course.doubts["forget"]:
                yield f"task {life.id} was acknowledged and is gone", [life.enqueued, *life.moves[-3:]]
        elif kept.status not in FINAL_STATUSES and (not life.terms.repeats or kept.status == "running"):
            yield f"task {life.id} was acknowledged and is {kept.status} in the end", [*life.moves[-4:], kept]


def i2_nothing_runs_that_was_not_enqueued(course: Course) -> Found:
    """Every attempt belongs to a task that was enqueued before, and that the same worker has claimed."""
    for life in course.lives.values():
        for attempt in life.in_order():
            for begin in attempt.begins:
                if not any(not course.before(begin, enqueue) for enqueue in life.enqueues):
                    yield f"task {life.id} ran and was never enqueued", [begin]
                claimed = [claim for claim in attempt.claims if not course.before(begin, claim)]
                if not claimed and not _may_be_claimed(course, begin):
                    yield f"attempt {attempt.number} of task {life.id} ran without a claim", [begin]
                elif claimed and all(claim.actor != begin.actor for claim in claimed):
                    yield f"attempt {attempt.number} of task {life.id} ran on another's claim", [*claimed, begin]


def _may_be_claimed(course: Course, by: Record) -> bool:
    """Whether there is a claim without a recorded answer."""
    return any(not course.before(by, doubt) for doubt in course.doubts["claim"])


def i3_success_follows_execution(course: Course) -> Found:
    """Only an attempt whose function returned succeeds. A task that only enqueues others has no function."""
    for life in course.lives.values():
        if life.terms.starts_others:
            continue
        runs = settled = 0
        for record in life.moves:
            if record.op not in ("settle", "rescue"):
                continue
            completed = (
                record.completed_runs > runs and record.attempt == settled + 1
            )  # else it may be an earlier one that did
            runs, settled = record.completed_runs, record.attempt
            if not completed and record.status != "success":
                continue
            attempt = life.tries[record.attempt]
            if record.op == "rescue":
                yield f"task {life.id} succeeded by being taken back", [record]
            elif not any(course.before(begin, record) for begin in attempt.begins):
                yield f"attempt {attempt.number} of task {life.id} succeeded and never began", [record]
            elif not any(course.before(end, record) for end in attempt.ends):
                yield f"attempt {attempt.number} of task {life.id} succeeded before it had ended", [record]


# Attempts, leases and fencing.


def i4_attempts_count_without_gap_or_reuse(course: Course) -> Found:
    """The claims of a task have the attempts 1, 2, 3 and so on, each once."""
    for life in course.lives.values():
        claims = [claim for attempt in life.in_order() for claim in attempt.claims if claim.outcome == "ok"]
        for claim, following in itertools.pairwise(claims):
            if claim.attempt == following.attempt:
                yield f"attempt {claim.attempt} of task {life.id} was claimed twice", [claim, following]
            elif course.before(following, claim):
                yield f"task {life.id} was claimed in the order of no attempts", [following, claim]
        numbers = {claim.attempt for claim in claims}
        latest = max(claims, key=lambda claim: claim.attempt, default=None)
        if latest is not None:
            missing = sorted(set(range(1, latest.attempt)) - numbers)
            if missing and not _may_be_claimed(course, latest):
                yield f"attempts {missing} of task {life.id} were never claimed", [*claims[-3:]]
        if life.kept is not None and life.kept.attempt > max(numbers, default=0) and not course.doubts["claim"]:
            yield f"task {life.id} is in attempt {life.kept.attempt}, which was never claimed", [life.kept]


def i5_one_unexpired_lease_per_task(course: Course) -> Found:
    """A task is claimed, and taken back, only when its lease is over, it was given back, or its worker is dead."""
    for life in course.lives.values():
        tries = life.in_order()
        for earlier, later in itertools.combinations(tries, 2):
            claim = later.claim
            if claim is not None and claim.outcome == "ok" and course.holds(earlier, claim):
                yield f"task {life.id} was claimed while attempt {earlier.number} had it", [earlier.claim, claim]
        for attempt in tries:
            rescue = next((one for one in attempt.settles if one.op == "rescue" and one.outcome == "ok"), None)
            if rescue is None or attempt.claim is None or rescue.at >= attempt.leased_until:
                continue
            gone = course.gone(attempt.claim.actor)
            if attempt.claim.actor in course.workers and (gone is None or course.before(rescue, gone)):
                yield f"task {life.id} was taken back from a worker that had it and lived", [attempt.claim, rescue]


def i6_one_end_per_generation(course: Course) -> Found:
    """A task becomes final once, and again only after an operator has let it run again."""
    for life in course.lives.values():
        ended: Record | None = None
        for record in life.moves:
            if record.op == "redrive":
                ended = None
            elif record.status in FINAL_STATUSES:
                if ended is not None:
                    yield f"task {life.id} ended twice", [ended, record]
                ended = record
            elif ended is not None and record.op == "claim" and course.before(ended, record):
                yield f"task {life.id} was claimed after its end", [ended, record]


def i7_no_write_of_an_attempt_that_is_over(course: Course) -> Found:
    """When a task was claimed again, or is out of an attempt's hands, the store rejects what that attempt writes."""
    for life in course.lives.values():
        tries = life.in_order()
        for attempt in tries:
            freed = attempt.freed
            for write in (*attempt.renewals, *attempt.settles):
                if write.outcome != "ok":
                    continue
                for later in tries:
                    if later.number > attempt.number and later.claim and course.before(later.claim, write):
                        yield (
                            f"a {write.op} of attempt {attempt.number} of task {life.id} was applied after "
                            f"attempt {later.number} had begun",
                            [later.claim, write],
                        )
                        break
                if freed is not None and write is not freed and course.before(freed, write):
                    yield f"a {write.op} of task {life.id} was applied after the end of its attempt", [freed, write]


def i8_executions_overlap_only_after_expiry(course: Course) -> Found:
    """A function begins while that of an earlier attempt runs only if its lease was over, or it was abandoned."""
    for life in course.lives.values():
        tries = [attempt for attempt in life.in_order() if attempt.begins]
        for earlier, later in itertools.combinations(tries, 2):
            begin, claim = later.begins[0], later.claim
            if not course.before(earlier.begins[0], begin) or _is_over(course, earlier, begin):
                continue
            if claim is None or claim.at < earlier.leased_until:
                yield (
                    f"attempt {later.number} of task {life.id} began while attempt {earlier.number} ran by its lease",
                    [earlier.claim, earlier.begins[0], claim, begin],
                )


def _is_over(course: Course, attempt: Try, at: Record) -> bool:
    """Whether its function may have ended by then, was given up, or had died with its worker."""
    if any(not course.before(at, record) for record in (*attempt.ends, *attempt.abandoned)):
        return True
    worker = attempt.begins[0].actor
    gone = course.gone(worker)
    return worker not in course.workers or (gone is not None and not course.before(at, gone))


def i9_never_more_at_once_than_allowed(course: Course) -> Found:
    """A worker holds and runs no more than its permits; a queue and a key no more than their limit, at any instant."""
    yield from permits(course)
    yield from limits(course)


def i10_failures_and_crashes_are_counted_and_bounded(course: Course) -> Found:
    """At most `max_retries + 1` failures and `MAX_CRASHES` crashes. Each rises by one, with an error of its kind.
    A task that may run at most once is begun once.
    """
    for life in course.lives.values():
        terms = life.terms
        failures = crashes = settled = 0
        for record in life.moves:
            if record.op in ("redrive", "enqueue"):
                failures = crashes = 0
            if record.op not in ("settle", "rescue"):
                continue
            if record.failures > terms.max_retries + 1:
                yield f"task {life.id} failed {record.failures} times, with {terms.max_retries} retries", [record]
            if record.crashes > MAX_CRASHES:
                yield f"task {life.id} crashed {record.crashes} workers, and {MAX_CRASHES} are too many", [record]
            if record.attempt == settled + 1:  # else the count of the attempt before it is unknown
                yield from _miscounted(life, record, failures, crashes)
            failures, crashes, settled = record.failures, record.crashes, record.attempt
        if terms.at_most_once:
            begins = [begin for attempt in life.in_order() for begin in attempt.begins]
            for begin, again in itertools.pairwise(begins):
                if course.generation(life, begin) == course.generation(life, again):
                    yield f"task {life.id} may run at most once, and began twice", [begin, again]


def _miscounted(life: Life, record: Record, failures: int, crashes: int) -> Found:
    failed = record.error in ("exception", "timeout")
    if record.failures > failures + failed:
        yield f"task {life.id}: a failure was counted that was none", [record]
    if record.crashes > crashes + (record.error in ("crash", "poison", "lost")):
        yield f"task {life.id}: a crash was counted that was none", [record]
    if failed and record.status == "pending" and not life.terms.repeats and record.failures != failures + 1:
        yield f"task {life.id}: a failure was not counted", [record]


# Time and order.


def i11_nothing_starts_before_its_time(course: Course) -> Found:
    """No claim before the `eta`, and none after `expires`, by the store's clock. A task that sleeps or waits has
    begun, so `expires` no longer applies to it.
    """
    for life in course.lives.values():
        eta: float | None = None
        expires = life.terms.expires
        for record in life.moves:
            if record.op == "claim" and record.store_at is not None:
                latest = record.store_at + (record.at - record.first)
                if eta is not None and latest < eta - A_HAIR:
                    yield f"task {life.id} was claimed {eta - latest:g} s before its time", [record]
                if any(attempt.may_be_freed for attempt in life.tries.values() if attempt.number < record.attempt):
                    expires = None  # that attempt may have been suspended
                if expires is not None and record.store_at > expires + A_HAIR:
                    yield f"task {life.id} was claimed {record.store_at - expires:g} s after it had expired", [record]
            elif record.op == "redrive":
                eta, expires = record.eta, None
                continue
            if record.suspended:
                eta, expires = record.eta, None  # no eta: an event wakes it
            elif record.op in ("settle", "rescue") and record.status == "pending":
                eta = record.eta  # none: the task waits for an event, too
            elif record.op != "claim" and record.eta is not None and record.status != "running":
                eta = record.eta


def i12_one_live_task_per_unique_key(course: Course) -> Found:
    """Of the tasks with one unique key in a queue, at most one is not final."""
    spans: dict[tuple[str, str], list[tuple[float, float, Record]]] = defaultdict(list)
    for life in course.lives.values():
        key = life.terms.unique_key
        if key is not None:
            spans[life.terms.queue, key] += _live(life)
    for (_, key), of_key in spans.items():
        if too_many := first_excess(of_key, 1):
            yield f"two tasks with the unique key {key} were alive at once", [*too_many]


def _live(life: Life) -> Iterator[tuple[float, float, Record]]:
    """When it certainly was not final."""
    start: Record | None = None
    for record in life.moves:
        if record.status in FINAL_STATUSES:
            if start is not None:
                yield start.at, record.first, start
            start = None
        elif record.op in ("enqueue", "redrive"):
            start = record
    if start is not None and not any(attempt.may_be_freed for attempt in life.tries.values()):
        yield start.at, math.inf if life.kept is None else life.kept.at, start


def i13_schedules_never_multiply(course: Course) -> Found:
    """One task for each instant of a schedule, one alive at a time; runs count by one and are an interval apart, and no
    time of a schedule comes again when its run is over.
    """
    ticks: dict[tuple[str, float], Record] = {}
    alive: dict[str, list[tuple[float, float, Record]]] = defaultdict(list)
    for life in course.lives.values():
        terms, enqueued = life.terms, life.enqueued
        if terms.schedule is not None and enqueued is not None:
            alive[terms.schedule] += _live(life)
            if terms.tick is not None:
                other = ticks.setdefault((terms.schedule, terms.tick), enqueued)
                if other is not enqueued:
                    yield f"schedule {terms.schedule} has two tasks for {terms.tick:g}", [other, enqueued]
        if terms.schedule is not None:
            yield from _times(life)
        if terms.interval is not None:
            yield from _runs(course, life, terms.interval)
    for schedule, spans in alive.items():
        if too_many := first_excess(spans, 1):
            yield f"two tasks of schedule {schedule} were alive at once", [*too_many]


def _times(life: Life) -> Found:
    """Times are those that it waits for, or is tried again for; each is over when it waits for another."""
    before: Record | None = None
    for record in life.moves:
        if (
            record.op not in ("enqueue", "settle", "rescue", "change")
            or not record.scheduled_at
            or record.status == "running"
        ):
            continue
        if before is not None and before.scheduled_at is not None:
            has_run = record.completed_runs > before.completed_runs and record.op == "settle"
            if record.scheduled_at < before.scheduled_at or (
                has_run and record.scheduled_at == before.scheduled_at and record.status == "pending"
            ):
                yield f"schedule {life.id} goes back to a time that it has had", [before, record]
        before = record


def _runs(course: Course, life: Life, interval: float) -> Found:
    done: Record | None = None
    runs = 0
    for record in life.moves:
        if record.op == "settle":
            if record.completed_runs > runs + 1 and course.is_exact:
                yield f"task {life.id} counts {record.completed_runs} runs after {runs}", [done, record]
            done = record if record.completed_runs > runs else done
            runs = record.completed_runs
        elif record.op == "redrive":
            done = None
        elif record.op == "claim" and done is not None:
            latest = (record.store_at or record.first) + record.at - record.first
            if latest < (done.store_at or done.first) + interval - A_HAIR:
                yield f"task {life.id} ran again sooner than after its interval of {interval:g} s", [done, record]


def i14_claims_are_in_order(course: Course) -> Found:
    """A claim takes due tasks in the order of priority, `eta` and id. Judged where the history is exact, and for
    queues without limits.
    """
    if not course.is_exact:
        return
    limited = {record.queue for op in ("limit", "pause") for record in course.others[op]}
    waiting: dict[str, Record] = {}  # tasks that may be claimed, by the record with their eta
    claims: list[Record] = []
    for record in course.records:
        if claims and (record.op != "claim" or record.at != claims[0].at or record.actor != claims[0].actor):
            yield from _out_of_order(course, claims, waiting, limited)
            claims = []
        if record.outcome != "ok" or not record.task:
            continue
        if record.op == "claim":
            claims.append(record)
        elif record.op in ("enqueue", "settle", "rescue", "redrive", "expire", "cancel", "change"):
            if record.eta is not None and record.status in ("", "pending"):
                waiting[record.task] = record
            elif record.status != "running":
                waiting.pop(record.task, None)
    yield from _out_of_order(course, claims, waiting, limited)


def _out_of_order(course: Course, claims: list[Record], waiting: dict[str, Record], limited: set[str]) -> Found:
    def rank(record: Record) -> tuple[int, float, str]:
        return -course.lives[record.task].terms.priority, record.eta or 0.0, record.task

    taken = [waiting.pop(claim.task) for claim in claims if claim.task in waiting]
    if not taken:
        return
    last = max(taken, key=rank)
    now = claims[0].store_at or 0.0
    for left in waiting.values():
        terms = course.lives[left.task].terms
        if terms.queue in limited or terms.queue != course.lives[last.task].terms.queue:
            continue
        is_due = left.eta is not None and left.eta <= now and (terms.expires is None or now < terms.expires)
        if is_due and rank(left) < rank(last):
            yield f"task {last.task} was claimed before {left.task}, which came first", [left, last, *claims]
            return


def i15_no_start_after_a_cancel(course: Course) -> Found:
    """A task that is cancelled before its claim never starts. A task that was asked to stop is not started again."""
    for life in course.lives.values():
        for cancel in life.cancels:
            if cancel.outcome != "ok":
                continue
            for record in life.moves:
                if record.op != "claim" or not course.before(cancel, record):
                    continue
                if course.generation(life, record) == course.generation(life, cancel):
                    yield f"task {life.id} was cancelled, and claimed after that", [cancel, record]
                    break
            if cancel.status == "cancelled":
                begins = [begin for attempt in life.in_order() for begin in attempt.begins]
                late = next((begin for begin in begins if course.before(cancel, begin)), None)
                if late is not None and course.generation(life, late) == course.generation(life, cancel):
                    yield f"task {life.id} was cancelled while it waited, and began after that", [cancel, late]


# Workers.


def i16_the_tasks_of_the_dead_are_taken_back(course: Course) -> Found:
    """Within the lease and `RECOVERY` seconds after a crash, or after the last disturbance, if a worker is there."""
    for worker in course.workers.values():
        crash = worker.at("crashed")
        if crash is None:
            continue
        for life in course.lives.values():
            for attempt in life.tries.values():
                claim, freed = attempt.claim, attempt.freed
                if claim is None or claim.actor != worker.id or claim.lease is None or attempt.may_be_freed:
                    continue
                if freed is not None and not course.before(crash, freed):
                    continue
                begins = max(crash.at, attempt.leased_until - claim.lease, *_disturbances(course))
                until = begins + claim.lease + RECOVERY
                if freed is None and course.may_be_rescued(claim, course.records[-1]):
                    continue
                late = freed.first if freed is not None else course.records[-1].at
                if late > until and _somebody_is_there(course, begins, until):
                    yield f"task {life.id} of a worker that crashed was not taken back in time", [claim, crash, freed]


def _disturbances(course: Course) -> list[float]:
    ups_and_downs = [record.at for record in course.others["fault"]]
    for worker in course.workers.values():
        ups_and_downs += [record.at for record in worker.records if record.state in ("crashed", "resumed")]
    return ups_and_downs or [-math.inf]


def _somebody_is_there(course: Course, start: float, end: float) -> bool:
    for worker in course.workers.values():
        started, gone = worker.at("started"), worker.gone
        if started is not None and started.at <= start and (gone is None or gone.at >= end):
            return True
    return False


def i17_a_worker_that_has_stopped_holds_nothing(course: Course) -> Found:
    """When a worker has stopped in order, no task is left in its hands, but for what it said it had to leave."""
    for worker in course.workers.values():
        stopped = worker.at("stopped")
        if stopped is None or stopped.outcome != "ok" or worker.at("crashed") is not None:
            continue
        for life in course.lives.values():
            for attempt in life.tries.values():
                claim = attempt.claim
                is_its_own = claim is not None and claim.actor == worker.id and not claim.late and not attempt.losses
                if is_its_own and course.holds(attempt, stopped):
                    yield f"worker {worker.id} has stopped and holds task {life.id}", [claim, stopped]


def i18_an_effect_in_the_same_transaction_is_there_once(course: Course) -> Found:
    """Effects that commit with the acknowledgement exist once if the task succeeded, and not at all otherwise."""
    for life in course.lives.values():
        if not life.terms.in_transaction:
            continue
        if len(life.rows) > 1:
            yield f"task {life.id} has {len(life.rows)} effects", [*life.rows]
        elif life.kept is not None and len(life.rows) != (life.kept.status == "success"):
            yield f"task {life.id} is {life.kept.status} with {len(life.rows)} effects", [*life.rows, life.kept]


def i19_what_is_given_up_as_poison_keeps_its_evidence(course: Course) -> Found:
    """A task that no worker can run has a reason, its original arguments, and the worker that held it last."""
    for life in course.lives.values():
        kept = life.kept
        if kept is None or kept.status != "failed" or kept.error not in ("poison", "unknown_function", "lost"):
            continue
        missing = [
            name
            for name, value in (("reason", kept.reason), ("arguments", kept.size), ("worker", kept.owner))
            if not value
        ]
        if missing:
            yield f"task {life.id} failed as {kept.error} without its {' and '.join(missing)}", [kept]


def i20_what_was_enqueued_is_counted(course: Course) -> Found:
    """The store counts the tasks that it has; with those that were forgotten they are all there ever were."""
    for counted in course.others["counts"]:
        counts = counted.counts or {}
        kept = Counter(life.kept.status for life in course.lives.values() if life.kept is not None)
        if {status: count for status, count in counts.items() if count} != dict(kept):
            yield f"the store counts {counts} and has {dict(sorted(kept.items()))}", [counted]
        known = sum(life.enqueued is not None for life in course.lives.values())
        unsure = sum(
            life.enqueued is None and any(record.outcome == "unknown" for record in life.enqueues)
            for life in course.lives.values()
        )
        there = sum(counts.values()) + sum(record.count for record in course.others["forget"])
        if not known <= there <= known + unsure and not course.doubts["forget"]:
            yield f"{known} tasks were enqueued, {unsure} maybe, and there are {there}", [counted]


def i21_resources_return(course: Course) -> Found:
    """Descriptors, threads and children are as many as before, and memory has not grown much."""
    before: dict[str, Record] = {}
    for record in course.others["resources"]:
        if record.state == "before":
            before[record.actor] = record
            continue
        start = before.get(record.actor)
        was, now = (start.counts or {}) if start is not None else {}, record.counts or {}
        for name in sorted(was):
            allowed = was[name] + max(GROWTH, was[name] * GROWTH_SHARE) if name == "rss" else was[name]
            if now.get(name, 0) > allowed:
                yield f"{record.actor} had {was[name]} {name} and has {now[name]}", [start, record]


def i22_a_kept_step_never_runs_again(course: Course) -> Found:
    """In one run of a task, no later attempt keeps a step that an earlier one has kept. A task that repeats has several
    runs, and an operator may let a task run steps again, so these are left out.
    """
    for life in course.lives.values():
        if life.terms.repeats or life.redrives or any(move.op == "change" for move in life.moves):
            continue
        kept: dict[str, Record] = {}
        for record in (record for attempt in life.in_order() for record in attempt.renewals):
            if record.outcome == "ok" and record.step:
                first = kept.setdefault(record.step, record)
                if first.attempt != record.attempt:
                    yield f"the kept step {record.step!r} of task {life.id} ran again", [first, record]


Invariant = Callable[[Course], Found]

INVARIANTS: dict[str, Invariant] = {
    name.partition("_")[0].upper(): value
    for name, value in list(globals().items())
    if name[0] == "i" and name.partition("_")[0][1:].isdigit()
}


def violations(course: Course, *, only: frozenset[str] | None = None) -> Iterator[Violation]:
    for name, invariant in INVARIANTS.items():
        if only is None or name in only:
            for says, records in invariant(course):
                yield Violation(name, says, tuple(record for record in records if record is not None))
