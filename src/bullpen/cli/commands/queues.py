"""`bullpen queues`: lists queues with their tasks and workers; pauses, resumes and limits them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import msgspec

from bullpen.cli import store
from bullpen.cli.arguments import number, whole
from bullpen.cli.command import Command, CommandError, CommandGroup, ExitCode
from bullpen.cli.commands.status import COUNT_STYLES, is_up, remarks
from bullpen.cli.terminal.output import show, show_json, table, text
from bullpen.cli.terminal.screen import StyledText
from bullpen.errors import did_you_mean
from bullpen.tasks.client.task_queue import TaskQueue
from bullpen.tasks.model.queue_patterns import is_pattern
from bullpen.tasks.model.task import TaskStatus
from bullpen.tasks.storage.port import Limit

NONE = "none"


class QueueState(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of a queue."""

    name: str
    counts: dict[str, int]
    paused: bool
    limit: Limit | None
    workers: int


def _look(queue: TaskQueue) -> list[QueueState]:
    counts, paused, workers = queue.counts(), queue.paused(), queue.workers()
    limits = {limit.queue: limit for limit in queue.limits()}
    now = datetime.now(UTC)
    up = [worker for worker in workers if is_up(worker, now)]
    served = {name for worker in up for name in worker.queues if not is_pattern(name)}
    return [
        QueueState(
            name=name,
            counts={str(status): counts.get(name, {}).get(status, 0) for status in TaskStatus},
            paused=name in paused,
            limit=limits.get(name),
            workers=sum(worker.serves(name) for worker in up),
        )
        for name in sorted({*counts, *paused, *limits, *served})
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
        show([text("no queues: the store has no tasks and no workers", style="quiet")])
    else:
        show(table(("queue", *map(str, TaskStatus), "workers", ""), [_row(state) for state in states]))
    return ExitCode.OK


def _row(state: QueueState) -> Sequence[StyledText]:
    cells = [
        StyledText(
            str(state.counts[str(status)]), COUNT_STYLES.get(status, "") if state.counts[str(status)] else "quiet"
        )
        for status in TaskStatus
    ]
    lacks_workers = not state.workers and state.counts[str(TaskStatus.PENDING)]
    workers = StyledText(str(state.workers), "late" if lacks_workers else "" if state.workers else "quiet")
    return (StyledText(state.name), *cells, workers, StyledText(", ".join(remarks(state.paused, state.limit)), "late"))


# Change.


def _add_names(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("queues", nargs="+", metavar="QUEUE", help="names of queues")
    store.add_arguments(parser)


def _pause(arguments: argparse.Namespace) -> int:
    return _change(arguments, lambda queue, name: queue.pause(name))


def _resume(arguments: argparse.Namespace) -> int:
    return _change(arguments, lambda queue, name: queue.resume(name))


def _change(arguments: argparse.Namespace, change: Callable[[TaskQueue, str], None]) -> int:
    with store.open_queue(arguments) as queue:
        _reject_unknown(queue, arguments.queues)
        for name in arguments.queues:
            change(queue, name)
        return _tell(arguments, [state for state in _look(queue) if state.name in arguments.queues])


def _reject_unknown(queue: TaskQueue, names: Sequence[str]) -> None:
    """An unused name is most likely a typing error."""
    known = {state.name for state in _look(queue)} | {definition.options.queue for definition in queue.registry}
    for name in names:
        if name not in known and not any(worker.serves(name) for worker in queue.workers()):
            hint = did_you_mean(name, known) or f"; the queues are {', '.join(sorted(known))}" if known else ""
            raise CommandError(f"no task and no worker has the queue {name!r}{hint}", ExitCode.NOT_FOUND)


def _add_limit_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("queue", metavar="QUEUE", help="name of a queue")
    most = _or_none(whole(1, 1_000_000_000))
    parser.add_argument("--max-running", type=most, metavar="N", help="at most N tasks run at once; none: no limit")
    parser.add_argument(
        "--max-running-per-key",
        type=most,
        metavar="N",
        help="at most N tasks of each concurrency key run at once; none: no limit",
    )
    rate = _or_none(number(1e-6, 1e9))
    parser.add_argument("--rate", type=rate, metavar="R", help="at most R tasks start per second; none: no limit")
    parser.add_argument(
        "--in-order",
        action=argparse.BooleanOptionalAction,
        help="run tasks of a concurrency key one at a time, in the order of enqueueing",
    )
    parser.add_argument(
        "--reset",
        action="store_true",
        help="restore the limits that the code of --app declares; with --url, remove them",
    )
    store.add_arguments(parser)


def _or_none(read: Callable[[str], float]) -> Callable[[str], float | str]:
    return lambda written: NONE if written == NONE else read(written)


def _limit(arguments: argparse.Namespace) -> int:
    """Limits without a flag stay as they are."""
    said = {name: getattr(arguments, name) for name in ("max_running", "max_running_per_key", "rate", "in_order")}
    changes = {name: None if value == NONE else value for name, value in said.items() if value is not None}
    if arguments.reset and changes:
        raise CommandError("--reset cannot be combined with other limits", ExitCode.USAGE)
    with store.open_queue(arguments) as queue:
        _reject_unknown(queue, [arguments.queue])
        if arguments.reset:
            queue.reset_limit(arguments.queue)
        elif changes:
            existing = next((limit for limit in queue.limits() if limit.queue == arguments.queue), None)
            terms = msgspec.structs.asdict(existing or Limit(queue=arguments.queue)) | changes
            del terms["declared"]  # from now on the operator's limit, not the code's
            queue.set_limit(**terms)
        return _tell(arguments, [state for state in _look(queue) if state.name == arguments.queue])


GROUP = CommandGroup(
    "queues",
    "List queues; pause, resume and limit them.",
    (
        Command("list", "List queues with their tasks, workers, pauses and limits.", _add_list_arguments, _list),
        Command("pause", "Stop starting tasks of queues, on all workers.", _add_names, _pause),
        Command("resume", "Start tasks of paused queues again.", _add_names, _resume),
        Command("limit", "Limit a queue across all workers, or show its limits.", _add_limit_arguments, _limit),
    ),
)
