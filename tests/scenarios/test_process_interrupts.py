"""Ctrl-C at any moment of a call: nothing runs twice, and the worker serves on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.scenarios.process_support import PATIENCE

SCRIPT = """
import collections, os, random, signal, sys, threading, time
from bullpen import Pool

def note(number):
    file = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, b"%d\\n" % number)
    os.close(file)

def noted(number):
    note(number)
    yield number

def interrupt():
    while True:
        due.wait()
        due.clear()
        end = time.perf_counter() + delay
        while time.perf_counter() < end:
            pass
        signal.pthread_kill(main, signal.SIGINT)

WAYS = {
    "do": lambda pool, number: pool.do(note, number),
    "submit": lambda pool, number: pool.submit(note, number),
    "stream": lambda pool, number: list(pool.stream(noted, number)),
    "large": lambda pool, number: pool.do(len, bytes(400_000)),
}

if __name__ == "__main__":
    call, main, due, delay = WAYS[sys.argv[1]], threading.main_thread().ident, threading.Event(), 0.0
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with Pool(1, runtime="process") as pool:
        begun = time.perf_counter()
        for _ in range(50):
            pool.do(abs, 1)
        usual = (time.perf_counter() - begun) / 50
        threading.Thread(target=interrupt, daemon=True).start()
        interrupted = 0
        for number in range(150):
            try:
                delay = random.random() * usual
                due.set()
                call(pool, number)
                time.sleep(5)
            except KeyboardInterrupt:
                interrupted += 1
        assert pool.using(timeout=60).do(abs, -1) == 1
    runs = collections.Counter(open(sys.argv[2]).read().split()) if os.path.exists(sys.argv[2]) else {}
    print(interrupted, "interrupted,", sum(count > 1 for count in runs.values()), "ran twice")
"""


@pytest.mark.parametrize("way", ["do", "submit", "stream", "large"])
def test_a_call_that_is_interrupted_at_any_moment_runs_once_or_never(way: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, script, way, tmp_path / "runs"], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.stdout == "150 interrupted, 0 ran twice\n", done.stderr
