"""Steps of a task that runs in a process: the process sends each step to the worker, and waits until it is kept.

The step goes the way of progress reports. That way leads in one direction, so the answer comes as a datagram to a
socket of the process. It has the number that only the worker was told.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from bullpen import primitives
from bullpen.errors import StorageError
from bullpen.tasks.model.task import Step

_LONGEST = 4096  # bytes of an answer


class SavedStep(msgspec.Struct, frozen=True):
    """A step on its way to the worker."""

    step: Step
    reply_to: str | bytes  # the address of a socket
    number: str

    def answer(self, words: str) -> None:
        """In the worker: "kept", "lost", or why the step could not be kept."""
        packed = msgspec.json.encode((self.number, words[:1000]))[:_LONGEST]
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, suppress(OSError):  # the process has died
            sender.sendto(packed, self.reply_to)


class StepLink:
    """The socket of a process, made when the first step is kept. One thread at a time waits there."""

    def __init__(self) -> None:
        self._lock = primitives.leaf_lock()
        self._socket: socket.socket | None = None
        self._folder: str | None = None

    def save(self, step: Step, send: Callable[[Any], object]) -> bool:
        """Whether the worker has kept the step; False if another worker has the task. Raises StorageError."""
        with self._lock:
            receiver = self._socket or self._open()
            number = secrets.token_hex(8)
            send(SavedStep(step, receiver.getsockname(), number))
            while True:
                told, words = msgspec.json.decode(receiver.recv(_LONGEST), type=tuple[str, str])
                if told == number:  # else the answer to a step whose wait was interrupted
                    break
        if words not in ("kept", "lost"):
            raise StorageError(f"step {step.name!r} could not be kept: {words}", storage="the store of the worker")
        return words == "kept"

    def _open(self) -> socket.socket:
        receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        if sys.platform == "linux":
            receiver.bind("")  # an address without a file, which the kernel chooses
        else:
            self._folder = tempfile.mkdtemp(prefix="bullpen-")
            receiver.bind(os.path.join(self._folder, "steps"))
        self._socket = receiver
        return receiver

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
