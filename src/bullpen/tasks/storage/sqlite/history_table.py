"""The tables of the history and of failures, and their statements. The caller begins and commits the transaction.

A vector of counts is a JSON array, so that a query of an operator can read it (`counts ->> 2`). SQLite cannot add
arrays: a write reads the rows that are there, adds in Python, and replaces them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from bullpen.tasks.model.failure_groups import FAILURES_KEPT, FailureExample, FailureRow
from bullpen.tasks.model.history import KEPT, HistoryRow, Vector, sum_of
from bullpen.tasks.storage.port import readable
from bullpen.tasks.storage.sqlite.rows import readable_rows

TABLES = """
CREATE TABLE bullpen_history (
    step     INTEGER NOT NULL,         -- seconds that the row stands for
    at       INTEGER NOT NULL,         -- its begin, seconds since the epoch
    queue    TEXT NOT NULL,
    function TEXT NOT NULL,
    counts   TEXT NOT NULL,            -- JSON arrays
    waits    TEXT NOT NULL,
    runs     TEXT NOT NULL,
    PRIMARY KEY (step, at, queue, function)
) WITHOUT ROWID;
CREATE TABLE bullpen_failure (
    at          INTEGER NOT NULL,      -- the begin of the hour
    queue       TEXT NOT NULL,
    function    TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    count       INTEGER NOT NULL,
    first       REAL NOT NULL,
    last        REAL NOT NULL,
    example     TEXT NOT NULL,         -- JSON
    PRIMARY KEY (at, queue, function, fingerprint)
) WITHOUT ROWID;
"""

_COLUMNS = "step, at, queue, function, counts, waits, runs"
_FIND = "SELECT counts, waits, runs FROM bullpen_history WHERE step = ? AND at = ? AND queue = ? AND function = ?"
_PUT = f"INSERT OR REPLACE INTO bullpen_history ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)"
_READ = (
    f"SELECT {_COLUMNS} FROM bullpen_history WHERE step = ? AND at >= ? AND at < ? AND (? IS NULL OR queue = ?) "
    "AND (? IS NULL OR function = ?) ORDER BY at, queue, function"
)
_IS_OLD = "SELECT 1 FROM bullpen_history WHERE step = ? AND at < ? LIMIT 1"
_PRUNE = "DELETE FROM bullpen_history WHERE step = ? AND at < ?"

_OF_FAILURES = "at, queue, function, fingerprint, count, first, last, example"
_ADD_FAILURE = (
    f"INSERT INTO bullpen_failure AS f ({_OF_FAILURES}) VALUES (?, ?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (at, queue, function, fingerprint) DO UPDATE SET count = f.count + excluded.count, "
    "example = iif(f.last > excluded.last, f.example, excluded.example), "
    "first = min(f.first, excluded.first), last = max(f.last, excluded.last)"
)
_FAILURES = f"SELECT {_OF_FAILURES} FROM bullpen_failure WHERE at >= ?"
_DELETE_FAILURES = "DELETE FROM bullpen_failure WHERE fingerprint = ? AND (? IS NULL OR function = ?)"
_IS_OLD_FAILURE = "SELECT 1 FROM bullpen_failure WHERE at < ? LIMIT 1"
_PRUNE_FAILURES = "DELETE FROM bullpen_failure WHERE at < ?"

_decode = msgspec.json.Decoder(Vector).decode
_decode_example = msgspec.json.Decoder(FailureExample).decode


def add_rows(db: sqlite3.Connection, rows: Sequence[HistoryRow]) -> None:
    for row in rows:
        key = (row.step, row.at, row.queue, row.function)
        vectors: tuple[Vector, ...] = (row.counts, row.waits, row.runs)
        for there in readable(HistoryRow, (partial(_fields, key, *found) for found in readable_rows(db, _FIND, key))):
            vectors = tuple(map(sum_of, (there.counts, there.waits, there.runs), vectors))
        db.execute(_PUT, (*key, *(msgspec.json.encode(vector).decode() for vector in vectors)))


def read_rows(
    db: sqlite3.Connection, step: int, since: float, until: float, queue: str | None, function: str | None
) -> list[HistoryRow]:
    rows = readable_rows(db, _READ, (step, since, until, queue, queue, function, function))
    return readable(HistoryRow, (partial(_fields, row[:4], *row[4:]) for row in rows))


def _fields(key: Sequence[Any], *vectors: str) -> Sequence[Any]:
    return *key, *map(_decode, vectors)


def add_failures(db: sqlite3.Connection, rows: Sequence[FailureRow]) -> None:
    values = ((*row.key, row.count, row.first, row.last, msgspec.json.encode(row.example).decode()) for row in rows)
    db.executemany(_ADD_FAILURE, values)


def read_failures(db: sqlite3.Connection, since: float) -> list[FailureRow]:
    return readable(FailureRow, (partial(_failure_fields, *row) for row in readable_rows(db, _FAILURES, (since,))))


def _failure_fields(*row: Any) -> Sequence[Any]:
    return *row[:-1], _decode_example(row[-1])


def delete_failures(db: sqlite3.Connection, fingerprint: str, function: str | None) -> None:
    db.execute(_DELETE_FAILURES, (fingerprint, function, function))


def is_something_to_prune(db: sqlite3.Connection, now: float) -> bool:
    if db.execute(_IS_OLD_FAILURE, (now - FAILURES_KEPT,)).fetchone() is not None:
        return True
    return any(db.execute(_IS_OLD, (step, now - kept)).fetchone() is not None for step, kept in KEPT.items())


def prune_rows(db: sqlite3.Connection, now: float) -> None:
    for step, kept in KEPT.items():
        db.execute(_PRUNE, (step, now - kept))
    db.execute(_PRUNE_FAILURES, (now - FAILURES_KEPT,))
