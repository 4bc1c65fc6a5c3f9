"""Why is it waiting? Each answer, exactly."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

import bullpen
from bullpen import Explanation, InvalidOptionType, Pool, PoolSaturated, PoolState, Reason, RecyclePolicy, RestartPolicy
from bullpen.pools.dispatch.states import RequestState
from bullpen.testing import ManualClock, ScriptedRuntime

from .support import PATIENCE, Background, Blocker, eventually


def fetch() -> None:
    """Something to run."""


def resize() -> None:
    """Something else."""


class Stage:
    """A scripted pool whose clock stands still."""

    def __init__(self, workers: int = 1, *, auto_ready: bool = True, **options: Any) -> None:
        self.clock = ManualClock()
        self.runtime = ScriptedRuntime(
            auto_ready=auto_ready, capabilities=options.pop("capabilities", ("share_memory",))
        )
        options.setdefault("recycling", RecyclePolicy(idle_timeout=None))
        self.pool = Pool(workers, name="web", runtime=self.runtime, clock=self.clock, **options)

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        while self.runtime.starting:
            self.runtime.ready()
        self.pool.close(grace=0, drain=False)


def test_it_waits_because_every_worker_is_busy() -> None:
    with Stage(2) as stage:
        pool, clock, runtime = stage.pool, stage.clock, stage.runtime
        running = pool.submit(fetch)
        clock.advance(9)
        pool.submit(resize)
        clock.advance(2)
        older = pool.submit(resize)
        last = pool.using(queue_timeout=5).submit(resize)
        clock.advance(3.2)
        told = pool.explain(last)
        assert str(told) == (
            f"request {last.number} (resize) has waited 3.2 s: all 2 workers are busy "
            "(the longest runs fetch for 14 s); 1 older request is before it; it expires in 1.8 s"
        )
        assert (told.state, told.reason, told.position) == (RequestState.QUEUED, Reason.NO_ROOM, 1)
        assert (told.pool, told.request, told.label, told.worker) == ("web", last.number, "resize", None)
        assert told.since == pytest.approx(3.2)
        assert told.queue_timeout_left == pytest.approx(1.8)
        assert (told.timeout_left, told.run_timeout_left) == (None, None)
        assert [(each.worker, each.label) for each in told.blocked_by] == [("web_0", "fetch"), ("web_1", "resize")]
        assert [each.seconds for each in told.blocked_by] == pytest.approx([14.2, 5.2])
        assert str(told.blocked_by[0]) == f"request {running.number} (fetch) on web_0 for 14 s"
        assert told.advice == ("raise max_workers (now 2)", "limit the backlog with max_queue")
        assert str(pool.explain(older)).endswith("(the longest runs fetch for 14 s)")
        assert bullpen.explain(last) == told
        assert runtime.running


def test_cancelled_requests_are_no_longer_counted_before_it() -> None:
    with Stage() as stage:
        futures = [stage.pool.submit(fetch) for _ in range(6)]
        assert [stage.pool.explain(future).position for future in futures[1:]] == [0, 1, 2, 3, 4]
        futures[1].cancel()
        futures[3].cancel()
        assert [stage.pool.explain(futures[each]).position for each in (2, 4, 5)] == [0, 1, 2]
        assert stage.pool.explain().position == 3


def test_it_waits_for_a_worker_that_is_being_started() -> None:
    with Stage(1, auto_ready=False) as stage:
        first, second = stage.pool.submit(fetch), stage.pool.submit(fetch)
        told = stage.pool.explain(first)
        assert (told.reason, told.position) == (Reason.STARTING, 0)
        assert "1 worker is being started" in str(told)
        assert stage.pool.explain(second).reason is Reason.NO_ROOM, "that worker is for an older one"
        assert stage.pool.explain().reason is Reason.STARTING


def test_it_waits_because_the_pool_is_paused() -> None:
    with Stage() as stage:
        stage.pool.pause()
        future = stage.pool.submit(fetch)
        told = stage.pool.explain(future)
        assert (told.reason, told.advice) == (Reason.PAUSED, ("resume()",))
        assert "the pool is paused" in str(told)
        assert stage.pool.explain().reason is Reason.PAUSED


def test_it_runs() -> None:
    with Stage() as stage:
        future = stage.pool.using(timeout=10, run_timeout=4).submit(fetch)
        stage.clock.advance(1.5)
        told = stage.pool.explain(future)
        assert str(told) == f"request {future.number} (fetch) runs on web_0 for 1.5 s; its time is up in 2.5 s"
        assert (told.state, told.reason, told.worker) == (RequestState.RUNNING, Reason.RUNNING, "web_0")
        assert (told.timeout_left, told.run_timeout_left, told.queue_timeout_left) == (8.5, 2.5, None)
        assert told.position is None


def test_how_it_ended() -> None:
    with Stage(4, capabilities=("cancel_running",)) as stage:
        pool, runtime, clock = stage.pool, stage.runtime, stage.clock
        done, failed, lost, given_up = (pool.submit(fetch), pool.submit(fetch), pool.submit(fetch), None)
        given_up = pool.using(timeout=1).submit(fetch)
        cancelled, expired = pool.submit(fetch), pool.using(queue_timeout=0.5).submit(fetch)
        cancelled.cancel()
        assert clock.wait_for_waiters()
        clock.advance(0.5)
        assert eventually(expired.done)
        assert clock.wait_for_waiters()
        clock.advance(0.5)
        assert eventually(given_up.done)
        runtime.finish(done)
        runtime.fail(failed, ValueError("too blue"))
        runtime.die(runtime.worker_of(lost))
        told = {future: pool.explain(future) for future in (done, failed, lost, given_up, cancelled, expired)}
        assert {each.reason for each in told.values()} == {Reason.ENDED}
        assert [each.state.value for each in told.values()] == [
            "done",
            "failed",
            "lost",
            "abandoned",
            "cancelled",
            "expired",
        ]
        assert str(told[done]) == f"request {done.number} is done"
        assert str(told[failed]) == f"request {failed.number} failed: too blue"
        assert isinstance(told[failed].error, ValueError)
        assert str(told[lost]).startswith(f"request {lost.number} was lost: worker web_2 died")
        assert str(told[given_up]) == (
            f"request {given_up.number} was given up: timeout of 1 s passed while it ran; "
            "its function still runs on web_3"
        )
        assert str(told[cancelled]) == f"request {cancelled.number} was cancelled"
        assert told[cancelled].error is None
        assert "expired: waited in the backlog longer than queue_timeout=0.5 s" in str(told[expired])


def test_an_error_that_was_returned_is_a_result() -> None:
    with Stage() as stage:
        future = stage.pool.submit(fetch)
        stage.runtime.finish(future, ValueError("a value like any other"))
        told = stage.pool.explain(future)
        assert (str(told), told.error) == (f"request {future.number} is done", None)


def test_a_session_is_told() -> None:
    with Stage() as stage:
        assert stage.pool.explain(stage.pool.using(session="u42").submit(fetch)).session == "u42"


def test_it_waits_for_the_worker_of_its_session() -> None:
    with Stage(2, affinity="strict_queue") as stage:
        pool, clock = stage.pool, stage.clock
        pool.using(session="u42").submit(fetch)
        clock.advance(3)
        first, second = (pool.using(session="u42", timeout=9).submit(resize) for _ in range(2))
        clock.advance(1)
        told = pool.explain(second)
        assert str(told) == (
            f"request {second.number} (resize) has waited 1.0 s: session 'u42' is served by worker web_0, "
            "which is busy (it runs fetch for 4.0 s); 1 older request is before it; it expires in 8.0 s"
        )
        assert (told.reason, told.worker, told.session, told.position) == (Reason.PINNED, "web_0", "u42", 1)
        assert [each.worker for each in told.blocked_by] == ["web_0"]
        assert told.advice[0] == "affinity='hint' would let another worker run it"
        assert pool.explain(first).position == 0
        first.cancel()
        assert pool.explain(second).position == 0
        pool.pause()
        assert pool.explain(second).reason is Reason.PAUSED


def test_requests_in_a_line_are_not_counted_before_others() -> None:
    with Stage(1, affinity="strict_queue") as stage:
        pool = stage.pool
        blocking = pool.submit(fetch)
        strict = [pool.using(session="u42").submit(fetch) for _ in range(2)]
        last = pool.submit(resize)
        assert [pool.explain(future).position for future in (*strict, last)] == [0, 1, 2]
        stage.runtime.finish(blocking)  # the session is bound, and its second request goes to its worker's line
        told = pool.explain(strict[1])
        assert (told.reason, told.position) == (Reason.PINNED, 0)
        assert (pool.explain(last).position, pool.explain().position) == (0, 2)


def test_it_waits_because_every_worker_is_tainted() -> None:
    with Stage(1, min_workers=1) as stage:
        pool = stage.pool
        assert pool.taint("web_0")
        future = pool.submit(fetch)
        told = pool.explain(future)
        assert told.reason is Reason.TAINTED
        assert str(told).endswith("its only worker is tainted")
        assert pool.explain().reason is Reason.TAINTED


def test_it_waits_for_a_tainted_worker_of_its_session() -> None:
    with Stage(2, affinity="strict_queue") as stage:
        pool = stage.pool
        pool.using(session="u42").submit(fetch)
        waits = pool.using(session="u42").submit(fetch)
        assert pool.taint("web_0")
        told = pool.explain(waits)
        assert (told.reason, told.worker) == (Reason.TAINTED, "web_0")
        assert "is served by worker web_0, which is tainted" in str(told)


def test_it_runs_again_in_a_moment(caplog: pytest.LogCaptureFixture) -> None:
    with Stage(1) as stage:
        future = stage.pool.using(idempotent=True).submit(fetch)
        stage.runtime.die(stage.runtime.worker_of(future))
        told = stage.pool.explain(future)
        assert (told.reason, told.worker) == (Reason.RETRYING, None)
        assert str(told).endswith("runs again in a moment: its worker died, and it is idempotent")


def test_it_waits_because_workers_die_too_often(caplog: pytest.LogCaptureFixture) -> None:
    with Stage(1, restarts=RestartPolicy(limit=0, within=60)) as stage:
        stage.pool.submit(fetch)
        waits = stage.pool.submit(fetch)
        stage.runtime.die(stage.runtime.workers[0])
        told = stage.pool.explain(waits)
        assert told.reason is Reason.DEGRADED
        assert "too many workers have died of late" in str(told)
        assert stage.pool.explain().reason is Reason.DEGRADED


def test_requests_without_a_measured_time() -> None:
    with Stage() as stage:
        for _ in range(64):
            stage.runtime.finish(stage.pool.submit(int))
        plain = stage.pool.submit(fetch)
        while not plain.number & 31:  # one in 32 is sampled
            stage.runtime.finish(plain)
            plain = stage.pool.submit(fetch)
        waiting = stage.pool.submit(fetch)
        told = stage.pool.explain(waiting)
        assert told.since is None
        assert str(told) == f"request {waiting.number} (fetch) waits: its only worker is busy (with fetch)"
        assert stage.pool.explain(plain).since is None
        assert str(stage.pool.explain(plain)) == f"request {plain.number} (fetch) runs on web_0"


# Pools.


def test_a_pool_at_rest_and_at_work() -> None:
    with Stage(4) as stage:
        pool = stage.pool
        assert str(pool.explain()) == "pool 'web' is idle, with 0 workers"
        future = pool.submit(fetch)
        stage.clock.advance(2)
        told = pool.explain()
        assert str(told) == "pool 'web' keeps up: 1 of at most 4 workers is busy (it runs fetch for 2.0 s)"
        assert (told.state, told.reason, told.request) == (PoolState.RUNNING, Reason.RUNNING, None)
        assert (told.position, told.advice) == (0, ())
        stage.runtime.finish(future)
        assert pool.explain().reason is Reason.IDLE


def test_a_pool_without_room_says_what_would_help() -> None:
    with Stage(1, max_queue=2) as stage:
        for _ in range(3):
            stage.pool.submit(fetch)
        stage.clock.advance(4)
        told = stage.pool.explain()
        assert str(told) == (
            "pool 'web' has no room: its only worker is busy (it runs fetch for 4.0 s); 2 requests wait, the oldest "
            "for 4.0 s; the backlog is full. What would help: raise max_workers (now 1); "
            "submit fewer or shorter requests"
        )
        assert (told.reason, told.position, told.since) == (Reason.NO_ROOM, 2, 4)


def test_a_pool_that_never_queues_says_that_no_request_may_wait() -> None:
    with Stage(1, max_queue=0) as stage:
        stage.pool.submit(fetch)
        with pytest.raises(PoolSaturated) as caught:
            stage.pool.submit(fetch)
        assert str(caught.value) == (
            "pool 'web' is saturated: no worker can take the call now, and max_queue=0 lets no call wait"
        )
        told = stage.pool.explain()
        assert told.reason is Reason.NO_ROOM
        assert str(told) == (
            "pool 'web' has no room: its only worker is busy (it runs fetch for 0 ms); max_queue=0 lets no request "
            "wait. What would help: raise max_workers (now 1); submit fewer or shorter requests"
        )


def test_functions_that_were_given_up_are_blamed_first() -> None:
    with Stage() as stage:
        future = stage.pool.using(timeout=1).submit(fetch)
        assert stage.clock.wait_for_waiters()
        stage.clock.advance(1)
        assert eventually(future.done)
        waiting = stage.pool.submit(resize)
        told = stage.pool.explain(waiting)
        assert told.blocked_by[0].given_up
        assert told.advice[0].startswith("1 function that was given up still runs")
        assert "it runs something that was given up for 1.0 s" in str(told)
        assert str(told.blocked_by[0]).startswith(f"request {future.number} (given up) on web_0")


def test_a_pool_that_closes_is_closed_or_has_failed() -> None:
    with Stage() as stage:
        running = stage.pool.submit(fetch)
        stage.pool.shutdown(wait=False)
        assert stage.pool.explain().reason is Reason.CLOSING
        stage.runtime.finish(running)
        told = stage.pool.explain()
        assert (str(told), told.reason) == ("pool 'web' is closed", Reason.CLOSED)
    with Stage() as stage:
        stage.runtime.start_error = LookupError("no such luck")
        stage.pool.submit(fetch)
        told = stage.pool.explain()
        assert told.reason is Reason.FAILED
        assert "has failed: no worker could start: LookupError('no such luck')" in str(told)
        assert isinstance(told.error, LookupError)


# Real threads.


def test_workers_that_wait_for_each_other_are_seen() -> None:
    with Pool(1, name="a") as outer, Pool(1, name="b") as inner, Blocker() as blocker:
        inner.submit(blocker)
        blocker.wait_entered()
        awaited = inner.submit(int)
        waits = outer.submit(awaited.result, PATIENCE)
        assert eventually(lambda: "it waits for" in str(outer.explain(waits)))
        stuck = outer.submit(int)
        told = outer.explain(stuck)
        assert told.blocked_by[0].waits_for == awaited.number
        assert told.advice[0].startswith("every worker waits for another request")
        blocker.release()


def test_explaining_while_everything_moves() -> None:
    with Pool(2, max_queue=50, when_full="block") as pool:
        futures = [pool.submit(int) for _ in range(10)]
        stop = Blocker()

        def work() -> None:
            while not stop._released.is_set():
                futures.append(pool.using(timeout=PATIENCE).submit(int))
                del futures[:-50]

        with Background(work) as working:
            for _ in range(300):
                for told in (pool.explain(), *(pool.explain(future) for future in futures[-5:])):
                    assert isinstance(told, Explanation)
                    assert str(told)
            stop.release()
        assert working.error is None


def test_only_futures_of_the_pool_can_be_explained() -> None:
    with Stage() as stage, Stage() as other:
        future = stage.pool.submit(fetch)
        with pytest.raises(InvalidOptionType, match="a future of pool 'web'"):
            other.pool.explain(future)
        with pytest.raises(InvalidOptionType, match="a future of pool 'web'"):
            stage.pool.explain(Future())
        with pytest.raises(InvalidOptionType, match="a future of a pool"):
            bullpen.explain(Future())


def test_a_future_that_was_never_admitted() -> None:
    with Stage() as stage:
        future = bullpen.PoolFuture(stage.pool._engine, fetch, (), {})
        assert str(bullpen.explain(future)) == "a request (fetch) waits: it is about to start"
        future.cancel()
