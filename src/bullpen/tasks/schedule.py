"""When a task runs again and again: by cron text, in a time zone. Pure: the time is an argument.

Cron text speaks of the wall clock, and wall clocks are turned. Which times of the wall clock are meant, cronsim says;
when those are, is decided here, in the way of Debian's cron:

- A text with a minute and an hour ("30 2 * * *") means times of the day, each once. One that is skipped when the clock
  is turned forward comes at that moment; one that is there twice when it is turned back counts the first time.
- A text whose minute or hour begins with a star ("*/15 * * * *") goes on and on: it means every instant at which the
  wall clock shows such a time. What is skipped does not come, and what is there twice comes twice.
"""

from __future__ import annotations

import functools
import math
from datetime import datetime, timedelta, tzinfo
from typing import Literal
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

Misfire = Literal["run", "skip"]
Overlap = Literal["skip", "queue", "allow"]

MISFIRE_GRACE = 60.0
MAX_CRON = 200

NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}

_EPOCH = datetime(1970, 1, 1)
_DAY = 86_400


class Schedule(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The terms of a schedule, apart from those of its task. One without `cron` goes by the task's interval."""

    key: str = ""  # by which it is known; "" if only by the id of its task
    declared: bool = False  # on its function, in the code, which is where it is changed
    cron: str | None = None
    timezone: str = "UTC"
    misfire: Misfire = "run"  # what becomes of times that pass while nothing can run it
    misfire_grace: float = MISFIRE_GRACE  # seconds that a run may be late before its time has passed
    overlap: Overlap = "skip"  # what becomes of times that come while it runs


def checked_cron(text: str) -> str:
    """Cron text as it is kept. Raises ValueError with what is wrong."""
    text = NICKNAMES.get(text.strip().lower(), " ".join(text.split()))
    if len(text) > MAX_CRON:
        raise ValueError(f"it is longer than {MAX_CRON} characters")
    try:
        first = next(CronSim(text, datetime(2000, 1, 1)), None)
    except CronSimError as error:
        raise ValueError(str(error)) from None
    except (AssertionError, ValueError, IndexError, OverflowError):  # what cronsim has not thought of
        raise ValueError("it cannot be understood") from None
    if first is None:
        raise ValueError("it never fires")
    return text


def checked_zone(name: str) -> str:
    """The name of a time zone that is known here. Raises ValueError if it is not."""
    try:
        return _zone(name).key
    except (KeyError, ValueError, OSError):  # also the name of a folder, or of a file that is none
        raise ValueError(name) from None


def next_fire(schedule: Schedule, after: float) -> float | None:
    """The first time after an instant; None if there is none in the next fifty years, or there is no cron text."""
    if schedule.cron is None:
        return None
    zone = None if schedule.timezone == "UTC" else _zone(schedule.timezone)
    instant = math.floor(after)  # times are whole seconds
    if zone is None:
        wall = next(CronSim(schedule.cron, _wall(instant)), None)
        return None if wall is None else float(_seconds(wall))
    minute, hour = schedule.cron.split()[-5:-3]
    find = _next_going_on if minute.startswith("*") or hour.startswith("*") else _next_of_the_day
    found = find(schedule.cron, zone, instant)
    return None if found is None else float(found)


def latest_fire(schedule: Schedule, after: float, until: float) -> float | None:
    """The last time after one instant, and not after another; None if there is none in between."""
    found, low, high = None, after, until
    while (fire := next_fire(schedule, low)) is not None and fire <= until:
        found = low = fire
        while high - low > 1:  # halved: there is none after `high`
            middle = (low + high) / 2
            fire = next_fire(schedule, middle)
            if fire is None or fire > until:
                high = middle
            else:
                found = low = fire
    return found


def fires(schedule: Schedule, after: float, count: int) -> list[float]:
    """The next times, at most so many."""
    found: list[float] = []
    while len(found) < count and (fire := next_fire(schedule, found[-1] if found else after)) is not None:
        found.append(fire)
    return found


def in_words(schedule: Schedule | None, interval: float | None) -> str:
    """`At 02:30 every day (Europe/Berlin)`, or `60 s after each run`"""
    if schedule is None or schedule.cron is None:
        return f"{interval or 0.0:g} s after each run"
    return f"{CronSim(schedule.cron, _EPOCH).explain()} ({schedule.timezone})"


def _next_of_the_day(cron: str, zone: tzinfo, after: int) -> int | None:
    for wall in CronSim(cron, _wall(after + _offset(zone, after))):
        instant = _instant(zone, wall)
        if instant > after:
            return instant
    return None


def _instant(zone: tzinfo, wall: datetime) -> int:
    """When the wall clock shows that, for the first time; if never, when it is turned past it."""
    first, second = (int(wall.replace(tzinfo=zone, fold=fold).timestamp()) for fold in (0, 1))
    if first <= second:
        return first
    return _change(zone, second, first)


def _next_going_on(cron: str, zone: tzinfo, after: int) -> int | None:
    """Through stretches of time in which the offset stays the same."""
    start = after + 1
    while True:
        offset = _offset(zone, start)
        wall = next(CronSim(cron, _wall(start - 1 + offset)), None)
        if wall is None:
            return None
        instant = _seconds(wall) - offset
        change = _first_change(zone, start, instant)
        if change is None:
            return instant
        start = change


def _first_change(zone: tzinfo, start: int, end: int) -> int | None:
    """The first instant after `start`, and not after `end`, with another offset. None lasts less than a day."""
    offset = _offset(zone, start)
    for day in range(start, end, _DAY):
        until = min(day + _DAY, end)
        if _offset(zone, until) != offset:
            return _change(zone, day, until)
    return None


def _change(zone: tzinfo, before: int, after: int) -> int:
    """The instant at which the offset becomes another one; it is after `before`, and not after `after`."""
    offset = _offset(zone, before)
    while after - before > 1:
        middle = (before + after) // 2
        if _offset(zone, middle) == offset:
            before = middle
        else:
            after = middle
    return after


def _offset(zone: tzinfo, instant: int) -> int:
    offset = datetime.fromtimestamp(instant, zone).utcoffset()
    assert offset is not None
    return round(offset.total_seconds())


def _wall(seconds: int) -> datetime:
    return _EPOCH + timedelta(seconds=seconds)


def _seconds(wall: datetime) -> int:
    return round((wall - _EPOCH).total_seconds())


@functools.lru_cache(maxsize=100)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)
