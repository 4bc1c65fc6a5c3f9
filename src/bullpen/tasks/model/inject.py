"""Values that a worker injects into a task besides its arguments: a database session, a client, a model.

    async def get_client() -> AsyncIterator[Client]:
        async with Client() as client:
            yield client

    @queue.task
    async def fetch(url: str, *, client: Client = Inject(get_client, scope="worker")) -> int: ...

An injected parameter is not enqueued.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Literal, NoReturn, TypeVar, overload

from bullpen.errors import InvalidHook, InvalidOption
from bullpen.tasks.model.annotations import Annotations, signature_of
from bullpen.tasks.model.hooks import Hook

T = TypeVar("T")
Scope = Literal["task", "worker"]
Key = tuple[Callable[..., Any], str]


class Dependency:
    """An injected parameter: the provider of its value, and the scope of that value."""

    __slots__ = ("_needs", "hook", "scope")

    def __init__(self, provider: Callable[..., Any], scope: Scope) -> None:
        if scope not in ("task", "worker"):
            raise InvalidOption("scope", scope, "'task' or 'worker'")
        self.hook = Hook(provider, "provider")
        self.scope = scope
        self._needs: dict[str, Dependency] | None = None

    @property
    def key(self) -> Key:
        """Parameters with the same key share one value within a scope."""
        return self.hook.function, self.scope

    @property
    def needs(self) -> dict[str, Dependency]:
        """The injected parameters of the provider. Resolved on first use, when all names are defined."""
        if self._needs is None:
            self._needs = self.find_needs()
            _reject_circles(self, ())
        return self._needs

    def find_needs(self) -> dict[str, Dependency]:
        signature = signature_of(self.hook.function)
        needs: dict[str, Dependency] = {}
        for parameter in () if signature is None else signature.parameters.values():
            annotations = Annotations(self.hook.function)
            dependency = dependency_of(parameter, annotations)
            if dependency is not None:
                needs[parameter.name] = dependency
                if self.scope == "worker" and dependency.scope == "task":
                    self.reject(f"its scope is 'worker', but its parameter {parameter.name!r} has the scope 'task'")
            elif parameter.default is parameter.empty and parameter.kind not in _MANY:
                self.reject(f"its parameter {parameter.name!r} has no default; give it an Inject(…) too")
        return needs

    def reject(self, why: str) -> NoReturn:
        raise InvalidHook(why, what="provider", function=self.hook.name)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__") or name in Dependency.__slots__:  # copy and the like ask for these
            raise AttributeError(name)
        raise AttributeError(
            f"there is no {name!r}: this is the placeholder of a value of {self.hook.name} that workers inject; a "
            "direct call of the function has to pass the value"
        )

    def __repr__(self) -> str:
        return f"Inject({self.hook.name}, scope={self.scope!r})"


def _reject_circles(dependency: Dependency, above: tuple[Key, ...]) -> None:
    if dependency.key in above:
        dependency.reject("it needs itself")
    for need in dependency.find_needs().values():
        _reject_circles(need, (*above, dependency.key))


@overload
def Inject(provider: Callable[..., AsyncIterator[T]], *, scope: Scope = "task") -> T: ...
@overload
def Inject(provider: Callable[..., Iterator[T]], *, scope: Scope = "task") -> T: ...
@overload
def Inject(provider: Callable[..., Awaitable[T]], *, scope: Scope = "task") -> T: ...
@overload
def Inject(provider: Callable[..., AbstractAsyncContextManager[T]], *, scope: Scope = "task") -> T: ...
@overload
def Inject(provider: Callable[..., AbstractContextManager[T]], *, scope: Scope = "task") -> T: ...
@overload
def Inject(provider: Callable[..., T], *, scope: Scope = "task") -> T: ...
def Inject(provider: Callable[..., Any], *, scope: Scope = "task") -> Any:
    """Have the worker inject a value into a task: `session: Session = Inject(get_session)`.

    `provider` is a function, async or not; with a `yield`, the code after it closes the value. `scope` says for how
    long one value is used: for one attempt at a task, or as long as the worker runs. A provider may have injected
    parameters itself. `session: Annotated[Session, Inject(get_session)]` means the same, but type checkers then want
    the argument in `enqueue` too.
    """
    return Dependency(provider, scope)


def dependency_of(parameter: inspect.Parameter, annotations: Annotations) -> Dependency | None:
    """The dependency of a parameter; None if it is not injected."""
    if isinstance(parameter.default, Dependency):
        return parameter.default
    if parameter.annotation is parameter.empty:
        return None
    try:
        found = annotations.resolve(parameter.annotation)
    except Exception:  # the codec reports it
        return None
    return next((one for one in typing.get_args(found)[1:] if isinstance(one, Dependency)), None)


_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
