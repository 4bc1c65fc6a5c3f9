"""The history of a queue: how many tasks were enqueued, started and ended in each minute, and how long they took.

Workers count in `HistoryCounts`, one for each minute, queue and function, and add them to the store. A store keeps a
row for each minute and one for each hour, and adds counts to counts: it knows nothing else about them. Readers get
`HistoryPeriod`s, which are sums of rows.

Durations are counted in buckets whose bounds grow by the square root of 2, so a percentile is at most that far off.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec

from bullpen.tasks.model.task import TaskOutcome

MINUTE, HOUR = 60, 3600
STEPS: tuple[int, ...] = (MINUTE, HOUR)  # seconds that a stored row stands for
KEPT = {MINUTE: 86_400.0, HOUR: 30 * 86_400.0}  # seconds for which rows are kept

COUNTED = ("enqueued", "started", "success", "failed", "retried", "cancelled", "expired", "crashed", "released")
ENQUEUED, STARTED = 0, 1
PLACE_OF: dict[TaskOutcome, int] = {name: COUNTED.index(name) for name in COUNTED[2:]}  # type: ignore[misc]

# Seconds, from 0.1 ms to 21 hours. Bucket n has the durations up to BOUNDS[n]; the last one has all longer ones.
BOUNDS: tuple[float, ...] = tuple(1e-4 * 2 ** (n / 2) for n in range(60))

GroupBy = Literal["queue", "function"]
MAX_COUNTED = 2**53  # in every store
Counted = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNTED)]
Vector = tuple[Counted, ...]


class HistoryRow(msgspec.Struct, frozen=True, gc=False):
    """The counts of one queue and function in the `step` seconds from `at` on. Zeros at the end of a vector are left
    out.
    """

    step: int
    at: Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799)]
    queue: str
    function: str
    counts: Vector = ()  # in the order of COUNTED
    waits: Vector = ()  # in the order of BOUNDS
    runs: Vector = ()


class HistoryCounts:
    """Counts that are being made."""

    __slots__ = ("counts", "ran", "runs", "waited", "waits")

    def __init__(self) -> None:
        self.counts = [0] * len(COUNTED)
        self.waits = [0] * (len(BOUNDS) + 1)
        self.runs = [0] * (len(BOUNDS) + 1)
        self.waited = 0.0  # seconds in all; no store keeps the two sums
        self.ran = 0.0

    def add(self, other: HistoryCounts | HistoryRow) -> None:
        if isinstance(other, HistoryCounts):
            self.waited += other.waited
            self.ran += other.ran
        for mine, given in ((self.counts, other.counts), (self.waits, other.waits), (self.runs, other.runs)):
            for place, count in enumerate(given[: len(mine)]):  # a newer version may count more
                mine[place] += count

    def as_row(self, step: int, at: int, queue: str, function: str) -> HistoryRow:
        return HistoryRow(step, at, queue, function, *map(_trimmed, (self.counts, self.waits, self.runs)))


def sum_of(a: Sequence[int], b: Sequence[int]) -> Vector:
    """Vectors added, place by place."""
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    return (*(x + y for x, y in zip(longer, shorter, strict=False)), *longer[len(shorter) :])


def _trimmed(vector: Sequence[int]) -> Vector:
    end = len(vector)
    while end and not vector[end - 1]:
        end -= 1
    return tuple(vector[:end])


class Histogram(msgspec.Struct, frozen=True, gc=False):
    """How many durations there were in each bucket."""

    buckets: Vector = ()

    @property
    def count(self) -> int:
        return sum(self.buckets)

    def percentile(self, percent: float) -> float | None:
        """The duration in seconds that `percent` of all do not exceed, as far as buckets tell; None without any."""
        count = self.count
        if not count:
            return None
        rank = min(max(percent, 0.0), 100.0) / 100 * count
        below = 0
        for place, inside in enumerate(self.buckets):
            if inside and below + inside >= rank:
                lower = BOUNDS[place - 1] if place else 0.0
                upper = BOUNDS[place] if place < len(BOUNDS) else lower
                return lower + (upper - lower) * (rank - below) / inside
            below += inside
        return BOUNDS[-1]

    @property
    def p50(self) -> float | None:
        return self.percentile(50)

    @property
    def p95(self) -> float | None:
        return self.percentile(95)

    @property
    def p99(self) -> float | None:
        return self.percentile(99)


class HistoryPeriod(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The counts of one period, of all queues and functions or of those that were asked for.

    `success` to `released` count attempts by their outcome; `expired` counts tasks that were not started in time.
    `wait` has the time of each attempt from the instant at which it was due to its start, `run` the time for which its
    function ran.
    """

    at: datetime  # its begin
    seconds: int
    queue: str | None = None  # None: all of them
    function: str | None = None
    enqueued: int = 0
    started: int = 0
    success: int = 0
    failed: int = 0
    retried: int = 0
    cancelled: int = 0
    expired: int = 0
    crashed: int = 0
    released: int = 0
    wait: Histogram = Histogram()
    run: Histogram = Histogram()


def periods(
    rows: Iterable[HistoryRow],
    *,
    since: int,
    until: float,
    step: int,
    queue: str | None = None,
    function: str | None = None,
    by: GroupBy | None = None,
) -> list[HistoryPeriod]:
    """Rows, added up to periods of `step` seconds from `since` to `until`. Without `by` there is one for every period;
    with it, one for each queue or function that has counts in a period.
    """
    sums: dict[tuple[int, str], HistoryCounts] = {}
    if by is None:
        sums = {(at, ""): HistoryCounts() for at in range(since, max(int(-(-until // 1)), since + 1), step)}
    for row in rows:
        key = (since + (row.at - since) // step * step, "" if by is None else getattr(row, by))
        if key not in sums:
            sums[key] = HistoryCounts()
        sums[key].add(row)
    found = []
    for (at, name), counts in sorted(sums.items()):
        found.append(
            HistoryPeriod(
                at=datetime.fromtimestamp(at, UTC),
                seconds=step,
                queue=name if by == "queue" else queue,
                function=name if by == "function" else function,
                wait=Histogram(_trimmed(counts.waits)),
                run=Histogram(_trimmed(counts.runs)),
                **dict(zip(COUNTED, counts.counts, strict=True)),
            )
        )
    return found
