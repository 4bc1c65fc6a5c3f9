"""Tools for tests: of code that uses pools or tasks, of runtimes and stores, and of Bullpen itself.

For all users:

- `run_until_empty`, `inline`: run tasks without a worker. `assert_enqueued`, `enqueued`: the enqueued tasks.
- `in_memory`: a queue with a store of its own for a test. The pytest plugin has it as the fixture `bullpen_queue`.
- `simulate(seed, queue=…, start=…, kill=…)`: workers that die while they run your tasks; `may_die` says where.
- `crash_everywhere(queue, start)`: the worker of a task dies at each point, and the task has to come to the same end.
- `ScriptedRuntime`: workers without threads; the test decides when each request starts and ends.
- `ManualClock`: time that moves only when the test says so.
- `check`: judges a history of tasks. `RecordingStorage`, `HistoryObserver`, `HistoryFile`, `take_stock` and
  `note_resources` write one, `read_history` reads it.

For authors of runtimes and stores:

- `RuntimeContract`: the tests that every runtime must pass, as a base class of a pytest test class. It needs pytest.
- `StorageContract`: the tests that every store must pass, as a base class, too. It needs pytest and anyio.

For work on Bullpen:

- `simulate(seed)`: workers and a store in a simulation that injects faults; `check` judges the history.

Each name is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bullpen.testing.checker import InvariantBroken as InvariantBroken
    from bullpen.testing.checker import Verdict as Verdict
    from bullpen.testing.checker import check as check
    from bullpen.testing.clock import ManualClock as ManualClock
    from bullpen.testing.contracts import RuntimeContract as RuntimeContract
    from bullpen.testing.crashes import crash_everywhere as crash_everywhere
    from bullpen.testing.history import HistoryFile as HistoryFile
    from bullpen.testing.history import HistoryObserver as HistoryObserver
    from bullpen.testing.history import Record as Record
    from bullpen.testing.history import read_history as read_history
    from bullpen.testing.history import take_stock as take_stock
    from bullpen.testing.isolation import in_memory as in_memory
    from bullpen.testing.kept import Enqueued as Enqueued
    from bullpen.testing.kept import assert_enqueued as assert_enqueued
    from bullpen.testing.kept import assert_not_enqueued as assert_not_enqueued
    from bullpen.testing.kept import enqueued as enqueued
    from bullpen.testing.recording import RecordingStorage as RecordingStorage
    from bullpen.testing.resources import note_resources as note_resources
    from bullpen.testing.running import arun_until_empty as arun_until_empty
    from bullpen.testing.running import inline as inline
    from bullpen.testing.running import run_until_empty as run_until_empty
    from bullpen.testing.scripted import ScriptedRuntime as ScriptedRuntime
    from bullpen.testing.simulation import Plan as Plan
    from bullpen.testing.simulation import may_die as may_die
    from bullpen.testing.simulation import simulate as simulate
    from bullpen.testing.storage_contract import StorageContract as StorageContract

_HOMES = {
    "Enqueued": "kept",
    "HistoryFile": "history",
    "HistoryObserver": "history",
    "InvariantBroken": "checker",
    "ManualClock": "clock",
    "Plan": "simulation",
    "Record": "history",
    "RecordingStorage": "recording",
    "RuntimeContract": "contracts",
    "ScriptedRuntime": "scripted",
    "StorageContract": "storage_contract",
    "Verdict": "checker",
    "arun_until_empty": "running",
    "assert_enqueued": "kept",
    "assert_not_enqueued": "kept",
    "check": "checker",
    "crash_everywhere": "crashes",
    "enqueued": "kept",
    "in_memory": "isolation",
    "inline": "running",
    "may_die": "simulation",
    "note_resources": "resources",
    "read_history": "history",
    "run_until_empty": "running",
    "simulate": "simulation",
    "take_stock": "history",
}

__all__ = [
    "Enqueued",
    "HistoryFile",
    "HistoryObserver",
    "InvariantBroken",
    "ManualClock",
    "Plan",
    "Record",
    "RecordingStorage",
    "RuntimeContract",
    "ScriptedRuntime",
    "StorageContract",
    "Verdict",
    "arun_until_empty",
    "assert_enqueued",
    "assert_not_enqueued",
    "check",
    "crash_everywhere",
    "enqueued",
    "in_memory",
    "inline",
    "may_die",
    "note_resources",
    "read_history",
    "run_until_empty",
    "simulate",
    "take_stock",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
