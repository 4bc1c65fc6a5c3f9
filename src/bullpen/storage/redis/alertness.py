"""To stay awake while an answer is on its way, instead of going to sleep and being woken.

A server near by answers in a tenth of a millisecond. To be woken takes as long again where a CPU that has nothing to do
is given to somebody else, as on many virtual machines.
"""

from __future__ import annotations

import os
from pathlib import Path

LONGEST = 200e-6  # seconds; a server on another machine mostly takes longer
_MOST_IN_VAIN = 6
_MOST_SAID = 10_000  # bytes; what is longer takes longer
_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of a container


def has_several_cpus() -> bool:
    """Whether this process may use more than one at the same time."""
    if not hasattr(os, "sched_yield") or not hasattr(os, "sched_getaffinity"):
        return False
    try:
        most, period = _QUOTA.read_text().split()
        if most != "max" and int(most) < 2 * int(period):
            return False
    except (OSError, ValueError):
        pass  # there is none
    return len(os.sched_getaffinity(0)) > 1


class Alertness:
    """Whether it is worth it, with one server. If it was in vain, it is tried again later and later: in the end for one
    answer of 64. Of threads that wait at the same time none does: it would keep the others from running.
    """

    def __init__(self) -> None:
        self.waiting: set[object] = set()  # for an answer; who begins to wait or ends says so
        self._in_vain = 0  # how often, one after the other
        self._asleep = 0  # for how many answers nobody stays awake
        self._is_of_use = has_several_cpus()  # else the server could not run meanwhile

    @property
    def is_alone(self) -> bool:
        return len(self.waiting) <= 1

    def is_worth_it(self, said: int) -> bool:
        """Whether to stay awake for the answer to so many bytes. Who does tells how that has ended."""
        if not self._is_of_use or said > _MOST_SAID or not self.is_alone:
            return False
        if self._asleep > 0:
            self._asleep -= 1
            return False
        return True

    def ended(self, *, in_vain: bool) -> None:
        self._in_vain = min(self._in_vain + 1, _MOST_IN_VAIN) if in_vain else 0
        self._asleep = 2**self._in_vain - 1
