"""Runs CPython's own tests of `concurrent.futures` with Bullpen's pools in place of the standard executors.

It is a script for an interpreter that ships these tests: `python3.13 tests/scenarios/cpython_futures.py thread`. The
last line that it prints is JSON: the tests that passed, those that did not, and those that it was told to leave out.
"""

from __future__ import annotations

import importlib
import json
import sys
import threading
import unittest
from typing import Any

from bullpen import Pool, RecyclePolicy, WorkerInfo

support: Any = importlib.import_module("test.support")
util: Any = importlib.import_module("test.test_concurrent_futures.util")

MODULES = (
    "test_thread_pool",
    "test_process_pool",
    "test_as_completed",
    "test_wait",
    "test_shutdown",
    "test_init",
    "test_future",
)


class ThreadPool(Pool):
    """The tests read one private field."""

    @property
    def _threads(self) -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name.startswith(f"{self.stats().name}_")]


class ProcessPool(Pool):
    """A process pool with the constructor of `ProcessPoolExecutor`, and the private field that the tests read."""

    def __init__(
        self,
        max_workers: int | None = None,
        mp_context: Any = None,
        initializer: Any = None,
        initargs: Any = (),
        *,
        max_tasks_per_child: int | None = None,
    ) -> None:
        recycling = RecyclePolicy(max_requests=max_tasks_per_child)
        super().__init__(max_workers, "", initializer, initargs, runtime="process", recycling=recycling)

    @property
    def _processes(self) -> dict[int, WorkerInfo]:
        return {worker.id: worker for worker in self.workers()}


class Outcomes(unittest.TextTestResult):
    """Collects the ids of the tests, and prints why one did not pass."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.passed: list[str] = []

    def addSuccess(self, test: unittest.TestCase) -> None:
        super().addSuccess(test)
        self.passed.append(test.id())


def tests_with(mixin: type, known: list[str], left_out: list[str]) -> unittest.TestSuite:
    """Every test whose class has `mixin`, except the `known` ones, which are added to `left_out`."""
    suite = unittest.TestSuite()
    for name in MODULES:
        module = importlib.import_module(f"test.test_concurrent_futures.{name}")
        for cls in vars(module).values():
            if isinstance(cls, type) and issubclass(cls, unittest.TestCase) and issubclass(cls, mixin):
                for test in map(cls, unittest.defaultTestLoader.getTestCaseNames(cls)):
                    short = ".".join(test.id().split(".")[-2:])
                    if short in known:
                        left_out.append(short)
                    else:
                        suite.addTest(test)
    return suite


def main() -> None:
    support.use_resources = []  # no tests that only wait for long
    util.ThreadPoolMixin.executor_type = ThreadPool
    util.ProcessPoolForkserverMixin.executor_type = ProcessPool
    mixin = {"thread": util.ThreadPoolMixin, "process": util.ProcessPoolForkserverMixin}[sys.argv[1]]
    left_out: list[str] = []
    suite = tests_with(mixin, sys.argv[2].split(",") if len(sys.argv) > 2 else [], left_out)
    result = unittest.TextTestRunner(resultclass=Outcomes, verbosity=2).run(suite)
    assert isinstance(result, Outcomes)
    failed = sorted(str(test) for test, _ in result.failures + result.errors)
    print("\n" + json.dumps({"passed": sorted(result.passed), "failed": failed, "left_out": left_out}))


if __name__ == "__main__":
    main()
