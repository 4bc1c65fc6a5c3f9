"""What `@queue.task` makes of a function: still that function, and a way to have it run by a worker."""

from __future__ import annotations

import functools
from collections.abc import Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar, Unpack

from bullpen import primitives
from bullpen.errors import InvalidArgument
from bullpen.tasks.client.backend import CallPlan, QueueBackend
from bullpen.tasks.client.compose import Call
from bullpen.tasks.client.job import Job, job_in_task_exists
from bullpen.tasks.model.options import CALL_NAMES, EnqueueOptions, TaskOptions
from bullpen.tasks.model.registry import TaskDefinition
from bullpen.tasks.model.task_batch import TaskBatch

P = ParamSpec("P")
R = TypeVar("R")

# How Celery, Dramatiq, TaskIQ, Procrastinate and others enqueue.
_OF_OTHERS = frozenset("adelay apply_async defer defer_async delay kiq send send_with_options schedule".split())
_SIGNATURES = {"s": "; use .call(RESULT, …) or .call(…)", "si": "; use .call(…)"}  # of Celery

ManyArguments = Iterable[tuple[Any, ...] | Mapping[str, Any]]


def enqueue_blocking(
    backend: QueueBackend, options: TaskOptions, func_path: str, payload: bytes, keys: Mapping[str, str] | None
) -> Job[Any]:
    """One task. Raises TaskExists, with the job that has its unique key, if the options say so."""
    template = backend.plain_template(options, func_path) if keys is None else None
    if template is None:
        plan = CallPlan(options, func_path, [payload], None if keys is None else [keys])
        with job_in_task_exists(backend):
            ((task_id, is_new),) = backend.add_blocking("enqueue", plan)
        return Job(backend, task_id, is_new=is_new, is_fresh=is_new and not options.repeats)
    storage = backend.blocking("enqueue")
    if storage is None:
        return backend.run("enqueue", enqueue(backend, options, func_path, payload, keys))
    ids = backend.new_ids(1)
    primitives.failpoint("enqueue.before_add")
    storage.add_blocking(TaskBatch(template, ids, (payload,)))
    primitives.failpoint("enqueue.after_add")
    return Job(backend, ids[0], True, True)


async def enqueue(
    backend: QueueBackend, options: TaskOptions, func_path: str, payload: bytes, keys: Mapping[str, str] | None
) -> Job[Any]:
    """`enqueue_blocking`, for async code."""
    template = backend.plain_template(options, func_path) if keys is None else None
    if template is None:
        plan = CallPlan(options, func_path, [payload], None if keys is None else [keys])
        with job_in_task_exists(backend):
            ((task_id, is_new),) = await backend.add(plan)
        return Job(backend, task_id, is_new=is_new, is_fresh=is_new and not options.repeats)
    storage = backend.clients.at_hand() or await backend.clients.get()
    ids = backend.new_ids(1)
    primitives.failpoint("enqueue.before_add")
    await storage.add(TaskBatch(template, ids, (payload,)))
    primitives.failpoint("enqueue.after_add")
    return Job(backend, ids[0], True, True)


class TaskFunction(Generic[P, R]):
    """A function that may run as a task. Calling it is calling the function, here and now.

    It keeps the parameters of the function, for type checkers too:

        @queue.task(max_retries=5)
        async def send_email(to: str) -> str: ...

        job = send_email.enqueue("a@example.org")       # Job[str]
        job = await send_email.aenqueue("a@example.org")
        send_email.using(delay=60).enqueue("a@example.org")
    """

    __name__: str
    __qualname__: str
    definition: TaskDefinition

    def __init__(self, backend: QueueBackend, definition: TaskDefinition) -> None:
        functools.update_wrapper(self, definition.function)
        self.definition = definition
        self._backend = backend
        self._options: TaskOptions = definition.options
        self._keys = definition.keys
        self._encode = definition.codec.encode
        self.name = definition.func_path  # in the registry, and in the store

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        return self.definition.function(*args, **kwargs)

    def using(self, **options: Unpack[EnqueueOptions]) -> Self:
        """The same function with options for the calls made through this view. Nothing is enqueued yet."""
        view = object.__new__(type(self))
        view.__dict__.update(self.__dict__)
        view._options = self._options.using(CALL_NAMES, "using()", options)
        view._keys = None if self._keys is None else self._keys.without(view._options)
        return view

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Have a worker run it. When this returns, the task is kept; until then, nothing is.

        Raises InvalidArgument if the arguments do not fit the function, or would not come back as they are.
        """
        payload = self._encode(args, kwargs)
        keys = None if self._keys is None else self._keys.of_call(args, kwargs)
        return enqueue_blocking(self._backend, self._options, self.name, payload, keys)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """`enqueue`, for async code."""
        payload = self._encode(args, kwargs)
        keys = None if self._keys is None else self._keys.of_call(args, kwargs)
        return await enqueue(self._backend, self._options, self.name, payload, keys)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """This call as a value, for `chain`, `group` and `current_task().enqueue`. Nothing is enqueued yet.

        Raises InvalidArgument as `enqueue` does. `RESULT` may stand for one argument.
        """
        return Call(self._backend, self.definition, self._options, args, kwargs)

    def enqueue_many(self, calls: ManyArguments) -> list[Job[R]]:
        """Enqueue one task for each tuple of arguments, or dict of arguments by name; all of them, or none."""
        plan = self._plan(calls)
        if not plan.payloads:
            return []
        with job_in_task_exists(self._backend):
            added = self._backend.add_blocking("enqueue_many", plan)
        return [Job(self._backend, task_id, is_new) for task_id, is_new in added]

    async def aenqueue_many(self, calls: ManyArguments) -> list[Job[R]]:
        """`enqueue_many`, for async code."""
        plan = self._plan(calls)
        if not plan.payloads:
            return []
        with job_in_task_exists(self._backend):
            added = await self._backend.add(plan)
        return [Job(self._backend, task_id, is_new) for task_id, is_new in added]

    def _plan(self, calls: ManyArguments) -> CallPlan:
        payloads: list[bytes] = []
        keys: list[Mapping[str, str]] = []
        if not isinstance(calls, Iterable):
            why = f"are {calls!r:.80}; they must be an iterable of tuples of arguments, or of dicts of them by name"
            raise InvalidArgument(why, function=self.name, path="the calls")
        for number, call in enumerate(calls):
            try:
                args, kwargs = self._arguments(call)
                payloads.append(self.definition.codec.encode(args, kwargs))
                if self._keys is not None:
                    keys.append(self._keys.of_call(args, kwargs))
            except InvalidArgument as error:
                error.add_note(f"in call number {number} of enqueue_many; none was enqueued")
                raise
        return CallPlan(self._options, self.name, payloads, None if self._keys is None else keys)

    def _arguments(self, call: object) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        if isinstance(call, tuple):
            return call, {}
        if isinstance(call, Mapping):
            return (), call
        why = f"is {call!r:.80}; it must be a tuple of arguments, or a dict of them by name"
        raise InvalidArgument(why, function=self.name, path="each call")

    if not TYPE_CHECKING:  # type checkers know that it has no other attributes

        def __getattr__(self, name: str) -> Any:
            enqueue = "; use .enqueue(…), or .using(delay=…).enqueue(…) for options"
            hint = enqueue if name in _OF_OTHERS else _SIGNATURES.get(name, "")
            own = self.__dict__.get("name", "")
            raise AttributeError(f"task function {own} has no attribute {name!r}{hint}", name=name, obj=self)

    def __reduce__(self) -> str:
        return self.__qualname__  # by name, as functions are

    def __repr__(self) -> str:
        return f"<task function {self.name}>"


class SyncTaskFunction(TaskFunction[P, R]):
    """Of a plain function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.definition.function(*args, **kwargs)  # type: ignore[no-any-return]


class AsyncTaskFunction(TaskFunction[P, R]):
    """Of a coroutine function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        return self.definition.function(*args, **kwargs)  # type: ignore[no-any-return]
