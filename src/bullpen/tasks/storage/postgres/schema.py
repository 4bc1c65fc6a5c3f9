"""The versions of the schema, and the migrations between them.

A migration is a text of SQL. A client applies it once, in one transaction, and the table `version` records it. After
that it never changes: `tests/unit/tasks/storage/test_postgres_schema.py` has a digest of each.

The text of version 1 is in `sql/migration_1/`. It depends on names and figures that Python has too (`_placeholders`):
after the first release, a change of one of them needs a migration that brings the schema along.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from bullpen.errors import InvalidOption, SchemaTooNew
from bullpen.tasks.model.codec import MAX_PAYLOAD
from bullpen.tasks.model.ids import SCHEDULES
from bullpen.tasks.model.links import GIVEN_UP
from bullpen.tasks.model.options import MAX_KEY, MAX_RETRIES, MAX_SECONDS, QUEUE_NAME, QUEUE_WORDS
from bullpen.tasks.model.task import (
    ERRORS_KEPT,
    FAILURE_TTL,
    HIGHEST_PRIORITY,
    LOWEST_PRIORITY,
    MAX_COUNT,
    NEVER,
    RESULT_TTL,
    UNPLANNED,
)
from bullpen.tasks.storage.port import MAX_LIMIT, MIN_RATE
from bullpen.tasks.storage.postgres.rows import CLAIMED, CLAIMED_STEPS, DEFAULTS, FORGOTTEN, NEW, SETTLED
from bullpen.tasks.storage.postgres.sql_files import fill_placeholders, read_sql

CLAIM_OVERLAP = 0.05  # seconds; a cursor stays so far behind the clock, because a transaction may commit an older eta
AWAIT_LOCK_TIMEOUT = "20ms"  # how long `await_end` waits for a locked row
AWAIT_RETRY_DELAY = 0.1  # seconds until the caller asks again
MOST_KEY_LOCKS = 100  # unique keys of a queue that one transaction locks one by one
SKIPPED_BEFORE_RESTART = 100  # rows that a claim skips because of their keys, before it excludes those keys


class Migration(NamedTuple):
    """`script` leads from one version of the schema to the next. Clients of version `oldest` and
    later can use the schema afterwards, and continue while the migration runs. For them, keep the functions that they
    call, with all parameters, and the columns that they read.
    """

    script: str
    oldest: int


def _migration(version: int, parts: tuple[str, ...], *, oldest: int) -> Migration:
    script = "\n".join(read_sql(f"migration_{version}/{part}.sql") for part in parts)
    return Migration(f"\n{script}", oldest)


MIGRATIONS = (  # the n-th makes version n
    _migration(
        1,
        (
            "tables",
            "clock",
            "steps",
            "events",
            "unique_keys",
            "enqueue",
            "add",
            "capacity",
            "pick",
            "followers",
            "exchange",
            "waiting",
            "history",
        ),
        oldest=1,
    ),
)
VERSION = len(MIGRATIONS)


class FoundSchema(NamedTuple):
    """The version that a database has; 0 if it has none. Clients of version `oldest` and later can use it."""

    version: int = 0
    oldest: int = 0

    def check(self, storage: str) -> None:
        """Raises SchemaTooNew if this client cannot use it."""
        if self.version > VERSION and self.oldest > VERSION:
            raise SchemaTooNew(storage=storage, found=self.version, known=VERSION)


def pending_migrations(found: int, schema: str) -> tuple[str, ...]:
    """The migrations from version `found` to the current one, with the name of the schema filled in."""
    begin = (
        f"CREATE SCHEMA IF NOT EXISTS {schema};\n"
        f"CREATE TABLE {schema}.version (version integer NOT NULL, oldest integer NOT NULL);\n"
        f"INSERT INTO {schema}.version VALUES (0, 0);\n"
    )
    return tuple(
        f"{'' if version else begin}{fill_placeholders(MIGRATIONS[version].script, _placeholders(schema))}\n"
        f"UPDATE {schema}.version SET version = {version + 1}, oldest = {MIGRATIONS[version].oldest};\n"
        for version in range(found, VERSION)
    )


def _placeholders(schema: str) -> dict[str, object]:
    return {
        "schema": schema,
        "channel": channel(schema),
        "errors_kept": ERRORS_KEPT,
        "never": NEVER,
        "result_ttl": RESULT_TTL,
        "failure_ttl": FAILURE_TTL,
        "given_up": GIVEN_UP,
        "claim_overlap": CLAIM_OVERLAP,
        "most_key_locks": MOST_KEY_LOCKS,
        "max_payload": MAX_PAYLOAD,
        "max_count": MAX_COUNT,
        "max_limit": MAX_LIMIT,
        "min_rate": MIN_RATE,
        "schedules": SCHEDULES,
        "skipped_before_restart": SKIPPED_BEFORE_RESTART,
        "unplanned": UNPLANNED,
        "await_lock_timeout": AWAIT_LOCK_TIMEOUT,
        "await_retry_delay": AWAIT_RETRY_DELAY,
        "forgotten": FORGOTTEN,
        "queue_name": f"^{QUEUE_NAME.pattern}$",
        "queue_words": QUEUE_WORDS.replace("'", "''"),
        "lowest_priority": LOWEST_PRIORITY,
        "highest_priority": HIGHEST_PRIORITY,
        "max_seconds": MAX_SECONDS,
        "max_retries": MAX_RETRIES,
        "max_key": MAX_KEY,
        "claimed_record": _record(CLAIMED),
        "claimed_values": ", ".join(map(_unless_default, CLAIMED)).replace("{schema}", schema),
        "add_columns": ", ".join(NEW),
        "add_parameters": ", ".join(f"{_plural(name)} {kind}[]" for name, kind in NEW.items()),
        "add_arrays": ", ".join(map(_plural, NEW)),
        "add_values": ", ".join("coalesce(g.eta, now)" if name == "eta" else f"g.{name}" for name in NEW),
        "add_aggregated": ", ".join(f"c.{_plural(name)}" for name in NEW),
        "add_record": _record(NEW),
        "add_aggregates": ", ".join(f"array_agg(r.{name} ORDER BY r.place) AS {_plural(name)}" for name in NEW),
        "settle_record": _record(SETTLED),
        "settle_aggregates": ", ".join(f"array_agg(r.{name}) AS {_plural(name)}" for name in SETTLED),
        "settle_arrays": ", ".join(f"c.{_plural(name)}" for name in SETTLED),
    }


def channel(schema: str) -> str:
    return f"bullpen:{schema}"


def checked_name(schema: str) -> str:
    """Check a name that is put into statements without quotes. Raises InvalidOption."""
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,48}", schema):
        raise InvalidOption(
            "schema", schema, "at most 49 lower-case letters, digits and underscores, not starting with a digit"
        )
    return schema


def _unless_default(name: str) -> str:
    if name == "steps":
        return CLAIMED_STEPS
    return f"nullif(t.{name}, {DEFAULTS[name]})" if name in DEFAULTS else f"t.{name}"


def _record(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def _plural(name: str) -> str:
    return f"{name}s"
