"""A defect in the pool itself, or a system that is out of threads: whoever waits is told, and the pool goes on."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from bullpen import Pool, WorkerLost
from bullpen.core.dispatcher import Dispatcher

from .support import PATIENCE, Blocker


class Defect(BaseException):
    """What no code expects."""


def break_once(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The next call of this method of the dispatcher by a worker raises."""
    works = getattr(Dispatcher, name)

    def fail(self: Dispatcher, *args: Any, **kwargs: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            return works(self, *args, **kwargs)
        monkeypatch.undo()
        raise Defect(name)

    monkeypatch.setattr(Dispatcher, name, fail)


@pytest.mark.parametrize("options", [{}, {"max_queue": 10}, {"capacity": 3}], ids=["unbounded", "bounded", "lanes"])
@pytest.mark.parametrize("name", ["_take", "_rest", "_after", "tell_end", "_finished_aloud"])
def test_a_worker_that_cannot_report_is_dead_and_replaced(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Pool(1, **options) as pool, Blocker() as blocker:
        futures = [pool.submit(blocker, 1)]
        blocker.wait_entered()
        if name == "_finished_aloud":
            futures[0].add_done_callback(lambda _: None)
        break_once(monkeypatch, name)
        blocker.release()
        error = futures[0].exception(PATIENCE)
        assert error is None or isinstance(error, WorkerLost)
        assert pool.submit(abs, -2).result(PATIENCE) == 2
        assert pool.submit(abs, -3).result(PATIENCE) == 3
        stats = pool.stats()
        assert stats.spawned == 2
        assert stats.submitted == stats.completed + stats.lost == 3
    assert "died: Defect" in caplog.text


def test_a_worker_that_cannot_report_that_it_is_ready_is_dead_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    break_once(monkeypatch, "_next")
    with Pool(1) as pool:
        assert pool.submit(abs, -1).result(PATIENCE) == 1
    assert pool.stats().spawned == 2
