"""Which event loop a worker that owns one runs on. uvloop spends less time on each message of a server."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from collections.abc import Callable
from typing import Literal, get_args

from bullpen.errors import InvalidOption, MissingExtra

LoopKind = Literal["auto", "asyncio", "uvloop"]


def new_runner(kind: LoopKind = "auto") -> asyncio.Runner:
    """What runs a worker as `asyncio.run` would, on the loop that is asked for; by default on uvloop, where it is
    installed. Raises MissingExtra if uvloop is asked for and is not.
    """
    return asyncio.Runner(loop_factory=_factory(kind))


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
