"""Times of cron text against an oracle that looks at every minute of the wall clock, around every change of it.

`--thorough` looks at all zones and all changes of this century so far and to come; otherwise at some, always the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from zoneinfo import ZoneInfo, available_timezones

import pytest

from bullpen.tasks.model.schedule import Schedule, fire_times, latest_fire_time, next_fire_time

FIRST, LAST = int(datetime(2000, 1, 1, tzinfo=UTC).timestamp()), int(datetime(2038, 1, 1, tzinfo=UTC).timestamp())
MINUTE, DAY = 60, 86_400
ODD = (  # half an hour, midnight, a whole day, two hours, a month without, an offset of its own
    "Australia/Lord_Howe",
    "America/Sao_Paulo",
    "Asia/Beirut",
    "Africa/Cairo",
    "America/Santiago",
    "Pacific/Apia",
    "Antarctica/Troll",
    "Africa/Casablanca",
    "Asia/Gaza",
    "Pacific/Chatham",
    "Asia/Kathmandu",
    "Europe/Berlin",
    "America/New_York",
)

# Cron text, and what it means: the minutes, the hours, and the days of the month.
Meaning = tuple[str, Callable[[datetime], bool]]
GOING_ON: Sequence[Meaning] = (
    ("*/7 * * * *", lambda wall: wall.minute % 7 == 0),
    ("0 * * * *", lambda wall: wall.minute == 0),
    ("30 */2 * * *", lambda wall: wall.minute == 30 and wall.hour % 2 == 0),
    ("*/20 0,1,2,3,23 * * *", lambda wall: wall.minute % 20 == 0 and wall.hour in (0, 1, 2, 3, 23)),
    ("*/30 0 * * 0", lambda wall: wall.minute % 30 == 0 and wall.hour == 0 and wall.weekday() == 6),
)
OF_THE_DAY: Sequence[Meaning] = (
    ("30 2 * * *", lambda wall: (wall.hour, wall.minute) == (2, 30)),
    ("0 0 * * *", lambda wall: (wall.hour, wall.minute) == (0, 0)),
    ("0,15,45 0-3 * * *", lambda wall: wall.hour <= 3 and wall.minute in (0, 15, 45)),
    ("59 23,1 * * *", lambda wall: wall.hour in (23, 1) and wall.minute == 59),
)


Walls = Sequence[tuple[int, datetime]]  # instants, minute by minute, and what the wall clock shows then


def going_on(walls: Walls, means: Callable[[datetime], bool]) -> list[int]:
    """Every instant at which the wall clock shows such a time."""
    return [at for at, wall in walls if means(wall)]


def of_the_day(walls: Walls, means: Callable[[datetime], bool]) -> list[int]:
    """For each such time the first instant at which the wall clock shows it, or a later one."""
    found = set()
    latest = walls[0][1] - timedelta(minutes=1)
    for at, wall in walls:
        while latest < wall:
            latest += timedelta(minutes=1)
            if means(latest):
                found.add(at)
    return sorted(found)


def changes(zone: ZoneInfo, days: int) -> Iterator[int]:
    """When the wall clock is turned, where it is turned once in so many days."""

    def offset(at: int) -> timedelta | None:
        return datetime.fromtimestamp(at, zone).utcoffset()

    old = offset(FIRST)
    for begin in range(FIRST, LAST, days * DAY):
        before, after = begin, begin + days * DAY
        if old != (new := offset(after)):
            while after - before > 1:
                middle = (before + after) // 2
                before, after = (middle, after) if offset(middle) == old else (before, middle)
            yield after
            old = new


def check(name: str, around: int) -> None:
    zone = ZoneInfo(name)
    begin = around // DAY * DAY - DAY
    end = begin + 3 * DAY
    walls = [(at, datetime.fromtimestamp(at, zone).replace(tzinfo=None)) for at in range(begin, end, MINUTE)]
    for oracle, meanings in ((going_on, GOING_ON), (of_the_day, OF_THE_DAY)):
        for cron, means in meanings:
            schedule = Schedule(cron=cron, timezone=name)
            expected = oracle(walls, means)
            found = [at for at in fire_times(schedule, begin - 1, len(expected) + 1) if at < end]
            assert found == expected, f"{cron} in {name} around {datetime.fromtimestamp(around, UTC)}"
            dice = Random(around)
            for at in dice.sample(range(begin, end), 3):
                later = [one for one in expected if one >= at]
                assert not later or next_fire_time(schedule, at - 0.5) == later[0]
                assert latest_fire_time(schedule, begin - 1, at) == max(
                    (one for one in expected if one <= at), default=None
                )


@pytest.mark.timeout(3600)
def test_times_are_those_of_the_wall_clock_around_every_change_of_it(thorough: bool) -> None:
    dice, zones = Random(20_26), sorted(available_timezones())
    seen = set()  # many zones are others under another name, or have been since
    for name in zones if thorough else [*ODD, *dice.sample(zones, 12)]:
        zone = ZoneInfo(name)
        turned = changes(zone, days=1 if thorough else 7)
        some = [(at, datetime.fromtimestamp(at, zone).utcoffset()) for at in turned]
        for around, offset in some if thorough else dice.sample(some, min(len(some), 2)):
            if (around, offset) not in seen:
                seen.add((around, offset))
                check(name, around)


def test_the_oracle_sees_what_a_naive_reading_gets_wrong() -> None:
    """Both changes of Berlin, written out."""
    spring, autumn = datetime(2026, 3, 29, tzinfo=UTC), datetime(2026, 10, 25, tzinfo=UTC)

    def times(cron: str, day: datetime, count: int) -> list[str]:
        found = fire_times(Schedule(cron=cron, timezone="Europe/Berlin"), day.timestamp() - 1, count)
        return [f"{datetime.fromtimestamp(at, ZoneInfo('Europe/Berlin')):%d. %H:%M %Z}" for at in found]

    assert times("30 2 * * *", spring, 2) == ["29. 03:00 CEST", "30. 02:30 CEST"]
    assert times("30 2 * * *", autumn, 2) == ["25. 02:30 CEST", "26. 02:30 CET"]
    assert times("30 * * * *", spring, 3) == ["29. 01:30 CET", "29. 03:30 CEST", "29. 04:30 CEST"]
    assert times("30 * * * *", autumn, 3) == ["25. 02:30 CEST", "25. 02:30 CET", "25. 03:30 CET"]
