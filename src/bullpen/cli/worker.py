"""`bullpen worker APP`: run the tasks of a queue until told to stop."""

from __future__ import annotations

import argparse

from bullpen.cli.app import HOW
from bullpen.cli.arguments import names
from bullpen.cli.command import Command
from bullpen.cli.settings import LOG_LEVELS, LOOPS, SETTINGS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is not typed may be set elsewhere, so nothing has a default here."""
    parser.add_argument("app", nargs="?", metavar="APP", help=f"{HOW} (default: $BULLPEN_APP)")
    parser.add_argument(
        "-c",
        "--concurrency",
        type=SETTINGS["concurrency"].read,
        metavar="N",
        help=f"how many tasks run at once, in each process (default: {SETTINGS['concurrency'].default})",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--queues", type=names, metavar="A,B", help="only these queues (default: those of the registered functions)"
    )
    which.add_argument(
        "--lane",
        dest="lanes",
        action="append",
        metavar="LANE",
        help="queues with permits of their own, as queue[,queue…][:permits][@runtime]; may be repeated",
    )
    many = parser.add_mutually_exclusive_group()
    many.add_argument(
        "--processes",
        type=SETTINGS["processes"].read,
        metavar="N",
        help="so many worker processes, each with its own concurrency (default: 1)",
    )
    many.add_argument(
        "--reload", action="store_true", help="start again when a .py file below the current folder changes"
    )
    parser.add_argument(
        "--grace",
        type=SETTINGS["grace"].read,
        metavar="S",
        help=f"seconds that tasks get to end when the worker is told to stop (default: {SETTINGS['grace'].default:g})",
    )
    parser.add_argument(
        "--import",
        dest="imports",
        action="append",
        metavar="MODULE",
        help="import this too, for the tasks that it registers; may be repeated",
    )
    parser.add_argument(
        "--loop",
        choices=LOOPS,
        metavar="LOOP",
        help=f"{', '.join(LOOPS)}: the event loop; auto is uvloop where it is installed (default: auto)",
    )
    parser.add_argument(
        "--health", metavar="FOLDER", help="show there each second that it is well, for `bullpen probe`"
    )
    parser.add_argument(
        "--log-level",
        choices=LOG_LEVELS,
        metavar="LEVEL",
        help=f"{', '.join(LOG_LEVELS)}; debug tells of every task (default: info)",
    )
    parser.add_argument("--json", action="store_true", help="log lines as JSON")


def _run(arguments: argparse.Namespace) -> int:
    from bullpen.cli import serve  # other commands need not wait for it

    return serve.run(arguments)


COMMAND = Command("worker", "Run the tasks of a queue until told to stop.", add_arguments, _run)
