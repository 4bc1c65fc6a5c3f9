"""The store as the parts of a queue use it: async inside, with a way in for sync methods."""

from __future__ import annotations

import sys
import warnings
from asyncio import _get_running_loop
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from contextvars import ContextVar
from typing import Any, TypeVar

from msgspec.structs import replace

from bullpen import primitives
from bullpen.errors import InvalidOption, InvalidOptionType, QueueError, TaskNotFound
from bullpen.queue.clients import Clients
from bullpen.queue.new_tasks import NewTasks
from bullpen.queue.watch import Watch
from bullpen.storage import schedules
from bullpen.storage.port import Storage
from bullpen.tasks.alike import Alike
from bullpen.tasks.hooks import Around
from bullpen.tasks.ids import as_schedule_id, schedule_id
from bullpen.tasks.options import CALL_NAMES, TaskOptions
from bullpen.tasks.registry import Registry
from bullpen.tasks.task import Task

T = TypeVar("T")
Keys = Sequence[Mapping[str, str]] | None

_warned = False
_waits = ContextVar("bullpen_enqueue_waits", default=True)  # false: for a sync method, on the thread of its caller


class Store:
    """What functions, jobs and the queue share."""

    def __init__(
        self, clients: Clients, registry: Registry, new_ids: Callable[[int], Sequence[str]], watch: Watch
    ) -> None:
        self.clients = clients
        self.watch = watch
        self.registry = registry
        self.new_ids = new_ids
        self._usual: tuple[TaskOptions, str, Task | None] = (TaskOptions(), "", None)

    def run(self, name: str, coroutine: Coroutine[Any, Any, T], *, waits: bool = False, connection: Any = None) -> T:
        """Run `aname`, as the coroutine is called, for the sync method `name`. With a `connection` of the caller, which
        is the caller's thread's, it runs right here.
        """
        if connection is not None:
            return self._run_here(name, coroutine, connection)
        if _get_running_loop() is not None:
            _warn(name)
        return self.clients.run(coroutine, waits=waits or self.registry.hooks.enqueue_needs_loop)

    def _run_here(self, name: str, coroutine: Coroutine[Any, Any, T], connection: Any) -> T:
        if self.registry.hooks.enqueue_needs_loop:
            coroutine.close()
            raise QueueError(f"there is async middleware around enqueue, which {name}(connection=…) cannot wait for")
        token = _waits.set(False)
        try:
            coroutine.send(None)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        finally:
            _waits.reset(token)
            coroutine.close()
        raise InvalidOptionType("connection", connection, f"one for sync code; with this one, await a{name}()")

    def usual(self, options: TaskOptions, func_path: str) -> Task | None:
        """What tasks with these options have in common, if to enqueue one is to add it and no more; else None.

        Mostly the same as for the call before.
        """
        latest_options, latest_path, same = self._usual
        if latest_options is not options or latest_path != func_path:
            same = options.new_task("", func_path, b"") if options.are_usual else None
            self._usual = (options, func_path, same)
        return None if self.watch.observer is not None or self.registry.hooks.around_enqueue else same

    def add(
        self, options: TaskOptions, func_path: str, payloads: Sequence[bytes], keys: Keys = None
    ) -> Coroutine[Any, Any, list[tuple[str, bool]]]:
        """Keep new tasks, all or none of them; the id of each, and whether it is new. `keys`: those of each, if they
        depend on its arguments.
        """
        if self.registry.hooks.around_enqueue:
            return self._add_surrounded(options, func_path, payloads, keys)
        return self._add(options, func_path, payloads, keys)

    async def _add_surrounded(
        self, options: TaskOptions, func_path: str, payloads: Sequence[bytes], keys: Keys
    ) -> list[tuple[str, bool]]:
        added: list[tuple[str, bool]] = []

        async def add(changed: Sequence[TaskOptions]) -> list[list[str]]:
            added.extend(await self._add(changed[0], func_path, payloads, keys))
            return [[task_id for task_id, _ in added]]

        await self.surround([NewTasks(func_path, options.queue, dict(options.headers), len(payloads))], [options], add)
        return added

    async def surround(
        self,
        news: Sequence[NewTasks],
        options: Sequence[TaskOptions],
        add: Callable[[Sequence[TaskOptions]], Awaitable[Sequence[Sequence[str]]]],
    ) -> None:
        """Let middleware see tasks before `add` keeps them, with the options that come of that, and says their ids."""
        failure: BaseException | None = None
        try:
            async with AsyncExitStack() as stack:
                try:
                    for new in news:
                        for hook in self.registry.hooks.around_enqueue:
                            around = hook.around(new)
                            await (stack.enter_async_context(around) if hook.is_async else _entered(stack, around))
                    changed = [
                        one.using(CALL_NAMES, "enqueue()", {"headers": new.headers})
                        for one, new in zip(options, news, strict=True)
                    ]
                    for new, ids in zip(news, await add(changed), strict=True):
                        new.ids = tuple(ids)
                except BaseException as error:
                    failure = error
                    raise
        except BaseException as error:
            kept = [task_id for new in news for task_id in new.ids]
            if kept:
                error.add_note(f"though the task is kept: {', '.join(kept[:3])}{'…' if len(kept) > 3 else ''}")
            raise
        if failure is not None:
            raise failure  # some middleware has swallowed it

    async def _add(
        self, options: TaskOptions, func_path: str, payloads: Sequence[bytes], keys: Keys
    ) -> list[tuple[str, bool]]:
        if options.connection is not None:
            return await self._add_in(options, func_path, payloads, keys)
        storage = self.clients.at_hand() or await self.clients.get()
        same = options.new_task("", func_path, b"", await storage.now() if options.is_relative else 0.0)
        ids = self.new_ids(len(payloads))
        if options.repeats:
            if options.schedule_key is not None:
                if keys:
                    same = replace(same, **keys[0])
                return [await self._put(storage, same, options.schedule_key, payloads)]
            ids = [as_schedule_id(task_id) for task_id in ids]
        tasks: Sequence[Task] = Alike(same, ids, payloads)
        if keys is not None:
            tasks = [replace(task, **of_call) for task, of_call in zip(tasks, keys, strict=True)]
        primitives.failpoint("enqueue.before_add")
        kept = await storage.add(tasks) if same.unique_key is None else await storage.add(tasks, options.duplicates)
        primitives.failpoint("enqueue.after_add")
        if self.watch.observer is not None:
            for there, task_id in zip(kept, ids, strict=True):
                if there.id == task_id:
                    self.watch.enqueued(there)
        return [(there.id, there.id == task_id) for there, task_id in zip(kept, ids, strict=True)]

    async def _add_in(
        self, options: TaskOptions, func_path: str, payloads: Sequence[bytes], keys: Keys
    ) -> list[tuple[str, bool]]:
        """In the caller's own transaction, and with nothing of ours."""
        storage, connection = self.clients.root, options.connection
        now = await _answer(storage.now_in(connection), connection) if options.is_relative else 0.0
        ids = self.new_ids(len(payloads))
        if options.repeats:
            ids = [as_schedule_id(task_id) for task_id in ids]
        tasks = [
            options.new_task(task_id, func_path, payload, now) for task_id, payload in zip(ids, payloads, strict=True)
        ]
        if keys is not None:
            tasks = [replace(task, **of_call) for task, of_call in zip(tasks, keys, strict=True)]
        kept = await _answer(storage.add_in(connection, tasks, options.duplicates), connection)
        return [(there, there == task_id) for there, task_id in zip(kept, ids, strict=True)]

    async def _put(self, storage: Storage, same: Task, key: str, payloads: Sequence[bytes]) -> tuple[str, bool]:
        if len(payloads) > 1:
            raise InvalidOption("schedule_key", key, "given for one call only: it stands for one schedule")
        task = replace(same, id=schedule_id(key), payload=payloads[0])
        primitives.failpoint("enqueue.before_add")
        is_new = await schedules.put(storage, task)
        primitives.failpoint("enqueue.after_add")
        return task.id, is_new

    async def cancel(self, ids: Sequence[str]) -> int:
        """Cancel tasks that wait, and ask those that run to stop; how many this changed."""
        changed = await (await self.clients.get()).cancel(ids)
        self.watch.cancelled(changed)
        return len(changed)

    async def retry(self, ids: Sequence[str]) -> int:
        """Let tasks that are over run again; how many this changed."""
        changed = await (await self.clients.get()).retry(ids)
        self.watch.redriven(changed)
        return len(changed)

    async def task(self, task_id: str) -> Task:
        """A task as it is now. Raises TaskNotFound."""
        storage = await self.clients.get()
        (task,) = await storage.get([task_id])
        if task is None:
            raise TaskNotFound(task=task_id)
        return task


async def _answer(answer: T | Awaitable[T], connection: Any) -> T:
    if not isinstance(answer, Awaitable):
        return answer
    if not _waits.get():
        if isinstance(answer, Coroutine):
            answer.close()
        raise InvalidOptionType("connection", connection, "one for sync code; with this one, await aenqueue()")
    return await answer


async def _entered(stack: AsyncExitStack, around: Around) -> Any:
    return stack.enter_context(around)


def _warn(name: str) -> None:
    """Once per process: to wait on the thread of an event loop is to stop the loop meanwhile."""
    global _warned  # noqa: PLW0603 — one process, one warning
    if _warned:
        return
    _warned = True
    warnings.warn(
        f"{name}() was called on the thread of a running event loop, which stands still until it returns; "
        f"use await a{name}()",
        RuntimeWarning,
        stacklevel=_frames_of_ours(),
    )


def _frames_of_ours() -> int:
    """How far up the first frame outside this package is."""
    frame, level = sys._getframe(1), 1  # noqa: SLF001 — there is no other way
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("bullpen.queue"):
        frame, level = frame.f_back, level + 1
    return level
