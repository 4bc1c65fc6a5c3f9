"""The tables, and the migrations of older ones.

A claim reads one of two indexes, `ready` or `ready_keyed`: pending tasks of one queue and priority, by `eta`. So it
never reads a task that is not due, and tasks with a concurrency key that a limit holds back do not delay the others.
All other indexes cover few rows, or are written once in the life of a task.
"""

from __future__ import annotations

import sqlite3

from bullpen.errors import NotABullpenFile, SchemaTooNew
from bullpen.tasks.storage.sqlite import history_table
from bullpen.tasks.storage.sqlite.rows import readable_rows

APPLICATION_ID = 0x62756C6C  # "bull"

_FIRST = """
CREATE TABLE bullpen_task (
    id               TEXT PRIMARY KEY NOT NULL,
    queue            TEXT NOT NULL,
    priority         INTEGER NOT NULL,
    status           TEXT NOT NULL DEFAULT 'pending',
    eta              REAL NOT NULL,            -- seconds since the epoch, as all instants but lease_until
    expires          REAL,
    unique_key       TEXT,                     -- in its queue
    unique_until     REAL,
    concurrency_key  TEXT,
    next_task_id     TEXT,                     -- the task that waits for this one
    depends_on       BLOB,                     -- those that it waits for; msgpack
    waits_for        INTEGER NOT NULL DEFAULT 0,
    attempt          INTEGER NOT NULL DEFAULT 0,
    failures         INTEGER NOT NULL DEFAULT 0,
    crashes          INTEGER NOT NULL DEFAULT 0,
    completed_runs   INTEGER NOT NULL DEFAULT 0,
    scheduled_at     REAL,
    hold             TEXT NOT NULL DEFAULT '',
    worker           TEXT,
    claim_id         TEXT,
    lease_until      REAL,                     -- seconds since the machine was booted
    cancel_requested INTEGER NOT NULL DEFAULT 0,
    created_at       REAL NOT NULL,
    started_at       REAL,
    finished_at      REAL,
    result_ttl       REAL,
    failure_ttl      REAL,
    prune_at         REAL,                     -- of final tasks; infinite without a time to live
    func_path        TEXT NOT NULL,
    options          BLOB NOT NULL,            -- msgpack, as are progress, errors and headers
    headers          BLOB,
    progress         BLOB,
    steps            INTEGER NOT NULL DEFAULT 0,  -- 0 if bullpen_step has none
    awaits           TEXT,                     -- the event that it waits for
    errors           BLOB,
    result_dropped   TEXT NOT NULL DEFAULT '',
    payload          BLOB NOT NULL,
    result           BLOB,
    format           INTEGER NOT NULL DEFAULT 1  -- of this row; a newer version may write a higher one
);
CREATE INDEX bullpen_ready ON bullpen_task (queue, priority, eta, id, expires)
    WHERE status = 'pending' AND concurrency_key IS NULL;
CREATE INDEX bullpen_ready_keyed ON bullpen_task (queue, priority, eta, id, expires)
    WHERE status = 'pending' AND concurrency_key IS NOT NULL;
CREATE INDEX bullpen_ready_by_key ON bullpen_task (queue, concurrency_key, priority, eta, id, expires)
    WHERE status = 'pending' AND concurrency_key IS NOT NULL;
CREATE INDEX bullpen_in_order ON bullpen_task (queue, concurrency_key, created_at, id)
    WHERE concurrency_key IS NOT NULL AND status IN ('pending', 'running') AND substr(id, 1, 8) <> 'ffffffff';
CREATE INDEX bullpen_running ON bullpen_task (queue, concurrency_key) WHERE status IN ('running');
CREATE INDEX bullpen_finished ON bullpen_task (queue, status, prune_at) WHERE prune_at IS NOT NULL;
CREATE INDEX bullpen_failed ON bullpen_task (id) WHERE status IN ('failed');
CREATE INDEX bullpen_expiring ON bullpen_task (expires) WHERE status = 'pending' AND expires IS NOT NULL;
CREATE INDEX bullpen_unique ON bullpen_task (unique_key, queue)
    WHERE unique_key IS NOT NULL AND (status IN ('pending', 'running') OR unique_until IS NOT NULL);

CREATE INDEX bullpen_awaiting ON bullpen_task (awaits) WHERE awaits IS NOT NULL;

CREATE TABLE bullpen_event (
    name       TEXT PRIMARY KEY NOT NULL,
    payload    BLOB NOT NULL,
    at         REAL NOT NULL,
    expires_at REAL NOT NULL
);
CREATE INDEX bullpen_event_expiring ON bullpen_event (expires_at);

CREATE TABLE bullpen_step (
    task_id TEXT NOT NULL,
    name    TEXT NOT NULL,
    record  BLOB NOT NULL,    -- msgpack
    PRIMARY KEY (task_id, name)
) WITHOUT ROWID;
CREATE TRIGGER bullpen_steps_of_deleted AFTER DELETE ON bullpen_task WHEN old.steps <> 0
    BEGIN DELETE FROM bullpen_step WHERE task_id = old.id; END;
CREATE TRIGGER bullpen_steps_of_earlier_run AFTER UPDATE OF steps ON bullpen_task WHEN new.steps = 0 AND old.steps <> 0
    BEGIN DELETE FROM bullpen_step WHERE task_id = old.id; END;

CREATE TABLE bullpen_worker (id TEXT PRIMARY KEY NOT NULL, seen_at REAL NOT NULL, record BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE bullpen_paused (queue TEXT PRIMARY KEY NOT NULL) WITHOUT ROWID;
CREATE TABLE bullpen_limit (queue TEXT PRIMARY KEY NOT NULL, terms BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE bullpen_start (  -- in queues with a rate
    queue TEXT NOT NULL,
    at    REAL NOT NULL       -- seconds since the machine was booted
);
CREATE INDEX bullpen_start_at ON bullpen_start (queue, at);
CREATE TABLE bullpen_boot (
    boot TEXT NOT NULL        -- the one that those seconds are counted from
);
"""

MIGRATIONS = (
    _FIRST + history_table.TABLES,
)  # the n-th makes version n + 1 of version n; never change one that was released
VERSION = len(MIGRATIONS)


def pending_migrations(found: int) -> tuple[str, ...]:
    """What leads from the version that was found to the present one."""
    return tuple(
        f"{MIGRATIONS[version]}PRAGMA user_version = {version + 1};\nPRAGMA application_id = {APPLICATION_ID};\n"
        for version in range(found, VERSION)
    )


def version_of(db: sqlite3.Connection, storage: str) -> int:
    """The version of the schema there, 0 for an empty file; rejects files that are not ours."""
    application, version = _pragma(db, "application_id"), _pragma(db, "user_version")
    if application != APPLICATION_ID:
        if application or version or _pragma(db, "schema_version"):
            raise NotABullpenFile("it is a database of another program; choose another path", storage=storage)
        return 0
    return version


def check(db: sqlite3.Connection, storage: str) -> int:
    """The same; also rejects one that is too new."""
    version = version_of(db, storage)
    if version > VERSION:
        raise SchemaTooNew(storage=storage, found=version, known=VERSION)
    return version


def migrate(db: sqlite3.Connection, storage: str, boot: str) -> None:
    """Bring the schema up to date, and end the leases of an earlier boot; in the caller's transaction."""
    for version in range(check(db, storage), VERSION):
        for statement in MIGRATIONS[version].split(";\n"):
            if statement.strip():
                db.execute(statement)
        db.execute(f"PRAGMA user_version = {version + 1}")
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    if not is_current_boot(db, boot):
        db.execute("UPDATE bullpen_task SET lease_until = 0 WHERE status = 'running'")
        db.execute("DELETE FROM bullpen_start")
        db.execute("DELETE FROM bullpen_boot")
        db.execute("INSERT INTO bullpen_boot VALUES (?)", (boot,))


def is_current_boot(db: sqlite3.Connection, boot: str) -> bool:
    return (boot,) in readable_rows(db, "SELECT boot FROM bullpen_boot")


def _pragma(db: sqlite3.Connection, name: str) -> int:
    (value,) = db.execute(f"PRAGMA {name}").fetchone()
    return int(value)
