"""Bullpen as its users write it: a queue in a file, and a no-op that returns its argument."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bullpen import TaskQueue

SETTINGS = "sqlite:///, WAL, synchronous=FULL (all defaults)"
SETTINGS_NORMAL = "sqlite:///…?synchronous=normal, WAL: a power cut may take the latest tasks"


class Ours:
    """A queue with one function; `seen` is called with each argument, if given."""

    def __init__(self, url: str, *, is_async: bool = True, seen: Callable[[int], object] | None = None) -> None:
        self.queue = TaskQueue(url)
        if is_async:

            async def noop(x: int) -> int:
                if seen is not None:
                    seen(x)
                return x
        else:

            def noop(x: int) -> int:  # type: ignore[misc]
                if seen is not None:
                    seen(x)
                return x

        self.noop: Any = self.queue.task(name="noop")(noop)

    def __enter__(self) -> Ours:
        return self

    def __exit__(self, *_: object) -> None:
        self.queue.close()


def in_file(folder: Path) -> str:
    return f"sqlite:///{folder / 'jobs.db'}"


def in_file_normal(folder: Path) -> str:
    return f"{in_file(folder)}?synchronous=normal"
