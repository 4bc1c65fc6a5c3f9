"""Finds the task that kills its worker. All tasks that ran on a dead worker are suspects.

A task that has lost two workers fails with the third. So a worker runs such tasks one at a time: the task that kills
its worker dies alone, and the others succeed. Tasks that have lost at most one worker may run beside it.
"""

from __future__ import annotations

from collections.abc import Callable

from bullpen.tasks.model.task import MAX_CRASHES, Task

TRIAL = 2.0  # seconds; after that the next suspect may begin


class PoisonIsolation:
    """Belongs to one worker and all its lanes. Every method runs on the loop's thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._is_held: Callable[[], bool] = bool  # whether the task on trial is not settled yet
        self._until = 0.0

    def may_begin(self, task: Task, is_held: Callable[[], bool]) -> bool:
        """Whether `task` may run now. A suspect that may is on trial until it is settled, at most `TRIAL` seconds."""
        if task.crashes < MAX_CRASHES - 1:
            return True
        now = self._clock()
        if self._is_held() and now < self._until:
            return False
        self._is_held, self._until = is_held, now + TRIAL
        return True

    @staticmethod
    def pause(random: float) -> float:
        """Seconds until a suspect that may not begin is tried again; jittered, so that suspects come apart."""
        return TRIAL * (0.2 + random)
