"""The rules that a store in Python applies to its tasks: written once, for memory and SQLite.

`model` has the moves of one task (`settled`, `claimed`, `meet`, `followed`, …). These rules apply them in a store:
which other tasks a change touches, when a change is dropped, and how many tasks a limit lets start.

A server store repeats them in its own language, because it applies them where the tasks are. `port.py` lists which
rules those are, and which contract tests hold every store to them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator

from bullpen.tasks.model.links import Changes, after_members, called_back
from bullpen.tasks.model.task import RUNNING, Settlement, Task, applies, new_as_kept, settled, woken
from bullpen.tasks.model.unique import RETURN, Duplicates, has_key, meet
from bullpen.tasks.model.unreadable import moved
from bullpen.tasks.storage.port import Limit, Move


class StoreRules:
    """Applies moves to the tasks of a store, inside one atomic step of it, at the instant `now`.

    A subclass says how a task is read, inserted, written and dropped, and which task has a unique key.
    """

    __slots__ = ()

    def _read(self, task_id: str) -> Task | None:
        raise NotImplementedError

    def _insert(self, task: Task, now: float) -> None:
        """Insert a task with a new id."""
        raise NotImplementedError

    def _write(self, task: Task, now: float) -> None:
        """Write a changed task."""
        raise NotImplementedError

    def _drop(self, task: Task) -> None:
        """Delete a pending task, because another one takes its id."""
        raise NotImplementedError

    def _holder(self, task: Task, now: float) -> Task | None:
        """The task that has the unique key of this one; None if the key is free, or it has no key."""
        raise NotImplementedError

    def _has_event(self, name: str) -> bool:
        raise NotImplementedError

    # Adding.

    def _add_task(self, task: Task, duplicates: Duplicates, now: float) -> Task:
        """Add a task, made by `new_as_kept`, unless its id exists, or another task keeps its unique key."""
        existing = self._read(task.id)
        if existing is not None:
            return existing
        holder = self._holder(task, now)
        if holder is not None:
            task = meet(task, holder, duplicates, now)
            if task is holder:
                return holder
            self._drop(holder)
        self._insert(task, now)
        return task

    def _import_task(self, task: Task, now: float) -> bool:
        """Import a task of another store as it is. False if it is running, or its id or unique key is taken."""
        is_taken = has_key(task, now) and self._holder(task, now) is not None
        if task.status is RUNNING or is_taken or self._read(task.id) is not None:
            return False
        self._insert(task, now)
        return True

    # Settling and changing.

    def _settle_task(self, settlement: Settlement, now: float) -> bool:
        """Apply a settlement. False if its attempt is no longer current."""
        task = self._read(settlement.id)
        if task is None or not applies(task, settlement):
            return False
        after = settled(task, settlement, now)
        if settlement.suspended and settlement.awaits is not None and self._has_event(settlement.awaits):
            after = woken(after, now) or after
        self._keep(after, task, now)
        for child in settlement.children:
            self._add_child(child, now)
        return True

    def _add_child(self, task: Task, now: float) -> None:
        self._add_task(new_as_kept(task, now), RETURN, now)

    def _change_tasks(self, ids: Iterable[str], move: Move, now: float) -> Iterator[tuple[Task, Task]]:
        """Change tasks one after the other. Returns each changed task, before and after. A final task cannot become
        pending while another task has its unique key.
        """
        members: dict[str, Changes] = {}  # that have changed, by the task that depends on them
        for task_id in ids:
            before = self._read(task_id)
            if before is not None and before.depends_on is not None and members:
                self._update_followers(members, now)
                before = self._read(task_id)
            after = None if before is None else moved(before, move, now)
            if before is not None and after is not None and not self._is_taken(after, now):
                self._write(after, now)
                if after.next_task_id is not None:
                    members.setdefault(after.next_task_id, []).append((before, after))
                yield before, after
        self._update_followers(members, now)

    def _keep(self, task: Task, before: Task, now: float) -> None:
        """Write a changed task, which was `before`, and every task that depends on it and changes with it."""
        self._write(task, now)
        if task.next_task_id is not None:
            self._update_followers({task.next_task_id: [(before, task)]}, now)

    def _update_followers(self, members: dict[str, Changes], now: float) -> None:
        """Write the tasks that depend on changed ones. Each is read and written once, however many members it has.
        `members` is empty afterwards.
        """
        while members:
            next_task_id = next(iter(members))
            changes = members.pop(next_task_id)
            follower = self._read(next_task_id)
            if follower is None:
                continue
            after, waiting = after_members(follower, changes, now)
            if waiting is not None:
                back = called_back(after, waiting, self._members(after), now)
                after = after if back is None or self._is_taken(back, now) else back
            if after is not follower:
                self._write(after, now)
                if after.next_task_id is not None:
                    members.setdefault(after.next_task_id, []).append((follower, after))

    def _members(self, follower: Task) -> Iterator[Task | None]:
        """The tasks that a task depends on, last ones first."""
        ids = follower.depends_on.ids if follower.depends_on is not None else ()
        return (self._read(task_id) for task_id in reversed(ids))

    def _is_taken(self, task: Task, now: float) -> bool:
        """Whether another task has its unique key."""
        holder = self._holder(task, now) if has_key(task, math.inf) else None
        return holder is not None and holder.id != task.id


# Limits.


class QueueRoom:
    """How many more tasks may start in a queue: `left` in all, and a number for each concurrency key."""

    __slots__ = ("_running", "in_order", "left", "per_key")

    def __init__(
        self, left: float, per_key: int | None = None, running: Counter[str] | None = None, *, in_order: bool = False
    ) -> None:
        self.left = left
        self.per_key = per_key
        self.in_order = in_order
        self._running: Counter[str] = running if running is not None else Counter()  # by concurrency key

    def has(self, key: str | None) -> bool:
        """Whether a task with this concurrency key may start."""
        return self.left > 0 and (key is None or self.per_key is None or self._running[key] < self.per_key)

    def take(self, key: str | None) -> None:
        """A task with this concurrency key starts."""
        self.left -= 1
        if key is not None:
            self._running[key] += 1


def keys_limit(limit: Limit) -> int | None:
    """How many tasks of one concurrency key may run at once."""
    return 1 if limit.in_order else limit.max_running_per_key


def rate_period(rate: float) -> float:
    """The seconds in which starts are counted."""
    return max(1.0, 1.0 / rate)


def most_starts(rate: float) -> int:
    """How many tasks may start in a period."""
    return math.ceil(rate * rate_period(rate))


# Pruning.


def is_unawaited(task: Task, follower: Task | None) -> bool:
    """Whether a task is final, and no task that depends on it still needs its result."""
    return task.is_final and (follower is None or follower.is_final)
