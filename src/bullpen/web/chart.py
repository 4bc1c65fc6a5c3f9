"""A chart of the last hour, as places of bars in an SVG: one bar for each minute. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

from bullpen.tasks.model.history import Histogram, HistoryPeriod, sum_of

WIDTH, HEIGHT = 720, 96
GAP = 2.0  # between two bars


class ChartBar(NamedTuple):
    """A part of a bar: attempts of one outcome."""

    style: str
    x: float
    y: float
    width: float
    height: float


class HistoryChart(NamedTuple):
    """Bars of attempts that ended, a line of tasks that were enqueued, and the sums."""

    bars: list[ChartBar]
    line: str  # points of the line
    titles: list[tuple[float, float, str]]  # place, width and words of each minute
    most: int  # in one minute: the height of the chart
    enqueued: int
    success: int
    retried: int
    failed: int
    wait: Histogram
    run: Histogram

    @property
    def is_empty(self) -> bool:
        return not self.most


def failures_of(period: HistoryPeriod) -> int:
    return period.failed + period.crashed + period.expired


def draw(periods: Sequence[HistoryPeriod]) -> HistoryChart:
    most = max((max(one.enqueued, one.success + one.retried + failures_of(one)) for one in periods), default=0)
    slot = WIDTH / max(len(periods), 1)
    bars: list[ChartBar] = []
    titles: list[tuple[float, float, str]] = []
    points: list[str] = []
    for number, period in enumerate(periods):
        x, top = number * slot, float(HEIGHT)
        for style, many in (("good", period.success), ("late", period.retried), ("bad", failures_of(period))):
            height = round(many / most * HEIGHT, 1) if many else 0.0
            if height:
                top -= height
                bars.append(ChartBar(style, round(x + GAP / 2, 1), round(top, 1), round(slot - GAP, 1), height))
        points.append(f"{x + slot / 2:.1f},{HEIGHT - (period.enqueued / most * HEIGHT if most else 0):.1f}")
        titles.append((round(x, 1), round(slot, 1), _words(period)))
    return HistoryChart(
        bars=bars,
        line=" ".join(points),
        titles=titles,
        most=most,
        enqueued=sum(one.enqueued for one in periods),
        success=sum(one.success for one in periods),
        retried=sum(one.retried for one in periods),
        failed=sum(map(failures_of, periods)),
        wait=Histogram(reduce(sum_of, (one.wait.buckets for one in periods), ())),
        run=Histogram(reduce(sum_of, (one.run.buckets for one in periods), ())),
    )


SPARK_WIDTH, SPARK_HEIGHT = 240, 28


def draw_hours(hours: Sequence[int]) -> list[ChartBar]:
    """One bar for each hour, the tallest as high as the chart."""
    slot, most = SPARK_WIDTH / max(len(hours), 1), max(hours, default=0)
    return [
        ChartBar(
            "bad", round(number * slot, 1), round(SPARK_HEIGHT - height, 1), round(slot * 0.8, 1), round(height, 1)
        )
        for number, many in enumerate(hours)
        if (height := many / most * SPARK_HEIGHT if many else 0.0)
    ]


RUNS_WIDTH, RUNS_HEIGHT = 120, 24


def draw_runs(run: Histogram) -> list[ChartBar]:
    """How long runs took: one bar for each bucket between the shortest and the longest, on a scale of factors."""
    filled = [place for place, many in enumerate(run.buckets) if many]
    if not filled:
        return []
    buckets = run.buckets[filled[0] : filled[-1] + 1]
    slot, most = RUNS_WIDTH / max(len(buckets), 8), max(buckets)
    return [
        ChartBar("run", round(number * slot, 1), round(RUNS_HEIGHT - height, 1), round(slot * 0.8, 1), round(height, 1))
        for number, many in enumerate(buckets)
        if (height := max(many / most * RUNS_HEIGHT, 1.0) if many else 0.0)
    ]


def _words(period: HistoryPeriod) -> str:
    counts = f"{period.enqueued} enqueued, {period.success} success, {period.retried} retried"
    return f"{period.at:%H:%M} UTC: {counts}, {failures_of(period)} failed"
