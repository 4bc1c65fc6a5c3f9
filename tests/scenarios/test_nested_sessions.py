"""Requests that wait for requests of strict sessions, which only one worker may run: no ring of them hangs."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import as_completed, wait
from typing import Any

import pytest

from bullpen import NestedWait, Pool, PoolFuture, PoolView
from bullpen.pools.dispatch.worker import Worker
from bullpen.pools.runtimes.port import current_worker
from bullpen.pools.supervision.nested_waits import awaited_by
from tests.scenarios.support import PATIENCE, Blocker, eventually

BOUNDS: list[dict[str, Any]] = [{}, {"max_queue": 100}]


@pytest.fixture(params=BOUNDS, ids=["unbounded", "bounded"])
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    chosen: dict[str, Any] = request.param
    return chosen


def strict(pool: Pool, session: object) -> PoolView:
    return pool.using(session=str(session), affinity="strict_queue")


def bind(pool: Pool, *sessions: object) -> list[Worker | None]:
    """Bind each session to a worker of its own."""
    barrier = threading.Barrier(len(sessions))

    def here() -> Worker | None:
        barrier.wait(PATIENCE)
        return current_worker()

    workers = [future.result(PATIENCE) for future in [strict(pool, session).submit(here) for session in sessions]]
    assert len(set(workers)) == len(sessions)
    return workers


@pytest.mark.parametrize("length", [2, 3, 5])
def test_in_a_ring_of_sessions_one_worker_runs_its_own_line(options: dict[str, Any], length: int) -> None:
    """Each waits for a request of the next session, for which the next one's worker has no time, as it waits too."""
    with Pool(length, **options) as pool:
        workers = bind(pool, *range(length))
        barrier = threading.Barrier(length)

        def outer(number: int) -> Worker | None:
            barrier.wait(PATIENCE)
            inner = strict(pool, (number + 1) % length).submit(current_worker)
            barrier.wait(PATIENCE)
            return inner.result()

        ring = [strict(pool, number).submit(outer, number) for number in range(length)]
        assert [future.result(PATIENCE) for future in ring] == [*workers[1:], workers[0]]


def test_who_is_asked_back_is_told(options: dict[str, Any]) -> None:
    """Session a waits for b, and b for a request of a, whose worker is too deep in its waiting to run it."""
    with Pool(2, **options) as pool:
        bind(pool, "a", "b")

        def ask_back() -> str:
            assert eventually(lambda: _awaited(outer))
            with pytest.raises(NestedWait, match="wait for itself"):
                strict(pool, "a").submit(int).result()
            return "told"

        def ask() -> str:
            return strict(pool, "b").submit(ask_back).result()

        outer = strict(pool, "a").submit(ask)
        assert outer.result(PATIENCE) == "told"


def test_a_worker_runs_the_awaited_requests_in_its_line_before_it_waits() -> None:
    with Pool(2) as pool:
        bind(pool, "a", "b")
        asked = threading.Event()
        ran_on: list[Worker | None] = []

        def ask_back() -> None:
            future = strict(pool, "a").submit(lambda: ran_on.append(current_worker()))
            asked.set()
            future.result()

        def ask() -> Worker | None:
            future = strict(pool, "b").submit(ask_back)
            assert asked.wait(PATIENCE)
            assert eventually(lambda: _awaited(future))
            future.result()
            return current_worker()

        here = strict(pool, "a").submit(ask).result(PATIENCE)
        assert ran_on == [here]


def _awaited(future: PoolFuture[Any]) -> bool:
    """Whether what `future` runs waits for something."""
    return awaited_by(future) is not None


def test_a_ring_by_way_of_a_request_that_was_given_up_is_told() -> None:
    """Nobody waits for it any more, but it still occupies its worker."""
    with Pool(2) as pool, Blocker() as blocker:
        bind(pool, "a", "b")

        def ask_back() -> str:
            blocker()
            with pytest.raises(NestedWait):
                strict(pool, "a").submit(int).result()
            return "told"

        inner: list[PoolFuture[str]] = []

        def ask() -> None:
            inner.append(strict(pool, "b").submit(ask_back))
            inner[0].result()

        outer = strict(pool, "a").using(run_timeout=0.05).submit(ask)
        blocker.wait_entered()
        assert outer.exception(PATIENCE) is not None
        blocker.release()
        assert inner[0].result(PATIENCE) == "told"


def test_a_line_that_will_get_its_turn_may_be_waited_for() -> None:
    """Its worker is busy with something that ends."""
    with Pool(2) as pool, Blocker() as blocker:
        holding = strict(pool, "a").submit(blocker)
        blocker.wait_entered()

        def ask() -> int:
            future = strict(pool, "a").submit(int)
            threading.Timer(0.02, blocker.release).start()
            return future.result()

        assert strict(pool, "b").submit(ask).result(PATIENCE) == 0
        assert holding.result(PATIENCE) is None


def test_a_worker_with_room_is_no_ring_although_all_it_runs_waits() -> None:
    with Pool(2, capacity=2) as pool:
        b_bound = strict(pool, "b").submit(current_worker).result(PATIENCE)

        def ask_back() -> Worker | None:
            return strict(pool, "b").submit(current_worker).result()

        def ask() -> Worker | None:
            return strict(pool, "a").submit(ask_back).result()

        assert strict(pool, "b").submit(ask).result(PATIENCE) is b_bound


def test_a_full_worker_all_of_whose_requests_wait_for_one_is_a_ring() -> None:
    with Pool(2, capacity=2) as pool, Blocker() as both:
        blocker = Blocker()
        strict(pool, "a").submit(blocker)
        strict(pool, "a").submit(blocker)
        blocker.wait_entered(2)
        assert strict(pool, "b").submit(int).result(PATIENCE) == 0
        blocker.release()

        def ask_back() -> str:
            both()
            with pytest.raises(NestedWait):
                strict(pool, "a").submit(int).result()
            return "told"

        asked = strict(pool, "b").submit(ask_back)
        both.wait_entered()
        outer = [strict(pool, "a").submit(asked.result) for _ in range(2)]
        assert eventually(lambda: all(_awaited(future) for future in outer))
        both.release()
        assert [future.result(PATIENCE) for future in outer] == ["told", "told"]


# Where the pool cannot take the waiting over.


@pytest.mark.parametrize("how", ["wait", "as_completed", "result", "do"])
def test_a_wait_for_a_request_that_only_the_waiting_worker_may_run_is_an_error(how: str) -> None:
    with Pool(2) as pool:
        view = strict(pool, "s")

        def outer() -> None:
            match how:
                case "wait":
                    wait([view.submit(int)])
                case "as_completed":
                    list(as_completed([view.submit(int)]))
                case "result":
                    view.submit(int).result(PATIENCE)
                case _:
                    view.using(timeout=PATIENCE).do(int)

        assert isinstance(view.submit(outer).exception(PATIENCE), NestedWait)
        assert view.do(int) == 0


@pytest.mark.parametrize("how", ["wait", "result"])
def test_no_worker_waits_for_a_new_session_where_no_worker_can_become_free(how: str) -> None:
    """A helper is no worker that a session could have, and the only other one waits for the helper."""

    def begin_a_session() -> int:
        future = strict(pool, "new").submit(int)
        if how == "wait":
            wait([future])
        return future.result()

    def outer() -> BaseException | None:
        helped = pool.submit(begin_a_session)
        wait([helped])
        return helped.exception()

    with Pool(1) as pool:
        error = pool.submit(outer).result(PATIENCE)
        assert isinstance(error, NestedWait)
        assert "session 'new'" in str(error)
        assert strict(pool, "new").do(int) == 0


def test_a_helper_waits_for_a_new_session_if_a_worker_gets_free() -> None:
    with Pool(2) as pool, Blocker() as blocker:

        def begin_a_session() -> int:
            future = strict(pool, "new").submit(int)
            threading.Timer(0.02, blocker.release).start()
            return future.result()

        def outer() -> int:
            pool.submit(blocker)
            blocker.wait_entered()
            helped = pool.submit(begin_a_session)
            wait([helped])
            return helped.result()

        assert pool.submit(outer).result(PATIENCE) == 0


def test_a_worker_reads_a_stream_of_its_own_session() -> None:
    def count() -> Iterator[int]:
        yield from range(3)

    async def acount() -> AsyncIterator[int]:
        for number in range(3):
            yield number

    with Pool(2) as pool:
        view = strict(pool, "s")
        assert view.submit(lambda: list(view.stream(count))).result(PATIENCE) == [0, 1, 2]
        assert view.submit(lambda: list(view.stream(acount))).result(PATIENCE) == [0, 1, 2]
        limited = view.using(timeout=PATIENCE)
        assert isinstance(view.submit(lambda: list(limited.stream(count))).exception(PATIENCE), NestedWait)
