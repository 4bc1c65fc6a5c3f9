"""Marks a task that is being moved to another store: no worker starts it, and it names its destination. Pure.

The mark is a header, together with an `eta` at the end of time. A marked task is still pending: it can be listed and
cancelled, and a later run of the mover finds it again. A task that waits for an event is due when the mark is gone: it
looks for the event where it is then.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from bullpen.tasks.model.task import NEVER, PENDING, Task

HEADER = "bullpen-move"


class Mark(msgspec.Struct, frozen=True):
    to: str  # the address of the destination, without a password
    at: float  # when it was marked
    eta: float  # of the task before it was marked
    expires: float | None
    changed: bool = False  # the task has changed since it was marked, so the copy at the destination is out of date


_decode = msgspec.json.Decoder(Mark).decode


def mark_of(task: Task) -> Mark | None:
    written = task.headers.get(HEADER)
    try:
        return None if written is None else _decode(written)
    except msgspec.MsgspecError:  # no mark of ours
        return None


def marked(task: Task, to: str, at: float, *, changed: bool = False) -> Task | None:
    """PENDING → PENDING, but no worker starts it. None if the task is not pending, or is marked already."""
    if task.status is not PENDING or HEADER in task.headers:
        return None
    eta = task.eta if task.awaits is None else min(at, task.eta)
    mark = Mark(to=to, at=at, eta=eta, expires=task.expires, changed=changed)
    headers = {**task.headers, HEADER: msgspec.json.encode(mark).decode()}
    return replace(task, eta=NEVER, expires=None, awaits=None, headers=headers)


def unmarked(task: Task) -> Task:
    """The task without the mark. Changes since then stay: it may be cancelled, or due after its members ended."""
    mark = mark_of(task)
    if mark is None:
        return task
    headers = {name: value for name, value in task.headers.items() if name != HEADER}
    return replace(task, eta=mark.eta if task.eta == NEVER else task.eta, expires=mark.expires, headers=headers)


def through_mark(move: Callable[[Task, float], Task | None]) -> Callable[[Task, float], Task | None]:
    """`move` for marked tasks too: it gets the task without the mark, and the result is marked again."""

    def moved(task: Task, now: float) -> Task | None:
        mark = mark_of(task)
        after = move(unmarked(task), now)
        if mark is None or after is None or after.status is not PENDING:
            return after
        return marked(after, mark.to, mark.at, changed=True)

    return moved


def may_have_been_there(task: Task, now: float) -> bool:
    """Whether a marked task that is missing at its destination may have run there and been pruned."""
    mark = mark_of(task)
    ttls = [ttl for ttl in (task.result_ttl, task.failure_ttl) if ttl is not None]
    return mark is not None and bool(ttls) and now >= mark.at + min(ttls)
