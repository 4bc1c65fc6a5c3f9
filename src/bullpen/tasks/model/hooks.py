"""Functions of users that surround tasks: middleware, lifespans, and providers of injected values.

Such a function has one of four forms. With a `yield`, the code before it runs before the task, and the code after it
runs afterwards, also after an error. Without a `yield`, the function runs before the task. Both forms may be `async`.
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
from bullpen.tasks.model.annotations import signature_of


class Hook:
    """A function in one of the four forms, as a context manager."""

    __slots__ = ("_open", "blocking_form", "for_children", "function", "is_async", "name", "what")

    def __init__(self, function: Callable[..., Any], what: str) -> None:
        if not callable(function):
            raise InvalidHook("it cannot be called", what=what, function=repr(function))
        self.function = function
        self.what = what
        self.name = f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"
        plain = _undecorated(function)
        around = inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain)
        self.is_async = inspect.isasyncgenfunction(plain) or (not around and _is_coroutine_function(function))
        self.blocking_form: Hook | None = None if self.is_async else self  # to be entered where no event loop runs
        self.for_children = True  # of middleware around enqueue: whether it surrounds `current_task().enqueue` too
        make = plain if around else _yielding(function, self.is_async)
        self._open: Callable[..., Any] = asynccontextmanager(make) if self.is_async else contextmanager(make)

    def check_parameters(self, count: int, words: str) -> None:
        """Raises InvalidHook if the function cannot be called with `count` arguments."""
        signature = signature_of(self.function)
        try:
            if signature is not None:
                signature.bind(*range(count))
        except TypeError:
            why = f"it takes {signature}, and is called with {words}"
            raise InvalidHook(why, what=self.what, function=self.name) from None

    def around(self, *args: Any, **kwargs: Any) -> Around:
        """Use it with `async with` if it `is_async`, else with `with`."""
        return Around(self, self._open(*args, **kwargs))


class Around(AbstractContextManager[Any], AbstractAsyncContextManager[Any]):
    """One use of a hook. An error that the hook raises gets a note with its name."""

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
    """The hooks of a queue. The first one that was added is the outermost."""

    def __init__(self) -> None:
        self.around_tasks: list[Hook] = []
        self.around_enqueue: list[Hook] = []
        self.lifespans: list[Hook] = []
        self.replaced: dict[Callable[..., Any], Hook] = {}  # the replacement of a provider


def _undecorated(function: Callable[..., Any]) -> Callable[..., Any]:
    """The f of `@contextmanager def f` and `@asynccontextmanager async def f`."""
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
