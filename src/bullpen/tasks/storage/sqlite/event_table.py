"""Events, and the tasks that wait for them, as statements inside a transaction of the caller."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import partial

from bullpen.tasks.model.events import Event, ends_at
from bullpen.tasks.storage.port import readable
from bullpen.tasks.storage.sqlite.rows import readable_rows

PRUNED = 500  # events that one step deletes

# The first event of a name wins, until its time to live is over.
_EMIT = """
INSERT INTO bullpen_event VALUES (?, ?, ?, ?) ON CONFLICT (name) DO UPDATE
SET payload = excluded.payload, at = excluded.at, expires_at = excluded.expires_at WHERE expires_at <= excluded.at
"""
# The rule of `woken` in tasks/model/task.py.
_WAITING = (
    "bullpen_task INDEXED BY bullpen_awaiting {} WHERE awaits = ? AND status = 'pending' AND hold <> 'paused' "
    "AND eta > ?"
)
_QUEUES = f"SELECT DISTINCT queue FROM {_WAITING.format('')}"
_WAKE = f"UPDATE {_WAITING.format('SET eta = ?')}"
_FIND = "SELECT name, payload, at, expires_at FROM bullpen_event WHERE name = ?"
_LIST = "SELECT name, payload, at, expires_at FROM bullpen_event WHERE name > ? ORDER BY name LIMIT ?"
_OLD = (
    "FROM bullpen_event WHERE expires_at <= ? AND NOT EXISTS (SELECT 1 FROM bullpen_task INDEXED BY bullpen_awaiting "
    "WHERE awaits = bullpen_event.name AND status IN ('pending', 'running')) LIMIT ?"
)


def emit(db: sqlite3.Connection, name: str, payload: bytes, ttl: float | None, now: float) -> tuple[bool, list[str]]:
    """Whether the event is new, and the queues in which tasks are due because of it."""
    is_new = db.execute(_EMIT, (name, payload, now, ends_at(ttl, now))).rowcount > 0
    queues = [queue for (queue,) in readable_rows(db, _QUEUES, (name, now)) if type(queue) is str]
    if queues:
        db.execute(_WAKE, (now, name, now))
    return is_new, queues


def find(db: sqlite3.Connection, name: str) -> Event | None:
    """None also for one that another program has damaged."""
    return next(iter(_events(readable_rows(db, _FIND, (name,)))), None)


def read_events(db: sqlite3.Connection, limit: int, after: str | None) -> Sequence[Event]:
    return _events(readable_rows(db, _LIST, (after or "", limit)))


def _events(rows: Sequence[tuple[object, ...]]) -> list[Event]:
    return readable(Event, (partial(tuple, row) for row in rows))


def is_something_to_prune(db: sqlite3.Connection, now: float) -> bool:
    return db.execute(f"SELECT 1 {_OLD}", (now, 1)).fetchone() is not None


def prune(db: sqlite3.Connection, now: float) -> None:
    db.execute(f"DELETE FROM bullpen_event WHERE name IN (SELECT name {_OLD})", (now, PRUNED))
