"""How `bullpen demo` looks: lines from a snapshot, and nothing else. No clock, no store, no terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from bullpen.cli.output import STATUSES
from bullpen.cli.terminal import Line, Span, bar, fit, plain, sparkline
from bullpen.storage.port import WorkerRecord
from bullpen.tasks.info import TaskInfo
from bullpen.tasks.task import TaskStatus

WIDEST, NARROWEST = 100, 40
LABEL = 13
SHOWN = (TaskStatus.SUCCESS, TaskStatus.RUNNING, TaskStatus.PENDING, TaskStatus.FAILED)


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a frame shows."""

    folder: str
    elapsed: float
    expected: int
    totals: Mapping[TaskStatus, int]
    finished: int
    rates: Sequence[float]
    workers: Sequence[WorkerRecord]
    victim: int | None  # the pid that was killed
    reports: Sequence[TaskInfo]


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    url: str
    folder: str
    seconds: float
    working_seconds: float  # since the workers could begin
    enqueued: int
    enqueue_seconds: float
    succeeded: int
    failed: int
    lost: int
    retried: int
    rescued: int
    periodic: int
    periodic_runs: int
    best_rate: float
    stopped_in_order: bool
    a_failed_task: str | None
    a_periodic_task: str | None


def frame(shot: Snapshot, moments: Sequence[str], width: int) -> list[Line]:
    """The live picture."""
    inner = max(min(width, WIDEST) - 2, NARROWEST)
    lines: list[Line] = [
        (Span("bullpen demo", "strong"), Span(f"  durable tasks in {shot.folder}  {shot.elapsed:4.1f} s", "quiet")),
        (),
        *(_bar(STATUSES[status], shot.totals[status], shot.expected, inner) for status in SHOWN),
        (),
        _throughput(shot.rates, inner),
        *(_worker(worker, shot.victim) for worker in shot.workers),
        *(_report(report, inner) for report in shot.reports),
        (),
        *((Span(moment),) for moment in moments),
    ]
    return [(Span(" "), *fit(line, inner)) for line in lines]


def _bar(label: Span, many: int, of: int, width: int) -> Line:
    columns = max(min(width - LABEL - 10, 60), 10)
    style = label.style or "quiet"
    return Span(f"{label.text:<{LABEL}}", label.style), *bar(many, of, columns, style), Span(f" {many:>6}")


def _throughput(rates: Sequence[float], width: int) -> Line:
    columns = max(min(width - LABEL - 20, 50), 10)
    latest = f" {rates[-1]:.0f} per second" if rates else ""
    return Span(f"{'finished':<{LABEL}}", "quiet"), Span(sparkline(rates[-columns:]), "accent"), Span(latest)


def _worker(worker: WorkerRecord, victim: int | None) -> Line:
    label = Span(f"{'worker':<{LABEL}}", "quiet")
    if worker.pid == victim:
        return label, Span(f"✕ pid {worker.pid} was killed", "bad")
    return label, Span("●", "good"), Span(f" pid {worker.pid} runs up to {worker.concurrency} at once")


def _report(report: TaskInfo, width: int) -> Line:
    done = 10 if report.status is TaskStatus.SUCCESS else int(report.progress.done) if report.progress else 0
    columns = max(min(width - LABEL - 30, 20), 10)
    name = report.name.rpartition(".")[2]
    return Span(f"{name:<{LABEL}}", "quiet"), *bar(done, 10, columns, "accent"), Span(f" {10 * done:>3} %")


def told(summary: Summary, width: int = 80) -> list[Line]:
    """What happened, in numbers, a small picture, and what to try next."""
    inner = max(min(width, WIDEST) - 4, NARROWEST)
    lines: list[Line] = [
        (),
        (Span(f"In {summary.seconds:.1f} s", "strong"),),
        (),
        _bar(STATUSES[TaskStatus.SUCCESS], summary.succeeded, summary.enqueued, inner),
        _bar(STATUSES[TaskStatus.FAILED], summary.failed, summary.enqueued, inner),
        (),
        _fact(summary.enqueued, f"tasks enqueued in {summary.enqueue_seconds:.2f} s, {summary.lost} lost"),
        _fact(summary.succeeded, f"succeeded, {summary.retried} of them at the second try"),
        _fact(summary.failed, "failed for good: there was no use in trying again"),
        _fact(summary.rescued, "were in the hands of the worker that was killed, and ran again elsewhere"),
        _fact(summary.periodic, f"are periodic; they ran {summary.periodic_runs} times, and wait for a worker"),
        _fact(_rate(summary), f"per second once the workers were up, {summary.best_rate:.0f} at best"),
        (),
        (Span("Next: ", "strong"), Span("the tasks are still there")),
        *((Span(f"  {line}", "accent"),) for line in next_commands(summary)),
        (Span(f"  {summary.folder} has the code, the tasks and the logs; remove it when you are done", "quiet"),),
    ]
    return [(Span(" "), *line) if line else line for line in lines]


def _rate(summary: Summary) -> int:
    return round(summary.enqueued / max(summary.working_seconds, 0.1))


def _fact(number: int, words: str) -> Line:
    return Span(f"{number:>6} ", "strong"), Span(words)


def next_commands(summary: Summary) -> list[str]:
    bullpen = name_of_command()
    commands = [f"{bullpen} status --url {summary.url}", f"{bullpen} tasks --status failed --url {summary.url}"]
    for task in (summary.a_failed_task, summary.a_periodic_task):
        if task is not None:
            commands.append(f"{bullpen} why {task} --url {summary.url}")
    return [*commands, f"{bullpen} worker {summary.folder}/app.py"]


def name_of_command() -> str:
    """How `bullpen` is called here: it may not be on the path."""
    script = Path(sys.executable).with_name("bullpen")
    found = shutil.which("bullpen")
    if found is not None and Path(found).resolve() == script.resolve():
        return "bullpen"
    if not script.exists():
        return f"{sys.executable} -m bullpen"
    here = Path.cwd()
    return str(script.relative_to(here)) if script.is_relative_to(here) else str(script)


def as_text(lines: Sequence[Line]) -> list[str]:
    return [plain(line) for line in lines]
