"""The contract of runtimes, kept by programs: one that runs any function stands for all of them."""

from __future__ import annotations

import base64
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bullpen.errors import RemoteError
from bullpen.pools.runtimes.port import CallsMany, Outcomes
from bullpen.pools.runtimes.process import failures
from bullpen.pools.runtimes.program.messages import ErrorMessage
from bullpen.pools.runtimes.program.runtime import ProgramRuntime
from bullpen.testing import RuntimeContract


class TestProgramRuntime(RuntimeContract):
    def make_runtime(
        self, initializer: Callable[..., object] | None = None, initargs: tuple[Any, ...] = ()
    ) -> ProgramRuntime:
        first = [] if initializer is None else [packed((initializer, initargs))]
        program = Path(__file__).with_name("python_program.py")
        path = "\n".join(str(Path(entry).resolve()) for entry in sys.path)
        return FunctionProgram([sys.executable, "-S", program, path, *first], cancel_grace=0.1)


class FunctionProgram(ProgramRuntime):
    """Calls functions, by sending them as pickles to a program that knows what to do with them."""

    by_name_only = False

    def describe(
        self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None
    ) -> tuple[str, tuple[Any, ...], dict[str, Any] | None]:
        if isinstance(fn, CallsMany):
            fn, args = run_many, (fn.fn, *args)
        return "call", (packed((fn, args, kwargs or {})),), None

    def value(self, value: Any) -> Any:
        return unpacked(value)

    def error(self, said: ErrorMessage) -> BaseException:
        return failures.rebuild(unpacked(said.details), RemoteError)


def run_many(fn: Callable[..., Any], *columns: list[Any]) -> Outcomes:
    return Outcomes(list(map(fn, *columns)), {}, 0.0)


def packed(value: Any) -> str:
    return base64.b64encode(pickle.dumps(value)).decode()


def unpacked(text: str) -> Any:
    return pickle.loads(base64.b64decode(text))
