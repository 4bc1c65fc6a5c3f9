"""The queues that each lane of a worker serves: those that it names, and those in the store that match its patterns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bullpen.tasks.model.queue_patterns import is_pattern, lane_of
from bullpen.tasks.worker.options import Lane

REMEMBERED_FOR = 600.0  # seconds that a queue without tasks is still served


class ServedQueues:
    """Divides the queues of the store between the lanes of one worker.

    A name counts more than a pattern: a lane serves the queues that it names, and of the others those that match one of
    its patterns and no pattern of an earlier lane. A queue without tasks is served for some time, because a claim from
    it hears of the next task at once, and is forgotten then, because each queue makes a claim slower.
    """

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._lanes = lanes
        self._named = {queue for lane in lanes for queue in lane.queues if not is_pattern(queue)}
        self._seen: dict[str, float] = {}  # queues that match a pattern, and when they were last in the store
        self.has_patterns = any(is_pattern(queue) for lane in lanes for queue in lane.queues)

    def divide(self, existing: Iterable[str], now: float) -> list[tuple[str, ...]]:
        """The queues of each lane, if the store has the queues `existing`."""
        for queue in existing:
            if queue not in self._named:
                self._seen[queue] = now
        self._seen = {queue: seen for queue, seen in self._seen.items() if now - seen < REMEMBERED_FOR}
        lanes = [lane.queues for lane in self._lanes]
        divided = [list(named_queues(lane)) for lane in self._lanes]
        for queue in sorted(self._seen):
            number = lane_of(queue, lanes)
            if number is not None:
                divided[number].append(queue)
        return list(map(tuple, divided))


def named_queues(lane: Lane) -> tuple[str, ...]:
    return tuple(queue for queue in lane.queues if not is_pattern(queue))
