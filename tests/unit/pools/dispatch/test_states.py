"""Every guard against its table: what the table has works, and nothing else does."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import pytest

from bullpen import Pool
from bullpen.errors import IllegalTransition, QueueTimeout
from bullpen.pools.dispatch.pool_status import Phase, PoolStatus
from bullpen.pools.dispatch.request import DONE, FAILED, Request, TimeLimits, Timing
from bullpen.pools.dispatch.states import (
    POOL_MOVES,
    REQUEST_MOVES,
    WORKER_MOVES,
    Moves,
    PoolState,
    RequestState,
    WorkerStatus,
    check_move,
)
from bullpen.testing import ScriptedRuntime
from tests.moves import checked_moves
from tests.tools.explore import Run, explore
from tests.unit.pools.dispatch.support import new_request, new_worker, request_in

ERROR = QueueTimeout(seconds=1)

MOVES: dict[str, Callable[[Request], bool]] = {
    "start": lambda request: request.start(new_worker()),
    "requeue": lambda request: request.requeue(),
    "settle as done": lambda request: request.settle(DONE, 1),
    "settle as failed": lambda request: request.settle(FAILED, ERROR),
    "settle_and_call_back as done": lambda request: request.settle_and_call_back(DONE, 1),
    "settle_and_call_back as failed": lambda request: request.settle_and_call_back(FAILED, ERROR),
    "cancel_queued": lambda request: request.cancel_queued(),
    "withdraw": lambda request: request.withdraw(),
    "cancel_running": lambda request: request.cancel_running(),
    "fail_queued": lambda request: request.fail_queued(ERROR),
    "expire": lambda request: request.expire(ERROR),
    "abandon": lambda request: request.abandon(ERROR),
    "lose": lambda request: request.lose(ERROR),
    "cancel_retry": lambda request: request.cancel_retry(),
}


def all_pairs(states: type[enum.Enum]) -> list[tuple[enum.Enum, enum.Enum]]:
    return [(old, new) for old in states for new in states]


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("state", RequestState, ids=str)
def test_a_request_moves_as_the_table_allows_or_not_at_all(state: RequestState, move: str) -> None:
    request = request_in(state)
    before = (request.fn, request.args, getattr(request, "value", None))
    moved = MOVES[move](request)
    if moved:
        assert request.state in REQUEST_MOVES[state]
    else:
        assert request.state is state
        assert (request.fn, request.args, getattr(request, "value", None)) == before, "too late, and yet it changed"


def test_the_methods_of_a_request_make_exactly_the_moves_of_the_table() -> None:
    made: dict[RequestState, set[RequestState]] = {state: set() for state in RequestState}
    for state in RequestState:
        for move in MOVES.values():
            request = request_in(state)
            if move(request):
                made[state].add(request.state)
    assert made == REQUEST_MOVES


def test_every_method_that_moves_a_request_is_driven_here() -> None:
    named = {name.split()[0] for name in MOVES} | {"settle_and_call_back"}
    public = {name for name, value in vars(Request).items() if callable(value) and not name.startswith("_")}
    assert public - named == {"call_back", "interrupted", "once_only", "tell"}, "a new move? drive it above"


@pytest.mark.parametrize(
    "state", [state for state in RequestState if state not in (RequestState.QUEUED, RequestState.RUNNING)], ids=str
)
def test_a_request_that_has_ended_holds_its_outcome_and_nothing_else(state: RequestState) -> None:
    request = request_in(state)
    assert request.ended
    assert (request.fn, request.args, request.kwargs, request.holder) == (None, None, None, None)
    assert request.label == ""


@pytest.mark.parametrize("ending", ["cancel_queued", "withdraw", "fail_queued", "expire"])
def test_ending_a_request_removes_it_from_its_timing(ending: str) -> None:
    request = new_request()
    request.timing = timing = Timing(request, 0.0, TimeLimits(1))
    assert MOVES[ending](request)
    assert timing.request is None


@pytest.mark.parametrize("first", ["start", "cancel_queued", "fail_queued", "expire"])
def test_exactly_one_of_several_threads_gets_a_waiting_request(first: str) -> None:
    def scenario(run: Run) -> None:
        request, won = new_request(), list[bool]()
        for name in (first, "start", "cancel_queued", "expire"):
            run.actor(lambda name=name: won.append(MOVES[name](request)), name=name)

        def check() -> None:
            assert sorted(won) == [False, False, False, True]

        run.check(check)

    explore(scenario, schedules=300).raise_for_failure()


@pytest.mark.parametrize(("old", "new"), all_pairs(WorkerStatus), ids=str)
def test_a_worker_moves_as_the_table_allows_or_raises(old: WorkerStatus, new: WorkerStatus) -> None:
    worker = new_worker(status=old)
    check_guard(WORKER_MOVES, old, new, worker.move, lambda: worker.status)


@pytest.mark.parametrize(("old", "new"), all_pairs(PoolState), ids=str)
def test_a_pool_moves_as_the_table_allows_or_raises(old: PoolState, new: PoolState) -> None:
    status = PoolStatus("pool")
    status.phase = Phase(old)
    check_guard(POOL_MOVES, old, new, status.change, lambda: status.state)


def check_guard(
    table: Moves[Any], old: enum.Enum, new: enum.Enum, move: Callable[[Any], None], now: Callable[[], Any]
) -> None:
    if new in table[old]:
        move(new)
        assert now() is new
        return
    with pytest.raises(IllegalTransition) as caught:
        move(new)
    assert (caught.value.machine, caught.value.old, caught.value.new) == (type(old).__name__, old, new)
    assert f"from {old} to {new}" in str(caught.value)
    assert now() is old


@pytest.mark.parametrize("table", [REQUEST_MOVES, WORKER_MOVES, POOL_MOVES], ids=["request", "worker", "pool"])
def test_a_table_speaks_of_every_state_and_each_can_be_reached(table: Moves[Any]) -> None:
    first: enum.Enum = next(iter(table))
    assert set(table) == set(type(first))
    reached, new = {first}, {first}
    while new:
        new = {state for old in new for state in table[old]} - reached
        reached |= new
    assert reached == set(table)


def test_the_moves_of_a_whole_life_are_in_the_tables() -> None:
    runtime = ScriptedRuntime(auto_ready=False, auto_exit=False)
    with checked_moves():
        pool = Pool(2, runtime=runtime)
        futures = [pool.submit(pow, 2, number) for number in range(4)]
        futures[3].cancel()
        runtime.ready()
        runtime.ready()
        runtime.die(runtime.worker_of(futures[0]))
        runtime.ready()
        while runtime.running:
            runtime.run_next()
        pool.shutdown(wait=False)
        runtime.exit_stopped()
    assert [str(future.state) for future in futures] == ["lost", "done", "done", "cancelled"]
    assert pool.stats().state is PoolState.CLOSED


def test_a_move_made_without_a_guard_is_noticed_too() -> None:
    with checked_moves():
        worker, request = new_worker(), new_request()
        with pytest.raises(IllegalTransition):
            worker.status = WorkerStatus.EXITED
        with pytest.raises(IllegalTransition):
            request.state = RequestState.LOST
        worker.status = WorkerStatus.READY
    worker.status = WorkerStatus.STARTING


def test_check_move_accepts_the_moves_of_the_table() -> None:
    check_move(WORKER_MOVES, WorkerStatus.READY, WorkerStatus.BUSY)
    with pytest.raises(IllegalTransition):
        check_move(WORKER_MOVES, WorkerStatus.DEAD, WorkerStatus.READY)
