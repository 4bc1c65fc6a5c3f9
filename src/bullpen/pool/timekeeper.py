"""What a pool does because time has passed: expire, give up, shrink."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn, Protocol

from bullpen import primitives
from bullpen.core.deadlines import Deadlines
from bullpen.core.lifecycle import PoolState
from bullpen.core.request import QUEUED, Request
from bullpen.core.scaling import STEPS, Surplus
from bullpen.core.tally import Tally
from bullpen.errors import QueueTimeout, RunTimeout, Timeout
from bullpen.pool.agenda import Action, Agenda
from bullpen.pool.supervisor import Supervisor

if TYPE_CHECKING:
    from bullpen.pool.engine import Engine


ENDED = (PoolState.CLOSED, PoolState.FAILED)


class Timer(Protocol):
    """Calls a `tick(now)` again and again, each time at the instant that the last call returned. See `Supervisor`."""

    def wake(self, *, start: bool = True) -> bool: ...
    def forget(self) -> None: ...
    def join(self, timeout: float | None) -> bool: ...


class Timekeeper:
    """Watches the deadlines of requests and keeps the pool's agenda, with one thread that sleeps until something is
    due.
    """

    def __init__(self, engine: Engine, new_timer: Callable[[Callable[[float], float]], Timer] | None = None) -> None:
        self._engine = engine
        self.deadlines = Deadlines()
        self.timed_out = Tally()
        self.queue_timeouts = Tally()
        self.agenda = Agenda()
        self._surplus = Surplus()
        self._unseen = False  # there may be something on the agenda of which the supervisor does not know
        self._supervisor: Timer
        if new_timer is None:
            self._supervisor = Supervisor(self.tick, engine.clock, f"{engine.name}-supervisor", self._unwatched)
        else:
            self._supervisor = new_timer(self.tick)
        self.wake = self._supervisor.wake

    def tick(self, now: float) -> float:
        """Do what is due at `now`; the next instant at which something will be."""
        for request in self.deadlines.due(now):
            timing = request.timing
            if timing is not None and not self.judge(request, now) and not request.ended:
                self.deadlines.arm_again(timing, timing.next_at(request.state))
        self._engine.nested.help()
        if self._engine.state not in ENDED:
            self.agenda.carry_out(now)
        if self._engine.state in ENDED:
            self.agenda.clear()
            return math.inf
        return min(self.deadlines.next_at, self.agenda.next_at)

    def later(self, seconds: float, action: Action) -> None:
        """Do `action` on the supervisor's thread, in `seconds` from now."""
        self.agenda.enter(self._engine.clock.monotonic() + seconds, action)
        self.wake()

    def later_once(self, seconds: float, action: Action) -> None:
        """The same, unless it is on the agenda already."""
        if self.agenda.enter_once(self._engine.clock.monotonic() + seconds, action) or self._unseen:
            self._unseen = False
            self.wake()

    def _unwatched(self) -> None:
        """Nobody looks at the clock: whoever comes next with something to watch has to say so again."""
        self.deadlines.unwatched()
        self._unseen = True

    def watch(self, request: Request) -> None:
        """A request starts that may not run forever."""
        assert request.timing is not None
        if self.deadlines.arm_started(request.timing):
            self.wake()

    def judge(self, request: Request, now: float) -> bool:
        """Apply the limits of `request` at `now`; False if none has passed yet, or it has ended."""
        assert request.timing is not None
        state, worker = request.state, request.holder
        verdict = request.timing.verdict(state, now)
        if verdict is None:
            return False
        if state is QUEUED:
            if not request.expire(verdict):
                return self.judge(request, now)  # it has started, or ended, just now
            self._engine.withdrawn()
        elif not request.abandon(verdict):
            return False
        primitives.failpoint("request.given_up_not_counted")
        self._count(verdict)
        self._engine.report_end(request, worker)
        if worker is not None and not self._engine.runtime.cancel(worker, request) and isinstance(verdict, RunTimeout):
            self._engine.workforce.write_off(worker, request)
        return True

    def raise_too_late(self, request: Request) -> NoReturn:
        """A submitter has waited for room for as long as it may."""
        assert request.timing is not None
        verdict = request.timing.verdict(QUEUED, request.timing.start_by)
        assert verdict is not None
        request.expire(verdict)
        self._count(verdict)
        self._engine.report_end(request, None)
        raise verdict

    def _count(self, verdict: Timeout) -> None:
        (self.queue_timeouts if isinstance(verdict, QueueTimeout) else self.timed_out).add()

    # Idle workers.

    def workers_came(self) -> None:
        """There are workers, which may turn out not to be needed."""
        timeout = self._engine.options.idle_timeout
        if timeout is not None:
            self.later_once(timeout / STEPS, self._step)
        self.reconcile_later()

    def reconcile_later(self) -> None:
        """Look in a while whether all workers are there that should be."""
        interval = self._engine.options.reconcile_interval
        if interval is not None:
            self.later_once(interval, self._engine.workforce.reconcile)

    def _step(self) -> None:
        """One step of the idle timeout has passed: let one worker go, if one was never needed."""
        timeout = self._engine.options.idle_timeout
        dispatcher = self._engine.dispatcher
        removable = self._engine.workforce.staying() - self._engine.options.min_workers
        if timeout is None or removable <= 0 or dispatcher.draining:
            self._surplus.reset()
            return
        fewest, dispatcher.fewest_ready = dispatcher.fewest_ready, len(dispatcher.ready)
        if self._surplus.step(fewest, removable):
            dispatcher.stop_one_idle()
        self.later_once(timeout / STEPS, self._step)

    def forget(self) -> None:
        """This is a forked child: nothing is watched here."""
        self.deadlines.forget()
        self._supervisor.forget()
        self.agenda.forget()

    def join(self) -> None:
        """Wait until the supervisor has ended; nothing is left to watch."""
        self._supervisor.join(None)
