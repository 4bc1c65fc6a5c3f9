from __future__ import annotations

import logging
import math

import pytest

from bullpen.pools.supervision.timer import TimerQueue


def test_due_actions_run_once_the_earliest_first() -> None:
    queue, done = TimerQueue(), list[str]()
    queue.add(3.0, lambda: done.append("third"))
    queue.add(1.0, lambda: done.append("first"))
    queue.add(1.0, lambda: done.append("second"))
    queue.add(9.0, lambda: done.append("not yet"))
    assert queue.next_at == 1.0
    queue.run_due(0.5)
    assert done == []
    queue.run_due(3.0)
    queue.run_due(3.0)
    assert done == ["first", "second", "third"]
    assert (queue.next_at, len(queue)) == (9.0, 1)


def test_due_actions_that_are_added_meanwhile_run_too() -> None:
    queue, done = TimerQueue(), list[str]()

    def first() -> None:
        queue.add(1.0, lambda: done.append("at once"))
        queue.add(2.0, lambda: done.append("later"))

    queue.add(1.0, first)
    queue.run_due(1.0)
    assert done == ["at once"]
    assert queue.next_at == 2.0


class Chime:
    """Enters itself again each time."""

    def __init__(self, queue: TimerQueue) -> None:
        self.queue = queue
        self.struck = 0

    def strike(self) -> None:
        self.struck += 1
        self.queue.add_once(self.struck + 1.0, self.strike)


def test_an_action_of_add_once_waits_once_however_often_it_is_added() -> None:
    queue = TimerQueue()
    chime = Chime(queue)
    assert queue.add_once(1.0, chime.strike)
    assert not queue.add_once(0.5, chime.strike)
    assert queue.add_once(1.0, Chime(queue).strike)
    queue.run_due(3.0)
    assert chime.struck == 3
    assert len(queue) == 2


def test_an_action_that_fails_is_logged_and_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    queue, done = TimerQueue(), list[str]()
    queue.add(1.0, lambda: 1 // 0)
    queue.add(2.0, lambda: done.append("second"))
    with caplog.at_level(logging.ERROR, "bullpen"):
        queue.run_due(2.0)
    assert done == ["second"]
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("emptied", [TimerQueue.clear, TimerQueue.forget])
def test_nothing_is_left_of_a_timer_queue_that_was_cleared(emptied: object) -> None:
    queue = TimerQueue()
    chime = Chime(queue)
    queue.add(1.0, chime.strike)
    queue.add_once(1.0, chime.strike)
    assert callable(emptied)
    emptied(queue)
    queue.run_due(5.0)
    assert (chime.struck, queue.next_at) == (0, math.inf)
    assert queue.add_once(1.0, chime.strike), "it could never be entered again"
