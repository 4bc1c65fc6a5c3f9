"""Process pools do what pools do: keep instances, have capacity, map, stream, hold sessions, recycle."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, as_completed, wait
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from bullpen import (
    CallPolicy,
    CapacityPolicy,
    InvalidOption,
    InvalidOptionType,
    NestedWait,
    NoSuchMethod,
    NotPicklable,
    Pool,
    PoolSaturated,
    ProcessRuntime,
    RecyclePolicy,
    RestartPolicy,
    WorkerLost,
    WorkerStatus,
)
from bullpen.pools.maps.map_work import MapWork
from bullpen.pools.runtimes.process.process import Process, Start
from tests.scenarios import process_support as work
from tests.scenarios.process_support import PATIENCE, START_METHODS, eventually, read_pid
from tests.scenarios.support import Background

T = TypeVar("T")


# Stateful workers.


@pytest.mark.parametrize("start", START_METHODS)
def test_a_worker_keeps_an_instance_that_is_made_and_closed_in_its_process(tmp_path: Path, start: Start) -> None:
    os.environ["COUNTER_FOLDER"] = str(tmp_path)
    try:
        with Pool(1, worker=work.Counter, runtime=ProcessRuntime(start=start)) as pool:
            assert [pool.do("add", 2), pool.do("add", 3)] == [2, 5]
            pid = pool.do("where")
            assert pid != os.getpid()
            with pytest.raises(NoSuchMethod):
                pool.do("missing")
            with pytest.raises(ValueError, match="on purpose"):
                pool.do("fail")
        assert (tmp_path / f"warm-{pid}").exists()
        assert (tmp_path / f"closed-{pid}").exists()
    finally:
        del os.environ["COUNTER_FOLDER"]


def test_a_session_finds_its_instance_again() -> None:
    with Pool(2, worker=work.Counter, runtime="process") as pool:
        ann, bob = pool.using(session="ann"), pool.using(session="bob")
        for total in (1, 2, 3):
            assert ann.do("add", 1) == total
        where = {ann.do("where"), bob.do("where")}
        assert ann.do("where") in where


def test_an_instance_declares_the_capacity_of_its_worker(tmp_path: Path) -> None:
    with Pool(1, worker=work.Counter, runtime="process", capacity=CapacityPolicy(limit=8, strategy="hybrid")) as pool:
        futures = [pool.submit("meet", tmp_path, 3) for _ in range(3)]
        assert len({future.result(PATIENCE) for future in futures}) == 3
        assert [worker.capacity for worker in pool.workers()] == [3]


def test_a_declared_capacity_that_is_none_fails_the_worker() -> None:
    with Pool(
        1, worker=work.Odd, runtime="process", capacity=CapacityPolicy(strategy="profile"), min_workers=0
    ) as pool:
        error = pool.submit("method").exception(PATIENCE)
        assert error is not None
        assert "Odd.capacity must be a whole number" in str(error.__cause__)


def test_a_wrapper_goes_around_methods_and_streams_there() -> None:
    with Pool(1, worker=work.Counter, runtime="process", calls=CallPolicy(wrap=work.wrap_in_list)) as pool:
        assert pool.do("add", 2) == [2]
        assert list(pool.stream("count", 3)) == [0, 1, 2]


# Capacity.


def test_a_request_among_others_is_interrupted_alone(tmp_path: Path) -> None:
    with Pool(1, runtime="process", capacity=2) as pool:
        other = pool.submit(work.wait_for, tmp_path / "go")
        spinning = pool.submit(work.spin, tmp_path / "pid")
        pid = read_pid(tmp_path / "pid")
        assert pool.cancel(spinning)
        assert pool.submit(work.pid).result(PATIENCE) == pid, "its place is free again"
        (tmp_path / "go").touch()
        assert other.result(PATIENCE) == pid
        assert pool.stats().spawned == 1


def test_a_broken_worker_ends_after_what_else_runs_on_it(tmp_path: Path) -> None:
    with Pool(1, runtime="process", capacity=2) as pool:
        other = pool.submit(work.wait_for, tmp_path / "go")
        broken = pool.submit(work.say_broken)
        eventually(lambda: pool.workers()[0].status is WorkerStatus.STOPPING)
        assert not broken.done()
        (tmp_path / "go").touch()
        other.result(PATIENCE)
        assert isinstance(broken.exception(PATIENCE), WorkerLost)
        assert "no more memory" in str(broken.exception())


# Requests that a quick worker is given before it can begin them.


def test_requests_that_wait_behind_a_slow_one_go_to_other_workers(tmp_path: Path) -> None:
    with Pool(2, runtime="process") as pool:
        for _ in range(5):
            list(map(Future.result, [pool.submit(pow, number, 2) for number in range(200)]))
            futures = [pool.submit(pow, number, 2) for number in range(300)]
            slow = pool.submit(work.wait_for, tmp_path / "go")
            futures += [pool.submit(pow, number, 2) for number in range(300)]
            assert [future.result(PATIENCE) for future in futures] == [number**2 for number in range(300)] * 2
            assert not slow.done()
            (tmp_path / "go").touch()
            slow.result(PATIENCE)
            (tmp_path / "go").unlink()
    stats = pool.stats()
    assert (stats.submitted, stats.completed, stats.spawned) == (4005, 4005, 2)


def test_a_crash_among_quick_requests_costs_one(tmp_path: Path) -> None:
    with Pool(1, runtime="process", restarts=RestartPolicy(limit=1000, within=60.0)) as pool:
        for _ in range(5):
            futures = [pool.submit(work.identity, number) for number in range(200)]
            crash = pool.submit(work.crash)
            futures += [pool.submit(work.identity, number) for number in range(200)]
            assert [future.result(PATIENCE) for future in futures] == [*range(200), *range(200)]
            assert isinstance(crash.exception(PATIENCE), WorkerLost)
    assert pool.stats().lost == 5


def test_each_of_many_quick_requests_runs_once(tmp_path: Path) -> None:
    with Pool(2, runtime="process") as pool:
        futures = [pool.submit(work.append, tmp_path / "runs", number) for number in range(3000)]
        cancelled = [number for number, future in enumerate(futures) if number % 7 == 0 and pool.cancel(future)]
        for number, future in enumerate(futures):
            if number not in cancelled:
                assert future.result(PATIENCE) == number
    runs = (tmp_path / "runs").read_text().split()
    assert len(runs) == len(set(runs)), "none ran twice"
    assert {str(number) for number in range(3000)} - {*map(str, cancelled)} <= set(runs)


def test_a_prefetched_request_does_not_start_while_the_pool_is_paused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Process, "_watch", lambda *_: None)  # only the pause has it give anything back
    stops = (299, 599, 899, 1199)
    with Pool(1, runtime="process") as pool:
        futures = [pool.submit(work.append_or_stop, tmp_path, number, stops) for number in range(1500)]
        for stop in stops:
            eventually((tmp_path / f"stopped-{stop}").exists)
            if pool._engine.registry.snapshot()[0].prefetched:
                break
            (tmp_path / f"go-{stop}").touch()
        pool.pause()
        eventually(lambda: not pool._engine.registry.snapshot()[0].prefetched)
        (tmp_path / f"go-{stop}").touch()
        assert futures[stop].result(PATIENCE) == stop
        assert (pool.stats().running, pool.stats().queued) == (0, 1500 - stop - 1)
        for later in stops:
            (tmp_path / f"go-{later}").touch()
        for _ in range(20):  # it may have come to the next one when it hears of it
            pool.resume()
            pool.pause()
            eventually(lambda: not pool.stats().running)
        pool.resume()
        assert [future.result(PATIENCE) for future in futures] == [*range(1500)]
    runs = (tmp_path / "runs").read_text().split()
    assert runs == [str(number) for number in range(1500)], "each once, and in order"


def test_closing_a_pool_of_quick_requests_runs_all_or_cancels_all_that_wait() -> None:
    pool = Pool(2, runtime="process")
    futures = [pool.submit(pow, number, 2) for number in range(2000)]
    pool.close()
    assert [future.result(0) for future in futures] == [number**2 for number in range(2000)]
    pool = Pool(2, runtime="process")
    futures = [pool.submit(pow, number, 2) for number in range(2000)]
    futures[0].result(PATIENCE)
    pool.close(drain=False)
    assert all(future.done() for future in futures)
    assert any(future.cancelled() for future in futures)


# Callbacks, which run where results arrive.


def test_a_callback_may_submit_more_but_not_wait() -> None:
    seen: list[object] = []
    over = threading.Event()

    def submit_and_wait(_: object) -> None:
        more = pool.submit(pow, 2, 3)
        try:
            more.result()
        except NestedWait as error:
            seen.append(error)
        more.add_done_callback(note)

    def note(future: Future[int]) -> None:
        seen.append(future.result())
        over.set()

    with Pool(1, runtime="process") as pool:
        pool.submit(pow, 2, 2).add_done_callback(submit_and_wait)
        assert over.wait(PATIENCE)
        assert [type(one) for one in seen] == [NestedWait, int]


def test_a_callback_that_finds_no_room_is_rejected_instead_of_waiting_forever(tmp_path: Path) -> None:
    rejected: list[BaseException] = []
    over = threading.Event()

    def submit(_: object) -> None:
        try:
            pool.submit(pow, 2, 3)
        except PoolSaturated as error:
            rejected.append(error)
        over.set()

    with Pool(1, runtime="process", max_queue=1, when_full="block") as pool:
        first = pool.submit(work.wait_for, tmp_path / "go")
        first.add_done_callback(submit)
        pool.submit(work.wait_for, tmp_path / "go")
        (tmp_path / "go").touch()
        assert over.wait(PATIENCE)
        assert len(rejected) == 1


def in_a_callback(call: Callable[[], T], go: Path) -> T | BaseException:
    """What becomes of a call that is made where results arrive."""
    outcome: list[T | BaseException] = []
    over = threading.Event()

    def note(_: object) -> None:
        try:
            outcome.append(call())
        except BaseException as error:
            outcome.append(error)
        over.set()

    with Pool(1, runtime="process") as pool:
        pool.submit(work.wait_for, go).add_done_callback(note)
        go.touch()
        assert over.wait(PATIENCE)
    return outcome[0]


def make_ready(timeout: float | None) -> bool:
    with Pool(1, runtime="process", min_workers=1) as pool:
        assert not pool.wait_ready(0)
        return pool.wait_ready(timeout)


WAITS: dict[str, Callable[[Pool], object]] = {
    "result": lambda pool: pool.submit(pow, 2, 3).result(PATIENCE),
    "exception": lambda pool: pool.submit(pow, 2, 3).exception(PATIENCE),
    "do": lambda pool: pool.using(timeout=PATIENCE).do(pow, 2, 3),
    "map": lambda pool: list(pool.map(pow, [2], [3])),
    "stream": lambda pool: list(pool.stream(range, 3)),
    "wait": lambda pool: wait([pool.submit(pow, 2, 3)]),
    "as_completed": lambda pool: list(as_completed([pool.submit(pow, 2, 3)])),
    "wait_ready": lambda _: make_ready(None),
    "wait_ready within a time": lambda _: make_ready(PATIENCE),
}


@pytest.mark.parametrize("way", WAITS)
def test_a_wait_in_a_callback_raises_an_error(way: str, tmp_path: Path) -> None:
    with Pool(1, runtime="process") as pool, Pool(1, runtime="process") as other:
        assert (other.do(pow, 2, 2), pool.do(pow, 2, 2)) == (4, 4)
        assert isinstance(in_a_callback(lambda: WAITS[way](pool), tmp_path / "go"), NestedWait)
        assert (other.do(pow, 2, 3), pool.do(pow, 2, 3)) == (8, 8)


@pytest.mark.parametrize("way", ["result", "do", "map", "stream", "wait", "as_completed"])
def test_nor_may_it_wait_for_threads_which_might_wait_for_processes(way: str, tmp_path: Path) -> None:
    returned = threading.Event()
    with Pool(1, runtime="process") as processes, Pool(1) as threads:

        def ask() -> int:
            assert returned.wait(PATIENCE)
            return processes.do(pow, 2, 3)

        threads.submit(ask)
        assert isinstance(in_a_callback(lambda: WAITS[way](threads), tmp_path / "go"), NestedWait)
        returned.set()
        assert threads.do(ask) == 8, "elsewhere they may wait for each other"


def test_a_callback_may_look_without_waiting(tmp_path: Path) -> None:
    with Pool(1, runtime="process") as pool:
        assert isinstance(in_a_callback(lambda: pool.submit(pow, 2, 3).result(0), tmp_path / "go"), TimeoutError)
        ended = pool.submit(pow, 2, 3)
        ended.result()
        assert in_a_callback(lambda: wait([ended]).done, tmp_path / "go2") == {ended}


def test_a_map_that_is_made_in_a_callback_says_so_if_there_is_no_room_for_an_item(tmp_path: Path) -> None:
    with Pool(1, runtime="process", max_queue=1) as pool:
        pool.do(pow, 2, 2)
        made = in_a_callback(lambda: pool.map(abs, range(-9, 0)), tmp_path / "go")
        assert isinstance(made, Iterator)
        assert list(itertools.islice(made, 2)) == [9, 8]
        with pytest.raises(PoolSaturated):
            next(made)


def test_a_callback_may_close_the_pool() -> None:
    pool = Pool(1, runtime="process")
    over = threading.Event()

    def close(_: object) -> None:
        pool.close()
        over.set()

    pool.submit(pow, 2, 2).add_done_callback(close)
    assert over.wait(PATIENCE)
    pool.close()


# Maps.


@pytest.mark.parametrize("limits", [{}, {"run_timeout": PATIENCE}])
def test_an_interrupted_reader_may_read_on_and_otherwise_running_items_are_ended(
    limits: dict[str, float], tmp_path: Path
) -> None:
    def interrupt(reading: MapWork[int, Any]) -> None:
        eventually(lambda: reading._reading)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with Pool(1, runtime="process") as pool:
        results = pool.using(**limits).map(work.wait_for, [tmp_path / "go"])
        with Background(partial(interrupt, results._work)), pytest.raises(KeyboardInterrupt):
            next(results)
        (tmp_path / "go").touch()
        assert len(list(results)) == 1
        results = pool.using(**limits).map(work.wait_for, [tmp_path / "never"] * 3)
        with Background(partial(interrupt, results._work)), pytest.raises(KeyboardInterrupt):
            next(results)
        del results
        pool.do(pow, 2, 2)
        assert pool.stats().cancelled == 3


def test_a_map_is_lazy_bounded_and_in_order() -> None:
    taken = []

    def numbers() -> Iterator[int]:
        for number in range(10_000_000):
            taken.append(number)
            yield number

    with Pool(2, runtime="process") as pool:
        results = pool.map(abs, numbers(), buffersize=50)
        assert [next(results) for _ in range(200)] == list(range(200))
        assert len(taken) <= 260
        results.close()


def test_the_window_of_a_map_widens_only_for_a_reader_that_waits_for_quick_and_small_items() -> None:
    def counted(items: Iterable[T], taken: list[None]) -> Iterator[T]:
        for item in items:
            taken.append(None)
            yield item

    with Pool(2, runtime="process", min_workers=2) as pool:
        pool.wait_ready(PATIENCE)
        taken: list[None] = []
        results = pool.map(abs, counted(itertools.count(), taken))
        for number in range(1500):
            if number % 100 == 0:
                eventually(lambda: pool.stats().completed == len(taken))
            assert next(results) == number
            assert len(taken) <= number + 1024
        for number in range(1500, 60_000):
            assert next(results) == number
            assert len(taken) <= number + 32 * 1024
        results.close()
        requests = pool._engine.dispatcher.submitted
        taken = []
        large = pool.map(bytes, counted(itertools.repeat(64 * 1024), taken))
        assert {len(next(large)) for _ in range(200)} == {64 * 1024}
        assert len(taken) <= 200 + 1024
        assert pool._engine.dispatcher.submitted - requests >= len(taken) / 4  # in chunks of four at most
        large.close()


def test_an_item_that_fails_ends_the_map_after_those_before_it() -> None:
    with Pool(2, runtime="process") as pool:
        results = pool.map(work.invert, [4, 2, 0, 1])
        assert [next(results), next(results)] == [0.25, 0.5]
        with pytest.raises(ZeroDivisionError):
            next(results)


@pytest.mark.parametrize("chunksize", [1, 7])
def test_many_quick_items_take_few_requests_and_count_as_items(chunksize: int) -> None:
    with Pool(2, runtime="process", min_workers=2) as pool:
        pool.wait_ready(PATIENCE)
        assert list(pool.map(abs, range(-5000, 0), chunksize=chunksize)) == list(range(5000, 0, -1))
    stats = pool.stats()
    assert (stats.submitted, stats.completed, stats.failed) == (5000, 5000, 0)
    assert pool._engine.dispatcher.submitted < 3000


def test_slow_items_are_not_bundled(tmp_path: Path) -> None:
    with Pool(2, runtime="process") as pool:
        assert list(pool.map(work.sleep_and_count, [0.02] * 20)) == [0.02] * 20
        assert pool._engine.dispatcher.submitted == 20


def test_one_item_that_cannot_be_pickled_concerns_no_other() -> None:
    with Pool(1, runtime="process") as pool:
        results = pool.map(work.identity, [1, 2, threading.Lock(), 4], chunksize=4)
        assert [next(results), next(results)] == [1, 2]
        with pytest.raises(NotPicklable, match="argument 1"):
            next(results)
        results = pool.map(pow, [1, 2], [3, threading.Lock()], chunksize=2)
        assert next(results) == 1
        with pytest.raises(NotPicklable, match="argument 2"):
            next(results)
        results = pool.map(work.lock_or_number, [1, 0, 3], chunksize=3)
        assert next(results) == 1
        with pytest.raises(NotPicklable, match="the result"):
            next(results)


def test_of_a_map_without_a_reader_only_the_items_that_cannot_be_pickled_fail(tmp_path: Path) -> None:
    with Pool(1, runtime="process") as pool:
        items = [0, threading.Lock(), -1, 3, threading.Lock(), 5]
        pool.map(work.append_positive, [tmp_path / "runs"] * 6, items, chunksize=6)
    assert (tmp_path / "runs").read_text().split() == ["0", "3", "5"]
    stats = pool.stats()
    assert (stats.submitted, stats.completed, stats.failed) == (6, 3, 3)


@pytest.mark.parametrize("read", [True, False])
def test_items_that_cannot_be_read_by_the_worker_concern_no_other(tmp_path: Path, read: bool) -> None:
    unreadable = work.FailsWhenRead(work.fail)
    with Pool(1, runtime="process") as pool:
        items = [0, unreadable, work.Buffers([bytearray(200_000)]), -1, unreadable, 5]
        results = pool.map(work.append_sized, [tmp_path / "runs"] * 6, items, chunksize=6)
        if read:
            assert next(results) == 0
            with pytest.raises(NotPicklable, match="unpickling it raised ValueError") as caught:
                next(results)
            assert not caught.value.ran
    assert (tmp_path / "runs").read_text().split() == ["0", "200000", "-1", "5"]
    stats = pool.stats()
    assert (stats.submitted, stats.completed, stats.failed) == (6, 4, 2)


def test_a_chunk_whose_function_cannot_be_read_fails_once(tmp_path: Path) -> None:
    function = partial(work.identity, work.FailsWhenRead(work.fail))
    with Pool(1, runtime="process") as pool:
        results = pool.map(function, range(4), chunksize=4)
        with pytest.raises(NotPicklable, match="unpickling it raised ValueError"):
            next(results)
        assert pool.do(pow, 2, 2) == 4


def test_items_whose_results_cannot_be_read_have_run_and_do_not_run_again(tmp_path: Path) -> None:
    with Pool(1, runtime="process") as pool:
        results = pool.map(partial(work.append_and_give, tmp_path / "runs", unreadable=2), range(4), chunksize=4)
        with pytest.raises(NotPicklable, match="the result") as caught:
            list(results)
        assert caught.value.ran
    assert (tmp_path / "runs").read_text().split() == ["0", "1", "2", "3"]


def test_an_error_in_a_chunk_has_its_traceback_and_the_others_their_results() -> None:
    with Pool(1, runtime="process") as pool:
        results = pool.map(work.invert, [4, 2, 0, 1], chunksize=4)
        assert [next(results), next(results)] == [0.25, 0.5]
        with pytest.raises(ZeroDivisionError) as caught:
            next(results)
        text = "".join(traceback.format_exception(caught.value))
        assert text.count("Traceback") == 1, "it has no context"
        assert "in invert" in text
        assert "run_items" not in text
    assert (pool.stats().completed, pool.stats().failed) == (3, 1)


def test_a_map_without_a_reader_is_run_to_its_end(tmp_path: Path) -> None:
    with Pool(2, runtime="process") as pool:
        pool.map(work.touch, [tmp_path / str(number) for number in range(300)], buffersize=32)
    assert len(list(tmp_path.iterdir())) == 300


def test_a_worker_that_dies_takes_its_chunk_along() -> None:
    with Pool(1, runtime="process") as pool:
        results = pool.map(work.call, [work.pid, work.crash], chunksize=2)
        with pytest.raises(WorkerLost):
            next(results)
        assert pool.do(pow, 2, 2) == 4


# Streams.


@pytest.mark.parametrize("capacity", [1, 2])
@pytest.mark.parametrize("generator", [work.count_up, work.count_up_async])
def test_a_stream_comes_item_by_item(capacity: int, generator: Any) -> None:
    with Pool(1, runtime="process", capacity=capacity) as pool:
        assert list(pool.stream(generator, 300)) == list(range(300))
        assert list(pool.using(buffersize=1).stream(generator, 30)) == list(range(30))
        assert pool.do(pow, 2, 2) == 4


@pytest.mark.parametrize("capacity", [1, 2])
def test_a_stream_without_a_reader_waits_and_is_closed(tmp_path: Path, capacity: int) -> None:
    with Pool(1, runtime="process", capacity=capacity) as pool:
        with pool.using(buffersize=4).stream(work.count_noting, tmp_path) as stream:
            assert next(stream) == 0
            assert work.count_of(tmp_path) <= 16
        eventually((tmp_path / "closed").exists)
        assert pool.do(pow, 2, 2) == 4
        assert pool.stats().spawned == 1


def test_a_stream_whose_reader_leaves_is_closed_soon_however_much_it_may_still_send(tmp_path: Path) -> None:
    with Pool(1, runtime="process") as pool:
        with pool.stream(work.count_until_told, tmp_path) as stream:
            assert next(stream) == 0
        (tmp_path / "left").touch()
        eventually((tmp_path / "closed").exists)
        assert (tmp_path / "told").exists()
        assert work.count_of(tmp_path) == 2, "the second was rejected, so the third is not sent"
        assert pool.do(pow, 2, 2) == 4
        assert pool.stats().spawned == 1


def test_the_error_of_a_stream_comes_after_its_items() -> None:
    with Pool(1, runtime="process") as pool:
        stream = pool.stream(work.count_then_fail, 20)
        assert [next(stream) for _ in range(20)] == list(range(20))
        with pytest.raises(ValueError, match="on purpose"):
            next(stream)
        with pytest.raises(TypeError, match="needs a function that returns an iterable"):
            list(pool.stream(cast(Any, work.pid)))


def test_an_item_that_cannot_be_pickled_ends_its_stream_only() -> None:
    with Pool(1, runtime="process") as pool:
        with pytest.raises(TypeError, match="pickle"):
            list(pool.stream(work.yield_a_lock))
        assert pool.do(pow, 2, 2) == 4


# Large things.


@pytest.mark.parametrize("size", [100, 70_000, 3_000_000])
def test_bytes_and_buffers_of_any_size_go_there_and_back(size: int) -> None:
    with Pool(1, runtime="process") as pool:
        data = bytearray(os.urandom(size))
        assert pool.do(work.identity, bytes(data)) == data
        back = pool.do(work.identity, work.Buffers([data, data[:10], data]))
        assert [bytes(part) for part in back.parts] == [data, data[:10], data]


def test_many_large_calls_at_once_wait_for_room_and_arrive() -> None:
    with Pool(1, runtime="process", capacity=4) as pool:
        data = [os.urandom(1_000_000 + number) for number in range(12)]
        assert [f.result(PATIENCE) for f in [pool.submit(work.identity, one) for one in data]] == data


# Life.


def test_workers_are_replaced_after_so_many_requests() -> None:
    with Pool(1, runtime="process", recycling=RecyclePolicy(max_requests=3)) as pool:
        pids: set[int] = set()
        eventually(lambda: pids.add(pool.submit(work.pid).result(PATIENCE)) or len(pids) >= 3)  # type: ignore[func-returns-value]


def test_modules_are_imported_before_workers_begin() -> None:
    with Pool(1, runtime=ProcessRuntime(preload=["colorsys"])) as pool:
        assert pool.do(work.has_imported, "colorsys")
    with Pool(1, runtime="process") as pool:
        assert not pool.do(work.has_imported, "colorsys")


def test_workers_are_forked_by_a_process_of_one_thread() -> None:
    with Pool(1, runtime=ProcessRuntime(preload=["concurrent.futures.thread"])) as pool:
        forkserver = Path(f"/proc/{pool.do(work.pid)}/stat").read_text().rpartition(")")[2].split()[1]
        assert len(list(Path(f"/proc/{forkserver}/task").iterdir())) == 1


def test_a_pool_serves_all_threads_also_after_the_one_that_made_it() -> None:
    made: list[Pool] = []

    def make() -> None:
        made.append(Pool(2, runtime="process"))
        made[0].do(pow, 2, 2)  # its forkserver and a worker are started by this thread

    maker = threading.Thread(target=make)
    maker.start()
    maker.join()
    results: list[list[int]] = []
    with made[0] as pool:
        threads = [
            threading.Thread(target=lambda: results.append([pool.do(abs, -number) for number in range(50)]))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [[*range(50)]] * 4
        assert pool.stats().lost == 0


def test_a_module_that_cannot_be_imported_beforehand_is_named() -> None:
    with Pool(1, runtime=ProcessRuntime(preload=["no_such_module"])) as pool:
        error = pool.submit(pow, 2, 2).exception(PATIENCE)
        assert error is not None
        assert "No module named 'no_such_module'" in str(error.__cause__)


def test_an_error_of_any_length_tells_why_a_module_cannot_be_imported_beforehand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wordy_module.py").write_text("raise ValueError(300_000 * 'x' + ' and so on')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with Pool(1, runtime=ProcessRuntime(preload=["wordy_module"])) as pool:
        error = pool.submit(pow, 2, 2).exception(PATIENCE)
        assert error is not None
        assert "xxx and so on" in str(error.__cause__)


def test_an_initializer_of_the_pool_runs_in_the_workers_of_a_runtime_with_options(tmp_path: Path) -> None:
    with Pool(1, None, work.note_pid, (tmp_path / "pid",), runtime=ProcessRuntime(preload=[])) as pool:
        assert pool.do(work.pid) == read_pid(tmp_path / "pid")


def test_from_asyncio() -> None:
    async def main(pool: Pool) -> list[int]:
        loop = asyncio.get_running_loop()
        return list(await asyncio.gather(*(loop.run_in_executor(pool, pow, 2, number) for number in range(5))))

    with Pool(2, runtime="process") as pool:
        assert asyncio.run(main(pool)) == [1, 2, 4, 8, 16]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"start": "fork"}, InvalidOption, "start must be 'forkserver' or 'spawn'"),
        ({"preload": "numpy"}, InvalidOptionType, "preload must be a list of names of modules"),
        ({"preload": [1]}, InvalidOptionType, "preload must be a list of names of modules"),
        ({"cancel_grace": -1}, InvalidOption, "cancel_grace must be ≥ 0 seconds"),
        ({"cancel_grace": "1"}, InvalidOptionType, "cancel_grace must be a number of seconds"),
        ({"cancel_grace": float("nan")}, InvalidOption, "cancel_grace must be ≥ 0 seconds"),
        ({"initializer": 3}, InvalidOptionType, "initializer must be a function"),
    ],
)
def test_wrong_options_are_rejected(options: dict[str, object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        ProcessRuntime(**options)  # type: ignore[arg-type]
