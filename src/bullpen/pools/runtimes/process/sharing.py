"""Objects of `multiprocessing` that an app shares with its worker processes: proxies of a manager, locks and queues.

A worker is no child of `multiprocessing`. So the app sends its `authkey`, with which a proxy connects to its manager,
and pickles `initargs` as `multiprocessing` does for a process that it starts.
"""

from __future__ import annotations

import copyreg
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import connection, context, resource_sharer
from multiprocessing.process import current_process
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
    """Inside, locks, events and queues of `multiprocessing` can be pickled on this thread."""
    before = context.get_spawning_popen()
    context.set_spawning_popen(_Spawning())  # type: ignore[arg-type]
    try:
        yield
    finally:
        context.set_spawning_popen(before)
