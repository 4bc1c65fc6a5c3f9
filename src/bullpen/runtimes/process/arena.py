"""Large pieces of frames, handed over in shared memory instead of through the socket.

App and worker share one file in memory for each direction. The sender copies a piece into it, once, and sends where it
is; the receiver maps that place and uses it as it is. What becomes of it there keeps the mapping alive: an array that a
function keeps, or a result that the caller keeps, stays valid as long as it is used, also after the worker has ended.
When nobody uses it any more the receiver says so, and the sender uses the place again, whose pages are warm then.
The mapping is private: what is written into it stays where it was written, also after a fork. A forked child has what
its parent had, and nobody knows for how long: places that were mapped then are never used again.

The file has no name anywhere: when both have closed it, and nothing of it is mapped, it is gone.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

LEAST = 128 * 1024  # smaller pieces are quicker through the socket
MOST_LENT = 8  # pieces that the other side may keep; each costs a file descriptor
KEEP = 256 * 1024 * 1024  # bytes of a file of which nothing is used

READ_ONLY, WRITABLE = mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE
INLINE = -1  # in place of an offset: the piece comes through the socket


def new_files() -> list[int]:
    """Descriptors of two fresh files, there and back; none where there is no such thing."""
    if not hasattr(os, "memfd_create"):
        return []
    there = os.memfd_create("bullpen-call")
    try:
        return [there, os.memfd_create("bullpen-result")]
    except OSError:
        os.close(there)
        raise


class Outbox:
    """The sender's side, which owns its descriptor. May be used from any thread."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()
        self._writers = 0  # threads that write just now
        self._closed = False
        self._used: dict[int, int] = {}  # sizes by offset, of what the other side has
        self._end = 0  # of the file

    def place(self, pieces: Sequence[Any]) -> tuple[bytes, list[Any]]:
        """Put large pieces where the other side finds them: a description for `Inbox.collect`, and those that have to
        be sent. The description is the offset and the size of each, the size's complement if it may not be changed.
        """
        places: list[int] = []
        inline: list[Any] = []
        for piece in pieces:
            view = memoryview(piece)
            offset = self._put(view) if view.nbytes >= LEAST else INLINE
            places += (offset, ~view.nbytes if view.readonly else view.nbytes)
            if offset == INLINE:
                inline.append(piece)
        return struct.pack(f"<{len(places)}q", *places), inline

    def _put(self, view: memoryview) -> int:
        with self._lock:
            if self._closed or len(self._used) >= MOST_LENT:
                return INLINE
            offset = self._gap(view.nbytes)
            self._used[offset] = view.nbytes
            self._writers += 1
        try:
            self._write(view, offset)
        except BaseException as error:
            with self._lock:
                del self._used[offset]
            if not isinstance(error, OSError):
                raise
            return INLINE  # there is no memory
        finally:
            self._wrote()
        return offset

    def _wrote(self) -> None:
        with self._lock:
            self._writers -= 1
            if self._closed and not self._writers:
                os.close(self._fd)

    def _gap(self, size: int) -> int:
        """The first place that is large enough, at a page of its own."""
        offset = 0
        for start, length in sorted(self._used.items()):
            if start - offset >= size:
                break
            offset = _to_page(start + length)
        self._end = max(self._end, _to_page(offset + size))
        return offset

    def _write(self, view: memoryview, offset: int) -> None:
        written = 0
        with view.cast("B") as data:
            while written < len(data):
                written += os.pwrite(self._fd, data[written:], offset + written)

    def freed(self, data: Any) -> None:
        """The other side says what it does not use any more."""
        with self._lock:
            for (offset,) in struct.iter_unpack("<q", data):
                self._used.pop(offset, None)
            if not self._used and self._end > KEEP and not self._closed:
                os.ftruncate(self._fd, 0)
                self._end = 0

    def close(self) -> None:
        """From now on everything has to be sent. Whoever writes still does so into this file, not into another one that
        has got the number of its descriptor meanwhile: the last of them closes it.
        """
        with self._lock:
            if not self._closed:
                self._closed = True
                if not self._writers:
                    os.close(self._fd)


class Inbox:
    """The receiver's side, which owns its descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._freed: deque[int] = deque()

    def collect(self, description: Any, inline: Sequence[Any]) -> list[Any]:
        """The pieces that `Outbox.place` was given. If that fails, for there is no memory, their places are free.

        What nobody may change, such as the pickle, is mapped for reading only, and so does not count where private
        memory is limited. What it is read to does, and so do the others.
        """
        came = iter(inline)
        places = deque(struct.iter_unpack("<qq", description))
        pieces: list[Any] = []
        try:
            while places:
                offset, size = places[0]
                pieces.append(next(came) if offset == INLINE else self._map(offset, size))
                places.popleft()
        finally:
            self._freed.extend(offset for offset, _ in places if offset != INLINE)
        return pieces

    def _map(self, offset: int, size: int) -> mmap.mmap | bytearray:
        protection, size = (READ_ONLY, ~size) if size < 0 else (WRITABLE, size)
        try:
            piece = mmap.mmap(self._fd, size, flags=mmap.MAP_PRIVATE, prot=protection, offset=offset)
        except OSError:  # each costs a descriptor, and there are no more
            copied = self._copy(offset, size)
            self._freed.append(offset)
            return copied
        weakref.finalize(piece, self._let_go, offset, _forks).atexit = False
        return piece

    def _let_go(self, offset: int, forks: int) -> None:
        """A piece that was mapped after so many `forks` is not used here any more, nor elsewhere if that is all."""
        if forks == _forks:
            self._freed.append(offset)

    def _copy(self, offset: int, size: int) -> bytearray:
        piece = bytearray(size)
        with memoryview(piece) as view:
            done = 0
            while done < size:
                count = os.preadv(self._fd, [view[done:]], offset + done)
                if not count:
                    raise EOFError(f"{size - done} bytes of a piece are missing")
                done += count
        return piece

    def take_freed(self) -> bytes:
        """What is not used here any more, for `Outbox.freed`; once."""
        offsets = []
        while self._freed:
            offsets.append(self._freed.popleft())
        return struct.pack(f"<{len(offsets)}q", *offsets)

    @property
    def has_freed(self) -> bool:
        return bool(self._freed)

    def close(self) -> None:
        """Nothing more will be collected; what was stays valid."""
        os.close(self._fd)


def _to_page(offset: int) -> int:
    return -(-offset // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY


_forks = 0  # of this process; each is counted twice, for something may be mapped meanwhile


def _count_fork() -> None:
    global _forks  # noqa: PLW0603 — one process, one count
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_count_fork, after_in_parent=_count_fork)
