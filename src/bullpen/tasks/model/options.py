"""The options of a task: one frozen object that checks itself, before anything is stored.

`TaskQueue(...)` takes them as defaults for all its tasks, `@queue.task(...)` for one function, `using(...)` for single
calls.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

import msgspec

from bullpen.errors import InvalidOption, InvalidOptionType, TaskSignal, UnknownOption
from bullpen.tasks.model.retry import Backoff
from bullpen.tasks.model.schedule import (
    MISFIRE_GRACE,
    Misfire,
    Overlap,
    Schedule,
    checked_cron,
    checked_zone,
    next_fire_time,
)
from bullpen.tasks.model.task import (
    FAILURE_TTL,
    HIGHEST_PRIORITY,
    LOWEST_PRIORITY,
    RESULT_TTL,
    OnFailure,
    Task,
    UniqueScope,
)
from bullpen.tasks.model.unique import RETURN, Duplicates, OnDuplicate

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

Seconds = float | timedelta
TaskRuntime = Literal["thread", "process"]
ErrorTypes = type[BaseException] | tuple[type[BaseException], ...]

MAX_SECONDS = 100 * 365.25 * 86_400
# The range of instants: in every time zone, and a century later too, they are before `NEVER` and fit a datetime.
FIRST_YEAR, LAST_YEAR = 2, 8999
MAX_KEY = 200
MAX_RETRIES = 1_000_000
MAX_HEADERS = 8 * 1024
QUEUE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")

QUEUE_WORDS = "a name of at most 100 letters, digits, '_', '-' and '.', beginning with a letter, a digit or '_'"


class SharedOptions(TypedDict, total=False):
    """Options that a queue, a function and a call may have."""

    queue: str
    priority: int
    max_retries: int
    backoff: Backoff | Seconds | Sequence[Seconds]
    timeout: Seconds | None
    at_most_once: bool
    result_ttl: Seconds | None
    failure_ttl: Seconds | None
    headers: Mapping[str, str]
    timezone: str | ZoneInfo


class ScheduleOptions(SharedOptions, total=False):
    """Options of a repeating task, on a function or a call."""

    interval: Seconds | None
    cron: str | None
    schedule_key: str | None
    on_failure: OnFailure
    misfire: Misfire
    misfire_grace: Seconds
    overlap: Overlap


class FunctionOptions(ScheduleOptions, total=False):
    """Options of `@queue.task(...)`."""

    expires: Seconds | None
    unique_key: str | None
    unique_scope: UniqueScope
    unique_for: Seconds | None
    on_duplicate: OnDuplicate
    debounce: Seconds | None
    debounce_limit: Seconds | None
    concurrency_key: str | None
    backoff_for: Mapping[type[BaseException], Backoff | Seconds | Sequence[Seconds]]
    retry_on: ErrorTypes
    give_up_on: ErrorTypes
    runtime: TaskRuntime | None
    redact: Sequence[str]
    black_box: bool


class EnqueueOptions(ScheduleOptions, total=False):
    """Options of `using(...)`."""

    delay: Seconds | None
    eta: datetime | None
    expires: Seconds | datetime | None
    unique_key: str | None
    unique_scope: UniqueScope
    unique_for: Seconds | None
    on_duplicate: OnDuplicate
    debounce: Seconds | None
    debounce_limit: Seconds | None
    concurrency_key: str | None
    connection: Any


class TaskOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options, checked: durations in seconds, instants in seconds since the epoch."""

    queue: str = "default"
    priority: int = 0
    delay: float | None = None
    eta: float | None = None
    interval: float | None = None
    cron: str | None = None
    timezone: str = "UTC"
    schedule_key: str | None = None
    on_failure: OnFailure | None = None  # None: "continue" with a schedule, else "fail"
    misfire: Misfire = "run"
    misfire_grace: float = MISFIRE_GRACE
    overlap: Overlap = "skip"
    max_retries: int = 0
    backoff: Backoff = Backoff()
    timeout: float | None = None
    expires_in: float | None = None  # `expires`, given as a duration
    expires_at: float | None = None  # … or as an instant
    at_most_once: bool = False
    result_ttl: float | None = RESULT_TTL
    failure_ttl: float | None = FAILURE_TTL
    unique_key: str | None = None
    unique_scope: UniqueScope | None = None  # None: "waiting" if a duplicate replaces, else "alive"
    unique_for: float | None = None
    on_duplicate: OnDuplicate | None = None  # None: "replace" with debounce, else "return"
    debounce: float | None = None
    debounce_limit: float | None = None
    concurrency_key: str | None = None
    headers: dict[str, str] = {}
    connection: Any = None  # to the store's database: the task exists when its transaction commits
    backoff_for: dict[type[BaseException], Backoff] = {}
    retry_on: tuple[type[BaseException], ...] = (BaseException,)
    give_up_on: tuple[type[BaseException], ...] = ()
    runtime: TaskRuntime | None = None  # of a function that is not async; None: the runtime of the lane
    redact: tuple[str, ...] = ()  # parameters, and keys in them, whose values are not shown
    black_box: bool = True  # a failed attempt keeps its last log lines

    def using(
        self, allowed: frozenset[str], where: str, changes: Mapping[str, Any], parameters: Sequence[str] = ()
    ) -> TaskOptions:
        """The options with `changes`. Raises InvalidOption for a wrong name or value, or a contradiction.

        `parameters`: what `where` takes besides options, for the error about a wrong name.
        """
        for name in changes:
            if name not in allowed:
                raise UnknownOption(where, name, allowed.union(parameters))
        if changes.get("delay") is not None and changes.get("eta") is not None:
            raise InvalidOption("delay", changes["delay"], "left out if eta is given: both say when it starts")
        if changes.get("interval") is not None and changes.get("cron") is not None:
            raise InvalidOption("interval", changes["interval"], "left out if cron is given: both say when it runs")
        values: dict[str, Any] = {}
        for name, value in changes.items():
            values |= _CHECKS[name](name, value)
        for name, other in (("delay", "eta"), ("eta", "delay"), ("interval", "cron"), ("cron", "interval")):
            if name in changes and other not in changes:
                values[other] = None
        changed = msgspec.structs.replace(self, **values)
        if "timezone" in changes and changed.cron is None and allowed is not SHARED_NAMES:
            raise InvalidOption("timezone", changed.timezone, "left out without cron: it is the time zone of cron")
        changed.check_together()
        return changed

    def check_together(self) -> None:
        """Raises InvalidOption if options contradict each other."""
        if self.at_most_once and self.max_retries:
            raise InvalidOption(
                "max_retries", self.max_retries, "0 with at_most_once=True: such a task never runs again"
            )
        if not self.repeats and self.on_failure == "continue":
            raise InvalidOption(
                "on_failure", self.on_failure, "left out without an interval or cron: there is no next run"
            )
        self._check_schedule()
        start = self.delay if self.delay is not None else 0.0
        if self.expires_in is not None and self.eta is None and self.expires_in <= start:
            raise InvalidOption("expires", self.expires_in, f"later than the start, {start:g} s from now")
        if self.expires_at is not None and self.eta is not None and self.expires_at <= self.eta:
            raise InvalidOption("expires", _instant(self.expires_at), f"later than eta, {_instant(self.eta)}")
        self._check_unique()

    def _check_unique(self) -> None:
        given = {name: getattr(self, name) for name in _UNIQUE if getattr(self, name) is not None}
        if given and self.unique_key is None:
            name, value = next(iter(given.items()))
            raise InvalidOption(name, value, "left out without unique_key: it says what to do with a second one")
        if self.debounce is None:
            if self.debounce_limit is not None:
                raise InvalidOption("debounce_limit", self.debounce_limit, "left out without debounce")
            return
        if self.delay is not None or self.eta is not None:
            raise InvalidOption("debounce", self.debounce, "left out with delay or eta: both say when it starts")
        if self.on_duplicate not in (None, "replace") or self.unique_scope not in (None, "waiting"):
            allowed = 'left out with another on_duplicate than "replace", or unique_scope than "waiting"'
            raise InvalidOption("debounce", self.debounce, allowed)
        if self.debounce_limit is not None and self.debounce_limit < self.debounce:
            raise InvalidOption("debounce_limit", self.debounce_limit, f"at least debounce, {self.debounce:g} s")

    @property
    def duplicates(self) -> Duplicates:
        """The rule for calls with a unique key that another task holds."""
        if self.on_duplicate is None and self.debounce is None:
            return RETURN
        policy = self.on_duplicate or "replace"
        return RETURN if policy == "return" else Duplicates(policy, self.debounce_limit)

    def _check_schedule(self) -> None:
        if not self.repeats and self.schedule_key is not None:
            raise InvalidOption("schedule_key", self.schedule_key, "left out without an interval or cron")
        if self.schedule_key is not None and self.unique_key is not None:
            raise InvalidOption("unique_key", self.unique_key, "left out with schedule_key, which is unique")
        if self.schedule_key is not None and self.connection is not None:
            why = "left out with connection: an existing schedule cannot be changed in a transaction of your own"
            raise InvalidOption("schedule_key", self.schedule_key, why)
        usual = TaskOptions.__struct_defaults__
        if self.cron is None:
            for name in ("misfire", "misfire_grace", "overlap"):
                value = getattr(self, name)
                if value != usual[TaskOptions.__struct_fields__.index(name)]:
                    raise InvalidOption(name, value, "left out without cron: an interval is counted from run to run")
            return
        for name, value in (("delay", self.delay), ("eta", self.eta), ("unique_key", self.unique_key)):
            if value is not None:
                raise InvalidOption(name, value, "left out with cron, which says when it runs; see also schedule_key")
        if self.expires_in is not None or self.expires_at is not None:
            why = "left out with cron: misfire='skip' and misfire_grace say how late a run may begin"
            raise InvalidOption("expires", self.expires_in or self.expires_at, why)

    @property
    def repeats(self) -> bool:
        return self.interval is not None or self.cron is not None

    def once(self) -> TaskOptions:
        """The options of a single run."""
        return msgspec.structs.replace(
            self,
            interval=None,
            cron=None,
            schedule_key=None,
            on_failure=None,
            misfire="run",
            misfire_grace=MISFIRE_GRACE,
            overlap="skip",
        )

    @property
    def is_relative(self) -> bool:
        """Whether `new_task` needs the time of the store's clock."""
        return (
            self.delay is not None
            or self.expires_in is not None
            or self.unique_for is not None
            or self.debounce is not None
            or self.cron is not None
        )

    @property
    def are_usual(self) -> bool:
        """Whether a task with these options is added without further checks, and runs once."""
        return self.connection is None and self.unique_key is None and not self.repeats and not self.is_relative

    def new_task(self, task_id: str, func_path: str, payload: bytes, now: float = 0.0) -> Task:
        """A pending task. `now`, by the store's clock, is needed only if the options are relative."""
        schedule = self._schedule()
        scheduled_at = None if schedule is None else next_fire_time(schedule, now)
        return Task(
            id=task_id,
            func_path=func_path,
            payload=payload,
            queue=self.queue,
            priority=self.priority,
            eta=scheduled_at or self._start(now),
            scheduled_at=scheduled_at,
            interval=self.interval,
            schedule=schedule,
            on_failure=self.on_failure or ("fail" if schedule is None else "continue"),
            max_retries=self.max_retries,
            backoff=self.backoff,
            timeout=self.timeout,
            expires=now + self.expires_in if self.expires_in is not None else self.expires_at,
            at_most_once=self.at_most_once,
            result_ttl=self.result_ttl,
            failure_ttl=self.failure_ttl,
            unique_key=self.unique_key,
            unique_scope=self.unique_scope or ("alive" if self.duplicates.policy != "replace" else "waiting"),
            unique_until=None if self.unique_for is None else now + self.unique_for,
            concurrency_key=self.concurrency_key,
            headers=self.headers,
        )

    def _start(self, now: float) -> float:
        delay = self.delay if self.debounce is None else self.debounce
        return now + delay if delay is not None else self.eta or 0.0

    def _schedule(self) -> Schedule | None:
        if self.cron is None and self.schedule_key is None:
            return None
        return Schedule(
            key=self.schedule_key or "",
            cron=self.cron,
            timezone=self.timezone,
            misfire=self.misfire,
            misfire_grace=self.misfire_grace,
            overlap=self.overlap,
        )

    def backoff_of(self, error: BaseException) -> Backoff | None:
        """The backoff for this error in `backoff_for`: the nearest of its classes counts."""
        for kind in type(error).__mro__ if self.backoff_for else ():
            if kind in self.backoff_for:
                return self.backoff_for[kind]
        return None

    def may_retry(self, error: BaseException) -> bool:
        """Whether the task may be retried after this error."""
        if isinstance(error, TaskSignal):
            return True
        return isinstance(error, self.retry_on) and not isinstance(error, self.give_up_on)


# One check per option: returns the values of the fields.


def _queue(name: str, value: Any) -> dict[str, Any]:
    return {name: queue_name(name, value)}


def queue_name(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidOptionType(name, value, QUEUE_WORDS)
    if QUEUE_NAME.fullmatch(value) is None:
        raise InvalidOption(name, value, QUEUE_WORDS)
    return value


def _priority(name: str, value: Any) -> dict[str, Any]:
    allowed = f"a whole number from {LOWEST_PRIORITY} to {HIGHEST_PRIORITY}; the highest goes first"
    return {name: whole(name, value, LOWEST_PRIORITY, HIGHEST_PRIORITY, allowed)}


def _max_retries(name: str, value: Any) -> dict[str, Any]:
    return {name: whole(name, value, 0, MAX_RETRIES, f"a whole number from 0 to {MAX_RETRIES}")}


def whole(name: str, value: object, lowest: int, highest: int, allowed: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidOptionType(name, value, allowed)
    if not lowest <= value <= highest:
        raise InvalidOption(name, value, allowed)
    return value


def seconds(name: str, value: object, *, zero: bool = True, none: str = "") -> float:
    """A duration, in seconds."""
    or_none = f", or None {none}" if none else ""
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise InvalidOptionType(name, value, f"a number of seconds, or a timedelta{or_none}")
    if not (0 <= number <= MAX_SECONDS) or (number == 0 and not zero):
        raise InvalidOption(name, value, f"{'≥' if zero else '>'} 0 seconds, and at most a century{or_none}")
    return float(number)


def instant(name: str, value: object, or_else: str = "") -> float:
    """An aware datetime, in seconds since the epoch."""
    if not isinstance(value, datetime):
        raise InvalidOptionType(name, value, f"a datetime with a time zone{or_else}")
    if value.utcoffset() is None:
        raise InvalidOption(name, value, f"a datetime with a time zone, such as datetime.now(UTC){or_else}")
    if not FIRST_YEAR <= value.year <= LAST_YEAR:
        raise InvalidOption(name, value, f"a datetime of the years {FIRST_YEAR} to {LAST_YEAR}{or_else}")
    return value.timestamp()


def _instant(epoch: float) -> str:
    return f"{epoch:.3f} s since 1970"


def _delay(name: str, value: Any) -> dict[str, Any]:
    return {name: None if value is None else seconds(name, value, none="for none")}


def _eta(name: str, value: Any) -> dict[str, Any]:
    return {name: None if value is None else instant(name, value, ", or None for at once")}


def _interval(name: str, value: Any) -> dict[str, Any]:
    return {name: None if value is None else seconds(name, value, zero=False, none="for a task that runs once")}


def _cron(name: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {name: None}
    allowed = "cron text such as '*/5 * * * *' (minute, hour, day, month, weekday) or '@daily', or None"
    if not isinstance(value, str):
        raise InvalidOptionType(name, value, allowed)
    try:
        return {name: checked_cron(value)}
    except ValueError as error:
        raise InvalidOption(name, value, f"{allowed}; this is not: {error}") from None


def _timezone(name: str, value: Any) -> dict[str, Any]:
    allowed = "the name of a time zone, such as 'Europe/Berlin'"
    zone = getattr(value, "key", value)  # a ZoneInfo has its name there
    if not isinstance(zone, str):
        raise InvalidOptionType(name, value, allowed)
    try:
        return {name: checked_zone(zone)}
    except ValueError:
        hint = "; where the system has no time zones, pip install tzdata brings them"
        raise InvalidOption(name, value, allowed + hint) from None


def _misfire_grace(name: str, value: Any) -> dict[str, Any]:
    return {name: seconds(name, value)}


def _choice(name: str, value: Any) -> dict[str, Any]:
    words = get_args({"misfire": Misfire, "overlap": Overlap, "on_failure": OnFailure}[name])
    if value not in words:
        raise InvalidOption(name, value, " or ".join(map(repr, words)))
    return {name: value}


def _timeout(name: str, value: Any) -> dict[str, Any]:
    return {name: None if value is None else seconds(name, value, zero=False, none="for no limit")}


def _time_to_live(name: str, value: Any) -> dict[str, Any]:
    return {name: None if value is None else seconds(name, value, none="to keep it forever")}


def _expires(name: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {"expires_in": None, "expires_at": None}
    if isinstance(value, datetime):
        return {"expires_in": None, "expires_at": instant(name, value)}
    if not isinstance(value, int | float | timedelta):
        raise InvalidOptionType(name, value, "a number of seconds, a timedelta, a datetime with a time zone, or None")
    return {"expires_in": seconds(name, value, zero=False, none="for never"), "expires_at": None}


def _backoff(name: str, value: Any) -> dict[str, Any]:
    return {name: backoff(name, value)}


def backoff(name: str, value: object) -> Backoff:
    """A number is the base, a list the delays themselves."""
    if isinstance(value, list | tuple):
        if not value:
            raise InvalidOption(name, value, "a list of at least one delay")
        return Backoff(max_delay=MAX_SECONDS, delays=tuple(seconds(name, step) for step in value))
    if not isinstance(value, Backoff):
        return Backoff(seconds(name, value))
    seconds(f"{name}.base", value.base)
    seconds(f"{name}.max_delay", value.max_delay)
    for field, least, most in (("factor", 1.0, 100.0), ("jitter", 0.0, 1.0)):
        number = getattr(value, field)
        allowed = f"a number from {least:g} to {most:g}"
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise InvalidOptionType(f"{name}.{field}", number, allowed)
        if not least <= number <= most:
            raise InvalidOption(f"{name}.{field}", number, allowed)
    if not isinstance(value.delays, tuple):
        raise InvalidOptionType(f"{name}.delays", value.delays, "a tuple of delays")
    for step in value.delays:
        seconds(f"{name}.delays", step)
    return value


def _backoff_for(name: str, value: Any) -> dict[str, Any]:
    allowed = "a dict from classes of exceptions to what backoff may be"
    if not isinstance(value, Mapping):
        raise InvalidOptionType(name, value, allowed)
    for kind in value:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise InvalidOptionType(name, kind, allowed)
    return {name: {kind: backoff(f"{name}[{kind.__name__}]", one) for kind, one in value.items()}}


def _boolean(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, bool):
        raise InvalidOptionType(name, value, "True or False")
    return {name: value}


def _runtime(name: str, value: Any) -> dict[str, Any]:
    if value not in ("thread", "process", None):
        raise InvalidOption(name, value, "'thread', 'process', or None for that of the lane")
    return {name: value}


def _redact(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(one, str) for one in value):
        raise InvalidOptionType(name, value, "a list or tuple of names of parameters")
    return {name: tuple(value)}


def _key(name: str, value: Any) -> dict[str, Any]:
    allowed = f"a string of 1 to {MAX_KEY} characters, or None"
    if value is not None:
        if not isinstance(value, str):
            raise InvalidOptionType(name, value, allowed)
        if not 1 <= len(value) <= MAX_KEY:
            raise InvalidOption(name, value, allowed)
        _writable(name, value)
    return {name: value}


def _unique_scope(name: str, value: Any) -> dict[str, Any]:
    if value not in ("alive", "waiting"):
        raise InvalidOption(name, value, "'alive' (until it is final) or 'waiting' (until it starts)")
    return {name: value}


def _on_duplicate(name: str, value: Any) -> dict[str, Any]:
    if value not in ("return", "replace", "reject"):
        raise InvalidOption(name, value, "'return', 'replace' or 'reject'")
    return {name: value}


def _period(name: str, value: Any) -> dict[str, Any]:
    return {name: None if value is None else seconds(name, value, zero=False, none="for none")}


def _headers(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(part, str) for item in value.items() for part in item):
        raise InvalidOptionType(name, value, "a dict of strings")
    size = sum(len(key) + len(text) for key, text in value.items())
    if size > MAX_HEADERS:
        raise InvalidOption(name, f"{size} characters", f"at most {MAX_HEADERS} characters together")
    for item in value.items():
        for part in item:
            _writable(name, part)
    return {name: dict(value)}


def _writable(name: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidOption(name, value, "text that can be written as UTF-8") from None


def _connection(name: str, value: Any) -> dict[str, Any]:
    return {name: value}  # the store checks it


def _errors(name: str, value: Any) -> dict[str, Any]:
    kinds = value if isinstance(value, tuple) else (value,)
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        raise InvalidOptionType(name, value, "a class of exceptions, or a tuple of them")
    return {name: kinds}


_CHECKS = {
    "queue": _queue,
    "priority": _priority,
    "delay": _delay,
    "eta": _eta,
    "interval": _interval,
    "cron": _cron,
    "timezone": _timezone,
    "schedule_key": _key,
    "on_failure": _choice,
    "misfire": _choice,
    "misfire_grace": _misfire_grace,
    "overlap": _choice,
    "max_retries": _max_retries,
    "backoff": _backoff,
    "backoff_for": _backoff_for,
    "timeout": _timeout,
    "expires": _expires,
    "at_most_once": _boolean,
    "result_ttl": _time_to_live,
    "failure_ttl": _time_to_live,
    "unique_key": _key,
    "unique_scope": _unique_scope,
    "unique_for": _period,
    "on_duplicate": _on_duplicate,
    "debounce": _period,
    "debounce_limit": _period,
    "concurrency_key": _key,
    "headers": _headers,
    "connection": _connection,
    "retry_on": _errors,
    "give_up_on": _errors,
    "runtime": _runtime,
    "redact": _redact,
    "black_box": _boolean,
}

_UNIQUE = ("unique_scope", "unique_for", "on_duplicate", "debounce", "debounce_limit")

SHARED_NAMES = frozenset(SharedOptions.__annotations__)
FUNCTION_NAMES = frozenset(FunctionOptions.__annotations__)
CALL_NAMES = frozenset(EnqueueOptions.__annotations__)
