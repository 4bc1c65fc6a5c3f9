"""Errors of the server or of redis-py become errors of Bullpen: one line, and never a password."""

from __future__ import annotations

from types import TracebackType

from bullpen.errors import BullpenError, StorageBusy, StorageError, StorageFull, StorageReadOnly, StorageUnavailable


class translated_errors:
    """A context manager in which errors of redis-py become StorageErrors."""

    __slots__ = ("_storage",)

    def __init__(self, storage: str) -> None:
        self._storage = storage

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, BullpenError):
            self._tell(error)

    def _tell(self, error: Exception) -> None:
        from redis import exceptions

        known = exceptions.RedisError | exceptions.RedisClusterException | OSError | UnicodeError
        if isinstance(error, known):  # UnicodeError: no host can have this name
            raise _kind(error)(f"{type(error).__name__}: {error}", storage=self._storage) from error


def _kind(error: Exception) -> type[StorageError]:
    from redis import exceptions

    away = exceptions.ConnectionError | exceptions.TimeoutError | exceptions.ClusterDownError | OSError | UnicodeError
    if isinstance(error, away):
        return StorageUnavailable
    text = str(error)
    if "cannot be connected" in text:
        return StorageUnavailable
    if isinstance(error, exceptions.OutOfMemoryError) or "OOM command" in text or text.startswith("MISCONF"):
        return StorageFull
    if "READONLY" in text or "read only" in text:
        return StorageReadOnly
    if isinstance(error, exceptions.TryAgainError) or text.startswith("BUSY"):
        return StorageBusy
    return StorageError
