"""Every invariant catches at least two histories that cannot be, and accepts one that can."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bullpen.testing import check
from bullpen.testing.checker import InvariantBroken
from bullpen.testing.history import HistoryFile, Op, Outcome, Record, Terms, as_lines, read_history
from bullpen.testing.invariants import INVARIANTS

LEASE = 10.0


def rec(op: Op, at: float, task: str = "", attempt: int = 0, actor: str = "w1", **fields: Any) -> Record:
    fields.setdefault("store_at", at)
    return Record(at=at, op=op, actor=actor, task=task, attempt=attempt, **fields)


def enqueue(at: float = 0.0, task: str = "t", outcome: Outcome = "ok", **terms: Any) -> Record:
    since = terms.pop("since", None)
    eta = terms.pop("eta", at if since is None else since)
    return rec("enqueue", at, task, actor="producer", outcome=outcome, eta=eta, since=since, terms=Terms(**terms))


def claim(at: float, attempt: int = 1, task: str = "t", actor: str = "w1", **fields: Any) -> Record:
    return rec("claim", at, task, attempt, actor, **{"lease": LEASE, **fields})


def begin(at: float, attempt: int = 1, task: str = "t", actor: str = "w1") -> Record:
    return rec("begin", at, task, attempt, actor)


def end(at: float, attempt: int = 1, task: str = "t", actor: str = "w1") -> Record:
    return rec("end", at, task, attempt, actor)


def settle(at: float, status: str = "success", attempt: int = 1, task: str = "t", **fields: Any) -> Record:
    if status == "pending":
        fields.setdefault("eta", at)
    return rec("settle", at, task, attempt, **{"status": status, **fields})


def rescue(at: float, attempt: int = 1, task: str = "t", **fields: Any) -> Record:
    fields = {"status": "pending", "eta": at, "owner": "w1", "crashes": 1, "error": "crash", **fields}
    return rec("rescue", at, task, attempt, "w2", **fields)


def renew(at: float, attempt: int = 1, task: str = "t", **fields: Any) -> Record:
    return rec("renew", at, task, attempt, **{"lease": LEASE, **fields})


def worker(at: float, state: str, actor: str = "w1", permits: int = 0, **fields: Any) -> Record:
    return rec("worker", at, actor=actor, state=state, permits=permits, **fields)


def kept(status: str = "success", attempt: int = 1, task: str = "t", at: float = 100.0, **fields: Any) -> Record:
    return rec("kept", at, task, attempt, "store", **{"status": status, "size": 10, "owner": "w1", **fields})


def counts(at: float = 100.0, **by_status: int) -> Record:
    return rec("counts", at, actor="store", counts=by_status)


def cancel(at: float, status: str, task: str = "t") -> Record:
    return rec("cancel", at, task, actor="operator", status=status)


def resources(state: str, at: float, **held: int) -> Record:
    return rec("resources", at, actor="w1", state=state, counts=held)


def run(attempt: int = 1, task: str = "t", at: float = 1.0, **fields: Any) -> list[Record]:
    """One attempt from its claim to its success."""
    return [
        claim(at, attempt, task),
        begin(at + 0.1, attempt, task),
        end(at + 0.2, attempt, task),
        settle(at + 0.3, "success", attempt, task, **fields),
    ]


POISON: dict[str, Any] = {"status": "failed", "error": "poison", "reason": "cannot be decoded"}
RETRY: dict[str, Any] = {"status": "pending", "error": "exception"}

# For each invariant: a history that it accepts, and those that it must catch.
CASES: dict[str, tuple[list[Record], list[list[Record]]]] = {
    "I1": (
        [
            enqueue(),
            *run(),
            enqueue(2, "maybe", "unknown"),
            enqueue(3, "again", interval=5.0),
            *run(1, "again", 4, completed_runs=1),
            kept(),
            kept("pending", 1, "again"),
            counts(success=1, pending=1),
        ],
        [
            [enqueue(), kept("pending", 0), counts(pending=1)],
            [enqueue(), claim(1), kept("running"), counts(running=1)],
            [enqueue(), claim(1), counts()],
            [enqueue(interval=5.0), claim(1), kept("running"), counts(running=1)],
        ],
    ),
    "I2": (
        [enqueue(outcome="unknown"), claim(1), begin(2)],
        [
            [claim(1), begin(2)],
            [enqueue(), begin(2)],
            [enqueue(), claim(1, actor="w2"), begin(2, actor="w1")],
            [claim(1), begin(2), enqueue(3)],
        ],
    ),
    "I3": (
        [enqueue(), *run()],
        [
            [enqueue(), claim(1), settle(2)],
            [enqueue(), claim(1), begin(2), settle(3), end(4)],
            [enqueue(), claim(1), begin(1.1, attempt=2), end(1.2, attempt=2), settle(3)],
            [enqueue(interval=5.0), claim(1), settle(2, "pending", completed_runs=1, eta=7.0)],
        ],
    ),
    "I4": (
        [enqueue(), claim(1), settle(2, "pending"), claim(3, 2), settle(4, "pending", 2), claim(5, 3)],
        [
            [enqueue(), claim(1), settle(2, "pending"), claim(3, 3)],
            [enqueue(), claim(1), settle(2, "pending"), claim(3, 1)],
            [enqueue(), claim(1), settle(2, "pending"), claim(3, 2), kept("failed", 7)],
            [enqueue(), claim(3), claim(1, 2)],
        ],
    ),
    "I5": (
        [
            enqueue(),
            claim(1),
            renew(4),
            claim(14.5, 2, actor="w2"),
            settle(15, "pending", 2),
            claim(16, 3),
            worker(17, "crashed"),
            rescue(18, 3),
            claim(19, 4, actor="w2"),
        ],
        [
            [enqueue(), claim(1), claim(5, 2, actor="w2")],
            [enqueue(), claim(1), renew(8), claim(12, 2, actor="w2")],
            [worker(0, "started"), enqueue(), claim(1), rescue(5), claim(6, 2, actor="w2")],
        ],
    ),
    "I6": (
        [enqueue(), *run(), rec("redrive", 5, "t", eta=5.0, status="pending"), *run(2, at=6)],
        [
            [enqueue(), claim(1), settle(2), settle(3, "failed")],
            [enqueue(), *run(), rec("expire", 9, "t", 1, status="failed")],
            [enqueue(), *run(), claim(20, 2)],
        ],
    ),
    "I7": (
        [
            enqueue(),
            claim(1),
            rescue(12),
            claim(13, 2, actor="w2"),
            settle(14, outcome="rejected"),
            renew(15, outcome="rejected"),
            settle(16, attempt=2, actor="w2"),
        ],
        [
            [enqueue(), claim(1), claim(13, 2, actor="w2"), settle(14)],
            [enqueue(), claim(1), rescue(12), claim(13, 2, actor="w2"), renew(14)],
            [enqueue(), claim(1), rescue(12), settle(13)],
            [enqueue(), claim(1), settle(2), settle(3)],
        ],
    ),
    "I8": (
        [
            worker(0, "started"),
            enqueue(),
            claim(1),
            begin(2),
            claim(12, 2, actor="w2"),
            begin(13, 2, actor="w2"),
            end(14, 2),
            rec("abandon", 15, "t", 2, "w2"),
            claim(16, 3),
            begin(16.5, 3),
        ],
        [
            [worker(0, "started"), enqueue(), claim(1), begin(2), claim(5, 2, actor="w2"), begin(6, 2, actor="w2")],
            [
                worker(0, "started"),
                enqueue(),
                claim(1),
                begin(2),
                renew(8),
                settle(9, "pending"),
                claim(12, 2, actor="w2"),
                begin(13, 2, actor="w2"),
                end(14),
            ],
        ],
    ),
    "I9": (
        [
            worker(0, "started", permits=1),
            rec("limit", 0, queue="default", permits=1, per_key=1, rate=1.0),
            *run(1, "a", 1),
            *run(1, "b", 2),
            claim(3, task="c"),
        ],
        [
            [worker(0, "started", permits=1), claim(1, task="a"), claim(2, task="b")],
            [worker(0, "started", permits=1), begin(1, task="a"), begin(2, task="b")],
            [rec("limit", 0, queue="default", permits=1), claim(1, task="a"), claim(2, task="b", actor="w2")],
            [
                rec("limit", 0, queue="q", per_key=1),
                enqueue(0, "a", queue="q", concurrency_key="k"),
                enqueue(0, "b", queue="q", concurrency_key="k"),
                claim(1, task="a"),
                claim(2, task="b"),
            ],
            [rec("limit", 0, queue="default", rate=1.0), *run(1, "a", 1), *run(1, "b", 1.5)],
        ],
    ),
    "I10": (
        [
            enqueue(max_retries=1),
            claim(1),
            begin(1.1),
            settle(2, failures=1, **RETRY),
            claim(3, 2),
            settle(4, "pending", 2, failures=1),
            claim(5, 3),
            rescue(16, 3, failures=1),
            claim(17, 4),
            settle(18, "failed", 4, failures=2, crashes=1, error="exception"),
        ],
        [
            [enqueue(), claim(1), settle(2, "failed", failures=2, error="exception")],
            [enqueue(max_retries=3), claim(1), settle(2, "pending", failures=1)],
            [enqueue(max_retries=3), claim(1), settle(2, failures=0, **RETRY)],
            [enqueue(), claim(1), rescue(12, crashes=4)],
            [enqueue(), claim(1), rescue(12, crashes=1, error="")],
            [enqueue(at_most_once=True), claim(1), begin(2), settle(3, "pending"), claim(4, 2), begin(5, 2)],
        ],
    ),
    "I11": (
        [
            *(enqueue(eta=5.0), claim(5), settle(6, "pending", eta=8.0), claim(8, 2)),
            *(enqueue(task="s", expires=5.0), claim(1, task="s")),  # it sleeps
            *(settle(2, "pending", task="s", eta=8.0, suspended=True), claim(8, 2, task="s")),
            *(enqueue(task="u", expires=5.0), claim(1, task="u")),  # its worker has died: it may sleep
            *(settle(2, "", task="u", outcome="unknown"), claim(8, 2, task="u")),
        ],
        [
            [enqueue(eta=5.0), claim(4)],
            [enqueue(expires=5.0), claim(1), settle(2, "pending", eta=8.0), claim(8, 2)],
            [enqueue(), claim(1), settle(2, "pending", eta=8.0), claim(3, 2)],
            [enqueue(expires=5.0), claim(6)],
        ],
    ),
    "I12": (
        [
            enqueue(0, "a", unique_key="k"),
            enqueue(0.5, "b", "rejected", unique_key="k"),
            *run(1, "a"),
            enqueue(3, "c", unique_key="k"),
            kept(task="a"),
            kept("pending", 0, "c"),
        ],
        [
            [enqueue(0, "a", unique_key="k"), enqueue(1, "b", unique_key="k")],
            [
                enqueue(0, "a", unique_key="k"),
                *run(1, "a"),
                enqueue(3, "b", unique_key="k"),
                rec("redrive", 4, "a", eta=4.0, status="pending"),
            ],
        ],
    ),
    "I13": (
        [
            enqueue(0, "a", schedule="s", tick=60.0),
            *run(1, "a", 1),
            enqueue(60, "b", schedule="s", tick=120.0),
            enqueue(interval=30.0),
            claim(1),
            settle(2, "pending", completed_runs=1, eta=32.0),
            claim(32, 2),
            settle(33, "pending", 2, completed_runs=2, eta=63.0),
        ],
        [
            [enqueue(0, "a", schedule="s", tick=60.0), *run(1, "a"), enqueue(3, "b", schedule="s", tick=60.0)],
            [enqueue(0, "a", schedule="s", tick=60.0), enqueue(1, "b", schedule="s", tick=120.0)],
            [enqueue(interval=30.0), claim(1), settle(2, "pending", completed_runs=1, eta=3.0), claim(4, 2)],
            [enqueue(interval=30.0), claim(1), settle(2, "pending", completed_runs=2, eta=32.0)],
        ],
    ),
    "I14": (
        [
            enqueue(0, "a"),
            enqueue(0, "b", priority=5),
            enqueue(0, "later", eta=9.0, priority=9),
            enqueue(0, "elsewhere", queue="other", priority=9),
            claim(1, task="b"),
            claim(1, task="a"),
        ],
        [
            [enqueue(0, "a"), enqueue(0, "b", priority=5), claim(1, task="a")],
            [enqueue(0, "a"), enqueue(1, "b"), claim(2, task="b")],
            [enqueue(0, "a"), enqueue(0, "b"), claim(1, task="b")],
            [enqueue(0, "a", eta=3.0), enqueue(0, "b", eta=2.0), claim(4, task="a")],
        ],
    ),
    "I15": (
        [
            enqueue(),
            claim(1),
            cancel(2, "running"),
            begin(3),
            settle(4, "cancelled"),
            rec("redrive", 5, "t", eta=5.0, status="pending"),
            claim(6, 2),
            begin(7, 2),
        ],
        [
            [enqueue(), cancel(1, "cancelled"), claim(2)],
            [enqueue(), claim(1), cancel(2, "running"), settle(3, "pending"), claim(4, 2)],
            [enqueue(), cancel(1, "cancelled"), begin(2)],
        ],
    ),
    "I16": (
        [
            worker(0, "started"),
            worker(0, "started", "w2"),
            enqueue(),
            claim(1),
            worker(2, "crashed"),
            rescue(11.5),
            kept(at=99),
        ],
        [
            [worker(0, "started", "w2"), enqueue(), claim(1), worker(2, "crashed"), rescue(60)],
            [worker(0, "started", "w2"), enqueue(), claim(1), worker(2, "crashed"), kept("running", at=60)],
            [
                worker(0, "started", "w2"),
                enqueue(),
                claim(1),
                worker(2, "crashed"),
                rec("fault", 30, state="calm"),
                kept("running", at=60),
            ],
        ],
    ),
    "I17": (
        [enqueue(), *run(), enqueue(2, "u"), claim(3, task="u"), worker(20, "stopped")],
        [
            [enqueue(), claim(1), worker(3, "stopped")],
            [enqueue(), claim(1), renew(15), worker(20, "stopped"), settle(21)],
        ],
    ),
    "I18": (
        [
            enqueue(in_transaction=True),
            rec("row", 9, "t", 2),
            kept(),
            enqueue(0, "u", in_transaction=True),
            kept("failed", task="u"),
            enqueue(0, "v"),
            kept(task="v"),
        ],
        [
            [enqueue(in_transaction=True), rec("row", 9, "t", 1), rec("row", 9, "t", 2), kept()],
            [enqueue(in_transaction=True), kept()],
            [enqueue(in_transaction=True), rec("row", 9, "t", 1), kept("failed")],
        ],
    ),
    "I19": (
        [kept(**POISON), kept("failed", task="u", error="exception")],
        [
            [kept(**{**POISON, "reason": ""})],
            [kept(**POISON, size=0)],
            [kept(**POISON, owner="")],
        ],
    ),
    "I20": (
        [
            enqueue(),
            enqueue(1, "u", "unknown"),
            enqueue(2, "gone"),
            rec("forget", 3, count=1),
            kept(),
            kept("pending", 0, "u"),
            counts(success=1, pending=1, running=0),
        ],
        [
            [enqueue(), kept(), counts(success=2)],
            [enqueue(), enqueue(1, "u"), kept(), counts(success=1)],
            [enqueue(), kept(), kept("pending", 0, "never"), counts(success=1, pending=1)],
            [enqueue(), rec("forget", 3, count=1), kept(), counts(success=1)],
        ],
    ),
    "I21": (
        [resources("before", 0, fds=5, threads=3, rss=1 << 27), resources("after", 9, fds=5, threads=2, rss=130 << 20)],
        [
            [resources("before", 0, fds=5), resources("after", 9, fds=6)],
            [resources("before", 0, threads=3, children=0), resources("after", 9, threads=3, children=1)],
            [resources("before", 0, rss=1 << 27), resources("after", 9, rss=1 << 28)],
        ],
    ),
    "I22": (
        [
            enqueue(),
            rec("step", 1, task="t", attempt=1, step="charge"),
            rec("step", 2, task="t", attempt=1, step="charge"),  # its answer was lost
            rec("step", 3, task="t", attempt=2),  # a wait begins
            rec("step", 4, task="t", attempt=3, step="event approved"),
            rec("step", 5, task="t", attempt=2, step="ship", outcome="rejected"),
            rec("step", 6, task="t", attempt=3, step="ship"),
            rec("step", 7, task="u", attempt=1, step="charge"),
        ],
        [
            [enqueue(), *(rec("step", at, task="t", attempt=at, step="charge") for at in (1, 2))],
            [enqueue(), *(rec("step", at, task="t", attempt=at, step="event approved") for at in (1, 3))],
        ],
    ),
}


def test_every_invariant_is_here_with_two_bad_histories() -> None:
    assert list(INVARIANTS) == [f"I{number}" for number in range(1, 23)] == list(CASES)
    assert all(len(bad) >= 2 for _, bad in CASES.values())
    assert all(invariant.__doc__ for invariant in INVARIANTS.values())


@pytest.mark.parametrize("invariant", CASES)
def test_a_history_that_can_be_is_accepted(invariant: str) -> None:
    good, _ = CASES[invariant]
    check(good, only=[invariant]).raise_for_violations()


@pytest.mark.parametrize(
    ("invariant", "bad"), [(name, bad) for name, (_, bads) in CASES.items() for bad in bads], ids=lambda case: case
)
def test_a_history_that_cannot_be_is_caught(invariant: str, bad: list[Record]) -> None:
    verdict = check(bad, only=[invariant])
    assert verdict.broken == {invariant}
    assert all(violation.records for violation in verdict.violations)
    with pytest.raises(InvariantBroken, match=invariant) as raised:
        verdict.raise_for_violations()
    assert str(verdict.violations[0].records[-1]) in str(raised.value)  # the report shows the offending events


def test_an_ordinary_life_breaks_nothing() -> None:
    history = [worker(0, "started", permits=1), enqueue(), *run(), worker(3, "stopped"), kept(), counts(success=1)]
    assert check(history).violations == ()


# What nobody knows may count either way.

UNSURE: dict[str, list[Record]] = {
    "a lease that may have been given back": [
        enqueue(),
        claim(1),
        settle(2, "pending", outcome="unknown"),
        claim(3, 2, actor="w2"),
    ],
    "an attempt that may have been claimed by somebody who was killed": [
        enqueue(),
        rec("claim", 1, outcome="unknown", call="c1"),
        claim(20, 2),
    ],
    "a task that may have been taken back by somebody who was killed": [
        enqueue(),
        claim(1),
        rec("rescue", 2, actor="w3", outcome="unknown", call="c1"),
        claim(3, 2, actor="w2"),
    ],
    "a limit under which there may have been room again": [
        rec("limit", 0, queue="default", permits=1),
        enqueue(task="a"),
        enqueue(task="b"),
        claim(1, task="a"),
        rec("rescue", 2, actor="w3", outcome="unknown", call="c1"),
        claim(3, task="b", actor="w2"),
    ],
    "a failure that may have been counted by somebody who was killed": [
        enqueue(max_retries=3),
        claim(1),
        settle(2, outcome="unknown", failures=1, **RETRY),
        claim(3, 2, actor="w2"),
        settle(4, attempt=2, failures=2, **RETRY),
    ],
    "a producer that hears of its task when that has failed already": [
        claim(1, since=0.9),
        begin(1.1),
        settle(2, since=1.9, failures=1, **RETRY),
        enqueue(2.5, max_retries=3, since=0.0),
        claim(3, 2, since=2.9),
        settle(4, attempt=2, since=3.9, failures=2, **RETRY),
    ],
    "a run that may have been completed by somebody who was killed": [
        enqueue(interval=5.0),
        claim(1),
        settle(2, "pending", completed_runs=1, eta=7.0, outcome="unknown"),
        claim(8, 2, actor="w2"),
        settle(9, "pending", 2, completed_runs=1),
    ],
    "two writes of which nobody knows which came first": [
        enqueue(),
        claim(1),
        claim(13, 2, actor="w2", since=11.0),
        settle(14, "pending", since=10.0),
    ],
}


@pytest.mark.parametrize("history", UNSURE.values(), ids=UNSURE)
def test_what_may_have_been_is_no_violation(history: list[Record]) -> None:
    assert check(history).violations == ()


def test_a_question_with_an_answer_is_no_doubt() -> None:
    asked = rec("rescue", 2, actor="w3", outcome="unknown", call="c1")
    answered = rec("rescue", 2.1, actor="w3", outcome="rejected", call="c1")
    history = [enqueue(), claim(1), asked, answered, claim(3, 2, actor="w2")]
    assert check(history).broken >= {"I5"}


def test_an_unknown_invariant_is_rejected() -> None:
    with pytest.raises(ValueError, match="I99"):
        check([], only=["I99"])


# Files.


def test_files_of_several_processes_are_merged_in_the_order_of_time(tmp_path: Path) -> None:
    paths = [tmp_path / "one", tmp_path / "two"]
    files = [HistoryFile(path) for path in paths]
    records = [enqueue(), *run()]
    for number, record in enumerate(records):
        files[number % 2](record)
    for file in files:
        file.close()
    with paths[1].open("ab") as torn:
        torn.write(b'{"at":7,"op":"cla')  # the process was killed
    assert read_history(*paths) == records


@pytest.mark.parametrize("make", [lambda: enqueue(unique_key="k"), lambda: counts(success=1), lambda: claim(1)])
def test_a_record_is_one_line_that_comes_back(make: Callable[[], Record], tmp_path: Path) -> None:
    record = make()
    (tmp_path / "file").write_bytes(line := as_lines([record]))
    assert line.count(b"\n") == 1
    assert read_history(tmp_path / "file") == [record]
