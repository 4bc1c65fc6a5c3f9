"""The tokens file: what is written, what is accepted, and what happens when it changes."""

from __future__ import annotations

import hashlib
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bullpen.errors import ConfigurationError, InvalidOption
from bullpen.web.tokens import SCOPES, TokenFile


def test_the_file_has_the_digest_and_not_the_token_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "tokens")
    token = file.create("ci", ["enqueue", "read"])
    written = file.path.read_text()
    assert token not in written
    assert hashlib.sha256(token.encode()).hexdigest() in written
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert len(token) > 43  # 256 bits
    found = file.find(token)
    assert found is not None
    assert (found.name, found.scopes) == ("ci", ("read", "enqueue"))
    assert sorted(os.listdir(tmp_path)) == ["tokens"]


def test_a_running_server_sees_new_and_revoked_tokens(tmp_path: Path) -> None:
    server, operator = TokenFile(tmp_path / "tokens"), TokenFile(tmp_path / "tokens")
    assert server.find("x") is None  # there is no file yet
    first = operator.create("first", ["read"])
    assert server.find(first) is not None
    second = operator.create("second", ["operate"])
    assert operator.revoke("first")
    assert not operator.revoke("first")
    assert server.find(first) is None
    assert server.find(second) is not None
    (tmp_path / "tokens").unlink()
    assert server.find(second) is None


@pytest.mark.parametrize("given", ["", " ", "bullpen_", "ä", "\ud800", "x" * 100_000, "9" * 64])
def test_other_texts_are_no_tokens(tmp_path: Path, given: str) -> None:
    file = TokenFile(tmp_path / "tokens")
    token = file.create("ci", SCOPES)
    assert file.find(given) is None
    assert file.find(token[:-1]) is None
    assert file.find(hashlib.sha256(token.encode()).hexdigest()) is None  # the digest is no token


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        f"ci root {'0' * 64} 2026-11-18T12:00:00Z",
        f"ci read, {'0' * 64} 2026-11-18T12:00:00Z",
        f"ci read,read {'0' * 64} 2026-11-18T12:00:00Z",
        f"ci  {'0' * 64} 2026-11-18T12:00:00Z",
        f"ci read {'0' * 63} 2026-11-18T12:00:00Z",
        f"../ci read {'0' * 64} 2026-11-18T12:00:00Z",
    ],
)
def test_a_wrong_line_lets_no_token_in(tmp_path: Path, line: str, caplog: pytest.LogCaptureFixture) -> None:
    file = TokenFile(tmp_path / "tokens")
    token = file.create("good", SCOPES)
    with file.path.open("a") as written:
        written.write(f"{line}\n")
    with pytest.raises(ConfigurationError, match="line 3 is no token"):
        file.read()
    assert file.find(token) is None
    assert file.find(token) is None
    assert [record.getMessage()[:28] for record in caplog.records] == ["no API token is accepted: th"]


def test_a_file_that_others_can_write_is_rejected(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "tokens")
    token = file.create("good", SCOPES)
    file.path.chmod(0o622)
    with pytest.raises(ConfigurationError, match="can be written by every user"):
        file.read()
    assert file.find(token) is None
    with pytest.raises(ConfigurationError, match="can be written by every user"):
        file.create("other", ["read"])
    file.path.chmod(0o600)
    assert file.find(token) is not None


def test_a_name_is_given_once_and_is_plain(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "tokens")
    file.create("ci", ["read"])
    with pytest.raises(InvalidOption, match="revoke it first"):
        file.create("ci", ["read"])
    for name in ("", "a b", "a\nb", "-x", "x" * 65):
        with pytest.raises(InvalidOption, match="letters, digits"):
            file.create(name, ["read"])


def test_no_token_is_lost_when_several_are_created_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        tokens = list(pool.map(lambda n: TokenFile(tmp_path / "tokens").create(f"t{n}", ["read"]), range(24)))
    file = TokenFile(tmp_path / "tokens")
    assert all(file.find(token) is not None for token in tokens)
    assert len(file.read()) == 24
