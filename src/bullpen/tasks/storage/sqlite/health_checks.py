"""Health checks of a file: its permissions, the free space on its disk, and the version of its tables."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from bullpen.tasks.storage.port import HealthFinding, Schema
from bullpen.tasks.storage.sqlite import schema
from bullpen.tasks.storage.sqlite.file import check_file, open_error

MEBIBYTE = 1 << 20
LITTLE = 100 * MEBIBYTE
LONG_LOG = 256 * MEBIBYTE


def look_at_schema(path: Path) -> Schema:
    """The version of the tables, also of a file that is too new. Raises NotABullpenFile, UnsafeFile and the like."""
    check_file(path)
    found = 0
    if path.exists() and path.stat().st_size:
        try:
            with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as db:
                found = schema.version_of(db, str(path))
        except sqlite3.Error as error:
            raise open_error(error, str(path)) from error
    return Schema(found=found, known=schema.VERSION, migrations=schema.pending_migrations(found))


def run_health_checks(path: Path, synchronous: str) -> Sequence[HealthFinding]:
    found: list[HealthFinding] = []

    def add(kind: str, message: str, advice: str, *, serious: bool = False) -> None:
        found.append(
            HealthFinding(kind=kind, level="problem" if serious else "warning", message=message, advice=advice)
        )

    permissions = path.stat().st_mode & 0o777
    if permissions & 0o077:
        message = (
            f"others on this machine may read or write it, with the arguments of tasks (its mode is {permissions:03o})"
        )
        add("permissions", message, f"chmod 600 {path}")
    free = shutil.disk_usage(path.parent).free
    if free < LITTLE:
        message = f"there are only {free // MEBIBYTE} MiB left on its disk; when it is full, nothing can be written"
        add("disk", message, "make room; `bullpen tasks purge` forgets tasks that are over", serious=True)
    log = path.with_name(path.name + "-wal")
    if log.exists() and log.stat().st_size > LONG_LOG:
        message = f"its log has {log.stat().st_size // MEBIBYTE} MiB: a connection reads for long, in one transaction"
        add("log", message, "end that transaction; the log becomes small again by itself")
    if synchronous == "normal":
        message = "synchronous is normal: a power cut may take the latest tasks and results with it"
        add("synchronous", message, "leave ?synchronous=normal away, unless that is meant")
    return found
