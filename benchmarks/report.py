"""The results of a run as text for a terminal, as Markdown for `benchmarks/results` and as JSON for machines.

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
class Verdict:
    """The verdict of a bar about a figure. A bar without a measurement is not met."""

    bar: Bar
    judged: Spread | None
    met: bool
    rival: str  # the reference of this bar, where it has one of its own


@dataclass(frozen=True, slots=True)
class Row:
    """One contestant's figure for one metric. It has verdicts if a bar judges it."""

    work: Work
    metric: Metric
    contestant: Contestant
    is_reference: bool
    value: Spread | None
    ratio: Spread | None
    verdicts: tuple[Verdict, ...]

    @property
    def met(self) -> bool | None:
        """None where nothing is judged."""
        return all(verdict.met for verdict in self.verdicts) if self.verdicts else None


@dataclass(frozen=True, slots=True)
class Run:
    """All figures of a run, and its settings."""

    interpreters: Sequence[Interpreter]
    suite: Suite
    sizes: Sizes
    results: Results
    started: datetime

    def rows(self, interpreter: Interpreter, work: Work) -> Iterator[Row]:
        for metric in work.metrics:
            reference = self.results.best(interpreter, work, work.rivals, metric)
            for contestant in work.contestants:
                bars = self.suite.bars_of(work, metric, contestant)
                if not bars and not able(interpreter, contestant):
                    continue
                yield Row(
                    work,
                    metric,
                    contestant,
                    contestant is reference,
                    self.results.value(interpreter, work, contestant, metric),
                    self.results.ratio(interpreter, work, contestant, metric),
                    tuple(self._verdict(interpreter, work, contestant, metric, bar) for bar in bars),
                )

    def _verdict(
        self, interpreter: Interpreter, work: Work, contestant: Contestant, metric: Metric, bar: Bar
    ) -> Verdict:
        reference = None
        if bar.beside:
            beside = [one for one in work.contestants if one.label in bar.beside]
            reference = self.results.best(interpreter, work, beside, metric)
        if bar.of == "value":
            judged = self.results.value(interpreter, work, contestant, metric)
        elif bar.beside and reference is None:
            judged = None
        else:
            judged = self.results.ratio(interpreter, work, contestant, metric, reference)
        met = judged is not None and meets(bar, metric, judged.median)
        return Verdict(bar, judged, met, reference.label if reference else "")

    def above_floor(self, interpreter: Interpreter, work: Work, metric: Metric) -> Spread | None:
        """Bullpen's figure as a fraction of the raw statements, where a work is compared with its peers."""
        if work.reference == "first" or work.floor is None or work.judged is None:
            return None
        return self.results.ratio(interpreter, work, work.judged, metric, work.floor)

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
        if self.results.loads:
            settings["load before the run"] = ", ".join(f"{load:.1f}" for load in self.results.loads)
        return settings


def versions(interpreter: Interpreter) -> str:
    """The Python and the versions of the peers, so that a reader can repeat the run."""
    return ", ".join([interpreter.name, *(f"{name} {version}" for name, version in interpreter.versions.items())])


def omissions(run: Run, interpreter: Interpreter) -> Iterator[str]:
    """One sentence for each missing peer, with the command that installs it, and for each that cannot take part."""
    needed = {contestant.peer.requires: contestant.peer for work in run.suite.works for contestant in work.contestants}
    for requirement, reason in interpreter.missing.items():
        if peer := needed.get(requirement):
            remedy = f"; install it with: {peer.install}" if peer.install else ""
            yield f"{peer.name} is left out under {interpreter.name}: no {requirement} ({reason}){remedy}"
    yield from run.suite.notes


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
    parts = len(run.results.loads)
    lines = [
        f"# Figures: {run.suite.title}",
        "",
        f"`{command} --markdown` wrote this file, from one run{f' in {parts} parts' if parts > 1 else ''}.",
        "Values are medians, with the smallest and the largest round in brackets.",
        "× is the ratio to the row of each table that has 1 ×, taken round by round.",
        "`docs/reference/benchmarks.md` describes the method, and the limits of the ratios.",
        "",
    ]
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
                if beside := _beside_the_floor(run, interpreter, work, metric):
                    lines += ["", f"{beside}."]
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
        "reference": work.reference,
        "rows": [
            {
                "metric": row.metric.key,
                "unit": row.metric.unit,
                "better": row.metric.better,
                "contestant": row.contestant.label,
                "settings": row.contestant.settings,
                "value": _spread_as_json(row.value),
                "ratio": _spread_as_json(row.ratio),
                "is_reference": row.is_reference,
                "bars": [
                    {"limit": one.bar.limit, "beside": one.rival, "judged": _spread_as_json(one.judged), "met": one.met}
                    for one in row.verdicts
                ],
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
    if beside := _beside_the_floor(run, interpreter, work, metric):
        yield f"    {beside}"


def _beside_the_floor(run: Run, interpreter: Interpreter, work: Work, metric: Metric) -> str:
    spread = run.above_floor(interpreter, work, metric)
    if spread is None or work.floor is None or work.judged is None:
        return ""
    return f"{work.judged.label} beside the {work.floor.label}: {_times(spread)}"


def _value(row: Row) -> str:
    if row.value is None:
        return "not measured"
    return f"{_number(row.value.median)} ({_number(row.value.low)}–{_number(row.value.high)})"


def _ratio(row: Row) -> str:
    if row.ratio is None:
        return "–"
    return "1 ×" if row.is_reference else _times(row.ratio)


def _times(ratio: Spread) -> str:
    return f"{ratio.median:.2f} × ({ratio.low:.2f}–{ratio.high:.2f})"


def _verdict(row: Row) -> str:
    return "; ".join(_sentence(verdict, row.metric) for verdict in row.verdicts)


def _sentence(verdict: Verdict, metric: Metric) -> str:
    unit = f" {metric.unit}" if verdict.bar.of == "value" else ""
    sign = "≥" if metric.better == "higher" else "≤"
    beside = f" × {verdict.rival}" if verdict.rival else ""
    found = f" ({verdict.judged.median:.2f})" if verdict.rival and verdict.judged else ""
    return f"{'✓' if verdict.met else '✗'} {sign} {verdict.bar.limit:g}{unit}{beside}{found}"


def _direction(metric: Metric) -> str:
    return "more is better" if metric.better == "higher" else "less is better"


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def _indented(message: str) -> str:
    return "\n".join(f"    {line}" for line in message.splitlines()[-12:])
