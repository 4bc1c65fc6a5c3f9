"""Who is there, who was, and what they did together."""

from __future__ import annotations

from bullpen.pools.dispatch.registry import Registry, Tallies
from bullpen.pools.dispatch.states import WorkerStatus
from bullpen.pools.dispatch.worker import Worker
from tests.unit.pools.dispatch.support import new_request, new_worker


def registry_of(*workers: Worker) -> Registry:
    registry = Registry()
    for worker in workers:
        registry.add(worker)
    return registry


def test_workers_are_found_by_id_and_listed_oldest_first() -> None:
    first, second = new_worker(7), new_worker(3)
    registry = registry_of(first, second)
    assert (registry.get(7), registry.get(3), registry.get(1)) == (first, second, None)
    assert registry.snapshot() == [first, second]
    assert len(registry) == 2


def test_a_snapshot_is_a_copy() -> None:
    worker = new_worker()
    registry = registry_of(worker)
    snapshot = registry.snapshot()
    assert registry.remove(worker)
    assert snapshot == [worker]
    assert registry.snapshot() == []


def test_a_worker_is_removed_once() -> None:
    worker = new_worker()
    registry = registry_of(worker)
    assert registry.remove(worker)
    assert not registry.remove(worker)
    assert registry.get(worker.id) is None
    assert registry.totals()[1:] == (1, 1)


def test_what_removed_workers_did_still_counts() -> None:
    gone, there = new_worker(0), new_worker(1)
    registry = registry_of(gone, there)
    gone.completed, gone.failed, gone.skipped = 1, 2, 3
    there.completed, there.failed, there.skipped = 10, 20, 30
    assert registry.totals() == (Tallies(11, 22, 33), 2, 0)
    registry.remove(gone)
    assert registry.totals() == (Tallies(11, 22, 33), 2, 1)
    there.completed += 1
    assert registry.totals()[0].completed == 12


def test_counts_are_derived_from_what_workers_are_now() -> None:
    ready, busy, starting = (
        new_worker(0, WorkerStatus.READY),
        new_worker(1, WorkerStatus.BUSY),
        new_worker(2, WorkerStatus.STARTING),
    )
    registry = registry_of(ready, busy, starting)
    request = new_request()
    busy.add(request)
    assert registry.count(WorkerStatus.READY) == 1
    assert registry.count(WorkerStatus.READY, WorkerStatus.BUSY) == 2
    assert registry.count(WorkerStatus.DEAD) == 0
    assert (registry.busy_count(), registry.all_idle(), registry.all_ready()) == (1, False, False)
    busy.remove(request)
    starting.status = WorkerStatus.READY
    assert (registry.busy_count(), registry.all_idle(), registry.all_ready()) == (0, True, True)
    for worker, status in zip(
        registry.snapshot(), [WorkerStatus.EXITED, WorkerStatus.DEAD, WorkerStatus.EXITED], strict=True
    ):
        assert not registry.all_inactive()
        worker.status = status
    assert registry.all_inactive()


def test_a_forked_child_has_no_workers_but_a_lock_of_its_own() -> None:
    registry = registry_of(new_worker())
    held = registry._lock
    with held:  # by a thread that does not exist in the child
        registry.forget()
    assert registry._lock is not held
    assert registry.snapshot() == []
