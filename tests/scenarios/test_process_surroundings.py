"""Worker processes where the app is not a script of one's own: in a notebook, and under pytest-xdist."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bullpen import Pool
from tests.scenarios.process_support import eventually, is_alive

ROOT = Path(__file__).parents[2]

# What a kernel of IPython does with cells: a `__main__` without a file, code compiled under names of files that are not
# there, an event loop that runs on the main thread, and an error of a cell that does not end anything.
KERNEL = """
import asyncio, linecache, signal, sys, types

async def run(cells):
    for number, cell in enumerate(cells):
        name = f"/tmp/ipykernel_{number}/1234567.py"
        linecache.cache[name] = (len(cell), None, cell.splitlines(keepends=True), name)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            exec(compile(cell, name, "exec"), main.__dict__)
        except BaseException as error:
            sys.last_value = error
            print(type(error).__name__)

main = types.ModuleType("__main__")
sys.modules["__main__"] = main
loop = asyncio.new_event_loop()  # `run` would answer SIGINT itself
loop.run_until_complete(run(sys.argv[1].split("# %%")))
loop.close()
"""

NOTEBOOK = """
import os, signal, threading, time
from dataclasses import dataclass
from bullpen import Pool
factor = 3
def times(x): return x * factor
# %%
pool = Pool(2, runtime="process")
print(pool.do(times, 4), *pool.map(times, range(3)), pool.do(lambda: factor))
# %%
factor = 5
def times(x): return -x * factor
print(pool.do(times, 4))
# %%
@dataclass
class Point:
    x: int
    def moved(self): return Point(self.x + 1)
class Failure(Exception): pass
def fail(): raise Failure("on purpose")
print(pool.do(Point(1).moved) == Point(2))
# %%
try:
    pool.do(fail)
except Failure as failure:
    print(failure)
# %%
def count(limit): yield from map(times, range(limit))
print(*pool.stream(count, 3))
# %%
def hang(*_): time.sleep(600)
def interrupt_soon(): threading.Timer(0.5, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT]).start()
interrupt_soon()
pool.do(hang)
# %%
print(pool.do(times, 1))
interrupt_soon()
list(pool.map(hang, range(8)))
# %%
print(pool.do(times, 2))
interrupt_soon()
for item in pool.using(run_timeout=900).map(hang, range(8)): pass
# %%
print(pool.do(times, 3))
def hang_first(): yield hang()
interrupt_soon()
list(pool.stream(hang_first))
# %%
print(pool.do(times, 4))
# %%
class Model:
    def __init__(self): self.calls = 0
    def predict(self, x):
        self.calls += 1
        return times(x), self.calls
with Pool(1, worker=Model, runtime="process") as models:
    print(models.do("predict", 1), models.do("predict", 2))
# %%
pool.close()  # which would wait for what still runs
"""


def test_a_notebook_may_define_and_redefine_what_workers_run() -> None:
    command = [sys.executable, "-W", "ignore::RuntimeWarning", "-c", KERNEL, NOTEBOOK]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.stdout.splitlines() == [
        "12 0 3 6 3",
        "-20",
        "True",
        "on purpose",
        "0 -5 -10",
        "KeyboardInterrupt",
        "-5",
        "KeyboardInterrupt",
        "-10",
        "KeyboardInterrupt",
        "-15",
        "KeyboardInterrupt",
        "-20",
        "(-5, 1) (-10, 2)",
    ], done.stderr


WITHOUT_STREAMS = """
import os, signal, sys
from pathlib import Path
from bullpen import Pool, WorkerLost

def die():
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    with Pool(2, runtime="process") as pool:
        first = pool.do(os.getpid)
        assert isinstance(pool.submit(die).exception(), WorkerLost)
        second = pool.do(os.getpid)
        pool.do(print, "to a stream that is closed")
    Path(sys.argv[1]).write_text(f"{first != second}")
"""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_pool_works_in_an_app_without_standard_streams(tmp_path: Path, closed: str) -> None:
    (tmp_path / "app.py").write_text(WITHOUT_STREAMS)
    command = f'exec "$0" "$@" {closed}'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable, str(tmp_path / "app.py"), str(tmp_path / "result")],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        timeout=200,
        check=False,
    )
    assert (done.returncode, (tmp_path / "result").read_text()) == (0, "True")


BLOCKS_SIGNALS = """
import os, signal, time
from bullpen import Pool, RunTimeout, WorkerLost

def die():
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    with Pool(1, runtime="process") as pool:
        print(pool.submit(die).exception().exit_code)
        first = pool.do(os.getpid)
        print(type(pool.using(run_timeout=0.1).submit(time.sleep, 600).exception()).__name__)
        print(pool.do(os.getpid) == first)
"""


def test_a_pool_works_in_an_app_that_blocks_signals(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(BLOCKS_SIGNALS)
    command = [sys.executable, str(tmp_path / "app.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.stdout.split() == ["-9", "RunTimeout", "True"], done.stderr


TESTS = """
import os
from pathlib import Path

import pytest
from bullpen import Pool

def note_pid():
    Path({folder!r}, f"worker-{{os.getpid()}}").touch()
    return os.getpid()

@pytest.fixture(scope="session")
def pool():
    with Pool(2, runtime="process") as pool:
        yield pool

@pytest.mark.parametrize("number", range(6))
def test_of_a_pool(pool, number):
    assert pool.do(note_pid) != os.getpid()
    assert pool.do(lambda: number) == number
    assert list(pool.map(abs, range(-number, 0))) == list(range(number, 0, -1))

def test_that_never_closes_its_pool():
    assert Pool(1, runtime="process").do(note_pid)

def test_that_crashes(pool):
    assert pool.do(note_pid)
    os._exit(1)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_workers_belong_to_the_process_of_xdist_that_started_them_and_end_with_it(tmp_path: Path) -> None:
    (tmp_path / "test_pools.py").write_text(TESTS.format(folder=str(tmp_path)))
    command = [sys.executable, "-m", "pytest", "-q", "-n2", "--dist=worksteal", "-p", "no:cacheprovider", "."]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "1 failed, 7 passed" in done.stdout, done.stdout
    assert "worker 'gw" in done.stdout, "one of them has crashed"
    workers = [int(path.name.partition("-")[2]) for path in tmp_path.glob("worker-*")]
    assert len(workers) >= 3
    eventually(lambda: not any(map(is_alive, workers)))


def test_a_worker_process_keeps_the_settings_of_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task may call `bullpen enqueue`: BULLPEN_APP is the app's there, and the mark of the app has another name."""
    monkeypatch.setenv("BULLPEN_APP", "shop:queue")
    with Pool(1, runtime="process") as pool:
        assert pool.do(os.getenv, "BULLPEN_APP") == "shop:queue"
        assert pool.do(os.getenv, "BULLPEN_APP_PROCESS", "").startswith("pid:[")
