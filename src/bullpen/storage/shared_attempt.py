"""Many who need the same thing done first: one does it, for all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class SharedAttempt:
    """Something that one caller at a time tries. Whoever comes meanwhile has the same outcome, so that a server that is
    silent is waited for once, and not by one after the other.
    """

    def __init__(self) -> None:
        self._is_tried = False
        self._waiting: list[asyncio.Future[Exception | bool]] = []  # for the outcome; False: who tried was cancelled

    async def make(self, attempt: Callable[[], Awaitable[None]]) -> None:
        """Raises what it raises. Needs no event loop if it does not."""
        while self._is_tried:
            outcome: asyncio.Future[Exception | bool] = asyncio.get_running_loop().create_future()
            self._waiting.append(outcome)
            match await outcome:
                case True:
                    return
                case Exception() as error:
                    raise error
        self._is_tried = True
        result: Exception | bool = False
        try:
            await attempt()
            result = True
        except Exception as error:
            result = error
            raise
        finally:
            self._is_tried = False
            waiting, self._waiting = self._waiting, []
            for outcome in waiting:
                if not outcome.done():
                    outcome.set_result(result)
