"""Runs an operation once for all callers that need it at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class SingleFlight:
    """The first caller runs the operation; callers that come meanwhile get its outcome. So a server that does not
    answer delays them once, not one after the other.
    """

    def __init__(self) -> None:
        self._is_running = False
        self._waiting: list[
            asyncio.Future[Exception | bool]
        ] = []  # for the outcome; False: the first caller was cancelled

    async def run(self, attempt: Callable[[], Awaitable[None]]) -> None:
        """Raises the error of `attempt`. Needs no event loop if `attempt` needs none and no other caller runs it."""
        while self._is_running:
            outcome: asyncio.Future[Exception | bool] = asyncio.get_running_loop().create_future()
            self._waiting.append(outcome)
            match await outcome:
                case True:
                    return
                case Exception() as error:
                    raise error
        self._is_running = True
        result: Exception | bool = False
        try:
            await attempt()
            result = True
        except Exception as error:
            result = error
            raise
        finally:
            self._is_running = False
            waiting, self._waiting = self._waiting, []
            for outcome in waiting:
                if not outcome.done():
                    outcome.set_result(result)
