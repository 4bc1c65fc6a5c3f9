"""What a worker counts, and in which minute."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from bullpen.tasks.model.history import COUNTED, HOUR, MINUTE, HistoryRow
from bullpen.tasks.model.task import (
    RUNNING,
    AttemptError,
    Settlement,
    Task,
    cancel,
    crash,
    fail,
    outcome_of,
    postpone,
    release,
    succeed,
)
from bullpen.tasks.worker.history_tally import MOST_NAMES, OTHERS, HistoryBacklog, HistoryTally

T0 = 1_800_000_000.0  # the begin of a minute and an hour


def running(**fields: Any) -> Task:
    known: dict[str, Any] = {"id": "1", "func_path": "f", "payload": b"[]", "status": RUNNING, "queue": "q"}
    return Task(**(known | {"attempt": 1, "created_at": T0, "eta": T0, "started_at": T0 + 1} | fields))


def error(kind: Any = "exception") -> AttemptError:
    return AttemptError(kind=kind, attempt=1, at=T0)


def rows_of(*tallies: HistoryTally, now: float = T0) -> list[HistoryRow]:
    backlog = HistoryBacklog()
    for tally in tallies:
        backlog.add(tally.take())
    return backlog.rows(now)


def counts(row: HistoryRow) -> dict[str, int]:
    return {name: count for name, count in zip(COUNTED, row.counts, strict=False) if count}


def test_a_task_is_enqueued_in_the_minute_in_which_it_was_added() -> None:
    tally = HistoryTally()
    tally.begun([running(created_at=T0 - 90, eta=T0 - 90)])
    early, late, *hours = rows_of(tally)
    assert (early.at, counts(early)) == (T0 - 120, {"enqueued": 1})
    assert (late.at, counts(late)) == (T0, {"started": 1})
    assert sum(late.waits) == 1
    assert [(row.step, row.at) for row in hours] == [(HOUR, T0 - HOUR), (HOUR, T0)]


def test_a_later_attempt_is_not_enqueued_again() -> None:
    tally = HistoryTally()
    tally.begun([running(attempt=2)])
    assert counts(rows_of(tally)[0]) == {"started": 1}


def test_an_attempt_ends_in_the_minute_of_its_end() -> None:
    tally, task = HistoryTally(), running()
    tally.begun([task])
    tally.ended([(task, succeed(task, b"1"), 100.0, T0 + 101)])
    begun, ended = rows_of(tally)[:2]
    assert (begun.at, counts(begun)) == (T0, {"enqueued": 1, "started": 1})
    assert (ended.at, counts(ended)) == (T0 + MINUTE, {"success": 1})
    assert (sum(begun.runs), sum(ended.runs)) == (0, 1)


def test_each_settlement_has_one_outcome() -> None:
    task, again = running(), running(max_retries=3)
    expected: dict[str, Settlement] = {
        "success": succeed(replace(task, interval=5.0), b"1"),
        "failed": fail(task, error(), 0.5),
        "retried": fail(again, error(), 0.5),
        "cancelled": cancel(task),
        "crashed": crash(task, error("crash")),
        "released": release(task),
    }
    assert {name: outcome_of(task, settlement) for name, settlement in expected.items()} == {
        name: name for name in expected
    }
    assert outcome_of(task, crash(replace(task, crashes=2), error("crash"))) == "crashed"
    assert outcome_of(task, crash(replace(task, at_most_once=True), error("crash"))) == "crashed"
    assert outcome_of(task, postpone(task, error("unknown_function"), 0.5, give_up_after=60)) == "released"
    every = replace(task, interval=5.0, on_failure="continue")
    assert outcome_of(every, fail(every, error(), 0.5)) == "failed"


def test_a_postponed_task_has_not_failed_until_it_is_given_up() -> None:
    tally, task = HistoryTally(), running()
    tally.ended([(task, postpone(task, error("unknown_function"), 0.5, give_up_after=60), None, T0 + 1)])
    counted = tally.take()
    assert counted is not None
    assert not counted.failures
    tally.ended([(task, postpone(task, error("unknown_function"), 0.5, give_up_after=0), None, T0 + 1)])
    counted = tally.take()
    assert counted is not None
    assert [row.example.kind for row in counted.failures.values()] == ["unknown_function"]


def test_an_expired_task_was_enqueued() -> None:
    tally = HistoryTally()
    tally.found(running(attempt=0, started_at=None), "expired", T0 + 5)
    assert counts(rows_of(tally)[0]) == {"enqueued": 1, "expired": 1}


def test_names_that_are_made_from_data_are_counted_together() -> None:
    tally = HistoryTally()
    for number in range(MOST_NAMES + 20):
        tally.begun([running(queue=f"q{number}")])
    minutes = [row for row in rows_of(tally) if row.step == MINUTE]
    assert len(minutes) == MOST_NAMES + 1
    (others,) = (row for row in minutes if row.queue == OTHERS)
    assert (others.function, counts(others)) == (OTHERS, {"enqueued": 20, "started": 20})


def test_tallies_are_added_and_minutes_that_are_kept_no_longer_are_left_out() -> None:
    one, other = HistoryTally(), HistoryTally()
    one.begun([running()])
    other.begun([running()])
    assert [counts(row) for row in rows_of(one, other)] == [{"enqueued": 2, "started": 2}] * 2
    one.begun([running()])
    assert [row.step for row in rows_of(one, now=T0 + 2 * 86_400)] == [HOUR]


def test_a_tally_begins_anew() -> None:
    tally = HistoryTally()
    tally.begun([running()])
    assert tally.take()
    assert not tally.take()
