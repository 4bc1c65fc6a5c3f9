"""Functions of users that surround tasks: middleware, lifespans, and those that make what is injected.

Such a function has one of four forms. With a `yield` it is around something: what is before the `yield` happens before,
what is after it afterwards, also after an error. Without, it is called before. Each of both may be `async`.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from typing import Any

from bullpen.errors import InvalidHook
from bullpen.tasks.annotations import signature_of


class Hook:
    """A function in one of the four forms, as something to be entered and left."""

    __slots__ = ("_open", "function", "is_async", "name", "needs_loop", "what")

    def __init__(self, function: Callable[..., Any], what: str) -> None:
        if not callable(function):
            raise InvalidHook("it cannot be called", what=what, function=repr(function))
        self.function = function
        self.what = what
        self.name = f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"
        plain = _undecorated(function)
        around = inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain)
        self.is_async = inspect.isasyncgenfunction(plain) or (not around and _is_coroutine_function(function))
        self.needs_loop = self.is_async
        make = plain if around else _yielding(function, self.is_async)
        self._open: Callable[..., Any] = asynccontextmanager(make) if self.is_async else contextmanager(make)

    def check_parameters(self, count: int, words: str) -> None:
        """Refuse a function that cannot be called with so many arguments."""
        signature = signature_of(self.function)
        try:
            if signature is not None:
                signature.bind(*range(count))
        except TypeError:
            why = f"it takes {signature}, and is called with {words}"
            raise InvalidHook(why, what=self.what, function=self.name) from None

    def around(self, *args: Any, **kwargs: Any) -> Around:
        """Enter it with `async with` if it `is_async`, else with `with`."""
        return Around(self, self._open(*args, **kwargs))


class Around(AbstractContextManager[Any], AbstractAsyncContextManager[Any]):
    """One use of a hook. An error that it raises itself says so."""

    __slots__ = ("_hook", "_manager")

    def __init__(self, hook: Hook, manager: Any) -> None:
        self._hook = hook
        self._manager = manager

    def __enter__(self) -> Any:
        try:
            return self._manager.__enter__()
        except BaseException as error:
            self._blame(error)
            raise

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> Any:
        try:
            return self._manager.__exit__(kind, error, traceback)
        except BaseException as raised:
            if raised is not error:
                self._blame(raised)
            raise

    async def __aenter__(self) -> Any:
        try:
            return await self._manager.__aenter__()
        except BaseException as error:
            self._blame(error)
            raise

    async def __aexit__(self, kind: Any, error: Any, traceback: Any) -> Any:
        try:
            return await self._manager.__aexit__(kind, error, traceback)
        except BaseException as raised:
            if raised is not error:
                self._blame(raised)
            raise

    def _blame(self, error: BaseException) -> None:
        error.add_note(f"raised by the {self._hook.what} {self._hook.name}")


class Hooks:
    """What surrounds the tasks of a queue. The first that was added is the outermost."""

    def __init__(self) -> None:
        self.around_tasks: list[Hook] = []
        self.around_enqueue: list[Hook] = []
        self.lifespans: list[Hook] = []
        self.replaced: dict[Callable[..., Any], Hook] = {}  # what is injected instead, by who makes it otherwise

    @property
    def enqueue_needs_loop(self) -> bool:
        return bool(self.around_enqueue) and any(hook.needs_loop for hook in self.around_enqueue)


def _undecorated(function: Callable[..., Any]) -> Callable[..., Any]:
    """Of `@contextmanager def f` and `@asynccontextmanager async def f`: f."""
    code = getattr(function, "__code__", None)
    if code is not None and code.co_filename == contextmanager.__code__.co_filename:
        return getattr(function, "__wrapped__", function)
    return function


def _is_coroutine_function(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def _yielding(function: Callable[..., Any], is_async: bool) -> Callable[..., Any]:
    """The same with a `yield` at its end."""

    async def on_loop(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        yield await function(*args, **kwargs)

    def here(*args: Any, **kwargs: Any) -> Iterator[Any]:
        yield function(*args, **kwargs)

    return on_loop if is_async else here
