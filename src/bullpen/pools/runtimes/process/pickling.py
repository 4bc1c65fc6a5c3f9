"""Calls as pickles, by name where possible. An error names the part of a call that cannot be pickled."""

from __future__ import annotations

import functools
import io
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from typing import Any

from bullpen.errors import NotPicklable
from bullpen.pools.runtimes.port import CallsMany, CallsMethod, Listener, ProducesItems
from bullpen.pools.runtimes.process import child, failures, wire
from bullpen.pools.runtimes.process.pickle_errors import can_be, not_picklable

MAIN, MP_MAIN = b"\x8c\x08__main__", b"\x8c\x0b__mp_main__"  # the names of the script, as pickle writes them


Encoded = tuple[bytes, list[Any], bool]  # a pickle, its buffers, and whether the main module is needed to read it


def encode_call(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Encoded:
    """The call of a request."""
    try:
        return _encode_call(_elsewhere(fn), args, kwargs)
    except NotPicklable:
        if not isinstance(fn, CallsMany):
            raise
        unpicklable = _unpicklable_items(args)
        if not unpicklable or len(args[0]) == 1:
            raise
    sendable = tuple([value for place, value in enumerate(column) if place not in unpicklable] for column in args)
    call = functools.partial(child.run_sendable_items, _elsewhere(fn.fn), fn.logged, unpicklable)
    return _encode_call(call, sendable, kwargs)


def encode_each(fn: CallsMany, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Encoded:
    """The call of a function for several items, each in a pickle of its own."""
    items = []
    for item in zip(*args, strict=True):
        data, buffers, _ = _encode(item, functools.partial(_arguments, item))
        items.append((data, [pickle.PickleBuffer(view) for view in buffers]))
    return _encode_call(functools.partial(child.run_readable_items, _elsewhere(fn.fn), fn.logged), (items,), kwargs)


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


def _unpicklable_items(columns: tuple[list[Any], ...]) -> dict[int, list[failures.Entry]]:
    """The errors of the items that cannot be pickled, by their place."""
    unpicklable = {}
    for place, args in enumerate(zip(*columns, strict=True)):
        try:
            _encode(args, functools.partial(_arguments, args))
        except NotPicklable as error:
            unpicklable[place] = failures.describe(error, hide=2)
    return unpicklable


def encode_setup(initializer: Any, initargs: tuple[Any, ...], keeps: Any) -> Encoded:
    """What a worker does before its first request."""

    def named() -> Iterator[tuple[str, Any]]:
        yield "the initializer", initializer
        yield from ((f"initargs[{number}]", value) for number, value in enumerate(initargs))
        yield "worker", keeps

    if "multiprocessing.process" not in sys.modules:
        return _encode((initializer, initargs, keeps), named)
    from bullpen.pools.runtimes.process.sharing import reduce_shared, spawning

    with spawning():
        return _encode((initializer, initargs, keeps), named, reduce_shared)


def _encode(
    value: Any, named: Callable[[], Iterator[tuple[str, Any]]], reduce_shared: Callable[[Any], Any] | None = None
) -> Encoded:
    try:
        data, buffers, by_name = _dumps(value, reduce_shared)
        if not by_name:
            return data, buffers, False
        needs_main = MAIN in data or MP_MAIN in data
        if needs_main and main_module() is None:
            return *_by_value(value, reduce_shared), False
        return data, buffers, needs_main
    except (KeyboardInterrupt, NotPicklable):
        raise
    except BaseException as error:
        dumps = functools.partial(_dumps, reduce_shared=reduce_shared)
        what, part = next(((what, part) for what, part in named() if not can_be(dumps, part)), ("the call", value))
        raise not_picklable(what, part, error, dumps, ran=False) from error


def main_module() -> tuple[str | None, str | None] | None:
    """The module name or the file of the app's script, for workers to import; None if it has neither."""
    module = sys.modules["__main__"]
    name = getattr(getattr(module, "__spec__", None), "name", None)
    path = getattr(module, "__file__", None)
    if name == "__main__" and path is not None:  # `__main__.py` of a folder or an archive
        path = os.path.dirname(path)
    elif name is not None:
        return name, None
    return None if path is None or not os.path.exists(path) else (None, os.path.abspath(path))


def is_of_main(fn: Any) -> bool:
    """Whether `fn`, or the function that it wraps, says that it is defined in the script."""
    while True:
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif isinstance(fn, ProducesItems | CallsMany):
            fn = fn.fn
        else:
            return getattr(fn, "__module__", None) in ("__main__", "__mp_main__")


def _dumps(value: Any, reduce_shared: Callable[[Any], Any] | None = None) -> tuple[bytes, list[Any], bool]:
    """A pickle, its buffers, and whether it refers to functions by name."""
    buffers: list[Any] = []
    if reduce_shared is None:
        try:
            return pickle.dumps(value, 5, buffer_callback=wire.collect_into(buffers)), buffers, True
        except wire.NOT_BY_NAME:
            buffers.clear()
    file = io.BytesIO()
    pickler = _Pickler(file, 5, buffer_callback=wire.collect_into(buffers))
    pickler.reduce_shared = reduce_shared
    try:
        pickler.dump(value)
        return file.getvalue(), buffers, True
    except wire.NOT_BY_NAME:
        if wire.by_value_pickler() is None:
            raise
    return *_by_value(value, reduce_shared), False


def _by_value(value: Any, reduce_shared: Callable[[Any], Any] | None = None) -> tuple[bytes, list[Any]]:
    """A pickle with the code of functions and classes instead of their names."""
    cloudpickle = wire.by_value_pickler()
    if cloudpickle is None:
        raise NotPicklable(
            "the call",
            "",
            "it refers to a function or a class that was defined interactively, which other processes cannot import; "
            'define it in a module, or pip install "pybullpen[pickle]"',
        )

    class ByValue(cloudpickle.Pickler):  # type: ignore[misc,name-defined]
        def reducer_override(self, obj: Any) -> Any:
            reduced = _reduce(obj, reduce_shared)
            return super().reducer_override(obj) if reduced is NotImplemented else reduced

    buffers: list[Any] = []
    file = io.BytesIO()
    ByValue(file, 5, buffer_callback=wire.collect_into(buffers)).dump(value)
    return file.getvalue(), buffers


class _Pickler(pickle.Pickler):
    """Replaces objects that cannot leave the app."""

    reduce_shared: Callable[[Any], Any] | None = None

    def reducer_override(self, obj: Any) -> Any:
        return _reduce(obj, self.reduce_shared)


def _reduce(obj: Any, reduce_shared: Callable[[Any], Any] | None) -> Any:
    substitute = _elsewhere(obj)
    if substitute is not obj:
        return substitute.__reduce__()
    return NotImplemented if reduce_shared is None else reduce_shared(obj)


def _elsewhere(obj: Any) -> Any:
    """What a worker gets in place of `obj`; `obj` itself if that can leave the app."""
    if isinstance(obj, CallsMethod):
        return functools.partial(child.call_method, obj.__name__)
    if isinstance(obj, ProducesItems):
        return child.SendItems(_elsewhere(obj.fn), obj.__qualname__)
    if isinstance(obj, CallsMany):
        return functools.partial(child.run_logged_items if obj.logged else child.run_items, _elsewhere(obj.fn))
    if isinstance(obj, Listener):
        return child.RemoteListener()
    return obj
