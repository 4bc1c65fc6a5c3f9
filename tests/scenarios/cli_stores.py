"""`bullpen` in this process, on a store of each kind, with functions that have stories."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from typing import Any

import pytest

from bullpen import Job, Retry, TaskQueue, WorkerPool
from bullpen.cli.main import main

Shown = tuple[int, str, str]


class Desk:
    """A queue at an address, its functions, and the command line on it."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.url = url
        self.queue = queue = TaskQueue(url)
        self._capsys = capsys
        self.add = queue.task(add)
        self.fail = queue.task(fail)
        self.mail = queue.task(queue="mail")(mail)

    def run(self, *words: str) -> Shown:
        """Exit code, stdout, stderr."""
        code = main([*words, "--url", self.url])
        shown = self._capsys.readouterr()
        return code, shown.out, shown.err

    def tell(self, *words: str) -> str:
        code, out, err = self.run(*words)
        assert (code, err) == (0, ""), (code, out, err)
        return out

    def json(self, *words: str, code: int = 0) -> Any:
        found, out, err = self.run(*words, "--json")
        assert found == code, (found, out, err)
        return json.loads(out)

    def work(self, *jobs: Job[Any]) -> None:
        """Until these are over."""
        with WorkerPool(self.queue, poll_interval=0.05):
            for job in jobs:
                try:
                    job.result(timeout=20)
                except Exception:
                    pass


def add(a: int, b: int = 1) -> int:
    return a + b


def fail(how: str) -> None:
    if how == "retry":
        raise Retry("busy") from KeyError("as told")
    raise KeyError("as told") if how == "key" else ValueError("as told")


def mail(to: str, on: date | None = None) -> str:
    return f"{to} {on}"


@contextmanager
def desk_at(url: str, capsys: pytest.CaptureFixture[str]) -> Iterator[Desk]:
    desk = Desk(url, capsys)
    with desk.queue:
        yield desk


MakeStore = Callable[[str], str]
