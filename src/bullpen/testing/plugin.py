"""Fixtures for pytest, which finds this module by its entry point. It imports nothing heavy until a fixture is used.

def test_a_new_user_gets_a_mail(bullpen_queue):
    sign_up("ada@example.org")
    assert_enqueued(send_email, "ada@example.org")
    run_until_empty(bullpen_queue)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from bullpen.tasks.client.task_queue import TaskQueue
    from bullpen.testing.clock import ManualClock


@pytest.fixture
def bullpen_app() -> TaskQueue | None:
    """The queue of your app. Override it in conftest.py; by default there is none."""
    return None


@pytest.fixture
def bullpen_clock() -> ManualClock:
    """The clock of `bullpen_queue`, which moves only by `advance`."""
    from bullpen.testing.clock import ManualClock

    return ManualClock()


@pytest.fixture
def bullpen_queue(bullpen_app: TaskQueue | None, bullpen_clock: ManualClock) -> Iterator[TaskQueue]:
    """`bullpen_app`, or a new queue, with an empty store in memory for each test."""
    from bullpen.tasks.client.task_queue import TaskQueue
    from bullpen.testing.isolation import in_memory

    with in_memory(bullpen_app or TaskQueue("memory://"), bullpen_clock) as queue:
        yield queue
