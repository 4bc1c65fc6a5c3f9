"""What a run found, as text for a terminal, as Markdown for the documentation and as JSON for machines.

All three are made from the same rows, so they can't disagree.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from .measure import Interpreter, Results, Spread, able
from .model import Bar, Contestant, Metric, Sizes, Suite, Work, meets


@dataclass(frozen=True, slots=True)
class Row:
    """One contestant's figure for one metric. `bar` is set for the contestant that is judged."""

    work: Work
    metric: Metric
    contestant: Contestant
    value: Spread | None
    ratio: Spread | None
    bar: Bar | None

    @property
    def met(self) -> bool | None:
        """None where nothing is judged. A bar without a measurement is not met."""
        if self.bar is None:
            return None
        judged = self.ratio if self.bar.of == "ratio" else self.value
        return judged is not None and meets(self.bar, self.metric, judged.median)


@dataclass(frozen=True, slots=True)
class Run:
    """Everything that was measured, with the settings it was measured under."""

    interpreters: Sequence[Interpreter]
    suite: Suite
    sizes: Sizes
    results: Results
    started: datetime
    load: float | None

    def rows(self, interpreter: Interpreter, work: Work) -> Iterator[Row]:
        for metric in work.metrics:
            for contestant in work.contestants:
                bar = self.suite.bar_of(work, metric) if contestant is work.judged else None
                if bar is None and not able(interpreter, contestant):
                    continue
                yield Row(
                    work,
                    metric,
                    contestant,
                    self.results.value(interpreter, work, contestant, metric),
                    self.results.ratio(interpreter, work, contestant, metric),
                    bar,
                )

    def all_rows(self) -> Iterator[tuple[Interpreter, Row]]:
        for interpreter in self.interpreters:
            for work in self.suite.works:
                for row in self.rows(interpreter, work):
                    yield interpreter, row

    def bars_met(self) -> bool:
        return all(row.met is not False for _, row in self.all_rows())

    def settings(self) -> dict[str, str]:
        settings = {
            "date": self.started.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
            "rounds": str(self.sizes.rounds),
            **self.suite.settings(),
        }
        if self.load is not None:
            settings["load before the run"] = f"{self.load:.1f}"
        return settings


def versions(interpreter: Interpreter) -> str:
    """What a reader needs to repeat the run: this Python and its peers."""
    return ", ".join([interpreter.name, *(f"{name} {version}" for name, version in interpreter.versions.items())])


def omissions(run: Run, interpreter: Interpreter) -> Iterator[str]:
    """One sentence for each peer that is missing, and what to do about it."""
    needed = {contestant.peer.requires: contestant.peer for work in run.suite.works for contestant in work.contestants}
    for requirement, reason in interpreter.missing.items():
        if peer := needed.get(requirement):
            remedy = f"; install it with: {peer.install}" if peer.install else ""
            yield f"{peer.name} is left out under {interpreter.name}: no {requirement} ({reason}){remedy}"


def crashes(run: Run) -> Iterator[str]:
    names = {interpreter.command: interpreter.name for interpreter in run.interpreters}
    for (command, work, label), reason in run.results.crashes.items():
        yield f"{work} crashed with {label} under {names[command]}:\n{_indented(reason)}"


def text(run: Run) -> str:
    lines = [" · ".join(f"{name}: {value}" for name, value in run.settings().items())]
    for interpreter in run.interpreters:
        lines += ["", f"== {versions(interpreter)}"]
        for work in run.suite.works:
            lines += ["", f"{work.name} — {work.describe(run.sizes)}"]
            lines += [line for metric in work.metrics for line in _block(run, interpreter, work, metric)]
        lines += ["", *(f"note: {sentence}" for sentence in omissions(run, interpreter))]
    lines += [f"error: {sentence}" for sentence in crashes(run)]
    return "\n".join(lines).rstrip() + "\n"


def markdown(run: Run) -> str:
    command = " ".join(["python -m benchmarks", *([] if run.suite.name == "pool" else [run.suite.name])])
    lines = ["# Benchmarks", "", f"Written by `{command} --markdown FILE`. Values are medians, with the"]
    lines += ["smallest and largest round in brackets; × is the ratio to the first row of each table,"]
    lines += ["taken round by round.", ""]
    lines += [f"- {name}: {value}" for name, value in run.settings().items()]
    for interpreter in run.interpreters:
        lines += ["", f"## {interpreter.name}", "", f"Versions: {versions(interpreter)}."]
        for work in run.suite.works:
            lines += ["", f"### {work.name}", "", f"{work.describe(run.sizes)}."]
            for metric in work.metrics:
                lines += ["", f"| {metric.title}: {_direction(metric)} | {metric.unit} | × | bar | settings |"]
                lines += ["|---|---:|---:|---|---|"]
                lines += [
                    f"| {row.contestant.label} | {_value(row)} | {_ratio(row)} | {_verdict(row)} "
                    f"| `{row.contestant.settings}` |"
                    for row in run.rows(interpreter, work)
                    if row.metric is metric
                ]
        lines += ["", *(f"Note: {sentence}" for sentence in omissions(run, interpreter))]
    return "\n".join(lines).rstrip() + "\n"


def as_json(run: Run) -> dict[str, object]:
    return {
        "settings": run.settings(),
        "interpreters": [
            {
                "name": interpreter.name,
                "versions": dict(interpreter.versions),
                "missing": dict(interpreter.missing),
                "works": [_work_as_json(run, interpreter, work) for work in run.suite.works],
            }
            for interpreter in run.interpreters
        ],
        "bars_met": run.bars_met(),
    }


def _work_as_json(run: Run, interpreter: Interpreter, work: Work) -> dict[str, object]:
    rows = list(run.rows(interpreter, work))
    return {
        "name": work.name,
        "title": work.describe(run.sizes),
        "reference": work.reference.label,
        "rows": [
            {
                "metric": row.metric.key,
                "unit": row.metric.unit,
                "better": row.metric.better,
                "contestant": row.contestant.label,
                "settings": row.contestant.settings,
                "value": _spread_as_json(row.value),
                "ratio": _spread_as_json(row.ratio),
                "bar": row.bar.limit if row.bar else None,
                "met": row.met,
                "rounds": [
                    figures.get(row.metric.key) if figures else None
                    for figures in run.results.of(interpreter, work, row.contestant)
                ],
                "crash": run.results.crash(interpreter, work, row.contestant),
            }
            for row in rows
        ],
    }


def _spread_as_json(spread: Spread | None) -> dict[str, float] | None:
    return {"median": spread.median, "min": spread.low, "max": spread.high} if spread else None


def _block(run: Run, interpreter: Interpreter, work: Work, metric: Metric) -> Iterator[str]:
    yield f"  {metric.title}, {metric.unit}: {_direction(metric)}"
    for row in run.rows(interpreter, work):
        if row.metric is metric:
            yield f"    {row.contestant.label:<43}{_value(row):>32}{_ratio(row):>25}   {_verdict(row)}".rstrip()


def _value(row: Row) -> str:
    if row.value is None:
        return "not measured"
    return f"{_number(row.value.median)} ({_number(row.value.low)}–{_number(row.value.high)})"


def _ratio(row: Row) -> str:
    if row.ratio is None:
        return "–"
    if row.contestant is row.work.reference:
        return "1 ×"
    return f"{row.ratio.median:.2f} × ({row.ratio.low:.2f}–{row.ratio.high:.2f})"


def _verdict(row: Row) -> str:
    if row.bar is None:
        return ""
    unit = f" {row.metric.unit}" if row.bar.of == "value" else ""
    return f"{'✓' if row.met else '✗'} {'≥' if row.metric.better == 'higher' else '≤'} {row.bar.limit:g}{unit}"


def _direction(metric: Metric) -> str:
    return "more is better" if metric.better == "higher" else "less is better"


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def _indented(message: str) -> str:
    return "\n".join(f"    {line}" for line in message.splitlines()[-12:])
