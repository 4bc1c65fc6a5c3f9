"""The progress of a long command: a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

import os
import shutil
import sys
import time
from types import TracebackType

from bullpen.cli.terminal.output import duration
from bullpen.cli.terminal.screen import Line, Screen, StyledText, bar, is_live

WIDTH = 30
EVERY = 0.1  # seconds between two frames


class ProgressBar:
    """Draws on stderr, so that stdout has only the outcome. The context manager clears the bar at its end."""

    def __init__(self, what: str, total: int, *, quiet: bool = False) -> None:
        self._what = what
        self.total = total
        self.done = 0
        self._began = time.monotonic()
        self._drawn = 0.0
        live = not quiet and is_live(sys.stderr, os.environ.get("TERM", ""))
        self._screen = Screen(sys.stderr, colours=not os.environ.get("NO_COLOR")) if live else None

    def __enter__(self) -> ProgressBar:
        if self._screen is not None:
            self._screen.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._screen is not None:
            self._screen.draw([])
            self._screen.__exit__(kind, error, traceback)

    def advance(self, by: int) -> None:
        self.done += by
        now = time.monotonic()
        if self._screen is not None and now - self._drawn >= EVERY:
            self._drawn = now
            self._screen.draw([self.line(now - self._began)])

    def note(self, words: str) -> None:
        """Show below the bar what the command waits for."""
        if self._screen is not None:
            self._screen.draw([self.line(time.monotonic() - self._began), (StyledText(words, "quiet"),)])

    def line(self, passed: float) -> Line:
        """`moved ━━━───  1500 of 4000, 3 s left`"""
        self.total = max(self.total, self.done)
        rate = self.done / passed if passed > 0 else 0.0
        left = f", {duration((self.total - self.done) / rate)} left" if rate and self.done < self.total else ""
        counted = f"  {self.done} of {self.total}{left}"
        room = shutil.get_terminal_size().columns - 2 - len(self._what) - len(counted)  # the last column stays free
        return (
            StyledText(f"{self._what} "),
            *bar(self.done, self.total, max(min(WIDTH, room), 1), "accent"),
            StyledText(counted, "quiet"),
        )
