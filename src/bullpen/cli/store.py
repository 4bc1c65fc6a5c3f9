"""Which store a command looks into: --url or --app, BULLPEN_URL or BULLPEN_APP, or what pyproject.toml says."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from bullpen.cli.app import HOW, load_queue
from bullpen.cli.command import CommandError, ExitCode
from bullpen.cli.settings import find_all
from bullpen.queue.task_queue import TaskQueue
from bullpen.storage.memory import MemoryStorage
from bullpen.storage.port import Storage
from bullpen.storage.sqlite.store import SqliteStorage

PARTS = {"schema": "bullpen", "prefix": "bullpen"}  # of a server, and the usual ones


def add_arguments(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--url", metavar="URL", help="the store, such as sqlite:///jobs.db (default: $BULLPEN_URL)")
    which.add_argument(
        "--app", metavar="APP", help="… or the code that knows it, such as app:queue (default: $BULLPEN_APP)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document, for programs")


@contextmanager
def open_queue(arguments: argparse.Namespace) -> Iterator[TaskQueue]:
    """The queue to look into; it has to be there."""
    with find_queue(arguments) as queue:
        refuse_what_is_not_there(queue.storage)
        yield queue


def find_queue(arguments: argparse.Namespace) -> TaskQueue:
    """The same, whether it is there or not."""
    found = find_all({"url": arguments.url, "app": arguments.app})
    if found["url"].value and found["url"].rank <= found["app"].rank:
        return TaskQueue(found["url"].value)
    if found["app"].value:
        return load_queue(found["app"].value)
    message = (
        "which store? Give --url sqlite:///jobs.db or --app app:queue, or set BULLPEN_URL or BULLPEN_APP, or url or "
    )
    message += "app in [tool.bullpen] of pyproject.toml"
    raise CommandError(message, ExitCode.USAGE)


def find_app(typed: str | None) -> str:
    """APP, as it was typed or set."""
    app = find_all({"app": typed})["app"].value
    if not app:
        hint = "or set BULLPEN_APP, or app in [tool.bullpen] of pyproject.toml"
        raise CommandError(f"which tasks? {HOW}; {hint}", ExitCode.USAGE)
    return str(app)


def refuse_what_is_not_there(storage: Storage) -> None:
    """To look at something is not to make it."""
    refuse_memory(storage)
    if isinstance(storage, SqliteStorage) and not storage.path.exists():
        raise CommandError(f"there is no file {storage.path}: nothing was enqueued there yet, or it is another path")


def refuse_memory(storage: Storage) -> None:
    if isinstance(storage, MemoryStorage):
        raise CommandError("memory:// is in the process that uses it, and nobody else can look into it")


def address_of(storage: Storage) -> str:
    """What people call it: its hosts and the part of a server that it is, without user, password and other options."""
    if isinstance(storage, SqliteStorage):
        return f"sqlite:///{storage.path}"
    if isinstance(storage, MemoryStorage):
        return "memory://"
    parts = urlsplit(getattr(storage, "url", ""))
    if not parts.scheme:
        return type(storage).__name__
    kind = "+cluster" if getattr(storage, "cluster", False) else ""
    place = parts.netloc.rpartition("@")[2].lower()
    named = {name: getattr(storage, name, usual) for name, usual in PARTS.items()}
    part = "".join(f"?{name}={value}" for name, value in named.items() if value != PARTS[name])
    return f"{parts.scheme}{kind}://{place}{parts.path}{part}"


def open_either(app_or_url: str) -> TaskQueue:
    """The queue of an APP, or one without functions at the address of a store."""
    return TaskQueue(app_or_url) if "://" in app_or_url else load_queue(app_or_url)


def now(queue: TaskQueue) -> float:
    """By the store's clock, as all instants of tasks are."""

    async def ask() -> float:
        return await (await queue.astorage()).now()

    return asyncio.run(ask())
