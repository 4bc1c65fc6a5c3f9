"""What cannot be pickled, and which part of it is in the way.

To say so is to look at somebody else's objects, which may fail in any way. That never fails itself: it says less then.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from bullpen.errors import NotPicklable
from bullpen.runtimes.process import failures

MOST_LOOKS = 200  # at parts of something large
DEEPEST = 10

Dumps = Callable[[Any], object]


def not_picklable(what: str, value: Any, error: BaseException, dumps: Dumps, *, ran: bool) -> NotPicklable:
    """The error for `value`, for which `dumps` raised `error`."""
    path = ""
    for _ in range(DEEPEST):
        inner = _part_in_the_way(value, dumps)
        if inner is None:
            break
        path += inner[0]
        value = inner[1]
    name = _name_of(value)
    described = f"{type(value).__name__} {name}" if name else f"{type(value).__name__} object"
    reason = f"{described} cannot be pickled: {type(error).__name__}: {failures.text_of(error)}"
    if "<l" in name:  # a lambda, or something local
        reason += '; define it at the top of a module, or pip install "bullpen[pickle]"'
    return NotPicklable(what, path, reason, ran=ran)


def unreadable(what: str, error: BaseException, *, ran: bool) -> NotPicklable:
    """The error for something that came, but cannot be had."""
    refusal = NotPicklable(what, "", f"it was pickled, but reading it raised {failures.text_of(error, repr)}", ran=ran)
    refusal.__cause__ = error
    return refusal


def can_be(dumps: Dumps, value: Any) -> bool:
    """Whether `dumps` succeeds."""
    try:
        dumps(value)
    except BaseException:
        return False
    return True


def _part_in_the_way(value: Any, dumps: Dumps) -> tuple[str, Any] | None:
    """The first part of `value` that cannot be pickled, with the way to it; None if none is found."""
    try:
        return next(((step, part) for step, part in _parts(value) if not can_be(dumps, part)), None)
    except BaseException:
        return None


def _name_of(value: Any) -> str:
    """What a function or a class is called; "" if it is neither, or does not tell."""
    try:
        return str(value.__qualname__) if callable(value) else ""
    except BaseException:
        return ""


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What pickle would visit inside `value`, with the way to it."""
    if isinstance(value, dict):
        for key, part in list(value.items())[:MOST_LOOKS]:
            yield f"[{key!r}]", part
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value[:MOST_LOOKS]):
            yield f"[{index}]", part
    elif isinstance(value, functools.partial):
        yield ".func", value.func
        yield ".args", value.args
    elif not _pickles_itself(type(value)):
        for name, part in list(getattr(value, "__dict__", {}).items())[:MOST_LOOKS]:
            yield f".{name}", part


def _pickles_itself(kind: type) -> bool:
    names = ("__reduce__", "__reduce_ex__", "__getstate__")
    return any(name in vars(base) for base in kind.__mro__[:-1] for name in names)
