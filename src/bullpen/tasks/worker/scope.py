"""The hooks around the tasks of a worker: lifespans, middleware, and injected values.

Hooks exit in the opposite order, whether the task ends with a result, an error, a timeout or a cancellation. An async
hook enters and exits in one asyncio task, so it may use task groups and timeouts. For a function on a thread, that
asyncio task runs on the worker's loop. A hook may replace an error by another, but cannot suppress it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import AsyncExitStack, ExitStack
from typing import Any

from bullpen.errors import InvalidHook
from bullpen.tasks.model.context import current_task
from bullpen.tasks.model.hooks import Around, Hook
from bullpen.tasks.model.inject import Dependency, Key
from bullpen.tasks.model.registry import TaskDefinition, TaskRegistry
from bullpen.tasks.worker.reports import log_message

LAST_PATIENCE = 5.0  # seconds for a hook to end after it was cancelled


class WorkerScope:
    """Holds the lifespans and shared values of a worker, and calls functions with their hooks."""

    def __init__(self, registry: TaskRegistry) -> None:
        self._registry = registry
        self._hooks = registry.hooks
        self._values: dict[Key, Any] = {}
        self._life: asyncio.Task[None] | None = None
        self._leave: asyncio.Event

    # As long as the worker lives.

    async def open(self) -> None:
        """Raises the error of a lifespan or a provider, after closing those that are open."""
        self._loop = asyncio.get_running_loop()
        shared = list(self._shared())
        if not self._hooks.lifespans and not shared:
            return
        self._leave = asyncio.Event()
        is_open: asyncio.Future[None] = self._loop.create_future()
        life = self._life = self._loop.create_task(self._live(shared, is_open))
        try:
            await asyncio.wait((life, is_open), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            life.cancel()
            await asyncio.wait((life,), timeout=LAST_PATIENCE)
            raise
        if life.done():
            self._life = None
            life.result()

    def _shared(self) -> Iterator[Dependency]:
        for definition in self._registry:
            for dependency in definition.codec.dependencies.values():
                yield from _shared_of(dependency)

    async def _live(self, shared: list[Dependency], is_open: asyncio.Future[None]) -> None:
        async with AsyncExitStack() as stack:
            for hook in self._hooks.lifespans:
                await _enter(stack, hook, hook.around())
            for dependency in shared:
                await self._provide(stack, dependency, self._values)
            is_open.set_result(None)
            await self._leave.wait()

    async def close(self, patience: float) -> None:
        """Close them within `patience` seconds. Errors are logged, not raised, because the worker has to stop."""
        life, self._life = self._life, None
        if life is None:
            return
        self._leave.set()
        _, waiting = await asyncio.wait((life,), timeout=patience)
        if waiting:
            log_message(logging.ERROR, "a lifespan or a provider of the worker did not end within %g s", patience)
            life.cancel()
            await asyncio.wait((life,), timeout=LAST_PATIENCE)
        elif not life.cancelled() and (error := life.exception()) is not None:
            log_message(logging.ERROR, "a lifespan or a provider of the worker failed at its end", error=error)

    # Around one attempt.

    def surrounds(self, definition: TaskDefinition) -> bool:
        """Whether the function has middleware or injected values."""
        return bool(self._hooks.around_tasks or definition.codec.dependencies)

    async def call(self, definition: TaskDefinition, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call an async function on the loop."""
        failure: BaseException | None = None
        async with AsyncExitStack() as stack:
            try:
                for hook in self._hooks.around_tasks:
                    await _enter(stack, hook, hook.around(current_task()))
                values: dict[Key, Any] = {}
                for name, dependency in definition.codec.dependencies.items():
                    kwargs[name] = await self._provide(stack, dependency, values)
                value = await definition.function(*args, **kwargs)
            except BaseException as error:
                failure = error
                raise
        if failure is not None:
            raise failure  # a hook has suppressed it
        return value

    async def _provide(self, stack: AsyncExitStack, dependency: Dependency, values: dict[Key, Any]) -> Any:
        if (known := self._known(dependency, values)) is not None:
            return known[0]
        needs = {name: await self._provide(stack, one, values) for name, one in self._needs(dependency).items()}
        hook = self._hook(dependency)
        value = values[dependency.key] = await _enter(stack, hook, hook.around(**needs))
        return value

    def call_on_thread(self, definition: TaskDefinition, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function on this thread. Its async hooks run on the loop."""
        failure: BaseException | None = None
        with ExitStack() as stack:
            try:
                for hook in self._hooks.around_tasks:
                    self._enter_from_thread(stack, hook, hook.around(current_task()))
                values: dict[Key, Any] = {}
                for name, dependency in definition.codec.dependencies.items():
                    kwargs[name] = self._provide_from_thread(stack, dependency, values)
                value = definition.function(*args, **kwargs)
            except BaseException as error:
                failure = error
                raise
        if failure is not None:
            raise failure
        return value

    def _provide_from_thread(self, stack: ExitStack, dependency: Dependency, values: dict[Key, Any]) -> Any:
        if (known := self._known(dependency, values)) is not None:
            return known[0]
        needs = {name: self._provide_from_thread(stack, one, values) for name, one in self._needs(dependency).items()}
        hook = self._hook(dependency)
        value = values[dependency.key] = self._enter_from_thread(stack, hook, hook.around(**needs))
        return value

    def _enter_from_thread(self, stack: ExitStack, hook: Hook, around: Around) -> Any:
        return stack.enter_context(_OnLoop(self._loop, around) if hook.is_async else around)

    def _known(self, dependency: Dependency, values: dict[Key, Any]) -> tuple[Any] | None:
        if dependency.scope == "worker" and values is not self._values:
            if dependency.key not in self._values:
                why = "a worker makes its values when it starts, and the task was registered later"
                raise InvalidHook(why, what="provider", function=dependency.hook.name)
            return (self._values[dependency.key],)
        return (values[dependency.key],) if dependency.key in values else None

    def _hook(self, dependency: Dependency) -> Hook:
        return self._hooks.replaced.get(dependency.hook.function, dependency.hook)

    def _needs(self, dependency: Dependency) -> Mapping[str, Dependency]:
        return {} if dependency.hook.function in self._hooks.replaced else dependency.needs


def _shared_of(dependency: Dependency) -> Iterator[Dependency]:
    if dependency.scope == "worker":
        yield dependency
    else:
        for need in dependency.needs.values():
            yield from _shared_of(need)


async def _enter(stack: AsyncExitStack, hook: Hook, around: Around) -> Any:
    return await stack.enter_async_context(around) if hook.is_async else stack.enter_context(around)


class _OnLoop:
    """An async hook that a thread enters and exits. It runs in one asyncio task on the loop.

    That asyncio task raises nothing: SystemExit, for example, would end the loop and with it the worker.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, around: Around) -> None:
        self._loop = loop
        self._around = around
        self._is_open: Future[Any] = Future()
        self._over: Future[BaseException | None] = Future()  # its error, if it raised one
        self._end: asyncio.Future[BaseException | None]

    def __enter__(self) -> Any:
        life = asyncio.run_coroutine_threadsafe(self._live(), self._loop)
        life.add_done_callback(lambda _: self._ended(CancelledError()))  # if it was cancelled before it began
        return self._is_open.result()

    async def _live(self) -> None:
        self._end = self._loop.create_future()
        ended: BaseException | None = None
        try:
            async with self._around as value:
                self._is_open.set_result(value)
                error = await self._end
                if error is not None:
                    raise error
        except BaseException as error:
            ended = error
        self._ended(ended)

    def _ended(self, error: BaseException | None) -> None:
        if not self._over.done():
            self._over.set_result(error)
        if not self._is_open.done():
            stopped = isinstance(error, asyncio.CancelledError | CancelledError)
            self._is_open.set_exception(
                RuntimeError("the worker has stopped meanwhile") if stopped or not error else error
            )

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self._loop.call_soon_threadsafe(self._finish, error)
        ended = self._over.result()
        if ended is not None and ended is not error:
            raise CancelledError if isinstance(ended, asyncio.CancelledError) else ended

    def _finish(self, error: BaseException | None) -> None:
        if not self._end.done():
            self._end.set_result(error)
