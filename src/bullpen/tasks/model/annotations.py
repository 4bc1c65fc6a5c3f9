"""Resolves the annotations of a function: they may be strings, and name classes that are defined later."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from typing import Any


class Annotations:
    """Resolves annotations one by one, so that an unknown name affects only its own parameter."""

    def __init__(self, function: Callable[..., Any]) -> None:
        plain = inspect.unwrap(function)
        while hasattr(plain, "func"):  # partial
            plain = plain.func
        if not hasattr(plain, "__globals__"):
            plain = getattr(type(plain), "__call__", plain)  # noqa: B004 — the function behind a callable object
        self._names = getattr(plain, "__globals__", {})

    def resolve(self, annotation: Any) -> Any:
        """Raises the error of evaluating the annotation."""
        holder = types.SimpleNamespace(__annotations__={"it": annotation})
        return typing.get_type_hints(holder, self._names, include_extras=True)["it"]


def signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    """None if the function has no signature, like some built-in functions."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None
