"""The real pool under a controlled scheduler that switches threads at every lock and deque operation.

Each scenario is run through thousands of schedules. That they would find something is shown at the end: known races are
put back on purpose, and have to be found.
"""

from __future__ import annotations

import contextlib
import heapq
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any

import pytest

from bullpen import (
    BullpenError,
    CallPolicy,
    Kind,
    Pool,
    PoolClosed,
    PoolFailed,
    PoolSaturated,
    PoolView,
    RecyclePolicy,
    RestartPolicy,
    TelemetryEvent,
    WorkerStartFailed,
    primitives,
)
from bullpen.errors import QueueTimeout, Timeout
from bullpen.pools.dispatch.backlog import Backlog, BoundedBacklog
from bullpen.pools.dispatch.deadlines import _DurationQueue
from bullpen.pools.dispatch.dispatcher import Dispatcher
from bullpen.pools.dispatch.request import Request, ServedRequest, Timing
from bullpen.pools.dispatch.sessions import Session, Sessions
from bullpen.pools.dispatch.states import PoolState
from bullpen.pools.dispatch.tally import Tally
from bullpen.pools.dispatch.worker import STOPPING, Worker
from bullpen.pools.runtimes.port import current_worker
from bullpen.pools.supervision.timer import TimerThread
from bullpen.pools.supervision.workforce import Workforce
from tests.mortal import Death, MortalRuntime
from tests.tools import explore as exploration
from tests.tools.explore import Run, explore

SCHEDULES = 200

Scenario = Callable[[Run], None]


def new_pool(max_workers: int, **options: Any) -> Pool:
    """A pool without reconciliation, which would repair the defect that has to be found."""
    usual = {
        "recycling": RecyclePolicy(idle_timeout=None),
        "restarts": RestartPolicy(reconcile_interval=None),
    }
    return Pool(max_workers, **{**usual, **options})


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
    """A worker whose report fails is replaced, which would hide the defect."""
    died = Workforce.died

    def remember(self: Workforce, worker: Worker, error: BaseException) -> None:
        if worker.was_ready and not isinstance(error, Death):
            vars(self._dispatcher).setdefault("unexpected", error)
        died(self, worker, error)

    monkeypatch.setattr(Workforce, "died", remember)


def at_rest(pool: Pool) -> None:
    """Rules at rest: no request waits while a worker is idle or a slot is free, and all counts agree."""
    engine = pool._engine
    if (error := vars(engine.dispatcher).get("unexpected")) is not None:
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
        there = set(free) - engine.slots._doomed  # one that is no more may have been given back nevertheless
        assert len(there) + len(slots) == stats.max_workers, "a slot is lost"
    if engine.state is PoolState.DRAINING:
        raise AssertionError("the pool did not close")


def submit_and_wait(run: Run) -> None:
    """Queued while a worker becomes ready: no request is left in the backlog."""
    pool, ran, results = new_pool(1), Ran(), []

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
    pool, ran = new_pool(3), Ran()

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
    """Stop while a worker parks, and while a caller submits: accepted requests run, all others are rejected."""
    pool, ran, outcomes = new_pool(1), Ran(), {}

    def use(name: str) -> None:
        try:
            future = pool.submit(ran.call, name)
        except PoolClosed:
            outcomes[name] = "rejected"
        else:
            outcomes[name] = future.result()

    run.actor(use, "a", name="a")
    run.actor(use, "b", name="b")
    run.actor(pool.close, name="close")

    def check() -> None:
        assert set(outcomes) == {"a", "b"}
        assert ran.times == {name: 1 for name, outcome in outcomes.items() if outcome != "rejected"}
        assert pool._engine.state is PoolState.CLOSED
        at_rest(pool)

    run.check(check)


def close_without_draining(run: Run) -> None:
    """A request that is cancelled never runs; one that is not, runs once."""
    pool, ran, outcomes = new_pool(1), Ran(), {}

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
    pool, ran = new_pool(1), Ran()
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
    """A caller with a limit gets its timeout, whenever the timer thread starts, sleeps or ends."""
    told: list[float] = []

    def observe(event: TelemetryEvent) -> None:
        if event.kind in (Kind.REQUEST_EXPIRED, Kind.REQUEST_ABANDONED):
            told.append(event.at)

    begin = run.clock.monotonic()
    pool = new_pool(1, observer=observe)
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
    pool, outcomes = new_pool(1), []
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
    pool, ran, outcomes = new_pool(1, max_queue=1), Ran(), {}
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
        assert len(backlog._places) + backlog._unmade - len(backlog._debt) == 1, "a place was lost or made"
        assert ran.times == {}

    run.check(check)


def blocked_submitters_get_their_turn(run: Run) -> None:
    pool, ran, results = new_pool(1, max_queue=0, when_full="block"), Ran(), []

    def use(name: str) -> None:
        results.append(pool.submit(ran.call, name).result())

    for name in ("a", "b", "c"):
        run.actor(use, name, name=name)

    def check() -> None:
        assert ran.times == {"a": 1, "b": 1, "c": 1}
        at_rest(pool)

    run.check(check)


def resize_under_load(run: Run) -> None:
    pool, ran, results = new_pool(2), Ran(), []

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
    pool, ran = new_pool(1), Ran()
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
    pool, ran = new_pool(1, max_queue=0), Ran()

    def one_after_another() -> None:
        for name in ("a", "b", "c"):
            pool.submit(ran.call, name).result()

    run.actor(one_after_another, name="caller")
    run.check(lambda: at_rest(pool))


def callbacks_in_the_last_moment(run: Run) -> None:
    """A callback is called once, and a request handed to the worker meanwhile does not wait behind it."""
    pool, ran, called = new_pool(1), Ran(), []

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
    pool = new_pool(2)
    results: list[str] = []
    run.actor(lambda: results.extend(pool.map(str, range(5), buffersize=2)), name="map")
    run.actor(lambda: results.append(pool.submit(str, "x").result()), name="other")

    def check() -> None:
        assert [result for result in results if result != "x"] == ["0", "1", "2", "3", "4"]
        at_rest(pool)

    run.check(check)


def a_dropped_map_while_the_pool_closes(run: Run) -> None:
    """`pool.map(…)` as a statement: all of it has run when `close` returns, or none was accepted."""
    pool, ran = new_pool(1), Ran()
    accepted: list[bool] = []
    ran_at_close: list[int] = []

    def use() -> None:
        try:
            pool.map(lambda number: ran.call(str(number)), range(4), buffersize=2)
        except PoolClosed:
            accepted.append(False)
        else:
            accepted.append(True)

    def close() -> None:
        pool.close()
        ran_at_close.append(len(ran.times))

    run.actor(use, name="use")
    run.actor(close, name="close")

    def check() -> None:
        assert ran_at_close == ([4] if accepted == [True] else [0])
        assert ran.times == (dict.fromkeys("0123", 1) if accepted == [True] else {})
        assert ran.most <= 1
        at_rest(pool)

    run.check(check)


def a_map_is_read_while_the_pool_closes(run: Run) -> None:
    """Whoever reads gets everything of an input with a length; of another all that was taken, and is then told."""
    pool, results, endless = new_pool(1), [], []
    maps: list[Any] = [pool.map(str, range(4), buffersize=2), pool.map(str, iter(range(4)), buffersize=2)]

    def read() -> None:
        results.extend(maps[0])
        try:
            endless.extend(maps[1])
        except PoolClosed:
            endless.append("closed")

    run.actor(read, name="read")
    run.actor(lambda: pool.close(), name="close")

    def check() -> None:
        assert results == ["0", "1", "2", "3"]
        given = [result for result in endless if result != "closed"]
        assert given == ["0", "1", "2", "3"][: len(given)]
        assert len(given) == 4 or endless[-1] == "closed"
        at_rest(pool)

    run.check(check)


def a_map_while_the_pool_changes(run: Run) -> None:
    """Paused, resumed, made smaller: nothing of a map is lost, and never more runs than may."""
    pool, ran = new_pool(2), Ran()
    results: list[str] = []

    def change() -> None:
        pool.pause()
        pool.resize(1)
        pool.resume()

    def read() -> None:
        results.extend(pool.map(lambda number: ran.call(str(number)), range(5), buffersize=3))

    run.actor(read, name="read")
    run.actor(change, name="change")

    def check() -> None:
        assert results == ["0", "1", "2", "3", "4"]
        assert ran.times == dict.fromkeys("01234", 1)
        at_rest(pool)
        assert pool.stats().workers <= 1

    run.check(check)


def a_map_without_room(run: Run) -> None:
    """Runners need no room, and take none for good."""
    pool = new_pool(1, max_queue=0, when_full="block")
    results: list[str] = []
    run.actor(lambda: results.extend(pool.map(str, range(3), buffersize=2)), name="map")
    run.actor(lambda: results.append(pool.submit(str, "x").result()), name="other")

    def check() -> None:
        assert [result for result in results if result != "x"] == ["0", "1", "2"]
        assert "x" in results
        at_rest(pool)
        bounded = pool._engine.bounded
        assert bounded is not None
        assert len(bounded._places) == len(bounded._debt) == 0

    run.check(check)


def idle_workers_go_while_work_comes(run: Run) -> None:
    pool, ran = new_pool(1, recycling=RecyclePolicy(idle_timeout=1.0)), Ran()

    def use() -> None:
        for name in ("a", "b"):
            pool.submit(ran.call, name).result()
            run.clock.sleep(1.0)  # about when the worker is asked to end

    run.actor(use, name="use")

    def check() -> None:
        assert ran.times == {"a": 1, "b": 1}

    run.check(check)


def starts_that_fail_together(run: Run) -> None:
    """No worker can start: every waiting caller gets an error, whichever start was the last one."""
    pool, told = new_pool(2, initializer=refuse_to_start), []

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
    """The same in a pool that once had a worker, and stays open: a new caller gets an error, or is served, too."""
    starts: list[int] = []
    told: list[BaseException | None] = []

    def start() -> None:
        starts.append(1)
        if len(starts) > 1:
            refuse_to_start()

    pool = new_pool(1, recycling=RecyclePolicy(idle_timeout=1.0), initializer=start)

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


# Sessions.


class Places:
    """Remembers on which worker each call ran, and in which order."""

    def __init__(self) -> None:
        self.of: dict[str, str] = {}
        self.order: list[str] = []

    def call(self, name: str) -> str:
        worker = current_worker()
        assert worker is not None
        assert name not in self.of, "it ran twice"
        self.of[name] = worker.name
        self.order.append(name)
        return name


def outcome_of(work: Callable[[], Any]) -> str:
    """What a call returned, or the name of what it raised."""
    try:
        return str(work())
    except (BullpenError, CancelledError) as error:
        return type(error).__name__


def strict(pool: Pool, session: str = "s") -> PoolView:
    return pool.using(session=session, affinity="strict_queue")


def a_session_binds_once(run: Run) -> None:
    """Two strict requests of a new session, two workers: both run on one of them."""
    pool, places = new_pool(2), Places()
    for name in ("a", "b"):
        run.actor(lambda name=name: strict(pool).do(places.call, name), name=name)

    def check() -> None:
        assert places.of["a"] == places.of["b"]
        assert [info.worker for info in pool.sessions()] == [places.of["a"]]
        at_rest(pool)

    run.check(check)


def a_session_keeps_its_order(run: Run) -> None:
    """What one caller submits to a strict session starts in that order, while it is being bound and after."""
    pool, places = new_pool(2), Places()

    def use() -> None:
        futures = [strict(pool).submit(places.call, name) for name in ("a", "b", "c")]
        assert [future.result() for future in futures] == ["a", "b", "c"]

    run.actor(use, name="use")
    run.actor(lambda: pool.submit(str).result(), name="other")

    def check() -> None:
        assert places.order == ["a", "b", "c"]
        assert len(set(places.of.values())) == 1
        at_rest(pool)

    run.check(check)


def one_call_of_a_new_session_fails_fast(run: Run) -> None:
    """Of two calls that do not wait, one that comes while the other waits or runs is rejected, and never runs."""
    pool, places, outcomes = new_pool(1), Places(), {}
    view = pool.using(session="s", affinity="strict_fail_fast")

    def use(name: str) -> None:
        outcomes[name] = outcome_of(lambda: view.do(places.call, name))

    run.actor(use, "a", name="a")
    run.actor(use, "b", name="b")

    def check() -> None:
        assert set(outcomes.values()) <= {"a", "b", "WorkerBusy"}
        assert list(outcomes.values()).count("WorkerBusy") <= 1
        assert set(places.of) == set(outcomes.values()) - {"WorkerBusy"}
        at_rest(pool)

    run.check(check)


def a_worker_dies_while_its_session_lines_up(run: Run) -> None:
    """The running request is lost, those pinned to that worker and later ones are rejected; no caller waits forever."""
    pool, places, outcomes = new_pool(2, runtime=MortalRuntime()), Places(), {}

    def die() -> None:
        raise Death

    def use(name: str, work: Callable[..., Any], *args: Any) -> None:
        outcomes[name] = outcome_of(lambda: strict(pool).do(work, *args))

    run.actor(use, "death", die, name="death")
    run.actor(use, "a", places.call, "a", name="a")
    run.actor(use, "b", places.call, "b", name="b")

    def check() -> None:
        assert outcomes["death"] in ("WorkerLost", "SessionWorkerUnavailable")
        assert {outcomes["a"], outcomes["b"]} <= {"a", "b", "SessionWorkerUnavailable"}
        assert set(places.of) == {name for name, outcome in outcomes.items() if outcome == name}
        assert len(set(places.of.values())) <= 1
        at_rest(pool)

    run.check(check)


def resize_while_a_session_lines_up(run: Run) -> None:
    """A worker that has to end runs its line first; later calls are rejected."""
    pool, places, outcomes = new_pool(2), Places(), {}

    def use(name: str) -> None:
        outcomes[name] = outcome_of(lambda: strict(pool).do(places.call, name))

    run.actor(lambda: pool.submit(str).result(), name="other")
    for name in ("a", "b"):
        run.actor(use, name, name=name)
    run.actor(pool.resize, 1, name="resize")

    def check() -> None:
        assert set(outcomes.values()) <= {"a", "b", "SessionWorkerUnavailable"}
        assert set(places.of) == {name for name, outcome in outcomes.items() if outcome == name}
        assert len(set(places.of.values())) == 1
        at_rest(pool)

    run.check(check)


def an_idle_worker_goes_unless_a_session_needs_it(run: Run) -> None:
    """A strict session finds its worker again, however long it was idle."""
    pool, places = new_pool(2, recycling=RecyclePolicy(idle_timeout=1.0)), Places()

    def use(name: str) -> None:
        for times in range(2):
            strict(pool, name).do(places.call, f"{name}{times}")
            run.clock.sleep(1.0)

    run.actor(use, "a", name="a")
    run.actor(use, "b", name="b")

    def check() -> None:
        assert places.of["a0"] == places.of["a1"]
        assert places.of["b0"] == places.of["b1"]

    run.check(check)


def pause_and_resume_with_lines(run: Run) -> None:
    pool, places = new_pool(2), Places()
    run.actor(lambda: [strict(pool).do(places.call, name) for name in ("a", "b")], name="ab")
    run.actor(lambda: strict(pool).do(places.call, "c"), name="c")

    def pause() -> None:
        pool.pause()
        pool.resume()

    run.actor(pause, name="pause")

    def check() -> None:
        assert len(set(places.of.values())) == 1
        assert len(places.of) == 3
        at_rest(pool)

    run.check(check)


def resume_while_a_session_lines_up(run: Run) -> None:
    pool, places, paused = new_pool(2), Places(), threading.Event()

    def use() -> None:
        strict(pool).do(places.call, "a")
        pool.pause()
        paused.set()
        strict(pool).do(places.call, "b")

    def resume() -> None:
        paused.wait()
        pool.resume()

    run.actor(use, name="use")
    run.actor(resume, name="resume")

    def check() -> None:
        assert places.of["a"] == places.of["b"]
        at_rest(pool)

    run.check(check)


def blocked_submitters_of_sessions(run: Run) -> None:
    """Submitters that wait for room get it, whichever worker they want, and no place is lost or added."""
    pool, places = new_pool(2, max_queue=1, when_full="block"), Places()

    def use(session: str, name: str) -> None:
        assert strict(pool, session).do(places.call, name) == name

    for session, name in (("s", "a"), ("s", "b"), ("t", "c"), ("t", "d")):
        run.actor(use, session, name, name=name)

    def check() -> None:
        assert places.of["a"] == places.of["b"]
        assert places.of["c"] == places.of["d"]
        at_rest(pool)
        has_places(pool, 1)

    run.check(check)


def room_on_another_worker(run: Run) -> None:
    """A submitter that waits for room on one worker does not keep later ones from the room of another."""
    pool = new_pool(2, max_queue=0, when_full="block")
    gates = {"s": threading.Event(), "t": threading.Event()}
    order: list[str] = []

    def use(session: str, delay: float) -> None:
        run.clock.sleep(delay)
        strict(pool, session).do(lambda: order.append(session))

    for session, gate in gates.items():
        run.actor(lambda session=session, gate=gate: strict(pool, session).do(gate.wait), name=f"hold {session}")
    run.actor(use, "s", 1.0, name="s")  # first in line, for a worker that stays busy
    run.actor(use, "t", 2.0, name="t")

    def release() -> None:
        run.clock.sleep(3.0)
        gates["t"].set()
        run.clock.sleep(3.0)
        assert order == ["t"]
        gates["s"].set()

    run.actor(release, name="release")

    def check() -> None:
        assert order == ["t", "s"]
        at_rest(pool)
        has_places(pool, 0)

    run.check(check)


def bounded_and_pinned(run: Run) -> None:
    """With one worker and one place, one runs, one waits, the third is turned away: by a session as without."""
    pool, outcomes = new_pool(1, max_queue=1), {}
    gate = threading.Event()

    def hold() -> str:
        gate.wait()
        return "held"

    def use(name: str, to: Any) -> None:
        outcomes[name] = outcome_of(lambda: to.do(hold))

    run.actor(use, "a", strict(pool), name="a")
    run.actor(use, "b", strict(pool), name="b")
    run.actor(use, "c", pool, name="c")

    def release() -> None:
        run.clock.sleep(1.0)
        assert list(outcomes.values()) == ["PoolSaturated"]
        gate.set()

    run.actor(release, name="release")

    def check() -> None:
        assert sorted(outcomes.values()) == ["PoolSaturated", "held", "held"]
        at_rest(pool)
        has_places(pool, 1)

    run.check(check)


def lines_while_a_worker_starts(run: Run) -> None:
    """A session has its worker. The place that another worker adds, for d, is not for the requests in its line."""
    pool, outcomes = new_pool(2, max_queue=1), {}
    gate = threading.Event()

    def hold() -> str:
        gate.wait()
        return "held"

    def use(name: str, to: Any, when: float = 0.5) -> None:
        run.clock.sleep(when)
        outcomes[name] = outcome_of(lambda: to.do(hold))

    run.actor(use, "a", strict(pool), 0.0, name="a")
    for name in ("b", "c"):
        run.actor(use, name, strict(pool), name=name)
    run.actor(use, "d", pool, name="d")

    def release() -> None:
        run.clock.sleep(1.0)
        assert list(outcomes.values()) == ["PoolSaturated"]
        gate.set()

    run.actor(release, name="release")

    def check() -> None:
        assert outcomes["d"] == "held"
        assert sorted(outcomes.values()) == ["PoolSaturated", "held", "held", "held"]
        at_rest(pool)
        has_places(pool, 1)

    run.check(check)


def has_places(pool: Pool, count: int) -> None:
    backlog: Any = pool._engine.bounded
    assert len(backlog._places) + backlog._unmade - len(backlog._debt) == count, "a place was lost or made"


def close_while_a_session_lines_up(run: Run) -> None:
    """Everything accepted runs, on one worker, everything else is rejected."""
    pool, places, outcomes = new_pool(2), Places(), {}

    def use(name: str) -> None:
        outcomes[name] = outcome_of(lambda: strict(pool).do(places.call, name))

    for name in ("a", "b"):
        run.actor(use, name, name=name)
    run.actor(pool.close, name="close")

    def check() -> None:
        assert set(outcomes.values()) <= {"a", "b", "PoolClosed"}
        assert set(places.of) == {name for name, outcome in outcomes.items() if outcome == name}
        assert len(set(places.of.values())) <= 1
        assert pool._engine.state is PoolState.CLOSED
        at_rest(pool)

    run.check(check)


def close_without_draining_lines(run: Run) -> None:
    pool, places, outcomes = new_pool(2), Places(), {}

    def use(name: str) -> None:
        outcomes[name] = outcome_of(lambda: strict(pool).do(places.call, name))

    for name in ("a", "b"):
        run.actor(use, name, name=name)
    run.actor(pool.close, None, False, name="close")

    def check() -> None:
        assert set(outcomes.values()) <= {"a", "b", "PoolClosed", "CancelledError"}
        assert set(places.of) == {name for name, outcome in outcomes.items() if outcome == name}
        assert pool._engine.state is PoolState.CLOSED
        at_rest(pool)

    run.check(check)


def end_a_session_that_lines_up(run: Run) -> None:
    """Requests that were submitted before the end of a session still run, wherever the session begins again."""
    pool, places = new_pool(2), Places()

    def use() -> None:
        first = [strict(pool).submit(places.call, name) for name in ("a", "b")]
        pool.end_session("s")
        then = [strict(pool).submit(places.call, name) for name in ("c", "d")]
        assert [future.result() for future in first + then] == ["a", "b", "c", "d"]

    run.actor(use, name="use")
    run.actor(lambda: pool.submit(str).result(), name="other")

    def check() -> None:
        assert places.of["a"] == places.of["b"]
        assert places.of["c"] == places.of["d"]
        at_rest(pool)

    run.check(check)


def cancel_in_line(run: Run) -> None:
    """One that is cancelled or expires in a line never runs, and leaves nothing behind."""
    pool, places, outcomes = new_pool(2), Places(), {}

    def use(name: str, **options: Any) -> None:
        future = strict(pool).using(**options).submit(places.call, name)
        if not options:
            future.cancel()
        outcomes[name] = outcome_of(future.result)

    run.actor(lambda: strict(pool).submit(run.clock.sleep, 1.0).result(), name="first")
    run.actor(use, "cancelled", name="cancelled")
    run.actor(lambda: use("late", queue_timeout=1.0), name="late")

    def check() -> None:
        assert set(outcomes.values()) <= {"cancelled", "late", "CancelledError", "QueueTimeout"}
        assert set(places.of) == {name for name, outcome in outcomes.items() if outcome == name}
        at_rest(pool)

    run.check(check)


def waits_across_lines(run: Run) -> None:
    """A request may wait for one of its own session, which then runs on the very worker that waits."""
    pool, places = new_pool(2), Places()

    def outer(name: str) -> str:
        places.call(f"outer {name}")
        return strict(pool, name).submit(places.call, f"inner {name}").result()

    for name in ("s", "t"):
        run.actor(lambda name=name: strict(pool, name).do(outer, name), name=name)

    def check() -> None:
        for name in ("s", "t"):
            assert places.of[f"outer {name}"] == places.of[f"inner {name}"]
        at_rest(pool)

    run.check(check)


def several_at_once_on_a_worker(run: Run) -> None:
    """No request waits while a worker has room, and no worker has more than its capacity."""
    pool, ran, most = new_pool(2, capacity=2), Ran(), []
    places = Places()

    def call(name: str) -> None:
        worker = current_worker()
        assert worker is not None
        most.append(worker.load)
        ran.call(name)

    for name in ("a", "b"):
        run.actor(lambda name=name: pool.submit(call, name).result(), name=name)
        run.actor(lambda name=name: strict(pool).do(places.call, name), name=f"pinned {name}")

    def check() -> None:
        assert ran.times == {"a": 1, "b": 1}
        assert max(most) <= 2
        assert places.of["a"] == places.of["b"]
        at_rest(pool)

    run.check(check)


def bounded_room_on_a_worker(run: Run) -> None:
    """A worker for two and no backlog: two run at once, and a submitter that waits for room gets it."""
    options: Any = {"max_queue": 0, "when_full": "block"}
    pool, places = new_pool(1, capacity=2, **options), Places()
    run.actor(lambda: pool.do(places.call, "a"), name="a")
    run.actor(lambda: strict(pool).do(places.call, "b"), name="b")
    run.actor(lambda: strict(pool).do(places.call, "c"), name="c")

    def check() -> None:
        assert sorted(places.order) == ["a", "b", "c"]
        at_rest(pool)
        has_places(pool, 0)

    run.check(check)


# Requests without a future have no lock of their own.


def served_while_closing_without_draining(run: Run) -> None:
    pool, ran, outcomes = new_pool(1), Ran(), {}

    def use(name: str) -> None:
        outcomes[name] = outcome_of(lambda: pool.serve(ran.call, name))

    for name in ("a", "b", "c"):
        run.actor(use, name, name=name)
    run.actor(pool.close, None, False, name="close")

    def check() -> None:
        assert set(outcomes.values()) <= {"True", "PoolClosed"}
        stats = pool.stats()
        accepted = list(outcomes.values()).count("True")
        assert stats.submitted == accepted == stats.completed + stats.cancelled
        assert sum(ran.times.values()) == stats.completed
        at_rest(pool)

    run.check(check)


def served_until_the_grace_has_passed(run: Run) -> None:
    """A function that is abandoned after the grace is counted once, whenever it returns."""
    pool, ran = new_pool(1, calls=CallPolicy(log_errors=False)), Ran()

    def serve(name: str, seconds: float) -> None:
        with contextlib.suppress(PoolClosed):
            pool.serve(work, name, seconds)

    def work(name: str, seconds: float) -> None:
        run.clock.sleep(seconds)
        ran.call(name)

    run.actor(serve, "a", 1.0, name="a")
    run.actor(serve, "b", 0.0, name="b")
    run.actor(pool.close, 1.0, name="close")

    def check() -> None:
        at_rest(pool)

    run.check(check)


def served_beside_a_late_callback(run: Run) -> None:
    """A worker that took a served request gives it back to call back first."""
    pool, ran, called = new_pool(1), Ran(), []

    def watch() -> None:
        future = pool.submit(ran.call, "a")
        future.add_done_callback(lambda done: called.append(done.result()))
        future.result()

    run.actor(watch, name="watch")
    run.actor(lambda: pool.serve(ran.call, "b"), name="b")

    def check() -> None:
        assert called == ["a"]
        assert ran.times == {"a": 1, "b": 1}
        at_rest(pool)

    run.check(check)


SESSIONS = [
    a_session_binds_once,
    a_session_keeps_its_order,
    one_call_of_a_new_session_fails_fast,
    a_worker_dies_while_its_session_lines_up,
    resize_while_a_session_lines_up,
    an_idle_worker_goes_unless_a_session_needs_it,
    pause_and_resume_with_lines,
    resume_while_a_session_lines_up,
    blocked_submitters_of_sessions,
    room_on_another_worker,
    bounded_and_pinned,
    lines_while_a_worker_starts,
    close_while_a_session_lines_up,
    close_without_draining_lines,
    end_a_session_that_lines_up,
    cancel_in_line,
    waits_across_lines,
    several_at_once_on_a_worker,
    bounded_room_on_a_worker,
    served_while_closing_without_draining,
    served_until_the_grace_has_passed,
    served_beside_a_late_callback,
]

SCENARIOS = [
    *SESSIONS,
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
    a_dropped_map_while_the_pool_closes,
    a_map_is_read_while_the_pool_closes,
    a_map_while_the_pool_changes,
    a_map_without_room,
    idle_workers_go_while_work_comes,
    starts_that_fail_together,
    starts_that_fail_later,
]


RACING = (  # where it matters that time may pass at any moment
    cancel_and_expire,
    deadlines_that_come_together,
    idle_workers_go_while_work_comes,
    an_idle_worker_goes_unless_a_session_needs_it,
    cancel_in_line,
    served_until_the_grace_has_passed,
)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_no_schedule_breaks(scenario: Scenario, thorough: bool) -> None:
    racing = scenario in RACING
    report = explore(scenario, schedules=20_000 if thorough else SCHEDULES, racing_clock=racing, max_steps=20_000)
    report.raise_for_failure()
    assert report.distinct > 100 or report.exhausted


def test_requests_run_at_once_in_some_schedules() -> None:
    """Otherwise that at most one ran at once would say nothing."""
    most: set[int] = set()

    def two_at_once(run: Run) -> None:
        pool, ran = new_pool(2), Ran()
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
            worker.handle.hand(None)
        return request

    monkeypatch.setattr(Dispatcher, "_after", after)


def stop_without_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker is told to stop by a flag that it may not see before it parks."""

    def stop(self: Dispatcher, worker: Worker, *, when_idle: bool) -> bool:
        idle = worker.listed and not worker.requests
        self.registry.count()  # somebody else may run here
        worker.status = STOPPING
        if idle:
            worker.handle.hand(None)
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

    monkeypatch.setattr(TimerThread, "wake", wake)


def look_before_setting_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the supervisor has to be woken is decided before the deadline is set, while another is ahead of it."""

    def append(self: Any, timing: Timing) -> bool:
        first = not self.timings
        self.timings.append(timing)
        return first

    monkeypatch.setattr(_DurationQueue, "append", append)


def trust_the_ready_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries of workers that are gone keep a submitter from starting another."""

    def offer(self: Dispatcher, request: Request) -> bool:
        request.number = self._number()
        self._append(request)
        if self._idle():
            self.pair_waiting_with_ready()
        elif self.free:
            self.grow()
        return not self.status.ending or not self.withdraw(request)

    monkeypatch.setattr(Dispatcher, "offer", offer)


def close_on_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool closes when no worker is there, though somebody is about to start one for what waits."""
    monkeypatch.setattr(Backlog, "queued", lambda self, skipped, pinned=0: 0)


def publish_before_making_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result is seen before the worker is free."""
    monkeypatch.setattr(Dispatcher, "finished", Dispatcher._finished_with_callbacks)


def bind_without_sending_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for a session to be bound stays in the backlog, where no other worker may run it."""

    def bind(self: Sessions, session: Session, worker: Worker, request: Request) -> bool:
        session.worker = worker
        session.pending.clear()
        return False

    monkeypatch.setattr(Sessions, "_bind", bind)


def move_without_marking_tombstones(monkeypatch: pytest.MonkeyPatch) -> None:
    """What leaves the backlog for a line is counted twice, and a pool that waits for it never closes."""
    init = Sessions.__init__

    def uncounted(self: Sessions, ttl: float | None, limit: int, moved: Tally, *, told: bool = False) -> None:
        init(self, ttl, limit, Tally(), told=told)

    monkeypatch.setattr(Sessions, "__init__", uncounted)


def bind_out_of_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request that comes first to a worker binds the session and starts, though an older one waits."""
    bind = Sessions._bind

    def start_at_once(self: Sessions, session: Session, worker: Worker, request: Any, now: float) -> bool:
        if request in session.pending:
            session.pending.remove(request)
        return bind(self, session, worker, request, now)

    monkeypatch.setattr(Sessions, "_bind", start_at_once)


def note_before_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A strict request is noted as waiting before it is admitted: the binding may send it to a line nevertheless."""
    offer = Dispatcher.offer_bounded

    def offer_bounded(self: Dispatcher, *args: Any, session: Session | None = None, **options: Any) -> bool:
        if session is not None and len(args) == 2:
            self.sessions.expect(session, args[1], 0.0)
        return offer(self, *args, **options)

    monkeypatch.setattr(Dispatcher, "offer_bounded", offer_bounded)


def end_before_the_line_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is told to stop takes nothing more, not even what waits for it alone."""
    monkeypatch.setattr(Dispatcher, "_take_own", lambda self, worker: None)


def resume_only_what_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that seem empty are passed over, without the lock of those who line up."""

    line_up = Worker.line_up

    def line_up_slowly(self: Worker, request: Request) -> None:
        len(primitives.new_deque())  # somebody else may run here
        line_up(self, request)

    def serve_lines(self: Dispatcher) -> None:
        for worker in self.registry.snapshot():
            if worker.line:
                self._serve_line(worker)

    monkeypatch.setattr(Worker, "line_up", line_up_slowly)
    monkeypatch.setattr(Dispatcher, "serve_lines", serve_lines)


def give_up_at_an_empty_backlog(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that finds the backlog emptied by another forgets its own line."""

    def pop_oldest(self: Dispatcher, worker: Worker) -> Request:
        if self._waiting() and self.backlog.entries[0].number < worker.line[0][0]:
            return self._popleft()  # type: ignore[no-any-return]
        return heapq.heappop(worker.line)[1]

    monkeypatch.setattr(Dispatcher, "_pop_oldest", pop_oldest)


def keep_others_from_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A submitter that waits for room on one worker does not let those behind it have the room of another."""
    monkeypatch.setattr(BoundedBacklog, "pass_on", lambda self, ticket: None)


def be_called_while_getting_ready_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A submitter that waits for room gets ready to be called again without the lock of those who call."""
    monkeypatch.setattr(BoundedBacklog, "rearm", lambda self, ticket: ticket.rearm())


def requeue_without_a_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A served request is given back as if it had a lock."""
    monkeypatch.setattr(ServedRequest, "requeue", Request.requeue)


SABOTAGE = [
    (bind_without_sending_what_waits, a_session_binds_once),
    (move_without_marking_tombstones, close_while_a_session_lines_up),
    (bind_out_of_order, a_session_keeps_its_order),
    (note_before_there_is_room, bounded_and_pinned),
    (end_before_the_line_is_empty, resize_while_a_session_lines_up),
    (resume_only_what_is_seen, resume_while_a_session_lines_up),
    (give_up_at_an_empty_backlog, a_session_keeps_its_order),
    (keep_others_from_their_turn, room_on_another_worker),
    (be_called_while_getting_ready_for_it, blocked_submitters_of_sessions),
    (requeue_without_a_lock, served_beside_a_late_callback),
    (ready_without_looking_again, submit_and_wait),
    (stop_without_the_lock, close_while_submitting),
    (spawn_without_the_permission, grow_to_demand_only),
    (sleep_through_a_deadline, deadlines_are_kept),
    (look_before_setting_a_deadline, deadlines_that_come_together),
    (trust_the_ready_queue, idle_workers_go_while_work_comes),
    (close_on_what_waits, close_while_submitting),
    (publish_before_making_room, whoever_sees_the_result_finds_the_worker_free),
]

# A seed that finds it soon, where the first one takes thousands of schedules.
EARLY: dict[Callable[[pytest.MonkeyPatch], None], int] = {
    be_called_while_getting_ready_for_it: 4,
    stop_without_the_lock: 4,
}


@pytest.mark.parametrize(("sabotage", "scenario"), SABOTAGE, ids=lambda item: item.__name__)
def test_known_races_are_found(
    sabotage: Callable[[pytest.MonkeyPatch], None], scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    sabotage(monkeypatch)
    racing = scenario in RACING and scenario is not cancel_and_expire
    report = explore(scenario, schedules=20_000, seed=EARLY.get(sabotage, 0), racing_clock=racing, max_steps=20_000)
    assert report.failure is not None, "the defect was not found"
    token = report.failure.token
    again = exploration.replay(scenario, token, max_steps=20_000)
    assert again.failure is not None, "the failing schedule could not be replayed"
