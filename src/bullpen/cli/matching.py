"""The filters of `bullpen tasks`. Reads matching tasks page by page."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import get_args

import msgspec

from bullpen.cli.arguments import names, seconds
from bullpen.pools.config_file import did_you_mean
from bullpen.tasks.client.task_queue import LARGEST_PAGE, TaskQueue
from bullpen.tasks.model.info import TaskInfo, as_datetime
from bullpen.tasks.model.task import FINAL, ErrorKind, TaskStatus

_KINDS = frozenset(name for kinds in get_args(ErrorKind) for name in get_args(kinds))


def add_filters(parser: argparse.ArgumentParser, statuses: str = ", ".join(map(str, TaskStatus))) -> None:
    parser.add_argument("--status", type=names, metavar="A,B", help=f"only tasks with these statuses: {statuses}")
    parser.add_argument("--queue", type=names, metavar="A,B", help="only tasks of these queues")
    parser.add_argument("--function", metavar="NAME", help="only tasks of this function, by its full name")
    parser.add_argument("--worker", metavar="ID", help="only tasks that this worker runs, or ran last")
    parser.add_argument(
        "--error",
        metavar="WHAT",
        help="only tasks whose latest error has this kind or type, such as timeout, crash or ConnectionError",
    )
    parser.add_argument(
        "--older-than",
        type=seconds,
        metavar="AGE",
        help="only tasks that ended at least this long ago, such as 90s, 5m, 2h, 7d; unfinished tasks: enqueued",
    )
    parser.add_argument(
        "--newer-than",
        type=seconds,
        metavar="AGE",
        help="only tasks that ended, or were enqueued, less than this long ago",
    )


class Matching(msgspec.Struct, frozen=True, kw_only=True):
    """The filters of one command line."""

    status: tuple[str, ...] | None = None
    queue: tuple[str, ...] | None = None
    function: str | None = None
    worker: str | None = None
    error: str | None = None
    older_than: float | None = None
    newer_than: float | None = None

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Matching:
        return cls(**{name: getattr(arguments, name) for name in cls.__struct_fields__})

    def __bool__(self) -> bool:
        return any(getattr(self, name) is not None for name in self.__struct_fields__)

    def find(
        self, queue: TaskQueue, now: float, *, limit: int | None = None, after: str | None = None
    ) -> list[TaskInfo]:
        """At most `limit` matching tasks, in the order of their ids."""
        found = []
        for task in self._candidates(queue, limit, after):
            if self._fits(task, now):
                found.append(task)
                if len(found) == limit:
                    break
        return found

    def _candidates(self, queue: TaskQueue, limit: int | None, after: str | None) -> Iterator[TaskInfo]:
        """Tasks that match the filters of the store itself."""
        is_all = self.error is None and self.older_than is None and self.newer_than is None
        size = min(limit, LARGEST_PAGE) if limit is not None and is_all else LARGEST_PAGE
        while True:
            page = queue.list(
                status=self.status,  # type: ignore[arg-type]
                queue=self.queue,
                name=self.function,
                worker=self.worker,
                limit=size,
                after=after,
            )
            yield from page
            if len(page) < size:
                return
            after = page[-1].id

    def _fits(self, task: TaskInfo, now: float) -> bool:
        since = task.finished_at if task.status in FINAL and task.finished_at is not None else task.created_at
        age = (as_datetime(now) - since).total_seconds()
        return (
            (self.error is None or (task.error is not None and self.error in _names_of(task)))
            and (self.older_than is None or age >= self.older_than)
            and (self.newer_than is None or age < self.newer_than)
        )

    def unknown_names(self, queue: TaskQueue) -> list[str]:
        """A sentence for each filter that no task could match, whatever the other filters are."""
        sentences = []
        queues = {*queue.counts(), *queue.paused(), *(name for worker in queue.workers() for name in worker.queues)}
        queues |= {definition.options.queue for definition in queue.registry}
        for name in self.queue or ():
            if name not in queues:
                sentences.append(f"no task and no worker has the queue {name!r}{did_you_mean(name, queues)}")
        some = queue.list(limit=LARGEST_PAGE) if self.function or self.error else []
        if self.function and not queue.list(name=self.function, limit=1):
            functions = {*queue.registry.names(), *(task.name for task in some)}
            ends = [name for name in sorted(functions) if name.endswith(f".{self.function}")]
            hint = f"; did you mean {ends[0]!r}?" if ends else did_you_mean(self.function, functions)
            sentences.append(f"no task has the function {self.function!r}{hint}")
        if self.error and self.error not in _KINDS and not Matching(error=self.error).find(queue, 0.0, limit=1):
            errors = {*_KINDS, *(name for task in some if task.error is not None for name in _names_of(task))}
            sentences.append(f"no task has the error {self.error!r}{did_you_mean(self.error, errors)}")
        return sentences


def _names_of(task: TaskInfo) -> set[str]:
    """Names for its latest error: kind, type, and type without its module."""
    assert task.error is not None
    return {task.error.kind, task.error.type, task.error.type.rpartition(".")[2]} - {""}
