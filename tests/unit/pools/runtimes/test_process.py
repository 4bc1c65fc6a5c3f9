"""A worker process that is stuck with prefetched requests, and one with a cancelled request."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest

from bullpen.pools.dispatch.request import DONE
from bullpen.pools.runtimes.process import process as module
from bullpen.pools.runtimes.process import supervised, wire
from bullpen.pools.runtimes.process.process import Process


class Nudged(Process):
    """One that has a request and answers quickly; signals to it are only noted."""

    __slots__ = ("signals",)

    def __init__(self, request: Any, events: Any) -> None:
        super().__init__(MagicMock(capacity=1, requests=[request]), events, MagicMock(max_rss=None, cancel_grace=1))
        self.signals: list[int] = []
        self._channel = MagicMock()
        self._outbox = self._inbox = None
        self._requests[1] = request
        self._ids[request] = 1
        self._sent = 1
        self._numbers = iter(range(2, 100))  # type: ignore[assignment]
        self._streak = module.STREAK
        self._watched = True

    def _signal(self, number: int) -> None:
        self.signals.append(number)


def a_request() -> MagicMock:
    return MagicMock(fn=abs, args=(-1,), kwargs={}, function=abs, ended=False)


def test_one_that_is_stuck_is_nudged_again_when_the_socket_had_no_room_for_what_it_should_see() -> None:
    process = Nudged(a_request(), MagicMock())
    process._requests[2] = a_request()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "io_thread", MagicMock())
        for waits in (True, True, False, False):
            process._channel.waits = waits  # type: ignore[misc]
            process._watch(process._answers)
    assert process._recalls == 1
    assert process.signals == [wire.NUDGE] * 3


def test_a_request_that_ends_while_it_is_cancelled_is_not_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    request = a_request()
    process = Nudged(request, MagicMock())
    io_thread = MagicMock()
    monkeypatch.setattr(supervised, "io_thread", io_thread)
    io_thread.call_later.side_effect = lambda *_: process.finished(1, DONE, None) or "timer"  # type: ignore[func-returns-value]
    process._events.finished.return_value = None  # type: ignore[attr-defined]
    process.cancel(request)
    io_thread.cancel_timer.assert_called_once_with("timer")
