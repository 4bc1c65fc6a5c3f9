"""`bullpen demo`: what Bullpen does, live."""

from __future__ import annotations

import argparse

from bullpen.cli.arguments import number, whole
from bullpen.cli.command import Command, Group


def _add_tasks_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tasks", type=whole(100, 100_000), default=2000, metavar="N", help="about so many (default: 2000)"
    )
    parser.add_argument("--folder", metavar="DIR", help="where the tasks are kept (default: a new temporary one)")
    _add_plain(parser)
    parser.add_argument("--json", action="store_true", help="one JSON document at the end, for programs")


def _run_tasks(arguments: argparse.Namespace) -> int:
    from bullpen.cli import demo_tasks  # other commands need not wait for it

    return demo_tasks.run(arguments)


def _add_pool_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seconds", type=number(1, 3600), default=10.0, metavar="N", help="how long, about (default: 10)"
    )
    parser.add_argument(
        "--workers", type=whole(1, 64), default=8, metavar="N", help="at most so many workers (default: 8)"
    )
    _add_plain(parser)


def _add_plain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plain", action="store_true", help="a few lines of text instead of a live picture")


def _run_pool(arguments: argparse.Namespace) -> int:
    from bullpen.cli import demo_pool

    return demo_pool.run(arguments)


GROUP = Group(
    "demo",
    "See it work: durable tasks, or a pool of warm workers.",
    (
        Command(
            "tasks",
            "Watch thousands of durable tasks run, fail, be tried again, and survive kill -9.",
            _add_tasks_arguments,
            _run_tasks,
        ),
        Command(
            "pool",
            "Watch a pool under load: growth, backlog, deadlines, errors, resize.",
            _add_pool_arguments,
            _run_pool,
        ),
    ),
)
