from __future__ import annotations

import grp
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from bullpen import trusted_files
from bullpen.pools.config_file import candidates
from bullpen.trusted_files import why_untrusted
from tests.other_users import AS_ROOT, acting_as, open_folder

__all__ = ["open_folder"]

pytestmark = AS_ROOT
OTHER = 54321  # nobody here
ME = 54322


def write(path: Path, *, mode: int = 0o600, owner: int = 0, group: int = 0) -> Path:
    path.write_text("")
    return own(path, mode=mode, owner=owner, group=group)


def own(path: Path, *, mode: int = 0o755, owner: int = 0, group: int = 0) -> Path:
    os.chown(path, owner, group, follow_symlinks=False)
    if not path.is_symlink():
        path.chmod(mode)
    return path


def test_ones_own_files_and_those_of_root_are_trusted(open_folder: Path) -> None:
    mine = write(open_folder / "mine", owner=ME)
    roots = write(open_folder / "roots", mode=0o644)
    for path in (mine, roots, open_folder / "absent", open_folder / "no" / "such" / "file"):
        with acting_as(ME):
            assert why_untrusted(path) == ""
    assert why_untrusted(roots) == ""
    assert why_untrusted(mine) == f"the file {mine} belongs to the user with id {ME}"


@pytest.mark.parametrize(
    ("mode", "group", "said"),
    [
        (0o602, 0, "every user"),
        (0o666, 0, "every user"),
        (0o620, OTHER, f"the group with id {OTHER}"),
        (0o660, 12, f"the group {grp.getgrgid(12).gr_name}"),
        (0o660, 0, ""),  # the group of root
        (0o644, OTHER, ""),
    ],
)
def test_what_others_can_write_is_not(open_folder: Path, mode: int, group: int, said: str) -> None:
    path = write(open_folder / "file", mode=mode, group=group)
    assert why_untrusted(path) == (said and f"the file {path} can be written by {said}")


def test_the_private_group_of_a_user_counts_as_the_user(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As umask 002 makes them. With a member more, or under another name, it is a group like any other."""
    folder = open_folder / "home"
    folder.mkdir()
    own(folder, mode=0o775, owner=ME, group=ME)
    path = write(folder / "file", mode=0o664, owner=ME, group=ME)
    user = pwd.struct_passwd(("ada", "x", ME, ME, "", "/home/ada", "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: user)
    for name, members, fine in [
        ("ada", [], True),
        ("ada", ["ada"], True),
        ("ada", ["ada", "eve"], False),
        ("staff", [], False),
    ]:
        group = grp.struct_group((name, "x", ME, members))
        monkeypatch.setattr(grp, "getgrgid", lambda gid, group=group: group)
        with acting_as(ME):
            assert why_untrusted(path) == ("" if fine else f"the folder {folder} can be written by the group {name}")


def test_a_list_of_users_is_seen_behind_the_private_group(open_folder: Path) -> None:
    path = write(open_folder / "file", mode=0o660)
    # user::rw-, user:54321:rw-, group::r--, mask::rw-, other::---
    entries = [(1, 6, 0xFFFFFFFF), (2, 6, OTHER), (4, 4, 0xFFFFFFFF), (16, 6, 0xFFFFFFFF), (32, 0, 0xFFFFFFFF)]
    packed = b"\x02\0\0\0" + b"".join(
        tag.to_bytes(2, "little") + bits.to_bytes(2, "little") + who.to_bytes(4, "little") for tag, bits, who in entries
    )
    try:
        os.setxattr(path, "system.posix_acl_access", packed)
    except OSError as error:
        pytest.skip(f"no access control lists here: {error}")
    assert "can be written by the group" in why_untrusted(path)


def test_a_folder_on_the_way_that_others_can_write_or_own(open_folder: Path) -> None:
    folder = open_folder / "folder"
    (folder / "below").mkdir(parents=True)
    path = write(folder / "below" / "file")
    assert why_untrusted(path) == ""
    own(folder, mode=0o777)
    assert why_untrusted(path) == f"the folder {folder} can be written by every user"
    assert why_untrusted(folder / "absent") == f"the folder {folder} can be written by every user"
    own(folder, mode=0o755, owner=OTHER)
    assert why_untrusted(path) == f"the folder {folder} belongs to the user with id {OTHER}"


def test_in_a_sticky_folder_ones_own_files_are_safe_and_no_others(open_folder: Path) -> None:
    folder = open_folder / "tmp"
    folder.mkdir()
    own(folder, mode=0o1777)
    assert why_untrusted(write(folder / "mine")) == ""
    assert why_untrusted(folder / "absent") == ""
    assert "belongs to" in why_untrusted(write(folder / "theirs", owner=OTHER, mode=0o644))
    assert "can be written by every user" in why_untrusted(folder)  # as a folder of ours: others can add files


def test_links_are_judged_and_so_is_where_they_lead(open_folder: Path) -> None:
    shared = open_folder / "shared"
    shared.mkdir()
    own(shared, mode=0o777)
    safe, unsafe = write(open_folder / "safe"), write(shared / "unsafe")
    for target, said in [
        (safe, ""),
        ("safe", ""),
        ("shared/../safe", "every user"),
        (unsafe, "every user"),
        ("absent", ""),
    ]:
        link = open_folder / "link"
        link.unlink(missing_ok=True)
        link.symlink_to(str(target))
        assert bool(why_untrusted(link)) == bool(said), target
    own(link, owner=OTHER)
    assert why_untrusted(link) == f"the link {link} belongs to the user with id {OTHER}"
    link.unlink()
    (open_folder / "round").symlink_to("link")
    link.symlink_to("round")
    assert why_untrusted(link) == ""  # it cannot be opened


def test_a_link_to_a_folder_on_the_way(open_folder: Path) -> None:
    (open_folder / "real").mkdir()
    link = open_folder / "link"
    link.symlink_to("real")
    path = write(open_folder / "real" / "file")
    assert why_untrusted(link / "file") == ""
    own(link, owner=OTHER)
    assert "the link" in why_untrusted(link / "file")
    assert why_untrusted(path) == ""


def test_a_path_that_cannot_be_looked_up_is_no_problem_here(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a\0b", "\udcff", "x" * 300, "", "a\nb"):
        assert why_untrusted(open_folder / name) == ""
    gone = open_folder / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert why_untrusted("pyproject.toml") == ""
    assert candidates() == []


def test_modes_do_not_count_where_files_have_none(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of Windows, as its subsystem for Linux shows it: all files are 0777, and belong to the user."""
    path = write(open_folder / "file", mode=0o777)
    device = path.stat().st_dev
    mounts = open_folder / "mounts"
    monkeypatch.setattr(trusted_files, "_MOUNTS", mounts)
    for kind, fine in [("ext4", False), ("9p", True), ("vfat", True)]:
        mounts.write_text(f"36 35 {os.major(device)}:{os.minor(device)} / /mnt/c rw shared:1 - {kind} C: rw\n")
        assert bool(why_untrusted(path)) is not fine
    os.chown(path, OTHER, -1)
    assert "belongs to" in why_untrusted(path)
    mounts.unlink()
    os.chown(path, 0, -1)
    assert "every user" in why_untrusted(path)


MOUNTED = """
import os, pathlib, sys
from bullpen import trusted_files
folder = pathlib.Path(sys.argv[1])
(folder / "file").write_text("")
os.chown(folder, 54321, 54321)
os.chown(folder / "file", 54321, 54321)
for is_container in (True, False):
    trusted_files._is_container = lambda: is_container
    print(trusted_files.why_untrusted(folder / "file").partition(str(folder))[2])
"""


def test_root_in_a_container_trusts_the_owner_of_a_mounted_folder(open_folder: Path) -> None:
    """Docker shows the files of the host with their owners there."""
    mounts = f"mount -t tmpfs none {open_folder} && exec {sys.executable} -c '{MOUNTED}' {open_folder}"
    done = subprocess.run(["unshare", "--mount", "sh", "-c", mounts], check=False, capture_output=True, text=True)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"nothing can be mounted here: {done.stderr}")
    assert done.stdout.splitlines() == ["", f" belongs to the user with id {OTHER}"], done.stderr
