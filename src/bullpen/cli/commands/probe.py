"""`bullpen probe FOLDER`: checks the health files of a worker. For container probes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from bullpen.cli.arguments import number
from bullpen.cli.command import Command, CommandError, ExitCode
from bullpen.cli.settings import add_config, find_all
from bullpen.cli.terminal.output import show, show_json, text
from bullpen.tasks.storage.open import without_passwords

if TYPE_CHECKING:
    from bullpen.cli.worker_process.health import HealthReport

MAX_AGE = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", nargs="?", metavar="FOLDER", help="the folder of `bullpen worker --health` (default: $BULLPEN_HEALTH)"
    )
    parser.add_argument(
        "--ready",
        action="store_true",
        help="also fail if the worker claims no tasks: it is starting, stopping or stuck",
    )
    parser.add_argument(
        "--max-age",
        type=number(1, 86_400),
        default=MAX_AGE,
        metavar="S",
        help=f"fail if the health file of a process is older than S seconds (default: {MAX_AGE:g})",
    )
    add_config(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    folder = find_all({"health": arguments.folder}, arguments.config)["health"].value
    if not folder:
        raise CommandError("no FOLDER: give the folder of the worker's --health, or set BULLPEN_HEALTH", ExitCode.USAGE)
    from bullpen.cli.worker_process import health  # imported late: other commands start faster

    processes: dict[str, health.HealthReport] = {}
    try:
        processes = health.read(Path(folder))
        problem = problem_of(folder, processes, max_age=arguments.max_age, ready=arguments.ready)
    except CommandError as error:
        problem = without_passwords(str(error), [folder])
    if arguments.json:
        show_json({"well": problem is None, "problem": problem, "processes": processes})
    elif problem is not None:
        raise CommandError(problem)
    else:
        for name, told in processes.items():
            show([text(f"{name}: {told.state}, {told.running} running")])
    return ExitCode.OK if problem is None else ExitCode.FAILED


COMMAND = Command("probe", "Check the health of a worker: exit 0 if healthy, otherwise 1.", add_arguments, run)


def problem_of(folder: str, processes: dict[str, HealthReport], *, max_age: float, ready: bool) -> str | None:
    """The first problem; None if there is none."""
    if not processes:
        return without_passwords(f"no health files in {folder}; start a worker with --health {folder}", [folder])
    for name, told in processes.items():
        if told.age > max_age:
            silent = f"{name} has not written its health file for {told.age:.0f} s"
            return f"{silent}: its event loop is blocked, or it was killed"
        if ready and not told.ready:
            return f"{name} is {told.state} and claims no tasks"
    return None
