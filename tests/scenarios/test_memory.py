"""Nothing of a call outlives it: neither idle workers nor reference cycles keep arguments, results or futures alive."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, wait
from typing import Any

import pytest

from bullpen import CallPolicy, Pool, PoolFuture, PoolView, QueueTimeout, RunTimeout, WorkerBroken
from tests.scenarios.support import PATIENCE, Blocker, eventually


class Thing:
    """An argument or a result that can be watched."""


class Oops(Exception):
    pass


def give_back(thing: Thing) -> Thing:
    return thing


def fail(thing: Thing) -> None:
    raise Oops


def fail_by_name(*, thing: Thing) -> None:
    raise Oops


def yield_twice(thing: Thing) -> Iterator[Thing]:
    yield thing
    yield thing


Call = Callable[[PoolView, Thing], object]


def submit(pool: PoolView, thing: Thing) -> object:
    future = pool.submit(give_back, thing)
    assert future.result(PATIENCE) is thing
    return future


def submit_by_name(pool: PoolView, thing: Thing) -> object:
    future = pool.submit(give_back, thing=thing)
    assert future.result(PATIENCE) is thing
    return future


def fails(pool: PoolView, thing: Thing) -> object:
    return failed(pool.submit(fail, thing))


def failed(future: PoolFuture[None]) -> object:
    """Also with the standard's futures, a frame that both has one and is in its error's traceback is a cycle."""
    try:
        future.result(PATIENCE)
    except Oops as error:
        error.__traceback__ = None
    return future


def fails_by_name(pool: PoolView, thing: Thing) -> object:
    return failed(pool.submit(fail_by_name, thing=thing))


def looked_at(pool: PoolView, thing: Thing) -> object:
    future = pool.submit(fail, thing)
    assert isinstance(future.exception(PATIENCE), Oops)
    return future


def waited_for(pool: PoolView, thing: Thing) -> object:
    future = pool.submit(give_back, thing)
    wait([future], PATIENCE)
    return future


def called_back(pool: PoolView, thing: Thing) -> object:
    future = pool.submit(give_back, thing)
    future.add_done_callback(lambda done: done.result())
    future.result(PATIENCE)
    return future


def do(pool: PoolView, thing: Thing) -> object:
    assert pool.do(give_back, thing) is thing
    return None


def do_fails(pool: PoolView, thing: Thing) -> object:
    with contextlib.suppress(Oops):
        pool.do(fail, thing)
    return None


def serve(pool: PoolView, thing: Thing) -> object:
    with Blocker() as blocker:
        assert pool.serve(lambda thing: blocker(thing), thing)
        blocker.wait_entered()
    return None


def map_all(pool: PoolView, thing: Thing) -> object:
    assert list(pool.map(give_back, [thing])) == [thing]
    return None


def map_fails(pool: PoolView, thing: Thing) -> object:
    with contextlib.suppress(Oops):
        list(pool.map(fail, [thing, thing]))
    return None


def stream_all(pool: PoolView, thing: Thing) -> object:
    assert list(pool.stream(yield_twice, thing)) == [thing, thing]
    return None


def stream_left(pool: PoolView, thing: Thing) -> object:
    with pool.stream(yield_twice, thing) as stream:
        assert next(stream) is thing
    return None


def nested(pool: PoolView, thing: Thing) -> object:
    def outer(thing: Thing) -> Thing:
        return pool.submit(give_back, thing).result()

    assert pool.submit(outer, thing).result(PATIENCE) is thing
    return None


def cancelled(pool: PoolView, thing: Thing) -> object:
    with Blocker() as blocker:
        pool.serve(blocker)
        blocker.wait_entered()
        future = pool.submit(give_back, thing)
        assert future.cancel()
        with contextlib.suppress(CancelledError):
            future.result()
    return future


def expired(pool: PoolView, thing: Thing) -> object:
    with Blocker() as blocker:
        pool.serve(blocker)
        blocker.wait_entered()
        future = pool.using(queue_timeout=0.01).submit(give_back, thing)
        assert isinstance(future.exception(PATIENCE), QueueTimeout)
    return future


def ran_too_long(pool: PoolView, thing: Thing) -> object:
    with Blocker() as blocker:
        future = pool.using(run_timeout=0.01).submit(blocker, thing)
        assert isinstance(future.exception(PATIENCE), RunTimeout)
    return future


def in_a_session(pool: PoolView, thing: Thing) -> object:
    view = pool.using(session="s", affinity="strict_queue")
    assert view.do(give_back, thing) is thing
    assert view.do(give_back, thing) is thing
    return None


def broken(pool: PoolView, thing: Thing) -> object:
    def break_down(thing: Thing) -> None:
        raise WorkerBroken

    return type(pool.submit(break_down, thing).exception(PATIENCE))


CALLS: list[Call] = [
    submit,
    submit_by_name,
    fails,
    fails_by_name,
    looked_at,
    waited_for,
    called_back,
    do,
    do_fails,
    serve,
    map_all,
    map_fails,
    stream_all,
    stream_left,
    nested,
    cancelled,
    expired,
    ran_too_long,
    in_a_session,
    broken,
]
POOLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "limited": {"max_queue": 9, "calls": CallPolicy(queue_timeout=PATIENCE, log_errors=False)},
    "lanes": {"capacity": 2, "max_workers": 1},
    "observed": {"observer": lambda event: None},
}


@pytest.mark.parametrize("options", POOLS.values(), ids=POOLS)
@pytest.mark.parametrize("call", CALLS, ids=lambda call: str(call.__name__))
def test_nothing_of_a_call_is_left_without_the_garbage_collector(call: Call, options: dict[str, Any]) -> None:
    if "capacity" in options and call in (cancelled, expired):
        pytest.skip("there is room for two")
    gc.collect()
    gc.disable()
    try:
        with Pool(**{"max_workers": 1, "calls": CallPolicy(log_errors=False), **options}) as pool:
            thing = Thing()
            gone = [weakref.ref(thing)]
            left = call(pool.using(), thing)
            if left is not None and not isinstance(left, type):
                gone.append(weakref.ref(left))  # type: ignore[arg-type]
            del thing, left
            assert eventually(lambda: all(ref() is None for ref in gone), within=1), [
                gc.get_referrers(ref()) for ref in gone if ref() is not None
            ]
    finally:
        gc.enable()
