"""Tasks that wait for others: what the end of one means for the one that comes after it. Pure.

A task may name one that comes after it (`then`). That one says whom it waits for (`follows`), and counts those that are
not done (`waits_for`); it is not due before they are. All of them are added together, and whatever ends a task changes
the one behind it in the same step, so there is no moment at which a crash could come between.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from bullpen.tasks.task import CANCELLED, ERRORS_KEPT, NEVER, PENDING, SUCCESS, Task, TaskError, redriven

GIVEN_UP = -1  # `waits_for` of a task that was cancelled because one that it waited for did not succeed


def has_ended(before: Task, after: Task) -> bool:
    return after.is_final and not before.is_final


def has_come_back(before: Task, after: Task) -> bool:
    return before.is_final and not after.is_final


def followed(follower: Task, member: Task, now: float) -> Task | None:
    """What becomes of a task when one that it waits for has ended; None if nothing does."""
    if follower.follows is None or follower.status is not PENDING or follower.waits_for <= 0:
        return None
    if member.status is SUCCESS or follower.follows.anyway:
        left = follower.waits_for - 1
        return replace(follower, waits_for=left, eta=follower.eta if left else now)
    why = f"it waited for task {member.id}, which {'failed' if member.status is not CANCELLED else 'was cancelled'}"
    error = TaskError(kind="upstream", attempt=follower.attempt, at=now, message=why)
    errors = (*follower.errors, error)[-ERRORS_KEPT:]
    return replace(follower, status=CANCELLED, finished_at=now, waits_for=GIVEN_UP, errors=errors)


def called_back(follower: Task, before: Task, members: Iterable[Task | None], now: float) -> Task | None:
    """What becomes of a task when one that it waits for, which was over, runs again; None if nothing does.

    `before`: the other one as it was. `members`: all that it waits for, as they are now; the last ones first and only
    when they are asked for, because the first ones are the first to run again, and one that is not to is enough.
    """
    if follower.follows is None:
        return None
    if follower.status is PENDING and follower.waits_for > 0:
        was_done = before.status is SUCCESS or follower.follows.anyway
        return replace(follower, waits_for=follower.waits_for + 1) if was_done else None
    if follower.status is CANCELLED and follower.waits_for == GIVEN_UP:
        return redriven_behind(follower, members, now)
    return None


def redriven_behind(task: Task, members: Iterable[Task | None], now: float) -> Task | None:
    """`redriven`, of a task that waits for others: it waits for those again that are not done. None if one of them has
    not succeeded, and so has to run again first. One that is forgotten was done.
    """
    after = redriven(task, now)
    if after is None or task.follows is None:
        return after
    waits_for = 0
    for member in members:
        if member is not None and not member.is_final:
            waits_for += 1
        elif member is not None and member.status is not SUCCESS and not task.follows.anyway:
            return None
    return replace(after, waits_for=waits_for, eta=NEVER if waits_for else now)
