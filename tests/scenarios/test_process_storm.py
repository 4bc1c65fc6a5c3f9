"""Process pools while workers, and sometimes their forkserver, are killed at random: every request ends once, and no
process is left behind.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

from bullpen import Pool, PoolFuture, ProcessRuntime, RestartPolicy, RunTimeout, WorkerLost
from bullpen.pools.runtimes.process import orphans
from tests.scenarios import process_support as work
from tests.scenarios.process_support import PATIENCE, children_of, eventually

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(sys.platform != "linux", reason="needs /proc"),
]

SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM, signal.SIGSTOP)
WORKERS = 3
UNDER_WAY = 200
LARGE = bytes(200_000)  # goes through shared memory


class Killer(threading.Thread):
    """Sends signals to workers of this process's forkservers, whatever they do just then; one in 30 to a forkserver."""

    def __init__(self, seed: int, kills: int) -> None:
        super().__init__()
        self._luck = random.Random(seed)
        self._kills = kills
        self.may_lose = 0  # so many requests at most
        self.over = False

    def run(self) -> None:
        try:
            while self._kills:
                self._kill_one()
                time.sleep(self._luck.choice((0.0, 0.001, 0.05)))
        finally:
            self.over = True

    def _kill_one(self) -> None:
        forkservers = children_of(os.getpid())
        workers = [pid for forkserver in forkservers for pid in children_of(forkserver)]
        if not workers:
            return
        self._kills -= 1
        if self._luck.random() < 1 / 30:
            self.may_lose += WORKERS
            kill(self._luck.choice(forkservers), signal.SIGKILL)
            return
        pid, number = self._luck.choice(workers), self._luck.choice(SIGNALS)
        self.may_lose += 1
        kill(pid, number)
        if number is signal.SIGSTOP:
            time.sleep(self._luck.uniform(0.0, 0.02))
            kill(pid, self._luck.choice((signal.SIGKILL, signal.SIGCONT)))


def kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


class Traffic:
    """Requests of all kinds, and what became of them."""

    def __init__(self, pool: Pool, folder: Path) -> None:
        self._pool = pool
        self._runs = folder / "runs"  # the numbers of plain requests, as they run
        self._under_way: deque[tuple[int, PoolFuture[Any], Any, tuple[type[BaseException], ...]]] = deque()
        self.sent = 0
        self.ends: Counter[str] = Counter()

    def send_some(self) -> None:
        """One request of each kind, and several that a quick worker prefetches."""
        once_or_lost = (WorkerLost,)
        for _ in range(12):
            self._send(work.append, self._runs, self.sent, result=self.sent, errors=once_or_lost)
        self._send(work.square_slowly, self.sent, result=self.sent**2, errors=once_or_lost)
        self._send(work.identity, LARGE, result=LARGE, errors=once_or_lost)
        again = {"idempotent": True, "crash_retries": 1000}
        self._send(work.square_slowly, self.sent, result=self.sent**2, options=again)
        self._send(work.identity, LARGE, result=LARGE, options=again)
        late = {"run_timeout": 0.01}
        self._send(time.sleep, 600, errors=(WorkerLost, RunTimeout), options=late)
        self._send(time.sleep, 0.001, errors=(WorkerLost, CancelledError))
        self._pool.cancel(self._under_way[-1][1])
        while len(self._under_way) > UNDER_WAY:
            self._settle()

    def _send(self, *call: Any, result: Any = None, errors: Any = (), options: Any = None) -> None:
        view = self._pool if options is None else self._pool.using(**options)
        self._under_way.append((self.sent, view.submit(*call), result, errors))
        self.sent += 1

    def settle_all(self) -> None:
        while self._under_way:
            self._settle()

    def _settle(self) -> None:
        number, future, expected, allowed = self._under_way.popleft()
        error = error_of(future)
        if error is None:
            assert future.result() == expected, f"request {number}"
            self.ends["done"] += 1
        else:
            assert isinstance(error, allowed), f"request {number}: {error!r}"
            self.ends[type(error).__name__] += 1

    def check_runs(self) -> None:
        runs = [int(line) for line in self._runs.read_text().split()]
        assert len(runs) == len(set(runs)), "what may not be repeated was"


def error_of(future: PoolFuture[Any]) -> BaseException | None:
    try:
        return future.exception(PATIENCE)
    except CancelledError as error:
        return error


def processes_of_this_app() -> Iterator[int]:
    """Its forkservers and workers, and what these have started, wherever they are now."""
    me = orphans.mark().split("/")[:4]
    for pid in orphans._pids():
        try:
            mark = orphans._mark_of(pid)
        except OSError:
            continue
        if mark is not None and mark[:4] == me and work.is_alive(pid):
            yield pid


@pytest.mark.parametrize(("seed", "max_queue"), [(1, 100), (2, None)], ids=["bounded", "prefetched"])
def test_a_storm_of_signals(tmp_path: Path, seed: int, max_queue: int | None, thorough: bool) -> None:
    killer = Killer(seed, kills=600 if thorough else 30)
    runtime = ProcessRuntime(preload=["tests.scenarios.process_support"], cancel_grace=0.02)
    full: Any = "reject" if max_queue is None else "block"
    with Pool(
        WORKERS,
        runtime=runtime,
        restarts=RestartPolicy(limit=100_000, within=60.0),
        max_queue=max_queue,
        when_full=full,
    ) as pool:
        assert pool.submit(pow, 2, 2).result(PATIENCE) == 4, "a worker that is killed before is a bad start"
        killer.start()
        traffic = Traffic(pool, tmp_path)
        while not killer.over:
            traffic.send_some()
        killer.join()
        traffic.settle_all()
    traffic.check_runs()
    stats = pool.stats()
    assert stats.lost == traffic.ends["WorkerLost"] <= killer.may_lose
    assert stats.completed == traffic.ends["done"] + 1
    assert stats.timed_out == traffic.ends["RunTimeout"]
    assert stats.cancelled == traffic.ends["CancelledError"]
    assert stats.submitted == traffic.sent + 1
    assert stats.spawned > WORKERS, "some were killed"
    eventually(lambda: not list(processes_of_this_app()))
    assert "memfd:bullpen" not in Path("/proc/self/maps").read_text()
