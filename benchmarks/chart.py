"""The chart, written as SVG by hand: each work's ratios to its reference as bars, with whiskers and Bullpen's goal.

Colours come from classes with a `prefers-color-scheme` block, so the same file is readable on a light and a dark page.
Bars are linear from zero. One that would leave the axis is cut with a visible break and keeps its true number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10
from textwrap import wrap

from .measure import Interpreter
from .model import OURS, Bar
from .report import Row, Run, versions

WIDTH, MARGIN = 960, 24
PLOT_LEFT, PLOT_RIGHT, NUMBERS_RIGHT = 330, 850, 912
ROW, BAR, GROUP_HEAD, GROUP_GAP = 24, 14, 30, 14
HEADROOM = 1.12
LETTERS = 150  # of small text on a line

STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; fill: #1f2328 }
  .page { fill: #ffffff }
  .title { font-size: 19px; font-weight: 600 }
  .panel { font-size: 15px; font-weight: 600 }
  .group { font-weight: 600 }
  .small { font-size: 12px; fill: #59636e }
  .strong { font-weight: 600 }
  .peer { fill: #afb8c1 }
  .ours { fill: #1a7f5a }
  .grid { stroke: #e4e8ec }
  .one { stroke: #59636e }
  .curve { stroke: #1a7f5a; stroke-width: 2; fill: none }
  .whisker { stroke: #1f2328; stroke-width: 1.5; opacity: .7 }
  .break { stroke: #ffffff; stroke-width: 3 }
  .target { stroke: #bc4c00; stroke-width: 2; stroke-dasharray: 4 3 }
  .goal { font-size: 12px; fill: #bc4c00 }
"""
DARK = """
    text { fill: #e6edf3 }
    .page { fill: #0d1117 }
    .small { fill: #9198a1 }
    .peer { fill: #57606a }
    .ours { fill: #3fb68b }
    .grid { stroke: #262c36 }
    .one { stroke: #9198a1 }
    .curve { stroke: #3fb68b }
    .whisker { stroke: #e6edf3 }
    .break { stroke: #0d1117 }
    .target { stroke: #f0883e }
    .goal { fill: #f0883e }
"""


@dataclass(frozen=True, slots=True)
class Group:
    """The bars of one metric of one work."""

    title: str
    rows: Sequence[Row]

    @property
    def height(self) -> int:
        return GROUP_HEAD + ROW * len(self.rows) + GROUP_GAP


@dataclass(frozen=True, slots=True)
class Axis:
    """From ratios to pixels."""

    top: float

    @property
    def step(self) -> float:
        """A round number that gives four to ten grid lines."""
        power = 10.0 ** floor(log10(self.top))
        return next(power * factor for factor in (0.1, 0.2, 0.5, 1, 2) if self.top / (power * factor) <= 10)

    def x(self, ratio: float) -> float:
        return PLOT_LEFT + min(ratio / self.top, 1) * (PLOT_RIGHT - PLOT_LEFT)

    def ticks(self) -> Iterator[float]:
        yield from (self.step * number for number in range(int(self.top / self.step) + 1))


def draw(run: Run, interpreter: Interpreter) -> str:
    """One chart for one interpreter: throughput above, figures that should be small below."""
    panels = [
        (f"{run.suite.higher} — longer is better", _groups(run, interpreter, "higher")),
        (f"{run.suite.lower} — shorter is better", _groups(run, interpreter, "lower")),
    ]
    settings = run.settings()
    date = settings["date"].split()[0]
    shared = [f"{name}: {value}" for name, value in run.suite.settings().items()]
    measured = [
        *wrap(" · ".join([versions(interpreter), *shared, settings["system"], date]), LETTERS),
        f"Median of {run.sizes.rounds} rounds; whiskers: smallest and largest. No-op tasks.",
    ]
    body = [write(MARGIN, 36, run.suite.title, "title")]
    body += [write(MARGIN, 58 + 18 * number, words, "small") for number, words in enumerate(measured)]
    y = 60 + 18 * len(measured)
    for title, groups in panels:
        if groups:
            lines, y = _panel(title, groups, y)
            body += lines
    return page(f"{run.suite.title}, under {interpreter.name}", y, body)


def page(title: str, height: int, body: Sequence[str]) -> str:
    """A whole SVG file, which follows the reader's light or dark colour scheme."""
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}  @media (prefers-color-scheme: dark) {{{DARK}  }}\n</style>",
            f'<rect class="page" width="{WIDTH}" height="{height}" rx="8"/>',
            *body,
            "</svg>\n",
        ]
    )


def _groups(run: Run, interpreter: Interpreter, better: str) -> list[Group]:
    groups = []
    for work in run.suite.works:
        rows = list(run.rows(interpreter, work))
        for metric in work.metrics:
            drawn = [row for row in rows if row.metric is metric and row.ratio]
            title = work.name if len(work.metrics) == 1 else f"{work.name}: {metric.title}"
            if metric.better == better and drawn:
                groups.append(Group(title, drawn))
    return groups


def _panel(title: str, groups: Sequence[Group], y: int) -> tuple[list[str], int]:
    axis = Axis(_reach(groups) * HEADROOM)
    top = y + 34
    bottom = top + sum(group.height for group in groups)
    lines = [write(MARGIN, y + 20, title, "panel")]
    for tick in axis.ticks():
        lines.append(line(axis.x(tick), top, axis.x(tick), bottom, "grid"))
        lines.append(write(axis.x(tick), bottom + 16, f"{tick:g}×", "small", "middle"))
    lines.append(line(axis.x(1), top, axis.x(1), bottom, "one"))
    y = top
    for group in groups:
        lines += _group(group, axis, y)
        y += group.height
    return lines, bottom + 40


def _reach(groups: Sequence[Group]) -> float:
    """The axis fits Bullpen, its goals and similar ratios. A far larger ratio is cut; the others stay readable."""
    near = [1.5]
    for group in groups:
        for row in group.rows:
            near += [bar.limit for bar in _goals(row)]
            near += [row.ratio.high] if row.ratio and row.contestant.peer.name == OURS else []
    limit = max(near) * 1.5
    others = [row.ratio.high for group in groups for row in group.rows if row.ratio]
    return max(near + [high for high in others if high <= limit])


def _group(group: Group, axis: Axis, y: int) -> Iterator[str]:
    yield write(MARGIN, y + 20, group.title, "group")
    first = y + GROUP_HEAD
    for number, row in enumerate(group.rows):
        yield from _bar(row, axis, first + ROW * number)
    for row in group.rows:
        for bar in _goals(row):
            x = axis.x(bar.limit)
            sign = "≥" if row.metric.better == "higher" else "≤"
            yield line(x, first - 6, x, first + ROW * len(group.rows), "target")
            yield f'<rect class="page" x="{x - 38:.1f}" y="{first - 23}" width="76" height="17"/>'
            yield write(x, first - 10, f"goal {sign} {bar.limit:g}×", "goal", "middle")


def _goals(row: Row) -> list[Bar]:
    """The bars that the axis can show: ratios to the reference of the group."""
    return [verdict.bar for verdict in row.verdicts if verdict.bar.of == "ratio" and not verdict.bar.beside]


def _bar(row: Row, axis: Axis, y: float) -> Iterator[str]:
    assert row.ratio is not None
    ours = row.contestant is row.work.judged
    middle, end, cut = y + ROW / 2, axis.x(row.ratio.median), row.ratio.median > axis.top
    yield write(PLOT_LEFT - 10, middle + 4.5, row.contestant.label, "strong" if ours else "", "end")
    yield (
        f'<rect class="{"ours" if ours else "peer"}" x="{PLOT_LEFT}" y="{middle - BAR / 2}" '
        f'width="{end - PLOT_LEFT:.1f}" height="{BAR}"/>'
    )
    if cut:
        yield from (line(end - at - 6, y + ROW - 3, end - at, y + 3, "break") for at in (16, 24))
    elif not row.is_reference:
        low, high = axis.x(row.ratio.low), axis.x(row.ratio.high)
        yield line(low, middle, high, middle, "whisker")
        yield from (line(x, middle - 3.5, x, middle + 3.5, "whisker") for x in (low, high))
    yield write(NUMBERS_RIGHT, middle + 4.5, f"{_short(row.ratio.median)}×", "strong" if ours else "", "end")
    if row.met is not None:
        yield write(NUMBERS_RIGHT + 6, middle + 4.5, "✓" if row.met else "✗", "strong")


def _short(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.2f}"


def write(x: float, y: float, content: str, css: str = "", anchor: str = "start") -> str:
    return f'<text class="{css}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(content)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    return f'<line class="{css}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
