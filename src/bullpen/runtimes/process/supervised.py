"""One process of a worker, whatever it speaks: its requests, how it is told to stop, how it ended."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import select
import signal
import sys
import time
from typing import Any

from bullpen import primitives
from bullpen.core.request import FAILED, Request
from bullpen.core.worker import DEAD, EXITED, STOPPING, Worker
from bullpen.errors import InvalidOption, InvalidOptionType, WorkerLost, WorkerStartFailed
from bullpen.runtimes.port import ProducesItems, WorkerEvents
from bullpen.runtimes.process import child, nursery
from bullpen.runtimes.process.calls import RequestCancelled
from bullpen.runtimes.process.items import Items
from bullpen.runtimes.process.output import Output
from bullpen.runtimes.process.switchboard import Timer, switchboard

logger = logging.getLogger("bullpen")

LOOK_GRACE = 0.05  # seconds to write down a stack
TERM_GRACE = 0.5  # seconds between SIGTERM and SIGKILL
LOOK_EVERY = 0.05  # seconds between two looks at the memory of one
PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
LAST_LINES = 20  # of what a dead worker has written
STACK_LINES = 120  # of that, if it ends with the stacks of its threads
FATAL = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL")
WRITES_STACKS = {-getattr(signal, name) for name in FATAL if hasattr(signal, name)}


class Supervised:
    """One process of a worker, from the app's side.

    What it says, deaths and timers are handled on the switchboard's thread. `hand`, `cancel`, `kill` and `join` may be
    called on any; what they share with it is guarded by the lock. Subclasses know the language.
    """

    __slots__ = (
        "_answers",
        "_broken_by",
        "_cancel_grace",
        "_doomed",
        "_early",
        "_events",
        "_failure",
        "_gone",
        "_ids",
        "_lock",
        "_looked_at",
        "_max_rss",
        "_numbers",
        "_nursery",
        "_over",
        "_pid",
        "_pidfd",
        "_ready",
        "_requests",
        "_stderr",
        "_stopping",
        "_streams",
        "_told",
        "_why",
        "_worker",
        "ended_on_purpose",
        "was_killed",
    )

    _stderr: Output

    def __init__(self, worker: Worker, events: WorkerEvents, cancel_grace: float, max_rss: int | None = None) -> None:
        self._worker = worker
        self._events = events
        self._cancel_grace = cancel_grace
        self._max_rss = max_rss
        self._looked_at = 0.0  # when its memory was measured last
        self._lock = primitives.backlog_lock()
        self._numbers = itertools.count(1)
        self._requests: dict[int, Request] = {}  # what it has to answer
        self._ids: dict[Request, int] = {}
        self._streams: dict[int, Items] = {}
        self._told: dict[int, Timer | None] = {}  # requests that shall end, and what comes if they do not
        self._early: set[Request] = set()  # requests that shall end and were not even sent
        self._pid = 0
        self._pidfd: int | None = None
        self._nursery: nursery.Nursery | None = None  # where it is started
        self._ready: tuple[str, Any] | None = None  # it said so before its keeper said that it has started
        self._failure: BaseException | None = None  # why it ends
        self._broken_by: set[int] = set()  # requests that said so
        self._why = ""  # what was done to it
        self._answers = 0  # so far
        self._stopping = False
        self._doomed = False
        self._over = False
        self.ended_on_purpose = False  # for a request that did not stop
        self.was_killed = False  # by a signal, or with its keeper; it has not said that anything was wrong
        self._gone = primitives.gate()
        self._gone.acquire()

    # What subclasses know.

    def _open(self, opened: contextlib.ExitStack, its_own: list[int]) -> None:
        """Open what it is reached by: `opened` closes this side if more is not to be had, `its_own` is its side."""
        raise NotImplementedError

    def _listen(self) -> None:
        """Watch what was opened. On the switchboard's thread."""
        raise NotImplementedError

    def _greet(self) -> None:
        """Send what it has to read first."""
        raise NotImplementedError

    def _orders(self) -> tuple[nursery.Foundation, dict[str, Any]]:
        """What its keeper is told."""
        raise NotImplementedError

    def _encode(self, request: Request) -> Any:
        """What `_call` sends for a request; raises if it cannot be sent."""
        raise NotImplementedError

    def _call(self, number: int, encoded: Any) -> None:
        raise NotImplementedError

    def _say_stop(self) -> None:
        """It has nothing more to do."""
        raise NotImplementedError

    def _say_cancel(self, number: int, first: bool, /) -> None:
        """Tell it to end a request; the `first` one is the one that runs, if it runs one at a time."""
        raise NotImplementedError

    def credit(self, number: int, count: int) -> None:
        """Let a stream go on with so many more items; with none: nobody wants more."""
        raise NotImplementedError

    def _ask_where(self) -> None:
        """Have it write down where it hangs, if it can."""

    def _hear_the_rest(self) -> None:
        """It has ended: handle what it had said before."""
        raise NotImplementedError

    def _close(self) -> None:
        raise NotImplementedError

    # Start.

    def start(self) -> None:
        """Have it started. Raises if that cannot be done, and then nothing is left of it."""
        opened = contextlib.ExitStack()
        its_own: list[int] = []  # until its keeper gets them
        try:
            self._open(opened, its_own)
            switchboard.post(self._begin_to_listen)
            opened.pop_all()
            opened.callback(switchboard.post, self._close)  # for it is watched there
            self._greet()
            foundation, wanted = self._orders()
            fds, its_own = its_own, []
            self._nursery = nursery.start(foundation, self, wanted, fds)
        except BaseException:
            self._over = True
            for fd in its_own:
                os.close(fd)
            opened.close()
            self._gone.release()
            raise
        if self._doomed:
            self.kill()

    def _begin_to_listen(self) -> None:
        if not self._over:
            self._listen()

    @property
    def unwanted(self) -> bool:
        return self._doomed

    def started(self, pid: int, pidfd: int | None) -> None:
        """Its keeper says that it runs."""
        if self._over:  # nobody speaks to it: `start` was interrupted when the keeper knew of it, or could not wait
            if pidfd is not None:
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                os.close(pidfd)
            return
        self._pid = pid
        self._pidfd = pidfd
        if self._doomed:
            self._signal_group(signal.SIGKILL)
        if self._ready is not None:
            self._begin(*self._ready)

    def _is_ready(self, kind: str, declared: Any) -> None:
        """It says so."""
        self._ready = (kind, declared)
        if self._pid:
            self._begin(kind, declared)

    def _begin(self, kind: str, declared: Any) -> None:
        """It has done what comes first, and can work."""
        if self._doomed:  # it will not live to
            return
        worker = self._worker
        worker.kept = (kind, declared)
        try:
            self._events.prepare(worker)
            self._can_work()
        except BaseException as error:
            self._fail(error)
            return
        self._run(self._events.ready(worker))

    def _can_work(self) -> None:
        """Its capacity is known now, and it has no requests yet. Raises if it cannot work after all."""

    # Work. From any thread.

    def hand(self, request: Request | None) -> None:
        if request is None:
            self._stopping = True
            self._say_stop()
        else:
            self._run(request)

    def _run(self, request: Request | None) -> None:
        """Send a request; one that cannot be sent has failed, and then the next."""
        while request is not None:
            try:
                fn = request.fn
                encoded = self._encode(request)
            except BaseException as error:
                request = self._report(request, FAILED, error)
                if isinstance(error, KeyboardInterrupt) and primitives.on_main_thread():
                    self._run(request)
                    raise
                continue
            if self._hand_over(request, fn, encoded):
                return
            request = self._report(request, FAILED, RequestCancelled())

    def _hand_over(self, request: Request, fn: Any, encoded: Any) -> bool:
        """False if it was cancelled meanwhile. A submitter who is interrupted hands over again what was not sent, so it
        hears of an interrupt only if nothing was.
        """
        sent = True
        begun = False
        try:
            with primitives.Uninterrupted():
                begun = True
                sent = self._hand_over_once(request, fn, encoded)
        except KeyboardInterrupt:
            if not begun:
                raise
            primitives.interrupt_later()
        return sent

    def _hand_over_once(self, request: Request, fn: Any, encoded: Any) -> bool:
        number = next(self._numbers)
        producer = fn if isinstance(fn, ProducesItems) else request.function
        with self._lock:
            if request in self._early:
                return False
            if request in self._ids:
                return True
            self._requests[number] = request
            self._ids[request] = number
            if isinstance(producer, ProducesItems):
                self._streams[number] = Items(self, number, producer)
        self._call(number, encoded)
        if number in self._streams:
            self._streams[number].begin()
        return True

    def finished(self, number: int, state: Any, value: Any) -> None:
        """A request has ended there. On the switchboard's thread."""
        stream = self._streams.get(number)
        if stream is not None:
            if stream.keeps_back(state, value):
                return
            state, value = stream.outcome(state, value)
        with self._lock:
            request = self._requests.pop(number, None)
            if request is None:
                return
            del self._ids[request]
            self._answers += 1
            insisting = self._told.pop(number, None)
            self._streams.pop(number, None)
        if insisting is not None:
            switchboard.never_mind(insisting)
        if self._max_rss is not None:
            self._look_at_memory(self._max_rss)
        following = self._report(request, state, value)
        self._kill_if_broken()
        if following is not None and following not in self._ids:  # else it was given before
            self._run(following)

    def _report(self, request: Request, state: Any, value: Any) -> Request | None:
        """Tell the pool how a request has ended; what follows it."""
        following = self._events.finished(self._worker, request, state, value)
        with self._lock:
            self._early.discard(request)  # somebody may have cancelled it at the last moment
        return following

    def _look_at_memory(self, limit: int) -> None:
        """Have it replaced if it has taken more than it should."""
        now = time.monotonic()
        if now < self._looked_at + LOOK_EVERY:
            return
        self._looked_at = now
        worn = getattr(self._events, "worn", None)
        if worn is not None and resident_bytes(self._pid) > limit:
            worn(self._worker)

    # A worker that is broken.

    def _broke(self, number: int, error: BaseException) -> None:
        if self._stopping and not number:
            logger.error("worker %s ends, but what it keeps could not be closed", self._worker.name, exc_info=error)
        else:
            self._fail(error, number)

    def _fail(self, error: BaseException, number: int = 0) -> None:
        """It cannot start, or says that it is broken: it dies when what else runs on it has ended."""
        self._failure = error
        self._broken_by.add(number)
        self._take_no_more()
        self._kill_if_broken()

    def _cannot_go_on(self, error: BaseException) -> None:
        """What it has said, or this side of it, makes no sense any more."""
        if not self._over:
            self._failure = self._failure or error
            self.kill()

    def _kill_if_broken(self) -> None:
        if self._failure is not None and self._broken_by.issuperset(self._requests):
            self.kill()

    def _take_no_more(self) -> None:
        worker = self._worker
        with worker.lock:
            if worker.was_ready and worker.status not in (STOPPING, EXITED, DEAD):
                worker.move(STOPPING)

    # Cancelling and killing. From any thread.

    def cancel(self, request: Request) -> bool:
        """Have `request` end: first by telling it, then by force."""
        with self._lock:
            number = self._ids.get(request)
            if number is None:
                if request in self._worker.requests:
                    self._early.add(request)
                return True
            if number in self._told:
                return True
            self._told[number] = None
            first = next(iter(self._requests)) == number
        self._say_cancel(number, first)
        self._insist_later(number)
        return True

    def _insist_later(self, number: int) -> None:
        timer = switchboard.later(self._cancel_grace, functools.partial(self._insist, number))
        with self._lock:
            if number in self._told:
                self._told[number] = timer
                return
        switchboard.never_mind(timer)  # it has ended meanwhile

    def _insist(self, number: int) -> None:
        """It was told to end, and has not: find out where it is, and end its process."""
        with self._lock:  # whoever listens may just hear that it has ended
            if number not in self._requests or self._over:
                return
            begun = self._worker.capacity > 1 or next(iter(self._requests)) == number
        if not begun:
            self._insist_later(number)
            return
        self._why = f"it did not stop within {self._cancel_grace:g} s after it was told to"
        self._ask_where()
        switchboard.later(LOOK_GRACE, functools.partial(self._terminate, number))

    def _terminate(self, number: int) -> None:
        if number in self._requests and not self._over:
            self.ended_on_purpose = True
            self._signal_group(signal.SIGTERM)
            switchboard.later(TERM_GRACE, self.kill)

    def kill(self) -> None:
        """End it with all that it has started, now."""
        self._doomed = True
        if self._over:
            return
        if self._pid:
            self._signal_group(signal.SIGKILL)
        elif self._nursery is not None:
            self._nursery.give_up_unwanted()

    def _signal(self, number: int) -> None:
        with self._lock, contextlib.suppress(OSError):  # it may have ended just now
            if self._over:
                return
            if self._pidfd is not None:
                signal.pidfd_send_signal(self._pidfd, number)
            else:
                os.kill(self._pid, number)

    def _signal_group(self, number: int) -> None:
        """Signal the worker and what it has started. Once it is dead its keeper sees to the rest of its group."""
        with self._lock, contextlib.suppress(OSError):
            if not self._over and not (self._pidfd is not None and _has_ended(self._pidfd)):
                os.killpg(self._pid, number)

    # The end.

    def orphaned(self) -> None:
        """Its keeper is gone."""
        if self._pid and self._pidfd is not None:  # without one, the number may be another's: nobody keeps it for us
            self._signal_group(signal.SIGKILL)

    def ended(self, code: int | None, why: str) -> None:
        """Its keeper says that it has ended."""
        if self._over:
            return
        with self._lock:  # nobody is about to send it a signal
            self._over = True
        self._take_no_more()
        self._hear_the_rest()
        self._close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        worker = self._worker
        self.was_killed = self._failure is None and (code is None or code < 0)
        try:
            if self._failure is not None:
                self._events.died(worker, self._failure)
            elif self._stopping and not self._requests:
                if code != 0:
                    logger.warning("worker %s ended as it was asked to, but %s", worker.name, _how(code, why))
                self._events.retire(worker)
                self._events.exited(worker)
            else:
                self._events.died(worker, self._obituary(code, why))
        finally:
            with self._lock:
                insisting = [timer for timer in self._told.values() if timer is not None]
                self._told.clear()
                self._ids.clear()
                self._early.clear()
            for timer in insisting:
                switchboard.never_mind(timer)
            self._requests.clear()
            self._streams.clear()
            self._gone.release()

    def _obituary(self, code: int | None, why: str) -> WorkerLost | WorkerStartFailed:
        ready = self._worker.was_ready
        how = _how(code, self._why or why, "" if ready else " before it was ready")
        name = f"worker {self._worker.name}" + (f" (pid {self._pid})" if self._pid else "")
        shown = STACK_LINES if self.ended_on_purpose or code in WRITES_STACKS else LAST_LINES
        lines = self._stderr.tail.decode(errors="backslashreplace").splitlines()[-shown:]
        words = "".join(f"\n    {line}" for line in lines)
        last = f"; the last that it wrote:{words}" if words else ""
        if not ready:
            return WorkerStartFailed(f"{name} {how}{last}", worker=self._worker.name)
        return WorkerLost(f"{name} {how}{last}", worker=self._worker.name, exit_code=code, stderr="\n".join(lines))

    def join(self, timeout: float | None) -> bool:
        if timeout == 0:
            gone = self._gone.acquire(False)
        else:
            gone = primitives.system_clock.wait(self._gone, timeout)
        if gone:
            self._gone.release()
        return gone


def may_start_ahead() -> bool:
    """Whether a pool that is made here and now may start processes before there is work for them. What a worker process
    imports makes pools that nobody may ever use there.
    """
    return child.imports_here() is None


def pipe_from_it(opened: contextlib.ExitStack, its_own: list[int]) -> int:
    """A pipe for what it writes."""
    ours, its = os.pipe()
    opened.callback(os.close, ours)
    its_own.append(its)
    return ours


def _has_ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def resident_bytes(pid: int) -> int:
    """How much memory a process has; 0 if that cannot be known."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * PAGE
    except (OSError, IndexError):
        return 0


def _how(code: int | None, why: str, when: str = "") -> str:
    """How a process ended, for people."""
    because = f"{when}: {why}" if why else when
    if code is None:
        return f"is gone{because}"
    if code >= 0:
        return f"ended with exit code {code}{because}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name}{because}"


def checked_bytes(name: str, value: Any) -> int | None:
    """An amount of memory, as an option; None for none."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidOptionType(name, value, "a number of bytes, or None")
    if value < 1:
        raise InvalidOption(name, value, "≥ 1 byte, or None")
    if sys.platform != "linux":
        raise InvalidOption(name, value, "None on this system: memory is limited on Linux only")
    return value
