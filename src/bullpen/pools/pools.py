"""`Pools`: several pools by name, opened, watched and closed together, each with a life of its own."""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, ParamSpec, TypeVar, overload

from bullpen.errors import ConfigurationError, InvalidOption, InvalidOptionType, PoolFailed, PoolNotFound, closest
from bullpen.pools.checks import Seconds, seconds
from bullpen.pools.configuration import read_pools, read_toml
from bullpen.pools.dispatch.futures import PoolFuture
from bullpen.pools.maps.iterator import MapIterator
from bullpen.pools.maps.outcome import OnError, Outcome
from bullpen.pools.pool import Pool
from bullpen.pools.stats import PoolStats, WorkerInfo
from bullpen.pools.streams.stream import Stream
from bullpen.pools.view import PoolView

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")


class Pools:
    """Pools by name. A value is a `Pool`, or the options to make one of.

        with Pools(default={"max_workers": 8}, gpu=Pool(1, max_queue=20)) as pools:
            pools.submit(resize, "cat.png")
            pools.using(pool="gpu", session="u42", timeout=2).do(predict, text)

    What it promises:

    - A wrong option raises `ConfigurationError`, and nothing is started.
    - A pool that cannot be made or started leaves the others serving; using it raises `PoolFailed`, from its cause.
    - `close` ends all of them, and one that hangs keeps no other from draining.

    Calls without `pool` go to the default pool: the one named by `default_pool`, else the one called "default", else
    the first. Sessions belong to one pool: the same name in another pool is another session. Names that are no Python
    names are given in a dictionary: `Pools({"gpu-0": …})`.
    """

    def __init__(
        self, pools: Mapping[str, Any] | None = None, /, *, default_pool: str | None = None, **named: Any
    ) -> None:
        given = named if pools is None else {**pools, **named} if isinstance(pools, Mapping) else pools
        self._open(given, default_pool, "Pools")

    @classmethod
    def from_config(cls, config: Mapping[str, Mapping[str, Any]], *, default_pool: str | None = None) -> Pools:
        """Pools from options by name, as read from any file: durations may be written as "30s", functions as
        "module:attribute".
        """
        return cls._from(config, default_pool, "configuration")

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str] | None = None) -> Pools:
        """Pools from the tables `[tool.bullpen.pools.NAME]` of a file, else of the nearest `pyproject.toml`, here or
        above. `default_pool` in `[tool.bullpen]` names the default one.
        """
        return cls._from(*read_toml(None if path is None else Path(path)))

    @classmethod
    def _from(cls, config: Mapping[str, Any], default_pool: str | None, source: str) -> Pools:
        self = cls.__new__(cls)
        self._open(config, default_pool, source)
        return self

    def _open(self, given: Mapping[str, Any], default_pool: str | None, source: str) -> None:
        """Check everything, then start every pool that can be."""
        read = read_pools(given, source)
        self._default = _default_of(read, default_pool, source)
        self._failures: dict[str, Exception] = {}
        self._pools: dict[str, Pool | None] = {}  # None for one that has failed
        for name, value in read.items():
            self._pools[name] = value if isinstance(value, Pool) else self._prepare(name, value, source)
        for name, pool in self._pools.items():
            if isinstance(pool, _UnstartedPool):
                self._start(name, pool)

    def _prepare(self, name: str, options: dict[str, Any], source: str) -> Pool | None:
        try:
            return _UnstartedPool(**options)
        except InvalidOption as error:
            raise ConfigurationError(str(error), source=source, pool=name, option=error.option) from error
        except Exception as error:
            self._failures[name] = error
            return None

    def _start(self, name: str, pool: _UnstartedPool) -> None:
        try:
            pool.start()
        except Exception as error:
            self._failures[name] = error
            self._pools[name] = None

    # Which one.

    def pool(self, name: str | None = None) -> Pool:
        """The pool called `name`, or the default one. Raises `PoolNotFound`, or `PoolFailed` if it could not be
        made.
        """
        if name is None:
            name = self._default
        try:
            pool = self._pools[name]
        except (KeyError, TypeError):
            raise PoolNotFound(pool=name, known=tuple(self._pools), suggestion=closest(name, self._pools)) from None
        if pool is None:
            cause = self._failures[name]
            raise PoolFailed(f"pool {name!r} could not be started: {cause!r}", pool=name) from cause
        return pool

    def __getitem__(self, name: str) -> Pool:
        return self.pool(name)

    def using(self, *, pool: str | None = None, **options: Any) -> PoolView:
        """A view of a pool, with options for the calls made through it: see `Pool.using`."""
        return self.pool(pool).using(**options)

    def __contains__(self, name: object) -> bool:
        return name in self._pools

    def __iter__(self) -> Iterator[str]:
        """The names of all pools, also of those that have failed."""
        return iter(self._pools)

    def __len__(self) -> int:
        return len(self._pools)

    # Work on the default pool.

    @overload
    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> PoolFuture[T]: ...
    @overload
    def submit(self, fn: str, /, *args: Any, **kwargs: Any) -> PoolFuture[Any]: ...

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> PoolFuture[Any]:
        """`Pool.submit` on the default pool."""
        return self.pool().submit(fn, *args, **kwargs)

    @overload
    def serve(self, fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> bool: ...
    @overload
    def serve(self, fn: str, /, *args: Any, **kwargs: Any) -> bool: ...

    def serve(self, fn: Any, /, *args: Any, **kwargs: Any) -> bool:
        """`Pool.serve` on the default pool."""
        return self.pool().serve(fn, *args, **kwargs)

    @overload
    def do(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    def do(self, fn: str, /, *args: Any, **kwargs: Any) -> Any: ...

    def do(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        """`Pool.do` on the default pool."""
        return self.pool().do(fn, *args, **kwargs)

    @overload
    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
        ordered: bool = True,
        on_error: Literal["raise"] = "raise",
    ) -> MapIterator[T]: ...
    @overload
    def map(
        self,
        fn: Callable[[A], T],
        iterable: Iterable[A],
        /,
        *,
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
        ordered: bool = True,
        on_error: Literal["return"],
    ) -> MapIterator[Outcome[A, T]]: ...
    @overload
    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
        ordered: bool = True,
        on_error: Literal["return"],
    ) -> MapIterator[Outcome[Any, T]]: ...
    @overload
    def map(
        self,
        fn: str,
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
        ordered: bool = True,
        on_error: Literal["raise"] = "raise",
    ) -> MapIterator[Any]: ...
    @overload
    def map(
        self,
        fn: str,
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
        ordered: bool = True,
        on_error: Literal["return"],
    ) -> MapIterator[Outcome[Any, Any]]: ...

    def map(
        self,
        fn: Any,
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
        ordered: bool = True,
        on_error: OnError = "raise",
    ) -> MapIterator[Any]:
        """`Pool.map` on the default pool."""
        options: dict[str, Any] = {"ordered": ordered, "on_error": on_error}
        return self.pool().map(fn, *iterables, timeout=timeout, chunksize=chunksize, buffersize=buffersize, **options)

    @overload
    def stream(self, fn: Callable[P, Iterable[T]], /, *args: P.args, **kwargs: P.kwargs) -> Stream[T]: ...
    @overload
    def stream(self, fn: Callable[P, AsyncIterable[T]], /, *args: P.args, **kwargs: P.kwargs) -> Stream[T]: ...
    @overload
    def stream(self, fn: str, /, *args: Any, **kwargs: Any) -> Stream[Any]: ...

    def stream(self, fn: Any, /, *args: Any, **kwargs: Any) -> Stream[Any]:
        """`Pool.stream` on the default pool."""
        return self.pool().stream(fn, *args, **kwargs)

    # Life.

    def close(self, grace: Seconds | None = None, drain: bool = True) -> None:
        """`Pool.close` for all pools. They end side by side, each within this `grace`, or by default its own.

        While both close, a pool rejects work of another one with `PoolClosed`.
        """
        limit = seconds("grace", grace)
        endings = [_ClosingPool(pool, limit) for pool in self._there()]
        endings.sort(key=_ClosingPool.has_maps)  # taking the remaining items of a map may wait for room
        errors: list[BaseException] = []
        for ending in endings:
            try:
                ending.begin(drain)
            except BaseException as error:  # an interrupt is raised after all other pools were told to end
                errors.append(error)
        for ending in endings:
            try:
                ending.finish(drain)
            except Exception as error:
                errors.append(error)
        _raise_together(errors)

    def __enter__(self) -> Pools:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(None, kind is None)

    # Looking at them.

    def stats(self) -> dict[str, PoolStats]:
        """The pools at this moment, in numbers. Those in `failures()` are missing."""
        return {name: pool.stats() for name, pool in self._pools.items() if pool is not None}

    def workers(self) -> dict[str, list[WorkerInfo]]:
        """The workers of each pool at this moment."""
        return {name: pool.workers() for name, pool in self._pools.items() if pool is not None}

    def failures(self) -> dict[str, Exception]:
        """The pools that could not be made, and why. A pool without a worker that can start has the state "failed"."""
        return dict(self._failures)

    def __repr__(self) -> str:
        told = [
            f"{name} failed" if pool is None else f"{name} {pool.stats().state}" for name, pool in self._pools.items()
        ]
        return f"<Pools {', '.join(told)}; default {self._default}>"

    def _there(self) -> list[Pool]:
        return [pool for pool in self._pools.values() if pool is not None]


class _UnstartedPool(Pool):
    """A pool with checked options that starts later."""

    def _start(self) -> None:
        """Not yet."""

    def start(self) -> None:
        self.__class__ = Pool  # type: ignore[assignment]
        self._start()


class _ClosingPool:
    """The end of one pool of several. Its grace period starts now."""

    def __init__(self, pool: Pool, grace: float | None) -> None:
        self._pool = pool
        self._engine = pool._engine  # noqa: SLF001 — its clock, and whether it has maps
        grace = self._engine.options.grace if grace is None else grace
        self._until = None if grace is None else self._engine.clock.monotonic() + grace

    def has_maps(self) -> bool:
        return bool(self._engine.maps)

    def begin(self, drain: bool) -> None:
        self._pool.shutdown(wait=False, cancel_futures=not drain)

    def finish(self, drain: bool) -> None:
        left = None if self._until is None else max(0.0, self._until - self._engine.clock.monotonic())
        self._pool.close(left, drain)


def _default_of(pools: Mapping[str, Any], name: str | None, source: str) -> str:
    if name is None:
        return "default" if "default" in pools else next(iter(pools))
    if not isinstance(name, str):
        raise InvalidOptionType("default_pool", name, "the name of a pool, or None")
    if name not in pools:
        problem = f"default_pool is {name!r}, but the pools are {', '.join(pools)}"
        raise ConfigurationError(problem, source=source, option="default_pool")
    return name


def _raise_together(errors: list[BaseException]) -> None:
    if len(errors) > 1:
        raise BaseExceptionGroup("several pools could not be closed in order", errors)
    if errors:
        raise errors[0]
