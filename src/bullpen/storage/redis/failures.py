"""What a server or its driver says, as an error of ours: one clear line, and never a password."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bullpen.errors import BullpenError, StorageBusy, StorageError, StorageFull, StorageReadOnly, StorageUnavailable


@asynccontextmanager
async def told(storage: str) -> AsyncIterator[None]:
    """Inside, errors of the driver become `StorageError`s."""
    from redis import exceptions

    try:
        yield
    except BullpenError:
        raise
    except (exceptions.ConnectionError, exceptions.TimeoutError, OSError) as error:
        raise StorageUnavailable(f"{type(error).__name__}: {error}", storage=storage) from error
    except exceptions.RedisError as error:
        raise _kind(error)(f"{type(error).__name__}: {error}", storage=storage) from error


def _kind(error: Exception) -> type[StorageError]:
    text = str(error)
    if text.startswith(("OOM", "MISCONF")) or "OOM command" in text:
        return StorageFull
    if "READONLY" in text or "read only" in text:
        return StorageReadOnly
    if text.startswith(("BUSY", "LOADING", "TRYAGAIN")):
        return StorageBusy
    return StorageError
