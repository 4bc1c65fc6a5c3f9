"""What `bullpen worker` does: find the queue, say what will run, run it."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from typing import NamedTuple

from bullpen import __version__
from bullpen.cli import logs
from bullpen.cli.app import import_module, load_queue
from bullpen.cli.blocked import LoopWatch
from bullpen.cli.command import CommandError, ExitCode
from bullpen.cli.health import shown
from bullpen.cli.leash import Leash
from bullpen.cli.reload import reload
from bullpen.cli.settings import find_all
from bullpen.cli.store import address_of, find_app
from bullpen.cli.supervisor import supervise
from bullpen.consumer.loops import LoopKind, new_runner
from bullpen.consumer.options import Lane, read_lanes
from bullpen.consumer.worker_pool import AsyncWorkerPool, queues_of
from bullpen.queue.task_queue import TaskQueue

FUNCTIONS_NAMED = 10

logger = logging.getLogger("bullpen.worker")


class Settings(NamedTuple):
    """What was typed, or set elsewhere."""

    app: str
    concurrency: int
    processes: int
    queues: Sequence[str] | None
    lanes: Sequence[str] | None
    grace: float
    imports: Sequence[str]
    loop: LoopKind
    health: str | None
    log_level: str

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Settings:
        found = find_all({name: getattr(arguments, name) for name in cls._fields})
        find_app(arguments.app)
        return cls(*(found[name].value for name in cls._fields))


def run(arguments: argparse.Namespace) -> int:
    leash = Leash.held()
    settings = Settings.of(arguments)
    logs.configure(settings.log_level, as_json=arguments.json, prefix=leash.name if leash is not None else "")
    if leash is None and arguments.reload:
        return reload(arguments.words, settings.grace)
    if leash is None and settings.processes > 1:
        return supervise(arguments.words, settings.processes, settings.grace)
    queue = _load(settings.app, settings.imports)
    lanes = lanes_of(settings, queue)
    if leash is None or leash.is_first:
        _introduce(queue, lanes, settings, as_json=arguments.json)
    with new_runner(settings.loop) as runner:
        runner.run(_serve(queue, lanes, settings, leash))
    return ExitCode.OK


def _load(app: str, imports: Sequence[str]) -> TaskQueue:
    """The queue, with functions to run: one without would only put tasks back."""
    queue = load_queue(app)
    for module in imports:
        import_module(module, module)
    if not len(queue.registry):
        raise CommandError(
            f"{app!r} has no tasks: nothing is decorated with @queue.task in what was imported. If that is in another "
            "module, import it with --import MODULE, or in the module of the queue",
            ExitCode.USAGE,
        )
    return queue


def lanes_of(settings: Settings, queue: TaskQueue) -> tuple[Lane, ...]:
    there = queues_of(queue.registry)
    if settings.lanes:
        lanes = read_lanes(settings.lanes, settings.concurrency)
    else:
        lanes = (Lane(tuple(settings.queues or there), settings.concurrency),)
    for name in (name for lane in lanes for name in lane.queues):
        if name not in there:
            logger.warning("no function here is of the queue %r by itself; there are %s", name, ", ".join(there))
    return lanes


def _introduce(queue: TaskQueue, lanes: Sequence[Lane], settings: Settings, *, as_json: bool) -> None:
    """Say what will run, and how to stop it."""
    functions = queue.registry.names()
    more = len(functions) - FUNCTIONS_NAMED
    processes = f", {settings.processes} processes" if settings.processes > 1 else ""
    lines = {
        "store": address_of(queue.storage),
        "lanes": " ".join(map(str, lanes)) + (" in each process" if processes else ""),
        "functions": ", ".join(functions[:FUNCTIONS_NAMED]) + (f" and {more} more" if more > 0 else ""),
        "stop": f"Ctrl-C or SIGTERM: tasks get {settings.grace:g} s to end; a second one releases them; a third kills",
    }
    if not queue.storage.durable:
        logger.warning("%s is in this process only: what others enqueue does not come here", lines["store"])
    if as_json:
        logger.info("bullpen %s works for %s: %s", __version__, settings.app, lines)
        return
    print(f"bullpen {__version__}: a worker for {settings.app}{processes}", file=sys.stderr)
    for name, text in lines.items():
        print(f"  {name:<9}  {text}", file=sys.stderr)
    sys.stderr.flush()


async def _serve(queue: TaskQueue, lanes: Sequence[Lane], settings: Settings, leash: Leash | None) -> None:
    name = leash.name if leash is not None else None
    pool = AsyncWorkerPool(queue, settings.concurrency, lanes=lanes, grace=settings.grace, name=name)
    loop = asyncio.get_running_loop()

    def stop(level: int) -> None:
        try:
            loop.call_soon_threadsafe(pool.begin_stop, ... if level == 1 else 0.0)
        except RuntimeError:  # it has just stopped by itself
            pass

    def started() -> None:
        if leash is not None:
            leash.say_ready()
            leash.follow(stop, settings.grace)

    with LoopWatch():
        async with shown(pool, settings.health):
            await pool.run(started)
