"""Patterns of queues, such as `partner-*`: a worker serves every queue that matches. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from bullpen.errors import InvalidOption, InvalidOptionType
from bullpen.tasks.model.options import QUEUE_NAME, QUEUE_WORDS

ANY = "*"  # any number of any characters
_PATTERN = re.compile(r"[A-Za-z0-9_.*-]{1,100}")
_WORDS = f"{QUEUE_WORDS}, or a pattern of these in which '*' stands for any characters"


def is_pattern(name: str) -> bool:
    return ANY in name


def queue_or_pattern(option: str, value: object) -> str:
    """The name of a queue or a pattern, checked."""
    if not isinstance(value, str):
        raise InvalidOptionType(option, value, _WORDS)
    if (_PATTERN if is_pattern(value) else QUEUE_NAME).fullmatch(value) is None:
        raise InvalidOption(option, value, _WORDS)
    return value


def matches_queue(pattern: str, queue: str) -> bool:
    """Whether a queue has this name or matches this pattern. Each part of the pattern is looked for once, so that no
    pattern takes long.
    """
    first, *parts = pattern.split(ANY)
    if not parts:
        return pattern == queue
    *middle, last = parts
    if not queue.startswith(first) or not queue.endswith(last):
        return False
    at, end = len(first), len(queue) - len(last)
    for part in middle:  # the leftmost place leaves the most for the others
        at = queue.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return at <= end


def lane_of(queue: str, lanes: Sequence[Sequence[str]]) -> int | None:
    """Which of a worker's lanes serves the queue: the one that names it, else the first with a matching pattern."""
    for number, names in enumerate(lanes):
        if queue in names:
            return number
    for number, names in enumerate(lanes):
        if any(is_pattern(name) and matches_queue(name, queue) for name in names):
            return number
    return None
