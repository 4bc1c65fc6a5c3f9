"""Percentiles from buckets, and periods from rows."""

from __future__ import annotations

from bisect import bisect_left
from random import Random

import pytest

from bullpen.tasks.model.history import BOUNDS, Histogram, HistoryCounts, HistoryRow, periods, sum_of


def histogram(values: list[float]) -> Histogram:
    buckets = [0] * (len(BOUNDS) + 1)
    for value in values:
        buckets[bisect_left(BOUNDS, value)] += 1
    return Histogram(tuple(buckets))


def test_an_empty_histogram_has_no_percentiles() -> None:
    assert Histogram().percentile(50) is None
    assert (Histogram().count, Histogram().p50, Histogram().p95, Histogram().p99) == (0, None, None, None)


@pytest.mark.parametrize("percent", [1, 25, 50, 90, 95, 99, 100])
def test_a_percentile_is_at_most_a_bucket_off(percent: float) -> None:
    random = Random(percent)
    values = sorted(random.lognormvariate(0, 3) for _ in range(1000))
    exact = values[max(round(percent * 10), 1) - 1]
    found = histogram(values).percentile(percent)
    assert found is not None
    assert exact / 2**0.5 <= found <= exact * 2**0.5


def test_the_longest_durations_are_in_the_last_bucket() -> None:
    assert histogram([1e9]).p50 == BOUNDS[-1]
    assert histogram([0.0]).p50 == BOUNDS[0] / 2


def test_vectors_of_different_lengths_are_added() -> None:
    assert sum_of((1, 2), (10, 20, 30)) == sum_of((10, 20, 30), (1, 2)) == (11, 22, 30)
    assert sum_of((), ()) == ()


def test_counts_of_a_newer_version_are_left_out() -> None:
    counts = HistoryCounts()
    counts.add(HistoryRow(60, 0, "q", "f", (1,) * 99, (1,) * 99, (1,) * 99))
    assert sum(counts.counts) == len(counts.counts)


ROWS = [
    HistoryRow(60, 600, "a", "f", (1, 1, 1)),
    HistoryRow(60, 660, "a", "g", (2, 2), (0, 2)),
    HistoryRow(60, 780, "b", "f", (4, 4), (), (4,)),
]


def test_without_a_group_every_period_is_there() -> None:
    found = periods(ROWS, since=600, until=800.5, step=60)
    assert [(one.at.timestamp(), one.seconds, one.enqueued) for one in found] == [
        (600, 60, 1),
        (660, 60, 2),
        (720, 60, 0),
        (780, 60, 4),
    ]
    assert (found[0].started, found[0].success, found[0].queue, found[0].function) == (1, 1, None, None)
    assert (found[1].wait.buckets, found[3].run.buckets) == ((0, 2), (4,))


def test_periods_are_sums_of_rows() -> None:
    first, second = periods(ROWS, since=600, until=800, step=120)
    assert (first.enqueued, second.enqueued) == (3, 4)
    assert [one.enqueued for one in periods(ROWS, since=600, until=800, step=3600)] == [7]


def test_groups_leave_out_empty_periods() -> None:
    found = periods(ROWS, since=600, until=800, step=3600, by="function")
    assert [(one.function, one.queue, one.enqueued) for one in found] == [("f", None, 5), ("g", None, 2)]
    found = periods(ROWS, since=600, until=800, step=60, by="queue")
    assert [(one.queue, one.at.timestamp()) for one in found] == [("a", 600), ("a", 660), ("b", 780)]
