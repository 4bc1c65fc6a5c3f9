"""Process pools: what goes wrong in one call costs that call, and at most its worker."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bullpen import NotPicklable, Pool, ProcessRuntime, RemoteError, WorkerLost
from tests.scenarios import process_support as work
from tests.scenarios.process_support import PATIENCE, START_METHODS, eventually

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(params=START_METHODS)
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    with Pool(1, runtime=ProcessRuntime(start=request.param)) as pool:
        yield pool


def outcome(pool: Pool, fn: Any, *args: object) -> BaseException | None:
    """The error of a call, after which the pool has to go on."""
    error: BaseException | None = pool.submit(fn, *args).exception(PATIENCE)
    assert pool.submit(pow, 2, 5).result(PATIENCE) == 32
    return error


# The grid: what happens, and where.


@pytest.mark.parametrize("deed", [work.fail, work.leave])
def test_an_argument_that_fails_while_it_is_pickled(pool: Pool, deed: Any) -> None:
    error = outcome(pool, work.identity, work.FailsWhenPickled(deed))
    assert isinstance(error, NotPicklable)
    assert error.what == "argument 1"
    assert isinstance(error.__cause__, ValueError | SystemExit)


@pytest.mark.parametrize("deed", [work.fail, work.leave])
def test_an_argument_that_fails_while_it_is_read(pool: Pool, deed: Any) -> None:
    error = outcome(pool, work.identity, work.FailsWhenRead(deed))
    assert isinstance(error, NotPicklable)
    assert isinstance(error.__cause__, ValueError | SystemExit)
    assert pool.stats().spawned == 1, "the worker goes on"


@pytest.mark.parametrize("deed", [work.fail, work.leave])
def test_a_call_that_fails(pool: Pool, deed: Any) -> None:
    assert isinstance(outcome(pool, work.call, deed), ValueError | SystemExit)
    assert pool.stats().spawned == 1


@pytest.mark.parametrize("deed", [work.fail, work.leave])
@pytest.mark.parametrize("when", ["pickled", "read"])
def test_a_result_that_fails_on_its_way(pool: Pool, deed: Any, when: str) -> None:
    error = outcome(pool, work.give_failing_result, deed, when)
    assert isinstance(error, NotPicklable)
    assert error.what == "the result"
    assert pool.stats().spawned == 1


@pytest.mark.parametrize(
    "call",
    [
        (work.identity, work.FailsWhenRead(work.crash)),
        (work.call, work.crash),
        (work.give_failing_result, work.crash, "pickled"),
    ],
    ids=["argument read", "run", "result pickled"],
)
def test_a_crash_is_the_loss_of_that_call(pool: Pool, call: tuple[Any, ...]) -> None:
    error = outcome(pool, *call)
    assert isinstance(error, WorkerLost)
    assert error.exit_code == 7
    assert pool.stats().spawned == 2


# Signals.


@pytest.mark.parametrize(("deed", "number"), [(work.kill_self, signal.SIGKILL), (work.segfault, signal.SIGSEGV)])
def test_a_worker_killed_by_a_signal_is_named_with_it(pool: Pool, deed: Any, number: signal.Signals) -> None:
    error = outcome(pool, work.call, deed)
    assert isinstance(error, WorkerLost)
    assert error.exit_code == -number
    assert number.name in str(error)


def test_the_stack_of_a_segmentation_fault_is_in_the_error() -> None:
    with Pool(1, runtime="process") as pool:
        error = pool.submit(work.segfault).exception(PATIENCE)
        assert isinstance(error, WorkerLost)
        assert "Segmentation fault" in error.stderr
        assert "in segfault" in error.stderr
        assert "in segfault" in str(error)


def test_the_last_words_of_a_dead_worker_are_in_the_error() -> None:
    with Pool(1, runtime="process") as pool:
        error = pool.submit(work.say_and_crash, "the model is missing").exception(PATIENCE)
        assert isinstance(error, WorkerLost)
        assert error.exit_code == 5
        assert "the model is missing" in str(error)


def test_one_crash_among_many_costs_nobody_else_anything() -> None:
    with Pool(2, runtime="process") as pool:
        before = [pool.submit(pow, number, 2) for number in range(50)]
        crashing = pool.submit(work.crash)
        after = [pool.submit(pow, number, 2) for number in range(50)]
        assert [future.result(PATIENCE) for future in before + after] == [number**2 for number in range(50)] * 2
        assert isinstance(crashing.exception(PATIENCE), WorkerLost)
        assert pool.stats().lost == 1


def test_a_request_that_may_be_repeated_runs_again(tmp_path: Path) -> None:
    with Pool(1, runtime="process") as pool:
        assert pool.using(idempotent=True).submit(work.crash_once, tmp_path / "crashed").result(PATIENCE) == "done"
        assert pool.stats().spawned == 2


# Errors as data.


def test_an_error_keeps_its_attributes_its_causes_and_its_traceback() -> None:
    with Pool(1, runtime="process") as pool:
        error = pool.submit(work.fail_in_depth).exception(PATIENCE)
        assert type(error) is KeyError
        assert error.place == "shelf"  # type: ignore[attr-defined]
        assert type(error.__cause__) is ZeroDivisionError
        assert type(error.__cause__.__context__) is OSError
        text = "".join(traceback.format_exception(error))
        assert "raise error from division" in text
        assert "in divide" in text
        assert "1 / 0" in text
        assert "attempt" not in text, "frames of ours are left out"


@pytest.mark.parametrize(
    ("call", "name", "text"),
    [(work.raise_needs_two, "NeedsTwo", "one and two"), (work.raise_unpicklable, "Unpicklable", "holds a lock")],
)
def test_an_error_that_cannot_come_arrives_by_name(call: Any, name: str, text: str) -> None:
    with Pool(1, runtime="process") as pool:
        error = outcome(pool, call)
        assert isinstance(error, RemoteError)
        assert error.kind.endswith(name)
        assert error.text == text
        assert call.__name__ in "".join(traceback.format_exception(error))


def test_what_cannot_be_pickled_is_named_by_its_place() -> None:
    with Pool(1, runtime="process") as pool:
        error = pool.submit(work.identity, {"safe": 1, "jobs": [1, threading.Lock()]}).exception(PATIENCE)
        assert isinstance(error, NotPicklable)
        assert (error.what, error.path) == ("argument 1", "['jobs'][1]")
        assert "lock" in error.reason
        error = pool.submit(work.identity, value=threading.Lock()).exception(PATIENCE)
        assert isinstance(error, NotPicklable)
        assert error.what == "argument value"


def test_an_initializer_that_fails_says_why_with_its_traceback() -> None:
    with Pool(1, runtime="process", initializer=work.fail) as pool:
        error = pool.submit(pow, 2, 2).exception(PATIENCE)
        assert error is not None
        assert type(error.__cause__) is ValueError
        assert "in fail" in "".join(traceback.format_exception(error))


def test_an_initializer_that_crashes_says_so() -> None:
    with Pool(1, runtime="process", initializer=work.crash) as pool:
        error = pool.submit(pow, 2, 2).exception(PATIENCE)
        assert "exit code 7 before it was ready" in str(error)


# A worker that is stopped, or whose keeper is killed, from outside.


def test_a_worker_that_was_stopped_is_killed_when_the_time_is_up(tmp_path: Path) -> None:
    with Pool(1, runtime=ProcessRuntime(cancel_grace=0.05)) as pool:
        future = pool.using(run_timeout=0.3).submit(work.sleep_noting, tmp_path / "pid")
        pid = work.read_pid(tmp_path / "pid")
        os.kill(pid, signal.SIGSTOP)
        assert isinstance(future.exception(PATIENCE), TimeoutError)
        eventually(lambda: not work.is_alive(pid))
        assert pool.submit(pow, 2, 2).result(PATIENCE) == 4


def test_without_their_keeper_workers_die_and_others_come(tmp_path: Path) -> None:
    with Pool(1, runtime="process") as pool:
        future = pool.submit(work.hold_the_gil, tmp_path / "pid")
        pid = work.read_pid(tmp_path / "pid")
        keeper = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(keeper, signal.SIGKILL)
        assert isinstance(future.exception(PATIENCE), WorkerLost)
        eventually(lambda: not work.is_alive(pid))
        assert pool.submit(pow, 2, 2).result(PATIENCE) == 4
