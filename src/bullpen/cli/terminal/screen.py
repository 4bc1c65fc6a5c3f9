"""Lines for a terminal, and a screen that draws them again and again in the same place.

A line is a tuple of spans, each a text with the name of a style. So a line can be measured and cut as text, and colours
are added last, or never. Only `Screen` touches the terminal.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, NamedTuple, TextIO

from bullpen.escaping import escape

try:
    import termios
except ImportError:  # pragma: no cover - Windows, where keys are echoed
    termios = None  # type: ignore[assignment]

# The sixteen colours that every terminal maps to its own theme.
STYLES = {
    "": "",
    "strong": "1",
    "quiet": "90",
    "accent": "36",
    "title": "1;36",
    "running": "34",
    "good": "32",
    "late": "33",
    "bad": "31",
}

HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
CLEAR_SCREEN, CLEAR_BELOW, CLEAR_LINE_END = "\x1b[2J\x1b[H", "\x1b[J", "\x1b[K"

LEVELS = "▁▂▃▄▅▆▇█"


class _Fields(NamedTuple):
    text: str
    style: str = ""


class StyledText(_Fields):
    """A text on one line, with the name of a style. Control characters are escaped here, so that no line has any."""

    __slots__ = ()

    def __new__(cls, text: str, style: str = "") -> StyledText:
        return super().__new__(cls, escape(text), style)


Line = tuple[StyledText, ...]


def width_of(line: Line) -> int:
    return sum(len(span.text) for span in line)


def fit(line: Line, width: int) -> Line:
    """`line` in at most `width` columns; a mark shows that it was cut off."""
    if width_of(line) <= width:
        return line
    kept: list[StyledText] = []
    room = max(width - 1, 0)
    for span in line:
        text = span.text[:room]
        if text:
            kept.append(StyledText(text, span.style))
        room -= len(text)
    return (*kept, StyledText("…"[:width], "quiet"))


def pad(line: Line, width: int) -> Line:
    """`line` in exactly `width` columns."""
    line = fit(line, width)
    return (*line, StyledText(" " * (width - width_of(line))))


def plain(line: Line) -> str:
    return "".join(span.text for span in line).rstrip()


def coloured(line: Line) -> str:
    codes = ((STYLES[span.style], span.text) for span in line)
    return "".join(f"\x1b[{code}m{text}\x1b[0m" if code else text for code, text in codes)


def bar(value: int, limit: int, width: int, style: str) -> Line:
    """A bar that shows `value` of `limit`; a value above zero is always visible."""
    share = min(max(value / limit, 0.0), 1.0) if limit else float(value > 0)
    filled = min(max(round(share * width), int(value > 0)), width)
    return StyledText("━" * filled, style), StyledText("─" * (width - filled), "quiet")


def sparkline(values: Sequence[float]) -> str:
    """One column for each value; the highest value fills its column."""
    top = max(values, default=0.0)
    if top <= 0:
        return LEVELS[0] * len(values)
    return "".join(LEVELS[min(int(max(value, 0.0) / top * len(LEVELS)), len(LEVELS) - 1)] for value in values)


class Screen:
    """Draws frames in one place of the terminal. The context manager restores the terminal at its end.

    Each frame is one write over the last one. The screen is not cleared first, so it does not flicker.
    """

    def __init__(self, out: TextIO, *, colours: bool) -> None:
        self._out = out
        self._render = coloured if colours else plain
        self._height = 0  # of the current frame
        self._size: os.terminal_size | None = None
        self._modes: list[Any] | None = None

    def __enter__(self) -> Screen:
        self._modes = _without_echo()
        self._out.write(HIDE_CURSOR)
        self._out.flush()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._modes is not None:
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, self._modes)
        self._out.write(SHOW_CURSOR)
        self._out.flush()

    def size(self) -> os.terminal_size:
        return shutil.get_terminal_size()

    def draw(self, lines: Iterable[Line]) -> None:
        """Show `lines` instead of the last frame. The last column stays free: some terminals wrap a full line."""
        size = self.size()
        rows = [self._render(fit(line, size.columns - 1)) for line in lines][: size.lines - 1]
        if size != self._size and self._size is not None:
            home = CLEAR_SCREEN  # the terminal has wrapped the old frame anew, so its place is unknown
        else:
            home = f"\r\x1b[{self._height}A" if self._height else "\r"
        self._size = size
        self._height = len(rows)
        self._out.write(home + "".join(f"{row}{CLEAR_LINE_END}\n" for row in rows) + CLEAR_BELOW)
        self._out.flush()

    def leave(self, lines: Iterable[Line]) -> None:
        """Show `lines` below the frame, which stays."""
        for line in lines:
            self._out.write(self._render(line) + "\n")
        self._height = 0
        self._out.flush()


def is_live(out: TextIO, term: str) -> bool:
    """Whether `out` is a terminal that can move its cursor."""
    return out.isatty() and term not in ("dumb", "")


def _without_echo() -> list[Any] | None:
    """Keys pressed meanwhile would push the frame about, so they are not echoed. What to put back, if anything."""
    if termios is None:  # pragma: no cover - Windows
        return None
    try:
        stdin = sys.stdin.fileno()
        if os.tcgetpgrp(stdin) != os.getpgrp():  # a background process that changes it would be stopped
            return None
        modes: list[Any] = termios.tcgetattr(stdin)
        silent = modes.copy()
        silent[3] &= ~termios.ECHO
        termios.tcsetattr(stdin, termios.TCSADRAIN, silent)
    except (OSError, ValueError, AttributeError, termios.error):  # no stdin, or not a terminal
        return None
    return modes
