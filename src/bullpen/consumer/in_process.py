"""What a process of a lane does: find the function of a task, run it with everything around it, send its result back.

Arguments and results cross as the store has them, so whatever can be a task can run here. Each process has lifespans
and injected values of its own, made with the first task that needs them.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
import threading
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn

from bullpen import primitives
from bullpen.consumer.scope import WorkerScope
from bullpen.errors import InvalidTask, NoCurrentTask, WorkerBroken
from bullpen.tasks.context import CurrentTask, running
from bullpen.tasks.registry import Registry, TaskDefinition
from bullpen.tasks.task import Progress, Task

TELL_EVERY = 0.1  # seconds between two words about progress
CLOSE_PATIENCE = 5.0  # seconds for what was opened here

Place = tuple[str, str]  # the module of a function, and its name there

Outcome = tuple[bytes | None, str]  # a result as it is stored; or None, and why there is none


class TaskRaised(Exception):
    """Its `__cause__` is what the task has raised, whatever that is: also an error of a pool, if the task uses one.

    So that is never taken for something about the lane's own processes.
    """


class TaskUnreadable(Exception):
    """What is stored cannot be decoded; its `__cause__` says why."""


class TaskProcess:
    """What each process keeps."""

    def __init__(self) -> None:
        self._scopes: dict[int, _OpenScope] = {}  # by registry

    def run(self, place: Place, task: Task, deadline: datetime | None, tell: Callable[[Progress], object]) -> Outcome:
        """Run a task. Raises `TaskRaised` from what it raises, or `TaskUnreadable`; `WorkerBroken` is for the pool."""
        try:
            return self._run(place, task, deadline, _Teller(tell))
        except (TaskUnreadable, WorkerBroken):
            raise
        except BaseException as error:
            raise TaskRaised from error

    def _run(self, place: Place, task: Task, deadline: datetime | None, teller: _Teller) -> Outcome:
        definition = find_definition(place, task.func_path)
        try:
            args, kwargs = definition.decode(task.payload)
        except BaseException as error:
            raise TaskUnreadable from error
        with running(CurrentTask(task, deadline=deadline, report=teller, complete=_cannot_complete)):
            try:
                value = self._call(definition, args, kwargs)
                definition.refuse_unawaited(value)
            finally:
                teller.flush()
        try:
            return definition.keep_result(value)
        except BaseException as error:
            return None, f"{type(error).__qualname__} while it was written"

    def _call(self, definition: TaskDefinition, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        registry = definition.registry
        if not (registry.hooks.lifespans or registry.hooks.around_tasks or definition.codec.dependencies):
            return definition.function(*args, **kwargs)
        open_scope = self._scopes.get(id(registry))
        if open_scope is None:
            open_scope = self._scopes[id(registry)] = _OpenScope(registry)
        return open_scope.scope.call_on_thread(definition, args, kwargs)

    def close(self) -> None:
        for scope in self._scopes.values():
            scope.close()


class _OpenScope:
    """Lifespans and injected values, on a loop that runs on a thread of its own."""

    def __init__(self, registry: Registry) -> None:
        self.scope = WorkerScope(registry)
        self._loop = asyncio.new_event_loop()
        primitives.start_thread(self._loop.run_forever, "bullpen-scope")
        try:
            asyncio.run_coroutine_threadsafe(self.scope.open(), self._loop).result()
        except BaseException:
            self._loop.call_soon_threadsafe(self._loop.stop)
            raise

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self.scope.close(CLOSE_PATIENCE), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)


class _Teller:
    """Passes on the latest progress, but not more often than anybody looks."""

    def __init__(self, tell: Callable[[Progress], object]) -> None:
        self._tell = tell
        self._lock = primitives.backlog_lock()
        self._latest: Progress | None = None  # what was not told
        self._timer: threading.Timer | None = None  # tells it

    def __call__(self, progress: Progress) -> None:
        with self._lock:
            self._latest = progress
            if self._timer is not None:
                return
            self._timer = threading.Timer(TELL_EVERY, self._time_has_passed)
            self._timer.daemon = True
            self._timer.start()
        self._tell_latest()

    def _time_has_passed(self) -> None:
        with self._lock:
            self._timer = None
        self._tell_latest()

    def _tell_latest(self) -> None:
        with self._lock:
            latest, self._latest = self._latest, None
        if latest is not None:
            self._tell(latest)

    def flush(self) -> None:
        """The function has ended."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
        self._tell_latest()


def place_of(definition: TaskDefinition) -> Place:
    """Where others find the function."""
    function = definition.function
    return getattr(function, "__module__", ""), getattr(function, "__qualname__", "")


def find_definition(place: Place, func_path: str) -> TaskDefinition:
    """What `@queue.task` has made of a function, in this process."""
    module_name, qualname = place
    module = sys.modules.get(module_name) or importlib.import_module(module_name)
    found: Any = module
    for name in qualname.split("."):
        found = getattr(found, name, None)
    for candidate in (found, *list(vars(module).values())):
        definition = getattr(candidate, "definition", None)
        if isinstance(definition, TaskDefinition) and definition.func_path == func_path:
            return definition
    raise InvalidTask(
        f"a process cannot find it: nothing in the module {module_name!r} is the task {func_path!r}; "
        "put what @queue.task returns into a variable of the module that the function is in",
        function=f"{module_name}.{qualname}",
    )


def _cannot_complete(connection: Any, value: Any, waits: bool) -> NoReturn:  # noqa: ARG001
    raise NoCurrentTask(
        "a task that runs in a process cannot complete itself: let it run on a thread, or on the event loop"
    )
