"""Interrupts a thread at each point of some files, one point after the other."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Any


class Interrupt:
    """Raises `KeyboardInterrupt` on this thread at the `count`-th point of `files` at which a signal could.

    Such a point is where a Python function begins, and where a C function has returned.
    """

    def __init__(self, count: int, files: tuple[str, ...]) -> None:
        self.left = count
        self.where = ""
        self._files = files

    def __enter__(self) -> Interrupt:
        sys.setprofile(self._look)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _look(self, frame: FrameType, event: str, called: Any) -> None:
        if frame.f_code.co_name == "<genexpr>":  # one that is being closed ignores errors
            return
        if event in ("call", "c_return") and frame.f_code.co_filename in self._files and not self.where:
            self.left -= 1
            if self.left == 0:
                self.where = f"{frame.f_code.co_qualname}:{frame.f_lineno} {getattr(called, '__name__', '')}"
                sys.setprofile(None)
                if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                    raise KeyboardInterrupt
                signal.raise_signal(signal.SIGINT)
