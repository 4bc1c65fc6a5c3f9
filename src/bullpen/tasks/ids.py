"""Ids of tasks: UUIDs of version 7, which sort by the time they were made."""

from __future__ import annotations

RANDOM_BITS = 74
_RANDOM_MASK = (1 << RANDOM_BITS) - 1


def next_ordinal(previous: int, unix_ms: int, luck: int) -> int:
    """A number above `previous`: the time in its high bits, `luck`, 74 random bits, in its low ones.

    Within one millisecond, or if the clock went back, it is the next number after `previous`.
    """
    if unix_ms <= previous >> RANDOM_BITS:
        return previous + 1
    return (unix_ms << RANDOM_BITS) | (luck & _RANDOM_MASK)


def as_uuid7(ordinal: int) -> str:
    """The ordinal as a UUID in its usual form. Ordinals and their UUIDs sort alike."""
    return "%08x-%04x-7%03x-%04x-%012x" % (  # noqa: UP031 — the faster spelling
        ordinal >> 90,
        (ordinal >> 74) & 0xFFFF,
        (ordinal >> 62) & 0xFFF,
        0x8000 | ((ordinal >> 48) & 0x3FFF),
        ordinal & 0xFFFF_FFFF_FFFF,
    )
