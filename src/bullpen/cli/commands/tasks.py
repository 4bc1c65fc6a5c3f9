"""`bullpen tasks`: lists, shows, cancels, retries and purges tasks."""

from __future__ import annotations

import argparse
import functools
import json
import signal
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from bullpen.cli import bulk, store
from bullpen.cli.arguments import whole
from bullpen.cli.command import Command, CommandError, CommandGroup, ExitCode
from bullpen.cli.matching import Matching, add_filters
from bullpen.cli.terminal.output import facts, indented, show, show_hints, show_json, state, table, text, when
from bullpen.cli.terminal.screen import Line, StyledText
from bullpen.errors import UnknownTask
from bullpen.tasks.client.job import Job
from bullpen.tasks.client.task_queue import LARGEST_PAGE, TaskQueue
from bullpen.tasks.client.why import Why
from bullpen.tasks.model.info import TaskError, TaskInfo, as_datetime, describe_attempts
from bullpen.tasks.model.task import TaskStatus

SHOWN = 50
MESSAGE = 60  # characters of an error in a list


# List.


def _add_list_arguments(parser: argparse.ArgumentParser) -> None:
    add_filters(parser)
    parser.add_argument(
        "--limit", type=whole(1, LARGEST_PAGE), default=SHOWN, metavar="N", help=f"at most N tasks (default: {SHOWN})"
    )
    parser.add_argument("--newest", action="store_true", help="the newest first")
    parser.add_argument("--after", metavar="ID", help="only tasks after this one: the next page")
    store.add_arguments(parser)


def _list(arguments: argparse.Namespace) -> int:
    with store.open_queue(arguments) as queue:
        now = as_datetime(store.now(queue))
        matching = Matching.of(arguments)
        found = queue.list(limit=arguments.limit, after=arguments.after, newest=arguments.newest, **matching.filters)
        unknown = [] if found else matching.unknown_names(queue)
    following = found[-1].id if len(found) == arguments.limit else None
    if arguments.json:
        show_json({"tasks": found, "next": following})
        show_hints(unknown)
    elif not found:
        show([text("no tasks", style="quiet"), *map(text, unknown)])
    else:
        header = ("id", "function", "state", "queue", "tries", "", "error")
        show(table(header, [_row(task, now) for task in found], keep=("id",)))
        if following is not None:
            show([text(f"next page: --after {following}", style="quiet")])
    return ExitCode.OK


def _row(task: TaskInfo, now: datetime) -> Sequence[StyledText]:
    return (
        StyledText(task.id),
        StyledText(task.name),
        state(task, now),
        StyledText(task.queue),
        StyledText(str(task.attempt)),
        StyledText(when(_moment(task, now), now), "quiet"),
        StyledText(_in_short(task), "quiet"),
    )


def _moment(task: TaskInfo, now: datetime) -> datetime:
    """The time to print for a task: when it starts, has started or has ended."""
    if task.status is TaskStatus.PENDING:
        return task.eta if task.eta > now else task.created_at
    return task.finished_at or task.started_at or task.created_at


def _in_short(task: TaskInfo) -> str:
    error = task.error
    if task.unreadable:
        said = f"unreadable: {task.unreadable}"
    elif error is None:
        return ""
    else:
        said = f"{error.type or error.kind}: {error.message}" if error.message else error.type or error.kind
    line = said.splitlines()[0]
    return line if len(line) <= MESSAGE else line[: MESSAGE - 1] + "…"


# Show.


def _add_show_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="id of a task")
    parser.add_argument(
        "--args",
        action="store_true",
        help="show its arguments, too, without secrets; needs --app, whose code names them",
    )
    store.add_arguments(parser)


def _show(arguments: argparse.Namespace) -> int:
    with store.open_queue(arguments) as queue:
        job = queue.job(arguments.id)
        task, why, now = job.info(), job.why(), as_datetime(store.now(queue))
        given = _arguments_of(job) if arguments.args else None
    if arguments.json:
        show_json({"task": task, "why": why} | ({} if given is None else {"arguments": given}))
    else:
        show(_described(task, why, now))
        if given is not None:
            values = ((name, json.dumps(value, ensure_ascii=False)) for name, value in given.items())
            show([(), text("arguments", style="quiet"), *indented(facts(values) or [text("none", style="quiet")])])
    return ExitCode.OK


def _arguments_of(job: Job[Any]) -> dict[str, Any]:
    try:
        return job.arguments()
    except UnknownTask as error:
        message = f"the arguments of {error.name} are not shown: only its code says which are secret; give --app"
        raise CommandError(message, ExitCode.USAGE) from None


def _described(task: TaskInfo, why: Why, now: datetime) -> list[Line]:
    def instant(value: datetime | None) -> str:
        return "" if value is None else f"{value:%Y-%m-%d %H:%M:%S} UTC ({when(value, now)})"

    rules = {
        "at most once": task.at_most_once,
        f"up to {task.max_retries} retries": task.max_retries,
        f"repeats {task.interval} after each run": task.interval,
        f"timeout {task.timeout}": task.timeout,
        f"unique by {task.unique_key!r}": task.unique_key,
        f"limited by {task.concurrency_key!r}": task.concurrency_key,
    }
    lines = [
        (StyledText(task.name, "strong"), StyledText("  "), state(task, now)),
        *facts(
            [
                ("id", task.id),
                ("queue", task.queue + (f", priority {task.priority}" if task.priority else "")),
                ("rules", ", ".join(words for words, holds in rules.items() if holds)),
                ("tries", describe_attempts(task)),
                ("runs", str(task.completed_runs) if task.interval is not None else ""),
                ("created", instant(task.created_at)),
                ("not before", instant(task.eta) if _has_time(task, now) else ""),
                ("expires", instant(task.expires) if task.status is TaskStatus.PENDING else ""),
                ("started", instant(task.started_at)),
                ("finished", instant(task.finished_at)),
                ("worker", task.worker or ""),
                ("progress", "" if task.progress is None else str(task.progress)),
                ("result", f"not kept: {task.result_dropped}" if task.result_dropped else ""),
                ("unreadable", task.unreadable),
                ("why", "; ".join(cause.message for cause in why.causes)),
            ]
        ),
    ]
    if task.steps or task.awaits is not None:
        lines += [(), *_timeline(task, now)]
    for error in task.errors:
        lines += [(), text(f"attempt {error.attempt}: {error.kind}", style="bad")]
        told = error.traceback or f"{error.type}: {error.message}" if error.type else error.message
        lines += indented(text(line) for line in told.splitlines())
        lines += indented(_black_box(error))
    return lines


def _black_box(error: TaskError) -> list[Line]:
    """What a failed attempt keeps beside its error."""
    memory = "" if error.peak_memory is None else f"{error.peak_memory / 2**20:.0f} MiB at most"
    lines = facts([("process", _end_of_process(error.exit_code)), ("memory", memory)])
    if error.log:
        lines += [text("last log lines (UTC)", style="quiet"), *indented(text(line) for line in error.log)]
    return lines


def _end_of_process(code: int | None) -> str:
    if code is None or code >= 0:
        return "" if code is None else f"ended with exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _has_time(task: TaskInfo, now: datetime) -> bool:
    is_endless = task.awaits is not None and task.awaits.until is None
    return task.status is TaskStatus.PENDING and task.eta > now and not is_endless


def _timeline(task: TaskInfo, now: datetime) -> list[Line]:
    """The kept steps: when each began after the first one, how long it took, and its outcome; and the open wait."""
    first = task.steps[0].started_at if task.steps else task.awaits.since if task.awaits is not None else now
    rows = []
    for step in task.steps:
        outcome = "kept"
        if step.until is not None:
            outcome = f"sleep until {step.until:%Y-%m-%d %H:%M:%S} UTC"
        elif step.event is not None:
            outcome = "kept" if step.name == f"event {step.event}" else f"event {step.event}"
        elif step.error is not None:
            outcome = f"gave up: {step.error.type}: {step.error.message.partition(chr(10))[0][:MESSAGE]}"
        began = f"+{(step.started_at - first).total_seconds():.2f} s"
        words = (step.name, began, f"{step.duration.total_seconds():.2f} s", str(step.attempt), str(step.tries))
        row = [StyledText(word) for word in words]
        rows.append([*row, StyledText(outcome, "bad" if step.error is not None else "")])
    if task.awaits is not None:
        wait = task.awaits
        until = "" if wait.until is None else f" until {wait.until:%Y-%m-%d %H:%M:%S} UTC"
        began = f"+{(wait.since - first).total_seconds():.2f} s"
        words = (f"event {wait.event}", began, f"{(now - wait.since).total_seconds():.2f} s", str(task.attempt), "")
        rows.append([*map(StyledText, words), StyledText(f"waits{until}", "accent")])
    return table(("step", "began", "took", "attempt", "tries", "outcome"), rows)


# Change.


ALIVE = (TaskStatus.PENDING, TaskStatus.RUNNING)
OVER = (TaskStatus.SUCCESS, TaskStatus.FAILED, TaskStatus.CANCELLED)


def _add_cancel_arguments(parser: argparse.ArgumentParser) -> None:
    bulk.add_arguments(parser, ALIVE)


def _cancel(arguments: argparse.Namespace) -> int:
    return bulk.change_many(arguments, ALIVE, TaskQueue.cancel, TaskQueue.cancel_all, "cancelled or asked to stop")


def _add_retry_arguments(parser: argparse.ArgumentParser) -> None:
    bulk.add_arguments(parser, OVER, default=(TaskStatus.FAILED,))
    parser.add_argument(
        "--from-step",
        metavar="NAME",
        help="run this step, and all that were kept after it, again; with ids of failed or cancelled tasks",
    )


def _retry(arguments: argparse.Namespace) -> int:
    failed = (TaskStatus.FAILED,)
    if arguments.from_step is not None:
        if not arguments.ids:
            raise CommandError("--from-step needs the ids of the tasks", ExitCode.USAGE)
        retry = functools.partial(TaskQueue.retry, from_step=arguments.from_step)
        return bulk.change_many(arguments, OVER, retry, TaskQueue.retry_all, "will run again", failed)
    return bulk.change_many(arguments, OVER, TaskQueue.retry, TaskQueue.retry_all, "will run again", failed)


def _add_purge_arguments(parser: argparse.ArgumentParser) -> None:
    bulk.add_arguments(parser, OVER)


def _purge(arguments: argparse.Namespace) -> int:
    return bulk.change_many(arguments, OVER, TaskQueue.delete, TaskQueue.purge, "purged")


GROUP = CommandGroup(
    "tasks",
    "List, show, cancel, retry and purge tasks.",
    (
        Command("list", "List tasks, oldest first.", _add_list_arguments, _list),
        Command("show", "Show a task with its errors; its arguments on request.", _add_show_arguments, _show),
        Command("cancel", "Cancel pending tasks; ask running tasks to stop.", _add_cancel_arguments, _cancel),
        Command("retry", "Run finished tasks again, with all their retries.", _add_retry_arguments, _retry),
        Command("purge", "Delete finished tasks and their results.", _add_purge_arguments, _purge),
    ),
)
