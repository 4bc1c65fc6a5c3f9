"""Assertions about enqueued tasks: whether there is one, and with which arguments."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from bullpen.tasks.client.function import TaskFunction
from bullpen.tasks.model.info import TaskInfo, info_of
from bullpen.tasks.model.task import Task
from bullpen.tasks.storage.port import TaskFilter

_PAGE = 500


@dataclass(frozen=True, slots=True)
class Enqueued:
    """One task, with the arguments that it was enqueued with."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    info: TaskInfo

    def __str__(self) -> str:
        words = [*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.kwargs.items())]
        return f"{self.info.name}({', '.join(words)})"


def enqueued(task: TaskFunction[..., Any]) -> list[Enqueued]:
    """All calls of a task that are in the store, whatever became of them; oldest first."""
    return task._backend.clients.run(_enqueued(task))  # without a warning: a test may block its event loop


async def _enqueued(task: TaskFunction[..., Any]) -> list[Enqueued]:
    storage = await task._backend.clients.get()
    found: list[Task] = []
    while page := await storage.list(
        TaskFilter(func_path=task.name), limit=_PAGE, after=found[-1].id if found else None
    ):
        found += page
    return [Enqueued(*task.definition.decode(one.payload), info_of(one)) for one in found]


def assert_enqueued(task: TaskFunction[..., Any], /, *args: Any, **kwargs: Any) -> Enqueued:
    """Fail unless the task was enqueued with these arguments, or with any if none are given; the latest such call.

    `assert_enqueued(send_email, "ada@example.org").info.priority == 5`
    """
    __tracebackhide__ = True  # of pytest: the line that asked is what matters
    found = enqueued(task)
    if fitting := [call for call in found if _is_call(task, call, args, kwargs)]:
        return fitting[-1]
    wanted = Enqueued(args, kwargs, found[0].info) if found else None
    there = "".join(f"\n  {call}" for call in found[:10]) or " nothing"
    more = f"\n  and {len(found) - 10} more" if len(found) > 10 else ""
    raise AssertionError(f"{wanted or task.name} was not enqueued; of this task there is:{there}{more}")


def assert_not_enqueued(task: TaskFunction[..., Any], /, *args: Any, **kwargs: Any) -> None:
    """Fail if the task was enqueued with these arguments, or at all if none are given."""
    __tracebackhide__ = True
    for call in enqueued(task):
        if _is_call(task, call, args, kwargs):
            raise AssertionError(f"{call} was enqueued ({call.info.id})")


def _is_call(task: TaskFunction[..., Any], call: Enqueued, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if not args and not kwargs:
        return True
    signature = inspect.signature(task.definition.function)
    wanted = signature.bind_partial(*args, **kwargs)
    there = signature.bind_partial(*call.args, **call.kwargs)
    wanted.apply_defaults()
    there.apply_defaults()
    return wanted.arguments == there.arguments
