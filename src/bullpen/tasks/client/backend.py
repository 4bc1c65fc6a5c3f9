"""The store as functions, jobs and the queue use it: how new tasks get there, for async and for blocking callers.

To follow one `enqueue`: `function.py` encodes the call, and this module makes tasks of it and has the store add them.
A blocking caller takes the plain way, `enqueue_blocking` → `storage.add_blocking`, where the store has it. Everywhere
else the coroutine of the same verb runs on the portal's event loop (`QueueBackend.run`).
"""

from __future__ import annotations

import sys
import warnings
from asyncio import _get_running_loop
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from bullpen import primitives
from bullpen.errors import InvalidOption, InvalidOptionType, QueueError, TaskNotFound, UnreadableTask
from bullpen.tasks.client.clients import Clients
from bullpen.tasks.client.watch import Watch
from bullpen.tasks.model import steps
from bullpen.tasks.model.hooks import Hook
from bullpen.tasks.model.ids import as_schedule_id, schedule_id
from bullpen.tasks.model.options import CALL_NAMES, TaskOptions
from bullpen.tasks.model.registry import TaskRegistry
from bullpen.tasks.model.task import Task
from bullpen.tasks.model.task_batch import TaskBatch
from bullpen.tasks.model.unique import RETURN, Duplicates
from bullpen.tasks.storage import schedules
from bullpen.tasks.storage.port import BatchVerb, Storage, SupportsBlockingCalls, TaskFilter

T = TypeVar("T")
Keys = Sequence[Mapping[str, str]] | None
Added = list[tuple[str, bool]]  # the id of each task, and whether it is new

OnBatch = Callable[[int, int], object]  # called after each batch: how many tasks matched, and how many changed

BATCH = 1000  # tasks that one step of the store changes, so that no lock is held for long

_warned = False


class NewTasks:
    """What middleware around `enqueue` sees: the tasks of one call of `enqueue` or `enqueue_many`, before they are
    kept. They differ in nothing but their arguments.

    Middleware may change `headers` until the tasks are kept; `ids` are known afterwards. Arguments may be secrets, so
    they are not here.
    """

    __slots__ = ("count", "headers", "ids", "name", "queue")

    def __init__(self, name: str, queue: str, headers: dict[str, str], count: int) -> None:
        self.name = name
        self.queue = queue
        self.headers = headers
        self.count = count
        self.ids: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<{self.count} new {self.name} in {self.queue}>"


class EnqueuePlan(Protocol):
    """The calls that one `enqueue` stores atomically, before they are tasks. `options`: one for each of `new_tasks`.

    `connection`: the caller's own, if the tasks are to be added in its transaction.
    """

    options: Sequence[TaskOptions]
    connection: Any

    def new_tasks(self) -> list[NewTasks]:
        """As middleware sees them."""

    def tasks(self, options: Sequence[TaskOptions], now: float, new_ids: Callable[[int], Sequence[str]]) -> NewBatch:
        """The tasks, with these options. `now`, by the store's clock, counts only if one of the options is relative."""


class NewBatch:
    """Tasks to be added, the ids that they are added with, and what happens where a unique key is taken."""

    __slots__ = ("duplicates", "ids", "tasks")

    def __init__(self, tasks: Sequence[Task], ids: Sequence[str], duplicates: Duplicates = RETURN) -> None:
        self.tasks = tasks
        self.ids = ids
        self.duplicates = duplicates


class CallPlan:
    """Calls of one function. `keys`: the keys of each call, if they depend on its arguments."""

    __slots__ = ("connection", "func_path", "keys", "options", "payloads")

    def __init__(self, options: TaskOptions, func_path: str, payloads: Sequence[bytes], keys: Keys = None) -> None:
        self.options: Sequence[TaskOptions] = (options,)
        self.connection = options.connection
        self.func_path = func_path
        self.payloads = payloads
        self.keys = keys

    def new_tasks(self) -> list[NewTasks]:
        (options,) = self.options
        return [NewTasks(self.func_path, options.queue, dict(options.headers), len(self.payloads))]

    def tasks(self, options: Sequence[TaskOptions], now: float, new_ids: Callable[[int], Sequence[str]]) -> NewBatch:
        (of_calls,) = options
        template = of_calls.new_task("", self.func_path, b"", now)
        ids = new_ids(len(self.payloads))
        if of_calls.repeats:
            ids = [as_schedule_id(task_id) for task_id in ids]
        tasks: Sequence[Task] = TaskBatch(template, ids, self.payloads)
        if self.keys is not None:
            tasks = [replace(task, **of_call) for task, of_call in zip(tasks, self.keys, strict=True)]
        return NewBatch(tasks, ids, RETURN if of_calls.unique_key is None else of_calls.duplicates)

    @property
    def has_schedule_key(self) -> bool:
        (options,) = self.options
        return options.repeats and options.schedule_key is not None

    def schedule(self, options: TaskOptions, now: float) -> Task:
        """The one task of a schedule with a key."""
        key = options.schedule_key or ""
        if len(self.payloads) > 1:
            raise InvalidOption("schedule_key", key, "given for one call only: it stands for one schedule")
        task = options.new_task(schedule_id(key), self.func_path, self.payloads[0], now)
        return replace(task, **self.keys[0]) if self.keys else task


class QueueBackend:
    """What the functions, jobs and schedules of one queue share."""

    def __init__(
        self, clients: Clients, registry: TaskRegistry, new_ids: Callable[[int], Sequence[str]], watch: Watch
    ) -> None:
        self.clients = clients
        self.watch = watch
        self.registry = registry
        self.new_ids = new_ids
        self._plain: tuple[TaskOptions, str, Task | None] = (TaskOptions(), "", None)

    # Blocking callers.

    def run(self, name: str, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine of `a{name}` for the blocking method `name`, on the portal's event loop."""
        if _get_running_loop() is not None:
            _warn(name)
        return self.clients.run(coroutine)

    def blocking(self, name: str) -> SupportsBlockingCalls | None:
        """The store for the blocking method `name`, if it can answer on this thread."""
        storage = self.clients.blocking or self.clients.open_blocking()
        if storage is not None and _get_running_loop() is not None:
            _warn(name)
        return storage

    # One task, the usual way.

    def plain_template(self, options: TaskOptions, func_path: str) -> Task | None:
        """The task, without id and payload, if to enqueue one is to add it and no more; else None.

        The template of the latest call is kept, because the next call mostly needs the same.
        """
        latest_options, latest_path, template = self._plain
        if latest_options is not options or latest_path != func_path:
            template = options.new_task("", func_path, b"") if options.are_usual else None
            self._plain = (options, func_path, template)
        return None if self.watch.observer is not None or self.registry.hooks.around_enqueue else template

    # New tasks.

    async def add(self, plan: EnqueuePlan) -> Added:
        """Keep new tasks, all or none of them."""
        if not self.registry.hooks.around_enqueue:
            return await self._add(plan, plan.options)
        added: Added = []
        news = plan.new_tasks()
        with _noting_kept_tasks(news):
            failure: BaseException | None = None
            async with AsyncExitStack() as stack:
                try:
                    for new in news:
                        for hook in self.registry.hooks.around_enqueue:
                            around = hook.around(new)
                            if hook.is_async:
                                await stack.enter_async_context(around)
                            else:
                                stack.enter_context(around)
                    added = await self._add(plan, _with_headers(plan.options, news))
                    _tell_ids(news, added)
                except BaseException as error:
                    failure = error
                    raise
            if failure is not None:
                raise failure  # some middleware has swallowed it
        return added

    def add_blocking(self, name: str, plan: EnqueuePlan) -> Added:
        """`add` for the blocking method `name`."""
        hooks = [hook.blocking_form for hook in self.registry.hooks.around_enqueue]
        storage = None
        if plan.connection is None:
            storage = self.blocking(name)
            if storage is None or None in hooks or (isinstance(plan, CallPlan) and plan.has_schedule_key):
                return self.run(name, self.add(plan))
        elif None in hooks:
            raise QueueError(f"{name}(connection=…) cannot await async middleware around enqueue; use a{name}()")
        if not hooks:
            return self._add_blocking(name, storage, plan, plan.options)
        return _surrounded(hooks, plan, lambda options: self._add_blocking(name, storage, plan, options))

    def make_children(self, plan: EnqueuePlan, now: float) -> list[Task]:
        """The tasks of a plan that an attempt enqueues with its success. They pass the middleware here; the store adds
        them when the attempt settles.
        """
        hooks = [hook.blocking_form for hook in self.registry.hooks.around_enqueue if hook.for_children]
        if None in hooks:
            raise QueueError("current_task().enqueue() cannot await async middleware around enqueue; make it sync")
        tasks: list[Task] = []

        def make(options: Sequence[TaskOptions]) -> Added:
            tasks.extend(plan.tasks(options, now, self.new_ids).tasks)
            return [(task.id, True) for task in tasks]

        if hooks:
            _surrounded(hooks, plan, make)
        else:
            make(plan.options)
        return tasks

    async def _add(self, plan: EnqueuePlan, options: Sequence[TaskOptions]) -> Added:
        if plan.connection is not None:
            return await self._add_in(plan, options)
        storage = self.clients.at_hand() or await self.clients.get()
        now = await storage.now() if any(one.is_relative for one in options) else 0.0
        if isinstance(plan, CallPlan) and plan.has_schedule_key:
            return [await self._put(storage, plan.schedule(options[0], now))]
        new = plan.tasks(options, now, self.new_ids)
        primitives.failpoint("enqueue.before_add")
        kept = await storage.add(new.tasks, new.duplicates)
        primitives.failpoint("enqueue.after_add")
        return self._added(new, kept)

    def _add_blocking(
        self, name: str, storage: SupportsBlockingCalls | None, plan: EnqueuePlan, options: Sequence[TaskOptions]
    ) -> Added:
        if storage is None:
            return self._add_in_blocking(name, plan, options)
        now = storage.now_blocking() if any(one.is_relative for one in options) else 0.0
        new = plan.tasks(options, now, self.new_ids)
        primitives.failpoint("enqueue.before_add")
        kept = storage.add_blocking(new.tasks, new.duplicates)
        primitives.failpoint("enqueue.after_add")
        return self._added(new, kept)

    def _added(self, new: NewBatch, kept: Sequence[Task]) -> Added:
        if self.watch.observer is not None:
            for existing, task_id in zip(kept, new.ids, strict=True):
                if existing.id == task_id:
                    self.watch.enqueued(existing)
        return [(existing.id, existing.id == task_id) for existing, task_id in zip(kept, new.ids, strict=True)]

    async def _put(self, storage: Storage, task: Task) -> tuple[str, bool]:
        primitives.failpoint("enqueue.before_add")
        is_new = await schedules.put(storage, task)
        primitives.failpoint("enqueue.after_add")
        return task.id, is_new

    # New tasks in the caller's own transaction.

    async def _add_in(self, plan: EnqueuePlan, options: Sequence[TaskOptions]) -> Added:
        storage, connection = self.clients.root, plan.connection
        now = await _answer(storage.now_in(connection)) if options[0].is_relative else 0.0
        new = plan.tasks(options, now, self.new_ids)
        kept = await _answer(storage.add_in(connection, list(new.tasks), options[0].duplicates))
        return [(existing, existing == task_id) for existing, task_id in zip(kept, new.ids, strict=True)]

    def _add_in_blocking(self, name: str, plan: EnqueuePlan, options: Sequence[TaskOptions]) -> Added:
        """On the caller's thread, which owns the connection."""
        storage, connection = self.clients.root, plan.connection
        now = _answer_here(name, storage.now_in(connection), connection) if options[0].is_relative else 0.0
        new = plan.tasks(options, now, self.new_ids)
        kept = _answer_here(name, storage.add_in(connection, list(new.tasks), options[0].duplicates), connection)
        return [(existing, existing == task_id) for existing, task_id in zip(kept, new.ids, strict=True)]

    # Tasks that are there.

    async def cancel(self, ids: Sequence[str]) -> int:
        """Cancel tasks that wait, and ask those that run to stop; how many this changed."""
        changed = await (await self.clients.get()).cancel(ids)
        self.watch.cancelled(changed)
        return len(changed)

    async def retry(self, ids: Sequence[str], from_step: str | None = None) -> int:
        """Let tasks that are over run again; how many this changed. `from_step`: this step and those after it, too."""
        storage = await self.clients.get()
        if from_step is not None:
            for task in await storage.get(ids):  # if one has no such step, none is changed
                if task is not None:
                    steps.from_step(task, from_step)
            await storage.change(ids, lambda task, _: steps.from_step(task, from_step) if task.is_final else None)
        changed = await storage.retry(ids)
        self.watch.redriven(changed)
        others = set(ids) - {task.id for task in changed}
        for task in await storage.get(sorted(others)) if others else ():
            if task is not None and task.unreadable:
                raise UnreadableTask(task=task.id, reason=task.unreadable)
        return len(changed)

    async def change_all(self, verb: BatchVerb, which: TaskFilter, on_batch: OnBatch | None) -> int:
        """Cancel, retry or delete all tasks that match, batch by batch in the store; how many this changed."""
        storage = await self.clients.get()
        matching, changed, cursor = 0, 0, None
        while True:
            batch = await storage.change_batch(verb, which, limit=BATCH, cursor=cursor)
            if verb == "cancel":
                self.watch.cancelled(batch.changed)
            elif verb == "retry":
                self.watch.redriven(batch.changed)
            else:
                self.watch.forgotten(len(batch.changed))
            matching, changed, cursor = matching + batch.matching, changed + len(batch.changed), batch.cursor
            if on_batch is not None:
                on_batch(matching, changed)
            if cursor is None:
                return changed

    async def task(self, task_id: str) -> Task:
        """A task as it is now. Raises TaskNotFound."""
        storage = await self.clients.get()
        return _found(task_id, await storage.get([task_id]))

    def task_blocking(self, name: str, task_id: str) -> Task:
        """`task` for the blocking method `name`."""
        storage = self.blocking(name)
        if storage is None:
            return self.run(name, self.task(task_id))
        return _found(task_id, storage.get_blocking([task_id]))


def _surrounded(
    hooks: Sequence[Hook | None], plan: EnqueuePlan, add: Callable[[Sequence[TaskOptions]], Added]
) -> Added:
    """What `add` does with the options, inside sync middleware, which may change the headers."""
    added: Added = []
    news = plan.new_tasks()
    with _noting_kept_tasks(news):
        failure: BaseException | None = None
        with ExitStack() as stack:
            try:
                for new in news:
                    for hook in hooks:
                        if hook is not None:
                            stack.enter_context(hook.around(new))
                added = add(_with_headers(plan.options, news))
                _tell_ids(news, added)
            except BaseException as error:
                failure = error
                raise
        if failure is not None:
            raise failure  # some middleware has swallowed it
    return added


def _found(task_id: str, tasks: Sequence[Task | None]) -> Task:
    (task,) = tasks
    if task is None:
        raise TaskNotFound(task=task_id)
    return task


def _with_headers(options: Sequence[TaskOptions], news: Sequence[NewTasks]) -> list[TaskOptions]:
    """The options, with the headers that middleware has left."""
    return [
        one.using(CALL_NAMES, "enqueue()", {"headers": new.headers}) for one, new in zip(options, news, strict=True)
    ]


def _tell_ids(news: Sequence[NewTasks], added: Added) -> None:
    ids = iter(added)
    for new in news:
        new.ids = tuple(next(ids)[0] for _ in range(new.count))


@contextmanager
def _noting_kept_tasks(news: Sequence[NewTasks]) -> Iterator[None]:
    """An error that middleware raises after the tasks were kept says that they are."""
    try:
        yield
    except BaseException as error:
        kept = [task_id for new in news for task_id in new.ids]
        if kept:
            error.add_note(f"the task is kept nevertheless: {', '.join(kept[:3])}{'…' if len(kept) > 3 else ''}")
        raise


async def _answer(answer: T | Awaitable[T]) -> T:
    return await answer if isinstance(answer, Awaitable) else answer


def _answer_here(name: str, answer: T | Awaitable[T], connection: Any) -> T:
    if not isinstance(answer, Awaitable):
        return answer
    if isinstance(answer, Coroutine):
        answer.close()
    raise InvalidOptionType("connection", connection, f"one for sync code; with this one, await a{name}()")


def _warn(name: str) -> None:
    """Once per process: a method that blocks the thread of an event loop stops the loop meanwhile."""
    global _warned  # noqa: PLW0603 — one process, one warning
    if _warned:
        return
    _warned = True
    warnings.warn(
        f"{name}() was called on the thread of a running event loop, and blocks the loop until it returns; "
        f"use await a{name}()",
        RuntimeWarning,
        stacklevel=_frames_of_ours(),
    )


def _frames_of_ours() -> int:
    """How far up the first frame outside this package is."""
    frame, level = sys._getframe(1), 1  # noqa: SLF001 — there is no other way
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("bullpen.tasks.client"):
        frame, level = frame.f_back, level + 1
    return level
