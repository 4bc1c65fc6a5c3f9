"""Whatever happens to tasks, the SQLite store and the reference store say the same."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bullpen.storage.memory import MemoryStorage
from bullpen.storage.port import Hold, Limit, Storage, TaskFilter
from bullpen.storage.sqlite.store import SqliteStorage, storage_clock
from bullpen.tasks.retry import Backoff
from bullpen.tasks.task import Progress, Settlement, Task, TaskError, TaskStatus, cancel, crash, fail, release, succeed

QUEUES = ("default", "mail", "cpu")
KEYS = (None, None, "a", "b", "c")


class Clock:
    """Steps that are exact in binary, so that both stores compute the same instants."""

    def __init__(self) -> None:
        self.time = 4096.0

    def __call__(self) -> float:
        return self.time


class Life:
    """Random verbs on both stores at once. Every answer, and in the end every task, has to be the same."""

    def __init__(self, seed: int, reference: Storage, store: Storage, clock: Clock) -> None:
        self.rng = random.Random(seed)
        self.stores = (reference, store)
        self.clock = clock
        self.ids: list[str] = []
        self.held: list[Task] = []
        self.old: list[Task] = []

    async def live(self, steps: int) -> None:
        verbs = [self.add] * 6 + [self.exchange] * 8 + [self.wait] * 3
        verbs += [self.renew, self.rescue, self.cancel, self.retry, self.delete, self.expire, self.prune]
        verbs += [self.pause, self.limit, self.progress, self.look]
        for _ in range(steps):
            await self.rng.choice(verbs)()
        await self.look()

    async def add(self) -> None:
        rng = self.rng
        tasks = [self.new_task() for _ in range(rng.choice((1, 1, 2, 5, 20)))]
        if self.ids and rng.random() < 0.2:
            tasks.append(Task(id=rng.choice(self.ids), func_path="again", payload=b""))
        self.ids += [task.id for task in tasks]
        await self.same("add", tasks)

    def new_task(self) -> Task:
        rng = self.rng
        now = self.clock.time
        return Task(
            id=f"{rng.getrandbits(40):010x}",
            func_path=rng.choice(("mail", "resize")),
            payload=rng.randbytes(rng.choice((0, 3, 300))),
            codec=rng.choice(("json", "pickle")),
            queue=rng.choice(QUEUES),
            priority=rng.choice((0, 0, 0, 5, 9)),
            eta=rng.choice((0.0, 0.0, -1.0, now - 4, now + 0.5, now + 64)),
            interval=rng.choice((None, None, None, 8.0)),
            max_retries=rng.choice((0, 1, 3)),
            backoff=rng.choice((Backoff(), Backoff(base=0.25, max_delay=float("inf")))),
            timeout=rng.choice((None, 30.0)),
            expires=rng.choice((None, None, None, now + 1, now + 32)),
            at_most_once=rng.random() < 0.1,
            on_failure=rng.choice(("fail", "continue")),
            result_ttl=rng.choice((None, 0.0, 16.0, 86_400.0)),
            unique_key=rng.choice((None, None, None, "u1", "u2")),
            concurrency_key=rng.choice(KEYS),
            headers=rng.choice(({}, {"trace": "ab\0c"})),
        )

    async def exchange(self) -> None:
        rng = self.rng
        rng.shuffle(self.held)
        count = rng.randint(0, len(self.held))
        settlements = [self.settlement(task) for task in self.held[:count]]
        if self.old and rng.random() < 0.3:
            settlements.append(succeed(rng.choice(self.old), b"late"))
        rng.shuffle(settlements)
        self.old += self.held[:count]
        del self.held[:count]
        answer = await self.same(
            "exchange",
            settlements,
            worker=rng.choice(("w1", "w2")),
            queues=rng.sample(QUEUES, rng.randint(1, 3)),
            limit=rng.choice((0, 1, 3, 10, 100)),
            lease=rng.choice((4.0, 16.0)),
            claim_id=f"claim-{rng.getrandbits(32)}",
        )
        self.held += answer.claimed
        if answer.claimed:
            await self.same_tasks("find_claim", answer.claimed[0].claim_id)

    def settlement(self, task: Task) -> Settlement:
        rng = self.rng
        error = TaskError(
            kind="exception", attempt=task.attempt, at=self.clock.time, type="E", message="ü\0", worker="w"
        )
        return rng.choice(
            (
                succeed(task, rng.choice((None, b"", b"result"))),
                succeed(task, None, "too large"),
                fail(task, error, luck=0.0),
                fail(task, error, luck=0.0, after=2.0),
                crash(task, error),
                release(task),
                cancel(task),
            )
        )

    async def wait(self) -> None:
        self.clock.time += self.rng.choice((0.25, 1.0, 8.0, 64.0))

    async def renew(self) -> None:
        holds = (
            [Hold(task.id, task.attempt) for task in self.rng.sample(self.held + self.old[-3:], 1)] if self.held else []
        )
        await self.same("renew", holds, 16.0)

    async def progress(self) -> None:
        for task in self.held[:1]:
            await self.same("note_progress", Hold(task.id, task.attempt), Progress(1.0, None, "half"))

    async def rescue(self) -> None:
        def decide(task: Task, now: float) -> Settlement:
            return crash(task, TaskError(kind="crash", attempt=task.attempt, at=now))

        dead = self.rng.choice(((), ("w1",)))
        rescued = await self.same_tasks("rescue_expired", decide, limit=1000, dead_workers=dead)
        gone = {task.id for task in rescued}
        self.old += [task for task in self.held if task.id in gone]
        self.held = [task for task in self.held if task.id not in gone]

    async def cancel(self) -> None:
        await self.same("cancel", self.some())

    async def retry(self) -> None:
        await self.same("retry", self.some())

    async def delete(self) -> None:
        await self.same("delete", self.some())

    async def expire(self) -> None:
        await self.same_tasks("expire", limit=1000)

    async def prune(self) -> None:
        await self.same("prune", limit=1000)

    async def pause(self) -> None:
        await self.same(self.rng.choice(("pause", "resume", "resume")), self.rng.choice(QUEUES))
        await self.same("paused")

    async def limit(self) -> None:
        rng = self.rng
        limit = Limit(
            queue=rng.choice(QUEUES),
            max_running=rng.choice((None, 0, 3, 50)),
            max_running_per_key=rng.choice((None, 1, 2)),
            rate=rng.choice((None, None, 0.5, 4.0)),
        )
        await self.same("set_limit", limit)

    async def look(self) -> None:
        await self.same("get", [*self.some(), "no such task"])
        rng = self.rng
        which = TaskFilter(
            ids=rng.choice((None, tuple(self.some()))),
            queues=rng.choice((None, ("mail",), QUEUES)),
            statuses=rng.choice((None, *[(status,) for status in TaskStatus], tuple(TaskStatus), ())),
            func_path=rng.choice((None, "mail")),
            worker=rng.choice((None, "w1")),
        )
        await self.same("list", which, limit=rng.choice((1, 1000)), after=rng.choice((None, *self.some()[:1])))
        everything = await self.same("list", TaskFilter(), limit=100_000)
        assert len(everything) <= len(self.ids)
        reference, found = [await store.counts() for store in self.stores]
        assert {(q, s): n for q in found for s, n in found[q].items() if n} == {
            (q, s): n for q in reference for s, n in reference[q].items() if n
        }

    def some(self) -> list[str]:
        return self.rng.sample(self.ids, min(len(self.ids), self.rng.choice((0, 1, 5))))

    async def same(self, verb: str, *args: object, **options: object) -> Any:
        expected, found = [await getattr(store, verb)(*args, **options) for store in self.stores]
        if isinstance(expected, Sequence) and not isinstance(expected, str):
            expected, found = list(expected), list(found)
        assert found == expected, verb
        return found

    async def same_tasks(self, verb: str, *args: object, **options: object) -> list[Task]:
        """In any order."""
        expected, found = [
            sorted(await getattr(store, verb)(*args, **options), key=lambda task: task.id) for store in self.stores
        ]
        assert found == expected, verb
        return found


@pytest.mark.parametrize("seed", range(12))
def test_the_store_says_what_the_reference_says(seed: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    more = 10 if request.config.getoption("--thorough") else 1

    async def compare(seed: int) -> None:
        clock = Clock()
        store = SqliteStorage(tmp_path / f"{seed}.db", synchronous="normal", clock=storage_clock(clock))
        await store.open()
        try:
            await Life(seed, MemoryStorage(clock), store, clock).live(steps=250)
        finally:
            await store.close()

    for number in range(more):
        asyncio.run(compare(seed + 1000 * number))
