"""Workers that keep an object of their own: made in them, warm before the first call, closed when they end."""

from __future__ import annotations

import contextvars
import functools
import logging
import threading
from concurrent.futures import wait
from typing import Any

import pytest

from bullpen import (
    CallPolicy,
    CapacityPolicy,
    InvalidOption,
    NoSuchMethod,
    NotCallable,
    Pool,
    PoolFailed,
    PoolSaturated,
    RecyclePolicy,
)
from bullpen.errors import InvalidOptionType
from bullpen.testing import ScriptedRuntime

from .support import PATIENCE, Blocker, eventually, printed


class Model:
    """Counts what happens to it, and where."""

    made: list[Model]
    capacity = 3

    def __init__(self, scale: int = 1) -> None:
        self.scale = scale
        self.log = [f"made in {threading.current_thread().name}"]
        type(self).made.append(self)

    def warm_up(self) -> None:
        self.log.append("warm")

    def close(self) -> None:
        self.log.append(f"closed in {threading.current_thread().name}")

    def predict(self, value: int, plus: int = 0) -> int:
        return value * self.scale + plus

    def whoami(self) -> Model:
        return self

    @staticmethod
    def double(value: int) -> int:
        return 2 * value

    @property
    def size(self) -> int:
        return 1

    def _hidden(self) -> None: ...


@pytest.fixture(autouse=True)
def fresh() -> None:
    Model.made = []


def test_each_worker_has_an_instance_made_warmed_up_and_closed_in_it() -> None:
    with Pool(2, worker=Model, name="m") as pool:
        assert pool.wait_ready(PATIENCE)
        assert len(Model.made) == 2
        assert all(model.log[1:] == ["warm"] for model in Model.made)
    for model in Model.made:
        thread = model.log[0].removeprefix("made in ")
        assert model.log == [f"made in {thread}", "warm", f"closed in {thread}"]
    assert {model.log[0] for model in Model.made} == {"made in m_0", "made in m_1"}


def test_methods_are_called_by_name_in_every_kind_of_call() -> None:
    with Pool(2, worker=Model) as pool:
        assert pool.submit("predict", 3, plus=1).result(PATIENCE) == 4
        assert pool.do("double", 4) == 8
        assert pool.using(timeout=PATIENCE).do("predict", 5) == 5
        assert list(pool.map("predict", range(5), [10] * 5)) == [10, 11, 12, 13, 14]
        assert list(pool.using(timeout=PATIENCE).map("predict", range(3))) == [0, 1, 2]
        assert pool.serve("predict", 1)
        assert pool.using(queue_timeout=PATIENCE).serve("predict", 1)
        assert pool.submit(abs, -1).result(PATIENCE) == 1, "functions run as ever"
    assert pool.stats().failed == 0


def test_a_call_runs_on_the_instance_of_its_own_worker() -> None:
    together = threading.Barrier(2)

    class Meeting(Model):
        def meet(self) -> tuple[Model, str]:
            together.wait(PATIENCE)
            return self, threading.current_thread().name

    with Pool(2, worker=Meeting) as pool:
        seen = [future.result(PATIENCE) for future in [pool.submit("meet") for _ in range(2)]]
    assert len({id(model) for model, _ in seen}) == 2
    assert all(model.log[0] == f"made in {name}" for model, name in seen)


def test_a_factory_makes_the_instances_too() -> None:
    with Pool(1, worker=functools.partial(Model, 10)) as pool:
        assert pool.do("predict", 2) == 20
        with pytest.raises(NoSuchMethod):
            pool.submit("nothing")
    with Pool(1, worker=lambda: Model(7)) as pool:
        assert pool.do("predict", 2) == 14
        error = pool.submit("nothing").exception(PATIENCE)
        assert isinstance(error, NoSuchMethod)
        assert "predict" in error.methods


@pytest.mark.parametrize("face", ["pool", "view"])
@pytest.mark.parametrize("call", ["submit", "serve", "do", "map"])
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("prdict", "no method"),
        ("size", "no method"),
        ("capacity", "no method"),
        ("_hidden", "not public"),
        ("__init__", "not public"),
        ("warm_up", "by the pool itself"),
        ("close", "by the pool itself"),
        ("", "no method"),
    ],
)
def test_a_name_that_is_no_public_method_is_rejected_at_submission(face: str, call: str, name: str, says: str) -> None:
    with Pool(1, worker=Model) as pool:
        submitted = pool.stats().submitted
        with pytest.raises(NoSuchMethod, match=says) as caught:
            getattr(pool if face == "pool" else pool.using(timeout=PATIENCE), call)(name, [1])
        error = caught.value
        assert isinstance(error, AttributeError)
        assert isinstance(error, NotCallable)
        assert (error.name, error.owner) == (name, "Model")
        assert error.methods == ("double", "predict", "whoami")
        assert pool.stats().submitted == submitted


def test_a_name_in_a_pool_without_instances_is_rejected() -> None:
    with Pool(1) as pool, pytest.raises(NoSuchMethod, match=r"without worker=.*function itself") as caught:
        pool.submit("predict")
    assert caught.value.methods == ()


def test_a_pool_with_instances_is_warm_from_the_start() -> None:
    runtime = ScriptedRuntime()
    with Pool(3, worker=Model, runtime=runtime) as pool:
        assert len(runtime.workers) == 3
        future = pool.submit("predict", 4)
        runtime.run_all()
        assert future.result(0) == 4
    assert [model.log[-1].split()[0] for model in Model.made] == ["closed"] * 3
    lazy = ScriptedRuntime()
    with Pool(3, worker=Model, runtime=lazy, min_workers=0):
        assert lazy.workers == []


class Broken:
    def __init__(self) -> None:
        raise ValueError("no weights")


class Cold:
    def warm_up(self) -> None:
        raise ValueError("no weights")

    def close(self) -> None:
        raise AssertionError("it was never ready")


@pytest.mark.parametrize("worker", [Broken, Cold])
def test_an_instance_that_cannot_be_made_is_a_start_that_failed(worker: Any) -> None:
    with Pool(1, worker=worker) as pool:
        with pytest.raises(PoolFailed, match="no weights") as caught:
            pool.wait_ready(PATIENCE)
        assert isinstance(caught.value.__cause__, ValueError)


def test_the_initializer_runs_before_the_instance_is_made() -> None:
    order: list[str] = []

    class Late:
        def __init__(self) -> None:
            order.append("instance")

    with Pool(1, initializer=order.append, initargs=("initializer",), worker=Late) as pool:
        assert pool.wait_ready(PATIENCE)
    assert order == ["initializer", "instance"]


def test_an_error_in_close_is_logged_and_the_worker_ends(caplog: pytest.LogCaptureFixture) -> None:
    class Sticky:
        def close(self) -> None:
            raise SystemExit("stuck")

    with caplog.at_level(logging.ERROR, "bullpen"), Pool(1, worker=Sticky) as pool:
        assert pool.wait_ready(PATIENCE)
    assert "could not be closed" in caplog.text
    assert "Sticky" in caplog.text
    assert pool.stats().workers == 0


def test_people_see_class_and_method() -> None:
    with Blocker() as blocker:

        class Slow:
            def think(self) -> None:
                blocker()

        seen: list[str] = []

        def wrap(call: Any) -> Any:
            seen.append(call.func.__qualname__)
            return call()

        label = Slow.think.__qualname__
        with Pool(1, worker=Slow) as plain, Pool(1, worker=Slow, calls=CallPolicy(wrap=wrap)) as wrapped:
            plain.using(context=True).submit("think")
            wrapped.using(context=True).submit("think")
            blocker.wait_entered(2)
            assert [worker.running for worker in plain.workers()] == [(label,)]
            assert [worker.running for worker in wrapped.workers()] == [(label,)]
            blocker.release()
        assert seen == [label]


variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)


def test_contexts_are_carried_to_methods() -> None:
    class Reader:
        def read(self) -> int:
            return variable.get()

    token = variable.set(5)
    try:
        with Pool(1, worker=Reader) as pool:
            assert pool.using(context=True).do("read") == 5
            assert pool.do("read") == 0
    finally:
        variable.reset(token)


# Workers that declare their capacity.


@pytest.mark.parametrize(
    ("options", "capacity"),
    [
        ({}, 1),
        ({"capacity": 2}, 2),
        ({"capacity": CapacityPolicy(strategy="profile")}, 3),
        ({"capacity": CapacityPolicy(limit=2, strategy="profile")}, 3),
        ({"capacity": CapacityPolicy(limit=2, strategy="hybrid")}, 2),
        ({"capacity": CapacityPolicy(limit=9, strategy="hybrid")}, 3),
    ],
)
def test_the_strategy_says_whose_capacity_counts(options: dict[str, Any], capacity: int) -> None:
    together = threading.Barrier(capacity)
    with Pool(1, worker=Model, **options) as pool:
        assert pool.wait_ready(PATIENCE)
        assert [worker.capacity for worker in pool.workers()] == [capacity]
        for future in [pool.submit(together.wait, PATIENCE) for _ in range(capacity)]:
            future.result(PATIENCE)
    assert len(Model.made) == 1
    assert Model.made[0].log[2] == Model.made[0].log[0].replace("made", "closed"), "closed where it was made"


@pytest.mark.parametrize("declared", [None, 0, -1, "2", 1.5, True])
def test_a_capacity_that_is_none_fails_the_start(declared: Any) -> None:
    class Wrong:
        capacity = declared

    with Pool(1, worker=Wrong, capacity=CapacityPolicy(strategy="profile")) as pool:
        with pytest.raises(PoolFailed, match="capacity") as caught:
            pool.wait_ready(PATIENCE)
        assert isinstance(caught.value.__cause__, InvalidOption)


def test_a_runtime_that_keeps_no_instances_rejects_a_class() -> None:
    with pytest.raises(InvalidOption, match="keep no instances"):
        Pool(1, worker=Model, runtime=ScriptedRuntime(capabilities=["share_memory"]))
    with pytest.raises(InvalidOptionType):
        Pool(1, worker=5)  # type: ignore[arg-type]


# Nested waits: whoever runs the inner call, it runs on the instance of the worker that waits.


class Nesting(Model):
    pool: Pool

    def outer(self, how: str) -> bool:
        pool = self.pool
        if how == "result":
            inner = pool.submit("whoami").result()
        elif how == "do":
            inner = pool.do("whoami")
        elif how == "map":
            return all(inner is self for inner in pool.map("identity", range(5)))
        else:
            future = pool.submit("whoami")
            wait([future])
            inner = future.result()
        return inner is self

    def identity(self, _: int) -> Model:
        return self


@pytest.mark.parametrize("capacity", [1, 3])
@pytest.mark.parametrize("options", [{}, {"max_queue": 0, "when_full": "block"}, {"max_queue": 9}], ids=str)
@pytest.mark.parametrize("how", ["result", "do", "map", "wait"])
def test_a_nested_call_runs_on_the_same_instance(how: str, options: dict[str, Any], capacity: int) -> None:
    if how == "wait" and options.get("max_queue") == 0:
        pytest.skip("what is submitted in a full pool that blocks runs at once")
    with Pool(1, worker=Nesting, capacity=capacity, **options) as pool:
        Nesting.pool = pool
        assert pool.submit("outer", how).result(PATIENCE)
    assert len(Model.made) == 1
    assert eventually(lambda: [line.split()[0] for line in Model.made[0].log] == ["made", "warm", "closed"])


def test_a_helper_for_another_pool_works_with_an_instance_of_its_own_pool() -> None:
    with Pool(1, worker=Model, name="first") as first, Pool(1, name="second") as second:

        def outer() -> bool:
            return second.submit(there).result() is Model.made[0]

        def there() -> object:
            return first.submit("whoami").result()

        assert first.submit(outer).result(PATIENCE)
    assert len(Model.made) == 1


def test_what_no_worker_is_left_for_is_rejected_at_interpreter_exit() -> None:
    out = printed(
        """
        import atexit, threading
        from bullpen import Pool, PoolClosed

        class Model:
            def predict(self):
                print("ran without an instance")

        pool = Pool(1, worker=Model, min_workers=0)
        pool.pause()
        future = pool.submit("predict")
        plain = pool.submit(print, "plain")

        @atexit.register
        def look():
            print(type(future.exception(0)).__name__)
        """
    )
    assert out == "plain\nPoolClosed\n"


def test_a_worker_that_is_replaced_closes_its_instance_and_a_new_one_is_made() -> None:
    with Pool(2, worker=Model, min_workers=1, recycling=RecyclePolicy(idle_timeout=0.05)) as pool:
        assert pool.wait_ready(PATIENCE)
        pool.resize(1)
        assert pool.do("predict", 1) == 1
        pool.resize(2)
        with Blocker() as blocker:
            held = [pool.submit(blocker) for _ in range(2)]
            blocker.wait_entered(2)
            blocker.release()
            for future in held:
                future.result(PATIENCE)
        assert eventually(lambda: pool.stats().workers == 1)
        assert sum("closed" in line for model in Model.made for line in model.log) == len(Model.made) - 1


def test_a_bounded_pool_counts_methods_like_functions() -> None:
    runtime = ScriptedRuntime()
    with Pool(1, worker=Model, runtime=runtime, max_queue=1) as pool:
        futures = [pool.submit("predict", number) for number in range(2)]
        with pytest.raises(PoolSaturated):
            pool.submit("predict", 2)
        assert not pool.serve("predict", 2)
        runtime.run_all()
        assert [future.result(0) for future in futures] == [0, 1]


@pytest.mark.parametrize("max_queue", [None, 0, 10])
@pytest.mark.parametrize("capacity", [1, 2])
def test_no_more_instances_are_made_than_calls_need(capacity: int, max_queue: int | None) -> None:
    runtime = ScriptedRuntime(auto_ready=False)
    with Pool(8, runtime=runtime, capacity=capacity, min_workers=2, max_queue=max_queue) as pool:
        calls = [pool.submit(abs, -1) for _ in range(2 * capacity)]
        assert len(runtime.workers) == 2, "those that start have room for the calls"
        calls.append(pool.submit(abs, -1))
        assert len(runtime.workers) == 3
        while runtime.starting:
            runtime.ready()
        runtime.run_all()
        assert [call.result(PATIENCE) for call in calls] == [1] * len(calls)
        assert len(runtime.workers) == 3
