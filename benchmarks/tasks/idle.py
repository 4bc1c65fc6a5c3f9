"""The cost of an idle worker: ``python -m benchmarks.tasks.idle [--workers N] [--seconds S]``.

N workers share one SQLite file, and one worker beside them has a file of its own. None has a task. The cost of a worker
is the CPU time of its process, in seconds per minute. It should not grow with N.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, sleep

from .settings import new_folder

APP = """
from bullpen import TaskQueue

queue = TaskQueue("sqlite:///jobs.db")


@queue.task
def work() -> None: ...
"""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tasks.idle", description=__doc__)
    parser.add_argument("--workers", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args(arguments)
    alone, each = measure(options.workers, options.seconds)
    print(f"one worker {alone:.3f} CPU s a minute; each of {options.workers} workers {each:.3f}")
    return 0


def measure(workers: int, seconds: float) -> tuple[float, float]:
    """The cost of the worker that is alone, and the mean cost of the others, in CPU seconds a minute."""
    with ExitStack() as stack:
        folders = [stack.enter_context(new_folder()) for _ in range(2)]
        started = [stack.enter_context(_worker(folders[0]))]
        started += [stack.enter_context(_worker(folders[1])) for _ in range(workers)]
        for process in started:
            stack.callback(process.terminate)
        for process in started:
            _wait_until_it_serves(process)
        sleep(min(seconds, 2.0))
        before, began = [_cpu_seconds(process.pid) for process in started], monotonic()
        sleep(seconds)
        minutes = (monotonic() - began) / 60
        costs = [(_cpu_seconds(process.pid) - then) / minutes for process, then in zip(started, before, strict=True)]
    return costs[0], statistics.fmean(costs[1:])


def _worker(folder: Path) -> subprocess.Popen[str]:
    (folder / "app.py").write_text(APP)
    command = [sys.executable, "-m", "bullpen", "worker", "app"]
    return subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, encoding="utf-8")


def _wait_until_it_serves(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if "serves" in line:
            return
    raise RuntimeError("the worker has not started")


def _cpu_seconds(pid: int) -> float:
    """Of all its threads, in nanoseconds in the file: a tick of /proc/PID/stat is a tenth of the cost of a minute."""
    threads = Path(f"/proc/{pid}/task")
    return sum(int((threads / name / "schedstat").read_text().split()[0]) for name in os.listdir(threads)) / 1e9


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
