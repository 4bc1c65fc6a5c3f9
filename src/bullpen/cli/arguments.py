"""Parsers for values on the command line, with their error messages."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TypeVar

from bullpen.pools.config_file import duration

N = TypeVar("N", int, float)

LONGEST = 100 * 365 * 86_400.0


def whole(least: int, most: int) -> Callable[[str], int]:
    return lambda text: _number(text, int, least, most)


def number(least: float, most: float) -> Callable[[str], float]:
    return lambda text: _number(text, float, least, most)


def _number(text: str, kind: Callable[[str], N], least: N, most: N) -> N:
    try:
        value = kind(text)
    except ValueError:
        value = most + 1
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"must be a number from {least:g} to {most:g}, got {text!r}")
    return value


def seconds(text: str) -> float:
    """`90`, `90s`, `5m`, `2h`, `7d`, in seconds."""
    try:
        value = float(text)
    except ValueError:
        try:
            value = duration("", text)
        except ValueError:
            value = -1.0
    if not 0 <= value <= LONGEST:
        message = f"must be seconds, or a duration like '250ms', '30s', '5m', '2h', '7d', got {text!r}"
        raise argparse.ArgumentTypeError(message)
    return value


def instant(text: str) -> datetime:
    """`2030-01-31T18:00`, in local time unless it has an offset."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        message = f"must be a time like '2030-01-31T18:00' or '2030-01-31T18:00Z', got {text!r}"
        raise argparse.ArgumentTypeError(message) from None


def names(text: str) -> tuple[str, ...]:
    """`a,b` as ("a", "b")."""
    parts = tuple(part.strip() for part in text.split(","))
    if not all(parts):
        raise argparse.ArgumentTypeError(f"must be names separated by commas, got {text!r}")
    return parts


def header(text: str) -> tuple[str, str]:
    """`tenant=acme` as ("tenant", "acme")."""
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise argparse.ArgumentTypeError(f"must be a name and a value, such as tenant=acme, got {text!r}")
    return name, value


def words(text: str) -> tuple[str, ...]:
    """`a b` as ("a", "b")."""
    return tuple(text.split())


def one_of(allowed: Sequence[str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in allowed:
            raise argparse.ArgumentTypeError(f"must be one of {', '.join(allowed)}, got {text!r}")
        return text

    return read
