"""Streams: items as they are produced, never more of them than the buffer holds, and an end for every generator."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import itertools
import signal
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import CancelledError
from typing import Any

import pytest

from bullpen import (
    CallPolicy,
    DeadlineExceeded,
    InvalidOption,
    Kind,
    NestedWait,
    NotCallable,
    Pool,
    PoolClosed,
    PoolSaturated,
    QueueTimeout,
    RecyclePolicy,
    RestartPolicy,
    RunTimeout,
    Stream,
    TelemetryEvent,
    WorkerBroken,
    WorkerLost,
    remaining,
)
from bullpen.pools.streams import stream as streams
from bullpen.testing import ManualClock, ScriptedRuntime
from tests.names import name_of

from .support import PATIENCE, Background, Blocker, eventually, printed


def count(end: int) -> Iterator[int]:
    yield from range(end)


async def acount(end: int) -> AsyncIterator[int]:
    for number in range(end):
        await asyncio.sleep(0)
        yield number


class Source:
    """Generators that say how far they are and where they were closed."""

    def __init__(self) -> None:
        self.produced = 0
        self.closed_on: list[str] = []
        self.ended = threading.Event()

    def endless(self) -> Iterator[int]:
        try:
            for number in itertools.count():
                self.produced = number + 1
                yield number
        finally:
            self._closed()

    async def aendless(self) -> AsyncIterator[int]:
        try:
            for number in itertools.count():
                self.produced = number + 1
                yield number
        finally:
            await asyncio.sleep(0)
            self._closed()

    def _closed(self) -> None:
        self.closed_on.append(threading.current_thread().name)
        self.ended.set()


KINDS = ["endless", "aendless"]


@pytest.mark.parametrize(
    "options", [{}, {"max_queue": 5}, {"capacity": 2}, {"calls": CallPolicy(wrap=lambda call: call())}], ids=name_of
)
@pytest.mark.parametrize("fn", [count, acount, range, lambda end: list(range(end))])
def test_items_arrive_in_order(fn: Callable[..., Any], options: dict[str, Any]) -> None:
    with Pool(2, **options) as pool:
        assert list(pool.stream(fn, 1000)) == list(range(1000))
        assert list(pool.stream(fn, 0)) == []
        assert list(pool.using(buffersize=1).stream(fn, 50)) == list(range(50))
        assert list(pool.using(context=True, timeout=PATIENCE).stream(fn, 50)) == list(range(50))
    assert (pool.stats().completed, pool.stats().failed) == (4, 0)


def test_items_arrive_before_the_end() -> None:
    with Blocker() as blocker, Pool(1) as pool:

        def produce() -> Iterator[int]:
            yield 1
            blocker()
            yield 2

        stream = pool.stream(produce)
        assert next(stream) == 1
        blocker.wait_entered()
        blocker.release()
        assert list(stream) == [2]
        with pytest.raises(StopIteration):
            next(stream)


def test_methods_stream_too() -> None:
    class Model:
        def __init__(self) -> None:
            self.words = ["a", "b", "c"]

        def generate(self, times: int, sep: str = "") -> Iterator[str]:
            for word in self.words * times:
                yield word + sep

        async def agenerate(self) -> AsyncIterator[str]:
            for word in self.words:
                yield word

    with Pool(1, worker=Model) as pool:
        assert list(pool.stream("generate", 2, sep="!")) == ["a!", "b!", "c!"] * 2
        assert list(pool.using(session="u").stream("agenerate")) == ["a", "b", "c"]


def test_an_error_arrives_after_the_items_before_it() -> None:
    def break_down(error: BaseException) -> Iterator[int]:
        yield 1
        yield 2
        raise error

    with Pool(1) as pool:
        stream = pool.stream(break_down, ValueError("broken"))
        assert eventually(lambda: pool.stats().failed == 1)
        assert [next(stream), next(stream)] == [1, 2]
        with pytest.raises(ValueError, match="broken"):
            next(stream)
        with pytest.raises(StopIteration):
            next(stream)


@pytest.mark.parametrize("nested", [False, True])
def test_a_function_that_raises_the_end_is_an_error(nested: bool) -> None:
    def stop() -> Iterator[int]:
        raise StopIteration

    with Pool(1) as pool:

        def read() -> list[int]:
            return list(pool.stream(stop))

        with pytest.raises(RuntimeError, match="StopIteration"):
            pool.do(read) if nested else read()


def test_what_is_no_iterable_is_an_error() -> None:
    with Pool(1) as pool:
        with pytest.raises(TypeError, match="returned int"):
            list(pool.stream(abs, -5))  # type: ignore[call-overload]
        with pytest.raises(NotCallable):
            pool.stream(5)  # type: ignore[call-overload]
        with pytest.raises(InvalidOption):
            pool.using(buffersize=0)
        assert pool.stats().queued == 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_producer_waits_while_the_buffer_is_full(kind: str) -> None:
    source = Source()
    with Pool(1) as pool:
        stream = pool.using(buffersize=10).stream(getattr(source, kind))
        assert next(stream) == 0
        assert eventually(lambda: source.produced >= 11), "ten in the buffer, and one in its hands"
        assert not eventually(lambda: source.produced > 12, within=0.1)
        assert [next(stream) for _ in range(100)] == list(range(1, 101))
        assert source.produced <= 112
        stream.close()
        assert source.ended.wait(PATIENCE)


@pytest.mark.parametrize("kind", KINDS)
def test_the_producer_goes_on_when_half_of_the_buffer_is_read(kind: str) -> None:
    source = Source()
    with Pool(1) as pool, pool.using(buffersize=10).stream(getattr(source, kind)) as stream:
        assert eventually(lambda: source.produced == 11)
        assert [next(stream) for _ in range(4)] == [0, 1, 2, 3]
        assert not eventually(lambda: source.produced > 11, within=0.05), "it is woken for a few at once"
        assert next(stream) == 4
        assert eventually(lambda: source.produced == 16)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["close", "with", "drop", "error"])
def test_an_early_end_closes_the_generator_on_its_worker(how: str, kind: str, full: bool) -> None:
    source = Source()
    with Pool(1, name="early") as pool:
        stream: Stream[int] | None = pool.using(buffersize=5).stream(getattr(source, kind))
        assert stream is not None
        assert next(stream) == 0
        if full:
            assert eventually(lambda: source.produced >= 6)
        if how == "close":
            stream.close()
            with pytest.raises(StopIteration):
                next(stream)
        elif how == "with":
            with stream:
                next(stream)
        elif how == "error":
            with pytest.raises(ValueError, match="mine"), stream:
                raise ValueError("mine")
        else:
            stream = None
            gc.collect()
        assert source.ended.wait(PATIENCE)
        assert pool.submit(abs, -1).result(PATIENCE) == 1, "its worker is free again"
    assert source.closed_on == ["early_0"]
    assert pool.stats().completed == 2


def test_a_generator_with_other_references_is_closed_too() -> None:
    source = Source()
    held: list[Iterator[int]] = []

    def hold() -> Iterator[int]:
        held.append(source.endless())
        return held[0]

    with Pool(1) as pool:
        with pool.stream(hold) as stream:
            next(stream)
        assert source.ended.wait(PATIENCE)


def test_a_stream_that_is_closed_before_it_starts_never_runs() -> None:
    source = Source()
    with Blocker() as blocker, Pool(1) as pool:
        pool.submit(blocker)
        blocker.wait_entered()
        pool.stream(source.endless).close()
        dropped = pool.stream(source.endless)
        del dropped
        assert eventually(lambda: pool.stats().cancelled == 2)
        blocker.release()
    assert source.produced == 0


def test_a_saturated_pool_rejects_a_stream() -> None:
    runtime = ScriptedRuntime()
    with Pool(1, max_queue=0, runtime=runtime) as pool:
        first = pool.stream(count, 3)
        with pytest.raises(PoolSaturated):
            pool.stream(count, 3)
        runtime.run_all()
        assert list(first) == [0, 1, 2]


# Limits in time.


def test_a_stream_that_waits_too_long_is_told() -> None:
    clock, runtime = ManualClock(), ScriptedRuntime()
    with Pool(1, clock=clock, runtime=runtime) as pool:
        pool.submit(int)
        stream = pool.using(queue_timeout=5).stream(count, 3)
        clock.advance(5)
        with pytest.raises(QueueTimeout):
            next(stream)
        runtime.run_all()


@pytest.mark.parametrize(("limit", "error"), [("timeout", DeadlineExceeded), ("run_timeout", RunTimeout)])
def test_a_stream_that_takes_too_long_is_told_at_once_and_its_generator_closed(
    limit: str, error: type[Exception]
) -> None:
    source = Source()
    with Pool(1) as pool:
        stream = pool.using(buffersize=5, **{limit: 0.05}).stream(source.endless)
        assert next(stream) == 0
        assert source.ended.wait(PATIENCE), "its producer waits no longer"
        with pytest.raises(error):  # and not what is buffered first
            next(stream)
        with pytest.raises(StopIteration):
            next(stream)
        assert pool.submit(abs, -1).result(PATIENCE) == 1


def test_a_reader_that_waits_is_told_when_the_time_is_up() -> None:
    with Blocker() as blocker, Pool(1) as pool:

        def produce() -> Iterator[int]:
            blocker()
            yield 1

        stream = pool.using(timeout=0.05).stream(produce)
        with pytest.raises(DeadlineExceeded):
            next(stream)
        blocker.release()


@pytest.mark.parametrize("kind", ["sync", "async", "nested"])
def test_a_stream_knows_what_time_is_left(kind: str) -> None:
    def produce() -> Iterator[float | None]:
        yield remaining()

    async def aproduce() -> AsyncIterator[float | None]:
        yield remaining()

    with Pool(1) as pool:
        fn: Any = aproduce if kind == "async" else produce
        if kind == "nested":
            [left] = pool.submit(lambda: list(pool.using(run_timeout=100).stream(fn))).result(PATIENCE)
        else:
            [left] = pool.using(timeout=100).stream(fn)
    assert left is not None
    assert 50 < left <= 100


def test_no_time_at_all_is_rejected() -> None:
    with Pool(1) as pool, pytest.raises(DeadlineExceeded):
        pool.using(timeout=0).stream(count, 3)


variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_whole_generator_runs_in_the_context_and_in_the_wrapper(asynchronous: bool) -> None:
    inside = threading.Event()
    names: list[str] = []

    def wrap(call: Any) -> Any:
        names.append(call.func.__name__)
        inside.set()
        try:
            return call()
        finally:
            inside.clear()

    def read() -> Iterator[tuple[int, bool]]:
        for _ in range(3):
            yield variable.get(), inside.is_set()

    async def aread() -> AsyncIterator[tuple[int, bool]]:
        for _ in range(3):
            yield variable.get(), inside.is_set()

    token = variable.set(7)
    try:
        with Pool(1, calls=CallPolicy(wrap=wrap)) as pool:
            fn: Any = aread if asynchronous else read
            assert list(pool.using(context=True).stream(fn)) == [(7, True)] * 3
    finally:
        variable.reset(token)
    assert names == ["aread" if asynchronous else "read"]


# Workers that die.


class Breaking:
    """Generators that break their worker after so many items, one number for each run, and then run well."""

    def __init__(self, *breaks: int) -> None:
        self.runs = 0
        self._breaks = breaks

    def items(self) -> Iterator[int]:
        self.runs += 1
        run, breaks = self.runs, self._breaks[self.runs - 1 :]
        for number in range(5):
            if breaks and number == breaks[0]:
                raise WorkerBroken(f"in run {run}")
            yield number

    async def aitems(self) -> AsyncIterator[int]:
        for number in self.items():
            await asyncio.sleep(0)
            yield number


def read_until_lost(stream: Stream[int]) -> list[int]:
    """The items before `WorkerLost`."""
    items = list[int]()
    with pytest.raises(WorkerLost):
        deque(map(items.append, stream))
    assert list(stream) == [], "and that was all"
    return items


@pytest.mark.parametrize("kind", ["items", "aitems"])
@pytest.mark.parametrize("buffersize", [1, 2, 100])
@pytest.mark.parametrize(
    "options",
    [{}, {"calls": CallPolicy(wrap=lambda call: call())}, {"max_queue": 5}, {"capacity": 2}],
    ids=["", "wrap", "queue", "lanes"],
)
@pytest.mark.parametrize("context", [False, True])
def test_an_idempotent_stream_never_repeats_an_item(
    kind: str, buffersize: int, options: dict[str, Any], context: bool
) -> None:
    source = Breaking(3)
    with Pool(1, **options) as pool:
        again = pool.using(idempotent=True, crash_retries=9, buffersize=buffersize, context=context)
        assert read_until_lost(again.stream(getattr(source, kind))) == [0, 1, 2]
        assert source.runs == 1
        stats = pool.stats()
        assert (stats.lost, stats.retried) == (1, 0)


@pytest.mark.parametrize("kind", ["items", "aitems"])
def test_an_idempotent_stream_that_had_produced_nothing_runs_again(kind: str) -> None:
    source = Breaking(0, 0)
    with Pool(1) as pool:
        assert list(pool.using(idempotent=True, crash_retries=2).stream(getattr(source, kind))) == [0, 1, 2, 3, 4]
        assert source.runs == 3
        assert eventually(lambda: pool.stats().completed == 1)
        assert (pool.stats().lost, pool.stats().retried) == (0, 2)


def test_a_stream_that_runs_again_may_be_lost_later() -> None:
    source = Breaking(0, 2)
    with Pool(1) as pool:
        assert read_until_lost(pool.using(idempotent=True, crash_retries=9).stream(source.items)) == [0, 1]
    assert source.runs == 2


@pytest.mark.parametrize("breaks", [0, 3])
def test_a_stream_that_is_not_idempotent_is_lost_after_its_items(breaks: int) -> None:
    source = Breaking(breaks)
    with Pool(1) as pool:
        assert read_until_lost(pool.stream(source.items)) == list(range(breaks))
    assert source.runs == 1


def test_items_of_a_lost_worker_can_be_read_later() -> None:
    source = Breaking(3)
    with Pool(1) as pool:
        stream = pool.using(session="u42", idempotent=True).stream(source.items)
        assert eventually(lambda: pool.stats().lost == 1)
        assert read_until_lost(stream) == [0, 1, 2]


# The end of the pool.


def test_closing_drains_a_stream_with_a_reader() -> None:
    with Pool(1) as pool:
        stream = pool.using(buffersize=3).stream(count, 500)
        assert next(stream) == 0
        with Background(pool.close) as closing:
            assert list(stream) == list(range(1, 500))
            closing.join()
        assert closing.error is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("read", [0, 1])
def test_closing_ends_a_stream_whose_reader_waits_for_the_pool_to_close(kind: str, read: int) -> None:
    source = Source()
    pool = Pool(1)
    stream = pool.using(buffersize=3).stream(getattr(source, kind))
    seen = [next(stream) for _ in range(read)]
    with Background(lambda: None):
        pool.close()
    assert source.ended.is_set()
    with pytest.raises(PoolClosed):
        seen.extend(stream)
    assert seen == list(range(len(seen)))
    assert len(seen) >= 3, "what was buffered can still be read"


@pytest.mark.parametrize("kind", KINDS)
def test_closing_ends_a_stream_whose_reader_has_stalled(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "STALL_SECONDS", 0.05)
    source = Source()
    pool = Pool(1)
    stream = pool.using(buffersize=3).stream(getattr(source, kind))
    assert eventually(lambda: source.produced == 4)
    Background(pool.close).join()  # not the thread that reads
    with pytest.raises(PoolClosed):
        assert list(stream) == [0, 1, 2]


def test_closing_leaves_a_slow_reader_its_time() -> None:
    clock = ManualClock()
    pool = Pool(
        1, clock=clock, recycling=RecyclePolicy(idle_timeout=None), restarts=RestartPolicy(reconcile_interval=None)
    )
    made = list[int]()

    def note() -> Iterator[int]:
        for number in range(30):
            made.append(number)
            yield number

    stream = pool.using(buffersize=10).stream(note)
    assert eventually(lambda: len(made) == 11), "the buffer is full"
    pool.shutdown(wait=False)
    assert clock.wait_for_waiters(1), "to see whether anybody reads"
    assert next(stream) == 0
    clock.advance(streams.STALL_SECONDS)
    assert eventually(lambda: len(made) == 12), "somebody does"
    assert list(stream) == list(range(1, 30))
    pool.close()


def test_a_reader_may_go_on_after_shutdown_without_waiting() -> None:
    pool = Pool(1)
    stream = pool.using(buffersize=3).stream(count, 50)
    pool.shutdown(wait=False)
    assert list(stream) == list(range(50))
    pool.close()


@pytest.mark.parametrize("kind", KINDS)
def test_closing_without_draining_ends_streams(kind: str) -> None:
    source = Source()
    pool = Pool(1)
    stream = pool.using(buffersize=3).stream(getattr(source, kind))
    queued = pool.stream(count, 3)
    assert next(stream) == 0
    pool.close(drain=False)
    assert source.ended.is_set()
    with pytest.raises(PoolClosed):
        list(stream)
    with pytest.raises((PoolClosed, CancelledError)):
        list(queued)


def test_a_stream_that_hangs_is_left_behind_after_the_grace() -> None:
    with Blocker() as blocker:

        def produce() -> Iterator[int]:
            blocker()
            yield 1

        pool = Pool(1)
        stream = pool.stream(produce)
        blocker.wait_entered()
        pool.close(grace=0.05)
        with pytest.raises(Exception, match="grace"):
            next(stream)
        blocker.release()
        assert eventually(lambda: pool.stats().workers == 0)


@pytest.mark.parametrize("kind", ["count", "acount"])
@pytest.mark.parametrize("workers", [0, 1])
def test_an_unread_stream_keeps_no_interpreter_alive(kind: str, workers: int) -> None:
    out = printed(
        f"""
        import itertools
        from bullpen import Pool

        def count():
            try:
                yield from itertools.count()
            finally:
                print("closed")

        async def acount():
            try:
                for number in itertools.count():
                    yield number
            finally:
                print("closed")

        pool = Pool(1)
        stream = pool.stream({kind})
        if {workers}:
            print(next(stream))
        else:
            pool.pause()
            queued = pool.stream({kind})
        """
    )
    assert out in ("0\nclosed\n", "closed\n", "")


# Workers that read streams of their own pool.


@pytest.mark.parametrize(
    "options", [{}, {"max_queue": 9}, {"calls": CallPolicy(wrap=lambda call: call())}, {"capacity": 2}], ids=name_of
)
@pytest.mark.parametrize("view", [{}, {"timeout": PATIENCE}, {"context": True}], ids=str)
@pytest.mark.parametrize("fn", [count, acount])
def test_a_worker_may_read_a_stream_of_its_own_pool(
    fn: Callable[..., Any], view: dict[str, Any], options: dict[str, Any]
) -> None:
    with Pool(1, **options) as pool:

        def total() -> int:
            return sum(pool.using(buffersize=5, **view).stream(fn, 300))

        futures = [pool.submit(total) for _ in range(3)]
        assert [future.result(PATIENCE) for future in futures] == [44850] * 3
    assert pool.stats().completed == 6


def test_a_worker_may_read_several_streams_of_its_own_pool_in_turn() -> None:
    with Pool(1) as pool:

        def pairs() -> list[tuple[int, int]]:
            return list(zip(pool.stream(count, 300), pool.stream(count, 300), strict=True))

        assert len(pool.submit(pairs).result(PATIENCE)) == 300


def test_streams_nest() -> None:
    with Pool(1) as pool:

        def descend(depth: int) -> Iterator[int]:
            if depth:
                yield from pool.stream(descend, depth - 1)
            yield depth

        assert list(pool.stream(descend, 20)) == list(range(21))


def test_a_nested_stream_that_is_left_early_is_closed_on_its_reader() -> None:
    source = Source()
    with Pool(1, name="inner") as pool:

        def look() -> int:
            with pool.stream(source.endless) as stream:
                next(stream)
                return next(stream)

        assert pool.submit(look).result(PATIENCE) == 1
        assert source.closed_on == ["inner_0"]
        assert source.produced == 2, "nobody produced ahead"
    assert pool.stats().completed == 2


def test_an_error_of_a_nested_stream_arrives_after_its_items() -> None:
    seen: list[int] = []

    def produce() -> Iterator[int]:
        yield 1
        raise ValueError("broken")

    with Pool(1) as pool:
        future = pool.submit(lambda: seen.extend(pool.stream(produce)))
        assert isinstance(future.exception(PATIENCE), ValueError)
    assert seen == [1]
    assert pool.stats().failed == 2


def test_a_worker_that_reads_a_stream_of_its_own_pool_is_told_in_time() -> None:
    """Were it to produce the items itself, it would be where it cannot be told."""
    with Blocker() as blocker, Pool(1) as pool:

        def slow() -> Iterator[int]:
            yield 0
            yield blocker(1)

        def outer() -> str:
            stream = pool.using(timeout=0.5).stream(slow)
            assert next(stream) == 0
            with pytest.raises(DeadlineExceeded):
                next(stream)
            return "told"

        assert pool.submit(outer).result(PATIENCE / 2) == "told"
        blocker.release()


def test_a_stream_that_waits_for_its_reader_is_told() -> None:
    with Pool(2) as pool:
        reader: list[Any] = []
        known = threading.Event()

        def produce() -> Iterator[int]:
            yield reader[0].result()

        def read() -> list[int]:
            known.wait(PATIENCE)
            return list(pool.stream(produce))

        reader.append(pool.submit(read))
        known.set()
        assert isinstance(reader[0].exception(PATIENCE), NestedWait)


def test_many_streams_at_once() -> None:
    with Pool(4) as pool:

        def read(number: int) -> int:
            return sum(pool.using(buffersize=7).stream(count, number))

        readers = [Background(lambda number=number: read(number)) for number in range(40)]  # type: ignore[misc]
        assert [reader.join().result for reader in readers] == [sum(range(number)) for number in range(40)]
    assert pool.stats().completed == 40


# Who reads.


def test_a_second_reader_is_told_while_the_first_waits() -> None:
    with Blocker() as blocker, Pool(1) as pool:

        def slow() -> Iterator[int]:
            yield blocker(1)
            yield 2

        stream = pool.stream(slow)
        with Background(lambda: list(stream)) as first:
            blocker.wait_entered()
            assert eventually(lambda: stream._work._reader_gate is not None)
            with pytest.raises(ValueError, match="being read already"):
                next(stream)
            blocker.release()
    assert first.result == [1, 2]


def test_readers_at_once_lose_nothing_and_get_nothing_twice() -> None:
    def read() -> None:
        while True:
            try:
                mine.append(next(stream))
            except StopIteration:
                return
            except ValueError:  # another one was just reading
                continue

    mine: list[int] = []
    with Pool(1) as pool:
        stream = pool.using(buffersize=3).stream(count, 2000)
        for reader in [Background(read) for _ in range(4)]:
            assert reader.join().error is None
    assert sorted(mine) == list(range(2000))


def test_an_interrupted_reader_may_read_on() -> None:
    def interrupt() -> None:
        blocker.wait_entered()
        assert eventually(lambda: stream._work._reader_gate is not None)
        time.sleep(0.01)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with Blocker() as blocker, Pool(1) as pool:
        stream = pool.stream(lambda: (blocker(number) for number in range(2)))
        with Background(interrupt), pytest.raises(KeyboardInterrupt):
            next(stream)
        blocker.release()
        assert list(stream) == [0, 1]


def test_a_second_reader_of_a_nested_stream_is_told() -> None:
    streams_: list[Stream[int]] = []
    with Blocker() as blocker, Pool(1) as pool:

        def read() -> list[int]:
            streams_.append(pool.stream(lambda: (blocker(number) for number in range(2))))
            return list(streams_[0])

        future = pool.submit(read)
        blocker.wait_entered()
        with pytest.raises(ValueError, match="being read already"):
            next(streams_[0])
        blocker.release()
        assert future.result(PATIENCE) == [0, 1]
    assert (pool.stats().completed, pool.stats().failed) == (2, 0)


def test_a_nested_stream_that_another_thread_closes_ends_on_its_reader() -> None:
    source = Source()
    streams_: list[Stream[int]] = []
    with Blocker() as blocker, Pool(1, name="inner") as pool:

        def produce() -> Iterator[int]:
            for number in source.endless():
                yield number if number < 2 else blocker(number)

        def read() -> list[int]:
            streams_.append(pool.stream(produce))
            return list(streams_[0])

        future = pool.submit(read)
        blocker.wait_entered()
        streams_[0].close()
        assert not source.closed_on, "it is just running"
        blocker.release()
        assert future.result(PATIENCE) == [0, 1]
        assert source.closed_on == ["inner_0"]
    assert (pool.stats().completed, pool.stats().failed) == (2, 0)


def test_a_nested_stream_ends_once() -> None:
    events: list[TelemetryEvent] = []
    with Pool(1, observer=events.append) as pool:
        pool.submit(lambda: list(pool.stream(count, 3))).result(PATIENCE)
    ends = [event.kind for event in events if event.request == 1 and event.kind is not Kind.REQUEST_QUEUED]
    assert ends == [Kind.REQUEST_STARTED, Kind.REQUEST_DONE]
