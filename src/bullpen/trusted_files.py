"""Which files are trusted without an explicit option: those that only the user of this process and root can change.

A configuration names code to import, and a store names functions to run. A user who can write them decides which code
runs here. So Bullpen checks the owner and the mode of the file, of each folder on its way, and of each link. Other
files need an explicit option (`--config`, `?shared=true`).
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

try:
    import grp
    import pwd
except ImportError:  # pragma: no cover - Windows: files have no such owners and modes, and nothing is checked
    pwd = grp = None  # type: ignore[assignment]

_MOST_LINKS = 40  # as in the kernel
_CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")
_ACL = "system.posix_acl_access"
_MOUNTS = Path("/proc/self/mountinfo")
# File systems of Windows and of sticks, on which every file has the mode and the owner of the mount.
_WITHOUT_MODES = frozenset("9p drvfs exfat fuseblk msdos ntfs ntfs3 prl_fs vboxsf vfat".split())


def why_untrusted(path: str | os.PathLike[str]) -> str:
    """What lets another user change `path`, or its target; "" if only this user and root can. It need not exist.

    In a folder with the sticky bit, such as /tmp, others can neither rename nor remove a file of this user. A group
    that is the user's alone, as with the umask 002, counts as the user. A path that cannot be looked up is no
    problem here: opening it fails.
    """
    if pwd is None:  # pragma: no cover - Windows
        return ""
    trusted = {0, os.geteuid(), *_unmapped_owner()}
    here, links = Path("/"), 0
    try:
        waiting = [*reversed(Path(path).absolute().parts[1:])]
    except OSError:  # the current folder was removed
        return ""
    device = os.stat(here).st_dev
    while True:
        try:
            found = os.lstat(here)
        except (OSError, ValueError):
            return ""
        if found.st_dev != device and stat.S_ISDIR(found.st_mode) and os.geteuid() == 0 and _is_container():
            trusted.add(found.st_uid)  # of a mounted folder: users of the host own its files
        device = found.st_dev
        if found.st_uid not in trusted:
            return f"{_kind(found)} {here} belongs to {_user(found.st_uid)}"
        if stat.S_ISLNK(found.st_mode):
            links += 1
            target = Path(os.readlink(here))
            if links > _MOST_LINKS:
                return ""
            here = Path("/") if target.is_absolute() else here.parent
            waiting += reversed(target.parts[target.is_absolute() :])
        else:
            writers = _other_writers(found, here)
            if writers and not (waiting and found.st_mode & stat.S_ISVTX) and not _is_without_modes(device):
                return f"{_kind(found)} {here} can be written by {writers}"
            if not waiting:
                return ""
            part = waiting.pop()
            here = here.parent if part == ".." else here / part


def _other_writers(found: os.stat_result, path: Path) -> str:
    if found.st_mode & stat.S_IWOTH:
        return "every user"
    if found.st_mode & stat.S_IWGRP and not (_is_private(found.st_gid) and not _has_acl(path)):
        return f"the group {_group(found.st_gid)}"
    return ""


def _is_without_modes(device: int) -> bool:
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = [line.split() for line in _MOUNTS.read_text(errors="replace").splitlines()]
    except OSError:
        return False
    return any(mount[2] == number and mount[mount.index("-") + 1] in _WITHOUT_MODES for mount in mounts)


def _is_private(gid: int) -> bool:
    """Whether the group is that of root, or the own group of this user: with the same name and no other member."""
    if gid == 0:
        return True
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return user.pw_gid == gid and user.pw_name == group.gr_name and set(group.gr_mem) <= {user.pw_name}


def _has_acl(path: Path) -> bool:
    """An access control list can allow more users; the bits of the group are only its mask then."""
    try:
        return hasattr(os, "listxattr") and _ACL in os.listxattr(path, follow_symlinks=False)
    except OSError:
        return False


def _unmapped_owner() -> set[int]:
    """In a user namespace, such as a sandbox, files of root and of all other users outside belong to "nobody"."""
    try:
        if Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]:
            return set()
        return {int(Path("/proc/sys/kernel/overflowuid").read_text())}
    except (OSError, ValueError):
        return set()


def _is_container() -> bool:
    return "KUBERNETES_SERVICE_HOST" in os.environ or any(map(os.path.exists, _CONTAINER_MARKS))


def _kind(found: os.stat_result) -> str:
    return "the link" if stat.S_ISLNK(found.st_mode) else "the folder" if stat.S_ISDIR(found.st_mode) else "the file"


def _user(uid: int) -> str:
    try:
        return f"the user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"the user with id {uid}"


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return f"with id {gid}"
