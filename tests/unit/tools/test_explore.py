"""Known races are found and replayed; their corrected versions survive."""

from __future__ import annotations

import _thread
import concurrent.futures
import gc
import itertools
import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bullpen import Pool, RecyclePolicy, RestartPolicy, primitives
from tests.tools import actors, lock_order, scheduler
from tests.tools.explore import (
    BlockedOutsideActors,
    DeadlockFound,
    LivelockFound,
    ReplayDiverged,
    Run,
    Scenario,
    Stalled,
    StrategyName,
    explore,
    replay,
)
from tests.unit.tools.races import BROKEN, FIXED, shared_counter, two_locks

STRATEGIES: tuple[StrategyName, ...] = ("mixed", "random", "priorities", "systematic")


@pytest.fixture(autouse=True)
def only_the_exploration() -> Iterator[None]:
    """The toys break the lock order on purpose, and no exploration leaves a thread or a replaced seam behind."""
    checked = lock_order.is_installed()
    lock_order.uninstall()
    threads = _thread._count()
    seams = dict(vars(primitives))
    standard = (threading.Lock, threading.RLock, time.monotonic, time.sleep)
    try:
        yield
        assert _thread._count() <= threads
        assert seams == vars(primitives)
        assert standard == (threading.Lock, threading.RLock, time.monotonic, time.sleep)
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("Dummy")]
    finally:
        if checked:
            lock_order.install()


def request_condition() -> threading.Condition:
    lock: Any = primitives.request_lock()
    return threading.Condition(lock)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", BROKEN)
def test_a_known_race_is_found_and_replayed(name: str, strategy: StrategyName) -> None:
    report = explore(BROKEN[name], schedules=300, strategy=strategy)
    assert report.failure is not None, f"not found in {report.schedules} schedules"
    again = replay(BROKEN[name], report.failure.token)
    assert again.failure is not None
    assert type(again.failure.error) is type(report.failure.error)
    assert (again.failure.choices, again.failure.trace) == (report.failure.choices, report.failure.trace)
    with pytest.raises(type(report.failure.error)):
        again.raise_for_failure()


@pytest.mark.parametrize("racing_clock", [False, True])
@pytest.mark.parametrize("name", FIXED)
def test_the_corrected_version_survives(name: str, racing_clock: bool) -> None:
    report = explore(FIXED[name], schedules=1500, racing_clock=racing_clock)
    report.raise_for_failure()
    assert report.exhausted or report.schedules == 1500


def test_a_deadlock_names_each_actor_and_what_it_waits_for() -> None:
    report = explore(two_locks(ordered=False), schedules=300)
    with pytest.raises(DeadlockFound) as found:
        report.raise_for_failure()
    text = str(found.value)
    assert "actor 'alice' waits for worker lock #2 held by 'bob'" in text
    assert "actor 'bob' waits for registry lock #1 held by 'alice'" in text
    assert "with first, second" in text
    assert report.failure is not None
    assert any(f"replay(scenario, {report.failure.token!r})" in note for note in found.value.__notes__)
    assert any("alice: acquire registry lock #1" in step for step in report.failure.trace)


def test_the_same_seed_gives_the_same_schedules() -> None:
    def walked(seed: int) -> list[tuple[int, ...]]:
        orders: list[tuple[int, ...]] = []

        def scenario(run: Run) -> None:
            order: list[int] = []
            line = primitives.new_deque()

            def work(number: int) -> None:
                for _ in range(4):
                    line.append(number)
                    order.append(number)

            for number in range(3):
                run.actor(work, number)
            run.check(lambda: orders.append(tuple(order)))

        report = explore(scenario, schedules=200, seed=seed)
        assert (report.failure, report.schedules) == (None, 200)
        return orders

    assert walked(7) == walked(7)
    assert walked(7) != walked(8)


def test_a_systematic_search_tries_each_schedule_once() -> None:
    def scenario(run: Run) -> None:
        lock = primitives.worker_lock()

        def work() -> None:
            lock.acquire(False)

        run.actor(work)
        run.actor(work)

    report = explore(scenario, strategy="systematic", preemptions=5)
    assert report.exhausted
    # Two points each, the start and the acquire, of which only the order of the four matters: 4!/(2!·2!).
    assert report.schedules == report.distinct == 6


def test_more_preemptions_make_more_schedules() -> None:
    runs = [explore(shared_counter, strategy="systematic", preemptions=n, schedules=5000) for n in (0, 1)]
    assert [run.exhausted for run in runs] == [True, True]
    assert runs[0].distinct < runs[1].distinct


def test_time_jumps_when_no_process_can_run() -> None:
    def scenario(run: Run) -> None:
        log: list[tuple[str, float]] = []
        gate = primitives.gate()
        gate.acquire()
        start = primitives.system_clock.monotonic()

        def note(name: str) -> None:
            log.append((name, primitives.system_clock.monotonic() - start))

        def sleeper() -> None:
            time.sleep(3600)
            note("slept")
            gate.release()

        def waiter() -> None:
            assert not gate.acquire(True, 60)
            note("timed out")
            assert primitives.system_clock.wait(gate, None)
            note("opened")

        run.actor(sleeper)
        run.actor(waiter)
        expected = [("timed out", 60.0), ("opened", 3600.0), ("slept", 3600.0)]
        run.check(lambda: sorted(log) == sorted(expected) or pytest.fail(str(log)))

    began = time.monotonic()
    explore(scenario, schedules=50).raise_for_failure()
    assert time.monotonic() - began < 60


def test_a_racing_clock_lets_a_timeout_pass_while_others_run() -> None:
    def scenario(run: Run) -> None:
        gate = primitives.gate()
        gate.acquire()

        def waiter() -> None:
            assert gate.acquire(True, 1.0), "timed out"

        run.actor(waiter)
        run.actor(gate.release, name="opener")

    explore(scenario, schedules=300).raise_for_failure()
    report = explore(scenario, schedules=300, racing_clock=True)
    with pytest.raises(AssertionError, match="timed out"):
        report.raise_for_failure()
    assert report.failure is not None
    assert replay(scenario, report.failure.token).failure is not None


def test_a_spinning_actor_is_a_livelock_only_if_fair_turns_do_not_help() -> None:
    def spinning(helped: bool) -> Scenario:
        def scenario(run: Run) -> None:
            line = primitives.new_deque()

            def spin() -> None:
                while not line:
                    pass

            run.actor(spin)
            if helped:
                run.actor(line.append, 1, name="helper")

        return scenario

    explore(spinning(helped=True), schedules=60, max_steps=400).raise_for_failure()
    report = explore(spinning(helped=False), schedules=60, max_steps=400)
    with pytest.raises(LivelockFound, match="'spin' can run"):
        report.raise_for_failure()


def test_daemons_are_unwound_without_noise(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    swallowed: list[str] = []

    def scenario(run: Run) -> None:
        gate, lock = primitives.gate(), primitives.worker_lock()
        gate.acquire()
        condition = request_condition()

        def stubborn() -> None:
            for _ in range(3):
                try:
                    with lock:
                        gate.acquire()
                except BaseException as error:
                    logging.getLogger("bullpen").exception("worker failed")
                    swallowed.append(type(error).__name__)

        def patient() -> None:
            with condition:
                condition.wait()

        def periodic() -> None:
            while True:
                primitives.system_clock.wait(gate, 60)

        for target in (stubborn, patient, periodic):
            primitives.start_thread(target, target.__name__)
        run.actor(lambda: threading.current_thread(), name="main")

    explore(scenario, schedules=100).raise_for_failure()
    assert swallowed.count("Unwound") == len(swallowed) > 100
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


def test_daemons_settle_before_the_check() -> None:
    def scenario(run: Run) -> None:
        line, done = primitives.new_deque(), []

        def drain() -> None:
            while line:
                done.append(line.popleft())

        def submit() -> None:
            line.extend("abc")
            primitives.start_thread(drain, "drain")

        run.actor(submit)
        run.check(lambda: done == ["a", "b", "c"] or pytest.fail(str(done)))

    explore(scenario, schedules=100).raise_for_failure()


def test_a_started_thread_can_be_named_and_joined() -> None:
    def scenario(run: Run) -> None:
        own = threading.local()
        seen: list[int] = []

        def work() -> None:
            assert not hasattr(own, "mark")
            own.mark = True
            seen.append(primitives.current_thread_id())

        def main() -> None:
            threads = [primitives.start_thread(work, f"w-{number}") for number in range(2)]
            for thread in threads:
                thread.join()
                assert not thread.is_alive()
            assert [(thread.name, thread.daemon) for thread in threads] == [("w-0", True), ("w-1", True)]
            assert sorted(seen) == sorted(thread.ident or 0 for thread in threads)

        run.actor(main)

    explore(scenario, schedules=100).raise_for_failure()


def test_a_join_can_time_out() -> None:
    def scenario(run: Run) -> None:
        def main() -> None:
            thread = primitives.start_thread(lambda: run.clock.sleep(5), "sleeper")
            thread.join(0)
            thread.join(2)
            assert (thread.is_alive(), run.clock.monotonic()) == (True, actors.START + 2)
            thread.join(10)
            assert (thread.is_alive(), run.clock.monotonic()) == (False, actors.START + 5)

        run.actor(main)

    explore(scenario, schedules=50).raise_for_failure()


def test_standard_futures_run_under_control() -> None:
    def scenario(run: Run) -> None:
        futures = [concurrent.futures.Future[int]() for _ in range(2)]
        for future in futures:
            future._condition = request_condition()
        late: concurrent.futures.Future[int] = concurrent.futures.Future()

        def waiter() -> None:
            assert len(concurrent.futures.wait(futures).done) == 2
            assert sorted(future.result() for future in concurrent.futures.as_completed(futures)) == [0, 1]
            with pytest.raises(TimeoutError):
                late.result(timeout=30)
            with pytest.raises(TimeoutError):
                next(concurrent.futures.as_completed([late], timeout=30))

        run.actor(waiter)
        for number, future in enumerate(futures):
            run.actor(future.set_result, number, name=f"setter-{number}")
        run.actor(lambda: futures[0].result(), name="reader")

    explore(scenario, schedules=300).raise_for_failure()


def test_watched_modules_stop_at_every_line() -> None:
    this_module = sys.modules[__name__]

    def scenario(run: Run) -> None:
        state = {"count": 0}

        def increment() -> None:
            seen = state["count"]
            state["count"] = seen + 1

        run.actor(increment, name="first")
        run.actor(increment, name="second")
        run.check(lambda: state["count"] == 2 or pytest.fail("lost update"))

    explore(scenario, schedules=200).raise_for_failure()
    report = explore(scenario, schedules=200, watch=[this_module])
    assert report.failure is not None
    assert replay(scenario, report.failure.token, watch=[this_module]).failure is not None


@pytest.mark.parametrize("where", ["actor", "daemon", "check", "setup"])
def test_an_exception_is_reported_wherever_it_is_raised(where: str) -> None:
    def fail() -> None:
        raise ZeroDivisionError(where)

    def scenario(run: Run) -> None:
        run.actor(primitives.gate().acquire, name="main")
        places: dict[str, Callable[[], object]] = {
            "actor": lambda: run.actor(fail),
            "daemon": lambda: primitives.start_thread(fail, "daemon"),
            "check": lambda: run.check(fail),
            "setup": fail,
        }
        places[where]()

    with pytest.raises(ZeroDivisionError, match=where):
        explore(scenario, schedules=10).raise_for_failure()


def test_setup_and_check_may_not_wait() -> None:
    def scenario(run: Run) -> None:
        gate = primitives.gate()
        run.actor(gate.acquire)
        run.check(gate.acquire)

    with pytest.raises(BlockedOutsideActors, match="gate #1"):
        explore(scenario, schedules=1).raise_for_failure()


def test_a_token_of_another_scenario_is_rejected() -> None:
    with pytest.raises(ReplayDiverged, match="actor 9 cannot run here"):
        replay(two_locks(ordered=True), "jumping:1x1.9x1")
    with pytest.raises(ValueError, match="expected a token"):
        replay(shared_counter, "1x1")


def test_a_scenario_that_depends_on_more_than_the_schedule_is_noticed() -> None:
    runs = itertools.count()

    def scenario(run: Run) -> None:
        line = primitives.new_deque()
        for _ in range(3 - next(runs) % 3):
            run.actor(line.append, 1)

    report = explore(scenario, strategy="systematic", schedules=200)
    report.raise_for_failure()
    assert report.diverged > 0
    assert not report.exhausted


def test_waiting_outside_control_is_reported_instead_of_hanging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "_STALL_SECONDS", 0.05)
    threads = _thread._count()
    uncontrolled = _thread.allocate_lock()
    uncontrolled.acquire()

    def scenario(run: Run) -> None:
        run.actor(uncontrolled.acquire, name="outsider")

    try:
        report = explore(scenario, schedules=1)
    finally:
        uncontrolled.release()
    with pytest.raises(Stalled, match="outsider"):
        report.raise_for_failure()
    while _thread._count() > threads:
        time.sleep(0.001)


def test_exploring_is_fast_enough_for_thousands_of_schedules() -> None:
    report = explore(shared_counter, schedules=1000)
    assert report.distinct > 500
    assert report.schedules / report.seconds > 100


def test_nothing_of_a_schedule_outlives_it() -> None:
    pools: list[weakref.ref[Pool]] = []

    def left_open(run: Run) -> None:
        pool = Pool(1, restarts=RestartPolicy(reconcile_interval=None), recycling=RecyclePolicy(idle_timeout=None))
        pools.append(weakref.ref(pool))
        run.actor(lambda: pool.submit(int).result())

    explore(left_open, schedules=5).raise_for_failure()
    gc.collect()
    assert [pool() for pool in pools] == [None] * 5
