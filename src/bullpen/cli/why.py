"""`bullpen why ID`: why a task is not done, or what became of it."""

from __future__ import annotations

import argparse

from bullpen.cli import store
from bullpen.cli.command import Command, ExitCode
from bullpen.cli.output import STATUSES, indented, show, show_json, text
from bullpen.cli.terminal import Span


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the id of a task, as `bullpen tasks` shows it")
    store.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    with store.open_queue(arguments) as queue:
        why = queue.job(arguments.id).why()
    if arguments.json:
        show_json(why)
        return ExitCode.OK
    show([(Span(f"{why.name} is "), STATUSES[why.status])])
    show(indented(text(cause.words) for cause in why.causes))
    return ExitCode.OK


COMMAND = Command("why", "Say why a task is not done, or what became of it.", add_arguments, run)
