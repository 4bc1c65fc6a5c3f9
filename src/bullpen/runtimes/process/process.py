"""One worker process, from the app's side: what it is sent, what it answers, how it is told to stop, how it ended."""

from __future__ import annotations

import functools
import itertools
import logging
import os
import select
import signal
import socket
from typing import Any

from bullpen import primitives
from bullpen.core.request import DONE, FAILED, Request
from bullpen.core.worker import DEAD, EXITED, STOPPING, Worker
from bullpen.errors import MissingMainGuard, NotPicklable, RemoteError, WorkerLost, WorkerStartFailed
from bullpen.runtimes.port import CallsMany, Outcomes, ProducesItems, WorkerEvents
from bullpen.runtimes.process import child, failures, nursery, wire
from bullpen.runtimes.process.calls import RequestCancelled
from bullpen.runtimes.process.items import Items, unreadable
from bullpen.runtimes.process.output import Output
from bullpen.runtimes.process.pickling import Encoded, encode_call, main_module
from bullpen.runtimes.process.switchboard import Channel, switchboard

logger = logging.getLogger("bullpen")

DUMP_GRACE = 0.05  # seconds to write down a stack
TERM_GRACE = 0.5  # seconds between SIGTERM and SIGKILL
AHEAD = 32  # requests that a quick worker may have at once
STREAK = 4  # how many quick ones make a quick worker
SMALL = 16 * 1024  # bytes of a request that may be given ahead
PATIENCE = 0.02  # seconds after which a quick worker that does not answer is stuck
LAST_LINES = 20  # of what a dead worker has written


class Process:
    """One worker process, from the app's side.

    Frames, deaths and timers are handled on the switchboard's thread. `hand`, `cancel`, `kill` and `join` may be
    called on any; what they share with it is guarded by the lock.
    """

    __slots__ = (
        "_answers",
        "_broken_by",
        "_cancel_grace",
        "_channel",
        "_doomed",
        "_early",
        "_events",
        "_failure",
        "_gone",
        "_has_main",
        "_ids",
        "_lock",
        "_numbers",
        "_over",
        "_pid",
        "_pidfd",
        "_ready",
        "_recalls",
        "_requests",
        "_sent",
        "_stderr",
        "_stdout",
        "_stopping",
        "_streak",
        "_streams",
        "_told",
        "_watched",
        "_why",
        "_worker",
    )

    def __init__(self, worker: Worker, events: WorkerEvents, cancel_grace: float) -> None:
        self._worker = worker
        self._events = events
        self._cancel_grace = cancel_grace
        self._lock = primitives.backlog_lock()
        self._numbers = itertools.count(1)
        self._requests: dict[int, Request] = {}  # what it has to answer
        self._ids: dict[Request, int] = {}
        self._streams: dict[int, Items] = {}
        self._told: set[int] = set()  # requests that shall end
        self._early: set[Request] = set()  # requests that shall end and were not even sent
        self._pid = 0
        self._pidfd: int | None = None
        self._ready: tuple[str, Any] | None = None  # it said so before its keeper said that it has started
        self._failure: BaseException | None = None  # why it ends
        self._broken_by: set[int] = set()  # requests that said so
        self._why = ""  # what was done to it
        self._sent = 0  # the number of the last request that was sent, and not only noted
        self._recalls = 0  # that were not answered yet: meanwhile it is given nothing ahead
        self._answers = 0  # so far
        self._streak = 0  # how many of the last ones were quick
        self._watched = False  # somebody will look whether it gets on
        self._has_main = False
        self._stopping = False
        self._doomed = False
        self._over = False
        self._gone = primitives.gate()
        self._gone.acquire()

    # Start.

    def start(self, setup: Encoded, preload: tuple[str, ...], how: str) -> None:
        """Have it started, to do first what `setup` says."""
        data, buffers, needs_main = setup
        mine, theirs = socket.socketpair()
        out, its_out = os.pipe()
        err, its_err = os.pipe()
        self._channel = Channel(mine)
        self._stdout = Output(out, self._worker.name, "stdout")
        self._stderr = Output(err, self._worker.name, "stderr")
        self._send(wire.BEGIN, 0, data, buffers, needs_main)
        switchboard.post(self._listen)
        try:
            nursery.start(preload, self, how, [theirs.detach(), its_out, its_err])
        except BaseException:
            switchboard.post(self._close)
            raise

    def _listen(self) -> None:
        switchboard.watch(self._channel.sock.fileno(), self._heard)
        self._stdout.watch()
        self._stderr.watch()

    def started(self, pid: int, pidfd: int | None) -> None:
        """Its keeper says that it runs."""
        self._pid = pid
        self._pidfd = pidfd
        if self._doomed:
            self._signal_group(signal.SIGKILL)
        if self._ready is not None:
            self._begin(*self._ready)

    def _begin(self, kind: str, declared: Any) -> None:
        """It has done what comes first, and can work."""
        worker = self._worker
        worker.kept = (kind, declared)
        try:
            self._events.prepare(worker)
        except BaseException as error:
            self._fail(error)
            return
        self._send(wire.CAPACITY, worker.capacity)
        self._run(self._events.ready(worker))

    # Work. From any thread.

    def hand(self, request: Request | None) -> None:
        if request is None:
            self._stopping = True
            self._send(wire.STOP, 0)
        else:
            self._run(request)

    def _run(self, request: Request | None) -> None:
        """Send a request; one that cannot be sent has failed, and then the next."""
        while request is not None:
            try:
                fn, args, kwargs = request.fn, request.args, request.kwargs
                if request.ended:
                    raise RequestCancelled
                data, buffers, needs_main = encode_call(fn, args, kwargs)
            except BaseException as error:
                request = self._events.finished(self._worker, request, FAILED, error)
                if isinstance(error, KeyboardInterrupt) and primitives.on_main_thread():
                    self._run(request)
                    raise
                continue
            number = next(self._numbers)
            producer = fn if isinstance(fn, ProducesItems) else request.function
            with self._lock:
                unwanted = request in self._early
                if unwanted:
                    self._early.discard(request)
                else:
                    self._requests[number] = request
                    self._ids[request] = number
                    if isinstance(producer, ProducesItems):
                        self._streams[number] = Items(self, number, producer)
            if unwanted:
                request = self._events.finished(self._worker, request, FAILED, RequestCancelled())
                continue
            self._send(wire.CALL, number, data, buffers, needs_main)
            self._sent = number
            if number in self._streams:
                self._streams[number].begin()
            return

    def _send(self, kind: int, id: int, data: bytes = b"", buffers: Any = (), needs_main: bool = False) -> None:
        if needs_main and not self._has_main:
            self._has_main = True
            self._channel.send(wire.pack(wire.MAIN, 0, wire.dumps(main_module())[0]))
        self._channel.send(wire.pack(kind, id, data, buffers))

    def credit(self, number: int, count: int) -> None:
        """Let a stream go on with so many more items; with none: nobody wants more."""
        self._send(wire.CREDIT, number, count.to_bytes(4, "little"))

    # What it says. On the switchboard's thread.

    def _heard(self) -> None:
        try:
            frames = self._channel.receive()
        except (EOFError, OSError):
            switchboard.forget(self._channel.sock.fileno())  # its keeper will say what has happened
            return
        for frame in frames:
            self._handle(*frame)
        if self._streak >= STREAK and not self._over:
            self._give_ahead()

    def _handle(self, kind: int, number: int, data: Any, buffers: tuple[Any, ...]) -> None:
        self._streak = self._streak + 1 if kind == wire.QUICK else 0
        if kind in (wire.QUICK, wire.DONE):
            try:
                value = wire.loads(data, buffers)
                if type(value) is child.Outcomes:
                    value = _outcomes(value)
            except BaseException as error:
                self.finished(number, FAILED, unreadable("the result", error))
            else:
                self.finished(number, DONE, value)
        elif kind == wire.FAILED:
            self.finished(number, FAILED, _error(data))
        elif kind == wire.REFUSED:
            problem = _error(data)
            if isinstance(problem.__cause__, MissingMainGuard):  # the function is missing because of that
                problem = problem.__cause__
            elif not isinstance(problem, NotPicklable):
                problem = unreadable("the call", problem)
            self.finished(number, FAILED, problem)
        elif kind == wire.ITEM:
            stream = self._streams.get(number)
            if stream is not None:
                stream.came(data, buffers)
        elif kind == wire.READY:
            self._ready = wire.loads(data, buffers)
            if self._pid:
                self._begin(*self._ready)
        elif kind == wire.NOT_BEGUN:
            self._take_back(wire.loads(data, ()))
        elif kind == wire.BROKEN:
            self._broke(number, _error(data))

    def finished(self, number: int, state: Any, value: Any) -> None:
        """A request has ended there."""
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
            self._told.discard(number)
            self._streams.pop(number, None)
        following = self._events.finished(self._worker, request, state, value)
        self._kill_if_broken()
        if following is not None and following not in self._ids:  # else it was given before
            self._run(following)

    # Requests that it is given before it can begin them.

    def _give_ahead(self) -> None:
        """It gets through requests quickly: let it have some more, so that it need not wait for each."""
        ask = getattr(self._events, "ahead", None)  # not every pool has any
        room = AHEAD - len(self._requests)
        runs = next((self._ids.get(request) for request in self._worker.requests), None)
        if runs is None or runs > self._sent:  # it waits, or is just being sent something, which has to come first
            return
        if ask is None or room < AHEAD // 2 or self._recalls or self._streams or self._stopping:
            return
        pieces: list[Any] = []
        given: list[Request] = ask(self._worker, room)
        for place, request in enumerate(given):
            try:
                fn, args, kwargs = request.fn, request.args, request.kwargs
                if isinstance(fn, ProducesItems | CallsMany) or request.ended:
                    raise ValueError
                data, buffers, needs_main = encode_call(fn, args, kwargs)
                if buffers or len(data) > SMALL or (needs_main and not self._has_main):
                    raise ValueError
            except BaseException:  # it comes again, alone, and is sent, or told what is wrong with it
                self._streak = 0
                self._events.not_begun(self._worker, given[place:])  # type: ignore[attr-defined]
                break
            number = next(self._numbers)
            with self._lock:
                self._requests[number] = request
                self._ids[request] = number
            pieces += wire.pack(wire.CALL, number, data)
        if pieces:
            self._channel.send([b"".join(pieces)])
            self._sent = number
            if not self._watched:
                self._watched = True
                switchboard.later(PATIENCE, functools.partial(self._watch, self._answers))

    def _watch(self, answers: int) -> None:
        """If it is stuck with a request, it gives back what it has not begun."""
        self._watched = len(self._requests) > 1 and not self._over
        if not self._watched:
            return
        if self._answers == answers and not self._recalls:
            self._streak = 0
            self._recall()
        switchboard.later(PATIENCE, functools.partial(self._watch, self._answers))

    def _recall(self) -> None:
        with self._lock:
            self._recalls += 1
        self._send(wire.RECALL, 0)
        self._signal(wire.NUDGE)

    def _take_back(self, numbers: list[int]) -> None:
        requests = []
        with self._lock:
            self._recalls -= 1
            for number in numbers:
                request = self._requests.pop(number, None)
                if request is not None:
                    del self._ids[request]
                    self._told.discard(number)
                    requests.append(request)
        if not requests:
            return
        turn = requests[0] if requests[0] in self._worker.requests else None  # it had just come to this one
        self._events.not_begun(self._worker, requests)  # type: ignore[attr-defined]
        self._run(turn)

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
        """Have `request` end: first by an exception in it, then by force."""
        with self._lock:
            number = self._ids.get(request)
            if number is None:
                if request in self._worker.requests:
                    self._early.add(request)
                return True
            if number in self._told:
                return True
            self._told.add(number)
            first = next(iter(self._requests)) == number
        self._send(wire.CANCEL, number)
        if self._worker.capacity == 1:  # a signal comes after what it says: it looks at that when it gets it
            if first:
                self._signal(wire.NUDGE)
            else:
                self._recall()
        switchboard.later(self._cancel_grace, functools.partial(self._insist, number))
        return True

    def _insist(self, number: int) -> None:
        """It was told to end, and has not: find out where it is, and end its process."""
        if number not in self._requests or self._over:
            return
        if self._worker.capacity == 1 and next(iter(self._requests)) != number:
            switchboard.later(self._cancel_grace, functools.partial(self._insist, number))  # it has not even begun
        else:
            self._why = f"it did not stop within {self._cancel_grace:g} s after it was told to"
            self._signal(wire.DUMP)
            switchboard.later(DUMP_GRACE, functools.partial(self._terminate, number))

    def _terminate(self, number: int) -> None:
        if number in self._requests and not self._over:
            self._signal_group(signal.SIGTERM)
            switchboard.later(TERM_GRACE, self.kill)

    def kill(self) -> None:
        """End it with all that it has started, now."""
        self._doomed = True
        if self._pid and not self._over:
            self._signal_group(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        try:
            if self._pidfd is not None:
                signal.pidfd_send_signal(self._pidfd, number)
            else:
                os.kill(self._pid, number)
        except OSError:  # it has just ended
            pass

    def _signal_group(self, number: int) -> None:
        """Signal the worker and what it has started. Once it is dead its keeper sees to the rest of its group."""
        if self._pidfd is not None and select.select([self._pidfd], [], [], 0)[0]:
            return
        try:
            os.killpg(self._pid, number)
        except OSError:
            pass

    # The end.

    def ended(self, code: int | None, why: str) -> None:
        """Its keeper says that it has ended."""
        self._over = True
        self._take_no_more()
        try:
            while True:
                frames = self._channel.receive()
                if not frames:
                    break
                for frame in frames:
                    self._handle(*frame)
        except (EOFError, OSError):
            pass
        self._stdout.drain()
        self._stderr.drain()
        self._close()
        worker = self._worker
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
            self._requests.clear()
            self._ids.clear()
            self._streams.clear()
            self._gone.release()

    def _obituary(self, code: int | None, why: str) -> WorkerLost | WorkerStartFailed:
        ready = self._worker.was_ready
        how = _how(code, why or self._why, "" if ready else " before it was ready")
        name = f"worker {self._worker.name}" + (f" (pid {self._pid})" if self._pid else "")
        lines = self._stderr.tail.decode(errors="backslashreplace").splitlines()[-LAST_LINES:]
        words = "".join(f"\n    {line}" for line in lines)
        last = f"; the last that it wrote:{words}" if words else ""
        if not ready:
            return WorkerStartFailed(f"{name} {how}{last}", worker=self._worker.name)
        return WorkerLost(f"{name} {how}{last}", worker=self._worker.name, exit_code=code, stderr="\n".join(lines))

    def _close(self) -> None:
        self._channel.close()
        self._stdout.close()
        self._stderr.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    def join(self, timeout: float | None) -> bool:
        if timeout == 0:
            gone = self._gone.acquire(False)
        else:
            gone = primitives.system_clock.wait(self._gone, timeout)
        if gone:
            self._gone.release()
        return gone


def _outcomes(sent: child.Outcomes) -> Outcomes:
    errors = {place: failures.rebuild(entries, RemoteError) for place, entries in sent.errors.items()}
    return Outcomes(sent.values, errors, sent.seconds)


def _error(data: Any) -> BaseException:
    return failures.rebuild(wire.loads(data, ()), RemoteError)


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
