"""One change for many tasks: the named ones, or all that match. The command counts them before it changes any."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from bullpen.cli import store
from bullpen.cli.command import CommandError, ExitCode, Stopped
from bullpen.cli.matching import Matching, add_filters
from bullpen.cli.terminal.output import agrees, counted, show, show_hints, show_json, text
from bullpen.cli.terminal.progress import ProgressBar
from bullpen.tasks.client.task_queue import TaskQueue
from bullpen.tasks.model.task import TaskStatus

Statuses = Sequence[TaskStatus]
ChangeNamed = Callable[..., int]  # a method of TaskQueue that takes ids, and returns how many it has changed
ChangeAll = Callable[..., int]  # … that takes filters


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
    change_named: ChangeNamed,
    change_all: ChangeAll,
    done: str,
    default: Statuses | None = None,
) -> int:
    """`done`: how the message calls the change, such as "cancelled"."""
    matching = Matching.of(arguments)
    _check(arguments, matching, statuses)
    with store.open_queue(arguments) as queue:
        if arguments.ids:
            return _named(arguments, change_named(queue, *arguments.ids), done)
        matching = matching if matching.status else replace(matching, status=tuple(map(str, default or statuses)))
        total = queue.count(**matching.filters)
        if arguments.dry_run or not total:
            matching_words = counted(total, "task matches", "tasks match")
            unknown = [] if total else matching.unknown_names(queue)
            return _tell(arguments, total, 0, f"{matching_words}; nothing was changed", *unknown)
        _confirm(arguments, total)
        return _change(arguments, queue, matching, total, change_all, done)


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


def _change(
    arguments: argparse.Namespace, queue: TaskQueue, matching: Matching, total: int, change_all: ChangeAll, done: str
) -> int:
    """A signal stops it after the batch that the store is changing."""
    stopped = Stopped()

    def after_batch(seen: int, changed: int) -> None:
        bar.advance(seen - bar.done)
        if stopped and seen < total:
            message = f"interrupted after {seen} of {total} tasks: {changed} {done}"
            raise CommandError(message, ExitCode.INTERRUPTED)

    with ProgressBar(done, total, quiet=arguments.json) as bar, stopped.by_signals():
        changed = change_all(queue, on_batch=after_batch, **matching.filters)
    others = "" if changed == total else "; the others have changed meanwhile, or cannot be read"
    return _tell(arguments, total, changed, f"{changed} of {total} {done}{others}")


def _tell(arguments: argparse.Namespace, matching: int, changed: int, line: str, *hints: str) -> int:
    if arguments.json:
        show_json({"matching": matching, "changed": changed})
        show_hints(hints)
    else:
        show(list(map(text, (line, *hints))))
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
