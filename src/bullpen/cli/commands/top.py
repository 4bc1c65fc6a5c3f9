"""`bullpen top`: a live view of queues, workers, tasks, failures and schedules in the terminal."""

from __future__ import annotations

import argparse
import sys

from bullpen.cli import store
from bullpen.cli.app import HOW
from bullpen.cli.command import Command, CommandError, ExitCode
from bullpen.cli.settings import add_config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument("app", nargs="?", metavar="APP", help=f"{HOW} (default: $BULLPEN_APP)")
    which.add_argument("--url", metavar="URL", help="the store, such as sqlite:///jobs.db, instead of APP")
    add_config(parser)


def _run(arguments: argparse.Namespace) -> int:
    from bullpen.cli.top.live import TopApp  # imported late: it needs packages that other commands do not need

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CommandError(
            "bullpen top needs a terminal; `bullpen status` prints once, `--watch` repeats", ExitCode.USAGE
        )
    with store.open_queue(arguments) as queue:
        TopApp(queue).run()
    return ExitCode.OK


COMMAND = Command("top", "Watch and operate queues live in the terminal.", add_arguments, _run)
