"""Process pools while their workers are killed at random: every request ends once, and nothing is left behind."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest

from bullpen import Pool, PoolFuture, ProcessRuntime, WorkerLost
from tests.scenarios import process_support as work
from tests.scenarios.process_support import PATIENCE

pytestmark = pytest.mark.timeout(120)

SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM, signal.SIGSTOP)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_storm_of_signals(tmp_path: Path, seed: int, thorough: bool) -> None:
    luck = random.Random(seed)
    kills, requests = (300, 4000) if thorough else (30, 400)
    over = threading.Event()

    def kill_some() -> None:
        for _ in range(kills):
            pids = [int(path.name) for path in tmp_path.iterdir()]
            if pids:
                pid, number = luck.choice(pids), luck.choice(SIGNALS)
                (tmp_path / str(pid)).unlink()
                try:
                    os.kill(pid, number)
                    if number is signal.SIGSTOP:
                        time.sleep(0.01)
                        os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(luck.uniform(0.0, 0.05))
        over.set()

    with Pool(
        3,
        runtime=ProcessRuntime(preload=["tests.scenarios.process_support"]),
        initializer=work.sign_in,
        initargs=(tmp_path,),
        restart_limit=(100_000, 60.0),
        max_queue=200,
        when_full="block",
    ) as pool:
        killer = threading.Thread(target=kill_some)
        killer.start()
        plain: list[tuple[int, PoolFuture[int]]] = []
        again: list[tuple[int, PoolFuture[int]]] = []
        while not over.is_set() or len(plain) < requests:
            number = len(plain)
            plain.append((number, pool.submit(work.square_slowly, number)))
            again.append((number, pool.using(idempotent=True, crash_retries=1000).submit(work.square_slowly, number)))
        killer.join()
        lost = 0
        for number, future in plain:
            error = future.exception(PATIENCE)
            assert error is None or isinstance(error, WorkerLost), error
            lost += error is not None
            assert error is not None or future.result() == number**2
        assert [future.result(PATIENCE) for _, future in again] == [number**2 for number, _ in again]
        stats = pool.stats()
        assert stats.lost == lost
        assert lost <= kills
        assert stats.spawned > 3, "some were killed"
        assert stats.completed + stats.failed + stats.lost == 2 * len(plain)
