"""`queue.history`: checks what is asked for, and adds the stored rows up."""

from __future__ import annotations

from datetime import datetime, timedelta

from bullpen.errors import InvalidOption, InvalidOptionType
from bullpen.tasks.model.history import HOUR, KEPT, MINUTE, GroupBy, HistoryPeriod, periods
from bullpen.tasks.model.options import Seconds, instant, queue_name, seconds
from bullpen.tasks.model.task import writable
from bullpen.tasks.storage.port import Storage

LAST_HOUR = 3600.0
MANY_MINUTES = 6 * 3600.0  # seconds; a longer time in steps of hours is read by the hour


async def read_history(
    storage: Storage,
    *,
    since: datetime | Seconds,
    until: datetime | None,
    queue: str | None,
    function: str | None,
    by: GroupBy | None,
    step: Seconds | None,
) -> list[HistoryPeriod]:
    """Periods from `since` on, which is rounded down to a minute, or to an hour where only hours are kept."""
    if by not in (None, "queue", "function"):
        raise InvalidOption("by", by, "'queue', 'function', or None for the sum of all")
    if function is not None and not isinstance(function, str):
        raise InvalidOptionType("function", function, "the name of a function, or None for all")
    queue = None if queue is None else queue_name("queue", queue)
    function = None if function is None else writable(function)
    now = await storage.now()
    begin, end = begin_of(since, now), now if until is None else instant("until", until)
    if end <= begin:
        raise InvalidOption("until", until, "later than since")
    begin = max(begin, now - KEPT[HOUR])
    resolution = MINUTE if begin >= now - KEPT[MINUTE] - MINUTE else HOUR
    length = _step(step, resolution)
    if length % HOUR == 0 and end - begin > MANY_MINUTES:
        resolution = HOUR  # a sixtieth of the rows
    first = int(begin) // resolution * resolution
    rows = await storage.history(resolution, first, end, queue=queue, function=function)
    return periods(rows, since=first, until=end, step=length, queue=queue, function=function, by=by)


def begin_of(since: object, now: float) -> float:
    """`since` as an instant: it is a time, or a number of seconds before now."""
    or_else = ", or a number of seconds before now"
    if isinstance(since, int | float | timedelta):
        return now - seconds("since", since, zero=False)
    return instant("since", since, or_else)


def _step(step: object, resolution: int) -> int:
    if step is None:
        return resolution
    length = seconds("step", step, zero=False)
    if length % resolution:
        allowed = "a whole number of minutes" if resolution == MINUTE else "a whole number of hours, because "
        raise InvalidOption("step", step, allowed if resolution == MINUTE else allowed + "minutes are kept for a day")
    return int(length)
