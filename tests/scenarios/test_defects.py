"""A defect in the pool itself, or a system that is out of threads: whoever waits is told, and the pool goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from bullpen import Pool, RecyclePolicy, RestartPolicy, Timeout, WorkerLost, primitives
from bullpen.pools.dispatch.dispatcher import Dispatcher

from .support import PATIENCE, Blocker, eventually


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
@pytest.mark.parametrize("name", ["_take", "_go_idle", "_after", "tell_end", "_finished_with_callbacks"])
def test_a_worker_that_cannot_report_is_dead_and_replaced(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Pool(1, **options) as pool, Blocker() as blocker:
        futures = [pool.submit(blocker, 1)]
        blocker.wait_entered()
        if name == "_finished_with_callbacks":
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


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("limit", ["timeout", "queue_timeout", "run_timeout"])
def test_limits_are_enforced_as_soon_as_the_timer_can_start(
    limit: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start_thread = primitives.start_thread
    failed: list[str] = []

    def start(target: Callable[[], None], name: str) -> threading.Thread:
        if name.endswith("timer") and (error is RuntimeError or not failed):  # an interrupt comes once
            failed.append(name)
            raise error("can't start new thread")
        return start_thread(target, name)

    with (
        Blocker() as blocker,
        Pool(2, recycling=RecyclePolicy(idle_timeout=None), restarts=RestartPolicy(reconcile_interval=None)) as pool,
    ):
        limited = pool.using(**{limit: 0.05})
        if limit != "run_timeout":
            blockers = [pool.submit(blocker, number) for number in range(2)]
            blocker.wait_entered(2)
        monkeypatch.setattr(primitives, "start_thread", start)
        if error is RuntimeError or limit == "run_timeout":
            first = limited.submit(blocker, 2)
            if error is RuntimeError:
                assert eventually(lambda: "no time limit is enforced" in caplog.text)
        else:
            with pytest.raises(KeyboardInterrupt):
                limited.submit(blocker, 2)
        monkeypatch.undo()
        second = limited.submit(blocker, 3)
        assert isinstance(second.exception(PATIENCE), Timeout)
        if error is RuntimeError:
            assert isinstance(first.exception(PATIENCE), Timeout)
        blocker.release()
    if limit != "run_timeout":
        assert [future.result() for future in blockers] == [0, 1]
