"""A pool without threads does what its script says."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError

import pytest

from bullpen import Pool, RecyclePolicy
from bullpen.errors import PoolFailed, WorkerAbandoned, WorkerLost
from bullpen.pools.dispatch.request import Request
from bullpen.pools.dispatch.states import PoolState, WorkerStatus
from bullpen.pools.dispatch.worker import Worker
from bullpen.testing import ManualClock, ScriptedRuntime


def never() -> None:
    raise AssertionError("called")


def test_nothing_is_called_unless_the_script_says_so() -> None:
    runtime = ScriptedRuntime()
    with Pool(2, runtime=runtime) as pool:
        first, second, third = (pool.submit(never) for _ in range(3))
        assert runtime.running == [first, second]
        runtime.finish(second, "made up")
        assert second.result(0) == "made up"
        assert runtime.running == [first, third]
        runtime.fail(first, KeyError("made up"))
        assert isinstance(first.exception(0), KeyError)
        assert runtime.finish_next("last") is third
        assert third.result(0) == "last"
    assert runtime.workers == []


def test_run_next_really_calls_it() -> None:
    runtime = ScriptedRuntime()
    with Pool(1, runtime=runtime) as pool:
        power, failing = pool.submit(pow, 2, exp=3), pool.submit(int, "x")
        assert runtime.run_next() is power
        assert power.result(0) == 8
        runtime.run_all()
        assert isinstance(failing.exception(0), ValueError)


def test_a_given_up_request_is_not_called_but_keeps_its_worker() -> None:
    runtime, clock = ScriptedRuntime(), ManualClock()
    with Pool(1, runtime=runtime, clock=clock, recycling=RecyclePolicy(idle_timeout=None)) as pool:
        late = pool.using(timeout=1).submit(never)
        waiting = pool.submit(int)
        assert clock.wait_for_waiters(1)
        clock.advance(1)
        assert isinstance(late.exception(10), TimeoutError)
        assert runtime.running == [late]
        runtime.run_next()
        assert runtime.running == [waiting]
        runtime.finish_next()


def test_without_auto_ready_a_worker_starts_when_the_script_says_so() -> None:
    runtime = ScriptedRuntime(auto_ready=False)
    with Pool(2, runtime=runtime) as pool:
        first, second = pool.submit(int), pool.submit(int)
        older, younger = runtime.starting
        assert runtime.running == []
        runtime.ready(younger)
        assert (runtime.running, runtime.worker_of(first)) == ([first], younger)
        assert runtime.ready() is older
        assert (runtime.running, runtime.starting) == ([first, second], [])
        runtime.run_all()


def test_without_auto_exit_a_worker_ends_when_the_script_says_so() -> None:
    runtime = ScriptedRuntime(auto_exit=False)
    pool = Pool(1, min_workers=1, runtime=runtime)
    pool.shutdown(wait=False)
    assert runtime.stopped == runtime.workers
    assert pool.stats().state is PoolState.DRAINING
    runtime.exit_stopped()
    assert (runtime.stopped, runtime.workers) == ([], [])
    assert pool.stats().state is PoolState.CLOSED


def test_a_worker_dies_with_all_that_is_on_it() -> None:
    runtime = ScriptedRuntime()
    with Pool(1, runtime=runtime) as pool:
        first, second = pool.submit(int), pool.submit(int)
        (worker,) = runtime.workers
        cause = OSError("pulled")
        runtime.die(worker, cause)
        error = first.exception(0)
        assert isinstance(error, WorkerLost)
        assert error.__cause__ is cause
        assert worker.status is WorkerStatus.DEAD
        assert runtime.running == [second]
        assert worker not in runtime.workers
        runtime.finish_next()


@pytest.mark.parametrize(
    "break_start",
    [
        lambda runtime: setattr(runtime, "start_error", OSError("no more")),
        lambda runtime: setattr(runtime, "_auto_ready", False),
    ],
    ids=["start raises", "dies while starting"],
)
def test_a_worker_that_cannot_start_fails_the_pool(break_start: Callable[[ScriptedRuntime], None]) -> None:
    runtime = ScriptedRuntime()
    break_start(runtime)
    with Pool(1, runtime=runtime) as pool:
        future = pool.submit(int)
        if runtime.starting:
            runtime.die(runtime.starting[0], OSError("no more"))
        error = future.exception(0)
        assert isinstance(error, PoolFailed)
        assert isinstance(error.__cause__, OSError)


def test_cancel_and_kill_are_rejected_unless_promised() -> None:
    runtime = ScriptedRuntime()
    pool = Pool(1, runtime=runtime)
    future = pool.submit(int)
    assert not pool.can("cancel_running")
    assert not pool.cancel(future)
    pool.close(grace=0)
    assert isinstance(future.exception(0), WorkerAbandoned)
    assert runtime.running == [future], "it cannot be ended, so it goes on"


def test_a_cancelled_request_runs_until_the_script_ends_it() -> None:
    runtime = ScriptedRuntime(capabilities={"cancel_running"})
    with Pool(1, runtime=runtime) as pool:
        first, second = pool.submit(int), pool.submit(int)
        assert pool.cancel(first)
        with pytest.raises(CancelledError):
            first.result(0)
        assert (runtime.running, runtime.cancelling) == ([first], [first])
        runtime.end_cancelled()
        assert (runtime.running, runtime.cancelling) == ([second], [])
        runtime.finish_next()


def test_a_killed_worker_dies_at_once() -> None:
    runtime = ScriptedRuntime(capabilities={"kill_running"})
    pool = Pool(1, runtime=runtime)
    future = pool.submit(int)
    pool.close(grace=0)
    assert isinstance(future.exception(0), WorkerLost)
    assert (runtime.running, runtime.workers) == ([], [])
    assert pool.stats().state is PoolState.CLOSED


def test_every_start_can_be_watched() -> None:
    starts = list[Request]()

    class Watching(ScriptedRuntime):
        def took(self, worker: Worker, request: Request) -> None:
            assert self.worker_of(request) is worker
            starts.append(request)

    runtime = Watching()
    with Pool(2, runtime=runtime) as pool:
        futures = [pool.submit(int) for _ in range(5)]
        runtime.run_all()
    assert starts == futures


def test_a_nested_wait_runs_inline_where_the_runtime_says_it_can() -> None:
    runtime = ScriptedRuntime(capabilities={"run_inline", "share_memory"})
    with Pool(1, runtime=runtime) as pool:
        outer = pool.submit(lambda: pool.submit(pow, 2, 5).result())
        runtime.run_next()
        assert outer.result(0) == 32


def test_a_pool_that_breaks_the_rules_of_the_port_is_told_so() -> None:
    runtime = ScriptedRuntime(auto_exit=False)
    pool = Pool(1, min_workers=1, runtime=runtime)
    (worker,) = runtime.workers
    running, other = pool.submit(int), pool.submit(int)
    with pytest.raises(AssertionError, match="has no room"):
        worker.handle.hand(other)
    with pytest.raises(AssertionError, match="has no room"):
        worker.handle.hand(None)
    runtime.finish(running)
    runtime.finish(other)
    pool.shutdown(wait=False)
    with pytest.raises(AssertionError, match="not any more"):
        worker.handle.hand(None)
    runtime.exit_stopped()
    with pytest.raises(AssertionError, match="not any more"):
        worker.handle.hand(other)
