"""Finds settings of a server that may lose tasks, and states that make it slow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bullpen.tasks.storage.port import HealthFinding
from bullpen.tasks.storage.server import in_the_clear

LONG_TRANSACTION = 3600  # seconds
CONNECTIONS_SHARE = 0.9  # of max_connections


async def run_health_checks(connection: Any, url: str) -> Sequence[HealthFinding]:
    found: list[HealthFinding] = []

    def add(kind: str, message: str, advice: str, *, serious: bool = False) -> None:
        found.append(
            HealthFinding(kind=kind, level="problem" if serious else "warning", message=message, advice=advice)
        )

    async def setting(name: str) -> str:
        return str(await connection.fetchval("SELECT pg_catalog.current_setting($1)", name))

    if await connection.fetchval("SELECT pg_catalog.pg_is_in_recovery()"):
        add("read_only", "the server is a read-only standby", "use the address of the primary server", serious=True)
    if await setting("fsync") == "off":
        add("fsync", "fsync is off: a power failure may corrupt the database", "set fsync = on", serious=True)
    if await setting("synchronous_commit") == "off":
        message = "synchronous_commit is off: a crash of the server may lose the latest tasks"
        add("synchronous_commit", message, "set synchronous_commit = on")
    if await setting("autovacuum") == "off":
        add("autovacuum", "autovacuum is off: the tables grow without limit", "set autovacuum = on")
    oldest = await connection.fetchval(
        "SELECT extract(epoch FROM max(now() - xact_start))::float8 FROM pg_stat_activity WHERE xact_start IS NOT NULL"
    )
    if oldest is not None and oldest > LONG_TRANSACTION:
        message = f"a transaction has been open for {oldest / 3600:.0f} h: VACUUM cannot remove dead rows"
        add("long_transaction", message, "end it; find it in pg_stat_activity by xact_start")
    used = await connection.fetchval("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'")
    most = int(await setting("max_connections"))
    if used > CONNECTIONS_SHARE * most:
        message = f"{used} of {most} connections are in use"
        add("connections", message, "raise max_connections, lower ?connections=, or use a pooler")
    encrypted = await connection.fetchval("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
    return found if encrypted else [*found, *in_the_clear(url)]
