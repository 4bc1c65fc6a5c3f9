"""A request for one certain worker, step by step."""

from __future__ import annotations

from typing import Any

import pytest

from bullpen import primitives
from bullpen.pools.dispatch.backlog import Backlog, BoundedBacklog
from bullpen.pools.dispatch.dispatcher import Dispatcher, Pinned
from bullpen.pools.dispatch.pool_status import PoolStatus
from bullpen.pools.dispatch.ready_queue import LeastLoaded, Rotation
from bullpen.pools.dispatch.request import (
    DONE,
    NO_LIMITS,
    CallTraits,
    Request,
    RequestTraits,
    ServedRequest,
    TimeLimits,
    Timing,
)
from bullpen.pools.dispatch.states import WorkerStatus
from bullpen.pools.dispatch.worker import Worker

STRICT = CallTraits("s", "strict_queue")


def strict_request() -> Request:
    request = Request(primitives.state_lock(), print, (), {})
    request.traits = RequestTraits(STRICT)
    return request


class Handle:
    """Keeps what a worker was handed."""

    def __init__(self) -> None:
        self.handed: list[Request | None] = []

    def hand(self, request: Request | None) -> None:
        self.handed.append(request)


class Bench:
    """A dispatcher with workers that do nothing."""

    def __init__(self, *, limit: int | None = None, capacity: int = 1, workers: int = 1, ready: Any = None) -> None:
        self.now = 0.0
        self.backlog = Backlog() if limit is None else BoundedBacklog(limit, capacity)
        self.dispatcher = Dispatcher(
            self.backlog,
            Rotation() if ready is None else ready,
            PoolStatus("bench"),
            spawn=lambda slot: None,
            watch=lambda request: None,
            now=lambda: self.now,
            complain=lambda request, error: None,
            capacity=capacity,
        )
        self.workers = [self.new_worker(id, capacity) for id in range(workers)]

    def new_worker(self, id: int, capacity: int) -> Worker:
        worker = Worker(id, id, f"worker-{id}", 0.0, capacity)
        worker.handle = Handle()
        self.dispatcher.registry.add(worker)
        self.dispatcher.reserve_for(worker)
        self.dispatcher.started(worker)
        return worker

    def request(self, limits: TimeLimits = NO_LIMITS) -> Request:
        request = strict_request()
        request.timing = Timing(request, self.now, limits)
        self.dispatcher.sessions.use(STRICT, self.now)
        self.dispatcher.register(request)
        return request

    def offer(self, worker: Worker, request: Request, *, line_up: bool = True) -> Pinned:
        return self.dispatcher.offer_pinned(worker, request, line_up=line_up)

    def lined_up(self, worker: Worker) -> Request:
        request = self.request()
        assert self.offer(worker, request) is Pinned.TAKEN
        return request

    def finish(self, worker: Worker, request: Request) -> Request | None:
        return self.dispatcher.finished(worker, request, DONE, None)


def test_a_worker_with_room_gets_it_at_once() -> None:
    bench = Bench()
    [worker] = bench.workers
    request = bench.request()
    assert bench.offer(worker, request) is Pinned.TAKEN
    assert worker.handle.handed == [request]
    assert worker.status is WorkerStatus.BUSY
    assert bench.dispatcher.queued() == 0


def test_one_that_has_none_gets_it_into_its_line_or_is_busy() -> None:
    bench = Bench()
    [worker] = bench.workers
    first, second = bench.lined_up(worker), bench.lined_up(worker)
    assert worker.line == [(second.number, second)]
    assert bench.dispatcher.queued() == 1
    assert bench.offer(worker, bench.request(), line_up=False) is Pinned.BUSY
    assert bench.finish(worker, first) is second


@pytest.mark.parametrize(
    "status", [WorkerStatus.STOPPING, WorkerStatus.TAINTED, WorkerStatus.DEAD, WorkerStatus.EXITED]
)
def test_one_that_ends_takes_nothing(status: WorkerStatus) -> None:
    bench = Bench()
    [worker] = bench.workers
    worker.status = status
    assert bench.offer(worker, bench.request()) is Pinned.GONE
    assert worker.line == []


def test_the_line_and_the_backlog_compete_by_age() -> None:
    bench = Bench()
    [worker] = bench.workers
    running = bench.lined_up(worker)
    plain, later = ServedRequest(print, (), {}), ServedRequest(print, (), {})
    bench.dispatcher.offer(plain)
    pinned = bench.lined_up(worker)
    bench.dispatcher.offer(later)
    order = []
    following: Request | None = running
    while following is not None:
        following = bench.finish(worker, following)
        order.append(following)
    assert order == [plain, pinned, later, None]
    assert worker.status is WorkerStatus.READY


def test_a_line_counts_in_the_bound_and_gives_its_places_back() -> None:
    bench = Bench(limit=1)
    [worker] = bench.workers
    first, second = bench.lined_up(worker), bench.lined_up(worker)
    assert bench.offer(worker, bench.request()) is Pinned.FULL
    assert bench.finish(worker, first) is second
    third = bench.lined_up(worker)
    assert bench.offer(worker, bench.request()) is Pinned.FULL
    third.cancel_queued()
    bench.backlog.withdrawn()
    assert bench.dispatcher.queued() == 0
    fourth = bench.lined_up(worker)
    assert bench.finish(worker, second) is fourth


def test_one_that_is_too_late_at_once_takes_no_place() -> None:
    bench = Bench(limit=0)
    [worker] = bench.workers
    late = bench.request(TimeLimits(timeout=0.0))
    assert bench.offer(worker, late) is Pinned.TAKEN
    assert worker.status is WorkerStatus.READY
    assert bench.dispatcher.queued() == 1
    late.cancel_queued()
    bench.backlog.withdrawn()
    assert bench.dispatcher.queued() == 0
    assert bench.lined_up(worker).state is not late.state
    assert bench.offer(worker, bench.request()) is Pinned.FULL


def test_cancelled_and_expired_ones_are_passed_over() -> None:
    bench = Bench()
    [worker] = bench.workers
    running, cancelled = bench.lined_up(worker), bench.lined_up(worker)
    late = bench.request(TimeLimits(queue_timeout=1.0))
    assert bench.offer(worker, late) is Pinned.TAKEN
    last = bench.lined_up(worker)
    cancelled.cancel_queued()
    bench.backlog.withdrawn()
    bench.now = 1.0
    assert bench.finish(worker, running) is last


def test_while_the_pool_is_paused_lines_grow() -> None:
    bench = Bench()
    [worker] = bench.workers
    bench.dispatcher.status.change(paused=True)
    request = bench.lined_up(worker)
    assert worker.handle.handed == []
    bench.dispatcher.status.change(paused=False)
    bench.dispatcher.serve_lines()
    assert worker.handle.handed == [request]


def test_a_worker_that_stops_runs_its_line_and_nothing_else_then_ends() -> None:
    bench = Bench()
    [worker] = bench.workers
    running, pinned = bench.lined_up(worker), bench.lined_up(worker)
    bench.dispatcher.offer(ServedRequest(print, (), {}))
    assert bench.dispatcher.stop(worker, when_idle=False)
    assert bench.finish(worker, running) is pinned
    assert worker.handle.handed == [running]
    assert bench.finish(worker, pinned) is None
    assert worker.handle.handed == [running, None]


def test_a_worker_that_stops_ends_when_its_line_is_taken_away() -> None:
    bench = Bench()
    [worker] = bench.workers
    bench.dispatcher.status.change(paused=True)
    first, second = bench.lined_up(worker), bench.lined_up(worker)
    assert bench.dispatcher.stop(worker, when_idle=False)
    assert worker.handle.handed == []
    assert bench.dispatcher.empty_line(worker) == [first, second]
    assert worker.handle.handed == [None]


def test_only_an_idle_worker_that_no_strict_session_needs_is_shrunk() -> None:
    bench = Bench(workers=2)
    young = bench.workers[1]
    session = bench.dispatcher.sessions.use(STRICT, 0.0)
    assert session is not None
    session.worker = young
    assert not bench.dispatcher.stop(young, when_idle=True, unless_needed_at=0.0)
    assert bench.dispatcher.stop_one_idle()
    assert [worker.status for worker in bench.workers] == [WorkerStatus.STOPPING, WorkerStatus.READY]
    assert not bench.dispatcher.stop_one_idle()


def test_a_tombstone_that_another_worker_finds_does_not_restart_the_clock_of_a_running_request() -> None:
    bench = Bench(workers=0)
    session = bench.dispatcher.sessions.use(STRICT, 0.0)
    assert session is not None
    first, second = (strict_request() for _ in range(2))
    for request in (first, second):
        request.timing = Timing(request, 0.0, TimeLimits(run_timeout=10.0))
        bench.dispatcher.register(request)
        bench.dispatcher.offer_registered(request, session)
    worker = bench.new_worker(0, 2)
    assert worker.handle.handed == [second]
    assert second.timing is not None
    assert second.timing.run_until == 10.0
    bench.now = 5.0
    bench.new_worker(1, 1)  # finds the tombstone of the second one
    assert second.timing.run_until == 10.0
    assert bench.dispatcher.queued() == 0


def test_room_for_several_is_used_by_plain_and_pinned_requests() -> None:
    bench = Bench(capacity=3)
    [worker] = bench.workers
    bench.dispatcher.status.change(paused=True)
    plain = ServedRequest(print, (), {})
    bench.dispatcher.offer(plain)
    pinned = bench.lined_up(worker)
    bench.dispatcher.status.change(paused=False)
    another = bench.lined_up(worker)
    assert worker.handle.handed == [plain, pinned, another]
    assert worker.line == []


def test_the_load_of_a_listed_worker_is_kept_up_to_date() -> None:
    bench = Bench(capacity=4, workers=2, ready=LeastLoaded())
    first, second = bench.workers
    requests = [bench.lined_up(first) for _ in range(3)]
    bench.lined_up(second)
    for request in requests:
        bench.finish(first, request)
    plain = ServedRequest(print, (), {})
    bench.dispatcher.offer(plain)
    assert first.requests == (plain,)


def test_a_served_request_that_is_given_back_waits_again() -> None:
    request = ServedRequest(print, (), {})
    worker = Worker(0, 0, "worker", 0.0)
    assert not request.requeue()
    assert request.start(worker)
    assert request.requeue()
    assert request.start(worker)


def test_tombstones_in_lines_do_not_hide_waiting_requests() -> None:
    started: list[int] = []
    bench = Bench()
    bench.dispatcher._spawn = started.append
    [worker] = bench.workers
    bench.lined_up(worker)
    cancelled = bench.lined_up(worker)
    bench.dispatcher.offer(ServedRequest(print, (), {}))
    cancelled.cancel_queued()
    bench.backlog.withdrawn()
    bench.dispatcher.free.append(7)
    bench.dispatcher.grow_to_demand()
    assert started == [7]


# The places of workers on their way.


class Starting:
    """A worker on its way to a pool in which one request may wait."""

    def __init__(self, *, reserved: bool, capacity: int = 1) -> None:
        bench = Bench(limit=1, workers=0, capacity=capacity)
        assert isinstance(bench.backlog, BoundedBacklog)
        self.backlog, self.dispatcher = bench.backlog, bench.dispatcher
        self.worker = Worker(0, 0, "worker-0", 0.0, capacity)
        self.worker.handle = Handle()
        self.dispatcher.registry.add(self.worker)
        if reserved:
            self.dispatcher.reserve_for(self.worker)

    def places(self) -> int:
        """How many requests can still be queued. Takes all these places."""
        count = 0
        while self.backlog.take_place():
            count += 1
        return count


def test_a_worker_on_its_way_brings_a_place_once() -> None:
    starting = Starting(reserved=True)
    starting.dispatcher.reserve_for(starting.worker)
    assert starting.places() == 2


@pytest.mark.parametrize("reserved", [True, False])
def test_a_worker_that_does_not_come_takes_away_only_what_it_brought(reserved: bool) -> None:
    starting = Starting(reserved=reserved)
    for _ in range(2):
        starting.dispatcher.does_not_come(starting.worker)
    assert starting.places() == 1


@pytest.mark.parametrize("capacity", [1, 2])
@pytest.mark.parametrize("reserved", [True, False])
def test_a_worker_that_is_ready_and_finds_nothing_takes_away_only_what_it_brought(
    reserved: bool, capacity: int
) -> None:
    starting = Starting(reserved=reserved, capacity=capacity)
    starting.dispatcher.started(starting.worker)
    assert starting.backlog._starting.value == 0
    assert starting.places() == 1


@pytest.mark.parametrize("reserved", [True, False])
def test_a_worker_that_is_ready_too_late_takes_away_only_what_it_brought(reserved: bool) -> None:
    starting = Starting(reserved=reserved)
    starting.dispatcher.stop(starting.worker, when_idle=False)
    starting.dispatcher.started(starting.worker)
    assert starting.places() == 1


def test_a_worker_that_came_brings_no_more_places() -> None:
    starting = Starting(reserved=False)
    starting.dispatcher.started(starting.worker)
    starting.dispatcher.reserve_for(starting.worker)
    assert starting.places() == 1


@pytest.mark.parametrize("reserved", [True, False])
def test_a_worker_that_is_ready_takes_a_request_and_leaves_one_place(reserved: bool) -> None:
    starting = Starting(reserved=reserved)
    request = ServedRequest(print, (), {})
    assert starting.backlog.take_place()
    starting.backlog.append(request)
    assert starting.dispatcher.started(starting.worker) is request
    assert starting.places() == 1
