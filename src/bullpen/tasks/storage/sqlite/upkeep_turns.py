"""Which worker does the upkeep: the time of a file in the folder beside the database says when it was last done.

Nobody holds a lock, so a worker that is stopped or hangs keeps no other worker from its turn.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

_BEGINNING = "upkeep-"
_FORGOTTEN_AFTER = 86_400.0  # seconds since the last turn of a group, say of a container that is gone
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


def take_turn(folder: Path, group: str, every: float) -> bool:
    """Take the turn of `group`, unless it was taken less than `every` seconds ago.

    A file that cannot be used means True: the upkeep is done too often rather than never.
    """
    path = folder / (_BEGINNING + group.replace("/", "-"))
    try:
        since = time.time() - os.stat(path).st_mtime
        if 0 <= since < every:  # a time in the future: somebody has set the clock back
            return False
    except FileNotFoundError:
        _remove_forgotten(folder)
    except OSError:
        return True
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | _NO_LINK, 0o600)
        try:
            os.utime(file if os.utime in os.supports_fd else path)
        finally:
            os.close(file)
    except OSError:
        pass
    return True


def _remove_forgotten(folder: Path) -> None:
    try:
        for path in folder.glob(f"{_BEGINNING}*"):
            if time.time() - path.stat().st_mtime > _FORGOTTEN_AFTER:
                path.unlink()
    except OSError:  # another worker does the same
        pass
