"""`bullpen worker APP`: runs the tasks of a queue until a stop signal."""

from __future__ import annotations

import argparse

from bullpen.cli.app import HOW
from bullpen.cli.arguments import names
from bullpen.cli.command import Command
from bullpen.cli.settings import LOG_LEVELS, LOOPS, SETTINGS, add_config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags have no defaults here: the environment and pyproject.toml come after them."""
    parser.add_argument("app", nargs="?", metavar="APP", help=f"{HOW} (default: $BULLPEN_APP)")
    parser.add_argument(
        "-c",
        "--concurrency",
        type=SETTINGS["concurrency"].read,
        metavar="N",
        help=f"how many tasks each process runs at once (default: {SETTINGS['concurrency'].default})",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--queues",
        action="extend",
        type=names,
        metavar="A,B",
        help="serve only these queues; '*' stands for any characters, as in 'partner-*'; may be repeated "
        "(default: the queues of the registered functions)",
    )
    which.add_argument(
        "--lane",
        dest="lanes",
        action="append",
        metavar="LANE",
        help="queues with their own permits, as queue[,queue…][:permits][@runtime]; may be repeated",
    )
    many = parser.add_mutually_exclusive_group()
    many.add_argument(
        "--processes",
        type=SETTINGS["processes"].read,
        metavar="N",
        help="number of worker processes, each with its own concurrency (default: 1)",
    )
    many.add_argument("--reload", action="store_true", help="restart when a .py file below the current folder changes")
    parser.add_argument(
        "--grace",
        type=SETTINGS["grace"].read,
        metavar="S",
        help=f"seconds to finish running tasks after the first stop signal (default: {SETTINGS['grace'].default:g})",
    )
    parser.add_argument(
        "--import",
        dest="imports",
        action="append",
        metavar="MODULE",
        help="import this module, too, and register its tasks; may be repeated",
    )
    parser.add_argument(
        "--loop",
        choices=LOOPS,
        metavar="LOOP",
        help=f"{', '.join(LOOPS)}: the event loop; auto uses uvloop if it is installed (default: auto)",
    )
    parser.add_argument("--health", metavar="FOLDER", help="write a health file there each second, for `bullpen probe`")
    parser.add_argument(
        "--metrics-port",
        type=SETTINGS["metrics_port"].read,
        metavar="N",
        help="serve Prometheus metrics there, of all processes; 0 chooses a free port",
    )
    parser.add_argument(
        "--metrics-host",
        metavar="ADDRESS",
        help="address to serve metrics on, without any login (default: 127.0.0.1)",
    )
    parser.add_argument(
        "--log-level",
        choices=LOG_LEVELS,
        metavar="LEVEL",
        help=f"{', '.join(LOG_LEVELS)}; debug logs every task (default: info)",
    )
    add_config(parser)
    parser.add_argument("--json", action="store_true", help="write log lines as JSON")


def _run(arguments: argparse.Namespace) -> int:
    from bullpen.cli.worker_process import serve  # imported late: other commands start faster

    return serve.run(arguments)


COMMAND = Command("worker", "Run the tasks of a queue until a stop signal.", add_arguments, _run)
