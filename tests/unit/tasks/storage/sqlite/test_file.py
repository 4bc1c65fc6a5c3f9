"""Which files are rejected, and that none of them is touched."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from bullpen.errors import (
    NotABullpenFile,
    SchemaTooNew,
    StorageBusy,
    StorageCorrupt,
    StorageError,
    StorageFull,
    StorageReadOnly,
    UnsafeFile,
)
from bullpen.tasks.storage.sqlite import file, schema
from bullpen.tasks.storage.sqlite.file import WriteLock, check_file, create_folder, translated_error
from bullpen.tasks.storage.sqlite.store import SqliteStorage
from tests.other_users import AS_ROOT, acting_as, open_folder
from tests.unit.tasks.storage.sqlite.support import new_task, opened, raw

__all__ = ["open_folder"]
pytestmark = pytest.mark.anyio


async def rejection(path: Path) -> StorageError:
    """Why the store rejects the file, which must stay as it is."""
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(StorageError) as rejected:
        async with opened(path):
            pass
    assert (path.read_bytes() if path.is_file() else None) == before
    return rejected.value


async def test_all_is_for_the_owner_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        async with opened(tmp_path / "jobs.db") as storage:
            await storage.add([new_task()])
            await storage.wait_for_work(["other"], 0.001)
            for place in tmp_path.rglob("*"):
                allowed = 0o700 if place.is_dir() else 0o600
                assert stat.S_IMODE(place.lstat().st_mode) == allowed, place
    finally:
        os.umask(old)


async def test_a_file_of_something_else_is_rejected(tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    with raw(other) as db:
        db.execute("CREATE TABLE customers (name)")
    db.close()
    assert isinstance(await rejection(other), NotABullpenFile)
    with raw(other) as db:
        db.execute("DROP TABLE customers")
        db.execute("PRAGMA application_id = 7")
    db.close()
    assert isinstance(await rejection(other), NotABullpenFile)
    other.write_text("Dear diary, this is not a database at all.")
    assert isinstance(await rejection(other), NotABullpenFile)
    folder = tmp_path / "folder"
    folder.mkdir()
    assert isinstance(await rejection(folder), NotABullpenFile)


async def test_a_newer_schema_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path) as storage:
        await storage.add([new_task()])
    with raw(path) as db:
        db.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    db.close()
    error = await rejection(path)
    assert isinstance(error, SchemaTooNew)
    assert (error.found, error.known) == (schema.VERSION + 1, schema.VERSION)


async def test_an_empty_file_is_used_but_not_one_that_was_lost(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    path.touch()
    (tmp_path / "jobs.db-wal").write_bytes(b"the tasks are in here")
    assert isinstance(await rejection(path), StorageCorrupt)
    (tmp_path / "jobs.db-wal").unlink()
    async with opened(path) as storage:
        await storage.add([new_task()])


async def test_a_truncated_file_is_rejected_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path) as storage:
        await storage.add([new_task()])
    path.write_bytes(path.read_bytes()[:5000])
    assert isinstance(await rejection(path), StorageCorrupt)
    path.write_bytes(path.read_bytes()[:60])
    assert isinstance(await rejection(path), StorageCorrupt | NotABullpenFile)


async def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    error = await rejection(tmp_path / "missing" / "jobs.db")
    assert "there is no folder" in str(error)
    assert str(tmp_path / "missing") in str(error)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a link away")
async def test_a_link_that_belongs_to_another_user_is_rejected(tmp_path: Path) -> None:
    link = tmp_path / "jobs.db"
    link.symlink_to(tmp_path / "elsewhere.db")
    async with opened(link) as storage:  # an own one will do
        await storage.add([new_task()])
    os.lchown(link, 12345, 12345)
    assert isinstance(await rejection(link), UnsafeFile)


async def test_a_link_and_its_file_share_the_lock(tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(tmp_path / "jobs.db")
    async with opened(link) as storage:
        await storage.add([new_task()])
    assert [place.name for place in tmp_path.glob("*-bullpen")] == ["jobs.db-bullpen"]


async def test_a_file_with_two_names_is_rejected(tmp_path: Path) -> None:
    """SQLite would keep a log for each."""
    async with opened(tmp_path / "jobs.db") as storage:
        await storage.add([new_task()])
    (tmp_path / "other.db").hardlink_to(tmp_path / "jobs.db")
    assert isinstance(await rejection(tmp_path / "other.db"), UnsafeFile)


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs"])
async def test_a_network_file_system_is_rejected(tmp_path: Path, kind: str) -> None:
    share = tmp_path / "my share"
    share.mkdir()
    escaped = str(share).replace(" ", "\\040")
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/vda / ext4 rw 0 0\nserver:/x {escaped} {kind} rw 0 0\ntmpfs /tmp/other tmpfs rw 0 0\n")
    check_file(tmp_path / "jobs.db", mounts)
    with pytest.raises(UnsafeFile, match=kind):
        check_file(share / "jobs.db", mounts)
    mounts.write_text(mounts.read_text() + f"/dev/vdb {escaped} ext4 rw 0 0\n")  # a local disk over it
    check_file(share / "jobs.db", mounts)


async def test_nothing_is_made_on_a_network_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "_file_system", lambda *_: "nfs4")
    assert isinstance(await rejection(tmp_path / "jobs.db"), UnsafeFile)
    assert list(tmp_path.iterdir()) == []


async def test_a_stranger_beside_the_file_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    (tmp_path / "jobs.db-bullpen").symlink_to(tmp_path)
    assert isinstance(await rejection(path), UnsafeFile)


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    folder = create_folder(tmp_path / "jobs.db")
    one, other = WriteLock(folder), WriteLock(folder)
    assert one.acquire(0)
    assert not other.acquire(0.01)
    one.release()
    assert other.acquire(0)
    one.close()
    other.close()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (sqlite3.SQLITE_BUSY, StorageBusy),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, StorageBusy),
        (sqlite3.SQLITE_FULL, StorageFull),
        (sqlite3.SQLITE_READONLY_DBMOVED, StorageReadOnly),
        (sqlite3.SQLITE_CORRUPT, StorageCorrupt),
        (sqlite3.SQLITE_NOTADB, StorageCorrupt),
        (sqlite3.SQLITE_IOERR_FSYNC, StorageError),
        (sqlite3.SQLITE_ERROR, StorageError),
    ],
)
def test_faults_have_names(code: int, kind: type[StorageError]) -> None:
    fault = sqlite3.OperationalError("as SQLite says")
    fault.sqlite_errorcode = code
    error = translated_error(fault, "jobs.db")
    assert type(error) is kind
    assert "jobs.db" in str(error)
    assert "as SQLite says" in str(error)


def test_missing_tables_and_columns_are_damage(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "jobs.db") as db:
        db.execute("CREATE TABLE there (a)")
        for statement in ("SELECT 1 FROM gone", "SELECT gone FROM there", "INSERT INTO there (gone) VALUES (1)"):
            with pytest.raises(sqlite3.OperationalError) as raised:
                db.execute(statement)
            error = translated_error(raised.value, "jobs.db")
            assert type(error) is StorageCorrupt
            assert "another program has dropped or changed its tables" in str(error)
    db.close()


@AS_ROOT
@pytest.mark.parametrize("place", [".", "jobs.db", "jobs.db-bullpen"])
@pytest.mark.parametrize(("owner", "mode"), [(12345, 0o700), (0, 0o722)])
async def test_what_other_users_can_write_needs_a_word(tmp_path: Path, place: str, owner: int, mode: int) -> None:
    """Who writes the file decides which functions run here, as this user."""
    folder = tmp_path / "folder"
    folder.mkdir()
    async with opened(folder / "jobs.db") as storage:
        await storage.add([new_task()])
    os.chmod(folder / place, mode)
    os.chown(folder / place, owner, -1)
    error = await rejection(folder / "jobs.db")
    assert isinstance(error, UnsafeFile)
    assert str(folder / place) in str(error)
    assert "?shared=true" in str(error)
    with pytest.raises(UnsafeFile):
        await SqliteStorage(folder / "jobs.db").look_at_schema()
    if place != "jobs.db-bullpen" or owner == 0:  # that folder belongs to the user or to the owner of the file, always
        async with opened(folder / "jobs.db", shared=True) as storage:
            assert storage.another().shared
            await storage.look_at_schema()


@AS_ROOT
@pytest.mark.parametrize("ending", ["-wal", "-shm", "-journal", "-bullpen"])
async def test_another_user_cannot_put_a_log_beside_the_file_first(tmp_path: Path, ending: str) -> None:
    """In /tmp, say: frames that its owner writes into the log later would become rows."""
    tmp_path.chmod(0o1777)
    beside = tmp_path / f"jobs.db{ending}"
    beside.touch()
    os.chown(beside, 12345, -1)
    assert str(beside) in str(await rejection(tmp_path / "jobs.db"))
    beside.unlink()
    beside.symlink_to(tmp_path / "target")
    os.lchown(beside, 12345, -1)
    assert str(beside) in str(await rejection(tmp_path / "jobs.db"))


@AS_ROOT
async def test_a_log_that_another_user_made_while_the_file_was_opened_is_rejected(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as root, because SQLite gives the log to the owner of the file then."""
    create_file, log = file.create_file, open_folder / "jobs.db-wal"

    def lose_the_race(path: Path) -> None:
        create_file(path)
        os.seteuid(0)
        log.touch()
        log.chmod(0o666)
        os.chown(log, 12345, -1)
        os.seteuid(54321)

    open_folder.chmod(0o1777)
    monkeypatch.setattr(file, "create_file", lose_the_race)
    with acting_as(54321), pytest.raises(UnsafeFile, match="-wal"):
        async with opened(open_folder / "jobs.db") as storage:
            await storage.add([new_task()])


SECOND_USER = """
import asyncio, os, sys
from bullpen.tasks.storage.sqlite.store import SqliteStorage
async def main():
    os.setgroups([54000]); os.setgid(54321); os.setuid(54321)
    storage = SqliteStorage(sys.argv[1], shared=True)
    await storage.pause("default")
    await storage.close()
asyncio.run(main())
"""


@AS_ROOT
async def test_a_file_of_a_group_is_shared_by_its_members(open_folder: Path) -> None:
    """The lock and the sockets get the group of the file; so two users write one after the other."""
    folder = open_folder / "group"
    folder.mkdir()
    path = folder / "jobs.db"
    path.touch()
    for place, mode in ((folder, 0o2770), (path, 0o660)):
        os.chown(place, -1, 54000)
        place.chmod(mode)
    async with opened(path, shared=True) as storage:
        await storage.add([new_task()])
        await storage.wait_for_work(["none"], 0.0)
        (socket,) = folder.glob("jobs.db-bullpen/*.wakeup")
        assert (socket.stat().st_mode & 0o777, socket.stat().st_gid) == (0o660, 54000)
        done = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", SECOND_USER, str(path)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert await storage.paused() == {"default"}
