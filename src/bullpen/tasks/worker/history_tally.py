"""What a worker counts for the history of its queues. `tasks/model/history.py` says what the counts mean.

A lane counts on its loop's thread, when it begins a claimed task and when the store has confirmed a settlement; the
upkeep counts on the heartbeat's thread. Every `WRITE_EVERY` seconds the heartbeat has the lanes hand their counts over,
and adds them to the store. So the history costs a claim nothing. A worker that is killed loses the counts of these
seconds; counts whose write has no answer are written again, and may count twice.

No producer counts: a task is *enqueued* in the minute in which it was added, but it is counted when a worker claims it
for the first time, or when it expires. So tasks of every client count, whatever they are written in, and a transaction
that is rolled back counts nothing. Tasks that still wait, or were cancelled while they waited, are not counted.

A tally also keeps the totals since the worker started. Exporters of metrics read them, so metrics cost a task nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

from bullpen import primitives
from bullpen.tasks.model.failure_groups import FailureRow, failure_of, merged
from bullpen.tasks.model.history import (
    BOUNDS,
    ENQUEUED,
    KEPT,
    MINUTE,
    PLACE_OF,
    STARTED,
    STEPS,
    HistoryCounts,
    HistoryRow,
)
from bullpen.tasks.model.task import SUCCESS, AttemptError, Settlement, Task, TaskOutcome, outcome_of

WRITE_EVERY = 5.0  # seconds
MOST_NAMES = 500  # queues and functions that are counted apart in a minute; names may be made from data
OTHERS = "(others)"  # stands for the rest

Place = tuple[float, str, str]  # minute, queue and function
CountsByName = dict[Place, HistoryCounts]
Totals = dict[tuple[str, str], HistoryCounts]  # by queue and function
EndedAttempt = tuple[Task, Settlement, float | None, float]  # for how long it ran; when it ended, by the store's clock
Failures = dict[tuple[int, str, str, str], FailureRow]


class TallyCounts(NamedTuple):
    """What a tally has counted."""

    history: CountsByName
    failures: Failures


_SUCCESS = PLACE_OF["success"]


class HistoryTally:
    """Counts of one thread. Any thread may read the totals."""

    def __init__(self) -> None:
        self._counts: CountsByName = {}
        self._failures: Failures = {}
        self._taken: Totals = {}
        self._lock = primitives.leaf_lock()  # so that a reader finds each count once: still here, or taken

    def begun(self, tasks: Iterable[Task]) -> None:
        """A worker has claimed these tasks, and begins an attempt at each. Neighbours mostly count at one place."""
        place = None
        for task in tasks:
            at = task.started_at or 0.0
            if place != (place := (at // MINUTE, task.queue, task.func_path)):
                minute, counts = place[0], self._counts.get(place) or self._at(place)
            counts.counts[STARTED] += 1
            if (waited := at - task.eta) > 0:
                counts.waited += waited
            counts.waits[bisect_left(BOUNDS, waited)] += 1
            if task.attempt == 1:
                added_in = task.created_at // MINUTE
                of = counts if added_in == minute else self._at((added_in, task.queue, task.func_path))
                of.counts[ENQUEUED] += 1

    def ended(self, ends: Iterable[EndedAttempt]) -> None:
        """The store has applied these settlements."""
        place = None
        for task, settlement, ran, at in ends:
            if place != (place := (at // MINUTE, task.queue, task.func_path)):
                counts = self._counts.get(place) or self._at(place)
            if ran is not None:
                counts.ran += ran
                counts.runs[bisect_left(BOUNDS, ran)] += 1
            if settlement.status is SUCCESS:
                counts.counts[_SUCCESS] += 1
                continue
            outcome = outcome_of(task, settlement)
            counts.counts[PLACE_OF[outcome]] += 1
            if settlement.error is not None and outcome != "released":  # one that waits for its function has not failed
                self._failed(task, settlement.error)

    def found(self, task: Task, outcome: TaskOutcome, at: float) -> None:
        """The upkeep has ended a task at `at`."""
        self._at((at // MINUTE, task.queue, task.func_path)).counts[PLACE_OF[outcome]] += 1
        if outcome == "expired" and task.attempt == 0:
            self._at((task.created_at // MINUTE, task.queue, task.func_path)).counts[ENQUEUED] += 1
        if task.error is not None and outcome != "released":
            self._failed(task, task.error)

    def take(self) -> TallyCounts | None:
        """The counts so far, if there are any; the tally begins anew."""
        if not self._counts:
            return None
        taken = TallyCounts(self._counts, self._failures)
        with self._lock:
            add_totals(self._taken, taken.history, MOST_NAMES)
            self._counts, self._failures = {}, {}
        return taken

    def totals(self) -> Totals:
        """All counts since the tally was made. On any thread."""
        sums: Totals = {}
        with self._lock:
            for key, counts in self._taken.items():
                sums.setdefault(key, HistoryCounts()).add(counts)
            add_totals(sums, self._counts.copy(), MOST_NAMES)
        return sums

    def _failed(self, task: Task, error: AttemptError) -> None:
        row = failure_of(task, error)
        if row.key in self._failures:
            self._failures[row.key] = merged(self._failures[row.key], row)
        elif len(self._failures) < MOST_NAMES:
            self._failures[row.key] = row

    def _at(self, place: Place) -> HistoryCounts:
        key = place if place in self._counts or len(self._counts) < MOST_NAMES else (place[0], OTHERS, OTHERS)
        return self._counts.setdefault(key, HistoryCounts())


def add_totals(sums: Totals, counts: CountsByName, most_names: int) -> None:
    """Add the counts of all minutes."""
    for (_, queue, function), more in counts.items():
        key = (queue, function)
        if key not in sums and len(sums) >= most_names:
            key = (OTHERS, OTHERS)
        sums.setdefault(key, HistoryCounts()).add(more)


class HistoryBacklog:
    """Counts that the store does not have yet."""

    def __init__(self) -> None:
        self._counts: CountsByName = {}
        self._failures: Failures = {}

    def add(self, counts: TallyCounts | None) -> None:
        if counts is None:
            return
        for key, more in counts.history.items():
            if key in self._counts:
                self._counts[key].add(more)
            else:
                self._counts[key] = more
        for of_failures, row in counts.failures.items():
            known = self._failures.get(of_failures)
            self._failures[of_failures] = row if known is None else merged(known, row)

    def rows(self, now: float) -> list[HistoryRow]:
        """One for each minute and hour that the store still keeps, in one order, so that writers do not lock each other
        out.
        """
        sums: dict[tuple[int, int, str, str], HistoryCounts] = {}
        for (minute, queue, function), counts in self._counts.items():
            for step in STEPS:
                at = int(minute * MINUTE) // step * step
                if at > now - KEPT[step]:
                    sums.setdefault((step, at, queue, function), HistoryCounts()).add(counts)
        return [counts.as_row(*key) for key, counts in sorted(sums.items())]

    def failures(self) -> list[FailureRow]:
        return [row for _, row in sorted(self._failures.items())]

    def written(self) -> None:
        self._counts, self._failures = {}, {}

    def __bool__(self) -> bool:
        return bool(self._counts)
