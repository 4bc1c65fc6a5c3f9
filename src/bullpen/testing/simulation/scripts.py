"""The functions of a simulation: each task has a script, with one act for every attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from bullpen.errors import Cancel, Retry, Snooze
from bullpen.tasks.model.context import CurrentTask, current_task
from bullpen.tasks.model.retry import Backoff
from bullpen.testing.history import Record, Write
from bullpen.testing.simulation.world import SimulatedProcess, Vanished, World

QUEUES = ("default", "side")
EVENTS = ("event-0", "event-1", "event-2")
Script = list[
    str
]  # acts, written as "kind:seconds"; the last one is repeated. Steps come first: all attempts play them

# What an act is, and how often, among those that are not "ok".
KINDS = {
    "fail": 6,
    "retry": 2,  # raises Retry
    "snooze": 2,
    "cancel": 1,  # raises Cancel
    "exit": 1,  # raises what would end the process
    "block": 3,  # blocks the event loop
    "stubborn": 5,  # does not end when it is cancelled
    "kill": 3,  # kills its process
    "long": 3,  # takes several leases
}


STEPS = ("step", "flaky", "sleep", *EVENTS)


def draw_script(random: Random, lease: float, trouble: float) -> Script:
    if random.random() < trouble * 0.1:
        return [f"kill:{random.random():.3f}"]  # poison
    acts: Script = []
    while random.random() < trouble and len(acts) < 4:
        (kind,) = random.choices(list(KINDS), list(KINDS.values()))
        seconds = {"block": 3 * lease, "stubborn": 15.0, "long": 2 * lease}.get(kind, 1.0) * random.random()
        acts.append(f"{kind}:{seconds:.3f}")
    return [*acts, f"ok:{random.random() * random.choice((0.0, 0.5, 3.0)):.3f}"]


def draw_steps(random: Random, number: int, pauses: bool) -> Script:
    """Steps, sleeps and waits, for one task of three. The n-th of a script is the same in every attempt."""
    if number % 3:
        return []
    kinds = ("step", "step", "flaky", "sleep", *EVENTS) if pauses else ("step", "flaky")
    return [
        f"{random.choice(kinds)}:{random.random() * random.choice((0.1, 2.0)):.3f}" for _ in range(random.randint(1, 4))
    ]


def draw_options(random: Random, number: int) -> dict[str, Any]:
    """How a task is to be run."""
    options: dict[str, Any] = {"queue": QUEUES[random.random() < 0.3]}
    for chance, name, value in (
        (0.3, "priority", random.randrange(10)),
        (0.5, "max_retries", random.randrange(4)),
        (0.2, "delay", random.random() * 5),
        (0.2, "timeout", 0.5 + random.random() * 4),
        (0.1, "expires", 1 + random.random() * 6),
        (0.1, "at_most_once", True),
        (0.1, "unique_key", f"key-{number % 3}"),
        (0.2, "concurrency_key", f"same-{number % 2}"),
        (0.1, "interval", 0.5 + random.random() * 4),
    ):
        if random.random() < chance:
            options[name] = value
    options["backoff"] = Backoff(base=0.1 + random.random() * 0.4, max_delay=3.0)
    if "interval" in options:
        options.pop("at_most_once", None)
        if random.random() < 0.5:
            options["on_failure"] = "continue"
    return options


def draw_schedule(random: Random, number: int) -> dict[str, Any]:
    """When a schedule is to run, often; it is known by its number."""
    return {
        "queue": QUEUES[number % 2],
        "schedule_key": f"schedule-{number}",
        "cron": "*/2 * * * * *" if number % 3 else "* * * * * *",
        "overlap": ("skip", "queue", "allow")[number % 3],
        "misfire": random.choice(("run", "skip")),
        "misfire_grace": random.choice((0.5, 60.0)),
        "max_retries": number % 3,
        "backoff": Backoff(base=0.1, max_delay=1.0),
    }


class Stage:
    """Where scripts are played. One simulation at a time."""

    def __init__(self, world: World, write: Write, kill: Callable[[SimulatedProcess, str], object]) -> None:
        self._world = world
        self._write = write
        self._kill = kill

    async def play(self, script: Script) -> str:
        """The function of all tasks."""
        task = current_task()
        world = self._world
        steps = [act for act in script if act.partition(":")[0] in STEPS]
        for number, step in enumerate(steps):
            await self._play_step(task, f"{number}", step)
        acts = script[len(steps) :]
        kind, _, written = acts[min(task.attempt, len(acts)) - 1].partition(":")
        seconds = float(written)
        process = world.current
        assert process is not None
        if kind == "block":
            loop: Any = asyncio.get_running_loop()
            loop.blocked_until = world.now + seconds
            await asyncio.sleep(0)
        elif kind == "stubborn":
            await self._stay(seconds)
        else:
            task.progress(1, 2)
            await asyncio.sleep(seconds)
        self._write(Record(at=world.now, actor=process.name, op="effect", task=task.id, attempt=task.attempt))
        match kind:
            case "fail":
                raise ValueError(kind)
            case "retry":
                raise Retry(kind, after=seconds)
            case "snooze":
                raise Snooze(seconds)
            case "cancel":
                raise Cancel(kind)
            case "exit":
                raise SystemExit(kind)
            case "kill":
                self._kill(process, "its task")
                raise Vanished
        return kind

    async def _play_step(self, task: CurrentTask, key: str, act: str) -> None:
        kind, _, written = act.partition(":")
        steps, seconds = task.using(key=key, max_retries=5, backoff=0.1), float(written)
        if kind == "sleep":
            await steps.asleep(seconds)
        elif kind in EVENTS:
            payload = await steps.await_event(kind, timeout=3 * seconds)
            if payload not in (None, kind):
                self._world.defects.append(f"a wait for {kind} has got {payload!r}")
        elif await steps.astep(self._work, kind, seconds) != seconds:
            self._world.defects.append(f"step {key} of task {task.id} has another result")

    async def _work(self, kind: str, seconds: float) -> float:
        """The function of all steps."""
        await asyncio.sleep(seconds)
        if kind == "flaky" and self._world.random.random() < 0.5:
            raise ValueError(kind)
        return seconds

    async def _stay(self, seconds: float) -> None:
        """Ignore every request to end."""
        until = self._world.now + seconds
        process = self._world.current
        assert process is not None
        while self._world.now < until and not process.gone:
            try:
                await asyncio.sleep(until - self._world.now)
            except asyncio.CancelledError:
                pass
