"""Several pools by name: each lives its own life, and they end together."""

from __future__ import annotations

import inspect
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from bullpen import (
    CallPolicy,
    ConfigurationError,
    InvalidOption,
    InvalidOptionType,
    NoSuchMethod,
    Pool,
    PoolClosed,
    PoolFailed,
    PoolNotFound,
    Pools,
    PoolState,
)
from bullpen.testing import ManualClock, ScriptedRuntime

from .support import PATIENCE, Background, Blocker, eventually


def where() -> str:
    return threading.current_thread().name


def fail() -> None:
    raise LookupError("as it should")


def test_work_goes_to_the_pool_that_was_named() -> None:
    with Pools(default={"max_workers": 2}, gpu={"max_workers": 1, "max_queue": 5}) as pools:
        assert pools.do(where).startswith("default_")
        assert pools.using(pool="gpu", timeout=PATIENCE).do(where).startswith("gpu_")
        assert pools.using(timeout=PATIENCE).do(where).startswith("default_")
        assert pools["gpu"].do(where).startswith("gpu_")
        assert pools.pool("gpu") is pools["gpu"]
        assert pools.pool() is pools["default"]
        assert pools.submit(where).result(PATIENCE).startswith("default_")
        assert pools.serve(where)
        assert list(pools.map(abs, [-1, -2], buffersize=1)) == [1, 2]
        stats = pools.stats()
        assert (stats["gpu"].submitted, stats["default"].submitted) == (2, 6)
        assert [len(workers) for workers in pools.workers().values()] == [stats["default"].workers, 1]
    assert {stats.state for stats in pools.stats().values()} == {PoolState.CLOSED}


@pytest.mark.parametrize(
    ("names", "default_pool", "expected"),
    [
        (["a", "default"], None, "default"),
        (["a", "b"], None, "a"),
        (["a", "b"], "b", "b"),
        (["a", "default"], "a", "a"),
    ],
)
def test_which_pool_is_the_default(names: list[str], default_pool: str | None, expected: str) -> None:
    with Pools({name: {} for name in names}, default_pool=default_pool) as pools:
        assert pools.do(where).startswith(f"{expected}_")


def test_they_look_like_a_mapping_of_names() -> None:
    with Pools({"gpu-0": {}}, default={}) as pools:
        assert list(pools) == ["gpu-0", "default"]
        assert len(pools) == 2
        assert "gpu-0" in pools
        assert "gpu-1" not in pools
        assert repr(pools) == "<Pools gpu-0 initializing, default initializing; default default>"


def test_pools_that_were_there_keep_their_names_and_are_closed_too() -> None:
    press = Pool(1, name="press")
    with Pools(default=press, other={"name": "own"}) as pools:
        assert pools["default"] is press
        assert pools.stats()["default"].name == "press"
        assert pools.stats()["other"].name == "own"
        assert type(pools["other"]) is Pool
    assert press.stats().state is PoolState.CLOSED


def test_a_missing_pool_names_those_there_are() -> None:
    with Pools(default={}, graphics={}) as pools:
        for ask in (lambda: pools["graphic"], lambda: pools.using(pool="graphic"), lambda: pools.pool("graphic")):
            with pytest.raises(PoolNotFound) as caught:
                ask()
            expected = "there is no pool 'graphic', there are default, graphics; did you mean 'graphics'?"
            assert str(caught.value) == expected
            assert (caught.value.pool, caught.value.suggestion) == ("graphic", "graphics")
            assert caught.value.known == ("default", "graphics")
        with pytest.raises(KeyError, match=r"there is no pool 'x', there are default, graphics$"):
            pools["x"]
        odd: Any
        for odd in (3, [], {}):
            with pytest.raises(PoolNotFound):
                pools[odd]


def test_a_session_belongs_to_one_pool() -> None:
    with Pools(a={"max_workers": 2}, b={"max_workers": 2}) as pools:
        assert pools.using(pool="a", session="u42").do(where).startswith("a_")
        assert pools.using(pool="b", session="u42").do(where).startswith("b_")


# All verbs, with functions and with the names of methods.


class Scale:
    """A worker that knows one factor."""

    weighed = 0

    def weigh(self, weight: int, *, unit: int = 1) -> int:
        Scale.weighed += 1
        return 2 * weight * unit

    def portions(self, count: int) -> Iterator[int]:
        yield from range(count)

    async def drops(self, count: int) -> AsyncIterator[int]:
        for drop in range(count):
            yield drop


def test_methods_of_the_workers_of_the_default_pool_are_called_by_their_names() -> None:
    with Pools(scales={"max_workers": 1, "worker": Scale}, other={}) as pools:
        assert pools.submit("weigh", 3, unit=10).result(PATIENCE) == 60
        assert pools.do("weigh", 4) == 8
        weighed = Scale.weighed
        assert pools.serve("weigh", 5)
        assert eventually(lambda: Scale.weighed == weighed + 1)
        assert list(pools.map("weigh", [1, 2, 3], timeout=PATIENCE, buffersize=2)) == [2, 4, 6]
        assert list(pools.stream("portions", 3)) == [0, 1, 2]
        assert list(pools.stream("drops", 3)) == [0, 1, 2]
        with pytest.raises(NoSuchMethod, match="weight"):
            pools.do("weight", 1)


def test_a_method_is_asked_of_the_pool_that_was_named() -> None:
    with Pools(default={}, scales={"max_workers": 1, "worker": Scale}) as pools:
        assert pools.using(pool="scales", session="u42").do("weigh", 4) == 8
        assert list(pools.using(pool="scales", timeout=PATIENCE).stream("portions", 2)) == [0, 1]
        verbs = (pools.submit, pools.serve, pools.do, pools.map, pools.stream)
        for verb in verbs:
            with pytest.raises(NoSuchMethod, match="made without worker="):
                verb("weigh", [4])


def test_streams_run_on_the_default_pool() -> None:
    def here(times: int) -> Iterator[str]:
        for _ in range(times):
            yield where()

    with Pools(default={"max_workers": 1}, other={}) as pools:
        names = list(pools.stream(here, 3))
        assert len(names) == 3
        assert all(name.startswith("default_") for name in names)
        with pytest.raises(TypeError, match="needs a function that returns an iterable"):
            next(pools.stream(abs, -1))  # type: ignore[call-overload]


@pytest.mark.parametrize("verb", ["submit", "serve", "do", "map", "stream"])
def test_verbs_have_the_signatures_of_a_pools(verb: str) -> None:
    assert inspect.signature(getattr(Pools, verb)) == inspect.signature(getattr(Pool, verb))


# One is broken.


@pytest.mark.parametrize(
    "broken",
    [{"initializer": fail}, {"initializer": fail, "min_workers": 1}, {"calls": CallPolicy(scheduler=cast(Any, fail))}],
    ids=["a worker cannot start", "none can start", "it cannot be made"],
)
def test_a_broken_pool_leaves_the_others_serving(broken: dict[str, Any]) -> None:
    with Pools(default={}, broken=broken) as pools:
        assert pools.do(abs, -1) == 1
        with pytest.raises(PoolFailed) as caught:
            pools.using(pool="broken").submit(int).result(PATIENCE)
        assert caught.value.pool == "broken"
        assert "as it should" in str(caught.value)
        assert isinstance(caught.value.__cause__, LookupError)
        assert pools.do(abs, -1) == 1
        assert "broken" in pools
        assert "broken failed" in repr(pools)
        if "broken" not in pools.stats():
            assert list(pools.failures()) == ["broken"]


def test_the_default_may_be_the_broken_one() -> None:
    with Pools(default={"calls": CallPolicy(scheduler=cast(Any, fail))}, other={}) as pools:
        with pytest.raises(PoolFailed):
            pools.do(int)
        assert pools.using(pool="other").do(int) == 0


def test_nothing_is_started_if_any_part_is_wrong() -> None:
    runtime = ScriptedRuntime()
    for wrong in (
        {"max_workers": 0},
        {"max_worker": 1},
        {"runtime": "steam"},
        {"recycling": {"idle_timeout": "soon"}},
        3,
    ):
        with pytest.raises(ConfigurationError, match="pool 'b'"):
            Pools(a={"runtime": runtime, "min_workers": 1}, b=wrong)
        assert runtime.workers == []
    with pytest.raises(ConfigurationError, match="default_pool is 'c', but the pools are a") as caught:
        Pools(a={"runtime": runtime, "min_workers": 1}, default_pool="c")
    assert caught.value.option == "default_pool"
    with pytest.raises(InvalidOptionType, match="default_pool"):
        Pools(a={"runtime": runtime, "min_workers": 1}, default_pool=3)  # type: ignore[arg-type]
    assert runtime.workers == []


def test_a_wrong_value_says_what_is_allowed() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Pools(a={"max_workers": 0})
    assert str(caught.value) == "Pools: pool 'a': max_workers must be a whole number ≥ 1, got 0"
    assert isinstance(caught.value.__cause__, InvalidOption)
    assert caught.value.option == "max_workers"
    with pytest.raises(ConfigurationError, match="no pools"):
        Pools()
    with pytest.raises(ConfigurationError, match="table of pools"):
        Pools(3)  # type: ignore[arg-type]


# The end.


def test_one_that_hangs_does_not_keep_the_others_from_draining() -> None:
    with Blocker() as blocker, Pools(hangs={"max_workers": 1}, drains={"max_workers": 1}) as pools:
        pools.using(pool="hangs").submit(blocker)
        last = [pools.using(pool="drains").submit(abs, -number) for number in range(20)][-1]
        with Background(pools.close):
            assert last.result(PATIENCE) == 19
            assert eventually(lambda: pools.stats()["drains"].state is PoolState.CLOSED)
            assert pools.stats()["hangs"].state is PoolState.DRAINING
            blocker.release()


@pytest.mark.leaks("the grace leaves threads behind on purpose")
def test_the_grace_runs_for_all_at_once() -> None:
    clock = ManualClock()
    blocker = Blocker()
    pools = Pools(a={"max_workers": 1, "clock": clock}, b={"max_workers": 1, "clock": clock})
    for name in pools:
        pools.using(pool=name).submit(blocker)
    blocker.wait_entered(2)
    closing = Background(lambda: pools.close(grace=5))
    assert eventually(lambda: all(stats.state is PoolState.DRAINING for stats in pools.stats().values()))
    while closing.running and clock.monotonic() < 1005:
        clock.wait_for_waiters(1)
        clock.advance(5)
    closing.join()
    assert clock.monotonic() == 1005, "the second pool waited for a grace of its own"
    blocker.release()


def test_without_drain_waiting_requests_are_cancelled_in_all_pools() -> None:
    with Blocker() as blocker:
        pools = Pools(a={"max_workers": 1}, b={"max_workers": 1})
        waiting = []
        for name in pools:
            pools.using(pool=name).submit(blocker)
            waiting.append(pools.using(pool=name).submit(int))
        blocker.wait_entered(2)
        closing = Background(lambda: pools.close(drain=False))
        assert all(eventually(future.cancelled) for future in waiting)
        blocker.release()
        closing.join()


def test_leaving_by_an_exception_cancels_what_waits() -> None:
    with Blocker() as blocker:
        pools = Pools(a={"max_workers": 1})
        pools.submit(blocker)
        blocker.wait_entered()
        waiting = pools.submit(int)
        leaving = Background(lambda: pools.__exit__(ZeroDivisionError, None, None))
        assert eventually(waiting.cancelled)
        blocker.release()
        leaving.join()


class Unclosable(Pool):
    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait, cancel_futures=cancel_futures)
        raise LookupError(self.stats().name)


def test_an_error_while_one_closes_does_not_stop_the_others() -> None:
    pools = Pools(a=Unclosable(1, name="a"), b={}, c={})
    with pytest.raises(LookupError, match="a"):
        pools.close()
    assert {stats.state for stats in pools.stats().values()} == {PoolState.CLOSED}
    pools = Pools(a=Unclosable(1, name="a"), b=Unclosable(1, name="b"))
    with pytest.raises(ExceptionGroup) as caught:
        pools.close()
    assert len(caught.value.exceptions) == 2
    assert {stats.state for stats in pools.stats().values()} == {PoolState.CLOSED}


def test_they_may_be_closed_by_their_own_work_and_again() -> None:
    pools = Pools(a={}, b={})
    pools.submit(pools.close).result(PATIENCE)
    pools.close()
    with pytest.raises(PoolClosed):
        pools.submit(int)
    with pytest.raises(InvalidOption, match="grace"):
        pools.close(grace=-1)


# Files.


def test_pools_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text(
        """
        [tool.bullpen]
        default_pool = "web"

        [tool.bullpen.pools.gpu]
        max_workers = 1
        calls.queue_timeout = "250ms"
        calls.scheduler = "bullpen.pools.dispatch.ready_queue:MostRecentlyUsed"

        [tool.bullpen.pools.web]
        max_workers = 3
        max_queue = 10
        """
    )
    monkeypatch.chdir(tmp_path)
    for pools in (Pools.from_toml(), Pools.from_toml(tmp_path / "pyproject.toml"), Pools.from_toml("pyproject.toml")):
        with pools:
            assert pools.do(where).startswith("web_")
            assert pools.stats()["web"].max_workers == 3
            assert pools["gpu"]._engine.options.queue_timeout == 0.25


def test_a_wrong_file_is_named_with_pool_and_option(tmp_path: Path) -> None:
    path = tmp_path / "pools.toml"
    path.write_text("[tool.bullpen.pools.web]\nmax_workers = -3\n")
    with pytest.raises(ConfigurationError) as caught:
        Pools.from_toml(path)
    assert str(caught.value) == f"{path}: pool 'web': max_workers must be a whole number ≥ 1, got -3"
    path.write_text('[tool.bullpen]\ndefault_pool = "gpu"\n[tool.bullpen.pools.web]\n')
    with pytest.raises(ConfigurationError, match=r"pools\.toml: default_pool is 'gpu'"):
        Pools.from_toml(path)


def test_pools_of_a_dictionary() -> None:
    config: dict[str, dict[str, Any]] = {
        "a": {"max_workers": 2, "recycling": {"idle_timeout": "5m"}},
        "b": {"max_workers": 1},
    }
    with Pools.from_config(config, default_pool="b") as pools:
        assert pools.do(where).startswith("b_")
        assert pools["a"]._engine.options.idle_timeout == 300
    with pytest.raises(ConfigurationError, match="configuration: pool 'a'"):
        Pools.from_config({"a": {"max_workers": "many"}})


def test_an_interrupt_while_they_begin_to_end_comes_after_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    pools = Pools(a={}, b={}, c={})
    shutdown = Pool.shutdown

    def interrupted(pool: Pool, **options: bool) -> None:
        shutdown(pool, wait=False)
        if pool is not pools["c"]:
            raise KeyboardInterrupt

    monkeypatch.setattr(Pool, "shutdown", interrupted)
    with pytest.raises(BaseExceptionGroup) as caught:
        pools.close()
    assert [type(error) for error in caught.value.exceptions] == [KeyboardInterrupt] * 2
    assert {stats.state for stats in pools.stats().values()} == {PoolState.CLOSED}


def test_all_of_them_have_the_same_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, graces, close = ManualClock(), list[float | None](), Pool.close

    def slow(pool: Pool, grace: float | None = None, drain: bool = True) -> None:
        graces.append(grace)
        clock.advance(3)
        close(pool, grace, drain)

    monkeypatch.setattr(Pool, "close", slow)
    Pools({name: Pool(1, clock=clock) for name in "abc"}).close(grace=5)
    assert graces == [5.0, 2.0, 0.0]


def test_those_with_maps_are_told_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """To take in the rest of a map may mean to wait, and the others should not wait for that."""
    told, shutdown = list[str](), Pool.shutdown

    def noted(pool: Pool, **options: bool) -> None:
        told.append(pool.stats().name)
        shutdown(pool, **options)

    monkeypatch.setattr(Pool, "shutdown", noted)
    with Blocker() as blocker:
        pools = Pools(a={}, b={}, c={})
        results = pools["a"].map(blocker, [1, 2, 3], buffersize=1)
        blocker.wait_entered()
        with Background(pools.close):
            assert eventually(lambda: len(told) >= 2)
            blocker.release()
        assert list(results) == [1, 2, 3]
    assert told == ["b", "c", "a"]
