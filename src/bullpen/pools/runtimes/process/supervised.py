"""What a worker process and a program have in common: requests, cancelling, killing, the end."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import select
import signal
import sys
import time
from typing import Any

from bullpen import primitives
from bullpen.errors import InvalidOption, InvalidOptionType, WorkerLost, WorkerStartFailed
from bullpen.pools.dispatch.request import FAILED, Request
from bullpen.pools.dispatch.worker import DEAD, EXITED, STOPPING, Worker
from bullpen.pools.runtimes.port import ProducesItems, SupportsRecycling, WorkerEvents
from bullpen.pools.runtimes.process import child, forkserver_client
from bullpen.pools.runtimes.process.calls import RequestCancelled
from bullpen.pools.runtimes.process.io_thread import TimerHandle, io_thread, log_thread
from bullpen.pools.runtimes.process.items import Items
from bullpen.pools.runtimes.process.output import CHUNK, LARGEST_PIPE, Output
from bullpen.telemetry import logger

LOOK_GRACE = 0.05  # seconds between two looks at the stack that a hanging process writes
MOST_LOOKS = 20  # a busy machine may take long to schedule that process
TERM_GRACE = 0.5  # seconds between SIGTERM and SIGKILL
LOOK_EVERY = 0.05  # seconds between two measurements of its memory
MOST_TURNS = LARGEST_PIPE // CHUNK  # in which the output of a process that has ended is passed on
TURN_PAUSE = 0.0001  # seconds; the io thread handles other events meanwhile
PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
LAST_LINES = 20  # of stderr, in the error of a dead worker
STACK_LINES = 120  # the same, if stderr ends with the stacks of its threads
FATAL = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL")
WRITES_STACKS = {-getattr(signal, name) for name in FATAL if hasattr(signal, name)}


class Supervised:
    """One process of a worker, as the app sees it. Subclasses know how to talk to it.

    The io thread handles its messages, its end and its timers. Any thread may call `hand`, `cancel`, `kill` and `join`.
    `_lock` guards the state that they share.
    """

    __slots__ = (
        "_answers",
        "_broken_by",
        "_cancel_grace",
        "_doomed",
        "_early",
        "_events",
        "_failure",
        "_forkserver",
        "_gone",
        "_ids",
        "_lock",
        "_looked_at",
        "_max_rss",
        "_numbers",
        "_over",
        "_pid",
        "_pidfd",
        "_ready",
        "_requests",
        "_single",
        "_stderr",
        "_stop_grace",
        "_stop_timer",
        "_stopping",
        "_streams",
        "_told",
        "_why",
        "_worker",
        "ended_on_purpose",
        "peak_memory",
        "was_killed",
    )

    _stderr: Output

    def __init__(
        self,
        worker: Worker,
        events: WorkerEvents,
        cancel_grace: float,
        stop_grace: float | None = None,
        max_rss: int | None = None,
    ) -> None:
        self._worker = worker
        self._events = events
        self._cancel_grace = cancel_grace
        self._stop_grace = stop_grace
        self._stop_timer: TimerHandle | None = None  # kills it if it does not end
        self._max_rss = max_rss
        self._looked_at = 0.0  # when its memory was last measured
        self._lock = primitives.leaf_lock()
        self._numbers = itertools.count(1)
        self._requests: dict[int, Request] = {}  # that it has not answered, by number
        self._ids: dict[Request, int] = {}
        self._streams: dict[int, Items] = {}
        self._told: dict[int, TimerHandle | None] = {}  # cancelled requests; a timer kills the process
        self._early: set[Request] = set()  # requests that were cancelled before they were sent
        self._pid = 0
        self._pidfd: int | None = None
        self._forkserver: forkserver_client.ForkserverClient | None = None  # that starts it
        self._ready: tuple[str, Any] | None = None  # what its ready message said, if that came before the forkserver's
        self._failure: BaseException | None = None  # the error with which it dies
        self._broken_by: set[int] = set()  # the requests that reported it
        self._why = ""  # why the runtime kills it
        self._single = True  # it runs one request at a time
        self._answers = 0  # so far
        self._stopping = False
        self._doomed = False
        self._over = False
        self.ended_on_purpose = False  # killed because a request did not stop
        self.was_killed = False  # by a signal, or with its forkserver, without an error of its own
        self.peak_memory: int | None = None  # bytes, once its forkserver has reported its end
        self._gone = primitives.gate()
        self._gone.acquire()

    # For subclasses.

    def _open(self, opened: contextlib.ExitStack, its_own: list[int]) -> None:
        """Open its sockets and pipes: `opened` closes the app's ends if the start fails, `its_own` gets the others."""
        raise NotImplementedError

    def _listen(self) -> None:
        """Watch the app's ends. On the io thread."""
        raise NotImplementedError

    def _greet(self) -> None:
        """Send the first message."""
        raise NotImplementedError

    def _orders(self) -> tuple[forkserver_client.Preloaded, dict[str, Any]]:
        """The forkserver that starts it, and the orders for that."""
        raise NotImplementedError

    def _encode(self, request: Request) -> Any:
        """The message that `_call` sends for a request. Raises if the request cannot be sent."""
        raise NotImplementedError

    def _call(self, number: int, encoded: Any) -> None:
        raise NotImplementedError

    def _say_stop(self) -> None:
        """Tell it to end."""
        raise NotImplementedError

    def _say_cancel(self, number: int, first: bool, /) -> None:
        """Tell it to cancel a request. `first`: the request runs, if the process runs one at a time."""
        raise NotImplementedError

    def credit(self, number: int, count: int) -> None:
        """Allow a stream to send `count` more items; 0: its reader has left."""
        raise NotImplementedError

    def _ask_where(self) -> bool:
        """Ask the process to write its stack to stderr; False if it cannot."""
        return False

    def _hear_the_rest(self) -> bool:
        """It has ended: handle the messages that it sent before, and a turn of its output; whether there may be more of
        that.
        """
        raise NotImplementedError

    def _rescue(self, death: BaseException) -> None:
        """It has died: report the requests of which some outcomes are known."""

    def _close(self) -> None:
        raise NotImplementedError

    # Start.

    def start(self) -> None:
        """Start it. If that raises, nothing of it is left."""
        opened = contextlib.ExitStack()
        its_own: list[int] = []  # until the forkserver gets them
        try:
            self._open(opened, its_own)
            io_thread.post(self._begin_to_listen)
            opened.pop_all()
            opened.callback(io_thread.post, self._close)  # the io thread watches them
            self._greet()
            preloaded, wanted = self._orders()
            fds, its_own = its_own, []
            self._forkserver = forkserver_client.start(preloaded, self, wanted, fds)
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
        """The forkserver reports that it runs."""
        if self._over:  # `start` was interrupted after the forkserver got the order, or gave up
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
        """It reports that it is ready."""
        self._ready = (kind, declared)
        if self._pid:
            self._begin(kind, declared)

    def _begin(self, kind: str, declared: Any) -> None:
        """It runs and is ready: it gets its first request."""
        if self._doomed:  # it is being killed
            return
        worker = self._worker
        worker.kept = (kind, declared)
        try:
            self._events.prepare(worker)
            self._single = worker.capacity == 1
            self._can_work()
        except BaseException as error:
            self._fail(error)
            return
        self._run(self._events.ready(worker))

    def _can_work(self) -> None:
        """Its capacity is known, and it has no requests yet. Raises if it cannot work with that."""

    # Work. From any thread.

    def hand(self, request: Request | None) -> None:
        if request is None:
            self._stop()
        else:
            self._run(request)

    def _stop(self) -> None:
        self._stopping = True
        if self._stop_grace is not None:
            self._stop_timer = timer = io_thread.call_later(self._stop_grace, self._stop_too_slow)
            if self._over:
                io_thread.cancel_timer(timer)
        self._say_stop()

    def _stop_too_slow(self) -> None:
        self._punish(f"it did not end within {self._stop_grace:g} s after it was told to")

    def _run(self, request: Request | None) -> None:
        """Send a request. If it cannot be sent, it fails, and the next one is sent."""
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
        """Send a request; False if it was cancelled before. A submitter that gets a `KeyboardInterrupt` hands the
        request over again, so this raises one only if it sent nothing.
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
        """A request has ended. On the io thread."""
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
            io_thread.cancel_timer(insisting)
        if self._max_rss is not None:
            self._look_at_memory(self._max_rss)
        following = self._report(request, state, value)
        self._kill_if_broken()
        if following is not None and following not in self._ids:  # else it was prefetched
            self._run(following)

    def _report(self, request: Request, state: Any, value: Any) -> Request | None:
        """Report the end of a request to the pool; the next request for this worker."""
        worker = getattr(self, "_worker", None)
        if worker is None:  # it has died in the meantime, and the pool knows that
            return None
        following = self._events.finished(worker, request, state, value)
        with self._lock:
            self._early.discard(request)  # it may have been cancelled at the last moment
        return following

    def _look_at_memory(self, limit: int) -> None:
        """Ask the pool to replace it if it has more memory than `max_rss`."""
        now = time.monotonic()
        if now < self._looked_at + LOOK_EVERY:
            return
        self._looked_at = now
        if isinstance(self._events, SupportsRecycling) and resident_bytes(self._pid) > limit:
            self._events.needs_recycling(self._worker)

    # A worker that is broken.

    def _broke(self, number: int, error: BaseException) -> None:
        if self._stopping and not number:
            logger.error("worker %s ends, but closing its instance failed", self._worker.name, exc_info=error)
        else:
            self._fail(error, number)

    def _fail(self, error: BaseException, number: int = 0) -> None:
        """It cannot start, or reports that it is broken. It is killed when the other requests on it have ended."""
        self._failure = error
        self._broken_by.add(number)
        self._take_no_more()
        self._kill_if_broken()

    def _cannot_go_on(self, error: BaseException) -> None:
        """Its messages can no longer be read: kill it now."""
        if not self._over:
            self._failure = error if self._failure is None else self._failure
            self.kill()

    def _closed(self, what: str) -> None:
        """It has ended, or it has only closed a descriptor, without which it cannot work."""
        self._expect_report()
        if not (self._over or self._stopping):
            io_thread.call_later(TERM_GRACE, functools.partial(self._goes_on_without, what))

    def _goes_on_without(self, what: str) -> None:
        if not self._stopping and not (self._pidfd is not None and _has_ended(self._pidfd)):
            self._punish(f"it closed its {what}")

    def _punish(self, why: str) -> None:
        """Kill it, for a reason that its error names."""
        if not self._over:
            self._why = self._why or why
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
        """Cancel `request`. If it does not end within `cancel_grace`, kill the process."""
        with self._lock:
            number = self._ids.get(request)
            if number is None:
                if not self._over and request in self._worker.requests:
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
        timer = io_thread.call_later(self._cancel_grace, functools.partial(self._insist, number))
        with self._lock:
            if number in self._told:
                self._told[number] = timer
                return
        io_thread.cancel_timer(timer)  # the request has ended in the meantime

    def _insist(self, number: int) -> None:
        """A cancelled request has not ended: write its stacks to stderr, then kill its process."""
        with self._lock:
            if number not in self._requests or self._over:
                return
            begun = not self._single or next(iter(self._requests)) == number
        if not begun:
            self._insist_later(number)
            return
        self._why = f"it did not stop within {self._cancel_grace:g} s after it was told to"
        before = self._stderr.tail
        looks = MOST_LOOKS if self._ask_where() else 1
        io_thread.call_later(LOOK_GRACE, functools.partial(self._await_stack, number, before, before, looks))

    def _await_stack(self, number: int, before: bytes, last: bytes, looks: int) -> None:
        """Terminate the process once it has written its stack, and after `looks` looks in any case."""
        tail = self._stderr.tail
        if looks > 1 and (tail is before or tail is not last) and not self._over:
            io_thread.call_later(LOOK_GRACE, functools.partial(self._await_stack, number, before, tail, looks - 1))
        elif number in self._requests and not self._over:
            self.ended_on_purpose = True
            self._signal_group(signal.SIGTERM)
            io_thread.call_later(TERM_GRACE, self.kill)

    def ask_stack(self, request: Request) -> bool:
        """Let the process write its stacks to stderr. False if it cannot, or does not run `request` now."""
        with self._lock:
            runs = not self._over and next(iter(self._requests.values()), None) is request
        return runs and self._ask_where()

    @property
    def output(self) -> bytes:
        """The end of its stderr."""
        return self._stderr.tail

    def kill(self) -> None:
        """Kill its process group now."""
        self._doomed = True
        if self._over:
            return
        if self._pid:
            self._signal_group(signal.SIGKILL)
            self._expect_report()
        elif self._forkserver is not None:
            self._forkserver.give_up_unwanted()

    def _signal(self, number: int) -> None:
        with self._lock, contextlib.suppress(OSError):  # it may have ended in the meantime
            if self._over:
                return
            if self._pidfd is not None:
                signal.pidfd_send_signal(self._pidfd, number)
            else:
                os.kill(self._pid, number)

    def _signal_group(self, number: int) -> None:
        """Signal its process group. After its end the forkserver kills the rest of the group."""
        with self._lock, contextlib.suppress(OSError):
            if not self._over and not (self._pidfd is not None and _has_ended(self._pidfd)):
                os.killpg(self._pid, number)
        if number == signal.SIGKILL:  # it may have left the group
            self._signal(number)

    # The end.

    def _expect_report(self) -> None:
        """It has ended, or ends soon: its forkserver has to report that."""
        if self._forkserver is not None:
            self._forkserver.expect_answer()

    @property
    def overdue(self) -> bool:
        """Its forkserver has not started it yet, or has not reported its end yet."""
        if self._over:
            return False
        return not self._pid or (self._pidfd is not None and _has_ended(self._pidfd))

    @property
    def is_over(self) -> bool:
        return self._over

    def orphaned(self) -> None:
        """Its forkserver has ended."""
        if self._pid and self._pidfd is not None:  # without one, another process may have got its pid
            self._signal_group(signal.SIGKILL)

    def ended(self, code: int | None, why: str) -> None:
        """The forkserver reports that it has ended."""
        if self._over:
            return
        with self._lock:  # no other thread is about to signal it
            self._over = True
        self._take_no_more()
        self._finish(code, why, MOST_TURNS)

    def _finish(self, code: int | None, why: str, turns: int) -> None:
        """Report its end when its output was passed on, in turns, because all workers share this thread."""
        try:
            if self._hear_the_rest() and turns:
                io_thread.call_later(TURN_PAUSE, functools.partial(self._finish, code, why, turns - 1))
                return
        except BaseException:  # there is no memory for it, for example
            logger.exception("the last messages of worker %s could not be read", self._worker.name)
        worker = self._worker
        death = self._failure
        self.was_killed = death is None and (code is None or code < 0)
        if death is None and (self._requests or not self._stopping):
            death = self._describe_death(code, why)
        if death is not None:
            self._rescue(death)
        self._close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        try:
            if death is not None:
                self._events.died(worker, death)
            else:
                if code != 0:
                    logger.warning("worker %s was asked to end, and %s", worker.name, _how(code, why))
                self._events.retire(worker)
                self._events.exited(worker)
        finally:
            with self._lock:
                insisting = [timer for timer in self._told.values() if timer is not None]
                self._told.clear()
                self._ids.clear()
                self._early.clear()
            if self._stop_timer is not None:
                insisting.append(self._stop_timer)
                self._stop_timer = None
            for timer in insisting:
                io_thread.cancel_timer(timer)
            self._requests.clear()
            self._streams.clear()
            log_thread.run_after(self._gone.release)  # it has ended when its output was logged
            del self._worker  # which refers to this

    def never_began(self, request: Request) -> bool:
        """Whether it has ended before it began `request`."""
        raise NotImplementedError

    def _describe_death(self, code: int | None, why: str) -> WorkerLost | WorkerStartFailed:
        ready = self._worker.was_ready
        how = _how(code, self._why or why, "" if ready else " before it was ready")
        name = f"worker {self._worker.name}" + (f" (pid {self._pid})" if self._pid else "")
        shown = STACK_LINES if self.ended_on_purpose or code in WRITES_STACKS else LAST_LINES
        lines = self._stderr.tail.decode(errors="backslashreplace").splitlines()[-shown:]
        if not ready:
            last = "\n    ".join(["; its last output:", *lines]) if lines else ""
            return WorkerStartFailed(f"{name} {how}{last}", worker=self._worker.name)
        match lines:
            case []:
                last = ""
            case [line]:
                last = f"; its last output: {line}"
            case _:
                last = "; the field stderr and the log have its last output"
        text = "\n".join(lines)
        return lost_class()(
            f"{name} {how}{last}",
            worker=self._worker.name,
            exit_code=code,
            stderr=text,
            peak_memory=self.peak_memory,
        )

    def join(self, timeout: float | None) -> bool:
        if timeout == 0:
            gone = self._gone.acquire(False)
        else:
            gone = primitives.system_clock.wait(self._gone, timeout)
        if gone:
            self._gone.release()
        return gone


def may_prestart() -> bool:
    """Whether a new pool may start processes before there are requests for them. It may not while a worker process
    imports a module, because that pool may never be used there.
    """
    return child.imports_here() is None


def pipe_from_it(opened: contextlib.ExitStack, its_own: list[int]) -> int:
    """A pipe from it to the app; the app's end."""
    ours, its = os.pipe()
    opened.callback(os.close, ours)
    its_own.append(its)
    return ours


def _has_ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def resident_bytes(pid: int) -> int:
    """The resident memory of a process; 0 if the system does not tell."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * PAGE
    except (OSError, IndexError):
        return 0


def lost_class() -> type[WorkerLost]:
    """`WorkerLost`, and a `BrokenProcessPool` too in an app that may catch that."""
    if "concurrent.futures.process" not in sys.modules:
        return WorkerLost
    from bullpen.pools.runtimes.process import broken

    return broken.WorkerLost


def _how(code: int | None, why: str, when: str = "") -> str:
    """How a process ended, for an error text."""
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


def checked_seconds(name: str, value: Any) -> float:
    """The option `name`, checked: a number of seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidOptionType(name, value, "a number of seconds")
    if not value >= 0:
        raise InvalidOption(name, value, "≥ 0 seconds")
    return float(value)


def checked_bytes(name: str, value: Any) -> int | None:
    """The option `name`, checked: a number of bytes, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidOptionType(name, value, "a number of bytes, or None")
    if value < 1:
        raise InvalidOption(name, value, "≥ 1 byte, or None")
    if sys.platform != "linux":
        raise InvalidOption(name, value, "None on this system: memory is limited on Linux only")
    return value
