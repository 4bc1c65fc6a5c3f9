"""The times of a schedule: cron text in a time zone. Pure: the time is an argument.

Cron text names times of the wall clock, and daylight saving shifts the wall clock. cronsim yields the times of the wall
clock; this module turns them into instants, as Debian's cron does:

- A text with a minute and an hour ("30 2 * * *") means times of the day, each once. A time that is skipped when the
  clock goes forward runs at the shift; a time that occurs twice when it goes back runs the first time.
- A text whose minute or hour begins with a star ("*/15 * * * *") means every instant at which the wall clock shows such
  a time. A skipped time does not run, and a time that occurs twice runs twice.
"""

from __future__ import annotations

import functools
import math
from datetime import datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from cronsim import CronSim

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
    """The terms of a schedule, apart from those of its task. Without `cron`, the interval of the task counts."""

    key: str = ""  # its name; "": the id of its task names it
    declared: bool = False  # on its function, in the code; it can only be changed there
    cron: str | None = None
    timezone: str = "UTC"
    misfire: Misfire = "run"  # what happens to times that pass while no worker can run it
    misfire_grace: Annotated[float, msgspec.Meta(ge=0.0, le=1e11)] = MISFIRE_GRACE  # seconds that a run may start late
    overlap: Overlap = "skip"  # what happens to times that come while it runs

    def __post_init__(self) -> None:
        """Raises ValueError if the times cannot be computed: a stored schedule may be damaged."""
        if self.cron is not None:
            _check_times(self.cron, self.timezone)


@functools.lru_cache(maxsize=1000)
def _check_times(cron: str, timezone: str) -> None:
    if checked_cron(cron) != cron:
        raise ValueError(f"{cron!r} is no cron text in its stored form")
    if timezone != "UTC":
        checked_zone(timezone)


def checked_cron(text: str) -> str:
    """Cron text in its stored form. Raises ValueError with the reason."""
    text = NICKNAMES.get(text.strip().lower(), " ".join(text.split()))
    if len(text) > MAX_CRON:
        raise ValueError(f"it is longer than {MAX_CRON} characters")
    from cronsim import CronSimError

    try:
        first = next(_simulate(text, datetime(2000, 1, 1)), None)
    except CronSimError as error:
        raise ValueError(str(error)) from None
    except (AssertionError, ValueError, IndexError, OverflowError):  # cronsim raises these for some invalid texts
        raise ValueError("it cannot be understood") from None
    if first is None:
        raise ValueError("it never fires")
    return text


def checked_zone(name: str) -> str:
    """The name of a time zone. Raises ValueError if this machine does not know it."""
    try:
        return _zone(name).key
    except (KeyError, ValueError, OSError):  # the name may be a directory, or a file that is no time zone
        raise ValueError(f"the time zone {name!r} is unknown here") from None


def next_fire_time(schedule: Schedule, after: float) -> float | None:
    """The first time after an instant; None if there is none in the next fifty years, or there is no cron text."""
    try:
        return None if schedule.cron is None else _next_fire_time(schedule, schedule.cron, after)
    except (OverflowError, ValueError):  # it would be after the last year that datetime has
        return None


def _next_fire_time(schedule: Schedule, cron: str, after: float) -> float | None:
    zone = None if schedule.timezone == "UTC" else _zone(schedule.timezone)
    instant = math.floor(after)  # times are whole seconds
    if zone is None:
        wall = next(_simulate(cron, _wall(instant)), None)
        return None if wall is None else float(_seconds(wall))
    minute, hour = cron.split()[-5:-3]
    find = _next_going_on if minute.startswith("*") or hour.startswith("*") else _next_of_the_day
    found = find(cron, zone, instant)
    return None if found is None else float(found)


def latest_fire_time(schedule: Schedule, after: float, until: float) -> float | None:
    """The last time after one instant, and not after another; None if there is none in between."""
    found, low, high = None, after, until
    while (scheduled_at := next_fire_time(schedule, low)) is not None and scheduled_at <= until:
        found = low = scheduled_at
        while high - low > 1:  # halved: there is none after `high`
            middle = (low + high) / 2
            scheduled_at = next_fire_time(schedule, middle)
            if scheduled_at is None or scheduled_at > until:
                high = middle
            else:
                found = low = scheduled_at
    return found


def fire_times(schedule: Schedule, after: float, count: int) -> list[float]:
    """The next times, at most `count`."""
    found: list[float] = []
    while len(found) < count and (scheduled_at := next_fire_time(schedule, found[-1] if found else after)) is not None:
        found.append(scheduled_at)
    return found


def describe_schedule(schedule: Schedule | None, interval: float | None) -> str:
    """`At 02:30 every day (Europe/Berlin)`, or `90 s after each run`"""
    if schedule is None or schedule.cron is None:
        return f"{_in_units(interval or 0.0)} after each run"
    return f"{_simulate(schedule.cron, _EPOCH).explain()} ({schedule.timezone})"


def _in_units(seconds: float) -> str:
    """In the largest unit that it is a whole number of."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds // size:g} {unit}"
    return f"{seconds:g} s"


def _next_of_the_day(cron: str, zone: tzinfo, after: int) -> int | None:
    for wall in _simulate(cron, _wall(after + _offset(zone, after))):
        instant = _instant(zone, wall)
        if instant > after:
            return instant
    return None


def _instant(zone: tzinfo, wall: datetime) -> int:
    """The first instant at which the wall clock shows that time; if it is skipped, the instant of the shift."""
    first, second = (int(wall.replace(tzinfo=zone, fold=fold).timestamp()) for fold in (0, 1))
    if first <= second:
        return first
    return _change(zone, second, first)


def _next_going_on(cron: str, zone: tzinfo, after: int) -> int | None:
    """Searches one stretch of time with a constant offset after the other."""
    start = after + 1
    while True:
        offset = _offset(zone, start)
        wall = next(_simulate(cron, _wall(start - 1 + offset)), None)
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
    """The instant at which the offset changes: after `before`, and not after `after`."""
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


def _simulate(cron: str, start: datetime) -> CronSim:
    from cronsim import CronSim  # here, because most programs have no cron text

    return CronSim(cron, start)


def _wall(seconds: int) -> datetime:
    return _EPOCH + timedelta(seconds=seconds)


def _seconds(wall: datetime) -> int:
    return round((wall - _EPOCH).total_seconds())


@functools.lru_cache(maxsize=100)
def _zone(name: str) -> ZoneInfo:
    from zoneinfo import ZoneInfo  # here, because most programs have no schedule in a time zone

    return ZoneInfo(name)
