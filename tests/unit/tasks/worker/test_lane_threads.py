"""`LaneThreads`: how many runners start, and when the loop learns of an end. No thread runs here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from bullpen import Pool
from bullpen.tasks.worker.lane_threads import LOOK_AGAIN, LaneThreads
from bullpen.testing import ScriptedRuntime
from tests.scenarios.task_worker_support import in_virtual_time


class Attempt:
    """Has its `number` as its settlement. `inside` is called while its function runs."""

    def __init__(self, desk: Desk, number: int, inside: Callable[[], None] = lambda: None) -> None:
        self._desk = desk
        self.number = number
        self._inside = inside

    def run_on_thread(self) -> None:
        self._inside()
        self._desk.threads.end(self, self.number)  # type: ignore[arg-type]


class Desk:
    """The threads of a lane, with workers that run when a test says so."""

    def __init__(self) -> None:
        self.runtime = ScriptedRuntime()
        self.settled: list[int] = []
        self.released: list[int] = []
        self.threads = LaneThreads(
            lambda: Pool(100, runtime=self.runtime),
            lambda attempt, number: self.settled.append(number),  # type: ignore[arg-type]
            lambda attempt, error: self.released.append(attempt.number),  # type: ignore[attr-defined]
        )

    def run(self, *inside: Callable[[], None], count: int = 0) -> None:
        """Hand over attempts in one turn of the loop."""
        for number, one in enumerate([*inside, *[lambda: None] * count]):
            self.threads.run(Attempt(self, number, one))  # type: ignore[arg-type]

    @property
    def runners(self) -> int:
        return len(self.runtime.running)


async def turn() -> None:
    """Let the loop do what is ready, also what another thread would have called for."""
    for _ in range(3):
        await asyncio.sleep(0)


def in_lane(test: Callable[[Desk], Any]) -> Callable[[], None]:
    async def main() -> None:
        desk = Desk()
        try:
            await test(desk)
        finally:
            desk.runtime.run_all()
            desk.threads.close()

    def run() -> None:
        in_virtual_time(main)

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@in_lane
async def test_one_runner_runs_what_was_claimed_together(desk: Desk) -> None:
    woken = list[bool]()
    desk.run(*[lambda: woken.append(desk.threads._is_woken)] * 10)
    await turn()
    assert desk.runners == 1
    desk.runtime.run_next()
    await turn()
    assert desk.settled == list(range(10))
    assert woken == [False] * 10, "only the last end wakes the loop"
    await asyncio.sleep(10 * LOOK_AGAIN)
    assert desk.runners == 0, "nothing waits, so nothing starts"


@in_lane
async def test_runners_double_while_attempts_wait(desk: Desk) -> None:
    desk.run(count=20)
    seen = []
    for _ in range(7):
        await turn()
        seen.append(desk.runners)
        await asyncio.sleep(LOOK_AGAIN)
    assert seen == [1, 2, 4, 8, 16, 20, 20], "one for each attempt at most"


@in_lane
async def test_each_turn_of_the_loop_starts_a_runner(desk: Desk) -> None:
    desk.run(lambda: None)
    await turn()
    desk.runtime.run_next()
    await turn()
    desk.run(lambda: None)
    assert desk.runners == 1
    desk.runtime.run_next()
    await turn()
    assert desk.settled == [0, 0]


@in_lane
async def test_an_end_is_settled_while_the_same_runner_blocks(desk: Desk) -> None:
    """The second function sees the loop settle the first: by a look, because no thread wakes the loop."""
    seen = []

    def blocks() -> None:
        desk.threads._look(0)  # what the loop does meanwhile
        seen.append(desk.settled[:])

    desk.run(lambda: None, blocks, blocks)
    desk.runtime.run_next()
    assert seen == [[0], [0, 1]]


@in_lane
async def test_an_attempt_that_comes_when_the_runner_has_ended_gets_another(desk: Desk) -> None:
    """The look of the first batch is still to come, so the second batch starts no runner itself."""
    desk.run(count=2)
    await turn()
    desk.runtime.run_next()
    desk.run(count=1)
    assert desk.runners == 0
    await turn()
    assert desk.runners == 1


@in_lane
async def test_without_a_thread_the_attempts_that_wait_are_released(desk: Desk) -> None:
    desk.runtime = ScriptedRuntime(auto_ready=False)
    desk.run(count=3)
    desk.threads.release_unstarted()
    assert desk.released == [], "the thread may still start"
    desk.runtime.die(desk.runtime.starting[0], RuntimeError("can't start new thread"))
    for worker in desk.runtime.starting:
        desk.runtime.die(worker, RuntimeError("can't start new thread"))
    desk.threads.release_unstarted()
    assert desk.released == [0, 1, 2]


@in_lane
async def test_an_attempt_that_cannot_be_settled_is_released_and_the_next_ones_run(desk: Desk) -> None:
    def broken() -> None:
        raise RuntimeError("a log handler raised")

    desk.run(broken, lambda: None)
    desk.runtime.run_next()
    await turn()
    assert (desk.released, desk.settled) == ([0], [1])


@in_lane
async def test_a_runner_that_a_closed_pool_has_cancelled_releases_nothing(desk: Desk) -> None:
    """The attempts are settled by then: the worker closes its lanes last."""
    desk.runtime = ScriptedRuntime(auto_ready=False)
    desk.run(count=1)
    runner = desk.threads._last_runner
    assert runner is not None
    assert runner.cancel()
    desk.threads.release_unstarted()
    assert desk.released == []
    desk.runtime.ready()
