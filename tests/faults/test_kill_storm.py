"""Workers on one store are killed and stopped at random, and started again. The checker reads the history."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bullpen.testing import HistoryFile, check, read_history, take_stock
from tests.faults.storm import WITHIN, Storm
from tests.faults.storm_worker import PERMITS, new_queue

pytestmark = pytest.mark.anyio


@pytest.mark.timeout(900)
async def test_no_task_is_lost_in_a_storm(tmp_path: Path, address: str, thorough: bool) -> None:
    tasks, kills, workers = (3_000, 100, 3) if thorough else (100, 2, 2)
    async with Storm(tmp_path, address, seed=1, workers=workers) as storm:
        # Fewer than the permits; the checker tests that the limit holds.
        await storm.queue.aset_limit(max_running=7, in_order=True)
        while storm.kills < kills:
            await storm.enqueue(tasks // kills)
            await storm.strike()
        storm.note("fault", "storm", "calm")
        await storm.all_ended(WITHIN * (5 if thorough else 1))
        await storm.stop()
        records = await storm.judged()
        has_effects = storm.effects.exists
    ended = [record for record in records if record.op == "kept"]
    assert len(ended) == tasks
    assert sum(record.state == "crashed" for record in records) == kills
    succeeded = sum(record.status == "success" for record in ended)
    assert succeeded >= len(ended) * 0.98  # few tasks become poison: each needs three kills
    assert has_effects == any(record.op == "row" for record in records)
    assert any(record.op == "rescue" and record.task for record in records)


async def test_the_history_of_a_storm_would_show_a_lost_task(tmp_path: Path) -> None:
    """The same steps without a worker: the tasks have not ended, and the checker reports it."""
    write = HistoryFile(tmp_path / "producer.jsonl")
    queue = new_queue(f"sqlite:///{tmp_path}/jobs.db", write, "producer")
    await queue.aenqueue("nap", [0.0])
    await take_stock(queue.storage, write)
    await queue.storage.close()
    write.close()
    assert check(read_history(tmp_path / "producer.jsonl")).broken == {"I1"}


# How soon tasks run again.


@pytest.mark.parametrize("address", ["sqlite"], indirect=True)  # all stores detect a dead process in the same way
async def test_another_worker_takes_over_within_two_seconds(tmp_path: Path, address: str) -> None:
    """The default lease is much longer. The median of three runs counts, because the machine may be busy."""
    waits = []
    async with Storm(tmp_path, address, workers=1, lease=15.0) as storm:
        for _ in range(3):
            job = await storm.queue.aenqueue("nap", [3600.0])
            holder = await storm.held_by(job.id, 1)
            await storm.started(storm.start())
            killed = time.monotonic()
            storm.kill(holder)
            await storm.held_by(job.id, 2)
            waits.append(time.monotonic() - killed)
            await storm.queue.acancel(job.id)
        await storm.stop()
    assert sorted(waits)[1] <= 2.0, waits


async def test_after_the_death_of_all_workers_new_ones_go_on_within_the_lease_and_five_seconds(
    tmp_path: Path, address: str, thorough: bool
) -> None:
    """On a server the new workers are on another host, and cannot detect that the old ones are dead."""
    before, after = ("", "") if address.startswith("sqlite") else ("one host", "another host")
    lease, workers, tasks, seconds = (15.0, 2, 20, 2.0) if thorough else (1.5, 1, 6, 0.5)
    async with Storm(tmp_path, address, lease=lease) as storm:
        jobs = [await storm.queue.aenqueue("nap", [seconds]) for _ in range(tasks)]
        dying = [storm.start(host=before) for _ in range(workers)]
        holders = {await storm.held_by(job.id, 1) for job in jobs[: workers * PERMITS]}
        for name in dying:
            storm.kill(name)
        for name in [storm.start(host=after) for _ in dying]:
            await storm.started(name)
        restarted = time.monotonic()
        await storm.all_ended()
        took = time.monotonic() - restarted
        await storm.stop()
        records = await storm.judged()  # it also checks that no attempt began before the lease expired
    assert took <= lease + 5.0
    taken_back = {record.task: record.crashes for record in records if record.op == "rescue" and record.task}
    again = {record.task for record in records if record.op == "kept" and record.attempt > 1}
    assert again == set(taken_back)
    assert set(taken_back.values()) == {1}
    assert len(again) <= len(holders) * PERMITS
