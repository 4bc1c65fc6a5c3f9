"""The contract of runtimes, kept by processes, for each way of starting them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from bullpen.pools.runtimes.process.runtime import ProcessRuntime
from bullpen.testing import RuntimeContract


class TestForkserver(RuntimeContract):
    def make_runtime(
        self, initializer: Callable[..., object] | None = None, initargs: Iterable[Any] = ()
    ) -> ProcessRuntime:
        return ProcessRuntime(initializer, initargs)


class TestSpawn(RuntimeContract):
    def make_runtime(
        self, initializer: Callable[..., object] | None = None, initargs: Iterable[Any] = ()
    ) -> ProcessRuntime:
        return ProcessRuntime(initializer, initargs, start="spawn")
