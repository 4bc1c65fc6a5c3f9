"""The contract of every runtime, as one suite of pytest tests.

The author of a runtime subclasses it:

    class TestMyRuntime(RuntimeContract):
        def make_runtime(self, initializer=None, initargs=()):
            return MyRuntime(initializer, initargs)

Functions and arguments can be pickled and what they share is a folder, so that workers may as well be processes. What a
runtime does not promise in its `capabilities` is skipped, or turned round: then the pool has to say no.
"""

from __future__ import annotations

import gc
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bullpen import primitives
from bullpen.errors import DeadlineExceeded, PoolClosed, PoolError, PoolFailed, WorkerAbandoned, WorkerError, WorkerLost
from bullpen.pools.dispatch.futures import PoolFuture
from bullpen.pools.dispatch.request import DONE, FAILED, Request
from bullpen.pools.dispatch.states import PoolState, RequestState
from bullpen.pools.dispatch.worker import Worker
from bullpen.pools.policies import CallPolicy, RecyclePolicy
from bullpen.pools.pool import Pool
from bullpen.pools.runtimes.port import CAPABILITIES, Runtime
from bullpen.testing._calls import (
    PATIENCE,
    ContractError,
    Thing,
    begin_and_wait,
    count_present,
    describe,
    do_nothing,
    eventually,
    fail_below,
    give_back,
    leave_note,
    meet,
    meet_in,
    note_place,
    place,
    raise_it,
    twice,
    variable,
    wait_for_note,
    wait_then_fail,
)


class RuntimeContract:
    """Override `make_runtime`; inherit the tests."""

    def make_runtime(self, initializer: Callable[..., object] | None = None, initargs: tuple[Any, ...] = ()) -> Runtime:
        """A fresh runtime, whose workers first call `initializer(*initargs)`."""
        raise NotImplementedError

    @contextmanager
    def pool(
        self,
        max_workers: int,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        **options: Any,
    ) -> Iterator[Pool]:
        """A pool on this runtime, which has to end in time and to leave no worker."""
        pool = Pool(max_workers, runtime=self.make_runtime(initializer, initargs), **options)
        workers = pool._engine.registry
        try:
            yield pool
        finally:
            pool.close(grace=PATIENCE)
        assert pool.stats().state in (PoolState.CLOSED, PoolState.FAILED)
        assert workers.snapshot() == []

    # The port itself, without a pool.

    def test_a_worker_is_ready_runs_what_it_is_handed_and_ends_when_told(self) -> None:
        log, worker = ReportLog(), new_worker()
        runtime = self.make_runtime()
        runtime.start(worker, log)
        log.wait_for("ready")
        assert not runtime.join(worker, 0), "it is alive"
        first, second = new_request(worker, pow, 3, 2), new_request(worker, fail_below, "told so")
        worker.handle.hand(first)
        log.wait_for("finished")
        worker.handle.hand(second)
        log.wait_for("finished", 2)
        worker.handle.hand(None)
        log.wait_for("exited")
        assert runtime.join(worker, PATIENCE)
        assert log.kinds == ["ready", "finished", "finished", "exited"]
        assert log.ends == [(first, DONE, 9), (second, FAILED, log.ends[1][2])]
        assert isinstance(log.ends[1][2], ContractError)

    def test_what_a_report_returns_is_run_at_once(self) -> None:
        log, worker = ReportLog(), new_worker()
        log.following = [new_request(worker, pow, number, 2) for number in range(5)]
        requests = list(log.following)
        runtime = self.make_runtime()
        runtime.start(worker, log)
        log.wait_for("finished", 5)
        worker.handle.hand(None)
        assert runtime.join(worker, PATIENCE)
        assert log.kinds == ["ready", *["finished"] * 5, "exited"]
        assert log.ends == [(request, DONE, number**2) for number, request in enumerate(requests)]

    def test_a_worker_that_cannot_start_says_so_once_and_nothing_else(self) -> None:
        log, worker = ReportLog(), new_worker()
        runtime = self.make_runtime(fail_below, ("no model",))
        runtime.start(worker, log)
        log.wait_for("died")
        assert runtime.join(worker, PATIENCE)
        assert log.kinds == ["died"]
        assert isinstance(log.error, ContractError)

    def test_a_worker_can_be_told_to_end_in_the_moment_it_is_ready(self) -> None:
        for _ in range(6):
            log, worker = ReportLog(), new_worker()
            log.end_at_once = True
            runtime = self.make_runtime()
            runtime.start(worker, log)
            assert runtime.join(worker, PATIENCE)
            assert log.kinds == ["ready", "exited"]

    # Capacity: a worker that runs several requests at once.

    def test_a_worker_runs_as_many_at_once_as_its_capacity_says(self, tmp_path: Path) -> None:
        log, worker = ReportLog(), new_worker(capacity=3)
        runtime = self.make_runtime()
        runtime.start(worker, log)
        log.wait_for("ready")
        for round_number in range(3):
            requests = [new_request(worker, meet, tmp_path / str(round_number), 3) for _ in range(3)]
            for request in requests:
                worker.handle.hand(request)
            log.wait_for("finished", 3 * (round_number + 1))
            assert {id(request) for request, _, _ in log.ends[-3:]} == {id(request) for request in requests}
        assert [(state, value) for _, state, value in log.ends] == [(DONE, 3)] * 9
        worker.handle.hand(None)
        assert runtime.join(worker, PATIENCE)
        assert log.kinds == ["ready", *["finished"] * 9, "exited"]
        assert log.retired == 1

    def test_a_capacity_declared_while_it_starts_counts(self, tmp_path: Path) -> None:
        log, worker = ReportLog(), new_worker()
        log.capacity = 2
        log.following = [new_request(worker, meet, tmp_path, 2)]
        runtime = self.make_runtime()
        runtime.start(worker, log)
        log.wait_for("ready")
        worker.handle.hand(new_request(worker, meet, tmp_path, 2))
        log.wait_for("finished", 2)
        worker.handle.hand(None)
        assert runtime.join(worker, PATIENCE)
        assert log.kinds == ["ready", "finished", "finished", "exited"]

    def test_a_request_that_a_report_returns_runs_at_once_beside_running_ones(self, tmp_path: Path) -> None:
        log, worker = ReportLog(), new_worker(capacity=2)
        runtime = self.make_runtime()
        runtime.start(worker, log)
        log.wait_for("ready")
        worker.handle.hand(new_request(worker, begin_and_wait, tmp_path))
        eventually((tmp_path / "begun").exists)
        log.following = [new_request(worker, pow, number, 2) for number in range(20)]
        worker.handle.hand(new_request(worker, do_nothing))
        log.wait_for("finished", 21)
        assert [value for _, _, value in log.ends] == [None, *(number**2 for number in range(20))]
        leave_note(tmp_path, "go")
        log.wait_for("finished", 22)
        worker.handle.hand(None)
        assert runtime.join(worker, PATIENCE)
        assert log.kinds == ["ready", *["finished"] * 22, "exited"]

    def test_a_worker_with_capacity_can_be_told_to_end_in_the_moment_it_is_ready(self) -> None:
        for _ in range(6):
            log, worker = ReportLog(), new_worker(capacity=4)
            log.end_at_once = True
            runtime = self.make_runtime()
            runtime.start(worker, log)
            assert runtime.join(worker, PATIENCE)
            assert log.kinds == ["ready", "exited"]

    def test_many_requests_at_once_are_answered_once_each(self) -> None:
        log, worker = ReportLog(), new_worker(capacity=4)
        runtime = self.make_runtime()
        runtime.start(worker, log)
        log.wait_for("ready")
        requests = []
        for number in range(0, 400, 4):
            requests += [new_request(worker, pow, number + lane, 2) for lane in range(4)]
            for request in requests[-4:]:
                worker.handle.hand(request)
            log.wait_for("finished", number + 4)
        worker.handle.hand(None)
        assert runtime.join(worker, PATIENCE)
        assert sorted(value for _, _, value in log.ends) == [number**2 for number in range(400)]
        assert len({id(request) for request, _, _ in log.ends}) == 400

    # A call.

    def test_a_result_comes_back(self) -> None:
        with self.pool(1) as pool:
            assert pool.submit(pow, 7, 2).result(PATIENCE) == 49
            assert pool.do(describe, 1, 2, key="three") == ((1, 2), {"key": "three"})
            assert pool.submit(describe).result(PATIENCE) == ((), {})
            assert pool.submit(do_nothing).result(PATIENCE) is None

    def test_many_results_come_back_each_to_its_own_call(self) -> None:
        with self.pool(4) as pool:
            futures = [pool.submit(pow, number, 2) for number in range(200)]
            assert [future.result(PATIENCE) for future in futures] == [number**2 for number in range(200)]
            assert list(pool.map(abs, range(-50, 0))) == list(range(50, 0, -1))

    def test_an_error_comes_back_with_its_text_and_its_traceback(self) -> None:
        with self.pool(1) as pool:
            error = pool.submit(fail_below, "told so").exception(PATIENCE)
            assert type(error) is ContractError
            assert error.args == ("told so",)
            assert "fail_below" in "".join(traceback.format_exception(error))
            assert pool.submit(pow, 2, 2).result(PATIENCE) == 4, "the worker goes on"

    @pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, BaseException, CancelledError])
    def test_no_exception_ends_a_worker(self, kind: type[BaseException]) -> None:
        with self.pool(1) as pool:
            assert type(pool.submit(raise_it, kind).exception(PATIENCE)) is kind
            assert pool.submit(pow, 2, 2).result(PATIENCE) == 4
            assert pool.stats().spawned == 1

    def test_a_served_call_runs(self, tmp_path: Path) -> None:
        with self.pool(1) as pool:
            assert pool.serve(leave_note, tmp_path, "served")
        assert (tmp_path / "served").exists()

    def test_a_context_is_carried_on_request_only(self) -> None:
        with self.pool(1) as pool:
            if not pool.can("share_memory"):
                pytest.skip("a context cannot leave its process")
            variable.set("the caller's")
            try:
                assert pool.using(context=True).submit(variable.get).result(PATIENCE) == "the caller's"
                assert pool.submit(variable.get).result(PATIENCE) == "nobody's"
            finally:
                variable.set("nobody's")

    def test_a_wrapper_is_around_every_call(self) -> None:
        with self.pool(1, calls=CallPolicy(wrap=twice)) as pool:
            assert describe(pool.submit(pow, 3, 2).result(PATIENCE)) == describe((9, 9))
            assert describe(pool.using(timeout=PATIENCE).do(pow, 2, exp=3)) == describe((8, 8))

    # Workers.

    def test_as_many_run_at_once_as_there_are_workers(self, tmp_path: Path) -> None:
        with self.pool(3) as pool:
            assert [future.result(PATIENCE) for future in [pool.submit(meet, tmp_path, 3) for _ in range(3)]] == [3] * 3
            stats = pool.stats()
            assert (stats.spawned, stats.workers) == (3, 3)

    def test_no_more_run_at_once_than_there_are_workers(self, tmp_path: Path) -> None:
        with self.pool(2) as pool:
            most = [pool.submit(count_present, tmp_path) for _ in range(12)]
            assert max(future.result(PATIENCE) for future in most) <= 2

    def test_an_initializer_runs_once_in_each_worker_before_anything_else(self, tmp_path: Path) -> None:
        with self.pool(3, note_place, (tmp_path, "initialized")) as pool:
            places = {future.result(PATIENCE) for future in [pool.submit(meet_in, tmp_path / "m", 3) for _ in range(3)]}
            more = {pool.submit(place).result(PATIENCE) for _ in range(10)}
            assert pool.stats().spawned == 3
        assert len(places) == 3
        assert more <= places
        initialized = (tmp_path / "initialized").read_text().split()
        assert sorted(initialized) == sorted(places)

    def test_an_initializer_that_fails_fails_the_pool_and_says_why(self, tmp_path: Path) -> None:
        with self.pool(1, wait_then_fail, (tmp_path, "no model")) as pool:
            waiting = [pool.submit(do_nothing) for _ in range(3)]
            leave_note(tmp_path, "go")
            for future in waiting:
                assert says(future.exception(PATIENCE), "no model")
            with pytest.raises(PoolFailed) as caught:
                pool.submit(do_nothing)
            assert says(caught.value, "no model")
            with pytest.raises(PoolFailed):
                pool.wait_ready(PATIENCE)

    @pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
    def test_an_initializer_that_wants_to_leave_fails_like_any_other(self, kind: type[BaseException]) -> None:
        with self.pool(1, raise_it, (kind,), min_workers=1) as pool, pytest.raises(PoolFailed):
            pool.wait_ready(PATIENCE)

    def test_the_workers_asked_for_are_ready_before_the_first_call(self, tmp_path: Path) -> None:
        with self.pool(3, note_place, (tmp_path, "initialized"), min_workers=2) as pool:
            assert pool.wait_ready(PATIENCE)
            assert len((tmp_path / "initialized").read_text().split()) >= 2

    def test_an_idle_worker_keeps_neither_result_nor_error_nor_argument_alive(self) -> None:
        with self.pool(1) as pool:
            argument = Thing()
            references: list[weakref.ref[Any]] = [weakref.ref(argument)]
            result = pool.submit(give_back, argument).result(PATIENCE)
            references.append(weakref.ref(result))
            error = pool.submit(fail_below, "briefly").exception(PATIENCE)
            assert isinstance(error, ContractError)
            references.append(weakref.ref(error))
            del argument, result, error
            eventually(lambda: gc.collect() >= 0 and [reference() for reference in references] == [None] * 3)

    # The end.

    def test_closing_finishes_the_accepted_requests(self, tmp_path: Path) -> None:
        with self.pool(2) as pool:
            futures = [pool.submit(wait_for_note, tmp_path, "go", number) for number in range(10)]
            pool.shutdown(wait=False)
            with pytest.raises(PoolClosed):
                pool.submit(do_nothing)
            leave_note(tmp_path, "go")
            pool.close()
            assert [future.result(0) for future in futures] == list(range(10))

    def test_closing_without_draining_cancels_waiting_requests_and_finishes_running_ones(self, tmp_path: Path) -> None:
        with self.pool(1) as pool:
            running = pool.submit(wait_for_note, tmp_path, "go", "done")
            eventually(running.running)
            waiting = [pool.submit(leave_note, tmp_path, "must not be") for _ in range(3)]
            pool.shutdown(wait=False, cancel_futures=True)
            assert all(future.cancelled() for future in waiting)
            leave_note(tmp_path, "go")
            assert running.result(PATIENCE) == "done"
        assert not (tmp_path / "must not be").exists()

    def test_a_pool_can_be_closed_before_any_worker_started_and_again(self) -> None:
        with self.pool(2) as pool:
            pool.close()
            pool.close()
            assert pool.stats().spawned == 0
            with pytest.raises(PoolError):
                pool.submit(do_nothing)

    def test_idle_workers_end_and_new_ones_come(self) -> None:
        with self.pool(2, recycling=RecyclePolicy(idle_timeout=0.05)) as pool:
            assert pool.submit(pow, 2, 2).result(PATIENCE) == 4
            eventually(lambda: pool.stats().workers == 0)
            assert pool.submit(pow, 2, 3).result(PATIENCE) == 8

    def test_a_pool_can_grow_and_shrink(self, tmp_path: Path) -> None:
        with self.pool(1) as pool:
            pool.resize(3)
            assert [future.result(PATIENCE) for future in [pool.submit(meet, tmp_path, 3) for _ in range(3)]] == [3] * 3
            pool.resize(1)
            eventually(lambda: pool.stats().workers == 1)
            assert pool.submit(pow, 2, 2).result(PATIENCE) == 4

    # Cancelling and killing: the promised effects, and no others.

    def test_it_knows_what_it_can_do(self) -> None:
        runtime = self.make_runtime()
        assert isinstance(runtime.name, str)
        assert runtime.capabilities <= set(CAPABILITIES)
        with self.pool(1) as pool:
            assert {name for name in CAPABILITIES if pool.can(name)} == runtime.capabilities

    def test_a_waiting_call_can_be_cancelled_and_never_runs(self, tmp_path: Path) -> None:
        with self.pool(1) as pool:
            running = pool.submit(wait_for_note, tmp_path, "go", "done")
            waiting = pool.submit(leave_note, tmp_path, "must not be")
            assert waiting.cancel()
            leave_note(tmp_path, "go")
            assert running.result(PATIENCE) == "done"
        assert not (tmp_path / "must not be").exists()

    def test_a_running_call_is_cancelled_exactly_if_that_was_promised(self, tmp_path: Path) -> None:
        with self.pool(1) as pool:
            running = self.start_running(pool, tmp_path)
            assert not running.cancel(), "Future.cancel keeps the standard's meaning"
            promised = pool.can("cancel_running") or pool.can("kill_running")
            assert pool.cancel(running) == promised
            if promised:
                with pytest.raises((CancelledError, WorkerLost)):
                    running.result(PATIENCE)
                assert pool.submit(pow, 2, 2).result(PATIENCE) == 4, "its place is free again"
                leave_note(tmp_path, "go")  # for whatever is left of it
            else:
                leave_note(tmp_path, "go")
                assert running.result(PATIENCE) == "done"

    def test_a_caller_gets_its_timeout_in_time_whatever_the_worker_does(self, tmp_path: Path) -> None:
        with self.pool(1) as pool:
            with pytest.raises(DeadlineExceeded) as caught:
                pool.using(timeout=0.05).do(wait_for_note, tmp_path, "go", "too late")
            assert caught.value.seconds == 0.05
            leave_note(tmp_path, "go")
            assert pool.submit(pow, 2, 2).result(PATIENCE) == 4

    def test_what_hangs_is_killed_when_the_grace_is_over_if_that_was_promised(self, tmp_path: Path) -> None:
        with self.pool(1) as pool:
            if not pool.can("kill_running"):
                pytest.skip("this runtime cannot kill")
            running = self.start_running(pool, tmp_path)
            pool.close(grace=0.05)
            assert isinstance(running.exception(PATIENCE), WorkerError)
            leave_note(tmp_path, "go")
            time.sleep(0.2)
            assert not (tmp_path / "outlived").exists(), "it still runs"

    def test_what_cannot_be_killed_is_left_behind_and_its_caller_told(self, tmp_path: Path) -> None:
        with self.pool(1) as pool:
            if pool.can("kill_running"):
                pytest.skip("this runtime can kill")
            running = self.start_running(pool, tmp_path)
            pool.close(grace=0.05)
            assert isinstance(running.exception(0), WorkerAbandoned)
            assert pool.stats().abandoned == 1
            leave_note(tmp_path, "go")
            eventually((tmp_path / "outlived").exists)  # and then its worker ends, or the test has leaked it

    def start_running(self, pool: Pool, folder: Path) -> PoolFuture[str]:
        """A call that has begun, and ends when there is a note "go" in `folder`."""
        future = pool.submit(begin_and_wait, folder)
        eventually((folder / "begun").exists)
        assert future.running()
        return future


class ReportLog:
    """What one worker reports, in order. Implements `WorkerEvents`."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.ends: list[tuple[Request, RequestState, Any]] = []
        self.following: list[Request] = []  # what to answer reports with
        self.end_at_once = False
        self.capacity: int | None = None  # what the worker declares while it starts
        self.retired = 0
        self.error: BaseException | None = None
        self._changed = threading.Condition()

    def prepare(self, worker: Worker) -> None:
        if self.capacity is not None:
            worker.capacity = self.capacity

    def retire(self, worker: Worker) -> None:
        self.retired += 1

    def ready(self, worker: Worker) -> Request | None:
        if self.end_at_once:
            worker.handle.hand(None)
        return self._next("ready")

    def finished(self, worker: Worker, request: Request, state: RequestState, value: Any) -> Request | None:
        self.ends.append((request, state, value))
        return self._next("finished")

    def exited(self, worker: Worker) -> None:
        self._next("exited")

    def died(self, worker: Worker, error: BaseException) -> None:
        self.error = error
        self._next("died")

    def _next(self, kind: str) -> Request | None:
        with self._changed:
            self.kinds.append(kind)
            self._changed.notify_all()
            return self.following.pop(0) if self.following else None

    def wait_for(self, kind: str, times: int = 1) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self.kinds.count(kind) >= times, PATIENCE):
                raise AssertionError(f"expected {kind} × {times}, got {self.kinds}")


def new_worker(capacity: int = 1) -> Worker:
    return Worker(0, 0, "contract", time.monotonic(), capacity)


def new_request(worker: Worker, fn: Callable[..., Any], *args: Any) -> Request:
    """A request that the pool has started on `worker`."""
    request = Request(primitives.state_lock(), fn, args, {})
    request.number = 0
    assert request.start(worker)
    return request


def says(error: BaseException | None, text: str) -> bool:
    """Whether `error` is a `PoolFailed` that names `text` and was caused by an error that does."""
    return isinstance(error, PoolFailed) and text in str(error) and text in str(error.__cause__)
