from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from bullpen.tasks.storage.redis import health_checks as redis
from bullpen.tasks.storage.server import in_the_clear
from bullpen.tasks.storage.sqlite import health_checks as sqlite

Usage = namedtuple("Usage", "total used free")


@pytest.mark.parametrize(
    ("url", "is_clear"),
    [
        ("redis://127.0.0.1/0", False),
        ("redis://[::1]/0", False),
        ("redis://localhost/0", False),
        ("postgresql:///jobs", False),
        ("postgresql://a@%2Ftmp:5432/jobs", False),
        ("postgresql:///jobs?host=/tmp", False),
        ("postgresql:///jobs?host=db.example.org", True),
        ("redis://127.0.0.1:1,[::1]:2,localhost", False),
        ("redis://127.0.0.1:1,10.0.0.3:2", True),
        ("redis://10.0.0.3/0", True),
        ("redis://user:x@db.example.org/0", True),
    ],
)
def test_what_goes_over_a_network_unencrypted_is_a_concern(url: str, is_clear: bool) -> None:
    assert bool(in_the_clear(url)) is is_clear


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"appendonly": "yes", "appendfsync": "everysec", "maxmemory-policy": "noeviction"}, []),
        ({"appendonly": "yes", "appendfsync": "no"}, [("appendfsync", "warning")]),
        ({"appendonly": "no", "save": ""}, [("persistence", "problem")]),
        ({"appendonly": "no", "save": "3600 1"}, [("persistence", "warning")]),
        ({"appendonly": "yes", "maxmemory-policy": "allkeys-lru"}, [("eviction", "problem")]),
        ({"appendonly": "yes", "maxmemory-policy": "volatile-lru"}, []),
    ],
)
def test_settings_of_redis_that_lose_tasks(settings: dict[str, str], found: list[tuple[str, str]]) -> None:
    assert [(one.kind, one.level) for one in redis._of_settings(settings)] == found


@pytest.mark.parametrize(
    ("version", "old"),
    [
        ("5.0.14", True),
        ("6.0.16", True),
        ("6.2.14", False),
        ("7.2.4", False),
        ("10.0.0", False),
        ("255.255.255", False),
    ],
)
def test_a_server_that_is_too_old_is_told_by_its_version(version: str, old: bool) -> None:
    assert redis.is_too_old({"redis_version": version}) is old
    assert not redis.is_too_old({})  # one that does not tell it


@pytest.mark.parametrize(
    ("info", "found"),
    [
        ({"role": "master", "used_memory": 5, "maxmemory": 0}, []),
        ({"used_memory": 95, "maxmemory": 100}, ["memory"]),
        ({"role": "slave"}, ["read_only"]),
        ({"aof_last_write_status": "err"}, ["disk"]),
    ],
)
def test_a_redis_server_in_trouble(info: dict[str, Any], found: list[str]) -> None:
    assert [one.kind for one in redis._of_server(info)] == found


def test_a_file_that_others_may_read_on_a_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "jobs.db"
    path.touch(mode=0o600)
    assert sqlite.run_health_checks(path, "full") == []
    path.chmod(0o640)
    assert [one.kind for one in sqlite.run_health_checks(path, "normal")] == ["permissions", "synchronous"]
    path.chmod(0o600)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 40, 1 << 40, 50 << 20))
    (full,) = sqlite.run_health_checks(path, "full")
    assert (full.level, "only 50 MiB left" in full.message) == ("problem", True)
    monkeypatch.undo()
    monkeypatch.setattr(sqlite, "LONG_LOG", 2)
    (tmp_path / "jobs.db-wal").write_bytes(b"123")
    assert [one.kind for one in sqlite.run_health_checks(path, "full")] == ["log"]
