"""`bullpen worker APP`: run the tasks of a queue until told to stop."""

from __future__ import annotations

import argparse

from bullpen.cli import logs
from bullpen.cli.app import HOW
from bullpen.cli.arguments import names, number, whole
from bullpen.cli.command import Command

CONCURRENCY, GRACE = 10, 25.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("app", nargs="?", metavar="APP", help=f"{HOW} (default: $BULLPEN_APP)")
    parser.add_argument(
        "-c",
        "--concurrency",
        type=whole(1, 100_000),
        default=CONCURRENCY,
        metavar="N",
        help=f"how many tasks run at once, in each process (default: {CONCURRENCY})",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--queues", type=names, metavar="A,B", help="only these queues (default: those of the registered functions)"
    )
    which.add_argument(
        "--lane",
        action="append",
        metavar="LANE",
        help="queues with permits of their own, as queue[,queue…][:permits][@runtime]; may be repeated",
    )
    parser.add_argument(
        "--processes",
        type=whole(1, 256),
        default=1,
        metavar="N",
        help="so many worker processes, each with its own concurrency (default: 1)",
    )
    parser.add_argument(
        "--grace",
        type=number(0, 86_400),
        default=GRACE,
        metavar="S",
        help=f"seconds that tasks get to end when the worker is told to stop (default: {GRACE:g})",
    )
    parser.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="MODULE",
        help="import this too, for the tasks that it registers; may be repeated",
    )
    parser.add_argument(
        "--log-level",
        choices=logs.LEVELS,
        default="info",
        metavar="LEVEL",
        help=f"{', '.join(logs.LEVELS)}; debug tells of every task (default: info)",
    )
    parser.add_argument("--json", action="store_true", help="log lines as JSON")


def _run(arguments: argparse.Namespace) -> int:
    from bullpen.cli import serve  # other commands need not wait for it

    return serve.run(arguments)


COMMAND = Command("worker", "Run the tasks of a queue until told to stop.", add_arguments, _run)
