"""`bullpen doctor`: finds problems of a store, its queues and workers, and says how to fix them."""

from __future__ import annotations

import argparse
import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bullpen.cli import store
from bullpen.cli.command import Command, ExitCode
from bullpen.cli.diagnosis import MOST_COUNTED, RECENT, Look, diagnose, of_schema, problem
from bullpen.cli.terminal.output import indented, show, show_json, text, wrapped
from bullpen.cli.terminal.screen import Line, StyledText
from bullpen.errors import (
    BullpenError,
    NotABullpenFile,
    StorageBusy,
    StorageCorrupt,
    StorageError,
    StorageFull,
    StorageReadOnly,
    StorageUnavailable,
    UnsafeFile,
)
from bullpen.tasks.model.failure_groups import FAILURES_KEPT, groups
from bullpen.tasks.model.history import HOUR, MINUTE
from bullpen.tasks.model.task import PENDING, RUNNING, Task
from bullpen.tasks.storage.port import HealthFinding, Storage, SupportsHealthChecks, SupportsMigrations, TaskFilter

PAGE = 1000
EARLIER = 6 * HOUR  # seconds in which a function without failures counts as one that works
PATIENCE = 15.0  # seconds until a server that does not answer counts as unreachable
WHAT = "the server or file, its version, settings, disk and clock; workers, queues, leases, functions, backlog"
WHAT += ", failures"

ADVICE: dict[type[StorageError], str] = {
    StorageUnavailable: "check the address, the server, the password and the firewall",
    StorageBusy: "another program keeps the store locked: find and stop it",
    StorageFull: "free space on its disk or in its memory",
    StorageReadOnly: "give this user write access to the file and its folder",
    StorageCorrupt: "restore it from a backup; Bullpen repairs and replaces nothing",
    NotABullpenFile: "name another file",
    UnsafeFile: "put the database on a local disk, as a regular file that only its user can write",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--strict", action="store_true", help="exit with 1 on warnings, too")
    store.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    with store.find_queue(arguments) as queue, _silence():
        store.reject_what_is_not_there(queue.storage)
        address = store.address_of(queue.storage)
        found = asyncio.run(examine(queue.storage.another() or queue.storage))
    bad = any(one.level == "problem" or arguments.strict for one in found)
    if arguments.json:
        show_json({"store": address, "ok": not found, "findings": found})
    else:
        show([(StyledText(address, "strong"),), ()])
        show(_picture(found))
    return ExitCode.FAILED if bad else ExitCode.OK


@contextmanager
def _silence() -> Iterator[None]:
    """The stores log nothing, because the findings repeat it."""
    logger = logging.getLogger("bullpen.storage")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


async def examine(storage: Storage, page: int = PAGE) -> list[HealthFinding]:
    """All findings, as far as the store can be reached."""
    try:
        async with asyncio.timeout(PATIENCE):
            if isinstance(storage, SupportsMigrations) and (found := of_schema(await storage.look_at_schema())):
                return found
            concerns = list(await storage.check_health()) if isinstance(storage, SupportsHealthChecks) else []
            if any(one.kind == "eviction" for one in concerns):
                return concerns  # the adapter does not open such a store
            try:
                await storage.open()
                return [*concerns, *diagnose(await look_at(storage, page))]
            finally:
                await storage.close()
    except TimeoutError as error:
        words = str(error) or f"the store did not answer within {PATIENCE:g} s"
        return [problem("unreachable", words, ADVICE[StorageUnavailable])]
    except StorageError as error:
        advice = next(
            (ADVICE[kind] for kind in type(error).__mro__ if kind in ADVICE), "the message above names the cause"
        )
        return [problem("unreachable", str(error), advice)]
    except BullpenError as error:
        return [problem("unusable", str(error), "the message above names the cause")]


async def look_at(storage: Storage, page: int = PAGE) -> Look:
    """`page`: how many pending tasks of each queue are read."""
    began = time.time()
    now = await storage.now()
    ahead = now - (began + time.time()) / 2
    first = int(now - FAILURES_KEPT) // HOUR * HOUR
    counts = await storage.counts(MOST_COUNTED)
    waiting = {queue: by_status[PENDING] for queue, by_status in counts.items() if by_status.get(PENDING)}
    oldest: dict[str, list[Task]] = {queue: [] for queue in waiting}
    for task in await storage.first_pending(page):
        oldest.setdefault(task.queue, []).append(task)
    return Look(
        now=now,
        ahead=ahead,
        queues=frozenset(counts),
        waiting=waiting,
        oldest=oldest,
        running=await storage.list(TaskFilter(statuses=(RUNNING,)), limit=page),
        awaiting=await storage.list(TaskFilter(awaits=""), limit=page),
        paused=await storage.paused(),
        limits=await storage.limits(),
        workers=await storage.workers(),
        failures=groups(await storage.failures(first), since=first, until=now),
        history=await storage.history(MINUTE, int(now - RECENT), now + 1),
        hours=await storage.history(HOUR, now - EARLIER, now + 1),
    )


def _picture(found: Sequence[HealthFinding]) -> list[Line]:
    if not found:
        return [
            (StyledText("✓ ", "good"), StyledText("no problems found")),
            *indented([text(f"checked {WHAT}", style="quiet")]),
        ]
    lines: list[Line] = []
    for one in found:
        mark = StyledText("✕ ", "bad") if one.level == "problem" else StyledText("! ", "late")
        message, advice = wrapped(one.message, by=2), wrapped(one.advice, by=2)
        lines += [(mark, StyledText(message[0])), *indented(text(more) for more in message[1:])]
        lines += indented(text(more, style="quiet") for more in advice)
    return lines


COMMAND = Command("doctor", "Find problems and say how to fix them.", add_arguments, run)
