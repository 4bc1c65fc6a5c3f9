"""Frames that come in pieces, as sockets have it."""

from __future__ import annotations

import pytest

from bullpen.pools.runtimes.process import wire

FRAMES = [(7, 1, b"small"), (8, 2, b""), (9, 3, bytes(range(256)) * 1000), (7, 4, b"last")]


@pytest.mark.parametrize("size", [1, 7, wire.HEADER.size, 1000, wire.JOIN_BELOW])
def test_messages_that_arrive_in_pieces_of_any_size_are_unchanged(size: int) -> None:
    stream = b"".join(piece for kind, number, data in FRAMES for piece in wire.pack(kind, number, data))
    reader = wire.FrameReader()
    found = []
    for at in range(0, len(stream), size):
        found += reader.feed(stream[at : at + size])
    assert [(kind, number, bytes(data)) for kind, number, data, _ in found] == FRAMES


class Interrupted:
    """Raises when it is first pickled, as the handler of an alarm may at any time."""

    calls = 0

    def __reduce__(self) -> tuple[type, tuple[int]]:
        Interrupted.calls += 1
        if Interrupted.calls == 1:
            raise TimeoutError
        return int, (1,)


def test_an_alarm_that_rings_while_an_object_is_pickled_is_not_swallowed() -> None:
    with pytest.raises(TimeoutError):
        wire.dumps(Interrupted())
