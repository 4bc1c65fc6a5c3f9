"""The workers of a pool: how they start, end, die, and are replaced. What a runtime reports arrives here."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from bullpen import primitives
from bullpen.core.lifecycle import PoolState, RequestState
from bullpen.core.request import Request
from bullpen.core.restarts import Restarts
from bullpen.core.scaling import deficit
from bullpen.core.worker import BUSY, DEAD, EXITED, HELPER, READY, STARTING, STOPPING, TAINTED, Circumstances, Worker
from bullpen.errors import WorkerAbandoned, WorkerLost, WorkerStartFailed
from bullpen.pool.nested import all_on
from bullpen.pool.recycling import Recycling
from bullpen.pool.suspects import Suspects
from bullpen.runtimes import port
from bullpen.telemetry.catalogue import Kind

if TYPE_CHECKING:
    from bullpen.pool.engine import Engine
    from bullpen.runtimes.port import WorkerEvents

logger = logging.getLogger("bullpen")

OPEN_STATES = (PoolState.INITIALIZING, PoolState.RUNNING)

LEAST_RESTARTS = 8  # the default of `restart_limit`: twice as many as there may be workers, at least so many …
RESTART_WINDOW = 60.0  # … in so many seconds


class Workforce:
    """Starts and ends workers. Implements `WorkerEvents`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ids = itertools.count()
        self._circumstances = Circumstances(engine.clock, engine.options.worker)
        self.finished: Callable[[Worker, Request, RequestState, Any], Request | None]  # the dispatcher's own
        self.ready_ever = 0
        self.abandoned_ever = 0
        self._slots: set[int] = set()  # those that exist, whoever has them
        self._doomed: set[int] = set()  # those that vanish when whoever has them gives them back
        self._new_slots = itertools.count()
        self._helper_numbers = itertools.count()
        self._broken: set[Worker] = set()  # those that end as soon as what they run has ended
        self._abandoned: list[Worker] = []  # until their functions return after all
        self._departing: deque[Worker] = deque()  # reported as gone; their threads may need a moment more
        limit = engine.options.restart_limit
        self.restarts = Restarts(*(limit or (max(LEAST_RESTARTS, 2 * engine.max_workers), RESTART_WINDOW)))
        self._held: set[int] = set()  # slots whose workers died too soon after others: empty for a while
        self.suspects = Suspects(engine)
        self.recycling = Recycling(engine)
        self._successor_numbers = itertools.count(1)
        self._unpledged: dict[int, Worker] = {}  # successors: they bring no room along before they have a slot
        self._batches = 0  # that are just being started
        self._failure: tuple[Worker, BaseException] | None = None  # one of them could not start, and none was there
        options = engine.options
        self._gives_ahead = not (
            options.max_requests is not None
            or options.taint_on
            or options.max_age is not None
            or getattr(engine.runtime, "max_rss", None) is not None
        )
        self._missed = False  # one of the first workers did not start, while it was open whether any would

    # Slots: popping one is the permission to start a worker. All of this is done with the engine's lock held.

    def deal_slots(self, count: int) -> None:
        """Make it `count` slots: new ones, or fewer, the free ones first. Workers in slots that are no more have to
        go.
        """
        free = self._engine.dispatcher.free
        while len(self._slots) < count and self._doomed:
            self._slots.add(self._doomed.pop())
        while len(self._slots) < count:
            slot = next(self._new_slots)
            self._slots.add(slot)
            free.append(slot)
        while len(self._slots) > count and free:
            with contextlib.suppress(IndexError):  # somebody may take it at this moment
                self._slots.discard(free.pop())
        surplus = sorted(self._slots)[count:]
        self._slots.difference_update(surplus)
        self._doomed.update(surplus)

    def _put_back(self, slot: int) -> None:
        if slot in self._slots:
            self._engine.dispatcher.free.append(slot)
        self._doomed.discard(slot)

    # Start.

    def spawn(self, slot: int) -> None:
        """Start a worker in `slot`, which the caller has taken; in a bounded backlog it is pledged already."""
        engine = self._engine
        with engine.lock:
            ended = engine.state in (PoolState.CLOSED, PoolState.FAILED)
            possible = not ended and slot in self._slots
            if possible:
                worker = self._new(slot, f"{self._prefix}_{slot}")
            else:
                self._put_back(slot)
        if possible:
            self._start(worker)
        else:
            if engine.bounded is not None:
                engine.bounded.break_pledge()
            if not ended:  # the slot is no more, but another may be free
                engine.dispatcher.grow_to_demand()

    def fill_minimum(self) -> None:
        """Start the next batch of the workers that have to be there whatever the demand."""
        engine = self._engine
        if engine.state not in OPEN_STATES or self._held:
            return  # what is held comes back here
        missing = engine.options.min_workers - self.in_slots()
        batch = min(missing, engine.options.startup_batch_size)
        if self._start_more(batch) == batch < missing:
            engine.time.later_once(engine.options.startup_batch_delay, self.fill_minimum)

    def _fill_soon(self) -> None:
        minimum = self._engine.options.min_workers
        if minimum and self._engine.state in OPEN_STATES and self.in_slots() < minimum:
            self._engine.time.later_once(0.0, self.fill_minimum)

    def _start_more(self, count: int) -> int:
        """Start up to `count` workers, for which there need not be work; how many there were slots for."""
        with self._engine.lock:
            self._batches += 1
        try:
            return self._start_each(count)
        finally:
            with self._engine.lock:
                self._batches -= 1
                failure, self._failure = self._failure, None
            if failure is not None:
                self._start_failed(*failure)

    def _start_each(self, count: int) -> int:
        engine = self._engine
        for started in range(count):
            slot = engine.dispatcher.pop_slot()
            if slot is None:
                return started
            if engine.bounded is not None:
                engine.bounded.pledge()
            self.spawn(slot)
            if engine.state not in OPEN_STATES:
                return started
        return max(0, count)

    def in_slots(self) -> int:
        """How many workers there are that count: all but helpers and those that were given up."""
        return sum(worker.slot not in (None, HELPER) for worker in self._engine.registry.snapshot())

    def staying(self) -> int:
        """How many of them were not told to end; who was may take long about it."""
        workers = self._engine.registry.snapshot()
        return sum(worker.slot not in (None, HELPER) and worker.status is not STOPPING for worker in workers)

    def suffices(self) -> bool:
        """Whether enough workers have started for the pool to run: all that have to be there, or some, if the others
        cannot be had for now.
        """
        ready = self.ready_ever
        return ready > 0 and (ready >= self._engine.options.min_workers or self.restarts.degraded)

    def reconcile(self) -> None:
        """Start workers that should be there and are not. A safety net: who dies is replaced at once."""
        engine = self._engine
        dispatcher = engine.dispatcher
        waiting = dispatcher.demand()
        if not (len(engine.registry) or waiting or engine.options.min_workers):
            return  # a pool at rest has no timer
        engine.time.reconcile_later()
        if engine.state not in OPEN_STATES or dispatcher.paused or self._held:
            return
        dispatcher.match()
        staying = [worker for worker in engine.registry.snapshot() if worker.slot not in (None, HELPER)]
        taking = [worker for worker in staying if worker.status in (STARTING, READY, BUSY)]
        missing = deficit(
            minimum=engine.options.min_workers,
            maximum=engine.max_workers,
            workers=len(staying),
            waiting=waiting,
            room=sum(worker.capacity - worker.load for worker in taking),
            capacity=engine.options.capacity,
        )
        started = self._start_more(min(missing, engine.options.reconcile_batch_size))
        if started:
            logger.warning("%s: %d workers were missing; started %d", engine.name, missing, started)

    def start_helper(self, events: WorkerEvents) -> None:
        """Start a worker that takes no slot and reports to `events`."""
        engine = self._engine
        with engine.lock:
            if engine.state in (PoolState.CLOSED, PoolState.FAILED):
                return
            worker = self._new(HELPER, f"{self._prefix}_helper_{next(self._helper_numbers)}")
        engine.report(Kind.WORKER_STARTING, worker, None)
        try:
            engine.runtime.start(worker, events)
        except Exception as error:
            events.died(worker, error)

    @property
    def _prefix(self) -> str:
        return self._engine.options.thread_name_prefix or self._engine.name

    def enlist_this_thread(self) -> Worker:
        """Make the current thread a worker, which the caller lends for a while."""
        engine = self._engine
        with engine.lock:
            worker = self._new(HELPER, f"{self._prefix}_exit")
        with worker.lock:
            worker.was_ready = True
            worker.move(READY)
            worker.move(BUSY)
        engine.report(Kind.WORKER_STARTING, worker, None)
        engine.report(Kind.WORKER_READY, worker, None)
        port.enter(worker)
        return worker

    def dismiss_this_thread(self, worker: Worker) -> None:
        engine = self._engine
        port.leave()
        with worker.lock:
            worker.move(STOPPING)
            worker.move(EXITED)
        engine.report(Kind.WORKER_STOPPING, worker, None)
        engine.report(Kind.WORKER_EXITED, worker, None)
        engine.registry.remove(worker)
        engine.closed_if_done()

    def _new(self, slot: int | None, name: str) -> Worker:
        capacity = 1 if slot == HELPER else self._engine.options.capacity
        worker = Worker(next(self._ids), slot, name, self._engine.clock.monotonic(), capacity, self._circumstances)
        self._engine.registry.add(worker)
        return worker

    def _start(self, worker: Worker) -> None:
        self._engine.report(Kind.WORKER_STARTING, worker, None)
        primitives.failpoint("worker.registered_not_started")
        try:
            self._engine.runtime.start(worker, self)
        except Exception as error:
            self.died(worker, error)
        except BaseException:  # an interrupt, which says nothing of the worker: the next one may start
            with worker.lock:
                worker.move(DEAD)
            self._engine.report(Kind.WORKER_DEAD, worker, None)
            self._break_pledge(worker)
            self._gone(worker, replace=False)
            raise
        else:
            self._engine.time.workers_came()

    def _pledge(self, worker: Worker) -> None:
        """A successor brings room along like any other worker from now on."""
        bounded = self._engine.bounded
        if self._unpledged.pop(worker.id, None) is not None and bounded is not None:
            bounded.pledge()

    def _break_pledge(self, worker: Worker) -> None:
        """It will not come."""
        bounded = self._engine.bounded
        if self._unpledged.pop(worker.id, None) is None and bounded is not None:
            bounded.break_pledge()

    # Succession.

    def may_be_replaced(self, worker: Worker) -> bool:
        """Whether `worker` works in a slot of its own. The engine's lock is held."""
        if self._engine.registry.get(worker.id) is not worker or worker.slot not in self._slots:
            return False
        return worker.status in (READY, BUSY, TAINTED)

    def new_successor(self, old: Worker) -> Worker:
        """A worker that will have the slot of `old`. The engine's lock is held."""
        worker = self._new(None, f"{self._prefix}_{old.slot}.{next(self._successor_numbers)}")
        self._unpledged[worker.id] = worker
        return worker

    def start_successor(self, worker: Worker) -> None:
        self._start(worker)

    def succeed(self, worker: Worker, ready: bool) -> None:
        """The one that `worker` is to replace is gone: it begins, if it is `ready` and there is a slot for it."""
        if worker.slot is None:
            self._engine.dispatcher.stop(worker, when_idle=False)
        else:
            self._pledge(worker)
        if ready:
            request = self._begin(worker)
            if request is not None:
                worker.hand(request)

    # What workers report.

    def prepare(self, worker: Worker) -> Awaitable[None] | None:
        instances = self._engine.instances
        return None if instances is None else instances.make(worker)

    def retire(self, worker: Worker) -> Awaitable[None] | None:
        instances = self._engine.instances
        return None if instances is None else instances.close(worker)

    def ready(self, worker: Worker) -> Request | None:
        with self._engine.lock:
            self.ready_ever += 1
            self.restarts.came_up(self._engine.clock.monotonic())
            missed, self._missed = self._missed, False
        if self.restarts.degraded:
            self._watch_recovery()
        if missed:
            self._fill_soon()
        self._engine.report(Kind.WORKER_READY, worker, None)
        if self.recycling.holds(worker):
            return None  # until the one that it replaces has ended
        return self._begin(worker)

    def _begin(self, worker: Worker) -> Request | None:
        """A worker that is ready begins to take requests."""
        if worker.slot is not None:
            self._pledge(worker)
        request = self._engine.dispatcher.started(worker)
        self._pledge(worker)  # one that only ends: what it took back it had never brought
        self._engine.worker_is_ready()
        self.recycling.came_up(worker)
        return request

    def finished_watched(self, worker: Worker, request: Request, state: RequestState, value: Any) -> Request | None:
        """`finished`, for pools in which it says something about the worker."""
        self.suspects.judge(worker, state, value)
        following = self._engine.dispatcher.finished(worker, request, state, value)
        self.recycling.worked(worker)
        if following is None and worker.slot is None and worker.requests:
            self._engine.closed_if_done()  # what is still on it may all be given up
        return following

    def exited(self, worker: Worker) -> None:
        with worker.lock:
            worker.move(EXITED)
        self._engine.report(Kind.WORKER_EXITED, worker, None)
        broken = worker in self._broken
        self._broken.discard(worker)
        self._gone(worker, hold=self._count_death(worker) if broken else 0.0)

    def broke(self, worker: Worker, request: Request, error: BaseException) -> None:
        """`request`, which runs within what `worker` runs, says that the worker is broken.

        It is lost even if it could run again: what it runs within may wait for it, in the slot that it would need.
        """
        self._lose(worker, request, error)
        self.condemn(worker, error)

    def condemn(self, worker: Worker, error: BaseException) -> None:
        """`worker` is broken, but still runs something: when that has ended it ends too, as if it had died."""
        if not worker.transient:
            logger.error("%s: worker %s is broken, and ends soon: %r", self._engine.name, worker.name, error)
            self._broken.add(worker)
            self._engine.dispatcher.stop(worker, when_idle=False)

    def died(self, worker: Worker, error: BaseException) -> None:
        with worker.lock:
            starting = not worker.was_ready
            worker.move(DEAD)
            requests, worker.requests = worker.requests, ()
        self._broken.discard(worker)
        self._engine.report(Kind.WORKER_DEAD, worker, None)
        self._crashed(worker, requests, error)
        if worker.ahead:
            self._spared(worker)
        unwanted = starting and self._engine.dispatcher.draining and getattr(worker.handle, "unwanted", False)
        if starting:
            if not unwanted:
                logger.error("%s: worker %s could not start", self._engine.name, worker.name, exc_info=error)
            self._break_pledge(worker)
        else:
            logger.error("%s: worker %s died: %s", self._engine.name, worker.name, repr(error))  # keeps no traceback
        on_purpose = unwanted or getattr(worker.handle, "ended_on_purpose", False)
        hold = 0.0 if on_purpose else self._count_death(worker)
        hopeless = starting and not self._was_bad_luck(worker)
        if hopeless:
            self._start_failed(worker, error)
        self._gone(
            worker, replace=not hopeless, hold=hold
        )  # what cannot start is not tried again until more work comes

    def _was_bad_luck(self, worker: Worker) -> bool:
        """Whether `worker`, which could not start, was killed from outside in a pool whose workers do start, and do
        not die all the time.
        """
        killed = getattr(worker.handle, "was_killed", False)
        return bool(killed and self.ready_ever and not self.restarts.degraded)

    def _count_death(self, worker: Worker) -> float:
        """Count it against the restart limit; for how many seconds its slot has to stay empty."""
        engine = self._engine
        with engine.lock:
            others_up = any(other.was_ready and other is not worker for other in engine.registry.snapshot())
            before = self.restarts.degraded
            now, luck = engine.clock.monotonic(), primitives.random.random()
            hold = self.restarts.died(now, luck, others_up=others_up)
            self._missed = self._missed or not self.ready_ever
        if not self.restarts.degraded:
            return 0.0
        if not before:
            message = "%s: degraded: more than %d workers died within %g s; from now on they are replaced with delay"
            logger.error(message, engine.name, self.restarts.limit, self.restarts.window)
            engine.report(Kind.POOL_DEGRADED, None, None)
            engine.worker_is_ready()
        self._watch_recovery()
        return 0.0 if engine.dispatcher.draining else hold

    def _watch_recovery(self) -> None:
        steady_at = self.restarts.steady_at
        if steady_at < math.inf:
            self._engine.time.later_once(steady_at - self._engine.clock.monotonic(), self._recover)

    def _recover(self) -> None:
        engine = self._engine
        with engine.lock:
            recovered = self.restarts.recover(engine.clock.monotonic())
        if recovered:
            logger.warning("%s: recovered: no worker has died for %g s", engine.name, self.restarts.window)
            engine.report(Kind.POOL_RECOVERED, None, None)
        else:
            self._watch_recovery()

    def helper_died(self, worker: Worker, error: BaseException) -> None:
        """What it would have run stays in the backlog. What it ran is lost: whoever waits for it has the slot."""
        logger.error("%s: helper %s died: %r", self._engine.name, worker.name, error)
        with worker.lock:
            worker.move(DEAD)
            requests, worker.requests = worker.requests, ()
        self._engine.report(Kind.WORKER_DEAD, worker, None)
        for request in requests:
            self._lose(worker, request, error)
        self._gone(worker)

    def _crashed(self, worker: Worker, requests: tuple[Request, ...], error: BaseException) -> None:
        """What was on the worker runs again elsewhere if it may, and is lost otherwise."""
        for request in self._engine.retries.keep(requests) if requests else ():
            self._lose(worker, request, error)

    def _lose(self, worker: Worker, request: Request, error: BaseException) -> None:
        if request.lose(loss(worker, error)):
            self._engine.lost.add()
            self._engine.report_end(request, worker)

    def _spared(self, worker: Worker) -> None:
        """What the worker had not begun goes to others, or nowhere if the pool starts nothing more."""
        unwanted = [request for request in worker.ahead if self._engine.retries.over and request.cancel_retry()]
        for request in unwanted:
            self._engine.cancelled.add()
            self._engine.report_end(request, None)
        self._engine.dispatcher.take_back(worker, list(worker.ahead))

    def ahead(self, worker: Worker, count: int) -> list[Request]:
        """A busy worker could take up to `count` more requests, to begin them when it comes to that."""
        return self._engine.dispatcher.give_ahead(worker, count) if self._gives_ahead else []

    def waiting_function(self) -> Callable[..., Any] | None:
        """What a worker that is just being started will run first, as a rule."""
        try:
            function: Callable[..., Any] | None = self._engine.dispatcher.backlog.entries[0].function
        except IndexError:
            return None
        return function

    def worn(self, worker: Worker) -> None:
        """It should be replaced when that is convenient."""
        self.recycling.wears_out(worker)

    def not_begun(self, worker: Worker, requests: list[Request]) -> Request | None:
        """It gives these back, but for one that it had just come to."""
        turn = self._engine.dispatcher.take_back(worker, requests)
        self._engine.closed_if_done()
        return turn

    def recall_given(self) -> None:
        """What workers were given ahead, and have not begun, waits again."""
        for worker in self._engine.registry.snapshot():
            if worker.ahead:
                worker.handle.recall()

    def _start_failed(self, worker: Worker, error: BaseException) -> None:
        """If that was the last hope of whoever waits, they are told why."""
        engine = self._engine
        with engine.lock:
            if self._has_hope():
                return
            if self._batches:  # the others of its batch may start
                self._failure = (worker, error)
                return
            failed = engine.fail(error)
        refusal: BaseException
        if failed:
            engine.report_state()
            engine.time.wake(start=False)
        if engine.state is PoolState.FAILED:
            refusal = engine.not_open()
        else:
            refusal = WorkerStartFailed(f"worker {worker.name} could not start: {error!r}", worker=worker.name)
            refusal.__cause__ = error
        engine.refuse_backlog(refusal)

    def _has_hope(self) -> bool:
        """Whether a worker is there that lives: of those that die together, the last to look finds none."""
        return any(other.status not in (EXITED, DEAD) for other in self._engine.registry.snapshot())

    def _gone(self, worker: Worker, *, replace: bool = True, hold: float = 0.0) -> None:
        """Nothing runs in the worker's slot any more; if something waits, another may be started there, after `hold`
        seconds.
        """
        engine = self._engine
        engine.refuse_line(worker)
        primitives.failpoint("worker.ended_not_removed")
        with engine.lock:
            engine.registry.remove(worker)
            held = None
            if worker.slot is None:
                if worker in self._abandoned:
                    self._abandoned.remove(worker)
            else:
                slot, worker.slot = worker.slot, None
                if slot in self._slots and self.recycling.inherits(worker, slot):
                    pass
                elif hold and slot in self._slots and not engine.dispatcher.draining:
                    held = slot
                    self._held.add(slot)
                else:
                    self._put_back(slot)
            self.suspects.forget(worker)
            while self._departing and engine.runtime.join(self._departing[0], 0):
                self._departing.popleft()
            self._departing.append(worker)
        if engine.instances is not None:
            engine.instances.forget(worker)
        if held is not None:
            engine.time.later(hold, functools.partial(self._release, held))
        self.recycling.gone(worker, hold)
        if engine.state in (PoolState.INITIALIZING, PoolState.RUNNING, PoolState.DRAINING):
            engine.use_new_room(grow=replace or not self._has_hope())  # for those that came since it was given up
        if self.ready_ever:
            self._fill_soon()
        engine.closed_if_done()

    def _release(self, slot: int) -> None:
        """A slot has been empty for long enough."""
        engine = self._engine
        with engine.lock:
            if slot not in self._held:
                return
            self._held.discard(slot)
            self._put_back(slot)
        engine.use_new_room()
        self._fill_soon()

    def release_held(self) -> None:
        """The pool drains: what waits shall not wait for a slot that nobody has."""
        for slot in list(self._held):
            self._release(slot)

    # End.

    def stop_idle(self) -> None:
        for worker in self._engine.registry.snapshot():
            self._engine.dispatcher.stop(worker, when_idle=True)

    def stop_slotless(self) -> None:
        """Let the workers go whose slots no longer exist, after what they run now."""
        for worker in self._engine.registry.snapshot():
            slot = worker.slot
            if slot is not None and slot != HELPER and slot not in self._slots:
                self._engine.dispatcher.stop(worker, when_idle=False)

    def write_off(self, worker: Worker, request: Request) -> None:
        """A worker that cannot be ended runs past its limit: give its slot to another, within `max_abandoned`."""
        engine = self._engine
        if request not in worker.requests:
            return  # the worker died just now
        allowed = engine.options.max_abandoned
        with engine.lock:
            replaced = len(self._abandoned) < allowed and request in worker.requests and self._abandon(worker)
        if not replaced:
            message = "%s: worker %s runs past run_timeout and cannot be ended; its slot stays taken (max_abandoned=%d)"
            logger.warning(message, engine.name, worker.name, allowed)
            return
        logger.warning("%s: worker %s runs past run_timeout; abandoned and replaced", engine.name, worker.name)
        self._left_behind(worker)

    def _abandon(self, worker: Worker) -> bool:
        """Count it no longer, give its slot away; when its function returns after all, it ends. The lock is held."""
        with worker.lock:
            if worker.status in (EXITED, DEAD):
                return False
            if worker.status is not STOPPING:
                worker.move(STOPPING)
            slot, worker.slot = worker.slot, None
        self._engine.registry.leave_behind(worker)
        self.suspects.forget(worker)
        if slot is not None and not (slot in self._slots and self.recycling.inherits(worker, slot)):
            self._put_back(slot)
        self._abandoned.append(worker)
        self.abandoned_ever += 1
        return True

    def _left_behind(self, worker: Worker) -> None:
        self._engine.report(Kind.WORKER_ABANDONED, worker, None)
        self.recycling.gone(worker, 0.0)
        self._engine.refuse_line(worker)
        self._engine.use_new_room()
        self._fill_soon()
        self._engine.closed_if_done()

    def give_up_running(self, grace: float) -> None:
        """The grace has passed: kill what can be killed, and tell whoever waits for the rest."""
        engine = self._engine
        behind = engine.registry.left_behind()  # with others than those for which it was abandoned
        leaving = []
        for worker in [*engine.registry.snapshot(), *behind]:
            if engine.runtime.kill(worker):
                continue
            with engine.lock:
                abandoned = worker not in behind and self._abandon(worker)
            for request in all_on(worker):
                if self._give_up(worker, request, self.outlasted(worker, grace)):
                    engine.time.timed_out.add()
                    engine.report_end(request, worker)
            if abandoned:
                message = "%s: worker %s still runs after the grace of %g s; left behind"
                logger.warning(message, engine.name, worker.name, grace)
                self._left_behind(worker)
            elif worker not in behind:
                leaving.append(worker)
        engine.closed_if_done()
        for worker in leaving:  # it has ended, and is about to say so
            engine.runtime.join(worker, None)

    def outlasted(self, worker: Worker, grace: float) -> WorkerAbandoned:
        """What whoever waits is told when the pool does not wait any longer."""
        message = f"pool {self._engine.name!r} closed and its grace of {grace:g} s passed while this still ran"
        return WorkerAbandoned(message, worker=worker.name)

    def _give_up(self, worker: Worker, request: Request, error: WorkerAbandoned) -> bool:
        if request.attended:
            if request.abandon(error):
                return True
            return not self._engine.cancel_queued(request) and request.abandon(error)  # it may be about to run inline
        with worker.lock:  # which is all that guards a request that nobody waits for
            return request.abandon(error)

    def forget(self) -> None:
        """This is a forked child: there is nobody to wait for."""
        self._departing.clear()

    def join(self) -> None:
        """Wait until the threads, or whatever they are, of workers that have ended are gone."""
        while True:
            with self._engine.lock:
                if not self._departing:
                    return
                worker = self._departing.popleft()
            self._engine.runtime.join(worker, None)


def loss(worker: Worker, error: BaseException) -> WorkerLost:
    """What whoever waits for something on `worker`, which died of `error`, is told."""
    if isinstance(error, WorkerLost):
        lost = copy.copy(error)  # each has a traceback of its own
        lost.__cause__ = error.__cause__
        return lost
    lost = WorkerLost(f"worker {worker.name} died with this request on it: {error!r}", worker=worker.name)
    lost.__cause__ = error
    return lost
