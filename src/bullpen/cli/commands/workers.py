"""`bullpen workers`: lists workers and the tasks that they run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from bullpen.cli import store
from bullpen.cli.command import Command, ExitCode
from bullpen.cli.commands.status import WORKER_HEADER, worker_document, worker_row
from bullpen.cli.terminal.output import duration, fitted, indented, show, show_json, table_blocks, text
from bullpen.cli.terminal.screen import Line, StyledText
from bullpen.tasks.client.task_queue import LARGEST_PAGE
from bullpen.tasks.model.info import TaskInfo, as_datetime
from bullpen.tasks.storage.port import WorkerRecord

SHOWN = 10  # tasks of each worker


def add_arguments(parser: argparse.ArgumentParser) -> None:
    store.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    with store.open_queue(arguments) as queue:
        workers = queue.workers()
        running = queue.list(status="running", limit=LARGEST_PAGE) if workers else []
        now = as_datetime(store.now(queue))
    by_worker: dict[str | None, list[TaskInfo]] = {}
    for task in running:
        by_worker.setdefault(task.worker, []).append(task)
    if arguments.json:
        show_json({"workers": [_document(worker, by_worker.get(worker.id, [])) for worker in workers]})
    elif not workers:
        show([text("no workers; start one with `bullpen worker APP`", style="quiet")])
    else:
        show(_picture(workers, by_worker, now))
    return ExitCode.OK


def _picture(workers: Sequence[WorkerRecord], by_worker: dict[str | None, list[TaskInfo]], now: datetime) -> list[Line]:
    """Each worker, followed by its running tasks."""
    cells = [worker_row(worker, len(by_worker.get(worker.id, [])), now) for worker in workers]
    lines, *rows = table_blocks(WORKER_HEADER, cells, keep=WORKER_HEADER[:1])
    for worker, row in zip(workers, rows, strict=True):
        lines += row
        tasks = by_worker.get(worker.id, [])
        lines += indented(fitted([_task(task, now) for task in tasks[:SHOWN]], 4), 4)
        if len(tasks) > SHOWN:
            lines += indented([text(f"and {len(tasks) - SHOWN} more", style="quiet")], 4)
    return lines


def _task(task: TaskInfo, now: datetime) -> Line:
    begun = task.started_at or task.created_at
    progress = "" if task.progress is None else f", {task.progress}"
    since = f"  for {duration((now - begun).total_seconds())}{progress}"
    return StyledText(task.id, "quiet"), StyledText(f"  {task.name}", "running"), StyledText(since, "quiet")


def _document(worker: WorkerRecord, tasks: Sequence[TaskInfo]) -> dict[str, Any]:
    return worker_document(worker, len(tasks)) | {
        "tasks": [
            {"id": task.id, "name": task.name, "attempt": task.attempt, "started_at": task.started_at} for task in tasks
        ]
    }


COMMAND = Command("workers", "List workers and the tasks that each of them runs.", add_arguments, run)
