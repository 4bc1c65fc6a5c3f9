"""Every option is checked where it is given, by name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from bullpen.errors import InvalidOption, InvalidOptionType, Retry
from bullpen.tasks.model.info import as_datetime, info_of
from bullpen.tasks.model.options import CALL_NAMES, FUNCTION_NAMES, MAX_SECONDS, SHARED_NAMES, TaskOptions
from bullpen.tasks.model.retry import Backoff
from bullpen.tasks.model.task import NEVER, PENDING

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def using(**options: Any) -> TaskOptions:
    return TaskOptions().using(CALL_NAMES | FUNCTION_NAMES, "using()", options)


@pytest.mark.parametrize(
    "options",
    [
        {"queue": ""},
        {"queue": "a,b"},
        {"queue": "a:2"},
        {"queue": "x" * 101},
        {"queue": 1},
        {"priority": -1},
        {"priority": 10},
        {"priority": 1.0},
        {"priority": True},
        {"delay": -1},
        {"delay": "1"},
        {"delay": float("nan")},
        {"delay": float("inf")},
        {"delay": 10**400},
        {"delay": timedelta(seconds=-1)},
        {"delay": True},
        {"eta": datetime(2030, 1, 1)},  # naive
        {"eta": 5.0},
        {"eta": datetime.max.replace(tzinfo=UTC)},
        {"eta": datetime(9000, 1, 1, tzinfo=UTC)},
        {"eta": datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))},
        {"interval": 0},
        {"interval": -1},
        {"interval": timedelta(0)},
        {"on_failure": "stop", "interval": 1},
        {"on_failure": "continue"},  # there is no next run
        {"max_retries": -1},
        {"max_retries": 1.5},
        {"max_retries": None},
        {"backoff": -1},
        {"backoff": "2"},
        {"backoff": Backoff(base=-1.0)},
        {"backoff": Backoff(max_delay=float("nan"))},
        {"timeout": 0},
        {"timeout": -1},
        {"expires": 0},
        {"expires": datetime(2030, 1, 1)},
        {"expires": datetime.max.replace(tzinfo=UTC)},
        {"expires": "soon"},
        {"at_most_once": 1},
        {"result_ttl": -1},
        {"failure_ttl": -1},
        {"unique_key": ""},
        {"unique_key": "x" * 201},
        {"unique_key": 5},
        {"unique_key": "\ud800"},
        {"concurrency_key": ""},
        {"headers": [("a", "b")]},
        {"headers": {"a": 1}},
        {"headers": {"a": "x" * 9000}},
        {"retry_on": "ValueError"},
        {"give_up_on": (ValueError, 5)},
    ],
    ids=lambda options: repr(options)[:60],
)
def test_a_value_that_is_not_allowed_is_rejected_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption) as caught:
        using(**options)
    assert caught.value.option.partition(".")[0] in options
    assert str(caught.value).startswith(caught.value.option)


@pytest.mark.parametrize("hours", [-23, 0, 23])
@pytest.mark.parametrize("bound", [datetime(2, 1, 1), datetime(8999, 12, 31, 23, 59, 59, 999999)], ids=str)
def test_the_first_and_the_last_instant_can_be_shown_everywhere(bound: datetime, hours: int) -> None:
    at = bound.replace(tzinfo=timezone(timedelta(hours=hours)))
    task = using(eta=at).new_task("t", "f", b"")
    assert abs(info_of(task).eta - at) < timedelta(milliseconds=1)
    assert task.eta + MAX_SECONDS < NEVER
    for zone in ("Pacific/Kiritimati", "Pacific/Pago_Pago"):
        assert as_datetime(task.eta).astimezone(ZoneInfo(zone)) == as_datetime(task.eta)


def test_an_option_that_does_not_exist_is_rejected_with_those_that_do() -> None:
    with pytest.raises(InvalidOptionType, match=r"^using\(\) has no option 'dealy'; did you mean delay\?$"):
        using(dealy=5)


def test_what_a_place_does_not_take_is_rejected_there() -> None:
    with pytest.raises(InvalidOptionType):
        TaskOptions().using(SHARED_NAMES, "TaskQueue()", {"unique_key": "x"})
    with pytest.raises(InvalidOptionType):
        TaskOptions().using(FUNCTION_NAMES, "task()", {"delay": 5})
    assert SHARED_NAMES < FUNCTION_NAMES


@pytest.mark.parametrize(
    "options",
    [
        {"delay": 5, "eta": NOON},
        {"at_most_once": True, "max_retries": 1},
        {"delay": 10, "expires": 10},
        {"eta": NOON, "expires": NOON},
        {"eta": NOON, "expires": NOON - timedelta(hours=1)},
    ],
    ids=repr,
)
def test_options_that_contradict_each_other_are_rejected(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        using(**options)


def test_the_later_of_delay_and_eta_counts() -> None:
    assert using(eta=NOON).using(CALL_NAMES, "using()", {"delay": 5}).eta is None
    assert using(delay=5).using(CALL_NAMES, "using()", {"eta": NOON}).delay is None


def test_options_are_immutable() -> None:
    first = using(priority=3)
    second = first.using(CALL_NAMES, "using()", {"priority": 4})
    assert (first.priority, second.priority) == (3, 4)
    headers = {"a": "b"}
    kept = using(headers=headers)
    headers["a"] = "c"
    assert kept.headers == {"a": "b"}


def test_a_task_is_made_with_all_of_them() -> None:
    options = using(
        queue="mail",
        priority=9,
        delay=timedelta(minutes=1),
        interval=60,
        on_failure="continue",
        max_retries=5,
        backoff=2,
        timeout=30,
        expires=timedelta(hours=1),
        result_ttl=None,
        failure_ttl=timedelta(days=30),
        unique_key="u",
        concurrency_key="c",
        headers={"a": "b"},
    )
    assert options.is_relative
    task = options.new_task("id-1", "shop.send", b"{}", now=1000.0)
    assert (task.id, task.func_path, task.payload, task.status) == ("id-1", "shop.send", b"{}", PENDING)
    assert (task.queue, task.priority, task.eta, task.expires) == ("mail", 9, 1060.0, 4600.0)
    assert (task.interval, task.on_failure, task.max_retries, task.timeout) == (60.0, "continue", 5, 30.0)
    assert task.backoff == Backoff(2.0)
    assert task.result_ttl is None
    assert task.failure_ttl == 30 * 86_400
    assert (task.unique_key, task.concurrency_key, task.headers) == ("u", "c", {"a": "b"})
    assert using(at_most_once=True).new_task("i", "f", b"").at_most_once


def test_instants_need_no_clock() -> None:
    options = using(eta=NOON, expires=NOON + timedelta(hours=1))
    assert not options.is_relative
    task = options.new_task("i", "f", b"")
    assert (task.eta, task.expires) == (NOON.timestamp(), NOON.timestamp() + 3600)
    assert not TaskOptions().is_relative


def test_which_errors_are_worth_another_try() -> None:
    assert TaskOptions().may_retry(ValueError())
    assert TaskOptions().may_retry(SystemExit())
    options = using(retry_on=OSError, give_up_on=(FileNotFoundError,))
    assert options.may_retry(ConnectionError())
    assert not options.may_retry(ValueError())
    assert not options.may_retry(FileNotFoundError())
    assert options.may_retry(Retry())  # it was asked for


def test_options_of_retry_and_snooze_are_checked_too() -> None:
    for wrong in (-1, float("nan"), float("inf")):
        with pytest.raises(InvalidOption):
            Retry(after=wrong)
    with pytest.raises(InvalidOptionType):
        Retry(after="1")  # type: ignore[arg-type]
    assert Retry(after=timedelta(minutes=1)).after == 60.0
    assert Retry().after is None
