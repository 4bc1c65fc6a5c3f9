"""To stay awake while an answer is on its way, instead of going to sleep and being woken.

A server near by answers in a tenth of a millisecond. To be woken takes as long again where a CPU that has nothing to do
is given to somebody else, as on most virtual machines.
"""

from __future__ import annotations

import os

LONGEST = 200e-6  # seconds; a server on another machine mostly takes longer
_MOST_IN_VAIN = 6
_IS_OF_USE = hasattr(os, "sched_yield") and len(os.sched_getaffinity(0)) > 1  # else the server could not run meanwhile


class Alertness:
    """Whether it is worth it, on one connection. If it was in vain, it is tried again later and later: in the end for
    one answer of 64.
    """

    def __init__(self) -> None:
        self._in_vain = 0  # how often, one after the other
        self._asleep = 0  # for how many answers nobody stays awake

    def is_worth_it(self) -> bool:
        if self._asleep > 0:
            self._asleep -= 1
            return False
        return _IS_OF_USE

    def was_worth_it(self) -> None:
        self._in_vain = 0

    def was_in_vain(self) -> None:
        self._in_vain = min(self._in_vain + 1, _MOST_IN_VAIN)
        self._asleep = 2**self._in_vain - 1
