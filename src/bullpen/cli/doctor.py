"""`bullpen doctor`: what is wrong with a queue and its store, and what to do."""

from __future__ import annotations

import argparse
import asyncio
import logging
import time
from collections.abc import Sequence

from bullpen.cli import store
from bullpen.cli.command import Command, ExitCode
from bullpen.cli.diagnosis import Look, diagnose, of_schema, problem
from bullpen.cli.output import indented, show, show_json, text
from bullpen.cli.terminal import Line, Span
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
from bullpen.storage.port import Concern, HasConcerns, HasSchema, Storage, TaskFilter
from bullpen.tasks.task import PENDING, RUNNING

PAGE = 1000
PATIENCE = 15.0  # seconds, for a server that does not answer
WHAT = "the server or file, its version, settings, disk and clock; workers, queues, leases, functions, backlog"

ADVICE: dict[type[StorageError], str] = {
    StorageUnavailable: "is the address right, the server up, the password and the firewall in order?",
    StorageBusy: "somebody holds it for long; look for another program that writes to it",
    StorageFull: "make room on its disk or in its memory",
    StorageReadOnly: "let this user write to it and to its folder",
    StorageCorrupt: "restore it from a backup; nothing was repaired or replaced",
    NotABullpenFile: "name another file",
    UnsafeFile: "put it on a local disk, as a file of its own",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--strict", action="store_true", help="a warning is an exit code of 1 too")
    store.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    logging.getLogger("bullpen.storage").setLevel(logging.CRITICAL)  # what it says is in the findings, too
    with store.find_queue(arguments) as queue:
        store.refuse_what_is_not_there(queue.storage)
        address = store.address_of(queue.storage)
        found = asyncio.run(examine(queue.storage.another() or queue.storage))
    bad = any(one.level == "problem" or arguments.strict for one in found)
    if arguments.json:
        show_json({"store": address, "ok": not found, "findings": found})
    else:
        show([(Span(address, "strong"),), ()])
        show(_picture(found))
    return ExitCode.FAILED if bad else ExitCode.OK


async def examine(storage: Storage) -> list[Concern]:
    """Everything, as far as one can get."""
    try:
        async with asyncio.timeout(PATIENCE):
            if isinstance(storage, HasSchema) and (found := of_schema(await storage.look_at_schema())):
                return found
            concerns = list(await storage.concerns()) if isinstance(storage, HasConcerns) else []
            if any(one.kind == "eviction" for one in concerns):
                return concerns  # such a store is not even opened
            try:
                await storage.open()
                return [*concerns, *diagnose(await look_at(storage))]
            finally:
                await storage.close()
    except TimeoutError as error:
        words = str(error) or f"the store did not answer within {PATIENCE:g} s"
        return [problem("unreachable", words, ADVICE[StorageUnavailable])]
    except StorageError as error:
        advice = next((ADVICE[kind] for kind in type(error).__mro__ if kind in ADVICE), "see the message above")
        return [problem("unreachable", str(error), advice)]
    except BullpenError as error:
        return [problem("unusable", str(error), "see the message above")]


async def look_at(storage: Storage) -> Look:
    began = time.time()
    now = await storage.now()
    ahead = now - (began + time.time()) / 2
    counts = await storage.counts()
    waiting = {queue: by_status[PENDING] for queue, by_status in counts.items() if by_status.get(PENDING)}
    return Look(
        now=now,
        ahead=ahead,
        waiting=waiting,
        oldest={
            queue: await storage.list(TaskFilter(queues=(queue,), statuses=(PENDING,)), limit=PAGE) for queue in waiting
        },
        running=await storage.list(TaskFilter(statuses=(RUNNING,)), limit=PAGE),
        paused=await storage.paused(),
        workers=await storage.workers(),
    )


def _picture(found: Sequence[Concern]) -> list[Line]:
    if not found:
        return [(Span("✓ ", "good"), Span("nothing is wrong")), *indented([text(f"looked at {WHAT}", style="quiet")])]
    lines: list[Line] = []
    for one in found:
        mark = Span("✕ ", "bad") if one.level == "problem" else Span("! ", "late")
        lines += [(mark, Span(one.words)), *indented([text(one.advice, style="quiet")])]
    return lines


COMMAND = Command("doctor", "Say what is wrong, and what to do about it.", add_arguments, run)
