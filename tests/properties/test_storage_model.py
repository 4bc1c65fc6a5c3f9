"""Real stores against a plain model of a store, one step at a time.

Time is moved by hand, in steps that are exact in binary, so that every instant can be compared. Workers lose answers,
write long after their tasks are somebody else's, and die; people cancel, retry, delete, pause and limit meanwhile.
"""

from __future__ import annotations

import asyncio
import math
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from bullpen.errors import TaskExists
from bullpen.tasks.model.ids import as_schedule_id
from bullpen.tasks.model.retry import Backoff
from bullpen.tasks.model.schedule import Schedule
from bullpen.tasks.model.store_move import mark_of, marked, through_mark, unmarked
from bullpen.tasks.model.task import (
    NEVER,
    PENDING,
    AttemptError,
    DependsOn,
    Progress,
    ScheduleHold,
    Settlement,
    Step,
    Task,
    TaskStatus,
    cancel,
    crash,
    fail,
    release,
    succeed,
    suspend,
)
from bullpen.tasks.model.unique import RETURN, Duplicates
from bullpen.tasks.storage.memory import MemoryStorage
from bullpen.tasks.storage.port import AttemptKey, Counts, Limit, Storage, TaskFilter
from bullpen.tasks.storage.sqlite.store import SqliteStorage, storage_clock
from tests.properties.storage_model import Model, Row, seen

T = TypeVar("T")

START = 4096.0
QUEUES = ("default", "mail", "cpu")
WORKERS = ("w1", "w2")
FOREVER = 60.0
HOLDS: tuple[ScheduleHold, ...] = ("", "paused", "changed")
DUPLICATES = (Duplicates("replace"), Duplicates("replace", 4.0), Duplicates("reject"))

# One choice for each step, from which all others follow: to let Hypothesis choose every field of every task takes ten
# times as long, and it prefers small ones. What it can still do is to leave out the steps that a failure does not need.
chance = st.randoms(use_true_random=True)


def error_of(task: Task) -> AttemptError:
    return AttemptError(kind="exception", attempt=task.attempt, at=task.started_at or 0.0, type="E", message="ü\0")


def take_back(task: Task, now: float) -> Settlement:
    return crash(task, AttemptError(kind="crash", attempt=task.attempt, at=now))


def _unmarked(task: Task, _: float) -> Task | None:
    return unmarked(task) if task.status is PENDING and mark_of(task) is not None else None


OUTCOMES: list[Callable[[Task], Settlement]] = [
    lambda task: succeed(task, b"result"),
    lambda task: succeed(task, None),
    lambda task: succeed(task, None, "too large"),
    lambda task: fail(task, error_of(task), 0.0),
    lambda task: fail(task, error_of(task), 0.0, retry=False),
    lambda task: fail(task, error_of(task), 0.0, after=2.0),
    lambda task: crash(task, error_of(task)),
    lambda task: suspend(task, (task.started_at or 0.0) + 8.0, "e1"),
    lambda task: suspend(task, NEVER, "e2 ü"),
    release,
    cancel,
    lambda task: replace(
        release(task), delay=None, eta=(task.started_at or 0.0) + 4.0, scheduled_at=1.5, next_run=True
    ),
    lambda task: replace(succeed(replace(task, interval=2.0), b"run"), scheduled_at=2.5, next_run=True),
]


class StorageMachine(RuleBasedStateMachine):
    """What the store answers, and in the end every task, has to be what the model says."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(START)
        self.ids: list[str] = []  # all there ever were
        self.held: list[Task] = []  # as workers know them; maybe not theirs any more
        self.lost_claims: list[str] = []
        self.away: list[Task] = []  # in another store
        self.claims = 0
        self.runner = asyncio.Runner()
        self.store = self.make_store()
        self.run(self.store.open())

    def make_store(self) -> Storage:
        raise NotImplementedError

    def read_clock(self) -> float:
        return self.model.now

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(call)

    def teardown(self) -> None:
        try:
            self.run(self.store.close())
        finally:
            self.runner.close()

    # Producers.

    @initialize(dice=chance)
    def begin(self, dice: Random) -> None:
        self.add(dice)

    @rule(dice=chance)
    def add(self, dice: Random) -> None:
        tasks = [self.new_task(dice) for _ in range(dice.choice((1, 3, 12)))]
        if self.ids and dice.random() < 0.2:
            task_id = dice.choice(self.ids)
            tasks.append(Task(id=task_id, func_path="again", payload=b"", queue=self.queue_for_another(task_id)))
        self.ids = list(dict.fromkeys([*self.ids, *(task.id for task in tasks)]))
        duplicates = dice.choice((RETURN, RETURN, *DUPLICATES))
        expected = self.model.add(tasks, duplicates.policy, duplicates.push_limit)
        if expected is None:
            with pytest.raises(TaskExists):
                self.run(self.store.add(tasks, duplicates))
        else:
            self.same(self.run(self.store.add(tasks, duplicates)), expected)

    @rule(dice=chance)
    def compose(self, dice: Random) -> None:
        """A chain or a group; all of it, or nothing."""
        tasks = self.linked(dice, [replace(self.new_task(dice), interval=None) for _ in range(dice.choice((2, 3, 5)))])
        self.ids += [task.id for task in tasks]
        expected = self.model.add(tasks, "reject")
        if expected is None:
            with pytest.raises(TaskExists):
                self.run(self.store.add(tasks, Duplicates("reject")))
        else:
            self.same(self.run(self.store.add(tasks, Duplicates("reject"))), expected)

    def linked(self, dice: Random, tasks: list[Task]) -> list[Task]:
        if dice.random() < 0.5:
            for number in range(1, len(tasks)):
                tasks[number - 1] = replace(tasks[number - 1], next_task_id=tasks[number].id)
                tasks[number] = replace(tasks[number], depends_on=DependsOn(ids=(tasks[number - 1].id,)), waits_for=1)
            return tasks
        *members, last = tasks
        ids = tuple(task.id for task in members)
        last = replace(
            last, depends_on=DependsOn(ids=ids, many=True, run_always=dice.random() < 0.5), waits_for=len(ids)
        )
        return [*(replace(task, next_task_id=last.id) for task in members), last]

    def queue_for_another(self, task_id: str) -> str:
        """With an id that is there already, maybe in another queue."""
        return "default"

    def new_task(self, dice: Random) -> Task:
        now = self.model.now
        unique_key = dice.choice((None, None, None, "u1", "u2"))
        number = f"{dice.getrandbits(40):010x}"
        return Task(
            id=as_schedule_id(number) if dice.random() < 0.1 else number,
            func_path=dice.choice(("mail", "resize")),
            payload=dice.randbytes(dice.choice((0, 3, 300))),
            codec=dice.choice(("json", "pickle")),
            queue=dice.choice(QUEUES),
            priority=dice.choice((0, 0, 0, 5, 9)),
            eta=dice.choice((0.0, 0.0, -1.0, now - 4, now + 0.5, now + 64)),
            interval=dice.choice((None, None, None, 8.0)),
            max_retries=dice.choice((0, 1, 3)),
            backoff=dice.choice((Backoff(), Backoff(base=0.25, max_delay=8.0))),
            timeout=dice.choice((None, 30.0)),
            expires=dice.choice((None, None, None, now + 1, now + 32)),
            at_most_once=dice.random() < 0.1,
            on_failure=dice.choice(("fail", "continue")),
            result_ttl=dice.choice((None, 0.125, 16.0)),  # after 0.0 a success may be gone at once
            failure_ttl=dice.choice((None, 0.0, 0.125, 16.0)),
            schedule=dice.choice((None, None, Schedule(key="k\0", cron="* * * * *", timezone="Asia/Tokyo"))),
            scheduled_at=dice.choice((None, now + 0.5)),
            unique_key=unique_key,
            unique_scope=dice.choice(("alive", "waiting")) if unique_key else "alive",
            unique_until=dice.choice((None, None, now + 4)) if unique_key else None,
            concurrency_key=dice.choice((None, None, "a", "b")),
            headers=dice.choice(({}, {"trace": "ab\0c"})),
        )

    # Workers.

    @rule(dice=chance)
    def work(self, dice: Random) -> None:
        """Settle and claim. Some answers never arrive: what was settled is settled again some time, and rejected."""
        settlements = [self.outcome(dice, task) for task in self.some(dice, self.held, 5)]
        claimed = self.exchange(dice, settlements, dice.choice((0, 1, 3, 10)))
        if dice.random() < 0.1:
            self.lost_claims.append(f"claim-{self.claims}")
        else:
            self.held += claimed

    @rule(dice=chance)
    def claim_much(self, dice: Random) -> None:
        self.held += self.exchange(dice, [], 100)

    @rule(dice=chance)
    def write_late(self, dice: Random) -> None:
        """Whoever holds a task no longer can write nothing."""
        late = [task for task in self.held if self.model.held(AttemptKey(task.id, task.attempt)) is None]
        holds = {AttemptKey(task.id, task.attempt) for task in late}
        self.exchange(dice, [self.outcome(dice, task) for task in late], 0)
        assert self.run(self.store.renew(list(holds), 64.0)).lost == holds
        for hold in holds:
            assert self.run(self.store.note_progress(hold, Progress(9.0))) is False
            assert self.run(self.store.save_step(hold, Step(name="late", number=9, attempt=hold.attempt))) is False
        self.held = [task for task in self.held if task not in late[5:]]

    def outcome(self, dice: Random, task: Task) -> Settlement:
        if dice.random() < 0.1:
            new = [replace(self.new_task(dice), interval=None) for _ in range(dice.choice((1, 3)))]
            if len(new) > 1:  # a chain or a group has to come whole
                new = self.linked(dice, [replace(child, unique_key=None, unique_until=None) for child in new])
            elif dice.random() < 0.2:  # as a run of a schedule may be that has come before
                task_id = dice.choice(self.ids)
                new = [Task(id=task_id, func_path="again", payload=b"", queue=self.queue_for_another(task_id))]
            self.ids = list(dict.fromkeys([*self.ids, *(task.id for task in new)]))
            return succeed(task, b"parent", children=tuple(new))
        return dice.choice(OUTCOMES)(task)

    def exchange(self, dice: Random, settlements: list[Settlement], limit: int) -> Sequence[Task]:
        self.claims += 1
        claim_id, worker = f"claim-{self.claims}", dice.choice(WORKERS)
        queues, lease = dice.choices(QUEUES, k=dice.choice((1, 2, 4))), dice.choice((4.0, 16.0))
        answer = self.run(
            self.store.exchange(settlements, worker=worker, queues=queues, limit=limit, lease=lease, claim_id=claim_id)
        )
        assert answer.rejected == self.model.settle(settlements)
        self.same(answer.claimed, self.model.claim(worker, queues, limit, lease, claim_id))
        return answer.claimed

    @rule()
    def ask_for_a_lost_claim(self) -> None:
        claim_id = self.lost_claims.pop(0) if self.lost_claims else "never made"
        found = self.run(self.store.find_claim(claim_id))
        self.same_in_any_order(found, self.model.find_claim(claim_id))
        self.held += found

    @rule(dice=chance)
    def renew(self, dice: Random) -> None:
        """And say how far it is."""
        lease = dice.choice((4.0, 16.0))
        holds = [AttemptKey(task.id, task.attempt) for task in self.some(dice, self.held, 5)]
        renewal = self.run(self.store.renew(holds, lease))
        rows = {hold: self.model.held(hold) for hold in holds}
        assert renewal.lost == {hold for hold, row in rows.items() if row is None}
        assert renewal.cancelled == {hold for hold, row in rows.items() if row is not None and row.cancel_requested}
        for hold, row in rows.items():
            progress = Progress(dice.choice((0.0, 2.5)), 4.0, "half ü\0")
            assert self.run(self.store.note_progress(hold, progress)) is (row is not None)
            if row is not None:
                row.lease_until = self.model.now + lease
                row.progress = progress

    @rule(dice=chance)
    def keep_steps(self, dice: Random) -> None:
        for task in self.some(dice, self.held, 5):
            hold = AttemptKey(task.id, task.attempt)
            row = self.model.held(hold)
            number = 1 if row is None else len(row.steps) + 1
            step = Step(name=dice.choice(("a", "ü\0")), number=number, attempt=task.attempt, result=b"\xff")
            assert self.run(self.store.save_step(hold, step)) is (row is not None)
            if row is not None:
                others = (one for one in row.steps if one.name != step.name)
                row.steps = tuple(sorted((*others, step), key=lambda one: (one.number, one.name)))

    @rule(dice=chance)
    def rescue(self, dice: Random) -> None:
        dead, limit = dice.sample(WORKERS, dice.choice((0, 1))), dice.choice((1, 100))
        left_alone = {row.id for row in self.some(dice, self.model.rows, 3)}
        overdue = [row.id for row in self.model.overdue(dead)]
        before = dict(zip(overdue, self.run(self.store.get(overdue)), strict=True))

        def decide(task: Task, now: float) -> Settlement | None:
            assert now == self.model.now
            return None if task.id in left_alone else take_back(task, now)

        rescued = self.run(self.store.rescue_expired(decide, limit=limit, dead_workers=dead))
        ids = {task.id for task in rescued}
        assert ids <= set(overdue) - left_alone
        assert len(ids) == len(rescued) == min(limit, len(set(overdue) - left_alone))
        for task_id in ids:
            task = before[task_id]
            assert task is not None
            assert self.model.settle([take_back(task, self.model.now)]) == set()
        self.same_in_any_order(rescued, [row for row in self.model.rows if row.id in ids])

    @rule(seconds=st.sampled_from([0.25, 1.0, 8.0, 64.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.model.now += seconds

    # People and upkeep.

    @rule(dice=chance)
    def cancel(self, dice: Random) -> None:
        ids = self.some_ids(dice, 5)
        self.same(self.run(self.store.cancel(ids)), self.model.cancel(ids))

    @rule(dice=chance)
    def retry(self, dice: Random) -> None:
        ids = self.some_ids(dice, 20)
        changed = self.run(self.store.retry(ids))  # as each was then: another one may have changed it since
        assert [task.id for task in changed] == [row.id for row in self.model.retry(ids)]

    @rule(dice=chance)
    def change(self, dice: Random) -> None:
        ids, hold = self.some_ids(dice, 5), dice.choice(HOLDS)
        payload = dice.choice((None, b"other"))

        def move(task: Task, now: float) -> Task | None:
            assert now == self.model.now
            if task.is_final:
                return None
            if payload is not None:
                task = replace(task, payload=payload, priority=9, headers={}, max_retries=2)
            waits = {"eta": NEVER, "scheduled_at": 7.0} if task.status is PENDING else {}
            return replace(task, hold=hold, **waits)

        self.same(self.run(self.store.change(ids, through_mark(move))), self.model.change(ids, payload, hold))

    @rule(dice=chance)
    def tend(self, dice: Random) -> None:
        """All that makes tasks fewer."""
        limit = dice.choice((1, 2, 100))
        self.expire(limit)
        self.prune(limit)
        ids = self.some_ids(dice, 3)
        assert self.run(self.store.delete(ids)) == self.model.forget(lambda row: row.id in ids)

    def expire(self, limit: int) -> None:
        late = {row.id for row in self.model.rows if self.model.is_late(row)}
        expired = self.run(self.store.expire(limit=limit))
        ids = [task.id for task in expired]
        assert set(ids) <= late
        self.model.expire(ids)
        left = {row.id for row in self.model.rows if self.model.is_late(row)}
        fell = late - left - set(ids)  # one that is too late takes those behind it along
        assert len(set(ids)) == len(ids) <= min(limit, len(late)) <= len(ids) + len(fell)
        assert {str(task.status) for task in expired} <= {"failed"}  # the rest when all of it has happened

    def prune(self, limit: int) -> None:
        """The oldest of each queue and status first; which of them comes first is the store's choice."""
        old = {row.id: row for row in self.model.rows if self.model.is_old(row)}
        count = self.run(self.store.prune(limit=limit))
        assert count == min(limit, len(old))
        left = {task.id for task in self.run(self.store.list(TaskFilter(), limit=10_000))}
        gone = {row.id for row in self.model.rows} - left
        assert gone <= set(old)
        by_age: dict[tuple[str, str], list[tuple[float, bool]]] = {}
        for row in old.values():
            by_age.setdefault((row.given.queue, row.status), []).append((self.model.ends_at(row), row.id in left))
        for ages in by_age.values():
            oldest = max((at for at, is_left in ages if not is_left), default=-math.inf)
            assert all(at >= oldest for at, is_left in ages if is_left)
        assert self.model.forget(lambda row: row.id in gone) == count
        self.model.prune_events()

    @rule(dice=chance)
    def emit(self, dice: Random) -> None:
        name, ttl = dice.choice(("e1", "e2 ü")), dice.choice((1.0, 64.0))
        assert self.run(self.store.emit(name, b"1", ttl)) is self.model.emit(name, ttl)
        names = [event.name for event in self.run(self.store.events(limit=9))]
        assert names == sorted(self.model.events)

    @rule(dice=chance)
    def move_away(self, dice: Random) -> None:
        """As a mover does: mark what waits, take some along, and bring some back as they were."""
        ids = self.some_ids(dice, 3)
        self.same(self.run(self.store.change(ids, lambda task, _: marked(task, "there", 1.0))), self.model.mark(ids))
        ids = self.some_ids(dice, 3)
        self.same(self.run(self.store.change(ids, _unmarked)), self.model.unmark(ids))
        wanted = [task for task in self.run(self.store.get(self.some_ids(dice, 2))) if task is not None]
        others: list[dict[str, Any]] = [{"eta": 1.0}, {"headers": {"other": "1"}}]
        seen_before = [replace(task, **dice.choice([{}, {}, {}, {}, *others])) for task in wanted]
        removed = self.run(self.store.export_tasks(seen_before))
        assert removed == self.model.export_tasks(seen_before)
        self.away += [task for task in wanted if task.id in removed]
        back = self.some(dice, self.away, 3)
        kept = self.run(self.store.import_tasks(back))
        assert kept == self.model.import_tasks(back)
        self.away = [task for task in self.away if task.id not in kept]

    @rule(dice=chance)
    def govern(self, dice: Random) -> None:
        """Pause a queue, or limit it; more often the other way round."""
        queue = dice.choice(QUEUES)
        if dice.random() < 0.2:
            self.run(self.store.pause(queue))
            self.model.paused.add(queue)
        else:
            self.run(self.store.resume(queue))
            self.model.paused.discard(queue)
        queue = dice.choice(QUEUES)
        limit = Limit(
            queue=queue,
            max_running=dice.choice((None, None, 1, 3, 50)),
            max_running_per_key=dice.choice((None, None, 1, 2)),
            rate=dice.choice((None, None, None, 0.5) if queue == "cpu" else (None, None, None, 1.0, 4.0)),
            in_order=dice.random() < 0.3,
        )
        self.run(self.store.set_limit(limit))
        self.model.limits[limit.queue] = limit
        if limit.rate is None:  # a store forgets the starts of a queue without a rate
            self.model.starts = [start for start in self.model.starts if start[0] != limit.queue]
        assert self.run(self.store.paused()) == self.model.paused
        limits = [self.model.limits[name] for name in sorted(self.model.limits)]
        given = [limit for limit in limits if limit != Limit(queue=limit.queue)]  # which is none
        assert [limit for limit in self.run(self.store.limits()) if limit != Limit(queue=limit.queue)] == given

    @rule(dice=chance)
    def look(self, dice: Random) -> None:
        which = TaskFilter(
            ids=dice.choice((None, tuple(self.some(dice, self.ids, 9)))),
            queues=dice.choice((None, ("mail",), QUEUES)),
            statuses=dice.choice((None, *[(status,) for status in TaskStatus], tuple(TaskStatus), ())),
            func_path=dice.choice((None, "mail")),
            worker=dice.choice((None, "w1")),
        )
        after, limit = dice.choice((None, *self.some(dice, self.ids, 1))), dice.choice((1, 1000))
        expected = [row for row in self.model.fitting(which) if after is None or row.id > after]
        self.same(self.run(self.store.list(which, limit=limit, after=after)), expected[:limit])
        if self.model.may_start(QUEUES):  # whoever waits for that is not left waiting
            self.run(asyncio.wait_for(self.store.wait_for_work(QUEUES, 10 * FOREVER), FOREVER))

    @invariant()
    def every_task_is_what_the_model_says(self) -> None:
        """And there is none that was not added, and none that is missing."""
        tasks, counts = self.run(self.everything())
        self.same(tasks, sorted(self.model.rows, key=lambda row: row.id))
        found = {(queue, status.value): n for queue, of in counts.items() for status, n in of.items() if n}
        assert found == self.model.counts()

    @invariant()
    def a_unique_key_lives_once(self) -> None:
        rows = [row for row in self.model.rows if self.model.has_key(row)]
        keys = [(row.given.queue, row.given.unique_key) for row in rows]
        assert len(keys) == len(set(keys))

    # Small things.

    async def everything(self) -> tuple[Sequence[Task], Counts]:
        return await self.store.list(TaskFilter(), limit=10_000), await self.store.counts()

    @staticmethod
    def some(dice: Random, things: Sequence[T], most: int) -> list[T]:
        """At most so many, each once."""
        return dice.sample(things, min(len(things), dice.randint(0, most)))

    def some_ids(self, dice: Random, most: int) -> list[str]:
        """Also of tasks that are gone; often with those before and behind them, in any order."""
        ids = self.some(dice, self.ids, most)
        if dice.random() < 0.5:
            rows = [row for row in map(self.model.row, self.some(dice, self.ids, 3)) if row is not None]
            linked = [task_id for row in rows for task_id in (row.id, *row.linked)]
            ids = list(dict.fromkeys([*ids, *linked]))
            dice.shuffle(ids)
        return ids

    @staticmethod
    def same(found: Sequence[Task], expected: Sequence[Row]) -> None:
        assert [seen(task) for task in found] == [row.as_seen() for row in expected]

    def same_in_any_order(self, found: Sequence[Task], expected: Sequence[Row]) -> None:
        self.same(sorted(found, key=lambda task: task.id), sorted(expected, key=lambda row: row.id))


class MemoryMachine(StorageMachine):
    def make_store(self) -> Storage:
        return MemoryStorage(self.read_clock)


class SqliteMachine(StorageMachine):
    def make_store(self) -> Storage:
        self.folder = tempfile.TemporaryDirectory()
        path = Path(self.folder.name) / "jobs.db"
        return SqliteStorage(path, synchronous="normal", clock=storage_clock(self.read_clock))

    def teardown(self) -> None:
        super().teardown()
        self.folder.cleanup()


# Fewer lives than usual, but longer ones; and time to find the shortest one that fails.
_profile = settings()
_lives = settings(max_examples=_profile.max_examples // 5, stateful_step_count=_profile.stateful_step_count * 3 // 2)
TestMemoryStorage: Any = MemoryMachine.TestCase
TestMemoryStorage.settings = _lives
TestMemoryStorage.pytestmark = pytest.mark.timeout(600)
TestSqliteStorage: Any = SqliteMachine.TestCase
TestSqliteStorage.settings = _lives
TestSqliteStorage.pytestmark = pytest.mark.timeout(600)
