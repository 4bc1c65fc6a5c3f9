"""Process pools: what goes wrong in one call costs that call, and at most its worker."""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

import pytest

from bullpen import (
    NotPicklable,
    Pool,
    PoolFailed,
    ProcessRuntime,
    ProgramRuntime,
    RecyclePolicy,
    RemoteError,
    RestartPolicy,
    WorkerLost,
)
from bullpen.pools.runtimes.port import Listener
from bullpen.pools.runtimes.process import arena
from tests.scenarios import process_support as work
from tests.scenarios.process_support import PATIENCE, START_METHODS, eventually

# What happens, and where: the one call fails with this error, and its worker goes on or is replaced. Not in it is
# a crash where the app itself pickles or reads: that is the end of the app.

GRID: dict[tuple[str, str], tuple[tuple[Any, ...], type[BaseException], str]] = {
    ("argument pickled", "raise"): ((work.identity, work.FailsWhenPickled(work.fail)), NotPicklable, "goes on"),
    ("argument pickled", "exit"): ((work.identity, work.FailsWhenPickled(work.leave)), NotPicklable, "goes on"),
    ("argument read", "raise"): ((work.identity, work.FailsWhenRead(work.fail)), NotPicklable, "goes on"),
    ("argument read", "exit"): ((work.identity, work.FailsWhenRead(work.leave)), NotPicklable, "goes on"),
    ("argument read", "crash"): ((work.identity, work.FailsWhenRead(work.crash)), WorkerLost, "is replaced"),
    ("run", "raise"): ((work.call, work.fail), ValueError, "goes on"),
    ("run", "exit"): ((work.call, work.leave), SystemExit, "goes on"),
    ("run", "crash"): ((work.call, work.crash), WorkerLost, "is replaced"),
    ("result pickled", "raise"): ((work.give_failing_result, work.fail, "pickled"), NotPicklable, "goes on"),
    ("result pickled", "exit"): ((work.give_failing_result, work.leave, "pickled"), NotPicklable, "goes on"),
    ("result pickled", "crash"): ((work.give_failing_result, work.crash, "pickled"), WorkerLost, "is replaced"),
    ("result read", "raise"): ((work.give_failing_result, work.fail, "read"), NotPicklable, "goes on"),
    ("result read", "exit"): ((work.give_failing_result, work.leave, "read"), NotPicklable, "goes on"),
}
NAMED = {"argument pickled": "argument 1", "argument read": "the call"}


@pytest.mark.parametrize("start", START_METHODS)
def test_whatever_fails_wherever_it_is_the_failure_of_that_call(start: Any) -> None:
    with Pool(1, runtime=ProcessRuntime(start=start), restarts=RestartPolicy(limit=100, within=60.0)) as pool:
        for (place, deed), (call, kind, worker) in GRID.items():
            row = f"{deed} when {place}"
            spawned = max(1, pool.stats().spawned)
            before = [pool.submit(pow, number, 2) for number in range(3)]
            failing = pool.submit(*call)
            after = [pool.submit(pow, number, 2) for number in range(3)]
            error = failing.exception(PATIENCE)
            assert type(error) is kind or (kind is WorkerLost and isinstance(error, kind)), row
            assert [future.result(PATIENCE) for future in before + after] == [0, 1, 4] * 2, row
            assert pool.stats().spawned == spawned + (worker == "is replaced"), row
            if isinstance(error, NotPicklable):
                assert error.what == NAMED.get(place, "the result"), row
                assert "on purpose" in str(error) or "SystemExit" in str(error), row
            elif isinstance(error, WorkerLost):
                assert error.exit_code == 7, row


# Signals.


def outcome(pool: Pool, fn: Any, *args: object) -> BaseException | None:
    """The error of a call, after which the pool has to go on."""
    error: BaseException | None = pool.submit(fn, *args).exception(PATIENCE)
    assert pool.submit(pow, 2, 5).result(PATIENCE) == 32
    return error


@pytest.mark.parametrize(("deed", "number"), [(work.kill_self, signal.SIGKILL), (work.segfault, signal.SIGSEGV)])
def test_a_worker_killed_by_a_signal_is_named_with_it(deed: Any, number: signal.Signals) -> None:
    with Pool(1, runtime="process") as pool:
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
        assert len(str(error).splitlines()) == 1
        assert "the field stderr and the log have its last output" in str(error)


def test_the_last_output_of_a_dead_worker_is_in_a_field_of_the_error() -> None:
    with Pool(1, runtime="process") as pool:
        error = pool.submit(work.say_and_crash, "the model is missing").exception(PATIENCE)
        assert isinstance(error, WorkerLost)
        assert error.exit_code == 5
        assert "the model is missing" in error.stderr
        assert str(error).endswith("; its last output: the model is missing")


def test_control_characters_in_the_last_output_of_a_dead_worker_are_escaped_in_the_text_of_the_error() -> None:
    with Pool(1, runtime="process") as pool:
        error = pool.submit(work.say_and_crash, "\x1b[2J\u202eabc").exception(PATIENCE)
        assert isinstance(error, WorkerLost)
        assert str(error).endswith(r"; its last output: \x1b[2J\u202eabc")
        assert error.stderr == "\x1b[2J\u202eabc", "the field has the output as it is"
    with Pool(1, runtime="process", initializer=work.say_and_crash, initargs=("\x1b[2J",)) as pool:
        failed = pool.submit(work.identity, 1).exception(PATIENCE)
        assert r"\x1b[2J" in str(failed)
        assert "\x1b" not in str(failed)


@pytest.mark.parametrize("capacity", [1, 2])
def test_an_error_that_raises_when_it_is_looked_at_is_the_failure_of_that_call(capacity: int) -> None:
    with Pool(1, runtime="process", capacity=capacity) as pool:
        worker = pool.do(work.pid)
        for name in ("NoText", "NoFields", "NoAttributes", "NoName"):
            error = pool.submit(work.fail_with, name).exception(PATIENCE)
            assert type(error) in (getattr(work, name), RemoteError, ValueError), name
            with pytest.raises(BaseException):  # noqa: B017, PT011
                list(pool.map(work.fail_with, [name]))
        assert pool.do(work.pid) == worker


@pytest.mark.parametrize("runtime", ["thread", "process"])
def test_an_error_without_a_text_reaches_the_callers_that_wait(runtime: str) -> None:
    with Pool(1, runtime=runtime, initializer=work.fail_with, initargs=("NoText",)) as pool:
        error = pool.submit(work.pid).exception(PATIENCE)
        assert isinstance(error, PoolFailed)
        assert "NoText, whose repr raised ValueError" in str(error)
    recycling = RecyclePolicy(taint_on=(work.NoText,), taint_duration=0.01)
    with Pool(1, runtime=runtime, recycling=recycling, restarts=RestartPolicy(limit=100, within=60.0)) as pool:
        assert isinstance(pool.submit(work.fail_with, "NoText").exception(PATIENCE), work.NoText)
        assert isinstance(pool.submit(work.fail_with, "BrokenWithoutText").exception(PATIENCE), WorkerLost)
        with pytest.raises(WorkerLost):
            list(pool.map(work.fail_with, ["BrokenWithoutText"]))
        assert pool.submit(work.identity, 1).result(PATIENCE) == 1


class Raising(logging.Handler):
    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self._error = error

    def emit(self, record: logging.LogRecord) -> None:
        raise self._error(record.getMessage())


@pytest.mark.parametrize("error", [ValueError, SystemExit])
@pytest.mark.parametrize("runtime", ["thread", "process"])
def test_a_log_handler_that_raises_affects_no_call(
    runtime: str, error: type[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    handler = Raising(error)
    logging.getLogger("bullpen").addHandler(handler)
    try:
        with Pool(1, runtime=runtime, restarts=RestartPolicy(limit=0, within=0.1)) as pool:
            for _ in range(3):  # the pool logs each death, and that it is degraded
                assert isinstance(pool.submit(work.say_broken).exception(PATIENCE), WorkerLost)
            assert pool.submit(print, "hello").result(PATIENCE) is None  # the output of processes, too
            pool.submit(work.identity, 1).add_done_callback(lambda _: work.fail())
            assert pool.submit(work.identity, 2).result(PATIENCE) == 2
        with Pool(1, runtime=runtime, initializer=work.fail) as pool:
            assert isinstance(pool.submit(work.identity, 1).exception(PATIENCE), PoolFailed)
    finally:
        logging.getLogger("bullpen").removeHandler(handler)
    assert "a handler of the logger bullpen failed" in capsys.readouterr().err


class Blocking(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.called = threading.Event()
        self.may_go_on = threading.Event()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.called.set()
        assert self.may_go_on.wait(PATIENCE)
        self.records.append(record)


def test_a_log_handler_that_blocks_holds_up_no_call() -> None:
    handler = Blocking()
    logging.getLogger("bullpen").addHandler(handler)
    try:
        with Pool(1, runtime="process", name="talker") as pool, Pool(1, runtime="process", name="other") as other:
            pool.submit(work.complain, "hello").result(PATIENCE)
            assert handler.called.wait(PATIENCE)
            assert isinstance(pool.submit(work.crash).exception(PATIENCE), WorkerLost)  # the pool logs that, too
            assert pool.submit(work.identity, 1).result(PATIENCE) == 1
            assert other.submit(work.identity, 2).result(PATIENCE) == 2
            printing = pool.submit(work.say_much, 1 << 20)  # more than the app reads before the handler goes on
            assert other.submit(work.identity, 3).result(PATIENCE) == 3
            assert not printing.done()
            handler.may_go_on.set()
            assert printing.result(PATIENCE) is None
    finally:
        handler.may_go_on.set()
        logging.getLogger("bullpen").removeHandler(handler)
    messages = [record.getMessage() for record in handler.records]
    assert messages[0] == "talker_0: hello"
    death = next(record for record in handler.records if "died" in record.getMessage())
    assert (death.filename, death.threadName) == ("deaths.py", "bullpen-process-io"), "as if it had called the handler"
    assert sum(message.count("y") for message in messages if ": yy" in message) == 1 << 20


def test_a_log_handler_may_close_the_pool_that_logs() -> None:
    pool = Pool(1, runtime="process")
    closed = threading.Event()

    class Closing(logging.Handler):
        def emit(self, _: logging.LogRecord) -> None:
            pool.close()
            closed.set()

    handler = Closing()
    logging.getLogger("bullpen.output").addHandler(handler)
    try:
        pool.submit(work.complain, "hello").result(PATIENCE)
        assert closed.wait(PATIENCE)
        pool.close()
    finally:
        logging.getLogger("bullpen.output").removeHandler(handler)


def test_one_crash_among_many_does_not_affect_the_others() -> None:
    with Pool(2, runtime="process") as pool:
        before = [pool.submit(pow, number, 2) for number in range(50)]
        crashing = pool.submit(work.crash)
        after = [pool.submit(pow, number, 2) for number in range(50)]
        assert [future.result(PATIENCE) for future in before + after] == [number**2 for number in range(50)] * 2
        assert isinstance(crashing.exception(PATIENCE), WorkerLost)
    assert pool.stats().lost == 1


def test_a_worker_that_has_finished_a_request_does_not_count_as_dying() -> None:
    """Of 20,000 files some kill their process: that must not delay the others."""
    with Pool(1, runtime="process", restarts=RestartPolicy(limit=0, within=60.0)) as pool:
        for number in range(5):
            assert pool.submit(work.identity, number).result(PATIENCE) == number
            assert isinstance(pool.submit(work.crash).exception(PATIENCE), WorkerLost)
        assert pool.submit(work.identity, 5).result(PATIENCE) == 5
        assert not pool.stats().degraded
        for _ in range(2):
            assert isinstance(pool.submit(work.crash).exception(PATIENCE), WorkerLost)
        eventually(lambda: pool.stats().degraded)


def test_a_request_that_may_be_repeated_runs_again(tmp_path: Path) -> None:
    with Pool(1, runtime="process") as pool:
        assert pool.using(idempotent=True).submit(work.crash_once, tmp_path / "crashed").result(PATIENCE) == "done"
        assert pool.stats().spawned == 2


def test_a_worker_that_is_killed_while_it_starts_affects_no_request(tmp_path: Path) -> None:
    """Another one is started, if workers have started before, and not too many have died of late."""
    options: dict[str, Any] = {"initializer": work.be_killed_at_start, "restarts": RestartPolicy(limit=3, within=60.0)}
    with Pool(1, runtime="process", initargs=(tmp_path, {2}), **options) as pool:
        crashing, *waiting = [pool.submit(work.crash), *(pool.submit(pow, number, 2) for number in range(5))]
        assert isinstance(crashing.exception(PATIENCE), WorkerLost)
        assert [future.result(PATIENCE) for future in waiting] == [0, 1, 4, 9, 16]
        assert pool.stats().spawned == 3
    with Pool(1, runtime="process", initargs=(tmp_path, {*range(5, 100)}), **options) as pool:
        crashing, waiting = pool.submit(work.crash), [pool.submit(pow, 2, 2)]
        eventually(lambda: pool.stats().degraded)
        assert not waiting[0].done(), "it keeps its own limits"
        assert waiting[0].cancel()


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
        assert not error.ran
        error = pool.submit(work.identity, value=threading.Lock()).exception(PATIENCE)
        assert isinstance(error, NotPicklable)
        assert error.what == "argument value"


@pytest.mark.parametrize("capacity", [1, 2])
def test_what_cannot_be_pickled_nor_asked_why_costs_its_own_call_only(capacity: int) -> None:
    with Pool(1, runtime="process", capacity=capacity) as pool:
        for kind, make in work.UNTELLABLE.items():
            result = pool.submit(work.give_untellable, kind).exception(PATIENCE / 2)
            assert isinstance(result, NotPicklable), f"{kind} as a result: {result!r}"
            assert result.ran
            argument = pool.submit(work.identity, make()).exception(PATIENCE / 2)
            assert isinstance(argument, NotPicklable), f"{kind} as an argument: {argument!r}"
            assert not argument.ran
        mute = work.fail_without_words
        for call in ((work.identity, work.FailsWhenRead(mute)), (work.give_failing_result, mute, "read")):
            assert isinstance(pool.submit(*call).exception(PATIENCE / 2), NotPicklable)
        assert pool.do(pow, 2, 5) == 32
        assert pool.stats().spawned == 1


def test_items_beside_one_that_cannot_be_pickled_nor_asked_why_are_kept() -> None:
    with Pool(1, runtime="process") as pool:
        items = pool.map(work.give_untellable, ["a", "b", "key", "c"], chunksize=4)
        assert [next(items), next(items)] == ["a", "b"]
        with pytest.raises(NotPicklable):
            next(items)


def test_a_worker_of_several_requests_that_cannot_answer_one_of_them_ends() -> None:
    with Pool(1, runtime="process", capacity=2) as pool:
        error = pool.submit(work.lose_voice).exception(PATIENCE / 2)
        assert isinstance(error, WorkerLost)
        assert "TypeError" in error.stderr, "it does not say why"


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


# A start that fails in the app.


def assert_closes(pool: Pool) -> None:
    closing = threading.Thread(target=pool.close, daemon=True)
    closing.start()
    closing.join(PATIENCE / 4)
    assert not closing.is_alive()


def test_a_pool_whose_initializer_cannot_be_sent_can_be_closed() -> None:
    pool = Pool(1, runtime="process", initializer=work.identity, initargs=(threading.Lock(),))
    error = pool.submit(pow, 2, 2).exception(PATIENCE)
    assert error is not None
    assert isinstance(error.__cause__, NotPicklable)
    assert_closes(pool)


@pytest.mark.skipif(sys.platform != "linux", reason="there are other descriptors elsewhere")
@pytest.mark.parametrize(("kind", "needed"), [("python", 10), ("program", 6)])
def test_a_start_without_enough_descriptors_leaves_none_behind(
    kind: str, needed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever is the first that is not to be had, of the worker's own and of its forkserver's."""
    left = 0

    def scarce(real: Any) -> Any:
        def open_some(*args: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError(errno.EMFILE, "Too many open files")
            return real(*args, **options)

        return open_some

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    with Pool(1, runtime=ProcessRuntime(preload=["json"])) as other:  # the io thread runs, but no forkserver
        other.do(pow, 2, 2)
        before = descriptors()
        for owner, name in ((os, "pipe"), (os, "dup"), (os, "memfd_create"), (socket, "socketpair")):
            monkeypatch.setattr(owner, name, scarce(getattr(owner, name)))
        for spare in range(needed):
            left = spare
            pool = Pool(1, runtime=ProcessRuntime() if kind == "python" else ProgramRuntime(["cat"]))
            with pytest.raises(PoolFailed) as caught:
                pool.submit(pow if kind == "python" else "pow", 2, 2).result(PATIENCE)
            left = needed
            assert isinstance(caught.value.__cause__, OSError), spare
            assert_closes(pool)
            eventually(lambda: descriptors() == before, PATIENCE / 4)


# An answer that cannot be handled in the app.


class Deaf(Listener):
    def hear(self, value: Any) -> None:
        raise ValueError(value)


def test_an_answer_that_cannot_be_taken_fails_its_call_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object) -> Any:
        raise MemoryError

    with Pool(1, runtime="process") as pool:
        pool.do(pow, 2, 2)
        with monkeypatch.context() as patch:
            patch.setattr(arena.Inbox, "collect", no_memory)
            future = pool.submit(bytes, arena.LEAST)
            after = pool.submit(pow, 2, 3)
            error = future.exception(PATIENCE / 4)
            assert isinstance(error, NotPicklable)
            assert isinstance(error.__cause__, MemoryError)
            assert after.result(PATIENCE / 4) == 8
            with pytest.raises(NotPicklable):
                list(pool.stream(work.give_blocks, arena.LEAST))
        assert pool.submit(work.say_and_return, Deaf(), 5).result(PATIENCE / 4) == 5
        assert pool.stats().spawned == 1


# A worker that is stopped, or whose forkserver is killed, from outside.


def test_a_worker_that_was_stopped_is_killed_when_its_request_shall_end(tmp_path: Path) -> None:
    with Pool(1, runtime=ProcessRuntime(cancel_grace=0.05)) as pool:
        future = pool.submit(work.sleep_noting, tmp_path / "pid")
        pid = work.read_pid(tmp_path / "pid")
        os.kill(pid, signal.SIGSTOP)
        assert pool.cancel(future)
        eventually(lambda: not work.is_alive(pid))
        assert pool.submit(pow, 2, 2).result(PATIENCE) == 4


def test_workers_die_with_their_forkserver_and_are_replaced(tmp_path: Path) -> None:
    with Pool(1, runtime="process") as pool:
        future = pool.submit(work.hold_the_gil, tmp_path / "pid")
        pid = work.read_pid(tmp_path / "pid")
        forkserver = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(forkserver, signal.SIGKILL)
        assert isinstance(future.exception(PATIENCE), WorkerLost)
        eventually(lambda: not work.is_alive(pid))
        assert pool.submit(pow, 2, 2).result(PATIENCE) == 4
