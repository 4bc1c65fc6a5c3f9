"""Which event loop a worker that owns one runs on, and how that ends. uvloop spends less time on each message of a
server.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Literal, get_args

from bullpen.errors import InvalidOption, MissingExtra

log = logging.getLogger("bullpen.worker")

LoopKind = Literal["auto", "asyncio", "uvloop"]

LAST_WORDS = 0.5  # seconds, for coroutines that were told to end with their loop


def new_runner(kind: LoopKind = "auto") -> AbstractContextManager[asyncio.Runner]:
    """What runs a worker as `asyncio.run` would, on the loop that is asked for; by default on uvloop, where it is
    installed. Raises MissingExtra if uvloop is asked for and is not.

    But at its end it waits for nobody who does not want to end: `asyncio.run` would wait for ever, and so would whoever
    stops the worker, long after it has given that coroutine up.
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
    """Cancel what still runs on this loop. Whatever does not end soon is forgotten, so that nobody waits for it."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if not others:
        return
    _, left = await asyncio.wait(others, timeout=LAST_WORDS)
    for task in left:
        log.warning("a coroutine does not end, and is left behind: %s", getattr(task.get_coro(), "__qualname__", task))
        asyncio.tasks._unregister_task(task)  # noqa: SLF001 — made for other kinds of tasks, and there is no other way
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 — it has just been said


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
