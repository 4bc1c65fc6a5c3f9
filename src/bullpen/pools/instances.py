"""Stateful workers: one instance of the pool's `worker` per worker, and calls of its methods by name.

An instance is made where its worker runs, after the initializer and before the worker is ready. It is closed there when
the worker ends. A method call is an ordinary function that looks up the instance when it runs, so requests have no
field for it. Runtimes with workers in other processes make the instance there, and call its methods by name.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Literal, NoReturn

from bullpen.errors import InvalidOption, InvalidOptionType, NoSuchMethod, PoolClosed
from bullpen.pools.dispatch.worker import Worker
from bullpen.pools.runtimes.port import CallsMethod, current_worker
from bullpen.telemetry import logger

CapacityStrategy = Literal["pool", "profile", "hybrid"]
CAPACITY_STRATEGIES = ("pool", "profile", "hybrid")

WARM_UP, CLOSE = "warm_up", "close"  # methods that the pool itself calls


class Instances:
    """The instances of one pool, by worker."""

    def __init__(self, pool: str, factory: Callable[[], Any], capacity: int, strategy: CapacityStrategy) -> None:
        self._pool = pool
        self._factory = factory
        self._capacity = capacity
        self._strategy = strategy
        self._class = class_of(factory)
        self._name = str(getattr(self._class or factory, "__qualname__", None) or factory)
        self._of: dict[Worker, Any] = {}  # a worker only ever sets and deletes its own entry
        self._methods: dict[str, MethodCall] = {}

    # A worker's life. All of it happens where the worker runs.

    def make(self, worker: Worker) -> Awaitable[None] | None:
        """Make the instance of `worker` and warm it up, unless the runtime has done so. Raises their errors."""
        if worker.kept is not None:
            self._settle_capacity(worker)
            return None
        instance = self._factory()
        self._check_made(instance)
        warm_up = getattr(instance, WARM_UP, None)
        if warm_up is not None:
            warm_up()
        self._keep(worker, instance)
        return None

    def _check_made(self, instance: Any) -> None:
        """Reject an instance that cannot be used here."""

    def _keep(self, worker: Worker, instance: Any) -> None:
        """`worker` has an instance that is warm."""
        worker.kept = (type(instance).__qualname__, getattr(instance, "capacity", None))
        self._settle_capacity(worker)
        self._of[worker] = instance

    def _settle_capacity(self, worker: Worker) -> None:
        assert worker.kept is not None
        if self._strategy != "pool":
            own = _checked_capacity(*worker.kept)
            worker.capacity = min(own, self._capacity) if self._strategy == "hybrid" else own

    def close(self, worker: Worker) -> Awaitable[None] | None:
        """Close the instance of `worker`, which has nothing more to do. An error is logged."""
        close = getattr(self._of.pop(worker, None), CLOSE, None)
        if close is None:
            return None
        try:
            close()
        except BaseException:  # an error of any kind must not keep the worker from ending
            self._could_not_close(worker)
        return None

    def _could_not_close(self, worker: Worker) -> None:
        logger.exception("%s: worker %s ends, but its %s could not be closed", self._pool, worker.name, self._name)

    def lend(self, lender: Worker, helper: Worker) -> None:
        """`helper` runs the request that `lender` waits for, so it uses the lender's instance.

        A lender of another pool has none. The helper then uses that of any worker here, because all of them wait.
        """
        instance = self._of.get(lender)
        if instance is None:
            instance = next(iter(list(self._of.values())), None)
        if instance is not None:
            self._of[helper] = instance

    def forget(self, worker: Worker) -> None:
        """`worker` has ended, with or without closing its instance."""
        self._of.pop(worker, None)

    def release(self) -> None:
        """The pool has ended: drop the calls, which refer to this."""
        self._methods.clear()

    # Calls.

    def method(self, name: str) -> MethodCall:
        """The call of a public method; raises `NoSuchMethod` if there is none of that name, as far as can be known."""
        call = self._methods.get(name)
        if call is None:
            self._check(name)
            call = self._methods.setdefault(name, MethodCall(self, name, f"{self._name}.{name}"))
        return call

    def _check(self, name: str) -> None:
        """Reject a name that is that of no method to be called, as far as can be known."""
        if name.startswith("_"):
            raise self._rejection(name, "is not public")
        if name in (WARM_UP, CLOSE):
            raise self._rejection(name, "is called by the pool itself")
        if self._class is not None and not _is_method(self._class, name):
            raise self._rejection(name, "is no method of it")

    def _here(self) -> Worker | None:
        """The worker that runs the current request."""
        return current_worker()

    def bound(self, name: str) -> Callable[..., Any]:
        """The method called `name` of the current worker's instance."""
        worker = self._here()
        if worker is None or worker not in self._of:
            raise PoolClosed(
                f"{self._name}.{name} runs on a worker of pool {self._pool!r}; there is none", pool=self._pool
            )
        instance = self._of[worker]
        method = getattr(instance, name, None)
        if not callable(method):
            raise self._rejection(name, "is no method of it", type(instance))
        return method  # type: ignore[no-any-return]

    def _rejection(self, name: str, why: str, cls: type | None = None) -> NoSuchMethod:
        cls = self._class if cls is None else cls
        return NoSuchMethod(name, why, owner=self._name, methods=() if cls is None else _public_methods(cls))


class ProgramMethods(Instances):
    """The methods of workers that are programs. Only the program knows which ones it has."""

    def __init__(self, pool: str, runtime: str, capacity: int, strategy: CapacityStrategy) -> None:
        super().__init__(pool, _no_factory, capacity, strategy)
        self._name = runtime

    def _check(self, name: str) -> None:
        if not name:
            raise self._rejection(name, "is no name of a method")


def _no_factory() -> NoReturn:
    raise AssertionError("a program has nothing to be made")


class MethodCall(CallsMethod):
    """Calls one method of the instance of the worker that it runs on."""

    __slots__ = ("__name__", "__qualname__", "_instances")

    def __init__(self, instances: Instances, name: str, label: str) -> None:
        self._instances = instances
        self.__name__ = name
        self.__qualname__ = label

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._instances.bound(self.__name__)(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<method {self.__qualname__} of a worker>"


def no_workers_class(pool: str, name: str) -> NoSuchMethod:
    """A method was named in a pool of plain workers."""
    why = f"cannot be called by its name: pool {pool!r} was made without worker=; pass the function itself"
    return NoSuchMethod(name, why, owner=pool, methods=())


def class_of(factory: Callable[[], Any]) -> type | None:
    """The class of the instances, if that can be known without making one."""
    while isinstance(factory, functools.partial):
        factory = factory.func
    return factory if isinstance(factory, type) else None


def _is_method(cls: type, name: str) -> bool:
    found = inspect.getattr_static(cls, name, None)
    if isinstance(found, staticmethod | classmethod):
        found = found.__func__
    if isinstance(found, functools.partialmethod | functools.singledispatchmethod):
        return True
    return callable(found) and not isinstance(found, type)


def _public_methods(cls: type) -> tuple[str, ...]:
    hidden = (WARM_UP, CLOSE)
    return tuple(name for name in dir(cls) if name[0] != "_" and name not in hidden and _is_method(cls, name))


def _checked_capacity(name: str, declared: Any) -> int:
    allowed = "a whole number ≥ 1, because capacity.strategy lets workers declare their own"
    if isinstance(declared, bool) or not isinstance(declared, int):
        raise InvalidOptionType(f"{name}.capacity", declared, allowed)
    if declared < 1:
        raise InvalidOption(f"{name}.capacity", declared, allowed)
    return declared
