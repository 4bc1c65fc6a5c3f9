"""Unique keys: which task holds one, and what happens to a new task with the same key. Pure.

One task of a queue at a time holds a key. The fields `unique_scope` and `unique_until` of that task say for how long.
The caller that adds another task with the key says what happens (`Duplicates`).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from bullpen.errors import TaskExists
from bullpen.tasks.model.task import PENDING, RUNNING, Task

OnDuplicate = Literal["return", "replace", "reject"]


class Duplicates(msgspec.Struct, frozen=True, gc=False):
    """The rule for a new task with a unique key that another task holds.

    `return`: the holder is not changed, and is returned. `replace`: if the holder is pending, it takes over the terms
    of the new task, keeps its id and history, and gets all its retries back. It starts at the `eta` of the new task, at
    the latest `push_limit` seconds after it was first added. `reject`: `add` raises TaskExists and adds no task at all.
    """

    policy: OnDuplicate = "return"
    push_limit: float | None = None


RETURN = Duplicates()

# The fields that the holder keeps when it is replaced.
_KEPT = (
    *("id", "attempt", "completed_runs", "progress", "result", "result_dropped", "errors", "hold"),
    *("next_task_id", "depends_on", "waits_for"),
    *("created_at", "started_at", "finished_at"),
)


def has_key(task: Task, now: float) -> bool:
    """Whether the task holds its unique key."""
    if task.unique_key is None:
        return False
    if task.unique_until is not None and now < task.unique_until:
        return True
    if task.unique_scope == "waiting":  # until it starts for the first time
        return task.status is PENDING and task.attempt == 0
    return task.status is PENDING or task.status is RUNNING


def meet(new: Task, holder: Task, duplicates: Duplicates, now: float) -> Task:
    """The holder after a new task with its key was added: unchanged, or replaced. Raises TaskExists."""
    if duplicates.policy == "reject":
        raise TaskExists(key=new.unique_key or "", task=holder.id)
    if duplicates.policy == "return" or holder.status is not PENDING or holder.unreadable:
        return holder
    eta = new.eta if new.eta > 0 else now
    if duplicates.push_limit is not None:
        eta = min(eta, holder.created_at + duplicates.push_limit)
    if holder.waits_for > 0:
        eta = holder.eta
    return msgspec.structs.replace(new, **{name: getattr(holder, name) for name in _KEPT} | {"eta": eta})
