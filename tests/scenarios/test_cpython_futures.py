"""CPython's own tests of `concurrent.futures` pass on our pools, but for the tests of this list."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "cpython_futures.py"

PRIVATE = "reads private fields of the standard executors"
SCRIPTED = "runs a script that imports the executor from concurrent.futures; test_drop_in.py has the same tests"

KNOWN = {
    "thread": {
        "ThreadPoolFailingInitializerTest.test_initializer": "a failed initializer is logged by the logger bullpen",
        "ThreadPoolShutdownTest.test_hang_gh83386": SCRIPTED,
        "ThreadPoolShutdownTest.test_interpreter_shutdown": SCRIPTED,
        "ThreadPoolShutdownTest.test_submit_after_interpreter_shutdown": SCRIPTED,
        "ThreadPoolExecutorTest.test_max_workers_negative": "the error has another text",
    },
    "process": {
        "ProcessPoolForkserverFailingInitializerTest.test_initializer": PRIVATE,
        "ProcessPoolForkserverProcessPoolExecutorTest.test_killed_child": "one dead worker does not break the pool",
        "ProcessPoolForkserverProcessPoolExecutorTest.test_max_tasks_per_child": (
            "a worker that has run max_requests goes on until its replacement is ready"
        ),
        "ProcessPoolForkserverProcessPoolExecutorTest.test_max_tasks_per_child_defaults_to_spawn_context": PRIVATE,
        "ProcessPoolForkserverProcessPoolExecutorTest.test_max_workers_negative": "the error has another text",
        "ProcessPoolForkserverProcessPoolExecutorTest.test_python_finalization_error": PRIVATE,
        "ProcessPoolForkserverProcessPoolExecutorTest.test_saturation": (
            "its calls cannot be pickled, and a pool starts no further worker for those"
        ),
        "ProcessPoolForkserverProcessPoolExecutorTest.test_traceback": (
            "an error has the traceback of the worker as its own, not as a cause"
        ),
        "ProcessPoolForkserverProcessPoolShutdownTest.test_cancel_futures": "counts on a worker that starts at once",
        "ProcessPoolForkserverProcessPoolShutdownTest.test_hang_gh83386": SCRIPTED,
        "ProcessPoolForkserverProcessPoolShutdownTest.test_interpreter_shutdown": SCRIPTED,
        "ProcessPoolForkserverProcessPoolShutdownTest.test_processes_terminate": PRIVATE,
        "ProcessPoolForkserverProcessPoolShutdownTest.test_submit_after_interpreter_shutdown": SCRIPTED,
    },
}


def interpreter_with_tests() -> str | None:
    """An interpreter that ships `test.test_concurrent_futures` as a package, which Python 3.12 made it."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    installed = [str(path) for path in sorted(pyenv.glob("3.1[2-9].*/bin/python"), reverse=True)]
    found = [sys.executable, *filter(None, map(shutil.which, ("python3.13", "python3.12"))), *installed]
    return next((python for python in found if ships_tests(python)), None)


def ships_tests(python: str) -> bool:
    command = [python, "-c", "import test.test_concurrent_futures.util"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("kind", KNOWN)
def test_the_tests_of_the_standard_executors_pass(kind: str) -> None:
    python = interpreter_with_tests()
    if python is None:
        pytest.skip("no interpreter here ships the tests of concurrent.futures")
    known = ",".join(KNOWN[kind])
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    ran = subprocess.run(
        [python, str(SCRIPT), kind, known], env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert ran.stdout, ran.stderr
    outcome = json.loads(ran.stdout.splitlines()[-1])
    assert not outcome["failed"], ran.stderr
    assert len(outcome["passed"]) > 30
    assert sorted(outcome["left_out"]) == sorted(KNOWN[kind]), "a test of the list is gone"
