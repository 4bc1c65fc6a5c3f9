"""Which tasks may start now, without reading through those that may not.

Pending tasks are read as streams, each in the order of claims by itself: per queue those without a concurrency key and
those with one. Within a stream each priority is a range of an index that ends at the present, so a task that is not due
is never read. Paused queues, and those that have reached a limit, have no stream. Where a limit per key holds back more
tasks in a row than there are keys, the stream is replaced by one stream for each key that has room.
"""

from __future__ import annotations

import heapq
import math
import sqlite3
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from bullpen.tasks.model.ids import SCHEDULES, is_schedule
from bullpen.tasks.model.task import NEVER
from bullpen.tasks.storage.port import Limit, read_limit
from bullpen.tasks.storage.rules import QueueRoom, keys_limit, most_starts, rate_period
from bullpen.tasks.storage.sqlite.rows import COLUMNS, DECODING_ERRORS, Row, read_again, readable_rows

PAUSED = "SELECT queue FROM bullpen_paused"
READ_IN_VAIN = 100  # after so many held-back tasks in a row, reading by key is cheaper if there are fewer keys

_WAITING = "FROM bullpen_task INDEXED BY {index} WHERE status = 'pending' AND concurrency_key {keyed} AND queue = ?"
_FREE = _WAITING.format(index="bullpen_ready", keyed="IS NULL")
_KEYED = _WAITING.format(index="bullpen_ready_keyed", keyed="IS NOT NULL")
_BY_KEY = _WAITING.format(index="bullpen_ready_by_key", keyed="IS NOT NULL")
_OF_KEY = f"{_BY_KEY} AND concurrency_key = ?"

_FIRST = (
    "FROM bullpen_task INDEXED BY bullpen_in_order WHERE queue = ? AND concurrency_key = ? "
    f"AND status IN ('pending', 'running') AND substr(id, 1, 8) <> '{SCHEDULES}' ORDER BY created_at, id LIMIT 1"
)
_FIRST_DUE = (
    f"SELECT rowid, {COLUMNS} FROM bullpen_task WHERE rowid = (SELECT rowid {_FIRST}) "
    "AND status = 'pending' AND eta <= ? AND (expires IS NULL OR expires > ?)"
)
_SCHEDULES_DUE = (
    f"SELECT rowid, {COLUMNS} FROM bullpen_task WHERE id >= '{SCHEDULES}' AND substr(id, 1, 8) = '{SCHEDULES}' "
    "AND status = 'pending' AND concurrency_key IS NOT NULL AND queue = ? AND eta <= ? "
    "AND (expires IS NULL OR expires > ?)"
)
_DUE = "AND eta <= ? AND (expires IS NULL OR expires > ?) ORDER BY eta, id"
_RECENT = "FROM bullpen_start WHERE queue = ? AND at > ? AND at <= ?"  # one of the far future is no start
_KEYS = f"SELECT min(concurrency_key) {_BY_KEY}"
_decode_terms = msgspec.msgpack.Decoder(dict[str, Any]).decode

Head = tuple[float, float, str]
# The places of columns behind the rowid.
_ID, _ETA, _QUEUE, _PRIORITY, _KEY = (
    1 + COLUMNS.split(", ").index(name) for name in ("id", "eta", "queue", "priority", "concurrency_key")
)


def claimable(
    db: sqlite3.Connection, queues: Sequence[str], limits: Sequence[Limit], now: float, elapsed: float, limit: int
) -> list[Row]:
    """The next tasks that may start, at most `limit`: each its rowid and `COLUMNS`."""
    rooms = _rooms(db, queues, limits, elapsed, limit)
    streams = []
    for queue, room in rooms.items():
        streams.append(_stream(db, _FREE, (queue,), now, room))
        if room.per_key is None:
            streams.append(_stream(db, _KEYED, (queue,), now, room))
        else:
            streams.append(_within_keys(db, queue, room, now))
    found: list[Row] = []
    rows = streams[0] if len(streams) == 1 else heapq.merge(*streams, key=_place)
    try:
        for row in rows:
            its_room = rooms.get(row[_QUEUE])
            if its_room is None:
                raise _corrupt(f"an index has a row of the queue {row[_QUEUE]!r} for another queue")
            if its_room.left > 0:
                its_room.take(row[_KEY])
                found.append(row)
                if len(found) >= limit:
                    break
    finally:
        for stream in streams:
            stream.close()
    return found


def _corrupt(message: str) -> sqlite3.DatabaseError:
    """The error that SQLite raises for damage that it finds itself."""
    error = sqlite3.DatabaseError(message)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def next_eta(db: sqlite3.Connection, queues: Sequence[str], now: float) -> float:
    """When the next task of `queues`, which are open, that is not due yet will be; infinite if there is none."""
    try:
        return _next_eta(db, queues, now)
    except DECODING_ERRORS as error:
        return float(read_again(db, error, lambda: [(_next_eta(db, queues, now),)])[0][0])


def _next_eta(db: sqlite3.Connection, queues: Sequence[str], now: float) -> float:
    soonest = math.inf
    for queue in queues:
        for waiting in (_FREE, _KEYED):
            for place, priority in _priorities(db, waiting, (queue,)):
                sooner = f"SELECT min(eta) {waiting} AND priority = {place} AND eta > ? AND eta <= ?"
                (eta,) = db.execute(sooner, (queue, priority, now, NEVER)).fetchone()
                soonest = min(soonest, math.inf if eta is None else eta)
    return soonest


def next_room(db: sqlite3.Connection, queues: Sequence[str], limits: Sequence[Limit], elapsed: float) -> float:
    """In how many seconds the rate of a queue, of those that are open, allows another start; infinite if no task waits
    for a rate.
    """
    soonest = math.inf
    rates = {limit.queue: limit.rate for limit in limits}
    for queue in queues:
        rate = rates.get(queue)
        if rate is not None and _has_waiting(db, queue):
            period = rate_period(rate)
            recent = f"SELECT count(*), min(at) {_RECENT}"
            count, oldest = db.execute(recent, (queue, elapsed - period, elapsed + period)).fetchone()
            if count >= most_starts(rate):
                soonest = min(soonest, oldest + period - elapsed)
    return soonest


def _has_waiting(db: sqlite3.Connection, queue: str) -> bool:
    return any(db.execute(f"SELECT 1 {waiting} LIMIT 1", (queue,)).fetchone() for waiting in (_FREE, _KEYED))


def open_queues(db: sqlite3.Connection, queues: Sequence[str]) -> list[str]:
    paused = readable_rows(db, PAUSED)
    return [queue for queue in dict.fromkeys(queues) if (queue,) not in paused]


def read_limits(db: sqlite3.Connection) -> list[Limit]:
    rows = readable_rows(db, "SELECT queue, terms FROM bullpen_limit ORDER BY queue")
    return [read_limit(queue, partial(_decode_terms, terms)) for queue, terms in rows if type(queue) is str]


def note_starts(db: sqlite3.Connection, rows: Sequence[Row], limits: Sequence[Limit], elapsed: float) -> None:
    """Count the starts of queues that have a rate."""
    rated = {limit.queue: limit.rate for limit in limits if limit.rate is not None}
    if not rated:
        return
    for queue, starts in Counter(row[_QUEUE] for row in rows if row[_QUEUE] in rated).items():
        period = rate_period(rated[queue])
        old = "DELETE FROM bullpen_start WHERE queue = ? AND NOT (at > ? AND at <= ?)"
        db.execute(old, (queue, elapsed - period, elapsed + period))
        db.executemany("INSERT INTO bullpen_start VALUES (?, ?)", [(queue, elapsed)] * starts)


def _rooms(
    db: sqlite3.Connection, queues: Sequence[str], limits: Sequence[Limit], elapsed: float, wanted: int
) -> dict[str, QueueRoom]:
    by_queue = {limit.queue: limit for limit in limits}
    rooms = {}
    for queue in open_queues(db, queues):
        limit = by_queue.get(queue)
        room = QueueRoom(wanted) if limit is None else _room(db, limit, elapsed, wanted)
        if room.left > 0:
            rooms[queue] = room
    return rooms


def _room(db: sqlite3.Connection, limit: Limit, elapsed: float, wanted: int) -> QueueRoom:
    left: float = wanted
    running: Counter[str] = Counter()
    of_queue = "FROM bullpen_task INDEXED BY bullpen_running WHERE status IN ('running') AND queue = ?"
    if limit.max_running is not None:
        (count,) = db.execute(f"SELECT count(*) {of_queue}", (limit.queue,)).fetchone()
        left = min(left, limit.max_running - count)
    if limit.rate is not None:
        period = rate_period(limit.rate)
        recent = (limit.queue, elapsed - period, elapsed + period)
        (count,) = db.execute(f"SELECT count(*) {_RECENT}", recent).fetchone()
        left = min(left, most_starts(limit.rate) - count)
    per_key = keys_limit(limit)
    if per_key is not None:
        by_key = f"SELECT concurrency_key, count(*) {of_queue} AND concurrency_key IS NOT NULL GROUP BY concurrency_key"
        running.update(dict(db.execute(by_key, (limit.queue,))))
    return QueueRoom(left, per_key, running, in_order=limit.in_order)


def _stream(
    db: sqlite3.Connection, waiting: str, which: tuple[str, ...], now: float, room: QueueRoom
) -> Generator[Row]:
    """Tasks that are due, as long as there is room for more."""
    for place, priority in _priorities(db, waiting, which):
        statement = f"SELECT rowid, {COLUMNS} {waiting} AND priority = {place} {_DUE}"
        due = db.execute(statement, (*which, priority, now, now))
        try:
            for row in due:
                yield row
                if room.left <= 0:
                    return
        finally:
            due.close()


def _within_keys(db: sqlite3.Connection, queue: str, room: QueueRoom, now: float) -> Generator[Row]:
    """Tasks with a concurrency key that has room."""
    given = set()
    in_vain, worth_a_look = 0, READ_IN_VAIN
    keys: list[str] | None = None
    in_order = _stream(db, _KEYED, (queue,), now, room)
    try:
        for row in in_order:
            if room.has(row[_KEY]) and (not room.in_order or _is_first(db, row)):
                in_vain = 0
                given.add(row[0])
                yield row
            else:
                in_vain += 1
                if in_vain >= worth_a_look:
                    if (keys := _few_keys(db, queue, in_vain)) is not None:
                        break
                    worth_a_look *= 2
        else:
            return
    finally:
        in_order.close()
    keys = [key for key in keys or () if room.has(key)]
    if room.in_order:
        firsts = [row for key in keys for row in db.execute(_FIRST_DUE, (queue, key, now, now))]
        firsts += db.execute(_SCHEDULES_DUE, (queue, now, now)).fetchall()
        yield from (row for row in sorted(firsts, key=_place) if row[0] not in given and room.has(row[_KEY]))
        return
    by_key = [_stream(db, _OF_KEY, (queue, key), now, room) for key in keys]
    try:
        for row in heapq.merge(*by_key, key=_place):
            if row[0] not in given and room.has(row[_KEY]):
                yield row
    finally:
        for stream in by_key:
            stream.close()


def _is_first(db: sqlite3.Connection, row: Row) -> bool:
    """Whether no task with its concurrency key that was added before is alive."""
    if type(row[_ID]) is str and is_schedule(row[_ID]):
        return True
    (first,) = db.execute(f"SELECT id {_FIRST}", (row[_QUEUE], row[_KEY])).fetchone()
    return bool(first == row[_ID])


def _few_keys(db: sqlite3.Connection, queue: str, most: int) -> list[str] | None:
    """The keys of those that wait, if there are at most so many."""
    keys = list(islice(_keys(db, queue), most + 1))
    return keys if len(keys) <= most else None


def _keys(db: sqlite3.Connection, queue: str) -> Iterator[str]:
    (key,) = db.execute(_KEYS, (queue,)).fetchone()
    while key is not None:
        yield key
        (key,) = db.execute(f"{_KEYS} AND concurrency_key > ?", (queue, key)).fetchone()


def _priorities(db: sqlite3.Connection, waiting: str, which: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """The priorities that there are, high first: one look at the index for each. Each is a placeholder and its value:
    a damaged one may be a text that is no UTF-8, which is read as bytes, and SQLite compares bytes unlike text.
    """
    rest, values = waiting, which
    while True:
        (priority,) = db.execute(f"SELECT max(priority) {rest}", values).fetchone()
        if priority is None:
            return
        place = "?"
        if (
            type(priority) is bytes
            and db.execute(f"SELECT typeof(max(priority)) {rest}", values).fetchone()[0] == "text"
        ):
            place = "CAST(? AS TEXT)"
        yield place, priority
        rest, values = f"{waiting} AND priority < {place}", (*which, priority)


def _place(row: Row) -> Head:
    """Where a task stands in the order of claims."""
    priority = -row[_PRIORITY] if type(row[_PRIORITY]) is int else -math.inf
    return (priority, row[_ETA], row[_ID] if type(row[_ID]) is str else "")
