"""`WorkerPool`: a worker for programs that are not async."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from types import EllipsisType, TracebackType
from typing import Any, Concatenate, ParamSpec

from bullpen import primitives
from bullpen.pools.checks import Seconds, seconds
from bullpen.tasks.worker.loops import LoopKind, new_runner
from bullpen.tasks.worker.options import WorkerOptions
from bullpen.tasks.worker.worker_pool import AsyncWorkerPool, WorkerState

P = ParamSpec("P")


def _with_options_of(
    other: Callable[Concatenate[Any, P], None],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Give a method the parameters of another one, also for type checkers and `inspect`."""

    def decorate(method: Callable[..., None]) -> Callable[Concatenate[Any, P], None]:
        method.__wrapped__ = other  # type: ignore[attr-defined]
        return method

    return decorate


class WorkerPool:
    """An `AsyncWorkerPool`, with the same options, on an event loop and a thread of its own.

        with WorkerPool(queue, concurrency=8):
            ...

        WorkerPool(queue).run()     # until SIGTERM or SIGINT

    The loop is uvloop's if uvloop is installed. `start` and `run` take `loop="asyncio"`, which does not use it, or
    `loop="uvloop"`, which requires it. Any thread may call any method. At interpreter exit, a worker that was not
    stopped releases its tasks.
    """

    @_with_options_of(AsyncWorkerPool.__init__)
    def __init__(self, *args: Any, **options: Any) -> None:
        for wrong in options.keys() - {"queue", *WorkerOptions.__slots__}:
            raise WorkerOptions.unknown_name("WorkerPool()", wrong)
        self._pool = AsyncWorkerPool(*args, **options)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, loop: LoopKind = "auto") -> None:
        """Start the worker. Returns when it claims tasks. Raises the errors of the store."""
        with self._lock:
            started: Future[None] = Future()
            runner = new_runner(loop)
            thread = primitives.start_thread(lambda: self._serve(runner, started), f"{self._pool.name}-loop")
            try:
                started.result()
            except BaseException:
                thread.join()
                raise
            self._thread = thread
        atexit.register(self._stop_at_exit)

    def _serve(self, new: AbstractContextManager[asyncio.Runner], started: Future[None]) -> None:
        with new as runner:
            runner.run(self._main(started))

    async def _main(self, started: Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            await self._pool.start()
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result(None)
        await self._pool.wait_stopped()

    def stop(self, grace: Seconds | EllipsisType | None = ...) -> None:
        """As `AsyncWorkerPool.stop`. Returns when every task is settled. Safe to call twice, and before `start`."""
        if not isinstance(grace, EllipsisType):
            seconds("grace", grace)
        thread, loop = self._thread, self._loop
        if thread is None or loop is None or not thread.is_alive():
            return
        try:
            loop.call_soon_threadsafe(self._pool.begin_stop, grace)
        except RuntimeError:  # the loop is closed: it has just stopped
            pass
        thread.join()
        atexit.unregister(self._stop_at_exit)

    def _stop_at_exit(self) -> None:
        self.stop(grace=0)

    def run(self, loop: LoopKind = "auto") -> None:
        """Work on this thread until SIGTERM or SIGINT, as `AsyncWorkerPool.run`."""
        with new_runner(loop) as runner:
            runner.run(self._pool.run())

    def __enter__(self) -> WorkerPool:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def id(self) -> str:
        return self._pool.id

    @property
    def name(self) -> str:
        return self._pool.name

    @property
    def state(self) -> WorkerState:
        return self._pool.state

    @property
    def running(self) -> int:
        return self._pool.running

    @property
    def abandoned(self) -> int:
        return self._pool.abandoned

    @property
    def ready(self) -> bool:
        return self._pool.ready

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} {self.state}, {self.running} running>"
