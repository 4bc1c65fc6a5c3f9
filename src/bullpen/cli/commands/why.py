"""`bullpen why ID`: why a task has not run yet, or how it ended."""

from __future__ import annotations

import argparse

from bullpen.cli import store
from bullpen.cli.command import Command, ExitCode
from bullpen.cli.terminal.output import STATUSES, indented, show, show_json, text
from bullpen.cli.terminal.screen import StyledText


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="id of a task, as `bullpen tasks` prints it")
    store.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    with store.open_queue(arguments) as queue:
        why = queue.job(arguments.id).why()
    if arguments.json:
        show_json(why)
        return ExitCode.OK
    show([(StyledText(f"{why.name} is "), STATUSES[why.status])])
    show(indented(text(cause.message) for cause in why.causes))
    return ExitCode.OK


COMMAND = Command("why", "Explain why a task has not run yet, or how it ended.", add_arguments, run)
