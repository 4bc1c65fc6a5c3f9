"""The code in a process of a lane: finds the function of a task, runs it with its hooks, and returns the result.

Arguments and results cross in their stored form, so every task can run here. Each process has its own lifespans and
injected values. The first task that needs them opens them.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple, NoReturn

from bullpen import primitives
from bullpen.errors import InvalidStep, InvalidTask, NoCurrentTask, WorkerBroken
from bullpen.tasks.model.context import CurrentTask, running
from bullpen.tasks.model.registry import TaskDefinition, TaskRegistry
from bullpen.tasks.model.task import AttemptError, Progress, Step, Task
from bullpen.tasks.worker.black_box import LINES, capture_log
from bullpen.tasks.worker.error_data import describe_error
from bullpen.tasks.worker.scope import WorkerScope
from bullpen.tasks.worker.step_link import StepLink
from bullpen.tasks.worker.steps import StepRunner

TELL_EVERY = 0.1  # seconds between two reports of progress
SENT_AT_ONCE = 20  # log lines in these seconds that are sent one by one
CLOSE_PATIENCE = 5.0  # seconds for lifespans and injected values to close

Place = tuple[str, str]  # the module of a function, and its name there

Outcome = tuple[bytes | None, str]  # the encoded result; or None, and the reason


class TaskRaised(Exception):
    """Wraps the exception of the task, its `__cause__`.

    A task may raise an error of a pool that it uses. The wrapper keeps it apart from errors of the lane's own pool.
    """


class TaskUnreadable(Exception):
    """The stored arguments cannot be decoded; `__cause__` says why."""


class TaskProcess:
    """The state of one process."""

    def __init__(self) -> None:
        self._scopes: dict[int, _OpenScope] = {}  # by registry
        self._link = StepLink()
        capture_log()

    def run(self, place: Place, task: Task, deadline: datetime | None, tell: Callable[[Any], object]) -> Outcome:
        """Run a task. Raises `TaskRaised` from its exception, or `TaskUnreadable`. The pool handles `WorkerBroken`."""
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
        steps = StepRunner(_Keeper(task, self._link, teller), definition.codec.max_result)
        log = _LogSender(teller.send)
        current = CurrentTask(
            task,
            deadline=deadline,
            report=teller,
            complete=_cannot_complete,
            steps=lambda: steps,
            log=log if definition.options.black_box else None,
        )
        with running(current):
            try:
                value = self._call(definition, args, kwargs)
                definition.reject_unawaited(value)
                if (swallowed := steps.reject_return()) is not None:
                    raise swallowed
            except BaseException:
                log.flush()
                raise
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
        self._link.close()


class _Keeper:
    """Keeps the steps of a task through the worker, which has the store."""

    def __init__(self, task: Task, link: StepLink, teller: _Teller) -> None:
        self.task = task
        self._link = link
        self._send = teller.send
        self._began = time.monotonic()

    def save_step(self, step: Step) -> bool:
        return self._link.save(step, self._send)

    async def asave_step(self, step: Step) -> bool:
        return await asyncio.to_thread(self.save_step, step)

    def save_step_in(self, connection: Any, step: Step) -> NoReturn:  # noqa: ARG002
        why = "a task that runs in a process cannot keep a step in a transaction: let it run on a thread"
        raise InvalidStep(why, step=step.name)

    def describe_error(self, error: BaseException) -> AttemptError:
        return describe_error(self.task, "exception", error, at=self.store_time(), worker=self.task.worker or "")

    def store_time(self) -> float:
        return (self.task.started_at or 0.0) + time.monotonic() - self._began

    def is_interrupted(self) -> bool:
        return False  # the worker interrupts the function itself


class _OpenScope:
    """Lifespans and injected values, on an event loop with its own thread."""

    def __init__(self, registry: TaskRegistry) -> None:
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
    """Sends the latest progress, at most once every `TELL_EVERY` seconds."""

    def __init__(self, tell: Callable[[Any], object]) -> None:
        self._tell = tell
        self.send: Callable[[Any], object] = tell  # at once
        self._lock = primitives.leaf_lock()
        self._latest: Progress | None = None  # not sent yet
        self._timer: threading.Timer | None = None  # sends it

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
        """The function has ended: send the last progress now."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
        self._tell_latest()


class LogLines(NamedTuple):
    """Log lines of a task on their way to the worker."""

    lines: tuple[str, ...]


class _LogSender:
    """Sends log lines: the first ones of each `TELL_EVERY` seconds at once, because a process may die after any line;
    the others together with the next.
    """

    def __init__(self, send: Callable[[Any], object]) -> None:
        self._send = send
        self._unsent: deque[str] = deque(maxlen=LINES)
        self._sent = 0  # so often in this period
        self._period_ends = 0.0

    def __call__(self, line: str) -> None:
        self._unsent.append(line)
        now = time.monotonic()
        if now >= self._period_ends:
            self._period_ends = now + TELL_EVERY
            self._sent = 0
        if self._sent < SENT_AT_ONCE:
            self._sent += 1
            self.flush()

    def flush(self) -> None:
        lines = tuple(self._unsent.popleft() for _ in range(len(self._unsent)))
        if lines:
            self._send(LogLines(lines))


def place_of(definition: TaskDefinition) -> Place:
    """The place at which a process finds the function."""
    function = definition.function
    return getattr(function, "__module__", ""), getattr(function, "__qualname__", "")


def find_definition(place: Place, func_path: str) -> TaskDefinition:
    """The definition that `@queue.task` has made of a function in this process."""
    module_name, qualname = place
    module = sys.modules.get(module_name) or importlib.import_module(module_name)
    found: Any = module
    for name in qualname.split("."):
        found = getattr(found, name, None)
    for candidate in (found, *list(vars(module).values())):
        definition = getattr(candidate, "definition", None)
        if isinstance(definition, TaskDefinition) and func_path in (definition.func_path, *definition.aliases):
            return definition
    raise InvalidTask(
        f"a process cannot find it: nothing in the module {module_name!r} is the task {func_path!r}; "
        "assign the result of @queue.task to a variable of the function's module",
        function=f"{module_name}.{qualname}",
    )


def _cannot_complete(connection: Any, value: Any, waits: bool) -> NoReturn:  # noqa: ARG001
    raise NoCurrentTask(
        "a task that runs in a process cannot complete itself: let it run on a thread, or on the event loop"
    )
