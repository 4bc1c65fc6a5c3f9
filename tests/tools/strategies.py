"""Which actor runs next at each choice: at random, by priorities, or one after the other through all schedules.

Every strategy but `Replay` is asked for one schedule at a time: `begin` (False when it has no schedule left), then
`choose` at each choice, then `finish`. The same seed gives the same schedules.
"""

from __future__ import annotations

import random
from typing import Protocol

from tests.tools.actors import Actor, Strategy


class ReplayDiverged(RuntimeError):
    """The scenario did not reach the choice that the schedule makes: it depends on more than the schedule."""


class Explorer(Strategy, Protocol):
    """A strategy for many schedules, `diverged` of which did not go as planned."""

    @property
    def diverged(self) -> int: ...
    def begin(self, index: int) -> bool: ...
    def finish(self, choices: list[int]) -> None: ...


class RandomWalk:
    """At each choice, with a probability drawn per schedule, jump to any actor; else stay.

    Always jumping rarely lets one actor get far while another stands still; rarely jumping does.
    """

    _STAY = (0.0, 0.5, 0.8, 0.95)
    replays = False
    diverged = 0

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._rng = random.Random()
        self._stay = 0.0

    def begin(self, index: int) -> bool:
        self._rng.seed((self._seed << 32) + index)
        self._stay = self._rng.choice(self._STAY)
        return True

    def choose(self, current: Actor | None, runnable: list[Actor]) -> Actor:
        if current is not None and self._rng.random() < self._stay:
            return current
        return runnable[int(self._rng.random() * len(runnable))]

    def finish(self, choices: list[int]) -> None:
        """Nothing is learned from one schedule for the next."""


class Priorities:
    """The runnable actor of the highest priority goes on; at a few random choices it becomes the lowest.

    Finds a bug that needs d ordered events with a probability of at least 1/(n·k^(d-1)) per schedule, for n actors and
    k steps (Burckhardt et al., "A randomized scheduler with probabilistic guarantees of finding bugs").
    """

    replays = False
    diverged = 0

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._rng = random.Random()
        self._priority: dict[int, float] = {}
        self._changes: set[int] = set()
        self._taken = 0
        self._longest = 20

    def begin(self, index: int) -> bool:
        self._rng.seed((self._seed << 32) + index)
        self._priority.clear()
        depth = self._rng.randrange(4)
        self._changes = {self._rng.randrange(self._longest) for _ in range(depth)}
        self._taken = 0
        return True

    def choose(self, current: Actor | None, runnable: list[Actor]) -> Actor:
        best, first = -float("inf"), runnable[0]
        for actor in runnable:
            priority = self._priority.get(actor.number)
            if priority is None:
                priority = self._priority[actor.number] = self._rng.random()
            if priority > best:
                best, first = priority, actor
        taken = self._taken
        self._taken += 1
        if taken in self._changes:
            self._priority[first.number] = -float(taken + 1)
            self._changes.discard(taken)
            return self.choose(current, runnable)
        return first

    def finish(self, choices: list[int]) -> None:
        self._longest = max(self._longest, len(choices))


class FewPreemptions:
    """Every schedule with at most `preemptions` preemptions, those with fewer first, each once.

    A preemption is taking the turn from an actor that could go on. A schedule is a prefix of choices that was not
    tried yet; after it no actor is preempted. Among equals the order is random, so that a search that is cut short has
    looked everywhere.
    """

    replays = False

    def __init__(self, seed: int, preemptions: int) -> None:
        self._rng = random.Random(seed)
        self._frontier: list[list[tuple[list[int], int, int]]] = [[] for _ in range(preemptions + 1)]
        self._started = False
        self.diverged = 0
        self._prefix: list[int] = []
        self._cost = 0
        self._taken = 0
        self._branches: list[tuple[int, int, int]] = []

    def begin(self, index: int) -> bool:
        self._taken = 0
        self._branches.clear()
        if not self._started:
            self._started = True
            return True
        for cost, entries in enumerate(self._frontier):
            if entries:
                drawn = int(self._rng.random() * len(entries))
                entries[drawn], entries[-1] = entries[-1], entries[drawn]
                choices, position, number = entries.pop()
                self._prefix = [*choices[:position], number]
                self._cost = cost
                return True
        return False

    def choose(self, current: Actor | None, runnable: list[Actor]) -> Actor:
        position = self._taken
        self._taken += 1
        if position < len(self._prefix):
            planned = _find(self._prefix[position], runnable)
            if planned is not None:
                return planned
            # What could be branched off from here continues no schedule that was seen: run on, but learn nothing.
            self.diverged += 1
            self._prefix = []
            self._cost = len(self._frontier)
        chosen = current or runnable[0]
        cost = self._cost + (current is not None)
        if cost < len(self._frontier):
            for actor in runnable:
                if actor is not chosen:
                    self._branches.append((cost, position, actor.number))
        return chosen

    def finish(self, choices: list[int]) -> None:
        for cost, position, number in self._branches:
            self._frontier[cost].append((choices, position, number))


class Alternating:
    """Takes turns between strategies, and leaves out those that have no schedule left."""

    replays = False

    def __init__(self, explorers: list[Explorer]) -> None:
        self._explorers = explorers
        self._turn: Explorer = explorers[0]
        self._all = tuple(explorers)

    @property
    def diverged(self) -> int:
        return sum(explorer.diverged for explorer in self._all)

    def begin(self, index: int) -> bool:
        while self._explorers:
            self._turn = self._explorers[index % len(self._explorers)]
            if self._turn.begin(index):
                return True
            self._explorers.remove(self._turn)
        return False

    def choose(self, current: Actor | None, runnable: list[Actor]) -> Actor:
        return self._turn.choose(current, runnable)

    def finish(self, choices: list[int]) -> None:
        self._turn.finish(choices)


class Replay:
    """Exactly the given choices."""

    replays = True

    def __init__(self, choices: list[int]) -> None:
        self._choices = iter(choices)

    def choose(self, current: Actor | None, runnable: list[Actor]) -> Actor:
        number = next(self._choices, None)
        if number is None:
            return current or runnable[0]
        actor = _find(number, runnable)
        if actor is None:
            raise ReplayDiverged(f"actor {number} cannot run here, only {[actor.name for actor in runnable]}")
        return actor


def _find(number: int, runnable: list[Actor]) -> Actor | None:
    for actor in runnable:
        if actor.number == number:
            return actor
    return None
