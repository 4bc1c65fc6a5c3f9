"""The functions that the workers of `RuntimeContract` call. All of them can be pickled by name.

Workers that are processes import this module, so it imports little itself.
"""

from __future__ import annotations

import contextvars
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bullpen.pools.runtimes.port import current_worker

PATIENCE = 30.0
"""Seconds after which something that has to happen has not."""


class ContractError(Exception):
    """An error of a user's own."""


class Thing:
    """Something that can be seen to be gone."""


variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="nobody's")


def do_nothing() -> None:
    pass


def describe(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


def give_back(value: Any) -> Any:
    return value


def fail_below(text: str) -> None:
    raise ContractError(text)


def raise_it(kind: type[BaseException]) -> None:
    raise kind


def twice(call: Callable[[], Any]) -> tuple[Any, Any]:
    value = call()
    return value, value


def place() -> str:
    """Where this runs: on which worker, if that can be seen from here, or else on which thread."""
    worker = current_worker()
    return f"{os.getpid()}:{threading.get_ident() if worker is None else worker.name}"


def note_place(folder: Path, name: str) -> None:
    with (folder / name).open("a") as file:
        file.write(place() + "\n")


def leave_note(folder: Path, name: str) -> None:
    (folder / name).touch()


def wait_for_note(folder: Path, name: str, value: Any) -> Any:
    eventually((folder / name).exists)
    return value


def begin_and_wait(folder: Path) -> str:
    leave_note(folder, "begun")
    eventually((folder / "go").exists)
    leave_note(folder, "outlived")
    return "done"


def wait_then_fail(folder: Path, text: str) -> None:
    eventually((folder / "go").exists)
    raise ContractError(text)


def meet(folder: Path, count: int) -> int:
    """Wait until `count` calls are here at once."""
    folder.mkdir(exist_ok=True)
    (folder / f"here-{place()}-{threading.get_ident()}").touch()
    eventually(lambda: len(list(folder.glob("here-*"))) >= count)
    return count


def meet_in(folder: Path, count: int) -> str:
    """Where this runs, once `count` calls are here at once."""
    meet(folder, count)
    return place()


def count_present(folder: Path) -> int:
    """How many calls, this one included, were here while it was."""
    own = folder / f"present-{place()}-{threading.get_ident()}"
    own.touch(exist_ok=False)
    most = 0
    for _ in range(5):
        most = max(most, len(list(folder.glob("present-*"))))
        time.sleep(0.002)
    own.unlink()
    return most


def eventually(happened: Callable[[], object]) -> None:
    """Wait until `happened()`; fail if that takes too long."""
    until = time.monotonic() + PATIENCE
    while not happened():
        if time.monotonic() > until:
            raise AssertionError(f"{happened!r} has not happened within {PATIENCE:g} s")
        time.sleep(0.002)
