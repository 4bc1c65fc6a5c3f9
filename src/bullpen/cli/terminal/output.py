"""The output of commands: tables and states for people, one JSON document for programs."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from bullpen.cli.terminal.screen import Line, StyledText, coloured, fit, plain, width_of
from bullpen.escaping import escape, escape_json
from bullpen.tasks.model.info import TaskInfo
from bullpen.tasks.model.task import TaskStatus

APART = 2  # columns of a terminal between two cells
BELOW = 4  # columns before the second line of a row
LEAST_NAME, LEAST_CELL = 16, 20  # columns of a cell that was shortened: of the first column, of another
LEAST_ROOM = 40  # columns: a narrower terminal wraps the lines

STATUSES = {
    TaskStatus.PENDING: StyledText("○ pending"),
    TaskStatus.RUNNING: StyledText("◐ running", "running"),
    TaskStatus.SUCCESS: StyledText("✓ success", "good"),
    TaskStatus.FAILED: StyledText("✕ failed", "bad"),
    TaskStatus.CANCELLED: StyledText("⊘ cancelled", "quiet"),
}


def show(lines: Iterable[Line]) -> None:
    """Print lines, in colours if stdout is a terminal that supports them."""
    render = coloured if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else plain
    for line in lines:
        print(render(line).rstrip())


def text(*parts: str, style: str = "") -> Line:
    return tuple(StyledText(part, style) for part in parts)


def room() -> int | None:
    """Columns of the terminal, or as many as $COLUMNS says; None if the output goes to a file or a program."""
    try:
        return max(int(os.environ["COLUMNS"]), LEAST_ROOM)
    except (KeyError, ValueError):
        return max(shutil.get_terminal_size().columns, LEAST_ROOM) if sys.stdout.isatty() else None


def wrapped(words: str, by: int) -> list[str]:
    """The lines of a text in the terminal, which the caller indents; one line if the output is no terminal."""
    width = room()
    return [words] if width is None else textwrap.wrap(words, width - by, break_on_hyphens=False) or [""]


def table(
    header: Sequence[str], rows: Sequence[Sequence[StyledText]], *, keep: Sequence[str] = (), indent: int = 0
) -> list[Line]:
    """Columns as wide as their cells; numbers are aligned to the right.

    In a terminal that is too narrow, long cells lose their middle, and the last columns move to a second line of each
    row. Cells of the columns `keep`, which are ids, stay whole. `indent`: how far the caller will indent the lines.
    """
    return [line for block in table_blocks(header, rows, keep=keep, indent=indent) for line in block]


def table_blocks(
    header: Sequence[str], rows: Sequence[Sequence[StyledText]], *, keep: Sequence[str] = (), indent: int = 0
) -> list[list[Line]]:
    """A table: the lines of its header, and those of each row."""
    width = room()
    numbers = [bool(rows) and all(row[column].text.isdecimal() for row in rows) for column in range(len(header))]
    kept = [number or title in keep for number, title in zip(numbers, header, strict=True)]
    titled = [[StyledText(title, "quiet") for title in header], *rows]
    widths = [max(len(row[column].text) for row in titled) for column in range(len(header))]
    if width is None:
        return [[tuple(_aligned(row, widths, numbers))] for row in titled]
    beside, widths = _fitting(widths, kept, width - indent)
    return [
        [tuple(_aligned(row[:beside], widths, numbers)), *_below(row[beside:], kept[beside:], width - indent)]
        for row in titled
    ]


def _fitting(widths: Sequence[int], kept: Sequence[bool], width: int) -> tuple[int, list[int]]:
    """How many columns stand beside each other, and their widths."""
    least = [
        wide if keep else min(wide, LEAST_CELL if at else LEAST_NAME)
        for at, (wide, keep) in enumerate(zip(widths, kept, strict=True))
    ]
    beside = len(widths)
    while beside > 1 and sum(least[:beside]) + APART * (beside - 1) > width:
        beside -= 1
    found = list(widths)
    while (over := sum(found[:beside]) + APART * (beside - 1) - width) > 0:
        wide = [at for at in range(beside) if found[at] > least[at]]
        if not wide:  # a name alone that is wider than the terminal
            return beside, [width, *found[1:]]
        widest = max(wide, key=lambda at: found[at])
        found[widest] = max(found[widest] - over, least[widest], found[widest] * 3 // 4)
    return beside, found


def _below(cells: Sequence[StyledText], kept: Sequence[bool], width: int) -> list[Line]:
    """The cells that do not fit beside the others, in lines of their own."""
    lines: list[Line] = []
    for cell, keep in zip(cells, kept, strict=True):
        shown = cell if keep else StyledText(shortened(cell.text, width - BELOW), cell.style)
        if not shown.text:
            continue
        if lines and width_of(lines[-1]) + APART + len(shown.text) <= width:
            lines[-1] = (*lines[-1], StyledText(" " * APART), shown)
        else:
            lines.append((StyledText(" " * BELOW), shown))
    return lines


def shortened(text: str, width: int) -> str:
    """`text` in at most `width` columns, without its middle: both ends of a name tell more."""
    if len(text) <= width:
        return text
    begin = (width - 1) // 2
    return f"{text[:begin]}…{text[len(text) - (width - 1 - begin) :]}" if width > 1 else "…"[:width]


def _aligned(row: Sequence[StyledText], widths: Sequence[int], numbers: Sequence[bool]) -> Iterable[StyledText]:
    for column, span in enumerate(row):
        shown = StyledText(shortened(span.text, widths[column]), span.style)
        gap = " " * (widths[column] - len(shown.text))
        apart = " " * APART if column else ""
        yield StyledText(apart + (gap if numbers[column] else ""))
        yield shown
        yield StyledText("" if numbers[column] else gap)


def facts(pairs: Iterable[tuple[str, str | StyledText]]) -> list[Line]:
    """Names and values, with the values in one column."""
    known = [(name, value if isinstance(value, StyledText) else StyledText(value)) for name, value in pairs if value]
    width = max((len(name) for name, _ in known), default=0)
    return [(StyledText(f"{name:<{width}}  ", "quiet"), value) for name, value in known]


def fitted(lines: Iterable[Line], indent: int = 0) -> list[Line]:
    """Lines that are cut off where the terminal ends."""
    width = room()
    return list(lines) if width is None else [fit(line, width - indent) for line in lines]


def indented(lines: Iterable[Line], by: int = 2) -> list[Line]:
    return [(StyledText(" " * by), *line) if width_of(line) else line for line in lines]


def state(task: TaskInfo, now: datetime) -> StyledText:
    """Its status; of a pending task, whether it waits for an event, for a retry or for its time."""
    if task.status is TaskStatus.PENDING:
        if task.awaits is not None and task.eta > now:
            return StyledText("◷ waiting", "accent")
        if task.failures:
            return StyledText("↻ retrying", "late")
        if task.eta > now:
            return StyledText("◷ scheduled", "accent")
    if task.status is TaskStatus.RUNNING and task.cancel_requested:
        return StyledText("◐ stopping", "late")
    return STATUSES[task.status]


def agrees(question: str) -> bool:
    """Ask the user at the terminal."""
    print(f"{escape(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def counted(many: int, one: str, more: str) -> str:
    """`1 task waits`, `3 tasks wait`."""
    return f"{many} {one if many == 1 else more}"


def duration(seconds: float) -> str:
    """A duration in one unit, such as `250 ms`, `3.5 s` or `5 min`."""
    seconds = abs(seconds)
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    for unit, size in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def when(instant: datetime, now: datetime) -> str:
    """`5 min ago`, `in 3 s`."""
    apart = (instant - now).total_seconds()
    return f"in {duration(apart)}" if apart > 0 else f"{duration(apart)} ago"


def show_json(value: object) -> None:
    document = json.dumps(as_json(value), ensure_ascii=False, indent=None if isinstance(value, str) else 2)
    print(escape_json(document))


def show_hints(sentences: Iterable[str]) -> None:
    """Print sentences beside JSON: to stderr, so that programs read nothing but JSON."""
    for sentence in sentences:
        print(escape(sentence), file=sys.stderr)


def as_json(value: object) -> Any:
    """Structs as objects, instants in ISO 8601, durations in seconds."""
    match value:
        case msgspec.Struct():
            return _fields(value)
        case datetime():
            return value.isoformat(timespec="milliseconds")
        case timedelta():
            return value.total_seconds()
        case TaskStatus():
            return str(value)
        case Mapping():
            return {str(key): as_json(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [as_json(item) for item in value]
    return value


def _fields(struct: msgspec.Struct) -> dict[str, Any]:
    return {name: as_json(getattr(struct, name)) for name in struct.__struct_fields__}
