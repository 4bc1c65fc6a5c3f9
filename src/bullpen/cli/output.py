"""What commands print: tables and states for people, one JSON document for programs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from bullpen.cli.terminal import Line, Span, coloured, plain, width_of
from bullpen.tasks.info import TaskInfo, as_datetime
from bullpen.tasks.task import TaskError, TaskStatus

STATUSES = {
    TaskStatus.PENDING: Span("○ pending"),
    TaskStatus.RUNNING: Span("◐ running", "running"),
    TaskStatus.SUCCESS: Span("✓ success", "good"),
    TaskStatus.FAILED: Span("✕ failed", "bad"),
    TaskStatus.CANCELLED: Span("⊘ cancelled", "quiet"),
}


def show(lines: Iterable[Line]) -> None:
    """Print lines, in colours if it is a terminal that takes them."""
    render = coloured if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else plain
    for line in lines:
        print(render(line).rstrip())


def text(*parts: str, style: str = "") -> Line:
    return tuple(Span(part, style) for part in parts)


def table(header: Sequence[str], rows: Sequence[Sequence[Span]]) -> list[Line]:
    """Columns as wide as what is in them; those of numbers to the right."""
    titled = [[Span(title, "quiet") for title in header], *rows]
    widths = [max(len(row[column].text) for row in titled) for column in range(len(header))]
    numbers = [bool(rows) and all(row[column].text.isdecimal() for row in rows) for column in range(len(header))]
    return [tuple(_aligned(row, widths, numbers)) for row in titled]


def _aligned(row: Sequence[Span], widths: Sequence[int], numbers: Sequence[bool]) -> Iterable[Span]:
    for column, span in enumerate(row):
        gap = " " * (widths[column] - len(span.text))
        apart = "  " if column else ""
        yield Span(apart + (gap if numbers[column] else ""))
        yield span
        yield Span("" if numbers[column] else gap)


def facts(pairs: Iterable[tuple[str, str | Span]]) -> list[Line]:
    """Names and values, the values below each other."""
    known = [(name, value if isinstance(value, Span) else Span(value)) for name, value in pairs if value]
    width = max((len(name) for name, _ in known), default=0)
    return [(Span(f"{name:<{width}}  ", "quiet"), value) for name, value in known]


def indented(lines: Iterable[Line], by: int = 2) -> list[Line]:
    return [(Span(" " * by), *line) if width_of(line) else line for line in lines]


def state(task: TaskInfo, now: datetime) -> Span:
    """Its status, and of one that waits, for what."""
    if task.status is TaskStatus.PENDING:
        if task.failures:
            return Span("↻ retrying", "late")
        if task.eta > now:
            return Span("◷ scheduled", "accent")
    if task.status is TaskStatus.RUNNING and task.cancel_requested:
        return Span("◐ stopping", "late")
    return STATUSES[task.status]


def agrees(question: str) -> bool:
    """Ask whoever is at the terminal."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def counted(many: int, one: str, more: str) -> str:
    """`1 task waits`, `3 tasks wait`."""
    return f"{many} {one if many == 1 else more}"


def duration(seconds: float) -> str:
    """In one unit, as people say it."""
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
    print(json.dumps(as_json(value), ensure_ascii=False, indent=None if isinstance(value, str) else 2))


def as_json(value: object) -> Any:
    """Structs as objects, instants in ISO 8601, durations in seconds."""
    match value:
        case TaskError():
            return {**_fields(value), "at": as_json(as_datetime(value.at))}
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
