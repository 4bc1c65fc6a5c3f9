"""Unique keys: which task has one, and what happens to a new task that comes with it. Pure.

A key belongs to one task of its queue at a time. How long a task has it is said by the task (`unique_scope`,
`unique_until`); what happens when another one comes, by whoever adds that one (`Duplicates`).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from bullpen.errors import TaskExists
from bullpen.tasks.task import PENDING, RUNNING, Task

OnDuplicate = Literal["return", "replace", "reject"]


class Duplicates(msgspec.Struct, frozen=True, gc=False):
    """What is done with new tasks whose unique key is taken.

    `return`: the task that has it stays as it is, and is returned. `replace`: if that one waits, it becomes the new
    one, with its own id and history and all its tries; it starts at the new one's `eta`, and not later than
    `push_limit` seconds after it was added first. `reject`: TaskExists is raised, and nothing at all is added.
    """

    policy: OnDuplicate = "return"
    push_limit: float | None = None


RETURN = Duplicates()

# What stays when a task is replaced.
_KEPT = (
    *("id", "attempt", "runs", "progress", "result", "result_dropped", "errors", "hold"),
    *("then", "follows", "waits_for"),
    *("created_at", "started_at", "finished_at"),
)


def has_key(task: Task, now: float) -> bool:
    """Whether no other task of its queue may have its unique key."""
    if task.unique_key is None:
        return False
    if task.unique_until is not None and now < task.unique_until:
        return True
    if task.unique_scope == "waiting":  # until it starts for the first time
        return task.status is PENDING and task.attempt == 0
    return task.status is PENDING or task.status is RUNNING


def meet(new: Task, holder: Task, duplicates: Duplicates, now: float) -> Task:
    """What the task that has the key becomes when a new one comes with it: mostly itself."""
    if duplicates.policy == "reject":
        raise TaskExists(key=new.unique_key or "", task=holder.id)
    if duplicates.policy == "return" or holder.status is not PENDING:
        return holder
    eta = new.eta if new.eta > 0 else now
    if duplicates.push_limit is not None:
        eta = min(eta, holder.created_at + duplicates.push_limit)
    if holder.waits_for > 0:
        eta = holder.eta
    return msgspec.structs.replace(new, **{name: getattr(holder, name) for name in _KEPT} | {"eta": eta})
