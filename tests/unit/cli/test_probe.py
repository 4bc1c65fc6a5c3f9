from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bullpen.cli.main import main
from bullpen.cli.worker_process.health import own_folder
from tests.other_users import AS_ROOT, acting_as, open_folder

__all__ = ["open_folder"]

GOOD = b'{"pid": 1, "state": "running", "ready": true, "running": 0}'


def own(folder: Path) -> Path:
    place = folder / own_folder()
    place.mkdir(0o700, exist_ok=True)
    return place / "worker-1.health"


def _fill(file: Path) -> None:
    file.touch()
    os.truncate(file, 1 << 40)


def _link_to_good(file: Path) -> None:
    elsewhere = file.parent.parent / "elsewhere"
    elsewhere.write_bytes(GOOD)
    file.symlink_to(elsewhere)


FILES: dict[str, Callable[[Path], object]] = {
    "empty": lambda file: file.write_bytes(b""),
    "garbage": lambda file: file.write_bytes(b"\xff\x00\x1b[2J"),
    "another type": lambda file: file.write_text("[1, 2]"),
    "another field": lambda file: file.write_text('{"pid": "x", "state": 1, "ready": 2, "running": null}'),
    "deep": lambda file: file.write_text("[" * 4000),
    "huge": lambda file: _fill(file),
    "pipe": lambda file: os.mkfifo(file),
    "folder": lambda file: file.mkdir(),
    "link": lambda file: file.symlink_to("/etc/passwd"),
    "link to a health file": lambda file: _link_to_good(file),
    "endless": lambda file: file.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("kind", FILES)
def test_any_file_in_the_folder_is_named_and_no_probe_hangs(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    FILES[kind](own(tmp_path))
    assert main(["probe", str(tmp_path)]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert "worker-1.health is not the health file of a worker: " in told.err
    assert "\x1b" not in told.err
    assert main(["probe", str(tmp_path), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["well"], report["processes"]) == (False, {})


@given(content=st.binary(max_size=200))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_content_is_a_traceback(content: bytes, tmp_path: Path) -> None:
    own(tmp_path).write_bytes(content)
    assert main(["probe", str(tmp_path)]) == 1


def test_a_name_cannot_act_on_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own(tmp_path).with_name("a\x1b[2J\nb.health").write_bytes(GOOD)
    assert main(["probe", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "a\\x1b[2J\\nb: running, 0 running\n"


@pytest.mark.parametrize("place", ["absent", "file", "file/below", "a\0b"])
def test_a_folder_that_is_none(place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["probe", f"{tmp_path}/{place}"]) == 1
    assert "Traceback" not in capsys.readouterr().err


@AS_ROOT
def test_a_current_folder_that_this_user_may_not_look_into_has_no_settings(
    tmp_path: Path, open_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.chdir(tmp_path)
    with acting_as(54321):
        assert main(["probe", str(open_folder)]) == 1
        assert "Permission denied" not in capsys.readouterr().err


def test_files_of_other_users_count_for_root_alone(open_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = open_folder / "user-54321" / "worker-1.health"
    file.parent.mkdir()
    file.write_bytes(GOOD)
    assert main(["probe", str(open_folder)]) == 0
    assert capsys.readouterr().out == "user-54321/worker-1: running, 0 running\n"
    with acting_as(54321):
        assert main(["probe", str(open_folder)]) == 1  # root's file in the folder of this user
        assert "belongs to another user" in capsys.readouterr().err
    file.chmod(0o600)
    with acting_as(54321):
        assert main(["probe", str(open_folder)]) == 1
        assert "Permission denied" in capsys.readouterr().err
    os.chown(file, 54321, 54321)
    with acting_as(54321):
        assert main(["probe", str(open_folder)]) == 0
