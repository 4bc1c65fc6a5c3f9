from __future__ import annotations

import io
import os

import pytest

from bullpen.cli.terminal.progress import ProgressBar
from bullpen.cli.terminal.screen import (
    Line,
    Screen,
    StyledText,
    bar,
    coloured,
    fit,
    is_live,
    pad,
    plain,
    sparkline,
    width_of,
)

LINE: Line = (StyledText("abc", "bad"), StyledText("def"))


def test_a_line_that_fits_stays_as_it_is() -> None:
    assert fit(LINE, 6) == LINE


@pytest.mark.parametrize(("width", "text"), [(5, "abcd…"), (4, "abc…"), (3, "ab…"), (1, "…"), (0, "")])
def test_a_line_that_is_too_long_is_cut_and_marked(width: int, text: str) -> None:
    assert plain(fit(LINE, width)) == text


@pytest.mark.parametrize("width", [2, 6, 9])
def test_a_padded_line_has_exactly_its_width(width: int) -> None:
    assert width_of(pad(LINE, width)) == width


def test_colours_are_added_around_spans_and_ended() -> None:
    assert coloured(LINE) == "\x1b[31mabc\x1b[0mdef"


@pytest.mark.parametrize(("value", "shown"), [(0, "────"), (1, "━───"), (50, "━━──"), (100, "━━━━"), (140, "━━━━")])
def test_a_bar_shows_the_share_and_never_hides_a_little(value: int, shown: str) -> None:
    assert plain(bar(value, 100, 4, "accent")) == shown


def test_a_bar_without_a_limit_does_not_divide_by_it() -> None:
    assert plain(bar(0, 0, 3, "accent")) == "───"
    assert plain(bar(1, 0, 3, "accent")) == "━━━"


def test_a_sparkline_reaches_from_lowest_to_highest() -> None:
    assert sparkline([0, 25, 50, 75, 100]) == "▁▃▅▇█"
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([]) == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_only_a_terminal_that_can_move_its_cursor_is_live() -> None:
    assert is_live(Terminal(), "xterm")
    assert not is_live(Terminal(), "dumb")
    assert not is_live(Terminal(), "")
    assert not is_live(io.StringIO(), "xterm")


class SizedScreen(Screen):
    columns, lines = 80, 24

    def size(self) -> os.terminal_size:
        return os.terminal_size((self.columns, self.lines))


def written(out: io.StringIO) -> str:
    text = out.getvalue()
    out.seek(0)
    out.truncate()
    return text


def test_the_second_frame_is_drawn_over_the_first() -> None:
    out = io.StringIO()
    screen = SizedScreen(out, colours=False)
    screen.draw([LINE, LINE])
    assert written(out) == "\rabcdef\x1b[K\nabcdef\x1b[K\n\x1b[J"
    screen.draw([LINE])
    assert written(out) == "\r\x1b[2Aabcdef\x1b[K\n\x1b[J"
    screen.draw([LINE])
    assert written(out).startswith("\r\x1b[1A")


def test_a_frame_never_scrolls_or_wraps() -> None:
    out = io.StringIO()
    screen = SizedScreen(out, colours=False)
    screen.columns, screen.lines = 5, 4
    screen.draw([LINE] * 10)
    assert written(out) == "\r" + "abc…\x1b[K\n" * 3 + "\x1b[J"


def test_after_a_change_of_size_the_screen_is_cleared_once() -> None:
    out = io.StringIO()
    screen = SizedScreen(out, colours=False)
    screen.draw([LINE])
    screen.columns = 100
    written(out)
    screen.draw([LINE])
    assert written(out).startswith("\x1b[2J\x1b[H")
    screen.draw([LINE])
    assert written(out).startswith("\r\x1b[1A")


def test_the_cursor_comes_back_whatever_happens() -> None:
    out = io.StringIO()
    screen = SizedScreen(out, colours=True)
    with screen:
        assert written(out) == "\x1b[?25l"
    assert written(out).endswith("\x1b[?25h")
    with pytest.raises(ZeroDivisionError), screen:
        raise ZeroDivisionError
    assert written(out).endswith("\x1b[?25h")


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_bar_leaves_room_for_the_time_that_is_left(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    progress = ProgressBar("cancelled or asked to stop", 200_000, quiet=True)
    progress.done = 1000
    line = progress.line(passed=0.1)
    assert plain(line).endswith("─  1000 of 200000, 20 s left")
    assert width_of(line) <= columns - 1
