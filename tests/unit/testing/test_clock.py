"""Time moves when the test says so, and a gate is never opened twice."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bullpen import primitives
from bullpen.testing import ManualClock
from tests.tools.explore import Run, explore


def closed_gate() -> primitives.Lock:
    gate = primitives.gate()
    gate.acquire()
    return gate


@contextmanager
def thread(function: Callable[[], object]) -> Iterator[None]:
    """Run `function` on a thread that has to have ended when the block does."""
    running = threading.Thread(target=function)
    running.start()
    yield
    running.join(10)
    assert not running.is_alive()


def test_time_stands_still_until_it_is_moved() -> None:
    clock = ManualClock(now=5.0)
    assert clock.monotonic() == clock.monotonic() == 5.0
    clock.advance(2.5)
    clock.advance(0)
    assert clock.monotonic() == 7.5


@pytest.mark.parametrize("seconds", [-1, math.inf, math.nan])
def test_time_moves_only_forward_and_not_to_the_end(seconds: float) -> None:
    clock = ManualClock()
    with pytest.raises(ValueError, match="seconds must be ≥ 0 and finite"):
        clock.advance(seconds)
    assert clock.monotonic() == ManualClock().monotonic()


def test_a_wait_ends_with_false_when_its_time_comes_and_not_before() -> None:
    clock, answers = ManualClock(), list[tuple[bool, float]]()
    with thread(lambda: answers.append((clock.wait(closed_gate(), 3), clock.monotonic()))):
        assert clock.wait_for_waiters(1)
        clock.advance(2.9)
        assert (clock.waiters(), answers) == (1, [])
        clock.advance(0.1)
        assert clock.waiters() == 0
    assert answers == [(False, clock.monotonic())]


def test_a_wait_ends_with_true_when_the_gate_opens() -> None:
    clock, gate, answers = ManualClock(), closed_gate(), list[bool]()
    with thread(lambda: answers.append(clock.wait(gate, 3))):
        assert clock.wait_for_waiters(1)
        gate.release()
    assert answers == [True]
    assert not gate.acquire(False), "the waiter closed it behind itself"


@pytest.mark.parametrize("timeout", [None, math.inf])
def test_a_wait_without_limit_is_not_among_the_waiters(timeout: float | None) -> None:
    clock, gate, answers = ManualClock(), closed_gate(), list[bool]()
    with thread(lambda: answers.append(clock.wait(gate, timeout))):
        clock.advance(1e9)
        assert clock.waiters() == 0
        gate.release()
    assert answers == [True]


@pytest.mark.parametrize("timeout", [0, -1.0])
def test_a_wait_whose_time_is_over_only_looks(timeout: float) -> None:
    clock, gate = ManualClock(), closed_gate()
    assert not clock.wait(gate, timeout)
    gate.release()
    assert clock.wait(gate, timeout)


def test_a_gate_that_opened_before_the_time_came_counts_as_opened() -> None:
    clock, gate, answers = ManualClock(), closed_gate(), list[bool]()
    with thread(lambda: answers.append(clock.wait(gate, 3))):
        assert clock.wait_for_waiters(1)
        gate.release()
        clock.advance(3)
    assert answers == [True]


def test_waiters_wake_in_the_order_of_their_times_each_at_its_own() -> None:
    clock, woken = ManualClock(now=0.0), list[float]()

    def wait(seconds: float) -> None:
        assert not clock.wait(closed_gate(), seconds)
        woken.append(clock.monotonic())

    with thread(lambda: wait(3)), thread(lambda: wait(1)), thread(lambda: wait(2)), thread(lambda: wait(9)):
        assert clock.wait_for_waiters(4)
        clock.advance(1)
        clock.advance(1)
        clock.advance(1)
        assert clock.waiters() == 1
        clock.advance(6)
    assert woken == [1, 2, 3, 9]


def test_one_step_over_several_waiters_stops_at_each_in_turn() -> None:
    clock, last_looks = ManualClock(now=0.0), list[tuple[int, float]]()

    class Gate:
        """Closed; notes when a waiter takes its last look."""

        def __init__(self, number: int) -> None:
            self.number = number
            self.lock = closed_gate()

        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
            if not blocking:
                last_looks.append((self.number, clock.monotonic()))
            return self.lock.acquire(blocking, timeout)

    def wait(seconds: int) -> None:
        gate: Any = Gate(seconds)
        assert not clock.wait(gate, seconds)

    with thread(lambda: wait(3)), thread(lambda: wait(1)), thread(lambda: wait(2)):
        assert clock.wait_for_waiters(3)
        clock.advance(5)
    assert last_looks == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert clock.monotonic() == 5


def test_waiting_for_waiters_gives_up() -> None:
    clock = ManualClock()
    assert not clock.wait_for_waiters(1, timeout=0)
    assert clock.wait_for_waiters(0, timeout=0)


@pytest.mark.parametrize("racing_clock", [False, True])
def test_the_gate_is_opened_once_and_taken_once_in_either_order(racing_clock: bool) -> None:
    """A waiter, its time and its opener in every order: no second release, no lost opening, no wrong answer."""

    def scenario(run: Run) -> None:
        clock, gate, answers = ManualClock(), closed_gate(), list[bool]()
        run.actor(lambda: answers.append(clock.wait(gate, 1)), name="waiter")
        run.actor(lambda: clock.advance(1), name="time")
        run.actor(gate.release, name="opener")

        def check() -> None:
            assert answers == [not gate.acquire(False)]
            assert clock.waiters() == 0

        run.check(check)

    report = explore(scenario, schedules=1500, racing_clock=racing_clock)
    report.raise_for_failure()


def test_a_gate_that_opens_before_the_clock_moves_is_never_a_timeout() -> None:
    def scenario(run: Run) -> None:
        clock, gate, answers = ManualClock(), closed_gate(), list[bool]()

        def open_then_move() -> None:
            if clock.wait_for_waiters(1):
                gate.release()
                clock.advance(1)

        run.actor(lambda: answers.append(clock.wait(gate, 1)), name="waiter")
        run.actor(open_then_move)

        def check() -> None:
            assert answers == [True]

        run.check(check)

    explore(scenario, schedules=1500).raise_for_failure()
