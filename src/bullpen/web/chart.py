"""A chart of the last hour, as places of bars in an SVG: one bar for each minute. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import NamedTuple

from bullpen.cli.terminal.output import duration
from bullpen.tasks.model.history import HOUR, Histogram, HistoryPeriod, sum_of

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
        if number + 1 < len(periods):  # the latest minute is not over: its count would look like a fall
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


MINI_WIDTH, MINI_HEIGHT = 240, 44
GAP_SECONDS = 60.0  # without a sample, in a line


class MiniChart(NamedTuple):
    """A small chart of at most an hour: lines of one measure, its latest value, and what its height stands for."""

    name: str
    value: str
    note: str
    lines: list[tuple[str, str]]  # styles and paths
    most: str


def draw_durations(
    name: str, periods: Sequence[HistoryPeriod], of_period: Callable[[HistoryPeriod], Histogram]
) -> MiniChart:
    """The median and the 95th percentile of each minute."""
    all_of_them = [of_period(one) for one in periods]
    slot = MINI_WIDTH / max(len(periods), 1)
    most = max((one.p95 or 0.0 for one in all_of_them), default=0.0)
    lines = []
    for style, values in (("high", [one.p95 for one in all_of_them]), ("usual", [one.p50 for one in all_of_them])):
        places = [None if value is None else ((number + 0.5) * slot, value) for number, value in enumerate(values)]
        lines.append((style, _path(places, most)))
    hour = Histogram(reduce(sum_of, (one.buckets for one in all_of_them), ()))
    value, high = ("–" if at is None else _duration(at) for at in (hour.p50, hour.p95))
    return MiniChart(name, value, "" if hour.p95 is None else f"95 % at most {high}", lines, _duration(most))


def draw_samples(
    name: str, samples: Sequence[tuple[float, float]], now: float, *, value: str, note: str, most: float, words: str
) -> MiniChart:
    """A line through instants and values, since the first of them, at most an hour ago."""
    places: list[tuple[float, float] | None] = []
    begin = max(min((at for at, _ in samples), default=now), now - HOUR)
    span = max(now - begin, 1.0)
    before = None
    for at, measured in samples:
        if before is not None and at - before > GAP_SECONDS:
            places.append(None)
        before = at
        if at >= begin:
            places.append(((at - begin) / span * MINI_WIDTH, measured))
    return MiniChart(name, value, note, [("usual", _path(places, most))], words)


def _path(places: Iterable[tuple[float, float] | None], most: float) -> str:
    """Lines through these places; None is a gap. A place alone is a short line."""
    parts: list[str] = []
    run: list[str] = []
    for place in (*places, None):
        if place is not None:
            x, value = place
            run.append(f"{x:.1f} {MINI_HEIGHT - (min(value / most, 1.0) * (MINI_HEIGHT - 2) if most else 0) - 1:.1f}")
        elif run:
            parts.append(f"M{run[0]}L{' '.join(run[1:])}" if len(run) > 1 else f"M{run[0]}h2")
            run = []
    return "".join(parts)


def _duration(seconds: float) -> str:
    return "<1 ms" if seconds < 0.0005 else duration(seconds)


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
