"""The lines of `bullpen demo`, made from a snapshot. This module uses no clock, store or terminal."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from bullpen.cli.terminal.output import STATUSES
from bullpen.cli.terminal.screen import Line, StyledText, bar, fit, plain, sparkline
from bullpen.tasks.model.info import TaskInfo
from bullpen.tasks.model.task import TaskStatus
from bullpen.tasks.storage.port import WorkerRecord

WIDEST, NARROWEST = 100, 40
LABEL = 13
SHOWN = (TaskStatus.SUCCESS, TaskStatus.RUNNING, TaskStatus.PENDING, TaskStatus.FAILED)


class TasksSnapshot(msgspec.Struct, frozen=True, kw_only=True):
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


class TasksSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of the demo."""

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


def frame(shot: TasksSnapshot, moments: Sequence[str], width: int) -> list[Line]:
    """A frame of the live view."""
    inner = max(min(width, WIDEST) - 2, NARROWEST)
    lines: list[Line] = [
        (
            StyledText("bullpen demo", "strong"),
            StyledText(f"  durable tasks in {shot.folder}  {shot.elapsed:4.1f} s", "quiet"),
        ),
        (),
        *(_bar(STATUSES[status], shot.totals[status], shot.expected, inner) for status in SHOWN),
        (),
        _throughput(shot.rates, inner),
        *(_worker(worker, shot.victim) for worker in shot.workers),
        *(_report(report, inner) for report in shot.reports),
        (),
        *((StyledText(moment),) for moment in moments),
    ]
    return [(StyledText(" "), *fit(line, inner)) for line in lines]


def _bar(label: StyledText, many: int, of: int, width: int) -> Line:
    columns = max(min(width - LABEL - 10, 60), 10)
    style = label.style or "quiet"
    return StyledText(f"{label.text:<{LABEL}}", label.style), *bar(many, of, columns, style), StyledText(f" {many:>6}")


def _throughput(rates: Sequence[float], width: int) -> Line:
    columns = max(min(width - LABEL - 20, 50), 10)
    latest = f" {rates[-1]:.0f} per second" if rates else ""
    return (
        StyledText(f"{'finished':<{LABEL}}", "quiet"),
        StyledText(sparkline(rates[-columns:]), "accent"),
        StyledText(latest),
    )


def _worker(worker: WorkerRecord, victim: int | None) -> Line:
    label = StyledText(f"{'worker':<{LABEL}}", "quiet")
    if worker.pid == victim:
        return label, StyledText(f"✕ pid {worker.pid} was killed", "bad")
    return label, StyledText("●", "good"), StyledText(f" pid {worker.pid} runs up to {worker.concurrency} at once")


def _report(report: TaskInfo, width: int) -> Line:
    done = 10 if report.status is TaskStatus.SUCCESS else int(report.progress.done) if report.progress else 0
    columns = max(min(width - LABEL - 30, 20), 10)
    name = report.name.rpartition(".")[2]
    return StyledText(f"{name:<{LABEL}}", "quiet"), *bar(done, 10, columns, "accent"), StyledText(f" {10 * done:>3} %")


def told(summary: TasksSummary, width: int = 80) -> list[Line]:
    """The summary in numbers, a small chart, and commands to try next."""
    inner = max(min(width, WIDEST) - 4, NARROWEST)
    lines: list[Line] = [
        (),
        (StyledText(f"In {summary.seconds:.1f} s", "strong"),),
        (),
        _bar(STATUSES[TaskStatus.SUCCESS], summary.succeeded, summary.enqueued, inner),
        _bar(STATUSES[TaskStatus.FAILED], summary.failed, summary.enqueued, inner),
        (),
        _fact(summary.enqueued, f"tasks enqueued in {summary.enqueue_seconds:.2f} s, {summary.lost} lost"),
        _fact(summary.succeeded, f"succeeded, {summary.retried} of them at the second try"),
        _fact(summary.failed, "failed for good: their error is not retried"),
        _fact(summary.rescued, "were running on the killed worker, and ran again on the other"),
        _fact(summary.periodic, f"are periodic; they ran {summary.periodic_runs} times, and wait for a worker"),
        _fact(_rate(summary), f"per second once the workers were up, {summary.best_rate:.0f} at best"),
        (),
        (StyledText("Next: ", "strong"), StyledText("the tasks are still there")),
        *((StyledText(f"  {line}", "accent"),) for line in next_commands(summary)),
        (StyledText(f"  {summary.folder} has the code, the tasks and the logs; remove it when you are done", "quiet"),),
    ]
    return [(StyledText(" "), *line) if line else line for line in lines]


def _rate(summary: TasksSummary) -> int:
    return round(summary.enqueued / max(summary.working_seconds, 0.1))


def _fact(number: int, words: str) -> Line:
    return StyledText(f"{number:>6} ", "strong"), StyledText(words)


def next_commands(summary: TasksSummary) -> list[str]:
    bullpen = name_of_command()
    commands = [f"{bullpen} status --url {summary.url}", f"{bullpen} tasks --status failed --url {summary.url}"]
    for task in (summary.a_failed_task, summary.a_periodic_task):
        if task is not None:
            commands.append(f"{bullpen} why {task} --url {summary.url}")
    needs = "" if has_dashboard() else '  # first: pip install "pybullpen[web]" (in a clone: ".[web]")'
    commands.append(f"{bullpen} dashboard {summary.folder}/app.py{needs}")
    return [*commands, f"{bullpen} worker {summary.folder}/app.py"]


def has_dashboard() -> bool:
    """Whether the packages of the dashboard are installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("jinja2", "starlette", "uvicorn"))


def name_of_command() -> str:
    """The command that runs `bullpen` here: it may not be on the path."""
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
