"""How a pool starts, keeps its workers, and ends."""

from __future__ import annotations

import functools
import logging
import threading
from typing import Any

import pytest

from bullpen import (
    CallPolicy,
    InvalidOption,
    Kind,
    Pool,
    PoolClosed,
    PoolFailed,
    PoolState,
    RecyclePolicy,
    RestartPolicy,
    StartupPolicy,
    TelemetryEvent,
    WorkerStartFailed,
)
from bullpen.pools.dispatch.worker import Worker
from bullpen.pools.runtimes.port import WorkerEvents
from bullpen.pools.supervision.startup import STAGGER
from bullpen.testing import ManualClock, ScriptedRuntime
from tests.scenarios.support import PATIENCE, Background, Blocker, advance, end, eventually, in_groups, tick

BROKEN = OSError("no licence")


# Start.


def test_the_first_workers_start_in_batches(by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime()
    pool = Pool(7, min_workers=7, startup=StartupPolicy(batch_size=3, batch_delay=2), runtime=runtime, clock=by_hand)
    assert len(runtime.workers) == 3, "the first batch is there at once"
    assert tick(pool) == 2
    assert advance(pool, 1.9) == pytest.approx(0.1)
    assert len(runtime.workers) == 3
    advance(pool, 0.1)
    assert len(runtime.workers) == 6
    assert pool.stats().state is PoolState.INITIALIZING
    advance(pool, 2)
    assert len(runtime.workers) == 7
    assert pool.stats().state is PoolState.RUNNING
    advance(pool, 20)
    assert len(runtime.workers) == 7
    end(pool, runtime)


def test_batches_without_a_delay_follow_each_other_at_once() -> None:
    with Pool(25, min_workers=25, startup=StartupPolicy(batch_size=10)) as pool:
        assert pool.wait_ready(PATIENCE)
        assert pool.stats().workers == 25


def test_closing_during_the_start_cancels_the_batches_that_have_not_begun(by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime(auto_ready=False)
    pool = Pool(4, min_workers=4, startup=StartupPolicy(batch_size=2, batch_delay=5), runtime=runtime, clock=by_hand)
    pool.shutdown(wait=False)
    advance(pool, 100)
    assert len(runtime.workers) == 2
    end(pool, runtime)
    assert pool.stats().spawned == 2
    assert tick(pool) == float("inf")
    assert len(pool._engine.timer.queue) == 0


def test_wait_ready_of_a_closing_pool_raises() -> None:
    with Blocker() as starting:
        pool = Pool(2, min_workers=2, startup=StartupPolicy(batch_size=1, batch_delay=1000), initializer=starting)
        starting.wait_entered()
        with Background(pool.wait_ready) as one, Background(pool.wait_ready) as other:
            assert eventually(lambda: pool._engine.startup.waiters == 2)
            pool.shutdown(wait=False)
        assert isinstance(one.error, PoolClosed)
        assert isinstance(other.error, PoolClosed)
    pool.close()


def test_waiters_go_on_one_after_another() -> None:
    runtime, clock = ScriptedRuntime(auto_ready=False), ManualClock()
    pool = Pool(
        1,
        min_workers=1,
        runtime=runtime,
        clock=clock,
        recycling=RecyclePolicy(idle_timeout=None),
        restarts=RestartPolicy(reconcile_interval=None),
    )
    with Background(pool.wait_ready) as one, Background(pool.wait_ready) as two, Background(pool.wait_ready) as three:
        waiters = [one, two, three]
        assert eventually(lambda: pool._engine.startup.waiters == 3)
        runtime.ready()
        for running in (2, 1):
            assert eventually(functools.partial(_at_most, running, waiters))
            assert clock.wait_for_waiters(1)
            assert sum(waiter.running for waiter in waiters) == running, "all of them at once"
            clock.advance(STAGGER)
    assert [waiter.result for waiter in waiters] == [True] * 3
    assert pool.wait_ready(0)
    pool.close()


def test_waiters_go_on_in_the_order_in_which_they_came() -> None:
    runtime, clock = ScriptedRuntime(auto_ready=False), ManualClock()
    pool = Pool(
        1,
        min_workers=1,
        runtime=runtime,
        clock=clock,
        recycling=RecyclePolicy(idle_timeout=None),
        restarts=RestartPolicy(reconcile_interval=None),
    )
    waiters = list[Background]()
    for count in range(1, 4):
        waiters.append(Background(pool.wait_ready))
        assert eventually(lambda: pool._engine.startup.waiters == count)  # noqa: B023 — it is called here and now
    runtime.ready()
    for waiter in waiters:
        waiter.join()
        if waiter is not waiters[-1]:
            assert clock.wait_for_waiters(1)
            clock.advance(STAGGER)
    pool.close()


def _at_most(count: int, waiters: list[Background]) -> bool:
    return sum(waiter.running for waiter in waiters) <= count


def test_a_waiter_that_gave_up_is_forgotten() -> None:
    runtime = ScriptedRuntime(auto_ready=False)
    pool = Pool(1, min_workers=1, runtime=runtime)
    assert not pool.wait_ready(0)
    assert pool._engine.startup.waiters == 0
    runtime.ready()
    assert pool.wait_ready(0)
    pool.close()


def test_a_pool_runs_with_those_that_started_and_goes_on_trying_the_rest(
    by_hand: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = ScriptedRuntime(auto_ready=False)
    pool = Pool(3, min_workers=3, restarts=RestartPolicy(limit=2, within=60), runtime=runtime, clock=by_hand)
    for worker in runtime.starting[:2]:
        runtime.die(worker)
    assert len(runtime.workers) == 1, "nobody knows yet whether any can start"
    runtime.ready()
    tick(pool)
    assert len(runtime.starting) == 2
    assert pool.stats().state is PoolState.INITIALIZING
    runtime.die(runtime.starting[0])
    assert pool.stats().degraded
    assert pool.stats().state is PoolState.RUNNING, "it would wait for ever"
    assert pool.wait_ready(0)
    runtime.ready()
    tick(pool)
    assert len(runtime.starting) == 0
    advance(pool, 0.1)
    assert len(runtime.starting) == 1
    end(pool, runtime)


def test_a_first_worker_that_cannot_start_leaves_the_others_of_its_batch_their_chance(by_hand: ManualClock) -> None:
    class FirstFails(ScriptedRuntime):
        def start(self, worker: Worker, events: WorkerEvents) -> None:
            if worker.id == 0:
                raise BROKEN
            super().start(worker, events)

    runtime = FirstFails()
    pool = Pool(2, min_workers=2, runtime=runtime, clock=by_hand)
    assert pool.stats().state is PoolState.INITIALIZING
    tick(pool)
    assert pool.stats().state is PoolState.RUNNING
    assert len(runtime.workers) == 2
    end(pool, runtime)


def test_a_pool_none_of_whose_first_batch_starts_has_failed(by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime(auto_ready=False)
    pool = Pool(9, min_workers=9, startup=StartupPolicy(batch_size=2, batch_delay=1), runtime=runtime, clock=by_hand)
    for worker in runtime.starting:
        runtime.die(worker, BROKEN)
    assert pool.stats().state is PoolState.FAILED
    advance(pool, 10)
    assert runtime.workers == []
    with pytest.raises(PoolFailed, match="no licence"):
        pool.wait_ready()
    pool.close()


class Delegate:
    """Prepares when it is told to."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.blocker = Blocker()
        self.error = error
        self.calls: list[tuple[Any, ...]] = []
        self.told = threading.Event()

    def prepare(self, pool_name: str) -> None:
        self.calls.append(("prepare", pool_name))
        self.blocker()
        if self.error is not None:
            raise self.error

    def started(self, pool_name: str, workers: int) -> None:
        self.calls.append(("started", pool_name, workers))
        self.told.set()


@pytest.mark.parametrize("workers", [0, 2])
def test_no_worker_starts_before_the_pool_is_prepared(workers: int) -> None:
    delegate = Delegate()
    with Pool(2, min_workers=workers, name="press", startup=StartupPolicy(delegate=delegate)) as pool:
        delegate.blocker.wait_entered()
        future = pool.submit(pow, 2, 3)
        late = pool.using(timeout=0.01).submit(int)
        assert isinstance(late.exception(PATIENCE), TimeoutError), "deadlines are kept meanwhile"
        pool.resize(3)
        assert not pool.wait_ready(0.01)
        assert (pool.stats().workers, pool.stats().queued) == (0, 1)
        delegate.blocker.release()
        assert pool.wait_ready(PATIENCE)
        assert future.result(PATIENCE) == 8
        assert delegate.told.wait(PATIENCE)
    assert delegate.calls[0] == ("prepare", "press")
    assert delegate.calls[1][:2] == ("started", "press")
    assert delegate.calls[1][2] >= 1
    assert len(delegate.calls) == 2


def test_wait_ready_of_a_pool_without_min_workers_returns_once_it_is_prepared() -> None:
    delegate = Delegate()
    with Pool(1, startup=StartupPolicy(delegate=delegate)) as pool:
        delegate.blocker.wait_entered()
        waiter = Background(pool.wait_ready)
        assert eventually(lambda: pool._engine.startup.waiters == 1)
        assert waiter.running
        delegate.blocker.release()
        assert waiter.join().result is True
        assert pool.stats().workers == 0


@pytest.mark.parametrize("drain", [True, False])
def test_closing_waits_until_nothing_is_prepared_any_more(drain: bool) -> None:
    delegate = Delegate()
    pool = Pool(1, startup=StartupPolicy(delegate=delegate))
    delegate.blocker.wait_entered()
    with Background(lambda: pool.close(drain=drain)) as closing:
        assert eventually(lambda: pool.stats().state is PoolState.CLOSED), "nothing waits, so it is closed"
        assert closing.running
        delegate.blocker.release()
        assert closing.join().error is None
    assert not [thread for thread in threading.enumerate() if thread.name == f"{pool.stats().name}-prepare"]


@pytest.mark.parametrize("waiting", [True, False])
def test_the_grace_is_kept_while_the_pool_is_prepared(waiting: bool, caplog: pytest.LogCaptureFixture) -> None:
    delegate = Delegate()
    with delegate.blocker:
        pool = Pool(1, min_workers=1, startup=StartupPolicy(delegate=delegate))
        delegate.blocker.wait_entered()
        futures = [pool.submit(int)] if waiting else []
        with Background(lambda: pool.close(grace=0.05)) as closing:
            assert closing.join().error is None
        assert all(future.cancelled() for future in futures)
        assert pool.stats().state is PoolState.CLOSED
        assert "prepare() still runs" in caplog.text
    assert eventually(lambda: not any(thread.name.endswith("-prepare") for thread in threading.enumerate()))
    assert pool.stats().spawned == 0


def test_the_grace_is_kept_while_a_worker_warms_up() -> None:
    class Model:
        def warm_up(self) -> None:
            blocker()

        def close(self) -> None:
            closed.set()

    closed = threading.Event()
    with Blocker() as blocker:
        pool = Pool(1, worker=Model)
        blocker.wait_entered()
        waiting = pool.submit(int)
        with Background(lambda: pool.close(grace=0.05)) as closing:
            assert closing.join().error is None
        assert waiting.cancelled()
        assert pool.stats().state is PoolState.CLOSED
    assert closed.wait(PATIENCE), "what was made is closed by whoever made it"


def test_a_pool_that_cannot_be_prepared_has_failed(caplog: pytest.LogCaptureFixture) -> None:
    delegate = Delegate(BROKEN)
    pool = Pool(2, min_workers=1, startup=StartupPolicy(delegate=delegate))
    delegate.blocker.wait_entered()
    waiting = pool.submit(int)
    delegate.blocker.release()
    with pytest.raises(PoolFailed, match="no licence") as caught:
        pool.wait_ready(PATIENCE)
    assert caught.value.__cause__ is BROKEN
    assert isinstance(waiting.exception(PATIENCE), PoolFailed)
    pool.close()
    assert pool.stats().spawned == 0


@pytest.mark.parametrize("drain", [True, False])
def test_a_pool_may_be_closed_while_it_is_prepared(drain: bool) -> None:
    delegate = Delegate()
    pool = Pool(1, min_workers=1, startup=StartupPolicy(delegate=delegate))
    delegate.blocker.wait_entered()
    waiting = pool.submit(pow, 2, 3)
    with Background(pool.wait_ready) as waiter, Background(lambda: pool.close(drain=drain)):
        assert eventually(lambda: pool.stats().state is not PoolState.INITIALIZING)
        delegate.blocker.release()
    assert isinstance(waiter.error, PoolClosed)
    assert waiting.cancelled() or waiting.result(0) == 8
    assert waiting.cancelled() is not drain
    assert pool.stats().state is PoolState.CLOSED


def test_requests_that_wait_while_the_preparation_of_a_closed_pool_fails_are_rejected(
    caplog: pytest.LogCaptureFixture,
) -> None:
    delegate = Delegate(BROKEN)
    pool = Pool(1, startup=StartupPolicy(delegate=delegate))
    delegate.blocker.wait_entered()
    waiting = pool.submit(int)
    pool.shutdown(wait=False)
    delegate.blocker.release()
    assert isinstance(waiting.exception(PATIENCE), PoolFailed)
    pool.close()
    assert pool.stats().state is PoolState.CLOSED


def test_a_delegate_that_raises_in_started_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    class Grumbler(Delegate):
        def started(self, pool_name: str, workers: int) -> None:
            super().started(pool_name, workers)
            raise BROKEN

    delegate = Grumbler()
    delegate.blocker.release()
    with Pool(1, min_workers=1, startup=StartupPolicy(delegate=delegate)) as pool:
        assert delegate.told.wait(PATIENCE)
        assert pool.using(timeout=PATIENCE).do(abs, -1) == 1
    assert "no licence" in caplog.text


# The restart limit.


class Hopeless(ScriptedRuntime):
    """Every start fails at once, and is counted."""

    def __init__(self) -> None:
        super().__init__()
        self.starts = 0
        self.start_error = BROKEN

    def start(self, worker: Any, events: Any) -> None:
        self.starts += 1
        super().start(worker, events)


def test_what_cannot_start_is_not_started_without_end_however_much_is_asked_for(
    by_hand: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = Hopeless()
    runtime.start_error = None
    pool = Pool(4, restarts=RestartPolicy(limit=8, within=60), runtime=runtime, clock=by_hand)
    pool.submit(int)
    runtime.run_all()
    runtime.die(runtime.workers[0])
    runtime.starts, runtime.start_error = 0, BROKEN
    for _ in range(1000):
        with pytest.raises((WorkerStartFailed, TimeoutError)):
            raise pool.using(timeout=1000).submit(int).exception(0) or TimeoutError
        if pool.stats().queued:
            break
    assert pool.stats().degraded
    assert runtime.starts <= 8 + 4
    for _ in range(10_000):
        pool.submit(int)
    assert runtime.starts <= 8 + 4
    before = runtime.starts
    for _ in range(100):
        advance(pool, 0.6)  # a minute
        pool.submit(int)
    assert runtime.starts - before <= 24, "some tries, less and less often"
    assert caplog.text.count("degraded") == 1
    pool.close(drain=False)


def test_the_slot_of_a_dead_worker_is_given_back_after_a_delay_that_doubles(by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime()
    pool = Pool(1, restarts=RestartPolicy(limit=1, within=60), runtime=runtime, clock=by_hand)
    first, *others = [pool.submit(int) for _ in range(5)]
    runtime.die(runtime.worker_of(first))
    assert runtime.running == [others[0]], "at once"
    for delay, lost, waiting in ((0.1, others[0], others[1]), (0.2, others[1], others[2]), (0.4, others[2], others[3])):
        runtime.die(runtime.worker_of(lost))
        assert runtime.workers == []
        assert pool.stats().queued
        advance(pool, delay * 0.9)
        assert runtime.workers == []
        advance(pool, delay * 0.1)
        assert runtime.running == [waiting]
    end(pool, runtime)


def test_a_degraded_pool_says_so_once_and_recovers_when_its_workers_stay(
    by_hand: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    runtime, events = ScriptedRuntime(), list[TelemetryEvent]()
    pool = Pool(
        1,
        min_workers=1,
        restarts=RestartPolicy(limit=0, within=30),
        runtime=runtime,
        clock=by_hand,
        observer=events.append,
        name="press",
    )
    for _ in range(3):
        runtime.die(runtime.workers[0])
        advance(pool, 1)
    kinds = [event.kind for event in events]
    assert kinds.count(Kind.POOL_DEGRADED) == 1
    assert caplog.text.count("degraded") == 1
    assert pool.stats().degraded
    assert not pool.stats().healthy
    assert "degraded" in str(pool.stats())
    assert len(runtime.workers) == 1
    advance(pool, 28)
    assert pool.stats().degraded
    advance(pool, 2)
    assert not pool.stats().degraded
    assert [event.kind for event in events].count(Kind.POOL_RECOVERED) == 1
    runtime.die(runtime.workers[0])
    assert [event.kind for event in events].count(Kind.POOL_DEGRADED) == 2
    end(pool, runtime)


def test_requests_that_wait_for_a_degraded_pool_keep_their_timeouts(by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime()
    pool = Pool(1, restarts=RestartPolicy(limit=0, within=60), runtime=runtime, clock=by_hand)
    first, late = pool.submit(int), pool.using(queue_timeout=0.05).submit(int)
    runtime.die(runtime.worker_of(first))
    advance(pool, 0.05)
    assert isinstance(late.exception(0), TimeoutError)
    end(pool, runtime)


def test_a_pool_that_closes_does_not_wait_for_slots_that_are_held(by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime()
    pool = Pool(1, restarts=RestartPolicy(limit=0, within=60), runtime=runtime, clock=by_hand)
    first, waiting = pool.submit(int), pool.submit(int)
    runtime.die(runtime.worker_of(first))
    assert runtime.workers == []
    pool.shutdown(wait=False)
    assert runtime.running == [waiting]
    end(pool, runtime)
    assert pool.stats().state is PoolState.CLOSED


def test_a_slot_that_is_held_vanishes_if_the_pool_is_made_smaller(by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime()
    pool = Pool(2, restarts=RestartPolicy(limit=0, within=60), runtime=runtime, clock=by_hand)
    futures = [pool.submit(int) for _ in range(4)]
    runtime.die(runtime.worker_of(futures[1]))
    pool.resize(1)
    advance(pool, 100)
    assert len(runtime.workers) == 1
    end(pool, runtime)


def test_a_bad_initializer_of_real_threads_is_no_fork_bomb(caplog: pytest.LogCaptureFixture) -> None:
    attempts = list[int]()
    good = threading.Event()
    good.set()

    def initialize() -> None:
        attempts.append(1)
        if not good.is_set():
            raise BROKEN

    with Pool(4, min_workers=2, initializer=initialize, restarts=RestartPolicy(limit=5, within=60)) as pool:
        assert pool.wait_ready(PATIENCE)
        good.clear()
        attempts.clear()
        for worker in pool.workers():
            with pytest.raises(Exception, match="worker"):
                pool.using(timeout=PATIENCE).do(_break_worker, worker.name)
        assert eventually(lambda: pool.stats().degraded)
        assert not eventually(lambda: len(attempts) > 30, within=0.3)
        good.set()
        assert eventually(lambda: pool.stats().idle == 2)


def _break_worker(name: str) -> None:
    from bullpen import WorkerBroken

    raise WorkerBroken(name)


# Reconcile.


def test_workers_that_vanished_without_a_report_are_replaced_a_batch_at_a_time(
    by_hand: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = ScriptedRuntime()
    pool = Pool(
        6,
        min_workers=5,
        restarts=RestartPolicy(reconcile_interval=60, reconcile_batch_size=2),
        recycling=RecyclePolicy(idle_timeout=None),
        runtime=runtime,
        clock=by_hand,
    )
    lose_silently(pool, 5)
    assert tick(pool) == 60
    for there in (2, 4, 5, 5):
        advance(pool, 60)
        assert pool.stats().workers == there
    assert "5 workers were missing" in caplog.text
    end(pool, runtime)


def test_reconcile_starts_workers_for_what_waits(by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime()
    pool = Pool(3, runtime=runtime, clock=by_hand, recycling=RecyclePolicy(idle_timeout=None))
    running = [pool.submit(int) for _ in range(5)]
    lose_silently(pool, 2)
    advance(pool, 60)
    assert len(runtime.running) == 3 + 2
    assert all(future.running() for future in running)
    end(pool, runtime)


def lose_silently(pool: Pool, count: int) -> None:
    """What no runtime should do, and the pool survives."""
    engine = pool._engine
    for worker in engine.registry.snapshot()[:count]:
        with engine.lock:
            engine.registry.remove(worker)
            assert worker.slot is not None
            engine.slots.give_back(worker.slot)


@pytest.mark.parametrize("hindrance", ["paused", "draining", "held"])
def test_reconcile_keeps_still_while(hindrance: str, by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime()
    pool = Pool(
        3,
        min_workers=2,
        runtime=runtime,
        clock=by_hand,
        restarts=RestartPolicy(limit=0, within=10_000, reconcile_interval=0.01),
    )
    busy = pool.submit(int)
    if hindrance == "paused":
        pool.pause()
    elif hindrance == "draining":
        pool.shutdown(wait=False)
    else:
        runtime.die(next(worker for worker in runtime.workers if not worker.requests))
    with pool._engine.lock:
        for worker in pool._engine.registry.snapshot():
            if not worker.requests:
                pool._engine.registry.remove(worker)
    before = pool.stats().workers
    advance(pool, 0.02)
    assert pool.stats().workers == before == 1
    pool.resume()
    runtime.finish(busy)
    end(pool, runtime)


def test_a_pool_at_rest_has_no_timer(by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime()
    pool = Pool(2, runtime=runtime, clock=by_hand, recycling=RecyclePolicy(idle_timeout=1))
    assert tick(pool) == float("inf")
    pool.submit(int)
    runtime.run_all()
    assert tick(pool) < float("inf")
    for _ in range(500):
        if advance(pool, 1) == float("inf"):
            break
    assert runtime.workers == []
    assert tick(pool) == float("inf")
    end(pool, runtime)


# The end.


def test_a_pool_sums_up_when_it_closes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="bullpen")
    runtime = ScriptedRuntime()
    pool = Pool(2, name="press", runtime=runtime, calls=CallPolicy(log_errors=False))
    futures = [pool.submit(int) for _ in range(6)]
    runtime.finish(futures[0])
    runtime.fail(futures[1], ValueError())
    futures[5].cancel()
    pool.shutdown(wait=False)
    while runtime.running:
        runtime.finish_next()
    pool.close()
    pool.close()
    records = [record for record in caplog.records if "closed" in record.getMessage()]
    assert [record.levelno for record in records] == [logging.DEBUG]
    assert records[0].getMessage() == (
        "press: closed; it was running with 2 workers (0 idle, 2 busy), 1 queued, 0 waiting until it was ready; "
        "in all 4 completed, 1 failed, 1 cancelled, 0 lost, 0 workers abandoned"
    )


# Options.


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("startup.delegate", object()),
        ("startup.batch_size", 0),
        ("startup.batch_size", "1"),
        ("startup.batch_delay", -1),
        ("startup.batch_delay", None),
        ("restarts.limit", (1, 5)),
        ("restarts.limit", -1),
        ("restarts.limit", 1.5),
        ("restarts.within", 0),
        ("restarts.within", None),
        ("restarts.reconcile_interval", 0),
        ("restarts.reconcile_batch_size", 0),
        ("recycling.taint_duration", 0),
        ("recycling.taint_duration", None),
        ("recycling.taint_on", "ValueError"),
        ("recycling.taint_on", (int,)),
        ("recycling.taint_on", (ValueError(),)),
        ("recycling.max_requests", 0),
        ("recycling.max_requests", True),
        ("recycling.max_age", 0),
    ],
)
def test_an_option_is_checked(option: str, value: Any) -> None:
    with pytest.raises(InvalidOption, match=option) as caught:
        Pool(1, **in_groups({option: value}))
    assert caught.value.option == option
