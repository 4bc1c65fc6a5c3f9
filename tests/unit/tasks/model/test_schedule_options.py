"""What a schedule may be told, and what is rejected by name where it is declared."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from bullpen import InvalidOption, InvalidTask, TaskQueue
from bullpen.tasks.model.schedule import MAX_CRON, Schedule, describe_schedule

BAD: list[tuple[dict[str, Any], str]] = [
    ({"cron": ""}, "cron .*this is not: Wrong number of fields"),
    ({"cron": "* * * *"}, "cron .*Wrong number of fields"),
    ({"cron": "61 * * * *"}, "cron .*Bad minute"),
    ({"cron": "* 24 * * *"}, "cron .*Bad hour"),
    ({"cron": "*/0 * * * *"}, "cron .*Bad minute"),
    ({"cron": "0 0 31 2 *"}, "cron .*Bad day-of-month"),
    ({"cron": "0 0 * * MONDAY"}, "cron .*Bad day-of-week"),
    ({"cron": "0 0 */29 2 MON#5"}, "it never fires"),
    ({"cron": "@reboot"}, "cron .*Wrong number of fields"),
    ({"cron": "1," * MAX_CRON + "1 * * * *"}, "longer than"),
    ({"cron": 5}, "cron must be cron text"),
    ({"cron": timedelta(hours=1)}, "cron must be cron text"),
    ({"cron": "@daily", "timezone": "Europe/Berlim"}, "timezone .*pip install tzdata"),
    ({"cron": "@daily", "timezone": "../../etc/passwd"}, "timezone"),
    ({"cron": "@daily", "timezone": ""}, "timezone"),
    ({"cron": "@daily", "timezone": timezone(timedelta(hours=1))}, "timezone must be the name of a time zone"),
    ({"cron": "@daily", "timezone": None}, "timezone"),
    ({"timezone": "Europe/Berlin"}, "timezone must be left out without cron"),
    ({"cron": "@daily", "interval": 60}, "interval must be left out if cron is given"),
    ({"interval": 0}, "interval"),
    ({"interval": -1}, "interval"),
    ({"interval": "60"}, "interval"),
    ({"cron": "@daily", "expires": 60}, "expires must be left out with cron"),
    ({"misfire": "skip"}, "misfire must be left out without cron"),
    ({"interval": 60, "overlap": "queue"}, "overlap must be left out without cron"),
    ({"interval": 60, "misfire_grace": 1}, "misfire_grace must be left out without cron"),
    ({"cron": "@daily", "misfire": "maybe"}, "misfire must be 'run' or 'skip'"),
    ({"cron": "@daily", "overlap": "replace"}, "overlap must be 'skip' or 'queue' or 'allow'"),
    ({"cron": "@daily", "misfire_grace": -1}, "misfire_grace"),
    ({"cron": "@daily", "on_failure": "retry"}, "on_failure must be 'fail' or 'continue'"),
    ({"on_failure": "continue"}, "on_failure must be left out without an interval or cron"),
    ({"schedule_key": "k"}, "schedule_key must be left out without an interval or cron"),
    ({"interval": 60, "schedule_key": ""}, "schedule_key"),
    ({"interval": 60, "schedule_key": "x" * 201}, "schedule_key"),
]
OF_CALLS: list[tuple[dict[str, Any], str]] = [
    ({"cron": "@daily", "delay": 5}, "delay must be left out with cron"),
    ({"cron": "@daily", "eta": datetime.now(UTC)}, "eta must be left out with cron"),
    ({"cron": "@daily", "unique_key": "k"}, "unique_key must be left out with cron"),
    ({"interval": 60, "schedule_key": "k", "unique_key": "k"}, "unique_key must be left out with schedule_key"),
]


@pytest.mark.parametrize(("options", "said"), BAD)
def test_wrong_schedule_options_are_rejected_where_a_function_is_declared(options: dict[str, Any], said: str) -> None:
    queue = TaskQueue("memory://")
    with pytest.raises(InvalidOption, match=said):
        queue.task(name="job", **options)(print)
    assert list(queue.registry) == []


@pytest.mark.parametrize(("options", "said"), [*BAD, *OF_CALLS])
def test_and_where_a_call_is_made(options: dict[str, Any], said: str) -> None:
    queue = TaskQueue("memory://")
    with queue:
        job = queue.task(name="job")(print)
        with pytest.raises(InvalidOption, match=said):
            job.using(**options)
        assert queue.list() == []


def test_a_function_with_a_schedule_needs_no_arguments() -> None:
    queue = TaskQueue("memory://")
    with pytest.raises(InvalidTask, match=r"would call it without arguments.*using"):

        @queue.task(cron="@daily", name="send")
        def send(to: str) -> None: ...

    @queue.task(cron="@daily", name="send")
    def send_all(to: str = "everybody") -> None: ...


def test_a_time_zone_may_be_an_object_and_is_inherited_from_the_queue() -> None:
    queue = TaskQueue("memory://", timezone=ZoneInfo("Europe/Berlin"))
    queue.task(name="here", cron="@daily")(print)
    queue.task(name="there", cron="@daily", timezone="Asia/Tokyo")(print)
    zones = {}
    for definition in queue.registry:
        task = definition.scheduled(0.0)
        assert task is not None
        assert task.schedule is not None
        zones[definition.func_path] = task.schedule.timezone
    assert zones == {"here": "Europe/Berlin", "there": "Asia/Tokyo"}


def test_the_later_word_counts_between_interval_and_cron() -> None:
    with TaskQueue("memory://") as queue:
        job = queue.task(name="job")(print)
        job.using(interval=5).using(cron="@hourly", schedule_key="k").enqueue()
        (schedule,) = queue.schedules.list()
        assert (schedule.interval, schedule.cron) == (None, "0 * * * *")


@pytest.mark.parametrize(
    ("cron", "words"),
    [
        ("0 0 * * *", "At 00:00 every day (UTC)"),
        ("*/5 9-17 * * MON-FRI", "Every fifth minute from 09:00 through 17:59 on Monday through Friday (UTC)"),
    ],
)
def test_schedules_are_said_in_words(cron: str, words: str) -> None:
    assert describe_schedule(Schedule(cron=cron), None) == words
    assert describe_schedule(None, 90.0) == "90 s after each run"
    assert describe_schedule(None, 60.0) == "1 min after each run"
    assert describe_schedule(None, 7200.0) == "2 h after each run"
    assert describe_schedule(None, 0.5) == "0.5 s after each run"
