"""Each library as its users open it, with two workers. See `benchmarks.pool.peers` for the loops."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module

from benchmarks.model import Peer

from .settings import WORKERS


def _executor(start: str) -> Peer:
    return Peer(
        f"ProcessPoolExecutor, {start}",
        "concurrent.futures:ProcessPoolExecutor",
        None,
        None,
        f'ProcessPoolExecutor({WORKERS}, mp_context=get_context("{start}"))',
        lambda: ProcessPoolExecutor(WORKERS, mp_context=multiprocessing.get_context(start)),
    )


FORKSERVER = _executor("forkserver")
FORK = _executor("fork")
MP_POOL = Peer(
    "multiprocessing Pool",
    "multiprocessing:Pool",
    None,
    None,
    f'get_context("fork").Pool({WORKERS})',
    lambda: multiprocessing.get_context("fork").Pool(WORKERS),
)
LOKY = Peer(
    "loky",
    "loky:ProcessPoolExecutor",
    "loky",
    "pip install loky",
    f"loky.ProcessPoolExecutor({WORKERS})",
    lambda: import_module("loky").ProcessPoolExecutor(WORKERS),
)
PEBBLE = Peer(
    "pebble",
    "pebble:ProcessPool",
    "pebble",
    "pip install pebble",
    f"pebble.ProcessPool(max_workers={WORKERS})",
    lambda: import_module("pebble").ProcessPool(max_workers=WORKERS),
)
BILLIARD = Peer(
    "billiard",
    "billiard:Pool",
    "billiard",
    "pip install billiard",
    f"billiard.Pool({WORKERS})",
    lambda: import_module("billiard").Pool(WORKERS),
)
MPIRE = Peer(
    "mpire",
    "mpire:WorkerPool",
    "mpire",
    "pip install mpire",
    f"mpire.WorkerPool(n_jobs={WORKERS}, keep_alive=True)",
    lambda: import_module("mpire").WorkerPool(n_jobs=WORKERS, keep_alive=True),
)
JOBLIB = Peer(
    "joblib",
    "joblib:Parallel",
    "joblib",
    "pip install joblib",
    f"Parallel(n_jobs={WORKERS})",
    lambda: import_module("joblib").Parallel(n_jobs=WORKERS),
)
BULLPEN = Peer(
    "bullpen",
    "bullpen:Pool",
    "pybullpen",
    "pip install -e .",
    f'Pool({WORKERS}, runtime="process")',
    lambda: import_module("bullpen").Pool(WORKERS, runtime="process"),
)
