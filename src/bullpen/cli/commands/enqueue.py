"""`bullpen enqueue APP_OR_URL FUNCTION [ARGUMENT …]`: enqueues a task."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from bullpen.cli import store
from bullpen.cli.arguments import instant, number, seconds, whole
from bullpen.cli.command import Command, CommandError, ExitCode
from bullpen.cli.terminal.output import show, show_json, text
from bullpen.errors import InvalidArgument, InvalidPayload, TaskCancelled, TaskFailed, UnknownTask, closest
from bullpen.tasks.client.job import Job
from bullpen.tasks.client.task_queue import TaskQueue
from bullpen.tasks.model.registry import TaskDefinition
from bullpen.tasks.model.task import HIGHEST_PRIORITY

_BY_NAME = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
OPTIONS = (
    *("queue", "priority", "delay", "eta", "expires", "timeout", "max_retries", "unique_key"),
    *("interval", "cron", "timezone", "schedule_key"),
)

Arguments = tuple[list[Any], dict[str, Any]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "where", metavar="APP_OR_URL", help="the code, such as app:queue, or only the store, such as sqlite:///jobs.db"
    )
    parser.add_argument(
        "function", metavar="FUNCTION", help="name of a task, such as app.send; with an APP, its last part is enough"
    )
    parser.add_argument(
        "arguments",
        nargs="*",
        default=[],
        metavar="ARGUMENT",
        help="a JSON value, otherwise text; name=… for a keyword argument",
    )
    parser.add_argument("--delay", type=seconds, metavar="S", help="start after this time, such as 90s, 5m, 2h, 7d")
    parser.add_argument("--eta", type=instant, metavar="TIME", help="start at this time, such as 2030-01-31T18:00")
    parser.add_argument("--queue", metavar="NAME", help="the queue (default: the queue of the function)")
    parser.add_argument(
        "--priority", type=whole(0, HIGHEST_PRIORITY), metavar="N", help=f"0 to {HIGHEST_PRIORITY}, higher first"
    )
    parser.add_argument(
        "--max-retries", type=whole(0, 1_000_000), metavar="N", help="retries after the first attempt fails"
    )
    parser.add_argument("--timeout", type=seconds, metavar="S", help="time limit of each attempt")
    parser.add_argument(
        "--expires", type=seconds, metavar="S", help="the task expires if it has not started after this time"
    )
    parser.add_argument("--interval", type=seconds, metavar="S", help="repeat, this long after each run")
    parser.add_argument("--cron", metavar="TEXT", help="repeat at these times, such as @daily")
    parser.add_argument("--timezone", metavar="NAME", help="time zone of --cron, such as Europe/Berlin")
    parser.add_argument(
        "--schedule-key",
        metavar="KEY",
        help="key of the schedule of --interval or --cron; an existing schedule with this key is changed",
    )
    parser.add_argument("--unique-key", metavar="KEY", help="enqueue only if no unfinished task has this key")
    parser.add_argument(
        "--wait",
        nargs="?",
        type=number(0, 1e9),
        const=1e9,
        metavar="S",
        help="wait for the result, at most S seconds, and print it as JSON",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    options = {name: getattr(arguments, name) for name in OPTIONS if getattr(arguments, name) is not None}
    with store.open_either(arguments.where) as queue:
        store.reject_memory(queue.storage)
        if "://" in arguments.where:
            args, kwargs = call_of(read(arguments.arguments))
            job = queue.enqueue(arguments.function, args, kwargs, elsewhere=True, **options)
        else:
            definition = find(queue, arguments.function)
            args, kwargs = fitting(definition, read(arguments.arguments))
            job = queue.enqueue(definition.func_path, args, kwargs, **options)
        return _tell(job, arguments)


def _tell(job: Job[Any], arguments: argparse.Namespace) -> int:
    if not job.is_new and not arguments.json:
        print("a task with this unique key exists; nothing was enqueued", file=sys.stderr)
    if arguments.wait is None:
        if arguments.json:
            show_json({"id": job.id, "is_new": job.is_new})
        else:
            show([text(job.id)])
        return ExitCode.OK
    try:
        result = job.result(timeout=arguments.wait)
    except (TaskFailed, TaskCancelled) as error:
        raise CommandError(str(error)) from None
    show_json({"id": job.id, "is_new": job.is_new, "result": result} if arguments.json else result)
    return ExitCode.OK


def find(queue: TaskQueue, name: str) -> TaskDefinition:
    """The task with this full name, or the only one with this last part. Raises UnknownTask."""
    by_end: dict[str, list[str]] = {}
    for known in queue.registry.names():
        by_end.setdefault(known.rpartition(".")[2], []).append(known)
    names = [name] if name in queue.registry else by_end.get(name, [])
    if len(names) > 1:
        raise CommandError(f"{name!r} is ambiguous: {' or '.join(names)}", ExitCode.USAGE)
    definition = queue.registry.get(names[0]) if names else None
    if definition is None:
        near = closest(name, queue.registry.names()) or by_end.get(closest(name, by_end) or "", [None])[0]
        raise UnknownTask(name=name, known=queue.registry.names(), suggestion=near)
    return definition


class Word(NamedTuple):
    """An argument of the command line. `name` is "" for a positional argument."""

    name: str
    text: str
    value: Any

    def as_text(self) -> Word:
        return self._replace(value=self.text)


def read(words: Sequence[str]) -> list[Word]:
    found: list[Word] = []
    for word in words:
        by_name = _BY_NAME.fullmatch(word)
        name, written = by_name.groups() if by_name is not None else ("", word)
        if not name and any(before.name for before in found):
            raise CommandError(f"positional argument {word!r} follows keyword arguments", ExitCode.USAGE)
        found.append(Word(name, written, _value(written)))
    return found


def _value(written: str) -> Any:
    try:
        return json.loads(written)
    except ValueError:
        return written


def call_of(words: Sequence[Word]) -> Arguments:
    return [word.value for word in words if not word.name], {word.name: word.value for word in words if word.name}


def fitting(definition: TaskDefinition, words: list[Word]) -> Arguments:
    """Arguments with the types of the function: `7` stays text for a text parameter, a date is parsed from text."""
    problems: dict[str, str] = {}
    while True:
        args, kwargs = call_of(words)
        try:
            restored, by_name = definition.decode(json.dumps({"args": args, "kwargs": kwargs}).encode())
        except InvalidPayload as error:
            places = [f"kwargs[{word.name!r}]" if word.name else f"args[{number}]" for number, word in enumerate(words)]
            at = places.index(error.path) if error.path in places else None
            first = problems.setdefault(error.path, error.reason)
            if at is None or words[at].value == words[at].text:
                raise InvalidArgument(first, function=definition.func_path, path=error.path) from None
            words = [*words[:at], words[at].as_text(), *words[at + 1 :]]
        else:
            return list(restored), by_name


COMMAND = Command("enqueue", "Enqueue a task.", add_arguments, run)
