"""From a runtime's name to the runtime. The only place that knows them all; each is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bullpen.errors import InvalidOption
from bullpen.runtimes.port import Runtime, by_name_only

NAMES = ("thread", "process")


def open_runtime(
    runtime: str | Runtime, initializer: Callable[..., object] | None, initargs: tuple[Any, ...]
) -> Runtime:
    """The runtime called `runtime`, or `runtime` itself if it is one, with the pool's initializer if that has one."""
    if not isinstance(runtime, str):
        if initializer is None:
            return runtime
        with_initializer = getattr(runtime, "with_initializer", None)
        if by_name_only(runtime):
            raise InvalidOption(
                "initializer", initializer, f"None: workers of the runtime {runtime.name!r} know no Python"
            )
        if with_initializer is None:
            allowed = f"None, as the runtime is an object: make that {type(runtime).__name__} with it"
            raise InvalidOption("initializer", initializer, allowed)
        return with_initializer(initializer, initargs)  # type: ignore[no-any-return]
    if runtime == "thread":
        from bullpen.runtimes.thread import ThreadRuntime

        return ThreadRuntime(initializer, initargs)
    if runtime == "process":
        from bullpen.runtimes.process.runtime import ProcessRuntime

        return ProcessRuntime(initializer, initargs)
    raise InvalidOption("runtime", runtime, f"one of {', '.join(map(repr, NAMES))}, or a Runtime")


def open_event_loop() -> Runtime:
    """The runtime of coroutines, on the loop on which its first worker starts."""
    from bullpen.runtimes.event_loop import EventLoopRuntime

    return EventLoopRuntime()
