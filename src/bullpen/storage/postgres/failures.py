"""What a server or its driver says, as an error of ours: one clear line, and never a password."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bullpen.errors import (
    BullpenError,
    StorageBusy,
    StorageError,
    StorageFull,
    StorageReadOnly,
    StorageUnavailable,
)

# By SQLSTATE, or the class of it.
_KINDS: dict[str, type[StorageError]] = {
    "08": StorageUnavailable,
    "28": StorageUnavailable,  # who are you
    "3D": StorageUnavailable,  # there is no such database
    "57": StorageUnavailable,  # it shuts down, or starts
    "53100": StorageFull,
    "53200": StorageFull,
    "53300": StorageUnavailable,  # too many connections
    "25006": StorageReadOnly,
    "40001": StorageBusy,
    "40P01": StorageBusy,
    "55P03": StorageBusy,
    "42501": StorageReadOnly,
}

_POOLER = "; behind a pooler of transactions, such as PgBouncer, add ?prepared=false to the address"
_ADVICE = {"42P05": _POOLER, "26000": _POOLER}  # a statement that is there already, or is not: on another connection


@asynccontextmanager
async def told(storage: str) -> AsyncIterator[None]:
    """Inside, errors of the driver become `StorageError`s."""
    import asyncpg

    try:
        yield
    except BullpenError:
        raise
    except asyncpg.PostgresError as error:
        state = str(getattr(error, "sqlstate", None) or "")
        kind = _KINDS.get(state) or _KINDS.get(state[:2], StorageError)
        words = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}{_ADVICE.get(state, '')}"
        raise kind(words, storage=storage) from error
    except TimeoutError as error:
        words = "no answer in time; ?timeout= in the address says how many seconds it may take"
        raise StorageUnavailable(words, storage=storage) from error
    except (asyncpg.InterfaceError, asyncpg.InternalClientError, OSError) as error:
        raise StorageUnavailable(f"{type(error).__name__}: {error}", storage=storage) from error


def is_undone(error: StorageError) -> bool:
    """Whether the server has undone a transaction, because it and others were in each other's way."""
    return getattr(error.__cause__, "sqlstate", None) in ("40001", "40P01")


def is_lost(error: StorageError) -> bool:
    """Whether a connection broke, so that nobody knows what the server has done."""
    import asyncpg

    lost = (
        asyncpg.PostgresConnectionError,
        asyncpg.AdminShutdownError,
        asyncpg.InterfaceError,
        asyncpg.InternalClientError,
        ConnectionResetError,
        BrokenPipeError,
    )
    return isinstance(error.__cause__, lost)
