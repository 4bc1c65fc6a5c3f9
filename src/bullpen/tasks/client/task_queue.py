"""TaskQueue: functions become tasks, and people look after them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, ParamSpec, Self, TypedDict, TypeVar, Unpack, overload

import msgspec

from bullpen.errors import InvalidArgument, InvalidOption, InvalidOptionType, UnknownOption, UnknownTask, closest
from bullpen.tasks.client.backend import NewTasks, OnBatch, QueueBackend
from bullpen.tasks.client.clients import Clients
from bullpen.tasks.client.events import emit, wait_event
from bullpen.tasks.client.failures import LAST_DAY, read_failures
from bullpen.tasks.client.function import AsyncTaskFunction, SyncTaskFunction, TaskFunction, enqueue, enqueue_blocking
from bullpen.tasks.client.history import LAST_HOUR, read_history
from bullpen.tasks.client.ids import new_ids as _new_ids
from bullpen.tasks.client.job import Job
from bullpen.tasks.client.schedules import Schedules
from bullpen.tasks.client.watch import Observer, Watch
from bullpen.tasks.model.codec import MAX_PAYLOAD, MAX_RESULT, CallCodec
from bullpen.tasks.model.context import CurrentTask
from bullpen.tasks.model.events import EVENT_TTL
from bullpen.tasks.model.failure_groups import FailureGroup
from bullpen.tasks.model.history import GroupBy, HistoryPeriod
from bullpen.tasks.model.hooks import Hook
from bullpen.tasks.model.info import TaskInfo, info_of
from bullpen.tasks.model.options import (
    CALL_NAMES,
    FUNCTION_NAMES,
    SHARED_NAMES,
    EnqueueOptions,
    FunctionOptions,
    Seconds,
    SharedOptions,
    TaskOptions,
    queue_name,
    seconds,
    whole,
)
from bullpen.tasks.model.registry import TaskRegistry, is_async, task_name
from bullpen.tasks.model.task import TaskStatus, writable
from bullpen.tasks.storage.port import MAX_LIMIT, MIN_RATE, Counts, Limit, Storage, TaskFilter, WorkerRecord
from bullpen.telemetry import Kind

P = ParamSpec("P")
R = TypeVar("R")
Middleware = TypeVar("Middleware", bound=Callable[[CurrentTask], Any])
EnqueueMiddleware = TypeVar("EnqueueMiddleware", bound=Callable[[NewTasks], Any])
Lifespan = TypeVar("Lifespan", bound=Callable[[], Any])
List = list  # in the class, `list` is a method

Status = TaskStatus | Literal["pending", "running", "success", "failed", "cancelled"]

LARGEST_PAGE = 1000
_OVER = (TaskStatus.SUCCESS, TaskStatus.FAILED, TaskStatus.CANCELLED)
_GIBIBYTE = 1 << 30
_QUEUE_PARAMETERS = ("max_payload", "max_result", "new_ids", "observer")


class LimitTerms(TypedDict, total=False):
    """What a queue may be limited to."""

    max_running: int | None
    max_running_per_key: int | None
    rate: float | None
    in_order: bool


class TaskFilters(TypedDict, total=False):
    """Which tasks a call is about: those that match all that is given.

    `status`, `queue`: one or several. `name`: of the function, or its last parts: "send" for "shop.mail.send". `key`:
    the unique key or the concurrency key. `header`: a name and a value. `worker`: that runs them, or ran them last.
    `error`: the kind or type of their latest error, such as "timeout" or "ConnectionError". `fingerprint`: of their
    latest error, as `failures()` lists it. `awaits`: the event that they wait for, or True for any.
    `older_than`, `newer_than`: since they ended; unfinished tasks: since they were enqueued.
    """

    status: Status | Iterable[Status] | None
    queue: str | Iterable[str] | None
    name: str | None
    key: str | None
    header: tuple[str, str] | None
    worker: str | None
    error: str | None
    fingerprint: str | None
    awaits: str | Literal[True] | None
    older_than: Seconds | None
    newer_than: Seconds | None


class _TaskDecorator:
    """`@queue.task(...)`, waiting for its function."""

    def __init__(self, make: Callable[[Callable[..., Any]], Any]) -> None:
        self._make = make

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]]
    ) -> AsyncTaskFunction[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> SyncTaskFunction[P, R]: ...
    def __call__(self, function: Callable[..., Any]) -> Any:
        return self._make(function)


class TaskQueue:
    """Tasks that survive: they are kept in a store, and workers run them.

        queue = TaskQueue("sqlite:///jobs.db")

        @queue.task(max_retries=5, timeout=30)
        async def send_email(to: str) -> str: ...

        job = send_email.enqueue("a@example.org")
        job.result(timeout=10)

    `url_or_storage` is an address, or a storage object, which is then used as it is. Options are defaults for all
    tasks. Nothing is opened before it is needed. All methods may be called from any thread; those for async code begin
    with an `a`. `observer` is called with a `TelemetryEvent` for every change that is made through this object, and for
    whatever its workers do in this process that have no observer of their own.
    """

    def __init__(
        self,
        url_or_storage: str | Storage,
        *,
        max_payload: int = MAX_PAYLOAD,
        max_result: int = MAX_RESULT,
        new_ids: Callable[[int], Sequence[str]] = _new_ids,
        observer: Observer | None = None,
        **options: Unpack[SharedOptions],
    ) -> None:
        allowed = "a number of bytes from 1 to a gibibyte"
        self._max_payload = whole("max_payload", max_payload, 1, _GIBIBYTE, allowed)
        whole("max_result", max_result, 1, _GIBIBYTE, allowed)
        self._options = TaskOptions().using(SHARED_NAMES, "TaskQueue()", options, _QUEUE_PARAMETERS)
        self.registry = TaskRegistry(max_payload=max_payload, max_result=max_result)
        self._clients = Clients(url_or_storage)
        self._watch = Watch(observer)
        self._declared_limits: dict[str, Limit] = {}
        self._backend = QueueBackend(self._clients, self.registry, new_ids, self._watch)
        self.schedules = Schedules(self._backend)

    # Functions.

    @overload
    def task(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTaskFunction[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> SyncTaskFunction[P, R]: ...
    @overload
    def task(
        self, *, name: str | None = None, aliases: Sequence[str] = (), **options: Unpack[FunctionOptions]
    ) -> _TaskDecorator: ...
    def task(  # type: ignore[misc]
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        aliases: Sequence[str] = (),
        **options: Any,
    ) -> Any:
        """Let a function run as a task: `@queue.task`, or `@queue.task(max_retries=5)`.

        Its name is that of its module and its own, unless `name` gives another. `aliases`: earlier names; tasks that
        are stored under them run this function.
        """
        checked = self._options.using(FUNCTION_NAMES, "task()", options, ("name", "aliases"))

        def make(function: Callable[..., Any]) -> TaskFunction[..., Any]:
            if isinstance(function, TaskFunction):
                function = function.definition.function  # of another queue
            definition = self.registry.register(function, checked, name, aliases)
            kind = AsyncTaskFunction if is_async(function) else SyncTaskFunction
            return kind(self._backend, definition)

        return _TaskDecorator(make) if function is None else make(function)

    # What surrounds tasks.

    def middleware(self, function: Middleware) -> Middleware:
        """Have `function` called around every attempt at a task, with the `CurrentTask`: `@queue.middleware`.

            @queue.middleware
            def timed(task):
                began = time.perf_counter()
                yield                                    # here the task runs
                observe(task.name, time.perf_counter() - began)

        It may be async, and without a `yield` it is called before. The first one that is added is the outermost. What
        it raises is the task's error; it may raise another error than the task did, but swallows none.
        """
        hook = Hook(function, "middleware")
        hook.check_parameters(1, "the task")
        self.registry.hooks.around_tasks.append(hook)
        return function

    def enqueue_middleware(self, function: EnqueueMiddleware) -> EnqueueMiddleware:
        """Have `function` called around every `enqueue`, with the `NewTasks`, whose headers it may change.

        It runs in the caller's context, not always on the caller's thread. If it raises before its `yield`, `enqueue`
        raises that error and stores nothing.
        """
        hook = Hook(function, "middleware")
        hook.check_parameters(1, "the new tasks")
        self.registry.hooks.around_enqueue.append(hook)
        return function

    def lifespan(self, function: Lifespan) -> Lifespan:
        """Have `function` called around the life of every worker: `@queue.lifespan`.

        The code before its `yield` runs before the worker claims a task; if it raises, `start` raises that error. The
        code after its `yield` runs when all tasks of the worker have ended.
        """
        hook = Hook(function, "lifespan")
        hook.check_parameters(0, "nothing")
        self.registry.hooks.lifespans.append(hook)
        return function

    @contextmanager
    def override(self, provider: Callable[..., Any], replacement: Callable[..., Any]) -> Iterator[None]:
        """Inject the value of `replacement` instead of the one of `provider`: for tests."""
        replaced = self.registry.hooks.replaced
        before = replaced.get(provider)
        hook = Hook(replacement, "provider")
        hook.check_parameters(0, "nothing")
        replaced[provider] = hook
        try:
            yield
        finally:
            if before is None:
                del replaced[provider]
            else:
                replaced[provider] = before

    # Enqueueing by name.

    def enqueue(
        self,
        func_path: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        elsewhere: bool = False,
        **options: Unpack[EnqueueOptions],
    ) -> Job[Any]:
        """Enqueue a function by its name. `elsewhere`: it is not registered here, only where workers run.

        Raises UnknownTask if it is registered nowhere, as far as is known.
        """
        made, payload, keys = self._call(func_path, args, kwargs, elsewhere, options)
        return enqueue_blocking(self._backend, made, func_path, payload, keys)

    async def aenqueue(
        self,
        func_path: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        elsewhere: bool = False,
        **options: Unpack[EnqueueOptions],
    ) -> Job[Any]:
        """`enqueue`, for async code."""
        made, payload, keys = self._call(func_path, args, kwargs, elsewhere, options)
        return await enqueue(self._backend, made, func_path, payload, keys)

    def _call(
        self,
        func_path: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        elsewhere: bool,
        options: EnqueueOptions,
    ) -> tuple[TaskOptions, bytes, Mapping[str, str] | None]:
        if not isinstance(func_path, str):
            allowed = "the name of a task, a string; to enqueue a function, decorate it with @queue.task and call its "
            raise InvalidOptionType("func_path", func_path, f"{allowed}enqueue()")
        if isinstance(args, str | bytes) or not isinstance(args, Sequence):
            raise InvalidArgument(f"must be a list or tuple, got {args!r:.80}", function=func_path, path="args")
        if kwargs is not None and not (isinstance(kwargs, Mapping) and all(isinstance(key, str) for key in kwargs)):
            raise InvalidArgument(f"must be a dict by name, got {kwargs!r:.80}", function=func_path, path="kwargs")
        definition = self.registry.get(func_path)
        if definition is not None:
            base, codec = definition.options, definition.codec
        elif elsewhere:
            task_name("func_path", func_path)
            base, codec = self._options, CallCodec(None, func_path, max_payload=self._max_payload)
        else:
            known = self.registry.names()
            raise UnknownTask(name=func_path, known=known, suggestion=closest(func_path, known))
        made = base.using(CALL_NAMES, "enqueue()", options, ("args", "kwargs", "elsewhere"))
        payload = codec.encode(args, kwargs or {})
        templates = None if definition is None or definition.keys is None else definition.keys.without(made)
        return made, payload, None if templates is None else templates.of_call(args, kwargs or {})

    # Looking.

    def job(self, task_id: str) -> Job[Any]:
        """A handle for a task by its id. The store is not asked."""
        return Job(self._backend, _id(task_id))

    def get(self, task_id: str) -> TaskInfo:
        """The state, outcome and options of a task. Raises TaskNotFound."""
        return info_of(self._backend.task_blocking("get", _id(task_id)))

    async def aget(self, task_id: str) -> TaskInfo:
        return info_of(await self._backend.task(_id(task_id)))

    def list(
        self, *, limit: int = 100, after: str | None = None, newest: bool = False, **filters: Unpack[TaskFilters]
    ) -> List[TaskInfo]:
        """Tasks that match all `filters`, oldest first, or `newest` first. `after` is the id of the last one of the
        page before.
        """
        return self._backend.run("list", self.alist(limit=limit, after=after, newest=newest, **filters))

    async def alist(
        self, *, limit: int = 100, after: str | None = None, newest: bool = False, **filters: Unpack[TaskFilters]
    ) -> List[TaskInfo]:
        """`list`, for async code."""
        whole("limit", limit, 1, LARGEST_PAGE, f"a whole number from 1 to {LARGEST_PAGE}")
        after = None if after is None else _id(after)
        which = await self._which(filters)
        storage = await self._clients.get()
        return [info_of(task) for task in await storage.list(which, limit=limit, after=after, newest=newest)]

    def count(self, **filters: Unpack[TaskFilters]) -> int:
        """How many tasks match all `filters`. The store counts them."""
        return self._backend.run("count", self.acount(**filters))

    async def acount(self, **filters: Unpack[TaskFilters]) -> int:
        """`count`, for async code."""
        which = await self._which(filters)
        return await (await self._clients.get()).count(which)

    async def _which(self, filters: TaskFilters, allowed: Iterable[TaskStatus] = TaskStatus) -> TaskFilter:
        """Without a status: those of `allowed`."""
        for name in filters.keys() - TaskFilters.__annotations__.keys():
            raise UnknownOption("the filter", name, TaskFilters.__annotations__)
        which, older_than, newer_than = _filter(**filters)
        statuses = tuple(allowed)
        if which.statuses is not None and not set(statuses).issuperset(which.statuses):
            raise InvalidOption("status", filters["status"], " or ".join(map(str, statuses)))
        if which.statuses is None and allowed is not TaskStatus:
            which = msgspec.structs.replace(which, statuses=statuses)
        if older_than is None and newer_than is None:
            return which
        now = await (await self._clients.get()).now()
        return msgspec.structs.replace(
            which,
            until=None if older_than is None else now - older_than,
            since=None if newer_than is None else now - newer_than,
        )

    def counts(self, *, limit: int | None = None) -> Counts:
        """How many tasks there are, by queue and status. With a `limit` a larger count may be given as `limit` + 1,
        which is quick however many tasks there are.
        """
        return self._backend.run("counts", self.acounts(limit=limit))

    async def acounts(self, *, limit: int | None = None) -> Counts:
        if limit is not None:
            whole("limit", limit, 1, _GIBIBYTE, "a whole number ≥ 1, or None to count all")
        counts = await (await self._clients.get()).counts(limit)
        return {queue: dict(statuses) for queue, statuses in counts.items()}

    def workers(self) -> Sequence[WorkerRecord]:
        """The workers that run, as they say, and those that died or fell silent within a day: with an old `seen_at`."""
        return self._backend.run("workers", self.aworkers())

    async def aworkers(self) -> Sequence[WorkerRecord]:
        return await (await self._clients.get()).workers()

    def history(
        self,
        *,
        since: datetime | Seconds = LAST_HOUR,
        until: datetime | None = None,
        queue: str | None = None,
        function: str | None = None,
        by: GroupBy | None = None,
        step: Seconds | None = None,
    ) -> List[HistoryPeriod]:
        """How many tasks were enqueued, started and ended, and how long they waited and ran, in periods of `step`
        seconds from `since` to `until`, oldest first.

        `since` is a time, or a number of seconds before now. It is rounded down to a minute; before the last day, whose
        minutes are kept, to an hour. `step`: by default a minute or an hour. `by="function"` or `by="queue"` gives one
        period for each of them that has counts; without it there is one for every period.
        """
        return self._backend.run(
            "history",
            self.ahistory(since=since, until=until, queue=queue, function=function, by=by, step=step),
        )

    async def ahistory(
        self,
        *,
        since: datetime | Seconds = LAST_HOUR,
        until: datetime | None = None,
        queue: str | None = None,
        function: str | None = None,
        by: GroupBy | None = None,
        step: Seconds | None = None,
    ) -> List[HistoryPeriod]:
        """`history`, for async code."""
        storage = await self._clients.get()
        return await read_history(storage, since=since, until=until, queue=queue, function=function, by=by, step=step)

    def failures(
        self, *, since: datetime | Seconds = LAST_DAY, queue: str | None = None, function: str | None = None
    ) -> List[FailureGroup]:
        """Failed attempts, grouped by their fingerprint; the group that failed last comes first.

        `since` is a time, or a number of seconds before now. It is rounded down to an hour. Failures are kept for seven
        days. `retry_all(fingerprint=…)` and `purge(fingerprint=…)` change the failed tasks of a group.
        """
        return self._backend.run("failures", self.afailures(since=since, queue=queue, function=function))

    async def afailures(
        self, *, since: datetime | Seconds = LAST_DAY, queue: str | None = None, function: str | None = None
    ) -> List[FailureGroup]:
        """`failures`, for async code."""
        return await read_failures(await self._clients.get(), since=since, queue=queue, function=function)

    # Events.

    def emit(self, name: str, payload: Any = None, *, ttl: Seconds | None = EVENT_TTL) -> bool:
        """Emit an event: tasks that wait for it go on, and so does a task that waits for it later.

            queue.emit(f"approved:{order}", {"by": "ada"})

        The payload is a JSON value. The first event of a name is kept for `ttl` seconds, by default seven days, or for
        ever (None); a further one is ignored. Returns whether this was the first. Raises InvalidEvent.
        """
        return self._backend.run("emit", self.aemit(name, payload, ttl=ttl))

    async def aemit(self, name: str, payload: Any = None, *, ttl: Seconds | None = EVENT_TTL) -> bool:
        """`emit`, for async code."""
        return await emit(self._backend, name, payload, ttl)

    def wait_event(self, name: str, *, timeout: Seconds | None = None) -> Any:
        """Wait for an event in a program, and return its payload; None when the time is over. A task waits with
        `current_task().wait_event`, which holds no worker.
        """
        return self._backend.run("wait_event", self.await_event(name, timeout=timeout))

    async def await_event(self, name: str, *, timeout: Seconds | None = None) -> Any:
        """`wait_event`, for async code."""
        return await wait_event(self._backend, name, timeout)

    # Changing.

    def forget_failures(self, fingerprint: str, *, function: str | None = None) -> None:
        """Remove a group from `failures`, until it fails again. Its tasks stay as they are."""
        self._backend.run("forget_failures", self.aforget_failures(fingerprint, function=function))

    async def aforget_failures(self, fingerprint: str, *, function: str | None = None) -> None:
        """`forget_failures`, for async code."""
        which, _, _ = _filter(fingerprint=fingerprint, name=function)
        await (await self._clients.get()).delete_failures(which.fingerprint or "", which.func_path)

    def cancel(self, *task_ids: str) -> int:
        """Cancel tasks that wait, and ask those that run to stop; how many this changed."""
        return self._backend.run("cancel", self.acancel(*task_ids))

    async def acancel(self, *task_ids: str) -> int:
        ids = [_id(task_id) for task_id in task_ids]
        return await self._backend.cancel(ids)

    def cancel_all(self, *, on_batch: OnBatch | None = None, **filters: Unpack[TaskFilters]) -> int:
        """Cancel all pending tasks that match all `filters`, and ask running ones to stop; how many this changed.

        The store changes them in batches. `on_batch` is called after each batch: how many tasks have matched so far,
        and how many were changed. If it raises, no other batch begins, and the error is raised here.
        """
        return self._backend.run("cancel_all", self.acancel_all(on_batch=on_batch, **filters))

    async def acancel_all(self, *, on_batch: OnBatch | None = None, **filters: Unpack[TaskFilters]) -> int:
        """`cancel_all`, for async code."""
        which = await self._which(filters, (TaskStatus.PENDING, TaskStatus.RUNNING))
        return await self._backend.change_all("cancel", which, on_batch)

    def retry(self, *task_ids: str, from_step: str | None = None) -> int:
        """Let tasks that are over run again, with all their tries; how many this changed. A success runs its steps
        again; a failed or cancelled task keeps those that succeeded. `from_step`: it runs this step, and all that it
        has kept after it, again. Raises InvalidStep if a task has not kept it.
        """
        return self._backend.run("retry", self.aretry(*task_ids, from_step=from_step))

    async def aretry(self, *task_ids: str, from_step: str | None = None) -> int:
        ids = [_id(task_id) for task_id in task_ids]
        return await self._backend.retry(ids, from_step)

    def retry_all(self, *, on_batch: OnBatch | None = None, **filters: Unpack[TaskFilters]) -> int:
        """Let all final tasks run again that match all `filters`, with all their tries; how many. Without a `status`:
        failed ones. A task whose row cannot be read stays as it is. `on_batch`: see `cancel_all`.
        """
        return self._backend.run("retry_all", self.aretry_all(on_batch=on_batch, **filters))

    async def aretry_all(self, *, on_batch: OnBatch | None = None, **filters: Unpack[TaskFilters]) -> int:
        """`retry_all`, for async code."""
        which = await self._which({"status": "failed", **filters}, _OVER)
        return await self._backend.change_all("retry", which, on_batch)

    def delete(self, *task_ids: str) -> int:
        """Forget tasks that are over, and their results; how many. Those that wait or run stay."""
        return self._backend.run("delete", self.adelete(*task_ids))

    async def adelete(self, *task_ids: str) -> int:
        ids = [_id(task_id) for task_id in task_ids]
        forgotten = await (await self._clients.get()).delete(ids)
        self._watch.forgotten(forgotten)
        return forgotten

    def purge(self, *, all: bool = False, on_batch: OnBatch | None = None, **filters: Unpack[TaskFilters]) -> int:
        """Delete all final tasks that match all `filters`, and their results; how many. Others stay. Without a filter
        it raises InvalidOption, unless `all=True`. `on_batch`: see `cancel_all`.
        """
        return self._backend.run("purge", self.apurge(all=all, on_batch=on_batch, **filters))

    async def apurge(
        self, *, all: bool = False, on_batch: OnBatch | None = None, **filters: Unpack[TaskFilters]
    ) -> int:
        """`purge`, for async code."""
        filtered = any(value is not None for value in filters.values())
        if filtered is bool(all):
            wanted = "False with filters" if filtered else "True, or a filter: without one all finished tasks go"
            raise InvalidOption("all", all, wanted)
        return await self._backend.change_all("delete", await self._which(filters, _OVER), on_batch)

    def pause(self, queue: str = "default") -> None:
        """Let no task of a queue start, in any worker. Those that run go on."""
        self._backend.run("pause", self.apause(queue))

    async def apause(self, queue: str = "default") -> None:
        name = queue_name("queue", queue)
        await (await self._clients.get()).pause(name)
        self._watch.changed(Kind.QUEUE_PAUSED, name)

    def resume(self, queue: str = "default") -> None:
        """Let tasks of a queue start again."""
        self._backend.run("resume", self.aresume(queue))

    async def aresume(self, queue: str = "default") -> None:
        name = queue_name("queue", queue)
        await (await self._clients.get()).resume(name)
        self._watch.changed(Kind.QUEUE_RESUMED, name)

    def paused(self) -> frozenset[str]:
        """The queues that are paused."""
        return self._backend.run("paused", self.apaused())

    async def apaused(self) -> frozenset[str]:
        return await (await self._clients.get()).paused()

    def declare_limit(self, queue: str = "default", **terms: Unpack[LimitTerms]) -> None:
        """Limit a queue in the code, beside the functions: workers set it when they start.

        What `set_limit` has set stands above it, until `reset_limit`. Nothing is written here.
        """
        limit = _limit(queue, terms)
        self._declared_limits[limit.queue] = msgspec.structs.replace(limit, declared=True)

    @property
    def declared_limits(self) -> Sequence[Limit]:
        """The limits that the code declares. A worker stores them when it starts."""
        return tuple(self._declared_limits.values())

    def set_limit(self, queue: str = "default", **terms: Unpack[LimitTerms]) -> None:
        """Limit a queue over all workers, from now on: how many tasks run at once (`max_running`), with each
        `concurrency_key` (`max_running_per_key`), how many start in a second (`rate`), and whether the tasks of a key
        run one by one as they were enqueued (`in_order`). A term that is left out has no limit.
        """
        limit = _limit(queue, terms)
        self._backend.run("set_limit", self._set_limit(limit))

    async def aset_limit(self, queue: str = "default", **terms: Unpack[LimitTerms]) -> None:
        """`set_limit`, for async code."""
        await self._set_limit(_limit(queue, terms))

    def reset_limit(self, queue: str = "default") -> None:
        """Set the limit back to the one that the code declares, or to none."""
        self._backend.run("reset_limit", self.areset_limit(queue))

    async def areset_limit(self, queue: str = "default") -> None:
        """`reset_limit`, for async code."""
        name = queue_name("queue", queue)
        await self._set_limit(self._declared_limits.get(name, Limit(queue=name)))

    async def _set_limit(self, limit: Limit) -> None:
        await (await self._clients.get()).set_limit(limit)
        self._watch.changed(Kind.QUEUE_LIMITED, limit.queue, limit)

    def limits(self) -> Sequence[Limit]:
        return self._backend.run("limits", self.alimits())

    async def alimits(self) -> Sequence[Limit]:
        return await (await self._clients.get()).limits()

    # The store, for workers and tools.

    @property
    def observer(self) -> Observer | None:
        """The function that is called with every event."""
        return self._watch.observer

    @property
    def storage(self) -> Storage:
        """The storage object that was given; for an address one that is not open, to make clients with `another()`."""
        return self._clients.root

    async def astorage(self) -> Storage:
        """The client of the running event loop, open. It is closed by `aclose`."""
        return await self._clients.get()

    # The end.

    def close(self) -> None:
        """Close the connections of the sync methods. Another call opens them again."""
        self._clients.close()

    async def aclose(self) -> None:
        """Close the connections of this event loop. Another call opens them again."""
        await self._clients.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<TaskQueue with {len(self.registry)} tasks>"  # no address: it may hold a password


def _id(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidOptionType("task_id", value, "the id of a task, a string")
    return writable(value)


def _filter(
    *,
    status: Status | Iterable[Status] | None = None,
    queue: str | Iterable[str] | None = None,
    name: str | None = None,
    key: str | None = None,
    header: tuple[str, str] | None = None,
    worker: str | None = None,
    error: str | None = None,
    fingerprint: str | None = None,
    awaits: str | Literal[True] | None = None,
    older_than: Seconds | None = None,
    newer_than: Seconds | None = None,
) -> tuple[TaskFilter, float | None, float | None]:
    """The filter, without the two ages, which are durations."""
    for option, value in (
        ("name", name),
        ("key", key),
        ("worker", worker),
        ("error", error),
        ("fingerprint", fingerprint),
    ):
        if value is not None and not isinstance(value, str):
            raise InvalidOptionType(option, value, "a string, or None for any")
    queues = None if queue is None else _one_or_many("queue", queue, "the name of a queue, several, or None for all")
    statuses = None if status is None else _one_or_many("status", status, "a status, several, or None for all")
    which = TaskFilter(
        queues=None if queues is None else tuple(queue_name("queue", one) for one in queues),
        statuses=None if statuses is None else tuple(_status(one) for one in statuses),
        func_path=None if name is None else writable(name),
        key=None if key is None else writable(key),
        header=None if header is None else _header(header),
        worker=None if worker is None else writable(worker),
        error=None if error is None else writable(error),
        fingerprint=None if fingerprint is None else writable(fingerprint),
        awaits=None if awaits is None else _awaited(awaits),
    )
    return (
        which,
        None if older_than is None else seconds("older_than", older_than),
        None if newer_than is None else seconds("newer_than", newer_than),
    )


def _awaited(value: object) -> str:
    if value is True:
        return ""
    if not isinstance(value, str) or not value:
        raise InvalidOptionType("awaits", value, "the name of an event, or True for any")
    return writable(value)


def _header(value: object) -> tuple[str, str]:
    match value:
        case (str() as name, str() as text):
            return writable(name), writable(text)
    raise InvalidOptionType("header", value, "a name and a value: ('tenant', 'acme')")


def _one_or_many(option: str, value: object, allowed: str) -> Iterable[Any]:
    if isinstance(value, str):  # as a status is
        return (value,)
    if not isinstance(value, Iterable):
        raise InvalidOptionType(option, value, allowed)
    return value


def _status(value: str) -> TaskStatus:
    try:
        return TaskStatus(value)
    except ValueError:
        raise InvalidOption("status", value, "one of " + ", ".join(map(str, TaskStatus))) from None


def _limit(queue: str, terms: LimitTerms) -> Limit:
    for name in terms:
        if name not in LimitTerms.__annotations__:
            raise UnknownOption("the limit", name, LimitTerms.__annotations__)
    allowed = "a whole number ≥ 1, or None for any number"
    most, per_key, rate = terms.get("max_running"), terms.get("max_running_per_key"), terms.get("rate")
    for name, value in (("max_running", most), ("max_running_per_key", per_key)):
        if value is not None:
            whole(name, value, 1, MAX_LIMIT, allowed)
    if rate is not None:
        if isinstance(rate, bool) or not isinstance(rate, int | float):
            raise InvalidOptionType("rate", rate, "a number of starts in a second, or None")
        if not MIN_RATE <= rate <= MAX_LIMIT:
            allowed = f"{MIN_RATE:g} to {MAX_LIMIT:g} starts in a second, or None for no limit"
            raise InvalidOption("rate", rate, allowed)
        rate = float(rate)
    in_order = terms.get("in_order", False)
    if not isinstance(in_order, bool):
        raise InvalidOptionType("in_order", in_order, "True or False")
    if in_order and per_key is not None:
        raise InvalidOption("max_running_per_key", per_key, "left out with in_order: tasks of a key run one by one")
    return Limit(
        queue=queue_name("queue", queue), max_running=most, max_running_per_key=per_key, rate=rate, in_order=in_order
    )
