"""How maps end: read, unread, dropped, with the pool or without it."""

from __future__ import annotations

import contextvars
import itertools
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from typing import Any

import pytest

from bullpen import Pool, PoolClosed, WorkerAbandoned
from bullpen.pools.dispatch.states import PoolState
from bullpen.pools.maps import runner_map
from tests.scenarios.support import PATIENCE, Background, Blocker, eventually, printed, run_script

Make = Callable[..., Pool]


def plain(workers: int = 2, **options: Any) -> Pool:
    return Pool(workers, **options)


def observed(workers: int = 2, **options: Any) -> Pool:
    """Here every item is a request."""
    return Pool(workers, observer=lambda event: None, **options)


@pytest.fixture(params=[plain, observed])
def make(request: pytest.FixtureRequest) -> Make:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def blocker() -> Iterator[Blocker]:
    with Blocker() as blocker:
        yield blocker


class Oops(Exception):
    """An error of the input."""


class Input:
    """Numbers without a length, up to `end` or without end; it knows how many were taken."""

    def __init__(self, end: float = float("inf"), then: Exception | None = None) -> None:
        self.taken = 0
        self._end = end
        self._then = then

    def __iter__(self) -> Input:
        return self

    def __next__(self) -> int:
        if self.taken < self._end:
            self.taken += 1
            return self.taken - 1
        if self._then is not None:
            raise self._then
        raise StopIteration


def read_until(error: type[BaseException], results: Iterator[int]) -> list[int]:
    """What can be read before `error` is raised, as it has to be."""
    read = []
    while True:
        try:
            read.append(next(results))
        except error:
            return read


# The pool closes.


def test_a_map_over_a_generator_can_be_read_after_the_close(make: Make) -> None:
    with make() as pool:
        results = pool.map(abs, (number for number in range(-3000, 0)), buffersize=10)
    assert list(results) == list(range(3000, 0, -1))


def test_the_grace_ends_an_unread_map_over_an_endless_input(make: Make) -> None:
    pool = make()
    results = pool.map(abs, itertools.count(), buffersize=10)
    Background(lambda: pool.close(0.05)).join()
    assert pool.stats().state is PoolState.CLOSED
    assert next(results) == 0
    with pytest.raises((PoolClosed, CancelledError, WorkerAbandoned)):
        list(results)


def test_close_takes_no_more_of_an_input_that_may_be_endless_and_is_read(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    pool = make()
    results = pool.map(abs, itertools.count(), buffersize=10)
    assert next(results) == 0
    Background(pool.close).join()
    assert next(results) == 1
    with pytest.raises(PoolClosed):
        list(results)
    assert caplog.text == ""  # the reader knows


def test_the_grace_ends_a_map_that_is_run_to_its_end(make: Make, blocker: Blocker) -> None:
    pool = make(1, max_queue=2)
    results = pool.map(lambda number: blocker(number) if number else number, range(3000), buffersize=2)
    blocker.wait_entered()
    Background(lambda: pool.close(grace=0.05)).join()
    assert next(results) == 0
    with pytest.raises(Exception, match="grace"):
        next(results)


@pytest.mark.parametrize("read", [0, 1])
def test_the_grace_ends_a_map_whose_input_waits(make: Make, read: int) -> None:
    go_on = threading.Event()

    def numbers() -> Iterator[int]:
        yield from range(4)
        go_on.wait(PATIENCE)

    pool = make()
    results = pool.map(lambda number, _: number, numbers(), range(10), buffersize=3)
    for number in range(read):
        assert next(results) == number
    Background(lambda: pool.close(grace=0.1)).join()
    assert pool.stats().state is PoolState.CLOSED
    go_on.set()


def test_close_runs_a_map_that_waits_for_room_in_a_paused_pool(make: Make) -> None:
    pool = make(1, max_queue=1)
    pool.pause()
    ran: list[int] = []
    mapper = Background(lambda: pool.map(ran.append, range(5)))
    assert eventually(lambda: pool.stats().queued)
    Background(pool.close).join()
    assert mapper.join().error is None
    assert sorted(ran) == list(range(5))


def test_an_unread_map_is_never_more_than_a_window_ahead_while_it_is_run_to_its_end(make: Make) -> None:
    ahead: list[int] = []
    numbers = Input(500)
    done = itertools.count()

    def run(number: int, _: int) -> None:
        ahead.append(numbers.taken - next(done))

    with make() as pool:
        pool.map(run, numbers, range(500), buffersize=10)
    assert len(ahead) == 500
    assert max(ahead) <= 2 * 10 + 2


def test_results_wait_for_a_reader_that_comes_after_the_close(make: Make) -> None:
    with make() as pool:
        results = pool.map(abs, range(-3000, 0), buffersize=10)
    assert list(results) == list(range(3000, 0, -1))


def test_reading_while_the_pool_drains_misses_nothing(make: Make) -> None:
    pool = make()
    results = pool.map(abs, range(3000), buffersize=10)
    pool.shutdown(wait=False)
    assert list(results) == list(range(3000))
    pool.close()


def test_without_draining_the_reader_is_told_that_items_were_not_taken(make: Make) -> None:
    pool = make()
    results = pool.map(abs, range(100), buffersize=10)
    assert eventually(lambda: pool.stats().completed == 10)
    pool.close(drain=False)
    assert read_until(CancelledError, results) == list(range(10))


def test_items_never_run_on_the_reader_while_the_pool_drains() -> None:
    ready = threading.local()

    def initialize() -> None:
        ready.value = True

    def run(number: int) -> int:
        assert ready.value
        time.sleep(0.001)
        return number

    pool = Pool(2, initializer=initialize)
    results = pool.map(run, range(20))
    pool.shutdown(wait=False)
    assert list(results) == list(range(20))
    pool.close()


def test_an_endless_map_does_not_keep_the_interpreter_from_its_exit() -> None:
    for held in ("results = ", ""):
        script = f"""
            import itertools
            from bullpen import Pool
            pool = Pool(2)
            {held}pool.map(abs, itertools.count())
            """
        outcome = run_script(script)
        assert outcome.code == 0
        assert "the pool closed a map that was never read" in outcome.err


def test_the_grace_ends_a_dropped_endless_map(make: Make) -> None:
    pool = make()
    pool.map(abs, itertools.count())
    Background(lambda: pool.close(grace=0.1)).join()
    assert pool.stats().state is PoolState.CLOSED


def test_a_draining_pool_accepts_only_the_items_of_its_maps(make: Make, blocker: Blocker) -> None:
    pool = make()
    results = pool.map(blocker, range(100), buffersize=3)
    pool.shutdown(wait=False)
    for call in (pool.submit, pool.serve, pool.do, pool.using(queue_timeout=5).submit):
        with pytest.raises(PoolClosed):
            call(int)
    with pytest.raises(PoolClosed):
        pool.map(int, ["1"])
    blocker.release()
    assert list(results) == list(range(100))
    pool.close()


# The iterator is dropped.


@pytest.mark.parametrize("options", [{}, {"max_queue": 3}, {"max_queue": 0, "when_full": "block"}])
def test_a_map_as_a_statement_over_a_generator_does_all_the_work(make: Make, options: dict[str, Any]) -> None:
    ran: list[int] = []
    with make(2, **options) as pool:
        pool.map(ran.append, (number for number in range(3000)), buffersize=100)
    assert sorted(ran) == list(range(3000))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(pool.stats().name)]


def test_a_dropped_map_is_run_while_the_pool_is_open(make: Make) -> None:
    ran: list[int] = []
    with make() as pool:
        pool.map(ran.append, iter(range(3000)), buffersize=10)
        assert eventually(lambda: len(ran) == 3000)
        assert pool.submit(abs, -1).result() == 1


# The input fails.


def test_the_error_of_the_input_comes_after_all_results(make: Make) -> None:
    with make() as pool:
        results = pool.map(abs, Input(1500, then=Oops()))
        assert read_until(Oops, results) == list(range(1500))
        with pytest.raises(StopIteration):
            next(results)


def test_an_input_that_fails_before_its_first_item_fails_at_once(make: Make) -> None:
    with make() as pool:
        with pytest.raises(Oops):
            pool.map(abs, Input(0, then=Oops()))
        assert pool.submit(abs, -1).result() == 1


def test_an_input_that_fails_does_not_keep_the_pool_from_closing(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    numbers = Input(30, then=Oops("no more"))
    pool = make()
    results = pool.map(lambda number, _: number, numbers, range(1000), buffersize=20)
    pool.close()
    assert pool.stats().state is PoolState.CLOSED
    assert caplog.text == ""
    assert [next(results) for _ in range(30)] == list(range(30))
    with pytest.raises(Oops):
        next(results)


@pytest.mark.parametrize("buffersize", [10, 100])
def test_the_error_of_an_input_without_a_reader_is_logged(
    make: Make, caplog: pytest.LogCaptureFixture, buffersize: int
) -> None:
    ran: list[int] = []
    with make() as pool:
        pool.map(ran.append, Input(30, then=Oops("no more")), buffersize=buffersize)
        assert eventually(lambda: "no more" in caplog.text)
    assert sorted(ran) == list(range(30))
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


def test_an_interrupt_while_the_input_is_read_loses_no_result(make: Make) -> None:
    def numbers() -> Iterator[int]:
        yield 0
        yield 1
        raise KeyboardInterrupt

    with make() as pool:
        results = pool.map(abs, numbers(), buffersize=2)
        with pytest.raises(KeyboardInterrupt):
            next(results)
        assert next(results) == 0
        assert next(results) == 1


# What is done to the pool reaches a map under way.


def test_pause_pauses_a_map(make: Make) -> None:
    started = itertools.count()
    count = 0
    steps = threading.Semaphore(0)

    def run(number: int) -> int:
        nonlocal count
        count = next(started) + 1
        assert steps.acquire(timeout=PATIENCE)
        return number

    with make(2) as pool:
        results = pool.map(run, range(50))
        assert eventually(lambda: count == 2)
        pool.pause()
        steps.release(50)
        assert eventually(lambda: pool.stats().completed == 2 and not pool.stats().busy)
        assert count == 2
        assert pool.stats().queued == 48
        pool.resume()
        assert list(results) == list(range(50))


def test_pause_pauses_a_map_in_a_pool_without_room(make: Make) -> None:
    def run(number: int) -> int:
        if number == 0:
            pool.pause()
        return number

    with make(1, max_queue=0, when_full="block") as pool:
        results: list[int] = []
        reader = Background(lambda: results.extend(pool.map(run, range(20), buffersize=4)))
        assert eventually(lambda: pool.stats().completed == 1)
        assert reader.running
        pool.resume()
        reader.join()
        assert results == list(range(20))
        assert pool.stats().queued == 0


class Gauge:
    """How many run at once; each waits for as many as `together`, if they come."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.now = self.most = 0

    def __call__(self, number: int) -> int:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.001)
        with self._lock:
            self.now -= 1
        return number


def test_a_pool_that_shrinks_runs_fewer_items_at_once(make: Make) -> None:
    gauge = Gauge()
    with make(4) as pool:
        results = pool.map(gauge, itertools.count(), buffersize=200)
        for _ in range(50):
            next(results)
        pool.resize(1)
        assert eventually(lambda: next(results) is not None and pool.stats().workers == 1)
        gauge.most = 0
        for _ in range(50):
            next(results)
        assert gauge.most == 1
        results.close()


@pytest.mark.parametrize("buffersize", [4, None])
def test_a_pool_that_grows_runs_more_items_at_once(make: Make, buffersize: int | None) -> None:
    with make(1) as pool:
        meeting = threading.Barrier(3)
        met = threading.Event()

        def run(number: int) -> int:
            if number >= 10 and not met.is_set():
                meeting.wait(PATIENCE)
                met.set()
            return number

        go = threading.Event()
        results = pool.map(
            lambda number: (number < 5 or go.wait(PATIENCE)) and run(number), itertools.count(), buffersize=buffersize
        )
        for _ in range(5):
            next(results)
        pool.resize(3)
        go.set()
        assert [next(results) for _ in range(50)] == list(range(5, 55))
        assert met.is_set()
        results.close()


# Context.


def test_every_item_sees_the_context_of_the_caller_of_map() -> None:
    name = contextvars.ContextVar("name", default="nobody")
    with Pool(2) as pool:
        name.set("me")
        results = pool.using(context=True).map(lambda _: name.get(), range(300), buffersize=10)
        name.set("somebody else")
        assert list(results) == ["me"] * 300


def test_items_start_as_they_are_taken(make: Make) -> None:
    """The input may wait for results of what it gave before."""
    with make(1) as pool:
        done: list[threading.Event] = []

        def events() -> Iterator[threading.Event]:
            for _ in range(5):
                if done:
                    assert done[-1].wait(PATIENCE)
                done.append(threading.Event())
                yield done[-1]

        assert len(list(pool.map(threading.Event.set, events()))) == 5


def test_a_map_that_is_read_at_exit_without_workers_is_run() -> None:
    script = """
        import atexit
        from bullpen import Pool
        ran = []
        pool = Pool(1)
        pool.pause()
        pool.map(ran.append, range(3000))
        atexit.register(lambda: print(len(ran), pool.stats().state))
        """
    assert printed(script) == "3000 closed\n"


# Who reads.


def test_a_second_reader_is_told_while_the_first_waits(make: Make, blocker: Blocker) -> None:
    with make() as pool:
        results = pool.map(blocker, range(3))
        with Background(lambda: list(results)) as first:
            blocker.wait_entered()
            assert eventually(lambda: results._work._reading)
            with pytest.raises(ValueError, match="being read already"):
                next(results)
            blocker.release()
    assert first.result == [0, 1, 2]


def test_a_second_reader_is_told_while_the_first_takes_items(make: Make) -> None:
    """Results are there, but the first reader, who has not got its own yet, just waits for the input."""
    taking, blocker = threading.Event(), Blocker()

    def numbers() -> Iterator[int]:
        yield from range(70)
        taking.set()
        yield from (blocker(number) for number in range(70, 140))

    with blocker, make() as pool:
        results = pool.map(int, numbers(), buffersize=70)
        with Background(lambda: list(results)) as first:
            assert taking.wait(PATIENCE)
            blocker.wait_entered()
            with pytest.raises(ValueError, match="being read already"):
                next(results)
            blocker.release()
    assert first.result == list(range(140))


def test_a_map_that_is_read_by_what_it_calls_is_told(make: Make) -> None:
    results: list[Iterator[Any]] = []
    begun = threading.Event()

    def read(_: int) -> Any:
        assert begun.wait(PATIENCE)
        return next(results[0])

    with make(1) as pool:

        def nested() -> Any:
            results.append(pool.map(read, range(2)))
            begun.set()
            return next(results[0])

        with pytest.raises(ValueError, match="being read already"):
            pool.submit(nested).result(PATIENCE)


def test_readers_at_once_lose_nothing_and_get_nothing_twice(make: Make) -> None:
    """Most of the time they come one after the other; who does not is told, and may try again."""

    def read() -> None:
        while True:
            try:
                mine.append(next(results))
            except StopIteration:
                return
            except ValueError:  # another one was just reading
                continue

    mine: list[int] = []
    with make() as pool:
        results = pool.map(int, iter(range(5000)), buffersize=100)
        readers = [Background(read) for _ in range(4)]
        for reader in readers:
            assert reader.join().error is None
    assert sorted(mine) == list(range(5000))


def test_an_interrupted_reader_may_read_on(make: Make, blocker: Blocker) -> None:
    def interrupt() -> None:
        blocker.wait_entered()
        assert eventually(lambda: results._work._reading)
        time.sleep(0.01)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with make() as pool:
        results = pool.map(blocker, range(3))
        with Background(interrupt), pytest.raises(KeyboardInterrupt):
            next(results)
        blocker.release()
        assert list(results) == [0, 1, 2]


def test_an_item_runs_although_the_one_before_it_in_its_bundle_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """No runner had begun the bundle when the reader first had to wait: the reader looks again."""
    monkeypatch.setattr(runner_map, "BUNDLE_SECONDS", 1000.0)  # every item counts as quick
    first_waits, last_ran = threading.Event(), threading.Event()

    def run(item: str) -> str:
        if item == "first":
            first_waits.set()
        if item == "last":
            last_ran.set()
        elif item != "quick":
            assert last_ran.wait(PATIENCE)
        return item

    with Pool(3) as pool:

        def items() -> Iterator[str]:
            yield from ["quick"] * 2
            assert eventually(lambda: pool.stats().completed == 2)
            yield "first"
            assert first_waits.wait(PATIENCE)
            yield from ("middle", "last")  # one bundle: the runner of the first item is busy, and items are quick

        assert list(pool.map(run, items())) == ["quick", "quick", "first", "middle", "last"]
