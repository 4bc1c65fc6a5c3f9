"""What `@queue.task` makes of a function: still that function, and a way to have it run by a worker."""

from __future__ import annotations

import functools
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, Generic, ParamSpec, Self, TypeVar, Unpack

from bullpen import primitives
from bullpen.errors import InvalidArgument
from bullpen.queue.compose import Call
from bullpen.queue.job import Job
from bullpen.queue.rejecting import rejecting
from bullpen.queue.store import Store
from bullpen.tasks.alike import Alike
from bullpen.tasks.options import CALL_NAMES, CallOptions, TaskOptions
from bullpen.tasks.registry import TaskDefinition

P = ParamSpec("P")
R = TypeVar("R")

ManyArguments = Iterable[tuple[Any, ...] | Mapping[str, Any]]


async def enqueue(
    store: Store, options: TaskOptions, func_path: str, payload: bytes, keys: Mapping[str, str] | None
) -> Job[Any]:
    """One task. Raises TaskExists, with the job that has its unique key, if the options say so."""
    same = store.usual(options, func_path) if keys is None else None
    if same is not None:
        storage = store.clients.at_hand() or await store.clients.get()
        ids = store.new_ids(1)
        primitives.failpoint("enqueue.before_add")
        await storage.add(Alike(same, ids, (payload,)))
        primitives.failpoint("enqueue.after_add")
        return Job(store, ids[0], True, True)
    with rejecting(store):
        ((task_id, is_new),) = await store.add(options, func_path, [payload], None if keys is None else [keys])
    return Job(store, task_id, is_new=is_new, is_fresh=is_new and not options.repeats)


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

    def __init__(self, store: Store, definition: TaskDefinition) -> None:
        functools.update_wrapper(self, definition.function)
        self.definition = definition
        self._store = store
        self._options: TaskOptions = definition.options
        self._keys = definition.keys
        self._encode = definition.codec.encode
        self.name = definition.func_path  # in the registry, and in the store

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        return self.definition.function(*args, **kwargs)

    def using(self, **options: Unpack[CallOptions]) -> Self:
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
        task = enqueue(self._store, self._options, self.name, payload, keys)
        return self._store.run("enqueue", task, connection=self._options.connection)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """`enqueue`, for async code."""
        payload = self._encode(args, kwargs)
        keys = None if self._keys is None else self._keys.of_call(args, kwargs)
        return await enqueue(self._store, self._options, self.name, payload, keys)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """This call as a value, for `chain`, `group` and `current_task().enqueue`. Nothing is enqueued yet.

        Raises InvalidArgument as `enqueue` does. `RESULT` may stand for one argument.
        """
        return Call(self._store, self.definition, self._options, args, kwargs)

    def enqueue_many(self, calls: ManyArguments) -> list[Job[R]]:
        """Enqueue one task for each tuple of arguments, or dict of arguments by name; all of them, or none."""
        payloads, keys = self._payloads(calls)
        return self._store.run("enqueue_many", self._add_many(payloads, keys), connection=self._options.connection)

    async def aenqueue_many(self, calls: ManyArguments) -> list[Job[R]]:
        """`enqueue_many`, for async code."""
        return await self._add_many(*self._payloads(calls))

    async def _add_many(self, payloads: Sequence[bytes], keys: Sequence[Mapping[str, str]] | None) -> list[Job[R]]:
        if not payloads:
            return []
        with rejecting(self._store):
            added = await self._store.add(self._options, self.definition.func_path, payloads, keys)
        return [Job(self._store, task_id, is_new=is_new) for task_id, is_new in added]

    def _payloads(self, calls: ManyArguments) -> tuple[list[bytes], list[Mapping[str, str]] | None]:
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
        return payloads, None if self._keys is None else keys

    def _arguments(self, call: object) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        if isinstance(call, tuple):
            return call, {}
        if isinstance(call, Mapping):
            return (), call
        why = f"is {call!r:.80}; it must be a tuple of arguments, or a dict of them by name"
        raise InvalidArgument(why, function=self.name, path="each call")

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
