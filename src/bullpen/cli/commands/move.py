"""`bullpen move FROM TO`: moves all tasks to another store while workers and producers keep running."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bullpen.cli import store
from bullpen.cli.command import Command, CommandError, ExitCode, Stopped
from bullpen.cli.terminal.output import agrees, counted, show, show_json, text
from bullpen.cli.terminal.progress import ProgressBar
from bullpen.cli.terminal.screen import Line
from bullpen.tasks.storage.mover import Moved, Mover
from bullpen.tasks.storage.open import open_storage
from bullpen.tasks.storage.port import Storage
from bullpen.tasks.worker.reports import Reports
from bullpen.tasks.worker.upkeep import Upkeep

LEASE = 15.0  # the default lease of workers
AGAIN = 0.5  # seconds between two sweeps without a moved task
NAMED = 5  # ids of unmoved tasks to print


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="FROM", help="address of the store with the tasks")
    parser.add_argument("destination", metavar="TO", help="address of the store to move them to")
    parser.add_argument("--follow", action="store_true", help="keep moving tasks that arrive at FROM, until Ctrl-C")
    parser.add_argument(
        "--give-up",
        action="store_true",
        help="undo an interrupted move: let workers start its marked tasks at FROM again; move nothing",
    )
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask for confirmation")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    source, destination = open_storage(arguments.source), open_storage(arguments.destination)
    store.reject_what_is_not_there(source)
    store.reject_memory(destination)
    if store.is_same_store(source, destination):
        raise CommandError("FROM and TO are the same store", ExitCode.USAGE)
    if arguments.give_up:
        return asyncio.run(_give_up(arguments, source, destination))
    total = asyncio.run(_count(source))
    if not arguments.yes and not arguments.json and sys.stdin.isatty():  # a move can be undone: scripts need no --yes
        places = f"from {store.address_of(source)} to {store.address_of(destination)}"
        if not agrees(f"Move {counted(total, 'task', 'tasks')} {places}?"):
            raise CommandError("nothing was moved")
    stopped = Stopped()
    with stopped.by_signals():
        return asyncio.run(_move(arguments, source, destination, total, stopped))


async def _count(source: Storage) -> int:
    async with opened(source):
        return sum(sum(by_status.values()) for by_status in (await source.counts()).values())


@asynccontextmanager
async def opened(*storages: Storage) -> AsyncIterator[None]:
    try:
        for storage in storages:
            await storage.open()
        yield
    finally:
        for storage in storages:
            await storage.close()


async def _give_up(arguments: argparse.Namespace, source: Storage, destination: Storage) -> int:
    async with opened(source):
        released = await Mover(source, destination, store.address_of(destination)).give_up()
    if arguments.json:
        show_json({"released": released})
    else:
        show([text(f"{counted(released, 'task', 'tasks')} can start again at {store.address_of(source)}")])
    return ExitCode.OK


async def _move(
    arguments: argparse.Namespace, source: Storage, destination: Storage, total: int, stopped: Stopped
) -> int:
    async with opened(source, destination):
        mover = Mover(source, destination, store.address_of(destination), stopped=lambda: bool(stopped))
        await mover.take_queues_along()
        with ProgressBar("moved", total, quiet=arguments.json) as progress:
            await _until_all_are_moved(mover, source, progress, stopped, follow=arguments.follow)
        outcome = Moved(moved=mover.moved, left=mover.left, running=await mover.running())
    return _tell(arguments, outcome, stopped)


async def _until_all_are_moved(
    mover: Mover, source: Storage, progress: ProgressBar, stopped: Stopped, *, follow: bool
) -> None:
    upkeep = Upkeep(source, LEASE, Reports("move", "move", None, asyncio.get_running_loop().time))
    waits = False
    while not stopped:
        moved = await mover.sweep(progress.advance)
        if moved or stopped:
            continue
        running = await mover.running()
        if not running and not follow:
            return
        if not waits:
            waits = True
            these = counted(running, "running task", "running tasks") if running else "new tasks; Ctrl-C ends"
            progress.note(f"waiting for {these}")
        await upkeep.rescue()  # tasks of dead workers; no other worker may be left to do it
        await asyncio.sleep(AGAIN)


def _tell(arguments: argparse.Namespace, outcome: Moved, stopped: Stopped) -> int:
    if arguments.json:
        show_json(outcome)
    else:
        show(_picture(outcome))
    if stopped and not arguments.follow:
        return 128 + (stopped.signal or 0)
    return ExitCode.FAILED if outcome.left else ExitCode.OK


def _picture(outcome: Moved) -> list[Line]:
    lines = [text(counted(outcome.moved, "task", "tasks") + " moved")]
    if outcome.running:
        words = counted(outcome.running, "task still runs", "tasks still run")
        lines.append(text(f"{words} at the old store; run this command again when they have ended", style="late"))
    for why, many in Counter(outcome.left.values()).items():
        ids = [task_id for task_id, reason in outcome.left.items() if reason == why][:NAMED]
        words = counted(many, "task was not moved", "tasks were not moved")
        lines.append(text(f"{words}: {why} ({', '.join(ids)}{', …' if many > NAMED else ''})", style="late"))
    return lines


COMMAND = Command("move", "Move all tasks to another store while workers keep running.", add_arguments, run)
