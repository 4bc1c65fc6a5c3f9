"""The ready queue: ids of workers that have room, in the order in which they shall be used.

The strategy *is* the structure: choosing another order means choosing another `SchedulerStrategy`. A worker has at
most one entry (the caller sees to that with a flag under the worker's lock). Entries may be stale; the thread that
pops one checks the worker under its lock. `push`, `pop` and `len` may be called by any thread at any time, hence each
must be atomic.
"""

from __future__ import annotations

from typing import Protocol

from bullpen import primitives


class SchedulerStrategy(Protocol):
    """The order in which workers with room are used."""

    def push(self, worker_id: int, load: int) -> None:
        """A worker with `load` requests on it has room for more."""

    def pop(self) -> int:
        """Take the worker to use next; `IndexError` when there is none."""

    def __len__(self) -> int: ...

    # A strategy that looks at the load may have `update(worker_id, load)` too: the load of a worker has changed that
    # was pushed, and may have been popped meanwhile.


class ReadyQueue:
    """Ids in one deque, whose operations are atomic."""

    __slots__ = ("ids", "pop")

    def __init__(self) -> None:
        self.ids = primitives.new_deque()

    def push(self, worker_id: int, load: int) -> None:  # noqa: ARG002 — the port's signature
        self.ids.append(worker_id)

    def __len__(self) -> int:
        return len(self.ids)


class Rotation(ReadyQueue):
    """Longest idle first: every worker gets its turn. The default."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()
        self.pop = self.ids.popleft


class MostRecentlyUsed(ReadyQueue):
    """Last used first: few workers stay warm, the rest can be shrunk away."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()
        self.pop = self.ids.pop


class LeastLoaded:
    """Fewest requests on it first, longest idle among equals. Differs from rotation only for a capacity above one."""

    __slots__ = ("_levels", "_loads", "_lock")

    def __init__(self) -> None:
        self._lock = primitives.leaf_lock()
        self._levels: dict[int, dict[int, None]] = {}
        self._loads: dict[int, int] = {}

    def push(self, worker_id: int, load: int) -> None:
        with self._lock:
            before = self._loads.get(worker_id)
            if before is not None:
                self._remove(worker_id, before)
            self._add(worker_id, load)

    def update(self, worker_id: int, load: int) -> None:
        """The load of a worker has changed; nothing happens if it was popped meanwhile."""
        with self._lock:
            before = self._loads.get(worker_id)
            if before is not None and before != load:
                self._remove(worker_id, before)
                self._add(worker_id, load)

    def pop(self) -> int:
        with self._lock:
            if not self._levels:
                raise IndexError("no worker has room")
            load = min(self._levels)
            worker_id = next(iter(self._levels[load]))
            self._remove(worker_id, load)
            return worker_id

    def _add(self, worker_id: int, load: int) -> None:
        self._loads[worker_id] = load
        self._levels.setdefault(load, {})[worker_id] = None

    def _remove(self, worker_id: int, load: int) -> None:
        del self._loads[worker_id]
        level = self._levels[load]
        del level[worker_id]
        if not level:
            del self._levels[load]

    def __len__(self) -> int:
        return len(self._loads)
