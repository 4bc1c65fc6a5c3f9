"""What is wrong is rejected by name, at once, and changes nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from bullpen import (
    AsyncPool,
    CallPolicy,
    CapacityPolicy,
    InvalidOption,
    NotCallable,
    Pool,
    PoolClosed,
    PoolStats,
    RecyclePolicy,
)
from bullpen.errors import BullpenError, InvalidOptionType
from bullpen.pools.policies import GROUPS
from tests.names import name_of

from .support import PATIENCE, Blocker, in_groups

NAN, INF = float("nan"), float("inf")

WRONG_TYPE: list[tuple[str, Any]] = [
    ("max_workers", "4"),
    ("max_workers", 2.0),
    ("max_workers", True),
    ("max_workers", [1]),
    ("min_workers", "1"),
    ("min_workers", 1.5),
    ("min_workers", False),
    ("max_queue", "10"),
    ("max_queue", 1.0),
    ("max_queue", INF),
    ("max_queue", True),
    ("when_full", None),
    ("when_full", 1),
    ("calls.queue_timeout", "1"),
    ("calls.queue_timeout", True),
    ("calls.queue_timeout", [1]),
    ("calls.run_timeout", "1"),
    ("calls.run_timeout", False),
    ("recycling.idle_timeout", "60"),
    ("recycling.idle_timeout", object()),
    ("restarts.max_abandoned", None),
    ("restarts.max_abandoned", 0.5),
    ("restarts.max_abandoned", True),
    ("name", 5),
    ("name", b"bytes"),
    ("thread_name_prefix", 5),
    ("initializer", 5),
    ("initializer", "print"),
    ("initargs", 5),
    ("calls.wrap", 5),
    ("observer", "print"),
    ("calls.scheduler", 5),
    ("calls.scheduler", None),
    ("capacity", "2"),
    ("capacity", 1.5),
    ("capacity", None),
    ("capacity", True),
    ("capacity.strategy", None),
    ("worker", 5),
    ("worker", "Model"),
    ("calls.log_errors", 1),
    ("calls.log_errors", None),
]

WRONG_VALUE: list[tuple[str, Any]] = [
    ("max_workers", 0),
    ("max_workers", -1),
    ("min_workers", -1),
    ("max_queue", -1),
    ("when_full", "drop"),
    ("when_full", ""),
    ("calls.queue_timeout", -1),
    ("calls.queue_timeout", -0.001),
    ("calls.queue_timeout", NAN),
    ("calls.queue_timeout", -INF),
    ("calls.queue_timeout", timedelta(seconds=-1)),
    ("calls.run_timeout", 0),
    ("calls.run_timeout", timedelta(0)),
    ("calls.run_timeout", -1),
    ("calls.run_timeout", NAN),
    ("recycling.idle_timeout", 0),
    ("recycling.idle_timeout", -5),
    ("recycling.idle_timeout", NAN),
    ("restarts.max_abandoned", -1),
    ("capacity", 0),
    ("capacity.strategy", "all"),
    ("capacity.strategy", "profile"),
    ("capacity.strategy", "hybrid"),
    ("calls.scheduler", "fastest"),
    ("runtime", "rocket"),
]

CONTRADICTIONS: list[tuple[str, dict[str, Any], str]] = [
    ("min_workers", {"max_workers": 2, "min_workers": 3}, "max_workers"),
    ("when_full", {"when_full": "block", "max_queue": None}, "max_queue"),
]

HARD_TO_CHECK: list[tuple[str, Any]] = [
    ("runtime", 5),
    ("runtime", None),
    ("clock", 5),
    ("calls.queue_timeout", 10**400),
]


def rejection(**options: Any) -> InvalidOption:
    """The error with which a pool with these options is rejected, before anything was started."""
    before = threading.active_count()
    with pytest.raises(InvalidOption) as caught:
        Pool(**in_groups(options))
    assert threading.active_count() == before
    return caught.value


@pytest.mark.parametrize(("option", "value"), WRONG_TYPE)
def test_an_option_of_the_wrong_type_is_rejected(option: str, value: Any) -> None:
    error = rejection(**{option: value})
    assert isinstance(error, InvalidOptionType)
    assert isinstance(error, TypeError)
    assert isinstance(error, BullpenError)
    assert (error.option, error.value) == (option, value)
    assert str(error) == f"{option} must be {error.allowed}, got {value!r}"
    assert error.allowed


@pytest.mark.parametrize(("option", "value"), WRONG_VALUE)
def test_an_option_out_of_range_is_rejected(option: str, value: Any) -> None:
    error = rejection(**{option: value})
    assert isinstance(error, ValueError)
    assert not isinstance(error, TypeError)
    assert error.option == option
    assert str(error).startswith(f"{option} must be {error.allowed}, got ")


@pytest.mark.parametrize(("option", "options", "other"), CONTRADICTIONS)
def test_options_that_contradict_each_other_are_rejected(option: str, options: dict[str, Any], other: str) -> None:
    error = rejection(**options)
    assert error.option == option
    assert other in str(error)


@pytest.mark.parametrize(("option", "value"), HARD_TO_CHECK, ids=["runtime 5", "runtime None", "clock 5", "10**400"])
def test_every_option_is_checked(option: str, value: Any) -> None:
    assert rejection(**{option: value}).option == option


def test_a_scheduler_that_makes_something_else_is_rejected() -> None:
    error = rejection(**{"calls.scheduler": list})
    assert error.option == "calls.scheduler"
    assert "push" in error.allowed


def test_rejections_name_what_is_allowed() -> None:
    assert (
        str(rejection(max_queue=-1))
        == "max_queue must be a whole number ≥ 0, or None for a backlog without limit, got -1"
    )
    assert str(rejection(when_full="drop")) == "when_full must be one of 'reject', 'block', got 'drop'"
    assert "'rotation', 'most_recently_used', 'least_loaded'" in str(rejection(**{"calls.scheduler": "fastest"}))


def test_an_unknown_option_is_a_type_error() -> None:
    before = threading.active_count()
    with pytest.raises(TypeError, match="max_worker"):
        Pool(max_worker=3)  # type: ignore[call-arg]
    assert threading.active_count() == before


@pytest.mark.parametrize("make", [Pool, AsyncPool])
@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("max_requests", "recycling=RecyclePolicy(max_requests=…)"),
        ("idle_timeout", "recycling=RecyclePolicy(idle_timeout=…)"),
        ("session_ttl", "sessions=SessionPolicy(ttl=…)"),
        ("restart_limit", "restarts=RestartPolicy(limit=…)"),
        ("startup_batch_size", "startup=StartupPolicy(batch_size=…)"),
        ("initialization", "startup=StartupPolicy(delegate=…)"),
        ("run_timeout", "calls=CallPolicy(run_timeout=…)"),
        ("capacity_strategy", "capacity=CapacityPolicy(strategy=…)"),
    ],
)
def test_an_option_of_a_group_that_is_given_alone_is_rejected_with_its_group(make: Any, name: str, group: str) -> None:
    with pytest.raises(InvalidOptionType) as caught:
        make(2, **{name: 1})
    assert str(caught.value) == f"{make.__name__}() has no option {name!r}; did you mean {group}?"


@pytest.mark.parametrize("make", [Pool, AsyncPool])
def test_a_misspelled_option_is_rejected_with_the_name_that_was_probably_meant(make: Any) -> None:
    with pytest.raises(InvalidOptionType, match=r"\(\) has no option 'recyling'; did you mean recycling\?$"):
        make(2, recyling=None)


@pytest.mark.parametrize("make", [Pool, AsyncPool])
def test_a_misspelled_option_of_a_call_is_rejected_with_the_name_that_was_probably_meant(make: Any) -> None:
    with pytest.raises(InvalidOptionType, match=r"^using\(\) has no option 'timout'; did you mean timeout\?$"):
        make(2).using(timout=3)


@pytest.mark.parametrize("make", [Pool, AsyncPool])
@pytest.mark.parametrize(("group", "kind"), [item for item in GROUPS.items() if item[0] != "capacity"])
@pytest.mark.parametrize("wrong", [None, 5, {"max_requests": 1}, CapacityPolicy()], ids=name_of)
def test_a_group_of_the_wrong_type_is_rejected(make: Any, group: str, kind: type, wrong: object) -> None:
    with pytest.raises(InvalidOptionType, match=f"^{group} must be a {kind.__name__}, got "):
        make(2, **{group: wrong})


def test_a_group_checks_itself() -> None:
    with pytest.raises(InvalidOption) as caught:
        RecyclePolicy(max_requests=0)
    assert str(caught.value) == "recycling.max_requests must be a whole number ≥ 1, or None for any number, got 0"


def test_a_group_cannot_be_changed_and_has_durations_in_seconds() -> None:
    group = RecyclePolicy(max_age=timedelta(minutes=2))
    assert group == RecyclePolicy(max_age=120)
    with pytest.raises(AttributeError):
        group.max_age = 3  # type: ignore[misc]


def test_awrap_is_for_an_async_pool() -> None:
    error = rejection(**{"calls.awrap": print})
    assert (error.option, error.value) == ("calls.awrap", print)


@pytest.mark.parametrize(
    "options",
    [
        {"max_workers": 1, "min_workers": 1},
        {"max_queue": 0, "when_full": "block"},
        {"calls.queue_timeout": 0, "calls.run_timeout": INF, "recycling.idle_timeout": INF},
        {"calls.queue_timeout": timedelta(seconds=1), "calls.run_timeout": 1, "recycling.idle_timeout": None},
        {"name": "", "thread_name_prefix": "", "calls.scheduler": "least_loaded", "calls.log_errors": False},
        {"name": "ä\0b", "calls.scheduler": "most_recently_used", "restarts.max_abandoned": 3},
        {"max_queue": 10**12},
    ],
)
def test_what_is_allowed_works(options: dict[str, Any]) -> None:
    with Pool(**{"max_workers": 2} | in_groups(options)) as pool:
        view = pool.using(queue_timeout=20)
        assert view.submit(abs, -1).result(20) == 1


# Calls.


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool(2, max_queue=5) as pool:
        pool.submit(int).result(20)
        yield pool


def unchanged(pool: Pool, call: Callable[[], object], error: type[Exception]) -> Any:
    """Make a `call` that is rejected with `error`, and see that the pool is as it was."""
    before = pool.stats()
    with pytest.raises(error) as caught:
        call()
    assert pool.stats() == before
    assert pool.stats() == before, "looking at the numbers does not change them"
    return caught.value


@pytest.mark.parametrize("value", [None, 5, "print", [print], 0.5, object()], ids=name_of)
@pytest.mark.parametrize("method", ["submit", "serve", "do", "map"])
@pytest.mark.parametrize("through", ["pool", "view"])
@pytest.mark.parametrize(
    "options", [{}, {"max_queue": 5}, {"calls": CallPolicy(wrap=lambda call: call())}], ids=["plain", "bounded", "wrap"]
)
def test_what_cannot_be_called_is_rejected(options: dict[str, Any], through: str, method: str, value: object) -> None:
    with Pool(2, **options) as pool:
        face = pool if through == "pool" else pool.using(timeout=5, context=True)
        error = unchanged(pool, lambda: getattr(face, method)(value, [1]), NotCallable)
        assert error.value is value
        assert isinstance(error, TypeError)
        assert repr(value) in str(error)
        assert pool.stats().submitted == 0


def test_a_result_instead_of_a_function_gets_a_hint(pool: Pool) -> None:
    error = unchanged(pool, lambda: pool.submit(abs(-1)), NotCallable)  # type: ignore[call-overload]
    assert "pool.submit(f, x), not pool.submit(f(x))" in str(error)


@pytest.mark.parametrize("method", ["submit", "serve", "do", "map"])
def test_a_call_without_a_function_is_a_type_error(pool: Pool, method: str) -> None:
    unchanged(pool, lambda: getattr(pool, method)(), TypeError)


def test_map_rejects_what_cannot_be_iterated(pool: Pool) -> None:
    unchanged(pool, lambda: pool.map(abs, 5), TypeError)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"chunksize": 0}, InvalidOption),
        ({"chunksize": "1"}, InvalidOptionType),
        ({"buffersize": 0}, InvalidOption),
        ({"buffersize": 1.5}, InvalidOptionType),
        ({"timeout": "1"}, InvalidOptionType),
        ({"timeout": NAN}, InvalidOption),
    ],
)
def test_map_rejects_wrong_options(pool: Pool, options: dict[str, Any], kind: type[InvalidOption]) -> None:
    error = unchanged(pool, lambda: pool.map(abs, [1], **options), kind)
    assert [error.option] == list(options)


CLOSED_CALLS: dict[str, Callable[[Pool], object]] = {
    "submit": lambda pool: pool.submit(int),
    "serve": lambda pool: pool.serve(int),
    "do": lambda pool: pool.do(int),
    "map": lambda pool: pool.map(int, ["1"]),
    "resize": lambda pool: pool.resize(2),
    "using submit": lambda pool: pool.using(timeout=1).submit(int),
    "using serve": lambda pool: pool.using(queue_timeout=1).serve(int),
    "using do": lambda pool: pool.using(timeout=1, context=True).do(int),
    "using map": lambda pool: pool.using(run_timeout=1).map(int, ["1"]),
}


@pytest.mark.parametrize("call", CLOSED_CALLS.values(), ids=CLOSED_CALLS)
@pytest.mark.parametrize("options", [{}, {"max_queue": 0}, {"max_queue": 0, "when_full": "block"}], ids=str)
@pytest.mark.parametrize("used", [True, False])
def test_a_closed_pool_rejects_by_name(call: Callable[[Pool], object], options: dict[str, Any], used: bool) -> None:
    pool = Pool(3, name="press", **options)
    if used:
        pool.submit(int).result(20)
    pool.close()
    error = unchanged(pool, lambda: call(pool), PoolClosed)
    assert error.pool == "press"
    assert isinstance(error, RuntimeError)
    assert "'press' takes no new work: it is closed" in str(error)


def test_a_closed_pool_still_answers_questions(pool: Pool) -> None:
    pool.close()
    pool.close()
    pool.shutdown()
    pool.pause()
    pool.resume()
    with pytest.raises(PoolClosed):
        pool.wait_ready(0)
    assert pool.workers() == []
    assert str(pool.stats())
    assert "closed" in repr(pool)
    assert pool.can("share_memory")


@pytest.mark.parametrize(
    ("options", "kind", "says"),
    [
        ({"timeuot": 5}, InvalidOptionType, "timeuot"),
        ({"priority": 5}, InvalidOptionType, "the options are affinity, buffersize, context"),
        ({"timeout": "5"}, InvalidOptionType, "timeout"),
        ({"timeout": True}, InvalidOptionType, "timeout"),
        ({"timeout": -1}, InvalidOption, "timeout"),
        ({"timeout": NAN}, InvalidOption, "timeout"),
        ({"queue_timeout": -1}, InvalidOption, "queue_timeout"),
        ({"run_timeout": 0}, InvalidOption, "run_timeout"),
        ({"run_timeout": "5"}, InvalidOptionType, "run_timeout"),
        ({"context": 1}, InvalidOptionType, "context"),
        ({"context": None}, InvalidOptionType, "context"),
    ],
)
def test_using_rejects_unknown_and_wrong_options(
    pool: Pool, options: dict[str, Any], kind: type[InvalidOption], says: str
) -> None:
    assert says in str(unchanged(pool, lambda: pool.using(**options), kind))
    assert says in str(unchanged(pool, lambda: pool.using(timeout=1).using(**options), kind))


def test_using_does_not_change_what_it_is_called_on(pool: Pool) -> None:
    view = pool.using(timeout=20)
    view.using(timeout=0)
    assert view.do(abs, -1) == 1


def test_cancel_rejects_futures_of_others(pool: Pool) -> None:
    with ThreadPoolExecutor(1) as standard, Pool(1) as other:
        strangers: list[Any] = [Future(), standard.submit(int), other.submit(int), None, 5, "future"]
        for stranger in strangers:
            error = unchanged(pool, lambda stranger=stranger: pool.cancel(stranger), InvalidOptionType)  # type: ignore[misc]
            assert (error.option, error.value) == ("future", stranger)
            assert repr(pool.stats().name) in error.allowed


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda pool: pool.resize(0), InvalidOption),
        (lambda pool: pool.resize("2"), InvalidOptionType),
        (lambda pool: pool.resize(True), InvalidOptionType),
        (lambda pool: pool.resize(None), InvalidOptionType),
        (lambda pool: pool.wait_ready(-1), InvalidOption),
        (lambda pool: pool.wait_ready("1"), InvalidOptionType),
        (lambda pool: pool.close(grace=-1), InvalidOption),
        (lambda pool: pool.close(grace="1"), InvalidOptionType),
        (lambda pool: pool.can("fly"), InvalidOption),
        (lambda pool: pool.can(None), InvalidOption),
    ],
)
def test_the_rest_rejects_too(pool: Pool, call: Callable[[Pool], object], kind: type[InvalidOption]) -> None:
    unchanged(pool, lambda: call(pool), kind)
    assert pool.do(abs, -2) == 2, "the pool is still open"


def test_numbers_at_rest_do_not_change_when_they_are_read(pool: Pool) -> None:
    readings: set[PoolStats] = {pool.stats() for _ in range(100)}
    assert len(readings) == 1


@pytest.mark.parametrize("end", ["set_result", "set_exception", "running first", "while it runs"])
def test_a_future_that_is_ended_by_hand_leaves_the_pool_whole(end: str) -> None:
    with Pool(1) as pool, Blocker() as blocker:
        running = pool.submit(blocker)
        blocker.wait_entered()
        future = running if end == "while it runs" else pool.submit(int)
        after = pool.submit(abs, -1)
        if end == "running first":
            assert future.set_running_or_notify_cancel()
            assert future.running()
            assert not future.cancel()
        error = LookupError()
        if end == "set_exception":
            future.set_exception(error)
            assert future.exception() is error
        else:
            future.set_result(5)
            assert future.result() == 5
        stats = pool.stats()
        assert stats.submitted == stats.completed + stats.failed + stats.queued + stats.running
        assert stats.queued == 1
        blocker.release()
        assert after.result(PATIENCE) == 1
