"""How many at once: of a worker, a queue, a key, and within a second."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator

from bullpen.testing.history import Record
from bullpen.testing.lives import Course, Try

A_HAIR = 1e-6  # seconds

Found = Iterator[tuple[str, list[Record | None]]]  # the violation in words, and the records that show it
Span = tuple[float, float, Record]  # when something certainly held, and the record with which it began


def permits(course: Course) -> Found:
    held: dict[str, list[Span]] = defaultdict(list)
    ran: dict[str, list[Span]] = defaultdict(list)
    for life in course.lives.values():
        for attempt in life.tries.values():
            freed = attempt.freed
            claim = attempt.claim
            if claim is not None and claim.outcome == "ok" and not claim.late and not attempt.may_be_freed:
                end = math.inf if freed is None else freed.first
                gone = course.gone(claim.actor)
                held[claim.actor].append((claim.at, end if gone is None else min(end, gone.first), claim))
            for begin in attempt.begins:
                ends = [record.first for record in (*attempt.ends, *attempt.abandoned)]
                gone = course.gone(begin.actor)
                ran[begin.actor].append((begin.at, min([*ends, math.inf if gone is None else gone.first]), begin))
    for worker in course.workers.values():
        if worker.permits:
            for what, spans in (("held", held[worker.id]), ("ran", ran[worker.id])):
                too_many = first_excess(spans, worker.permits)
                if too_many is not None:
                    yield f"worker {worker.id} {what} {len(too_many)} tasks with {worker.permits} permits", [*too_many]


def first_excess(spans: list[Span], limit: int) -> list[Record] | None:
    """The first set of spans that are more than `limit` at once."""
    now: dict[int, Record] = {}
    for _, step, record in _moments(spans):
        if step > 0:
            now[id(record)] = record
            if len(now) > limit:
                return list(now.values())
        else:
            now.pop(id(record), None)
    return None


def limits(course: Course) -> Found:
    for queue, of_queue in _by_queue(course.others["limit"]).items():
        limit = of_queue[-1]
        spans: list[Span] = []
        keyed: dict[str, list[Span]] = defaultdict(list)
        starts: list[Record] = []
        for life in course.lives.values():
            if life.terms.queue != queue:
                continue
            for attempt in life.tries.values():
                claim = attempt.claim
                if claim is None or claim.outcome != "ok" or attempt.may_be_freed or course.before(claim, limit):
                    continue
                starts.append(claim)
                span = (claim.at, _end_of(course, attempt, claim), claim)
                spans.append(span)
                if life.terms.concurrency_key is not None:
                    keyed[life.terms.concurrency_key].append(span)
        if limit.permits and (too_many := first_excess(spans, limit.permits)):
            yield f"{len(too_many)} tasks of queue {queue} ran at once, and {limit.permits} may", [limit, *too_many]
        for key, of_key in keyed.items():
            if limit.per_key and (too_many := first_excess(of_key, limit.per_key)):
                yield f"{len(too_many)} tasks with key {key} ran at once, and {limit.per_key} may", [limit, *too_many]
        if limit.rate:
            yield from _rate(queue, limit, starts)


def _end_of(course: Course, attempt: Try, claim: Record) -> float:
    """Until when the attempt certainly held the task. Its rescuer may have died before it recorded the rescue."""
    if attempt.freed is not None:
        return attempt.freed.first
    rescues = [doubt.first for doubt in course.doubts["rescue"] if not course.before(doubt, claim)]
    return min(rescues, default=math.inf)


def _by_queue(records: list[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        found[record.queue].append(record)
    return found


def _rate(queue: str, limit: Record, starts: list[Record]) -> Found:
    period = max(1.0, 1.0 / limit.rate)
    allowed = math.ceil(limit.rate * period)
    starts.sort(key=lambda claim: claim.at)
    for first, last in zip(starts, starts[allowed:], strict=False):
        if last.at - first.first < period - A_HAIR:
            yield f"more than {allowed} tasks of queue {queue} started within {period:g} s", [limit, first, last]
            return


def _moments(spans: Iterable[Span]) -> Iterator[tuple[float, int, Record]]:
    """When spans begin (+1) and end (-1), in order; those that end come first."""
    edges = []
    for number, (start, end, record) in enumerate(spans):
        if start < end:
            edges += [(start, 1, number, record), (end, -1, number, record)]
    edges.sort(key=lambda edge: edge[:3])
    return ((at, step, record) for at, step, _, record in edges)
