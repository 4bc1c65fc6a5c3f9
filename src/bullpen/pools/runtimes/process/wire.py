"""Frames: the messages on the sockets between the app, its workers and their forkserver.

A frame is a header, a pickle and any number of buffers (pickle protocol 5). The header has the request's id, so a
frame that cannot be unpickled concerns that request only. Large pieces are in shared memory (see `arena.py`). Where
there is none, buffers are copied into the socket and out of it, and nowhere else.
"""

from __future__ import annotations

import importlib
import pickle
import signal
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any

from bullpen.pools.runtimes.process.arena import LEAST, Inbox, Outbox

Frame = tuple[int, int, Any, tuple[Any, ...]]  # kind, id, pickle, buffers

# From the app to a worker.
BEGIN, CAPACITY, CALL, CANCEL, CREDIT, STOP, MAIN, RECALL, AUTHKEY = range(1, 10)
# From a worker to the app. QUICK is DONE within QUICK_SECONDS.
READY, DONE, QUICK, FAILED, UNPICKLABLE, BROKEN, ITEM, NOT_BEGUN, NEWS = range(20, 29)
# In both directions: places in shared memory that the sender of the frame no longer uses. A kind with SHARED has pieces
# in shared memory.
FREED = 50
SHARED = 0x80
# Between the app and the forkserver.
START, STARTED, EXITED, START_FAILED = range(40, 44)

# Signals for workers: read your socket while a request runs; write your stacks to stderr. Where the system has
# real-time signals, these are two that programs rarely use.
NUDGE = getattr(signal, "SIGRTMAX", signal.SIGUSR2 + 2) - 2
DUMP = getattr(signal, "SIGRTMAX", signal.SIGUSR1 + 3) - 3

HEADER = struct.Struct("<BxHIQQ")  # kind, number of buffers, `MAGIC`, id, length of the pickle
MAGIC = 0x4C4C5542  # a header without it is no header
STEP = 1024 * 1024  # bytes; a frame gets memory as its bytes come, so a wrong length takes none
MOST_BUFFERS = 256  # of a frame; further ones go into the pickle
LEAST_BUFFER = 32 * 1024  # bytes; smaller ones go into the pickle
JOIN_BELOW = 64 * 1024  # bytes; a shorter pickle is sent in one piece with its header
CHUNK = 128 * 1024
QUICK_SECONDS = 0.0002  # a request that takes longer is not quick


NOT_BY_NAME = (pickle.PicklingError, AttributeError, TypeError)  # what `pickle` raises; others are the user's
LARGEST = 1 << 40  # bytes of one piece; no machine sends more
SHOWN = 40  # bytes of what is no frame, in the error


class NoFrame(Exception):
    """The other process broke the protocol."""


def dumps(value: Any) -> tuple[bytes, list[Any]]:
    """A pickle, and its large buffers. `cloudpickle`, if installed, pickles what `pickle` cannot."""
    value = lifted(value)
    buffers: list[Any] = []
    try:
        return pickle.dumps(value, 5, buffer_callback=collect_into(buffers)), buffers
    except NOT_BY_NAME:
        cloudpickle = by_value_pickler()
        if cloudpickle is None:
            raise
        buffers.clear()
        return cloudpickle.dumps(value, 5, buffer_callback=collect_into(buffers)), buffers


class Lifted:
    """Bytes that travel as a buffer and arrive as bytes, so that the sender copies them once, not twice.

    Only an argument or a result itself is lifted. Bytes inside a list or another object are part of the pickle.
    """

    __slots__ = ("value",)

    def __init__(self, value: bytes | bytearray) -> None:
        self.value = value

    def __reduce_ex__(self, _: Any) -> tuple[type, tuple[pickle.PickleBuffer]]:
        return type(self.value), (pickle.PickleBuffer(memoryview(self.value).toreadonly()),)


def lifted(value: Any) -> Any:
    """`value`, lifted if it is large bytes."""
    return Lifted(value) if type(value) in (bytes, bytearray) and len(value) >= LEAST else value


def collect_into(buffers: list[Any]) -> Callable[[pickle.PickleBuffer], bool]:
    """A `buffer_callback` for a pickler: it collects large buffers; True puts a buffer into the pickle."""

    def in_band(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes < LEAST_BUFFER or len(buffers) == MOST_BUFFERS:
            return True
        buffers.append(view)
        return False

    return in_band


def by_value_pickler() -> Any:
    """`cloudpickle`, which pickles functions by value; None if it is not installed."""
    try:
        return importlib.import_module("cloudpickle")
    except ImportError:
        return None


def loads(data: Any, buffers: Sequence[Any]) -> Any:
    return pickle.loads(data, buffers=buffers) if buffers else pickle.loads(data)


def size(data: Any, buffers: Sequence[Any]) -> int:
    """Their bytes together."""
    return len(data) + sum(map(len, buffers))


def pack(kind: int, id: int, data: bytes = b"", buffers: Sequence[Any] = ()) -> list[Any]:
    """A frame, in pieces that are sent in this order."""
    header = HEADER.pack(kind, len(buffers), MAGIC, id, len(data))
    if buffers:
        sizes = struct.pack(f"<{len(buffers)}Q", *(view.nbytes for view in buffers))
        return [header + sizes, data, *buffers]
    return [header + data] if len(data) < JOIN_BELOW else [header, data]


def pack_shared(kind: int, id: int, data: bytes, buffers: Sequence[Any], outbox: Outbox | None) -> list[Any]:
    """A frame in pieces, with the large ones in shared memory, if there is any."""
    if outbox is None or (len(data) < LEAST and not buffers):
        return pack(kind, id, data, buffers)
    description, inline = outbox.place([data, *buffers])
    return pack(kind | SHARED, id, description, [memoryview(piece) for piece in inline])


def unpack_shared(frame: Frame, inbox: Inbox | None) -> Frame:
    """The frame that `pack_shared` got."""
    kind, id, data, buffers = frame
    if not kind & SHARED:
        return frame
    if inbox is None:
        raise NoFrame("it refers to shared memory, and has none")
    try:
        data, *pieces = inbox.collect(data, buffers)
    except (struct.error, ValueError, StopIteration, EOFError) as error:
        raise NoFrame(f"it refers to shared memory that is not there ({error})") from error
    return kind & ~SHARED, id, data, tuple(pieces)


def send_all(sock: socket.socket, pieces: list[Any]) -> None:
    """Send a frame on a blocking socket."""
    if len(pieces) == 1:
        sock.sendall(pieces[0])
        return
    while pieces:
        pieces = without(pieces, sock.sendmsg(pieces))


def without(pieces: list[Any], sent: int) -> list[Any]:
    """The rest of `pieces` after the first `sent` bytes."""
    for index, piece in enumerate(pieces):
        size = len(piece)
        if sent < size:
            return [memoryview(piece)[sent:], *pieces[index + 1 :]]
        sent -= size
    return []


class FrameReader:
    """Reads frames from a stream socket."""

    __slots__ = ("_body", "_data", "_used", "_view", "has_half")

    def __init__(self) -> None:
        self._data = bytearray(CHUNK)
        self._view = memoryview(self._data)
        self._used = 0
        self._body: _FrameBody | None = None  # a frame that has arrived in part
        self.has_half = False  # after the last read: a frame has arrived in part

    def read(self, sock: socket.socket) -> list[Frame]:
        """Read once; the frames that are complete now. `EOFError` if the other process has closed the socket."""
        body = self._body
        if body is not None:
            count = sock.recv_into(body.space())
            if not count:
                raise EOFError
            if not body.advance(count):
                return []
            self._body = None
            self.has_half = False
            return [body.frame()]
        count = sock.recv_into(self._view[self._used :])
        if not count:
            raise EOFError
        return self._parse(self._used + count)

    def half(self) -> tuple[int, int] | None:
        """How far the frame has come that has arrived in part; None between two frames."""
        if self._body is not None:
            return self._body.reached
        return (0, self._used) if self._used else None

    def feed(self, data: bytes) -> list[Frame]:
        """The same for `data` that was read elsewhere, at most `JOIN_BELOW` bytes."""
        frames: list[Frame] = []
        if self._body is not None:
            taken = self._body.fill(memoryview(data))
            if not self._body.complete:
                return []
            frames.append(self._body.frame())
            self._body = None
            data = data[taken:]
        self._view[self._used : self._used + len(data)] = data
        return frames + self._parse(self._used + len(data))

    def _parse(self, end: int) -> list[Frame]:
        frames: list[Frame] = []
        at = 0
        while end - at >= HEADER.size:
            kind, count, magic, id, length = HEADER.unpack_from(self._data, at)
            if magic != MAGIC:
                raise NoFrame(f"it sent bytes that are no message: {bytes(self._data[at : min(end, at + SHOWN)])!r}")
            if count > MOST_BUFFERS + 1:  # with a pickle that does not fit into shared memory
                raise NoFrame(f"it announced a message with {count} buffers")
            start = at + HEADER.size
            if not count and start + length <= end:
                at = start + length
                frames.append((kind, id, self._data[start:at], ()))
                continue
            table = start + 8 * count
            if table > end:
                break
            sizes = (length, *struct.unpack_from(f"<{count}Q", self._data, start))
            if max(sizes) > LARGEST:
                raise NoFrame(f"it announced a message of {max(sizes)} bytes")
            body = _FrameBody(kind, id, sizes)
            at = table + body.fill(self._view[table:end])
            if not body.complete:
                self._body = body
                break
            frames.append(body.frame())
        self._used = end - at
        self.has_half = self._body is not None or self._used > 0
        if at and self._used:
            self._data[: self._used] = self._data[at:end]
        return frames


class _FrameBody:
    """The pickle and the buffers of a frame that arrives in parts."""

    __slots__ = ("_id", "_index", "_kind", "_offset", "_parts", "_sizes")

    def __init__(self, kind: int, id: int, sizes: Sequence[int]) -> None:
        self._kind = kind
        self._id = id
        self._sizes = sizes
        self._parts = [bytearray(min(size, STEP)) for size in sizes]
        self._index = 0  # of the part that arrives next
        self._offset = 0  # bytes of that part that have arrived
        self.advance(0)

    @property
    def complete(self) -> bool:
        return self._index == len(self._parts)

    @property
    def reached(self) -> tuple[int, int]:
        """The part that arrives now, from 1, and its bytes so far."""
        return self._index + 1, self._offset

    def space(self) -> memoryview:
        part = self._parts[self._index]
        if self._offset == len(part):
            part += bytes(min(self._sizes[self._index] - self._offset, self._offset))
        return memoryview(part)[self._offset :]

    def advance(self, count: int) -> bool:
        self._offset += count
        while self._index < len(self._parts) and self._offset == self._sizes[self._index]:
            self._index += 1
            self._offset = 0
        return self.complete

    def fill(self, data: memoryview) -> int:
        """Take the bytes of this frame from `data`; their number."""
        taken = 0
        while taken < len(data) and not self.complete:
            space = self.space()
            count = min(len(space), len(data) - taken)
            space[:count] = data[taken : taken + count]
            taken += count
            self.advance(count)
        return taken

    def frame(self) -> Frame:
        return self._kind, self._id, self._parts[0], tuple(self._parts[1:])
