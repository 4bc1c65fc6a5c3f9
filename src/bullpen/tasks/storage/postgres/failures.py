"""Translates errors of the server and its driver into `StorageError`s: one line, and never a password."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bullpen.errors import (
    BullpenError,
    StorageBusy,
    StorageCorrupt,
    StorageError,
    StorageFull,
    StorageReadOnly,
    StorageUnavailable,
)

# By SQLSTATE, or by its first two characters, the class.
_KINDS: dict[str, type[StorageError]] = {
    "08": StorageUnavailable,
    "28": StorageUnavailable,  # authentication failed
    "3D": StorageUnavailable,  # the database does not exist
    "57": StorageUnavailable,  # the server shuts down or starts
    "53100": StorageFull,
    "53200": StorageBusy,  # out of memory, or of locks
    "53300": StorageUnavailable,  # too many connections
    "25006": StorageReadOnly,
    "40001": StorageBusy,
    "40P01": StorageBusy,
    "55P03": StorageBusy,
    "42501": StorageReadOnly,
    "3F000": StorageCorrupt,  # no such schema
    "42703": StorageCorrupt,  # no such column
    "42883": StorageCorrupt,  # no such function
    "42P01": StorageCorrupt,  # no such table
}

_POOLER = "; behind a transaction pooler, such as PgBouncer, add ?prepared=false to the address"
_DROPPED = "; another program has dropped or changed it: restore a backup of the schema, or create it anew"
_ADVICE = {"42P05": _POOLER, "26000": _POOLER}  # a prepared statement exists, or does not, on the pooler's connection
_ADVICE |= dict.fromkeys(("3F000", "42703", "42883", "42P01"), _DROPPED)


@asynccontextmanager
async def translated_errors(storage: str) -> AsyncIterator[None]:
    """Inside, errors of the driver are raised as `StorageError`s."""
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
        words = "the server did not answer in time; ?timeout= in the address sets the seconds"
        raise StorageUnavailable(words, storage=storage) from error
    except (asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, UnicodeError) as error:
        # UnicodeError: no host can have this name
        raise StorageUnavailable(f"{type(error).__name__}: {error}", storage=storage) from error


def is_undone(error: StorageError) -> bool:
    """Whether the server has rolled back a transaction because of a deadlock or a serialization failure."""
    return getattr(error.__cause__, "sqlstate", None) in ("40001", "40P01")


def is_lost(error: StorageError) -> bool:
    """Whether the connection broke, so that the outcome is unknown."""
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
