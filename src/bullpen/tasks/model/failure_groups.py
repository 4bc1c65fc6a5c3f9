"""Failures, grouped by their fingerprint: how often, since when, where, and an example.

Workers count failed attempts in `FailureRow`s, one for each hour, queue, function and fingerprint, and add them to the
store with the history. So a list of groups costs the same with ten failed tasks and with a million, and knows attempts
whose task has succeeded since.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from itertools import dropwhile

import msgspec

from bullpen.tasks.model.history import HOUR, Counted
from bullpen.tasks.model.info import as_datetime
from bullpen.tasks.model.task import AttemptError, Instant, Task

FAILURES_KEPT = 7 * 86_400.0  # seconds
MESSAGE_SHOWN = 300  # characters
RISING = 3  # times as many failures in an hour as in the hours before, on average
FEW = 10  # failures in an hour that may be chance


class FailureRow(msgspec.Struct, frozen=True, gc=False):
    """The failures of one hour with one fingerprint, in one queue."""

    at: int  # the begin of the hour
    queue: str
    function: str
    fingerprint: str
    count: Counted
    first: Instant
    last: Instant
    example: FailureExample

    @property
    def key(self) -> tuple[int, str, str, str]:
        return self.at, self.queue, self.function, self.fingerprint


class FailureExample(msgspec.Struct, frozen=True, gc=False):
    """The latest failure of a row."""

    task: str  # its id
    kind: str
    type: str
    message: str
    where: str


def failure_of(task: Task, error: AttemptError) -> FailureRow:
    """One failed attempt."""
    at = int(error.at) // HOUR * HOUR
    example = FailureExample(task.id, error.kind, error.type, error.message[:MESSAGE_SHOWN], error.where)
    return FailureRow(at, task.queue, task.func_path, error.group, 1, error.at, error.at, example)


def merged(a: FailureRow, b: FailureRow) -> FailureRow:
    """Two rows with the same key."""
    latest = a if a.last > b.last else b
    return FailureRow(*a.key, a.count + b.count, min(a.first, b.first), max(a.last, b.last), latest.example)


class FailureGroup(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Failed attempts that have one cause: the same function, type of error and place."""

    fingerprint: str
    function: str
    queues: tuple[str, ...]
    count: int  # failed attempts, also of tasks that have succeeded since
    first: datetime
    last: datetime
    hours: tuple[int, ...]  # how many in each hour of the time that was asked for, oldest first
    example: str  # the id of the task that failed last
    kind: str
    type: str
    message: str
    where: str

    @property
    def is_rising(self) -> bool:
        """Whether the latest two hours have far more failures than those from the first failure on."""
        before, latest = list(dropwhile(lambda many: many == 0, self.hours[:-2])), sum(self.hours[-2:])
        usual = sum(before) / len(before) if before else 0.0
        return latest >= FEW and latest > 2 * RISING * usual

    @property
    def is_new(self) -> bool:
        """Whether all failures are of the latest two hours."""
        return not any(self.hours[:-2])


def groups(rows: Iterable[FailureRow], *, since: int, until: float) -> list[FailureGroup]:
    """Rows, added up over hours and queues; the group that failed last comes first."""
    by_group: dict[tuple[str, str], list[FailureRow]] = {}
    for row in rows:
        by_group.setdefault((row.function, row.fingerprint), []).append(row)
    found = []
    for (function, fingerprint), members in by_group.items():
        hours = [0] * ((int(until) - since) // HOUR + 1)
        for row in members:
            if 0 <= (row.at - since) // HOUR < len(hours):
                hours[(row.at - since) // HOUR] += row.count
        latest = max(members, key=lambda row: row.last)
        found.append(
            FailureGroup(
                fingerprint=fingerprint,
                function=function,
                queues=tuple(sorted({row.queue for row in members})),
                count=sum(row.count for row in members),
                first=as_datetime(min(row.first for row in members)),
                last=as_datetime(latest.last),
                hours=tuple(hours),
                example=latest.example.task,
                kind=latest.example.kind,
                type=latest.example.type,
                message=latest.example.message,
                where=latest.example.where,
            )
        )
    return sorted(found, key=lambda group: group.last, reverse=True)
