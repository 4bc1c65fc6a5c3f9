"""The table of sessions: who is bound where, for how long, and who makes room for whom."""

from __future__ import annotations

import threading

import pytest

from bullpen import primitives
from bullpen.pools.dispatch.request import DONE, NO_LIMITS, Affinity, CallTraits, Request, RequestTraits, Timing
from bullpen.pools.dispatch.sessions import Session, SessionChanged, Sessions
from bullpen.pools.dispatch.states import WorkerStatus
from bullpen.pools.dispatch.tally import Tally
from bullpen.pools.dispatch.worker import HELPER, Worker
from tests.unit.pools.dispatch.support import new_worker

READY = WorkerStatus.READY


def table(ttl: float | None = None, limit: int = 100) -> Sessions:
    return Sessions(ttl, limit, Tally())


def traits(session: str = "s", affinity: Affinity = "strict_queue") -> CallTraits:
    return CallTraits(session, affinity)


def ready_worker(id: int = 0) -> Worker:
    return new_worker(id, READY)


def request_of(to: CallTraits, number: int = 0) -> Request:
    request = Request(primitives.state_lock(), print, (), {})
    request.traits = RequestTraits(to)
    request.number = number
    request.timing = Timing(request, 0.0, NO_LIMITS)
    return request


def use(sessions: Sessions, to: CallTraits, now: float = 0.0) -> Session:
    session = sessions.use(to, now)
    assert session is not None
    return session


def run(sessions: Sessions, to: CallTraits, worker: Worker, now: float = 0.0) -> Request:
    """A request of the session comes in, starts on `worker` and stays there."""
    use(sessions, to, now)
    request = request_of(to)
    with worker.lock:
        assert sessions.start(request, worker, now)
        worker.add(request)
    return request


def end(sessions: Sessions, request: Request, now: float) -> None:
    assert request.settle(DONE, None)
    request.worker.remove(request)
    assert request.traits is not None
    assert request.traits.session is not None
    sessions.touch(request.traits.session, now)


def binds(request: Request) -> bool:
    assert request.traits is not None
    return request.traits.binds


def ids(sessions: Sessions, now: float = 0.0) -> set[str]:
    return {bound.id for bound in sessions.snapshot(now)}


def start(sessions: Sessions, request: Request, worker: Worker) -> bool:
    with worker.lock:
        return sessions.start(request, worker, 0.0)


# Binding.


def test_a_session_is_bound_when_its_first_request_starts() -> None:
    sessions, worker = table(), ready_worker()
    session = use(sessions, traits())
    assert session.worker is None
    request = run(sessions, traits(), worker)
    assert session.worker is worker
    assert binds(request)
    assert not binds(run(sessions, traits(), worker))


def test_a_strict_request_starts_nowhere_else() -> None:
    sessions, worker = table(), ready_worker()
    run(sessions, traits(), worker)
    assert not start(sessions, request_of(traits()), ready_worker(1))


def test_a_hint_starts_elsewhere_and_leaves_the_session_where_it_is() -> None:
    sessions, worker, hint = table(), ready_worker(), traits(affinity="hint")
    run(sessions, hint, worker)
    assert start(sessions, request_of(hint), ready_worker(1))
    assert use(sessions, hint).worker is worker


def test_a_hint_moves_to_another_worker_when_its_own_is_gone() -> None:
    sessions, worker, other, hint = table(), ready_worker(), ready_worker(1), traits(affinity="hint")
    run(sessions, hint, worker)
    worker.status = WorkerStatus.STOPPING
    assert binds(run(sessions, hint, other))
    assert use(sessions, hint).worker is other


def test_a_strict_session_moves_nowhere() -> None:
    sessions, worker, other = table(), ready_worker(), ready_worker(1)
    run(sessions, traits(), worker)
    worker.status = WorkerStatus.DEAD
    assert start(sessions, request_of(traits(affinity="hint")), other)
    session = use(sessions, traits())
    sessions.rebind(session, worker)
    assert session.worker is worker


def test_no_session_is_bound_to_a_worker_that_ends() -> None:
    sessions, worker = table(), new_worker(0, WorkerStatus.STOPPING)
    session = use(sessions, traits())
    assert not start(sessions, request_of(traits()), worker)
    assert session.worker is None
    assert start(sessions, request_of(traits("hinted", "hint")), worker)
    assert use(sessions, traits("hinted", "hint")).worker is None


def test_no_session_is_bound_to_a_helper() -> None:
    sessions, helper = table(), ready_worker()
    helper.slot = HELPER
    session = use(sessions, traits())
    assert not start(sessions, request_of(traits()), helper)
    assert start(sessions, request_of(traits("hinted", "hint")), helper)
    assert session.worker is None


def test_requests_that_wait_for_the_binding_go_to_the_line_in_order() -> None:
    sessions, worker = table(), ready_worker()
    session = use(sessions, traits())
    first, second, third, cancelled = (request_of(traits(), number) for number in (1, 2, 3, 4))
    for request in (first, second, third, cancelled):
        sessions.expect(session, request, 0.0)
    cancelled.cancel_queued()
    assert start(sessions, first, worker)
    assert sorted(worker.line) == [(2, second), (3, third)]
    assert second.pinned_to is third.pinned_to is worker
    assert not start(sessions, second, ready_worker(1)), "another worker that finds its tombstone leaves it alone"


def test_a_request_does_not_start_before_an_older_one_of_its_session() -> None:
    sessions, worker = table(), ready_worker()
    session = use(sessions, traits())
    older, younger = request_of(traits(), 1), request_of(traits(), 2)
    sessions.expect(session, older, 0.0)
    sessions.expect(session, younger, 0.0)
    assert not start(sessions, younger, worker)
    assert session.worker is worker
    assert sorted(worker.line) == [(1, older), (2, younger)]
    assert start(sessions, older, worker)
    assert binds(older)


def test_a_cancelled_request_binds_nothing() -> None:
    sessions = table()
    session = use(sessions, traits())
    request = request_of(traits())
    sessions.expect(session, request, 0.0)
    request.cancel_queued()
    assert not start(sessions, request, ready_worker())
    assert session.worker is None


def test_a_request_that_comes_too_late_to_be_noted_raises() -> None:
    sessions, worker = table(), ready_worker()
    session = use(sessions, traits())
    run(sessions, traits(), worker)
    with pytest.raises(SessionChanged):
        sessions.expect(session, request_of(traits()), 0.0)
    forgotten = use(sessions, traits("ended"))
    sessions.end("ended")
    with pytest.raises(SessionChanged):
        sessions.expect(forgotten, request_of(traits("ended")), 0.0)


def test_one_that_does_not_wait_is_noted_only_alone() -> None:
    sessions, impatient = table(), traits(affinity="strict_fail_fast")
    session = use(sessions, impatient)
    first = request_of(impatient)
    assert not sessions.is_expected(session, 0.0)
    sessions.expect(session, first, 0.0)
    assert sessions.is_expected(session, 0.0)
    with pytest.raises(SessionChanged):
        sessions.expect(session, request_of(impatient), 0.0)
    first.cancel_queued()
    assert not sessions.is_expected(session, 0.0)
    sessions.expect(session, request_of(impatient), 0.0)


# The end of a session.


def test_an_ended_session_begins_anew_anywhere() -> None:
    sessions, worker, other = table(), ready_worker(), ready_worker(1)
    request = run(sessions, traits(), worker)
    assert sessions.end("s")
    assert not sessions.end("s")
    assert binds(run(sessions, traits(), other))
    end(sessions, request, 1.0)
    assert use(sessions, traits()).worker is other


def test_requests_in_a_line_run_there_also_after_the_session_has_ended() -> None:
    sessions, worker, other = table(), ready_worker(), ready_worker(1)
    run(sessions, traits(), worker)
    waiting = request_of(traits(), 5)
    with worker.lock:
        worker.line_up(waiting)
    sessions.end("s")
    run(sessions, traits(), other)
    assert not start(sessions, waiting, other)
    assert start(sessions, waiting, worker)
    assert use(sessions, traits()).worker is other
    assert not binds(waiting)


def test_requests_that_wait_for_a_binding_stay_together_after_the_session_has_ended() -> None:
    sessions, worker = table(), ready_worker()
    session = use(sessions, traits())
    first, second = request_of(traits(), 1), request_of(traits(), 2)
    sessions.expect(session, first, 0.0)
    sessions.expect(session, second, 0.0)
    assert sessions.end("s")
    assert use(sessions, traits()) is session
    assert start(sessions, first, worker)
    assert second.pinned_to is worker


# Time to live.


def test_a_session_is_forgotten_when_it_was_not_used_for_its_time_to_live() -> None:
    sessions, worker = table(ttl=10.0), ready_worker()
    request = run(sessions, traits(), worker, now=0.0)
    end(sessions, request, 5.0)
    assert use(sessions, traits(), 14.9).worker is worker
    assert ids(sessions, 14.9) == {"s"}
    assert ids(sessions, 15.0) == set()
    assert use(sessions, traits(), 15.0).worker is None


def test_to_ask_for_a_session_is_not_to_use_it() -> None:
    """Else whoever tries again and again to reach a worker that is gone would keep its own session from ending."""
    sessions, worker = table(ttl=10.0), ready_worker()
    end(sessions, run(sessions, traits(), worker), 0.0)
    worker.status = WorkerStatus.DEAD
    assert use(sessions, traits(), 9.0).worker is worker
    assert use(sessions, traits(), 10.0).worker is None


def test_no_session_is_forgotten_while_something_runs_or_waits() -> None:
    sessions, worker = table(ttl=10.0), ready_worker()
    request = run(sessions, traits(), worker)
    assert use(sessions, traits(), 100.0).worker is worker
    end(sessions, request, 100.0)
    waiting = request_of(traits(), 1)
    with worker.lock:
        worker.line_up(waiting)
    assert use(sessions, traits(), 200.0).worker is worker
    waiting.cancel_queued()
    assert use(sessions, traits(), 200.0).worker is None
    unbound = use(sessions, traits("unbound"), 0.0)
    sessions.expect(unbound, request_of(traits("unbound")), 0.0)
    assert use(sessions, traits("unbound"), 300.0) is unbound


def test_without_a_time_to_live_nothing_is_forgotten() -> None:
    sessions, worker = table(), ready_worker()
    end(sessions, run(sessions, traits(), worker), 0.0)
    assert use(sessions, traits(), 1e9).worker is worker


# The maximum.


def test_the_least_recently_used_makes_room() -> None:
    sessions, worker = table(limit=3), ready_worker()
    for now, name in enumerate(["a", "b", "c"]):
        end(sessions, run(sessions, traits(name, "hint"), worker, now), now)
    end(sessions, run(sessions, traits("a", "hint"), worker, 3.0), 3.0)
    use(sessions, traits("d", "hint"), 4.0)
    assert ids(sessions) == {"a", "c", "d"}
    use(sessions, traits("e", "hint"), 5.0)
    assert ids(sessions) == {"a", "d", "e"}


def test_the_end_of_a_request_is_a_use() -> None:
    sessions, worker = table(limit=2), ready_worker()
    long = run(sessions, traits("long", "hint"), worker, 0.0)
    end(sessions, run(sessions, traits("short", "hint"), worker, 1.0), 1.0)
    end(sessions, long, 2.0)
    use(sessions, traits("new", "hint"), 3.0)
    assert ids(sessions) == {"long", "new"}


def test_strict_sessions_and_those_in_use_make_no_room() -> None:
    sessions, worker = table(limit=2), ready_worker()
    end(sessions, run(sessions, traits("strict"), worker), 0.0)
    running = run(sessions, traits("running", "hint"), worker)
    assert sessions.use(traits("new"), 1.0) is None
    assert sessions.use(traits("strict"), 1.0) is not None
    end(sessions, running, 1.0)
    assert sessions.use(traits("new"), 1.0) is not None
    assert ids(sessions) == {"strict", "new"}


def test_a_strict_session_makes_room_when_its_time_has_passed() -> None:
    sessions, worker = table(ttl=10.0, limit=2), ready_worker()
    long = run(sessions, traits("long"), worker, 0.0)
    end(sessions, run(sessions, traits("short"), worker, 1.0), 1.0)
    end(sessions, long, 10.0)
    assert sessions.use(traits("new"), 10.5) is None
    assert sessions.use(traits("new"), 11.0) is not None
    assert ids(sessions, 11.0) == {"long", "new"}


def test_a_strict_session_that_never_began_makes_room() -> None:
    sessions = table(limit=1)
    rejected = use(sessions, traits("rejected"))
    request = request_of(traits("rejected"))
    sessions.expect(rejected, request, 0.0)
    assert sessions.use(traits("new"), 0.0) is None
    request.cancel_queued()
    assert sessions.use(traits("new"), 0.0) is not None


# Keeping a worker.


def test_a_session_that_becomes_strict_is_used_by_that() -> None:
    sessions, worker = table(ttl=10.0), ready_worker()
    end(sessions, run(sessions, traits(affinity="hint"), worker), 0.0)
    use(sessions, traits(), 9.0)
    assert sessions.keeps(worker, 18.0)
    assert not sessions.keeps(worker, 19.0)


def test_a_strict_session_keeps_its_worker() -> None:
    sessions, worker, other = table(ttl=10.0), ready_worker(), ready_worker(1)
    end(sessions, run(sessions, traits("hint", "hint"), other), 0.0)
    end(sessions, run(sessions, traits(), worker), 0.0)
    assert sessions.keeps(worker, 9.9)
    assert not sessions.keeps(worker, 10.0)
    assert not sessions.keeps(other, 0.0)
    use(sessions, traits("hint"), 1.0)
    assert sessions.keeps(other, 1.0), "one strict call makes it strict"
    sessions.end("s")
    assert not sessions.keeps(worker, 1.0)


def test_a_snapshot_tells_what_waits() -> None:
    sessions, worker = table(), ready_worker()
    run(sessions, traits(), worker, 3.0)
    with worker.lock:
        worker.line_up(request_of(traits(), 1))
        worker.line_up(request_of(traits("other"), 2))
    sessions.expect(use(sessions, traits("unbound"), 4.0), request_of(traits("unbound")), 0.0)
    bound, unbound = sorted(sessions.snapshot(5.0), key=lambda one: one.id)
    assert (bound.id, bound.worker, bound.strict, bound.waiting, bound.used_at) == ("s", worker, True, 1, 3.0)
    assert (unbound.id, unbound.worker, unbound.waiting, unbound.used_at) == ("unbound", None, 1, 4.0)


def test_a_forked_child_has_no_sessions() -> None:
    sessions = table()
    use(sessions, traits())
    parent = threading.Thread(target=sessions._lock.acquire)
    parent.start()
    parent.join()
    sessions.forget()
    assert ids(sessions) == set()
