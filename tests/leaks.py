"""A pytest plugin that fails a test which leaves something running or open behind it.

Watched on Linux: threads (also those that `threading` does not know), child processes (zombies too), file
descriptors, event loops that were not closed and tasks that never finished, also those that the end of
`asyncio.run` would hide by cancelling them. Elsewhere: threads, loops and tasks.

Things that are ending get `leak_grace` seconds (an ini option) to end. A test that leaks on purpose says why:

    @pytest.mark.leaks("abandons a thread on purpose")
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

Inventory = dict[Hashable, Callable[[], str]]
"""Everything the process holds, each with what gives it a name that a person can act on, if somebody has to."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("leak_grace", "seconds that a test's threads, children and tasks get to end", default="30")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "leaks(reason): this test leaks on purpose; do not check it")
    _watch_loops(grace=float(config.getini("leak_grace")))


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compare what the process holds before and after the test."""
    marker = request.node.get_closest_marker("leaks")
    if marker is not None:
        if len(marker.args) != 1 or not isinstance(marker.args[0], str):
            pytest.fail('leaks needs a reason: @pytest.mark.leaks("abandons a thread on purpose")', pytrace=False)
        yield
        return
    _cancelled_by_runner.clear()
    before = take_inventory()
    yield
    leaked = leaked_since(before, grace=float(request.config.getini("leak_grace"))) + _cancelled_by_runner
    if leaked:
        pytest.fail("the test leaked:\n" + "\n".join(f"  - {name}" for name in leaked), pytrace=False)


def leaked_since(before: Inventory, *, grace: float) -> list[str]:
    """Name what is there now and was not there `before`, once it had `grace` seconds to go away."""
    deadline = time.monotonic() + grace
    collected = False
    while True:
        now = take_inventory()
        leaked = [name for key, name in now.items() if key not in before]
        if not leaked:
            return []
        if not collected:  # garbage is not a leak; collecting is slow, so only on suspicion
            gc.collect()
            collected = True
        elif time.monotonic() >= deadline:
            return [name() for name in leaked]
        else:
            time.sleep(0.005)


def take_inventory() -> Inventory:
    return {**_threads(), **_children(), **_descriptors(), **_loops_and_tasks()}


def _threads() -> Inventory:
    known = {thread.native_id: thread for thread in threading.enumerate()}
    return {("thread", tid): partial(_name_of_thread, known.get(tid)) for tid in set(known) | set(_native_thread_ids())}


def _name_of_thread(thread: threading.Thread | None) -> str:
    if thread is None:
        return "thread unknown to threading"
    frame = sys._current_frames().get(thread.ident or 0)
    where = traceback.extract_stack(frame)[-1] if frame else None
    return f"thread {thread.name!r}" + (f" in {where.name} ({where.filename}:{where.lineno})" if where else "")


def _native_thread_ids() -> list[int]:
    try:
        return [int(tid) for tid in os.listdir("/proc/self/task")]
    except FileNotFoundError:
        return []


def _children() -> Inventory:
    found: Inventory = {}
    for tid in _native_thread_ids():
        for pid in _read(f"/proc/self/task/{tid}/children").split():
            if int(pid) != _resource_tracker("_pid"):
                found["child", pid] = partial(_name_of_child, pid)
    return found


def _name_of_child(pid: str) -> str:
    command = _read(f"/proc/{pid}/cmdline").replace("\0", " ").strip()
    return f"child process {pid}: {command or 'a zombie that nobody reaped'}"


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _descriptors() -> Inventory:
    found: Inventory = {}
    try:
        numbers = os.listdir("/proc/self/fd")
    except FileNotFoundError:
        return found
    for number in numbers:
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:  # the descriptor that listed the folder, or one closed by another thread
            continue
        if int(number) != _resource_tracker("_fd"):
            found["fd", number, target] = partial("file descriptor {}: {}".format, number, target)
    return found


def _resource_tracker(attribute: str) -> object:
    """multiprocessing's own helper process starts on first use and lives as long as the interpreter."""
    module = sys.modules.get("multiprocessing.resource_tracker")
    return getattr(module._resource_tracker, attribute, None) if module else None


_loops: weakref.WeakSet[asyncio.BaseEventLoop] = weakref.WeakSet()
_cancelled_by_runner: list[str] = []


def _loops_and_tasks() -> Inventory:
    """Named at once: who keeps garbage to name it later keeps it from being collected."""
    found: Inventory = {}
    for loop in list(_loops):
        if not loop.is_closed():
            found["loop", id(loop)] = partial(str, f"event loop that was not closed: {loop!r}")
        for task in asyncio.all_tasks(loop):
            found["task", id(task)] = partial(str, f"asyncio task that never finished: {task!r}")
    return found


def _watch_loops(grace: float) -> None:
    """Remember every loop, and what `asyncio.Runner` (hence `asyncio.run` and anyio's tests) finds left at its end."""
    original_init = asyncio.BaseEventLoop.__init__
    original_cancel = asyncio.runners._cancel_all_tasks  # type: ignore[attr-defined]

    def remember(self: asyncio.BaseEventLoop, *args: Any, **kwargs: Any) -> None:
        original_init(self, *args, **kwargs)
        _loops.add(self)

    def note_then_cancel(loop: asyncio.AbstractEventLoop) -> None:
        if tasks := _left_over(loop):
            loop.run_until_complete(asyncio.wait(tasks, timeout=grace))
        for task in _left_over(loop):
            _cancelled_by_runner.append(f"asyncio task still running when its runner ended: {task!r}")
        original_cancel(loop)

    asyncio.BaseEventLoop.__init__ = remember  # type: ignore[method-assign, assignment]
    asyncio.runners._cancel_all_tasks = note_then_cancel  # type: ignore[attr-defined]


def _left_over(loop: asyncio.AbstractEventLoop) -> list[asyncio.Task[Any]]:
    anyio_own = "TestRunner._run_tests_and_fixtures"  # the task in which anyio's pytest plugin runs a test
    return [task for task in asyncio.all_tasks(loop) if getattr(task.get_coro(), "__qualname__", "") != anyio_own]
