"""One schedule: several actors, each a thread of its own, of which exactly one runs at any time.

The running actor calls `point` before (or after) everything that another actor could notice. There, and where an
actor blocks or ends, a strategy picks the next one; picking the same actor costs no switch. The actor that stops
hands over itself: there is no scheduler thread between two actors.

Promises:

- Given the same code and the same choices, a schedule runs the same way. `choices` has one entry per point where
  more than one actor could go on.
- An actor that waits for something can be picked exactly while that thing is free, or after its time is over.
- Time stands still while any actor can run; then it jumps to the earliest deadline. With `racing_clock` it may also
  jump earlier: the clock is then one more actor to pick.
- A schedule ends when every main actor has ended and no daemon can run, at the first failure, or when no actor can run.
  The remaining actors are unwound by a private exception; locks no longer block and nothing is recorded.
"""

from __future__ import annotations

import _thread
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Collection
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from tests.tools.actors import (
    START,
    Actor,
    BlockedOutsideActors,
    DeadlockFound,
    LivelockFound,
    Stalled,
    Strategy,
    Unwound,
    Waitable,
)

_STALL_SECONDS = 10.0
_UNWINDING_STEPS = 1000
_HIDDEN = frozenset(
    str(Path(__file__).with_name(name)) for name in ("_scheduler.py", "_controlled.py", "lock_order.py")
)


class Scheduler:
    """Runs one schedule. Make the actors first, then call `run`, then `unwind`, whatever happened."""

    def __init__(
        self,
        strategy: Strategy,
        *,
        max_steps: int,
        racing_clock: bool = False,
        watched_files: Collection[str] = (),
        traced: bool = False,
    ) -> None:
        self.current: Actor | None = None
        self.runnable: list[Actor] = []
        self.actors: list[Actor] = []
        self.choices: list[int] = []
        self.steps = 0
        self.now = START
        self.failure: BaseException | None = None
        self.over = False
        self.trace: list[str] | None = [] if traced else None
        self.made = 0
        self.readings = 0
        self.controller = _thread.get_ident()
        self._strategy = strategy
        self._max_steps = max_steps
        self._fair_after = max_steps if strategy.replays else max_steps // 2
        self._racing_clock = racing_clock
        self._watched_files = watched_files
        self._clock = Actor(0, "clock", int, daemon=True)
        self._timed: list[Actor] = []
        self._main_actors_left = 0
        self._ended = _thread.allocate_lock()
        self._ended.acquire()
        self._unwinding_steps = 0

    def add_actor(self, target: Callable[[], object], name: str, *, daemon: bool) -> Actor:
        actor = Actor(len(self.actors) + 1, name, target, daemon)
        self.actors.append(actor)
        self.runnable.append(actor)
        self._main_actors_left += not daemon
        return actor

    def run(self) -> None:
        """Run until the schedule ends; `failure` then says how, if badly."""
        first = self._next(None)
        if first is None:
            return
        self.current = first
        self._resume(first)
        seen = -1
        while not self._ended.acquire(timeout=_STALL_SECONDS):
            if self.steps == seen:
                self.failure = Stalled(f"no step for {_STALL_SECONDS:g} s\n{self._positions()}")
                break
            seen = self.steps
        self.current = None

    def unwind(self) -> None:
        """End every actor that has not ended, one after the other, and let go of what they worked on."""
        self.over = True
        self.current = None
        left = [actor for actor in self.actors if actor.ident is not None and not actor.finished]
        if left:
            self._end_each(left)
        # Every lock made in the schedule refers to its scheduler, and actors refer to what they share. Whatever keeps
        # one lock alive would keep it all.
        self.actors.clear()
        self.runnable.clear()
        self._timed.clear()

    def _end_each(self, left: list[Actor]) -> None:
        # Code under test rightly logs a BaseException that passes through it; this one must not be logged.
        disabled = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            for actor in left:
                if actor.baton.locked():
                    actor.baton.release()
                # A stalled actor cannot be ended: do not wait for it as well.
                self._ended.acquire(timeout=0.1 if isinstance(self.failure, Stalled) else _STALL_SECONDS)
        finally:
            logging.disable(disabled)

    def point(self, operation: str, subject: Any) -> None:
        """Let another actor go on here. The setup and the check, outside all actors, pass through."""
        me = self.current
        if me is None:
            if self.over and _thread.get_ident() != self.controller:
                self._count_unwinding()
            return
        if _thread.get_ident() != me.ident:
            raise RuntimeError(f"{operation} by a thread that primitives.start_thread did not start")
        self.steps += 1
        if self.trace is not None:
            self.trace.append(f"{me.name}: {operation}{_label(subject)}{_innermost(sys._getframe(1))}")
        if self.steps > self._max_steps:
            self.failure = LivelockFound(f"not finished after {self._max_steps} steps\n{self._positions()}")
            self._end(me)
        if len(self.runnable) > 1 or self._racing_clock:
            chosen = self._next(me)
            if chosen is not me:
                self._switch(me, chosen)

    def block(self, subject: Waitable, timeout: float = -1) -> bool:
        """Wait until `subject` lets its waiters run. False when `timeout` seconds passed first."""
        me = self.current
        if me is None:
            if self.over:
                raise Unwound
            raise BlockedOutsideActors(f"would wait for {subject.describe()} outside any actor")
        self.runnable.remove(me)
        subject.waiters.append(me)
        me.waiting_for = subject
        if timeout >= 0:
            me.deadline = self.now + timeout
            self._timed.append(me)
        chosen = self._next(None)
        if chosen is not me:
            self._switch(me, chosen)
        me.waiting_for = None
        if me.timed_out:
            me.timed_out = False
            return False
        subject.waiters.remove(me)
        if me.deadline is not None:
            me.deadline = None
            self._timed.remove(me)
        return True

    def _switch(self, me: Actor, chosen: Actor | None) -> None:
        if chosen is None:
            self._end(me)
        self.current = chosen
        self._resume(chosen)
        me.baton.acquire()
        if self.over:
            raise Unwound

    def _resume(self, actor: Actor) -> None:
        self.start(actor)
        actor.baton.release()

    def start(self, actor: Actor) -> int:
        """Give the actor its OS thread, which waits until it is picked."""
        if actor.ident is None:
            actor.ident = _thread.start_new_thread(self._main, (actor,))
        return actor.ident

    def _end(self, me: Actor) -> NoReturn:
        self.current = None
        self._ended.release()
        me.baton.acquire()
        raise Unwound

    def _main(self, actor: Actor) -> None:
        actor.baton.acquire()
        try:
            if not self.over:
                if self._watched_files:
                    sys.settrace(self._trace_calls)
                actor.target()
        except (Unwound, SystemExit):
            pass
        except BaseException as error:
            if not self.over:
                self.failure = error
        finally:
            sys.settrace(None)
            # threading.current_thread() leaves an entry that nobody removes for threads it did not start.
            threading._active.pop(_thread.get_ident(), None)  # type: ignore[attr-defined]
            self._finish(actor)

    def _finish(self, actor: Actor) -> None:
        actor.finished = True
        if self.over:
            if self._ended.locked():  # False when a stalled actor ends after all
                self._ended.release()
            return
        self.runnable.remove(actor)
        self.runnable.extend(actor.waiters)
        self._main_actors_left -= not actor.daemon
        chosen = None if self.failure else self._next(None)
        self.current = chosen
        if chosen is None:
            self._ended.release()
        else:
            self._resume(chosen)

    def _next(self, current: Actor | None) -> Actor | None:
        """The actor that runs next; None when the schedule is over."""
        while True:
            options = self.runnable
            if self._racing_clock and options and self._main_actors_left and self._sleepers():
                options = [*options, self._clock]
            if len(options) == 1:
                return options[0]
            if options:
                try:
                    chosen = self._choose(current, options)
                except Exception as error:
                    self.failure = error
                    return None
                self.choices.append(chosen.number)
                if chosen is not self._clock:
                    return chosen
                self._advance_clock()
            elif not self._main_actors_left:
                return None
            elif not self._advance_clock():
                self.failure = DeadlockFound(f"no actor can go on\n{self._positions()}")
                return None

    def _choose(self, current: Actor | None, options: list[Actor]) -> Actor:
        # A strategy may starve an actor for whom others spin; only fair turns tell that from a livelock.
        if self.steps > self._fair_after:
            return options[len(self.choices) % len(options)]
        return self._strategy.choose(current, options)

    def _sleepers(self) -> list[Actor]:
        return [actor for actor in self._timed if actor not in self.runnable]

    def _advance_clock(self) -> bool:
        sleepers = self._sleepers()
        if not sleepers:
            return False
        self.now = max(self.now, min(actor.deadline for actor in sleepers if actor.deadline is not None))
        if self.trace is not None:
            self.trace.append(f"clock: {self.now - START:+g} s")
        for actor in sleepers:
            if actor.deadline is not None and actor.deadline <= self.now:
                self._timed.remove(actor)
                actor.deadline = None
                actor.timed_out = True
                if actor.waiting_for is not None:
                    actor.waiting_for.waiters.remove(actor)
                self.runnable.append(actor)
        return True

    def _count_unwinding(self) -> None:
        """Stop an actor that swallowed `Unwound` and spins: from here on it is raised at every step."""
        self._unwinding_steps += 1
        if self._unwinding_steps > _UNWINDING_STEPS:
            raise Unwound

    def _trace_calls(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._trace_lines if frame.f_code.co_filename in self._watched_files else None

    def _trace_lines(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            self.point("line", None)
        return self._trace_lines

    def _positions(self) -> str:
        frames = sys._current_frames()
        lines = []
        for actor in self.actors:
            if actor.finished:
                continue
            kind = "daemon" if actor.daemon else "actor"
            waits = f"waits for {actor.waiting_for.describe()}" if actor.waiting_for else "can run"
            lines.append(f"{kind} {actor.name!r} {waits}")
            frame = frames.get(actor.ident) if actor.ident is not None else None
            if frame is not None:
                stack = [entry for entry in traceback.extract_stack(frame) if entry.filename not in _HIDDEN]
                lines.append("".join(traceback.format_list(stack)).rstrip())
        return "\n".join(lines)


def _label(subject: Any) -> str:
    describe = getattr(subject, "describe", None)
    return f" {describe()}" if describe is not None else ""


def _innermost(frame: FrameType | None) -> str:
    while frame is not None and frame.f_code.co_filename in _HIDDEN:
        frame = frame.f_back
    return "" if frame is None else f" in {frame.f_code.co_qualname}:{frame.f_lineno}"
