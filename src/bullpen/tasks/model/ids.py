"""Ids of tasks: UUIDs of version 7, which sort by creation time; the ids of schedules sort after all others."""

from __future__ import annotations

import hashlib

RANDOM_BITS = 74
_RANDOM_MASK = (1 << RANDOM_BITS) - 1
NODE_BITS = 48  # of the last part of a UUID
LAST_NODE = (1 << NODE_BITS) - 1


def next_ordinal(previous: int, unix_ms: int, random_bits: int) -> int:
    """A number above `previous`: the time in its high bits, `random_bits`, 74 random bits, in its low ones.

    Within one millisecond, or if the clock went back, it is the next number after `previous`.
    """
    if unix_ms <= previous >> RANDOM_BITS:
        return previous + 1
    return (unix_ms << RANDOM_BITS) | (random_bits & _RANDOM_MASK)


def as_uuid7(ordinal: int) -> str:
    """The ordinal as a UUID in its usual form. Ordinals and their UUIDs sort alike."""
    return f"{head_of(ordinal >> NODE_BITS)}{ordinal & LAST_NODE:012x}"


def head_of(high: int) -> str:
    """The UUID without its last part, the node, from the high bits of an ordinal."""
    return "%08x-%04x-7%03x-%04x-" % (  # noqa: UP031 — the faster spelling
        high >> 42,
        (high >> 26) & 0xFFFF,
        (high >> 14) & 0xFFF,
        0x8000 | (high & 0x3FFF),
    )


SCHEDULES = "ffffffff"  # the prefix of the ids of repeating tasks: a store finds them by id


def is_schedule(task_id: str) -> bool:
    """Whether it is the id of a repeating task."""
    return task_id.startswith(SCHEDULES)


def schedule_id(key: str) -> str:
    """The id of the task of the schedule with this key."""
    digest = hashlib.blake2b(key.encode(), digest_size=12).hexdigest()
    return f"{SCHEDULES}-{digest[:4]}-8{digest[4:7]}-b{digest[7:10]}-{digest[10:22]}"


def occurrence_id(of: str, at: float) -> str:
    """The id of the task that a schedule starts at an instant: the same for every worker and every repetition."""
    digest = hashlib.blake2b(f"{of} {at!r}".encode(), digest_size=10).digest()
    return as_uuid7(int(at * 1000) << RANDOM_BITS | int.from_bytes(digest) & _RANDOM_MASK)


def as_schedule_id(task_id: str) -> str:
    """The id of a schedule without a key, made from a new id."""
    is_uuid = len(task_id) == 36 and task_id[8] == task_id[13] == "-"
    return f"{SCHEDULES}{task_id[8:14]}8{task_id[15:]}" if is_uuid else f"{SCHEDULES}-{task_id}"
