"""Finds the store of a command: --url or --app, BULLPEN_URL or BULLPEN_APP, or pyproject.toml."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from bullpen.cli.app import HOW, load_queue
from bullpen.cli.command import CommandError, ExitCode
from bullpen.cli.settings import add_config, find_all
from bullpen.tasks.client.task_queue import TaskQueue
from bullpen.tasks.storage.memory import MemoryStorage
from bullpen.tasks.storage.port import Storage

PARTS = {"schema": "bullpen", "prefix": "bullpen"}  # parts of a server, and their defaults


def add_arguments(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--url", metavar="URL", help="the store, such as sqlite:///jobs.db (default: $BULLPEN_URL)")
    which.add_argument(
        "--app",
        metavar="APP",
        help="the code with the queue, such as app:queue, instead of --url (default: $BULLPEN_APP)",
    )
    add_config(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")


@contextmanager
def open_queue(arguments: argparse.Namespace) -> Iterator[TaskQueue]:
    """The queue of an existing store."""
    with find_queue(arguments) as queue:
        reject_what_is_not_there(queue.storage)
        yield queue


def find_queue(arguments: argparse.Namespace) -> TaskQueue:
    """The queue; its store may not exist yet."""
    found = find_all({"url": arguments.url, "app": arguments.app}, arguments.config)
    if found["url"].value and found["url"].rank <= found["app"].rank:
        return TaskQueue(found["url"].value)
    if found["app"].value:
        return load_queue(found["app"].value)
    message = "no store: give --url sqlite:///jobs.db or --app app:queue, or set BULLPEN_URL or BULLPEN_APP, "
    message += "or url or app in [tool.bullpen] of pyproject.toml"
    raise CommandError(message, ExitCode.USAGE)


def find_app(typed: str | None, config: str | None) -> str:
    """APP from the command line or the settings."""
    app = find_all({"app": typed}, config)["app"].value
    if not app:
        hint = "or set BULLPEN_APP, or app in [tool.bullpen] of pyproject.toml"
        raise CommandError(f"no APP: {HOW}; {hint}", ExitCode.USAGE)
    return str(app)


def reject_what_is_not_there(storage: Storage) -> None:
    """Commands that read a store do not create it."""
    reject_memory(storage)
    path = file_of(storage)
    if path is not None and not path.exists():
        raise CommandError(f"there is no file {path}: no task was enqueued there yet, or the path is wrong")


def reject_memory(storage: Storage) -> None:
    if isinstance(storage, MemoryStorage):
        raise CommandError("memory:// lives in one process; other processes cannot read it")


def file_of(storage: Storage) -> Path | None:
    """The file of a SQLite store. A worker of another store does not import that one."""
    path = getattr(storage, "path", None)
    return path if isinstance(path, Path) else None


def address_of(storage: Storage) -> str:
    """The address to print: hosts, database and schema or prefix, without user, password and other options."""
    if (path := file_of(storage)) is not None:
        return f"sqlite:///{path}"
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


def is_same_store(one: Storage, other: Storage) -> bool:
    """Whether two stores have the same address. valkey:// is another name for redis://."""
    return _with_one_name(address_of(one)) == _with_one_name(address_of(other))


def _with_one_name(address: str) -> str:
    return f"redis{address.removeprefix('valkey')}" if address.startswith("valkey") else address


def open_either(app_or_url: str) -> TaskQueue:
    """The queue of an APP, or a queue without functions at the address of a store."""
    return TaskQueue(app_or_url) if "://" in app_or_url else load_queue(app_or_url)


def now(queue: TaskQueue) -> float:
    """The time of the store's clock, which all times of tasks refer to."""

    async def ask() -> float:
        return await (await queue.astorage()).now()

    return asyncio.run(ask())
