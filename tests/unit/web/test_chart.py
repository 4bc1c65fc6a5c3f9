"""The chart of the last hour."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from bullpen.tasks.model.history import Histogram, HistoryPeriod
from bullpen.web.chart import (
    HEIGHT,
    MINI_HEIGHT,
    MINI_WIDTH,
    SPARK_HEIGHT,
    SPARK_WIDTH,
    WIDTH,
    draw,
    draw_durations,
    draw_hours,
    draw_samples,
)

AT = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)


def period(minute: int, **counts: Any) -> HistoryPeriod:
    runs = Histogram((0,) * 20 + (counts.get("success", 0),))
    return HistoryPeriod(at=AT + timedelta(minutes=minute), seconds=60, run=runs, **counts)


def test_the_tallest_minute_fills_the_chart_and_outcomes_stand_on_each_other() -> None:
    chart = draw(
        [
            period(0),
            period(1, success=5, retried=3, failed=1, crashed=1),
            period(2, enqueued=5, success=5),
            period(3, enqueued=1),
        ]
    )
    assert chart.most == 10
    assert [(bar.style, bar.height) for bar in chart.bars] == [
        ("good", 48),
        ("late", 28.8),
        ("bad", 19.2),
        ("good", 48),
    ]
    assert chart.bars[2].y == 0
    assert chart.bars[0].y + chart.bars[0].height == HEIGHT
    assert all(bar.x >= 0 and bar.x + bar.width <= WIDTH for bar in chart.bars)
    assert (chart.enqueued, chart.success, chart.retried, chart.failed) == (6, 10, 3, 2)
    assert len(chart.line.split()) == 3, "the latest minute is not over"
    assert chart.line.split()[-1].endswith(f",{HEIGHT / 2}")
    assert chart.titles[1][2] == "12:01 UTC: 0 enqueued, 5 success, 3 retried, 2 failed"
    assert chart.run.count == 10


def test_an_hour_without_tasks_is_empty() -> None:
    assert draw([]).is_empty
    assert draw([period(minute) for minute in range(60)]).is_empty
    assert not draw([period(0, enqueued=1)]).is_empty


def test_hours_are_bars_and_the_tallest_fills_the_height() -> None:
    bars = draw_hours([0, 1, 4, 0])
    assert [(bar.x, bar.height) for bar in bars] == [(60, 7), (120, SPARK_HEIGHT)]
    assert all(bar.x + bar.width <= SPARK_WIDTH for bar in bars)
    assert draw_hours([]) == draw_hours([0, 0]) == []


def test_durations_are_lines_that_break_in_minutes_without_a_run() -> None:
    chart = draw_durations(
        "Ran", [period(0, success=3), period(1), period(2, success=1), period(3)], lambda one: one.run
    )
    (high, usual) = (path for _, path in chart.lines)
    assert high.count("M") == usual.count("M") == 2
    assert chart.value != "–"
    assert chart.note.startswith("95 % at most ")
    empty = draw_durations("Ran", [period(0)], lambda one: one.run)
    assert (empty.value, empty.note, [path for _, path in empty.lines]) == ("–", "", ["", ""])


def test_samples_stand_at_their_time_and_a_time_without_any_is_a_gap() -> None:
    def path_of(*samples: tuple[float, float]) -> str:
        terms = {"value": "2", "note": "", "words": "4"}
        return draw_samples("Pending", samples, 3600.0, most=4.0, **terms).lines[0][1]

    assert path_of((3540.0, 0.0), (3600.0, 4.0)) == f"M0.0 {MINI_HEIGHT - 1}.0L{MINI_WIDTH}.0 1.0"
    assert path_of((-60.0, 0.0), (3540.0, 4.0), (3600.0, 4.0)) == f"M{MINI_WIDTH - 4:.1f} 1.0L{MINI_WIDTH}.0 1.0"
    assert path_of((1800.0, 4.0), (3600.0, 4.0)).count("M") == 2
    assert path_of() == ""
