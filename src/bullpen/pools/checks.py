"""Checks of options. A check raises `InvalidOption`, which names the option and the values that are allowed."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from bullpen.errors import InvalidOption, InvalidOptionType

Seconds = float | timedelta


def seconds(name: str, value: Seconds | None, *, zero: bool = True) -> float | None:
    """A duration in seconds; None stands for no limit."""
    if value is None:
        return None
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidOptionType(name, value, "a number of seconds, a timedelta, or None")
    if value != value or value < 0 or (value == 0 and not zero):  # noqa: PLR0124 — not a number
        raise InvalidOption(name, value, f"{'≥ 0' if zero else '> 0'} seconds, or None for no limit")
    try:
        return float(value)
    except OverflowError:
        raise InvalidOption(name, "a number beyond all floats", "a number of seconds that fits a float") from None


def duration(name: str, value: Seconds, *, zero: bool = True) -> float:
    """A duration in seconds that may not be missing."""
    if value is None:
        raise InvalidOptionType(name, value, "a number of seconds, or a timedelta")
    checked = seconds(name, value, zero=zero)
    assert checked is not None
    return checked


def error_types(name: str, value: object) -> tuple[type[BaseException], ...]:
    """A tuple of classes of exceptions."""
    if isinstance(value, type) and issubclass(value, BaseException):
        return (value,)
    if not isinstance(value, tuple) or not all(isinstance(kind, type) for kind in value):
        raise InvalidOptionType(name, value, "a tuple of classes of exceptions")
    if not all(issubclass(kind, BaseException) for kind in value):
        raise InvalidOptionType(name, value, "a tuple of classes of exceptions")
    return value


def at_least(name: str, value: object, minimum: int, none: str = "") -> None:
    allowed = f"a whole number ≥ {minimum}" + (f", or None {none}" if none else "")
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidOptionType(name, value, allowed)
    if value < minimum:
        raise InvalidOption(name, value, allowed)


def one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if not isinstance(value, str):
        raise InvalidOptionType(name, value, either(allowed))
    if value not in allowed:
        raise InvalidOption(name, value, either(allowed))


def either(values: tuple[str, ...]) -> str:
    return "one of " + ", ".join(map(repr, values))


def text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidOptionType(name, value, "a string")


def boolean(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidOptionType(name, value, "True or False")


def function(name: str, value: object) -> None:
    if value is not None and not callable(value):
        raise InvalidOptionType(name, value, "a function, or None")


def has_methods(name: str, value: object, methods: tuple[str, ...], allowed: str) -> None:
    if not all(callable(getattr(value, method, None)) for method in methods):
        raise InvalidOptionType(name, value, allowed)


def arguments(name: str, value: Iterable[Any]) -> tuple[Any, ...]:
    """A tuple of arguments, given as any iterable."""
    try:
        return tuple(value)
    except TypeError:
        raise InvalidOptionType(name, value, "a tuple of arguments for the initializer") from None
