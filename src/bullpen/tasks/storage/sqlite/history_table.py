"""The table of the history, and its statements, inside a transaction that the caller begins and commits.

A vector of counts is a JSON array, so that a query of an operator can read it (`counts ->> 2`). SQLite cannot add
arrays: a write reads the rows that are there, adds in Python, and replaces them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from bullpen.tasks.model.history import KEPT, HistoryRow, Vector, sum_of

TABLE = """
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

_decode = msgspec.json.Decoder(Vector).decode


def add_rows(db: sqlite3.Connection, rows: Sequence[HistoryRow]) -> None:
    for row in rows:
        key = (row.step, row.at, row.queue, row.function)
        vectors: tuple[Vector, ...] = (row.counts, row.waits, row.runs)
        there = db.execute(_FIND, key).fetchone()
        if there is not None:
            vectors = tuple(map(sum_of, map(_decode, there), vectors))
        db.execute(_PUT, (*key, *(msgspec.json.encode(vector).decode() for vector in vectors)))


def read_rows(
    db: sqlite3.Connection, step: int, since: float, until: float, queue: str | None, function: str | None
) -> list[HistoryRow]:
    rows = db.execute(_READ, (step, since, until, queue, queue, function, function))
    return [HistoryRow(*row[:4], *map(_decode, row[4:])) for row in rows]


def is_something_to_prune(db: sqlite3.Connection, now: float) -> bool:
    return any(db.execute(_IS_OLD, (step, now - kept)).fetchone() is not None for step, kept in KEPT.items())


def prune_rows(db: sqlite3.Connection, now: float) -> None:
    for step, kept in KEPT.items():
        db.execute(_PRUNE, (step, now - kept))
