"""Steps: the kept parts of a task's function. `current_task().step(charge, order)` runs `charge` once; a later attempt
gets its result. Pure.

A step is found again by its name: its `key`, or the name of its function and how often this attempt has called it
(`charge`, `charge#2`). So steps may be added, removed and reordered while tasks run. The digest of the arguments tells
when a name meets the record of another call.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, ParamSpec, Protocol, TypeVar, overload

import msgspec

from bullpen.errors import InvalidOption, InvalidOptionType, InvalidStep, StepFailed, StepMismatch, Suspended
from bullpen.tasks.model.json_roundtrip import write_unknown
from bullpen.tasks.model.options import MAX_KEY, MAX_RETRIES, instant, seconds, whole
from bullpen.tasks.model.options import backoff as checked_backoff
from bullpen.tasks.model.retry import Backoff
from bullpen.tasks.model.task import CANCELLED, FAILED, Step, Task

P = ParamSpec("P")
T = TypeVar("T")

MAX_STEPS = 10_000  # of a run
MAX_STEPS_SIZE = 16 * 2**20  # bytes of the results of a run; at this size no further step begins

_encode = msgspec.json.Encoder(enc_hook=write_unknown, order="deterministic").encode


class StepOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `current_task().using(…)`."""

    key: str | None = None
    max_retries: int | None = None  # None: an error is an error of the attempt, and is not kept
    backoff: Backoff = Backoff()
    timeout: float | None = None
    connection: Any = None

    def using(self, changes: Mapping[str, Any]) -> StepOptions:
        """Raises InvalidOption, which names the option."""
        checked = {name: _CHECKS[name](name, value) for name, value in changes.items()}
        options = msgspec.structs.replace(self, **checked)
        if options.connection is not None and options.max_retries is not None:
            raise InvalidOption("max_retries", options.max_retries, "None with connection=: the transaction has failed")
        return options

    def delay_after(self, failures: int, random: float) -> float | None:
        """Seconds until the step is tried again after this number of failures; None if it gives up."""
        if self.max_retries is None or failures > self.max_retries:
            return None
        return self.backoff.delay(failures, random)


def _key(name: str, value: Any) -> str | None:
    allowed = f"a string of 1 to {MAX_KEY} characters, or None for the name of the function"
    if value is not None and not isinstance(value, str):
        raise InvalidOptionType(name, value, allowed)
    if value is not None and not 1 <= len(value) <= MAX_KEY:
        raise InvalidOption(name, value, allowed)
    if value is not None and not value.isprintable():
        raise InvalidOption(name, value, "text without control characters")
    return value


def _max_retries(name: str, value: Any) -> int | None:
    allowed = f"a whole number from 0 to {MAX_RETRIES}, or None to leave retries to the task"
    return None if value is None else whole(name, value, 0, MAX_RETRIES, allowed)


def _timeout(name: str, value: Any) -> float | None:
    return None if value is None else seconds(name, value, zero=False, none="for none")


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "key": _key,
    "max_retries": _max_retries,
    "backoff": checked_backoff,
    "timeout": _timeout,
    "connection": lambda _, value: value,  # the store checks it
}


class RunsSteps(Protocol):
    """Runs the steps of one attempt. The worker makes it."""

    def run(
        self, options: StepOptions, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any: ...

    async def arun(
        self, options: StepOptions, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any: ...

    def sleep(self, options: StepOptions, until: float | timedelta | datetime) -> None: ...
    async def asleep(self, options: StepOptions, until: float | timedelta | datetime) -> None: ...
    def wait_event(self, options: StepOptions, event: str, timeout: float | timedelta | None) -> Any: ...
    async def await_event(self, options: StepOptions, event: str, timeout: float | timedelta | None) -> Any: ...


class TaskSteps:
    """Runs steps of the current task with options. `current_task().using(…)` returns it."""

    __slots__ = ("_options", "_runner")

    def __init__(self, runner: RunsSteps, options: StepOptions) -> None:
        self._runner = runner
        self._options = options

    def using(
        self,
        *,
        key: str | None = ...,  # type: ignore[assignment]
        max_retries: int | None = ...,  # type: ignore[assignment]
        backoff: float | Backoff | Sequence[float] = ...,  # type: ignore[assignment]
        timeout: float | timedelta | None = ...,  # type: ignore[assignment]
        connection: Any = ...,
    ) -> TaskSteps:
        """The same with other options."""
        given = {
            "key": key,
            "max_retries": max_retries,
            "backoff": backoff,
            "timeout": timeout,
            "connection": connection,
        }
        changes = {name: value for name, value in given.items() if value is not ...}
        return TaskSteps(self._runner, self._options.using(changes))

    def step(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """`CurrentTask.step` with these options."""
        result: T = self._runner.run(self._options, function, args, kwargs)
        return result

    @overload
    async def astep(self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    async def astep(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    async def astep(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """`CurrentTask.astep` with these options."""
        return await self._runner.arun(self._options, function, args, kwargs)

    def sleep(self, until: float | timedelta | datetime) -> None:
        """`CurrentTask.sleep` with a `key`."""
        self._runner.sleep(self._options, until)

    async def asleep(self, until: float | timedelta | datetime) -> None:
        """`CurrentTask.asleep` with a `key`."""
        await self._runner.asleep(self._options, until)

    def wait_event(self, name: str, *, timeout: float | timedelta | None = None) -> Any:
        """`CurrentTask.wait_event` with a `key`."""
        return self._runner.wait_event(self._options, name, timeout)

    async def await_event(self, name: str, *, timeout: float | timedelta | None = None) -> Any:
        """`CurrentTask.await_event` with a `key`."""
        return await self._runner.await_event(self._options, name, timeout)


class StepCall(msgspec.Struct, frozen=True):
    """A call of a step. `kept`: its outcome, if an earlier attempt has kept it; or the wait, if it has begun."""

    name: str
    base: str  # the name without the occurrence; "" with a key
    digest: str
    kept: Step | None = None


class StepLog:
    """The steps of one attempt: those that earlier attempts have kept, and those that run now."""

    def __init__(self, task: Task) -> None:
        self._attempt = task.attempt
        self._kept = {step.name: step for step in [*open_waits(task), *reusable_steps(task)]}
        self._number = max((step.number for step in task.steps), default=0)
        self._size = sum(len(step.result or b"") for step in task.steps)
        self._calls: Counter[str] = Counter()  # by the name of the function
        self._used: set[str] = set()  # names in this attempt
        self._running: set[str] = set()  # names of functions

    def begin(self, function: str, key: str | None, digest: str) -> StepCall:
        """Name a call. Raises InvalidStep or StepMismatch, and changes nothing then."""
        if key is None and function in self._running:
            raise InvalidStep("another step of this function is running, so give each a key= of its own", step=function)
        occurrence = self._calls[function] + 1
        name = key or (function if occurrence == 1 else f"{function}#{occurrence}")
        if name in self._used:
            raise InvalidStep("another step of this attempt has this name: give each a key= of its own", step=name)
        kept = self._kept.get(name)
        if kept is None and len(self._kept) >= MAX_STEPS:
            raise InvalidStep(f"the task has kept {MAX_STEPS} steps, and no more are allowed", step=name)
        if kept is None and self._size >= MAX_STEPS_SIZE:
            why = f"the results of its kept steps have {self._size} bytes, and {MAX_STEPS_SIZE} are allowed"
            raise InvalidStep(why, step=name)
        if kept is not None and kept.digest != digest:
            raise StepMismatch(step=name, attempt=kept.attempt)
        self._used.add(name)
        if key is None:
            self._calls[function] = occurrence
            if kept is None:
                self._running.add(function)
        return StepCall(name, "" if key is not None else function, digest, kept)

    def record(self, call: StepCall, **fields: Any) -> Step:
        """The record of a call: with its `result`, or with the `error` for which it gave up."""
        self._number += 1
        return Step(name=call.name, number=self._number, attempt=self._attempt, digest=call.digest, **fields)

    def keep(self, call: StepCall, step: Step) -> None:
        """The store has kept it."""
        self._running.discard(call.base)
        self._kept[step.name] = step
        self._size += len(step.result or b"")

    def drop(self, call: StepCall) -> None:
        """It has ended, and nothing is kept: the next call of the function has the same name."""
        self._running.discard(call.base)
        self._used.discard(call.name)
        if call.base:
            self._calls[call.base] -= 1


def kept_steps(task: Task) -> list[Step]:
    """The steps of a task that have ended, without those from which an operator has retried it."""
    return [step for step in _current_steps(task) if step.result is not None or step.error is not None]


def open_waits(task: Task) -> list[Step]:
    """The waits for events that have begun and have no outcome yet."""
    return [step for step in _current_steps(task) if step.event and step.result is None] if task.steps else []


def _current_steps(task: Task) -> list[Step]:
    number, attempt = _retried_from(task)
    return [step for step in task.steps if not (step.number >= number and step.attempt <= attempt)]


def reusable_steps(task: Task) -> list[Step]:
    """The kept steps of a task that are not run again. A step that was begun in a transaction and never ended runs
    again. So does a step that gave up, if the task has failed because of it and an operator has retried the task.
    """
    failed = max((error.attempt for error in task.errors if error.type.endswith(f".{StepFailed.__name__}")), default=0)
    return [step for step in kept_steps(task) if step.error is None or step.attempt > failed]


# A task that is retried from a step has a header that says which steps run again: those with this number or a later
# one, kept in this attempt or an earlier one. They stay in the store until the steps that run again replace them.

FROM_STEP = "bullpen-from-step"


def from_step(task: Task, name: str) -> Task:
    """The task with a mark: its retry runs this step, and all that were kept after it, again. Raises InvalidStep."""
    step = next((step for step in kept_steps(task) if step.name == name), None)
    if step is None:
        names = ", ".join(step.name for step in kept_steps(task)) or "none"
        raise InvalidStep(f"task {task.id} has not kept it; its steps: {names}", step=name)
    if task.status is not FAILED and task.status is not CANCELLED:
        why = f"task {task.id} is {task.status}; only a failed or cancelled task is retried from a step"
        raise InvalidStep(why, step=name)
    return msgspec.structs.replace(task, headers={**task.headers, FROM_STEP: f"{step.number} {task.attempt}"})


def _retried_from(task: Task) -> tuple[int, int]:
    try:
        number, attempt = map(int, task.headers[FROM_STEP].split())
    except (KeyError, ValueError):  # none, or none of ours
        return 0, 0
    return number, attempt


def suspension_of(error: BaseException) -> Suspended | None:
    """How a function was suspended that has raised this; None if the error is another one. A task group wraps the
    exceptions of its tasks: the one that ends first counts, and the first event, because the others are needed too.
    """
    if isinstance(error, Suspended):
        return error
    if isinstance(error, BaseExceptionGroup):
        found = [one for one in map(suspension_of, error.exceptions) if one is not None]
        if len(found) == len(error.exceptions):
            events = [one.event for one in found if one.event is not None]
            return Suspended(min(one.until for one in found), events[0] if events else None)
    return None


def wake_time(until: object, now: float) -> float:
    """The instant at which a sleep ends. Raises InvalidOption."""
    if isinstance(until, datetime):
        return instant("until", until)
    return now + seconds("until", until)


def digest_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """A digest of arguments. Of a value that JSON cannot have, such as a connection, only the type counts."""
    digest = hashlib.blake2b(digest_size=9)
    for value in args:
        digest.update(_written(value))
    for name in sorted(kwargs):
        digest.update(f"\n{name}=".encode(errors="backslashreplace"))
        digest.update(_written(kwargs[name]))
    return digest.hexdigest()


def _written(value: Any) -> bytes:
    try:
        return _encode(value) + b"\n"
    except Exception:  # code of the user's own models too
        return f"{type(value).__module__}.{type(value).__qualname__}\n".encode(errors="backslashreplace")
