"""What may be wrong with a file: who may read it, how much room it has, and which version it is of."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from bullpen.storage.port import Concern, Schema
from bullpen.storage.sqlite import schema
from bullpen.storage.sqlite.file import check_file, named

MEBIBYTE = 1 << 20
LITTLE = 100 * MEBIBYTE
LONG_LOG = 256 * MEBIBYTE


def look_at_schema(path: Path) -> Schema:
    """Also of a file that is too new. Raises NotABullpenFile, UnsafeFile and the like."""
    check_file(path)
    found = 0
    if path.exists() and path.stat().st_size:
        try:
            with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as db:
                found = schema.version_of(db, str(path))
        except sqlite3.Error as error:
            raise named(error, str(path)) from error
    return Schema(found=found, known=schema.VERSION, steps=schema.steps(found))


def concerns_of(path: Path, synchronous: str) -> Sequence[Concern]:
    found: list[Concern] = []

    def add(kind: str, words: str, advice: str, *, serious: bool = False) -> None:
        found.append(Concern(kind=kind, level="problem" if serious else "warning", words=words, advice=advice))

    permissions = path.stat().st_mode & 0o777
    if permissions & 0o077:
        words = (
            f"others on this machine may read or write it, with the arguments of tasks (its mode is {permissions:03o})"
        )
        add("permissions", words, f"chmod 600 {path}")
    free = shutil.disk_usage(path.parent).free
    if free < LITTLE:
        words = f"there are only {free // MEBIBYTE} MiB left on its disk; when it is full, nothing can be written"
        add("disk", words, "make room; `bullpen tasks purge` forgets tasks that are over", serious=True)
    log = path.with_name(path.name + "-wal")
    if log.exists() and log.stat().st_size > LONG_LOG:
        words = f"its log has {log.stat().st_size // MEBIBYTE} MiB: somebody reads for long, in one transaction"
        add("log", words, "end whoever reads the file; the log becomes small again by itself")
    if synchronous == "normal":
        words = "synchronous is normal: a power cut may take the latest tasks and results with it"
        add("synchronous", words, "leave ?synchronous=normal away, unless that is meant")
    return found
