"""Which store a command looks into: --url, --app, BULLPEN_URL or BULLPEN_APP."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from bullpen.cli.app import load_queue
from bullpen.cli.command import CommandError, ExitCode
from bullpen.queue.task_queue import TaskQueue
from bullpen.storage.memory import MemoryStorage
from bullpen.storage.port import Storage
from bullpen.storage.sqlite.store import SqliteStorage


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
    with _find_queue(arguments.url, arguments.app) as queue:
        _refuse_what_is_not_there(queue.storage)
        yield queue


def _find_queue(url: str | None, app: str | None) -> TaskQueue:
    if url is None and app is None:
        url, app = os.environ.get("BULLPEN_URL"), os.environ.get("BULLPEN_APP")
    if url:
        return TaskQueue(url)
    if app:
        return load_queue(app)
    message = "which store? Give --url sqlite:///jobs.db or --app app:queue, or set BULLPEN_URL or BULLPEN_APP"
    raise CommandError(message, ExitCode.USAGE)


def _refuse_what_is_not_there(storage: Storage) -> None:
    """To look at something is not to make it."""
    if isinstance(storage, MemoryStorage):
        raise CommandError("memory:// is in the process that uses it, and nobody else can look into it")
    if isinstance(storage, SqliteStorage) and not storage.path.exists():
        raise CommandError(f"there is no file {storage.path}: nothing was enqueued there yet, or it is another path")


def address_of(storage: Storage) -> str:
    """What people call it: without user, password and options."""
    if isinstance(storage, SqliteStorage):
        return f"sqlite:///{storage.path}"
    if isinstance(storage, MemoryStorage):
        return "memory://"
    parts = urlsplit(getattr(storage, "url", ""))
    place = (parts.hostname or "") + (f":{parts.port}" if parts.port else "")
    return f"{parts.scheme}://{place}{parts.path}" if parts.scheme else type(storage).__name__
