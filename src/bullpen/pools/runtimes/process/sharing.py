"""Objects of `multiprocessing` that an app shares with its worker processes: proxies of a manager, locks, queues,
and values and arrays in shared memory.

A worker is no child of `multiprocessing`. So the app sends its `authkey`, with which a proxy connects to its manager,
and pickles `initargs` as `multiprocessing` does for a process that it starts.
"""

from __future__ import annotations

import copyreg
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import connection, context, resource_sharer
from multiprocessing.process import current_process
from multiprocessing.reduction import ForkingPickler
from typing import Any

# `multiprocessing` pickles connections, which its queues contain, with a pickler of its own; a plain one copies only
# the number of the file descriptor.
copyreg.pickle(connection.Connection, connection.reduce_connection)  # type: ignore[attr-defined]


def authkey() -> bytes:
    return bytes(current_process().authkey)


class _Spawning:
    """What `multiprocessing` asks the process that it starts: how a file descriptor gets there."""

    def duplicate_for_child(self, fd: int) -> int:
        return fd

    def DupFd(self, fd: int) -> Any:
        return resource_sharer.DupFd(fd)


@contextmanager
def spawning() -> Iterator[None]:
    """Inside, locks, events, queues and values of `multiprocessing` can be pickled on this thread."""
    before = context.get_spawning_popen()
    context.set_spawning_popen(_Spawning())  # type: ignore[arg-type]
    try:
        yield
    finally:
        context.set_spawning_popen(before)


def reduce_shared(obj: Any) -> Any:
    """How `multiprocessing` pickles shared memory, sockets and connections for a process that it starts.

    NotImplemented for other objects, which `pickle` pickles: methods and partials, and `ctypes` objects that have the
    type of a shared one but memory of their own.
    """
    reducers = ForkingPickler._extra_reducers  # type: ignore[attr-defined]  # noqa: SLF001 — a pickler copies it
    reducer = reducers.get(type(obj))
    if reducer is None or callable(obj):
        return NotImplemented
    if reducer.__module__ == "multiprocessing.sharedctypes" and not hasattr(obj, "_wrapper"):
        return NotImplemented
    return reducer(obj)
