"""Tasks that depend on others: how the end of one task changes the task after it. Pure.

A task may name the task after it, its follower (`next_task_id`). The follower names its members, the tasks that it
depends on (`depends_on`), and counts those that are not done (`waits_for`). It is not due before all are done. A chain
or group is added in one step. A store that ends a task updates the follower in the same step, so no crash can come
between.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from bullpen.tasks.model.task import CANCELLED, ERRORS_KEPT, NEVER, PENDING, SUCCESS, AttemptError, Task, redriven

Changes = list[tuple[Task, Task]]  # of members, in order: each as it was and as it is
GIVEN_UP = -1  # `waits_for` of a task that was cancelled because a member did not succeed


def has_ended(before: Task, after: Task) -> bool:
    return after.is_final and not before.is_final


def has_come_back(before: Task, after: Task) -> bool:
    return before.is_final and not after.is_final


def followed(follower: Task, member: Task, now: float) -> Task | None:
    """The follower after a member has ended; None if it does not change."""
    depends_on = follower.depends_on
    if (depends_on is None and not follower.unreadable) or follower.status is not PENDING or follower.waits_for <= 0:
        return None
    if member.status is SUCCESS or (depends_on is not None and depends_on.run_always):
        left = follower.waits_for - 1
        return replace(follower, waits_for=left, eta=follower.eta if left else now)
    why = f"it waited for task {member.id}, which {'failed' if member.status is not CANCELLED else 'was cancelled'}"
    error = AttemptError(kind="upstream", attempt=follower.attempt, at=now, message=why)
    errors = (*follower.errors, error)[-ERRORS_KEPT:]
    return replace(follower, status=CANCELLED, finished_at=now, waits_for=GIVEN_UP, errors=errors)


def after_members(follower: Task, changes: Changes, now: float) -> tuple[Task, Task | None]:
    """The follower after several members have changed, one after the other.

    Returns also a member that was made pending again, as it was, if only `called_back` can tell whether the follower
    comes back with it: that needs all members, and is asked once, at the end.
    """
    waiting: Task | None = None
    for before, after in changes:
        changed: Task | None = None
        if has_ended(before, after):
            changed = followed(follower, after, now)
        elif has_come_back(before, after):
            if follower.status is CANCELLED and follower.waits_for == GIVEN_UP:
                waiting = before
            else:
                changed = called_back(follower, before, (), now)
        follower = changed or follower
    return follower, waiting


def called_back(follower: Task, before: Task, members: Iterable[Task | None], now: float) -> Task | None:
    """The follower after a final member was made pending again; None if it does not change.

    `before`: that member as it was. `members`: all members as they are now, last ones first, read lazily: members are
    retried from the first on, and a single one that has failed decides.
    """
    if follower.depends_on is None:
        return None
    if follower.status is PENDING and follower.waits_for > 0:
        was_done = before.status is SUCCESS or follower.depends_on.run_always
        return replace(follower, waits_for=follower.waits_for + 1) if was_done else None
    if follower.status is CANCELLED and follower.waits_for == GIVEN_UP:
        return redriven_behind(follower, members, now)
    return None


def redriven_behind(task: Task, members: Iterable[Task | None], now: float) -> Task | None:
    """`redriven` for a task with members: it waits again for those that are not done. None if a member has failed, and
    so has to run first. A member that was pruned counts as done.
    """
    after = redriven(task, now)
    if after is None or task.depends_on is None:
        return after
    waits_for = 0
    for member in members:
        if member is not None and not member.is_final:
            waits_for += 1
        elif member is not None and member.status is not SUCCESS and not task.depends_on.run_always:
            return None
    return replace(after, waits_for=waits_for, eta=NEVER if waits_for else now)
