"""Ids of tasks: UUIDs of version 7, which sort by the time they were made."""

from __future__ import annotations

_RANDOM_BITS = 74
_RANDOM_MASK = (1 << _RANDOM_BITS) - 1
_LOW_BITS = 62
_LOW_MASK = (1 << _LOW_BITS) - 1
_VERSION = 7 << 76
_VARIANT = 2 << 62


def next_ordinal(previous: int, unix_ms: int, luck: int) -> int:
    """A number above `previous`: the time in its high bits, `luck`, 74 random bits, in its low ones.

    Within one millisecond, or if the clock went back, it is the next number after `previous`.
    """
    if unix_ms <= previous >> _RANDOM_BITS:
        return previous + 1
    return (unix_ms << _RANDOM_BITS) | (luck & _RANDOM_MASK)


def as_uuid7(ordinal: int) -> str:
    """The ordinal as a UUID in its usual form. Ordinals and their UUIDs sort alike."""
    high = ordinal >> _LOW_BITS  # 48 bits of time, 12 of luck
    number = ((high >> 12) << 80) | _VERSION | ((high & 0xFFF) << 64) | _VARIANT | (ordinal & _LOW_MASK)
    text = f"{number:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
