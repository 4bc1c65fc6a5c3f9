"""Stateful workers of an `AsyncPool`: instances that live on the loop, and those that live on threads.

The class decides. One with coroutine methods lives on the loop, where all of its methods have to be coroutine
functions: any other would stop the loop. Every other class lives on threads, as in a `Pool`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from bullpen.errors import InvalidOptionType
from bullpen.pools.dispatch.worker import Worker
from bullpen.pools.instances import CLOSE, WARM_UP, Instances, MethodCall, class_of
from bullpen.pools.runtimes.port import coroutine_request


def lives_on_loop(factory: Callable[[], Any]) -> bool:
    """Whether the instances that `factory` makes belong on the loop, as far as can be known before there is one."""
    cls = class_of(factory)
    if cls is not None:
        return bool(_awaited_methods(cls))
    while isinstance(factory, functools.partial):
        factory = factory.func
    return inspect.iscoroutinefunction(factory)


class ThreadInstances(Instances):
    """One per thread. An instance with coroutine methods is rejected, because a thread does not await them."""

    def _check_made(self, instance: Any) -> None:
        cls = type(instance)
        awaited = _awaited_methods(cls)
        if awaited:
            raise InvalidOptionType(
                "worker",
                self._factory,
                f"the class {cls.__qualname__} itself, or a coroutine function that makes one: {awaited[0]} has to be "
                "awaited, so it has to live on the loop, which cannot be known from a function",
            )


class LoopInstances(Instances):
    """One per place on the loop. The factory, `warm_up` and `close` may be coroutine functions."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._calls: dict[tuple[str, bool], LoopMethodCall] = {}

    async def make(self, worker: Worker) -> None:
        instance = self._factory()
        if inspect.iscoroutine(instance):  # no other awaitables: an instance may be awaitable itself
            instance = await instance
        warm_up = getattr(instance, WARM_UP, None)
        if warm_up is not None:
            await _outcome(warm_up())
        self._keep(worker, instance)

    async def close(self, worker: Worker) -> None:
        close = getattr(self._of.pop(worker, None), CLOSE, None)
        if close is None:
            return
        try:
            await _outcome(close())
        except BaseException as error:  # an error of any kind must not keep the worker from ending
            self._could_not_close(worker)
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise

    def release(self) -> None:
        super().release()
        self._calls.clear()

    def method(self, name: str) -> MethodCall:
        return self._method(name, streams=False)

    def generator(self, name: str) -> MethodCall:
        """The call of a method that is an async generator function."""
        return self._method(name, streams=True)

    def _method(self, name: str, *, streams: bool) -> MethodCall:
        call = self._calls.get((name, streams))
        if call is None:
            self._check(name)
            if self._class is not None:
                self.check_kind(name, getattr(self._class, name), streams)
            call = self._calls[name, streams] = LoopMethodCall(self, name, f"{self._name}.{name}", streams)
        return call

    def check_kind(self, name: str, method: Any, streams: bool) -> None:
        """Reject a method that cannot run on a loop."""
        if not (inspect.isasyncgenfunction if streams else inspect.iscoroutinefunction)(method):
            kind = "an async generator function" if streams else "a coroutine function"
            raise self._rejection(name, f"is not {kind}, and would stop the loop on which it lives: write `async def`")

    def _here(self) -> Worker | None:
        request = coroutine_request.get()
        return None if request is None else request.worker


class LoopMethodCall(MethodCall):
    """Calls a method that is a coroutine function, or an async generator function."""

    __slots__ = ("_streams",)

    _instances: LoopInstances

    def __init__(self, instances: LoopInstances, name: str, label: str, streams: bool) -> None:
        super().__init__(instances, name, label)
        self._streams = streams

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        method = self._instances.bound(self.__name__)
        self._instances.check_kind(self.__name__, method, self._streams)
        return method(*args, **kwargs)


async def _outcome(made: Any) -> Any:
    return await made if inspect.isawaitable(made) else made


def _awaited_methods(cls: type) -> list[str]:
    """The methods of `cls` that have to be awaited and may be called by name, or are called by the pool itself."""
    names = [name for name in dir(cls) if name[0] != "_"]
    found = [(name, inspect.getattr_static(cls, name, None)) for name in names]
    return [name for name, method in found if _is_awaited(method)]


def _is_awaited(method: Any) -> bool:
    if isinstance(method, staticmethod | classmethod):
        method = method.__func__
    while isinstance(method, functools.partial | functools.partialmethod):
        method = method.func
    return inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)
