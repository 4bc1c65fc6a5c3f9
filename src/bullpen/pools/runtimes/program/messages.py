"""The protocol of programs: the messages in both directions, one per line."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

import msgspec

from bullpen.errors import NotJson

PROTOCOL = 1


class Message(msgspec.Struct, tag_field="type"):
    """A message from a program."""


class ReadyMessage(Message, tag="ready"):
    protocol: int
    name: str = ""
    capacity: int = 1
    methods: list[str] | None = None


class ResultMessage(Message, tag="result"):
    id: int
    value: Any = None


class ErrorMessage(Message, tag="error"):
    id: int
    name: str = "Error"
    message: str = ""
    details: Any = None
    broken: bool = False


class ItemMessage(Message, tag="item"):
    id: int
    value: Any = None


class ProgressMessage(Message, tag="progress"):
    id: int
    value: Any = None


class PongMessage(Message, tag="pong"):
    id: int


AnyMessage = ReadyMessage | ResultMessage | ErrorMessage | ItemMessage | ProgressMessage | PongMessage

NoMessage = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)  # what `read` raises

_decode: Callable[[bytes], AnyMessage] = msgspec.json.Decoder(AnyMessage).decode


def read(line: bytes) -> AnyMessage:
    """The message in a line."""
    try:
        return _decode(line)
    except NoMessage:
        if b"\\u" not in line:  # a large line is not decoded twice for nothing
            raise
        with suppress(ValueError, RecursionError):
            return _read_leniently(line)
        raise


def _read_leniently(line: bytes) -> AnyMessage:
    """Accept lone surrogates, too, which JavaScript writes if a text was cut inside a character."""
    said: AnyMessage = msgspec.convert(json.loads(line.decode(), parse_constant=_no_json), AnyMessage)
    return said


def _no_json(constant: str) -> NoReturn:
    raise ValueError(constant)


_encode = msgspec.json.Encoder().encode


def write(type: str, **fields: Any) -> bytes:
    """A message for a program, as a line."""
    return _encode({"type": type, **fields}) + b"\n"


def write_call(method: str, args: tuple[Any, ...], kwargs: dict[str, Any] | None, stream: bool) -> bytes:
    """The message that calls a method, without its id; `numbered` adds that."""
    try:
        return _encode({"method": method, "args": args, "kwargs": kwargs or {}, "stream": stream})
    except Exception as error:
        raise _not_json(args, kwargs or {}, error) from error


def numbered(number: int, call: bytes) -> bytes:
    return b'{"type":"call","id":%d,%b\n' % (number, call[1:])


def _not_json(args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> NotJson:
    named = [(f"argument {place}", value) for place, value in enumerate(args, 1)]
    named += [(f"argument {name}", value) for name, value in kwargs.items()]
    for what, value in named:
        try:
            _encode(value)
        except Exception as own:
            return NotJson(what, str(own))
    return NotJson("the call", str(error))


class Lines:
    """Splits the output of a program into lines."""

    __slots__ = ("_longest", "_parts", "_size")

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._parts: list[bytes] = []  # of the line that has not ended
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now, without empty ones. `OverflowError` if a line is too long."""
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = b"".join([*self._parts, lines[0]])
            self._parts = []
            self._size = 0
        self._parts.append(rest)
        self._size += len(rest)
        if self._size > self._longest or any(len(line) > self._longest for line in lines):
            raise OverflowError
        return [line for line in lines if line.strip()]
