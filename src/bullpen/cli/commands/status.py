"""`bullpen status`: counts tasks by queue and lists workers."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from bullpen.cli import store
from bullpen.cli.arguments import number
from bullpen.cli.command import Command, ExitCode
from bullpen.cli.terminal.output import duration, indented, show, show_json, table, text
from bullpen.cli.terminal.screen import Line, Screen, StyledText, is_live
from bullpen.tasks.client.task_queue import LARGEST_PAGE, TaskQueue
from bullpen.tasks.client.why import STALE_AFTER
from bullpen.tasks.model.info import as_datetime
from bullpen.tasks.model.task import FINAL, TaskStatus
from bullpen.tasks.storage.port import Counts, Limit, WorkerRecord
from bullpen.tasks.worker.identity import is_dead

WORKER_HEADER = ("worker", "pid", "host", "queues", "running", "of", "")
COUNT_STYLES = {TaskStatus.RUNNING: "running", TaskStatus.SUCCESS: "good", TaskStatus.FAILED: "bad"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--watch",
        nargs="?",
        type=number(0.1, 3600),
        const=1.0,
        metavar="S",
        help="again every S seconds until Ctrl-C (default: 1)",
    )
    store.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    with store.open_queue(arguments) as queue:
        if arguments.watch is None:
            _tell(look(queue), arguments.json)
        elif arguments.json or not is_live(sys.stdout, os.environ.get("TERM", "")):
            _tell_again_and_again(queue, arguments.watch, arguments.json)
        else:
            _watch(queue, arguments.watch)
    return ExitCode.OK


COMMAND = Command("status", "Show the queues and the workers.", add_arguments, run)


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of a store."""

    store: str
    at: datetime
    queues: Counts
    paused: frozenset[str]
    limits: tuple[Limit, ...]
    workers: tuple[WorkerRecord, ...]  # `running` is counted here: the record may be seconds old

    @property
    def finished(self) -> int:
        return sum(many for counts in self.queues.values() for status, many in counts.items() if status in FINAL)


def look(queue: TaskQueue) -> Status:
    workers = queue.workers()
    running = (
        Counter(task.worker for task in queue.list(status="running", limit=LARGEST_PAGE)) if workers else Counter()
    )
    return Status(
        store=store.address_of(queue.storage),
        at=datetime.now(UTC),
        queues=queue.counts(),
        paused=queue.paused(),
        limits=tuple(queue.limits()),
        workers=tuple(msgspec.structs.replace(worker, running=running[worker.id]) for worker in workers),
    )


def _tell(status: Status, as_json: bool) -> None:
    if as_json:
        show_json(document(status))
    else:
        show(picture(status))


def _tell_again_and_again(queue: TaskQueue, seconds: float, as_json: bool) -> None:
    while True:
        _tell(look(queue), as_json)
        sys.stdout.flush()
        time.sleep(seconds)


def _watch(queue: TaskQueue, seconds: float) -> None:
    with Screen(sys.stdout, colours=not os.environ.get("NO_COLOR")) as screen:
        before: Status | None = None
        while True:
            status = look(queue)
            screen.draw([*picture(status), (), _rate(before, status)])
            before = status
            time.sleep(seconds)


def _rate(before: Status | None, now: Status) -> Line:
    if before is None:
        return text("Ctrl-C ends", style="quiet")
    passed = (now.at - before.at).total_seconds()
    return text(
        f"{max(now.finished - before.finished, 0) / passed:.0f} finished per second; Ctrl-C ends", style="quiet"
    )


def picture(status: Status) -> list[Line]:
    """The status as text."""
    lines = [(StyledText(status.store, "strong"),), ()]
    if status.queues:
        lines += indented(
            table(("queue", *map(str, TaskStatus), ""), [_queue_row(name, status) for name in _names(status)], indent=2)
        )
    else:
        lines += indented([text("no tasks", style="quiet")])
    lines.append(())
    if status.workers:
        rows = [worker_row(worker, worker.running, status.at) for worker in status.workers]
        lines += indented(table(WORKER_HEADER, rows, keep=WORKER_HEADER[:1], indent=2))
    else:
        lines += indented([text("no workers; start one with `bullpen worker APP`", style="quiet")])
    return lines


def _names(status: Status) -> Sequence[str]:
    return sorted({*status.queues, *status.paused, *(limit.queue for limit in status.limits)})


def _queue_row(name: str, status: Status) -> Sequence[StyledText]:
    counts = status.queues.get(name, {})
    cells = [_count(counts.get(kind, 0), COUNT_STYLES.get(kind, "")) for kind in TaskStatus]
    return (
        StyledText(name),
        *cells,
        StyledText(", ".join(remarks(name in status.paused, _limit_of(name, status))), "late"),
    )


def _count(many: int, style: str) -> StyledText:
    return StyledText(str(many), style if many else "quiet")


def remarks(paused: bool, limit: Limit | None) -> list[str]:
    """Pause and limits of a queue."""
    told = ["‖ paused"] if paused else []
    if limit is not None and not limit.is_readable:
        told.append("its limit cannot be read")
    elif limit is not None:
        fields = {
            f"at most {limit.max_running} at once": limit.max_running,
            f"at most {limit.max_running_per_key} per key": limit.max_running_per_key,
            f"at most {limit.rate or 0:g} per second": limit.rate,
            "in order per key": limit.in_order or None,
        }
        told += [words for words, value in fields.items() if value is not None]
    return told


def _limit_of(name: str, status: Status) -> Limit | None:
    return next((limit for limit in status.limits if limit.queue == name), None)


def worker_row(worker: WorkerRecord, running: int, now: datetime) -> Sequence[StyledText]:
    return (
        StyledText(worker.id),
        StyledText(str(worker.pid)),
        StyledText(worker.host),
        StyledText(",".join(worker.queues)),
        StyledText(str(running), "running" if running else "quiet"),
        StyledText(str(worker.concurrency)),
        _health(worker, now),
    )


def is_up(worker: WorkerRecord, now: datetime) -> bool:
    """Whether a worker is neither dead nor silent."""
    return not is_dead(worker) and (now - as_datetime(worker.seen_at)).total_seconds() <= STALE_AFTER


def _health(worker: WorkerRecord, now: datetime) -> StyledText:
    silent = (now - as_datetime(worker.seen_at)).total_seconds()
    if is_dead(worker):
        return StyledText("✕ dead; other workers run its tasks", "bad")
    if silent > STALE_AFTER:
        return StyledText(f"✕ silent for {duration(silent)}", "bad")
    if worker.stopping:
        return StyledText("◐ stopping", "late")
    return StyledText(f"✓ up for {duration((now - as_datetime(worker.started_at)).total_seconds())}", "good")


def document(status: Status) -> dict[str, Any]:
    """For programs."""
    return {
        "store": status.store,
        "at": status.at,
        "queues": {
            name: {
                **{str(kind): status.queues.get(name, {}).get(kind, 0) for kind in TaskStatus},
                "paused": name in status.paused,
                "limits": _limit_of(name, status),
            }
            for name in _names(status)
        },
        "workers": [worker_document(worker, worker.running) for worker in status.workers],
    }


def worker_document(worker: WorkerRecord, running: int) -> dict[str, Any]:
    return {
        "id": worker.id,
        "host": worker.host,
        "pid": worker.pid,
        "queues": worker.queues,
        "running": running,
        "concurrency": worker.concurrency,
        "stopping": worker.stopping,
        "dead": is_dead(worker),
        "started_at": as_datetime(worker.started_at),
        "seen_at": as_datetime(worker.seen_at),
    }
