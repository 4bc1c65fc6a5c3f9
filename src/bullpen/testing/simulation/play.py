"""One simulation, from its seed to the verdict."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import math
from asyncio import events
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from random import Random
from typing import Any
from unittest import mock

from bullpen import primitives
from bullpen.errors import InvalidOption, InvalidOptionType, InvalidTask, TasksLeft
from bullpen.tasks.client.clients import Clients
from bullpen.tasks.client.task_queue import TaskQueue
from bullpen.tasks.model.events import encode_payload
from bullpen.tasks.model.info import TaskInfo, info_of
from bullpen.tasks.model.registry import TaskRegistry
from bullpen.tasks.model.schedule_changes import paused
from bullpen.tasks.model.task import PENDING, Task
from bullpen.tasks.storage.memory import MemoryStorage
from bullpen.tasks.worker import identity
from bullpen.tasks.worker.attempt import TaskAttempt
from bullpen.tasks.worker.declarations import DeclaredSchedules
from bullpen.tasks.worker.lane import LaneRunner
from bullpen.tasks.worker.worker_pool import AsyncWorkerPool, WorkerState, queues_of
from bullpen.testing.checker import InvariantBroken, Verdict, check
from bullpen.testing.history import HistoryObserver, Record, as_lines, take_stock
from bullpen.testing.simulation.network import Client, Network
from bullpen.testing.simulation.scripts import (
    EVENTS,
    QUEUES,
    Stage,
    draw_options,
    draw_schedule,
    draw_script,
    draw_steps,
)
from bullpen.testing.simulation.world import SimulatedProcess, Vanished, World

MOST_KILLS = 2  # of tasks of a user: so often, and one more, a task may crash before it is poison
CALM_WITHIN = 150.0  # virtual seconds in which workers have to put everything in order
UNKNOWN_AFTER = 5.0
WHAT = ("kill", "kill", "freeze", "freeze", "cut", "away", "clock", "stop", "cancel", "cancel", "redrive")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The limits of a simulation. A value of None is drawn from the seed."""

    tasks: int | None = None
    workers: int | None = None
    concurrency: int | None = None
    lease: float | None = None
    trouble: float | None = None  # how likely a request to the store goes wrong
    faults: int | None = None  # how many things are done to the system as a whole
    deaths: float | None = None  # how likely a process vanishes at a failpoint
    seconds: float = 6.0  # until all is calm
    schedules: int = 0  # how many there are, besides the tasks


# Where the workers of a user's tasks die.
DEADLY = ("attempt.before", "may_die", "attempt.after", "complete.before", "complete.after")
QUIET = Plan(trouble=0.0, faults=0)


@dataclass(frozen=True, slots=True)
class SimulationRun:
    """What became of a simulation."""

    seed: int
    history: tuple[Record, ...]
    verdict: Verdict
    defects: tuple[str, ...]  # errors that no worker handled
    steps: int
    tasks: tuple[TaskInfo, ...] = ()  # as they are in the end

    @property
    def lines(self) -> bytes:
        """The history as a file has it."""
        return as_lines(self.history)

    @property
    def is_good(self) -> bool:
        return not self.defects and not self.verdict.violations

    def raise_for_violations(self) -> None:
        """Raise InvariantBroken, with the seed, if anything was wrong."""
        if not self.is_good:
            error = InvariantBroken(self.verdict.violations)
            for defect in self.defects:
                error.add_note(defect)
            error.add_note(f"to run it again: simulate({self.seed})")
            raise error


def simulate(
    seed: int,
    plan: Plan | None = None,
    *,
    queue: TaskQueue | None = None,
    start: Callable[[], Awaitable[object]] | None = None,
    kill: float = 0.1,
) -> SimulationRun:
    """Run the simulation of a seed, and check its history.

    With `queue` the tasks are those of a queue of yours, and `start` is an async function that enqueues some. The
    queue gets a store of its own meanwhile. Workers die: where your code calls `may_die()`, and around every attempt,
    each time with the probability `kill`, but not so often that a task fails for it; what else goes wrong is up to the
    `plan`, and by default nothing does. A task may then run again after half of its work. When the run is over all is
    done, and the test looks at what the tasks did. Functions that are not async run at one go, declared
    schedules do not run, asyncio.sleep takes no real time, and there is no network.
    """
    with _without_collector():
        cast = None if queue is None else _Cast.of(queue, start, kill)
        play = _Play(seed, plan or (Plan() if cast is None else QUIET), cast)
        with _replaced(play), _own_store_afterwards(queue):
            play.run()
        verdict = check(play.history)
    tasks = tuple(info_of(task) for task in play.kept())
    return SimulationRun(seed, tuple(play.history), verdict, tuple(play.world.defects), play.world.steps, tasks)


def may_die() -> None:
    """For the fakes of a simulation: here the process may be killed. Anywhere else it does nothing."""
    primitives.failpoint("may_die")


@dataclass(frozen=True, slots=True)
class _Cast:
    """The tasks of a user, in the place of scripts."""

    queue: TaskQueue
    start: Callable[[], Awaitable[object]]
    kill: float

    @classmethod
    def of(cls, queue: TaskQueue, start: Callable[[], Awaitable[object]] | None, kill: float) -> _Cast:
        if start is None or not inspect.iscoroutinefunction(start):
            raise InvalidOptionType("start", start, "an async function that enqueues tasks, with aenqueue")
        if not isinstance(kill, int | float) or not 0 <= kill <= 1:
            raise InvalidOption("kill", kill, "a probability, from 0 to 1")
        hooks = [*queue.registry.hooks.around_tasks]
        for definition in queue.registry:
            own = [one.hook for one in definition.codec.dependencies.values()]
            if not definition.is_async and any(hook.is_async for hook in (*hooks, *own)):
                why = "there are no threads in a simulation, and something async surrounds it"
                raise InvalidTask(why, function=definition.func_path)
        return cls(queue, start, kill)


@contextmanager
def _without_collector() -> Iterator[None]:
    """A run makes little garbage, and a collection looks at everything else that the process has."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def _replaced(play: _Play) -> Iterator[None]:
    """This thread's event loop, random numbers, threads and failpoints are the simulation's. Logging is off."""
    loop = events._get_running_loop()
    before = primitives.random, primitives.start_loop, primitives.failpoint, identity.machine
    logger = logging.getLogger("bullpen.worker")
    was_disabled, logger.disabled = logger.disabled, True
    primitives.random = Random(play.seed)
    primitives.start_loop = play.start_loop
    primitives.failpoint = play.failpoint
    identity.machine = _SimulatedMachine(play.world)
    try:
        with (
            mock.patch.object(LaneRunner, "run_on_thread", _run_on_loop),
            mock.patch.object(TaskAttempt, "_run_in_process", lambda attempt: attempt._lane.run_on_thread(attempt)),
            mock.patch.object(DeclaredSchedules, "_wanted", _nothing) if play.is_of_user else nullcontext(),
        ):
            yield
    finally:
        primitives.random, primitives.start_loop, primitives.failpoint, identity.machine = before
        logger.disabled = was_disabled
        events._set_running_loop(loop)


def _nothing(*_: object) -> list[Task]:
    """Schedules of a user's functions are of no use here."""
    return []


def _run_on_loop(lane: LaneRunner, attempt: TaskAttempt) -> None:
    """A function that is not async, though there are no threads."""
    lane.loop.call_soon(attempt.run_on_thread)


@contextmanager
def _own_store_afterwards(queue: TaskQueue | None) -> Iterator[None]:
    own = None if queue is None else queue._clients
    try:
        yield
    finally:
        if queue is not None and own is not None:
            queue._clients = queue._backend.clients = own


async def _begin(start: Callable[[], Awaitable[object]]) -> None:
    await start()


class _SimulatedMachine(identity.LocalMachine):
    """The host of whichever process asks."""

    def __init__(self, world: World) -> None:
        self._world = world

    def _current(self) -> SimulatedProcess:
        assert self._world.current is not None
        return self._world.current

    def hostname(self) -> str:
        return self._current().host

    def pid(self) -> int:
        return self._current().pid

    def boot_id(self) -> str:  # type: ignore[override]
        return f"boot of {self._current().host}"

    def process_started(self, pid: int) -> float | None:
        return self._world.processes[pid].began if self.exists(pid) else None

    def peak_memory(self) -> int:
        return 0

    def exists(self, pid: int) -> bool:
        process = self._world.processes.get(pid)
        return process is not None and not process.gone


class _Ended:
    """A thread that has ended when it is joined."""

    def join(self) -> None:
        pass


class _SimulatedWorker:
    """One worker process."""

    def __init__(self, process: SimulatedProcess, pool: AsyncWorkerPool) -> None:
        self.process = process
        self.pool = pool

    @property
    def is_there(self) -> bool:
        return not self.process.gone and self.pool.state is not WorkerState.STOPPED


@dataclass(frozen=True, slots=True)
class _SimulatedQueue:
    storage: Client
    registry: TaskRegistry


class _Play:
    """The whole simulation: its processes, their faults, and the recorded history."""

    def __init__(self, seed: int, plan: Plan, cast: _Cast | None = None) -> None:
        self.seed = seed
        self._cast = cast
        self._kills_left = math.inf if cast is None else MOST_KILLS
        self.history: list[Record] = []
        self.world = World(seed)
        random = self._random = Random(seed + 1)
        self._random_of_steps = Random(seed + 2)
        self._tasks = random.randint(1, 12) if plan.tasks is None else plan.tasks
        self._count = random.randint(1, 3) if plan.workers is None else plan.workers
        self._concurrency = random.randint(1, 4) if plan.concurrency is None else plan.concurrency
        self._lease = random.choice((3.0, 6.0)) if plan.lease is None else plan.lease
        self._faults = random.randint(0, 5) if plan.faults is None else plan.faults
        self._deaths = random.choice((0.0, 0.0, 0.005, 0.02)) if plan.deaths is None else plan.deaths
        self._trouble_of_tasks = random.choice((0.0, 0.3, 0.6))
        self._seconds = plan.seconds
        self._schedules = plan.schedules
        self._network = Network(
            self.world, MemoryStorage(self.world.store_time, lambda: self.world.now), self.history.append
        )
        self._network.patience = self._lease * 2 / 3
        self._network.trouble = random.choice((0.0, 0.02, 0.1, 0.3)) if plan.trouble is None else plan.trouble
        self._stage = Stage(self.world, self._note, self._kill)
        self._registry = TaskRegistry() if cast is None else cast.queue.registry
        self._queues = QUEUES if cast is None else queues_of(self._registry)
        if cast is None:
            self._registry.register(self._stage.play, name="play")
        else:
            self._deaths = cast.kill if plan.deaths is None else plan.deaths
        self._workers: list[_SimulatedWorker] = []
        self._enqueues: list[asyncio.Task[None]] = []
        self._ids = 0
        self._calm = False
        self._ending = False
        self._latest_skew = self.world.skew

    @property
    def is_of_user(self) -> bool:
        return self._cast is not None

    # Seams.

    def start_loop(self, main: Callable[[], Any], name: str) -> _Ended:
        assert self.world.current is not None
        self.world.current.new_loop().create_task(main())
        return _Ended()

    def failpoint(self, name: str) -> None:
        process = self.world.current
        if self._cast is not None and name not in DEADLY:
            return
        if process is not None and process.gone:
            raise Vanished
        if process is not None and not self._calm and self._kills_left and self.world.random.random() < self._deaths:
            self._kills_left -= 1
            self._kill(process, name)
            raise Vanished

    def _note(self, record: Record) -> None:
        """From inside a process; the dead say nothing."""
        process = self.world.current
        if process is None or not process.gone:
            self.history.append(record)

    # The course of it.

    def run(self) -> None:
        world = self.world
        end = world.now + self._seconds
        for number in range(self._count):
            self._start_worker(f"host-{number % 2}")
        self._enqueue_all(world.now, end)
        for _ in range(self._faults):
            self._at(world.now + self._random.random() * self._seconds, self._do_something)
        world.run(lambda: False, end)
        self._become_calm()
        everything = world.run(self._all_is_done, world.now + CALM_WITHIN)
        self._stop_all()
        world.run(lambda: not any(worker.is_there for worker in self._workers), world.now + 60.0)
        self._look(everything)
        for worker in self._workers:
            failure = worker.pool._failure
            if failure is not None and not isinstance(failure, TasksLeft) and not worker.process.gone:
                world.defects.append(f"{worker.process.name} has failed: {failure!r}")
            identity.unregister_worker(worker.pool.id)
        world.bury()

    def _at(self, when: float, action: Callable[[], object]) -> None:
        self._network.home.call_at(when, action)

    def _enqueue_all(self, start: float, end: float) -> None:
        producer = self._producer = self.world.new_process("producer", "host-0")
        producer.new_loop()
        if self._cast is not None:
            queue = self._cast.queue  # also what tasks enqueue goes this way
            queue._clients = queue._backend.clients = Clients(self._network.client(producer, "producer"))
            self._enqueues.append(producer.start(_begin(self._cast.start)))
            return
        queue = TaskQueue(self._network.client(producer, "producer"), new_ids=self._new_ids)
        queue.registry = self._registry
        for number in range(self._tasks):
            random = self._random
            script = draw_script(random, self._lease, self._trouble_of_tasks)
            options = draw_options(random, number)
            script[:0] = draw_steps(self._random_of_steps, number, pauses="at_most_once" not in options)
            name = "play" if random.random() < 0.97 else "nowhere"
            when = start + random.random() * (end - start) * random.choice((0.0, 0.8))
            self._at(when, lambda args=(queue, producer, name, script, options): self._enqueue(*args))  # type: ignore[misc]
        for event in EVENTS[1:]:  # the first one never comes
            self._at(start + self._random_of_steps.random() * (end - start), lambda name=event: self._emit(name))  # type: ignore[misc]
        for number in range(self._schedules):
            for _ in range(2):  # the second time it is there
                script = draw_script(self._random, self._lease, self._trouble_of_tasks)
                options = draw_schedule(self._random, number)
                when = start + self._random.random() * (end - start) / 2
                self._at(when, lambda args=(queue, producer, "play", script, options): self._enqueue(*args))  # type: ignore[misc]

    def _enqueue(
        self, queue: TaskQueue, producer: SimulatedProcess, name: str, script: Any, options: dict[str, Any]
    ) -> None:
        async def enqueue() -> None:
            try:
                async with asyncio.timeout(self._lease):
                    await queue.aenqueue(name, [script], elsewhere=True, **options)
            except (ConnectionError, TimeoutError):
                pass  # it is unknown whether it exists

        if not producer.gone:
            self._enqueues.append(producer.start(enqueue()))

    def _new_ids(self, count: int) -> list[str]:
        first, self._ids = self._ids, self._ids + count
        return [f"task-{number:03d}" for number in range(first, first + count)]

    # Workers.

    def _start_worker(self, host: str) -> None:
        process = self.world.new_process(f"worker-{len(self._workers)}", host)
        process.new_loop()
        self.world.current = process
        pool = AsyncWorkerPool(
            _SimulatedQueue(self._network.client(process, process.name), self._registry),
            self._concurrency,
            lanes=[f"{','.join(self._queues)}:{self._concurrency}"],
            name=process.name,
            lease=self._lease,
            grace=self._random.random() * 3,
            max_abandoned=2,
            unknown_after=UNKNOWN_AFTER,
            observer=HistoryObserver(self._note, lambda: self.world.now),
        )
        pool.id = process.name
        self.world.current = None
        self._workers.append(_SimulatedWorker(process, pool))
        self.history.append(
            Record(
                at=self.world.now,
                actor=process.name,
                op="worker",
                state="starting",
                permits=self._concurrency,
                host=host,
            )
        )
        process.start(self._live(process, pool))

    async def _live(self, process: SimulatedProcess, pool: AsyncWorkerPool) -> None:
        try:
            await pool.start()
        except Exception:
            self._restart(process)  # the store was away
            return
        await pool.wait_stopped()

    def _restart(self, process: SimulatedProcess) -> None:
        """The process supervisor starts another process."""

        def start() -> None:
            if not self._ending:
                self._start_worker(process.host)

        self._at(self.world.now + self._random.random() * 4, start)

    def _kill(self, process: SimulatedProcess, where: str) -> None:
        if process.gone or self._ending:
            return
        self.history.append(Record(at=self.world.now, actor=process.name, op="worker", state="crashed", reason=where))
        process.vanish()
        if process.name.startswith("worker"):
            self._restart(process)

    # Faults and operations.

    def _do_something(self) -> None:
        if self._calm:
            return
        random, world = self._random, self.world
        there = [worker.process for worker in self._workers if worker.is_there]
        seconds = random.random() * random.choice((0.3, 1.0, 3.0)) * self._lease
        what = random.choice(WHAT)
        process = random.choice(there) if there else None
        if what == "away":
            self._network.away_until = world.now + seconds
        elif what == "clock":
            world.skew += random.choice((-1, 1)) * random.choice((0.5, 60.0, 3600.0))
            self._latest_skew = max(self._latest_skew, world.skew)
        elif what in ("cancel", "redrive"):
            self._operate(what)
            return
        elif process is None:
            return
        elif what == "kill":
            self._kill(process, "anywhere")
        elif what == "freeze":
            process.frozen_until = world.now + seconds
        elif what == "cut":
            process.cut_off_until = world.now + seconds
        elif what == "stop":
            self._stop(process)
        self._fault(f"{what} {process.name if process is not None else ''} {seconds:.3f}")
        if what in ("freeze", "cut", "away"):
            self._at(world.now + seconds, lambda: self._fault(f"{what} is over"))

    def _fault(self, what: str) -> None:
        self.history.append(Record(at=self.world.now, actor="nemesis", op="fault", state=what))

    def _operate(self, what: str) -> None:
        """A client cancels tasks, or retries them."""
        client = self._network.client(self._network.home.process, "operator")
        ids = [f"task-{number:03d}" for number in range(self._ids) if self._random.random() < 0.4]

        async def operate() -> None:
            try:
                await (client.cancel(ids) if what == "cancel" else client.retry(ids))
            except ConnectionError:
                pass

        self._network.home.create_task(operate())

    def _emit(self, event: str) -> None:
        client = self._network.client(self._network.home.process, "operator")

        async def emit() -> None:
            try:
                await client.emit(event, encode_payload(event, event), None)
            except ConnectionError:
                pass

        self._network.home.create_task(emit())

    def _stop(self, process: SimulatedProcess) -> None:
        """As SIGTERM does."""
        (worker,) = (one for one in self._workers if one.process is process)
        if worker.pool.state is WorkerState.RUNNING:
            process.loops[0].call_soon(worker.pool.begin_stop)
            self._restart(process)

    # The end.

    def _become_calm(self) -> None:
        world = self.world
        self._calm = True
        world.skew = self._latest_skew  # scheduled tasks start by the clock
        self._network.trouble = 0.0
        self._network.away_until = world.now
        for process in world.processes.values():
            process.frozen_until = min(process.frozen_until, world.now)
            process.cut_off_until = min(process.cut_off_until, world.now)
        self._start_worker("host-0")
        if self._schedules:  # they would go on for ever
            client = self._network.client(self._network.home.process, "operator")
            self._network.home.create_task(client.change([task.id for task in self.kept() if task.cron], paused))
        self._fault("calm")

    def _all_is_done(self) -> bool:
        if self.world.steps % 64:
            return False
        if self._network.on_their_way or self._is_enqueueing():
            return False
        tasks = self.kept()
        return all(task.is_final or (task.repeats and task.status is PENDING) for task in tasks)

    def kept(self) -> list[Task]:
        return list(self._network.store._tasks.values())

    def _is_enqueueing(self) -> bool:
        return not self._producer.gone and any(not enqueue.done() for enqueue in self._enqueues)

    def _stop_all(self) -> None:
        self._ending = True
        for worker in self._workers:
            if worker.is_there:
                worker.process.loops[0].call_soon(worker.pool.begin_stop, 1.0)

    def _look(self, everything: bool) -> None:
        """The content of the store at the end."""
        if not everything:
            self._fault("it was not put in order in time")
        self.world.run(lambda: False, self.world.now)
        taking = self._network.home.create_task(
            take_stock(self._network.store, self.history.append, lambda: self.world.now)
        )
        self.world.run(taking.done, self.world.now + 10.0)
        for worker in self._workers:
            if worker.is_there:
                self.world.defects.append(f"{worker.process.name} does not stop")
