"""Tasks that were enqueued by calls of one function: all they differ in are their ids and payloads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import overload

from msgspec.structs import replace

from bullpen.tasks.task import Task, new_as_kept


class Alike(Sequence[Task]):
    """`same` is what they have in common, as a task without id and payload.

    Whoever looks at them one by one has them made into tasks; a store that adds them as they are need not.
    """

    __slots__ = ("_tasks", "ids", "payloads", "same")

    def __init__(self, same: Task, ids: Sequence[str], payloads: Sequence[bytes]) -> None:
        self.same = same
        self.ids = ids
        self.payloads = payloads
        self._tasks: list[Task] | None = None  # once somebody has looked

    def kept(self, now: float) -> Alike:
        """As they are when they are added."""
        return self.like(new_as_kept(self.same, now))

    def like(self, same: Task) -> Alike:
        """With other things in common."""
        return Alike(same, self.ids, self.payloads)

    def part(self, first: int, last: int) -> Alike:
        """Some of them."""
        return Alike(self.same, self.ids[first:last], self.payloads[first:last])

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Task]:
        return iter(self._tasks or self._look())

    @overload
    def __getitem__(self, place: int) -> Task: ...
    @overload
    def __getitem__(self, place: slice) -> list[Task]: ...
    def __getitem__(self, place: int | slice) -> Task | list[Task]:
        return (self._tasks or self._look())[place]

    def _look(self) -> list[Task]:
        same = self.same
        self._tasks = [
            replace(same, id=task_id, payload=payload) for task_id, payload in zip(self.ids, self.payloads, strict=True)
        ]
        return self._tasks


def runs(tasks: Sequence[Task]) -> Sequence[Alike]:
    """The same tasks in the same order, those together that are alike."""
    if type(tasks) is Alike:
        return (tasks,)
    found = []
    for same, some in groupby(tasks, _in_common):
        run = list(some)
        found.append(Alike(same, [task.id for task in run], [task.payload for task in run]))
    return found


def _in_common(task: Task) -> Task:
    return replace(task, id="", payload=b"")


def different(tasks: Sequence[Task]) -> Sequence[Task]:
    """Tasks that show all that there is to see of these, but for ids and payloads."""
    return (tasks.same,) if type(tasks) is Alike else tasks


def ids_of(tasks: Sequence[Task]) -> Sequence[str]:
    return tasks.ids if type(tasks) is Alike else [task.id for task in tasks]


def payloads_of(tasks: Sequence[Task]) -> Sequence[bytes]:
    return tasks.payloads if type(tasks) is Alike else [task.payload for task in tasks]


def part_of(tasks: Sequence[Task], first: int, last: int) -> Sequence[Task]:
    """Some of them, and alike if they are."""
    return tasks.part(first, last) if type(tasks) is Alike else tasks[first:last]


def joined(parts: Sequence[Alike]) -> Alike | None:
    """All of them, if they are alike."""
    if len(parts) == 1:
        return parts[0]
    same = parts[0].same
    ids: list[str] = []
    payloads: list[bytes] = []
    for part in parts:
        if part.same is not same and part.same != same:
            return None
        ids += part.ids
        payloads += part.payloads
    return Alike(same, ids, payloads)


def together(parts: Sequence[Sequence[Task]]) -> Sequence[Task]:
    """All of them, alike if they are."""
    if len(parts) == 1:
        return parts[0]
    alike = [part for part in parts if type(part) is Alike]
    found = joined(alike) if len(alike) == len(parts) else None
    return [task for part in parts for task in part] if found is None else found


def shares(kept: Sequence[Task], parts: Sequence[Sequence[Task]]) -> Iterator[Sequence[Task]]:
    """What was kept of `together(parts)`, for each of the parts."""
    first = 0
    for part in parts:
        if type(kept) is Alike and type(part) is Alike:
            yield part.like(kept.same)
        else:
            yield kept[first : first + len(part)]
        first += len(part)
