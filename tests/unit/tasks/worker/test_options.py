from __future__ import annotations

from datetime import timedelta

import pytest

from bullpen import InvalidOption, TaskQueue, WorkerPool
from bullpen.tasks.model.task import MAX_LEASE


@pytest.mark.parametrize("lease", [MAX_LEASE + 1, timedelta(days=2), 0, -1.0])
def test_a_lease_lasts_at_most_a_day(lease: float | timedelta) -> None:
    with TaskQueue("memory://") as queue:
        WorkerPool(queue, lease=MAX_LEASE)
        with pytest.raises(InvalidOption, match="lease must be > 0 seconds"):
            WorkerPool(queue, lease=lease)
