"""Limits in time, in the backlog and in the number of workers, on real threads.

Nothing here asserts a speed. Where time is the subject, only that nothing happens too early, and that it happens.
"""

from __future__ import annotations

import logging
import random
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from bullpen import (
    CallPolicy,
    DeadlineExceeded,
    InvalidOption,
    Pool,
    PoolClosed,
    PoolFailed,
    PoolSaturated,
    PoolState,
    QueueTimeout,
    RecyclePolicy,
    RestartPolicy,
    RunTimeout,
    WorkerAbandoned,
    primitives,
)

from .support import PATIENCE, Background, Blocker, eventually, printed

SHORT = 0.05
SHORT_BUT_STARTED = 0.4  # within which a worker that is ready has begun, even on a very busy machine
LONG = 5.0  # whoever has SHORT waits less than that, even there


@pytest.fixture
def blocker() -> Iterator[Blocker]:
    with Blocker() as blocker:
        yield blocker


def must_not_run() -> None:
    raise AssertionError("this must never run")


def occupy(pool: Pool, blocker: Blocker, workers: int) -> None:
    """Have `workers` workers run the blocker, however long they take to start."""
    patient = pool.using(queue_timeout=None)
    for _ in range(workers):
        patient.submit(blocker)
    blocker.wait_entered(workers)


def assert_adds_up(pool: Pool) -> None:
    """At rest every request is in exactly one place."""
    stats = pool.stats()
    ended = stats.completed + stats.failed + stats.cancelled + stats.timed_out + stats.queue_timeouts + stats.lost
    assert stats.submitted == ended + stats.queued + stats.running, stats


# timeout: the caller's whole budget.


@pytest.mark.parametrize("timeout", [SHORT, timedelta(seconds=SHORT)])
def test_the_budget_of_a_queued_request_passes_and_it_never_runs(blocker: Blocker, timeout: float) -> None:
    with Pool(1) as pool:
        occupy(pool, blocker, 1)
        asked = time.monotonic()
        future = pool.using(timeout=timeout).submit(must_not_run)
        with pytest.raises(DeadlineExceeded) as caught:
            future.result(PATIENCE)
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        assert seconds <= time.monotonic() - asked < LONG
        assert (caught.value.ran, caught.value.seconds) == (False, seconds)
        assert isinstance(caught.value, TimeoutError)
        assert future.done()
        assert not future.cancelled()
        blocker.release()
    assert pool.stats().timed_out == 1
    assert_adds_up(pool)


def test_the_budget_of_a_running_request_passes_and_its_caller_is_told_at_once(blocker: Blocker) -> None:
    with Pool(1) as pool:
        pool.do(int)
        asked = time.monotonic()
        future = pool.using(timeout=SHORT_BUT_STARTED).submit(blocker)
        blocker.wait_entered()
        with pytest.raises(DeadlineExceeded) as caught:
            future.result(PATIENCE)
        assert SHORT_BUT_STARTED <= time.monotonic() - asked < LONG
        assert caught.value.ran
        assert pool.stats().busy == 1, "the function still has its worker"
        assert pool.stats().running == 0, "but nobody waits for it"
        blocker.release()
    assert pool.stats().timed_out == 1
    assert_adds_up(pool)


def test_the_budget_covers_waiting_and_running_together(blocker: Blocker) -> None:
    with Blocker() as second, Pool(1) as pool:
        occupy(pool, blocker, 1)
        asked = time.monotonic()
        future = pool.using(timeout=0.4).submit(second)
        blocker.release()
        second.wait_entered()
        error = future.exception(PATIENCE)
        assert time.monotonic() - asked >= 0.4
        assert isinstance(error, DeadlineExceeded)
        assert error.ran
        second.release()


def test_a_late_result_changes_nothing(blocker: Blocker) -> None:
    called: list[object] = []
    with Pool(1) as pool:
        future = pool.using(timeout=SHORT).submit(blocker, 5)
        future.add_done_callback(called.append)
        error = future.exception(PATIENCE)
        blocker.release()
        assert pool.submit(int).result(PATIENCE) == 0
        assert future.exception() is error
        assert called == [future]
        assert pool.stats().completed == 1


def test_do_waits_no_longer_than_its_budget_for_queued_work(blocker: Blocker) -> None:
    with Pool(1) as pool:
        occupy(pool, blocker, 1)
        asked = time.monotonic()
        with pytest.raises(DeadlineExceeded) as caught:
            pool.using(timeout=SHORT).do(must_not_run)
        assert SHORT <= time.monotonic() - asked < LONG
        assert not caught.value.ran
        blocker.release()
    assert_adds_up(pool)


def test_do_waits_no_longer_than_its_budget_for_running_work(blocker: Blocker) -> None:
    with Pool(1) as pool:
        pool.do(int)
        asked = time.monotonic()
        with pytest.raises(DeadlineExceeded) as caught:
            pool.using(timeout=SHORT_BUT_STARTED).do(blocker)
        assert SHORT_BUT_STARTED <= time.monotonic() - asked < LONG
        assert caught.value.ran
        blocker.release()
    assert_adds_up(pool)


def test_do_in_time_gives_the_result_or_the_error() -> None:
    with Pool(1) as pool:
        assert pool.using(timeout=PATIENCE).do(abs, -4) == 4
        with pytest.raises(ZeroDivisionError):
            pool.using(timeout=PATIENCE).do(lambda: 1 / 0)
    assert pool.stats().timed_out == 0


def test_an_infinite_limit_is_no_limit() -> None:
    with Pool(1, calls=CallPolicy(queue_timeout=float("inf"))) as pool:
        view = pool.using(timeout=float("inf"), run_timeout=float("inf"))
        assert view.do(abs, -4) == 4
        assert view.submit(abs, -4).result(PATIENCE) == 4


@pytest.mark.parametrize("max_queue", [None, 0, 50])
def test_no_time_at_all_is_told_although_a_worker_is_idle(max_queue: int | None) -> None:
    out = printed(
        f"""
        from bullpen import Pool

        with Pool(2, max_queue={max_queue}) as pool:
            pool.do(int)
            for limit in ("timeout", "queue_timeout"):
                view = pool.using(**{{limit: 0}})
                for call in (lambda: view.do(int), lambda: view.submit(int).result()) * 10:
                    try:
                        call()
                    except TimeoutError:
                        pass
            print(pool.do(abs, -1))
        stats = pool.stats()
        print(stats.submitted == stats.completed + stats.timed_out + stats.queue_timeouts)
        """,
        within=5,
    )
    assert out == "1\nTrue\n"


def test_limits_of_many_lengths_are_all_kept(blocker: Blocker) -> None:
    lengths = [0.001 * number for number in range(1, 151)]
    random.Random(7).shuffle(lengths)
    with Pool(1) as pool:
        occupy(pool, blocker, 1)
        futures = [pool.using(timeout=length).submit(must_not_run) for length in lengths]
        assert all(isinstance(future.exception(PATIENCE), DeadlineExceeded) for future in futures)
        blocker.release()
    assert pool.stats().timed_out == 150


def test_a_short_limit_is_kept_although_a_long_one_is_watched_already(blocker: Blocker) -> None:
    with Pool(1) as pool:
        occupy(pool, blocker, 1)
        long = pool.using(timeout=600).submit(int)
        short = pool.using(timeout=SHORT).submit(must_not_run)
        assert isinstance(short.exception(PATIENCE), DeadlineExceeded)
        assert not long.done()
        blocker.release()
        assert long.result(PATIENCE) == 0


def test_a_served_request_whose_budget_passes_in_the_backlog_never_runs(blocker: Blocker) -> None:
    ran: list[int] = []
    with Pool(1) as pool:
        occupy(pool, blocker, 1)
        assert pool.using(timeout=SHORT).serve(ran.append, 1)
        assert eventually(lambda: pool.stats().timed_out == 1)
        blocker.release()
    assert ran == []
    assert_adds_up(pool)


# queue_timeout: in the backlog.


def test_a_request_that_waits_too_long_expires(blocker: Blocker) -> None:
    with Pool(1, calls=CallPolicy(queue_timeout=SHORT)) as pool:
        occupy(pool, blocker, 1)
        future = pool.submit(must_not_run)
        with pytest.raises(QueueTimeout) as caught:
            future.result(LONG)
        assert caught.value.seconds == SHORT
        assert pool.stats().queued == 0
        blocker.release()
    assert pool.stats().queue_timeouts == 1
    assert pool.stats().timed_out == 0
    assert_adds_up(pool)


def test_a_request_that_runs_is_out_of_the_reach_of_queue_timeout() -> None:
    with Pool(1, calls=CallPolicy(queue_timeout=SHORT)) as pool:
        assert pool.submit(lambda: time.sleep(4 * SHORT) or 5).result(PATIENCE) == 5  # type: ignore[call-overload,func-returns-value]


def test_using_overrides_the_default_of_the_pool(blocker: Blocker) -> None:
    with Pool(1, calls=CallPolicy(queue_timeout=SHORT)) as pool:
        occupy(pool, blocker, 1)
        patient = pool.using(queue_timeout=None).submit(int)
        assert isinstance(pool.submit(int).exception(PATIENCE), QueueTimeout)
        assert not patient.done()
        blocker.release()
        assert patient.result(PATIENCE) == 0


def test_the_shorter_of_budget_and_queue_timeout_decides(blocker: Blocker) -> None:
    with Pool(1) as pool:
        occupy(pool, blocker, 1)
        assert isinstance(pool.using(timeout=60, queue_timeout=SHORT).submit(int).exception(PATIENCE), QueueTimeout)
        assert isinstance(pool.using(timeout=SHORT, queue_timeout=60).submit(int).exception(PATIENCE), DeadlineExceeded)
        blocker.release()


def test_an_expired_request_makes_room_in_the_backlog(blocker: Blocker) -> None:
    with Pool(1, max_queue=1) as pool:
        occupy(pool, blocker, 1)
        expiring = pool.using(queue_timeout=SHORT).submit(must_not_run)
        with pytest.raises(PoolSaturated):
            pool.submit(int)
        expiring.exception(PATIENCE)
        following = pool.submit(int)
        blocker.release()
        assert following.result(PATIENCE) == 0
    assert_adds_up(pool)


def test_an_expired_request_lets_go_of_its_arguments(blocker: Blocker) -> None:
    with Pool(1) as pool:
        occupy(pool, blocker, 1)
        future = pool.using(queue_timeout=SHORT).submit(print, [1, 2, 3])
        future.exception(PATIENCE)
        assert (future.fn, future.args, future.kwargs) == (None, None, None)
        blocker.release()


# run_timeout: on the worker.


def test_a_run_that_takes_too_long_keeps_its_slot_by_default(
    blocker: Blocker, caplog: pytest.LogCaptureFixture
) -> None:
    with Pool(1, calls=CallPolicy(run_timeout=SHORT)) as pool:
        future = pool.submit(blocker)
        with pytest.raises(RunTimeout) as caught:
            future.result(LONG)
        assert caught.value.seconds == SHORT
        assert eventually(lambda: "its slot stays taken" in caplog.text)
        waiting = pool.submit(int)
        assert (pool.stats().workers, pool.stats().busy, pool.stats().queued) == (1, 1, 1)
        assert not waiting.done()
        blocker.release()
        assert waiting.result(PATIENCE) == 0
    assert (pool.stats().abandoned, pool.stats().timed_out, pool.stats().spawned) == (0, 1, 1)
    assert_adds_up(pool)


def test_time_in_the_backlog_does_not_count_as_running(blocker: Blocker) -> None:
    with Pool(1) as pool:
        occupy(pool, blocker, 1)
        future = pool.using(run_timeout=0.5).submit(int)
        time.sleep(0.6)
        blocker.release()
        assert future.result(PATIENCE) == 0


def test_a_thread_that_is_abandoned_is_replaced_and_ends_when_its_function_returns(
    blocker: Blocker, caplog: pytest.LogCaptureFixture
) -> None:
    threads: list[threading.Thread] = []

    def hang() -> None:
        threads.append(threading.current_thread())
        blocker()

    with Pool(1, restarts=RestartPolicy(max_abandoned=1)) as pool:
        hanging = pool.using(run_timeout=SHORT).submit(hang)
        waiting = pool.submit(threading.current_thread)
        replacement = waiting.result(PATIENCE)
        assert eventually(lambda: threads), "on a busy machine the time may be over before the function begins"
        assert replacement is not threads[0]
        assert isinstance(hanging.exception(), RunTimeout)
        assert threads[0].is_alive()
        assert (pool.stats().abandoned, pool.stats().workers, pool.stats().spawned) == (1, 1, 2)
        assert "abandoned and replaced" in caplog.text
        blocker.release()
        threads[0].join(PATIENCE)
        assert not threads[0].is_alive()
        assert pool.submit(int).result(PATIENCE) == 0
        assert pool.stats().workers == 1
    assert_adds_up(pool)


def test_no_more_threads_are_abandoned_at_once_than_allowed(blocker: Blocker) -> None:
    with Pool(1, calls=CallPolicy(run_timeout=SHORT_BUT_STARTED), restarts=RestartPolicy(max_abandoned=1)) as pool:
        first, second = pool.submit(blocker), pool.submit(blocker)
        blocker.wait_entered(2)
        assert isinstance(first.exception(PATIENCE), RunTimeout)
        assert isinstance(second.exception(PATIENCE), RunTimeout)
        third = pool.submit(int)
        assert pool.stats().abandoned == 1
        assert not third.done()
        blocker.release()
        assert third.result(PATIENCE) == 0
    assert pool.stats().abandoned == 1


def test_an_abandoned_thread_that_returned_may_be_followed_by_another() -> None:
    with Pool(1, calls=CallPolicy(run_timeout=SHORT_BUT_STARTED), restarts=RestartPolicy(max_abandoned=1)) as pool:
        for round_ in (1, 2):
            with Blocker() as blocker:
                assert isinstance(pool.submit(blocker).exception(PATIENCE), RunTimeout)
                assert eventually(lambda round_=round_: pool.stats().abandoned == round_)  # type: ignore[misc]
                assert eventually(lambda: pool.stats().workers == 0), "its slot is free"
            assert eventually(lambda: not pool._engine.registry.abandoned())


@pytest.mark.parametrize("max_queue", [None, 5])
def test_an_abandoned_thread_leaves_the_pool_with_its_minimum(blocker: Blocker, max_queue: int | None) -> None:
    with Pool(2, min_workers=2, restarts=RestartPolicy(max_abandoned=1), max_queue=max_queue) as pool:
        assert pool.wait_ready(PATIENCE)
        assert isinstance(pool.using(run_timeout=SHORT).submit(blocker).exception(PATIENCE), RunTimeout)
        assert eventually(lambda: (pool.stats().abandoned, pool.stats().idle) == (1, 2), within=5)
        blocker.release()


def test_a_function_that_returns_while_its_thread_is_being_abandoned_uses_up_nothing() -> None:
    class ReturnNow(logging.Handler):
        """Lets the function return in the moment in which the pool says that it was abandoned."""

        def emit(self, record: logging.LogRecord) -> None:
            if "abandoned and replaced" in record.getMessage():
                first.release()
                eventually(lambda: not threads[0].is_alive(), within=5)

    def hang() -> None:
        threads.append(threading.current_thread())
        first()

    threads: list[threading.Thread] = []
    handler = ReturnNow()
    logging.getLogger("bullpen").addHandler(handler)
    try:
        with Blocker() as first, Blocker() as second, Pool(1, restarts=RestartPolicy(max_abandoned=1)) as pool:
            assert isinstance(pool.using(run_timeout=SHORT).submit(hang).exception(PATIENCE), RunTimeout)
            assert eventually(lambda: not threads[0].is_alive())
            assert isinstance(pool.using(run_timeout=SHORT).submit(second).exception(PATIENCE), RunTimeout)
            replaced = eventually(lambda: pool.stats().abandoned == 2, within=2)
            second.release()
    finally:
        logging.getLogger("bullpen").removeHandler(handler)
    assert replaced


def test_a_pool_closes_without_its_abandoned_threads(blocker: Blocker) -> None:
    pool = Pool(1, calls=CallPolicy(run_timeout=SHORT), restarts=RestartPolicy(max_abandoned=1))
    assert isinstance(pool.submit(blocker).exception(PATIENCE), RunTimeout)
    assert eventually(lambda: pool.stats().abandoned == 1)
    pool.close()
    assert pool.stats().state is PoolState.CLOSED
    blocker.release()


def test_a_submitter_that_waits_for_room_gets_the_slot_of_an_abandoned_thread(blocker: Blocker) -> None:
    ran = threading.Event()
    with Pool(1, max_queue=0, when_full="block", restarts=RestartPolicy(max_abandoned=1)) as pool:
        pool.using(run_timeout=0.3).submit(blocker)
        with Background(lambda: pool.submit(ran.set)):
            served = ran.wait(5)
            blocker.release()
    assert served


# max_queue: exactly so many wait.


@pytest.mark.parametrize(("workers", "max_queue"), [(1, 0), (3, 0), (1, 1), (2, 7), (4, 100)])
def test_exactly_as_many_are_taken_as_there_is_room_for(blocker: Blocker, workers: int, max_queue: int) -> None:
    with Pool(workers, max_queue=max_queue) as pool:
        submitters, each = 12, 20
        barrier = threading.Barrier(submitters)

        def submit() -> int:
            barrier.wait(PATIENCE)
            taken = 0
            for _ in range(each):
                with suppress(PoolSaturated):
                    pool.submit(blocker)
                    taken += 1
            return taken

        threads = [Background(submit) for _ in range(submitters)]
        taken = sum(int(str(thread.join().result)) for thread in threads)
        assert taken == workers + max_queue
        stats = pool.stats()
        assert (stats.submitted, stats.saturated) == (taken, submitters * each - taken)
        assert (stats.running + stats.queued, stats.workers) == (taken, workers)
        blocker.release()
    assert pool.stats().completed == taken
    assert_adds_up(pool)


@pytest.mark.parametrize("max_queue", [0, 1, 5])
def test_the_bound_is_still_exact_after_a_rush(max_queue: int) -> None:
    with Pool(3, max_queue=max_queue) as pool:

        def rush() -> None:
            for number in range(300):
                try:
                    future = pool.submit(int)
                except PoolSaturated:
                    continue
                if number % 3 == 0:
                    future.cancel()

        for thread in [Background(rush) for _ in range(8)]:
            assert thread.join().error is None
        assert eventually(lambda: pool.stats().busy == pool.stats().queued == 0)
        with Blocker() as blocker:
            taken = 0
            for _ in range(3 + max_queue + 5):
                taken += pool.serve(blocker)
            assert taken == 3 + max_queue
    assert_adds_up(pool)


def test_serve_says_false_when_saturated_and_submit_raises(blocker: Blocker) -> None:
    with Pool(1, max_queue=1, name="small") as pool:
        assert pool.serve(blocker)
        assert pool.serve(int)
        assert not pool.serve(int)
        with pytest.raises(PoolSaturated) as caught:
            pool.submit(int)
        assert (caught.value.pool, caught.value.queued, caught.value.limit) == ("small", 1, 1)
        with pytest.raises(PoolSaturated):
            pool.do(int)
        assert pool.stats().saturated == 3
        blocker.release()


def test_a_cancelled_request_makes_room_at_once(blocker: Blocker) -> None:
    with Pool(1, max_queue=2) as pool:
        occupy(pool, blocker, 1)
        for _ in range(50):
            futures = [pool.submit(int), pool.submit(int)]
            assert not pool.serve(int)
            assert all(future.cancel() for future in futures)
        assert pool.stats().queued == 0
        blocker.release()
    assert_adds_up(pool)


def test_a_worker_that_has_told_its_result_has_room() -> None:
    with Pool(1, max_queue=0) as pool:
        for _ in range(2000):
            pool.submit(int).result(PATIENCE)
    assert pool.stats().saturated == 0


# when_full="block".


def test_blocked_submitters_are_served_in_the_order_in_which_they_came(blocker: Blocker) -> None:
    ran: list[int] = []
    with Pool(1, max_queue=1, when_full="block") as pool:
        occupy(pool, blocker, 1)
        pool.submit(int)
        submitters = []
        for number in range(15):
            submitters.append(Background(lambda number=number: pool.submit(ran.append, number)))  # type: ignore[misc]
            assert eventually(lambda number=number: len(pool._engine.bounded.tickets) == number + 1)  # type: ignore[misc, union-attr]
        assert all(submitter.running for submitter in submitters)
        blocker.release()
        for submitter in submitters:
            assert submitter.join().error is None
    assert ran == list(range(15))
    assert pool.stats().saturated == 0
    assert_adds_up(pool)


def test_no_submitter_overtakes_those_that_wait_for_room(blocker: Blocker) -> None:
    ran: list[str] = []
    with Pool(1, max_queue=1, when_full="block") as pool:
        occupy(pool, blocker, 1)
        waiting = pool.submit(int)
        with Background(lambda: pool.submit(ran.append, "waited")):
            assert eventually(lambda: pool._engine.bounded.tickets)  # type: ignore[union-attr]
            waiting.cancel()
            with Background(lambda: pool.submit(ran.append, "came later")):
                blocker.release()
    assert ran == ["waited", "came later"]


@pytest.mark.parametrize(("limit", "error"), [("timeout", DeadlineExceeded), ("queue_timeout", QueueTimeout)])
@pytest.mark.parametrize("method", ["submit", "serve", "do"])
def test_a_blocked_submitter_gives_up_in_time(
    blocker: Blocker, limit: str, error: type[Exception], method: str
) -> None:
    with Pool(1, max_queue=0, when_full="block") as pool:
        occupy(pool, blocker, 1)
        asked = time.monotonic()
        with pytest.raises(error):
            getattr(pool.using(**{limit: SHORT}), method)(must_not_run)
        assert time.monotonic() - asked >= SHORT
        blocker.release()
        assert pool.submit(int).result(PATIENCE) == 0, "the place in line was given back"
    assert_adds_up(pool)


@pytest.mark.parametrize("drain", [True, False])
def test_close_wakes_blocked_submitters(blocker: Blocker, drain: bool) -> None:
    pool = Pool(1, max_queue=0, when_full="block")
    occupy(pool, blocker, 1)
    submitters = [Background(lambda: pool.submit(must_not_run)) for _ in range(5)]
    assert eventually(lambda: len(pool._engine.bounded.tickets) == 5)  # type: ignore[union-attr]
    with Background(lambda: pool.close(drain=drain)):
        for submitter in submitters:
            assert isinstance(submitter.join().error, PoolClosed)
        blocker.release()
    assert pool.stats().submitted == 1
    assert_adds_up(pool)


def test_resize_makes_room_for_blocked_submitters(blocker: Blocker) -> None:
    with Pool(1, max_queue=0, when_full="block") as pool:
        occupy(pool, blocker, 1)
        submitters = [Background(lambda: pool.submit(abs, -3)) for _ in range(3)]
        assert eventually(lambda: len(pool._engine.bounded.tickets) == 3)  # type: ignore[union-attr]
        pool.resize(4)
        for submitter in submitters:
            assert submitter.join().error is None
        blocker.release()
    assert pool.stats().completed == 4


def test_nothing_is_lost_when_many_block() -> None:
    ran: list[int] = []
    with Pool(2, max_queue=2, when_full="block") as pool:
        threads = [Background(lambda: [pool.submit(ran.append, 1) for _ in range(200)]) for _ in range(10)]
        for thread in threads:
            assert thread.join().error is None
    assert len(ran) == 2000
    assert_adds_up(pool)


# pause, resume, resize.


def test_a_paused_pool_takes_work_and_starts_none(blocker: Blocker) -> None:
    with Pool(2) as pool:
        running = pool.submit(blocker, 7)
        blocker.wait_entered()
        pool.pause()
        futures = [pool.submit(int) for _ in range(20)]
        blocker.release()
        assert running.result(PATIENCE) == 7, "what runs goes on"
        assert not any(future.done() for future in futures)
        assert pool.stats().queued == 20
        pool.resume()
        assert [future.result(PATIENCE) for future in futures] == [0] * 20


def test_a_paused_pool_that_is_closed_runs_what_it_took() -> None:
    pool = Pool(2)
    pool.pause()
    futures = [pool.submit(int) for _ in range(20)]
    pool.close()
    assert [future.result(0) for future in futures] == [0] * 20


@pytest.mark.parametrize("workers", [0, 2], ids=["no worker yet", "idle workers"])
def test_a_paused_pool_that_is_closed_without_draining_runs_nothing(workers: int) -> None:
    ran: list[int] = []
    pool = Pool(2, min_workers=workers)
    assert pool.wait_ready(PATIENCE)
    pool.pause()
    futures = [pool.submit(ran.append, number) for number in range(20)]
    pool.close(drain=False)
    assert all(future.cancelled() for future in futures)
    assert ran == []


def test_a_paused_pool_still_expires_what_waits() -> None:
    with Pool(1) as pool:
        pool.pause()
        assert isinstance(pool.using(timeout=SHORT).submit(must_not_run).exception(PATIENCE), DeadlineExceeded)


def test_pausing_and_resuming_under_load_loses_nothing() -> None:
    ran: list[int] = []
    over = threading.Event()
    with Pool(3, max_queue=10, when_full="block") as pool:

        def flicker() -> None:
            while not over.is_set():
                pool.pause()
                time.sleep(0)
                pool.resume()

        with Background(flicker):
            for number in range(3000):
                pool.submit(ran.append, number)
            over.set()
    assert sorted(ran) == list(range(3000))
    assert_adds_up(pool)


class Gauge:
    """How many calls run at once, and the most that ever did."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.running = self.most = 0

    def __enter__(self) -> None:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.running -= 1


def test_growing_starts_what_waits(blocker: Blocker) -> None:
    with Pool(1) as pool:
        for _ in range(5):
            pool.submit(blocker)
        blocker.wait_entered(1)
        assert pool.stats().workers == 1
        pool.resize(4)
        blocker.wait_entered(3)
        assert not blocker.was_entered(within=SHORT)
        assert (pool.stats().workers, pool.stats().queued, pool.stats().max_workers) == (4, 1, 4)
        blocker.release()


def test_shrinking_ends_surplus_workers_after_what_they_run(blocker: Blocker) -> None:
    gauge = Gauge()

    def run() -> None:
        with gauge:
            time.sleep(0.001)

    with Pool(6) as pool:
        occupy(pool, blocker, 6)
        futures = [pool.submit(run) for _ in range(60)]
        pool.resize(2)
        assert pool.stats().busy == 6, "what runs goes on"
        blocker.release()
        for future in futures:
            future.result(PATIENCE)
        assert gauge.most <= 2
        assert eventually(lambda: pool.stats().workers == 2)
    assert_adds_up(pool)


def test_shrinking_an_idle_pool_ends_workers(blocker: Blocker) -> None:
    with Pool(6) as pool:
        occupy(pool, blocker, 6)
        blocker.release()
        pool.resize(1)
        assert eventually(lambda: pool.stats().workers == 1)
        assert pool.submit(int).result(PATIENCE) == 0


def test_no_more_run_at_once_than_allowed_when_it_shrinks_and_grows_while_all_are_busy() -> None:
    gauge = Gauge()
    with Blocker() as blocker:

        def run() -> None:
            with gauge:
                blocker()

        with Pool(4) as pool:
            futures = [pool.submit(run) for _ in range(4)]
            blocker.wait_entered(4)
            pool.resize(1)
            pool.resize(4)
            futures += [pool.submit(run) for _ in range(4)]
            blocker.was_entered(within=0.3)
            most = gauge.most
            blocker.release()
            for future in futures:
                future.result(PATIENCE)
            assert eventually(lambda: pool.stats().busy == 0)
    assert most == 4
    assert_adds_up(pool)


def test_no_more_run_at_once_than_allowed_whatever_is_resized_under_load() -> None:
    gauge = Gauge()

    def run() -> None:
        with gauge:
            time.sleep(0)

    dice = random.Random(11)
    with Pool(4) as pool:
        futures = []
        for _ in range(150):
            pool.resize(dice.randint(1, 6))
            futures += [pool.submit(run) for _ in range(10)]
        for future in futures:
            future.result(PATIENCE)
    assert gauge.most <= 6
    assert pool.stats().completed == 1500


def test_a_map_goes_on_when_a_bounded_pool_is_resized_and_full(blocker: Blocker) -> None:
    out = printed(
        """
        import threading
        from bullpen import Pool
        from tests.scenarios.support import Blocker, eventually

        with Blocker() as blocker, Pool(2, max_queue=0) as pool:
            results = pool.map(abs, range(10), buffersize=2)
            assert eventually(lambda: pool.stats().completed == 2 and not pool.stats().busy)
            pool.resize(3)
            for _ in range(3):
                pool.submit(blocker)
            reader = threading.Thread(target=lambda: print(list(results)))
            reader.start()
            blocker.release()
            reader.join()
        """,
        within=5,
    )
    assert out == f"{list(range(10))}\n"


def test_resize_keeps_to_min_workers() -> None:
    with Pool(4, min_workers=2) as pool:
        with pytest.raises(InvalidOption, match="min_workers"):
            pool.resize(1)
        assert pool.stats().max_workers == 4


# How many workers there are.


def test_workers_that_are_not_needed_end(blocker: Blocker) -> None:
    with Pool(5, recycling=RecyclePolicy(idle_timeout=0.08)) as pool:
        occupy(pool, blocker, 5)
        assert pool.stats().workers == 5
        blocker.release()
        assert eventually(lambda: pool.stats().workers == 0, within=10)
        assert pool.submit(int).result(PATIENCE) == 0, "and come back"
        assert pool.stats().retired >= 5


def test_min_workers_stay_however_long_the_others_take_to_end(blocker: Blocker) -> None:
    closing = Blocker()

    class SlowToClose:
        def work(self) -> None:
            blocker()

        def close(self) -> None:
            closing()

    with closing, Pool(5, worker=SlowToClose, min_workers=2, recycling=RecyclePolicy(idle_timeout=0.08)) as pool:
        calls = [pool.submit("work") for _ in range(5)]
        blocker.wait_entered(5)
        blocker.release()
        assert [call.result(PATIENCE) for call in calls] == [None] * 5
        closing.wait_entered(3)
        assert not closing.was_entered(within=0.3), "a worker went that has to stay"
        closing.release()
        assert eventually(lambda: pool.stats().workers == 2)


def test_without_idle_timeout_workers_stay(blocker: Blocker) -> None:
    with Pool(3, recycling=RecyclePolicy(idle_timeout=None)) as pool:
        occupy(pool, blocker, 3)
        blocker.release()
        assert not eventually(lambda: pool.stats().workers < 3, within=0.3)


def test_a_busy_worker_is_never_taken_for_an_idle_one(blocker: Blocker) -> None:
    with Pool(2, recycling=RecyclePolicy(idle_timeout=0.05)) as pool:
        future = pool.submit(blocker, 9)
        blocker.wait_entered()
        assert not eventually(lambda: pool.stats().workers == 0, within=0.4)
        blocker.release()
        assert future.result(PATIENCE) == 9


def test_workers_start_when_they_are_needed_and_not_before(blocker: Blocker) -> None:
    with Pool(4) as pool:
        assert pool.stats().workers == 0
        for number in range(1, 5):
            occupy(pool, blocker, 1)
            assert pool.stats().workers == number
        pool.submit(int)
        assert pool.stats().workers == 4
        blocker.release()


def test_wait_ready_waits_for_the_first_workers() -> None:
    with Blocker() as starting:
        pool = Pool(3, min_workers=3, initializer=starting)
        starting.wait_entered(3)
        assert not pool.wait_ready(0.02)
        assert pool.stats().state is PoolState.INITIALIZING
        with Background(lambda: pool.wait_ready(PATIENCE)) as waiter:
            starting.release()
        assert waiter.result is True
        assert pool.wait_ready()
        assert (pool.stats().workers, pool.stats().state) == (3, PoolState.RUNNING)
        pool.close()


def test_wait_ready_returns_at_once_when_no_worker_has_to_be_there() -> None:
    with Pool(3) as pool:
        assert pool.wait_ready(0)


def test_work_that_comes_before_the_workers_waits_for_them() -> None:
    with Blocker() as starting, Pool(1, min_workers=1, initializer=starting) as pool:
        future = pool.submit(int)
        starting.wait_entered()
        assert not future.done()
        starting.release()
        assert future.result(PATIENCE) == 0


def test_a_pool_none_of_whose_workers_can_start_fails_with_the_cause(caplog: pytest.LogCaptureFixture) -> None:
    def reject() -> None:
        raise OSError("no licence")

    pool = Pool(3, min_workers=2, initializer=reject)
    with pytest.raises(PoolFailed, match="no licence") as caught:
        pool.wait_ready(PATIENCE)
    assert isinstance(caught.value.__cause__, OSError)
    for call in (pool.submit, pool.do, pool.serve):
        with pytest.raises(PoolFailed, match="no licence"):
            call(int)
    with pytest.raises(PoolFailed, match="no licence"):
        pool.map(int, ["1"])
    pool.close()
    assert pool.stats().state is PoolState.FAILED
    assert "could not start" in caplog.text


def test_a_failed_pool_can_be_paused_resumed_and_closed() -> None:
    def reject() -> None:
        raise OSError("no licence")

    pool = Pool(2, initializer=reject)
    assert isinstance(pool.submit(int).exception(PATIENCE), PoolFailed)
    pool.pause()
    pool.resume()
    pool.close()


def test_a_worker_that_does_not_start_is_not_tried_again_without_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="bullpen")
    attempts: list[int] = []
    first = threading.Event()

    def reject_all_but_one() -> None:
        attempts.append(1)
        if first.is_set():
            raise OSError("no licence")
        first.set()

    with Blocker() as blocker, Pool(2, initializer=reject_all_but_one) as pool:
        occupy(pool, blocker, 1)
        waiting = pool.submit(int)
        many = eventually(lambda: len(attempts) > 100, within=1)
        blocker.release()
        assert waiting.exception(PATIENCE) is None
    assert not many


def test_min_workers_are_there_although_one_of_them_failed_to_start(caplog: pytest.LogCaptureFixture) -> None:
    lock = threading.Lock()
    attempts: list[int] = []
    together = threading.Barrier(2)

    def reject_once() -> None:
        with lock:
            attempts.append(1)
            number = len(attempts)
        if number <= 2:
            together.wait(PATIENCE)
        if number == 2:
            raise OSError("no licence")

    with Pool(2, min_workers=2, initializer=reject_once) as pool:
        assert pool.wait_ready(3)
        assert eventually(lambda: pool.stats().idle == 2, within=1)


# The end.


def test_close_with_a_grace_abandons_a_thread_and_fails_its_waiting_caller(
    blocker: Blocker, caplog: pytest.LogCaptureFixture
) -> None:
    pool = Pool(1)
    running, waiting = pool.submit(blocker), pool.submit(must_not_run)
    blocker.wait_entered()
    with Background(lambda: running.exception(PATIENCE)) as reader:
        pool.close(grace=SHORT)
    assert isinstance(reader.result, WorkerAbandoned)
    assert waiting.cancelled()
    assert pool.stats().state is PoolState.CLOSED
    assert "abandoned" in caplog.text
    blocker.release()
    assert_adds_up(pool)


def test_a_map_that_comes_in_the_moment_of_closing_leaves_the_numbers_right(monkeypatch: pytest.MonkeyPatch) -> None:
    closing, go_on = threading.Event(), threading.Event()

    def stop_halfway(name: str) -> None:
        if name == "pool.draining_not_stopped":
            closing.set()
            go_on.wait(PATIENCE)

    def close_first() -> None:
        monkeypatch.delattr(dispatcher, "grow")
        closers.append(Background(pool.close))
        assert closing.wait(PATIENCE)

    closers: list[Background] = []
    monkeypatch.setattr(primitives, "failpoint", stop_halfway)
    pool = Pool(1)
    dispatcher = pool._engine.dispatcher
    monkeypatch.setattr(dispatcher, "grow", close_first, raising=False)
    with suppress(PoolClosed, CancelledError):
        results = pool.map(abs, range(3))
        go_on.set()
        list(results)
    go_on.set()
    assert closers[0].join().error is None
    assert (pool.stats().queued, pool.stats().state) == (0, PoolState.CLOSED)
    assert_adds_up(pool)


def test_close_within_its_grace_runs_everything(blocker: Blocker) -> None:
    pool = Pool(1)
    futures = [pool.submit(blocker), *(pool.submit(int) for _ in range(9))]
    with Background(lambda: pool.close(grace=PATIENCE)):
        blocker.release()
    assert all(future.exception(0) is None for future in futures)


def test_an_exception_that_leaves_with_cancels_waiting_requests_and_finishes_running_ones(blocker: Blocker) -> None:
    futures: list[Future[Any]] = []

    def leave() -> None:
        with Pool(1) as pool:
            futures.extend([pool.submit(blocker, 1), *(pool.submit(must_not_run) for _ in range(5))])
            blocker.wait_entered()
            raise KeyError

    with Background(leave) as leaving:
        assert eventually(lambda: futures and all(future.cancelled() for future in futures[1:]))
        assert leaving.running
        blocker.release()
    assert isinstance(leaving.error, KeyError)
    assert futures[0].result(0) == 1


def test_an_interrupted_do_takes_its_queued_work_back(blocker: Blocker) -> None:
    class Interrupted(BaseException):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        with Pool(1) as pool:
            occupy(pool, blocker, 1)
            signal.setitimer(signal.ITIMER_REAL, SHORT)
            with pytest.raises(Interrupted):
                pool.do(must_not_run)
            assert (pool.stats().cancelled, pool.stats().queued) == (1, 0)
            blocker.release()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert_adds_up(pool)


def test_an_interrupted_submitter_leaves_the_line(blocker: Blocker) -> None:
    class Interrupted(BaseException):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        with Pool(1, max_queue=0, when_full="block") as pool:
            occupy(pool, blocker, 1)
            signal.setitimer(signal.ITIMER_REAL, SHORT)
            with pytest.raises(Interrupted):
                pool.submit(must_not_run)
            blocker.release()
            assert pool.submit(int).result(PATIENCE) == 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert_adds_up(pool)


def test_closing_a_view_s_pool_closes_the_view() -> None:
    pool = Pool(1)
    view = pool.using(timeout=5)
    pool.close()
    with pytest.raises(PoolClosed):
        view.submit(int)


def test_a_view_keeps_its_pool_open() -> None:
    view = Pool(1).using(timeout=PATIENCE)
    assert not eventually(lambda: _rejects(view), within=0.3)
    assert view.submit(int).result(PATIENCE) == 0


def _rejects(view: object) -> bool:
    try:
        view.submit(int)  # type: ignore[attr-defined]
    except PoolClosed:
        return True
    return False


def test_samples_are_taken_however_often_stats_are_read() -> None:
    with Pool(1) as pool:
        for _ in range(64 + 10 * 32):
            pool.submit(int).result(PATIENCE)
            pool.stats()
        stats = pool.stats()
    assert stats.run is not None
    assert stats.run.samples == 64 + 10
