"""The statements that the store executes, by name; their text is in `sql/statements/`.

`{schema}` is still in them: whatever executes one puts its own schema there (`in_schema`).
"""

from __future__ import annotations

from collections.abc import Collection

from bullpen.tasks.model.failure_groups import FAILURES_KEPT
from bullpen.tasks.model.history import HOUR, KEPT, MAX_COUNTED, MINUTE
from bullpen.tasks.model.task import MAX_LEASE
from bullpen.tasks.storage.postgres.rows import CHANGING, CLAIMED, COLUMNS, NEW, SETTLED, TERMS, WHOLE, array_places
from bullpen.tasks.storage.postgres.sql_files import fill_placeholders, read_statements


def in_schema(statement: str, schema: str) -> str:
    return statement.replace("{schema}", schema)


def _values(columns: Collection[str]) -> str:
    return ", ".join(f"${number}" for number in range(1, len(columns) + 1))


def _old_rows(key: str, table: str, kept: float, condition: str = "") -> str:
    """The keys of rows that are kept no longer. The clock is volatile, and only a subquery lets the condition read the
    index; with a limit PostgreSQL does so, whatever it guesses.
    """
    before = f"(SELECT CAST({{schema}}.now() AS bigint) - {kept:.0f})"
    return f"SELECT {key} FROM {{schema}}.{table} WHERE {condition}at < {before} ORDER BY at LIMIT 500"


_PLACEHOLDERS = {
    "schema": "{schema}",
    "columns": COLUMNS,
    "whole": WHOLE,
    "claimed": ", ".join(CLAIMED),
    "settled_arrays": array_places(SETTLED),
    "new": ", ".join(NEW),
    "new_values": _values(NEW),
    "new_arrays": array_places(NEW),
    "notifies_after_new": f"${len(NEW) + 1}",
    "changing": ", ".join(CHANGING),
    "changing_values": _values(CHANGING),
    "id_after_changing": f"${len(CHANGING) + 1}",
    "terms": ", ".join(TERMS),
    "terms_values": _values(TERMS),
    "id_after_terms": f"${len(TERMS) + 1}",
    "max_counted": MAX_COUNTED,
    "max_lease": MAX_LEASE,
    "old_minutes": _old_rows("step, at, queue, function", "history", KEPT[MINUTE], f"step = {MINUTE} AND "),
    "old_hours": _old_rows("step, at, queue, function", "history", KEPT[HOUR], f"step = {HOUR} AND "),
    "old_failures": _old_rows("at, queue, function, fingerprint", "failure", FAILURES_KEPT),
}


def _read(concept: str) -> dict[str, str]:
    found = read_statements(f"statements/{concept}.sql")
    return {name: fill_placeholders(statement, _PLACEHOLDERS) for name, statement in found.items()}


_tasks = _read("tasks")
GET = _tasks["get"]
COUNT = _tasks["count"]
COUNT_SOME = _tasks["count_some"]
FIRST_PENDING = _tasks["first_pending"]
LIST_PENDING = _tasks["list_pending"]
DELETE = _tasks["delete"]
CANCEL_TOGETHER = _tasks["cancel_together"]
RETRY_TOGETHER = _tasks["retry_together"]
NOTIFY_EACH = _tasks["notify_each"]
LOCK = _tasks["lock"]
LOCK_IDS = _tasks["lock_ids"]
LIMIT_LOCK_WAITS = _tasks["limit_lock_waits"]
CHAINS = _tasks["chains"]
LOCK_MEMBERS = _tasks["lock_members"]
UPDATE = _tasks["update"]
UPDATE_TERMS = _tasks["update_terms"]

_adding = _read("adding")
ADD = _adding["add"]
LOCK_KEYS = _adding["lock_keys"]
HELD_KEYS = _adding["held_keys"]
KEY_HOLDER = _adding["key_holder"]
REPLACE = _adding["replace"]
IMPORT_TASKS = _adding["import_tasks"]
IMPORT_STEPS = _adding["import_steps"]
EXPORT_TASKS = _adding["export_tasks"]

_claims = _read("claims")
EXCHANGE = _claims["exchange"]
SETTLE = _claims["settle"]
FIND_CLAIM = _claims["find_claim"]
RENEW = _claims["renew"]
SAVE_STEP = _claims["save_step"]
SAVE_STEPS = _claims["save_steps"]
SAVE_PROGRESS = _claims["save_progress"]
LOCK_LOST = _claims["lock_lost"]

_queues = _read("queues")
QUEUES = _queues["queues"]
REWIND = _queues["rewind"]
PAUSE = _queues["pause"]
RESUME = _queues["resume"]
PAUSED = _queues["paused"]
SET_LIMIT = _queues["set_limit"]
DELETE_STARTS = _queues["delete_starts"]
LIMITS = _queues["limits"]

_workers = _read("workers")
SAVE_WORKER = _workers["save_worker"]
DELETE_WORKER = _workers["delete_worker"]
WORKERS = _workers["workers"]

_upkeep = _read("upkeep")
LOCK_EXPIRED = _upkeep["lock_expired"]
PRUNE = _upkeep["prune"]

_history = _read("history")
ADD_HISTORY = _history["add_history"]
HISTORY = _history["history"]
ADD_FAILURES = _history["add_failures"]
FAILURES = _history["failures"]
DELETE_FAILURES = _history["delete_failures"]

_events = _read("events")
EMIT = _events["emit"]
FIND_EVENT = _events["find_event"]
LIST_EVENTS = _events["list_events"]

_connection = _read("connection")
WRONG_SETTINGS = _connection["wrong_settings"]
HAS_VERSION_TABLE = _connection["has_version_table"]
IS_SQL_KEYWORD = _connection["is_sql_keyword"]
