"""`bullpen stack ID`: where a running task is."""

from __future__ import annotations

import argparse

from bullpen.cli import store
from bullpen.cli.arguments import seconds
from bullpen.cli.command import Command, ExitCode
from bullpen.cli.terminal.output import indented, show, show_json, state, text
from bullpen.cli.terminal.screen import StyledText
from bullpen.tasks.model.info import as_datetime

PATIENCE = 15.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="id of a running task, as `bullpen tasks` prints it")
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=PATIENCE,
        metavar="SECONDS",
        help=f"wait so long for the worker's answer (default: {PATIENCE:g})",
    )
    store.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    with store.open_queue(arguments) as queue:
        job = queue.job(arguments.id)
        stack = job.stack(arguments.timeout)
        task, now = job.info(), as_datetime(store.now(queue))
    if arguments.json:
        show_json({"id": task.id, "name": task.name, "worker": task.worker, "attempt": task.attempt, "stack": stack})
        return ExitCode.OK
    where = f"  attempt {task.attempt} on worker {task.worker}"
    show([(StyledText(task.name, "strong"), StyledText("  "), state(task, now), StyledText(where, "quiet"))])
    show(indented(text(line) for line in stack.splitlines()))
    return ExitCode.OK


COMMAND = Command("stack", "Show where a running task is: asks its worker for the stack.", add_arguments, run)
