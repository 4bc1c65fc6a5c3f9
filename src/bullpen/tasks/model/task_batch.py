"""Tasks that differ only in their ids and payloads: calls of one function with the same options."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, overload

import msgspec
from msgspec.structs import replace

from bullpen.tasks.model.task import Task, new_as_kept
from bullpen.tasks.model.unreadable import FIELD_TYPES


class TaskBatch(Sequence[Task]):
    """`template` has the common fields, as a task without id and payload.

    Iteration and indexing make the tasks. A store that adds the batch as a whole does not need them.
    """

    __slots__ = ("_tasks", "ids", "payloads", "template")

    def __init__(self, template: Task, ids: Sequence[str], payloads: Sequence[bytes]) -> None:
        self.template = template
        self.ids = ids
        self.payloads = payloads
        self._tasks: list[Task] | None = None  # made on first access

    def kept(self, now: float) -> TaskBatch:
        """The batch as a store keeps it."""
        return TaskBatch(new_as_kept(self.template, now), self.ids, self.payloads)

    def with_template(self, template: Task) -> TaskBatch:
        """The batch with another template."""
        return TaskBatch(template, self.ids, self.payloads)

    def part(self, first: int, last: int) -> TaskBatch:
        """A slice of the batch."""
        return TaskBatch(self.template, self.ids[first:last], self.payloads[first:last])

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Task]:
        return iter(self._tasks or self._make_tasks())

    @overload
    def __getitem__(self, place: int) -> Task: ...
    @overload
    def __getitem__(self, place: slice) -> list[Task]: ...
    def __getitem__(self, place: int | slice) -> Task | list[Task]:
        return (self._tasks or self._make_tasks())[place]

    def _make_tasks(self) -> list[Task]:
        template = self.template
        self._tasks = [
            replace(template, id=task_id, payload=payload)
            for task_id, payload in zip(self.ids, self.payloads, strict=True)
        ]
        return self._tasks


def batches_of(tasks: Sequence[Task]) -> Sequence[TaskBatch]:
    """The tasks in the same order, with consecutive tasks of one template as one batch."""
    if type(tasks) is TaskBatch:
        return (tasks,)
    found = []
    for template, some in groupby(tasks, _in_common):
        run = list(some)
        found.append(TaskBatch(template, [task.id for task in run], [task.payload for task in run]))
    return found


def _in_common(task: Task) -> Task:
    return replace(task, id="", payload=b"")


def templates_of(tasks: Sequence[Task]) -> Sequence[Task]:
    """Tasks with every combination of fields that occurs in `tasks`, apart from ids and payloads."""
    return (tasks.template,) if type(tasks) is TaskBatch else tasks


def ids_of(tasks: Sequence[Task]) -> Sequence[str]:
    return tasks.ids if type(tasks) is TaskBatch else [task.id for task in tasks]


def payloads_of(tasks: Sequence[Task]) -> Sequence[bytes]:
    return tasks.payloads if type(tasks) is TaskBatch else [task.payload for task in tasks]


def part_of(tasks: Sequence[Task], first: int, last: int) -> Sequence[Task]:
    """A slice of the tasks; of a batch, a batch."""
    return tasks.part(first, last) if type(tasks) is TaskBatch else tasks[first:last]


def join_batches(parts: Sequence[TaskBatch]) -> TaskBatch | None:
    """One batch of all; None if their templates differ."""
    if len(parts) == 1:
        return parts[0]
    template = parts[0].template
    ids: list[str] = []
    payloads: list[bytes] = []
    for part in parts:
        if part.template is not template and part.template != template:
            return None
        ids += part.ids
        payloads += part.payloads
    return TaskBatch(template, ids, payloads)


def concatenate(parts: Sequence[Sequence[Task]]) -> Sequence[Task]:
    """All tasks; as one batch if they have one template."""
    if len(parts) == 1:
        return parts[0]
    alike = [part for part in parts if type(part) is TaskBatch]
    found = join_batches(alike) if len(alike) == len(parts) else None
    return [task for part in parts for task in part] if found is None else found


def split_by_part(kept: Sequence[Task], parts: Sequence[Sequence[Task]]) -> Iterator[Sequence[Task]]:
    """Split the stored tasks of `concatenate(parts)` into one sequence for each part."""
    first = 0
    for part in parts:
        if type(kept) is TaskBatch and type(part) is TaskBatch:
            yield part.with_template(kept.template)
        else:
            yield kept[first : first + len(part)]
        first += len(part)


# Stored tasks.

OWN = ("id", "payload", "eta", "created_at")  # most tasks of a function differ in these only
_END = len(OWN)
_CheckedOwn: Any = msgspec.defstruct("_CheckedOwn", [(name, FIELD_TYPES[name]) for name in OWN], array_like=True)


class RowReader:
    """Reads rows whose first columns are `OWN`, one after the other; `read` makes the task of a row. Other columns that
    are the same as in the row before are not read again.
    """

    __slots__ = ("_others", "_read", "_template")

    def __init__(self, read: Callable[[Sequence[Any]], Task]) -> None:
        self._read = read
        self._template: Task | None = None  # made of the row before
        self._others: Sequence[Any] = ()

    def task_of(self, row: Sequence[Any]) -> Task:
        others = row[_END:]
        if self._template is not None and others == self._others and type(row[1]) is bytes:  # not its base64
            try:
                own = msgspec.convert(row[:_END], _CheckedOwn)
            except msgspec.ValidationError:
                pass
            else:
                return replace(
                    self._template, id=own.id, payload=row[1], eta=own.eta, created_at=own.created_at, headers={}
                )  # a dict for each
        task = self._read(row)
        self._template = None if task.unreadable or task.headers or task.steps else task
        self._others = others
        return task
