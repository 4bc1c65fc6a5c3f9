"""Where a claim starts in the index of pending tasks, and why not at its front.

The problem. A claim reads the index `task_ready` (queue, priority, eta, id; pending tasks only) from its front. A
claimed task leaves the index at once for our purposes, but not for PostgreSQL: the UPDATE to `running` leaves a dead
index entry. VACUUM removes dead entries only when no open transaction might still see the row (the MVCC horizon). One
forgotten transaction in the same database, a dump or a session left idle, holds the horizon back, and the dead entries
pile up where every claim starts reading. Each claim then reads every entry since that transaction began: the 100,000th
claim skips 99,999 dead entries, and the throughput falls for as long as the transaction is open.

The idea. Claims of a queue and priority go forward in (eta, id). So a client remembers the last (eta, id) that it
claimed, the floor, and its next claim starts behind it. `pick` (sql/migration_1/pick.sql) takes the floors and returns
the new ones. The dead entries are all before the floor, and no claim reads them.

Why no task is missed. A pending task before the floor would never be found. Tasks come there in three
ways:

- A transaction commits late: its eta is the time at which the task was added, and other claims have passed that time
  when it commits. So a floor stays at least `CLAIM_OVERLAP` seconds behind the server's clock; a transaction that takes
  longer is found by the next sweep.
- A task is put there on purpose: added with a past eta, imported from another store, retried, or changed. The statement
  that does so sets `rewound_at` of the queue (`rewind`), and the next claim of every client starts at the front.
- Another client has locked the row at the time of the claim (SKIP LOCKED) and does not take it after all: it rolls
  back.

For all of them a claim starts at the front every now and then: a sweep. The next sweep is due `SWEEP_EVERY` seconds
after the last one, or after `SWEEP_SHARE` times the duration of the last one if that is longer. So a sweep that has to
skip many dead entries takes at most a tenth of the client's time, and no task waits for longer than that. A client that
waits for work wakes up for the next sweep, unless its last claim was one.

Floors are only a hint about where to read. They live in the memory of one client, they need no coordination, and to
lose them costs one sweep. That no two workers get one task is the work of locks alone.

Queues with a limit per concurrency key have no floor: the tasks that their keys hold back stay at the front.
"""

from __future__ import annotations

from collections.abc import Sequence

PRIORITIES = 10
SWEEP_EVERY = 0.05  # seconds
SWEEP_SHARE = 10  # times the duration of the last sweep

Floors = tuple[list[str], list[float], list[str]]  # queues; then an eta and an id for each priority of each queue


class ClaimCursor:
    """The floors of the queues that one client claims from together, and the time of the next sweep."""

    def __init__(self, queues: Sequence[str]) -> None:
        self._queues = queues
        self._floors = self._front()
        self._is_swept = True  # the last claim was a sweep, or there was none
        self._swept_at = 0.0  # by the server's clock
        self.sweeps_at = 0.0  # by the clock of the event loop

    def _front(self) -> dict[str, tuple[list[float], list[str]]]:
        return {queue: ([0.0] * PRIORITIES, [""] * PRIORITIES) for queue in self._queues}

    def floors(self) -> tuple[list[float], list[str]]:
        """Where the next claim starts: an eta and an id for each priority of each queue."""
        return _flat(self._floors)

    def swept_by(self, now: float) -> float:
        """When the last sweep was, by the server's clock; 0 if the next one is due. The server sweeps if the queue was
        rewound since.
        """
        return 0.0 if now >= self.sweeps_at else self._swept_at

    def advance(self, floors: Floors) -> None:
        """Keep the floors that a claim has returned."""
        queues, etas, ids = floors
        for number, queue in enumerate(queues):
            here = slice(number * PRIORITIES, (number + 1) * PRIORITIES)
            self._floors[queue] = (etas[here], ids[here])
        self._is_swept = False

    def record_sweep(self, swept_at: float, began: float, now: float) -> None:
        """The claim from `began` to `now` was a sweep."""
        self._is_swept = True
        self._swept_at = swept_at
        self.sweeps_at = now + max(SWEEP_EVERY, SWEEP_SHARE * (now - began))

    def search_floors(self) -> tuple[list[float], list[str]]:
        """Where to search for the time of the next task: where the last claim started."""
        return _flat(self._front() if self._is_swept else self._floors)

    def seconds_until_claim(self, seconds: float | None, now: float) -> float | None:
        """When to claim again, if the search found that a task may start in `seconds`. None: wait for a notification.
        A sweep that is still to come may find a task earlier.
        """
        if not self._is_swept:
            until_sweep = self.sweeps_at - now
            seconds = until_sweep if seconds is None else min(seconds, until_sweep)
        elif seconds is not None and seconds <= 0:
            self.sweeps_at = 0.0  # the sweep has left a due task behind: another client had locked it
        return None if seconds is None else max(seconds, 0.0)


def _flat(floors: dict[str, tuple[list[float], list[str]]]) -> tuple[list[float], list[str]]:
    return [eta for etas, _ in floors.values() for eta in etas], [one for _, ids in floors.values() for one in ids]
