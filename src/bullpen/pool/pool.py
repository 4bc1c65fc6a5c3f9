"""`Pool`: the public face. Everything it does is one call into the engine."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from bullpen import primitives
from bullpen.core.ready import SchedulerStrategy
from bullpen.core.request import Request
from bullpen.core.timing import TimeLimits
from bullpen.errors import InvalidOption
from bullpen.pool.engine import Engine
from bullpen.pool.exit import close_in_background
from bullpen.pool.future import PoolFuture
from bullpen.pool.mapping import MapIterator
from bullpen.pool.options import CallOptions, PoolOptions, Seconds, WhenFull, Wrap, at_least, default_max_workers, seconds
from bullpen.pool.stats import PoolStats, WorkerInfo
from bullpen.pool.view import PoolView
from bullpen.runtimes.open import open_runtime
from bullpen.runtimes.port import CAPABILITIES, Runtime
from bullpen.telemetry.catalogue import Event

P = ParamSpec("P")
T = TypeVar("T")

_numbers = itertools.count(1)


class Pool(Executor):
    """A bounded pool of warm workers, and a drop-in `concurrent.futures.Executor`."""

    def __init__(
        self,
        max_workers: int | None = None,
        thread_name_prefix: str = "",
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        *,
        runtime: str | Runtime = "thread",
        name: str | None = None,
        min_workers: int = 0,
        max_queue: int | None = None,
        when_full: WhenFull = "reject",
        queue_timeout: Seconds | None = None,
        run_timeout: Seconds | None = None,
        max_abandoned: int = 0,
        idle_timeout: Seconds | None = 60.0,
        scheduler: str | Callable[[], SchedulerStrategy] = "rotation",
        wrap: Wrap | None = None,
        log_errors: bool = True,
        observer: Callable[[Event], object] | None = None,
        clock: primitives.Clock | None = None,
    ) -> None:
        options = PoolOptions(
            max_workers=default_max_workers() if max_workers is None else max_workers,
            thread_name_prefix=thread_name_prefix,
            initializer=initializer,
            initargs=initargs,
            runtime=runtime,
            name=f"pool-{next(_numbers)}" if name is None else name,
            min_workers=min_workers,
            max_queue=max_queue,
            when_full=when_full,
            queue_timeout=seconds("queue_timeout", queue_timeout),
            run_timeout=seconds("run_timeout", run_timeout, zero=False),
            max_abandoned=max_abandoned,
            idle_timeout=seconds("idle_timeout", idle_timeout, zero=False),
            scheduler=scheduler,
            wrap=wrap,
            log_errors=log_errors,
            observer=observer,
        )
        opened = open_runtime(runtime, initializer, initargs)
        self._engine = engine = Engine(options, opened, primitives.system_clock if clock is None else clock)
        self._view = PoolView(engine, CallOptions(TimeLimits(None, options.queue_timeout, options.run_timeout)))
        self._dispatcher = engine.dispatcher
        self._offer = engine.dispatcher.offer
        self._plain = max_queue is None and wrap is None and not self._view._options.limits.any
        engine.start()
        weakref.finalize(self, close_in_background, engine).atexit = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> PoolFuture[T]:  # type: ignore[override]
        """Run `fn(*args, **kwargs)` on a worker; the future of its result."""
        if not self._plain or self._dispatcher.draining or not callable(fn):
            return self._view.submit(fn, *args, **kwargs)
        future = PoolFuture(self._engine, fn, args, kwargs)
        if not self._offer(future):
            raise self._engine.not_open()
        return future

    def serve(self, fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Run `fn(*args, **kwargs)` on a worker and forget it: True if it was accepted, False if the pool is saturated."""
        if not self._plain or self._dispatcher.draining or not callable(fn):
            return self._view.serve(fn, *args, **kwargs)
        if not self._offer(Request(self._engine.state_lock(), fn, args, kwargs)):
            raise self._engine.not_open()
        return True

    def do(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._view.do(fn, *args, **kwargs)

    def map(self, fn: Callable[..., T], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1, buffersize: int | None = None) -> MapIterator[T]:  # type: ignore[override]
        return self._view.map(fn, *iterables, timeout=timeout, chunksize=chunksize, buffersize=buffersize)

    def using(self, **options: Any) -> PoolView:
        return self._view.using(**options)

    def cancel(self, future: Future[Any]) -> bool:
        if not isinstance(future, PoolFuture) or future.engine is not self._engine:
            raise InvalidOption("future", future, f"a future of pool {self._engine.name!r}")
        return self._engine.cancel(future)

    def close(self, grace: Seconds | None = None, drain: bool = True) -> None:
        self._engine.close(seconds("grace", grace), drain)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._engine.close(None, not cancel_futures, wait)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._engine.close(None, kind is None)

    def wait_ready(self, timeout: Seconds | None = None) -> bool:
        return self._engine.wait_ready(seconds("timeout", timeout))

    def resize(self, max_workers: int) -> None:
        at_least("max_workers", max_workers, 1)
        self._engine.resize(max_workers)

    def pause(self) -> None:
        self._engine.pause()

    def resume(self) -> None:
        self._engine.resume()

    def stats(self) -> PoolStats:
        return PoolStats.of(self._engine)

    def workers(self) -> list[WorkerInfo]:
        now = self._engine.clock.monotonic()
        return [WorkerInfo.of(worker, now) for worker in self._engine.registry.snapshot()]

    def can(self, capability: str) -> bool:
        if capability not in CAPABILITIES:
            raise InvalidOption("capability", capability, "one of " + ", ".join(map(repr, CAPABILITIES)))
        return capability in self._engine.runtime.capabilities


