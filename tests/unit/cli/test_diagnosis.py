from __future__ import annotations

import os
from typing import Any

import pytest
from msgspec.structs import replace

from bullpen.cli.diagnosis import MANY, Look, diagnose, of_schema
from bullpen.tasks.model.failure_groups import FailureGroup
from bullpen.tasks.model.history import COUNTED, HistoryRow
from bullpen.tasks.model.info import as_datetime
from bullpen.tasks.model.store_move import marked
from bullpen.tasks.model.task import RUNNING, AttemptError, Task
from bullpen.tasks.storage.port import FunctionSet, Limit, Schema, WorkerRecord
from bullpen.tasks.worker.identity import machine

NOW = 10_000.0
WORKER = WorkerRecord(
    id="w", host="box", pid=1, boot_id="another", process_started=0.0, queues=("default",), concurrency=1, seen_at=NOW
)
DEAD = replace(WORKER, id="dead", pid=os.getpid(), boot_id=machine.boot_id(), process_started=1.0)


def task(**fields: Any) -> Task:
    return Task(**{"id": "t", "func_path": "app.send", "payload": b"", "eta": NOW - 5, **fields})


def look(*tasks: Task, many: int | None = None, **fields: Any) -> Look:
    oldest: dict[str, list[Task]] = {}
    for one in tasks:
        oldest.setdefault(one.queue, []).append(one)
    waiting = {queue: many or len(some) for queue, some in oldest.items()}
    found = {"queues": frozenset(oldest), "waiting": waiting, "oldest": oldest}
    return Look(**{"now": NOW, "workers": [WORKER], **found, **fields})


def row(**counts: int) -> HistoryRow:
    return HistoryRow(60, int(NOW) // 60 * 60, "default", "app.send", tuple(counts.get(name, 0) for name in COUNTED))


UNKNOWN = task(errors=(AttemptError(kind="unknown_function", attempt=1, at=NOW),))
SHOP = replace(WORKER, id="shop", functions=(FunctionSet("default", 12, "aa"), FunctionSet("shop", 1, "ab")))
BLOG = replace(WORKER, id="blog", functions=(FunctionSet("default", 3, "bb"),))
MAIL = replace(WORKER, id="mail", functions=(FunctionSet("mail", 3, "cc"),))
SHOP_2 = replace(WORKER, id="shop", queues=("shop", "shop-*"), functions=(FunctionSet("default", 2, "aa"),))
ALL = replace(BLOG, queues=("*",))
EU = task(queue="shop-eu")
RELEASED = task(queue="shop-eu", errors=(AttemptError(kind="unknown_function", attempt=1, at=NOW, worker="blog"),))
GROUP = FailureGroup(
    fingerprint="a1",
    function="app.send",
    queues=("default",),
    count=4,
    first=as_datetime(NOW - 9),
    last=as_datetime(NOW),
    hours=(1, 1, 1, 1),
    example="t",
    kind="exception",
    type="ValueError",
    message="no",
    where="app.py:3 in send",
)
HEAD = task(id="later", concurrency_key="ada", created_at=NOW - 80, eta=NOW - 80)
FIRST = replace(HEAD, id="first", created_at=NOW - 90, status=RUNNING, lease_until=NOW + 60)
FIRST_RETRIES = replace(HEAD, id="first", created_at=NOW - 90, eta=NOW + 900)
HELD = task(status=RUNNING, lease_until=NOW + 60)
STUCK = task(status=RUNNING, lease_until=NOW - 60)


@pytest.mark.parametrize(
    ("seen", "kinds"),
    [
        (look(), []),
        (look(task()), []),
        (look(task(), workers=[]), ["no_workers"]),
        (look(task(), workers=[replace(WORKER, seen_at=NOW - 60)]), ["no_workers", "lost_workers"]),
        (look(task(), workers=[DEAD, WORKER]), ["lost_workers"]),
        (look(task(), workers=[replace(DEAD, seen_at=NOW - 4000), WORKER]), []),
        (look(task(eta=NOW + 60), workers=[]), []),
        (look(task(queue="mail"), task()), ["unserved_queue"]),
        (look(task(queue="mail"), paused=frozenset({"mail", "empty"})), ["paused_queue"]),
        (look(limits=[Limit(queue="mail", max_running=0), Limit(queue="sms", max_running=1)]), ["unreadable_limit"]),
        (look(failures=[GROUP]), []),
        (look(failures=[replace(GROUP, hours=(1, 1, 9, 8))]), ["rising_failures"]),
        (look(failures=[replace(GROUP, kind="poison", type="")]), ["poison"]),
        (look(failures=[replace(GROUP, last=as_datetime(NOW - 6.5 * 86_400))]), ["forgotten_failures"]),
        (look(task(eta=NOW - 90), running=[HELD], limits=[Limit(queue="default", max_running=1)]), ["reached_limit"]),
        (look(task(eta=NOW - 90), running=[HELD], limits=[Limit(queue="default", max_running=2)]), []),
        (look(task(eta=NOW - 9), running=[HELD], limits=[Limit(queue="default", max_running=1)]), []),
        (look(HEAD, limits=[Limit(queue="default", in_order=True)], running=[FIRST]), ["reached_limit"]),
        (look(HEAD, FIRST_RETRIES, limits=[Limit(queue="default", in_order=True)]), ["reached_limit"]),
        (look(HEAD, limits=[Limit(queue="default", in_order=True)]), []),
        (look(HEAD, limits=[Limit(queue="default", max_running_per_key=1)], running=[FIRST]), ["reached_limit"]),
        (look(HEAD, limits=[Limit(queue="default", rate=0.1)]), ["reached_limit"]),
        (look(task(eta=NOW - 9), limits=[Limit(queue="default", rate=0.1)]), []),
        (look(failures=[GROUP], history=[row(success=2, retried=2, failed=1)]), ["failing_function"]),
        (look(failures=[GROUP], history=[row(success=1, failed=1), row(crashed=2)]), ["failing_function"]),
        (look(failures=[GROUP], history=[row(success=4, failed=3)]), []),
        (look(failures=[GROUP], history=[row(failed=2)]), []),
        (look(failures=[replace(GROUP, kind="poison", type="")], history=[row(crashed=3)]), ["poison"]),
        (look(running=[STUCK]), ["expired_leases"]),
        (look(running=[STUCK], workers=[]), ["expired_leases"]),
        (look(running=[replace(STUCK, lease_until=NOW - 5)]), []),
        (look(UNKNOWN), ["unknown_function"]),
        (look(workers=[SHOP, BLOG]), ["shared_queue"]),
        (look(workers=[SHOP, MAIL]), ["shared_queue"]),
        (look(workers=[SHOP, WORKER, replace(SHOP, id="shop-2")]), []),
        (look(workers=[SHOP, replace(BLOG, queues=("blog",))]), []),
        (look(workers=[SHOP, replace(BLOG, queues=("*",))]), ["shared_queue"]),
        (look(workers=[SHOP, replace(BLOG, stopping=True)]), []),
        (look(workers=[SHOP, replace(BLOG, seen_at=NOW - 60)]), ["lost_workers"]),
        (look(EU, workers=[SHOP_2, ALL]), ["shared_queue"]),
        (look(workers=[SHOP_2, ALL]), ["shared_queue"]),
        (look(EU, workers=[SHOP_2, replace(SHOP_2, id="shop-2")]), []),
        (look(workers=[MAIL, replace(MAIL, id="news", functions=(FunctionSet("news", 1, "dd"),))]), []),
        (look(task(eta=NOW - 600), many=MANY), ["backlog"]),
        (look(task(), many=MANY), []),
        (look(task(eta=NOW - 600), many=MANY - 1), []),
        (look(ahead=2.5), ["clock"]),
        (look(ahead=-1.5), []),
        (look(marked(task(), "redis://box", 0.0) or task()), ["moving"]),
    ],
)
def test_what_is_wrong_is_named(seen: Look, kinds: list[str]) -> None:
    assert [one.kind for one in diagnose(seen)] == kinds


def test_findings_that_need_action_are_problems_and_come_first() -> None:
    levels = {one.kind: one.level for one in diagnose(look(running=[STUCK], workers=[]))}
    assert levels == {"expired_leases": "problem"}
    assert [one.level for one in diagnose(look(running=[STUCK]))] == ["warning"]
    assert [one.level for one in diagnose(look(ahead=-40.0))] == ["problem"]
    both = diagnose(look(UNKNOWN, ahead=3.0, paused=frozenset({"default"})))
    assert [one.level for one in both] == ["problem", "warning", "warning"]


def test_what_to_do_is_said_with_the_names_in_it() -> None:
    (one,) = diagnose(look(task(queue="mail"), many=7))
    assert one.message == "7 tasks are pending in the queue 'mail', and no worker serves it"
    assert one.advice == "start one: `bullpen worker APP --queues mail`"


def test_a_function_that_fails_since_a_worker_started_is_named_with_that_worker() -> None:
    seen = look(failures=[GROUP], history=[row(failed=5)], workers=[replace(WORKER, started_at=NOW - 29)])
    (one,) = diagnose(seen)
    assert one.message == (
        "app.send began to fail 9.0 s ago: 5 of 5 attempts since then, the latest with ValueError at app.py:3 in send; "
        "this began 20 s after the worker w started"
    )
    assert one.about == {"function": "app.send", "fingerprint": "a1", "task": "t"}


def test_a_function_that_has_failed_for_long_is_named_with_its_latest_minutes() -> None:
    old = replace(GROUP, first=as_datetime(NOW - 5000))
    (one,) = diagnose(look(failures=[old], history=[row(success=1, failed=4)]))
    assert one.message.startswith("app.send fails: 4 of 5 attempts in the last 10 minutes, the latest with ValueError")


def test_a_deployment_is_found_while_most_attempts_of_the_latest_minutes_are_from_before_it() -> None:
    before = replace(row(success=500), at=int(NOW) // 60 * 60 - 60)
    (one,) = diagnose(look(failures=[GROUP], history=[before, row(success=3, failed=4)]))
    assert one.message.startswith("app.send began to fail 9.0 s ago: 4 of 7 attempts since then")


NEW = replace(GROUP, hours=(0, 0, 4, 8), count=12)


def hour(ago: int, **counts: int) -> HistoryRow:
    return replace(row(**counts), step=3600, at=(int(NOW) // 3600 - ago) * 3600)


@pytest.mark.parametrize(
    ("hours", "kinds"),
    [
        ([hour(0, success=88, failed=12)], ["new_failures"]),  # every eighth attempt
        ([hour(0, success=388, failed=12)], []),  # the usual failures of a shop that has just opened
        ([hour(0, success=388, failed=12), hour(1, success=90)], []),
        ([hour(0, success=388, failed=12), hour(1, success=110)], ["new_failures"]),  # more than 3 were to be expected
        ([], ["new_failures"]),
    ],
)
def test_a_new_cause_is_named_unless_it_may_be_the_usual_noise(hours: list[HistoryRow], kinds: list[str]) -> None:
    found = diagnose(look(failures=[NEW], hours=hours))
    assert [one.kind for one in found] == kinds
    assert all(one.message.startswith("app.send began to fail 9.0 s ago: 12 times with ValueError") for one in found)


def test_poison_is_counted_in_attempts_and_says_that_nothing_runs_it_again() -> None:
    (one,) = diagnose(look(failures=[replace(GROUP, kind="poison", type="", hours=(3,), message="killed by SIGKILL")]))
    assert one.message == "app.send fails as poison: 3 attempts within a day, the latest 0 ms ago: killed by SIGKILL"
    assert "no worker runs such a task again by itself" in one.advice


def test_a_lost_worker_is_named_with_its_machine_and_its_last_heartbeat() -> None:
    (dead,) = diagnose(look(workers=[replace(DEAD, seen_at=NOW - 3), WORKER]))
    pid = os.getpid()
    assert dead.message == f"the worker dead (pid {pid} on box) is dead; its last heartbeat was 3.0 s ago"
    silent = replace(WORKER, id="far", pid=7, seen_at=NOW - 90)
    (one,) = diagnose(look(workers=[silent, WORKER]))
    assert one.message == "the worker far (pid 7 on box) does not answer; its last heartbeat was 90 s ago"
    (both,) = diagnose(look(workers=[silent, DEAD, WORKER]))
    assert both.message == "2 workers are dead, or silent for over 30 s: far, dead"


@pytest.mark.parametrize(
    ("rate", "words"),
    [
        (0.02, "at most one task of 'default' starts every 50 s, and 1 wait"),
        (1.5, "at most 1.5 tasks of 'default' start per second, and 1 wait"),
    ],
)
def test_a_rate_below_one_is_said_in_seconds(rate: float, words: str) -> None:
    (one,) = diagnose(look(HEAD, limits=[Limit(queue="default", rate=rate)]))
    assert one.message.endswith(words)
    assert "if it hangs" not in one.advice  # no task holds a rate


def test_a_limit_that_holds_tasks_back_is_named_with_what_holds_it() -> None:
    seen = look(HEAD, limits=[Limit(queue="default", max_running=1)], running=[replace(FIRST, started_at=NOW - 300)])
    (one,) = diagnose(seen)
    assert one.message == (
        "1 task is pending in the queue 'default' behind its limit, the oldest for 80 s: "
        "1 of at most 1 tasks of 'default' run: app.send first, for 5 min"
    )
    assert one.about == {"queue": "default"}


@pytest.mark.parametrize(
    ("schema", "kinds"),
    [
        (Schema(found=3, known=3), []),
        (Schema(found=0, known=3), ["schema_too_old"]),
        (Schema(found=2, known=3), ["schema_too_old"]),
        (Schema(found=4, known=3), ["schema_too_new"]),
    ],
)
def test_a_schema_of_another_version_is_named(schema: Schema, kinds: list[str]) -> None:
    assert [one.kind for one in of_schema(schema)] == kinds


def test_queues_that_the_same_workers_share_are_one_finding() -> None:
    (found,) = diagnose(look(EU, workers=[SHOP_2, ALL]))
    assert found.message == (
        "workers with different functions serve the queues 'shop', 'shop-eu': shop (2 functions), blog (3 functions)"
    )


def test_doctor_advises_to_cancel_only_tasks_that_no_worker_of_their_queue_may_know() -> None:
    both = {one.kind: one for one in diagnose(look(RELEASED, workers=[SHOP_2, ALL]))}
    assert sorted(both) == ["shared_queue", "unknown_function"]
    found = both["unknown_function"]
    assert (found.level, "cancel" in found.advice) == ("warning", False)
    assert "own queues" in found.advice
    gone = {one.kind: one for one in diagnose(look(RELEASED, workers=[SHOP_2, replace(ALL, id="blog-2")]))}
    assert gone["unknown_function"].level == "warning"  # the worker that released it has no record
    (alone,) = diagnose(look(RELEASED, workers=[ALL, replace(ALL, id="blog-2")]))
    assert (alone.kind, alone.level) == ("unknown_function", "problem")
    assert "start a worker with it" in alone.advice
