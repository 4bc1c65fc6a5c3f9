"""`bullpen check APP`: the queued tasks that this code could not run."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterable

import msgspec

from bullpen.cli import store
from bullpen.cli.app import HOW, import_module, load_queue
from bullpen.cli.command import Command, ExitCode
from bullpen.cli.output import counted, show, show_json, table, text
from bullpen.cli.settings import find_all
from bullpen.cli.terminal import Span
from bullpen.errors import InvalidPayload
from bullpen.storage.open import open_storage
from bullpen.storage.port import Storage, TaskFilter
from bullpen.tasks.registry import Registry
from bullpen.tasks.task import PENDING, RUNNING, Task

PAGE = 500
MISSING = "no function has this name"


class Misfit(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks of one function that cannot run, for one reason."""

    function: str
    problem: str
    tasks: int
    example: str  # the id of one


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("app", nargs="?", metavar="APP", help=f"{HOW} (default: $BULLPEN_APP)")
    parser.add_argument("--url", metavar="URL", help="look into this store (default: the one of APP)")
    parser.add_argument(
        "--import", dest="imports", action="append", metavar="MODULE", help="import this too; may be repeated"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document, for programs")


def run(arguments: argparse.Namespace) -> int:
    with load_queue(store.find_app(arguments.app)) as queue:
        for module in find_all({"imports": arguments.imports})["imports"].value:
            import_module(module, module)
        storage = queue.storage if arguments.url is None else open_storage(arguments.url)
        store.refuse_what_is_not_there(storage)
        looked_at, misfits = asyncio.run(_look(storage.another() or storage, queue.registry))
    if arguments.json:
        show_json({"checked": looked_at, "misfits": misfits})
    elif misfits:
        rows = [
            (Span(one.function), Span(str(one.tasks), "bad"), Span(one.problem), Span(one.example, "quiet"))
            for one in misfits
        ]
        show(table(("function", "tasks", "problem", "such as"), rows))
        show([(), text("Keep the old name or signature until they have run, or: bullpen tasks cancel --function NAME")])
    else:
        show([text(f"{counted(looked_at, 'queued task fits', 'queued tasks fit')} the code", style="good")])
    return ExitCode.FAILED if misfits else ExitCode.OK


async def _look(storage: Storage, registry: Registry) -> tuple[int, list[Misfit]]:
    await storage.open()
    try:
        looked_at, after = 0, None
        found: dict[tuple[str, str], Misfit] = {}
        while tasks := list(await storage.list(TaskFilter(statuses=(PENDING, RUNNING)), limit=PAGE, after=after)):
            after = tasks[-1].id
            looked_at += len(tasks)
            add_misfits(found, tasks, registry)
    finally:
        await storage.close()
    return looked_at, sorted(found.values(), key=lambda one: (-one.tasks, one.function))


def add_misfits(found: dict[tuple[str, str], Misfit], tasks: Iterable[Task], registry: Registry) -> None:
    for task in tasks:
        problem = problem_of(task, registry)
        if problem is None:
            continue
        key = (task.func_path, problem)
        many = found[key].tasks if key in found else 0
        example = found[key].example if key in found else task.id
        found[key] = Misfit(function=task.func_path, problem=problem, tasks=many + 1, example=example)


def problem_of(task: Task, registry: Registry) -> str | None:
    """Why this code could not run a task, without the values of its arguments; None if it could."""
    definition = registry.get(task.func_path)
    if definition is None:
        return MISSING
    try:
        definition.decode(task.payload)
    except InvalidPayload as error:
        return f"{error.path} {error.reason}".strip()
    return None


COMMAND = Command("check", "Find queued tasks that this code could not run.", add_arguments, run)
