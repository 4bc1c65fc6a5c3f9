"""Errors for objects that cannot be pickled: they name the part that is to blame.

To find it, this module looks into the user's objects, which may raise anything. Then the error names less; the search
itself never fails.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from bullpen.errors import NotPicklable
from bullpen.pools.runtimes.process import failures

MOST_LOOKS = 200  # at parts of one object
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
    if "<l" in name:  # `<lambda>` or `<locals>`
        reason += '; define it at the top of a module, or pip install "pybullpen[pickle]"'
    elif "fork context" in reason:
        reason += " Create it with multiprocessing.get_context('forkserver')."
    return NotPicklable(what, path, reason, ran=ran)


def unreadable(what: str, error: BaseException, *, ran: bool) -> NotPicklable:
    """The error for an object that arrived but cannot be unpickled."""
    reason = f"it was pickled, but unpickling it raised {failures.text_of(error, repr)}"
    problem = NotPicklable(what, "", reason, ran=ran)
    problem.__cause__ = error
    return problem


def can_be(dumps: Dumps, value: Any) -> bool:
    """Whether `dumps` succeeds."""
    try:
        dumps(value)
    except BaseException:
        return False
    return True


def _part_in_the_way(value: Any, dumps: Dumps) -> tuple[str, Any] | None:
    """The path to the first part of `value` that cannot be pickled, and that part; None if none is found."""
    try:
        return next(((step, part) for step, part in _parts(value) if not can_be(dumps, part)), None)
    except BaseException:
        return None


def _name_of(value: Any) -> str:
    """The name of a function or a class; "" for other objects."""
    try:
        return str(value.__qualname__) if callable(value) else ""
    except BaseException:
        return ""


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """The parts of `value` that pickle would visit, each with the path to it."""
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
