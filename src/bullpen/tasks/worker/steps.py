"""Runs the steps of one attempt: finds the kept outcome, or runs the function and keeps the outcome.

    begin → run, with retries → encode → save → return

The outcome is in the store before the function gets it. `model/steps.py` names the calls and decides what is kept.
"""

from __future__ import annotations

import asyncio
import functools
import time
from asyncio import _get_running_loop
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from datetime import datetime, timedelta
from types import FunctionType
from typing import Any, Literal, Protocol

from bullpen import primitives
from bullpen.errors import (
    Cancel,
    InvalidOption,
    InvalidOptionType,
    InvalidStep,
    LeaseLost,
    StepFailed,
    StepMismatch,
    Suspended,
    TaskSignal,
)
from bullpen.tasks.model.codec import CallCodec
from bullpen.tasks.model.events import decode_payload, ends_at
from bullpen.tasks.model.options import seconds
from bullpen.tasks.model.registry import is_async
from bullpen.tasks.model.steps import StepCall, StepLog, StepOptions, digest_of, wake_time
from bullpen.tasks.model.task import AttemptError, Step, Task

LONGEST_PAUSE = 0.5  # seconds that a thread waits before it looks whether the task was asked to stop

SLEEP = "sleep"  # the name of a sleep without a key
WAIT = "event "  # the name of a wait without a key begins with it

_Action = tuple[Literal["call", "pause", "save", "save_in", "wait"], Step | float | Future[None] | None]

_running_step: ContextVar[str] = ContextVar("bullpen_step", default="")


class KeepsSteps(Protocol):
    """The part of an attempt that its steps need."""

    task: Task

    def save_step(self, step: Step) -> bool:
        """On a thread without an event loop. False if another worker has the task."""

    async def asave_step(self, step: Step) -> bool:
        """On any event loop."""

    def save_step_in(self, connection: Any, step: Step) -> Awaitable[None] | None:
        """Raises LeaseLost."""

    def describe_error(self, error: BaseException) -> AttemptError: ...
    def store_time(self) -> float: ...
    def is_interrupted(self) -> bool: ...


class StepRunner:
    """The steps of one attempt. Any thread may call it."""

    def __init__(self, keeper: KeepsSteps, max_result: int) -> None:
        self._keeper = keeper
        self._max_result = max_result
        self._log = StepLog(keeper.task)
        self._lock = primitives.leaf_lock()  # of the log
        self._running: dict[str, Future[None] | None] = {}  # by name: ends with the step; None if nothing waits for it
        self.suspended_by = ""  # the name of the sleep or wait that has ended the attempt

    def run(
        self, options: StepOptions, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """On a thread."""
        name = _name_of(function, options)
        if is_async(function):
            raise InvalidStep("it is a coroutine function: await task.astep(…), in an async task", step=name)
        if _get_running_loop() is not None:
            raise InvalidStep("an event loop runs here: await task.astep(…)", step=name)
        _reject_timeout(options)
        course = self._course(name, options, function, args, kwargs)
        try:
            action = next(course)
            while True:
                try:
                    answer = self._do(action, options, lambda: function(*args, **kwargs))
                except BaseException as error:
                    action = course.throw(error)
                else:
                    action = course.send(answer)
        except StopIteration as ended:
            return ended.value

    async def arun(
        self, options: StepOptions, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """On an event loop."""
        name = _name_of(function, options)
        if is_async(function) and options.timeout is None:
            call = functools.partial(function, *args, **kwargs)
        elif is_async(function):
            call = functools.partial(_with_timeout, options.timeout, function, *args, **kwargs)
        else:
            _reject_timeout(options)
            call = functools.partial(asyncio.to_thread, function, *args, **kwargs)
        course = self._course(name, options, function, args, kwargs)
        try:
            action = next(course)
            while True:
                try:
                    answer = await self._ado(action, options, call)
                except BaseException as error:
                    action = course.throw(error)
                else:
                    action = course.send(answer)
        except StopIteration as ended:
            return ended.value

    def _course(
        self,
        name: str,
        options: StepOptions,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Generator[_Action, Any, Any]:
        """One step, whether it runs on a thread or on an event loop: it yields what is to be done next."""
        call = self._begin(name, options, digest_of(args, kwargs))
        codec = _codec_of(function, name, self._max_result)
        if call.kept is not None:
            return _outcome(call.kept, codec)
        tries, started = 1, self._keeper.store_time()
        self._running[call.name] = None
        save: Literal["save", "save_in"] = "save" if options.connection is None else "save_in"
        try:
            if options.connection is not None:  # locks the task; the record has no outcome yet
                yield "save_in", self._record(call)
            while True:
                token = _running_step.set(name)
                try:
                    value = yield "call", None
                    break
                except Exception as error:
                    if options.max_retries is None or isinstance(error, TaskSignal):
                        raise
                    delay = options.delay_after(tries, primitives.random.random())
                    if delay is None:
                        problem = self._keeper.describe_error(error)
                        step = self._record(call, error=problem, tries=tries, started_at=started)
                        yield "save", step
                        self._keep(call, step)
                        raise _failed(step) from error
                    yield "pause", delay
                    tries += 1
                finally:
                    _running_step.reset(token)
            step = self._record(call, result=codec.encode_result(value), tries=tries, started_at=started)
            yield save, step
            self._keep(call, step)
        except BaseException as error:
            if not isinstance(error, StepFailed) or error.step != call.name:
                self._drop(call)
            raise
        finally:
            with self._lock:
                ended = self._running.pop(call.name)
            if ended is not None:
                ended.set_result(None)
        return value

    def sleep(self, options: StepOptions, until: float | timedelta | datetime) -> None:
        """On a thread."""
        if _get_running_loop() is not None:
            raise InvalidStep("an event loop runs here: await task.asleep(…)", step=options.key or SLEEP)
        for action in self._sleep(options, until):
            self._do(action, options, lambda: None)

    async def asleep(self, options: StepOptions, until: float | timedelta | datetime) -> None:
        """On an event loop."""
        for action in self._sleep(options, until):
            await self._ado(action, options, _nothing)

    def _sleep(self, options: StepOptions, until: float | timedelta | datetime) -> Generator[_Action, Any, None]:
        name = options.key or SLEEP
        wakes_at = wake_time(until, self._keeper.store_time())
        step = yield from self._kept_pause(name, options, until=wakes_at, result=b"null")
        if step.until is None:
            raise StepMismatch(step=step.name, attempt=step.attempt)
        if step.until > self._keeper.store_time():
            raise self._suspended(step)

    def wait_event(self, options: StepOptions, event: str, timeout: float | timedelta | None) -> Any:
        """On a thread."""
        if _get_running_loop() is not None:
            raise InvalidStep("an event loop runs here: await task.await_event(…)", step=options.key or WAIT + event)
        course = self._wait(options, event, timeout)
        try:
            while True:
                self._do(next(course), options, lambda: None)
        except StopIteration as ended:
            return ended.value

    async def await_event(self, options: StepOptions, event: str, timeout: float | timedelta | None) -> Any:
        """On an event loop."""
        course = self._wait(options, event, timeout)
        try:
            while True:
                await self._ado(next(course), options, _nothing)
        except StopIteration as ended:
            return ended.value

    def _wait(
        self, options: StepOptions, event: str, timeout: float | timedelta | None
    ) -> Generator[_Action, Any, Any]:
        """The next attempt completes the wait before the function starts (`model/events.py`)."""
        wait = None if timeout is None else seconds("timeout", timeout, none="to wait without a limit")
        until = ends_at(wait, self._keeper.store_time())
        step = yield from self._kept_pause(options.key or WAIT + event, options, WAIT + event, until=until, event=event)
        if step.result is None:
            raise self._suspended(step)
        return decode_payload(step.result)

    def _kept_pause(
        self, name: str, options: StepOptions, digest: str = "", **fields: Any
    ) -> Generator[_Action, Any, Step]:
        """The instant at which a sleep or a wait ends is kept first. So a later attempt knows when to go on."""
        if self._keeper.task.at_most_once:
            raise InvalidStep("a task with at_most_once starts only once, so it cannot sleep or wait", step=name)
        _reject_nested(name)
        while running := self._running_one():  # it would be lost with the attempt
            yield "wait", running
        call = self._begin(name, options, digest)
        step = call.kept
        if step is None:
            step = self._record(call, started_at=self._keeper.store_time(), **fields)
            yield "save", step
            self._keep(call, step)
        return step

    def _running_one(self) -> Future[None] | None:
        """Ends with a step that is running; None if none is."""
        with self._lock:
            name = next(iter(self._running), None)
            if name is None:
                return None
            ended = self._running[name] = self._running[name] or Future()
            return ended

    def _suspended(self, step: Step) -> Suspended:
        self.suspended_by = step.name
        return Suspended(max(step.until or 0.0, self._keeper.store_time()), step.event or None)

    def reject_return(self) -> InvalidStep | None:
        """The error of a function that has returned although it sleeps or waits; None if it may return."""
        if not self.suspended_by:
            return None
        why = "the function caught the exception Suspended, which ends the attempt, and returned; let it pass"
        return InvalidStep(why, step=self.suspended_by)

    def _do(self, action: _Action, options: StepOptions, call: Callable[[], Any]) -> Any:
        match action:
            case "call", _:
                return call()
            case "pause", float(seconds):
                self._pause(seconds)
            case "wait", Future() as running:
                running.result()
            case "save", Step() as step:
                primitives.failpoint("step.before")
                self._check(self._keeper.save_step(step))
                primitives.failpoint("step.after")
            case "save_in", Step() as step:
                waiting = self._keeper.save_step_in(options.connection, step)
                if waiting is not None:
                    getattr(waiting, "close", lambda: None)()
                    allowed = "a sync connection; with this one, await task.astep(…)"
                    raise InvalidOptionType("connection", options.connection, allowed)
        return None

    async def _ado(self, action: _Action, options: StepOptions, call: Callable[[], Awaitable[Any]]) -> Any:
        match action:
            case "call", _:
                return await call()
            case "pause", float(seconds):
                await asyncio.sleep(seconds)
            case "wait", Future() as running:
                await asyncio.shield(asyncio.wrap_future(running))
            case "save", Step() as step:
                primitives.failpoint("step.before")
                self._check(await self._keeper.asave_step(step))
                primitives.failpoint("step.after")
            case "save_in", Step() as step:
                waiting = self._keeper.save_step_in(options.connection, step)
                if waiting is not None:
                    await waiting
        return None

    def _pause(self, seconds: float) -> None:
        """Wait, unless the task was asked to stop."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._keeper.is_interrupted():
                raise Cancel("it was asked to stop")
            time.sleep(min(left, LONGEST_PAUSE))

    def _begin(self, name: str, options: StepOptions, digest: str = "") -> StepCall:
        _reject_nested(name)
        with self._lock:
            return self._log.begin(name, options.key, digest)

    def _record(self, call: StepCall, **fields: Any) -> Step:
        with self._lock:
            return self._log.record(call, ended_at=self._keeper.store_time(), **fields)

    def _keep(self, call: StepCall, step: Step) -> None:
        with self._lock:
            self._log.keep(call, step)

    def _drop(self, call: StepCall) -> None:
        with self._lock:
            self._log.drop(call)

    def _check(self, kept: bool) -> None:
        if not kept:
            raise LeaseLost(task=self._keeper.task.id, attempt=self._keeper.task.attempt)


def _reject_nested(name: str) -> None:
    if outer := _running_step.get():
        raise InvalidStep(f"it cannot begin inside another step ({outer}); call the function itself", step=name)


async def _nothing() -> None:
    pass


def _reject_timeout(options: StepOptions) -> None:
    if options.timeout is not None:
        raise InvalidOption("timeout", options.timeout, "None: a thread cannot be stopped, only a coroutine can")


async def _with_timeout(timeout: float | None, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    async with asyncio.timeout(timeout):
        return await function(*args, **kwargs)


def _name_of(function: Callable[..., Any], options: StepOptions) -> str:
    if not callable(function):
        raise InvalidOptionType("function", function, "a function, and its arguments after it")
    if options.key is not None:
        return options.key
    name: str = getattr(function, "__qualname__", "").rpartition("<locals>.")[2]
    if not name or "<lambda>" in name:
        raise InvalidStep("it has no name of its own: give it one with task.using(key=…)", step=repr(function))
    return name


def _codec_of(function: Callable[..., Any], name: str, max_result: int) -> CallCodec:
    """Of the result. It is kept for plain functions only: a method or a closure would keep its objects alive."""
    plain = getattr(function, "__func__", function)
    if isinstance(plain, FunctionType) and plain.__closure__ is None:
        return _kept_codec(plain, name, max_result)
    return CallCodec(function, name, max_result=max_result)


@functools.lru_cache(maxsize=1000)
def _kept_codec(function: FunctionType, name: str, max_result: int) -> CallCodec:
    return CallCodec(function, name, max_result=max_result)


def _outcome(step: Step, codec: CallCodec) -> Any:
    if step.error is not None:
        raise _failed(step)
    return codec.decode_result(step.result or b"")


def _failed(step: Step) -> StepFailed:
    error = step.error
    assert error is not None
    return StepFailed(step=step.name, kind=error.type, message=error.message, tries=step.tries)
