"""Worker processes that fork, are stopped, are dead already, or send garbage: no call is answered by another process,
nothing hangs, and no process is left.
"""

from __future__ import annotations

import functools
import os
import pickle
import random
import signal
import struct
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from bullpen import (
    DeadlineExceeded,
    Pool,
    PoolFailed,
    ProcessRuntime,
    ProgramRuntime,
    RestartPolicy,
    WorkerLost,
    WorkerStartFailed,
)
from bullpen.pools.runtimes.port import Listener
from bullpen.pools.runtimes.process import forkserver_client, process, wire
from bullpen.pools.runtimes.process.process import Process
from bullpen.pools.supervision import restarts, retries
from tests.scenarios import process_support as work
from tests.scenarios.process_support import PATIENCE, START_METHODS, eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


# Forked children that leave the user's function.


@pytest.mark.parametrize("start", START_METHODS)
@pytest.mark.parametrize("capacity", [1, 2])
def test_a_forked_child_that_leaves_the_function_ends_without_a_word(start: Any, capacity: int) -> None:
    with Pool(1, runtime=ProcessRuntime(start=start), capacity=capacity) as pool:
        first = pool.do(work.pid)
        for how, code in (("returns", 0), ("raises", 1), ("exits", 3)):
            assert pool.submit(work.fork_and_leave, how).result(PATIENCE) == code, how
        assert list(pool.stream(work.fork_and_yield)) == [0]
        assert pool.do(work.pid) == first
    assert pool.stats().spawned == 1


@pytest.mark.parametrize("capacity", [1, 2])
@pytest.mark.parametrize("on_error", ["raise", "return"])
@pytest.mark.parametrize(("how", "code"), [("returns", 0), ("raises", 1), ("exits", 3)])
def test_a_forked_child_that_leaves_an_item_of_a_map_runs_no_other_item(
    capacity: int, on_error: Any, how: str, code: int, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    fork = functools.partial(work.fork_at, place=3, how=how, ran=str(ran))
    with Pool(1, runtime="process", capacity=capacity) as pool:
        results = list(pool.map(fork, range(10), chunksize=10, on_error=on_error))
        assert [getattr(result, "value", result) for result in results] == [0, 0, 0, code, 0, 0, 0, 0, 0, 0]
    assert len(ran.read_text()) == 10


def test_a_child_that_an_argument_forks_does_not_run_the_call(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    with Pool(1, runtime="process") as pool:
        pool.do(work.note_with, work.ForksWhenUnpickled(), str(ran))
    assert ran.read_text() == "x"


def test_a_child_that_a_starting_instance_forks_does_not_go_on_with_the_start(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    with Pool(1, runtime="process", worker=functools.partial(work.ForksAtStart, str(ran))) as pool:
        assert pool.do("hello") == "hello"
    assert ran.read_text() == "xx"


class Told(Listener):
    def __init__(self) -> None:
        self.values: list[Any] = []

    def hear(self, value: Any) -> None:
        self.values.append(value)


@pytest.mark.parametrize("capacity", [1, 2])
def test_a_forked_child_cannot_report_for_its_parent(capacity: int) -> None:
    told = Told()
    with Pool(1, runtime="process", capacity=capacity) as pool:
        assert pool.submit(work.fork_and_tell, told).result(PATIENCE) == 5
    assert told.values == ["from the worker"]


@pytest.mark.parametrize("start", START_METHODS)
def test_programs_that_a_worker_starts_have_none_of_its_descriptors(start: Any) -> None:
    with Pool(1, runtime=ProcessRuntime(start=start)) as pool:
        targets = pool.do(work.descriptors_of_a_program)
    assert len(targets) == 4, targets  # the standard streams, and the folder that it lists
    assert not [target for target in targets if "socket" in target or "memfd" in target]


def test_a_forked_child_of_an_initializer_is_no_second_worker() -> None:
    with Pool(1, runtime="process", initializer=work.fork_at_start) as pool:
        assert [pool.do(work.identity, number) for number in range(10)] == list(range(10))


@pytest.mark.parametrize("how", ["goes on", "raises"])
def test_a_forked_child_of_a_preloaded_module_is_no_second_forkserver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    name = f"forks_and_{how.replace(' ', '_')}"
    (tmp_path / f"{name}.py").write_text(f"import os\nif not os.fork() and {how == 'raises'}:\n    raise ValueError\n")
    with Pool(8, runtime=ProcessRuntime(preload=[name]), min_workers=8) as pool:
        assert pool.wait_ready(PATIENCE)
        parents = {work.parent_of(pool.do(work.pid)) for _ in range(8)}
    assert len(parents) == 1


def test_a_worker_that_dies_while_items_wait_for_their_reader_is_no_defect(caplog: pytest.LogCaptureFixture) -> None:
    with Pool(1, runtime="process") as pool:
        stream = pool.using(buffersize=1).stream(work.count_and_die, 2)
        eventually(lambda: pool.stats().died)
        assert next(stream) == 0
        with pytest.raises(WorkerLost):
            list(stream)
    assert "caught an error" not in caplog.text


# Processes that are stopped (SIGSTOP), which only SIGKILL ends.

SCRIPT = """
import os, signal, sys
sys.path.insert(0, {root!r})
from bullpen import Pool, ProcessRuntime
from tests.scenarios import process_support as work
from tests.scenarios.test_process_faults import impatient

if __name__ == "__main__":
    impatient()
    pool = Pool(2, runtime=ProcessRuntime(stop_grace=0.2))
    worker = pool.do(os.getpid)
    os.kill({victim}, signal.SIGSTOP)
    print(*work.descendants_of(os.getpid()), flush=True)
"""


def impatient() -> None:
    """Wait for a forkserver that does not answer only for a moment."""
    forkserver_client.LOOK_EVERY, forkserver_client.LAST_WAIT = 0.02, 0.2


@pytest.fixture
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forkserver_client, "LOOK_EVERY", 0.02)
    monkeypatch.setattr(forkserver_client, "LAST_WAIT", 0.2)


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: work.state_of(pid) == "T")


def test_a_stopped_idle_worker_does_not_keep_a_pool_from_closing() -> None:
    with Pool(2, runtime=ProcessRuntime(stop_grace=0.1), min_workers=2) as pool:
        assert pool.wait_ready(PATIENCE)
        worker = pool.do(work.pid)
        stop(worker)
    assert not work.is_alive(worker)


def test_a_worker_has_time_to_close_its_instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTER_FOLDER", str(tmp_path))
    with Pool(1, runtime=ProcessRuntime(stop_grace=None), worker=work.Counter) as pool:
        worker = pool.do("where")
    assert (tmp_path / f"closed-{worker}").exists()


def test_a_worker_that_was_stopped_while_it_starts_does_not_keep_a_pool_from_closing(tmp_path: Path) -> None:
    with Pool(1, runtime="process", initializer=work.sleep_noting, initargs=(tmp_path / "pid",), min_workers=1):
        worker = work.read_pid(tmp_path / "pid")
        stop(worker)
    assert not work.is_alive(worker)


@pytest.mark.usefixtures("impatience")
@pytest.mark.parametrize("when", ["a worker ends", "a worker starts", "a worker died"])
def test_a_forkserver_that_does_not_answer_is_replaced(when: str, tmp_path: Path) -> None:
    with Pool(2, runtime=ProcessRuntime(preload=["wave"])) as pool:  # a forkserver of its own
        worker = pool.do(work.pid)
        forkserver = work.parent_of(worker)
        stop(forkserver)
        if when == "a worker starts":
            running = pool.submit(work.wait_for, tmp_path / "go")
            assert pool.submit(work.pid).result(PATIENCE) != worker
            (tmp_path / "go").touch()
            assert running.result(PATIENCE) == worker, "the other workers go on"
        elif when == "a worker died":
            os.kill(worker, signal.SIGKILL)
            eventually(lambda: pool.stats().workers == 0)
            assert pool.do(work.pid) != worker
    assert not work.is_alive(worker)
    eventually(lambda: not work.is_alive(forkserver))


@pytest.mark.parametrize("victim", ["worker", "work.parent_of(worker)"])
def test_a_script_ends_though_a_process_of_its_pool_is_stopped(tmp_path: Path, victim: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(victim=victim, root=os.getcwd()))
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=PATIENCE, check=True)
    pids = [int(pid) for pid in ended.stdout.split()]
    assert len(pids) >= 2
    eventually(lambda: not any(map(work.is_alive, pids)))


# Garbage on the channel of a worker.

HUGE = 1 << 62
NO_CALL = 10**9  # a number that no call has
PICKLE = pickle.dumps(1)


def frame(kind: int, number: int = 0, data: bytes = b"", *, length: int | None = None, buffers: int = 0) -> bytes:
    size = len(data) if length is None else length
    return wire.HEADER.pack(kind, buffers, wire.MAGIC, number, size) + data


GARBAGE = {
    "noise": bytes(range(256)),
    "zeros": bytes(64),
    "text": b"a line that the user's code has printed to the wrong descriptor\n",
    "another magic": bytes([wire.DONE]) + bytes(wire.HEADER.size),
    "a huge length": frame(wire.DONE, 1, length=HUGE),
    "a length beyond all memory": frame(wire.DONE, 1, length=2**64 - 1),
    "huge buffers": frame(wire.DONE, 1, buffers=3) + struct.pack("<3Q", HUGE, HUGE, HUGE),
    "too many buffers": frame(wire.DONE, 1, buffers=65535) + bytes(600_000),
    "no kind": frame(wire.NEWS + 1),
    "a kind of the app": frame(wire.CALL, 1, PICKLE),
    "the result of no call": frame(wire.DONE, NO_CALL, PICKLE),
    "the error of no call": frame(wire.FAILED, NO_CALL, PICKLE),
    "an item of no stream": frame(wire.ITEM, 1, PICKLE),
    "an item of no call": frame(wire.ITEM, NO_CALL, PICKLE),
    "ready again": frame(wire.READY, 0, pickle.dumps(("", None))),
    "calls that nobody recalled": frame(wire.NOT_BEGUN, 0, pickle.dumps([1])),
    "places that are no places": frame(wire.FREED, 0, b"123"),
    "no pickle of an error": frame(wire.BROKEN, 1, b"garbage"),
    "shared memory that is not there": frame(wire.NEWS | wire.SHARED, 1, struct.pack("<qq", 1 << 40, 1 << 30)),
    "a description that is none": frame(wire.NEWS | wire.SHARED, 1, b"123"),
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE)
def test_garbage_on_its_channel_is_a_crash_of_that_worker(data: bytes) -> None:
    with Pool(2, runtime="process") as pool:
        other = pool.submit(work.wait_for, Path("/dev/null"))
        error = pool.submit(work.send_raw, data).exception(PATIENCE)
        assert isinstance(error, WorkerLost), error
        assert other.result(PATIENCE)
        assert pool.do(work.identity, 1) == 1


@pytest.mark.parametrize("size", [1, wire.HEADER.size - 1, wire.HEADER.size, wire.HEADER.size + 100])
def test_a_frame_that_is_cut_off_is_a_crash_of_that_worker(size: int) -> None:
    with Pool(1, runtime="process") as pool:
        data = frame(wire.DONE, 1, bytes(1000))[:size]
        error = pool.submit(work.send_raw, data, "crash").exception(PATIENCE)
        assert isinstance(error, WorkerLost)
        assert error.exit_code == 7
        if size < wire.HEADER.size:  # else its answer would be the rest of that frame
            assert isinstance(pool.submit(work.send_raw, data, "return").exception(PATIENCE), WorkerLost)
        assert pool.do(work.identity, 1) == 1


@pytest.mark.parametrize("then", ["wait", "return"])
def test_half_a_frame_and_then_silence_is_a_crash_of_that_worker(then: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "LOOK_EVERY", 0.05)
    with Pool(1, runtime="process") as pool:
        for size in (wire.HEADER.size - 1, wire.HEADER.size + 100) if then == "wait" else (wire.HEADER.size + 100,):
            data = frame(wire.DONE, 1, bytes(1_000_000))[:size]
            error = pool.submit(work.send_raw, data, then).exception(PATIENCE)
            assert isinstance(error, WorkerLost)
            assert "part of a message" in str(error)
        assert pool.do(work.identity, 1) == 1


def test_a_frame_that_a_signal_handler_tears_is_a_crash_of_that_worker() -> None:
    with Pool(1, runtime="process") as pool:
        with pytest.raises(WorkerLost) as lost:
            for _ in pool.using(timeout=PATIENCE).stream(work.be_interrupted_while_sending):
                pass
        assert "TimeoutError" in lost.value.stderr
        assert pool.do(work.identity, 1) == 1


@pytest.mark.parametrize("then", ["wait", "return"])
def test_a_worker_that_closes_its_channel_and_goes_on_is_killed(then: str) -> None:
    with Pool(1, runtime="process") as pool:
        error = pool.submit(work.close_descriptors, then).exception(PATIENCE)
        assert isinstance(error, WorkerLost)
        assert "it closed its channel" in str(error)
        assert pool.do(work.identity, 1) == 1


def test_a_worker_of_several_requests_that_replaces_its_channel_and_returns_is_lost() -> None:
    with Pool(1, runtime="process", capacity=2) as pool:
        error = pool.submit(work.close_descriptors, "return").exception(PATIENCE)
        assert isinstance(error, WorkerLost)
        assert "descriptor of the worker's channel" in error.stderr
        assert pool.do(work.identity, 1) == 1


def test_a_worker_that_has_left_its_process_group_is_killed(tmp_path: Path) -> None:
    with Pool(1, runtime=ProcessRuntime(cancel_grace=0.05)) as pool:
        call = pool.submit(work.leave_the_group_and_stay, tmp_path / "pid")
        worker = work.read_pid(tmp_path / "pid")
        pool.cancel(call)
        eventually(lambda: not work.is_alive(worker))
        assert pool.do(work.identity, 1) == 1


def test_a_frame_takes_no_more_memory_than_has_come_of_it() -> None:
    reader = wire.FrameReader()
    tracemalloc.start()
    try:
        assert reader.feed(frame(wire.DONE, 1, bytes(1000), length=1 << 40)) == []
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_noise_never_stops_the_other_calls() -> None:
    luck = random.Random(15)
    with Pool(2, runtime="process", restarts=RestartPolicy(limit=1000, within=60.0)) as pool:
        for _ in range(30):
            data = bytearray(frame(luck.choice((wire.DONE, wire.ITEM, wire.NEWS, wire.READY)), 1, luck.randbytes(50)))
            for _ in range(luck.randrange(1, 8)):
                data[luck.randrange(len(data))] = luck.randrange(256)
            noisy = pool.submit(work.send_raw, bytes(data), "crash")
            assert pool.do(work.identity, 1) == 1
            noisy.exception(PATIENCE)
        assert pool.do(work.identity, 1) == 1


# Deaths beyond the restart limit.


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots that have to stay empty do so for a moment only."""
    monkeypatch.setattr(restarts, "FIRST_DELAY", 0.01)


@pytest.mark.usefixtures("soon")
def test_requests_wait_for_workers_that_are_killed_beyond_the_restart_limit(tmp_path: Path) -> None:
    with Pool(
        1,
        runtime="process",
        initializer=work.be_killed_at_start,
        initargs=(tmp_path, {2, 3}),
        restarts=RestartPolicy(limit=0, within=60.0),
    ) as pool:
        lost = pool.submit(work.crash)
        waiting = [pool.submit(work.identity, number) for number in range(100)]
        impatient = pool.using(timeout=0.0001).submit(work.identity, 0)
        assert isinstance(lost.exception(PATIENCE), WorkerLost)
        assert isinstance(impatient.exception(PATIENCE), DeadlineExceeded), "each keeps its own limits"
        assert [future.result(PATIENCE) for future in waiting] == list(range(100))
        assert pool.stats().degraded
        assert len(list(tmp_path.glob("start-*"))) == 4


@pytest.mark.usefixtures("soon")
def test_a_closing_pool_does_not_wait_for_workers_that_are_killed_beyond_the_restart_limit(tmp_path: Path) -> None:
    killed = (tmp_path, set(range(2, 1000)))
    policy = RestartPolicy(limit=0, within=60.0)
    with Pool(1, runtime="process", initializer=work.be_killed_at_start, initargs=killed, restarts=policy) as pool:
        assert isinstance(pool.submit(work.crash).exception(PATIENCE), WorkerLost)
        waiting = [pool.submit(work.identity, number) for number in range(10)]
    assert {type(future.exception(PATIENCE)) for future in waiting} == {WorkerStartFailed}


def test_a_pool_that_never_had_a_worker_fails_at_once(tmp_path: Path) -> None:
    killed = (tmp_path, set(range(1000)))
    with Pool(1, runtime="process", initializer=work.be_killed_at_start, initargs=killed) as pool:
        assert isinstance(pool.submit(work.identity, 1).exception(PATIENCE), PoolFailed)


# Requests that are handed to a process that is dead already.

PROGRAM = """
import json, os, sys
for line in sys.stdin:
    message = json.loads(line)
    if message["type"] == "hello":
        print(json.dumps({"type": "ready", "protocol": 1, "capacity": 2}), flush=True)
    elif message["type"] == "call":
        if message["method"] == "crash":
            os._exit(7)
        print(json.dumps({"type": "result", "id": message["id"], "value": os.getpid()}), flush=True)
"""
LENIENT = RestartPolicy(limit=1000, within=60.0)


@pytest.mark.parametrize("start", [*START_METHODS, "program"])
@pytest.mark.parametrize("capacity", [1, 2])
def test_a_request_that_a_dead_worker_never_began_runs_on_another(start: Any, capacity: int) -> None:
    program = ProgramRuntime([sys.executable, "-S", "-c", PROGRAM])
    runtime = program if start == "program" else ProcessRuntime(start=start)
    whoami: Any = "pid" if start == "program" else work.pid
    with Pool(1, runtime=runtime, capacity=capacity, restarts=LENIENT) as pool:
        for number in range(20 if start == "forkserver" else 4):
            worker = pool.do(whoami)
            stopped = start == "program" or number % 2  # a program that is killed may still read, and is not known to
            if stopped:
                stop(worker)
            else:
                os.kill(worker, signal.SIGKILL)
            calls = [pool.submit(whoami), pool.using(timeout=PATIENCE, run_timeout=PATIENCE).submit(whoami)]
            calls.append(pool.using(session="s").submit(whoami))
            if capacity == 1:  # else it may run when its worker is killed, and is lost
                pool.serve(whoami)
            if stopped:
                os.kill(worker, signal.SIGKILL)
            for call in calls:
                assert call.result(PATIENCE) != worker
    assert pool.stats().lost == pool.stats().retried == 0


def test_a_request_that_no_thread_of_a_dead_worker_has_begun_runs_on_another(tmp_path: Path) -> None:
    with Pool(1, runtime="process", capacity=2, restarts=LENIENT) as pool:
        begun = pool.submit(work.be_killed_at_the_next_thread, tmp_path / "pid")
        worker = work.read_pid(tmp_path / "pid")
        assert pool.submit(work.pid).result(PATIENCE) != worker
        assert isinstance(begun.exception(PATIENCE), WorkerLost)


def test_a_request_that_its_dead_worker_never_got_runs_on_another_though_a_later_one_has_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two threads hand requests to one worker, and the second is faster."""
    call, waits, may_send = Process._call, threading.Event(), threading.Event()

    def slow(self: Process, number: int, encoded: Any) -> None:
        if threading.current_thread().name == "slow":
            waits.set()
            assert may_send.wait(PATIENCE)
        call(self, number, encoded)

    with Pool(1, runtime="process", capacity=2, restarts=LENIENT) as pool:
        worker = pool.do(work.pid)
        monkeypatch.setattr(Process, "_call", slow)
        futures: list[Any] = []
        submitter = threading.Thread(target=lambda: futures.append(pool.submit(work.pid)), name="slow")
        submitter.start()
        assert waits.wait(PATIENCE)
        assert isinstance(pool.submit(work.crash).exception(PATIENCE), WorkerLost)
        may_send.set()
        submitter.join()
        assert futures[0].result(PATIENCE) != worker


@pytest.mark.parametrize("start", [*START_METHODS, "program"])
def test_a_request_that_has_begun_is_lost_with_its_worker(start: Any) -> None:
    program = ProgramRuntime([sys.executable, "-S", "-c", PROGRAM])
    runtime = program if start == "program" else ProcessRuntime(start=start)
    crash: Any = "crash" if start == "program" else work.crash
    with Pool(1, runtime=runtime, restarts=LENIENT) as pool:
        for _ in range(5):
            assert isinstance(pool.submit(crash).exception(PATIENCE), WorkerLost)
        assert isinstance(
            pool.using(session="s", affinity="strict_queue").submit(crash).exception(PATIENCE), WorkerLost
        )
    assert pool.stats().lost == 6
    assert pool.stats().spawned <= 7, "each ran once"


def test_a_stream_that_a_dead_worker_never_began_runs_on_another() -> None:
    with Pool(1, runtime="process", restarts=LENIENT) as pool:
        worker = pool.do(work.pid)
        stop(worker)
        items = pool.stream(work.count_up, 3)
        os.kill(worker, signal.SIGKILL)
        assert list(items) == [0, 1, 2]


def test_a_request_that_kills_workers_before_they_begin_it_is_lost_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one for whose arguments no worker has the memory."""
    monkeypatch.setattr(Process, "_call", lambda self, *_: self._signal_group(signal.SIGKILL))
    with Pool(1, runtime="process", restarts=LENIENT) as pool:
        assert isinstance(pool.submit(work.pid).exception(PATIENCE), WorkerLost)
    assert pool.stats().spawned == 1 + retries.MOST_SENT_AGAIN
