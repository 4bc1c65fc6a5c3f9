"""What a quick worker process is given ahead, and one that is told to end a request."""

from __future__ import annotations

import pickle
import threading
from typing import Any
from unittest.mock import MagicMock

import pytest

from bullpen.core.request import DONE
from bullpen.runtimes.process import process as module
from bullpen.runtimes.process import supervised, wire
from bullpen.runtimes.process.process import Process

PATIENCE = 30


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


def test_what_is_given_ahead_is_not_begun_by_who_listens_before_it_is_noted() -> None:
    first, second = a_request(), a_request()
    events = MagicMock()
    process = Nudged(first, events)
    received: list[Any] = [[], [(wire.QUICK, 1, pickle.dumps(1), ())]]
    process._channel.receive = lambda: received.pop(0)  # type: ignore[method-assign]
    listener = threading.Thread(target=process._hear)

    def ahead(*_: Any) -> list[Any]:
        listener.start()
        listener.join(0.1)  # it could hear now that the first has ended
        return [second]

    events.ahead = ahead
    events.finished.return_value = second
    process._heard()
    listener.join(PATIENCE)
    assert list(process._requests.values()) == [second]


def test_one_that_is_stuck_is_nudged_again_when_the_socket_had_no_room_for_what_it_should_see() -> None:
    process = Nudged(a_request(), MagicMock())
    process._requests[2] = a_request()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "switchboard", MagicMock())
        for waits in (True, True, False, False):
            process._channel.waits = waits  # type: ignore[misc]
            process._watch(process._answers)
    assert process._recalls == 1
    assert process.signals == [wire.NUDGE] * 3


def test_nobody_insists_on_the_end_of_what_ended_while_it_was_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    request = a_request()
    process = Nudged(request, MagicMock())
    switchboard = MagicMock()
    monkeypatch.setattr(supervised, "switchboard", switchboard)
    switchboard.later.side_effect = lambda *_: process.finished(1, DONE, None) or "timer"  # type: ignore[func-returns-value]
    process._events.finished.return_value = None  # type: ignore[attr-defined]
    process.cancel(request)
    switchboard.never_mind.assert_called_once_with("timer")
