"""What the scenarios share: workers kept busy, waiting for events, and scripts in an interpreter of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from bullpen import Pool
from bullpen.pools.policies import GROUPS
from bullpen.testing import ScriptedRuntime

PATIENCE = 60.0  # seconds; only a defect makes anything wait for so long


class Blocker:
    """A function that does not return before it is released; whoever calls it can be waited for."""

    def __init__(self) -> None:
        self._entered = threading.Semaphore(0)
        self._released = threading.Event()

    def __call__(self, value: Any = None) -> Any:
        self._entered.release()
        assert self._released.wait(PATIENCE), "the test never released its blocker"
        return value

    def wait_entered(self, times: int = 1) -> None:
        """Wait until it was called `times` more times."""
        for _ in range(times):
            assert self._entered.acquire(timeout=PATIENCE), "the blocker was not called"

    def was_entered(self, within: float) -> bool:
        return self._entered.acquire(timeout=within)

    def release(self) -> None:
        self._released.set()

    def __enter__(self) -> Blocker:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def eventually(condition: Callable[[], object], within: float = PATIENCE) -> bool:
    """Whether `condition` comes true while one waits."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.002)
    return True


class Background:
    """A call on a thread of its own, which is waited for at the end."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.result: object = None
        self.error: BaseException | None = None
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._call()
        except BaseException as error:
            self.error = error

    def join(self, within: float = PATIENCE) -> Background:
        self._thread.join(within)
        assert not self._thread.is_alive(), "the call did not return"
        return self

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def __enter__(self) -> Background:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(PATIENCE)


@dataclass(frozen=True)
class Outcome:
    """How a script ended."""

    code: int
    out: str
    err: str


def run_script(source: str, *, within: float = PATIENCE) -> Outcome:
    """Run Python `source` with warnings as errors. A script that hangs fails the test, with its stacks."""
    command = [sys.executable, "-X", "faulthandler", "-W", "error", "-c", textwrap.dedent(source)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, encoding="utf-8", start_new_session=True) as script:
        try:
            out, err = script.communicate(timeout=within)
        except subprocess.TimeoutExpired:
            os.killpg(script.pid, signal.SIGABRT)  # also its children; each says where its threads are
            out, err = script.communicate()
            pytest.fail(f"the script hung\n{out}\n{err}", pytrace=False)
    return Outcome(script.returncode, out, err)


def printed(source: str, *, within: float = PATIENCE) -> str:
    """What a script prints that ends well and says nothing on stderr."""
    outcome = run_script(source, within=within)
    assert (outcome.code, outcome.err) == (0, ""), outcome
    return outcome.out


# Pools whose supervisor's thread never runs: the test moves a `ManualClock` and calls `tick` for it.


class NoThread:
    """What stands for a thread that is never started."""

    def __init__(self) -> None:
        self.ident = threading.get_ident()

    def join(self, timeout: float | None = None) -> None:
        """There is nothing to wait for."""

    def is_alive(self) -> bool:
        return False


def tick(pool: Pool) -> float:
    """Do what the supervisor would do now; how long it would sleep then."""
    engine = pool._engine
    now = engine.clock.monotonic()
    return engine.timer.tick(now) - now


def advance(pool: Pool, seconds: float) -> float:
    """`tick`, so many seconds later."""
    clock: Any = pool._engine.clock
    clock.advance(seconds)
    return tick(pool)


def end(pool: Pool, runtime: ScriptedRuntime) -> None:
    """Drain a pool of scripted workers."""
    pool.shutdown(wait=False)
    while runtime.starting or runtime.running or runtime.stopped:
        if runtime.starting:
            runtime.ready()
        elif runtime.running:
            runtime.finish_next()
        else:
            runtime.exit_stopped()
    pool.close()


def in_groups(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a pool, from names with dots: `{"calls.wrap": f}` becomes `{"calls": CallPolicy(wrap=f)}`."""
    groups: dict[str, dict[str, Any]] = {}
    for name, value in options.items():
        group, dot, field = name.partition(".")
        if dot:
            groups.setdefault(group, {})[field] = value
    flat = {name: value for name, value in options.items() if "." not in name}
    return flat | {group: GROUPS[group](**values) for group, values in groups.items()}
