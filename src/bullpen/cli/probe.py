"""`bullpen probe FOLDER`: whether the worker that shows its health there is well. For probes of containers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bullpen.cli.arguments import number
from bullpen.cli.command import Command, CommandError, ExitCode
from bullpen.cli.output import show_json
from bullpen.cli.settings import find_all

MAX_AGE = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", nargs="?", metavar="FOLDER", help="that of `bullpen worker --health` (default: $BULLPEN_HEALTH)"
    )
    parser.add_argument(
        "--ready", action="store_true", help="also fail if it claims no tasks: it starts, stops, or is stuck"
    )
    parser.add_argument(
        "--max-age",
        type=number(1, 86_400),
        default=MAX_AGE,
        metavar="S",
        help=f"fail if a process has not written for S seconds (default: {MAX_AGE:g})",
    )
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(arguments: argparse.Namespace) -> int:
    folder = find_all({"health": arguments.folder})["health"].value
    if not folder:
        raise CommandError("which worker? FOLDER, or BULLPEN_HEALTH, is that of its --health", ExitCode.USAGE)
    from bullpen.cli import health  # other commands need not wait for it

    processes = health.read(Path(folder))
    problem = problem_of(folder, processes, max_age=arguments.max_age, ready=arguments.ready)
    if arguments.json:
        show_json({"well": problem is None, "problem": problem, "processes": processes})
    elif problem is not None:
        raise CommandError(problem)
    else:
        for name, told in processes.items():
            print(f"{name}: {told['state']}, {told['running']} running")
    return ExitCode.OK if problem is None else ExitCode.FAILED


COMMAND = Command("probe", "Tell by the exit code whether a worker is well.", add_arguments, run)


def problem_of(folder: str, processes: dict[str, dict[str, Any]], *, max_age: float, ready: bool) -> str | None:
    """What is wrong, if something is."""
    if not processes:
        return f"no worker shows its health in {folder}; start one with --health {folder}"
    for name, told in processes.items():
        if told["age"] > max_age:
            return f"{name} has not written for {told['age']:.0f} s: its event loop stands still, or it was killed"
        if ready and not told.get("ready"):
            return f"{name} is {told.get('state', 'starting')}, and claims nothing"
    return None
