"""What may be wrong with a server: settings that lose tasks, and memory that is full."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from bullpen.storage.port import Concern
from bullpen.storage.redis.link import Link
from bullpen.storage.server import in_the_clear

OLDEST = (6, 2)
NEARLY_ALL = 0.9
_SETTINGS = ("maxmemory-policy", "appendonly", "save", "appendfsync")


async def info_of(link: Link) -> list[dict[str, str]]:
    """Of each server; nothing of those that do not tell."""
    from redis import exceptions

    try:
        return [_info(answer) for answer in await link.say_to_each("INFO")]
    except exceptions.NoPermissionError:
        return []


def _info(answer: bytes | dict[str, Any]) -> dict[str, str]:
    """The driver reads it for us if it is a cluster's."""
    if isinstance(answer, dict):
        return {name: str(value) for name, value in answer.items()}
    lines = answer.decode().splitlines()
    return {name: value for name, colon, value in (line.partition(":") for line in lines) if colon}


def is_too_old(info: dict[str, str]) -> bool:
    """One that tells no version gets the benefit of the doubt; Valkey tells that of the Redis it stands in for."""
    version = re.match(r"(\d+)\.(\d+)", info.get("redis_version", ""))
    return version is not None and (int(version[1]), int(version[2])) < OLDEST


async def settings_of(link: Link) -> list[dict[str, str] | None]:
    """Those of each server that matter here; None if it does not tell them."""
    from redis import exceptions

    try:
        # One by one: servers older than Redis 7 know no other way.
        answers = [await link.say_to_each("CONFIG", "GET", name) for name in _SETTINGS]
    except exceptions.ResponseError:
        return [None]
    return [dict(map(_setting, _SETTINGS, of_server)) for of_server in zip(*answers, strict=True)]


def _setting(name: str, answer: list[bytes] | dict[bytes, bytes]) -> tuple[str, str]:
    words = list(answer.values()) if isinstance(answer, dict) else answer
    return name, words[-1].decode() if words else ""


async def concerns_of(link: Link, url: str) -> Sequence[Concern]:
    found: list[Concern] = []
    for info in await info_of(link):
        found += _of_server(info)
    for settings in await settings_of(link):
        if settings is None:
            words = "the server does not tell its settings"
            advice = "see that it has appendonly on and maxmemory-policy noeviction"
            found.append(Concern(kind="settings", level="warning", words=words, advice=advice))
        else:
            found += _of_settings(settings)
    found = list({(concern.kind, concern.words): concern for concern in found}.values())  # said once of all nodes
    return found if url.startswith("rediss") else [*found, *in_the_clear(url)]


def _of_server(info: dict[str, Any]) -> list[Concern]:
    found: list[Concern] = []
    if info.get("role") in ("slave", "replica"):
        words, advice = "the server is a replica, which cannot be written", "name the primary server"
        found.append(Concern(kind="read_only", level="problem", words=words, advice=advice))
    for name in ("rdb_last_bgsave_status", "aof_last_write_status"):
        if info.get(name, "ok") != "ok":
            words = f"the server could not write to its disk ({name} is {info[name]})"
            advice = "see its log; there may be no space, or no permission"
            found.append(Concern(kind="disk", level="problem", words=words, advice=advice))
    used, most = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if most and used > NEARLY_ALL * most:
        words = f"{used / most:.0%} of its memory is in use; when it is full, nothing can be enqueued"
        advice = "raise maxmemory, shorten result_ttl, or `bullpen tasks purge`"
        found.append(Concern(kind="memory", level="problem", words=words, advice=advice))
    return found


def _of_settings(settings: dict[str, str]) -> list[Concern]:
    found: list[Concern] = []
    policy = settings.get("maxmemory-policy") or "noeviction"
    if policy.startswith("allkeys"):
        words = f"when its memory is full the server drops keys, and tasks with them (maxmemory-policy {policy})"
        advice = "CONFIG SET maxmemory-policy noeviction"
        found.append(Concern(kind="eviction", level="problem", words=words, advice=advice))
    if settings.get("appendonly") != "yes":
        snapshots = settings.get("save")
        lost = "what has come since the last snapshot" if snapshots else "everything"
        words = f"appendonly is off: if the server crashes or restarts, {lost} is lost"
        advice = "CONFIG SET appendonly yes, and in its configuration"
        level: Any = "warning" if snapshots else "problem"
        found.append(Concern(kind="persistence", level=level, words=words, advice=advice))
    elif settings.get("appendfsync") == "no":
        words = "appendfsync is no: a power cut may take the last half a minute of tasks"
        found.append(
            Concern(kind="appendfsync", level="warning", words=words, advice="CONFIG SET appendfsync everysec")
        )
    return found
