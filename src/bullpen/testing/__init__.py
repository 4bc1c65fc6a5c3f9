"""Instruments for tests: of code that uses pools, of runtimes, and of Bullpen itself.

For everybody:

- `ScriptedRuntime`: workers that are driven by hand, so that a test decides what runs when, without threads.
- `ManualClock`: time that moves only when the test says so.

For authors of runtimes:

- `RuntimeContract`: what every runtime must do, as a base class of a pytest test class. It needs pytest.

For work on Bullpen:

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
    from bullpen.testing.clock import ManualClock as ManualClock
    from bullpen.testing.contracts import RuntimeContract as RuntimeContract
    from bullpen.testing.scripted import ScriptedRuntime as ScriptedRuntime

_HOMES = {
    "ManualClock": "clock",
    "RuntimeContract": "contracts",
    "ScriptedRuntime": "scripted",
}
_MODULES = ("explore", "lock_order")

__all__ = ["ManualClock", "RuntimeContract", "ScriptedRuntime", "explore", "lock_order"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
