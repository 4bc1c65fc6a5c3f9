"""What several threads do with one process at the same moment."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any
from unittest.mock import MagicMock

import pytest

from bullpen.pools.dispatch.request import DONE
from bullpen.pools.runtimes.process.supervised import Supervised

PATIENCE = 30


class Deaf(Supervised):
    """One that has ended as soon as somebody says so."""

    def _encode(self, request: Any) -> Any:
        raise ValueError(request)

    def _hear_the_rest(self) -> bool:
        return False

    def _close(self) -> None:
        pass


@pytest.fixture
def process() -> Deaf:
    return Deaf(MagicMock(capacity=1), MagicMock(), cancel_grace=PATIENCE)


@pytest.mark.parametrize("how", ["it was answered", "it could not be sent"])
def test_a_request_that_is_cancelled_as_it_ends_is_not_kept(process: Deaf, how: str) -> None:
    request = MagicMock()
    process._worker.requests = (request,)

    def cancelled_meanwhile(*_: Any) -> None:
        process.cancel(request)
        assert process._early == {request}, "then this shows nothing"
        process._worker.requests = ()

    process._events.finished = cancelled_meanwhile  # type: ignore[assignment,method-assign]
    if how == "it was answered":
        process._requests[1] = request
        process._ids[request] = 1
        process.finished(1, DONE, None)
    else:
        process.hand(request)
    assert process._early == set()


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="there are no such descriptors here")
@pytest.mark.parametrize("group", [False, True])
def test_no_signal_goes_to_a_descriptor_that_is_closed_meanwhile(
    process: Deaf, group: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pidfd = os.pidfd_open(os.getpid())
    process._stopping = True
    process.started(2**30, pidfd)  # nobody's number
    looked: list[os.stat_result] = []

    def ends_meanwhile(*_: Any) -> None:
        ending.start()
        ending.join(0.1)  # it could close it now
        looked.append(os.fstat(pidfd))

    ending = threading.Thread(target=process.ended, args=(0, ""))
    monkeypatch.setattr(*((os, "killpg") if group else (signal, "pidfd_send_signal")), ends_meanwhile)
    (process._signal_group if group else process._signal)(signal.SIGCONT)
    ending.join(PATIENCE)
    assert looked
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(pidfd)
    (process._signal_group if group else process._signal)(signal.SIGCONT)
    assert len(looked) == 1, "after the end there is nobody"
