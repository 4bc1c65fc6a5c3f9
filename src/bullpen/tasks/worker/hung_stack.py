"""Where a function hangs: the stack of its thread or coroutine, as the traceback of an error that was not raised."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import CodeType, FrameType, TracebackType
from typing import Any


def stack_of_thread(thread: int, since: CodeType) -> TracebackType | None:
    """The frames of a thread that `since` has called, and those that they have called."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001 — there is no other way
    frames: list[FrameType] = []
    while frame is not None and frame.f_code is not since:
        frames.append(frame)
        frame = frame.f_back
    return None if frame is None else _traceback(frames[::-1])


def stack_of_coroutine(coroutine: Any, thread: int | None = None) -> TracebackType | None:
    """The frames of a coroutine, and of those that it awaits. If it runs now on `thread`: also of the functions that it
    has called.
    """
    frames: list[FrameType] = []
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is None:
            break
        frames.append(frame)
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    return _traceback(frames + _called_from(frames[-1], thread) if frames else frames)


def _called_from(innermost: FrameType, thread: int | None) -> list[FrameType]:
    frame = None if thread is None else sys._current_frames().get(thread)  # noqa: SLF001
    called: list[FrameType] = []
    while frame is not None and frame is not innermost:
        called.append(frame)
        frame = frame.f_back
    return [] if frame is None else called[::-1]


def _traceback(frames: Sequence[FrameType]) -> TracebackType | None:
    """`frames`: the outermost first."""
    traceback: TracebackType | None = None
    for frame in reversed(frames):
        traceback = TracebackType(traceback, frame, frame.f_lasti, frame.f_lineno or 1)
    return traceback
