"""Who waits for a quick answer listens for it itself: nothing is lost by that, whatever comes between."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bullpen import Pool, WorkerLost
from bullpen.runtimes.process import listening
from bullpen.runtimes.process.switchboard import switchboard
from tests.scenarios import process_support as work
from tests.scenarios.process_support import PATIENCE

pytestmark = pytest.mark.timeout(120)

INTERRUPTED = """
import os, random, signal, threading, time
from bullpen import Pool
from bullpen.runtimes.process.switchboard import switchboard

lent = []
lend = switchboard.lend
switchboard.lend = lambda fd: lent.append(fd) or lend(fd)
waits = threading.Semaphore(0)

def interrupt():
    while True:
        waits.acquire()
        time.sleep(random.random() * 0.0004)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=interrupt, daemon=True).start()
    answered = interrupted = 0
    with Pool(2, runtime="process", min_workers=2) as pool:
        pool.wait_ready(60)
        for number in range(80):
            future = pool.submit(abs, -number)
            try:
                waits.release()
                future.result()
                while True:
                    time.sleep(0.001)
            except KeyboardInterrupt:
                interrupted += 1
            answered += future.result(timeout=30) == number
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert lent
        lent.clear()
        signal.signal(signal.SIGALRM, lambda *_: None)  # which might raise something
        assert pool.do(abs, -1) == 1
        assert not lent
    print(answered, interrupted)
"""


def test_an_interrupt_of_who_listens_loses_no_answer(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(INTERRUPTED)
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (ended.stdout, ended.stderr) == ("80 80\n", "")


def test_callbacks_do_not_run_on_the_thread_that_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "LISTEN_SECONDS", PATIENCE)
    seen: list[int] = []

    def wait() -> None:
        future = pool.submit(work.wait_for, tmp_path / "go")
        future.add_done_callback(lambda _: seen.append(threading.get_ident()))
        (tmp_path / "go").write_text("1")
        future.result()
        seen.append(threading.get_ident())

    with Pool(1, runtime="process", min_workers=1) as pool:
        pool.wait_ready(PATIENCE)
        thread = threading.Thread(target=wait)  # on the main one the tests' own signal handler is in the way
        thread.start()
        thread.join(PATIENCE)
    assert len(set(seen)) == 2


def test_who_listens_is_told_of_a_crash_and_of_a_slow_answer_and_leaves_the_others_theirs() -> None:
    lent: list[bool] = []

    def wait() -> None:
        with pytest.raises(WorkerLost):
            pool.do(work.crash)
        assert pool.do(work.sleep_and_count, 0.02) == 0.02
        assert pool.do(pow, 2, 3) == 8
        lent.append(switchboard.reports_here())

    with Pool(2, runtime="process", min_workers=2) as pool:
        pool.wait_ready(PATIENCE)
        threads = [threading.Thread(target=wait) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
    assert lent == [False] * 3


def test_a_future_that_is_driven_by_hand_can_be_waited_for() -> None:
    with Pool(1, runtime="process") as pool:
        pool.pause()
        future = pool.submit(pow, 2, 3)
        assert future.set_running_or_notify_cancel()
        threading.Timer(0.02, future.set_result, [9]).start()
        assert future.result() == 9
        pool.resume()


def test_nobody_listens_on_a_thread_that_may_be_interrupted_anywhere() -> None:
    with Pool(1, capacity=2, runtime="process") as pool:
        assert pool.do(work.threads_that_listened) == ["another"]
