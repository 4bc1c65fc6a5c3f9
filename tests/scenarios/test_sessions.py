"""Sessions: each way to ask for a worker, whatever becomes of that worker."""

from __future__ import annotations

import functools
import random
import threading
import time
from collections import Counter, defaultdict
from concurrent.futures import CancelledError
from typing import Any

import pytest

from bullpen import (
    DeadlineExceeded,
    InvalidOption,
    InvalidOptionType,
    Kind,
    Pool,
    PoolClosed,
    PoolSaturated,
    PoolView,
    QueueTimeout,
    RecyclePolicy,
    RestartPolicy,
    SessionPolicy,
    SessionWorkerUnavailable,
    TelemetryEvent,
    TooManySessions,
    WorkerBusy,
    WorkerLost,
)
from bullpen.pools.dispatch.worker import Worker
from bullpen.pools.runtimes.port import current_worker
from bullpen.testing import ManualClock, ScriptedRuntime
from tests.mortal import Death, MortalRuntime
from tests.scenarios.support import Background, Blocker, eventually, printed

MODES = ("hint", "strict_queue", "strict_fail_fast")
STRICT = ("strict_queue", "strict_fail_fast")


class Script:
    """A pool of scripted workers whose time is moved by hand."""

    def __init__(self, workers: int = 2, **options: Any) -> None:
        self.auto_ready = options.pop("auto_ready", True)
        self.runtime = ScriptedRuntime(auto_ready=self.auto_ready)
        self.clock = ManualClock(now=0.0)
        options.setdefault("recycling", RecyclePolicy(idle_timeout=None))
        self.pool = Pool(workers, runtime=self.runtime, clock=self.clock, **options)

    def __enter__(self) -> Script:
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.close(grace=0, drain=False)

    def view(self, session: str = "s", affinity: str = "strict_queue") -> PoolView:
        return self.pool.using(session=session, affinity=affinity)

    def bound(self, session: str = "s", affinity: str = "strict_queue") -> Worker:
        """Bind a session and leave its worker idle."""
        future = self.view(session, affinity).submit(print)
        worker = self.runtime.worker_of(future)
        self.runtime.finish(future)
        return worker

    def tick(self, seconds: float = 0.0) -> None:
        self.clock.advance(seconds)
        self.pool._engine.timer.tick(self.clock.monotonic())

    def info(self, session: str = "s") -> Any:
        return next(info for info in self.pool.sessions() if info.id == session)


# The session's worker has room.


@pytest.mark.parametrize("affinity", MODES)
def test_a_session_comes_back_to_its_worker_where_others_take_turns(affinity: str) -> None:
    with Script(3) as script:
        for future in [script.pool.submit(print) for _ in range(3)]:
            script.runtime.finish(future)
        worker = script.bound(affinity=affinity)
        assert [script.bound(affinity=affinity) for _ in range(5)] == [worker] * 5
        plain = []
        for _ in range(3):
            future = script.pool.submit(print)
            plain.append(script.runtime.worker_of(future))
            script.runtime.finish(future)
        assert len(set(plain)) == 3


# It has not.


def test_a_hint_goes_elsewhere_when_its_worker_is_busy_and_comes_back() -> None:
    with Script(2) as script:
        worker = script.bound(affinity="hint")
        busy = script.view(affinity="hint").submit(print)
        assert script.runtime.worker_of(busy) is worker
        overflow = script.view(affinity="hint").submit(print)
        assert script.runtime.worker_of(overflow) is not worker
        script.runtime.finish(busy)
        assert script.runtime.worker_of(script.view(affinity="hint").submit(print)) is worker


def test_strict_queue_waits_for_its_worker_beside_an_idle_one() -> None:
    with Script(2) as script:
        worker = script.bound()
        script.bound("other")
        busy = script.view().submit(print)
        waiting = [script.view().submit(print) for _ in range(3)]
        assert script.runtime.running == [busy]
        assert script.pool.stats().queued == 3
        assert script.info().waiting == 3
        for following in waiting:
            script.runtime.finish_next()
            assert script.runtime.running == [following]
            assert script.runtime.worker_of(following) is worker


def test_strict_fail_fast_says_that_its_worker_is_busy() -> None:
    with Script(2) as script:
        worker = script.bound(affinity="strict_fail_fast")
        script.view(affinity="strict_fail_fast").submit(print)
        with pytest.raises(WorkerBusy, match="is busy") as caught:
            script.view(affinity="strict_fail_fast").submit(print)
        assert (caught.value.worker, caught.value.session) == (worker.name, "s")
        assert script.pool.stats().submitted == 2


def test_serve_says_that_its_worker_is_busy_too() -> None:
    with Script(1) as script:
        assert script.view(affinity="strict_fail_fast").serve(print)
        with pytest.raises(WorkerBusy):
            script.view(affinity="strict_fail_fast").serve(print)


def test_the_affinity_of_a_call_overrides_the_pools() -> None:
    with Script(2, affinity="strict_fail_fast") as script:
        script.pool.using(session="s").submit(print)
        with pytest.raises(WorkerBusy):
            script.pool.using(session="s").submit(print)
        waiting = script.pool.using(session="s", affinity="strict_queue").submit(print)
        assert not waiting.running()
        assert script.pool.using(session="s", affinity="hint").submit(print).running()


# It is gone.


def gone_by_death(script: Script, worker: Worker) -> None:
    script.runtime.die(worker)


def gone_by_resize(script: Script, worker: Worker) -> None:
    other = next(one for one in script.runtime.workers if one is not worker)
    assert worker.slot is not None
    assert other.slot is not None
    assert worker.slot > other.slot
    script.pool.resize(1)


@pytest.mark.parametrize("go", [gone_by_death, gone_by_resize])
@pytest.mark.parametrize("affinity", MODES)
def test_when_its_worker_is_gone(affinity: str, go: Any) -> None:
    with Script(2) as script:
        blocked = script.pool.submit(print)
        worker = script.bound(affinity=affinity)
        go(script, worker)
        script.runtime.finish(blocked)
        if affinity == "hint":
            assert script.bound(affinity=affinity) is not worker
            return
        for _ in range(2):
            with pytest.raises(SessionWorkerUnavailable) as caught:
                script.view(affinity=affinity).submit(print)
            assert (caught.value.worker, caught.value.session) == (worker.name, "s")
        assert not script.info().available
        assert script.pool.end_session("s")
        assert script.bound(affinity=affinity) is not worker


def test_a_session_whose_worker_is_gone_begins_anew_when_its_time_has_passed() -> None:
    with Script(2, sessions=SessionPolicy(ttl=10.0)) as script:
        worker = script.bound()
        script.runtime.die(worker)
        script.clock.advance(9.0)
        with pytest.raises(SessionWorkerUnavailable):
            script.view().submit(print)
        script.clock.advance(1.0)
        assert script.bound() is not worker


def test_a_long_request_that_is_lost_was_a_use_of_its_session() -> None:
    with Script(2, sessions=SessionPolicy(ttl=10.0)) as script:
        future = script.view().submit(print)
        worker = script.runtime.worker_of(future)
        script.clock.advance(100.0)
        script.runtime.die(worker)
        with pytest.raises(SessionWorkerUnavailable):
            script.view().submit(print)


def test_a_stopping_worker_takes_no_more_but_runs_its_line_first() -> None:
    with Script(2) as script:
        other = script.pool.submit(print)
        first = script.view().submit(print)
        worker = script.runtime.worker_of(first)
        second = script.view().submit(print)
        script.pool.resize(1)
        with pytest.raises(SessionWorkerUnavailable):
            script.view().submit(print)
        script.runtime.finish(first)
        assert script.runtime.worker_of(second) is worker
        script.runtime.finish(second)
        assert worker not in script.runtime.workers
        script.runtime.finish(other)


def test_what_ran_on_a_dead_worker_is_lost_and_what_waited_for_it_is_rejected() -> None:
    with Script(2) as script:
        running, waiting = script.view().submit(print), script.view().submit(print)
        plain = script.pool.submit(print)
        also_plain = script.pool.submit(print)
        script.runtime.die(script.runtime.worker_of(running))
        assert isinstance(running.exception(0), WorkerLost)
        assert isinstance(waiting.exception(0), SessionWorkerUnavailable)
        assert plain.running()
        assert also_plain.running(), "it has taken the place of the dead one"
        stats = script.pool.stats()
        assert (stats.lost, stats.failed, stats.queued) == (1, 1, 0)


# Before the session is bound.


def test_strict_requests_that_come_before_the_binding_run_on_the_same_worker_in_order() -> None:
    with Script(3, auto_ready=False) as script:
        futures = [script.view().submit(print) for _ in range(4)]
        assert script.info().worker is None
        assert script.info().waiting == 4
        while script.runtime.starting:
            script.runtime.ready()
        worker = script.runtime.worker_of(futures[0])
        for future in futures:
            assert script.runtime.running == [future]
            assert script.runtime.worker_of(future) is worker
            script.runtime.finish(future)
        assert script.pool.stats().queued == 0


@pytest.mark.parametrize("max_queue", [None, 5])
def test_they_start_one_worker_and_wait_for_it(max_queue: int | None) -> None:
    with Script(4, auto_ready=False, max_queue=max_queue) as script:
        futures = [script.view().submit(print) for _ in range(3)]
        assert len(script.runtime.starting) == 1
        script.view("other").submit(print)
        plain = script.pool.submit(print)
        assert len(script.runtime.starting) == 3, "for others there are others"
        script.pool.resize(5)
        script.pool.resume()
        assert len(script.runtime.starting) == 3, "nor does more room make it more"
        for worker in script.runtime.starting:
            script.runtime.ready(worker)
        assert script.runtime.running[0] is futures[0]
        assert plain in script.runtime.running
        for future in futures:
            script.runtime.finish(future)
        assert len({future.worker for future in futures}) == 1


def test_they_start_another_worker_if_none_is_on_its_way() -> None:
    with Script(2, auto_ready=False) as script:
        script.pool.pause()
        futures = [script.view().submit(print) for _ in range(2)]
        script.pool._engine.dispatcher.status.change(paused=False)
        assert script.runtime.starting == []
        futures.append(script.view().submit(print))
        assert len(script.runtime.starting) == 1
        script.runtime.ready()
        assert script.runtime.running == futures[:1]


@pytest.mark.parametrize("max_queue", [None, 5])
def test_they_start_another_worker_if_the_first_of_them_is_too_late(max_queue: int | None) -> None:
    with Script(3, auto_ready=False, max_queue=max_queue) as script:
        script.view().using(queue_timeout=0).submit(print)
        script.runtime.ready()  # and drops the request, which the timer has not ended yet
        plain = [script.pool.submit(print) for _ in range(2)]
        assert script.runtime.running == plain[:1]
        assert len(script.runtime.starting) == 1, "for the second plain request"
        script.view().submit(print)
        assert len(script.runtime.starting) == 2


def test_what_follows_takes_no_place_of_a_worker_that_is_on_its_way() -> None:
    with Script(3, auto_ready=False, max_queue=0) as script:
        first = script.view().submit(print)
        with pytest.raises(PoolSaturated):
            script.view().submit(print)
        assert len(script.runtime.starting) == 1
        script.runtime.ready()
        assert script.runtime.running == [first]
        assert script.pool.stats().queued == 0


def test_one_of_them_that_is_cancelled_or_expires_never_runs() -> None:
    with Script(1, auto_ready=False) as script:
        first = script.view().submit(print)
        cancelled = script.view().submit(print)
        late = script.view().using(queue_timeout=5.0).submit(print)
        last = script.view().submit(print)
        assert cancelled.cancel()
        script.runtime.ready()
        script.tick(5.0)
        assert isinstance(late.exception(0), QueueTimeout)
        script.runtime.finish(first)
        assert script.runtime.running == [last]
        assert script.pool.stats().queued == 0


def test_strict_fail_fast_does_not_wait_behind_a_request_that_has_not_started() -> None:
    with Script(1, auto_ready=False) as script:
        script.view(affinity="strict_fail_fast").submit(print)
        with pytest.raises(WorkerBusy, match="has not started"):
            script.view(affinity="strict_fail_fast").submit(print)


def test_a_cancelled_first_request_does_not_bind_its_session() -> None:
    with Script(1) as script:
        blocked = script.pool.submit(print)
        first = script.view().submit(print)
        assert first.cancel()
        script.runtime.finish(blocked)
        assert script.info().worker is None
        assert script.bound() is not None


# Age, bounds, time.


def test_lines_and_backlog_are_served_by_age() -> None:
    with Script(1) as script:
        futures = []
        for number in range(6):
            futures.append(script.view().submit(print) if number % 2 else script.pool.submit(print))
        for future in futures:
            assert script.runtime.running == [future]
            script.runtime.finish(future)


def test_requests_in_a_line_count_in_the_bound() -> None:
    with Script(1, max_queue=2) as script:
        for _ in range(3):
            script.view().submit(print)
        with pytest.raises(PoolSaturated):
            script.view().submit(print)
        with pytest.raises(PoolSaturated):
            script.pool.submit(print)
        assert not script.view().serve(print)
        script.runtime.finish_next()
        script.pool.submit(print)
        assert script.pool.stats().queued == 2


@pytest.mark.parametrize("max_queue", [0, 2])
def test_a_worker_on_its_way_makes_no_room_in_the_lines_of_others(max_queue: int) -> None:
    with Script(3, auto_ready=False, max_queue=max_queue) as script:
        script.view().submit(print)
        script.runtime.ready()
        for _ in range(max_queue):
            script.view().submit(print)
        script.pool._engine.sizing.start_more(1)  # one that nobody waits for
        with pytest.raises(PoolSaturated):
            script.view().submit(print)
        assert script.pool.stats().queued == max_queue
        plain = script.pool.submit(print)
        for worker in script.runtime.starting:
            script.runtime.ready(worker)
        assert plain in script.runtime.running
        with pytest.raises(PoolSaturated):
            script.view().submit(print)
        assert script.pool._engine.bounded is not None
        assert script.pool._engine.bounded._starting.value == 0


def test_a_line_may_not_form_where_nothing_may_wait() -> None:
    with Script(2, max_queue=0) as script:
        script.view().submit(print)
        with pytest.raises(PoolSaturated):
            script.view().submit(print)
        assert script.pool.submit(print).running()
        script.runtime.finish_next()
        assert script.view().submit(print).running()


def test_a_blocked_submitter_gets_its_worker_when_that_is_free() -> None:
    with Pool(2, max_queue=0, when_full="block") as pool, Blocker() as blocker, Blocker() as other:
        strict = pool.using(session="s", affinity="strict_queue")
        held = strict.submit(lambda: blocker(current_worker()))
        blocker.wait_entered()
        pool.serve(other)
        other.wait_entered()
        with Background(lambda: strict.do(current_worker)) as waiting:
            assert eventually(lambda: pool._engine.bounded is not None and pool._engine.bounded.tickets)
            blocker.release()
            assert waiting.join().result is held.result()


def test_limits_in_time_hold_in_a_line() -> None:
    with Script(1) as script:
        script.view().submit(print)
        late = script.view().using(timeout=3.0).submit(print)
        also_late = script.view().using(queue_timeout=4.0).submit(print)
        in_time = script.view().using(queue_timeout=9.0).submit(print)
        script.tick(4.0)
        assert isinstance(late.exception(0), DeadlineExceeded)
        assert isinstance(also_late.exception(0), QueueTimeout)
        assert script.pool.stats().queued == 1
        script.runtime.finish_next()
        assert script.runtime.running == [in_time]


def test_a_request_of_a_session_keeps_to_its_run_timeout() -> None:
    with Script(1) as script:
        script.bound()
        future = script.view().using(run_timeout=2.0).submit(print)
        script.tick(2.0)
        assert future.exception(0) is not None


# The table.


def test_a_session_that_was_not_used_is_forgotten_after_its_time() -> None:
    with Script(2, sessions=SessionPolicy(ttl=10.0)) as script:
        script.bound()
        script.clock.advance(9.0)
        assert script.info().idle == 9.0
        script.clock.advance(1.0)
        assert script.pool.sessions() == []
        assert not script.pool.end_session("s")


def test_a_long_request_does_not_let_its_session_be_forgotten() -> None:
    with Script(2, sessions=SessionPolicy(ttl=10.0)) as script:
        future = script.view().submit(print)
        worker = script.runtime.worker_of(future)
        script.clock.advance(100.0)
        assert script.info().worker == worker.name
        script.runtime.finish(future)
        script.clock.advance(9.0)
        assert script.bound() is worker


def test_too_many_sessions() -> None:
    with Script(2, sessions=SessionPolicy(max_sessions=2)) as script:
        script.bound("a", "hint")
        script.bound("b")
        script.bound("c", "hint")
        assert {info.id for info in script.pool.sessions()} == {"b", "c"}
        script.bound("d")
        with pytest.raises(TooManySessions) as caught:
            script.view("e").submit(print)
        assert caught.value.limit == 2
        script.pool.end_session("b")
        script.bound("e")


def test_sessions_whose_requests_were_all_rejected_do_not_fill_the_table() -> None:
    with Script(1, sessions=SessionPolicy(max_sessions=2), max_queue=0) as script:
        script.pool.submit(print)
        for number in range(10):
            with pytest.raises(PoolSaturated):
                script.view(f"rejected {number}").submit(print)


def test_end_session_says_whether_there_was_one() -> None:
    with Script() as script:
        assert not script.pool.end_session("s")
        script.bound()
        assert script.pool.end_session("s")
        assert not script.pool.end_session("s")
        assert script.pool.sessions() == []


def test_what_an_ended_session_has_submitted_still_runs_where_it_was() -> None:
    with Script(2) as script:
        first, second = script.view().submit(print), script.view().submit(print)
        worker = script.runtime.worker_of(first)
        script.pool.end_session("s")
        anew = script.view().submit(print)
        assert script.runtime.worker_of(anew) is not worker
        script.runtime.finish(first)
        assert script.runtime.worker_of(second) is worker


def test_sessions_describe_themselves() -> None:
    with Script(1) as script:
        script.view().submit(print)
        script.view().submit(print)
        script.view("new").submit(print)
        script.clock.advance(2.0)
        lines = sorted(map(str, script.pool.sessions()))
        name = script.runtime.workers[0].name
        assert lines == [
            "new: not bound yet, 1 waiting, last used 2.0 s ago",
            f"s: on {name}, 1 waiting, last used 2.0 s ago",
        ]


@pytest.mark.parametrize("session", ["", 7, b"s"])
def test_a_session_is_a_string(session: Any) -> None:
    with Pool(1) as pool, pytest.raises(InvalidOptionType):
        pool.using(session=session)


def test_options_are_checked() -> None:
    with pytest.raises(InvalidOption, match="affinity"):
        Pool(1, affinity="sticky")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="max_sessions"):
        Pool(1, sessions=SessionPolicy(max_sessions=0))
    with pytest.raises(InvalidOption, match=r"sessions\.ttl"):
        Pool(1, sessions=SessionPolicy(ttl=0))


# Shrinking.


def test_a_strict_session_keeps_its_worker_from_being_shrunk() -> None:
    with Script(3, recycling=RecyclePolicy(idle_timeout=8.0), sessions=SessionPolicy(ttl=100.0)) as script:
        futures = [script.view(name).submit(print) for name in ("a", "b", "c")]
        workers = [script.runtime.worker_of(future) for future in futures]
        for future in futures:
            script.runtime.finish(future)
        script.pool.end_session("b")
        for _ in range(40):
            script.tick(2.0)
        assert script.runtime.workers == [workers[0], workers[2]]
        assert script.bound("c") is workers[2]
        for _ in range(80):
            script.tick(2.0)
        assert script.runtime.workers == [], "their sessions are forgotten by now"


def test_a_hint_keeps_nobody() -> None:
    with Script(2, recycling=RecyclePolicy(idle_timeout=8.0)) as script:
        script.bound(affinity="hint")
        for _ in range(20):
            script.tick(2.0)
        assert script.runtime.workers == []


# Pause and close.


def test_a_paused_pool_lines_up_and_goes_on() -> None:
    with Script(2) as script:
        worker = script.bound()
        script.pool.pause()
        futures = [script.view().submit(print) for _ in range(2)]
        with pytest.raises(WorkerBusy):
            script.view(affinity="strict_fail_fast").submit(print)
        assert script.runtime.running == []
        script.pool.resume()
        assert script.runtime.running == futures[:1]
        assert script.runtime.worker_of(futures[0]) is worker


def test_a_worker_that_is_resized_away_while_paused_runs_its_line_after() -> None:
    with Script(2) as script:
        blocked = script.pool.submit(print)
        worker = script.bound()
        script.pool.pause()
        waiting = script.view().submit(print)
        script.pool.resize(1)
        assert worker in script.runtime.workers
        script.pool.resume()
        assert script.runtime.worker_of(waiting) is worker
        script.runtime.finish(waiting)
        assert worker not in script.runtime.workers
        script.runtime.finish(blocked)


def test_a_worker_that_ends_runs_its_line_and_leaves_older_requests_of_the_backlog_to_others() -> None:
    with Script(2) as script:
        blocked = script.pool.submit(print)
        worker = script.bound()
        script.pool.pause()
        older = script.pool.submit(print)
        pinned = script.view().submit(print)
        script.pool.resize(1)
        script.pool.resume()
        assert script.runtime.running == [blocked, pinned]
        script.runtime.finish(pinned)
        assert worker not in script.runtime.workers
        assert script.runtime.running == [blocked]
        script.runtime.finish(blocked)
        assert script.runtime.running == [older]


@pytest.mark.parametrize("drain", [True, False])
def test_close_runs_or_cancels_the_requests_in_lines(drain: bool) -> None:
    ran: list[int] = []
    pool = Pool(2)
    strict = pool.using(session="s", affinity="strict_queue")
    with Blocker() as blocker:
        first = strict.submit(blocker)
        blocker.wait_entered()
        futures = [strict.submit(ran.append, number) for number in range(5)]
        pool.shutdown(wait=False, cancel_futures=not drain)
        with pytest.raises(PoolClosed):
            strict.submit(print)
        blocker.release()
    pool.close()
    first.result()
    assert ran == (list(range(5)) if drain else [])
    assert all(future.cancelled() is not drain for future in futures)


def test_the_grace_ends_the_requests_in_lines() -> None:
    with Script(1) as script:
        running, waiting = script.view().submit(print), script.view().submit(print)
        script.pool.close(grace=0)
        assert running.exception(0) is not None
        with pytest.raises(CancelledError):
            waiting.result(0)


def test_lines_are_drained_at_interpreter_exit() -> None:
    out = printed(
        """
        import threading, time
        from bullpen import Pool
        pool = Pool(2)
        strict = pool.using(session="s", affinity="strict_queue")
        strict.submit(time.sleep, 0.1)
        for number in range(3):
            strict.submit(print, number)
        """
    )
    assert out.split() == ["0", "1", "2"]


# Nested waits, map, events.


def test_a_request_runs_what_it_waits_for_in_its_own_session_itself() -> None:
    with Pool(2) as pool:
        strict = pool.using(session="s", affinity="strict_queue")

        def outer() -> tuple[Worker | None, Worker | None]:
            return current_worker(), strict.submit(current_worker).result()

        here, inner = strict.do(outer)
        assert here is inner


def test_a_request_that_waits_for_another_session_does_not_run_it_itself() -> None:
    with Pool(2) as pool, Blocker() as blocker:
        near = pool.using(session="near", affinity="strict_queue")
        far = pool.using(session="far", affinity="strict_queue")
        holding = far.submit(lambda: blocker(current_worker()))
        blocker.wait_entered()
        waiting = threading.Event()

        def outer() -> tuple[Worker | None, Worker | None]:
            future = far.submit(current_worker)
            waiting.set()
            return current_worker(), future.result()

        pair = near.submit(outer)
        assert waiting.wait(10)
        blocker.release()
        here, there = pair.result(10)
        assert here is not there
        assert there is holding.result()


def test_map_in_a_session_runs_on_its_worker() -> None:
    with Pool(4) as pool:
        strict = pool.using(session="s", affinity="strict_queue")
        here = strict.do(current_worker)
        assert set(strict.map(lambda _: current_worker(), range(200))) == {here}


def test_events_tell_of_bindings_and_ends() -> None:
    events: list[TelemetryEvent] = []
    with Script(2, observer=events.append) as script:
        worker = script.bound()
        script.bound()
        script.pool.end_session("s")
        script.pool.end_session("s")
        told = [event for event in events if event.kind in (Kind.SESSION_BOUND, Kind.SESSION_ENDED)]
        assert [(event.kind, event.session, event.worker) for event in told] == [
            (Kind.SESSION_BOUND, "s", worker.name),
            (Kind.SESSION_ENDED, "s", None),
        ]
        started = [event for event in events if event.kind is Kind.REQUEST_STARTED]
        assert {event.session for event in started} == {"s"}


def test_events_tell_of_sessions_that_are_forgotten() -> None:
    def ended() -> list[str | None]:
        return [event.session for event in events if event.kind is Kind.SESSION_ENDED]

    events: list[TelemetryEvent] = []
    with Script(1, sessions=SessionPolicy(ttl=10.0, max_sessions=3), observer=events.append) as script:
        script.bound("old", "hint")
        script.bound("old and strict")
        script.clock.advance(5.0)
        script.bound("young", "hint")
        assert ended() == []
        script.clock.advance(5.0)
        script.bound("young", "hint")
        assert ended() == ["old", "old and strict"], "their time has passed"
        script.bound("b", "hint")
        script.bound("c", "hint")
        script.bound("d", "hint")
        assert ended()[2:] == ["young"], "there are too many"
        script.clock.advance(10.0)
        script.bound("d", "hint")
        assert ended()[3:] == ["d", "b"], "it begins anew"
        script.pool.submit(print)
        assert {session.id for session in script.pool.sessions()} == {"d"}


def test_every_rejection_is_told_after_the_request_was_announced() -> None:
    events: list[TelemetryEvent] = []
    with Script(1, sessions=SessionPolicy(max_sessions=1), observer=events.append) as script:
        worker = script.bound(affinity="strict_fail_fast")
        script.view().submit(print)
        with pytest.raises(WorkerBusy):
            script.view(affinity="strict_fail_fast").submit(print)
        with pytest.raises(TooManySessions):
            script.view("other").submit(print)
        script.runtime.die(worker)
        with pytest.raises(SessionWorkerUnavailable):
            script.view().submit(print)
        history: dict[Any, list[Kind]] = defaultdict(list)
        for event in events:
            if event.request is not None and event.kind is not Kind.SESSION_BOUND:
                history[event.request].append(event.kind)
        assert Counter(tuple(kinds) for kinds in history.values()) == {
            (Kind.REQUEST_QUEUED, Kind.REQUEST_STARTED, Kind.REQUEST_DONE): 1,
            (Kind.REQUEST_QUEUED, Kind.REQUEST_STARTED, Kind.REQUEST_LOST): 1,
            (Kind.REQUEST_QUEUED, Kind.REQUEST_REJECTED): 3,
        }


# Under load.


@pytest.mark.parametrize("affinity", MODES)
@pytest.mark.parametrize("max_queue", [None, 50])
def test_thousands_of_requests_over_hundreds_of_sessions(affinity: str, max_queue: int | None) -> None:
    options: Any = {} if max_queue is None else {"max_queue": max_queue, "when_full": "block"}
    places: dict[str, list[tuple[int, Any]]] = defaultdict(list)  # appended to by one worker at a time, if strict
    busy = Counter[str]()
    rng = random.Random(7)
    names = [f"session {number}" for number in range(200)]

    def work(name: str, number: int) -> None:
        places[name].append((number, current_worker()))

    def submit(mine: list[str]) -> None:
        for number in range(1000):
            name = rng.choice(mine)
            try:
                pool.using(session=name, affinity=affinity).serve(work, name, number)
            except WorkerBusy:
                busy[name] += 1
            if number % 50 == 0:
                pool.serve(time.sleep, 0)

    with Pool(6, recycling=RecyclePolicy(idle_timeout=None), **options) as pool:
        submitters = [Background(functools.partial(submit, names[part::4])) for part in range(4)]
        for submitter in submitters:
            assert submitter.join(60).error is None
    assert sum(map(len, places.values())) + sum(busy.values()) == 4000
    assert pool.stats().queued == 0
    if affinity != "hint":
        assert all(len({worker for _, worker in ran}) == 1 for ran in places.values()), "a strict session has moved"
        assert all(ran == sorted(ran, key=lambda one: one[0]) for ran in places.values()), "out of order"
    if affinity != "strict_fail_fast":
        assert not busy


def test_workers_die_under_load_and_their_sessions_with_them() -> None:
    """Whatever dies when, every request has an outcome, and no session is on two workers between two of its ends."""
    places: dict[str, set[Any]] = defaultdict(set)
    outcomes: list[str] = []
    lock = threading.Lock()
    begun = Counter[str]()

    def work(name: str, dies: bool) -> None:
        with lock:
            places[f"{name} {begun[name]}"].add(current_worker())
        if dies:
            raise Death

    def submit(part: int) -> None:
        rng = random.Random(part)
        for _ in range(300):
            name = f"session {part}-{rng.randrange(10)}"
            view = pool.using(session=name, affinity="strict_queue")
            try:
                view.do(work, name, rng.random() < 0.05)
                outcome = "done"
            except (WorkerLost, SessionWorkerUnavailable) as error:
                outcome = type(error).__name__
                with lock:
                    begun[name] += 1
                pool.end_session(name)
            outcomes.append(outcome)

    with Pool(
        4,
        runtime=MortalRuntime(),
        recycling=RecyclePolicy(idle_timeout=None),
        restarts=RestartPolicy(limit=10_000, within=1.0),
    ) as pool:
        submitters = [Background(functools.partial(submit, part)) for part in range(4)]
        for submitter in submitters:
            assert submitter.join(60).error is None
    counted = Counter(outcomes)
    assert sum(counted.values()) == 1200
    assert set(counted) == {"done", "WorkerLost", "SessionWorkerUnavailable"}
    assert all(len(workers) == 1 for workers in places.values())
