"""A large group is cancelled and retried in few steps: its callback is read and written once for many members."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bullpen import TaskQueue, TaskStatus, group
from bullpen.tasks.storage.postgres.task_table import PostgresTaskTable
from bullpen.tasks.storage.sqlite.task_table import SqliteTaskTable
from tests.stores import KINDS, new_store

MEMBERS = 500
FEW = 40  # statements; one for each member would be many


def nothing(number: int = 0) -> None: ...


@pytest.mark.parametrize("kind", KINDS)
def test_a_large_group_is_cancelled_and_retried_in_few_steps(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: Counter[str] = Counter()

    def counted(name: str, method: Any) -> Any:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            steps[name] += 1
            return method(self, *args, **kwargs)

        return call

    with new_store(kind, tmp_path, request) as address, TaskQueue(address) as queue:
        member, callback = queue.task(name="member")(nothing), queue.task(name="callback")(nothing)
        job = group(member.call(number) for number in range(MEMBERS)).then(callback.call()).enqueue()
        assert queue.cancel(job.members[0].id) == 1
        assert job.status is TaskStatus.CANCELLED
        if kind == "postgres":
            for name in ("fetch", "execute"):
                monkeypatch.setattr(PostgresTaskTable, name, counted(name, getattr(PostgresTaskTable, name)))
        read = SqliteTaskTable._read
        monkeypatch.setattr(
            SqliteTaskTable,
            "_read",
            lambda self, task_id: steps.update(callback=task_id == job.id) or read(self, task_id),
        )
        assert queue.cancel_all() == MEMBERS - 1
        assert queue.retry_all(status="cancelled", name="member") == MEMBERS
        assert max(steps.values(), default=0) < FEW
        info = job.info()
        assert (info.status, info.waits_for) == (TaskStatus.PENDING, MEMBERS)
        assert queue.cancel_all(name="member") == MEMBERS
        assert job.status is TaskStatus.CANCELLED
        assert queue.retry(*(one.id for one in job.members[: MEMBERS // 2])) == MEMBERS // 2
        assert job.status is TaskStatus.CANCELLED
        assert queue.retry(*(one.id for one in job.members[MEMBERS // 2 : MEMBERS])) == MEMBERS - MEMBERS // 2
        assert job.info().waits_for == MEMBERS


def test_the_callback_of_a_group_that_runs_always_counts_every_member(tmp_path: Path) -> None:
    with TaskQueue(f"sqlite:///{tmp_path}/jobs.db") as queue:
        member, callback = queue.task(name="member")(nothing), queue.task(name="callback")(nothing)
        job = group(member.call(number) for number in range(5)).then(callback.call(), on_failure="run").enqueue()
        assert queue.cancel(*(one.id for one in job.members[:3])) == 3
        assert job.info().waits_for == 2
        assert queue.retry(*(one.id for one in job.members[:2])) == 2
        assert job.info().waits_for == 4
        assert queue.cancel_all(name="member") == 4
        info = job.info()
        assert (info.status, info.waits_for) == (TaskStatus.PENDING, 0)
        assert asyncio.run(queue.acount(status="cancelled")) == 5
