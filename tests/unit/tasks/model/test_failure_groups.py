"""Rows of failures as groups."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from bullpen.tasks.model.failure_groups import FEW, FailureGroup, FailureRow, failure_of, groups, merged
from bullpen.tasks.model.history import HOUR
from bullpen.tasks.model.task import AttemptError, Task

T0 = 1_800_000_000  # the begin of an hour
TASK = Task(id="1", func_path="app.send", payload=b"[]", queue="mail")


def row(at: float, fingerprint: str = "a", **fields: object) -> FailureRow:
    error = AttemptError(kind="exception", attempt=1, at=at, type="E", message=f"at {at}", fingerprint=fingerprint)
    return replace(failure_of(TASK, error), **fields)


def test_an_attempt_counts_in_the_hour_of_its_error() -> None:
    one = row(T0 + 7.5)
    assert one.key == (T0, "mail", "app.send", "a")
    assert (one.count, one.first, one.last, one.example.task) == (1, T0 + 7.5, T0 + 7.5, "1")


def test_an_error_of_the_store_has_its_kind_as_fingerprint() -> None:
    assert failure_of(TASK, AttemptError(kind="expired", attempt=0, at=T0)).fingerprint == "expired"


def test_merged_rows_have_the_latest_example_in_any_order() -> None:
    early, late = row(T0 + 1.0), row(T0 + 9.0)
    assert merged(early, late) == merged(late, early)
    assert (merged(early, late).count, merged(early, late).example) == (2, late.example)


def test_groups_are_sums_over_hours_and_queues_the_latest_first() -> None:
    rows = [
        row(T0 + 1.0),
        row(T0 + HOUR + 1.0, queue="sms", count=3),
        row(T0 + 2.0, "b"),
    ]
    first, second = groups(rows, since=T0, until=T0 + 2 * HOUR + 5.0)
    assert (first.fingerprint, first.queues, first.count, first.hours) == ("a", ("mail", "sms"), 4, (1, 3, 0))
    assert (first.first.timestamp(), first.last.timestamp()) == (T0 + 1, T0 + HOUR + 1)
    assert first.message == f"at {T0 + HOUR + 1.0}"
    assert (second.fingerprint, second.hours) == ("b", (1, 0, 0))


@pytest.mark.parametrize(
    ("hours", "rising"),
    [
        ((), False),
        ((FEW - 1,), False),
        ((FEW,), True),
        ((0, 0, 4, 6), True),
        ((5, 5, 15, 15), False),
        ((*(0,) * 20, 20, 20, 20), False),
    ],
)
def test_failures_rise_if_they_are_many_and_more_than_before(hours: tuple[int, ...], rising: bool) -> None:
    (group,) = groups([row(T0 + 1.0)], since=T0, until=T0 + 1.0)
    changed: FailureGroup = replace(group, hours=hours)
    assert changed.is_rising is rising


@pytest.mark.parametrize(("hours", "new"), [((), True), ((9,), True), ((0, 4, 6), True), ((1, 0, 4, 6), False)])
def test_a_cause_is_new_if_it_has_no_failures_before_the_latest_two_hours(hours: tuple[int, ...], new: bool) -> None:
    (group,) = groups([row(T0 + 1.0)], since=T0, until=T0 + 1.0)
    assert replace(group, hours=hours).is_new is new
