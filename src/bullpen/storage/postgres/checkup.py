"""What may be wrong with a server: settings that lose tasks, and neighbours that make it slow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bullpen.storage.port import Concern
from bullpen.storage.server import in_the_clear

LONG = 3600  # seconds
NEARLY_ALL = 0.9


async def concerns_of(connection: Any, url: str) -> Sequence[Concern]:
    found: list[Concern] = []

    def add(kind: str, words: str, advice: str, *, serious: bool = False) -> None:
        found.append(Concern(kind=kind, level="problem" if serious else "warning", words=words, advice=advice))

    async def setting(name: str) -> str:
        return str(await connection.fetchval("SELECT current_setting($1)", name))

    if await connection.fetchval("SELECT pg_is_in_recovery()"):
        add("read_only", "the server is a standby, which cannot be written", "name the primary server", serious=True)
    if await setting("fsync") == "off":
        add("fsync", "fsync is off: a power cut may destroy the database", "set fsync = on", serious=True)
    if await setting("synchronous_commit") == "off":
        words = "synchronous_commit is off: a crash of the server may take the latest tasks with it"
        add("synchronous_commit", words, "set synchronous_commit = on")
    if await setting("autovacuum") == "off":
        add("autovacuum", "autovacuum is off: the tables grow for ever", "set autovacuum = on")
    oldest = await connection.fetchval(
        "SELECT extract(epoch FROM max(now() - xact_start))::float8 FROM pg_stat_activity WHERE xact_start IS NOT NULL"
    )
    if oldest is not None and oldest > LONG:
        words = f"a transaction has been open for {oldest / 3600:.0f} h: what is gone cannot be cleared away"
        add("long_transaction", words, "end it; pg_stat_activity has it, by xact_start")
    used = await connection.fetchval("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'")
    most = int(await setting("max_connections"))
    if used > NEARLY_ALL * most:
        words = f"{used} of {most} connections are in use"
        add("connections", words, "raise max_connections, lower ?connections=, or use a pooler")
    encrypted = await connection.fetchval("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
    return found if encrypted else [*found, *in_the_clear(url)]
