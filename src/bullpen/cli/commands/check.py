"""`bullpen check APP`: finds queued tasks that this code cannot run."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterable

import msgspec

from bullpen.cli import store
from bullpen.cli.app import HOW, import_module, load_queue
from bullpen.cli.command import Command, ExitCode
from bullpen.cli.settings import add_config, find_all
from bullpen.cli.terminal.output import counted, show, show_json, table, text
from bullpen.cli.terminal.screen import StyledText
from bullpen.errors import InvalidPayload
from bullpen.tasks.model.registry import TaskRegistry
from bullpen.tasks.model.task import PENDING, RUNNING, Task
from bullpen.tasks.storage.open import open_storage
from bullpen.tasks.storage.port import Storage, TaskFilter

PAGE = 500
MISSING = "no function has this name"


class Misfit(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks of one function that cannot run for the same reason."""

    function: str
    problem: str
    tasks: int
    example: str  # the id of one


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("app", nargs="?", metavar="APP", help=f"{HOW} (default: $BULLPEN_APP)")
    parser.add_argument("--url", metavar="URL", help="the store to check (default: the store of APP)")
    parser.add_argument(
        "--import", dest="imports", action="append", metavar="MODULE", help="import this module, too; may be repeated"
    )
    add_config(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    with load_queue(store.find_app(arguments.app, arguments.config)) as queue:
        for module in find_all({"imports": arguments.imports}, arguments.config)["imports"].value:
            import_module(module, module)
        storage = queue.storage if arguments.url is None else open_storage(arguments.url)
        store.reject_what_is_not_there(storage)
        looked_at, misfits = asyncio.run(_look(storage.another() or storage, queue.registry))
    if arguments.json:
        show_json({"checked": looked_at, "misfits": misfits})
    elif misfits:
        rows = [
            (
                StyledText(one.function),
                StyledText(str(one.tasks), "bad"),
                StyledText(one.problem),
                StyledText(one.example, "quiet"),
            )
            for one in misfits
        ]
        show(table(("function", "tasks", "problem", "example"), rows, keep=("example",)))
        show(
            [
                (),
                text("Keep the old name or signature until they have run,"),
                text("or run: bullpen tasks cancel --function NAME"),
            ]
        )
    else:
        show([text(f"this code can run {counted(looked_at, 'queued task', 'queued tasks')}", style="good")])
    return ExitCode.FAILED if misfits else ExitCode.OK


async def _look(storage: Storage, registry: TaskRegistry) -> tuple[int, list[Misfit]]:
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


def add_misfits(found: dict[tuple[str, str], Misfit], tasks: Iterable[Task], registry: TaskRegistry) -> None:
    for task in tasks:
        problem = problem_of(task, registry)
        if problem is None:
            continue
        key = (task.func_path, problem)
        many = found[key].tasks if key in found else 0
        example = found[key].example if key in found else task.id
        found[key] = Misfit(function=task.func_path, problem=problem, tasks=many + 1, example=example)


def problem_of(task: Task, registry: TaskRegistry) -> str | None:
    """Why this code cannot run a task, without the values of its arguments; None if it can."""
    definition = registry.get(task.func_path)
    if definition is None:
        return MISSING
    try:
        definition.decode(task.payload)
    except InvalidPayload as error:
        return f"{error.path} {error.reason}".strip()
    return None


COMMAND = Command("check", "Find queued tasks that this code cannot run.", add_arguments, run)
