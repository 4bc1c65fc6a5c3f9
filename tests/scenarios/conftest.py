from __future__ import annotations

import pytest

from bullpen import primitives
from bullpen.testing import ManualClock
from tests.scenarios.support import NoThread


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """A clock for pools whose supervisor never runs: `tick` does its work. Jitter changes nothing meanwhile."""
    monkeypatch.setattr(primitives, "start_thread", lambda target, name: NoThread())
    monkeypatch.setattr(primitives.random, "random", lambda: 0.5)
    return ManualClock(now=0.0)
