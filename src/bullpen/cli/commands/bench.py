"""`bullpen bench`: measures a store from this machine, in a queue of its own. It deletes its tasks at the end."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from bullpen.cli import store
from bullpen.cli.arguments import whole
from bullpen.cli.command import Command, CommandError, ExitCode, Stopped
from bullpen.cli.terminal.output import duration, show, show_json, table, text
from bullpen.cli.terminal.progress import ProgressBar
from bullpen.cli.terminal.screen import StyledText
from bullpen.tasks.client.ids import new_ids
from bullpen.tasks.model.task import PENDING, RUNNING, Settlement, Task, cancel, succeed
from bullpen.tasks.storage.port import Storage, TaskFilter

QUEUE = "bullpen-bench"
WORKER = "bullpen-bench"
PAYLOAD = b'{"args": ["somebody@example.org", 12345], "kwargs": {}}'
ONE_BY_ONE = 200
BATCH = 100
LEASE = 60.0
FRESH = 60.0  # seconds: younger tasks in the queue belong to another measurement


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tasks",
        type=whole(2 * ONE_BY_ONE, 1_000_000),
        default=5000,
        metavar="N",
        help="number of tasks (default: 5000)",
    )
    store.add_arguments(parser)


class Measure(msgspec.Struct, frozen=True, kw_only=True):
    """Repeated calls of one kind."""

    what: str
    tasks: int
    seconds: float
    calls: tuple[float, ...]  # seconds of each call

    @property
    def rate(self) -> float:
        return self.tasks / self.seconds

    @property
    def median(self) -> float:
        import statistics  # imported late: other commands start faster

        return statistics.median(self.calls)

    def document(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "tasks": self.tasks,
            "seconds": self.seconds,
            "tasks_per_second": self.rate,
            "calls": len(self.calls),
            "median_call_seconds": self.median,
            "slowest_call_seconds": max(self.calls),
        }


def run(arguments: argparse.Namespace) -> int:
    stopped = Stopped()
    with store.find_queue(arguments) as queue, stopped.by_signals():
        store.reject_memory(queue.storage)
        address = store.address_of(queue.storage)
        with ProgressBar("measuring", 2 * arguments.tasks, quiet=arguments.json) as progress:
            storage = queue.storage.another() or queue.storage
            measures = asyncio.run(measure(storage, arguments.tasks, progress.advance, stopped))
    if stopped:
        return 128 + (stopped.signal or 0)
    if arguments.json:
        show_json({"store": address, "measures": [one.document() for one in measures]})
    else:
        show(
            [
                (StyledText(address, "strong"),),
                (),
                *table(("", "tasks/s", "median call", "slowest call"), _rows(measures)),
                (),
            ]
        )
        show(
            [text("Measured with one client on this machine. The tasks of the measurement are deleted.", style="quiet")]
        )
    return ExitCode.OK


def _rows(measures: Sequence[Measure]) -> list[tuple[StyledText, ...]]:
    return [
        (
            StyledText(one.what),
            StyledText(f"{one.rate:.0f}", "strong"),
            StyledText(duration(one.median)),
            StyledText(duration(max(one.calls)), "quiet"),
        )
        for one in measures
    ]


async def measure(storage: Storage, tasks: int, progress: Callable[[int], object], stopped: Stopped) -> list[Measure]:
    await storage.open()
    try:
        await _make_room(storage)
        try:
            return await _measure(storage, tasks, progress, stopped)
        finally:
            await clean(storage)
    finally:
        await storage.close()


async def _make_room(storage: Storage) -> None:
    left = await storage.list(TaskFilter(queues=(QUEUE,)), limit=1000)
    if left and await storage.now() - max(task.created_at for task in left) < FRESH:
        raise CommandError(f"another measurement is running: the queue {QUEUE!r} has new tasks; try again in a minute")
    await clean(storage)


async def _measure(storage: Storage, tasks: int, progress: Callable[[int], object], stopped: Stopped) -> list[Measure]:
    async def add(count: int) -> int:
        await storage.add([_task(task_id) for task_id in new_ids(count)])
        return count

    held: list[Task] = []

    async def claim(_: int) -> int:
        claimed = await exchange([])
        held.extend(claimed)
        return len(claimed)

    async def settle_and_claim(_: int) -> int:
        settlements = [succeed(task, b"null") for task in held]
        held[:] = await exchange(settlements)
        return len(settlements)

    async def exchange(settlements: Sequence[Settlement]) -> Sequence[Task]:
        (claim_id,) = new_ids(1)
        done = await storage.exchange(
            settlements, worker=WORKER, queues=(QUEUE,), limit=BATCH, lease=LEASE, claim_id=claim_id
        )
        return done.claimed

    measures = []
    for what, many, size, call in (
        ("enqueue, one by one", ONE_BY_ONE, 1, add),
        (f"enqueue, {BATCH} at once", tasks - ONE_BY_ONE, BATCH, add),
        (f"claim, {BATCH} at once", tasks // 4, BATCH, claim),
        (f"settle and claim, {BATCH} at once", tasks, BATCH, settle_and_claim),
    ):
        if stopped:
            break
        measures.append(await _time(what, many, size, call, progress, stopped))
    return measures


async def _time(
    what: str,
    many: int,
    size: int,
    call: Callable[[int], Awaitable[int]],
    progress: Callable[[int], object],
    stopped: Stopped,
) -> Measure:
    calls: list[float] = []
    done = 0
    while done < many and not stopped:
        began = time.perf_counter()
        advanced = await call(min(size, many - done))
        calls.append(time.perf_counter() - began)
        done += advanced
        progress(advanced)
        if not advanced:
            break
    return Measure(what=what, tasks=done, seconds=sum(calls), calls=tuple(calls))


def _task(task_id: str) -> Task:
    return Task(id=task_id, func_path="bullpen.bench", payload=PAYLOAD, queue=QUEUE)


async def clean(storage: Storage) -> None:
    """Delete every task of the queue."""
    which = TaskFilter(queues=(QUEUE,))
    while page := await storage.list(which, limit=1000):
        running = [cancel(task) for task in page if task.status is RUNNING]
        if running:
            await storage.exchange(running, worker=WORKER, queues=(), limit=0, lease=LEASE, claim_id="none")
        await storage.export_tasks([task for task in page if task.status is PENDING])
        await storage.delete([task.id for task in page])


COMMAND = Command("bench", "Measure the speed of a store from this machine.", add_arguments, run)
