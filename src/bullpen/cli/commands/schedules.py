"""`bullpen schedules`: lists schedules and their next runs; pauses, resumes, runs and removes them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from bullpen.cli import store
from bullpen.cli.arguments import whole
from bullpen.cli.command import Command, CommandGroup, ExitCode
from bullpen.cli.terminal.output import facts, show, show_json, table, text, when
from bullpen.cli.terminal.screen import StyledText
from bullpen.tasks.client.schedules import MOST_TIMES
from bullpen.tasks.client.task_queue import TaskQueue
from bullpen.tasks.model.info import ScheduleInfo
from bullpen.tasks.model.task import TaskStatus


def _list(arguments: argparse.Namespace) -> int:
    with store.open_queue(arguments) as queue:
        return _tell(arguments, queue.schedules.list())


def _tell(arguments: argparse.Namespace, schedules: Sequence[ScheduleInfo]) -> int:
    if arguments.json:
        show_json({"schedules": schedules})
    elif not schedules:
        show([text("no schedules: declare one with @queue.task(cron=…), and start a worker", style="quiet")])
    else:
        now = datetime.now(UTC)
        rows = [_row(schedule, now) for schedule in schedules]
        show(table(("key", "runs", "next run", "completed", "last run", ""), rows))
    return ExitCode.OK


def _row(schedule: ScheduleInfo, now: datetime) -> Sequence[StyledText]:
    last = "never" if schedule.finished_at is None else when(schedule.finished_at, now)
    failed = schedule.error is not None and (schedule.finished_at is None or schedule.error.at >= schedule.finished_at)
    return (
        StyledText(schedule.key),
        StyledText(schedule.description),
        _next(schedule, now),
        StyledText(str(schedule.completed_runs)),
        StyledText(last, "quiet" if schedule.finished_at is None else ""),
        StyledText("last run failed" if failed else "", "bad"),
    )


def _next(schedule: ScheduleInfo, now: datetime) -> StyledText:
    if schedule.paused:
        return StyledText("paused", "late")
    if schedule.status is TaskStatus.RUNNING:
        return StyledText("runs now", "running")
    if schedule.next_run is None:
        return StyledText("never", "quiet")
    if schedule.next_run <= now:
        return StyledText("due")
    return StyledText(f"{when(schedule.next_run, now)}, {_clock(schedule.next_run)}", "accent")


def _clock(at: datetime) -> str:
    return f"{at:%a %Y-%m-%d %H:%M:%S %Z}"


def _add_next_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("key", metavar="KEY", help="key of a schedule, as `bullpen schedules` prints it")
    parser.add_argument(
        "--count", type=whole(1, MOST_TIMES), default=5, metavar="N", help="how many runs to print (default: 5)"
    )
    store.add_arguments(parser)


def _show_next(arguments: argparse.Namespace) -> int:
    with store.open_queue(arguments) as queue:
        schedule = queue.schedules.get(arguments.key)
        times = queue.schedules.next_times(arguments.key, arguments.count)
    if arguments.json:
        show_json({"key": schedule.key, "description": schedule.description, "paused": schedule.paused, "next": times})
        return ExitCode.OK
    show(facts([("key", schedule.key), ("function", schedule.name), ("runs", schedule.description)]))
    now = datetime.now(UTC)
    lines = [text(f"{_clock(at)}  ", when(at, now)) for at in times]
    show(lines or [text("paused" if schedule.paused else "the next run is unknown", style="quiet")])
    return ExitCode.OK


def _add_keys(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("keys", nargs="+", metavar="KEY", help="keys of schedules, as `bullpen schedules` prints them")
    store.add_arguments(parser)


def _changing(change: Callable[[TaskQueue, str], object]) -> Callable[[argparse.Namespace], int]:
    def run(arguments: argparse.Namespace) -> int:
        with store.open_queue(arguments) as queue:
            before = [
                queue.schedules.get(key) for key in arguments.keys
            ]  # fails before the first change if one is missing
            for schedule in before:
                change(queue, schedule.key)
            keys = {schedule.key for schedule in before}
            return _tell(arguments, [schedule for schedule in queue.schedules.list() if schedule.key in keys])

    return run


def _remove(arguments: argparse.Namespace) -> int:
    with store.open_queue(arguments) as queue:
        keys = [queue.schedules.get(key).key for key in arguments.keys]
        for key in keys:
            queue.schedules.remove(key)
    if arguments.json:
        show_json({"removed": keys})
    else:
        show([text(f"removed {key}") for key in keys])
    return ExitCode.OK


_pause = _changing(lambda queue, key: queue.schedules.pause(key))
_resume = _changing(lambda queue, key: queue.schedules.resume(key))
_run = _changing(lambda queue, key: queue.schedules.run(key))

GROUP = CommandGroup(
    "schedules",
    "List schedules; pause, resume, run and remove them.",
    (
        Command("list", "List schedules and their next runs.", store.add_arguments, _list),
        Command("next", "Show the next runs of a schedule.", _add_next_arguments, _show_next),
        Command("pause", "Pause schedules: start no runs.", _add_keys, _pause),
        Command("resume", "Resume schedules with their next time.", _add_keys, _resume),
        Command("run", "Run schedules once, now, in addition to their times.", _add_keys, _run),
        Command("remove", "Remove schedules that no function declares.", _add_keys, _remove),
    ),
)
