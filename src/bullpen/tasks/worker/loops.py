"""Creates and ends the event loop of a worker that owns one. uvloop needs less time for each message of a server."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Literal, get_args

from bullpen.errors import InvalidOption, MissingExtra
from bullpen.telemetry import SafeLogger

log = SafeLogger("bullpen.worker")

LoopKind = Literal["auto", "asyncio", "uvloop"]

LAST_WORDS = 0.5  # seconds for cancelled coroutines to end


def new_runner(kind: LoopKind = "auto") -> AbstractContextManager[asyncio.Runner]:
    """A runner on this kind of loop; "auto" is uvloop if it is installed. Raises MissingExtra if uvloop is missing.

    Unlike `asyncio.run`, it does not wait forever for coroutines that ignore their cancellation. The worker has
    abandoned such a coroutine, and the caller of `stop` must not wait for it.
    """
    return _opened(_factory(kind))


@contextmanager
def _opened(factory: Callable[[], asyncio.AbstractEventLoop] | None) -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=factory) as runner:
        try:
            yield runner
        finally:
            runner.run(_end_all())


async def _end_all() -> None:
    """Cancel every other asyncio task of this loop. Abandon those that do not end in time."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if not others:
        return
    _, left = await asyncio.wait(others, timeout=LAST_WORDS)
    for task in left:
        log.warning(
            "abandoned a coroutine that ignores its cancellation: %s", getattr(task.get_coro(), "__qualname__", task)
        )
        asyncio.tasks._unregister_task(task)  # noqa: SLF001 — there is no public way
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 — it is logged above


def _factory(kind: LoopKind) -> Callable[[], asyncio.AbstractEventLoop] | None:
    if kind not in get_args(LoopKind):
        raise InvalidOption("loop", kind, f"one of {', '.join(get_args(LoopKind))}")
    is_there = importlib.util.find_spec("uvloop") is not None
    if kind == "uvloop" and not is_there:
        raise MissingExtra("a worker on uvloop", "uvloop")
    if kind == "asyncio" or not is_there:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    return factory
