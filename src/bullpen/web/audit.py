"""The audit: who changed what, and when. Every change is a line of the log; the system page shows the latest ones.

With a file the page shows them also after a restart: a line of JSON for each, at most `KEPT` to twice as many.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from bullpen.errors import ConfigurationError
from bullpen.escaping import escape
from bullpen.trusted_files import why_untrusted

KEPT = 1000

logger = logging.getLogger("bullpen.web")


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One change."""

    at: datetime
    who: str
    peer: str
    what: str


class AuditLog:
    """The latest changes, of this process or in a file."""

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._path = None if path is None else Path(path)
        self._entries: deque[AuditEntry] = deque(maxlen=KEPT)
        self._lines = 0
        if self._path is not None:
            self._entries.extend(self._read(self._path))

    @property
    def survives(self) -> bool:
        return self._path is not None

    @property
    def latest(self) -> Sequence[AuditEntry]:
        """The latest first."""
        return list(self._entries)[::-1]

    def add(self, who: str, peer: str, what: str) -> None:
        logger.info("audit: %s at %s %s", escape(who), escape(peer), escape(what))
        entry = AuditEntry(at=datetime.now(UTC), who=who, peer=peer, what=what)
        self._entries.append(entry)
        if self._path is not None:
            try:
                self._write(self._path, entry)
            except OSError as error:
                logger.error("the audit file cannot be written: %s", escape(str(error)))

    def _read(self, path: Path) -> list[AuditEntry]:
        if reason := why_untrusted(path):
            raise ConfigurationError(f"{reason}; let only its owner write it", source=f"the audit file {path}")
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
            lines = path.read_bytes().splitlines()
        except OSError as error:
            raise ConfigurationError(str(error.strerror or error), source=f"the audit file {path}") from None
        self._lines = len(lines)
        found = []
        for line in lines[-KEPT:]:
            try:
                found.append(msgspec.json.decode(line, type=AuditEntry))
            except msgspec.DecodeError:  # a line that was not written whole
                continue
        return found

    def _write(self, path: Path, entry: AuditEntry) -> None:
        if self._lines >= 2 * KEPT:
            fresh = path.with_name(f".{path.name}.new")
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.writelines(msgspec.json.encode(one) + b"\n" for one in self._entries)
            os.replace(fresh, path)
            self._lines = len(self._entries)
            return
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
            file.write(msgspec.json.encode(entry) + b"\n")
        self._lines += 1
