"""`bullpen enqueue APP_OR_URL FUNCTION [ARGUMENT …]`: have a worker run a function."""

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
from bullpen.cli.output import show, show_json, text
from bullpen.errors import InvalidArgument, InvalidPayload, TaskCancelled, TaskFailed, UnknownTask
from bullpen.pool.written import closest
from bullpen.queue.job import Job
from bullpen.queue.task_queue import TaskQueue
from bullpen.tasks.registry import TaskDefinition
from bullpen.tasks.task import HIGHEST_PRIORITY

_BY_NAME = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
OPTIONS = (
    *("queue", "priority", "delay", "eta", "expires", "timeout", "max_retries", "unique_key"),
    *("interval", "cron", "timezone", "schedule_key"),
)

Arguments = tuple[list[Any], dict[str, Any]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "where", metavar="APP_OR_URL", help="the code, such as app:queue, or the store alone, such as sqlite:///jobs.db"
    )
    parser.add_argument(
        "function", metavar="FUNCTION", help="the name of a task, such as app.send; its last part will do with an APP"
    )
    parser.add_argument(
        "arguments",
        nargs="*",
        default=[],
        metavar="ARGUMENT",
        help="JSON, or text where it is none; name=… for one by its name",
    )
    parser.add_argument("--delay", type=seconds, metavar="S", help="start it so much later, such as 90s, 5m, 2h, 7d")
    parser.add_argument("--eta", type=instant, metavar="TIME", help="start it then, such as 2030-01-31T18:00")
    parser.add_argument("--queue", metavar="NAME", help="in this queue")
    parser.add_argument(
        "--priority", type=whole(0, HIGHEST_PRIORITY), metavar="N", help=f"0 to {HIGHEST_PRIORITY}, high ones first"
    )
    parser.add_argument("--max-retries", type=whole(0, 1_000_000), metavar="N", help="so many more tries")
    parser.add_argument("--timeout", type=seconds, metavar="S", help="how long a try may take")
    parser.add_argument("--expires", type=seconds, metavar="S", help="not to be started after so long")
    parser.add_argument("--interval", type=seconds, metavar="S", help="again and again, so long after each run")
    parser.add_argument("--cron", metavar="TEXT", help="again and again at these times, such as @daily")
    parser.add_argument("--timezone", metavar="NAME", help="the clock that --cron goes by, such as Europe/Berlin")
    parser.add_argument("--schedule-key", metavar="KEY", help="of --interval or --cron: one with this key is changed")
    parser.add_argument("--unique-key", metavar="KEY", help="only if no other task with this key is alive")
    parser.add_argument(
        "--wait",
        nargs="?",
        type=number(0, 1e9),
        const=1e9,
        metavar="S",
        help="wait for its result, at most S seconds, and show it as JSON",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document, for programs")


def run(arguments: argparse.Namespace) -> int:
    options = {name: getattr(arguments, name) for name in OPTIONS if getattr(arguments, name) is not None}
    with store.open_either(arguments.where) as queue:
        store.refuse_memory(queue.storage)
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
        print("a task with this unique key is there already", file=sys.stderr)
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
    """By its whole name, or by the end of it if only one has that. Raises UnknownTask."""
    by_end: dict[str, list[str]] = {}
    for known in queue.registry.names():
        by_end.setdefault(known.rpartition(".")[2], []).append(known)
    names = [name] if name in queue.registry else by_end.get(name, [])
    if len(names) > 1:
        raise CommandError(f"{name!r} may be {' or '.join(names)}", ExitCode.USAGE)
    definition = queue.registry.get(names[0]) if names else None
    if definition is None:
        near = closest(name, queue.registry.names()) or by_end.get(closest(name, by_end) or "", [None])[0]
        raise UnknownTask(name=name, known=queue.registry.names(), suggestion=near)
    return definition


class Word(NamedTuple):
    """An argument as it was typed. `name` is "" for one by its position."""

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
            raise CommandError(f"{word!r} stands behind arguments by name, and has none", ExitCode.USAGE)
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
    """As the function wants them: `7` is a text where it takes a text, and a date is restored from its text."""
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


COMMAND = Command("enqueue", "Have a worker run a function.", add_arguments, run)
