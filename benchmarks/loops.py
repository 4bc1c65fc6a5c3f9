"""uvloop, the event loop that many asyncio programs use."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def uvloop() -> Any:
    return import_module("uvloop").new_event_loop()
