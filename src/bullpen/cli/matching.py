"""The filters of `bullpen tasks`."""

from __future__ import annotations

import argparse
from typing import get_args

import msgspec

from bullpen.cli.arguments import header, names, seconds
from bullpen.errors import did_you_mean
from bullpen.tasks.client.task_queue import LARGEST_PAGE, TaskFilters, TaskQueue
from bullpen.tasks.model.queue_patterns import is_pattern
from bullpen.tasks.model.task import ErrorKind, TaskStatus
from bullpen.tasks.storage.open import without_passwords

_KINDS = frozenset(name for kinds in get_args(ErrorKind) for name in get_args(kinds))


def add_filters(parser: argparse.ArgumentParser, statuses: str = ", ".join(map(str, TaskStatus))) -> None:
    parser.add_argument(
        "--status", action="extend", type=names, metavar="A,B", help=f"only tasks with these statuses: {statuses}"
    )
    parser.add_argument("--queue", action="extend", type=names, metavar="A,B", help="only tasks of these queues")
    parser.add_argument("--function", metavar="NAME", help="only tasks of this function; its last parts are enough")
    parser.add_argument("--key", metavar="KEY", help="only tasks with this unique key or concurrency key")
    parser.add_argument("--header", type=header, metavar="NAME=VALUE", help="only tasks with this header")
    parser.add_argument("--event", metavar="NAME", help="only tasks that wait for this event; * for any event")
    parser.add_argument("--worker", metavar="ID", help="only tasks that this worker runs, or ran last")
    parser.add_argument(
        "--error",
        metavar="KIND",
        help="only tasks whose latest error has this kind or type, such as timeout, crash or ConnectionError",
    )
    parser.add_argument("--fingerprint", metavar="ID", help="only tasks whose latest error has this fingerprint")
    parser.add_argument(
        "--older-than",
        type=seconds,
        metavar="AGE",
        help="only tasks that ended, or were enqueued and have not ended, this long ago or earlier: 90s, 5m, 2h, 7d",
    )
    parser.add_argument(
        "--newer-than",
        type=seconds,
        metavar="AGE",
        help="only tasks that ended, or were enqueued and have not ended, less than this long ago",
    )


class Matching(msgspec.Struct, frozen=True, kw_only=True):
    """The filters of one command line."""

    status: tuple[str, ...] | None = None
    queue: tuple[str, ...] | None = None
    function: str | None = None
    key: str | None = None
    header: tuple[str, str] | None = None
    event: str | None = None
    worker: str | None = None
    error: str | None = None
    fingerprint: str | None = None
    older_than: float | None = None
    newer_than: float | None = None

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Matching:
        return cls(**{name: getattr(arguments, name) for name in cls.__struct_fields__})

    def __bool__(self) -> bool:
        return any(getattr(self, name) is not None for name in self.__struct_fields__)

    @property
    def filters(self) -> TaskFilters:
        """As the methods of a queue take them."""
        return {
            "status": self.status,  # type: ignore[typeddict-item]
            "queue": self.queue,
            "name": self.function,
            "key": self.key,
            "header": self.header,
            "awaits": True if self.event == "*" else self.event,
            "worker": self.worker,
            "error": self.error,
            "fingerprint": self.fingerprint,
            "older_than": self.older_than,
            "newer_than": self.newer_than,
        }

    def unknown_names(self, queue: TaskQueue) -> list[str]:
        """A sentence for each filter that no task could match, whatever the other filters are."""
        sentences = []
        workers = queue.workers()
        served = {name for worker in workers for name in worker.queues if not is_pattern(name)}
        queues = {*queue.counts(), *queue.paused(), *served}
        queues |= {definition.options.queue for definition in queue.registry}
        for name in self.queue or ():
            if name not in queues and not any(worker.serves(name) for worker in workers):
                sentences.append(f"no task and no worker has the queue {name!r}{did_you_mean(name, queues)}")
        some = queue.list(limit=LARGEST_PAGE) if self.function or self.error else []
        if self.function and not queue.list(name=self.function, limit=1):
            functions = {*queue.registry.names(), *(task.name for task in some)}
            hint = did_you_mean(self.function, functions)
            sentences.append(f"no task has the function {self.function!r}{hint}")
        if self.error and self.error not in _KINDS and not queue.list(error=self.error, limit=1):
            errors = {*_KINDS, *(name for task in some if task.error is not None for name in task.error.names)}
            sentences.append(f"no task has the error {self.error!r}{did_you_mean(self.error, errors)}")
        if (
            self.worker
            and self.worker not in {one.id for one in workers}
            and not queue.list(worker=self.worker, limit=1)
        ):
            hint = did_you_mean(self.worker, [one.id for one in workers])
            sentences.append(f"no task and no worker has the name {self.worker!r}{hint}")
        if self.fingerprint and not queue.list(fingerprint=self.fingerprint, limit=1):
            sentences.append(f"no task has an error with the fingerprint {self.fingerprint!r}")
        typed = [*(self.queue or ()), *filter(None, (self.function, self.error, self.worker, self.fingerprint))]
        return [without_passwords(sentence, typed) for sentence in sentences]  # an address may be typed by mistake
