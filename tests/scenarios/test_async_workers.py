"""Workers of an `AsyncPool` that keep something: instances on the loop and on threads, capacity, taint, recycling, how
they start, and what is called around every call.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from bullpen import (
    AsyncPool,
    CallPolicy,
    CapacityPolicy,
    InvalidOption,
    InvalidOptionType,
    Kind,
    NoSuchMethod,
    NotCallable,
    PoolFailed,
    PoolFuture,
    Pools,
    PoolState,
    Reason,
    RecyclePolicy,
    StartupPolicy,
    TelemetryEvent,
    WorkerBroken,
    WorkerLost,
    WorkerStatus,
    explain,
)
from tests.scenarios.async_support import LOOPS, PATIENCE, Door, Run, assert_counts_agree, at_rest, runner, steps, until
from tests.scenarios.support import in_groups


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    return runner(request.param)


class Client:
    """Lives on the loop, because of its coroutine methods. Notes what happens to its instances."""

    made: list[Client]

    def __init__(self) -> None:
        self.thread = threading.current_thread()
        self.warm = self.closed = False
        self.calls = 0
        self.at_once = self.most = 0
        type(self).made.append(self)

    async def warm_up(self) -> None:
        await asyncio.sleep(0)
        self.warm = True

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.closed = True

    async def ask(self, question: str = "") -> tuple[int, str]:
        assert self.warm
        assert not self.closed
        self.calls += 1
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        return id(self), question

    async def wait(self, door: Door) -> Any:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            return await door()
        finally:
            self.at_once -= 1

    async def tokens(self, count: int) -> AsyncIterator[int]:
        for number in range(count):
            await asyncio.sleep(0)
            yield number

    async def fail(self) -> None:
        raise Oops

    async def die(self) -> None:
        raise WorkerBroken

    def now(self) -> int:
        return 1


class Model:
    """Lives on a thread, as in a `Pool`."""

    made: list[Model]

    def __init__(self) -> None:
        self.thread = threading.current_thread()
        self.warm = self.closed = False
        type(self).made.append(self)

    def warm_up(self) -> None:
        self.warm = True

    def close(self) -> None:
        assert threading.current_thread() is self.thread
        self.closed = True

    def predict(self, text: str = "") -> tuple[int, str]:
        assert self.warm
        assert threading.current_thread() is self.thread
        return id(self), text

    def tokens(self, count: int) -> Iterator[int]:
        yield from range(count)


class Oops(Exception):
    pass


@pytest.fixture(autouse=True)
def nothing_made() -> None:
    Client.made = []
    Model.made = []


# Instances.


def test_a_class_with_coroutine_methods_lives_on_the_loop(run: Run) -> None:
    async def main() -> None:
        async with AsyncPool(3, worker=Client) as pool:
            assert await pool.wait_ready(PATIENCE)
            assert len(Client.made) == 3
            assert all(each.warm and each.thread is threading.current_thread() for each in Client.made)
            answers = await asyncio.gather(*[pool.do("ask", str(x)) for x in range(30)])
            assert [text for _, text in answers] == [str(x) for x in range(30)]
            assert {which for which, _ in answers} == {id(each) for each in Client.made}
            assert await pool.submit("ask", question="x") == (pytest.approx(0, abs=1e20), "x")
            assert [text async for _, text in pool.map("ask", "abc")] == ["a", "b", "c"]
            assert [x async for x in pool.using(buffersize=2).stream("tokens", 5)] == list(range(5))
            assert pool.serve("ask")
            assert await pool.do(len, "abc") == 3  # functions go to threads as ever
            assert all(each.most <= 1 for each in Client.made)
        assert len(Client.made) == 3
        assert all(each.closed for each in Client.made)
        assert_counts_agree(pool)

    run(main())


def test_any_other_class_lives_on_threads(run: Run) -> None:
    async def main() -> None:
        async with AsyncPool(threads=2, worker=Model) as pool:
            assert await pool.wait_ready(PATIENCE)
            assert len(Model.made) == 2
            answers = await asyncio.gather(*[pool.do("predict", str(x)) for x in range(20)])
            assert [text for _, text in answers] == [str(x) for x in range(20)]
            assert [x async for x in pool.stream("tokens", 5)] == list(range(5))
            assert [text async for _, text in pool.map("predict", "ab")] == ["a", "b"]
        assert all(each.closed and each.thread is not threading.current_thread() for each in Model.made)

    run(main())


def test_a_factory_may_be_a_coroutine_function(run: Run) -> None:
    async def connect(name: str) -> Any:
        await asyncio.sleep(0)
        client = Client()
        client.name = name  # type: ignore[attr-defined]
        return client

    async def main() -> None:
        async with AsyncPool(1, worker=functools.partial(connect, "db")) as pool:
            assert (await pool.do("ask", "x"))[1] == "x"
            with pytest.raises(NoSuchMethod, match="'now' is not a coroutine function, and would stop the loop"):
                await pool.do("now")
            with pytest.raises(NoSuchMethod, match="'nothing' is no method"):
                await pool.do("nothing")
        assert Client.made[0].closed

    run(main())


def test_a_function_that_makes_what_belongs_on_the_loop_is_told_so(run: Run) -> None:
    async def main() -> None:
        async with AsyncPool(threads=1, worker=lambda: Client()) as pool:
            with pytest.raises(PoolFailed, match="the class Client itself, or a coroutine function that makes one"):
                await pool.wait_ready(PATIENCE)

    run(main())


def test_methods_that_cannot_be_called_are_rejected_at_once(run: Run) -> None:
    async def main() -> None:
        async with AsyncPool(1, worker=Client) as pool:
            for name, why in {
                "_ask": "is not public",
                "warm_up": "is called by the pool itself",
                "close": "is called by the pool itself",
                "answer": "is no method of it",
                "now": "is not a coroutine function",
                "tokens": "is not a coroutine function",
            }.items():
                with pytest.raises(NoSuchMethod, match=why):
                    pool.submit(name)
            with pytest.raises(NoSuchMethod, match="is not an async generator function"):
                pool.stream("ask")
            with pytest.raises(NotCallable):
                pool.stream(5)  # type: ignore[call-overload]
        async with AsyncPool(1) as pool:
            for use in (pool.submit, pool.serve, pool.map, pool.stream):
                with pytest.raises(NoSuchMethod, match="made without worker="):
                    use("ask")

    run(main())


def test_an_instance_that_cannot_be_made_fails_the_pool_and_says_why(run: Run) -> None:
    class Broken(Client):
        async def warm_up(self) -> None:
            await asyncio.sleep(0)
            raise Oops("no licence")

    async def main() -> None:
        Broken.made = []
        async with AsyncPool(2, worker=Broken) as pool:
            future = pool.submit("ask")
            with pytest.raises(PoolFailed, match="no licence"):
                await pool.wait_ready(PATIENCE)
            with pytest.raises(PoolFailed, match="no licence"):
                await future
            assert pool.stats().state is PoolState.FAILED
            assert await pool.do(len, "abc") == 3  # what needs no instance goes on
        await until(lambda: len(asyncio.all_tasks()) == 1)

    run(main())


def test_a_worker_that_still_warms_up_when_the_grace_is_over_is_cancelled(run: Run) -> None:
    class Slow(Client):
        async def warm_up(self) -> None:
            await asyncio.Event().wait()

    async def main() -> None:
        Slow.made = []
        pool = AsyncPool(2, worker=Slow)
        future = pool.submit("ask")
        await until(lambda: len(Slow.made) == 2)
        await pool.close(grace=0)
        with pytest.raises(asyncio.CancelledError):
            await future
        assert len(asyncio.all_tasks()) == 1
        assert pool.stats().state is PoolState.CLOSED

    run(main())


def test_an_instance_that_does_not_close_does_not_keep_the_pool_open(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    class Sticky(Client):
        async def close(self) -> None:
            if Sticky.made.index(self):
                raise Oops
            await asyncio.Event().wait()

    async def main() -> None:
        Sticky.made = []
        pool = AsyncPool(2, worker=Sticky)
        await pool.wait_ready(PATIENCE)
        await pool.close(grace=0.01)
        assert len(asyncio.all_tasks()) == 1
        assert pool.stats().state is PoolState.CLOSED

    run(main())
    assert "could not be closed" in caplog.text


def test_a_dead_worker_on_the_loop_is_replaced_with_a_new_instance(run: Run) -> None:
    async def main() -> None:
        async with AsyncPool(1, worker=Client) as pool:
            with pytest.raises(WorkerLost):
                await pool.do("die")
            await pool.do("ask")
            assert len(Client.made) == 2

    run(main())


def test_coroutines_that_wait_for_others_of_their_pool_share_their_instance(run: Run) -> None:
    class Nesting(Client):
        async def outer(self, pool: AsyncPool, depth: int) -> int:
            return id(self) if not depth else await pool.do("outer", pool, depth - 1)

    async def main() -> None:
        Nesting.made = []
        async with AsyncPool(1, worker=Nesting) as pool:
            assert await pool.do("outer", pool, 3) == id(Nesting.made[0])
        assert len(Nesting.made) == 1

    run(main())


# Capacity.


def test_an_instance_on_the_loop_runs_as_many_coroutines_as_it_has_capacity_for(run: Run) -> None:
    async def main() -> None:
        door = Door()
        async with AsyncPool(2, worker=Client, capacity=3) as pool:
            futures = [pool.submit("wait", door) for _ in range(8)]
            await door.wait_entered(6)
            await steps(3)
            assert (door.inside, pool.stats().queued) == (6, 2)
            assert sorted(worker.load for worker in pool.workers()) == [3, 3]
            futures[0].cancel()  # one of several on its worker
            await door.wait_entered(7)
            door.open()
            await asyncio.gather(*futures[1:])
            assert [each.most for each in Client.made] == [3, 3]
            assert door.cancelled == 1

    run(main())


def test_a_broken_worker_on_the_loop_dies_when_its_other_coroutines_have_ended(run: Run) -> None:
    async def main() -> None:
        told: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        door = Door()
        async with AsyncPool(1, worker=Client, capacity=4) as pool:
            good, cancelled = (pool.submit("wait", door) for _ in range(2))
            await door.wait_entered(2)
            worker = pool.workers()[0].id
            broken = [pool.submit("die") for _ in range(2)]  # the second one breaks a worker that is broken
            await until(lambda: pool.workers()[0].status is WorkerStatus.STOPPING)
            await steps(3)
            later = pool.submit("ask")
            await steps(3)
            assert not any(future.done() for future in (*broken, good, later))
            cancelled.cancel()
            door.open()
            assert await good is None
            for future in broken:
                with pytest.raises(WorkerLost):
                    await future
            assert (await later)[0] == id(Client.made[1])
            assert cancelled.cancelled()
            assert [other.id for other in pool.workers()] != [worker]
            await at_rest(pool)
            assert_counts_agree(pool)
        assert told == []

    run(main())


def test_a_request_on_its_way_to_a_worker_that_dies_does_not_run_there(run: Run) -> None:
    async def main() -> None:
        async with AsyncPool(1, worker=Client, capacity=2) as pool:
            await pool.wait_ready(PATIENCE)
            engine = pool._coroutines.engine
            handle = engine.registry.snapshot()[0].handle
            with pytest.raises(WorkerLost):
                await pool.do("die")
            ran: list[int] = []
            late = PoolFuture(engine, ran.append, (1,), {})
            await asyncio.to_thread(handle.hand, late)
            await steps(3)
            assert (ran, handle.has(late)) == ([], False)

    run(main())


def test_instances_on_the_loop_may_declare_their_capacity(run: Run) -> None:
    class Declaring(Client):
        capacity = 5

    async def main() -> None:
        Declaring.made = []
        async with AsyncPool(1, worker=Declaring, capacity=CapacityPolicy(limit=2, strategy="hybrid")) as pool:
            await pool.wait_ready(PATIENCE)
            assert [worker.capacity for worker in pool.workers()] == [2]
        async with AsyncPool(1, worker=Declaring, capacity=CapacityPolicy(strategy="profile")) as pool:
            await pool.wait_ready(PATIENCE)
            assert [worker.capacity for worker in pool.workers()] == [5]

    run(main())


# Taint and recycling.


def test_a_tainted_worker_on_the_loop_gets_no_new_request_for_a_while(run: Run) -> None:
    async def main() -> None:
        async with AsyncPool(2, worker=Client, recycling=RecyclePolicy(taint_on=Oops, taint_duration=3600)) as pool:
            await pool.wait_ready(PATIENCE)
            with pytest.raises(Oops):
                await pool.do("fail")
            assert pool.stats().coroutines.tainted == 1
            answers = await asyncio.gather(*[pool.do("ask") for _ in range(4)])
            assert len(set(answers)) == 1
        async with AsyncPool(1, worker=Client, recycling=RecyclePolicy(taint_on=Oops, taint_duration=0.01)) as pool:
            with pytest.raises(Oops):
                await pool.do("fail")
            assert (await pool.do("ask", "x"))[1] == "x"  # after a while

    run(main())


def test_workers_are_tainted_by_name(run: Run) -> None:
    async def main() -> None:
        async with AsyncPool(1, threads=1, name="web") as pool:
            await pool.do(len, "")
            await pool.do(asyncio.sleep, 0)
            place, thread = pool.workers()
            assert pool.taint(thread.name, 60)
            assert pool.stats().threads.tainted == 1
            with pytest.raises(InvalidOption, match="others have no state to break"):
                pool.taint(place.name)
            with pytest.raises(InvalidOption, match="the name of a worker"):
                pool.taint("nobody")
            waiting = pool.submit(len, "abc")
            assert pool.explain(waiting).reason is Reason.TAINTED
        assert await waiting == 3  # a pool that closes needs everybody

    run(main())


@pytest.mark.parametrize("kind", ["loop", "threads"])
def test_workers_are_replaced_after_max_requests(run: Run, kind: str) -> None:
    async def main() -> None:
        cls: Any = Client if kind == "loop" else Model
        method = "ask" if kind == "loop" else "predict"
        async with AsyncPool(1, threads=1, worker=cls, recycling=RecyclePolicy(max_requests=3)) as pool:
            for _ in range(20):
                await pool.do(method)
            await until(lambda: len(cls.made) >= 4)
            stats = pool.stats().coroutines if kind == "loop" else pool.stats().threads
            assert stats.recycled >= 3
        assert all(each.closed for each in cls.made)

    run(main())


def test_workers_on_the_loop_are_replaced_when_they_are_old(run: Run) -> None:
    async def main() -> None:
        async with AsyncPool(1, worker=Client, recycling=RecyclePolicy(max_age=0.02)) as pool:
            await until(lambda: len(Client.made) >= 3)
            assert (await pool.do("ask", "x"))[1] == "x"
        assert all(each.closed for each in Client.made)

    run(main())


# Start.


class Delegate:
    def __init__(self, gate: threading.Event | None = None, error: Exception | None = None) -> None:
        self.gate = gate
        self.error = error
        self.told: list[Any] = []

    def prepare(self, pool_name: str) -> None:
        self.told.append((pool_name, threading.current_thread() is threading.main_thread()))
        if self.gate is not None:
            assert self.gate.wait(PATIENCE)
        if self.error is not None:
            raise self.error

    def started(self, pool_name: str, workers: int) -> None:
        self.told.append((pool_name, workers))


@pytest.mark.parametrize("cls", [Client, Model])
def test_a_delegate_prepares_the_pool_while_the_loop_goes_on(run: Run, cls: Any) -> None:
    async def main() -> None:
        gate = threading.Event()
        delegate = Delegate(gate)
        method = "ask" if cls is Client else "predict"
        name = "web" if cls is Client else "web-threads"
        async with AsyncPool(1, threads=1, worker=cls, name="web", startup=StartupPolicy(delegate=delegate)) as pool:
            future = pool.submit(method, "x")
            assert not await pool.wait_ready(0.01)
            assert not cls.made
            gate.set()
            assert await pool.wait_ready(PATIENCE)
            assert (await future)[1] == "x"
            await until(lambda: len(delegate.told) == 2)
            assert delegate.told == [(name, False), (name, 1)]

    run(main())


@pytest.mark.parametrize("cls", [Client, Model])
def test_a_delegate_that_fails_fails_the_pool(run: Run, cls: Any) -> None:
    async def main() -> None:
        async with AsyncPool(
            1, threads=1, worker=cls, startup=StartupPolicy(delegate=Delegate(error=Oops("no disk")))
        ) as pool:
            with pytest.raises(PoolFailed, match="no disk"):
                await pool.submit("ask" if cls is Client else "predict")
            with pytest.raises(PoolFailed, match="no disk"):
                await pool.wait_ready(PATIENCE)

    run(main())


@pytest.mark.parametrize("cls", [Client, Model])
def test_to_close_waits_for_a_delegate_but_no_longer_than_its_grace(run: Run, cls: Any) -> None:
    async def main() -> None:
        gate = threading.Event()
        pool = AsyncPool(1, threads=1, worker=cls, startup=StartupPolicy(delegate=Delegate(gate)))
        await pool.wait_ready(0)
        await pool.close(grace=0.01)
        assert pool.stats().state is PoolState.CLOSED
        closing = asyncio.ensure_future(pool.close())
        await steps(5)
        assert not closing.done()
        gate.set()
        await closing
        assert not cls.made

    run(main())


# Around every call.


def test_functions_and_coroutines_have_a_wrapper_each(run: Run) -> None:
    seen: list[tuple[str, str, bool]] = []
    on_loop = contextvars.ContextVar("on_loop", default=False)

    def wrap(call: Any) -> Any:
        seen.append(("wrap", call.func.__name__, on_loop.get()))
        return ("wrapped", call())

    async def awrap(call: Any) -> Any:
        seen.append(("awrap", call.func.__name__, on_loop.get()))
        return ("awrapped", await call())

    async def plus(x: int, *, by: int = 1) -> int:
        await asyncio.sleep(0)
        return x + by

    async def numbers(count: int) -> AsyncIterator[int]:
        for number in range(count):
            yield number

    async def main() -> None:
        on_loop.set(True)
        async with AsyncPool(2, threads=2, calls=CallPolicy(wrap=wrap, awrap=awrap)) as opened:
            pool: Any = opened  # for whom wrappers change what is returned
            assert await pool.do(plus, 1, by=2) == ("awrapped", 3)
            assert await pool.submit(len, "abc") == ("wrapped", 3)
            assert [x async for x in pool.map(plus, range(2))] == [("awrapped", 1), ("awrapped", 2)]
            assert [x async for x in pool.stream(numbers, 2)] == [0, 1]
            assert [x async for x in pool.using(timeout=5).stream(lambda: range(2))] == [0, 1]
        names = [(kind, name) for kind, name, _ in seen]
        assert names == [
            ("awrap", "plus"),
            ("wrap", "len"),
            ("awrap", "plus"),
            ("awrap", "plus"),
            ("awrap", "numbers"),
            ("wrap", "<lambda>"),
        ]
        assert all(carried for _, _, carried in seen)

    run(main())


def test_methods_are_wrapped_too(run: Run) -> None:
    async def awrap(call: Any) -> Any:
        return call.func.__qualname__, await call()

    async def main() -> None:
        async with AsyncPool(1, worker=Client, calls=CallPolicy(awrap=awrap)) as pool:
            name, (_, text) = await pool.do("ask", "x")
            assert (name, text) == ("Client.ask", "x")

    run(main())


# What has no meaning is rejected.


async def coroutine_function(_: Any) -> None:
    raise AssertionError


class AsyncDelegate(Delegate):
    async def prepare(self, pool_name: str) -> None:  # type: ignore[override]
        raise AssertionError


@pytest.mark.parametrize(
    ("options", "option", "why"),
    [
        ({"capacity": 2}, "capacity", "1 without worker=: max_workers limits the coroutines"),
        ({"capacity": 0}, "capacity", "≥ 1"),
        ({"capacity.strategy": "profile"}, "capacity.strategy", "'pool' without worker="),
        ({"min_workers": 1}, "min_workers", "for threads use min_threads"),
        ({"min_workers": 1, "worker": Model}, "min_workers", "unless worker= has coroutine methods"),
        ({"min_workers": 2, "max_workers": 1, "worker": Client}, "min_workers", "at most max_workers, which is 1"),
        ({"min_threads": 2, "threads": 1}, "min_threads", "at most threads, which is 1"),
        ({"calls.wrap": coroutine_function}, "wrap", "for coroutines there is awrap"),
        ({"calls.awrap": len}, "calls.awrap", "functions have wrap"),
        ({"calls.wrap": 5}, "wrap", "a function"),
        ({"worker": 5}, "worker", "a class"),
        ({"startup.delegate": AsyncDelegate()}, "startup.delegate", "prepare is a plain function"),
        ({"startup.delegate": object()}, "startup.delegate", "prepare"),
        ({"recycling.max_requests": 0}, "max_requests", "≥ 1"),
        ({"recycling.max_age": 0}, "max_age", "> 0"),
        ({"recycling.taint_on": "Oops"}, "taint_on", "classes of exceptions"),
        ({"restarts.limit": (5, 1)}, "restarts.limit", "a whole number"),
    ],
)
def test_options_without_a_meaning_are_rejected_and_why(options: dict[str, Any], option: str, why: str) -> None:
    with pytest.raises((InvalidOption, InvalidOptionType), match=why) as caught:
        AsyncPool(**in_groups(options))
    assert option in str(caught.value)


def test_pools_take_no_async_pool_and_say_what_to_do() -> None:
    with pytest.raises(Exception, match="an AsyncPool is awaited, and belongs to an event loop: keep it by itself"):
        Pools(web=AsyncPool(2))


# Looking at it.


def test_why_a_call_waits_is_explained(run: Run) -> None:
    async def main() -> None:
        door = Door()
        async with AsyncPool(1, threads=1, name="web") as pool:
            running, waiting = pool.submit(door, 1), pool.submit(door, 2)
            await door.wait_entered(1)
            assert explain(running).reason is Reason.RUNNING
            told = pool.explain(waiting)
            assert (told.reason, told.position, told.pool) == (Reason.NO_ROOM, 0, "web")
            assert "its only worker is busy" in str(told)
            whole = pool.explain()
            assert (whole.coroutines.reason, whole.threads.reason) == (Reason.NO_ROOM, Reason.IDLE)
            assert "web-threads" in str(whole)
            door.open()
            assert await waiting == 2
            assert (str(explain(waiting)), explain(waiting).reason) == ("a request is done", Reason.ENDED)
            failed = pool.submit(int, "x")
            await asyncio.wait([failed])
            assert "a request failed: invalid literal" in str(pool.explain(failed))
            cancelled = pool.submit(door)
            cancelled.cancel()
            assert str(explain(cancelled)) == "a request was cancelled"
            async with AsyncPool(1) as other:
                with pytest.raises(InvalidOptionType, match="a future of pool 'web'"):
                    pool.explain(other.submit(door))
            with pytest.raises(InvalidOptionType, match="a future of a pool"):
                explain(asyncio.get_running_loop().create_future())  # type: ignore[arg-type]

    run(main())


def test_a_retry_is_explained(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bullpen.pools.supervision.retries.FIRST_DELAY", 3600.0)

    async def main() -> None:
        async with AsyncPool(1, worker=Client) as pool:
            future = pool.using(idempotent=True).submit("die")
            await until(lambda: explain(future).reason is Reason.RETRYING)
            assert future.cancel()
            await at_rest(pool)

    run(main())


def test_sessions_of_both_sides_are_listed_and_ended(run: Run) -> None:
    async def main() -> None:
        async with AsyncPool(2, threads=2) as pool:
            view = pool.using(session="ada", affinity="strict_queue")
            await view.do(asyncio.sleep, 0)
            await view.do(len, "")
            assert [session.id for session in pool.sessions()] == ["ada", "ada"]
            assert pool.end_session("ada")
            assert not pool.end_session("ada")
            assert pool.sessions() == []

    run(main())


def test_instances_are_seen_by_their_session(run: Run) -> None:
    async def main() -> None:
        async with AsyncPool(4, worker=Client) as pool:
            view = pool.using(session="ada", affinity="strict_queue")
            assert len({await view.do("ask") for _ in range(8)}) == 1

    run(main())


def test_what_can_be_done_with_a_worker(run: Run) -> None:
    async def main() -> None:
        async with AsyncPool(1) as pool:
            assert pool.can("keep_instance")
            assert pool.can("keep_instance", threads=True)
            assert pool.can("cancel_running")
            assert not pool.can("cancel_running", threads=True)

    run(main())


def test_workers_that_keep_something_are_reported(run: Run) -> None:
    events: list[TelemetryEvent] = []

    async def main() -> None:
        async with AsyncPool(1, worker=Client, observer=events.append, name="web") as pool:
            await pool.do("ask")

    run(main())
    of_worker = [event.kind for event in events if event.worker == "web_0" and event.request is None]
    assert of_worker == [Kind.WORKER_STARTING, Kind.WORKER_READY, Kind.WORKER_STOPPING, Kind.WORKER_EXITED]
