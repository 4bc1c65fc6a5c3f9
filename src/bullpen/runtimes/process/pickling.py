"""Calls as pickles: by reference where that is possible, and otherwise with an error that names what is in the way."""

from __future__ import annotations

import functools
import io
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from typing import Any

from bullpen.errors import NotPicklable
from bullpen.runtimes.port import CallsMany, CallsMethod, Listener, ProducesItems
from bullpen.runtimes.process import child, failures, wire
from bullpen.runtimes.process.refusals import can_be, not_picklable

MAIN_NAMES = (b"\x8c\x08__main__", b"\x8c\x0b__mp_main__")  # as pickle writes them


Encoded = tuple[bytes, list[Any], bool]  # a pickle, its buffers, and whether the main module is needed to read it


def encode_call(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Encoded:
    """What a worker has to do for a request."""
    try:
        return _encode_call(_elsewhere(fn), args, kwargs)
    except NotPicklable:
        if not isinstance(fn, CallsMany):
            raise
        refused = _refused_items(args)
        if not refused or len(args[0]) == 1:
            raise
    sendable = tuple([value for place, value in enumerate(column) if place not in refused] for column in args)
    call = functools.partial(child.run_sendable_items, _elsewhere(fn.fn), refused)
    return _encode_call(call, sendable, kwargs)


def encode_each(fn: CallsMany, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Encoded:
    """The call of a function for several items, each of which can be read on its own."""
    items = []
    for item in zip(*args, strict=True):
        data, buffers, _ = _encode(item, functools.partial(_arguments, item))
        items.append((data, [pickle.PickleBuffer(view) for view in buffers]))
    return _encode_call(functools.partial(child.run_readable_items, _elsewhere(fn.fn)), (items,), kwargs)


def _encode_call(call: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Encoded:
    def named() -> Iterator[tuple[str, Any]]:
        yield "the function", call
        yield from _arguments(args)
        yield from ((f"argument {name}", value) for name, value in (kwargs or {}).items())

    large = tuple(map(wire.lifted, args))
    return _encode(
        (call, large, {name: wire.lifted(value) for name, value in kwargs.items()} if kwargs else kwargs), named
    )


def _arguments(args: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    return ((f"argument {number}", value) for number, value in enumerate(args, 1))


def _refused_items(columns: tuple[list[Any], ...]) -> dict[int, list[failures.Entry]]:
    """Which of several items cannot be sent, and why."""
    refused = {}
    for place, args in enumerate(zip(*columns, strict=True)):
        try:
            _encode(args, functools.partial(_arguments, args))
        except NotPicklable as error:
            refused[place] = failures.describe(error, hide=2)
    return refused


def encode_setup(initializer: Any, initargs: tuple[Any, ...], keeps: Any) -> Encoded:
    """What a worker has to do before all requests."""

    def named() -> Iterator[tuple[str, Any]]:
        yield "the initializer", initializer
        yield from ((f"initargs[{number}]", value) for number, value in enumerate(initargs))
        yield "worker", keeps

    return _encode((initializer, initargs, keeps), named)


def _encode(value: Any, named: Callable[[], Iterator[tuple[str, Any]]]) -> Encoded:
    try:
        data, buffers, by_name = _dumps(value)
        if not by_name:
            return data, buffers, False
        needs_main = any(name in data for name in MAIN_NAMES)
        if needs_main and main_module() is None:
            return *_by_value(value), False
        return data, buffers, needs_main
    except (KeyboardInterrupt, NotPicklable):
        raise
    except BaseException as error:
        what, part = next(((what, part) for what, part in named() if not can_be(_dumps, part)), ("the call", value))
        raise not_picklable(what, part, error, _dumps, ran=False) from error


def main_module() -> tuple[str | None, str | None] | None:
    """The name or the file by which others can import this process's main module; None if it has neither."""
    module = sys.modules["__main__"]
    name = getattr(getattr(module, "__spec__", None), "name", None)
    path = getattr(module, "__file__", None)
    if name == "__main__" and path is not None:  # of a folder or an archive, which is what was run
        path = os.path.dirname(path)
    elif name is not None:
        return name, None
    return None if path is None or not os.path.exists(path) else (None, os.path.abspath(path))


def is_of_main(fn: Any) -> bool:
    """Whether `fn` was defined in the main module, as far as can be seen from outside."""
    while True:
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif isinstance(fn, ProducesItems | CallsMany):
            fn = fn.fn
        else:
            return getattr(fn, "__module__", None) in ("__main__", "__mp_main__")


def _dumps(value: Any) -> tuple[bytes, list[Any], bool]:
    """A pickle, its buffers, and whether functions in it are there by their names."""
    buffers: list[Any] = []
    try:
        return pickle.dumps(value, 5, buffer_callback=wire.collect_into(buffers)), buffers, True
    except Exception:
        buffers.clear()
        file = io.BytesIO()
        try:
            _Pickler(file, 5, buffer_callback=wire.collect_into(buffers)).dump(value)
            return file.getvalue(), buffers, True
        except Exception:
            if wire.by_value_pickler() is None:
                raise
    return *_by_value(value), False


def _by_value(value: Any) -> tuple[bytes, list[Any]]:
    """Functions and classes by their code rather than by their names."""
    cloudpickle = wire.by_value_pickler()
    if cloudpickle is None:
        raise NotPicklable(
            "the call",
            "",
            "it refers to something that was defined interactively, which other processes cannot import; "
            'put it into a module, or pip install "bullpen[pickle]"',
        )

    class ByValue(cloudpickle.Pickler):  # type: ignore[misc,name-defined]
        def reducer_override(self, obj: Any) -> Any:
            reduced = _reduce(obj)
            return super().reducer_override(obj) if reduced is NotImplemented else reduced

    buffers: list[Any] = []
    file = io.BytesIO()
    ByValue(file, 5, buffer_callback=wire.collect_into(buffers)).dump(value)
    return file.getvalue(), buffers


class _Pickler(pickle.Pickler):
    """Knows what cannot leave the app, and what goes in its place."""

    def reducer_override(self, obj: Any) -> Any:
        return _reduce(obj)


def _reduce(obj: Any) -> Any:
    if isinstance(obj, CallsMethod):
        return functools.partial, (child.call_method, obj.__name__)
    if isinstance(obj, ProducesItems):
        return child.SendItems, (obj.fn, obj.__qualname__)
    if isinstance(obj, CallsMany):
        return functools.partial, (child.run_items, obj.fn)
    if isinstance(obj, Listener):
        return child.Voice, ()
    return NotImplemented


def _elsewhere(fn: Any) -> Any:
    """What a worker calls for `fn`."""
    if isinstance(fn, CallsMethod):
        return functools.partial(child.call_method, fn.__name__)
    if isinstance(fn, ProducesItems):
        return child.SendItems(_elsewhere(fn.fn), fn.__qualname__)
    if isinstance(fn, CallsMany):
        return functools.partial(child.run_items, _elsewhere(fn.fn))
    return fn
