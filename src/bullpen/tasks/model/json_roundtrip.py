"""Checks whether a value survives being written as JSON and read back; if not, names the part that does not, and why.

A path is written as in Python: `args[0].items[3]['name']`. Messages contain types and keys, but no values, because
values may be secrets and messages end up in logs.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import inspect
import uuid
from collections.abc import Iterator
from typing import Any

import msgspec

Problem = tuple[str, str]  # the path to a value, and why it does not survive

_SIMPLE: frozenset[Any] = frozenset({str, int, bool, type(None)})
_BY_VALUE = (datetime.date, datetime.time, datetime.timedelta, uuid.UUID, decimal.Decimal)  # subclasses become plain
_MISSING = object()


def write_unknown(value: Any) -> Any:
    """Encode values that msgspec does not encode: pydantic models, and subclasses of dates and numbers."""
    dump = getattr(value, "model_dump", None)
    if dump is not None and hasattr(type(value), "model_validate_json"):
        return dump(mode="json", by_alias=True)
    if isinstance(value, datetime.date | datetime.time):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    raise NotImplementedError


_encode = msgspec.json.Encoder(enc_hook=write_unknown).encode


def write(value: Any) -> bytes | None:
    """The value as JSON; None if it cannot be written."""
    try:
        return _encode(value)
    except Exception:  # code of the user's own models too
        return None


def find_difference(value: Any, restored: Any) -> Problem | None:
    """The first part that comes back different, with its relative path; None if there is none."""
    kind = type(value)
    if kind is not type(restored):
        return _find_difference_of_type(value, restored)
    if kind in _SIMPLE:
        return None if value == restored else ("", f"is {_a(value)} that would come back changed")
    if isinstance(value, dict):
        return _find_difference_in_dict(value, restored)
    if isinstance(value, list | tuple):
        if len(value) != len(restored):
            return "", f"has {len(value)} items, and would come back with {len(restored)}"
        for number, old in enumerate(value):
            if (found := find_difference(old, restored[number])) is not None:
                return f"[{number}]{found[0]}", found[1]
        return None
    names = _field_names(value)
    if names is not None:
        for name in names:
            old, new = getattr(value, name, _MISSING), getattr(restored, name, _MISSING)
            if (found := find_difference(old, new)) is not None:
                return f".{name}{found[0]}", found[1]
        return None
    try:
        same = bool(value == restored)
    except Exception:  # comparing is the value's own code
        same = False
    return None if same else ("", f"is {_a(value)} that would come back changed")


def _find_difference_in_dict(value: dict[Any, Any], restored: dict[Any, Any]) -> Problem | None:
    if len(value) != len(restored):
        return "", "has keys that JSON cannot tell apart"
    for (key, old), (new_key, new) in zip(value.items(), restored.items(), strict=True):
        if find_difference(key, new_key) is not None:
            advice = _advice(value, restored)
            return "", f"has the key {_short(key)}, {_a(key)}, which would come back as {_short(new_key)}; {advice}"
        if (found := find_difference(old, new)) is not None:
            return f"[{_short(key)}]{found[0]}", found[1]
    return None


def _find_difference_of_type(value: Any, restored: Any) -> Problem | None:
    try:
        if type(value) is int and type(restored) is float and value == restored:
            return None
        if isinstance(value, _BY_VALUE) and isinstance(value, type(restored)) and value == restored:
            return None
    except Exception:
        pass
    if _is_nan(value):
        return "", _nan(value)
    return "", f"is {_a(value)}, and would come back as {_a(restored)}; {_advice(value, restored)}"


def find_unwritable(value: Any, path: str, depth: int) -> Problem:
    """The innermost part that cannot be written, down to `depth` levels."""
    return _find_unwritable(value, path, depth) or (path, "contains itself, or is nested too deep")


def _find_unwritable(value: Any, path: str, depth: int) -> Problem | None:
    if depth == 0:
        return None
    if isinstance(value, dict):
        for key in value:
            if write({key: None}) is None:
                return path, f"has the key {_short(key)}, {_a(key)}, which cannot be one in JSON"
    for part_path, part in _parts(value, path):
        if write(part) is None:
            return _find_unwritable(part, part_path, depth - 1)
    return path, _unwritable(value)


def _unwritable(value: Any) -> str:
    if inspect.iscoroutine(value):
        return "is a coroutine that was not awaited"
    if type(value) is str:
        return "is a string with half a character (a lone surrogate), which cannot be written"
    if type(value) is int:
        return "is a number too large to be written"
    for plain in (str, int, float):
        if isinstance(value, plain):
            return f"is {_a(value)}; pass a plain {plain.__name__}"
    return f"is {_a(value)}, which cannot be written as JSON; an id or a path that leads to it can"


def find_nan(value: Any, path: str) -> Problem | None:
    """The first NaN or infinity: JSON has no such number, and msgspec writes null."""
    if _is_nan(value):
        return path, _nan(value)
    for part_path, part in _parts(value, path):
        if (found := find_nan(part, part_path)) is not None:
            return found
    return None


def _is_nan(value: Any) -> bool:
    return type(value) is float and value - value != 0.0


def _nan(value: float) -> str:
    return f"is {value!r}, which JSON has no way to write"


def _parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list | tuple):
        yield from ((f"{path}[{number}]", part) for number, part in enumerate(value))
    elif isinstance(value, set | frozenset):
        yield from ((f"{path}{{{_short(part)}}}", part) for part in value)
    elif isinstance(value, dict):
        yield from ((f"{path}[{_short(key)}]", part) for key, part in value.items())
    else:
        for name in _field_names(value) or ():
            part = getattr(value, name, _MISSING)
            if part is not _MISSING:
                yield f"{path}.{name}", part


def _field_names(value: Any) -> Iterator[str] | None:
    """Of a dataclass, a msgspec Struct or an attrs class; None for anything else."""
    kind = type(value)
    if isinstance(value, msgspec.Struct):
        return iter(value.__struct_fields__)
    if dataclasses.is_dataclass(kind):
        return (field.name for field in dataclasses.fields(kind) if field.compare)
    attributes = getattr(kind, "__attrs_attrs__", None)
    if attributes is not None:
        return (attribute.name for attribute in attributes if attribute.eq)
    return None


def _short(value: Any) -> str:
    try:
        return f"{value!r:.80}"
    except Exception:  # the value's own code, or a number of more digits than Python writes
        return f"<{type(value).__qualname__}>"


def _a(value: Any) -> str:
    if value is None:
        return "None"
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _advice(value: Any, restored: Any) -> str:
    """How the caller can fix it."""
    if type(restored) not in (str, list, dict):  # the annotation wants something else
        return f"pass {_a(restored)}, or annotate it with its type"
    match value:
        case enum.Enum():
            return f"annotate it as {type(value).__qualname__}, or pass its value"
        case tuple() if type(value) is tuple:
            return "annotate it as tuple[…], or pass a list"
        case set() | frozenset():
            return f"annotate it as {type(value).__qualname__}[…], or pass a list"
        case dict() if type(value) is dict:
            return "annotate it with the type of its keys, as in dict[int, str], or pass strings as keys"
        case dict() | list() | str():
            return (
                f"pass a plain {next(base for base in type(value).__mro__ if base.__module__ == 'builtins').__name__}"
            )
        case _:
            return f"annotate it as {type(value).__qualname__}"
