"""The audit: what is kept, and how much of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bullpen.errors import ConfigurationError
from bullpen.web import audit
from bullpen.web.audit import AuditLog


def test_the_file_is_bounded_and_has_the_latest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "KEPT", 5)
    log = AuditLog(tmp_path / "audit")
    for number in range(38):
        log.add("ada", "127.0.0.1", f"did {number}")
        assert len((tmp_path / "audit").read_text().splitlines()) <= 10
    assert [one.what for one in log.latest] == [f"did {number}" for number in range(37, 32, -1)]
    again = AuditLog(tmp_path / "audit")
    assert [one.what for one in again.latest] == [one.what for one in log.latest]


def test_a_damaged_line_is_left_out_and_a_file_of_others_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    AuditLog(path).add("ada", "127.0.0.1", "paused\nthe queue")
    with path.open("ab") as file:
        file.write(b'{"at": "20')
    assert [one.what for one in AuditLog(path).latest] == ["paused\nthe queue"]
    path.chmod(0o666)
    with pytest.raises(ConfigurationError, match="can be written by every user"):
        AuditLog(path)
    with pytest.raises(ConfigurationError, match="audit file"):
        AuditLog(tmp_path / "no" / "folder")
