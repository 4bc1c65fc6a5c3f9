"""Deadlines come due in time, in any number and mixture, and keep nothing alive."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.pools.dispatch.deadlines import MAX_DURATIONS, Deadlines
from bullpen.pools.dispatch.request import DONE, NO_LIMITS, Request, TimeLimits, Timing
from tests.unit.pools.dispatch.support import WatchedRequest, new_request, new_worker


def waiting(deadlines: Deadlines, now: float, limits: TimeLimits) -> WatchedRequest:
    """A request that waits since `now`, armed."""
    request = new_request()
    request.timing = Timing(request, now, limits)
    deadlines.arm_queued(request.timing)
    return request


def running(deadlines: Deadlines, now: float, limits: TimeLimits) -> WatchedRequest:
    """A request that runs since `now`, armed for its run."""
    request = new_request()
    request.timing = Timing(request, now, limits)
    request.timing.started_at = now
    assert request.start(new_worker())
    deadlines.arm_started(request.timing)
    return request


def test_nothing_comes_due_when_nothing_is_limited() -> None:
    deadlines = Deadlines()
    request = waiting(deadlines, 0.0, NO_LIMITS)
    assert request.timing is not None
    request.timing.started_at = 0.0
    assert not deadlines.arm_started(request.timing)
    assert not deadlines.arm_again(request.timing, math.inf)
    assert (len(deadlines), deadlines.next_at, deadlines.due(1e12)) == (0, math.inf, [])


def test_requests_come_due_at_their_time_and_once() -> None:
    deadlines = Deadlines()
    late = waiting(deadlines, 0.0, TimeLimits(queue_timeout=5))
    early = running(deadlines, 1.0, TimeLimits(run_timeout=2))
    assert deadlines.next_at == 3
    assert deadlines.due(2.9) == []
    assert deadlines.due(3) == [early]
    assert (deadlines.next_at, deadlines.due(4.9)) == (5, [])
    assert deadlines.due(99) == [late]
    assert (deadlines.next_at, deadlines.due(1e9), len(deadlines)) == (math.inf, [], 0)


def test_requests_of_one_limit_come_due_in_order() -> None:
    deadlines, limits = Deadlines(), TimeLimits(timeout=10)
    requests = [waiting(deadlines, float(number), limits) for number in range(5)]
    assert deadlines.due(12) == requests[:3]
    assert deadlines.due(99) == requests[3:]


def test_a_request_can_be_looked_at_again() -> None:
    deadlines = Deadlines()
    request = waiting(deadlines, 0.0, TimeLimits(timeout=9, queue_timeout=1))
    assert deadlines.due(1) == [request]
    assert request.timing is not None
    assert deadlines.arm_again(request.timing, 9), "nobody knows of it yet"
    assert deadlines.next_at == 9
    assert deadlines.due(9) == [request]


@pytest.mark.parametrize("arm", [waiting, running])
def test_any_number_of_durations_can_be_in_use(arm: Callable[[Deadlines, float, TimeLimits], WatchedRequest]) -> None:
    deadlines = Deadlines()
    durations = [1.0 + number for number in range(3 * MAX_DURATIONS)]
    requests = [arm(deadlines, 0.0, TimeLimits(queue_timeout=duration, run_timeout=duration)) for duration in durations]
    assert len(deadlines._waiting) <= MAX_DURATIONS
    assert len(deadlines._running) <= MAX_DURATIONS
    assert deadlines._heap, "the rest shares a heap"
    for duration, request in zip(durations, requests, strict=True):
        assert deadlines.next_at == duration
        assert deadlines.due(math.nextafter(duration, 0)) == []
        assert deadlines.due(duration) == [request]
    assert len(deadlines) == 0


def test_a_finished_request_does_not_come_due() -> None:
    deadlines = Deadlines()
    in_a_line, other = waiting(deadlines, 0.0, TimeLimits(1)), waiting(deadlines, 0.0, TimeLimits(2))
    in_the_heap = waiting(deadlines, 0.0, TimeLimits(9, 0.5))
    assert deadlines.due(0.5) == [in_the_heap]
    assert in_the_heap.timing is not None
    deadlines.arm_again(in_the_heap.timing, 0.7)
    assert deadlines.next_at == 0.7
    assert in_the_heap.cancel_queued()
    assert in_a_line.cancel_queued()
    assert deadlines.next_at == 2
    assert deadlines.due(99) == [other]


def test_a_finished_request_is_not_kept_alive() -> None:
    deadlines = Deadlines()
    references = list[weakref.ref[Request]]()
    for number in range(2 * MAX_DURATIONS):  # in lines and in the heap
        request = waiting(deadlines, 0.0, TimeLimits(timeout=100.0 + number, run_timeout=50.0 + number))
        assert request.timing is not None
        request.timing.started_at = 1.0
        assert request.start(new_worker())
        deadlines.arm_started(request.timing)
        assert request.settle(DONE, object())
        references.append(weakref.ref(request))
    del request
    gc.collect()
    assert [reference() for reference in references] == [None] * len(references)


@pytest.mark.parametrize("durations", [1, 4 * MAX_DURATIONS], ids=["in a queue", "in the heap"])
def test_timings_of_ended_requests_do_not_pile_up(durations: int) -> None:
    deadlines = Deadlines()
    limits = [TimeLimits(timeout=3600.0 + number) for number in range(durations)]
    kept = [waiting(deadlines, 0.0, limits[-1]) for _ in range(10)]
    for number in range(20_000):
        assert waiting(deadlines, number / 1000, limits[number % durations]).cancel_queued()
    assert len(deadlines) < 3000 if durations == 1 else len(deadlines) < 20_000
    assert deadlines.next_at == 3600.0 + durations - 1
    assert deadlines.due(1e9) == kept


def test_a_sweep_keeps_order_and_everything_that_waits() -> None:
    deadlines, limits = Deadlines(), TimeLimits(timeout=3600)
    kept = list[Request]()
    for number in range(5000):
        request = waiting(deadlines, float(number), limits)
        if number % 3:
            request.cancel_queued()
        else:
            kept.append(request)
    assert deadlines.due(1e9) == kept


LIMITS = [TimeLimits(timeout=float(number)) for number in range(1, 6)]
LIMITS += [TimeLimits(queue_timeout=number / 7, run_timeout=number / 3) for number in range(1, 90)]


@given(st.data())
def test_whatever_the_order_nothing_comes_due_early_late_or_unseen(data: st.DataObject) -> None:
    """Against a plain list. `known` is when the supervisor would look next; it must never sleep past a deadline."""
    deadlines, now, known = Deadlines(), 0.0, math.inf
    armed: dict[WatchedRequest, float] = {}
    for _ in range(data.draw(st.integers(1, 30))):
        match data.draw(st.sampled_from(["wait", "wait", "wait", "run", "end", "pass"])):
            case "wait":
                request = new_request()
                request.timing = timing = Timing(request, now, data.draw(st.sampled_from(LIMITS)))
                armed[request] = timing.start_by
                if deadlines.arm_queued(timing):
                    known = deadlines.next_at
            case "run":
                request = new_request()
                request.timing = timing = Timing(request, now, data.draw(st.sampled_from(LIMITS[5:])))
                timing.started_at = now
                assert request.start(new_worker())
                armed[request] = timing.run_until
                if deadlines.arm_started(timing):
                    known = deadlines.next_at
            case "end" if armed:
                request = data.draw(st.sampled_from(list(armed)))
                assert request.cancel_queued() or request.cancel_running()
                del armed[request]
            case "pass":
                now += data.draw(st.sampled_from([0.1, 0.5, 1.0, 3.0]))
                due = deadlines.due(now)
                assert len(due) == len(set(due))
                assert set(due) == {request for request, at in armed.items() if at <= now}
                armed = {request: at for request, at in armed.items() if at > now}
                known = deadlines.next_at
                assert known == min(armed.values(), default=math.inf)
        assert known <= min(armed.values(), default=math.inf), "the supervisor would sleep through it"


@pytest.mark.parametrize("queues", [0, MAX_DURATIONS], ids=["queue", "heap"])
def test_the_next_limit_wakes_the_timer_if_none_watches(queues: int) -> None:
    deadlines = Deadlines()
    for number in range(queues):
        waiting(deadlines, 0.0, TimeLimits(queue_timeout=100.0 + number))
    requests = [new_request() for _ in range(4)]
    timings = [Timing(request, 0.0, TimeLimits(queue_timeout=5.0)) for request in requests]
    assert deadlines.arm_queued(timings[0])
    assert not deadlines.arm_queued(timings[1])
    deadlines.unwatched()
    assert deadlines.arm_queued(timings[2])
    assert not deadlines.arm_queued(timings[3])
    assert deadlines.due(5.0) == requests
