"""One change for many tasks: the named ones, or all that match. The command counts them before it changes any."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from bullpen.cli import store
from bullpen.cli.command import CommandError, ExitCode
from bullpen.cli.matching import Matching, add_filters
from bullpen.cli.terminal.output import agrees, counted, show, show_json, text
from bullpen.cli.terminal.progress import ProgressBar
from bullpen.tasks.client.task_queue import TaskQueue
from bullpen.tasks.model.task import TaskStatus

BATCH = 200

Statuses = Sequence[TaskStatus]
Change = Callable[[TaskQueue, Sequence[str]], int]  # returns how many it has changed


def add_arguments(parser: argparse.ArgumentParser, statuses: Statuses, default: Statuses | None = None) -> None:
    """`statuses`: the change applies to these; `default`: the statuses without `--status`."""
    parser.add_argument(
        "ids", nargs="*", default=[], metavar="ID", help="ids of tasks; without ids, the filters below choose the tasks"
    )
    allowed = ", ".join(map(str, statuses))
    add_filters(parser, f"{allowed} (default: {', '.join(map(str, default)) if default else 'all of these'})")
    parser.add_argument("--all", action="store_true", help="change all tasks, without a filter")
    parser.add_argument("--dry-run", action="store_true", help="print how many tasks match; change nothing")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask for confirmation")
    store.add_arguments(parser)


def change_many(
    arguments: argparse.Namespace,
    statuses: Statuses,
    change: Change,
    done: str,
    default: Statuses | None = None,
    *,
    readable_only: bool = False,
) -> int:
    """`done`: how the message calls the change, such as "cancelled". `readable_only`: the filters leave out tasks whose
    stored rows cannot be read.
    """
    matching = Matching.of(arguments)
    _check(arguments, matching, statuses)
    with store.open_queue(arguments) as queue:
        if arguments.ids:
            return _named(arguments, change(queue, arguments.ids), done)
        matching = matching if matching.status else replace(matching, status=tuple(map(str, default or statuses)))
        found = matching.find(queue, store.now(queue))
        ids = [task.id for task in found if not (readable_only and task.unreadable)]
        if arguments.dry_run or not ids:
            matching_words = counted(len(ids), "task matches", "tasks match")
            unknown = [] if ids or arguments.json else matching.unknown_names(queue)
            return _tell(arguments, len(ids), 0, f"{matching_words}; nothing was changed", *unknown)
        _confirm(arguments, len(ids))
        return _change(arguments, queue, ids, change, done)


def _check(arguments: argparse.Namespace, matching: Matching, statuses: Statuses) -> None:
    if arguments.ids and (matching or arguments.all or arguments.dry_run):
        raise CommandError("give ids or filters, not both", ExitCode.USAGE)
    if not (arguments.ids or matching or arguments.all):
        raise CommandError("no tasks chosen: give ids, or filters such as --queue or --error, or --all", ExitCode.USAGE)
    if matching and arguments.all:
        raise CommandError("--all cannot be combined with filters", ExitCode.USAGE)
    wrong = set(matching.status or ()) - set(map(str, statuses))
    if wrong:
        allowed = ", ".join(map(str, statuses))
        raise CommandError(f"--status may be {allowed} here, not {', '.join(sorted(wrong))}", ExitCode.USAGE)


def _confirm(arguments: argparse.Namespace, many: int) -> None:
    if arguments.yes:
        return
    matching = counted(many, "task matches", "tasks match")
    if arguments.json or not sys.stdin.isatty():
        raise CommandError(f"{matching}; add --yes to change them without confirmation", ExitCode.USAGE)
    if not agrees(f"{matching}. {arguments.command.name.capitalize()} {'it' if many == 1 else 'them all'}?"):
        raise CommandError("nothing was changed")


def _change(arguments: argparse.Namespace, queue: TaskQueue, ids: Sequence[str], change: Change, done: str) -> int:
    changed = 0
    with ProgressBar(done, len(ids), quiet=arguments.json) as progress:
        try:
            for first in range(0, len(ids), BATCH):
                batch = ids[first : first + BATCH]
                changed += change(queue, batch)
                progress.advance(len(batch))
        except KeyboardInterrupt:
            message = f"interrupted after {progress.done} of {len(ids)} tasks: {changed} {done}"
            raise CommandError(message, ExitCode.INTERRUPTED) from None
    others = "" if changed == len(ids) else "; the others have changed their status meanwhile"
    return _tell(arguments, len(ids), changed, f"{changed} of {len(ids)} {done}{others}")


def _tell(arguments: argparse.Namespace, matching: int, changed: int, *lines: str) -> int:
    if arguments.json:
        show_json({"matching": matching, "changed": changed})
    else:
        show(list(map(text, lines)))
    return ExitCode.OK


def _named(arguments: argparse.Namespace, changed: int, done: str) -> int:
    """The exit code is 0 only if every named task has changed."""
    named = len(set(arguments.ids))
    if arguments.json:
        show_json({"named": named, "changed": changed})
    else:
        others = "" if changed == named else "; the others do not exist, or their status does not allow it"
        show([text(f"{changed} of {named} {done}{others}")])
    return ExitCode.OK if changed == named else ExitCode.NOT_FOUND
