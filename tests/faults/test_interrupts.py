"""An interrupt at any line of a submission leaves every worker usable, and the pool can close."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import bullpen.pools
from bullpen import CallPolicy, Pool, PoolFuture, RecyclePolicy
from bullpen.pools import async_sides
from bullpen.pools.dispatch import backlog, deadlines, dispatcher, request, sessions, worker
from bullpen.pools.runtimes import thread
from bullpen.pools.runtimes.process import forkserver_client, supervised
from bullpen.pools.supervision import admission
from tests.faults.interrupts import Interrupt
from tests.scenarios.support import PATIENCE, Background, Blocker, eventually
from tests.tools import lock_order

HOT: tuple[str, ...] = tuple(
    str(module.__file__)
    for module in (sessions, backlog, deadlines, dispatcher, admission, async_sides, request, thread, worker)
)

EVERYWHERE = tuple(map(str, Path(bullpen.pools.__file__).parent.rglob("*.py")))


@pytest.fixture(autouse=True)
def locks_of_the_interpreter() -> Iterator[None]:
    """The lock-order checker is written in Python: it would add points at which a signal can arrive."""
    lock_order.uninstall()
    yield
    lock_order.install()


CASES: dict[str, dict[str, Any]] = {"unbounded": {}, "bounded": {"max_queue": 5}}


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
@pytest.mark.parametrize("call", ["submit", "serve", "session"])
def test_an_interrupt_costs_no_worker(call: str, options: dict[str, Any]) -> None:
    where = list[str]()
    while (last := interrupted_at(len(where) + 1, call, options)) is not None:
        where.append(last)
    points = {point.split(":")[0] for point in where}
    assert points >= {"Dispatcher._take", "Dispatcher._pop_ready", "_WorkerThread.hand"}


def interrupted_at(count: int, call: str, options: dict[str, Any]) -> str | None:
    """Interrupt the submission at its `count`-th line and check the pool. Return the line, or None if there is none."""
    workers = 2
    with Pool(workers, min_workers=workers, recycling=RecyclePolicy(idle_timeout=None), **options) as pool:
        assert pool.wait_ready(PATIENCE)
        assert eventually(lambda: pool.stats().idle == workers)
        view = pool.using(session="s", affinity="strict_queue") if call == "session" else pool.using()
        submit = view.serve if call == "serve" else view.submit
        where = interrupt(count, submit)
        places = workers * int(options.get("capacity", 1))
        barrier = threading.Barrier(places)
        futures: list[PoolFuture[Any]] = [pool.submit(barrier.wait, PATIENCE / 4) for _ in range(places)]
        errors = [future.exception(PATIENCE) for future in futures]
        assert errors == [None] * places, where
        closing = Background(pool.close)
        closing.join()
    return where


def interrupt(count: int, submit: Callable[[Any], object], files: tuple[str, ...] = HOT) -> str | None:
    """Interrupt a submission at its `count`-th point. Return that point, or None if there is no such point."""
    here = Interrupt(count, files)
    with contextlib.suppress(KeyboardInterrupt):
        with here:
            submit(int)
        if here.where:  # it was deferred, and arrives as a signal
            assert eventually(lambda: False), "the interrupt was lost"
    return here.where or None


@pytest.mark.parametrize("options", [{}, {"calls": CallPolicy(queue_timeout=60)}], ids=["plain", "timed"])
def test_an_interrupt_costs_no_place_in_the_backlog(options: dict[str, Any]) -> None:
    where = list[str]()
    while True:
        with Pool(1, max_queue=2, **options) as pool, Blocker() as blocker:
            pool.submit(blocker)
            blocker.wait_entered()
            last = interrupt(len(where) + 1, pool.submit)
            while pool.serve(int):
                pass
            assert pool.stats().queued == 2, last
        if last is None:
            break
        where.append(last)
    assert {point.split(":")[0] for point in where} >= {"Dispatcher.offer_bounded", "BoundedBacklog._make_places"}


def test_an_interrupted_submitter_gives_up_its_ticket() -> None:
    where = list[str]()
    while True:
        with Pool(1, max_queue=0, when_full="block") as pool, Blocker() as blocker:
            pool.submit(blocker)
            blocker.wait_entered()
            room = threading.Timer(0.01, blocker.release)  # until the submitter waits
            room.start()
            last = interrupt(len(where) + 1, pool.submit)
            room.join()
            later = Background(lambda pool=pool: pool.submit(int).result(PATIENCE))  # type: ignore[misc]
            later.join(5)
        if last is None:
            break
        where.append(last)
    assert {point.split(":")[0] for point in where} >= {"BoundedBacklog.take_ticket", "BoundedBacklog.return_ticket"}


def test_an_interrupt_while_a_worker_starts_costs_no_slot() -> None:
    where = list[str]()
    while True:
        with Pool(2, **CASES["bounded" if len(where) % 2 else "unbounded"]) as pool:
            last = interrupt(len(where) // 2 + 1, pool.submit, EVERYWHERE)
            barrier = threading.Barrier(2)
            futures = [pool.submit(barrier.wait, PATIENCE / 4) for _ in range(2)]
            assert [future.exception(PATIENCE) for future in futures] == [None] * 2, last
        if last is None:
            break
        where.append(last)
    assert {point.split(":")[0] for point in where} >= {"WorkerStarter._new", "Registry.add", "Dispatcher.pop_slot"}


@pytest.mark.parametrize("drain", [True, False])
def test_a_close_that_is_interrupted_anywhere_can_be_repeated(drain: bool) -> None:
    where = list[str]()
    while True:
        pool = Pool(2, min_workers=2)
        assert pool.wait_ready(PATIENCE)
        pool.submit(int)
        last = interrupt(len(where) + 1, lambda _, pool=pool: pool.close(drain=drain), EVERYWHERE)  # type: ignore[misc]
        Background(pool.close).join()
        assert not pool.stats().workers, last
        if last is None:
            break
        where.append(last)
    assert {point.split(":")[0] for point in where} >= {"Shutdown.reject_new_work", "Dispatcher._stop"}


def test_an_interrupt_while_a_process_starts_leaves_no_process(caplog: pytest.LogCaptureFixture) -> None:
    where = list[str]()
    with Pool(1, runtime="process") as other:
        assert other.do(abs, -1) == 1
        (client,) = forkserver_client._clients.values()
        while True:
            with Pool(1, runtime="process") as pool:
                last = interrupt(len(where) + 1, pool.submit, (forkserver_client.__file__, supervised.__file__))
                assert pool.submit(abs, -1).result(PATIENCE) == 1, last
            assert eventually(lambda: len(client._workers) == 1), last
            if last is None:
                break
            where.append(last)
    assert {point.split(":")[0] for point in where} >= {"ForkserverClient.order", "Supervised.start"}
    assert "caught an error" not in caplog.text
