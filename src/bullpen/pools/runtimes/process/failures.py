"""Exceptions as data: how an error, its causes and their tracebacks travel from a worker to the app.

Each error travels as a pickle and as text. If it cannot be pickled or unpickled, the app gets a `RemoteError` with its
name and text. Tracebacks are rebuilt from file names and line numbers, so that they look the same as in the worker: in
`traceback.format_exception`, in logs, in a debugger.
"""

from __future__ import annotations

import functools
import itertools
import pickle
import types
from collections.abc import Callable
from typing import Any

from bullpen.pools.runtimes.process import wire

MOST_FRAMES = 64  # of one traceback; those in the middle are left out
MOST_ERRORS = 16  # of one chain of causes
SHORTEST = 200_000  # characters; a longer text is cut

# The fields of an error and the names of its class as Python keeps them: a subclass or its metaclass may define others.
_cause, _context, _traceback, _suppress = (
    vars(BaseException)[name] for name in ("__cause__", "__context__", "__traceback__", "__suppress_context__")
)
_module, _qualname = (vars(type)[name] for name in ("__module__", "__qualname__"))

Entry = tuple[bytes | None, str, str, list[tuple[str, str, int]], int | None, int | None, bool]


def describe(error: BaseException, hide: int = 0, *, by_name: bool = False) -> list[Entry]:
    """`error`, its causes and contexts, as data; without the outermost `hide` frames, which are Bullpen's, and without
    pickles if they travel `by_name`.
    """
    chain = [error]
    entries: list[Entry] = []
    for number, one in enumerate(chain):  # the loop appends to it
        places: list[int | None] = []
        for other in (_cause.__get__(one), _context.__get__(one)):
            if other is None or len(chain) >= MOST_ERRORS:
                places.append(None)
                continue
            known = next((place for place, seen in enumerate(chain) if seen is other), None)
            if known is None:
                known = len(chain)
                chain.append(other)
            places.append(known)
        frames = _frames(_traceback.__get__(one), hide if number == 0 else 0)
        name = f"{_module.__get__(type(one))}.{_qualname.__get__(type(one))}"
        entries.append((None if by_name else _pickle(one), name, text_of(one), frames, *places, _suppress.__get__(one)))
    return entries


def _pickle(error: BaseException) -> bytes | None:
    try:
        return pickle.dumps(error, 5)
    except BaseException:
        return _pickle_by_value(error)


def _pickle_by_value(error: BaseException) -> bytes | None:
    """A pickle that includes the class, which may have been defined interactively."""
    try:
        cloudpickle = wire.by_value_pickler()
        return None if cloudpickle is None else bytes(cloudpickle.dumps(error, 5))
    except BaseException:
        return None


def text_of(error: BaseException, text: Callable[[object], str] = str) -> str:
    """Its text, or a note if `text` fails."""
    try:
        return text(error)[:SHORTEST]
    except BaseException as other:
        return f"<its text is not available: {type(other).__name__}>"


def _frames(traceback: types.TracebackType | None, hide: int) -> list[tuple[str, str, int]]:
    found = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        found.append((code.co_filename, code.co_qualname, traceback.tb_lineno or 0))
        traceback = traceback.tb_next
    found = found[hide:]
    if len(found) > MOST_FRAMES:
        found = found[: MOST_FRAMES // 2] + found[-MOST_FRAMES // 2 :]
    return found


def rebuild(entries: list[Entry], fallback: Any) -> BaseException:
    """The error that `describe` got; `fallback(name, text)` replaces one that cannot be unpickled."""
    errors: list[BaseException] = []
    for data, name, text, *_ in entries:
        error = _unpickle(data)
        errors.append(error if error is not None else fallback(name, text))
    for error, (_, _, _, frames, cause, context, suppress) in zip(errors, entries, strict=True):
        _cause.__set__(error, None if cause is None else errors[cause])
        _context.__set__(error, None if context is None else errors[context])
        _suppress.__set__(error, suppress)
        _traceback.__set__(error, traceback_of(frames))
    return errors[0]


def _unpickle(data: bytes | None) -> BaseException | None:
    if data is None:
        return None
    try:
        error = pickle.loads(data)
    except BaseException:
        return None
    return error if issubclass(type(error), BaseException) else None


def traceback_of(frames: list[tuple[str, str, int]]) -> types.TracebackType | None:
    """A traceback with these frames. Each is that of a generator that never runs, because the frame of a function that
    has run keeps its callers' frames alive, and all that they refer to.
    """
    following = None
    for filename, name, line in reversed(frames):
        made = types.FunctionType(_code_at(filename, name, line), {"__name__": name, "__file__": filename})()
        following = types.TracebackType(following, made.gi_frame, 0, line)
    return following


@functools.lru_cache(maxsize=512)
def _code_at(filename: str, name: str, line: int) -> types.CodeType:
    """The code of a generator in this file and function, at this line. It has no columns, so that none is
    underlined.
    """
    code: types.CodeType = compile("def _(): yield", filename, "exec").co_consts[0]
    units = len(code.co_code) // 2
    lengths = itertools.chain(itertools.repeat(8, units // 8), [units % 8] if units % 8 else [])
    table = b"".join(bytes((0x80 | 13 << 3 | length - 1, 0)) for length in lengths)  # see Objects/locations.md
    return code.replace(
        co_name=name.rpartition(".")[2], co_qualname=name, co_firstlineno=max(line, 1), co_linetable=table
    )
