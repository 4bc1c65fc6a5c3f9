"""Processes, event loops and time, all on one thread: the seed decides which one runs next.

A process has one event loop or several, as a worker has one for its tasks and one for its leases. Within a loop,
callbacks run in their order, as asyncio promises; between loops any order is possible. One callback is one step, and
takes `STEP` seconds of virtual time. When none can run, time jumps to the next timer.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from asyncio import events
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

EPOCH = 1_700_000_000.0
STEP = 0.0001
HICCUPS = 0.005  # how many steps take much longer
MOST_STEPS = 15_000  # at a stretch
_ROUNDS_OF_LIMBO = 100


class Vanished(BaseException):
    """Raised inside a process at the instant at which it is killed; what it does to get out of it has no effect."""


class World:
    """All processes, and the time that they share."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 1000.0
        self.skew = EPOCH  # of the store's clock
        self.steps = 0
        self.processes: dict[int, SimulatedProcess] = {}  # by pid
        self.current: SimulatedProcess | None = None
        self.defects: list[str] = []
        self._loops: list[Loop] = []
        self._timers: list[tuple[float, int, asyncio.TimerHandle, Loop]] = []  # a heap
        self._made = 0

    def store_time(self) -> float:
        return self.now + self.skew

    def new_process(self, name: str, host: str) -> SimulatedProcess:
        process = SimulatedProcess(self, name, host, pid=100 + len(self.processes))
        self.processes[process.pid] = process
        return process

    def add_loop(self, loop: Loop) -> None:
        self._loops.append(loop)

    def drop(self, process: SimulatedProcess) -> None:
        """None of its loops goes on."""
        self._loops = [loop for loop in self._loops if loop.process is not process]

    def run(self, until: Callable[[], bool], deadline: float) -> bool:
        """Go on until something is so; False when the time is over first, or it takes too many steps."""
        last = self.steps + MOST_STEPS
        while not until():
            if self.now >= deadline or self.steps >= last:
                return False
            self.step(deadline)
        return True

    def step(self, deadline: float) -> None:
        now, random = self.now, self.random.random
        able = [loop for loop in self._loops if loop.pending and loop.can_go_on(now)]
        if not able:
            self._move(max(self._next_event(deadline), now))
            return
        self.steps += 1
        self._run_one(able[int(random() * len(able))] if len(able) > 1 else able[0])
        self._move(now + (random() * 0.2 if random() < HICCUPS else STEP))

    def _run_one(self, loop: Loop) -> None:
        handle = loop.pending.popleft()
        if not handle.cancelled():
            self.current = loop.process
            events._set_running_loop(loop)
            try:
                handle._run()
            finally:
                events._set_running_loop(None)
                self.current = None

    def _next_event(self, deadline: float) -> float:
        timers = self._timers
        while timers and (timers[0][2].cancelled() or timers[0][3].process.gone):
            heapq.heappop(timers)
        thawing = [max(loop.process.frozen_until, loop.blocked_until) for loop in self._loops if loop.pending]
        return min(deadline, timers[0][0] if timers else math.inf, *thawing)

    def add_timer(self, timer: asyncio.TimerHandle, loop: Loop) -> None:
        self._made += 1
        heapq.heappush(self._timers, (timer.when(), self._made, timer, loop))

    def _move(self, now: float) -> None:
        self.now = now
        timers = self._timers
        while timers and timers[0][0] <= now:
            _, _, timer, loop = heapq.heappop(timers)
            if not timer.cancelled():
                loop.pending.append(timer)

    def bury(self) -> None:
        """End everything that is left, without any effect."""
        for process in self.processes.values():
            process.gone = True
        for process in self.processes.values():
            for loop in process.loops:
                self._let_end(loop)
                loop.close()

    def _let_end(self, loop: Loop) -> None:
        for _ in range(_ROUNDS_OF_LIMBO):
            loop.tasks = [task for task in loop.tasks if not task.done()]
            if not loop.tasks:
                break
            for task in loop.tasks:
                task.cancel()
            while loop.pending:
                self._run_one(loop)
        for task in loop.tasks:
            self.defects.append(f"{task!r} of {loop.process.name} does not end")
        loop.pending.clear()


class SimulatedProcess:
    """Something that can vanish, or stand still, as a whole."""

    def __init__(self, world: World, name: str, host: str, pid: int) -> None:
        self.world = world
        self.name = name
        self.host = host
        self.pid = pid
        self.began = world.now
        self.gone = False
        self.frozen_until = -math.inf
        self.cut_off_until = -math.inf  # from the store
        self.loops: list[Loop] = []

    def new_loop(self) -> Loop:
        loop = Loop(self)
        self.loops.append(loop)
        self.world.add_loop(loop)
        return loop

    def start(self, main: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run something on its first loop."""
        loop = self.loops[0] if self.loops else self.new_loop()
        return loop.create_task(main)

    def vanish(self) -> None:
        """From now on nothing that it does reaches anybody."""
        self.gone = True
        self.world.drop(self)


class Loop(asyncio.BaseEventLoop):
    """An event loop whose steps are made by a `World`."""

    def __init__(self, process: SimulatedProcess) -> None:
        super().__init__()
        self.process = process
        self.blocked_until = -math.inf
        self.pending = self._ready  # type: ignore[attr-defined]
        self.tasks: list[asyncio.Task[Any]] = []

    def time(self) -> float:
        return self.process.world.now

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:  # type: ignore[override]
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self.process.world.add_timer(timer, self)
        return timer

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:  # type: ignore[override]
        return self.call_at(self.process.world.now + delay, callback, *args, context=context)

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        return self.call_soon(callback, *args, context=context)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task = super().create_task(coro, **options)
        self.tasks.append(task)
        if len(self.tasks) > 100:
            self.tasks = [one for one in self.tasks if not one.done()]
        return task

    def can_go_on(self, now: float) -> bool:
        return self.process.frozen_until <= now >= self.blocked_until

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.process.gone:
            error = context.get("exception")
            self.process.world.defects.append(f"{self.process.name}: {context.get('message')}: {error!r}")

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is left out when its time comes."""
