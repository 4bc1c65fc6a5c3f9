"""The functions that may run as tasks, by name. A worker looks up a stored name here; it never imports it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from types import CoroutineType
from typing import Any

import msgspec

from bullpen.errors import (
    DuplicateTask,
    InvalidArgument,
    InvalidOption,
    InvalidOptionType,
    InvalidResult,
    InvalidTask,
)
from bullpen.tasks.model.codec import MAX_PAYLOAD, MAX_RESULT, Arguments, CallCodec
from bullpen.tasks.model.hooks import Hooks
from bullpen.tasks.model.ids import schedule_id
from bullpen.tasks.model.keys import templates_of
from bullpen.tasks.model.options import TaskOptions
from bullpen.tasks.model.task import Task

_NAME = re.compile(r"[^\s\x00-\x1f\x7f-\x9f]{1,255}")  # SQL `enqueue()` repeats it


class TaskDefinition:
    """One function that may run as a task."""

    __slots__ = (
        *("aliases", "codec", "func_path", "function", "is_async", "keys", "options", "place", "registry", "schedule"),
    )

    def __init__(
        self,
        registry: TaskRegistry,
        func_path: str,
        function: Callable[..., Any],
        options: TaskOptions,
        codec: CallCodec,
        place: str,
        aliases: Sequence[str] = (),
    ) -> None:
        self.registry = registry
        self.func_path = func_path
        self.function = function
        self.options = options.once()  # of single calls
        self.schedule = options if options.repeats else None  # the schedule in its declaration
        self.codec = codec
        self.place = place  # file and line
        self.aliases = tuple(aliases)  # earlier names, under which tasks may be stored
        self.is_async = is_async(function)
        self.keys = templates_of(function, func_path, options)

    @property
    def schedule_key(self) -> str | None:
        """The key of the schedule in its declaration."""
        return None if self.schedule is None else self.schedule.schedule_key or self.func_path

    def scheduled(self, now: float) -> Task | None:
        """The task of the declared schedule, with `now` by the store's clock; None without a schedule."""
        if self.schedule is None:
            return None
        key = self.schedule_key or ""
        options = msgspec.structs.replace(self.schedule, schedule_key=key, expires_in=None)
        task = options.new_task(schedule_id(key), self.func_path, self.codec.encode((), {}), now)
        assert task.schedule is not None
        keys = {} if self.keys is None else self.keys.of_call((), {})
        return msgspec.structs.replace(
            task,
            schedule=msgspec.structs.replace(task.schedule, declared=True),
            concurrency_key=keys.get("concurrency_key", task.concurrency_key),
            unique_key=None,  # the schedule key is unique already
            unique_until=None,
        )

    def decode(self, payload: bytes) -> Arguments:
        """The arguments of a call. Raises InvalidPayload."""
        return self.codec.decode(payload)

    def encode_result(self, value: Any) -> bytes:
        """A result as it is stored. Raises InvalidResult."""
        return self.codec.encode_result(value)

    def reject_unawaited(self, value: Any) -> None:
        """Raises InvalidTask if a function has returned a coroutine, which has not run."""
        if type(value) is CoroutineType:
            value.close()
            raise InvalidTask(
                "it returned a coroutine that was not awaited, and so has not run; make the function async and await "
                "the coroutine in it",
                function=self.func_path,
            )

    def keep_result(self, value: Any) -> tuple[bytes | None, str]:
        """The encoded result and "", or None and the reason. The function has run, so this raises nothing."""
        try:
            return self.codec.encode_result(value), ""
        except InvalidResult as error:
            return None, f"{error.path} {error.reason}"
        except Exception as error:  # code of the user's class
            return None, f"result cannot be written: {type(error).__name__}"

    def __repr__(self) -> str:
        return f"<task {self.func_path} at {self.place}>"


class TaskRegistry:
    """Task definitions by name."""

    def __init__(self, *, max_payload: int = MAX_PAYLOAD, max_result: int = MAX_RESULT) -> None:
        self.max_payload = max_payload
        self._max_result = max_result
        self._definitions: dict[str, TaskDefinition] = {}
        self._aliases: dict[str, TaskDefinition] = {}
        self.hooks = Hooks()
        # The queues that workers serve unless they are told others. Empty: "default", and the queues of the functions.
        self.served_queues: tuple[str, ...] = ()

    def register(
        self,
        function: Callable[..., Any],
        options: TaskOptions | None = None,
        name: str | None = None,
        aliases: Sequence[str] = (),
    ) -> TaskDefinition:
        """Let a function run as a task. Raises InvalidTask, or DuplicateTask if the name or an alias is taken.

        When a module is loaded again, its functions replace their earlier definitions.
        """
        if not callable(function):
            raise InvalidTask("it cannot be called", function=repr(function))
        _reject_generators(function)
        if options is not None and options.runtime is not None:
            _check_runtime(function, options.runtime)
        func_path = _name_of(function) if name is None else task_name("name", name)
        place = _place_of(function)
        aliases = _checked_aliases(aliases)
        for one in (func_path, *aliases):
            before = self.get(one)
            if before is not None and not (before.place == place and _is_of_module(before.function, function)):
                raise DuplicateTask(name=one, place=place, taken_by=before.place)
        codec = CallCodec(function, func_path, max_payload=self.max_payload, max_result=self._max_result)
        definition = TaskDefinition(self, func_path, function, options or TaskOptions(), codec, place, aliases)
        _reject_unfit_schedule(definition)
        earlier = self._definitions.get(func_path)
        self._aliases = {alias: one for alias, one in self._aliases.items() if one is not earlier}
        self._aliases.update(dict.fromkeys(aliases, definition))
        self._definitions[func_path] = definition
        return definition

    def get(self, func_path: str) -> TaskDefinition | None:
        """By its name, or by an alias."""
        return self._definitions.get(func_path) or self._aliases.get(func_path)

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._definitions))

    def all_names(self) -> tuple[str, ...]:
        """With aliases."""
        return tuple(sorted({*self._definitions, *self._aliases}))

    def __contains__(self, func_path: object) -> bool:
        return func_path in self._definitions or func_path in self._aliases

    def __iter__(self) -> Iterator[TaskDefinition]:
        return iter(list(self._definitions.values()))

    def __len__(self) -> int:
        return len(self._definitions)


def _checked_aliases(aliases: Sequence[str]) -> tuple[str, ...]:
    if isinstance(aliases, str) or not isinstance(aliases, Sequence):
        raise InvalidOptionType("aliases", aliases, "a list of names")
    return tuple(task_name("aliases", alias) for alias in aliases)


def _reject_unfit_schedule(definition: TaskDefinition) -> None:
    try:
        definition.scheduled(0.0)
    except InvalidArgument as error:
        raise InvalidTask(
            f"its schedule would call it without arguments, and it needs some ({error}); give them defaults, or "
            "enqueue it with using(cron=…, schedule_key=…)",
            function=_describe(definition.function),
        ) from None


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a call returns a coroutine; also of objects with an async `__call__`."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def _reject_generators(function: Callable[..., Any]) -> None:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidTask(
            "it is a generator, so calling it would run nothing; return a list", function=_describe(function)
        )


def _check_runtime(function: Callable[..., Any], runtime: str) -> None:
    if is_async(function):
        raise InvalidTask(
            "it is async, so it runs on the event loop; runtime= is for other functions", function=_describe(function)
        )
    if runtime == "process" and "<" in getattr(function, "__qualname__", "<"):
        raise InvalidTask("a process could not find it; move it to the top of a module", function=_describe(function))


def _name_of(function: Callable[..., Any]) -> str:
    """Module and name, the same in every process that imports it."""
    qualname = getattr(function, "__qualname__", None)
    if qualname is None:
        raise InvalidTask("it has no name of its own; give it one with name=", function=_describe(function))
    if "<lambda>" in qualname or "<locals>" in qualname:
        what = "a lambda" if "<lambda>" in qualname else "a function inside a function"
        raise InvalidTask(
            f"it is {what}, which a worker could not find by its name; move it to the top of a module, or give it a "
            "name with name= and make sure that workers register it too",
            function=_describe(function),
        )
    if "." in qualname and next(iter(inspect.signature(function).parameters), "") in ("self", "cls"):
        raise InvalidTask(
            "it is a method, and a worker has no object to call it on; make it a function", function=_describe(function)
        )
    if inspect.ismethod(function):
        raise InvalidTask("it is bound to an object, which a worker does not have", function=_describe(function))
    return f"{_module_of(function)}.{qualname}"


def _module_of(function: Callable[..., Any]) -> str:
    """Its module; of a script, the name under which workers import it."""
    module: str = function.__module__
    if module not in ("__main__", "__mp_main__"):  # the second is the name of a script in worker processes
        return module
    names = getattr(inspect.unwrap(function), "__globals__", {})
    spec = names.get("__spec__")
    if spec is not None:  # python -m app.jobs
        return str(spec.name).removesuffix(".__main__")
    file = names.get("__file__")
    if file is None or file.startswith("<"):  # typed in, or piped
        return module
    return re.sub(r"\.[^.]*$", "", re.split(r"[\\/]", file)[-1])


def task_name(option: str, name: object) -> str:
    allowed = "a string of 1 to 255 characters without spaces"
    if not isinstance(name, str):
        raise InvalidOptionType(option, name, allowed)
    if _NAME.fullmatch(name) is None:
        raise InvalidOption(option, name, allowed)
    return name


def _is_of_module(before: Callable[..., Any], now: Callable[..., Any]) -> bool:
    """Whether both are the same function of a module, which was loaded twice."""
    old, new = getattr(before, "__qualname__", "<locals>"), getattr(now, "__qualname__", "<locals>")
    return old == new and "<locals>" not in old and "<lambda>" not in old


def _place_of(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"
    return f"{code.co_filename}:{code.co_firstlineno}"


def _describe(function: Callable[..., Any]) -> str:
    name = getattr(function, "__qualname__", None)
    return repr(function) if name is None else f"{name} ({_place_of(function)})"
