"""Health checks of a server: settings that lose tasks, full memory, failed writes to disk."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from bullpen.tasks.storage.port import HealthFinding
from bullpen.tasks.storage.redis.connection import RedisConnection
from bullpen.tasks.storage.server import in_the_clear

OLDEST = (6, 2)
NEARLY_ALL = 0.9
_SETTINGS = ("maxmemory-policy", "appendonly", "save", "appendfsync")


async def info_of(connection: RedisConnection) -> list[dict[str, str]]:
    """INFO of each server; an empty list if the user may not ask for it."""
    from redis import exceptions

    try:
        return [_info(answer) for answer in await connection.execute_on_all_nodes("INFO")]
    except exceptions.NoPermissionError:
        return []


def _info(answer: bytes | dict[str, Any]) -> dict[str, str]:
    """redis-py parses the reply of a cluster node itself."""
    if isinstance(answer, dict):
        return {name: str(value) for name, value in answer.items()}
    lines = answer.decode().splitlines()
    return {name: value for name, colon, value in (line.partition(":") for line in lines) if colon}


def is_too_old(info: dict[str, str]) -> bool:
    """A server without a version is not too old. Valkey reports the version of Redis that it is compatible with."""
    version = re.match(r"(\d+)\.(\d+)", info.get("redis_version", ""))
    return version is not None and (int(version[1]), int(version[2])) < OLDEST


async def settings_of(connection: RedisConnection) -> list[dict[str, str] | None]:
    """The settings of each server that matter here; None if the user may not read them."""
    from redis import exceptions

    try:
        # One by one, because CONFIG GET takes one name before Redis 7.
        answers = [await connection.execute_on_all_nodes("CONFIG", "GET", name) for name in _SETTINGS]
    except exceptions.ResponseError:
        return [None]
    return [dict(map(_setting, _SETTINGS, of_server)) for of_server in zip(*answers, strict=True)]


def _setting(name: str, answer: list[bytes] | dict[bytes, bytes]) -> tuple[str, str]:
    message = list(answer.values()) if isinstance(answer, dict) else answer
    return name, message[-1].decode() if message else ""


async def run_health_checks(connection: RedisConnection, url: str) -> Sequence[HealthFinding]:
    found: list[HealthFinding] = []
    for info in await info_of(connection):
        found += _of_server(info)
    for settings in await settings_of(connection):
        if settings is None:
            message = "the server rejects CONFIG GET, so its settings are unknown"
            advice = "make sure that appendonly is on and maxmemory-policy is noeviction"
            found.append(HealthFinding(kind="settings", level="warning", message=message, advice=advice))
        else:
            found += _of_settings(settings)
    found = list({(concern.kind, concern.message): concern for concern in found}.values())  # once for all nodes
    return found if url.startswith("rediss") else [*found, *in_the_clear(url)]


def _of_server(info: dict[str, Any]) -> list[HealthFinding]:
    found: list[HealthFinding] = []
    if info.get("role") in ("slave", "replica"):
        message, advice = "the server is a read-only replica", "name the primary server"
        found.append(HealthFinding(kind="read_only", level="problem", message=message, advice=advice))
    for name in ("rdb_last_bgsave_status", "aof_last_write_status"):
        if info.get(name, "ok") != "ok":
            message = f"the last write to disk failed ({name} is {info[name]})"
            advice = "see the log of the server for missing space or permissions"
            found.append(HealthFinding(kind="disk", level="problem", message=message, advice=advice))
    used, most = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if most and used > NEARLY_ALL * most:
        message = f"{used / most:.0%} of maxmemory is in use; enqueueing fails when it is full"
        advice = "raise maxmemory, shorten result_ttl and failure_ttl, or `bullpen tasks purge`"
        found.append(HealthFinding(kind="memory", level="problem", message=message, advice=advice))
    return found


def _of_settings(settings: dict[str, str]) -> list[HealthFinding]:
    found: list[HealthFinding] = []
    policy = settings.get("maxmemory-policy") or "noeviction"
    if policy.startswith("allkeys"):
        message = f"the server evicts keys, and so tasks, when its memory is full (maxmemory-policy {policy})"
        advice = "CONFIG SET maxmemory-policy noeviction"
        found.append(HealthFinding(kind="eviction", level="problem", message=message, advice=advice))
    if settings.get("appendonly") != "yes":
        snapshots = settings.get("save")
        lost = "every change since the last snapshot" if snapshots else "every task"
        message = f"appendonly is off: if the server crashes or restarts, {lost} is lost"
        advice = "CONFIG SET appendonly yes, and set it in redis.conf"
        level: Any = "warning" if snapshots else "problem"
        found.append(HealthFinding(kind="persistence", level=level, message=message, advice=advice))
    elif settings.get("appendfsync") == "no":
        message = "appendfsync is no: a power cut may lose the last 30 seconds"
        found.append(
            HealthFinding(
                kind="appendfsync", level="warning", message=message, advice="CONFIG SET appendfsync everysec"
            )
        )
    return found
