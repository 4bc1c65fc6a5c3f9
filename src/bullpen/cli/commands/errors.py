"""`bullpen errors`: lists failures by their cause; retries or purges the tasks of a cause."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import datetime

from bullpen.cli import bulk, store
from bullpen.cli.arguments import seconds
from bullpen.cli.command import Command, CommandGroup, ExitCode
from bullpen.cli.commands.history import COLUMNS, sparkline
from bullpen.cli.matching import Matching
from bullpen.cli.terminal.output import fitted, indented, show, show_json, text, when
from bullpen.cli.terminal.screen import Line, StyledText
from bullpen.tasks.client.task_queue import TaskQueue
from bullpen.tasks.model.failure_groups import FAILURES_KEPT, FailureGroup
from bullpen.tasks.model.info import as_datetime
from bullpen.tasks.model.task import TaskStatus
from bullpen.tasks.worker.history_tally import WRITE_EVERY

FAILED = (TaskStatus.FAILED,)
MESSAGE = 120  # characters


# List.


def _add_list_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--since", type=seconds, default=86_400.0, metavar="D", help="failures of the last D (default: 1d, at most 7d)"
    )
    parser.add_argument("--queue", metavar="QUEUE", help="only failures in this queue")
    parser.add_argument("--function", metavar="NAME", help="only failures of this function")
    store.add_arguments(parser)


def _list(arguments: argparse.Namespace) -> int:
    with store.open_queue(arguments) as queue:
        now = as_datetime(store.now(queue))
        since = min(max(arguments.since, 1.0), FAILURES_KEPT)
        found = queue.failures(since=since, queue=arguments.queue, function=arguments.function)
    if arguments.json:
        show_json({"errors": [{**_document(group), "rising": group.is_rising, "new": group.is_new} for group in found]})
    elif not found:
        show([text(f"no failures in this time; workers write theirs every {WRITE_EVERY:g} s", style="quiet")])
    else:
        show(fitted(line for group in found for line in _picture(group, now)))
    return ExitCode.OK


def _document(group: FailureGroup) -> dict[str, object]:
    return {name: getattr(group, name) for name in group.__struct_fields__}


def _picture(group: FailureGroup, now: datetime) -> list[Line]:
    cause = f"{group.type or group.kind}: {group.message}" if group.message else group.type or group.kind
    place = f" at {group.where}" if group.where else ""
    first, last = when(group.first, now), when(group.last, now)
    times = f"{group.count} times, first {first}, last {last}" if group.count > 1 else f"once, {last}"
    return [
        (StyledText(f"{group.fingerprint}  ", "quiet"), StyledText(group.function, "strong"), StyledText(place)),
        *indented(
            [
                (StyledText(cause.partition("\n")[0][:MESSAGE], "bad"),),
                (
                    StyledText(f"{times}  "),
                    StyledText(sparkline(_columns(group.hours))),
                    StyledText(f"  {'new' if group.is_new else 'rising'}" if group.is_rising else "", "late"),
                ),
                text(f"example: {group.example}; queue {', '.join(group.queues)}", style="quiet"),
            ]
        ),
        (),
    ]


def _columns(hours: Sequence[int]) -> list[int]:
    """At most `COLUMNS` sums of as many hours each."""
    width = -(-len(hours) // COLUMNS)
    return [sum(hours[first : first + width]) for first in range(0, len(hours), width)]


# Change.


def _add_change_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("fingerprint", metavar="FINGERPRINT", help="a cause, as `bullpen errors` lists it")
    parser.add_argument("--function", metavar="NAME", help="only tasks of this function")
    parser.add_argument("--dry-run", action="store_true", help="print how many tasks match; change nothing")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask for confirmation")
    store.add_arguments(parser)
    others = set(Matching.__struct_fields__) - {"fingerprint", "function"}
    parser.set_defaults(ids=[], all=False, **dict.fromkeys(others))


def _retry(arguments: argparse.Namespace) -> int:
    return bulk.change_many(arguments, FAILED, TaskQueue.retry, TaskQueue.retry_all, "retried")


def _purge(arguments: argparse.Namespace) -> int:
    code = bulk.change_many(arguments, FAILED, TaskQueue.delete, TaskQueue.purge, "deleted")
    if code == ExitCode.OK and not arguments.dry_run:
        with store.open_queue(arguments) as queue:
            queue.forget_failures(arguments.fingerprint, function=arguments.function)
    return code


GROUP = CommandGroup(
    "errors",
    "List failures by their cause; retry or purge the tasks of a cause.",
    (
        Command("list", "List failures by their cause, the latest first.", _add_list_arguments, _list),
        Command("retry", "Run the failed tasks of a cause again.", _add_change_arguments, _retry),
        Command("purge", "Delete the failed tasks of a cause, and forget it.", _add_change_arguments, _purge),
    ),
)
