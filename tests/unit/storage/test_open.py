"""Addresses of stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from bullpen.errors import InvalidOption
from bullpen.storage.memory import MemoryStorage
from bullpen.storage.open import open_storage
from bullpen.storage.sqlite.store import SqliteStorage


def test_memory() -> None:
    assert isinstance(open_storage("memory://"), MemoryStorage)


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///jobs.db", "jobs.db"),
        ("sqlite:///sub/jobs.db", "sub/jobs.db"),
        ("sqlite:////var/lib/jobs.db", "/var/lib/jobs.db"),
        ("SQLite:///a%20b.db", "a b.db"),
    ],
)
def test_paths_are_relative_with_three_slashes_and_absolute_with_four(url: str, path: str) -> None:
    storage = open_storage(url)
    assert isinstance(storage, SqliteStorage)
    assert storage.path == Path.cwd() / path


def test_options_of_sqlite() -> None:
    storage = open_storage("sqlite:///jobs.db?synchronous=normal&busy_timeout=0.5")
    assert isinstance(storage, SqliteStorage)
    assert (storage.synchronous, storage.busy_timeout) == ("normal", 0.5)
    assert open_storage("sqlite:///jobs.db").synchronous == "full"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("jobs.db", "sqlite:///relative.db"),
        ("", "memory://"),
        (7, "memory://"),
        (None, "memory://"),
        ("mysql://host/db", "postgresql://"),
        ("memory://name", "memory://"),
        ("sqlite://jobs.db", "sqlite:///relative.db"),
        ("sqlite:///", "sqlite:///relative.db"),
        ("sqlite:///folder/", "sqlite:///relative.db"),
        ("sqlite:///:memory:", "memory://"),
        ("sqlite:///jobs.db?sync=full", "synchronous"),
        ("sqlite:///jobs.db?synchronous=off", '"full" or "normal"'),
        ("sqlite:///jobs.db?busy_timeout=soon", "seconds"),
        ("sqlite:///jobs.db?busy_timeout=nan", "seconds"),
        ("sqlite:///jobs.db?busy_timeout=-1", "seconds"),
        ("postgresql://host/db", "not there yet"),
        ("redis://host/0", "not there yet"),
    ],
)
def test_a_wrong_address_is_refused_with_what_is_allowed(url: str, word: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        open_storage(url)
    assert word in str(refused.value)


def test_passwords_are_not_shown() -> None:
    with pytest.raises(InvalidOption) as refused:
        open_storage("postgresql://me:s3cret@host/db")
    assert "s3cret" not in str(refused.value) + repr(vars(refused.value))
