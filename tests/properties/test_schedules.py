"""The real pool under a controlled scheduler that switches threads at every lock and deque operation.

Each scenario is run through thousands of schedules. That they would find something is shown at the end: known races are
put back on purpose, and have to be found.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any

import pytest

from bullpen import Event, Kind, Pool, PoolClosed, PoolFailed, PoolSaturated, WorkerStartFailed, primitives
from bullpen.core.backlog import Backlog
from bullpen.core.deadlines import _Line
from bullpen.core.dispatcher import Dispatcher
from bullpen.core.lifecycle import PoolState
from bullpen.core.request import Request
from bullpen.core.timing import Timing
from bullpen.core.worker import STOPPING, Worker
from bullpen.errors import QueueTimeout, Timeout
from bullpen.pool.supervisor import Supervisor
from bullpen.pool.workforce import Workforce
from bullpen.testing import explore as exploration
from bullpen.testing.explore import Run, explore

SCHEDULES = 600

Scenario = Callable[[Run], None]


class Ran:
    """Counts how often each function ran, and how many at once."""

    def __init__(self) -> None:
        self.times: dict[str, int] = {}
        self.now = 0
        self.most = 0
        self._step = primitives.new_deque()

    def call(self, name: str) -> str:
        self.now += 1
        self.most = max(self.most, self.now)
        self._step.append(name)  # here the scheduler may switch to another thread
        self.times[name] = self.times.get(name, 0) + 1
        self.now -= 1
        return name


@pytest.fixture(autouse=True)
def deaths_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker whose report fails is replaced, and nobody would notice the defect."""
    died = Workforce.died

    def remember(self: Workforce, worker: Worker, error: BaseException) -> None:
        if worker.was_ready:
            vars(self._engine).setdefault("unexpected", error)
        died(self, worker, error)

    monkeypatch.setattr(Workforce, "died", remember)


def at_rest(pool: Pool) -> None:
    """What holds whenever nothing moves: nobody waits beside an idle worker or a free slot, and all counts agree."""
    engine = pool._engine
    if (error := vars(engine).get("unexpected")) is not None:
        raise AssertionError("a worker died") from error
    stats = pool.stats()
    assert stats.queued == 0
    assert stats.running == 0
    ended = stats.completed + stats.failed + stats.cancelled + stats.timed_out + stats.queue_timeouts + stats.lost
    assert stats.submitted == ended
    assert stats.workers <= stats.max_workers
    slots = [worker.slot for worker in engine.registry.snapshot()]
    assert len(slots) == len(set(slots)), "two workers in one slot"
    free = list(engine.dispatcher.free)
    assert len(free) == len(set(free)), "a slot is free twice"
    assert not set(free) & set(slots), "a slot is free and taken"
    if engine.state in (PoolState.RUNNING, PoolState.INITIALIZING):
        assert len(free) + len(slots) == stats.max_workers, "a slot is lost"
    if engine.state is PoolState.DRAINING:
        raise AssertionError("the pool did not close")


def submit_and_wait(run: Run) -> None:
    """Queued while a worker becomes ready: nobody is left lying."""
    pool, ran, results = Pool(1, idle_timeout=None), Ran(), []

    def use(name: str) -> None:
        results.append(pool.submit(ran.call, name).result())

    for name in ("a", "b", "c"):
        run.actor(use, name, name=name)

    def check() -> None:
        assert sorted(results) == ["a", "b", "c"]
        assert ran.times == {"a": 1, "b": 1, "c": 1}
        assert ran.most == 1
        at_rest(pool)

    run.check(check)


def grow_to_demand_only(run: Run) -> None:
    """Two requests never start more than two workers, and one slot never gets two."""
    pool, ran = Pool(3, idle_timeout=None), Ran()

    def use(name: str) -> None:
        pool.submit(ran.call, name).result()

    run.actor(use, "a", name="a")
    run.actor(use, "b", name="b")

    def check() -> None:
        assert ran.times == {"a": 1, "b": 1}
        assert pool.stats().spawned <= 2
        at_rest(pool)

    run.check(check)


def close_while_submitting(run: Run) -> None:
    """Stop while a worker parks, and while somebody submits: everything accepted runs, everything else is refused."""
    pool, ran, outcomes = Pool(1, idle_timeout=None), Ran(), {}

    def use(name: str) -> None:
        try:
            future = pool.submit(ran.call, name)
        except PoolClosed:
            outcomes[name] = "refused"
        else:
            outcomes[name] = future.result()

    run.actor(use, "a", name="a")
    run.actor(use, "b", name="b")
    run.actor(pool.close, name="close")

    def check() -> None:
        assert set(outcomes) == {"a", "b"}
        assert ran.times == {name: 1 for name, outcome in outcomes.items() if outcome != "refused"}
        assert pool._engine.state is PoolState.CLOSED
        at_rest(pool)

    run.check(check)


def close_without_draining(run: Run) -> None:
    """A request that is cancelled never runs; one that is not, runs once."""
    pool, ran, outcomes = Pool(1, idle_timeout=None), Ran(), {}

    def use(name: str) -> None:
        try:
            outcomes[name] = pool.submit(ran.call, name).result()
        except (PoolClosed, CancelledError) as error:
            outcomes[name] = type(error).__name__

    run.actor(use, "a", name="a")
    run.actor(use, "b", name="b")
    run.actor(pool.close, None, False, name="close")

    def check() -> None:
        assert set(outcomes) == {"a", "b"}
        assert ran.times == {name: 1 for name, outcome in outcomes.items() if outcome == name}
        at_rest(pool)

    run.check(check)


def cancel_and_expire(run: Run) -> None:
    """Start, cancel and expire a request at once: one wins, the others notice."""
    pool, ran = Pool(1, idle_timeout=None), Ran()
    outcomes: dict[str, object] = {}
    run.actor(lambda: outcomes.update(first=pool.submit(run.clock.sleep, 1.0).result()), name="first")

    def late() -> None:
        future = pool.using(queue_timeout=1.0).submit(ran.call, "late")
        try:
            outcomes["late"] = future.result()
        except (QueueTimeout, CancelledError) as error:
            outcomes["late"] = type(error).__name__

    def cancelled() -> None:
        future = pool.submit(ran.call, "cancelled")
        outcomes["cancelled"] = "CancelledError" if future.cancel() else future.result()

    run.actor(late, name="late")
    run.actor(cancelled, name="cancelled")

    def check() -> None:
        assert set(outcomes) == {"first", "late", "cancelled"}
        assert ran.times == {name: 1 for name, outcome in outcomes.items() if outcome == name}
        at_rest(pool)

    run.check(check)


def deadlines_are_kept(run: Run) -> None:
    """Whoever sets a limit is told when it has passed, whenever the supervisor starts, sleeps or ends."""
    told: list[float] = []

    def observe(event: Event) -> None:
        if event.kind in (Kind.REQUEST_EXPIRED, Kind.REQUEST_ABANDONED):
            told.append(event.at)

    begin = run.clock.monotonic()
    pool = Pool(1, idle_timeout=None, observer=observe)
    gate = threading.Event()

    def use(timeout: float) -> None:
        assert isinstance(pool.using(timeout=timeout).submit(gate.wait).exception(), Timeout)

    run.actor(use, 2.0, name="two")
    run.actor(use, 1.0, name="one")

    def release() -> None:
        run.clock.sleep(5.0)
        gate.set()

    run.actor(release, name="release")

    def check() -> None:
        assert [round(at - begin, 3) for at in told] == [1.0, 2.0]
        at_rest(pool)

    run.check(check)


def deadlines_that_come_together(run: Run) -> None:
    """One limit passes while another of the same length is being set."""
    pool, outcomes = Pool(1, idle_timeout=None), []
    gate = threading.Event()

    def use() -> None:
        try:
            pool.using(timeout=1.0).submit(gate.wait).result()
        except Timeout:
            outcomes.append("told")

    run.actor(use, name="one")
    run.actor(use, name="two")

    def release() -> None:
        run.clock.sleep(50.0)
        gate.set()

    run.actor(release, name="release")
    run.check(lambda: at_rest(pool))


def bounded_exactly(run: Run) -> None:
    """One runs, one waits, everybody else is turned away; a place that is given back is there for the next."""
    pool, ran, outcomes = Pool(1, max_queue=1, idle_timeout=None), Ran(), {}
    gate = threading.Event()
    waiting: list[int] = []

    def hold() -> str:
        gate.wait()
        return "held"

    def use(name: str) -> None:
        try:
            future = pool.submit(hold)
        except PoolSaturated:
            outcomes[name] = "saturated"
        else:
            waiting.append(pool._engine.queued())
            outcomes[name] = future.result()

    for name in ("a", "b", "c"):
        run.actor(use, name, name=name)

    def release() -> None:
        run.clock.sleep(1.0)
        assert sum(outcome == "saturated" for outcome in outcomes.values()) == 1
        gate.set()

    run.actor(release, name="release")

    def check() -> None:
        assert sorted(outcomes.values()) == ["held", "held", "saturated"]
        at_rest(pool)
        backlog: Any = pool._engine.bounded
        assert len(backlog._places) + backlog._unmade - len(backlog._owed) == 1, "a place was lost or made"
        assert ran.times == {}

    run.check(check)


def blocked_submitters_get_their_turn(run: Run) -> None:
    pool, ran, results = Pool(1, max_queue=0, when_full="block", idle_timeout=None), Ran(), []

    def use(name: str) -> None:
        results.append(pool.submit(ran.call, name).result())

    for name in ("a", "b", "c"):
        run.actor(use, name, name=name)

    def check() -> None:
        assert ran.times == {"a": 1, "b": 1, "c": 1}
        at_rest(pool)

    run.check(check)


def resize_under_load(run: Run) -> None:
    pool, ran, results = Pool(2, idle_timeout=None), Ran(), []

    def use(name: str) -> None:
        results.append(pool.submit(ran.call, name).result())

    run.actor(use, "a", name="a")
    run.actor(use, "b", name="b")

    def resize() -> None:
        pool.resize(1)
        pool.resize(3)

    run.actor(resize, name="resize")

    def check() -> None:
        assert ran.times == {"a": 1, "b": 1}
        at_rest(pool)

    run.check(check)


def pause_and_resume(run: Run) -> None:
    pool, ran = Pool(1, idle_timeout=None), Ran()
    run.actor(lambda: pool.submit(ran.call, "a").result(), name="a")
    run.actor(lambda: pool.submit(ran.call, "b").result(), name="b")

    def pause() -> None:
        pool.pause()
        pool.resume()

    run.actor(pause, name="pause")

    def check() -> None:
        assert ran.times == {"a": 1, "b": 1}
        at_rest(pool)

    run.check(check)


def whoever_sees_the_result_finds_the_worker_free(run: Run) -> None:
    pool, ran = Pool(1, max_queue=0, idle_timeout=None), Ran()

    def one_after_another() -> None:
        for name in ("a", "b", "c"):
            pool.submit(ran.call, name).result()

    run.actor(one_after_another, name="caller")
    run.check(lambda: at_rest(pool))


def callbacks_in_the_last_moment(run: Run) -> None:
    """A callback is called once, and a request handed to the worker meanwhile does not wait behind it."""
    pool, ran, called = Pool(1, idle_timeout=None), Ran(), []

    def watch() -> None:
        future = pool.submit(ran.call, "a")
        future.add_done_callback(lambda done: called.append(pool.submit(ran.call, "c").result()))

    run.actor(watch, name="watch")
    run.actor(lambda: pool.submit(ran.call, "b").result(), name="b")

    def check() -> None:
        assert called == ["c"]
        assert ran.times == {"a": 1, "b": 1, "c": 1}
        at_rest(pool)

    run.check(check)


def a_map_under_way(run: Run) -> None:
    pool = Pool(2, idle_timeout=None)
    results: list[str] = []
    run.actor(lambda: results.extend(pool.map(str, range(5), buffersize=2)), name="map")
    run.actor(lambda: results.append(pool.submit(str, "x").result()), name="other")

    def check() -> None:
        assert [result for result in results if result != "x"] == ["0", "1", "2", "3", "4"]
        at_rest(pool)

    run.check(check)


def idle_workers_go_while_work_comes(run: Run) -> None:
    pool, ran = Pool(1, idle_timeout=1.0), Ran()

    def use() -> None:
        for name in ("a", "b"):
            pool.submit(ran.call, name).result()
            run.clock.sleep(1.0)  # about when the worker is asked to end

    run.actor(use, name="use")

    def check() -> None:
        assert ran.times == {"a": 1, "b": 1}

    run.check(check)


def starts_that_fail_together(run: Run) -> None:
    """No worker can start: whoever waits is told, whichever of them was the last hope."""
    pool, told = Pool(2, idle_timeout=None, initializer=refuse_to_start), []

    def use() -> None:
        try:
            told.append(type(pool.submit(run.clock.sleep, 0.0).exception()))
        except PoolFailed:
            told.append(PoolFailed)

    run.actor(use, name="a")
    run.actor(use, name="b")

    def check() -> None:
        assert told == [PoolFailed, PoolFailed]
        assert pool._engine.state is PoolState.FAILED

    run.check(check)


def starts_that_fail_later(run: Run) -> None:
    """The same in a pool that once had a worker, and stays open: also whoever comes just then is told, or served."""
    starts: list[int] = []
    told: list[BaseException | None] = []

    def start() -> None:
        starts.append(1)
        if len(starts) > 1:
            refuse_to_start()

    pool = Pool(1, idle_timeout=1.0, initializer=start)

    def use() -> None:
        pool.submit(run.clock.sleep, 0.0).result()
        run.clock.sleep(10.0)  # by now the worker has gone
        told.append(pool.submit(run.clock.sleep, 0.0).exception())

    def come_late() -> None:
        run.clock.sleep(10.0)
        told.append(pool.submit(run.clock.sleep, 0.0).exception())

    run.actor(use, name="use")
    run.actor(come_late, name="late")

    def check() -> None:
        assert [type(error) for error in told] == [WorkerStartFailed, WorkerStartFailed]
        at_rest(pool)

    run.check(check)


def refuse_to_start() -> None:
    raise OSError("no worker today")


SCENARIOS = [
    submit_and_wait,
    grow_to_demand_only,
    close_while_submitting,
    close_without_draining,
    cancel_and_expire,
    deadlines_are_kept,
    deadlines_that_come_together,
    bounded_exactly,
    blocked_submitters_get_their_turn,
    resize_under_load,
    pause_and_resume,
    whoever_sees_the_result_finds_the_worker_free,
    callbacks_in_the_last_moment,
    a_map_under_way,
    idle_workers_go_while_work_comes,
    starts_that_fail_together,
    starts_that_fail_later,
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_no_schedule_breaks(scenario: Scenario, thorough: bool) -> None:
    racing = scenario in (cancel_and_expire, deadlines_that_come_together, idle_workers_go_while_work_comes)
    report = explore(scenario, schedules=20_000 if thorough else SCHEDULES, racing_clock=racing, max_steps=20_000)
    report.raise_for_failure()
    assert report.distinct > 100 or report.exhausted


def test_requests_run_at_once_in_some_schedules() -> None:
    """Otherwise that at most one ran at once would say nothing."""
    most: set[int] = set()

    def two_at_once(run: Run) -> None:
        pool, ran = Pool(2, idle_timeout=None), Ran()
        for name in ("a", "b"):
            run.actor(pool.submit, ran.call, name, name=name)
        run.check(lambda: most.add(ran.most))

    explore(two_at_once, schedules=200, max_steps=20_000).raise_for_failure()
    assert most == {1, 2}


# The test of the tests: each of these defects is one that such pools have had.


def ready_without_looking_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that becomes ready does not look at the backlog once more."""

    def after(self: Dispatcher, worker: Worker, request: Request | None, ending: bool) -> Request | None:
        if ending:
            worker.hand(None)
        return request

    monkeypatch.setattr(Dispatcher, "_after", after)


def stop_without_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker is told to stop by a flag that it may not see before it parks."""

    def stop(self: Dispatcher, worker: Worker, *, when_idle: bool) -> bool:
        idle = worker.listed and not worker.requests
        self.registry.count()  # somebody else may run here
        worker.status = STOPPING
        if idle:
            worker.hand(None)
        return True

    monkeypatch.setattr(Dispatcher, "stop", stop)


def spawn_without_the_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot is looked at, and taken later: two may take the same."""

    def grow(self: Dispatcher) -> None:
        if self._waiting() and self.free:
            slot = self.free[0]
            self._spawn(slot)
            self.free.popleft()

    monkeypatch.setattr(Dispatcher, "grow", grow)


def sleep_through_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor forgets that it was woken while it was looking at the clock."""

    def wake(self: Any, *, start: bool = True) -> None:
        if not self._running and start:
            self._running = True
            self._start()

    monkeypatch.setattr(Supervisor, "wake", wake)


def look_before_setting_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the supervisor has to be woken is decided before the deadline is set, while another is ahead of it."""

    def append(self: Any, timing: Timing) -> bool:
        first = not self.timings
        self.timings.append(timing)
        return first

    monkeypatch.setattr(_Line, "append", append)


def trust_the_ready_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries of workers that are gone keep a submitter from starting another."""

    def offer(self: Dispatcher, request: Request) -> bool:
        request.number = self._number()
        self._append(request)
        if self._idle():
            self.match()
        elif self.free:
            self.grow()
        return not self.draining or not self.withdraw(request)

    monkeypatch.setattr(Dispatcher, "offer", offer)


def close_on_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool closes when no worker is there, though somebody is about to start one for what waits."""
    monkeypatch.setattr(Backlog, "queued", lambda self, skipped: 0)


def publish_before_making_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result is seen before the worker is free."""
    monkeypatch.setattr(Dispatcher, "finished", Dispatcher._finished_aloud)


SABOTAGE = [
    (ready_without_looking_again, submit_and_wait),
    (stop_without_the_lock, close_while_submitting),
    (spawn_without_the_permission, grow_to_demand_only),
    (sleep_through_a_deadline, deadlines_are_kept),
    (look_before_setting_a_deadline, deadlines_that_come_together),
    (trust_the_ready_queue, idle_workers_go_while_work_comes),
    (close_on_what_waits, close_while_submitting),
    (publish_before_making_room, whoever_sees_the_result_finds_the_worker_free),
]


@pytest.mark.parametrize(("sabotage", "scenario"), SABOTAGE, ids=lambda item: item.__name__)
def test_known_races_are_found(
    sabotage: Callable[[pytest.MonkeyPatch], None], scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    sabotage(monkeypatch)
    racing = scenario in (deadlines_that_come_together, idle_workers_go_while_work_comes)
    report = explore(scenario, schedules=20_000, racing_clock=racing, max_steps=20_000)
    assert report.failure is not None, "the defect was not found"
    token = report.failure.token
    again = exploration.replay(scenario, token, max_steps=20_000)
    assert again.failure is not None, "the failing schedule could not be replayed"
