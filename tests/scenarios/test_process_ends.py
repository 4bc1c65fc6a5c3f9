"""Process pools: requests that are told to stop, workers that are killed, and what is left when the app is gone."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

from bullpen import Pool, ProcessRuntime, RestartPolicy, RunTimeout, WorkerLost
from tests.scenarios import process_support as work
from tests.scenarios.process_support import PATIENCE, START_METHODS, eventually, is_alive, parent_of, read_pid

ROOT = Path(__file__).parents[2]


# One request.


def test_a_cancelled_request_is_interrupted_and_its_worker_goes_on(tmp_path: Path) -> None:
    with Pool(1, runtime="process") as pool:
        future = pool.submit(work.stop_with_a_note, tmp_path / "pid", tmp_path / "ended")
        pid = read_pid(tmp_path / "pid")
        assert pool.cancel(future)
        with pytest.raises(CancelledError):
            future.result(PATIENCE)
        assert pool.submit(work.pid).result(PATIENCE) == pid
        assert (tmp_path / "ended").exists(), "its finally block ran"


def run_too_long(pool: Pool, fn: Any, begun: Path, *args: object) -> int:
    """Call what notes that it has begun, until it was past its time; where that was. A busy machine needs more time."""
    for seconds in (0.2, 2.0, 10.0):
        error = pool.using(run_timeout=seconds).submit(fn, begun, *args).exception(PATIENCE)
        assert isinstance(error, RunTimeout)
        if begun.exists():
            break
    return read_pid(begun)


def test_a_request_past_its_time_is_interrupted_and_its_worker_goes_on(tmp_path: Path) -> None:
    with Pool(1, runtime="process") as pool:
        pid = run_too_long(pool, work.stop_with_a_note, tmp_path / "pid", tmp_path / "ended")
        assert pool.submit(work.pid).result(PATIENCE) == pid
        assert (tmp_path / "ended").exists()


@pytest.mark.parametrize("hang", [work.hold_the_gil, work.refuse_to_stop])
def test_a_worker_that_does_not_stop_is_killed_and_replaced(
    tmp_path: Path, hang: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with Pool(1, runtime=ProcessRuntime(cancel_grace=0.5)) as pool:
        pid = run_too_long(pool, hang, tmp_path / "pid")
        eventually(lambda: not is_alive(pid))
        other = pool.submit(work.pid).result(PATIENCE)
        assert other != pid
    told = "\n".join(record.getMessage() for record in caplog.records if record.name == "bullpen")
    assert "did not stop within 0.5 s after it was told to" in told
    output = [record.getMessage() for record in caplog.records if record.name == "bullpen.output"]
    assert sum(f"in {hang.__name__}" in line for line in output) == 1, "where it hung is in the log, once"
    assert f"in {hang.__name__}" not in told


def test_a_caller_is_told_in_time_though_c_code_keeps_the_interpreter(tmp_path: Path) -> None:
    pool = Pool(3, runtime=ProcessRuntime(cancel_grace=600))
    try:
        assert is_alive(run_too_long(pool, work.hold_the_gil, tmp_path / "pid")), "nobody waits for its end"
    finally:
        pool.close(grace=0)


def test_requests_that_die_with_a_hung_worker_are_told_where_it_hung(tmp_path: Path) -> None:
    with Pool(1, runtime=ProcessRuntime(cancel_grace=1), capacity=2) as pool:
        other = pool.submit(work.sleep_noting, tmp_path / "other")
        read_pid(tmp_path / "other")  # it has begun
        hanging = pool.submit(work.hold_the_gil, tmp_path / "pid")
        read_pid(tmp_path / "pid")
        pool.cancel(hanging)
        error = other.exception(PATIENCE)
        assert isinstance(error, WorkerLost)
        assert "did not stop within 1 s after it was told to" in str(error)
        assert "in hold_the_gil" in error.stderr


def test_workers_that_are_killed_for_their_requests_do_not_count_as_dying(tmp_path: Path) -> None:
    with Pool(1, runtime=ProcessRuntime(cancel_grace=0.05), restarts=RestartPolicy(limit=1, within=60.0)) as pool:
        for number in range(3):
            future = pool.submit(work.hold_the_gil, tmp_path / str(number))
            read_pid(tmp_path / str(number))
            assert pool.cancel(future)
            assert pool.submit(pow, 2, 2).result(PATIENCE) == 4
        assert pool.stats().spawned == 4
        assert not pool.stats().degraded
        for _ in range(3):  # the first worker has finished a request
            pool.submit(work.crash).exception(PATIENCE)
        eventually(lambda: pool.stats().degraded)


def test_a_late_interrupt_hits_nobody() -> None:
    with Pool(1, runtime="process") as pool:
        for _ in range(100):
            future = pool.submit(pow, 2, 2)
            pool.cancel(future)
            assert pool.submit(pow, 2, 3).result(PATIENCE) == 8
        assert pool.stats().spawned == 1


def test_a_closing_pool_kills_what_outlasts_its_grace(tmp_path: Path) -> None:
    pool = Pool(1, runtime="process")
    future = pool.submit(work.hold_the_gil, tmp_path / "pid")
    pid = read_pid(tmp_path / "pid")
    pool.close(grace=0.05)
    assert future.exception(0) is not None
    assert not is_alive(pid)


def test_a_closing_pool_does_not_wait_for_modules_that_hang_when_they_are_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "module_that_hangs.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.syspath_prepend(tmp_path)
    pool = Pool(1, runtime=ProcessRuntime(preload=["module_that_hangs"]))
    future = pool.submit(pow, 2, 2)
    pool.close(grace=0.05)
    assert future.cancelled()


@pytest.mark.parametrize("how", ["initializer", "module"])
def test_a_closing_pool_does_not_wait_for_workers_that_only_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    (tmp_path / "module_that_hangs_too.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.syspath_prepend(tmp_path)
    hanging = ProcessRuntime(work.sleep_noting, (tmp_path / "pid",))
    if how == "module":
        hanging = ProcessRuntime(preload=["module_that_hangs_too"])
    with Pool(2, min_workers=2, runtime=hanging, restarts=RestartPolicy(limit=1, within=60.0)):
        if how == "initializer":
            read_pid(tmp_path / "pid")
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.INFO] == []


def test_a_closing_pool_does_not_wait_for_modules_that_another_pool_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = f"import os, time\nwhile not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.01)\n"
    (tmp_path / "module_that_waits.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with Pool(1, runtime=ProcessRuntime(preload=["module_that_waits"])) as pool:
        future = pool.submit(work.pid)
        with Pool(1, min_workers=1, runtime=ProcessRuntime(preload=["module_that_waits"])):
            pass
        (tmp_path / "go").touch()
        assert future.result(PATIENCE)


def test_requests_that_wait_when_a_pool_closes_run_on_workers_that_start_then() -> None:
    with Pool(2, min_workers=2, runtime=ProcessRuntime(time.sleep, (0.2,))) as pool:
        futures = [pool.submit(pow, 2, number) for number in range(20)]
    assert [future.result(0) for future in futures] == [2**number for number in range(20)]


def test_what_a_killed_worker_has_started_dies_with_it(tmp_path: Path) -> None:
    pool = Pool(1, runtime="process")
    pool.submit(work.start_one, tmp_path)
    other = read_pid(tmp_path / "other")
    pool.close(grace=0)
    eventually(lambda: not is_alive(other))


def test_processes_that_a_worker_has_started_die_also_if_only_its_forkserver_is_killed(tmp_path: Path) -> None:
    with Pool(1, runtime="process") as pool:
        future = pool.submit(work.start_one, tmp_path)
        other = read_pid(tmp_path / "other")
        worker = parent_of(other)
        os.kill(parent_of(worker), signal.SIGKILL)
        try:
            assert isinstance(future.exception(PATIENCE), WorkerLost)
            eventually(lambda: not is_alive(worker) and not is_alive(other), 2.0)
        finally:
            if is_alive(other):
                os.kill(other, signal.SIGKILL)


# The app.


def run_script(source: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", source, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


APP = """
import pathlib, sys, time
from bullpen import Pool, ProcessRuntime
from tests.scenarios import process_support as work
folder, start = pathlib.Path(sys.argv[1]), sys.argv[2]
pool = Pool(4, runtime=ProcessRuntime(start=start))
pool.submit(work.hold_the_gil, folder / "gil")
pool.submit(work.refuse_to_stop, folder / "stubborn")
pool.submit(work.start_others, folder)
pool.submit(pow, 2, 2).result()
time.sleep(600)
"""


@pytest.mark.parametrize("start", START_METHODS)
def test_nothing_is_alive_two_seconds_after_the_app_was_killed(tmp_path: Path, start: str) -> None:
    app = run_script(APP, tmp_path, start)
    pids = [read_pid(tmp_path / name) for name in ("gil", "stubborn", "worker")]
    pids += [int(path.name.partition("-")[2]) for path in tmp_path.glob("other-*")]
    assert len(pids) == 6
    forkserver = parent_of(pids[0])
    assert all(is_alive(pid) for pid in (*pids, forkserver))
    app.kill()
    app.communicate()
    until = time.monotonic() + 2.0
    while any(is_alive(pid) for pid in (*pids, forkserver)) and time.monotonic() < until:
        time.sleep(0.01)
    assert [pid for pid in (*pids, forkserver) if is_alive(pid)] == []


IMPORTS = """
import sys, time
from bullpen import Pool, ProcessRuntime
sys.path.insert(0, sys.argv[1])
pool = Pool(1, runtime=ProcessRuntime(preload=["module_that_hangs"]))
pool.submit(pow, 2, 2)
time.sleep(600)
"""

HANGS = """
import pathlib, time
from tests.scenarios import process_support as work
work.note_pid(pathlib.Path(__file__).with_name("forkserver"))
time.sleep(600)
"""


def test_a_forkserver_that_still_imports_ends_with_the_app(tmp_path: Path) -> None:
    (tmp_path / "module_that_hangs.py").write_text(HANGS)
    app = run_script(IMPORTS, tmp_path)
    forkserver = read_pid(tmp_path / "forkserver")
    app.kill()
    try:
        eventually(lambda: not is_alive(forkserver), 2.0)
    finally:
        if is_alive(forkserver):
            os.kill(forkserver, signal.SIGKILL)
        app.communicate()


FORKS = """
import os, pathlib, sys, time
from bullpen import Pool
from tests.scenarios import process_support as work
folder = pathlib.Path(sys.argv[1])
pool = Pool(1, runtime="process")
pool.submit(work.hold_the_gil, folder / "worker")
work.read_pid(folder / "worker")
if os.fork() == 0:
    work.note_pid(folder / "forked")
    time.sleep(600)
time.sleep(600)
"""


def test_a_forked_child_of_the_app_keeps_no_worker_alive(tmp_path: Path) -> None:
    app = run_script(FORKS, tmp_path)
    forked, worker = read_pid(tmp_path / "forked"), read_pid(tmp_path / "worker")
    app.kill()
    try:
        eventually(lambda: not is_alive(worker), 2.0)
        assert is_alive(forked)
    finally:
        os.kill(forked, signal.SIGKILL)
        app.communicate()


INTERRUPTED = """
import pathlib, sys
from bullpen import Pool, ProcessRuntime
from tests.scenarios import process_support as work
folder, how = pathlib.Path(sys.argv[1]), sys.argv[2]

def wait(pool):
    first = pool.submit(work.stop_with_a_note, folder / "running", folder / "ended")
    more = [pool.submit(work.sleep_noting, folder / "must not be") for _ in range(5)]
    first.result()

if how == "with":
    with Pool(1, runtime="process") as pool:
        wait(pool)
elif how == "open":
    wait(Pool(1, runtime="process"))
elif how == "starting":
    with Pool(1, runtime="process", initializer=work.sleep_noting, initargs=(folder / "running",)) as pool:
        wait(pool)
"""


@pytest.mark.parametrize("how", ["with", "open", "starting"])
def test_ctrl_c_ends_a_script_at_once_and_runs_nothing_that_waits(tmp_path: Path, how: str) -> None:
    app = run_script(INTERRUPTED, tmp_path, how)
    worker = read_pid(tmp_path / "running")
    app.send_signal(signal.SIGINT)
    _, errors = app.communicate(timeout=PATIENCE)
    assert app.returncode in (1, 130, -signal.SIGINT)
    assert errors.count("Traceback") == 1, errors
    assert errors.endswith("KeyboardInterrupt\n"), errors
    assert not is_alive(worker)
    assert not (tmp_path / "must not be").exists()
    assert (tmp_path / "ended").exists() == (how != "starting"), "the finally block of what ran"


FIRST_PROCESS = """
import os, time
from bullpen import Pool
with Pool(1, runtime="process") as pool:
    errors = pool.submit(os._exit, 3), pool.using(run_timeout=0.1).submit(time.sleep, 600)
    print(os.getpid(), [type(future.exception()).__name__ for future in errors], pool.do(pow, 2, 2))
"""


def test_a_pool_works_in_the_first_process_of_a_container(tmp_path: Path) -> None:
    alone = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs namespaces of its own")
    app = subprocess.run(
        [*alone, sys.executable, "-c", FIRST_PROCESS], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert app.stdout == "1 ['WorkerLost', 'RunTimeout'] 4\n", app.stderr


EXITS = """
from bullpen import Pool
from tests.scenarios import process_support as work
pool = Pool(2, runtime="process")
pool.serve(print, "printed at the end")
print(pool.submit(work.pid).result())
"""


def test_a_script_that_just_ends_runs_the_accepted_requests_and_leaves_nothing() -> None:
    app = run_script(EXITS)
    output, errors = app.communicate(timeout=PATIENCE)
    assert errors == ""
    assert "printed at the end" in output
    worker = next(int(line) for line in output.splitlines() if line.isdigit())
    eventually(lambda: not is_alive(worker), 2.0)


# What workers print.


def test_no_line_of_a_worker_that_dies_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bullpen.output")
    with Pool(1, runtime="process") as pool:
        error = pool.submit(work.say_and_crash, "\n".join(map(str, range(10_000)))).exception(PATIENCE)
    assert isinstance(error, WorkerLost)
    assert error.stderr.endswith("\n9998\n9999")
    lines = [record.getMessage() for record in caplog.records if record.name == "bullpen.output"]
    assert lines == [f"{error.worker}: {number}" for number in range(10_000)]


def test_output_goes_to_the_log_by_line_with_the_name_of_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bullpen.output")
    with Pool(1, runtime="process", name="talkers") as pool:
        pool.submit(print, "one\ntwo").result(PATIENCE)
        pool.submit(work.complain, "three").result(PATIENCE)
        pool.submit(print, "four", end="").result(PATIENCE)
    lines = [(r.levelname, r.getMessage()) for r in caplog.records if r.name == "bullpen.output"]
    assert sorted(lines) == [
        ("INFO", "talkers_0: four"),
        ("INFO", "talkers_0: one"),
        ("INFO", "talkers_0: two"),
        ("WARNING", "talkers_0: three"),
    ]
