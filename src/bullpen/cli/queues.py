"""`bullpen queues`: what is in them, and who serves them; pause, resume and limit them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import msgspec

from bullpen.cli import store
from bullpen.cli.arguments import number, whole
from bullpen.cli.command import Command, CommandError, ExitCode, Group
from bullpen.cli.output import show, show_json, table, text
from bullpen.cli.status import COUNT_STYLES, is_up, remarks
from bullpen.cli.terminal import Span
from bullpen.pool.written import did_you_mean
from bullpen.queue.task_queue import TaskQueue
from bullpen.storage.port import Limit
from bullpen.tasks.task import TaskStatus

NONE = "none"


class QueueState(msgspec.Struct, frozen=True, kw_only=True):
    """A queue at one moment."""

    name: str
    counts: dict[str, int]
    paused: bool
    limit: Limit | None
    workers: int


def _look(queue: TaskQueue) -> list[QueueState]:
    counts, paused, workers = queue.counts(), queue.paused(), queue.workers()
    limits = {limit.queue: limit for limit in queue.limits()}
    now = datetime.now(UTC)
    serving = [name for worker in workers if is_up(worker, now) for name in worker.queues]
    return [
        QueueState(
            name=name,
            counts={str(status): counts.get(name, {}).get(status, 0) for status in TaskStatus},
            paused=name in paused,
            limit=limits.get(name),
            workers=serving.count(name),
        )
        for name in sorted({*counts, *paused, *limits, *serving})
    ]


def _add_list_arguments(parser: argparse.ArgumentParser) -> None:
    store.add_arguments(parser)


def _list(arguments: argparse.Namespace) -> int:
    with store.open_queue(arguments) as queue:
        return _tell(arguments, _look(queue))


def _tell(arguments: argparse.Namespace, states: Sequence[QueueState]) -> int:
    if arguments.json:
        show_json({"queues": states})
    elif not states:
        show([text("no queues: there are no tasks and no workers", style="quiet")])
    else:
        show(table(("queue", *map(str, TaskStatus), "workers", ""), [_row(state) for state in states]))
    return ExitCode.OK


def _row(state: QueueState) -> Sequence[Span]:
    cells = [
        Span(str(state.counts[str(status)]), COUNT_STYLES.get(status, "") if state.counts[str(status)] else "quiet")
        for status in TaskStatus
    ]
    nobody = not state.workers and state.counts[str(TaskStatus.PENDING)]
    workers = Span(str(state.workers), "late" if nobody else "" if state.workers else "quiet")
    return (Span(state.name), *cells, workers, Span(", ".join(remarks(state.paused, state.limit)), "late"))


# Change.


def _add_names(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("queues", nargs="+", metavar="QUEUE", help="the names of queues")
    store.add_arguments(parser)


def _pause(arguments: argparse.Namespace) -> int:
    return _change(arguments, lambda queue, name: queue.pause(name))


def _resume(arguments: argparse.Namespace) -> int:
    return _change(arguments, lambda queue, name: queue.resume(name))


def _change(arguments: argparse.Namespace, change: Callable[[TaskQueue, str], None]) -> int:
    with store.open_queue(arguments) as queue:
        _refuse_unknown(queue, arguments.queues)
        for name in arguments.queues:
            change(queue, name)
        return _tell(arguments, [state for state in _look(queue) if state.name in arguments.queues])


def _refuse_unknown(queue: TaskQueue, names: Sequence[str]) -> None:
    """A name that nobody uses is most likely a slip."""
    known = {state.name for state in _look(queue)} | {definition.options.queue for definition in queue.registry}
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known) or f"; there is {', '.join(sorted(known))}" if known else ""
            raise CommandError(f"no task and no worker has the queue {name!r}{hint}", ExitCode.NOT_FOUND)


def _add_limit_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("queue", metavar="QUEUE", help="the name of a queue")
    most = _or_none(whole(1, 1_000_000_000))
    parser.add_argument("--max-running", type=most, metavar="N", help="at most so many run at once; none: any number")
    parser.add_argument(
        "--max-running-per-key", type=most, metavar="N", help="… of each concurrency key; none: any number"
    )
    rate = _or_none(number(1e-6, 1e9))
    parser.add_argument("--rate", type=rate, metavar="R", help="at most so many start in a second; none: any number")
    parser.add_argument(
        "--in-order",
        action=argparse.BooleanOptionalAction,
        help="tasks of a concurrency key one at a time, as they were enqueued, or not",
    )
    parser.add_argument(
        "--reset", action="store_true", help="back to what the code of --app declares; with --url, to no limit"
    )
    store.add_arguments(parser)


def _or_none(read: Callable[[str], float]) -> Callable[[str], float | str]:
    return lambda written: NONE if written == NONE else read(written)


def _limit(arguments: argparse.Namespace) -> int:
    """What is not said stays as it is."""
    said = {name: getattr(arguments, name) for name in ("max_running", "max_running_per_key", "rate", "in_order")}
    changes = {name: None if value == NONE else value for name, value in said.items() if value is not None}
    if arguments.reset and changes:
        raise CommandError("--reset goes back, the others set something new: give one or the other", ExitCode.USAGE)
    with store.open_queue(arguments) as queue:
        _refuse_unknown(queue, [arguments.queue])
        if arguments.reset:
            queue.reset_limit(arguments.queue)
        elif changes:
            there = next((limit for limit in queue.limits() if limit.queue == arguments.queue), None)
            terms = msgspec.structs.asdict(there or Limit(queue=arguments.queue)) | changes
            del terms["declared"]  # it is the operator's from now on
            queue.set_limit(**terms)
        return _tell(arguments, [state for state in _look(queue) if state.name == arguments.queue])


GROUP = Group(
    "queues",
    "List queues; pause, resume and limit them.",
    (
        Command(
            "list", "List queues: how many tasks, who serves them, what holds them back.", _add_list_arguments, _list
        ),
        Command("pause", "Let no task of a queue start, in any worker.", _add_names, _pause),
        Command("resume", "Let tasks of a queue start again.", _add_names, _resume),
        Command("limit", "Limit a queue over all workers, or show its limits.", _add_limit_arguments, _limit),
    ),
)
