"""Values on the command line: what they are read as, and what is said about wrong ones."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeVar

N = TypeVar("N", int, float)


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


def names(text: str) -> tuple[str, ...]:
    """`a,b` as ("a", "b")."""
    parts = tuple(part.strip() for part in text.split(","))
    if not all(parts):
        raise argparse.ArgumentTypeError(f"must be names with commas between them, got {text!r}")
    return parts
