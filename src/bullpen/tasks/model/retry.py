"""How long a failed task waits before it is tried again."""

from __future__ import annotations

from typing import Annotated

import msgspec

JITTER = 0.1
_LARGEST_EXPONENT = 60
_Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e11)]


class Backoff(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """After the n-th failure: `base * factor**n` seconds, plus a random share of up to `jitter`; at most `max_delay`.

    `Backoff(base=30)` waits 60, 120, 240 … seconds. A `factor` of 1 is a constant delay. `delays` are explicit delays,
    one after the other; the last one repeats.
    """

    base: _Seconds = 1.0
    max_delay: _Seconds = 3600.0
    factor: Annotated[float, msgspec.Meta(ge=0.0, le=1e4)] = 2.0
    jitter: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = JITTER
    delays: tuple[_Seconds, ...] = ()

    def delay(self, failures: int, random: float) -> float:
        """Seconds to wait after this number of failures; `random` is a random number from 0 to 1."""
        if self.delays:
            plain = self.delays[min(max(failures, 1), len(self.delays)) - 1]
        else:
            plain = self.base * self.factor ** min(failures, _LARGEST_EXPONENT)
        return min(plain * (1.0 + self.jitter * random), self.max_delay)

    def waits(self, retries: int) -> tuple[float, ...]:
        """Seconds before each of so many retries, without the random share."""
        return tuple(self.delay(failures, 0.0) for failures in range(1, retries + 1))
