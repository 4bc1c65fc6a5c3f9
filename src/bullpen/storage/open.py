"""From an address to a store."""

from __future__ import annotations

from bullpen.errors import InvalidOption
from bullpen.storage.port import Storage


def open_storage(url: str) -> Storage:
    """The store at an address, not connected yet."""
    if url == "memory://":
        from bullpen.storage.memory import MemoryStorage

        return MemoryStorage()
    raise InvalidOption("url", url, "memory://")
