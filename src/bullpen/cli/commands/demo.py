"""`bullpen demo`: thousands of durable tasks on two worker processes; the demo kills one of them."""

from __future__ import annotations

import argparse

from bullpen.cli.arguments import whole
from bullpen.cli.command import Command


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tasks",
        type=whole(100, 100_000),
        default=2000,
        metavar="N",
        help="approximate number of tasks (default: 2000)",
    )
    parser.add_argument("--folder", metavar="DIR", help="folder of the database (default: a new temporary folder)")
    parser.add_argument("--plain", action="store_true", help="print a few lines instead of the live view")
    parser.add_argument("--json", action="store_true", help="print one JSON document at the end")


def _run(arguments: argparse.Namespace) -> int:
    from bullpen.cli.demo import tasks  # imported late: other commands start faster

    return tasks.run(arguments)


COMMAND = Command(
    "demo",
    "Watch durable tasks run, fail, retry, and survive kill -9.",
    _add_arguments,
    _run,
)
