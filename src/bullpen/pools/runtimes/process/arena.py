"""Shared memory for large pieces of frames, which do not go through the socket.

The app and a worker share one memory file for each direction. The sender copies a piece into the file and sends the
offset. The receiver maps that place, without another copy. The object that is made of the piece keeps the mapping
alive: an array that a function keeps, or a result that the caller keeps, stays valid even after the worker has ended.
When the object is deleted, the receiver tells the sender, which then reuses the place. The mapping is private: a write
to it changes neither the file nor a forked process. A forked child inherits the mappings of its parent and may keep
them for any time, so a place that was mapped during a fork is never reused.

The file of the results begins with marks: the numbers of the calls that the worker has begun. A worker that dies
leaves them there, so the app knows which calls never began. To set one costs no message and no system call.

A third file is the log of results. A worker that runs the items of a chunk writes each result there as soon as it has
it, if the app asks for that. The app reads it when the worker has died in the middle of the chunk.

The files have no names. The kernel deletes them when both processes have closed them and no mapping is left.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

LEAST = 128 * 1024  # bytes; smaller pieces are faster through the socket
MOST_LENT = 8  # pieces that the receiver may keep; each costs a file descriptor
KEEP = 256 * 1024 * 1024  # bytes; an unused file that is larger is truncated

READ_ONLY, WRITABLE = mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE
MARKS = mmap.ALLOCATIONGRANULARITY  # bytes at the start of the file of results
INLINE = -1  # in place of an offset: the piece comes through the socket


def new_files() -> list[int]:
    """Descriptors of three new memory files, for calls, results and the log of results; none where the system has no
    memory files.
    """
    files: list[int] = []
    try:
        for name in ("bullpen-call", "bullpen-result", "bullpen-log") if hasattr(os, "memfd_create") else ():
            files.append(os.memfd_create(name))
        if files:
            os.ftruncate(files[1], MARKS)
    except OSError:
        for fd in files:
            os.close(fd)
        raise
    return files


def open_marks(fd: int) -> memoryview:
    """The marks in the file of results, for the worker."""
    return memoryview(mmap.mmap(fd, MARKS)).cast("Q")


def mark_begun(marks: memoryview, number: int) -> None:
    """Mark a call as begun. Calls may begin in another order than that of their numbers."""
    place = number % len(marks)
    if number > marks[place]:
        marks[place] = number


def has_begun(marks: memoryview | None, number: int) -> bool:
    """Whether a call may have begun. A later one that has the same place hides whether it has."""
    return marks is None or bool(marks[number % len(marks)] >= number)


class Outbox:
    """The sender's side. It owns its descriptor. Any thread may use it. The first `start` bytes are not its own."""

    def __init__(self, fd: int, start: int = 0) -> None:
        self._fd = fd
        self._start = start
        self._lock = threading.Lock()
        self._writers = 0  # threads that write now
        self._closed = False
        self._used: dict[int, int] = {}  # sizes by offset, of the pieces that the receiver has
        self._end = start  # of the file

    def place(self, pieces: Sequence[Any]) -> tuple[bytes, list[Any]]:
        """Copy large pieces into the file: a description for `Inbox.collect`, and the pieces for the socket.
        The description has the offset and the size of each piece; the complement of the size if it is read-only.
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
            if getattr(error, "errno", None) is None:  # raised by a signal handler of the user's
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
        """The offset of the first free place that is large enough, at the start of a page."""
        offset = self._start
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
        """The receiver no longer uses these places."""
        with self._lock:
            for (offset,) in struct.iter_unpack("<q", data):
                self._used.pop(offset, None)
            if not self._used and self._end > KEEP and not self._closed:
                os.ftruncate(self._fd, self._start)
                self._end = self._start

    def close(self) -> None:
        """From now on all pieces go through the socket. The last thread that writes closes the descriptor, so that none
        writes into another file with the same number.
        """
        with self._lock:
            if not self._closed:
                self._closed = True
                if not self._writers:
                    os.close(self._fd)


class Inbox:
    """The receiver's side. It owns its descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.freed: deque[int] = deque()  # offsets that this process no longer uses, and the sender does not know

    def collect(self, description: Any, inline: Sequence[Any]) -> list[Any]:
        """The pieces that `Outbox.place` got. If there is no memory for them, it raises, and their places are free.

        A read-only piece, such as the pickle, is mapped read-only and so does not count as private memory, which
        `memory_limit` limits. The other pieces count, and so do the unpickled objects.
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
            self.freed.extend(offset for offset, _ in places if offset != INLINE)
        return pieces

    def _map(self, offset: int, size: int) -> mmap.mmap | bytearray:
        protection, size = (READ_ONLY, ~size) if size < 0 else (WRITABLE, size)
        try:
            piece = mmap.mmap(self._fd, size, flags=mmap.MAP_PRIVATE, prot=protection, offset=offset)
        except OSError:  # there is no descriptor left for the mapping
            copied = self._copy(offset, size)
            self.freed.append(offset)
            return copied
        weakref.finalize(piece, self._let_go, offset, _forks).atexit = False
        return piece

    def _let_go(self, offset: int, forks: int) -> None:
        """A mapping was deleted. Its place is free, unless this process has forked since it was mapped."""
        if forks == _forks:
            self.freed.append(offset)

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
        """Take the offsets of the free places, for `Outbox.freed`."""
        offsets = []
        while self.freed:
            offsets.append(self.freed.popleft())
        return struct.pack(f"<{len(offsets)}q", *offsets)

    def marks(self) -> memoryview | None:
        """The marks of the worker; None if it has destroyed them."""
        marks = os.pread(self._fd, MARKS, 0)
        return memoryview(marks).cast("Q") if len(marks) == MARKS else None

    def close(self) -> None:
        """Collect no more. The collected pieces stay valid."""
        os.close(self._fd)


LOG_ENTRY = struct.Struct("<QQ?")  # the number of the call, the size of the pickle, whether the item failed


class ResultLog:
    """The worker's side of the log of results. Several threads may use it, each for one call."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd  # None: there are no memory files
        self._lock = threading.Lock()
        self._calls: set[int] = set()  # that are not answered yet
        self._end = 0  # of the entries

    def begin(self, id: int) -> None:
        """A call begins. If the log has no other one, it is emptied."""
        with self._lock:
            if not self._calls and self._fd is not None:
                os.ftruncate(self._fd, 0)
                self._end = 0
            self._calls.add(id)

    def add(self, id: int, data: bytes, failed: bool) -> None:
        """The next item of a call has ended. Without memory for it, it is not logged."""
        if self._fd is None:
            return
        with self._lock, contextlib.suppress(OSError):
            self._end += os.pwrite(self._fd, LOG_ENTRY.pack(id, len(data), failed) + data, self._end)

    def end(self, id: int) -> None:
        """A call was answered: the app has its results."""
        with self._lock:
            self._calls.discard(id)


def read_log(fd: int, id: int) -> list[tuple[bytes, bool]]:
    """What a dead worker has logged of a call: for each item its pickle, and whether it failed."""
    log = os.pread(fd, os.fstat(fd).st_size, 0)
    entries = []
    at = 0
    while at + LOG_ENTRY.size <= len(log):
        number, size, failed = LOG_ENTRY.unpack_from(log, at)
        at += LOG_ENTRY.size + size
        if at > len(log):  # it died while it wrote this one
            break
        if number == id:
            entries.append((log[at - size : at], failed))
    return entries


def _to_page(offset: int) -> int:
    return -(-offset // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY


_forks = 0  # of this process; each counts twice, before and after, because a piece may be mapped in between


def _count_fork() -> None:
    global _forks  # noqa: PLW0603 — one process, one count
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_count_fork, after_in_parent=_count_fork)
