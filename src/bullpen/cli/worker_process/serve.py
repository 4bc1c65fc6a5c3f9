"""The body of `bullpen worker`: imports the queue, prints what it serves, and runs the worker."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from bullpen import __version__
from bullpen.cli.app import import_module, load_queue
from bullpen.cli.command import CommandError, ExitCode
from bullpen.cli.settings import find_all
from bullpen.cli.store import address_of, find_app
from bullpen.cli.worker_process import logs
from bullpen.cli.worker_process.health import shown
from bullpen.cli.worker_process.loop_watch import LoopWatch
from bullpen.cli.worker_process.parent_link import ParentLink
from bullpen.escaping import escape
from bullpen.tasks.client.task_queue import TaskQueue
from bullpen.tasks.model.queue_patterns import is_pattern
from bullpen.tasks.worker.loops import LoopKind, new_runner
from bullpen.tasks.worker.options import Lane, read_lanes
from bullpen.tasks.worker.worker_pool import AsyncWorkerPool, queues_of

FUNCTIONS_NAMED = 10

logger = logging.getLogger("bullpen.worker")


class Settings(NamedTuple):
    """The settings of a worker, from flags, environment, file and defaults."""

    app: str
    concurrency: int
    processes: int
    queues: Sequence[str] | None
    lanes: Sequence[str] | None
    grace: float
    imports: Sequence[str]
    loop: LoopKind
    health: str | None
    metrics_port: int | None
    metrics_host: str
    log_level: str

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Settings:
        found = find_all({name: getattr(arguments, name) for name in cls._fields}, arguments.config)
        find_app(arguments.app, arguments.config)
        return cls(*(found[name].value for name in cls._fields))


def run(arguments: argparse.Namespace) -> int:
    settings = Settings.of(arguments)  # first: it warns of unknown variables, except below a supervisor
    parent_link = ParentLink.held()
    logs.configure(
        settings.log_level, as_json=arguments.json, prefix=parent_link.name if parent_link is not None else ""
    )
    if parent_link is None and arguments.reload:
        from bullpen.cli.worker_process.reload import reload  # here and below: a worker alone needs neither

        return reload(arguments.words, settings.grace)
    if parent_link is None and settings.processes > 1:
        from bullpen.cli.worker_process.supervisor import supervise

        if settings.metrics_port is None:
            return supervise(arguments.words, settings.processes, settings.grace)
        from bullpen.cli.worker_process.metrics import served_for_processes

        address = (settings.metrics_host, settings.metrics_port)
        return supervise(
            arguments.words, settings.processes, settings.grace, lambda ports: served_for_processes(ports, *address)
        )
    queue = _load(settings.app, settings.imports)
    lanes = lanes_of(settings, queue)
    if parent_link is None or parent_link.is_first:
        _log_startup(queue, lanes, settings, as_json=arguments.json)
    with new_runner(settings.loop) as runner:
        runner.run(_serve(queue, lanes, settings, parent_link))
    return ExitCode.OK


def _load(app: str, imports: Sequence[str]) -> TaskQueue:
    """The queue of APP. It needs functions: without any, the worker would only release tasks."""
    queue = load_queue(app)
    for module in imports:
        import_module(module, module)
    if not len(queue.registry):
        raise CommandError(
            f"{app!r} has no tasks: the imported modules have no function with @queue.task. Import the module that has "
            "them with --import MODULE, or in the module of the queue",
            ExitCode.USAGE,
        )
    return queue


def lanes_of(settings: Settings, queue: TaskQueue) -> tuple[Lane, ...]:
    existing = queues_of(queue.registry)
    if settings.lanes:
        lanes = read_lanes(settings.lanes, settings.concurrency)
    else:
        lanes = (Lane(tuple(settings.queues or existing), settings.concurrency),)
    for name in (name for lane in lanes for name in lane.queues):
        if name not in existing and not is_pattern(name):  # a pattern is for queues that a call names
            message = "no registered function uses the queue %r; the registered functions use %s"
            logger.warning(message, name, ", ".join(existing))
    return lanes


def _log_startup(queue: TaskQueue, lanes: Sequence[Lane], settings: Settings, *, as_json: bool) -> None:
    """Print what the worker serves and how to stop it."""
    functions = queue.registry.names()
    more = len(functions) - FUNCTIONS_NAMED
    processes = f", {settings.processes} processes" if settings.processes > 1 else ""
    signals = f"1st signal: finish within {settings.grace:g} s. 2nd: release the tasks and exit. 3rd: exit now."
    lines = {
        "store": address_of(queue.storage),
        "lanes": " ".join(map(str, lanes)) + (" in each process" if processes else ""),
        "functions": ", ".join(functions[:FUNCTIONS_NAMED]) + (f" and {more} more" if more > 0 else ""),
        "stop": f"Ctrl-C or SIGTERM. {signals}",
    }
    if not queue.storage.durable:
        logger.warning(
            "%s lives in this process only: tasks that other processes enqueue do not arrive here", lines["store"]
        )
    if as_json:
        logger.info("bullpen %s: worker for %s: %s", __version__, settings.app, lines)
        return
    print(escape(f"bullpen {__version__}: worker for {settings.app}{processes}"), file=sys.stderr)
    for name, text in lines.items():
        print(escape(f"  {name:<9}  {text}"), file=sys.stderr)
    sys.stderr.flush()


async def _serve(queue: TaskQueue, lanes: Sequence[Lane], settings: Settings, parent_link: ParentLink | None) -> None:
    name = parent_link.name if parent_link is not None else None
    pool = AsyncWorkerPool(queue, settings.concurrency, lanes=lanes, grace=settings.grace, name=name)
    loop = asyncio.get_running_loop()

    def stop(level: int) -> None:
        try:
            loop.call_soon_threadsafe(pool.begin_stop, ... if level == 1 else 0.0)
        except RuntimeError:  # the worker has stopped meanwhile
            pass

    def started() -> None:
        if parent_link is not None:
            parent_link.say_ready()
            parent_link.follow(stop, settings.grace)

    metrics: AbstractContextManager[object] = nullcontext()
    if settings.metrics_port is not None:
        from bullpen.cli.worker_process.metrics import served

        listening = None if parent_link is None else parent_link.metrics
        metrics = served(queue, pool, settings.metrics_host, settings.metrics_port, listening)
    with LoopWatch(), metrics:
        async with shown(pool, settings.health):
            await pool.run(started)
