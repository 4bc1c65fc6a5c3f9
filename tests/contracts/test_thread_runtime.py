"""The contract of runtimes, kept by threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bullpen.pools.runtimes.thread import ThreadRuntime
from bullpen.testing import RuntimeContract


class TestThreadRuntime(RuntimeContract):
    def make_runtime(
        self, initializer: Callable[..., object] | None = None, initargs: tuple[Any, ...] = ()
    ) -> ThreadRuntime:
        return ThreadRuntime(initializer, initargs)
