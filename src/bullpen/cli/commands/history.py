"""`bullpen history`: what ran, how often it failed, and how long tasks waited and ran."""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from bullpen.cli import store
from bullpen.cli.arguments import one_of, seconds
from bullpen.cli.command import Command, ExitCode
from bullpen.cli.terminal.output import duration, indented, show, show_json, table, text
from bullpen.cli.terminal.screen import Line, StyledText
from bullpen.tasks.client.history import MANY_MINUTES
from bullpen.tasks.model.history import COUNTED, HOUR, KEPT, MINUTE, Histogram, HistoryPeriod

BARS = "▁▂▃▄▅▆▇█"
COLUMNS = 20  # of a sparkline, at most
HEADER = (
    "started",
    "success",
    "retried",
    "failed",
    "crashed",
    "wait p50",
    "p95",
    "run p50",
    "p95",
    "started over time",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--since", type=seconds, default=3600.0, metavar="D", help="the last D, such as 15m, 6h or 7d (default: 1h)"
    )
    parser.add_argument("--by", type=one_of(("function", "queue")), default="function", help="function or queue")
    parser.add_argument("--queue", metavar="QUEUE", help="only tasks of this queue")
    parser.add_argument("--function", metavar="NAME", help="only tasks of this function")
    store.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    with store.open_queue(arguments) as queue:
        since = min(max(arguments.since, MINUTE), KEPT[HOUR])
        which = {"since": since, "queue": arguments.queue, "function": arguments.function, "by": arguments.by}
        totals = queue.history(step=_whole(since), **which)
        parts = queue.history(step=_part(since), **which)
        address = store.address_of(queue.storage)
    if arguments.json:
        show_json(
            {"store": address, "since": since, "step": _part(since), "periods": [_document(one) for one in parts]}
        )
    else:
        show(picture(address, since, arguments.by, totals, parts))
    return ExitCode.OK


COMMAND = Command("history", "Show what ran, how it ended, and how long it took.", add_arguments, run)


def _resolution(since: float) -> int:
    return MINUTE if since <= MANY_MINUTES else HOUR


def _whole(since: float) -> int:
    """One period for all of it."""
    return (math.ceil(since / _resolution(since)) + 1) * _resolution(since)


def _part(since: float) -> int:
    return math.ceil(since / COLUMNS / _resolution(since)) * _resolution(since)


def picture(
    address: str, since: float, by: str, totals: Sequence[HistoryPeriod], parts: Sequence[HistoryPeriod]
) -> list[Line]:
    lines: list[Line] = [(StyledText(address, "strong"), StyledText(f"  the last {duration(since)}", "quiet")), ()]
    if not totals:
        return [*lines, *indented([text("no worker has run a task in this time", style="quiet")])]
    started: dict[str, dict[float, int]] = defaultdict(dict)
    for part in parts:
        started[getattr(part, by)][part.at.timestamp()] = part.started
    first = min(one.at.timestamp() for one in totals)
    columns = [first + number * _part(since) for number in range(math.ceil(_whole(since) / _part(since)))]
    rows = []
    for total in sorted(totals, key=lambda one: (-one.started, getattr(one, by))):
        name = getattr(total, by)
        rows.append(
            (StyledText(name), *_cells(total), StyledText(sparkline([started[name].get(at, 0) for at in columns])))
        )
    return [*lines, *indented(table((by, *HEADER), rows, indent=2))]


def _cells(total: HistoryPeriod) -> Sequence[StyledText]:
    return (
        _count(total.started),
        _count(total.success, "good"),
        _count(total.retried, "late"),
        _count(total.failed, "bad"),
        _count(total.crashed, "bad"),
        _percentile(total.wait, 50),
        _percentile(total.wait, 95),
        _percentile(total.run, 50),
        _percentile(total.run, 95),
    )


def _count(many: int, style: str = "") -> StyledText:
    return StyledText(str(many), style if many else "quiet")


def _percentile(histogram: Histogram, percent: float) -> StyledText:
    found = histogram.percentile(percent)
    if found is None:
        return StyledText("-", "quiet")
    return StyledText("<1 ms" if found < 0.001 else duration(found))


def sparkline(values: Sequence[int]) -> str:
    """A bar for each value; a blank for none."""
    most = max(values, default=0)
    return "".join(BARS[math.ceil(value / most * len(BARS)) - 1] if value else " " for value in values)


def _document(period: HistoryPeriod) -> dict[str, Any]:
    return {
        "at": period.at,
        "seconds": period.seconds,
        "queue": period.queue,
        "function": period.function,
        **{name: getattr(period, name) for name in COUNTED},
        "wait": _percentiles(period.wait),
        "run": _percentiles(period.run),
    }


def _percentiles(histogram: Histogram) -> dict[str, float | None]:
    return {"p50": histogram.p50, "p95": histogram.p95, "p99": histogram.p99}
