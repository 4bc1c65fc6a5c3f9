"""How long a failed task waits before it is tried again."""

from __future__ import annotations

import msgspec

JITTER = 0.1
_LARGEST_EXPONENT = 60


class Backoff(msgspec.Struct, frozen=True, gc=False):
    """After the n-th failure `base * 2**n` seconds and up to a tenth more, at most `max_delay`."""

    base: float = 1.0
    max_delay: float = 3600.0

    def delay(self, failures: int, luck: float) -> float:
        """Seconds to wait after so many failures; `luck` is a random number from 0 to 1."""
        plain = self.base * 2.0 ** min(failures, _LARGEST_EXPONENT)
        return min(plain * (1.0 + JITTER * luck), self.max_delay)
