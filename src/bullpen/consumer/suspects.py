"""Which one was it? When a worker dies, all that ran beside the task that killed it has died with it.

So of the tasks that have lost two workers, and would fail with a third one, a worker runs one at a time: it dies with
the guilty one alone, and the others succeed. What has only lost one worker, or none, may run beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from bullpen.tasks.task import MAX_CRASHES

if TYPE_CHECKING:
    from bullpen.consumer.attempt import Attempt

TRIAL = 2.0  # seconds; whatever has not killed its worker by then, others need not wait for


class Suspects:
    """Of one worker, for all its lanes. On the loop's thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._on_trial: Attempt | None = None
        self._until = 0.0

    def may_begin(self, attempt: Attempt) -> bool:
        """Whether it may run now; then no other suspect may, until its end is written, or for some seconds."""
        if attempt.task.crashes < MAX_CRASHES - 1:
            return True
        now = self._clock()
        if self._on_trial is not None and self._on_trial.is_held and now < self._until:
            return False
        self._on_trial, self._until = attempt, now + TRIAL
        return True

    @staticmethod
    def pause(luck: float) -> float:
        """In how many seconds one that may not begin is to be tried again, so that they do not come together."""
        return TRIAL * (0.2 + luck)
