"""`bullpen tasks`: list them, show one, cancel some, let some run again."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from datetime import datetime

from bullpen.cli import store
from bullpen.cli.arguments import names, whole
from bullpen.cli.command import Command, ExitCode, Group
from bullpen.cli.output import facts, indented, show, show_json, state, table, text, when
from bullpen.cli.terminal import Line, Span
from bullpen.queue.task_queue import LARGEST_PAGE, TaskQueue
from bullpen.queue.why import Why
from bullpen.tasks.info import TaskInfo, as_datetime
from bullpen.tasks.task import TaskError, TaskStatus

SHOWN = 50
MESSAGE = 60  # characters of an error in a list


# List.


def _add_list_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--status", type=names, metavar="A,B", help=f"only these: {', '.join(map(str, TaskStatus))}")
    parser.add_argument("--queue", type=names, metavar="A,B", help="only of these queues")
    parser.add_argument("--function", metavar="NAME", help="only of this function, by its whole name")
    parser.add_argument(
        "--limit", type=whole(1, LARGEST_PAGE), default=SHOWN, metavar="N", help=f"at most so many (default: {SHOWN})"
    )
    parser.add_argument("--after", metavar="ID", help="only those after this one: the next page")
    store.add_arguments(parser)


def _list(arguments: argparse.Namespace) -> int:
    with store.open_queue(arguments) as queue:
        found = queue.list(
            status=arguments.status,
            queue=arguments.queue,
            name=arguments.function,
            limit=arguments.limit,
            after=arguments.after,
        )
        now = _now(queue)
    following = found[-1].id if len(found) == arguments.limit else None
    if arguments.json:
        show_json({"tasks": found, "next": following})
    elif not found:
        show([text("no tasks", style="quiet")])
    else:
        show(table(("id", "function", "state", "queue", "tries", "", "error"), [_row(task, now) for task in found]))
        if following is not None:
            show([text(f"the next ones: --after {following}", style="quiet")])
    return ExitCode.OK


def _row(task: TaskInfo, now: datetime) -> Sequence[Span]:
    return (
        Span(task.id),
        Span(task.name),
        state(task, now),
        Span(task.queue),
        Span(str(task.attempt)),
        Span(when(_moment(task, now), now), "quiet"),
        Span(_in_short(task.error) if task.error is not None else "", "quiet"),
    )


def _moment(task: TaskInfo, now: datetime) -> datetime:
    """What is most worth knowing about its time."""
    if task.status is TaskStatus.PENDING:
        return task.eta if task.eta > now else task.created_at
    return task.finished_at or task.started_at or task.created_at


def _in_short(error: TaskError) -> str:
    said = f"{error.type or error.kind}: {error.message}" if error.message else error.type or error.kind
    line = said.splitlines()[0]
    return line if len(line) <= MESSAGE else line[: MESSAGE - 1] + "…"


def _now(queue: TaskQueue) -> datetime:
    """By the store's clock, as all instants of tasks are."""

    async def ask() -> float:
        return await queue.storage.now()

    return as_datetime(asyncio.run(ask()))


# Show.


def _add_id(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the id of a task")
    store.add_arguments(parser)


def _show(arguments: argparse.Namespace) -> int:
    with store.open_queue(arguments) as queue:
        job = queue.job(arguments.id)
        task, why, now = job.info(), job.why(), _now(queue)
    if arguments.json:
        show_json({"task": task, "why": why})
    else:
        show(_described(task, why, now))
    return ExitCode.OK


def _described(task: TaskInfo, why: Why, now: datetime) -> list[Line]:
    def instant(value: datetime | None) -> str:
        return "" if value is None else f"{value:%Y-%m-%d %H:%M:%S} UTC ({when(value, now)})"

    rules = {
        "at most once": task.at_most_once,
        f"retried up to {task.max_retries} times": task.max_retries,
        f"again {task.interval} after each run": task.interval,
        f"at most {task.timeout} each": task.timeout,
        f"unique by {task.unique_key!r}": task.unique_key,
        f"limited by {task.concurrency_key!r}": task.concurrency_key,
    }
    lines = [
        (Span(task.name, "strong"), Span("  "), state(task, now)),
        *facts(
            [
                ("id", task.id),
                ("queue", task.queue + (f", priority {task.priority}" if task.priority else "")),
                ("rules", ", ".join(words for words, holds in rules.items() if holds)),
                ("tries", f"{task.attempt}, of which {task.failures} failed and {task.crashes} crashed"),
                ("runs", str(task.runs) if task.interval is not None else ""),
                ("created", instant(task.created_at)),
                ("not before", instant(task.eta) if task.status is TaskStatus.PENDING and task.eta > now else ""),
                ("expires", instant(task.expires) if task.status is TaskStatus.PENDING else ""),
                ("started", instant(task.started_at)),
                ("finished", instant(task.finished_at)),
                ("worker", task.worker or ""),
                ("progress", "" if task.progress is None else str(task.progress)),
                ("result", f"not kept: {task.result_dropped}" if task.result_dropped else ""),
                ("why", "; ".join(cause.words for cause in why.causes)),
            ]
        ),
    ]
    for error in task.errors:
        lines += [(), text(f"attempt {error.attempt}: {error.kind}", style="bad")]
        told = error.traceback or f"{error.type}: {error.message}" if error.type else error.message
        lines += indented(text(line) for line in told.splitlines())
    return lines


# Change.


def _add_ids(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ids", nargs="+", metavar="ID", help="the ids of tasks")
    store.add_arguments(parser)


def _cancel(arguments: argparse.Namespace) -> int:
    with store.open_queue(arguments) as queue:
        changed = queue.cancel(*arguments.ids)
    return _tell(arguments, changed, "cancelled, or asked to stop")


def _retry(arguments: argparse.Namespace) -> int:
    with store.open_queue(arguments) as queue:
        changed = queue.retry(*arguments.ids)
    return _tell(arguments, changed, "will run again")


def _tell(arguments: argparse.Namespace, changed: int, what: str) -> int:
    """Whether all that were named have changed is also the exit code."""
    named = len(set(arguments.ids))
    if arguments.json:
        show_json({"named": named, "changed": changed})
    else:
        others = "" if changed == named else "; the others are not there, or were not in a state for it"
        show([text(f"{changed} of {named} {what}{others}")])
    return ExitCode.OK if changed == named else ExitCode.NOT_FOUND


GROUP = Group(
    "tasks",
    "List tasks, show one, cancel some, let some run again.",
    (
        Command("list", "List tasks, oldest first.", _add_list_arguments, _list),
        Command("show", "Show all that is known about a task, but its arguments.", _add_id, _show),
        Command("cancel", "Cancel tasks that wait; ask those that run to stop.", _add_ids, _cancel),
        Command("retry", "Let tasks that are over run again, with all their tries.", _add_ids, _retry),
    ),
)
