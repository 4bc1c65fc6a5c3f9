"""Where a running task is: a client asks its worker through the store, and reads the answer there.

The request is a header of the task, which its worker reads once a second. The answer is a part of the worker's record.
"""

from __future__ import annotations

import asyncio

import msgspec

from bullpen import primitives
from bullpen.errors import StackUnavailable
from bullpen.tasks.model.task import RUNNING, Task
from bullpen.tasks.storage.port import STACK_HEADER, Storage

LOOK_EVERY = 0.2  # seconds


async def ask_for_stack(storage: Storage, task: Task, timeout: float | None) -> str:
    """The stack of a running task. Raises StackUnavailable."""
    request = f"{primitives.random.getrandbits(48):012x}"

    def ask(task: Task, _: float) -> Task | None:
        if task.status is not RUNNING:
            return None
        return msgspec.structs.replace(task, headers={**task.headers, STACK_HEADER: request})

    if not await storage.change([task.id], ask):
        raise StackUnavailable(task=task.id, reason=f"it is {task.status}, and only a running task has a stack")
    try:
        async with asyncio.timeout(timeout):
            return await _answer(storage, task, request)
    except TimeoutError:
        reason = f"worker {task.worker} did not answer within {timeout:g} s; it may hang, or the function has not begun"
        raise StackUnavailable(task=task.id, reason=reason) from None
    finally:
        await storage.change([task.id], lambda task, _: _without_request(task, request))


async def _answer(storage: Storage, task: Task, request: str) -> str:
    while True:
        for record in await storage.workers():
            for answer in record.stacks:
                if answer.request == request:
                    return answer.stack
        (now,) = await storage.get([task.id])
        if now is None or now.status is not RUNNING:
            raise StackUnavailable(task=task.id, reason="it has ended before its worker answered")
        await asyncio.sleep(LOOK_EVERY)


def _without_request(task: Task, request: str) -> Task | None:
    if task.headers.get(STACK_HEADER) != request:
        return None
    headers = {name: value for name, value in task.headers.items() if name != STACK_HEADER}
    return msgspec.structs.replace(task, headers=headers)
