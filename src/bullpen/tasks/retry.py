"""How long a failed task waits before it is tried again."""

from __future__ import annotations

import msgspec

JITTER = 0.1
_LARGEST_EXPONENT = 60


class Backoff(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """After the n-th failure `base * factor**n` seconds, and a share of that more, up to `jitter`; at most `max_delay`.

    A `factor` of 1 is a constant delay. `steps`, if there are any, are the delays themselves, one after the other; the
    last one stays.
    """

    base: float = 1.0
    max_delay: float = 3600.0
    factor: float = 2.0
    jitter: float = JITTER
    steps: tuple[float, ...] = ()

    def delay(self, failures: int, luck: float) -> float:
        """Seconds to wait after so many failures; `luck` is a random number from 0 to 1."""
        if self.steps:
            plain = self.steps[min(max(failures, 1), len(self.steps)) - 1]
        else:
            plain = self.base * self.factor ** min(failures, _LARGEST_EXPONENT)
        return min(plain * (1.0 + self.jitter * luck), self.max_delay)
