"""A task on its way to another store: nobody starts it here, and it says where it goes. Pure.

The mark is a header, and a start at the end of time. So a task that is marked is still one that waits, for everybody:
it can be listed, cancelled, and found again by whoever goes on with the move.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from bullpen.tasks.task import NEVER, PENDING, Task

HEADER = "bullpen-move"


class Mark(msgspec.Struct, frozen=True):
    to: str  # the address of the store that it goes to, without a password
    at: float  # when it was marked
    eta: float  # what the mark stands in for
    expires: float | None
    changed: bool = False  # somebody has changed the task since: what has arrived there is not as it is now


_decode = msgspec.json.Decoder(Mark).decode


def mark_of(task: Task) -> Mark | None:
    written = task.headers.get(HEADER)
    return None if written is None else _decode(written)


def marked(task: Task, to: str, at: float, *, changed: bool = False) -> Task | None:
    """PENDING → PENDING, for nobody to start; None if it does not wait, or is on its way already."""
    if task.status is not PENDING or HEADER in task.headers:
        return None
    mark = Mark(to=to, at=at, eta=task.eta, expires=task.expires, changed=changed)
    headers = {**task.headers, HEADER: msgspec.json.encode(mark).decode()}
    return replace(task, eta=NEVER, expires=None, headers=headers)


def unmarked(task: Task) -> Task:
    """As it was before; what has become of it meanwhile, it stays: cancelled, or due because others have ended."""
    mark = mark_of(task)
    if mark is None:
        return task
    headers = {name: value for name, value in task.headers.items() if name != HEADER}
    return replace(task, eta=mark.eta if task.eta == NEVER else task.eta, expires=mark.expires, headers=headers)


def through_mark(move: Callable[[Task, float], Task | None]) -> Callable[[Task, float], Task | None]:
    """`move`, also of tasks that are on their way: they are changed as they were before the mark, and keep it."""

    def moved(task: Task, now: float) -> Task | None:
        mark = mark_of(task)
        after = move(unmarked(task), now)
        if mark is None or after is None or after.status is not PENDING:
            return after
        return marked(after, mark.to, mark.at, changed=True)

    return moved


def may_have_been_there(task: Task, now: float) -> bool:
    """Whether a marked task that is not at its destination may have been there, have ended and been forgotten."""
    mark = mark_of(task)
    return mark is not None and task.result_ttl is not None and now >= mark.at + task.result_ttl
