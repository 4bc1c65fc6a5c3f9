"""Instruments for tests: of code that uses pools, of runtimes, and of Bullpen itself.

For everybody:

- `ScriptedRuntime`: workers that are driven by hand, so that a test decides what runs when, without threads.
- `ManualClock`: time that moves only when the test says so.
- `check`: judges a history of tasks. `RecordingStorage`, `HistoryObserver`, `HistoryFile` and `take_stock` write one,
  `read_history` reads it.

For authors of runtimes and stores:

- `RuntimeContract`: what every runtime must do, as a base class of a pytest test class. It needs pytest.
- `StorageContract`: what every store of tasks must do, in the same manner. It needs pytest and anyio.

For work on Bullpen:

- `simulate`: workers and a store in a world where everything goes wrong, from a seed; the history is checked.
- `explore`: a module whose `explore` and `replay` run a piece of concurrent code under thousands of schedules.
- `lock_order`: a module that raises on a lock taken out of order.

Each is imported when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bullpen.testing import explore as explore
    from bullpen.testing import lock_order as lock_order
    from bullpen.testing.checker import InvariantBroken as InvariantBroken
    from bullpen.testing.checker import Verdict as Verdict
    from bullpen.testing.checker import check as check
    from bullpen.testing.clock import ManualClock as ManualClock
    from bullpen.testing.contracts import RuntimeContract as RuntimeContract
    from bullpen.testing.history import HistoryFile as HistoryFile
    from bullpen.testing.history import HistoryObserver as HistoryObserver
    from bullpen.testing.history import Record as Record
    from bullpen.testing.history import read_history as read_history
    from bullpen.testing.history import take_stock as take_stock
    from bullpen.testing.recording import RecordingStorage as RecordingStorage
    from bullpen.testing.scripted import ScriptedRuntime as ScriptedRuntime
    from bullpen.testing.simulation import Plan as Plan
    from bullpen.testing.simulation import simulate as simulate
    from bullpen.testing.storage_contract import StorageContract as StorageContract

_HOMES = {
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
    "check": "checker",
    "read_history": "history",
    "simulate": "simulation",
    "take_stock": "history",
}
_MODULES = ("explore", "lock_order")

__all__ = [
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
    "check",
    "explore",
    "lock_order",
    "read_history",
    "simulate",
    "take_stock",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
