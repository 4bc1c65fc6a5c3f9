"""Find a runtime by its name. Only this module knows all runtimes; it imports one when it is needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bullpen.errors import InvalidOption
from bullpen.pools.runtimes.port import Runtime, TakesInitializer, by_name_only

NAMES = ("thread", "process")


def open_runtime(
    runtime: str | Runtime, initializer: Callable[..., object] | None, initargs: tuple[Any, ...]
) -> Runtime:
    """The runtime with this name, or `runtime` itself if it is one; with the pool's initializer, if there is one."""
    if not isinstance(runtime, str):
        if initializer is None:
            return runtime
        if by_name_only(runtime):
            raise InvalidOption(
                "initializer", initializer, f"None: workers of the runtime {runtime.name!r} run no Python"
            )
        if not isinstance(runtime, TakesInitializer):
            allowed = f"None with a runtime object: give the initializer to {type(runtime).__name__}"
            raise InvalidOption("initializer", initializer, allowed)
        return runtime.with_initializer(initializer, initargs)
    if runtime == "thread":
        from bullpen.pools.runtimes.thread import ThreadRuntime

        return ThreadRuntime(initializer, initargs)
    if runtime == "process":
        from bullpen.pools.runtimes.process.runtime import ProcessRuntime

        return ProcessRuntime(initializer, initargs)
    raise InvalidOption("runtime", runtime, f"one of {', '.join(map(repr, NAMES))}, or a Runtime")


def open_event_loop() -> Runtime:
    """The runtime of coroutines. It uses the loop on which its first worker starts."""
    from bullpen.pools.runtimes.event_loop import EventLoopRuntime

    return EventLoopRuntime()
